/*
 * combine.h - rounds on a node's board (node/board.h): ranks that are present run the rounds of those that are absent.
 *
 * The rules are those of policy/policy.h, asked by whoever has changed something.  A rank that makes its rounds of
 * messages decides for itself, and tells the others; here everything that the rules look at lies in the memory of
 * the node, and the rank that has changed something decides for all.  So nobody has to be woken, or to hand on
 * what it knows: a draw is followed through the order, ready ranks are counted, and a rank that withholds its part
 * delays the round instead of being waited for in the middle of it.  What a rank keeps to itself (requests, results
 * not given) it brings up to date when it comes: pp_combine_catch_up().
 *
 * Results stay in the ring until they are given: an outcome then only refers to it (PP_IN_RING), or says that the
 * result was written to the receive buffer directly (PP_IN_RECEIVE).
 *
 * For the files of this folder only.  Ranks are named by their index on the node, unless a mask goes into a header.
 */
#ifndef PP_COMBINE_H
#define PP_COMBINE_H

#include "../allreduce.h"
#include "../../node/move.h"

typedef struct pp_combine pp_combine_t;

/* What differs between a board that is all there is, and one of several. */
typedef struct pp_way {
    bool alone;                      /* the node's ranks are all ranks */
    /* Goes on with the round that is open.  `news`: something has changed here since the last look.  False: there was
       no reason to look. */
    bool (*look)(pp_allreduce_t *, bool news);
    /* Whether the open round, which `turn` shows, wants this rank's attention. */
    bool (*has_news)(pp_allreduce_t *, uint64_t turn);
    /* The last chunk of the node's part is finished. */
    void (*gathered)(pp_allreduce_t *, uint64_t round);
    /* Somebody waits until a merge is over that this rank has ended. */
    void (*merge_awaited)(pp_allreduce_t *, uint64_t round);
} pp_way_t;

struct pp_combine {
    const pp_way_t *way;
    struct pp_leading *leading;      /* of a way between nodes */
    pp_board_t board;
    bool       users;                /* contributions are read where the application has them: sendbuf is in
                                        the memory of the node */
    bool       direct;               /* results may be written where the application wants them: recvbuf is, too */
    uint64_t   starts_taken;         /* my Starts that rounds up to the newest one looked at have taken */
    uint64_t   limit, absorbed;      /* as published */
    bool       news;                 /* something has changed, and nobody has looked at the round since */
    uint64_t   waits;                /* engine->waits when this rank last looked, */
    uint64_t   presence;             /* and what it had said of its presence */
    uint64_t   ripe;                 /* 1 + the last round that it has looked at because the time had come to take it */
    uint64_t   flushes;              /* flush rounds complete here: others may be ahead */
    uint64_t   flushed;              /* 1 + the newest flush round here; its entry is kept until we have it */
    uint32_t   triggered;            /* of the round decided on: how many ranks brought it about */
    uint64_t   triggers[PP_CONTRIBUTORS_WORDS];
    uint64_t   ready[PP_CONTRIBUTORS_WORDS];   /* ... and who was ready then, and counts for it */
    uint32_t   cause;
    int32_t    workers;              /* threads of ours that move data of its rounds, without the lock */
    uint64_t   chunk_bytes;          /* into which large rounds are cut */
    uint32_t   chunks;
    /* Chunks of one round's result that this rank has put into its receive buffers while it moved them: none but
       inside a Wait, and by nobody but its thread. */
    bool      *landed;
    uint32_t   landed_count;
    uint64_t   landed_round;
    bool       landed_given;         /* the result handed out has such chunks */
    bool       merges;               /* this rank adds to a part of its own that is pending; */
    bool       merges_away;          /* it began while a round was away */
    int32_t   *order;                /* of draws of the round `order_round`, its first `ordered` places */
    uint64_t   order_round;
    int32_t    ordered;
};

static inline pp_node_t *pp_node_of(const pp_allreduce_t *coll) { return coll->handle.engine->node; }
/* The rank that has an index on the node. */
static inline int32_t pp_rank_at(const pp_allreduce_t *coll, int32_t index)
{
    const pp_nodes_t *nodes = coll->handle.engine->nodes;
    return nodes ? pp_nodes_rank(nodes, nodes->mine, index) : index;
}
/* Every round is given to everybody. */
static inline bool pp_combine_keeps_all(const pp_allreduce_t *coll) { return coll->config.deliver != PP_LATEST; }
/* Simulated ranks cut short vectors, too: what happens then is what they are there for. */
static inline bool pp_combine_is_simulated(const pp_allreduce_t *coll) { return !pp_node_of(coll)->memory; }
/* Vectors up to here are moved by the claimer, at once. */
size_t pp_combine_whole_bytes(const pp_allreduce_t *coll);

/* ---- looking at the board (view.c) ------------------------------------------------------------------- */

