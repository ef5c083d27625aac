/*
 * policy.h - the rules of a round, the same for all ways to make one: facts about ranks in, a verdict out.
 *
 * Pure: no messages, no atomics, no clock, no state.  An observer gathers the facts that it knows, asks these
 * functions, and obeys.  It is a rank alone, a rank that sees the board of its node, or the leader of a node.
 * (design: "Triggering", "Staleness bound", "Leaving")
 */
#ifndef PP_POLICY_H
#define PP_POLICY_H

#include "../base/base.h"
#include "../base/tally.h"

/* What a handle was made with. */
typedef struct pp_rule {
    int32_t  policy;                 /* pp_policy_t */
    int32_t  k;                      /* FIRST_OF: ranks that are drawn; QUORUM: ranks that must be ready */
    int32_t  size;                   /* ranks */
    bool     deadline;               /* a rank that has waited for a time triggers */
    uint64_t seed;                   /* of the draws of this handle */
} pp_rule_t;

/* What an observer knows of a rank, about the round that completes next. */
typedef struct pp_facts {
    bool waits;                      /* it waits on this handle for this round */
    bool pending;                    /* it has a contribution pending */
    bool ready;                      /* latched: once ready for a round, it counts for that round */
    bool left;                       /* it is in a collective call, or out */
    bool out;                        /* it has left for good */
    bool aside;                      /* it has left by patience, or is in a call of the application that the library sees */
    bool elsewhere;                  /* it waits on another handle of its process */
    bool overdue;                    /* it has waited for longer than the deadline */
} pp_facts_t;

static inline bool pp_facts_ready(const pp_facts_t *f) { return f->pending && (f->waits || f->elsewhere); }
static inline bool pp_facts_gone(const pp_facts_t *f) { return f->left || f->aside; }

/* Full: every rank gives its part when it is ready, so no rank is counted.  With a deadline parts are taken as they
   are: that is a quorum of all ranks. */
static inline bool pp_rule_is_full(const pp_rule_t *rule)
{
    return rule->policy == PP_QUORUM && rule->k == rule->size && !rule->deadline;
}
static inline bool pp_rule_is_solo(const pp_rule_t *rule)
{
    return rule->policy == PP_FIRST_OF && rule->k == rule->size;
}
/* A draw decides, and may be handed on. */
static inline bool pp_rule_draws(const pp_rule_t *rule)
{
    return rule->policy == PP_FIRST_OF && rule->k < rule->size;
}
/* Ready ranks are counted. */
static inline bool pp_rule_counts(const pp_rule_t *rule)
{
    return rule->policy == PP_QUORUM && !pp_rule_is_full(rule);
}

/* ---- first of m (draw.c) ------------------------------------------------------------------------------ */

/* The order of draws of a round is a permutation of the ranks, the same on all of them.  The first k ranks of it are
   drawn.  Ranks that the round before lists as left come last (`left`: their mask; NULL: none, or too many ranks for
   masks).  They are not left out, so a draw can still reach them when all other ranks have left since. */
int32_t pp_order_rank(const pp_rule_t *rule, uint64_t round, const uint64_t *left, int32_t place);
int32_t pp_order_place(const pp_rule_t *rule, uint64_t round, const uint64_t *left, int32_t rank);
/* Fills the order from place `known` up to `place`.  Returns the number of places known then. */
int32_t pp_order_fill(const pp_rule_t *rule, uint64_t round, const uint64_t *left, int32_t *order, int32_t known,
                      int32_t place);

typedef enum pp_draw_verdict {
    PP_DRAW_KEPT,                    /* the round waits for this rank's next call */
    PP_DRAW_TRIGGERS,
    /* No rank can wait for this one: it is out, has left by patience, or has a contribution pending here but waits
       elsewhere. */
    PP_DRAW_HANDED_ON,
    /* It is in a collective call.  The draw is handed on, but only until the call has ended: towards ranks that have
       completed the call it has not left. */
    PP_DRAW_LENT,
    PP_DRAW_OUT_OF_SIGHT             /* the observer knows nothing of this rank */
} pp_draw_verdict_t;

