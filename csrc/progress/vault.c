/* vault.c - see vault.h. */
#include "vault_parts.h"

#include <stdlib.h>
#include <string.h>

static pp_device_vault_t *vault_of(const pp_memory_t *memory) { return (pp_device_vault_t *)(uintptr_t)memory; }
static CUdeviceptr at(const void *elements) { return pp_cuda_address(elements); }

/* ---- the kind of memory: operations that are over when they return ------------------------------------------- */

/* Waits for what was queued, if it could be.  The first failure is kept for pp_vault_check(). */
static void finish(pp_device_vault_t *vault, pp_status_t status)
{
    if (status >= 0 && (status = pp_cuda_enter(&vault->device)) >= 0)
        status = pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuStreamSynchronize, vault->work));
    if (status >= 0 || atomic_load(&vault->failed))
        return;
    snprintf(vault->failure, sizeof vault->failure, "%s", pp_error_text());
    atomic_store(&vault->failed, true);
}

static void *vault_allocate(const pp_memory_t *self, size_t bytes)
{
    pp_device_vault_t *vault = vault_of(self);
    CUdeviceptr address = 0;
    pp_status_t status = pp_cuda_enter(&vault->device);
    if (status >= 0)
        status = pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuMemAlloc, &address, bytes));
    return status < 0 ? NULL : pp_vault_pointer(address);
}

static void vault_release(const pp_memory_t *self, void *elements)
{
    pp_device_vault_t *vault = vault_of(self);
    if (pp_cuda_enter(&vault->device) < 0)
        return;
    vault->device.cuda->cuMemFree(at(elements));
    pp_cuda_leave(&vault->device, PP_OK);
}

static void vault_copy(const pp_memory_t *self, void *to, const void *from, size_t bytes)
{
    pp_device_vault_t *vault = vault_of(self);
    pp_status_t status = pp_cuda_enter(&vault->device);
    if (status >= 0)
        status = pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuMemcpyAsync, at(to), at(from), bytes, vault->work));
    finish(vault, status);
}

static void keep(const pp_kernels_t *kernels, void *inout, const void *left, const void *right, size_t count)
{
    pp_device_vault_t *vault = vault_of(kernels->memory);
    const CUdeviceptr  vectors[2] = {at(left), at(right)};
    finish(vault, pp_folds_fold(vault->folds, at(inout), vectors, 2, count, 1, vault->work));
}

static void vault_keep_left(const pp_kernels_t *kernels, void *inout, const void *in, size_t count)
{
    keep(kernels, inout, inout, in, count);
}

static void vault_keep_right(const pp_kernels_t *kernels, void *inout, const void *in, size_t count)
{
    keep(kernels, inout, in, inout, count);
}

/* Loading has done so. */
static void vault_normalise(const pp_kernels_t *kernels, void *values, size_t count)
{
    (void)kernels, (void)values, (void)count;
}

static void vault_load(const pp_kernels_t *kernels, void *to, const void *from, size_t count)
{
    pp_device_vault_t *vault = vault_of(kernels->memory);
    finish(vault, pp_folds_load(vault->folds, at(to), at(from), count, vault->work));
}

static void vault_load_combined(const pp_kernels_t *kernels, void *inout, const void *from, size_t count)
{
    pp_device_vault_t *vault = vault_of(kernels->memory);
    finish(vault, pp_folds_load_combined(vault->folds, at(inout), at(from), count, vault->work));
}

static void vault_store(const pp_kernels_t *kernels, void *to, const void *from, size_t count)
{
    pp_device_vault_t *vault = vault_of(kernels->memory);
    finish(vault, pp_folds_store(vault->folds, at(to), at(from), count, vault->work));
}

static void vault_fill(const pp_kernels_t *kernels, void *values, size_t count)
{
    pp_device_vault_t *vault = vault_of(kernels->memory);
    finish(vault, pp_folds_fill(vault->folds, at(values), count, vault->work));
}

/* A stream of its own: it waits for nothing of the application's, as the contributions are there. */
static pp_status_t begin_fold(const pp_kernels_t *kernels, void *out, const uint64_t *vectors, uint32_t vector_count,
                              size_t count, uint64_t divide_by)
{
    pp_device_vault_t *vault = vault_of(kernels->memory);
    for (uint32_t i = 0; i < vector_count; i++)
        vault->sources[i] = vectors[i];
    PP_TRY(pp_folds_fold(vault->folds, at(out), vault->sources, vector_count, count, divide_by, vault->folding));
    PP_TRY(pp_cuda_enter(&vault->device));
    PP_TRY(pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuEventRecord, vault->folded, vault->folding)));
    vault->ctx->flights++;           /* threads look often */
    vault->ctx->device_rounds++;
    return PP_OK;
}

static pp_status_t fold_over(const pp_kernels_t *kernels)
{
    pp_device_vault_t *vault = vault_of(kernels->memory);
    PP_TRY(pp_cuda_enter(&vault->device));
    pp_status_t status = pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuEventQuery, vault->folded));
    vault->ctx->flights -= status != PP_PENDING;
    return status;
}

