/* direct_groups.c - see direct_groups.h. */
#include "direct_groups.h"
#include "direct_parts.h"
#include "../coll/preduce/preduce.h"

#include <stdlib.h>

enum { AVERAGES = 2, GIVEN = -1 };

typedef struct direct_groups {
    pp_direct_t base;                /* first: end() gets its address */
    CUdeviceptr averages[AVERAGES];
    CUdeviceptr initial;             /* 0: it does not count */
    int32_t     model;               /* the number of the average that is the model; GIVEN: the bounce buffer has it */
    uint64_t    averaged;
    size_t      count;
} direct_groups_t;

#define CALL(groups, name, ...) PP_CUDA((groups)->base.kind.device.cuda, name, __VA_ARGS__)

static direct_groups_t *groups_of(const pp_handle_t *handle) { return (direct_groups_t *)handle->staging->direct; }

static CUstream stream_of(const direct_groups_t *groups) { return groups->base.kind.stream; }

/* Waits for what was queued, if it could be. */
static pp_status_t finish(const direct_groups_t *groups, pp_status_t status)
{
    const pp_cuda_device_t *device = &groups->base.kind.device;
    PP_TRY(status);
    PP_TRY(pp_cuda_enter(device));
    return pp_cuda_leave(device, CALL(groups, cuStreamSynchronize, stream_of(groups)));
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static pp_status_t allocate(direct_groups_t *groups, const pp_preduce_t *preduce)
{
    pp_cuda_pool_t *pool = groups->base.kind.pool;
    for (int i = 0; i < AVERAGES; i++) {
        PP_TRY(pp_cuda_pool_get(pool, PP_CUDA_MEMORY, preduce->vector_bytes, &groups->averages[i]));
        PP_TRY(pp_cuda_prepare_for_mpi(pool->device.cuda, groups->averages[i]));
    }
    return preduce->config.plan.weights == PP_WEIGHTS_INITIAL
         ? pp_cuda_pool_get(pool, PP_CUDA_MEMORY, preduce->vector_bytes, &groups->initial) : PP_OK;
}

static pp_status_t open(pp_handle_t *handle, direct_groups_t *groups)
{
    const pp_preduce_t        *preduce = pp_preduce_of(handle);
    const pp_direct_elements_t elements = {.op = PP_SUM, .type = preduce->config.type, .count = preduce->count};
    const pp_cuda_device_t    *device = &groups->base.kind.device;
    groups->count = preduce->count;
    PP_TRY(pp_direct_open(handle, &groups->base, &elements));
    PP_TRY(pp_cuda_enter(device));
    return pp_cuda_leave(device, allocate(groups, preduce));
}

static void put(const direct_groups_t *groups, CUdeviceptr vector)
{
    if (vector)
        pp_cuda_pool_put(groups->base.kind.pool, PP_CUDA_MEMORY, vector, stream_of(groups));
}

static void close(direct_groups_t *groups)
{
    for (int i = 0; i < AVERAGES; i++)
        put(groups, groups->averages[i]);
    put(groups, groups->initial);
    groups->averages[0] = groups->averages[1] = groups->initial = 0;
    pp_direct_close(&groups->base);
}

static void end(const pp_memory_t *memory)
{
    direct_groups_t *groups = (direct_groups_t *)(uintptr_t)memory;
    if (groups->base.gives_back)
        close(groups);
    free(groups);
}

/* From the host's memory, to which it has come, by the bounce buffer: kernels read only the device's own memory. */
static pp_status_t take_initial(const pp_staging_t *staging, const direct_groups_t *groups)
{
    const pp_cuda_device_t *device = &groups->base.kind.device;
    const CUdeviceptr       bounce = pp_cuda_address(groups->base.receive->data);
    PP_TRY(pp_cuda_enter(device));
    PP_TRY(pp_cuda_leave(device, CALL(groups, cuMemcpyAsync, bounce, pp_cuda_address(staging->receive->data),
                                      staging->bytes, stream_of(groups))));
    return finish(groups, pp_folds_load(groups->base.folds, groups->initial, bounce, groups->count, stream_of(groups)));
}

static pp_status_t change_over(pp_handle_t *handle, direct_groups_t *groups)
{
    const pp_kernels_t *kernels = &pp_preduce_of(handle)->kernels;
    pp_staging_t       *staging = handle->staging;
    if (groups->initial)
        PP_TRY(take_initial(staging, groups));
    if (staging->receive)
        pp_staging_keep(&staging->spare, staging->receive);
    staging->receive = NULL;
    pp_staging_unpin_spare(staging);
    pp_lane_stay(&staging->lane, groups->base.folds, kernels->user_bytes, kernels->element_bytes);
    pp_staging_keep(&staging->spare, groups->base.receive);
    groups->base.receive = NULL;
    return PP_OK;
}

/* The ranks have agreed.  If it fails, so does the context. */
static pp_status_t meet(pp_handle_t *handle)
{
    direct_groups_t *groups = groups_of(handle);
    if (groups->base.wish.granted)
        return change_over(handle, groups);
    pp_direct_unpin_receive(&groups->base);
    close(groups);
    return PP_OK;
}

pp_status_t pp_direct_groups_ask(pp_handle_t *handle, const char *no_direct)
{
    direct_groups_t *groups = calloc(1, sizeof *groups);
    if (!groups)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    groups->model = GIVEN;
    pp_direct_begin(handle, &groups->base, meet);
    groups->base.kind.memory.end = end;
    groups->base.ends_alone = true;
    if ((no_direct ? pp_fail(PP_ERR_STATE, "%s", no_direct) : open(handle, groups)) < 0)
        pp_direct_lack(&groups->base);
    return PP_OK;
}

/* ---- averages ---------------------------------------------------------------------------------------------------- */

void pp_direct_groups_given(const pp_handle_t *handle)
{
    if (handle->staging->direct)
        groups_of(handle)->model = GIVEN;
}

uint64_t pp_direct_groups_averaged(const pp_handle_t *handle) { return groups_of(handle)->averaged; }

/* Queues what makes this rank's part of a sum. */
static pp_status_t prepare(const pp_handle_t *handle, CUdeviceptr sum, const pp_group_share_t *share)
{
    const direct_groups_t *groups = groups_of(handle);
    const pp_folds_t      *folds = groups->base.folds;
    const pp_folds_mean_t  part = {.vectors = &sum, .weights = &share->weight, .vector_count = 1,
                                   .initial = groups->initial, .initial_weight = share->initial_weight};
    PP_TRY(groups->model == GIVEN
        ? pp_folds_load(folds, sum, pp_cuda_address(handle->staging->receive->data), groups->count, stream_of(groups))
        : pp_folds_fold(folds, sum, &groups->averages[groups->model], 1, groups->count, 1, stream_of(groups)));
    return share->weight != 1 || share->initial_weight > 0
         ? pp_folds_mean(folds, &part, groups->count, stream_of(groups)) : PP_OK;
}

/* Waits for this rank's part, and has MPI add up those of all. */
static pp_status_t sum_up(const direct_groups_t *groups, CUdeviceptr sum, const void *comm, size_t element_bytes)
{
    PP_TRY(CALL(groups, cuStreamSynchronize, stream_of(groups)));
    return pp_mpi_sum(comm, (void *)(uintptr_t)sum, groups->count, element_bytes);
}

/* An MPI that copies between devices may expect to find the device's context current. */
static pp_status_t add_up(pp_ctx_t *ctx, const pp_handle_t *handle, CUdeviceptr sum, const void *comm)
{
    const direct_groups_t  *groups = groups_of(handle);
    const pp_cuda_device_t *device = &groups->base.kind.device;
    const size_t            element_bytes = pp_preduce_of(handle)->kernels.element_bytes;
    PP_TRY(pp_cuda_enter(device));
    ctx->direct_bytes += 2 * groups->count * element_bytes;     /* sent and received */
    pp_status_t status;
    PP_UNLOCKED(ctx, status, sum_up(groups, sum, comm, element_bytes));
    return pp_cuda_leave(device, status);
}

/* What uses the average next is queued on the same stream, behind the division. */
pp_status_t pp_direct_groups_average(pp_ctx_t *ctx, pp_handle_t *handle, const void *comm, const pp_group_share_t *share)
{
    direct_groups_t  *groups = groups_of(handle);
    const int32_t     next = groups->model == 0 ? 1 : 0;
    const CUdeviceptr sum = groups->averages[next];
    pp_status_t       status = prepare(handle, sum, share);
    if (status >= 0)
        status = add_up(ctx, handle, sum, comm);
    if (status >= 0)
        status = pp_folds_fold(groups->base.folds, sum, &sum, 1, groups->count, share->divide_by, stream_of(groups));
    if (status < 0 && status != PP_ERR_MPI) {
        pp_engine_fail(handle->engine, status, "handle %u: a group could not be averaged: %s", handle->id,
                       pp_error_text());
        return pp_engine_check(handle->engine);
    }
    PP_TRY(status);
    groups->model = next;
    groups->averaged = share->group;
    return PP_OK;
}

pp_status_t pp_direct_groups_finish(pp_ctx_t *ctx, pp_handle_t *handle)
{
    direct_groups_t *groups = groups_of(handle);
    pp_pinned_t     *receive = handle->staging->receive;
    if (groups->model == GIVEN)
        return PP_OK;
    PP_TRY(pp_folds_store(groups->base.folds, pp_cuda_address(receive->data), groups->averages[groups->model],
                          groups->count, stream_of(groups)));
    groups->model = GIVEN;
    return pp_direct_send(ctx, handle, receive);
}
