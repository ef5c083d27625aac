/*
 * board.h - the rounds of one handle, in memory that the ranks of a node share.
 *
 * Ranks that are present finish a round for those that are absent (combining).  A rank that finds a round due, the
 * *claimer*, *claims* it, *takes* the pending parts of all ranks, and *publishes* the result in a ring.  It wakes only
 * ranks that sleep in a Wait for the round.  The data of a large round are cut into chunks; ranks that are inside the
 * library take them by *tickets*.
 *
 *   station   one a rank: its pending parts, whether it waits, how far its max_lag lets rounds go.
 *             Only its owner adds to it; a taker takes all parts at once, by compare-and-swap on its word.
 *   turn      one a handle: the round to be run next and its phase
 *                 OPEN -> TAKING -> OPEN of the next round               (small: the claimer moves the data)
 *                                -> MOVING -> OPEN of the next round     (large: the rank that finishes the last chunk
 *                                                                         publishes)
 *             Rounds of a handle are strictly one after the other.  A round is complete when `turn` moves on.
 *             With several nodes, a node's part is all that its ranks give, and the leader of the node in the round
 *             (nodes.h) takes it to the other nodes:
 *                 OPEN -> TAKING [-> MOVING] -> AWAY -> OPEN of the next round
 *   ring      entries, each with the header and the result of one round, written under the claim.  A reader copies,
 *             and then compares the entry's sequence number.
 *
 * A rank that changes something that could bring a round about does so by a seq_cst access, and then looks itself
 * whether the round is due.  Of several such ranks the last sees what all have done.  A rank that finds the turn
 * claimed leaves NEWS there: a claimer that decides against the round sees it when it opens the turn again, and looks
 * again.
 *
 * Each PP_STEP names the step of the models in tests/model that the access belongs to.
 */
#ifndef PP_BOARD_H
#define PP_BOARD_H

#include "../base/tally.h"
#include "job.h"

enum {
    PP_PAGE = 4096,                  /* vectors of a page or more are whole pages of the board, and begin on one */
    PP_PARTS = 8,                    /* of a station, at most; a Start that finds all in use adds to a pending one */
    PP_BOARD_MASK_WORDS = PP_CONTRIBUTORS_WORDS
};

/* ---- the turn ----------------------------------------------------------------------------------------- */

/* round << 16 | owner << 4 | MERGES | NEWS | phase.  The owner is the rank that claimed the turn. AWAY: the node's
   part is being reduced with those of other nodes; parts of stations are no longer read. MERGES: the owner adds to a
   pending part of its own.  While TAKING, it has the claim for nothing else; while AWAY, the round is published only
   after it has finished. */
typedef enum pp_phase { PP_OPEN, PP_TAKING, PP_MOVING, PP_AWAY } pp_phase_t;
enum { PP_TURN_PHASE = 3, PP_TURN_NEWS = 4, PP_TURN_MERGES = 8, PP_TURN_OWNER_SHIFT = 4,
       PP_TURN_OWNER = 0xfff, PP_TURN_ROUND_SHIFT = 16 };

/* pp_station_t.activated.  LATE: the rank in BY was not drawn; its deadline is over. */
enum { PP_ACTIVATED_ROUND_SHIFT = 16, PP_ACTIVATED_LATE = 0x8000, PP_ACTIVATED_BY = 0x7fff };

static inline uint64_t   pp_turn_round(uint64_t turn) { return turn >> PP_TURN_ROUND_SHIFT; }
static inline pp_phase_t pp_turn_phase(uint64_t turn) { return (pp_phase_t)(turn & PP_TURN_PHASE); }

/* ---- stations ----------------------------------------------------------------------------------------- */

/* A station's word:
     WAITS     its owner has an outstanding on-time request for ROUND; stale when that round is complete
     DIRECT    ... and its receive buffer is in the memory of the node: the result may be written into it
     OVERDUE   ... and it has waited for longer than its deadline
     ASIDE     its owner has left the handle by patience
     PENDING   a bit for each part that is linked and not taken
     USERS     a bit for each of these parts that is still in the application's buffer, not in the station's
     LEAVING   pp_leaving_t
     ROUND     the round for which the owner waits, or takes a step of a Drain; or the number of flush rounds of the
               handle that were complete when the owner began to flush.  The lower 40 bits */
