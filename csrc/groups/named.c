/*
 * named.c - groups that requests name: phases of a table (Ripples, section 4.2), and groups that the callers give.  See
 * parts.h.
 *
 * A request waits until all members of its group that have not left ask for the same group.  Then they are a group,
 * which begins at once.  In a table a rank's k-th request since the last flush is for its group of phase k - 1, counted
 * around; a member that is further already, because its request was served while others had left, is not waited for.
 * A request that no other rank shares is complete alone.
 *
 * A member that has asked, and then is in a collective call, is in the group, too: its model is there already.  It has
 * passed the same point of the program as the others.  Served without it, they would go on, and its request would wait
 * for their next ones when it is back.  No group begins for its sake alone: while it has left it waits for nobody.
 *
 * To form a group of a table when its first member asks would give it a number too early: another member may still be
 * due in an earlier phase, whose group would get a higher number, and so come later in its buffer.
 */
#include "parts.h"

#include <string.h>


/* GIVEN: the set of ranks that a request names. */
static uint64_t *named(const pp_groups_t *g, int32_t rank)
{
    return (uint64_t *)pp_groups_own(g) + pp_mask_words(g->plan.ranks) * (size_t)rank;
}

static const int32_t *phase(const pp_groups_t *g, int32_t rank)
{
    const uint64_t at = (pp_groups_rank(g, rank)->number - 1) % (uint64_t)g->plan.phases;
    return (const int32_t *)pp_groups_array(g, g->table) + at * (uint64_t)g->plan.ranks;
}

/* The member behind another one in the group that the rank's request names, the first behind the last. */
static int32_t next_named(const pp_groups_t *g, int32_t rank, int32_t member)
{
    if (!g->is_given)
        return phase(g, rank)[member];
    do
        member = member + 1 < g->plan.ranks ? member + 1 : 0;
    while (!pp_mask_has(named(g, rank), member));
    return member;
}

/* A table's group of the rank's request has this member. */
static bool is_in_circle(const pp_groups_t *g, int32_t rank, int32_t member)
{
    int32_t at = next_named(g, rank, rank);
    while (at != rank && at != member)
        at = next_named(g, rank, at);
    return at == member;
}

/* The rank's request waits for others. */
static bool waits(const pp_groups_t *g, int32_t rank)
{
    const pp_groups_rank_t *r = pp_groups_rank(g, rank);
    return r->asks && !r->left && r->goal == PP_NOBODY;
}

/* The rank has a request that is not served, and has not taken it back, as a Flush or Free does. */
static bool has_asked(const pp_groups_t *g, int32_t rank)
{
    const pp_groups_rank_t *r = pp_groups_rank(g, rank);
    return r->asks && r->goal == PP_NOBODY && !(r->left && r->reason != PP_GROUPS_IN_CALL);
}

typedef enum member { GONE, COMES, IS_THERE } member_t;

/* What a named member is to the rank's request: not waited for, waited for, or asking for the same group. */
static member_t look_at(const pp_groups_t *g, int32_t rank, int32_t member)
{
    const pp_groups_rank_t *r = pp_groups_rank(g, rank), *other = pp_groups_rank(g, member);
    bool                    same, passed = false;
    if (g->is_given) {
        same = memcmp(named(g, rank), named(g, member), pp_mask_words(g->plan.ranks) * sizeof(uint64_t)) == 0;
    } else {
        same = other->number == r->number;
        passed = other->number >= r->number;
    }
    if (same && has_asked(g, member))
        return IS_THERE;
    return other->left || passed ? GONE : COMES;
}

static bool form_if_all_are_there(const pp_groups_call_t *call, int32_t rank)
{
    const pp_groups_t *g = call->groups;
    int32_t           *members = pp_groups_array(g, g->order), count = 0;
    members[count++] = rank;
    for (int32_t member = next_named(g, rank, rank); member != rank; member = next_named(g, rank, member)) {
        member_t is = look_at(g, rank, member);
        if (is == COMES)
            return true;
        if (is == IS_THERE)
            members[count++] = member;
    }
    if (count > 1)
        return pp_ledger_form_at_once(call, members, count);
    pp_ledger_go_alone(call, rank);
    return true;
}

/* Says so if a member waits for another group that has this rank, too. */
static bool differs(const pp_groups_call_t *call, int32_t rank)
{
    const pp_groups_t *g = call->groups;
    for (int32_t member = next_named(g, rank, rank); member != rank; member = next_named(g, rank, member))
        if (waits(g, member) && pp_mask_has(named(g, member), rank) && look_at(g, rank, member) == COMES) {
            const bool lower = rank < member;
            call->hearer->tell(call->hearer->arg, &(pp_groups_action_t){.kind = PP_GROUPS_DIFFER,
                                                                        .rank = lower ? rank : member,
                                                                        .other = lower ? member : rank});
            return true;
        }
    return false;
}

static bool ask(const pp_groups_call_t *call, int32_t rank)
{
    if (call->groups->is_given && differs(call, rank))
        return true;
    return form_if_all_are_there(call, rank);
}

/* Requests that waited for the rank may not any more. */
static bool leave(const pp_groups_call_t *call, int32_t left)
{
    (void)left;
    for (int32_t rank = 0; rank < call->groups->plan.ranks; rank++)
        if (waits(call->groups, rank) && !form_if_all_are_there(call, rank))
            return false;
    return true;
}

