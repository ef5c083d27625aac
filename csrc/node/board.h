/*
 * board.h - the rounds of one handle, in memory that the ranks of a node share.
 *
 * Ranks that are present finish a round for those that are absent (combining): whoever finds that a round is
 * to be run *claims* it, *takes* what every rank has pending, and *publishes* the result in a ring, while
 * nobody is woken who is not inside the library waiting for it.  A large round is handed out in chunks, by
 * *tickets*, to all who are there.
 *
 *   station   one a rank: the parts it has pending, whether it waits, how far its max_lag lets rounds go.
 *             Only its owner adds to it; a taker takes all parts at once, by compare-and-swap on its word.
 *   turn      one a handle: the round to be run next and its phase
 *                 OPEN -> TAKING -> OPEN of the next round               (small: the claimer moves the data)
 *                                -> MOVING -> OPEN of the next round     (whoever finishes the last chunk)
 *             Rounds of a handle are strictly one after the other, and complete when `turn` moves on.
 *             With several nodes, a node's part is all that its ranks give, and the rank that leads it in the
 *             round (nodes.h) takes it to the others:
 *                 OPEN -> TAKING [-> MOVING] -> AWAY -> OPEN of the next round
 *   ring      entries, each the header and the result of one round, written under the claim.  Readers copy
 *             and compare the entry's sequence number afterwards.
 *
 * Whoever changes something that could bring a round about does so by a seq_cst access, and then looks
 * itself whether the round is to be run now: of several, the last sees what all have done.  If it finds the
 * turn claimed, it leaves NEWS there: a claimer that decides against the round takes note when it opens the
 * turn again.
 *
 * Each PP_STEP names the step of the models in tests/model that the access belongs to.
 */
#ifndef PP_BOARD_H
#define PP_BOARD_H

#include "../base/tally.h"
#include "node.h"

enum {
    PP_PARTS = 8,                    /* of a station; more that are pending are combined */
    PP_BOARD_MASK_WORDS = PP_CONTRIBUTORS_WORDS
};

/* ---- the turn ----------------------------------------------------------------------------------------- */

/* round << 16 | owner << 4 | MERGES | NEWS | phase.  The owner is who claimed it.
   AWAY: what was taken is being reduced with what other nodes gave; nobody reads parts any more.  MERGES: the
   owner changes a part of its own that is pending.  While TAKING it has the claim only for that; while AWAY the
   round is not published before it has. */
typedef enum pp_phase { PP_OPEN, PP_TAKING, PP_MOVING, PP_AWAY } pp_phase_t;
enum { PP_TURN_PHASE = 3, PP_TURN_NEWS = 4, PP_TURN_MERGES = 8, PP_TURN_OWNER_SHIFT = 4,
       PP_TURN_OWNER = 0xfff, PP_TURN_ROUND_SHIFT = 16 };

/* pp_station_t.activated: LATE if the rank that said so was not drawn, but its deadline is over. */
enum { PP_ACTIVATED_ROUND_SHIFT = 16, PP_ACTIVATED_LATE = 0x8000, PP_ACTIVATED_BY = 0x7fff };

static inline uint64_t   pp_turn_round(uint64_t turn) { return turn >> PP_TURN_ROUND_SHIFT; }
static inline pp_phase_t pp_turn_phase(uint64_t turn) { return (pp_phase_t)(turn & PP_TURN_PHASE); }

/* ---- stations ----------------------------------------------------------------------------------------- */

/* A station's word:
     WAITS     its owner has an outstanding request on-time for `round`: over when that round is complete
     DIRECT    ... and a receive buffer in the memory of the node, into which the result may be written
     OVERDUE   ... and has done so for longer than its deadline
     ASIDE     its owner has left the handle by patience
     PENDING   a bit for each part linked and not taken
     USERS     a bit for each of them that lies where the application put it, not in the station's buffer
     LEAVING   pp_leaving_t
     ROUND     for which the owner waits, or takes a step of a Drain; or how many flush rounds of the handle
               were complete when it began to flush: the lower 40 bits */
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

