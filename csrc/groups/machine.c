/* machine.c - the state and its events.  See groups.h. */
#include "parts.h"

#include <string.h>

/* ---- the state ----------------------------------------------------------------------------------------------- */

enum { RANKS_MAX = 1 << 20, CACHE_MOST = 4096 };
enum { LINE = 64, FETCHED_RANKS = 16, FETCHED_GROUPS = 4, FETCHED_BYTES = 1024 };
static const size_t OWN_MOST = (size_t)1 << 34;

/* The bounds of ledger.c. */
int32_t pp_groups_most(const pp_groups_t *groups) { return 4 * groups->plan.ranks; }

static size_t most_entries(const pp_groups_plan_t *plan)
{
    return (size_t)plan->ranks * (pp_generator_of(plan)->is_named ? 1 : (size_t)plan->size + 3);
}

int32_t pp_groups_largest(const pp_groups_plan_t *plan, const int32_t *table)
{
    const pp_generator_t *generator = pp_generator_of(plan);
    return generator->largest ? generator->largest(plan, table) : plan->size;
}

static size_t own_bytes(const pp_groups_plan_t *plan)
{
    const pp_generator_t *generator = pp_generator_of(plan);
    return generator->own_bytes ? generator->own_bytes(plan) : 0;
}

/* What follows from the number of ranks and the sizes of groups. */
static pp_status_t check_sizes(const pp_groups_plan_t *plan, const int32_t *table)
{
    if (plan->ranks < 1 || plan->ranks > RANKS_MAX)
        return pp_fail(PP_ERR_ARGUMENT, "ranks=%d is not in 1..%d", plan->ranks, RANKS_MAX);
    const int32_t         least = plan->ranks > 1 ? 2 : 1;
    const pp_generator_t *generator = pp_generator_of(plan);
    if (!generator->is_named && (plan->size < least || plan->size > plan->ranks))
        return pp_fail(PP_ERR_ARGUMENT, "size=%d is not in %d..%d, the number of ranks", plan->size, least, plan->ranks);
    if (generator->check)
        PP_TRY(generator->check(plan, table));
    if (plan->cache < 0 || plan->cache > CACHE_MOST)
        return pp_fail(PP_ERR_ARGUMENT, "cache=%d is not in 0..%d", plan->cache, CACHE_MOST);
    const size_t largest = (size_t)pp_groups_largest(plan, table);
    if (most_entries(plan) > INT32_MAX || largest * (size_t)plan->cache > INT32_MAX || own_bytes(plan) > OWN_MOST)
        return pp_fail(PP_ERR_ARGUMENT, "groups of %zu among %d ranks do not fit into memory", largest, plan->ranks);
    return PP_OK;
}

pp_status_t pp_groups_check(const pp_groups_plan_t *plan, const int32_t *table)
{
    if (!pp_generator_name(plan->generator))
        return pp_fail(PP_ERR_ARGUMENT, "generator=%d is not known", plan->generator);
    PP_TRY(check_sizes(plan, table));
    if (plan->weights < 0 || plan->weights >= PP_WEIGHTS_COUNT)
        return pp_fail(PP_ERR_ARGUMENT, "weights=%d is not one of 0..%d", plan->weights, PP_WEIGHTS_COUNT - 1);
    if (!(plan->alpha >= 0 && plan->alpha < 1))
        return pp_fail(PP_ERR_ARGUMENT, "alpha=%g is not in [0, 1)", plan->alpha);
    const int32_t plants = PP_SIM ? PP_GROUPS_PLANT_COUNT : 1;
    if (plan->plant < 0 || plan->plant >= plants)
        return pp_fail(PP_ERR_ARGUMENT, "plant=%d is not one of 0..%d", plan->plant, plants - 1);
    return PP_OK;
}

static int32_t window_of(const pp_groups_plan_t *plan)
{
    const pp_generator_t *generator = pp_generator_of(plan);
    return generator->window ? generator->window(plan) : 0;
}

static size_t place(size_t *at, size_t count, size_t element_bytes)
{
    size_t from = *at;
    *at += (count * element_bytes + 7) / 8 * 8;
    return from;
}