enum {
    PP_WORD_WAITS = 1,
    PP_WORD_DIRECT = 2,
    PP_WORD_LEAVING_SHIFT = 2,       /* 3 bits */
    PP_WORD_OVERDUE = 32,
    PP_WORD_ASIDE = 64,
    PP_WORD_PENDING_SHIFT = 8,
    PP_WORD_USERS_SHIFT = 16,
    PP_WORD_ROUND_SHIFT = 24
};

static inline uint64_t pp_word_round_bits(uint64_t round) { return round & ((UINT64_C(1) << 40) - 1); }
static inline uint64_t pp_word_round(uint64_t word) { return word >> PP_WORD_ROUND_SHIFT; }
static inline uint32_t pp_word_pending(uint64_t word) { return (word >> PP_WORD_PENDING_SHIFT) & 0xff; }
static inline uint32_t pp_word_users(uint64_t word) { return (word >> PP_WORD_USERS_SHIFT) & 0xff; }
static inline bool     pp_word_is_of(uint64_t word, uint64_t round)
{
    return pp_word_round(word) == pp_word_round_bits(round);
}
static inline bool pp_word_waits(uint64_t word, uint64_t round)
{
    return (word & PP_WORD_WAITS) && pp_word_is_of(word, round);
}
static inline pp_leaving_t pp_word_leaving(uint64_t word, uint64_t round, uint64_t flushes)
{
    pp_leaving_t leaving = (pp_leaving_t)(word >> PP_WORD_LEAVING_SHIFT & 7);
    return pp_word_is_of(word, leaving == PP_STEPS ? round : flushes) ? leaving : PP_STAYS;
}

/* One Start's contribution, or those of several combined.  The owner writes it before it links it. */
typedef struct pp_part {
    uint64_t contributions;
    uint64_t starts;                 /* the owner's Starts up to and including the newest in the part */
    _Atomic uint64_t oldest_given;   /* the round that the oldest contribution's own call was given */
    uint64_t users;                  /* offset of the application's buffer, while the USERS bit is set; not with a vault */
} pp_part_t;

typedef struct pp_station {
    _Alignas(64) _Atomic uint64_t word;
    _Atomic uint64_t limit;          /* rounds from here on may not take the parts (max_lag), unless the owner has
                                        left or waits elsewhere */
    _Atomic uint64_t absorbed;       /* the owner needs no ring entry of the rounds below this one */
    _Atomic uint64_t taken;          /* 1 + the last round that took a part; 0: none.  Written by takers */
    _Atomic uint64_t pinned;         /* 1 + a round whose entry the owner reads in place; 0: none */
    _Atomic uint64_t expects;        /* 1 + the last round that other nodes have told the owner, its leader, about */
    /* 1 + the last round that is on here, of those that the owner leads: a message or a rank of the node has activated
       it.  In the lower 16 bits the first rank that said so, which sends the activation to the other nodes. */
    _Atomic uint64_t activated;
    _Atomic uint64_t lacked;         /* 2 (1 + a round that others wait for, and the owner does not); odd: it holds the round
                                        up */
    /* Up to here a station is one cache line.  The rest is read only if the word says DIRECT. */
    uint64_t         receive;        /* offset of the receive buffer, if it is in the memory of the node */
    _Alignas(64) pp_part_t parts[PP_PARTS];
} pp_station_t;

/* ---- the ring ------------------------------------------------------------------------------------------ */

typedef struct pp_share {            /* a rank's share in a round to which it contributed */
    uint64_t contributions, starts, oldest_given;
} pp_share_t;

/* Everything but `sequence` is written under the claim of the round. */
typedef struct pp_ring_entry {
    _Alignas(64) _Atomic uint64_t sequence;   /* 2 (round + 1): complete; odd: being written; 0: never used */
    uint64_t   round;
    uint32_t   null;                 /* 1: no rank had data */
    uint32_t   elsewhere;            /* 1: the result is not in the ring, because all ranks got it directly */
    uint32_t   kept;                 /* 1: the entry is kept until all ranks have absorbed it */
    uint32_t   flush;
    uint32_t   committed;            /* 1: the memory of the result is, by whichever rank was the first to need it */
    pp_tally_t tally;
    uint64_t   contributors[PP_BOARD_MASK_WORDS], left[PP_BOARD_MASK_WORDS];
    uint64_t   triggers[PP_BOARD_MASK_WORDS], direct[PP_BOARD_MASK_WORDS];
    pp_share_t shares[];             /* by rank */
} pp_ring_entry_t;