pp_draw_verdict_t pp_rule_draw(const pp_facts_t *facts);
/* The place to which a draw is handed on: i + k, because with i + 1 the draws would swallow each other.  So exactly one
   draw can reach each rank.  -1: the end of the order; the draw is not lost, because draws are copied, never moved. */
int32_t    pp_rule_next_place(const pp_rule_t *rule, int32_t place);
pp_cause_t pp_rule_draw_cause(const pp_rule_t *rule, int32_t place);

/* Where a draw that begins at `place` ends.  `facts_at` gives the facts of the rank at a place; false: they are not
   known. */
typedef struct pp_draw_end {
    pp_draw_verdict_t verdict;
    int32_t place;                   /* -1: every rank on its way handed it on */
    int32_t hops;
    bool    lent;                    /* at least one rank on its way lent it */
} pp_draw_end_t;
typedef bool (*pp_facts_at_t)(void *arg, int32_t place, pp_facts_t *facts);
pp_draw_end_t pp_rule_follow(const pp_rule_t *rule, int32_t place, pp_facts_at_t facts_at, void *arg);

/* ---- quorum ------------------------------------------------------------------------------------------- */

typedef struct pp_count {
    uint32_t ready, left;            /* ready; not ready, but in a collective call */
    uint32_t aside;                  /* not ready, but aside or out: that is never void */
    bool     waits, overdue;         /* whether a rank waits; whether a waiting rank's deadline is over */
} pp_count_t;

void pp_rule_count(pp_count_t *count, const pp_facts_t *facts);
/* True: the round is to be activated, with this cause. */
bool pp_rule_enough(const pp_rule_t *rule, const pp_count_t *count, pp_cause_t *cause);

/* ---- one rank by itself -------------------------------------------------------------------------------- */

/* Whether the rank activates the round, whatever the others do.  `place`: of a draw that has reached it; -1: none has.
   */
bool pp_rule_triggers(const pp_rule_t *rule, const pp_facts_t *facts, int32_t place, pp_cause_t *cause);

/* ---- max_lag --------------------------------------------------------------------------------------------- */

enum { PP_UNBOUNDED_SHIFT = 1 };
#define PP_UNBOUNDED (UINT64_MAX >> PP_UNBOUNDED_SHIFT)

/* The first round from which the rank withholds its part.  `given`: rounds given or counted as given.  An outstanding
   on-time request will be given the next round that completes; `given` may count that round already. */
static inline uint64_t pp_rule_bound(uint64_t given, uint64_t completed, bool waits, uint64_t max_lag)
{
    uint64_t from = waits && given < completed + 1 ? completed + 1 : given;
    return from + max_lag;
}
/* max_lag does not hold this rank's part back. */
static inline bool pp_facts_exempt(const pp_facts_t *f) { return f->left || f->elsewhere || f->aside; }
/* Whether the rank may give its part of an activated round.  Full waits for every rank anyway, so a bound holds none
   back that is not ready. */
bool pp_rule_permits(const pp_rule_t *rule, const pp_facts_t *facts, uint64_t round, uint64_t bound);
static inline bool pp_rule_withholds(const pp_rule_t *rule, const pp_facts_t *f, uint64_t round, uint64_t bound)
{
    return !(pp_rule_is_full(rule) && !f->ready) && !pp_facts_exempt(f) && round >= bound;
}

/* ---- patience ---------------------------------------------------------------------------------------------- */

/* Whether this rank holds up a round that another rank waits for.  `drawn`: a draw has reached this rank. */
bool pp_rule_holds_up(const pp_rule_t *rule, const pp_facts_t *facts, bool drawn, bool activated, uint64_t round,
                      uint64_t bound);

/* ---- the verdict on a complete round --------------------------------------------------------------------------- */

/* Sets cause and initiator of a complete round.  They follow from its tally, so they are the same on all ranks.  The
   root of a quorum may have joined from a Flush before it activated the round, so the count decides: fewer than k
   ranks were ready only if all the others had left, or a deadline was over. */
void pp_rule_judge(const pp_rule_t *rule, pp_tally_t *tally);

#endif