/* Sets where the arrays lie; returns the bytes of all. */
static size_t lay_out(pp_groups_t *g, const pp_groups_plan_t *plan, const int32_t *table)
{
    const size_t ranks = (size_t)plan->ranks, cache = (size_t)plan->cache;
    size_t       at = 0;
    g->largest = pp_groups_largest(plan, table);
    g->is_given = pp_generator_of(plan)->is_given;
    g->is_passive = pp_generator_of(plan)->is_passive;
    place(&at, 1, sizeof(pp_groups_t));
    at = (at + LINE - 1) / LINE * LINE;
    g->ranks = place(&at, ranks, sizeof(pp_groups_rank_t));
    /* What a group needs while it is formed and begins lies together. */
    g->iterations = place(&at, ranks, sizeof(uint64_t));
    g->weights = place(&at, ranks, sizeof(double));
    g->members = place(&at, ranks, sizeof(int32_t));
    g->goals = place(&at, ranks, sizeof(int32_t));
    g->order = place(&at, ranks, sizeof(int32_t));
    g->scratch = place(&at, ranks, sizeof(int32_t));
    g->idle.order = place(&at, ranks, sizeof(int32_t));
    g->idle.place = place(&at, ranks, sizeof(int32_t));
    g->here.order = place(&at, ranks, sizeof(int32_t));
    g->here.place = place(&at, ranks, sizeof(int32_t));
    g->groups = place(&at, 4 * ranks, sizeof(pp_groups_group_t));
    g->entries = place(&at, most_entries(plan), sizeof(pp_groups_entry_t));
    g->history = place(&at, (size_t)window_of(plan) * (size_t)plan->size, sizeof(int32_t));
    g->own = place(&at, own_bytes(plan), 1);
    g->table = place(&at, pp_groups_table_entries(plan, table), sizeof(int32_t));
    g->kept_lists = place(&at, cache * (size_t)g->largest, sizeof(int32_t));
    g->kept_counts = place(&at, cache, sizeof(int32_t));
    g->by_node = place(&at, ranks, sizeof(int32_t));
    g->node_ends = place(&at, ranks + 1, sizeof(int32_t));
    return at;
}

size_t pp_groups_bytes(const pp_groups_plan_t *plan, const int32_t *table)
{
    return lay_out(&(pp_groups_t){0}, plan, table);
}

static void open_rank(pp_groups_t *g, int32_t rank, int32_t node, uint64_t now_ns)
{
    *pp_groups_rank(g, rank) = (pp_groups_rank_t){.first = PP_NOBODY, .last = PP_NOBODY, .running = PP_NOBODY,
                                                  .goal = PP_NOBODY, .node = node, .completed_ns = now_ns};
    g->nodes = node >= g->nodes ? node + 1 : g->nodes;
    pp_crowd_add(g, &g->here, rank);
    pp_crowd_add(g, &g->idle, rank);
}

/* The generator knows no groups and no requests. */
static void open_generator(pp_groups_t *g)
{
    if (g->window)
        pp_graph_open(g);
    if (pp_generator_of(&g->plan)->open)
        pp_generator_of(&g->plan)->open(g);
}

pp_status_t pp_groups_open(pp_groups_t *groups, const pp_groups_plan_t *plan, const int32_t *table,
                           const int32_t *node_of, uint64_t now_ns)
{
    PP_TRY(pp_groups_check(plan, table));
    memset(groups, 0, pp_groups_bytes(plan, table));
    lay_out(groups, plan, table);
    groups->plan = *plan;
    groups->window = window_of(plan);
    groups->free_group = groups->free_entry = PP_NOBODY;
    for (int32_t group = pp_groups_most(groups); group-- > 0; groups->free_group = group)
        pp_groups_group(groups, group)->next_free = groups->free_group;
    for (int32_t entry = (int32_t)most_entries(plan); entry-- > 0; groups->free_entry = entry)
        pp_groups_entry(groups, entry)->next_member = groups->free_entry;
    pp_crowd_clear(groups, &groups->here);
    pp_crowd_clear(groups, &groups->idle);
    for (int32_t rank = 0; rank < plan->ranks; rank++) {
        int32_t node = node_of ? node_of[rank] : 0;
        if (node < 0 || node >= plan->ranks)
            return pp_fail(PP_ERR_ARGUMENT, "node %d of rank %d is not in 0..%d", node, rank, plan->ranks - 1);
        open_rank(groups, rank, node, now_ns);
    }
    open_generator(groups);
    if (pp_groups_table_entries(plan, table))
        memcpy(pp_groups_array(groups, groups->table), table, pp_groups_table_entries(plan, table) * sizeof(int32_t));
    return PP_OK;
}