const pp_memory_t pp_vault_kind = {
    .name = "device", .allocate = vault_allocate, .release = vault_release, .copy = vault_copy,
    .keep_left = vault_keep_left, .keep_right = vault_keep_right, .normalise = vault_normalise, .load = vault_load,
    .load_combined = vault_load_combined, .store = vault_store, .fill = vault_fill, .begin_fold = begin_fold,
    .fold_over = fold_over,
};

/* ---- what the ranks tell each other --------------------------------------------------------------------------- */

void pp_vault_say(pp_device_vault_t *vault, uint32_t stage, pp_status_t status)
{
    pp_offer_t *mine = pp_vault_offer(vault, vault->board.node->index);
    uint32_t refuses = atomic_load(&mine->state) & PP_REFUSES;
    if (status < 0 && !refuses) {
        snprintf(mine->why, sizeof mine->why, "%s", pp_error_text());
        refuses = PP_REFUSES;
    }
    vault->stage = stage;
    atomic_store(&mine->state, stage | refuses);
}

bool pp_vault_all_at(const pp_device_vault_t *vault, uint32_t stage)
{
    for (int32_t rank = 0; rank < vault->board.ranks; rank++)
        if ((atomic_load(&pp_vault_offer(vault, rank)->state) & PP_STAGE) < stage)
            return false;
    return true;
}

bool pp_vault_meets(const pp_handle_t *handle)
{
    const pp_device_vault_t *vault = handle->staging->vault;
    return vault && vault->meets && pp_vault_all_at(vault, vault->stage);
}

bool pp_vault_in_use(const pp_handle_t *handle, const char **why)
{
    const pp_device_vault_t *vault = handle->staging->vault;
    *why = vault ? vault->why : "";
    return vault && vault->in_use;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

void pp_vault_close(pp_device_vault_t *vault)
{
    const pp_cuda_t *cuda = vault->device.cuda;
    if (!cuda || pp_cuda_enter(&vault->device) < 0)
        return;
    if (vault->receive) {
        pp_lane_t lane = {.device = vault->device, .folds = vault->folds};
        pp_lane_unpin(&lane, vault->receive);
        vault->receive = NULL;
    }
    for (int32_t rank = 0; rank < vault->board.ranks; rank++)
        if (rank != vault->board.node->index && vault->bases[rank])
            cuda->cuIpcCloseMemHandle(vault->bases[rank]);
    if (vault->folded)
        cuda->cuEventDestroy(vault->folded);
    if (vault->folding)
        cuda->cuStreamDestroy(vault->folding);
    if (vault->work)
        cuda->cuStreamDestroy(vault->work);
    pp_cuda_leave(&vault->device, PP_OK);
    pp_folds_close(vault->folds);
    vault->folds = NULL;
}

void pp_vault_free_own(pp_device_vault_t *vault)
{
    CUdeviceptr own = vault->bases[vault->board.node->index];
    if (own && pp_cuda_enter(&vault->device) >= 0) {
        vault->device.cuda->cuMemFree(own);
        pp_cuda_leave(&vault->device, PP_OK);
    }
    pp_cuda_device_close(&vault->device);
    free(vault->places.slots);
    free(vault->places.results);
    free(vault->sources);
    free(vault->bases);
}

pp_status_t pp_vault_check(pp_handle_t *handle)
{
    const pp_device_vault_t *vault = handle->staging->vault;
    if (!vault || !atomic_load(&vault->failed))
        return PP_OK;
    pp_engine_fail(handle->engine, PP_ERR_STATE, "handle %u: an operation on vectors of a device has failed: %s",
                   handle->id, vault->failure);
    return pp_engine_check(handle->engine);
}

/* ---- the end ------------------------------------------------------------------------------------------------- */

void pp_vault_end(pp_handle_t *handle, bool frees)
{
    pp_device_vault_t *vault = handle->staging->vault;
    handle->staging->vault = NULL;
    if (!vault)
        return;
    if (!vault->in_use) {
        free(vault);
        return;
    }
    pp_pool_t *vectors = &pp_allreduce_of(handle)->series.vectors;
    if (!frees) {                    /* the driver takes all back from a process that ends */
        vectors->free_list = NULL;
        return;
    }
    pp_pool_release(vectors);
    pp_vault_close(vault);
    pp_vault_say(vault, PP_CLOSED, PP_OK);
    vault->next = vault->ctx->vaults;
    vault->ctx->vaults = vault;
    pp_vaults_free(vault->ctx);
}

void pp_vaults_free(pp_ctx_t *ctx)
{
    for (pp_device_vault_t *vault, **link = &ctx->vaults; (vault = *link);) {
        if (!pp_vault_all_at(vault, PP_CLOSED)) {
            link = &vault->next;
            continue;
        }
        *link = vault->next;
        pp_vault_free_own(vault);
        pp_board_end(&vault->board);
        free(vault);
    }
}