typedef struct pp_view {
    const pp_allreduce_t *coll;
    uint64_t round, flushes;
    bool     away;                   /* somebody may have left, or wait in another context */
    bool     others;                 /* there are other handles that somebody may wait on */
} pp_view_t;

pp_view_t  pp_view_of(const pp_allreduce_t *coll, uint64_t round);
uint64_t   pp_view_word(const pp_allreduce_t *coll, int32_t index);
bool       pp_view_left(const pp_view_t *view, int32_t index);
bool       pp_view_elsewhere(const pp_view_t *view, int32_t index);
bool       pp_view_ready(const pp_view_t *view, uint64_t word, int32_t index);
bool       pp_view_flushes(const pp_view_t *view, int32_t index);
/* What the board shows of a rank; `ready` is not latched. */
pp_facts_t pp_view_facts(const pp_view_t *view, int32_t index);
/* Whether max_lag holds rounds back; Full waits for every rank anyway. */
static inline bool pp_is_bounded(const pp_allreduce_t *coll)
{
    return coll->max_lag != PP_UNBOUNDED && !pp_rule_is_full(&coll->rule);
}
/* A rank whose limit the round has reached withholds its part: nothing exempts it. */
bool       pp_view_withholds(const pp_view_t *view, int32_t index);
/* max_lag: everybody on the node may give its part. */
bool       pp_view_permit(const pp_view_t *view);
/* The rank, of all, at a place of the order of draws of the current round. */
int32_t    pp_view_drawn_at(pp_allreduce_t *coll, int32_t place);

/* ---- who is waited for, in words (explain.c) ----------------------------------------------------------- */

void       pp_on_board_explain(pp_allreduce_t *coll, pp_text_t *text);

/* ---- rounds that somebody has waited long for (hold.c) ---------------------------------------------------- */

/* Says that this rank waits for the next round. */
void       pp_hold_await(pp_allreduce_t *coll, uint64_t round);
bool       pp_hold_is_awaited(const pp_allreduce_t *coll, uint64_t round);
/* Tells ranks of the node that they hold the round up: if it is not activated those where draws end and those missing
   from a quorum; in any case those that withhold.  `draws`: whose ends count; NULL: all that begin. */
void       pp_hold_tell(const pp_view_t *view, pp_allreduce_t *coll, bool activated, const uint64_t *draws,
                        const uint64_t *ready);
/* Whether this rank has been told so about the next round. */
bool       pp_hold_is_told(const pp_allreduce_t *coll);
bool       pp_hold_holds_up(pp_allreduce_t *coll);
/* The index on this node of a rank; -1: it is on another one. */
int32_t    pp_view_index_of(const pp_allreduce_t *coll, int32_t rank);
/* Where a draw ends, as far as the board of this node shows. */
pp_draw_end_t pp_view_follow(const pp_view_t *view, pp_allreduce_t *coll, int32_t place);

/* ---- to and from the leader of a round (signals.c) ---------------------------------------------------------- */

/* There is a reason to look at the round. */
void       pp_signal_tell_leader(pp_allreduce_t *coll, uint64_t round);
/* How many reasons there were. */
uint32_t   pp_signal_told(const pp_allreduce_t *coll);
/* How often a rank of the node has said that it waits long. */
uint32_t   pp_signal_awaits(const pp_allreduce_t *coll);
/* By the leader: other nodes have told about a round that is not open yet; the rank that opens it wakes the leader. */
void       pp_signal_expect(pp_allreduce_t *coll, uint64_t round);
bool       pp_signal_is_expected(const pp_allreduce_t *coll, uint64_t round);
/* Says that the round is on here.  True: nobody had, so that it is this rank's to announce it to the other nodes. */
bool       pp_signal_say_activated(const pp_allreduce_t *coll, uint64_t round, pp_cause_t cause);
bool       pp_signal_is_activated(const pp_allreduce_t *coll, uint64_t round);
/* The index of the rank that has said so first. */
int32_t    pp_signal_activated_by(const pp_allreduce_t *coll, uint64_t round, pp_cause_t *cause);

/* ---- what this rank says of itself (say.c) ---------------------------------------------------------------- */

/* WAITS, DIRECT, LEAVING, ROUND of its station's word. */
uint64_t pp_say_state_of(const pp_allreduce_t *coll);
/* The oldest round whose entry of the ring this rank still needs. */
uint64_t pp_say_absorbed(const pp_allreduce_t *coll);
/* The first round that the others may not run without this rank. */
uint64_t pp_say_limit(const pp_allreduce_t *coll);
/* Each returns whether there was something to say. */
bool     pp_say_bounds(pp_allreduce_t *coll);
bool     pp_say_state(pp_allreduce_t *coll);

/* ---- bringing this rank up to date (catch_up.c) ----------------------------------------------------------- */

/* Where rounds went on while nobody here looked: entries of the ring become outcomes. */
bool     pp_combine_catch_up(pp_allreduce_t *coll);
/* While this rank is exempt: rounds that are complete or taken count as given. */
void     pp_combine_count_as_given(pp_allreduce_t *coll);