int32_t pp_groups_alive(const pp_groups_t *groups) { return groups->alive; }
uint64_t pp_groups_calls(const pp_groups_t *groups) { return groups->calls; }
bool    pp_groups_asks(const pp_groups_t *groups, int32_t rank) { return pp_groups_rank(groups, rank)->asks; }

/* ---- requests -------------------------------------------------------------------------------------------------- */

static pp_status_t no_room(void) { return pp_fail(PP_ERR_INTERNAL, "more groups are alive than there can be"); }

/* Finds a goal for a request that has none.  A rank that comes back while it runs a group asks after that one: when it
   began, its members were told whose requests it completes.  Where members are passive a rank often runs one when it
   asks, and its request is for another one anyhow. */
static pp_status_t settle(const pp_groups_call_t *call, int32_t rank)
{
    const pp_groups_rank_t *r = pp_groups_rank(call->groups, rank);
    bool                    has_room = true;
    const bool              can_ask = (!r->left && r->running == PP_NOBODY) || call->groups->is_passive;
    if (r->asks && r->goal == PP_NOBODY && can_ask)
        has_room = pp_generator_of(&call->groups->plan)->ask(call, rank);
    pp_ledger_review(call, rank);
    return has_room ? PP_OK : no_room();
}

static void fetch(const pp_groups_t *g, size_t from, size_t to)
{
    for (; from < to; from += LINE)
        __builtin_prefetch(pp_groups_array(g, from), 1);
}

/* Asks for the cache lines that a request changes, all at once.  In shared memory another core has changed them last, and
   one by one each takes 0.1 us.  Of many ranks most are of no use, so only the first are asked for; free groups and
   entries are taken from the front. */
static void fetch_all(const pp_groups_t *g)
{
    const size_t most = g->iterations + FETCHED_BYTES, end = g->groups + FETCHED_GROUPS * sizeof(pp_groups_group_t);
    for (int32_t rank = 0; rank < g->plan.ranks && rank < FETCHED_RANKS; rank++)
        __builtin_prefetch(pp_groups_rank(g, rank), 0);
    fetch(g, g->iterations, end < most ? end : most);
    fetch(g, g->entries, g->entries + FETCHED_GROUPS * sizeof(pp_groups_entry_t));
}

static pp_status_t start(const pp_groups_call_t *call, int32_t rank, uint64_t iteration)
{
    pp_groups_rank_t *r = pp_groups_rank(call->groups, rank);
    fetch_all(call->groups);
    if (r->asks)
        return pp_fail(PP_ERR_STATE, "rank %d has an outstanding request", rank);
    const bool     by_itself = call->groups->is_passive && iteration == PP_GROUPS_BY_ITSELF;
    const uint64_t next = by_itself ? r->iteration : iteration ? iteration : r->iteration + 1;   /* 0 after the last */
    if (!by_itself && next <= r->iteration)
        return pp_fail(PP_ERR_ARGUMENT, "iteration %llu of rank %d does not exceed its last, %llu",
                       (unsigned long long)next, rank, (unsigned long long)r->iteration);
    if (pp_generator_of(&call->groups->plan)->is_given && !r->given)
        return pp_fail(PP_ERR_ARGUMENT, "the request of rank %d is for no group", rank);
    r->given = r->waits_long = false;
    r->by_itself = by_itself;
    r->number++;
    pp_ledger_start(call, rank, next);
    return settle(call, rank);
}

/* ---- ranks that leave ---------------------------------------------------------------------------------------- */

/* All ranks have left, and each for this reason or for good. */
static bool all_are(const pp_groups_t *g, pp_groups_left_t reason)
{
    return g->reasons[reason] && g->reasons[reason] + g->reasons[PP_GROUPS_OUT] == g->plan.ranks;
}

static void set_reason(pp_groups_t *g, int32_t rank, int32_t reason)
{
    pp_groups_rank(g, rank)->reason = reason;
    g->reasons[reason]++;
}

