/* policy.c - see policy.h. */
#include "policy.h"

#include <string.h>

/* ---- quorum -------------------------------------------------------------------------------------------- */

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
    bool enough = count->ready >= (uint32_t)rule->k
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
    if (pp_rule_is_full(rule) || pp_rule_is_solo(rule))
        return true;
    if (rule->policy == PP_FIRST_OF && place >= 0) {
        *cause = pp_rule_draw_cause(rule, place);
        return true;
    }
    *cause = PP_CAUSE_DEADLINE;
    return facts->overdue;
}

bool pp_rule_permits(const pp_rule_t *rule, const pp_facts_t *facts, uint64_t round, uint64_t bound)
{
    if (pp_rule_is_full(rule) && !facts->ready && !facts->left)
        return false;
    return !pp_rule_withholds(rule, facts, round, bound);
}

/* ---- patience ---------------------------------------------------------------------------------------------- */

bool pp_rule_holds_up(const pp_rule_t *rule, const pp_facts_t *facts, bool drawn, bool activated, uint64_t round,
                      uint64_t bound)
{
    if (pp_rule_is_full(rule))
        return false;
    bool withholds = pp_rule_withholds(rule, facts, round, bound);
    if (activated || withholds)
        return withholds;
    return rule->policy == PP_FIRST_OF ? drawn && pp_rule_draw(facts) == PP_DRAW_KEPT
                                       : !facts->ready && !pp_facts_gone(facts);
}

void pp_habit_add(pp_habit_t *habit, uint64_t ns) { habit->ns[habit->count++ % PP_PATIENCE_SAMPLES] = ns; }

static uint64_t median(const pp_habit_t *habit)
{
    uint64_t sorted[PP_PATIENCE_SAMPLES];
    uint32_t count = habit->count < PP_PATIENCE_SAMPLES ? (uint32_t)habit->count : PP_PATIENCE_SAMPLES;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > habit->ns[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = habit->ns[i];
    }
    return sorted[count / 2];
}

uint64_t pp_habit_pace(const pp_habit_t *own, const pp_habit_t *others)
{
    static const uint64_t UNKNOWN_NS = 2000000000;
    const pp_habit_t *habit = own->count >= PP_PATIENCE_ENOUGH ? own : others;
    if (habit->count < PP_PATIENCE_ENOUGH)
        return UNKNOWN_NS;
    uint64_t usual = median(habit);
    return usual > UINT64_MAX / 10 ? PP_UNBOUNDED : 5 * usual;
}

uint64_t pp_habit_patience(const pp_habit_t *own, const pp_habit_t *others)
{
    static const uint64_t LEAST_NS = 1000000000;
    uint64_t pace = pp_habit_pace(own, others);
    return pace > LEAST_NS ? pace : LEAST_NS;
}

/* ---- the verdict on a complete round --------------------------------------------------------------------------- */

void pp_rule_judge(const pp_rule_t *rule, pp_tally_t *tally)
{
    if (rule->policy == PP_QUORUM) {
        if (tally->active < (uint32_t)rule->k && tally->cause < PP_CAUSE_DEPARTED)
            tally->cause = PP_CAUSE_DEPARTED;
        tally->initiator = PP_NO_INITIATOR;
    }
    if (tally->flushing == (uint32_t)rule->size) {
        tally->cause = PP_CAUSE_FLUSH;
        tally->initiator = PP_NO_INITIATOR;
    }
}