static bool may_complete(pp_groups_t *g, int32_t rank)
{
    for (int32_t member = next_named(g, rank, rank); member != rank; member = next_named(g, rank, member))
        if (look_at(g, rank, member) == COMES && !pp_groups_rank(g, member)->free)
            return false;
    return true;
}

static bool is_missing(const pp_groups_t *g, int32_t rank, int32_t member)
{
    const bool named_too = g->is_given ? pp_mask_has(named(g, rank), member) : is_in_circle(g, rank, member);
    return waits(g, rank) && named_too && look_at(g, rank, member) == COMES;
}

pp_status_t pp_groups_give(pp_groups_t *groups, int32_t rank, const int32_t *members, int32_t count)
{
    if (!groups->is_given)
        return pp_fail(PP_ERR_ARGUMENT, "only with given groups a request names its group");
    if (rank < 0 || rank >= groups->plan.ranks)
        return pp_fail(PP_ERR_ARGUMENT, "rank %d is not in 0..%d", rank, groups->plan.ranks - 1);
    bool has_rank = false;
    for (int32_t i = 0; i < count; i++) {
        if (members[i] < 0 || members[i] >= groups->plan.ranks)
            return pp_fail(PP_ERR_ARGUMENT, "member %d is not in 0..%d", members[i], groups->plan.ranks - 1);
        if (i && members[i] <= members[i - 1])
            return pp_fail(PP_ERR_ARGUMENT, "members %d and %d do not ascend", members[i - 1], members[i]);
        has_rank |= members[i] == rank;
    }
    if (!has_rank)
        return pp_fail(PP_ERR_ARGUMENT, "the group of rank %d does not have it as a member", rank);
    if (pp_groups_rank(groups, rank)->asks)
        return pp_fail(PP_ERR_STATE, "rank %d has an outstanding request", rank);
    memset(named(groups, rank), 0, pp_mask_words(groups->plan.ranks) * sizeof(uint64_t));
    for (int32_t i = 0; i < count; i++)
        pp_mask_add(named(groups, rank), members[i]);
    pp_groups_rank(groups, rank)->given = true;
    return PP_OK;
}

/* ---- the plan --------------------------------------------------------------------------------------------------- */

/* The ranks of the circle of a rank in one phase; 0: it does not come back to the rank in ascending order. */
static int32_t circle(const int32_t *next, int32_t ranks, int32_t rank)
{
    int32_t count = 0, falls = 0, at = rank;
    do {
        if (next[at] < 0 || next[at] >= ranks)
            return 0;
        falls += next[at] <= at;
        at = next[at];
        count++;
    } while (at != rank && falls < 2);
    return at == rank && falls == 1 ? count : 0;
}

/* The phases are made of circles of ascending ranks. */
static pp_status_t check(const pp_groups_plan_t *plan, const int32_t *table)
{
    if (plan->phases < 1 || plan->phases > INT32_MAX / plan->ranks)
        return pp_fail(PP_ERR_ARGUMENT, "phases=%d is not in 1..%d", plan->phases, INT32_MAX / plan->ranks);
    if (!table)
        return pp_fail(PP_ERR_ARGUMENT, "there is no table");
    for (int32_t at = 0; at < plan->phases; at++)
        for (int32_t rank = 0; rank < plan->ranks; rank++)
            if (!circle(table + (size_t)at * (size_t)plan->ranks, plan->ranks, rank))
                return pp_fail(PP_ERR_ARGUMENT, "phase %d: rank %d is not in a circle of ascending ranks", at, rank);
    return PP_OK;
}

/* The most ranks of a circle. */
static int32_t largest(const pp_groups_plan_t *plan, const int32_t *table)
{
    int32_t largest = 1;
    for (int32_t at = 0; at < plan->phases; at++)
        for (int32_t rank = 0; rank < plan->ranks; rank++) {
            int32_t count = circle(table + (size_t)at * (size_t)plan->ranks, plan->ranks, rank);
            largest = count > largest ? count : largest;
        }
    return largest;
}

static size_t table_entries(const pp_groups_plan_t *plan, const int32_t *table)
{
    (void)table;
    return (size_t)plan->phases * (size_t)plan->ranks;
}

static int32_t all(const pp_groups_plan_t *plan, const int32_t *table)
{
    (void)table;
    return plan->ranks;
}

static size_t bytes_of_sets(const pp_groups_plan_t *plan)
{
    return (size_t)plan->ranks * pp_mask_words(plan->ranks) * sizeof(uint64_t);
}

const pp_generator_t pp_generator_table = {
    .is_named = true, .has_table = true, .gives_way = PP_GIVES_WAY_LAST, .check = check,
    .table_entries = table_entries, .largest = largest, .ask = ask, .leave = leave, .may_complete = may_complete,
    .is_missing = is_missing,
};

const pp_generator_t pp_generator_given = {
    .is_named = true, .is_given = true, .gives_way = PP_GIVES_WAY_NEVER, .largest = all,
    .own_bytes = bytes_of_sets, .ask = ask, .leave = leave, .may_complete = may_complete, .is_missing = is_missing,
};