/* What a Start, or several combined, put in.  Written by the owner before it is linked. */
typedef struct pp_part {
    uint64_t contributions;
    uint64_t starts;                 /* the owner's Starts up to and including it */
    _Atomic uint64_t oldest_given;   /* the round that its oldest contribution's own call was given */
    uint64_t users;                  /* offset, while the word's bit says so */
} pp_part_t;

typedef struct pp_station {
    _Alignas(64) _Atomic uint64_t word;
    _Atomic uint64_t limit;          /* rounds from here on may not take the parts, unless the owner has left
                                        or waits elsewhere (max_lag) */
    _Atomic uint64_t absorbed;       /* of rounds before, the owner needs no entry of the ring any more */
    _Atomic uint64_t taken;          /* 1 + the last round that took a part; 0: none.  Written by takers */
    _Atomic uint64_t pinned;         /* 1 + a round whose entry the owner reads in place; 0: none */
    _Atomic uint64_t expects;        /* 1 + the last round that other nodes have told it about, who leads it */
    /* 1 + the last round, of those that the owner leads, that is on here, by a message or by a rank of the node;
       then, in the lower 16 bits, who has said so first, and sends the activation to the other nodes. */
    _Atomic uint64_t activated;
    _Atomic uint64_t held;           /* 1 + a round that others wait for, and that the owner holds up */
    /* Read for owners whose word says DIRECT: up to here a station is one line. */
    uint64_t         receive;        /* offset of the receive buffer, if it lies in the memory */
    _Alignas(64) pp_part_t parts[PP_PARTS];
} pp_station_t;

/* ---- the ring ------------------------------------------------------------------------------------------ */

typedef struct pp_share {            /* of a rank in a round to which it contributed */
    uint64_t contributions, starts, oldest_given;
} pp_share_t;

/* Everything but `sequence` is written under the claim of the round. */
typedef struct pp_ring_entry {
    _Alignas(64) _Atomic uint64_t sequence;   /* 2 (round + 1): complete; odd: being written; 0: never used */
    uint64_t   round;
    uint32_t   null;                 /* nobody had data */
    uint32_t   elsewhere;            /* no copy of the result in the ring: everybody got it directly */
    uint32_t   kept;                 /* until everybody has absorbed it */
    uint32_t   flush;
    pp_tally_t tally;
    uint64_t   contributors[PP_BOARD_MASK_WORDS], left[PP_BOARD_MASK_WORDS];
    uint64_t   triggers[PP_BOARD_MASK_WORDS], direct[PP_BOARD_MASK_WORDS];
    pp_share_t shares[];             /* by rank */
} pp_ring_entry_t;

/* ---- moving -------------------------------------------------------------------------------------------- */

/* What there is to do in a round, for whoever holds a ticket of it. */
typedef struct pp_plan {
    uint32_t entry;                  /* of the ring */
    uint32_t source_count, target_count;
    uint32_t chunks;
    uint64_t chunk_bytes;            /* of accumulators */
    uint64_t divide_by;
    uint64_t offsets[];              /* sources by rank, then targets */
} pp_plan_t;

typedef struct pp_board_shared {
    _Alignas(64) _Atomic uint64_t turn;
    /* When a round that is to be run may be taken: the lower 16 bits of the round + 1, then of a time in ns the
       lower 48.  What is in it for another round says nothing. */
    _Atomic uint64_t ripe;
    _Atomic uint32_t latecomers;         /* ranks have lately come too late by little: rounds wait longer for them */
    /* Lower 32 bits of the round, then the first chunk that is not handed out, and the one after the last, 16
       bits each: a late helper's compare-and-swap fails. */
    _Alignas(64) _Atomic uint64_t tickets;
    /* Between nodes: for the rank that leads the round that is open, a counter of reasons to look at it. */
    _Alignas(64) _Atomic uint32_t told;
    _Atomic uint32_t awaits;         /* how often a rank of this node has said that it waits long */
    _Atomic uint64_t awaited;        /* 1 + the newest round that somebody has waited long for */
    _Alignas(64) _Atomic uint32_t unfinished;  /* chunks */
    _Atomic uint32_t flushes;        /* flush rounds complete */
    _Atomic uint32_t pins;           /* ranks that have one, or try to */
    _Atomic uint32_t detached;       /* ranks that will not look at the board again */
} pp_board_shared_t;

