/* vault.c - see vault.h. */
#include "vault_parts.h"
#include "../cuda/aside.h"
#include "../cuda/disposal.h"

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
    atomic_store(&mine->state, stage | refuses | (vault->holds ? PP_HOLDS : 0));
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

static void run(void *argument)
{
    pp_device_vault_t *vault = argument;
    vault->job_status = vault->job(vault);
    if (vault->job_status < 0)
        snprintf(vault->why, sizeof vault->why, "%s", pp_error_text());
    atomic_store(&vault->job_over, true);        /* from here on the vault may be freed */
}

void pp_vault_begin(pp_device_vault_t *vault, pp_status_t (*job)(pp_device_vault_t *))
{
    vault->job = job;
    atomic_store(&vault->job_over, false);
    pp_aside(run, vault);
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

/* Closes a mapping; false: the driver did not. */
static bool unmap(const pp_cuda_t *cuda, CUdeviceptr *mapped)
{
    if (*mapped && cuda->cuIpcCloseMemHandle(*mapped) == CUDA_SUCCESS)
        *mapped = 0;
    return *mapped == 0;
}

pp_status_t pp_vault_close(pp_device_vault_t *vault)
{
    const pp_cuda_t *cuda = vault->device.cuda;
    bool closed = true;
    if (!cuda)
        return PP_OK;
    PP_TRY(pp_cuda_enter(&vault->device));
    if (vault->receive) {
        pp_lane_t lane = {.device = vault->device, .folds = vault->folds};
        pp_lane_unpin(&lane, vault->receive);
        vault->receive = NULL;
    }
    if (vault->use->close && vault->work)
        vault->use->close(vault);
    for (int32_t rank = 0; rank < vault->ranks; rank++) {
        if (rank != vault->index)
            closed &= unmap(cuda, &vault->bases[rank]);
    }
    if (vault->folded)
        cuda->cuEventDestroy(vault->folded);
    if (vault->folding)
        cuda->cuStreamDestroy(vault->folding);
    vault->folded = NULL;
    vault->folding = NULL;
    pp_cuda_leave(&vault->device, PP_OK);
    if (vault->work)
        pp_dispose_stream(&vault->device, vault->work);      /* vectors were left to be given back behind it */
    vault->work = NULL;
    pp_folds_close(vault->folds);
    vault->folds = NULL;
    return closed ? PP_OK : PP_ERR_STATE;        /* which nobody is told */
}

void pp_vault_free_own(pp_device_vault_t *vault)
{
    CUdeviceptr own = vault->bases[vault->index];
    if (own)
        pp_dispose_memory(&vault->device, own);
    pp_dispose_device(&vault->device);
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
    pp_vault_begin(vault, pp_vault_close);
}

void pp_vaults_retry(pp_ctx_t *ctx)
{
    for (pp_device_vault_t *vault = ctx->vaults; vault; vault = vault->next)
        if (vault->stage != PP_CLOSED && !vault->job)
            pp_vault_begin(vault, pp_vault_close);
}

void pp_vaults_free(pp_ctx_t *ctx)
{
    for (pp_device_vault_t *vault, **link = &ctx->vaults; (vault = *link);) {
        if (vault->job && pp_vault_job(vault) == PP_OK)
            pp_vault_say(vault, PP_CLOSED, PP_OK);
        if (vault->stage != PP_CLOSED || !pp_vault_all_at(vault, PP_CLOSED)) {
            link = &vault->next;
            continue;
        }
        *link = vault->next;
        pp_vault_free_own(vault);
        vault->use->end(vault);
        free(vault);
    }
}

bool pp_left_is_awaited(const pp_ctx_t *ctx)
{
    bool any = ctx->kept;
    for (const pp_device_vault_t *vault = ctx->vaults; vault; vault = vault->next)
        any |= vault->job || vault->stage == PP_CLOSED;      /* else the driver has not closed it */
    return any;
}
