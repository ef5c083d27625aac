/* random.c - groups at random (Ripples, section 4.1; `reuse`: section 5.1).  See parts.h. */
#include "parts.h"

static bool ask(const pp_groups_call_t *call, int32_t rank)
{
    pp_groups_t *g = call->groups;
    int32_t      group = g->plan.reuse ? pp_ledger_first(g, rank) : PP_NOBODY;
    if (group == PP_NOBODY) {
        int32_t *members = pp_groups_array(g, g->order);
        members[0] = rank;
        group = pp_ledger_form(call, members, 1 + pp_crowd_draw(g, &g->here, rank, g->plan.size - 1, members + 1), true);
    }
    if (group != PP_NOBODY)
        pp_ledger_set_goal(g, rank, group);
    return group != PP_NOBODY;
}

const pp_generator_t pp_generator_random = {.ask = ask};
