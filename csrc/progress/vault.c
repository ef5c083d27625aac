/* vault.c - see vault.h. */
#define _GNU_SOURCE   /* pthread_setname_np */
#include "vault_parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what the ranks tell each other --------------------------------------------------------------------------- */

void pp_vault_say(pp_device_vault_t *vault, uint32_t stage, pp_status_t status)
{
    pp_offer_t *mine = &vault->offers[vault->index];
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
    for (int32_t rank = 0; rank < vault->ranks; rank++)
        if ((atomic_load(&vault->offers[rank].state) & PP_STAGE) < stage)
            return false;
    return true;
}

bool pp_vault_meets(const pp_handle_t *handle)
{
    const pp_device_vault_t *vault = handle->staging->vault;
    return vault && vault->meets && (vault->job ? atomic_load(&vault->job_over) : pp_vault_all_at(vault, vault->stage));
}

bool pp_vault_in_use(const pp_handle_t *handle, const char **why)
{
    const pp_device_vault_t *vault = handle->staging->vault;
    *why = vault ? vault->refusal : "";
    return vault && vault->in_use;
}

/* ---- jobs ------------------------------------------------------------------------------------------------------ */

static void *run(void *argument)
{
    pp_device_vault_t *vault = argument;
    pthread_setname_np(pthread_self(), "pypartial-cuda");
    vault->job_status = vault->job(vault);
    if (vault->job_status < 0)
        snprintf(vault->why, sizeof vault->why, "%s", pp_error_text());
    atomic_store(&vault->job_over, true);        /* from here on the vault may be freed */
    return NULL;
}

void pp_vault_begin(pp_device_vault_t *vault, pp_status_t (*job)(pp_device_vault_t *))
{
    pthread_t thread;
    vault->job = job;
    atomic_store(&vault->job_over, false);
    if (pthread_create(&thread, NULL, run, vault) == 0)
        pthread_detach(thread);
    else
        run(vault);
}

pp_status_t pp_vault_job(pp_device_vault_t *vault)
{
    if (vault->job && !atomic_load(&vault->job_over))
        return PP_PENDING;
    if (vault->job && vault->job_status < 0)
        pp_fail(vault->job_status, "%s", vault->why);
    vault->job = NULL;
    return vault->job_status;
}

bool pp_vault_is_busy(const pp_handle_t *handle)
{
    enum { LOOKS = 1000, PAUSE_US = 1000 };
    const pp_device_vault_t *vault = handle->staging->vault;
    for (int looks = 0; vault && vault->job && !atomic_load(&vault->job_over); looks++) {
        if (looks == LOOKS)
            return true;
        usleep(PAUSE_US);
    }
    return false;
}

/* ---- folds ---------------------------------------------------------------------------------------------------- */

pp_status_t pp_vault_folding(pp_device_vault_t *vault)
{
    PP_TRY(pp_cuda_enter(&vault->device));
    PP_TRY(pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuEventRecord, vault->folded, vault->folding)));
    vault->ctx->flights++;           /* threads look often */
    return PP_OK;
}

pp_status_t pp_vault_folded(pp_device_vault_t *vault)
{
    PP_TRY(pp_cuda_enter(&vault->device));
    pp_status_t status = pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuEventQuery, vault->folded));
    vault->ctx->flights -= status != PP_PENDING;
    return status;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static bool is_idle(const pp_device_vault_t *vault)
{
    if (!vault->work || pp_cuda_enter(&vault->device) < 0)
        return !vault->work;
    const CUresult result = vault->device.cuda->cuStreamQuery(vault->work);
    pp_cuda_leave(&vault->device, PP_OK);
    return result != CUDA_ERROR_NOT_READY;
}

void pp_vault_put(pp_device_vault_t *vault)
{
    const CUdeviceptr own = vault->bases[vault->index];
    if (vault->receive) {
        pp_lane_t lane = {.pool = vault->pool, .device = vault->device, .folds = vault->folds};
        pp_lane_unpin(&lane, vault->receive);
    }
    if (vault->folded && pp_cuda_enter(&vault->device) >= 0) {
        vault->device.cuda->cuEventDestroy(vault->folded);
        pp_cuda_leave(&vault->device, PP_OK);
    }
    if (own)
        pp_cuda_pool_put(vault->pool, PP_CUDA_SHARED, own, vault->work);
    if (vault->work)
        pp_cuda_pool_put_stream(vault->pool, vault->work);
    if (vault->folding)
        pp_cuda_pool_put_stream(vault->pool, vault->folding);
    pp_folds_close(vault->folds);
    vault->use->unmake(vault);
    free(vault->bases);
    free(vault->theirs);
}

pp_status_t pp_vault_check(pp_handle_t *handle)
{
    const pp_device_vault_t *vault = handle->staging->vault;
    pp_status_t status = vault ? pp_device_failed(&vault->failure) : PP_OK;
    if (status >= 0)
        return PP_OK;
    pp_engine_fail(handle->engine, status, "handle %u: %s", handle->id, pp_error_text());
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
    if (vault->use->leave)
        vault->use->leave(handle, vault, frees);
    if (!frees)                      /* the driver takes all back from a process that ends */
        return;
    vault->next = vault->ctx->vaults;
    vault->ctx->vaults = vault;
    if (is_idle(vault))
        pp_vault_say(vault, PP_LEFT, PP_OK);
}

static void end(pp_device_vault_t *vault)
{
    pp_vault_put(vault);
    vault->use->end(vault);
    free(vault);
}

void pp_vaults_look(pp_ctx_t *ctx)
{
    for (pp_device_vault_t *vault, **link = &ctx->vaults; (vault = *link);) {
        if (vault->stage != PP_LEFT && is_idle(vault))
            pp_vault_say(vault, PP_LEFT, PP_OK);
        if (vault->stage != PP_LEFT || !pp_vault_all_at(vault, PP_LEFT)) {
            link = &vault->next;
            continue;
        }
        *link = vault->next;
        end(vault);
    }
}

void pp_vaults_end(pp_ctx_t *ctx)
{
    for (pp_device_vault_t *next, *vault = ctx->vaults; vault; vault = next) {
        next = vault->next;
        end(vault);
    }
    ctx->vaults = NULL;
}
