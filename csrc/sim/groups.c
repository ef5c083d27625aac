/* groups.c - a generator of groups by itself: its events come from the program, which reads its actions. */
#include "../groups/groups.h"
#include "../include/pypartial_sim.h"

#include <stdlib.h>
#include <string.h>

/* What an event was answered with, copied: what the actions point to lies in four arrays that grow. */
struct pp_sim_groups {
    pp_groups_t        *machine;
    size_t              bytes;
    pp_groups_action_t *actions;
    int32_t            *members;
    uint64_t           *iterations;
    double             *weights;
    int32_t            *goals;
    size_t count, capacity, used, members_capacity, iterations_capacity, weights_capacity, goals_capacity;
    bool   failed;                   /* no memory */
};

static void hear(void *arg, const pp_groups_action_t *action)
{
    pp_sim_groups_t *groups = arg;
    const size_t     count = (size_t)action->count, wanted = groups->used + count;
    if (!pp_grow((void **)&groups->actions, &groups->capacity, groups->count + 1, sizeof(*action))
        || !pp_grow((void **)&groups->members, &groups->members_capacity, wanted, sizeof(int32_t))
        || !pp_grow((void **)&groups->iterations, &groups->iterations_capacity, wanted, sizeof(uint64_t))
        || !pp_grow((void **)&groups->weights, &groups->weights_capacity, wanted, sizeof(double))
        || !pp_grow((void **)&groups->goals, &groups->goals_capacity, wanted, sizeof(int32_t))) {
        groups->failed = true;
        return;
    }
    groups->actions[groups->count++] = *action;
    if (count) {
        memcpy(groups->members + groups->used, action->members, count * sizeof(int32_t));
        memcpy(groups->iterations + groups->used, action->iterations, count * sizeof(uint64_t));
        memcpy(groups->weights + groups->used, action->weights, count * sizeof(double));
        memcpy(groups->goals + groups->used, action->goals, count * sizeof(int32_t));
    }
    groups->used = wanted;
}

/* The arrays may have moved while they grew. */
static void point(pp_sim_groups_t *groups)
{
    size_t at = 0;
    for (size_t i = 0; i < groups->count; i++) {
        pp_groups_action_t *action = &groups->actions[i];
        action->members = groups->members + at;
        action->iterations = groups->iterations + at;
        action->weights = groups->weights + at;
        action->goals = groups->goals + at;
        at += (size_t)action->count;
    }
}

pp_status_t pp_sim_groups_open(const pp_groups_plan_t *plan, const int32_t *table, const int32_t *node_of,
                               pp_sim_groups_t **groups)
{
    *groups = NULL;
    PP_TRY(pp_groups_check(plan, table));
    pp_sim_groups_t *opened = calloc(1, sizeof(*opened));
    if (!opened)
        return pp_fail(PP_ERR_MEMORY, "no memory for a generator");
    opened->bytes = pp_groups_bytes(plan, table);
    opened->machine = malloc(opened->bytes);
    pp_status_t status = opened->machine ? pp_groups_open(opened->machine, plan, table, node_of, 0)
                                         : pp_fail(PP_ERR_MEMORY, "no memory for a generator of %d ranks", plan->ranks);
    if (status < 0)
        pp_sim_groups_free(opened);
    else
        *groups = opened;
    return status;
}

/* Ends the answer to an event. */
static pp_status_t answer(pp_sim_groups_t *groups, int32_t *actions)
{
    if (groups->failed)
        return pp_fail(PP_ERR_MEMORY, "no memory for the actions of a generator");
    point(groups);
    *actions = (int32_t)groups->count;
    return PP_OK;
}

pp_status_t pp_sim_groups_event(pp_sim_groups_t *groups, int32_t event, int32_t rank, uint64_t number, uint64_t now_ns,
                                int32_t *actions)
{
    groups->count = groups->used = 0;
    *actions = 0;
    PP_TRY(pp_groups_event(groups->machine, event, rank, number, now_ns,
                           &(pp_groups_hearer_t){.tell = hear, .arg = groups}));
    return answer(groups, actions);
}