/* ---- moving -------------------------------------------------------------------------------------------- */

/* The work of a round, for the threads that hold its tickets. */
typedef struct pp_plan {
    uint32_t entry;                  /* of the ring */
    uint32_t source_count, target_count;
    uint32_t chunks;
    uint64_t chunk_bytes;            /* of accumulators */
    uint64_t divide_by;
    uint64_t offsets[];              /* sources by rank, then targets; with a vault the sources' addresses */
} pp_plan_t;

typedef struct pp_board_shared {
    _Alignas(64) _Atomic uint64_t turn;
    /* When a round that is due may be taken: the lower 16 bits of the round + 1, then the lower 48 bits of a time in
       ns. A value set for another round means nothing. */
    _Atomic uint64_t ripe;
    _Atomic uint32_t latecomers;         /* > 0: ranks have lately come too late by little, so rounds wait longer */
    pp_job_t job;                    /* of a large round; its number is the round's */
    /* Between nodes: a counter of reasons for the leader of the open round to look at it. */
    _Alignas(64) _Atomic uint32_t told;
    _Atomic uint32_t awaits;         /* how often a rank of this node has said that it waits long */
    _Atomic uint64_t awaited;        /* 1 + the newest round that a rank has waited long for */
    _Alignas(64) _Atomic uint32_t flushes;     /* flush rounds complete */
    _Atomic uint32_t pins;           /* ranks that have pinned an entry, or are trying to */
    _Atomic uint32_t detached;       /* ranks that will not look at the board again */
} pp_board_shared_t;

/* ---- a rank's view -------------------------------------------------------------------------------------- */

/* The vectors of a board that are not in its region: in memory of other kinds, by the addresses that they have here. */
typedef struct pp_vault {
    int32_t parts;                   /* of a station: at most PP_PARTS */
    void  **slots;                   /* PP_PARTS for each rank */
    void  **results;                 /* by entry of the ring */
} pp_vault_t;

typedef struct pp_board {
    pp_node_t         *node;
    uint64_t           offset, bytes;     /* of the region */
    int32_t            ranks;             /* of the node */
    int32_t            entries, parts, pins;   /* see pp_board_size_t */
    size_t             vector_bytes, stride;
    pp_board_shared_t *shared;
    pp_station_t      *stations;
    pp_plan_t         *plan;
    char              *ring;
    size_t             entry_bytes;
    uint64_t           slots, results;    /* offsets of the stations' buffers and of the ring's */
    uint64_t           offers, offer_bytes;
    uint64_t           spared;            /* the number of newest rounds whose entries are not overwritten while a rank
                                             may copy them; at least 1 */
    uint64_t           state;             /* the state that this rank's word says */
    uint32_t           linked;            /* this rank's parts that are pending, or may still be read */
    uint32_t           reserved;          /* this rank's parts whose elements are on their way; see below */
    uint32_t           committed;         /* this rank's buffers that are committed */
    const pp_vault_t  *vault;             /* NULL: all vectors are in the region */
    bool               lent;              /* others end it: see pp_board_end() */
} pp_board_t;

/* What the ranks know of a board before it is made. */
typedef struct pp_board_size {
    int32_t entries;                 /* of the ring */
    int32_t parts;                   /* of a station that ranks use, at most PP_PARTS */
    int32_t pins;                    /* entries that may be pinned at once, without which the ring has room enough */
    size_t  vector_bytes;            /* of an accumulator */
    size_t  offer_bytes;             /* zeroed memory for each rank, which others read: pp_board_offer() */
} pp_board_size_t;

/* The address space of a board. */
uint64_t pp_board_bytes(int32_t ranks, const pp_board_size_t *size);
/* Called by the rank that reserved the region, before any rank opens it.  False: no memory. */
bool     pp_board_prepare(pp_node_t *node, uint64_t offset, const pp_board_size_t *size);
pp_status_t pp_board_open(pp_node_t *node, uint64_t offset, const pp_board_size_t *size, uint64_t spared,
                          pp_board_t *board);
