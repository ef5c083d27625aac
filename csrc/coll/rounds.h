/*
 * rounds.h - what combine.c, decide.c and between.c share, for nobody else.
 *
 * Ranks are named by their index on the node here, unless a mask goes into a header.
 */
#ifndef PP_ROUNDS_H
#define PP_ROUNDS_H

#include "combine.h"

static inline pp_node_t *pp_node_of(const pp_coll_t *coll) { return coll->engine->node; }
/* The rank that has an index on the node. */
static inline int32_t pp_rank_at(const pp_coll_t *coll, int32_t index)
{
    const pp_nodes_t *nodes = coll->engine->nodes;
    return nodes ? pp_nodes_rank(nodes, nodes->mine, index) : index;
}

/* ---- deciding (decide.c) ---------------------------------------------------------------------------- */

typedef struct pp_view {
    const pp_coll_t *coll;
    uint64_t round, flushes;
    bool     away;                   /* somebody may have left */
    bool     others;                 /* there are other handles */
} pp_view_t;

pp_view_t pp_view_of(const pp_coll_t *coll, uint64_t round);
uint64_t  pp_view_word(const pp_coll_t *coll, int32_t index);
bool      pp_view_left(const pp_view_t *view, int32_t index);
bool      pp_view_elsewhere(const pp_view_t *view, int32_t index);
bool      pp_view_ready(const pp_view_t *view, uint64_t word, int32_t index);
bool      pp_view_flushes(const pp_view_t *view, int32_t index);
/* Whether max_lag holds rounds back; Full waits for every rank anyway. */
static inline bool pp_is_bounded(const pp_coll_t *coll)
{
    return coll->config.max_lag >= 0 && !pp_policy_is_full(coll);
}
/* max_lag: everybody on the node may give its part. */
bool      pp_view_permit(const pp_view_t *view);
/* The rank, of all, at a place of the order of draws of the current round: who had left in the one before comes
   last. */
int32_t   pp_combine_drawn_at(pp_coll_t *coll, int32_t place);
/* Whether the round is to be run now, and who brings it about; the latter into coll->combine.  For rounds of this
   node alone. */
bool      pp_combine_decide(pp_coll_t *coll, uint64_t round);

/* ---- making rounds ---------------------------------------------------------------------------------- */

/* Where rounds went on while nobody here looked: entries of the ring become results. */
bool      pp_combine_catch_up(pp_coll_t *coll);
/* Under the claim of the round: takes what the ranks of the node have pending into an entry of the ring and the
   plan, whose targets and divisor are left to the caller.  Who brought it about is in coll->combine.  -1: there is
   no entry that may be overwritten. */
int32_t   pp_combine_collect(pp_coll_t *coll, uint64_t round);
/* Does what the plan says, at once (true) or in chunks that are handed out. */
bool      pp_combine_move(pp_coll_t *coll, uint64_t round);
/* The ring is full of what ranks have left that are exempt from max_lag: their threads take it out. */
void      pp_combine_ask_for_room(pp_coll_t *coll, uint64_t round);
/* Wakes callers that sleep until the round is complete, or help with it. */
void      pp_combine_wake_waiters(pp_coll_t *coll, uint64_t round);
static inline size_t pp_mask_bytes(const pp_coll_t *coll)
{
    return coll->series.mask_words * sizeof(uint64_t);
}

#endif