/* ---- making a round (gather.c) -------------------------------------------------------------------------- */

/* Under the claim of the round: takes what the ranks of the node have pending into an entry of the ring and the
   plan, whose targets and divisor are left to the caller.  Who brought it about is in the handle's pp_combine_t.
   -1: there is no entry that may be overwritten. */
int32_t  pp_gather(pp_allreduce_t *coll, uint64_t round);
/* Does what the plan says, at once (true) or in chunks that are handed out. */
bool     pp_gather_move(pp_allreduce_t *coll, uint64_t round);
/* The ring is full of what ranks have left that are exempt from max_lag: their threads take it out. */
void     pp_gather_ask_for_room(pp_allreduce_t *coll, uint64_t round);
/* Wakes callers that sleep until the round is complete, or help with it. */
void     pp_gather_wake_waiters(pp_allreduce_t *coll, uint64_t round);
/* Cuts vectors into chunks, once. */
void     pp_gather_cut(pp_allreduce_t *coll);

/* ---- a Start and its end (contribute.c) -------------------------------------------------------------------- */

pp_status_t pp_contribute_aim(pp_allreduce_t *coll, pp_target_t *target);
void        pp_contribute_start(pp_allreduce_t *coll, const pp_target_t *target);
bool        pp_contribute_return_users(pp_allreduce_t *coll);
uint64_t    pp_contribute_discard(pp_allreduce_t *coll);
void        pp_contribute_forgive(pp_allreduce_t *coll);

/* ---- results (copy.c) ---------------------------------------------------------------------------------------- */

bool        pp_copy_out(const pp_allreduce_t *coll, const pp_outcome_t *outcome);
const void *pp_copy_view(pp_allreduce_t *coll, const pp_outcome_t *outcome);
void        pp_copy_end_view(pp_allreduce_t *coll);
bool        pp_copy_own(pp_allreduce_t *coll, pp_outcome_t *outcome);
bool        pp_copy_begin_landing(pp_allreduce_t *coll);
void        pp_copy_end_landing(pp_allreduce_t *coll);
void        pp_copy_in(const pp_allreduce_t *coll, void *to, const void *from, size_t bytes);

/* ---- the table of both ways (on_board.c) ---------------------------------------------------------------------- */

bool        pp_on_board_ready(const pp_allreduce_t *coll);
bool        pp_on_board_withholds(const pp_allreduce_t *coll);
bool        pp_on_board_in_mid_round(const pp_allreduce_t *coll);
bool        pp_on_board_drawn(pp_allreduce_t *coll);
uint64_t    pp_on_board_joined(const pp_allreduce_t *coll);
void        pp_on_board_update(pp_allreduce_t *coll);
/* Goes on with what has changed; returns whether there are results to go on from. */
bool        pp_on_board_go_on(pp_allreduce_t *coll);
/* Whether there is something to be done: rounds to catch up with, or the open one wants attention. */
bool        pp_on_board_has_news(pp_allreduce_t *coll);
bool        pp_on_board_has_work(const pp_allreduce_t *coll);
void        pp_on_board_begin_work(pp_allreduce_t *coll, bool *lands);
bool        pp_on_board_work(pp_allreduce_t *coll, bool lands, uint64_t *round);
void        pp_on_board_worked(pp_allreduce_t *coll, uint64_t round, bool last);
/* `series` is open. */
pp_status_t pp_on_board_open(pp_allreduce_t *coll, const pp_way_t *way, uint64_t region);
void        pp_on_board_close(pp_allreduce_t *coll);

/* A table whose functions are those, but for what differs. */
#define PP_ON_BOARD_OPS                                                                                            \
    .aim = pp_contribute_aim, .start = pp_contribute_start, .update = pp_on_board_update,                          \
    .ready = pp_on_board_ready, .withholds = pp_on_board_withholds, .in_mid_round = pp_on_board_in_mid_round,      \
    .drawn = pp_on_board_drawn, .joined = pp_on_board_joined, .discard = pp_contribute_discard,                    \
    .forgive = pp_contribute_forgive, .own = pp_copy_own, .return_users = pp_contribute_return_users,              \
    .copy_out = pp_copy_out, .view = pp_copy_view,                                                                 \
    .end_view = pp_copy_end_view, .end_landing = pp_copy_end_landing, .handed_out = pp_say_given,                  \
    .holds_up = pp_hold_holds_up, .copy_in = pp_copy_in, .count_as_given = pp_combine_count_as_given, .has_work = pp_on_board_has_work,                             \
    .begin_work = pp_on_board_begin_work, .work = pp_on_board_work, .worked = pp_on_board_worked
/* A result was handed out; true: others may have waited for the entry that it had. */
bool        pp_say_given(pp_allreduce_t *coll);

#endif
