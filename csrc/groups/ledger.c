/*
 * ledger.c - when groups begin.  See parts.h.
 *
 * Ripples' lock vector is `running` of each rank, its pending group queue the groups that have not begun, and a rank's
 * group buffer (GB) a list of entries in the order of serial numbers.
 *
 * The memory is of fixed size because groups cannot pile up:
 * - A group that has begun has a member that runs it, and a rank runs one at a time: at most P groups and P entries.
 * - A group that was asked for and has not begun is the goal of a rank, and a rank has one goal: at most P groups, of
 *   at most `size` members each.  When its last such rank leaves, the group is withdrawn; otherwise a rank that starts
 *   and leaves in a loop would fill the buffers of slow ranks.
 * - A division gives groups only to ranks with empty group buffers, two at most: at most 2 P entries, and as many
 *   groups.
 * That makes 4 P groups and (size + 3) P entries.
 * The controller, tables and given groups form a group only when it can begin at once.  Groups of tables and given
 * groups may have up to P members, but all that are alive run: P entries are enough for them.
 *
 * Where members are passive a rank that leaves stays in its groups, its own request included: they wait for nobody that
 * computes, so they end by themselves.
 */
#include "parts.h"

static void tell(const pp_groups_call_t *call, const pp_groups_action_t *action)
{
    call->hearer->tell(call->hearer->arg, action);
}

/* ---- entries of group buffers -------------------------------------------------------------------------------- */

int32_t pp_ledger_first(const pp_groups_t *g, int32_t rank)
{
    int32_t first = pp_groups_rank(g, rank)->first;
    return first == PP_NOBODY ? PP_NOBODY : pp_groups_entry(g, first)->group;
}

/* It has started, and has not left; or it is passive. */
static bool gives(const pp_groups_t *g, const pp_groups_rank_t *rank)
{
    return g->is_passive || (rank->asks && !rank->left);
}

/* Counts a rank that gives its part for the first group in its buffer, or no longer. */
static void count_ready(const pp_groups_t *g, int32_t rank, int32_t change)
{
    const pp_groups_rank_t *r = pp_groups_rank(g, rank);
    if (r->first != PP_NOBODY && gives(g, r) && r->running == PP_NOBODY)
        pp_groups_group(g, pp_ledger_first(g, rank))->ready += change;
}

/* Links an entry into its rank's buffer, in front of another; PP_NOBODY: at the end. */
static void link_entry(pp_groups_t *g, int32_t entry, int32_t behind)
{
    pp_groups_entry_t *e = pp_groups_entry(g, entry);
    pp_groups_rank_t  *r = pp_groups_rank(g, e->rank);
    count_ready(g, e->rank, -1);
    e->behind = behind;
    e->ahead = behind == PP_NOBODY ? r->last : pp_groups_entry(g, behind)->ahead;
    *(e->ahead == PP_NOBODY ? &r->first : &pp_groups_entry(g, e->ahead)->behind) = entry;
    *(behind == PP_NOBODY ? &r->last : &pp_groups_entry(g, behind)->ahead) = entry;
    count_ready(g, e->rank, 1);
    pp_crowd_remove(g, &g->idle, e->rank);
}

static void unlink_entry(pp_groups_t *g, int32_t entry)
{
    pp_groups_entry_t *e = pp_groups_entry(g, entry);
    pp_groups_rank_t  *r = pp_groups_rank(g, e->rank);
    count_ready(g, e->rank, -1);
    *(e->ahead == PP_NOBODY ? &r->first : &pp_groups_entry(g, e->ahead)->behind) = e->behind;
    *(e->behind == PP_NOBODY ? &r->last : &pp_groups_entry(g, e->behind)->ahead) = e->ahead;
    count_ready(g, e->rank, 1);
    if (r->first == PP_NOBODY && !r->left)
        pp_crowd_add(g, &g->idle, e->rank);
}

static void free_entry(pp_groups_t *g, int32_t entry)
{
    pp_groups_entry(g, entry)->next_member = g->free_entry;
    g->free_entry = entry;
}