static void flush(const pp_groups_call_t *call)
{
    pp_groups_t *g = call->groups;
    pp_ledger_flush(call);
    for (int32_t rank = 0; rank < g->plan.ranks; rank++)
        if (pp_groups_rank(g, rank)->reason == PP_GROUPS_FLUSHES && pp_groups_rank(g, rank)->left)
            pp_ledger_back(call, rank);      /* the call is over for all of them */
    g->reasons[PP_GROUPS_FLUSHES] = 0;
    open_generator(g);
}

/* Flushes or ends when all ranks have left for it, and the last group is over. */
static void conclude(const pp_groups_call_t *call)
{
    pp_groups_t *g = call->groups;
    if (g->alive)
        return;
    if (all_are(g, PP_GROUPS_FLUSHES))
        flush(call);
    if (all_are(g, PP_GROUPS_FREES) && !g->ended) {
        g->ended = true;
        call->hearer->tell(call->hearer->arg, &(pp_groups_action_t){.kind = PP_GROUPS_END, .rank = PP_NOBODY});
    }
}

static pp_status_t finish(const pp_groups_call_t *call, int32_t rank, uint64_t serial)
{
    const pp_groups_rank_t *r = pp_groups_rank(call->groups, rank);
    if (r->running == PP_NOBODY || pp_groups_group(call->groups, r->running)->serial != serial)
        return pp_fail(PP_ERR_STATE, "rank %d does not run group %llu", rank, (unsigned long long)serial);
    pp_ledger_finish(call, rank);
    pp_status_t status = settle(call, rank);
    conclude(call);
    return status;
}

/* What the rank's absence means for the requests of others. */
static pp_status_t go_away(const pp_groups_call_t *call, int32_t rank)
{
    const pp_generator_t *generator = pp_generator_of(&call->groups->plan);
    pp_ledger_leave(call, rank);
    if (call->groups->window)
        pp_graph_leave(call->groups, rank);
    return !generator->leave || generator->leave(call, rank) ? PP_OK : no_room();
}

/* The rank has not left any more; its request has yet to be settled. */
static void put_back(const pp_groups_call_t *call, int32_t rank)
{
    call->groups->reasons[pp_groups_rank(call->groups, rank)->reason]--;
    pp_ledger_back(call, rank);
    if (call->groups->window)
        pp_graph_back(call->groups, rank);
}

static pp_status_t back(const pp_groups_call_t *call, int32_t rank)
{
    if (!pp_groups_rank(call->groups, rank)->left)
        return PP_OK;
    put_back(call, rank);
    return settle(call, rank);
}

/* Says so if another rank is in a Flush, or a Free, of another number. */
static void compare_calls(const pp_groups_call_t *call, int32_t rank)
{
    const pp_groups_rank_t *r = pp_groups_rank(call->groups, rank);
    for (int32_t other = 0; other < call->groups->plan.ranks; other++) {
        const pp_groups_rank_t *o = pp_groups_rank(call->groups, other);
        if (o->left && o->reason == r->reason && o->call != r->call)
            call->hearer->tell(call->hearer->arg,
                               &(pp_groups_action_t){.kind = PP_GROUPS_DIFFER, .rank = rank > other ? rank : other,
                                                     .other = rank > other ? other : rank});
    }
}

/* Some rank has completed the call for which a rank has left. */
static bool is_over(const pp_groups_t *g, int32_t reason, uint64_t in_call)
{
    return reason == PP_GROUPS_IN_CALL && in_call > 0 && in_call <= g->calls;
}

static pp_status_t leave(const pp_groups_call_t *call, int32_t rank, uint64_t number)
{
    pp_groups_t      *g = call->groups;
    pp_groups_rank_t *r = pp_groups_rank(g, rank);
    const int32_t     reason = (int32_t)(number % PP_GROUPS_CALL);
    const uint64_t    in_call = number / PP_GROUPS_CALL;
    if (reason > PP_GROUPS_OUT)
        return pp_fail(PP_ERR_ARGUMENT, "reason %d is not one of 0..%d", reason, PP_GROUPS_OUT);
    if (r->left && r->reason == reason && r->call == in_call)
        return pp_fail(PP_ERR_STATE, "rank %d has left already", rank);
    if (is_over(g, reason, in_call))
        return back(call, rank);
    pp_status_t status = PP_OK;
    const bool  had_left = r->left;
    g->reasons[r->reason] -= had_left;
    set_reason(g, rank, reason);     /* before others look at it */
    r->call = in_call;
    if (!had_left)
        status = go_away(call, rank);
    if (reason == PP_GROUPS_FLUSHES || reason == PP_GROUPS_FREES)
        compare_calls(call, rank);
    conclude(call);
    return status;
}

