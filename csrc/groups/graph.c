/*
 * graph.c - the sync-graph: which ranks the last groups connect (Partial Reduce, section 4).  See parts.h.
 *
 * It connects the members of each of the last T groups.  Where it is not connected, ranks could stay apart for ever,
 * and the generator forms a group of ranks of several components.  A component whose ranks have all left does not count.
 *
 * A forest over the ranks (union-find) says which component a rank is in.  New groups unite trees at once.  Groups that
 * drop out of the history are noticed only when the forest is built anew.  That starts with the newest group and ends
 * when all ranks are connected, say by group g: they stay connected until g drops out, and nothing is to be done before.
 * Where they are not connected, the forest is built every `spacing` groups.  So the work for a group is constant, but
 * for a factor of (history / ranks) * size.
 *
 * A group of more than `size` members counts as several that overlap, so the history has the same size for all
 * generators.
 */
#include "parts.h"

int32_t pp_graph_root(const pp_groups_t *g, int32_t rank)
{
    pp_groups_rank_t *r = pp_groups_rank(g, rank);
    while (r->root != rank) {
        r->root = pp_groups_rank(g, r->root)->root;      /* halves the path */
        rank = r->root;
        r = pp_groups_rank(g, rank);
    }
    return rank;
}

static void unite(pp_groups_t *g, int32_t rank, int32_t other)
{
    int32_t one = pp_graph_root(g, rank), two = pp_graph_root(g, other);
    if (one == two)
        return;
    pp_groups_rank_t *upper = pp_groups_rank(g, one), *lower = pp_groups_rank(g, two);
    if (upper->weight < lower->weight) {
        pp_groups_rank_t *swapped = upper;
        upper = lower;
        lower = swapped;
    }
    lower->root = upper->root;
    upper->weight += lower->weight;
    g->components -= upper->present && lower->present;
    upper->present += lower->present;
}

static int32_t *history(const pp_groups_t *g, uint64_t group)
{
    int32_t *groups = pp_groups_array(g, g->history);
    return groups + group % (uint64_t)g->window * (uint64_t)g->plan.size;
}

static void unite_group(pp_groups_t *g, uint64_t group)
{
    const int32_t *members = history(g, group);
    for (int32_t i = 1; i < g->plan.size && members[i] != PP_NOBODY; i++)
        unite(g, members[0], members[i]);
}

static void clear_forest(pp_groups_t *g)
{
    g->components = g->here.count;
    for (int32_t rank = 0; rank < g->plan.ranks; rank++) {
        pp_groups_rank_t *r = pp_groups_rank(g, rank);
        r->root = rank;
        r->weight = 1;
        r->present = !r->left;
    }
}

/* Groups between two looks at the whole history. */
static uint64_t spacing(const pp_groups_t *g)
{
    int32_t share = g->plan.ranks / 64;
    return (uint64_t)(share > g->plan.size ? share : g->plan.size);
}

/* Builds the forest anew, if it is due. */
static void look(pp_groups_t *g)
{
    if (g->recorded < g->check_at)
        return;
    const uint64_t window = (uint64_t)g->window, first = g->recorded - window;
    uint64_t       group = g->recorded;
    clear_forest(g);
    while (g->components > 1 && group > first)
        unite_group(g, --group);
    /* Group `group` connects the ranks.  It is in the history as long as at most group + window are recorded. */
    g->check_at = g->components > 1 ? g->recorded : group + window + 1;
    if (g->check_at < g->recorded + spacing(g))
        g->check_at = g->recorded + spacing(g);
}

bool pp_graph_is_frozen(pp_groups_t *g)
{
    if (!g->plan.unfreeze || g->recorded < (uint64_t)g->window)
        return false;
    look(g);
    return g->components > 1;
}

int32_t pp_graph_outside(const pp_groups_t *g, int32_t rank)
{
    return g->here.count - pp_groups_rank(g, pp_graph_root(g, rank))->present;
}

int32_t pp_graph_least_window(const pp_groups_plan_t *plan)
{
    return plan->ranks == 1 ? 0 : (plan->ranks - 1 + plan->size - 2) / (plan->size - 1);
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static void record(pp_groups_t *g, const int32_t *members, int32_t count)
{
    int32_t *at = history(g, g->recorded);
    for (int32_t i = 0; i < g->plan.size; i++)
        at[i] = i < count ? members[i] : PP_NOBODY;
    unite_group(g, g->recorded++);
}

void pp_graph_record(pp_groups_t *g, const int32_t *members, int32_t count)
{
    if (!g->plan.unfreeze)
        return;
    for (int32_t at = 0; at + 1 < count; at += g->plan.size - 1)
        record(g, members + at, count - at);
}

void pp_graph_open(pp_groups_t *g)
{
    g->recorded = 0;
    g->check_at = (uint64_t)g->window;
    clear_forest(g);
}

void pp_graph_leave(pp_groups_t *g, int32_t rank)
{
    if (--pp_groups_rank(g, pp_graph_root(g, rank))->present == 0)
        g->components--;
}

void pp_graph_back(pp_groups_t *g, int32_t rank)
{
    if (pp_groups_rank(g, pp_graph_root(g, rank))->present++ > 0)
        return;
    /* The forest may have been finished before it came to this rank's groups. */
    if (g->components++ > 0 && g->recorded + spacing(g) < g->check_at)
        g->check_at = g->recorded + spacing(g);
}