/* Takes a member out of its group, and the entry out of its buffer. */
static void remove_entry(pp_groups_t *g, int32_t entry)
{
    pp_groups_group_t *group = pp_groups_group(g, pp_groups_entry(g, entry)->group);
    int32_t           *link = &group->first;
    while (*link != entry)
        link = &pp_groups_entry(g, *link)->next_member;
    *link = pp_groups_entry(g, entry)->next_member;
    group->count--;
    unlink_entry(g, entry);
    free_entry(g, entry);
}

/* ---- groups ---------------------------------------------------------------------------------------------------- */

static void free_group(pp_groups_t *g, int32_t group)
{
    *pp_groups_group(g, group) = (pp_groups_group_t){.next_free = g->free_group};
    g->free_group = group;
    g->alive--;
}

/* Notes the next member that the action speaks of. */
static void add_member(const pp_groups_t *g, pp_groups_action_t *action, int32_t rank, bool is_goal)
{
    ((int32_t *)pp_groups_array(g, g->members))[action->count] = rank;
    ((int32_t *)pp_groups_array(g, g->goals))[action->count] = is_goal;
    ((uint64_t *)pp_groups_array(g, g->iterations))[action->count++] = pp_groups_rank(g, rank)->iteration;
}

/* Tells an action whose members are noted; they average with weights of this kind. */
static void tell_members(const pp_groups_call_t *call, pp_groups_action_t *action, int32_t kind)
{
    pp_groups_t *g = call->groups;
    double      *weights = pp_groups_array(g, g->weights);
    action->members = pp_groups_array(g, g->members);
    action->goals = pp_groups_array(g, g->goals);
    action->iterations = pp_groups_array(g, g->iterations);
    action->weights = weights;
    for (int32_t i = 0; i < action->count; i++)
        action->newest = action->iterations[i] > action->newest ? action->iterations[i] : action->newest;
    action->initial = pp_groups_weights(kind, g->plan.alpha, action->count, action->iterations, weights,
                                        pp_groups_array(g, g->scratch));
    /* With weights by iteration all members hold the newest model now. */
    for (int32_t i = 0; i < action->count && g->plan.weights != PP_WEIGHTS_CONSTANT; i++)
        pp_groups_rank(g, action->members[i])->iteration = action->newest;
    tell(call, action);
}

/* Locks the members of a group whose members are all ready, and tells it to them. */
static void begin(const pp_groups_call_t *call, int32_t group)
{
    pp_groups_t       *g = call->groups;
    pp_groups_group_t *at = pp_groups_group(g, group);
    pp_groups_action_t action = {.kind = PP_GROUPS_BEGIN, .rank = PP_NOBODY, .serial = at->serial};
    at->begun = true;
    for (int32_t entry = at->first; entry != PP_NOBODY; entry = pp_groups_entry(g, entry)->next_member) {
        int32_t           rank = pp_groups_entry(g, entry)->rank;
        pp_groups_rank_t *r = pp_groups_rank(g, rank);
        r->running = group;
        add_member(g, &action, rank, r->goal == group);
    }
    action.kept = pp_kept_number(g, pp_groups_array(g, g->members), action.count, &action.fresh);
    tell_members(call, &action, g->plan.weights);
}

/* A group may have lost a member, or one of its members has become ready: it ends without members, and begins if all
   are ready. */
static void review(const pp_groups_call_t *call, int32_t group)
{
    const pp_groups_group_t *at = pp_groups_group(call->groups, group);
    if (at->count == 0)
        free_group(call->groups, group);
    else if (!at->begun && at->ready == at->count)
        begin(call, group);
}

void pp_ledger_review(const pp_groups_call_t *call, int32_t rank)
{
    int32_t group = pp_ledger_first(call->groups, rank);
    if (group != PP_NOBODY)
        review(call, group);
}

static void sort(int32_t *ranks, int32_t count)
{
    for (int32_t gap = count / 2; gap > 0; gap /= 2)
        for (int32_t i = gap; i < count; i++) {
            int32_t rank = ranks[i], at = i;
            for (; at >= gap && ranks[at - gap] > rank; at -= gap)
                ranks[at] = ranks[at - gap];
            ranks[at] = rank;
        }
}

/* The planted defect OTHER_ORDER: the entry in front of which the last member of every eighth group gets it. */
static int32_t misplaced(const pp_groups_t *g, const pp_groups_group_t *group, int32_t rank, bool last)
{
    if (!pp_groups_has(g, PP_GROUPS_PLANT_OTHER_ORDER) || !last || group->serial % 8)
        return PP_NOBODY;
    const pp_groups_rank_t *r = pp_groups_rank(g, rank);
    return r->last != PP_NOBODY && r->running != pp_groups_entry(g, r->last)->group ? r->last : PP_NOBODY;
}

