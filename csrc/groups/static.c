/*
 * static.c - the static table (Ripples, section 4.2, Figures 9 and 10), for any number of nodes and of their ranks.
 *
 * Phase 0: workers 0 of all nodes; pairs (2, 3), (4, 5), ... in each node.  Phases 1 and 3: whole nodes.  Phase 2: 0 with
 * the last of its node; worker 1 with that of the opposite node; pairs (3, 4), (5, 6), ... up to the last but one.
 * A rank without a partner is idle.
 */
#include "groups.h"

#include <string.h>

/* Pairs first and second in ascending order. */
static int32_t pair(int32_t one, int32_t other, int32_t *members)
{
    members[0] = one < other ? one : other;
    members[1] = one < other ? other : one;
    return 2;
}

/* Worker `worker` of every node. */
static int32_t across(int32_t nodes, int32_t per_node, int32_t worker, int32_t *members)
{
    for (int32_t node = 0; node < nodes && nodes > 1; node++)
        members[node] = node * per_node + worker;
    return nodes > 1 ? nodes : 0;
}

/* The same worker of the opposite node on the ring.  Of an odd number of nodes the last has none. */
static int32_t opposite(int32_t nodes, int32_t per_node, int32_t rank, int32_t *members)
{
    const int32_t half = nodes / 2, node = rank / per_node;
    if (node >= 2 * half)
        return 0;
    return pair(rank, node < half ? rank + half * per_node : rank - half * per_node, members);
}

/* Pairs (first, first + 1), (first + 2, first + 3), ... of the workers up to `last`. */
static int32_t neighbours(int32_t base, int32_t worker, int32_t first, int32_t last, int32_t *members)
{
    if (worker < first || worker > last)
        return 0;
    int32_t other = (worker - first) % 2 ? worker - 1 : worker + 1;
    return other > last ? 0 : pair(base + worker, base + other, members);
}

int32_t pp_groups_static(int32_t nodes, int32_t per_node, uint64_t phase, int32_t rank, int32_t *members)
{
    const int32_t worker = rank % per_node, base = rank - worker, last = per_node - 1;
    if (phase % 2) {
        for (int32_t i = 0; i < per_node && per_node > 1; i++)
            members[i] = base + i;
        return per_node > 1 ? per_node : 0;
    }
    if (phase % 4 == 0)
        return worker == 0 ? across(nodes, per_node, 0, members) : neighbours(base, worker, 2, last, members);
    if (worker == (per_node > 1 ? 1 : 0))     /* with two workers, 1 pairs across nodes, not with 0 */
        return opposite(nodes, per_node, rank, members);
    if (per_node > 2 && (worker == 0 || worker == last))
        return pair(base, base + last, members);
    return neighbours(base, worker, 3, last - 1, members);
}

/* Fills one phase of a table. */
static void fill(int32_t nodes, int32_t per_node, uint64_t phase, int32_t *next, int32_t *scratch)
{
    for (int32_t rank = 0; rank < nodes * per_node; rank++) {
        int32_t count = pp_groups_static(nodes, per_node, phase, rank, scratch), at = 0;
        while (at < count && scratch[at] != rank)
            at++;
        next[rank] = count ? scratch[(at + 1) % count] : rank;
    }
}

pp_status_t pp_groups_static_table(int32_t nodes, int32_t per_node, int32_t *table)
{
    if (nodes < 1 || per_node < 1 || nodes > INT32_MAX / PP_STATIC_PHASES / per_node)
        return pp_fail(PP_ERR_ARGUMENT, "%d nodes of %d ranks are not a layout", nodes, per_node);
    const size_t ranks = (size_t)nodes * (size_t)per_node;
    int32_t     *last = table + (PP_STATIC_PHASES - 1) * ranks;
    for (size_t phase = 0; phase < PP_STATIC_PHASES - 1; phase++)
        fill(nodes, per_node, phase, table + phase * ranks, last);
    memcpy(last, table + ranks, ranks * sizeof(*last));      /* phases 1 and 3 are alike */
    return PP_OK;
}
