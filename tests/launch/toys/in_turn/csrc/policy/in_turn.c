/* in_turn.c - the k ranks whose turn it is are drawn: in round r these are rank r mod P and the ranks after it. */
#include "policy.h"

static void settle(pp_rule_t *rule, int32_t k)
{
    rule->drawn = k;
    rule->trigger = k < rule->size ? PP_BY_DRAW : PP_BY_ANYBODY;
}

static void spell(const pp_rule_t *rule, char *text, size_t bytes) { snprintf(text, bytes, "InTurn(%d)", rule->drawn); }

static int32_t rank_at(const pp_rule_t *rule, uint64_t round, int32_t place)
{
    return (int32_t)((round + (uint64_t)place) % (uint64_t)rule->size);
}

static int32_t place_of(const pp_rule_t *rule, uint64_t round, int32_t rank)
{
    int32_t first = rank_at(rule, round, 0);
    return rank >= first ? rank - first : rank - first + rule->size;
}

const pp_policy_kind_t pp_policy_in_turn = {
    .settle = settle, .spell = spell, .rank_at = rank_at, .place_of = place_of,
};
