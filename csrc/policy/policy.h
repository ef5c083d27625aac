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

typedef struct pp_rule pp_rule_t;

/* A policy: one file, and one line in the table of policies.c.  It answers once, when a handle is made: by the fields
   of the rule.  What makes rounds asks these, and never which policy it is. */
typedef struct pp_policy_kind {
    /* Fills in the answers.  `k`: as the application gives it with the policy, 1..size. */
    void (*settle)(pp_rule_t *rule, int32_t k);
    /* The policy as an application writes it. */
    void (*spell)(const pp_rule_t *rule, char *text, size_t bytes);
    /* Where ranks are drawn: the order of draws of a round, a permutation of the ranks, and its inverse. */
    int32_t (*rank_at)(const pp_rule_t *rule, uint64_t round, int32_t place);
    int32_t (*place_of)(const pp_rule_t *rule, uint64_t round, int32_t rank);
} pp_policy_kind_t;

/* Who triggers a round. */
typedef enum pp_trigger {
    PP_BY_ANYBODY,                   /* each rank that waits */
    PP_BY_DRAW,                      /* a rank that waits and is drawn, or to which a draw is handed on */
    PP_BY_COUNT                      /* ready ranks are counted: enough of them, of which one waits */
} pp_trigger_t;

/* What a handle was made with, and what its policy answers. */
struct pp_rule {
    const pp_policy_kind_t *policy;
    int32_t  size;                   /* ranks */
    bool     deadline;               /* a rank that has waited for a time triggers */
    uint64_t seed;                   /* of the draws of this handle */
    /* Answers: */
    pp_trigger_t trigger;
    bool     lockstep;               /* each rank that has not left gives its part when it is ready, as in a collective
                                        call of MPI: no patience, grace or max_lag; needs all */
    int32_t  drawn;                  /* ranks that are drawn for a round; 0: none, so a round has no initiator */
    int32_t  needed;                 /* ranks that must be ready for a round; 0: one that waits is enough */
};

/* `policy` is right, and `k` in 1..size. */
pp_rule_t pp_rule_make(int32_t policy, int32_t k, int32_t size, bool deadline, uint64_t seed);

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

/* ---- draws (draw.c) ------------------------------------------------------------------------------------ */

/* The order of draws of a round is the policy's, the same on all ranks.  The first `drawn` ranks are drawn.  Ranks that
   the round before lists as left come last (`left`: their mask; NULL: none, or too many ranks for masks).  They are not
   left out, so a draw can still reach them when all other ranks have left since. */
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
/* The place to which a draw is handed on: i + `drawn`, because with i + 1 the draws would swallow each other.  So
   exactly one draw can reach each rank.  -1: the end of the order; the draw is not lost, because draws are copied,
   never moved. */
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

/* ---- counts ------------------------------------------------------------------------------------------- */

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
/* Whether the rank may give its part of an activated round.  A round in lockstep waits for every rank anyway, so a
   bound holds none back that is not ready. */
bool pp_rule_permits(const pp_rule_t *rule, const pp_facts_t *facts, uint64_t round, uint64_t bound);
static inline bool pp_rule_withholds(const pp_rule_t *rule, const pp_facts_t *f, uint64_t round, uint64_t bound)
{
    return !(rule->lockstep && !f->ready) && !pp_facts_exempt(f) && round >= bound;
}

/* ---- patience ---------------------------------------------------------------------------------------------- */

/* Whether this rank holds up a round that another rank waits for.  `drawn`: a draw has reached this rank. */
bool pp_rule_holds_up(const pp_rule_t *rule, const pp_facts_t *facts, bool drawn, bool activated, uint64_t round,
                      uint64_t bound);

/* ---- the verdict on a complete round --------------------------------------------------------------------------- */

/* Sets cause and initiator of a complete round.  They follow from its tally, so they are the same on all ranks.  The
   root of a count may have joined from a Flush before it activated the round, so the count decides: fewer ranks than
   needed were ready only if all the others had left, or a deadline was over. */
void pp_rule_judge(const pp_rule_t *rule, pp_tally_t *tally);

#endif
