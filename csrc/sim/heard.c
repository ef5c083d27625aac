/* heard.c - see heard.h. */
#include "heard.h"

#include <stdlib.h>

struct pp_heard_group {
    pp_sim_group_t    group;
    pp_heard_group_t *next;
    double            weights[];     /* and then the members */
};

bool pp_heard_add(pp_heard_t *heard, uint64_t time_ns, uint32_t handle, const pp_groups_action_t *action)
{
    const bool alone = action->kind == PP_GROUPS_ALONE;
    if (action->kind != PP_GROUPS_BEGIN && action->kind != PP_GROUPS_FLUSH && !alone)
        return true;
    const size_t      count = (size_t)action->count;
    pp_heard_group_t *kept = malloc(sizeof *kept + count * (sizeof(double) + sizeof(int32_t)));
    if (!kept)
        return false;
    int32_t *members = (int32_t *)(kept->weights + count);
    for (size_t i = 0; i < count; i++) {
        kept->weights[i] = action->weights[i];
        members[i] = action->members[i];
    }
    kept->next = NULL;
    kept->group = (pp_sim_group_t){
        .time_ns = time_ns, .serial = action->serial, .newest = action->newest, .handle = handle,
        .flush = action->kind == PP_GROUPS_FLUSH, .rank = action->rank, .count = action->count,
        .members = members,
        .weights = kept->weights, .initial = action->initial};
    *(heard->last ? &heard->last->next : &heard->first) = kept;
    heard->last = kept;
    return true;
}

const pp_sim_group_t *pp_heard_next(pp_heard_t *heard)
{
    free(heard->told);
    heard->told = heard->first;
    if (!heard->first)
        return NULL;
    heard->first = heard->first->next;
    if (!heard->first)
        heard->last = NULL;
    return &heard->told->group;
}

void pp_heard_release(pp_heard_t *heard)
{
    while (pp_heard_next(heard))
        continue;
}
