/* neighbours.c - the rank that asks, and those with the next numbers that have not left.  See parts.h. */
#include "parts.h"

static bool ask(const pp_groups_call_t *call, int32_t rank)
{
    pp_groups_t *g = call->groups;
    int32_t     *members = pp_groups_array(g, g->order), count = 0;
    for (int32_t ahead = 0; ahead < g->plan.ranks && count < g->plan.size; ahead++) {
        int32_t other = (rank + ahead) % g->plan.ranks;
        if (!pp_groups_rank(g, other)->left)
            members[count++] = other;
    }
    int32_t group = pp_ledger_form(call, members, count, true);
    if (group != PP_NOBODY)
        pp_ledger_set_goal(g, rank, group);
    return group != PP_NOBODY;
}

const pp_generator_t pp_generator_neighbours = {.ask = ask};