/* This rank will not look at the board again.  The last one gives the region back. */
void     pp_board_end(pp_board_t *board);

static inline pp_ring_entry_t *pp_board_entry(const pp_board_t *board, int32_t index)
{
    return (pp_ring_entry_t *)(board->ring + (size_t)index * board->entry_bytes);
}
/* Entries that may be pinned at once, one by each rank; the ring has as many more, so that new rounds always find one. */
enum { PP_PINS_MAX = 8 };
static inline int32_t pp_board_pins_max(int32_t ranks) { return ranks < PP_PINS_MAX ? ranks : PP_PINS_MAX; }
/* Whether there may be no entry for the round, because all are kept from `needed` on, or pinned. */
static inline bool pp_board_may_be_full(const pp_board_t *board, uint64_t needed, uint64_t round)
{
    const uint64_t entries = (uint64_t)(board->entries - board->pins);
    return round >= entries && needed <= round - entries;    /* a rank that exits needs none, and says UINT64_MAX */
}

static inline void *pp_board_result(const pp_board_t *board, int32_t index)
{
    return board->vault ? board->vault->results[index]
                        : pp_node_at(board->node, board->results + (uint64_t)index * board->stride);
}
static inline uint64_t pp_board_slot_offset(const pp_board_t *board, int32_t rank, int32_t part)
{
    return board->slots + ((uint64_t)rank * PP_PARTS + (uint64_t)part) * board->stride;
}
static inline void *pp_board_slot(const pp_board_t *board, int32_t rank, int32_t part)
{
    return board->vault ? board->vault->slots[rank * PP_PARTS + part]
                        : pp_node_at(board->node, pp_board_slot_offset(board, rank, part));
}
/* What a rank tells the others of the board about itself when the handle is made; see pp_board_bytes(). */
static inline void *pp_board_offer(const pp_board_t *board, int32_t rank)
{
    return pp_node_at(board->node, board->offers + (uint64_t)rank * board->offer_bytes);
}
static inline pp_station_t *pp_board_own(const pp_board_t *board)
{
    return &board->stations[board->node->index];
}

/* ---- by the owner of a station -------------------------------------------------------------------------- */

/* A part that is neither pending nor still being read; its buffer is committed.  -1: all are in use; -2: no memory. */
int32_t  pp_station_free_part(pp_board_t *board);
/* Keeps a free part for elements that are on their way to its buffer: it is not free until it was linked and read, or
   given up. */
void     pp_station_reserve(pp_board_t *board, int32_t part);
void     pp_station_give_up(pp_board_t *board, int32_t part);
/* Links the part, and replaces the owner's state in the word (WAITS, DIRECT, LEAVING, ROUND) by `state`. */
void     pp_station_link(pp_board_t *board, int32_t part, bool users, uint64_t state);
/* Replaces the state only; false: the word said so already. */
bool     pp_station_say(pp_board_t *board, uint64_t state);
/* Takes back all pending parts, and returns them as bits; 0 while a round is being taken. */
uint32_t pp_station_withdraw(pp_board_t *board);
/* Says that the part's elements are in the station's buffer now; false: a round has taken them from the application's.
   */
bool     pp_station_moved(pp_board_t *board, int32_t part);

/* ---- rounds ---------------------------------------------------------------------------------------------- */

static inline uint64_t pp_board_turn(const pp_board_t *board)
{
    PP_STEP("look");
    return atomic_load(&board->shared->turn);
}
static inline uint64_t pp_board_flushes(const pp_board_t *board)
{
    PP_STEP("look");
    return atomic_load(&board->shared->flushes);
}
/* Says that the round is due but is taken only at `time_ns`, so that ranks that come at about the same time are in it.
   False: a time was set already, or the round is over. */
bool pp_board_set_ripe(pp_board_t *board, uint64_t round, uint64_t time_ns);
/* Whether such a time was set for the round; *left_ns is the time left, counted as 0 if it is more than `longest_ns`.
   */
