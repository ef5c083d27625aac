/*
 * vault_groups.c - a vault of P-Reduce: the models.  See vault.h, and coll/preduce/shared.h for who averages them.
 *
 * Groups average a rank's model where it is, so a result stays there until the rank's next Start.  That takes the other
 * of two vectors if the application's stream has not read the result yet.  If it has not read the one before either,
 * the result goes by a bounce buffer: that copy and those of Starts are on one stream of the lane, so each of them finds
 * its vector as the one before has left it.
 */
#include "vault_parts.h"
#include "../coll/preduce/shared.h"

#include <stdlib.h>

typedef struct group_vault {
    pp_device_vault_t base;
    pp_group_vault_t  groups;        /* what coll/preduce knows of it */
    pp_group_region_t region;
    bool              keeps_initial;
    int32_t           model;         /* the number of the vector that has the model, or gets it */
    int32_t           read;          /* that of the one from which `reader` takes a result; -1: there is none */
} group_vault_t;

static group_vault_t *of_groups(pp_device_vault_t *vault) { return (group_vault_t *)vault; }

static group_vault_t *holder_of(pp_group_vault_t *groups)
{
    return (group_vault_t *)((char *)groups - offsetof(group_vault_t, groups));
}

/* ---- averages ------------------------------------------------------------------------------------------------- */

/* A stream of its own: it waits for nothing of the application's, as the models are there. */
static pp_status_t queue(pp_group_vault_t *groups, const pp_mean_t *mean)
{
    pp_device_vault_t    *vault = &holder_of(groups)->base;
    const pp_folds_mean_t given = {.vectors = (const CUdeviceptr *)mean->vectors, .weights = mean->weights,
                                   .vector_count = (uint32_t)mean->count, .initial = mean->initial,
                                   .initial_weight = mean->initial_weight};
    _Static_assert(sizeof(CUdeviceptr) == sizeof *mean->vectors, "addresses are numbers of 64 bits");
    vault->ctx->device_rounds++;
    return pp_folds_mean(vault->folds, &given, vault->count, vault->folding);
}

/* Without a progress thread nobody here might look, when this rank computes. */
static pp_status_t begin(pp_group_vault_t *groups)
{
    pp_device_vault_t *vault = &holder_of(groups)->base;
    pp_ctx_t          *ctx = vault->ctx;
    PP_TRY(pp_vault_folding(vault));
    if (ctx->has_thread) {
        pp_mpi_ring_self(ctx->mpi);
        return PP_OK;
    }
    PP_TRY(pp_cuda_enter(&vault->device));
    return pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuStreamSynchronize, vault->folding));
}

static pp_status_t over(pp_group_vault_t *groups) { return pp_vault_folded(&holder_of(groups)->base); }

/* ---- the ranks meet ------------------------------------------------------------------------------------------- */

static const char *find(pp_handle_t *handle, pp_device_vault_t *vault)
{
    pp_preduce_t            *preduce = pp_preduce_of(handle);
    group_vault_t           *holder = of_groups(vault);
    const pp_group_region_t *region = pp_shared_groups_region(preduce);
    if (!region)
        return "the groups exchange messages, and are not in memory that all ranks share";
    holder->region = *region;
    holder->keeps_initial = preduce->config.plan.weights == PP_WEIGHTS_INITIAL;
    vault->node = region->node;
    vault->ranks = region->node->size;
    vault->offers = region->offers;
    vault->vector_bytes = preduce->vector_bytes;
    vault->op = PP_SUM;
    vault->type = preduce->config.type;
    vault->count = preduce->count;
    return NULL;
}

static size_t vectors(const pp_device_vault_t *vault, int32_t rank)
{
    (void)rank;
    return PP_GROUP_VECTORS + ((const group_vault_t *)vault)->keeps_initial;
}

static pp_status_t make(pp_device_vault_t *vault)
{
    pp_group_vault_t *groups = &of_groups(vault)->groups;
    groups->vectors = calloc((size_t)vault->ranks * PP_GROUP_VECTORS, sizeof *groups->vectors);
    groups->initials = calloc((size_t)vault->ranks, sizeof *groups->initials);
    if (!groups->vectors || !groups->initials)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    return PP_OK;
}

/* From the pinned memory to which the initial model has come, by a bounce buffer of the device: kernels may read only
   the device's own memory. */
static pp_status_t fill_initial(pp_device_vault_t *vault, const pp_staging_t *staging)
{
    const CUdeviceptr bounce = pp_cuda_address(vault->receive->data);
    PP_TRY(pp_cuda_enter(&vault->device));
    PP_TRY(pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuMemcpyAsync, bounce,
                                                       pp_cuda_address(staging->receive->data), staging->bytes, vault->work)));
    PP_TRY(pp_folds_load(vault->folds, pp_vault_vector(vault, vault->index, PP_GROUP_VECTORS), bounce, vault->count,
                         vault->work));
    PP_TRY(pp_cuda_enter(&vault->device));
    return pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuStreamSynchronize, vault->work));
}

static pp_status_t fill(pp_device_vault_t *vault)
{
    pp_staging_t *staging = vault->staging;
    pp_lane_t     lane = staging->lane;
    PP_TRY(pp_in_place_pin(staging));
    if (!of_groups(vault)->keeps_initial)
        return PP_OK;
    pp_lane_stay(&lane, vault->folds, 0, 0);
    PP_TRY(pp_lane_pin(&lane, staging->bytes, &vault->receive));
    return fill_initial(vault, staging);
}

