/* quorum.c - a round begins when k ranks are ready: Full is all ranks. */
#include "policy.h"

/* With all ranks each gives its part when it is ready, so no rank is counted.  With a deadline parts are taken as they
   are: that is a quorum of all ranks. */
static void settle(pp_rule_t *rule, int32_t k)
{
    rule->needed = k;
    rule->lockstep = k == rule->size && !rule->deadline;
    rule->trigger = rule->lockstep ? PP_BY_ANYBODY : PP_BY_COUNT;
}

static void spell(const pp_rule_t *rule, char *text, size_t bytes)
{
    if (rule->needed == rule->size)
        snprintf(text, bytes, "Full()");
    else
        snprintf(text, bytes, "Quorum(%d)", rule->needed);
}

const pp_policy_kind_t pp_policy_quorum = {.settle = settle, .spell = spell};
