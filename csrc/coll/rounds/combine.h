/*
 * combine.h - rounds on a node's board (node/board.h): ranks that are present run the rounds of those that are absent.
 *
 * The rules are those of policy/policy.h.  A rank that makes its rounds of messages decides for itself and tells the
 * others.  Here all facts that the rules look at are in the memory of the node, and the rank that has changed a fact
 * decides for all.  So no rank must be woken, or hand on what it knows: the rank that decides follows a draw through
 * the order and counts the ready ranks; and a rank that withholds its part delays the beginning of the round, so no
 * rank waits for it in the middle.  A rank's own state (requests, results not given) is brought up to date when the
 * rank comes: pp_combine_catch_up().
 *
 * A result stays in the ring until it is given.  Until then its outcome only refers to the ring (PP_IN_RING), or says
 * that the result is already in the receive buffer (PP_IN_RECEIVE).
 *
 * For the files of this folder only.  A rank is named by its index on the node, except in masks of headers.
 */
#ifndef PP_COMBINE_H
#define PP_COMBINE_H

#include "allreduce.h"
#include "../../node/move.h"

typedef struct pp_combine pp_combine_t;

/* The differences between the only board of a context and one of several boards. */
typedef struct pp_way {
    bool alone;                      /* the node's ranks are all ranks of the context */
    /* Goes on with the open round.  `news`: something has changed here since the last look.  False: there was no reason
       to look. */
    bool (*look)(pp_allreduce_t *, bool news);
    /* Whether the open round, which `turn` shows, needs this rank's attention. */
    bool (*has_news)(pp_allreduce_t *, uint64_t turn);
    /* The last chunk of the node's part is finished. */
    void (*gathered)(pp_allreduce_t *, uint64_t round);
    /* This rank has ended a merge, and the leader waits for that. */
    void (*merge_awaited)(pp_allreduce_t *, uint64_t round);
} pp_way_t;

/* Entries of the ring, of this round and perhaps of later ones, that are still read by operations which are queued up to
   a mark (memory.h). */
typedef struct pp_read {
    uint64_t round, mark;
} pp_read_t;

enum { PP_READS = 8 };               /* results are seldom that far behind; what comes then joins the newest read */

