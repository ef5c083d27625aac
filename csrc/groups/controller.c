/*
 * controller.c - groups of ranks in the order in which they ask (Partial Reduce, section 4).  See parts.h.
 *
 * A rank that asks enters the signal queue.  When the queue holds enough ranks, the first of them are a group, which
 * begins at once.  The group filter looks at the sync-graph (graph.c).  Where it is not connected, the head of the
 * queue goes with the first rank of another component.  If all queued ranks are of one component, the head is kept
 * back as a bridge, and those behind it go on: to hold none would leave two halves in phase apart for ever, to hold all
 * would make them wait for a slow rank.  The head waits for a rank that has not left and is not queued, so it does not
 * wait for ever.
 *
 * The head is kept back only if the ranks outside its component are enough for a group.  That leaves no halves apart.
 * Say A and B are halves that no group has had a rank of both of, for longer than the history, and the head is in A.
 * Its component is a part of A, so all of B is outside.  If B is enough for a group, the head is kept back.  If not,
 * each group of a rank of B has a rank of A as well, and each rank that asks gets a group: the halves do not last.
 * Otherwise a few ranks would wait for a slow one again and again, which goes with some of them anyway.
 */
#include "parts.h"

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
    while (rank != PP_NOBODY && pp_graph_root(g, rank) == pp_graph_root(g, g->queue_first))
        rank = pp_groups_rank(g, rank)->behind;
    return rank;
}

/* How many members a group has now. */
static int32_t wanted_now(const pp_groups_t *g) { return g->here.count < g->plan.size ? g->here.count : g->plan.size; }

/* Where the ranks are not connected, and all queued ones are of one component: the head is kept back. */
static bool keeps_head(const pp_groups_t *g)
{
    return pp_graph_outside(g, g->queue_first) >= wanted_now(g);
}

/* Takes the next group out of the queue; 0: none is due. */
static int32_t take(pp_groups_t *g, int32_t *members)
{
    const int32_t wanted = wanted_now(g);
    int32_t       count = 0, next = g->queue_first;
    if (wanted == 0 || g->queued < wanted)
        return 0;
    if (wanted > 1 && pp_graph_is_frozen(g)) {
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
        pp_graph_record(g, members, count);
        if (!pp_ledger_form_at_once(call, members, count))
            return false;
    }
    return true;
}

/* ---- the plan ------------------------------------------------------------------------------------------------- */

static pp_status_t check(const pp_groups_plan_t *plan, const int32_t *table)
{
    const int32_t least = pp_graph_least_window(plan);
    (void)table;
    if (plan->history && plan->history < least)
        return pp_fail(PP_ERR_ARGUMENT, "history=%d is neither 0 nor at least %d, the groups that connect %d ranks",
                       plan->history, least, plan->ranks);
    return PP_OK;
}

/* Partial Reduce's T: four times as many groups as connect all ranks at best. */
static int32_t window(const pp_groups_plan_t *plan)
{
    return plan->history ? plan->history : 4 * pp_graph_least_window(plan);
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static void open_queue(pp_groups_t *g)
{
    g->queue_first = g->queue_last = PP_NOBODY;
    g->queued = 0;
}

static bool ask(const pp_groups_call_t *call, int32_t rank)
{
    enqueue(call->groups, rank);
    return form(call);
}

static bool leave(const pp_groups_call_t *call, int32_t rank)
{
    if (pp_groups_rank(call->groups, rank)->queued)
        dequeue(call->groups, rank);
    return form(call);               /* groups may be smaller now */
}

/* The queue gets long enough for a group if the free ranks ask. */
static bool may_complete(pp_groups_t *g, int32_t rank)
{
    const bool    frozen = pp_graph_is_frozen(g);        /* first: it may tell components apart anew */
    const int32_t head = pp_graph_root(g, g->queue_first);
    int32_t       come = 0;
    bool          others = false;    /* ranks of another component than the head's */
    for (int32_t other = 0; other < g->plan.ranks; other++) {
        const pp_groups_rank_t *r = pp_groups_rank(g, other);
        if (!r->left && (r->queued || r->free)) {
            come++;
            others |= pp_graph_root(g, other) != head;
        }
    }
    if (others || !frozen || !keeps_head(g))
        return come >= wanted_now(g);
    return rank != g->queue_first && come > wanted_now(g);       /* the head is kept back */
}

/* Keeps the queue from being long enough for a group. */
static bool is_missing(const pp_groups_t *g, int32_t rank, int32_t other)
{
    const pp_groups_rank_t *r = pp_groups_rank(g, other);
    (void)rank;
    return !r->left && !r->queued;
}

const pp_generator_t pp_generator_controller = {
    .check = check, .window = window, .open = open_queue, .ask = ask, .leave = leave,
    .may_complete = may_complete, .is_missing = is_missing,
};
