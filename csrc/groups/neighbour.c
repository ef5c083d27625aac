/*
 * neighbour.c - a rank averages with a neighbour in a graph (AD-PSGD, section 3).  See parts.h.
 *
 * The neighbour is passive: it need not have asked.  So a group waits only for groups with a lower number, and no rank
 * waits for one that computes.
 *
 * The table has, for each rank and one more, where its neighbours begin, and then the neighbours of all ranks.  A rank
 * that has none is a group by itself, like a rank that asks for that (PP_GROUPS_BY_ITSELF).  Which neighbour is drawn
 * depends on seed, rank and iteration only, not on what the others do.
 */
#include "parts.h"

static size_t table_entries(const pp_groups_plan_t *plan, const int32_t *table)
{
    return (size_t)plan->ranks + 1 + (size_t)table[plan->ranks];
}

int32_t pp_groups_neighbour(const pp_groups_plan_t *plan, const int32_t *table, int32_t rank, uint64_t iteration)
{
    const uint64_t drawn = pp_mix(pp_mix(plan->seed, (uint64_t)rank), iteration) >> 32;
    const uint64_t count = (uint64_t)(table[rank + 1] - table[rank]);
    return count == 0 ? rank : table[plan->ranks + 1 + table[rank] + (int32_t)(drawn * count >> 32)];
}

static bool ask(const pp_groups_call_t *call, int32_t rank)
{
    pp_groups_t            *g = call->groups;
    const pp_groups_rank_t *r = pp_groups_rank(g, rank);
    const int32_t          *table = pp_groups_array(g, g->table);
    const int32_t           other = r->by_itself ? rank : pp_groups_neighbour(&g->plan, table, rank, r->iteration);
    int32_t                *members = pp_groups_array(g, g->order), count = 0;
    members[count++] = rank;
    if (other != rank)
        members[count++] = other;
    const int32_t group = pp_ledger_form(call, members, count, true);
    if (group != PP_NOBODY)
        pp_ledger_set_goal(g, rank, group);
    return group != PP_NOBODY;
}

/* The neighbours of a rank are other ranks, in ascending order. */
static pp_status_t check_neighbours(const pp_groups_plan_t *plan, const int32_t *table, int32_t rank)
{
    const int32_t *neighbours = table + plan->ranks + 1;
    for (int32_t at = table[rank]; at < table[rank + 1]; at++) {
        if (neighbours[at] < 0 || neighbours[at] >= plan->ranks || neighbours[at] == rank)
            return pp_fail(PP_ERR_ARGUMENT, "neighbour %d of rank %d is not another of the ranks 0..%d", neighbours[at],
                           rank, plan->ranks - 1);
        if (at > table[rank] && neighbours[at] <= neighbours[at - 1])
            return pp_fail(PP_ERR_ARGUMENT, "the neighbours %d and %d of rank %d do not ascend", neighbours[at - 1],
                           neighbours[at], rank);
    }
    return PP_OK;
}

static pp_status_t check(const pp_groups_plan_t *plan, const int32_t *table)
{
    if (!table)
        return pp_fail(PP_ERR_ARGUMENT, "there is no table");
    if (table[0] != 0)
        return pp_fail(PP_ERR_ARGUMENT, "the neighbours of rank 0 begin at %d, not at 0", table[0]);
    for (int32_t rank = 0; rank < plan->ranks; rank++)
        if (table[rank + 1] < table[rank])
            return pp_fail(PP_ERR_ARGUMENT, "rank %d has %d neighbours", rank, table[rank + 1] - table[rank]);
    for (int32_t rank = 0; rank < plan->ranks; rank++)
        PP_TRY(check_neighbours(plan, table, rank));
    return PP_OK;
}

const pp_generator_t pp_generator_neighbour = {
    .is_passive = true, .check = check, .table_entries = table_entries, .ask = ask,
};