int32_t pp_ledger_form(const pp_groups_call_t *call, int32_t *members, int32_t count, bool asked)
{
    pp_groups_t *g = call->groups;
    int32_t      group = g->free_group;
    if (group == PP_NOBODY)
        return PP_NOBODY;
    pp_groups_group_t *at = pp_groups_group(g, group);
    g->free_group = at->next_free;
    *at = (pp_groups_group_t){.serial = ++g->serial, .count = count, .first = PP_NOBODY, .asked = asked};
    sort(members, count);
    int32_t *link = &at->first;
    for (int32_t i = 0; i < count; i++) {
        int32_t entry = g->free_entry;
        if (entry == PP_NOBODY)
            return PP_NOBODY;
        pp_groups_entry_t *e = pp_groups_entry(g, entry);
        g->free_entry = e->next_member;
        *e = (pp_groups_entry_t){.rank = members[i], .group = group, .next_member = PP_NOBODY};
        *link = entry;
        link = &e->next_member;
        link_entry(g, entry, misplaced(g, at, members[i], i == count - 1));
    }
    g->alive++;
    return group;
}

bool pp_ledger_form_at_once(const pp_groups_call_t *call, int32_t *members, int32_t count)
{
    int32_t group = pp_ledger_form(call, members, count, true);
    if (group == PP_NOBODY)
        return false;
    for (int32_t i = 0; i < count; i++)
        pp_ledger_set_goal(call->groups, members[i], group);
    begin(call, group);
    return true;
}

/* Drops a group that was asked for, has not begun, and is no rank's goal any more. */
static void withdraw_if_unwanted(const pp_groups_call_t *call, int32_t group)
{
    pp_groups_t       *g = call->groups;
    pp_groups_group_t *at = pp_groups_group(g, group);
    if (!at->asked || at->begun || at->goals)      /* a free group was not asked for */
        return;
    while (at->count) {
        int32_t rank = pp_groups_entry(g, at->first)->rank;
        remove_entry(g, at->first);
        pp_ledger_review(call, rank);
    }
    free_group(g, group);
}

/* ---- requests -------------------------------------------------------------------------------------------------- */

void pp_ledger_set_goal(pp_groups_t *g, int32_t rank, int32_t group)
{
    pp_groups_rank(g, rank)->goal = group;
    pp_groups_group(g, group)->goals++;
}

static void complete(const pp_groups_call_t *call, int32_t rank, int32_t kind, uint64_t serial)
{
    pp_groups_rank_t *r = pp_groups_rank(call->groups, rank);
    call->groups->asking -= r->asks;
    r->asks = false;
    r->completed_ns = call->now_ns;
    tell(call, &(pp_groups_action_t){.kind = kind, .rank = rank, .serial = serial});
}

void pp_ledger_go_alone(const pp_groups_call_t *call, int32_t rank) { complete(call, rank, PP_GROUPS_ALONE, 0); }

void pp_ledger_start(const pp_groups_call_t *call, int32_t rank, uint64_t iteration)
{
    pp_groups_t      *g = call->groups;
    pp_groups_rank_t *r = pp_groups_rank(g, rank);
    pp_pace_started(g, rank, call->now_ns);
    r->iteration = iteration;
    g->most_requests = ++r->requests > g->most_requests ? r->requests : g->most_requests;
    count_ready(g, rank, -1);
    r->asks = true;
    g->asking++;
    count_ready(g, rank, 1);
}

/* The planted defect LOST_RELEASE: every fifth member that finishes stays locked. */
static bool forgets(pp_groups_t *g)
{
    return pp_groups_has(g, PP_GROUPS_PLANT_LOST_RELEASE) && ++g->releases % 5 == 0;
}