/* ---- a rank's view -------------------------------------------------------------------------------------- */

typedef struct pp_board {
    pp_node_t         *node;
    uint64_t           offset, bytes;     /* of the region */
    int32_t            ranks;             /* of the node */
    int32_t            entries;
    size_t             vector_bytes, stride;
    pp_board_shared_t *shared;
    pp_station_t      *stations;
    pp_plan_t         *plan;
    char              *ring;
    size_t             entry_bytes;
    uint64_t           slots, results;    /* offsets of the stations' buffers and of the ring's */
    uint64_t           spared;            /* newest rounds whose entries are not overwritten while somebody may copy
                                             them; >= 1 */
    uint64_t           state;             /* what my word says of me */
    uint32_t           linked;            /* my parts that are pending, or may still be read */
    uint32_t           committed;         /* my own buffers that may be touched */
    bool              *result_committed;  /* ... and results that this rank has committed */
} pp_board_t;

/* Bytes of address space that a board takes; `vector_bytes` are of accumulators. */
uint64_t pp_board_bytes(int32_t ranks, int32_t entries, size_t vector_bytes);
/* By the rank that reserved the region, before anybody opens it; false: no memory. */
bool     pp_board_prepare(pp_node_t *node, uint64_t offset, int32_t entries, size_t vector_bytes);
pp_status_t pp_board_open(pp_node_t *node, uint64_t offset, int32_t entries, size_t vector_bytes,
                          uint64_t spared, pp_board_t *board);
/* This rank will not look at it any more; true: nobody will. */
bool     pp_board_detach(pp_board_t *board);

static inline pp_ring_entry_t *pp_board_entry(const pp_board_t *board, int32_t index)
{
    return (pp_ring_entry_t *)(board->ring + (size_t)index * board->entry_bytes);
}
enum { PP_CHUNKS_MAX = 65535 };
/* Entries that may be pinned at once; others than these are always left for new rounds. */
enum { PP_PINS_MAX = 8 };

static inline void *pp_board_result(const pp_board_t *board, int32_t index)
{
    return pp_node_at(board->node, board->results + (uint64_t)index * board->stride);
}
static inline uint64_t pp_board_slot_offset(const pp_board_t *board, int32_t rank, int32_t part)
{
    return board->slots + ((uint64_t)rank * PP_PARTS + (uint64_t)part) * board->stride;
}
static inline pp_station_t *pp_board_own(const pp_board_t *board)
{
    return &board->stations[board->node->index];
}

/* ---- by the owner of a station -------------------------------------------------------------------------- */

/* A part that nobody reads, or may still read; its buffer is committed.  -1: all are in use; -2: no memory. */
int32_t  pp_station_free_part(pp_board_t *board);
/* Adds the part, and replaces what the word says of its owner by `state` (WAITS, DIRECT, LEAVING, ROUND). */
void     pp_station_link(pp_board_t *board, int32_t part, bool users, uint64_t state);
/* Only replaces that; false: it said so already. */
bool     pp_station_say(pp_board_t *board, uint64_t state);
/* Takes everything back that is pending; the parts, as bits.  Not while a round is being taken: 0. */
uint32_t pp_station_withdraw(pp_board_t *board);
/* The part's elements are in the station's buffer now; false: a round has taken them from where they were. */
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
/* The round is due, but is to be taken only at `time_ns`, so that ranks that come at about the same time are in; false:
   it was known already, or is over. */
