/*
 * policy.h - the rules of a round, once for all ways to make one: facts about ranks in, a verdict out.
 *
 * Pure: no messages, no atomics, no clock, no state.  An observer (a rank by itself, a rank that sees the board of
 * its node, the leader of a node) gathers the facts that it knows, asks, and obeys.  (design: "Triggering",
 * "Staleness bound", "Leaving")
 */
#ifndef PP_POLICY_H
#define PP_POLICY_H

#include "../base/base.h"
#include "../base/tally.h"

/* What a handle was made with. */
typedef struct pp_rule {
    int32_t  policy;                 /* pp_policy_t */
    int32_t  k;                      /* FIRST_OF: how many ranks are drawn; QUORUM: how many must be ready */
    int32_t  size;                   /* ranks */
    bool     deadline;               /* a waiting rank triggers after a time */
    bool     each;                   /* deliver="each": patience does not lift max_lag */
    uint64_t seed;                   /* of the draws of this handle */
} pp_rule_t;

/* What an observer knows of a rank, about the round that is the next to complete. */
typedef struct pp_facts {
    bool waits;                      /* here, for this round */
    bool pending;                    /* a contribution */
    bool ready;                      /* latched: once ready for a round, it counts for that round */
    bool left;                       /* in a collective call, or out */
    bool out;                        /* for good */
    bool aside;                      /* left by patience */
    bool elsewhere;                  /* waits on another handle of its process */
    bool overdue;                    /* has waited for longer than the deadline */
} pp_facts_t;

static inline bool pp_facts_ready(const pp_facts_t *f) { return f->pending && (f->waits || f->elsewhere); }
static inline bool pp_facts_gone(const pp_facts_t *f) { return f->left || f->aside; }

/* Every rank gives its part when it is ready, and nobody counts.  (With a deadline parts are taken as they are, so
   that it is a quorum of all.) */
static inline bool pp_rule_is_full(const pp_rule_t *rule)
{
    return rule->policy == PP_QUORUM && rule->k == rule->size && !rule->deadline;
}
static inline bool pp_rule_is_solo(const pp_rule_t *rule)
{
    return rule->policy == PP_FIRST_OF && rule->k == rule->size;
}
/* A draw decides, and may have to be handed on. */
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

/* The order of draws of a round is a permutation of the ranks, the same on all of them.  The first k of it are drawn.
   Ranks that the round before lists as left (`left`: a mask; NULL: nobody, or too many ranks for masks) come last
   instead of being left out: when everybody else has left since, a draw can still reach them. */
int32_t pp_order_rank(const pp_rule_t *rule, uint64_t round, const uint64_t *left, int32_t place);
int32_t pp_order_place(const pp_rule_t *rule, uint64_t round, const uint64_t *left, int32_t rank);
/* The places from `known` up to `place`, at once.  Returns how many are known then. */
int32_t pp_order_fill(const pp_rule_t *rule, uint64_t round, const uint64_t *left, int32_t *order, int32_t known,
                      int32_t place);

typedef enum pp_draw_verdict {
    PP_DRAW_KEPT,                    /* the round waits for this rank's next call */
    PP_DRAW_TRIGGERS,
    /* The rank cannot be waited for: it is out, has left by patience, or is pending here but elsewhere. */
    PP_DRAW_HANDED_ON,
    /* It is in a collective call.  Handed on as well, but only until that has ended: towards ranks that have completed
       the call it has not left. */
    PP_DRAW_LENT,
    PP_DRAW_OUT_OF_SIGHT             /* the observer does not know this rank */
} pp_draw_verdict_t;

pp_draw_verdict_t pp_rule_draw(const pp_facts_t *facts);
/* To i + k, not i + 1, where the draws would swallow each other.  So every rank has one draw that can reach it, and
   -1, the end of that one, loses nothing: draws are copied, never moved. */
int32_t    pp_rule_next_place(const pp_rule_t *rule, int32_t place);
pp_cause_t pp_rule_draw_cause(const pp_rule_t *rule, int32_t place);

