/* first_of.c - the first of k drawn ranks to wait triggers the round: Majority is k = 1, and Solo all ranks. */
#include "policy.h"

static void settle(pp_rule_t *rule, int32_t k)
{
    rule->drawn = k;
    rule->trigger = k < rule->size ? PP_BY_DRAW : PP_BY_ANYBODY;
}

static void spell(const pp_rule_t *rule, char *text, size_t bytes)
{
    if (rule->drawn == rule->size)
        snprintf(text, bytes, "Solo()");
    else if (rule->drawn == 1)
        snprintf(text, bytes, "Majority()");
    else
        snprintf(text, bytes, "FirstOf(%d)", rule->drawn);
}

static int32_t rank_at(const pp_rule_t *rule, uint64_t round, int32_t place)
{
    return pp_permuted(rule->seed, round, rule->size, place);
}

static int32_t place_of(const pp_rule_t *rule, uint64_t round, int32_t rank)
{
    return pp_permuted_place(rule->seed, round, rule->size, rank);
}

const pp_policy_kind_t pp_policy_first_of = {
    .settle = settle, .spell = spell, .rank_at = rank_at, .place_of = place_of,
};