bool pp_board_ripens(const pp_board_t *board, uint64_t round, uint64_t now_ns, uint64_t longest_ns, int64_t *left_ns);
/* Claims the round that `turn` shows open; false: the turn has changed. */
bool pp_board_claim(pp_board_t *board, uint64_t turn);
/* The same, but only to change a pending part of this rank: this claim takes no round. */
bool pp_board_hold(pp_board_t *board, uint64_t turn);
/* Whether the turn is claimed for its round, and not only to change a part. */
static inline bool pp_turn_taken(uint64_t turn)
{
    return pp_turn_phase(turn) != PP_OPEN && !(pp_turn_phase(turn) == PP_TAKING && (turn & PP_TURN_MERGES));
}
/* The turn is claimed: asks the claimer to look again.  False: the turn has changed. */
bool pp_board_leave_news(pp_board_t *board, uint64_t turn);
/* The claimer decides against the round, and opens the turn again.  False: there is NEWS, and it keeps the claim. */
bool pp_board_release(pp_board_t *board, uint64_t round);

typedef struct pp_taken {
    uint64_t word;                   /* before the take */
    uint32_t parts;                  /* as bits */
} pp_taken_t;
/* Under the claim: takes all pending parts of the rank. */
pp_taken_t pp_board_take(pp_board_t *board, int32_t rank, uint64_t round);
/* Under the claim: picks an entry of the ring for the round and marks it as being written.  Never picks that of one of
   the newest `spared` results.  -1: all entries are kept for some rank. */
int32_t  pp_board_pick(pp_board_t *board, uint64_t round, uint64_t spared);
/* Under the claim: commits the memory of the entry's result, unless a rank has done so; false: no memory. */
bool     pp_board_commit_result(pp_board_t *board, int32_t entry);

/* Under the claim, before this rank writes a plan whose chunks it will hand out. */
void     pp_board_begin_plan(pp_board_t *board);
/* Under the claim: this rank alone has the data moved.  */
void     pp_board_keep_turn(pp_board_t *board, uint64_t round);
/* Under the claim: hands the plan's chunks out. */
void     pp_board_hand_out(pp_board_t *board, uint64_t round);
/* Gives this rank a chunk of the round; false: none is left, or the round is over.  Ranks with an even index take
   chunks from the front, the others from the back: in a loop the same data stay near the same core. */
bool     pp_board_ticket(pp_board_t *board, uint64_t round, uint32_t *chunk);
bool pp_board_tickets_left(const pp_board_t *board);
/* This rank has finished a chunk.  True: it was the last one, and this rank publishes the round. */
bool     pp_board_finished(pp_board_t *board);
/* Whether all parts have been read that rounds below `taken` have taken. */
bool     pp_board_has_read(const pp_board_t *board, uint64_t taken);
/* Completes the round whose result is in the entry. */
void     pp_board_publish(pp_board_t *board, uint64_t round, int32_t entry);

/* ---- between nodes ---------------------------------------------------------------------------------------- */

/* Called by the round's leader, or by the rank that has finished its last chunk: all parts are taken and combined. */
void     pp_board_send_away(pp_board_t *board, uint64_t round);
/* Called by the leader, which then has the claim and publishes the round.  False: a rank is adding to a part; it tells
   the leader when it has finished. */
bool     pp_board_bring_back(pp_board_t *board, uint64_t round);
/* While a round is AWAY: this rank begins to add to a pending part of its own.  False: the turn has changed. */
bool     pp_board_begin_merge(pp_board_t *board, uint64_t turn);
/* True: the leader wanted to bring the round back meanwhile. */
bool     pp_board_end_merge(pp_board_t *board, uint64_t round);

/* ---- reading --------------------------------------------------------------------------------------------- */

/* The entry of a round; -1: it is not in the ring any more. */
int32_t  pp_board_find(const pp_board_t *board, uint64_t round);
/* The oldest round from `round` on that is still in the ring; UINT64_MAX: none. */
uint64_t pp_board_oldest(const pp_board_t *board, uint64_t round);
/* Keeps a round's entry from being overwritten until pp_board_unpin(); a rank pins one at a time.  False: the entry has
   been overwritten already, or too many are pinned. */
bool     pp_board_pin(pp_board_t *board, int32_t entry, uint64_t round);
void     pp_board_unpin(pp_board_t *board);
/* Whether the entry has been the round's up to now. */
bool     pp_board_still(const pp_board_t *board, int32_t entry, uint64_t round);

#endif
