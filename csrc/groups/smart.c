/*
 * smart.c - groups by global division (Ripples, section 5).  See parts.h.
 *
 * A rank whose group buffer is not empty gets the first group in it.  Otherwise all idle ranks that pass the filter are
 * divided into groups at once.  With inter_intra each gets two groups: first one head of each node in groups between
 * nodes and the others in groups inside their node, then all ranks of a node in one group.
 *
 * A rank passes Ripples' filter if its counter is less than c_thres behind the asking rank's.  That does not help
 * inter_intra: a whole node waits for its slowest rank, so its counters hardly differ.  `foresight` filters by time
 * instead.  A rank whose next request is far ahead is in no division that another rank asks for.  A slow rank is no
 * head and in no group of a whole node, whichever rank asks: it would come to that group only after another long
 * computation.  Where all idle ranks of a node are slow, the asking one is their head.
 *
 * The filters could leave ranks apart for ever: fast ones never take slow ones, and slow ones find no fast one idle.
 * So the generator looks at the sync-graph (graph.c).  Where it is not connected, a rank that asks, and has no group,
 * gets one with ranks of other components, idle or not.  They have to pass the filters, so fast ranks still take no slow
 * one.  But the fastest passes for all: it has most requests, and computes for no longer than the mean, which is near
 * enough here even where `foresight` is less.  So no halves stay apart: each request of a rank of the slower half takes
 * the fastest rank of the other one with a chance of one in the number of ranks at least.
 *
 * Groups enter the history when they are formed, so one group connects two components, however long its members take.
 */
#include "parts.h"

/* ---- the plan ------------------------------------------------------------------------------------------------- */

/* A mean computation is at most 2^53 ns (pace.c), so this many hundredths of it fit into 64 bits. */
enum { FORESIGHT_MOST = 100000 };

static pp_status_t check(const pp_groups_plan_t *plan, const int32_t *table)
{
    (void)table;
    if (plan->c_thres < 1)
        return pp_fail(PP_ERR_ARGUMENT, "c_thres=%d is not at least 1", plan->c_thres);
    if (plan->foresight < 0 || plan->foresight > FORESIGHT_MOST)
        return pp_fail(PP_ERR_ARGUMENT, "foresight=%d is not in 0..%d", plan->foresight, FORESIGHT_MOST);
    return PP_OK;
}

/* A last group of one joins its neighbour; a node may have all ranks. */
static int32_t largest(const pp_groups_plan_t *plan, const int32_t *table)
{
    (void)table;
    return plan->inter_intra || plan->size == plan->ranks ? plan->ranks : plan->size + 1;
}

/* As many groups as the controller's.  With inter_intra each rank has two in a division, which takes twice as many. */
static int32_t window(const pp_groups_plan_t *plan)
{
    return (plan->inter_intra ? 8 : 4) * pp_graph_least_window(plan);
}

/* ---- the filter ------------------------------------------------------------------------------------------------ */

/* So many hundredths of a mean computation. */
static uint64_t share_of_mean(const pp_groups_t *g, int32_t hundredths)
{
    const uint64_t mean = pp_pace_mean(g), share = (uint64_t)hundredths;
    return mean / 100 * share + mean % 100 * share / 100;
}

/* `bound_ns`: how far ahead the rank's next request may be; 0: as far as it likes. */
static bool passes(const pp_groups_call_t *call, int32_t asking, int32_t rank, uint64_t bound_ns)
{
    const pp_groups_t *g = call->groups;
    uint64_t           most = pp_groups_rank(g, asking)->requests, own = pp_groups_rank(g, rank)->requests;
    return most < own + (uint64_t)g->plan.c_thres
           && (!bound_ns || pp_pace_ahead(g, rank, call->now_ns) <= bound_ns);
}

static bool is_slow(const pp_groups_call_t *call, int32_t rank)
{
    return call->groups->plan.foresight && pp_pace_is_slow(call->groups, rank, call->now_ns);
}

