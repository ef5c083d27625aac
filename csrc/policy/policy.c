/* policy.c - see policy.h. */
#include "policy.h"

#include <string.h>

/* ---- counts -------------------------------------------------------------------------------------------- */

void pp_rule_count(pp_count_t *count, const pp_facts_t *facts)
{
    count->ready += facts->ready;
    count->left += !facts->ready && facts->left && !facts->aside && !facts->out;
    count->aside += !facts->ready && (facts->aside || facts->out);
    count->waits |= facts->waits;
    count->overdue |= facts->waits && facts->overdue;
}

bool pp_rule_enough(const pp_rule_t *rule, const pp_count_t *count, pp_cause_t *cause)
{
    bool enough = count->ready >= (uint32_t)rule->needed
               || count->ready + count->left + count->aside == (uint32_t)rule->size;
    *cause = enough ? PP_CAUSE_POLICY : PP_CAUSE_DEADLINE;
    return count->waits && (enough || count->overdue);
}

/* ---- one rank by itself ---------------------------------------------------------------------------------- */

bool pp_rule_triggers(const pp_rule_t *rule, const pp_facts_t *facts, int32_t place, pp_cause_t *cause)
{
    *cause = PP_CAUSE_POLICY;
    if (!facts->waits)
        return false;
    if (rule->trigger == PP_BY_ANYBODY)
        return true;
    if (place >= 0) {
        *cause = pp_rule_draw_cause(rule, place);
        return true;
    }
    *cause = PP_CAUSE_DEADLINE;
    return facts->overdue;
}

bool pp_rule_permits(const pp_rule_t *rule, const pp_facts_t *facts, uint64_t round, uint64_t bound)
{
    if (rule->lockstep && !facts->ready && !facts->left)
        return false;
    return !pp_rule_withholds(rule, facts, round, bound);
}

/* ---- patience ---------------------------------------------------------------------------------------------- */

bool pp_rule_holds_up(const pp_rule_t *rule, const pp_facts_t *facts, bool drawn, bool activated, uint64_t round,
                      uint64_t bound)
{
    if (rule->lockstep)
        return false;
    bool withholds = pp_rule_withholds(rule, facts, round, bound);
    if (activated || withholds)
        return withholds;
    return rule->trigger == PP_BY_COUNT ? !facts->ready && !pp_facts_gone(facts)
                                        : drawn && pp_rule_draw(facts) == PP_DRAW_KEPT;
}

/* ---- the verdict on a complete round --------------------------------------------------------------------------- */

void pp_rule_judge(const pp_rule_t *rule, pp_tally_t *tally)
{
    bool flush = tally->flushing == (uint32_t)rule->size;
    if (flush)
        tally->cause = PP_CAUSE_FLUSH;
    else if (tally->active < (uint32_t)rule->needed && tally->cause < PP_CAUSE_DEPARTED)
        tally->cause = PP_CAUSE_DEPARTED;
    if (flush || rule->drawn == 0)
        tally->initiator = PP_NO_INITIATOR;
}