/* Ranks whose call is over are back before they say so.  Otherwise a rank that is a little later than others would be
   left out of the group that they ask for next.  All are back before the first request is settled: to that one the
   others are here, too. */
static pp_status_t completed(const pp_groups_call_t *call, uint64_t calls)
{
    pp_groups_t *g = call->groups;
    pp_status_t  status = PP_OK;
    int32_t      returning = 0;
    if (calls <= g->calls)
        return PP_OK;
    g->calls = calls;
    for (int32_t rank = 0; rank < g->plan.ranks && g->reasons[PP_GROUPS_IN_CALL] > 0; rank++) {
        pp_groups_rank_t *r = pp_groups_rank(g, rank);
        if (!r->left || !is_over(g, r->reason, r->call))
            continue;
        put_back(call, rank);
        r->returns = true;
        returning++;
    }
    for (int32_t rank = 0; returning > 0; rank++) {
        pp_groups_rank_t *r = pp_groups_rank(g, rank);
        if (!r->returns)
            continue;
        r->returns = false;
        returning--;
        status = status < 0 ? status : settle(call, rank);
    }
    return status;
}

static pp_status_t elsewhere(const pp_groups_call_t *call, int32_t rank, bool waits)
{
    pp_groups_rank_t *r = pp_groups_rank(call->groups, rank);
    call->groups->elsewhere += waits - r->elsewhere;
    r->elsewhere = waits;
    return PP_OK;
}

/* ---- questions ------------------------------------------------------------------------------------------------- */

/* Whether the rank's request waits for the other rank. */
static bool is_missing(const pp_groups_t *g, int32_t rank, int32_t other)
{
    const pp_generator_t *generator = pp_generator_of(&g->plan);
    return generator->is_missing ? generator->is_missing(g, rank, other) : pp_ledger_is_missing(g, rank, other);
}

static bool waits(const pp_groups_t *g, int32_t rank)
{
    const pp_groups_rank_t *r = pp_groups_rank(g, rank);
    return r->asks && !r->left && r->running == PP_NOBODY;
}

int32_t pp_groups_missing(const pp_groups_t *groups, int32_t rank, int32_t *ranks, int32_t most)
{
    int32_t count = 0;
    if (!waits(groups, rank))
        return 0;
    for (int32_t member = 0; member < groups->plan.ranks; member++)
        if (member != rank && is_missing(groups, rank, member) && count++ < most)
            ranks[count - 1] = member;
    return count;
}

uint64_t pp_groups_awaits(const pp_groups_t *groups, int32_t rank, uint64_t of)
{
    const int32_t ranks = groups->plan.ranks, first = (int32_t)(of % RANKS_MAX);
    for (int32_t i = 0; i < ranks; i++) {
        const int32_t waiter = (first + i) % ranks;
        if (waiter != rank && waits(groups, waiter) && is_missing(groups, waiter, rank))
            return pp_groups_rank(groups, waiter)->number * RANKS_MAX + (uint64_t)waiter;
    }
    return 0;
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

pp_status_t pp_groups_event(pp_groups_t *groups, int32_t event, int32_t rank, uint64_t number, uint64_t now_ns,
                            const pp_groups_hearer_t *hearer)
{
    const pp_groups_call_t call = {.groups = groups, .hearer = hearer, .now_ns = now_ns};
    if (rank < 0 || rank >= groups->plan.ranks)
        return pp_fail(PP_ERR_ARGUMENT, "rank %d is not in 0..%d", rank, groups->plan.ranks - 1);
    switch (event) {
    case PP_GROUPS_START:  return start(&call, rank, number);
    case PP_GROUPS_FINISH: return finish(&call, rank, number);
    case PP_GROUPS_LEAVE:  return leave(&call, rank, number);
    case PP_GROUPS_BACK:   return back(&call, rank);
    case PP_GROUPS_COMPLETED: return completed(&call, number);
    case PP_GROUPS_ELSEWHERE: return elsewhere(&call, rank, number > 0);
    case PP_GROUPS_WAITS_LONG: pp_groups_rank(groups, rank)->waits_long = true; return PP_OK;
    default:               return pp_fail(PP_ERR_ARGUMENT, "event %d is not known", event);
    }
}