void pp_ledger_finish(const pp_groups_call_t *call, int32_t rank)
{
    pp_groups_t       *g = call->groups;
    pp_groups_rank_t  *r = pp_groups_rank(g, rank);
    int32_t            group = r->running;
    pp_groups_group_t *at = pp_groups_group(g, group);
    if (forgets(g)) {
        complete(call, rank, PP_GROUPS_COMPLETE, at->serial);
        return;
    }
    bool     reached = r->goal == group;
    uint64_t serial = at->serial;
    remove_entry(g, r->first);
    r->running = PP_NOBODY;
    if (reached) {
        r->goal = PP_NOBODY;
        r->alone = 0;
    }
    review(call, group);
    if (reached)
        complete(call, rank, PP_GROUPS_COMPLETE, serial);
    count_ready(g, rank, 1);
}

/* ---- ranks that leave ------------------------------------------------------------------------------------------ */

void pp_ledger_leave(const pp_groups_call_t *call, int32_t rank)
{
    pp_groups_t      *g = call->groups;
    pp_groups_rank_t *r = pp_groups_rank(g, rank);
    pp_pace_leave(g, rank);
    count_ready(g, rank, -1);
    r->left = true;
    r->most_at_leave = g->most_requests;
    pp_crowd_remove(g, &g->here, rank);
    pp_crowd_remove(g, &g->idle, rank);
    count_ready(g, rank, 1);
    if (g->is_passive)
        return;
    int32_t goal = r->goal == r->running ? PP_NOBODY : r->goal;
    if (goal != PP_NOBODY) {
        pp_groups_group(g, goal)->goals--;
        r->goal = PP_NOBODY;
        withdraw_if_unwanted(call, goal);      /* before others are ready for it without this rank */
    }
    /* What it runs stays, and is the first in its buffer. */
    while (r->last != PP_NOBODY && pp_groups_entry(g, r->last)->group != r->running) {
        int32_t group = pp_groups_entry(g, r->last)->group;
        remove_entry(g, r->last);
        review(call, group);
    }
}

void pp_ledger_back(const pp_groups_call_t *call, int32_t rank)
{
    pp_groups_t      *g = call->groups;
    pp_groups_rank_t *r = pp_groups_rank(g, rank);
    r->left = false;
    r->requests += g->most_requests - r->most_at_leave;
    if (!r->asks)
        r->completed_ns = call->now_ns;
    pp_crowd_add(g, &g->here, rank);
    if (r->first == PP_NOBODY)
        pp_crowd_add(g, &g->idle, rank);
    pp_pace_back(g, rank);
}

/* ---- all ranks ----------------------------------------------------------------------------------------------- */

void pp_ledger_flush(const pp_groups_call_t *call)
{
    pp_groups_t       *g = call->groups;
    pp_groups_action_t action = {.kind = PP_GROUPS_FLUSH, .rank = PP_NOBODY, .kept = PP_NOBODY, .serial = ++g->serial};
    g->asking = 0;
    for (int32_t rank = 0; rank < g->plan.ranks; rank++) {
        pp_groups_rank_t *r = pp_groups_rank(g, rank);
        r->asks = false;
        r->alone = 0;
        r->number = 0;
        if (r->reason == PP_GROUPS_FLUSHES)
            add_member(g, &action, rank, false);
    }
    tell_members(call, &action, PP_WEIGHTS_CONSTANT);
}

/* ---- what a request waits for, and what may come ---------------------------------------------------------------- */

bool pp_ledger_is_missing(const pp_groups_t *g, int32_t rank, int32_t other)
{
    const int32_t           group = pp_ledger_first(g, rank);
    const pp_groups_rank_t *r = pp_groups_rank(g, other);
    for (int32_t entry = r->first; entry != PP_NOBODY; entry = pp_groups_entry(g, entry)->behind)
        if (pp_groups_entry(g, entry)->group == group)
            return !(r->asks || g->is_passive) || pp_ledger_first(g, other) != group;
    return false;
}

bool pp_ledger_may_complete(const pp_groups_t *g, int32_t rank)
{
    int32_t group = pp_ledger_first(g, rank);
    if (group == PP_NOBODY || g->is_passive)
        return true;
    for (int32_t entry = pp_groups_group(g, group)->first; entry != PP_NOBODY;
         entry = pp_groups_entry(g, entry)->next_member) {
        int32_t                 member = pp_groups_entry(g, entry)->rank;
        const pp_groups_rank_t *r = pp_groups_rank(g, member);
        if (!r->free && !(r->asks && pp_ledger_first(g, member) == group))
            return false;
    }
    return true;
}
