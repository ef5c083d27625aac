/* meeting.c - the ranks meet when they have agreed on a handle with a vault.  See vault.h. */
#include "vault_parts.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT_BYTES = 512 };           /* vectors begin at multiples of this */

/* ---- memory -------------------------------------------------------------------------------------------------- */

/* Inside the device. */
static pp_status_t make_memory(pp_device_vault_t *vault, pp_offer_t *offer)
{
    int32_t me = vault->node->index;
    size_t  bytes = vault->use->vectors(vault, me) * vault->stride;
    PP_TRY(PP_VAULT_CALL(vault, cuStreamCreate, &vault->work, CU_STREAM_NON_BLOCKING));
    PP_TRY(PP_VAULT_CALL(vault, cuStreamCreate, &vault->folding, CU_STREAM_NON_BLOCKING));
    PP_TRY(PP_VAULT_CALL(vault, cuEventCreate, &vault->folded, CU_EVENT_DISABLE_TIMING));
    PP_TRY(PP_VAULT_CALL(vault, cuMemAlloc, &vault->bases[me], bytes));
    PP_TRY(PP_VAULT_CALL(vault, cuIpcGetMemHandle, &offer->memory, vault->bases[me]));
    if (!vault->array)
        return PP_OK;
    vault->lent[me] = pp_array_address(vault->array);
    return PP_VAULT_CALL(vault, cuIpcGetMemHandle, &offer->lent, vault->lent[me]);
}

static pp_status_t offer(pp_handle_t *handle, pp_device_vault_t *vault)
{
    vault->stride = (vault->vector_bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    PP_TRY(vault->use->make(handle, vault));
    if (vault->count == 0)
        return pp_fail(PP_ERR_STATE, "there are no elements");
    PP_TRY(pp_cuda_device_open(vault->number, &vault->device));
    PP_TRY(pp_folds_open(&vault->device, vault->op, vault->type, &vault->folds));
    PP_TRY(pp_cuda_enter(&vault->device));
    return pp_cuda_leave(&vault->device, make_memory(vault, &vault->offers[vault->node->index]));
}

/* Inside the device. */
static pp_status_t map_others(pp_device_vault_t *vault)
{
    for (int32_t rank = 0; rank < vault->ranks; rank++) {
        const pp_offer_t *offered = &vault->offers[rank];
        if (rank == vault->node->index)
            continue;
        PP_TRY(PP_VAULT_CALL(vault, cuIpcOpenMemHandle, &vault->bases[rank], offered->memory,
                             CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        if (offered->lends)
            PP_TRY(PP_VAULT_CALL(vault, cuIpcOpenMemHandle, &vault->lent[rank], offered->lent,
                                 CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    }
    return PP_OK;
}

/* Everything that may fail, so that the ranks then only change over. */
static pp_status_t open_others(pp_handle_t *handle, pp_device_vault_t *vault)
{
    PP_TRY(pp_cuda_enter(&vault->device));
    PP_TRY(pp_cuda_leave(&vault->device, map_others(vault)));
    return vault->use->fill(handle, vault);
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

/* Whether another rank may have this one's memory mapped although it has said PP_SETTLED. */
static bool others_hold(const pp_device_vault_t *vault)
{
    for (int32_t rank = 0; rank < vault->ranks; rank++)
        if (rank != vault->node->index && atomic_load(&vault->offers[rank].state) & PP_HOLDS)
            return true;
    return false;
}

/* Nobody will say when they let go: the process keeps what it has offered until it ends. */
static void keep_own(pp_device_vault_t *vault)
{
    vault->bases[vault->node->index] = 0;
    vault->array = NULL;
    vault->device = (pp_cuda_device_t){0};
}

static pp_status_t meet_others(pp_handle_t *handle, pp_device_vault_t *vault)
{
    int32_t refuses;
    if (vault->stage == PP_OFFERED && pp_vault_all_at(vault, PP_OFFERED))
        pp_vault_say(vault, PP_OPENED, who_refuses(vault) < 0 ? open_others(handle, vault) : PP_OK);
    if (vault->stage == PP_OPENED && pp_vault_all_at(vault, PP_OPENED)) {
        if ((refuses = who_refuses(vault)) < 0) {
            vault->use->change_over(handle, vault);
            vault->in_use = true;
        } else {
            snprintf(vault->why, sizeof vault->why, "rank %d: %s", refuses, vault->offers[refuses].why);
            vault->holds = !pp_vault_close(vault);
        }
        pp_vault_say(vault, PP_SETTLED, PP_OK);
    }
    /* No rank makes a round, or frees memory, before all have changed over, or closed that of others, or said that they
       could not. */
    return vault->stage == PP_SETTLED && pp_vault_all_at(vault, PP_SETTLED) ? PP_OK : PP_PENDING;
}

/* The first step of a rank. */
static pp_status_t begin(pp_handle_t *handle, pp_device_vault_t *vault)
{
    vault->ctx = pp_ctx_of(handle);
    pp_vaults_close(vault->ctx);
    pp_vaults_free(vault->ctx);
    vault->bases = calloc((size_t)vault->ranks, sizeof *vault->bases);
    vault->lent = calloc((size_t)vault->ranks, sizeof *vault->lent);
    if (!vault->bases || !vault->lent)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    pp_status_t status = vault->why[0] ? pp_fail(PP_ERR_STATE, "%s", vault->why) : offer(handle, vault);
    vault->why[0] = 0;
    pp_vault_say(vault, PP_OFFERED, status);
    vault->meets = true;
    vault->ctx->flights++;           /* threads look often */
    return PP_OK;
}

static pp_status_t meet(pp_handle_t *handle)
{
    pp_device_vault_t *vault = handle->staging->vault;
    if (vault->stage == 0) {
        const char *refusal = vault->use->find(handle, vault);
        if (refusal) {
            snprintf(vault->why, sizeof vault->why, "%s", refusal);
            return PP_OK;
        }
        PP_TRY(begin(handle, vault));
    }
    if (meet_others(handle, vault) == PP_PENDING)
        return PP_PENDING;
    vault->meets = false;
    vault->ctx->flights--;
    if (vault->in_use)
        return PP_OK;
    if (others_hold(vault))
        keep_own(vault);
    pp_vault_free_own(vault);
    return PP_OK;
}

/* `use` NULL: the vault only says why there is none. */
static pp_status_t new_vault(pp_handle_t *handle, const pp_vault_use_t *use, const char *why)
{
    pp_device_vault_t *vault = calloc(1, use ? use->bytes : sizeof *vault);
    if (!vault)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    vault->use = use;
    snprintf(vault->why, sizeof vault->why, "%s", why);
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

/* ---- the end ------------------------------------------------------------------------------------------------- */

static bool none_left(const void *arg) { return !((const pp_ctx_t *)arg)->vaults; }

pp_status_t pp_vaults_await(pp_ctx_t *ctx, int64_t timeout_us)
{
    if (!ctx->vaults)
        return PP_OK;
    pp_vaults_close(ctx);
    ctx->flights++;                  /* sleeps are short */
    pp_status_t status = pp_help_until(ctx, none_left, ctx, timeout_us, NULL);
    ctx->flights--;
    return status;
}
