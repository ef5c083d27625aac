/* queues.c - Hop's rules of one rank by themselves: its events come from the program, which reads its actions. */
#include "../queues/queues.h"
#include "../include/pypartial_sim.h"

#include <stdlib.h>
#include <string.h>

struct pp_sim_queues {
    pp_queues_t *state;
    size_t       bytes;
};

pp_status_t pp_sim_queues_open(const pp_queues_plan_t *plan, const double *weights, pp_sim_queues_t **queues)
{
    *queues = NULL;
    PP_TRY(pp_queues_check(plan));
    pp_sim_queues_t *opened = calloc(1, sizeof(*opened));
    if (!opened)
        return pp_fail(PP_ERR_MEMORY, "no memory for queues");
    opened->bytes = pp_queues_bytes(plan);
    opened->state = malloc(opened->bytes);
    pp_status_t status = opened->state ? pp_queues_open(opened->state, plan, weights)
                                       : pp_fail(PP_ERR_MEMORY, "no memory for queues of %zu bytes", opened->bytes);
    if (status < 0)
        pp_sim_queues_free(opened);
    else
        *queues = opened;
    return status;
}

pp_status_t pp_sim_queues_event(pp_sim_queues_t *queues, int32_t event, int32_t neighbour, int64_t iteration)
{
    return pp_queues_event(queues->state, event, neighbour, iteration);
}

void pp_sim_queues_next(pp_sim_queues_t *queues, pp_queues_action_t *action) { pp_queues_next(queues->state, action); }

int32_t pp_sim_queues_wants(const pp_sim_queues_t *queues, int32_t out) { return pp_queues_wants(queues->state, out); }

int32_t pp_sim_queues_tells(const pp_sim_queues_t *queues, int32_t in) { return pp_queues_tells(queues->state, in); }

int32_t pp_sim_queues_awaits_update(const pp_sim_queues_t *queues, int32_t in)
{
    return pp_queues_awaits_update(queues->state, in);
}

int32_t pp_sim_queues_awaits_token(const pp_sim_queues_t *queues, int32_t out)
{
    return pp_queues_awaits_token(queues->state, out);
}

int64_t pp_sim_queues_due(const pp_sim_queues_t *queues) { return pp_queues_due(queues->state); }

int64_t pp_sim_queues_oldest(const pp_sim_queues_t *queues) { return pp_queues_oldest(queues->state); }

int32_t pp_sim_queues_size(const pp_sim_queues_t *queues, int64_t iteration, int32_t in)
{
    return pp_queues_size(queues->state, iteration, in);
}

void pp_sim_queues_result(const pp_sim_queues_t *queues, pp_queues_result_t *result)
{
    *result = *pp_queues_result(queues->state);
}

int64_t pp_sim_queues_ring(const pp_queues_plan_t *plan) { return pp_queues_ring(plan); }

pp_status_t pp_sim_queues_move(pp_sim_queues_t *queues)
{
    pp_queues_t *moved = malloc(queues->bytes);
    if (!moved)
        return pp_fail(PP_ERR_MEMORY, "no memory for %zu bytes", queues->bytes);
    memcpy(moved, queues->state, queues->bytes);
    memset(queues->state, 0xa5, queues->bytes);
    free(queues->state);
    queues->state = moved;
    return PP_OK;
}

void pp_sim_queues_free(pp_sim_queues_t *queues)
{
    if (!queues)
        return;
    free(queues->state);
    free(queues);
}
