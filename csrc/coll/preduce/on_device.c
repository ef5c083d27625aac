/* on_device.c - groups whose vectors are in the memory of devices: one of these averages them.  See shared.h. */
#include "shared.h"

void pp_shared_groups_use(pp_preduce_t *preduce, pp_group_vault_t *vault)
{
    preduce->shared->vault = vault;
    pp_shared_groups_place(preduce, 0);
}

/* The lock that the rank takes to ask, or to flush, shows this to the others. */
void pp_shared_groups_place(pp_preduce_t *preduce, int32_t number)
{
    shared_t *shared = preduce->shared;
    shared->desks[shared->me].vector = (uint64_t)(shared->me * PP_GROUP_VECTORS + number);
}

/* The desk's plan stays as it is until the machine is told that the job is done. */
static pp_status_t queue(const pp_preduce_t *preduce, int32_t at)
{
    shared_t                 *shared = preduce->shared;
    pp_group_vault_t         *vault = shared->vault;
    const struct pp_job_plan *plan = &shared->desks[at].plan;
    const size_t              row = pp_desk_row(shared, at);
    const bool                weighted = pp_job_is_weighted(preduce, plan);
    for (int32_t i = 0; i < plan->count; i++)
        shared->job.vectors[i] = vault->vectors[shared->job_vectors[row + (size_t)i]];
    const pp_mean_t mean = {.vectors = shared->job.vectors, .count = plan->count,
                            .weights = weighted ? shared->job_weights + row : NULL, .initial = vault->initials[at],
                            .initial_weight = weighted ? plan->initial : 0};
    return vault->queue(vault, &mean);
}

/* After a failure the jobs are never over: the context fails as a whole. */
void pp_averages_launch(pp_preduce_t *preduce)
{
    shared_t   *shared = preduce->shared;
    pp_status_t status = PP_OK;
    if (shared->begun_count == 0 || shared->launched_count > 0 || preduce->handle.engine->error)
        return;
    for (int32_t i = 0; i < shared->begun_count && status >= 0; i++) {
        shared->launched[shared->launched_count++] = shared->begun[i];
        status = queue(preduce, shared->begun[i]);
    }
    shared->begun_count = 0;
    if (status >= 0)
        status = shared->vault->begin(shared->vault);
    if (status < 0)
        pp_engine_fail(preduce->handle.engine, status, "handle %u: a group could not be averaged: %s",
                       preduce->handle.id, pp_error_text());
}

bool pp_averages_over(pp_preduce_t *preduce)
{
    shared_t *shared = preduce->shared;
    if (shared->launched_count == 0 || preduce->handle.engine->error)
        return false;
    pp_status_t status = shared->vault->over(shared->vault);
    if (status < 0)
        pp_engine_fail(preduce->handle.engine, status, "handle %u: a group could not be averaged: %s",
                       preduce->handle.id, pp_error_text());
    return status == PP_OK;
}

void pp_averages_finish(pp_preduce_t *preduce, uint64_t now_ns)
{
    shared_t *shared = preduce->shared;
    for (int32_t i = 0; i < shared->launched_count; i++)
        pp_jobs_finish(preduce, shared->launched[i], now_ns);
    shared->launched_count = 0;
}