pp_status_t pp_sim_groups_give(pp_sim_groups_t *groups, int32_t rank, const int32_t *members, int32_t count)
{
    return pp_groups_give(groups->machine, rank, members, count);
}

int32_t pp_sim_groups_asks(const pp_sim_groups_t *groups, int32_t rank)
{
    return pp_groups_asks(groups->machine, rank);
}

enum { MACHINES_MAX = 16 };

pp_status_t pp_sim_groups_untangle(pp_sim_groups_t *const *groups, int32_t count, uint64_t now_ns, int32_t *actions)
{
    pp_groups_t       *machines[MACHINES_MAX];
    pp_groups_hearer_t hearers[MACHINES_MAX];
    if (count < 1 || count > MACHINES_MAX)
        return pp_fail(PP_ERR_ARGUMENT, "count=%d is not in 1..%d", count, MACHINES_MAX);
    for (int32_t i = 0; i < count; i++) {
        groups[i]->count = groups[i]->used = 0;
        machines[i] = groups[i]->machine;
        hearers[i] = (pp_groups_hearer_t){.tell = hear, .arg = groups[i]};
        actions[i] = 0;
    }
    PP_TRY(pp_groups_untangle(machines, hearers, count, now_ns));
    for (int32_t i = 0; i < count; i++)
        PP_TRY(answer(groups[i], &actions[i]));
    return PP_OK;
}

const pp_groups_action_t *pp_sim_groups_action(const pp_sim_groups_t *groups, int32_t index)
{
    return &groups->actions[index];
}

pp_status_t pp_sim_groups_move(pp_sim_groups_t *groups)
{
    pp_groups_t *moved = malloc(groups->bytes);
    if (!moved)
        return pp_fail(PP_ERR_MEMORY, "no memory for %zu bytes", groups->bytes);
    memcpy(moved, groups->machine, groups->bytes);
    memset(groups->machine, 0xa5, groups->bytes);
    free(groups->machine);
    groups->machine = moved;
    return PP_OK;
}

int32_t pp_sim_groups_alive(const pp_sim_groups_t *groups) { return pp_groups_alive(groups->machine); }
int32_t pp_sim_groups_most(const pp_sim_groups_t *groups) { return pp_groups_most(groups->machine); }

void pp_sim_groups_free(pp_sim_groups_t *groups)
{
    if (!groups)
        return;
    free(groups->machine);
    free(groups->actions);
    free(groups->members);
    free(groups->iterations);
    free(groups->weights);
    free(groups->goals);
    free(groups);
}

pp_status_t pp_sim_groups_static(int32_t nodes, int32_t per_node, uint64_t phase, int32_t rank, int32_t *members,
                                 int32_t *count)
{
    *count = 0;
    if (nodes < 1 || per_node < 1 || nodes > INT32_MAX / per_node)
        return pp_fail(PP_ERR_ARGUMENT, "%d nodes of %d ranks are not a layout", nodes, per_node);
    if (rank < 0 || rank >= nodes * per_node)
        return pp_fail(PP_ERR_ARGUMENT, "rank %d is not in 0..%d", rank, nodes * per_node - 1);
    *count = pp_groups_static(nodes, per_node, phase, rank, members);
    return PP_OK;
}

pp_status_t pp_sim_groups_weights(int32_t kind, double alpha, int32_t count, const uint64_t *iterations,
                                  double *weights, double *initial)
{
    *initial = 0;
    if (kind < 0 || kind >= PP_WEIGHTS_COUNT)
        return pp_fail(PP_ERR_ARGUMENT, "weights=%d is not one of 0..%d", kind, PP_WEIGHTS_COUNT - 1);
    if (!(alpha >= 0 && alpha < 1))
        return pp_fail(PP_ERR_ARGUMENT, "alpha=%g is not in [0, 1)", alpha);
    if (count < 1)
        return pp_fail(PP_ERR_ARGUMENT, "count=%d is not at least 1", count);
    int32_t *scratch = malloc((size_t)count * sizeof(*scratch));
    if (!scratch)
        return pp_fail(PP_ERR_MEMORY, "no memory for %d weights", count);
    *initial = pp_groups_weights(kind, alpha, count, iterations, weights, scratch);
    free(scratch);
    return PP_OK;
}