struct pp_combine {
    const pp_way_t *way;
    struct pp_leading *leading;      /* between nodes; else NULL */
    pp_board_t board;
    bool       users;                /* rounds read contributions in sendbuf, an array in the memory of the node */
    bool       direct;               /* rounds may write results into recvbuf, an array in the memory of the node */
    void      *kept_send, *kept_receive;   /* keepers of these arrays; else NULL */
    uint64_t   starts_taken;         /* this rank's Starts that the rounds looked at so far have taken */
    uint64_t   limit, absorbed;      /* as published */
    bool       news;                 /* something has changed, and this rank has not looked at the round since */
    uint64_t   waits;                /* team->waits when this rank last looked */
    uint64_t   presence;             /* the presence that it had published then */
    uint64_t   ripe;                 /* 1 + the last round that it has looked at because the round was ripe */
    uint64_t   flushes;              /* flush rounds complete here; other ranks may be ahead */
    uint64_t   flushed;              /* 1 + the newest flush round here; its entry is kept until this rank has it */
    pp_read_t  reads[PP_READS];      /* the oldest first */
    uint32_t   read_count;
    uint32_t   triggered;            /* the number of ranks that bring about the round decided on */
    uint64_t   triggers[PP_CONTRIBUTORS_WORDS];   /* these ranks */
    uint64_t   ready[PP_CONTRIBUTORS_WORDS];   /* ranks that were ready then, and count for the round */
    uint32_t   cause;
    bool       folds;                /* this rank has the vectors of the round that it has claimed folded */
    int32_t    workers;              /* threads of this rank that move data of its rounds, without the lock */
    pp_cut_t   cut;                  /* the chunks of a large round */
    /* The chunks of one round's result that this rank has put into its receive buffers while it moved them.  Only a
       thread inside Wait does so. */
    bool      *landed;
    uint32_t   landed_count;
    uint64_t   landed_round;
    bool       landed_given;         /* the result handed out has such chunks */
    bool       merges;               /* this rank adds to a pending part of its own */
    bool       merges_away;          /* it began to do so while a round was AWAY */
    int32_t   *order;                /* the order of draws of `order_round`: its first `ordered` places */
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
/* Every round is given to every rank. */
static inline bool pp_combine_keeps_all(const pp_allreduce_t *coll) { return coll->config.deliver != PP_LATEST; }
/* Simulated ranks also cut short vectors into chunks, so that simulations meet what happens then. */
static inline bool pp_combine_is_simulated(const pp_allreduce_t *coll) { return !pp_node_of(coll)->memory; }
/* The claimer moves vectors up to this size at once. */
size_t pp_combine_whole_bytes(const pp_allreduce_t *coll);

/* ---- looking at the board (view.c) ------------------------------------------------------------------- */

typedef struct pp_view {
    const pp_allreduce_t *coll;
    uint64_t round, flushes;
    bool     away;                   /* a rank may have left, or wait in another context */
    bool     others;                 /* there are other handles on which a rank may wait */
} pp_view_t;

pp_view_t  pp_view_of(const pp_allreduce_t *coll, uint64_t round);
uint64_t   pp_view_word(const pp_allreduce_t *coll, int32_t index);
bool       pp_view_left(const pp_view_t *view, int32_t index);
bool       pp_view_elsewhere(const pp_view_t *view, int32_t index);
bool       pp_view_ready(const pp_view_t *view, uint64_t word, int32_t index);
bool       pp_view_flushes(const pp_view_t *view, int32_t index);
/* The facts that the board shows of a rank; `ready` is not latched. */
pp_facts_t pp_view_facts(const pp_view_t *view, int32_t index);
/* For a rank whose limit the round has reached: it withholds its part, because nothing exempts it. */
bool       pp_view_withholds(const pp_view_t *view, int32_t index);
bool       pp_view_anybody_aside(const pp_view_t *view);
/* max_lag lets every rank of the node give its part. */
bool       pp_view_permit(const pp_view_t *view);
/* The rank of the context at a place of the order of draws of the current round. */
int32_t    pp_view_drawn_at(pp_allreduce_t *coll, int32_t place);

/* ---- who is waited for, in words (explain.c) ----------------------------------------------------------- */

void       pp_on_board_explain(pp_handle_t *handle, pp_text_t *text);

/* ---- rounds that a rank has waited long for (hold.c) ------------------------------------------------------ */

/* Says that this rank waits for the round. */
void       pp_hold_await(pp_allreduce_t *coll, uint64_t round);
bool       pp_hold_is_awaited(const pp_allreduce_t *coll, uint64_t round);
/* Tells the ranks of the node that do not wait that others do, and some that they hold the round up.  If the round is not
   activated: the ranks at which draws end, and those missing from a quorum.  In any case: the ranks that withhold.  `draws`: the mask of the draws that count;
   NULL: all that begin. */
void       pp_hold_tell(const pp_view_t *view, pp_allreduce_t *coll, bool activated, const uint64_t *draws,
                        const uint64_t *ready);
/* What another rank has told this one about the next round. */
typedef enum pp_told {
    PP_TOLD_NOTHING, PP_TOLD_THAT_OTHERS_WAIT, PP_TOLD_THAT_IT_HOLDS
} pp_told_t;
pp_told_t  pp_hold_told(const pp_allreduce_t *coll);
bool       pp_hold_holds_up(pp_allreduce_t *coll);
/* The index of a rank on this node; -1: the rank is on another node. */
int32_t    pp_view_index_of(const pp_allreduce_t *coll, int32_t rank);
/* Where a draw ends, as far as the board of this node shows. */
pp_draw_end_t pp_view_follow(const pp_view_t *view, pp_allreduce_t *coll, int32_t place);

/* ---- to and from the leader of a round (signals.c) ---------------------------------------------------------- */

/* Tells the leader that it has a reason to look at the round. */
void       pp_signal_tell_leader(pp_allreduce_t *coll, uint64_t round);
/* The number of reasons so far. */
uint32_t   pp_signal_told(const pp_allreduce_t *coll);
/* How often a rank of the node has said that it waits long. */
uint32_t   pp_signal_awaits(const pp_allreduce_t *coll);
/* Called by the leader: other nodes have told it about a round that is not open yet; the rank that opens the round
   wakes the leader. */
void       pp_signal_expect(pp_allreduce_t *coll, uint64_t round);
bool       pp_signal_is_expected(const pp_allreduce_t *coll, uint64_t round);
/* Says that the round is on here.  True: this rank is the first to say so, and announces the round to the other nodes.
   */
bool       pp_signal_say_activated(const pp_allreduce_t *coll, uint64_t round, pp_cause_t cause);
bool       pp_signal_is_activated(const pp_allreduce_t *coll, uint64_t round);
/* The index of the rank that was the first to say so. */
int32_t    pp_signal_activated_by(const pp_allreduce_t *coll, uint64_t round, pp_cause_t *cause);

/* ---- what this rank says of itself (say.c) ---------------------------------------------------------------- */

/* The state for its station's word: WAITS, DIRECT, LEAVING, ROUND. */
uint64_t pp_say_state_of(const pp_allreduce_t *coll);
/* The oldest round whose ring entry this rank still needs. */
uint64_t pp_say_absorbed(const pp_allreduce_t *coll);
/* The first round that the other ranks may not run without this one. */
uint64_t pp_say_limit(const pp_allreduce_t *coll);
/* Both publish what has changed, and return whether something had. */
bool     pp_say_bounds(pp_allreduce_t *coll);
bool     pp_say_state(pp_allreduce_t *coll);

/* ---- bringing this rank up to date (catch_up.c) ----------------------------------------------------------- */

/* Makes outcomes of the ring entries of the rounds that other ranks have made since this rank last looked. */
bool     pp_combine_catch_up(pp_allreduce_t *coll);
/* While this rank is exempt: rounds that are complete or taken count as given. */
void     pp_combine_count_as_given(pp_handle_t *handle);

/* ---- making a round (gather.c) -------------------------------------------------------------------------- */

/* Under the claim of the round: takes the pending parts of the node's ranks into an entry of the ring and the plan.
   The caller sets the plan's targets and divisor.  The handle's pp_combine_t says which ranks brought the round about.
   -1: no entry may be overwritten. */
int32_t  pp_gather(pp_allreduce_t *coll, uint64_t round);
/* Moves the data as planned: at once (true), in chunks that it hands out, or by a fold of its own. */
bool     pp_gather_move(pp_allreduce_t *coll, uint64_t round);
/* Whether a fold that this rank has begun has ended. */
bool     pp_gather_fold_over(pp_allreduce_t *coll);
/* The ring is full of results that ranks have not taken out, because they are exempt from max_lag: wakes their threads,
   which take them out. */
void     pp_gather_ask_for_room(pp_allreduce_t *coll, uint64_t round);
/* Wakes callers that sleep in a wait for the round: it is complete, or they can help with it. */
void     pp_gather_wake_waiters(pp_allreduce_t *coll, uint64_t round);

/* ---- a contribution, from its Start on (contribute.c) ------------------------------------------------------ */

pp_status_t pp_contribute_aim(pp_allreduce_t *coll, pp_target_t *target);
void        pp_contribute_start(pp_allreduce_t *coll, const pp_target_t *target);
uint64_t    pp_contribute_request(pp_allreduce_t *coll);
bool        pp_contribute_reserve(pp_allreduce_t *coll, pp_target_t *target);
void        pp_contribute_give_up(pp_allreduce_t *coll, const pp_target_t *target);
void        pp_contribute_link(pp_allreduce_t *coll, const pp_target_t *target, uint64_t given);
bool        pp_contribute_return_users(pp_allreduce_t *coll);
uint64_t    pp_contribute_discard(pp_allreduce_t *coll);
void        pp_contribute_forgive(pp_allreduce_t *coll);

/* ---- results (copy.c) ---------------------------------------------------------------------------------------- */

bool        pp_copy_out(const pp_allreduce_t *coll, const pp_outcome_t *outcome);
const void *pp_copy_view(pp_allreduce_t *coll, const pp_outcome_t *outcome);
void        pp_copy_end_view(pp_allreduce_t *coll);
bool        pp_copy_own(pp_allreduce_t *coll, pp_outcome_t *outcome);
/* Whether entries that were read by queued operations are so no more: rounds may take their place. */
bool        pp_copy_has_read(pp_allreduce_t *coll);
bool        pp_copy_begin_landing(pp_allreduce_t *coll);
void        pp_copy_end_landing(pp_allreduce_t *coll);
void        pp_copy_in(const pp_allreduce_t *coll, void *to, const void *from, size_t bytes);

/* ---- the table of both ways (on_board.c) ---------------------------------------------------------------------- */

pp_facts_t  pp_on_board_facts(const pp_allreduce_t *coll);
bool        pp_on_board_in_mid_round(const pp_allreduce_t *coll);
uint64_t    pp_on_board_joined(const pp_allreduce_t *coll);
void        pp_on_board_update(pp_allreduce_t *coll);
/* Goes on with what has changed; true: a round has completed, so look again. */
bool        pp_on_board_go_on(pp_allreduce_t *coll);
/* Whether there is something to do: rounds to catch up with, or the open round needs attention. */
bool        pp_on_board_has_news(pp_allreduce_t *coll);
bool        pp_on_board_has_work(const pp_handle_t *handle);
void        pp_on_board_begin_work(pp_handle_t *handle, bool *lands);
bool        pp_on_board_work(pp_handle_t *handle, bool lands, uint64_t *round);
void        pp_on_board_worked(pp_handle_t *handle, uint64_t round, bool last);
/* coll->series must be open. */
pp_status_t pp_on_board_open(pp_allreduce_t *coll, const pp_way_t *way, uint64_t region);
void        pp_on_board_close(pp_allreduce_t *coll);

/* The entries of pp_rounds_ops_t that both ways have in common. */
#define PP_ON_BOARD_OPS                                                                                            \
    .aim = pp_contribute_aim, .start = pp_contribute_start, .update = pp_on_board_update,                          \
    .request = pp_contribute_request, .link = pp_contribute_link, .reserve = pp_contribute_reserve,                \
    .give_up = pp_contribute_give_up,                                                                              \
    .facts = pp_on_board_facts, .in_mid_round = pp_on_board_in_mid_round, .joined = pp_on_board_joined,            \
    .discard = pp_contribute_discard,                                                                              \
    .forgive = pp_contribute_forgive, .own = pp_copy_own, .return_users = pp_contribute_return_users,              \
    .copy_out = pp_copy_out, .view = pp_copy_view,                                                                 \
    .end_view = pp_copy_end_view, .end_landing = pp_copy_end_landing, .handed_out = pp_say_given,                  \
    .holds_up = pp_hold_holds_up, .copy_in = pp_copy_in
#define PP_ON_BOARD_HANDLE_OPS                                                                                     \
    .count_as_given = pp_combine_count_as_given, .has_work = pp_on_board_has_work,                                 \
    .begin_work = pp_on_board_begin_work, .work = pp_on_board_work, .worked = pp_on_board_worked,                  \
    .count_buffers = pp_rounds_count_buffers
/* A result was handed out; true: other ranks may have waited for its entry. */
bool        pp_say_given(pp_allreduce_t *coll);

#endif
