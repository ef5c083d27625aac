/*
 * controller.c - groups of ranks in the order in which they ask (Partial Reduce, section 4).  See parts.h.
 *
 * A rank that asks enters the signal queue.  When the queue holds enough ranks, the first of them are a group, which
 * begins at once.  The group filter looks at the sync-graph of the last T groups.  Where it is not connected, the head
 * of the queue goes with the first rank of another component.  If all queued ranks are of one component, the head is
 * kept back as a bridge, and those behind it go on: to hold none would leave two halves in phase apart for ever, to
 * hold all would make them wait for a slow rank.  The head waits for a rank that has not left and is not queued, so it
 * does not wait for ever.
 *
 * The head is kept back only if the ranks outside its component are enough for a group.  That leaves no halves apart.
 * Say A and B are halves that no group has had a rank of both of, for longer than the history, and the head is in A.
 * Its component is a part of A, so all of B is outside.  If B is enough for a group, the head is kept back.  If not,
 * each group of a rank of B has a rank of A as well, and each rank that asks gets a group: the halves do not last.
 * Otherwise a few ranks would wait for a slow one again and again, which goes with some of them anyway.
 *
 * A forest over the ranks (union-find) says which component a rank is in.  New groups unite trees at once.  Groups that
 * drop out of the history are noticed only when the forest is built anew.  That starts with the newest group and ends
 * when all ranks are connected, say by group g: they stay connected until g drops out, and nothing is to be done before.
 * Where they are not connected, the forest is built every `spacing` groups.  So the work for a group is constant, but
 * for a factor of (history / ranks) * size.
 */
#include "parts.h"

/* ---- the sync-graph ------------------------------------------------------------------------------------------ */

static int32_t root_of(const pp_groups_t *g, int32_t rank)
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
    int32_t one = root_of(g, rank), two = root_of(g, other);
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

static bool is_frozen(pp_groups_t *g)
{
    if (!g->plan.unfreeze || g->recorded < (uint64_t)g->window)
        return false;
    look(g);
    return g->components > 1;
}

static void record(pp_groups_t *g, const int32_t *members, int32_t count)
{
    int32_t *at = history(g, g->recorded);
    for (int32_t i = 0; i < g->plan.size; i++)
        at[i] = i < count ? members[i] : PP_NOBODY;
    unite_group(g, g->recorded++);
}

/* ---- the signal queue ------------------------------------------------------------------------------------------ */

static void enqueue(pp_groups_t *g, int32_t rank)
{
    pp_groups_rank_t *r = pp_groups_rank(g, rank);
    r->queued = true;
    r->behind = PP_NOBODY;
    r->ahead = g->queue_last;
    *(r->ahead == PP_NOBODY ? &g->queue_first : &pp_groups_rank(g, r->ahead)->behind) = rank;
    g->queue_last = rank;
    g->queued++;
}

static void dequeue(pp_groups_t *g, int32_t rank)
{
    pp_groups_rank_t *r = pp_groups_rank(g, rank);
    *(r->ahead == PP_NOBODY ? &g->queue_first : &pp_groups_rank(g, r->ahead)->behind) = r->behind;
    *(r->behind == PP_NOBODY ? &g->queue_last : &pp_groups_rank(g, r->behind)->ahead) = r->ahead;
    r->queued = false;
    g->queued--;
}

/* The first queued rank of another component than the head's. */
static int32_t first_of_another(const pp_groups_t *g)
{
    int32_t rank = g->queue_first;
    while (rank != PP_NOBODY && root_of(g, rank) == root_of(g, g->queue_first))
        rank = pp_groups_rank(g, rank)->behind;
    return rank;
}

/* How many members a group has now. */
static int32_t wanted_now(const pp_groups_t *g) { return g->here.count < g->plan.size ? g->here.count : g->plan.size; }

/* Where the last groups leave the ranks unconnected, and all queued ranks are of one component: the head is kept back. */
static bool keeps_head(const pp_groups_t *g)
{
    const int32_t inside = pp_groups_rank(g, root_of(g, g->queue_first))->present;
    return g->here.count - inside >= wanted_now(g);
}

/* Takes the next group out of the queue; 0: none is due. */
static int32_t take(pp_groups_t *g, int32_t *members)
{
    const int32_t wanted = wanted_now(g);
    int32_t       count = 0, next = g->queue_first;
    if (wanted == 0 || g->queued < wanted)
        return 0;
    if (wanted > 1 && is_frozen(g)) {
        const int32_t other = first_of_another(g);
        const bool    keeps = other == PP_NOBODY && keeps_head(g);
        if (keeps && g->queued == wanted)
            return 0;
        if (keeps || other != PP_NOBODY)
            next = pp_groups_rank(g, next)->behind;      /* the head stays, or is the first member */
        if (other != PP_NOBODY) {
            members[count++] = g->queue_first;
            members[count++] = other;
        }
    }
    for (; count < wanted; next = pp_groups_rank(g, next)->behind)
        if (count < 2 || next != members[1])
            members[count++] = next;
    for (int32_t i = 0; i < count; i++)
        dequeue(g, members[i]);
    return count;
}

static bool form(const pp_groups_call_t *call)
{
    pp_groups_t *g = call->groups;
    int32_t     *members = pp_groups_array(g, g->order), count;
    while ((count = take(g, members)) > 0) {
        if (count == 1) {
            pp_ledger_go_alone(call, members[0]);
            continue;
        }
        record(g, members, count);
        if (!pp_ledger_form_at_once(call, members, count))
            return false;
    }
    return true;
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

void pp_controller_open(pp_groups_t *g)
{
    g->queue_first = g->queue_last = PP_NOBODY;
    g->queued = 0;
    g->recorded = 0;
    g->check_at = (uint64_t)g->window;
    clear_forest(g);
}

bool pp_controller_ask(const pp_groups_call_t *call, int32_t rank)
{
    enqueue(call->groups, rank);
    return form(call);
}

/* A component whose ranks have all left does not count. */
bool pp_controller_leave(const pp_groups_call_t *call, int32_t rank)
{
    pp_groups_t *g = call->groups;
    if (pp_groups_rank(g, rank)->queued)
        dequeue(g, rank);
    if (--pp_groups_rank(g, root_of(g, rank))->present == 0)
        g->components--;
    return form(call);               /* groups may be smaller now */
}

void pp_controller_back(pp_groups_t *g, int32_t rank)
{
    if (pp_groups_rank(g, root_of(g, rank))->present++ > 0)
        return;
    /* The forest may have been finished before it came to this rank's groups. */
    if (g->components++ > 0 && g->recorded + spacing(g) < g->check_at)
        g->check_at = g->recorded + spacing(g);
}

bool pp_controller_may_complete(pp_groups_t *g, int32_t rank)
{
    const int32_t head = root_of(g, g->queue_first);
    int32_t       come = 0;
    bool          others = false;    /* ranks of another component than the head's */
    for (int32_t other = 0; other < g->plan.ranks; other++) {
        const pp_groups_rank_t *r = pp_groups_rank(g, other);
        if (!r->left && (r->queued || r->free)) {
            come++;
            others |= root_of(g, other) != head;
        }
    }
    if (others || !is_frozen(g) || !keeps_head(g))
        return come >= wanted_now(g);
    return rank != g->queue_first && come > wanted_now(g);       /* the head is kept back */
}
