/* meeting.c - the ranks meet when they have agreed on a handle with a vault.  See vault.h. */
#include "vault_parts.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT_BYTES = 512 };           /* vectors begin at multiples of this */

/* ---- memory -------------------------------------------------------------------------------------------------- */

/* Inside the device. */
static pp_status_t make_memory(pp_device_vault_t *vault)
{
    int32_t me = vault->index;
    size_t  bytes = vault->use->vectors(vault, me) * vault->stride;
    PP_TRY(pp_cuda_pool_get_stream(vault->pool, &vault->work));
    PP_TRY(pp_cuda_pool_get_stream(vault->pool, &vault->folding));
    PP_TRY(PP_VAULT_CALL(vault, cuEventCreate, &vault->folded, CU_EVENT_DISABLE_TIMING));
    PP_TRY(pp_cuda_pool_get(vault->pool, PP_CUDA_SHARED, bytes, &vault->bases[me]));
    return PP_VAULT_CALL(vault, cuIpcGetMemHandle, &vault->mine, vault->bases[me]);
}

/* A job. */
static pp_status_t offer(pp_device_vault_t *vault)
{
    if (vault->count == 0)
        return pp_fail(PP_ERR_STATE, "there are no elements");
    PP_TRY(pp_cuda_pool_load(vault->pool));
    PP_TRY(pp_folds_open(&vault->device, vault->op, vault->type, &vault->folds));
    PP_TRY(pp_cuda_enter(&vault->device));
    return pp_cuda_leave(&vault->device, make_memory(vault));
}

static pp_status_t map_others(pp_device_vault_t *vault)
{
    for (int32_t rank = 0; rank < vault->ranks; rank++)
        if (rank != vault->index)
            PP_TRY(pp_cuda_pool_map(vault->pool, &vault->theirs[rank], &vault->bases[rank]));
    return PP_OK;
}

/* A job: everything that may fail, so that the ranks then only change over. */
static pp_status_t open_others(pp_device_vault_t *vault)
{
    PP_TRY(map_others(vault));
    return vault->use->fill(vault);
}

/* ---- the ranks meet ------------------------------------------------------------------------------------------ */

/* The first rank that refuses; -1: none does.  All are at the stage of which this is asked, and none writes its reason
   before they are. */
static int32_t who_refuses(const pp_device_vault_t *vault)
{
    for (int32_t rank = 0; rank < vault->ranks; rank++)
        if (atomic_load(&vault->offers[rank].state) & PP_REFUSES)
            return rank;
    return -1;
}

/* The job is over that this rank has done at its stage. */
static void say_result(pp_device_vault_t *vault, pp_status_t status)
{
    if (vault->stage == 0)
        vault->offers[vault->index].memory = vault->mine;
    pp_vault_say(vault, vault->stage == 0 ? PP_OFFERED : PP_OPENED, status);
}

/* All ranks have offered: this one opens what they did. */
static void take_offers(pp_device_vault_t *vault)
{
    for (int32_t rank = 0; rank < vault->ranks; rank++)
        vault->theirs[rank] = vault->offers[rank].memory;
    if (who_refuses(vault) < 0)
        pp_vault_begin(vault, open_others);
    else
        pp_vault_say(vault, PP_OPENED, PP_OK);
}

/* All have opened what the others did, or could not. */
static void settle(pp_handle_t *handle, pp_device_vault_t *vault)
{
    const int32_t refuses = who_refuses(vault);
    if (refuses >= 0) {
        snprintf(vault->refusal, sizeof vault->refusal, "rank %d: %s", refuses, vault->offers[refuses].why);
    } else {
        vault->use->change_over(handle, vault);
        vault->in_use = true;
    }
    pp_vault_say(vault, PP_SETTLED, PP_OK);
}

/* No rank makes a round before all have changed over. */
static pp_status_t meet_others(pp_handle_t *handle, pp_device_vault_t *vault)
{
    while (pp_vault_meets(handle)) {
        if (vault->job)
            say_result(vault, pp_vault_job(vault));
        else if (vault->stage == PP_OFFERED)
            take_offers(vault);
        else if (vault->stage == PP_OPENED)
            settle(handle, vault);
        else
            return PP_OK;
    }
    return PP_PENDING;
}

/* The first step of a rank. */
static pp_status_t begin(pp_handle_t *handle, pp_device_vault_t *vault)
{
    vault->ctx = pp_ctx_of(handle);
    vault->staging = handle->staging;
    vault->index = vault->node->index;
    vault->stride = (vault->vector_bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    vault->bases = calloc((size_t)vault->ranks, sizeof *vault->bases);
    vault->theirs = calloc((size_t)vault->ranks, sizeof *vault->theirs);
    if (!vault->bases || !vault->theirs)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    vault->pool = handle->staging->lane.pool;
    vault->device = vault->pool->device;
    pp_vaults_look(vault->ctx);      /* what they put is used again */
    vault->meets = true;
    vault->ctx->flights++;           /* threads look often */
    pp_status_t status = vault->refusal[0] ? pp_fail(PP_ERR_STATE, "%s", vault->refusal) : vault->use->make(vault);
    vault->refusal[0] = 0;
    if (status < 0)
        pp_vault_say(vault, PP_OFFERED, status);
    else
        pp_vault_begin(vault, offer);
    return PP_OK;
}

static pp_status_t meet(pp_handle_t *handle)
{
    pp_device_vault_t *vault = handle->staging->vault;
    if (!vault->meets) {
        const char *refusal = vault->use->find(handle, vault);
        if (refusal) {
            snprintf(vault->refusal, sizeof vault->refusal, "%s", refusal);
            return PP_OK;
        }
        PP_TRY(begin(handle, vault));
    }
    if (meet_others(handle, vault) == PP_PENDING)
        return PP_PENDING;
    vault->meets = false;
    vault->ctx->flights--;
    if (!vault->in_use)
        pp_vault_put(vault);
    return PP_OK;
}

/* `use` NULL: the vault only says why there is none. */
static pp_status_t new_vault(pp_handle_t *handle, const pp_vault_use_t *use, const char *why)
{
    pp_device_vault_t *vault = calloc(1, use ? use->bytes : sizeof *vault);
    if (!vault)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    vault->use = use;
    snprintf(vault->refusal, sizeof vault->refusal, "%s", why);
    handle->staging->vault = vault;
    return PP_OK;
}

pp_status_t pp_vault_refuse(pp_handle_t *handle, const char *why) { return new_vault(handle, NULL, why); }

pp_status_t pp_vault_ask(pp_handle_t *handle, const pp_vault_use_t *use, const char *no_ipc)
{
    PP_TRY(new_vault(handle, use, no_ipc ? no_ipc : ""));
    handle->meet = meet;
    handle->offer_bytes = sizeof(pp_offer_t);
    return PP_OK;
}