/* Fills `ranks` with the asking rank and those of a crowd that pass; returns how many. */
static int32_t gather(const pp_groups_call_t *call, const pp_crowd_t *crowd, int32_t asking, int32_t *ranks)
{
    const int32_t *order = pp_groups_array(call->groups, crowd->order);
    const uint64_t bound_ns = share_of_mean(call->groups, call->groups->plan.foresight);
    int32_t        count = 0;
    ranks[count++] = asking;
    for (int32_t i = 0; i < crowd->count; i++)
        if (order[i] != asking && passes(call, asking, order[i], bound_ns))
            ranks[count++] = order[i];
    return count;
}

/* The same of all that the last groups do not connect with the asking rank. */
static int32_t gather_apart(const pp_groups_call_t *call, int32_t asking, int32_t *ranks)
{
    const pp_groups_t *g = call->groups;
    const int32_t     *order = pp_groups_array(g, g->here.order), root = pp_graph_root(g, asking);
    const int32_t      hundredths = g->plan.foresight && g->plan.foresight < 100 ? 100 : g->plan.foresight;
    const uint64_t     bound_ns = share_of_mean(g, hundredths);
    int32_t            count = 0;
    ranks[count++] = asking;
    for (int32_t i = 0; i < g->here.count; i++)
        if (pp_graph_root(g, order[i]) != root && passes(call, asking, order[i], bound_ns))
            ranks[count++] = order[i];
    return count;
}

/* ---- groups ---------------------------------------------------------------------------------------------------- */

static int32_t form(const pp_groups_call_t *call, int32_t *members, int32_t count, bool asked)
{
    pp_graph_record(call->groups, members, count);
    return pp_ledger_form(call, members, count, asked);
}

/* ---- divisions ------------------------------------------------------------------------------------------------- */

/* Cuts ranks into groups; a last group of one joins its neighbour.  A single rank gets none. */
static bool cut(const pp_groups_call_t *call, int32_t *ranks, int32_t count)
{
    const int32_t size = call->groups->plan.size;
    for (int32_t at = 0, members; at < count && count > 1; at += members) {
        const int32_t rest = count - at;
        members = rest == size + 1 || rest < size ? rest : size;
        if (form(call, ranks + at, members, false) == PP_NOBODY)
            return false;
    }
    return true;
}

/* Copies `count` ranks to `sorted` by their nodes, and keeps their order within a node.  ends[n] gets where node n's
   end. */
static void sort_by_node(const pp_groups_t *g, const int32_t *ranks, int32_t count, int32_t *sorted, int32_t *ends)
{
    for (int32_t node = 0; node <= g->nodes; node++)
        ends[node] = 0;
    for (int32_t i = 0; i < count; i++)
        ends[pp_groups_rank(g, ranks[i])->node + 1]++;
    for (int32_t node = 0; node < g->nodes; node++)
        ends[node + 1] += ends[node];
    for (int32_t i = 0; i < count; i++)
        sorted[ends[pp_groups_rank(g, ranks[i])->node]++] = ranks[i];
}

/* Moves the first rank of a node that is not slow to its front.  If all are slow, it is the asking rank: otherwise a
   slow node would never be with the others.  False: the node has no head. */
static bool find_head(const pp_groups_call_t *call, int32_t asking, int32_t *ranks, int32_t count)
{
    int32_t head = PP_NOBODY;
    bool    quick = false;
    for (int32_t i = 0; i < count && !quick; i++) {
        quick = !is_slow(call, ranks[i]);
        if (quick || ranks[i] == asking)
            head = i;
    }
    if (head == PP_NOBODY)
        return false;
    int32_t rank = ranks[head];
    ranks[head] = ranks[0];
    ranks[0] = rank;
    return true;
}