bool pp_board_set_ripe(pp_board_t *board, uint64_t round, uint64_t time_ns);
/* Whether such a time was set for the round, and how long it still is to it; it was set for `longest_ns` at most. */
bool pp_board_ripens(const pp_board_t *board, uint64_t round, uint64_t now_ns, uint64_t longest_ns, int64_t *left_ns);
/* Claims the round that `turn` shows open. */
bool pp_board_claim(pp_board_t *board, uint64_t turn);
/* As a claim, to change a part of one's own that is pending: no round will be taken by it. */
bool pp_board_hold(pp_board_t *board, uint64_t turn);
/* Whether the round, not only a part, is taken. */
static inline bool pp_turn_taken(uint64_t turn)
{
    return pp_turn_phase(turn) != PP_OPEN && !(pp_turn_phase(turn) == PP_TAKING && (turn & PP_TURN_MERGES));
}
/* The turn is claimed: whoever has it is to look again.  False: it is not as `turn` says any more. */
bool pp_board_leave_news(pp_board_t *board, uint64_t turn);
/* Decided against the round.  False: there is news; the claim is still ours. */
bool pp_board_release(pp_board_t *board, uint64_t round);

typedef struct pp_taken {
    uint64_t word;                   /* as it was */
    uint32_t parts;                  /* bits */
} pp_taken_t;
/* Under the claim: everything that the rank has pending. */
pp_taken_t pp_board_take(pp_board_t *board, int32_t rank, uint64_t round);
/* Under the claim: an entry of the ring for the round, marked as being written; not that of one of the newest `spared`
   results.  -1: all are kept for somebody. */
int32_t  pp_board_pick(pp_board_t *board, uint64_t round, uint64_t spared);
/* Its result may be written; false: no memory. */
bool     pp_board_commit_result(pp_board_t *board, int32_t entry);

/* Under the claim, before a plan is written whose chunks will be handed out. */
void     pp_board_begin_plan(pp_board_t *board);
/* Under the claim: hands the plan's chunks out. */
void     pp_board_hand_out(pp_board_t *board, uint64_t round);
/* A chunk of the round to work at; false: none is left, or the round is over.  Ranks with an even index take
   from the front, the others from the back: in a loop the same data stay near the same core. */
bool     pp_board_ticket(pp_board_t *board, uint64_t round, uint32_t *chunk);
bool pp_board_tickets_left(const pp_board_t *board);
/* The chunk is finished; true: it was the last, and the round is to be published. */
bool     pp_board_finished(pp_board_t *board);
/* Whether nobody reads parts any more that a round below `taken` has taken. */
bool     pp_board_has_read(const pp_board_t *board, uint64_t taken);
/* Completes the round whose result is in the entry. */
void     pp_board_publish(pp_board_t *board, uint64_t round, int32_t entry);

/* ---- between nodes ---------------------------------------------------------------------------------------- */

/* By the leader of the round, or whoever has finished its last chunk: everything is taken and combined. */
void     pp_board_send_away(pp_board_t *board, uint64_t round);
/* By the leader: the round is to be published, and is taken again for it.  False: a rank is adding to a part, and
   tells the leader when it has. */
bool     pp_board_bring_back(pp_board_t *board, uint64_t round);
/* While a round is away this rank may add to a part of its own that is pending; false: not as `turn` says. */
bool     pp_board_begin_merge(pp_board_t *board, uint64_t turn);
/* True: the leader wanted to bring the round back meanwhile. */
bool     pp_board_end_merge(pp_board_t *board, uint64_t round);

/* ---- reading --------------------------------------------------------------------------------------------- */

/* The entry of a round; -1: it is not in the ring any more. */
int32_t  pp_board_find(const pp_board_t *board, uint64_t round);
/* The oldest round from `round` on that the ring still has; UINT64_MAX: none. */
uint64_t pp_board_oldest(const pp_board_t *board, uint64_t round);
/* Keeps a round's entry from being overwritten, until pp_board_unpin(); one a rank.  False: it has been already, or
   too many are pinned. */
bool     pp_board_pin(pp_board_t *board, int32_t entry, uint64_t round);
void     pp_board_unpin(pp_board_t *board);
/* Whether the entry was still the round's until now. */
bool     pp_board_still(const pp_board_t *board, int32_t entry, uint64_t round);

#endif
