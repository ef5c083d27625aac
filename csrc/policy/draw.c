/* draw.c - the order of draws, and the way of a draw through it.  See policy.h. */
#include "policy.h"

/* In two passes: first the ranks that had not left, then those that had. */
int32_t pp_order_rank(const pp_rule_t *rule, uint64_t round, const uint64_t *left, int32_t place)
{
    if (!left)
        return rule->policy->rank_at(rule, round, place);
    int32_t at = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < rule->size; i++) {
            int32_t rank = rule->policy->rank_at(rule, round, i);
            if (pp_mask_has(left, rank) == (pass == 1) && at++ == place)
                return rank;
        }
    return -1;
}

int32_t pp_order_place(const pp_rule_t *rule, uint64_t round, const uint64_t *left, int32_t rank)
{
    int32_t plain = rule->policy->place_of(rule, round, rank), before = 0, stay = 0;
    if (!left)
        return plain;
    bool has_left = pp_mask_has(left, rank);
    for (int32_t i = 0; i < rule->size; i++) {
        bool other_left = pp_mask_has(left, rule->policy->rank_at(rule, round, i));
        stay += !other_left;
        before += i < plain && other_left == has_left;
    }
    return has_left ? stay + before : before;
}

int32_t pp_order_fill(const pp_rule_t *rule, uint64_t round, const uint64_t *left, int32_t *order, int32_t known,
                      int32_t place)
{
    bool whole = left && known == 0;
    for (int pass = 0; whole && pass < 2; pass++)
        for (int32_t i = 0; i < rule->size; i++) {
            int32_t rank = rule->policy->rank_at(rule, round, i);
            if (pp_mask_has(left, rank) == (pass == 1))
                order[known++] = rank;
        }
    for (; known <= place; known++)
        order[known] = rule->policy->rank_at(rule, round, known);
    return known;
}

pp_draw_verdict_t pp_rule_draw(const pp_facts_t *facts)
{
    if (facts->waits)
        return PP_DRAW_TRIGGERS;
    if (facts->out || facts->aside || (facts->pending && facts->elsewhere))
        return PP_DRAW_HANDED_ON;
    return facts->left ? PP_DRAW_LENT : PP_DRAW_KEPT;
}

int32_t pp_rule_next_place(const pp_rule_t *rule, int32_t place)
{
    return place + rule->drawn < rule->size ? place + rule->drawn : -1;
}

pp_cause_t pp_rule_draw_cause(const pp_rule_t *rule, int32_t place)
{
    return place < rule->drawn ? PP_CAUSE_POLICY : PP_CAUSE_DEPARTED;
}

pp_draw_end_t pp_rule_follow(const pp_rule_t *rule, int32_t place, pp_facts_at_t facts_at, void *arg)
{
    pp_draw_end_t end = {.verdict = PP_DRAW_HANDED_ON, .place = place};
    while (end.place >= 0) {
        pp_facts_t facts;
        end.verdict = facts_at(arg, end.place, &facts) ? pp_rule_draw(&facts) : PP_DRAW_OUT_OF_SIGHT;
        if (end.verdict != PP_DRAW_HANDED_ON && end.verdict != PP_DRAW_LENT)
            return end;
        end.lent |= end.verdict == PP_DRAW_LENT;
        end.place = pp_rule_next_place(rule, end.place);
        end.hops++;
    }
    end.verdict = PP_DRAW_HANDED_ON;
    return end;
}