/* Groups between nodes, and groups of the others inside theirs.  Overwrites `heads`. */
static bool divide_inter(const pp_groups_call_t *call, int32_t asking, int32_t *sorted, const int32_t *ends,
                         int32_t *heads)
{
    const int32_t nodes = call->groups->nodes;
    int32_t       count = 0;
    for (int32_t node = 0, from = 0; node < nodes; from = ends[node++])
        if (find_head(call, asking, sorted + from, ends[node] - from))
            heads[count++] = sorted[from];
    pp_groups_shuffle(call->groups, heads, count, count);
    if (!cut(call, heads, count))
        return false;
    for (int32_t node = 0, from = 0; node < nodes; from = ends[node++]) {
        /* A single head has no group between nodes. */
        bool headed = count > 1 && ends[node] > from && (sorted[from] == asking || !is_slow(call, sorted[from]));
        int32_t *others = sorted + from + headed;
        int32_t  rest = ends[node] - from - headed;
        if (!cut(call, others, rest))
            return false;
        /* A single rank beside a head is a group by itself.  Without one its first group would be that of the node,
           which waits for the head's group. */
        if (headed && rest == 1 && !is_slow(call, others[0])
            && form(call, others, 1, false) == PP_NOBODY)
            return false;
    }
    return true;
}

/* The ranks of each node that are not slow, in one group. */
static bool divide_intra(const pp_groups_call_t *call, const int32_t *sorted, const int32_t *ends, int32_t *members)
{
    for (int32_t node = 0, from = 0; node < call->groups->nodes; from = ends[node++]) {
        int32_t count = 0;
        for (int32_t i = from; i < ends[node]; i++)
            if (!is_slow(call, sorted[i]))
                members[count++] = sorted[i];
        if (count > 1 && form(call, members, count, false) == PP_NOBODY)
            return false;
    }
    return true;
}

static bool divide(const pp_groups_call_t *call, int32_t *ranks, int32_t count)
{
    pp_groups_t  *g = call->groups;
    int32_t      *sorted = pp_groups_array(g, g->by_node), *ends = pp_groups_array(g, g->node_ends);
    const int32_t asking = ranks[0];
    pp_groups_shuffle(g, ranks, count, count);
    if (!g->plan.inter_intra || g->nodes == 1)
        return cut(call, ranks, count);
    sort_by_node(g, ranks, count, sorted, ends);
    return divide_inter(call, asking, sorted, ends, ranks) && divide_intra(call, sorted, ends, ranks);
}

/* ---- requests -------------------------------------------------------------------------------------------------- */

enum { ALONE_MOST = 2 };             /* requests in a row that go without a group while others have theirs */

/* The first of the ranks joins some of the others, drawn at random, which may have groups already. */
static bool join(const pp_groups_call_t *call, int32_t *ranks, int32_t count)
{
    const int32_t rank = ranks[0], wanted = call->groups->plan.size - 1;
    pp_groups_shuffle(call->groups, ranks + 1, count - 1, wanted);
    int32_t group = form(call, ranks, count - 1 < wanted ? count : wanted + 1, true);
    if (group != PP_NOBODY)
        pp_ledger_set_goal(call->groups, rank, group);
    return group != PP_NOBODY;
}

/* The rank is the only idle one: its last requests were alone, too. */
static bool join_random(const pp_groups_call_t *call, int32_t rank)
{
    int32_t *ranks = pp_groups_array(call->groups, call->groups->order);
    int32_t  count = gather(call, &call->groups->here, rank, ranks);
    if (count > 1)
        return join(call, ranks, count);
    pp_ledger_go_alone(call, rank);
    return true;
}

static bool ask(const pp_groups_call_t *call, int32_t rank)
{
    pp_groups_t *g = call->groups;
    if (pp_ledger_first(g, rank) == PP_NOBODY) {
        int32_t *ranks = pp_groups_array(g, g->order), count = 1;
        if (pp_graph_is_frozen(g) && (count = gather_apart(call, rank, ranks)) > 1)
            return join(call, ranks, count);
        if (!g->plan.division)
            return join_random(call, rank);
        count = gather(call, &g->idle, rank, ranks);
        if (count > 1 && !divide(call, ranks, count))
            return false;
    }
    int32_t group = pp_ledger_first(g, rank);
    if (group != PP_NOBODY) {
        pp_ledger_set_goal(g, rank, group);
        return true;
    }
    if (pp_groups_rank(g, rank)->alone == ALONE_MOST)
        return join_random(call, rank);
    pp_groups_rank(g, rank)->alone++;
    pp_ledger_go_alone(call, rank);
    return true;
}

const pp_generator_t pp_generator_smart = {.check = check, .largest = largest, .window = window, .ask = ask};