/* The device has read a result. */
static void has_read(pp_handle_t *handle) { of_groups(handle->staging->vault)->read = -1; }

static void place(group_vault_t *holder)
{
    const pp_device_vault_t *vault = &holder->base;
    pp_group_vault_t        *groups = &holder->groups;
    groups->queue = queue;
    groups->begin = begin;
    groups->over = over;
    for (int32_t rank = 0; rank < vault->ranks; rank++) {
        for (int32_t i = 0; i < PP_GROUP_VECTORS; i++)
            groups->vectors[rank * PP_GROUP_VECTORS + i] = pp_vault_vector(vault, rank, (size_t)i);
        groups->initials[rank] = holder->keeps_initial ? pp_vault_vector(vault, rank, PP_GROUP_VECTORS) : 0;
    }
}

static void change_over(pp_handle_t *handle, pp_device_vault_t *vault)
{
    group_vault_t      *holder = of_groups(vault);
    pp_preduce_t       *preduce = pp_preduce_of(handle);
    pp_staging_t       *staging = handle->staging;
    const pp_kernels_t *kernels = &preduce->kernels;
    place(holder);
    holder->read = -1;
    staging->has_read = has_read;
    if (staging->receive)
        pp_staging_keep(&staging->spare, staging->receive);
    staging->receive = NULL;
    pp_staging_unpin_spare(staging);
    pp_lane_stay(&staging->lane, vault->folds, kernels->user_bytes, kernels->element_bytes);
    if (vault->receive)
        pp_staging_keep(&staging->spare, vault->receive);
    vault->receive = NULL;
    pp_shared_groups_use(preduce, &holder->groups);
}

static void unmake(pp_device_vault_t *vault)
{
    free(of_groups(vault)->groups.vectors);
    free(of_groups(vault)->groups.initials);
}

static void end(pp_device_vault_t *vault) { pp_group_region_leave(&of_groups(vault)->region); }

const pp_vault_use_t pp_vault_of_groups = {
    .bytes = sizeof(group_vault_t), .find = find, .vectors = vectors, .make = make, .fill = fill,
    .change_over = change_over, .unmake = unmake, .end = end,
};

/* ---- models ---------------------------------------------------------------------------------------------------- */

/* What copies from a vector, or to it. */
static pp_status_t borrow(pp_handle_t *handle, int32_t number, pp_pinned_t **out)
{
    pp_staging_t            *staging = handle->staging;
    const pp_device_vault_t *vault = staging->vault;
    pp_status_t status = pp_staging_take(staging, &staging->borrowers, out);
    if (status == PP_PENDING)
        status = pp_lane_pin_nothing(&staging->lane, out);
    if (status >= 0)
        pp_lane_borrow(&staging->lane, *out, pp_vault_pointer(pp_vault_vector(vault, vault->index, (size_t)number)),
                       staging->bytes);
    return status;
}

pp_status_t pp_group_vault_aim(pp_handle_t *handle, pp_pinned_t **pinned)
{
    group_vault_t *holder = of_groups(handle->staging->vault);
    PP_TRY(pp_staging_reclaim(handle));
    holder->model = holder->read == 0 ? 1 : 0;
    return borrow(handle, holder->model, pinned);
}

void pp_group_vault_place(pp_handle_t *handle)
{
    pp_shared_groups_place(pp_preduce_of(handle), of_groups(handle->staging->vault)->model);
}

/* By a bounce buffer: the vector is free before the application's stream gets there. */
static pp_status_t deliver_by(pp_ctx_t *ctx, pp_handle_t *handle, pp_pinned_t *bounce)
{
    pp_staging_t *staging = handle->staging;
    pp_pinned_t  *from;
    pp_status_t   status = borrow(handle, of_groups(staging->vault)->model, &from);
    if (status >= 0) {
        PP_UNLOCKED(ctx, status, pp_lane_in_by(&staging->lane, staging->receives, staging->spans, from, bounce,
                                               staging->stream));
        pp_staging_keep(&staging->borrowers, from);
    }
    if (status < 0)
        pp_staging_keep(&staging->spare, bounce);
    else
        pp_staging_sent(ctx, staging, bounce);
    return status;
}

pp_status_t pp_group_vault_deliver(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_staging_t  *staging = handle->staging;
    group_vault_t *holder = of_groups(staging->vault);
    pp_pinned_t   *bounce;
    PP_TRY(pp_staging_reclaim(handle));
    if (holder->read >= 0) {
        PP_TRY(pp_staging_take_spare(handle, &bounce));
        return deliver_by(ctx, handle, bounce);
    }
    const CUdeviceptr from = pp_vault_vector(&holder->base, holder->base.index, (size_t)holder->model);
    pp_lane_borrow(&staging->lane, staging->reader, pp_vault_pointer(from), staging->bytes);
    pp_status_t status;
    PP_UNLOCKED(ctx, status, pp_lane_in(&staging->lane, staging->receives, staging->spans, staging->reader,
                                        staging->stream));
    PP_TRY(status);
    holder->read = holder->model;
    pp_staging_sent(ctx, staging, staging->reader);
    return PP_OK;
}
