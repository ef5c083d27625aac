/*
 * kept.c - numbers of lists of members.  See parts.h.
 *
 * Members of a group that keep a communicator must agree on it, so the generator says under which number they keep it.
 * The first `cache` different lists get one each.  A rank by itself needs no communicator, and with `splits` the groups
 * of a table have theirs.
 */
#include "parts.h"

#include <string.h>

/* These members, in ascending order, are a group of a table. */
static bool is_in_table(const pp_groups_t *g, const int32_t *members, int32_t count)
{
    const int32_t *next = pp_groups_array(g, g->table);
    for (int32_t at = 0; at < g->plan.phases; at++, next += g->plan.ranks) {
        int32_t same = 1;
        while (same < count && next[members[same - 1]] == members[same])
            same++;
        if (same == count && next[members[count - 1]] == members[0])
            return true;
    }
    return false;
}

int32_t pp_kept_number(pp_groups_t *g, const int32_t *members, int32_t count, int32_t *fresh)
{
    int32_t      *counts = pp_groups_array(g, g->kept_counts);
    const size_t  bytes = (size_t)count * sizeof(int32_t);
    *fresh = 0;
    if (count < 2 || (g->plan.splits && is_in_table(g, members, count)))
        return PP_NOBODY;
    for (int32_t i = 0; i < g->kept; i++) {
        const int32_t *list = (int32_t *)pp_groups_array(g, g->kept_lists) + (size_t)i * (size_t)g->largest;
        if (counts[i] == count && memcmp(list, members, bytes) == 0)
            return i;
    }
    if (g->kept == g->plan.cache)
        return PP_NOBODY;
    memcpy((int32_t *)pp_groups_array(g, g->kept_lists) + (size_t)g->kept * (size_t)g->largest, members, bytes);
    counts[g->kept] = count;
    *fresh = 1;
    return g->kept++;
}