/* Where a draw ends, from `place` on.  `facts_at` says what is known of the rank at a place; false: nothing. */
typedef struct pp_draw_end {
    pp_draw_verdict_t verdict;
    int32_t place;                   /* -1: handed on by all */
    int32_t hops;
    bool    lent;                    /* by one of those before, at least */
} pp_draw_end_t;
typedef bool (*pp_facts_at_t)(void *arg, int32_t place, pp_facts_t *facts);
pp_draw_end_t pp_rule_follow(const pp_rule_t *rule, int32_t place, pp_facts_at_t facts_at, void *arg);

/* ---- quorum ------------------------------------------------------------------------------------------- */

typedef struct pp_count {
    uint32_t ready, left;            /* not ready, and left: in a collective call; */
    uint32_t aside;                  /* or by patience, or out: void towards nobody */
    bool     waits, overdue;         /* anybody */
} pp_count_t;

void pp_rule_count(pp_count_t *count, const pp_facts_t *facts);
/* The round is to be activated; false: not yet. */
bool pp_rule_enough(const pp_rule_t *rule, const pp_count_t *count, pp_cause_t *cause);

/* ---- one rank by itself -------------------------------------------------------------------------------- */

/* It activates the round, whatever the others do.  `place`: of a draw that has reached it; -1: none has. */
bool pp_rule_triggers(const pp_rule_t *rule, const pp_facts_t *facts, int32_t place, pp_cause_t *cause);

/* ---- max_lag --------------------------------------------------------------------------------------------- */

enum { PP_UNBOUNDED_SHIFT = 1 };
#define PP_UNBOUNDED (UINT64_MAX >> PP_UNBOUNDED_SHIFT)

/* The first round that the rank withholds its part from.  `given`: rounds given or counted as given; an outstanding
   on-time request will be given the next that completes, which may be among those. */
static inline uint64_t pp_rule_bound(uint64_t given, uint64_t completed, bool waits, uint64_t max_lag)
{
    uint64_t from = waits && given < completed + 1 ? completed + 1 : given;
    return from + max_lag;
}
/* max_lag does not hold this rank's part back. */
static inline bool pp_rule_is_exempt(const pp_rule_t *rule, const pp_facts_t *f)
{
    return f->left || f->elsewhere || (f->aside && !rule->each);
}
/* May the rank give its part of an activated round?  A rank that Full waits for anyway is not held back by its
   bound. */
bool pp_rule_permits(const pp_rule_t *rule, const pp_facts_t *facts, uint64_t round, uint64_t bound);
static inline bool pp_rule_withholds(const pp_rule_t *rule, const pp_facts_t *f, uint64_t round, uint64_t bound)
{
    return !(pp_rule_is_full(rule) && !f->ready) && !pp_rule_is_exempt(rule, f) && round >= bound;
}

/* ---- patience ---------------------------------------------------------------------------------------------- */

/* Whether a round that another rank waits for is held up by this one.  `drawn`: a draw has reached it. */
bool pp_rule_holds_up(const pp_rule_t *rule, const pp_facts_t *facts, bool drawn, bool activated, uint64_t round,
                      uint64_t bound);

enum { PP_PATIENCE_SAMPLES = 16, PP_PATIENCE_ENOUGH = 3 };

/* The last times from a result given to the next Start. */
typedef struct pp_habit {
    uint64_t ns[PP_PATIENCE_SAMPLES];
    uint64_t count;                  /* of all so far; 32 bits overflow after hours of short rounds */
} pp_habit_t;

void     pp_habit_add(pp_habit_t *habit, uint64_t ns);
/* Five times the median of the handle's, or before there are enough of the others', at least a second; before those
   30 s. */
uint64_t pp_habit_patience(const pp_habit_t *own, const pp_habit_t *others);

/* ---- what came of it ----------------------------------------------------------------------------------------- */

/* Cause and initiator of a complete round follow from its tally, so they are the same everywhere.  The root of a
   quorum may have joined from a Flush before it activated the round, so the count decides: fewer than k were ready
   only if all the others had left, or the deadline was over. */
void pp_rule_judge(const pp_rule_t *rule, pp_tally_t *tally);

#endif
