/* meeting.c - the ranks meet when they have agreed on a handle with a vault.  See vault.h. */
#include "vault_parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    PARTS = 3,                       /* of a station: one that is read, one that is pending, one on its way */
    UNIT_BYTES = 512                 /* vectors begin at multiples of this */
};

/* ---- memory -------------------------------------------------------------------------------------------------- */

static size_t results_of(const pp_device_vault_t *vault, int32_t rank)
{
    const pp_board_t *board = &vault->board;
    return (size_t)((board->entries - rank + board->ranks - 1) / board->ranks);
}

static void place(pp_device_vault_t *vault)
{
    const pp_board_t *board = &vault->board;
    vault->places.parts = PARTS;
    for (int32_t rank = 0; rank < board->ranks; rank++)
        for (int32_t part = 0; part < PARTS; part++)
            vault->places.slots[rank * PP_PARTS + part] = pp_vault_pointer(vault->bases[rank] + (size_t)part * vault->stride);
    for (int32_t entry = 0; entry < board->entries; entry++)
        vault->places.results[entry] = pp_vault_pointer(vault->bases[entry % board->ranks]
                                               + (PARTS + (size_t)(entry / board->ranks)) * vault->stride);
}

/* Inside the device. */
static pp_status_t make_memory(pp_device_vault_t *vault, pp_offer_t *offer)
{
    int32_t me = vault->board.node->index;
    size_t  bytes = (PARTS + results_of(vault, me)) * vault->stride;
    PP_TRY(PP_VAULT_CALL(vault, cuStreamCreate, &vault->work, CU_STREAM_NON_BLOCKING));
    PP_TRY(PP_VAULT_CALL(vault, cuStreamCreate, &vault->folding, CU_STREAM_NON_BLOCKING));
    PP_TRY(PP_VAULT_CALL(vault, cuEventCreate, &vault->folded, CU_EVENT_DISABLE_TIMING));
    PP_TRY(PP_VAULT_CALL(vault, cuMemAlloc, &vault->bases[me], bytes));
    return PP_VAULT_CALL(vault, cuIpcGetMemHandle, &offer->memory, vault->bases[me]);
}

static pp_status_t offer(pp_handle_t *handle, pp_device_vault_t *vault, pp_offer_t *mine)
{
    const pp_allreduce_t *coll = pp_allreduce_of(handle);
    const pp_board_t     *board = &vault->board;
    vault->places.slots = calloc((size_t)board->ranks * PP_PARTS, sizeof(void *));
    vault->places.results = calloc((size_t)board->entries, sizeof(void *));
    vault->sources = calloc((size_t)board->ranks * PP_PARTS, sizeof *vault->sources);
    vault->stride = (board->vector_bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    if (!vault->places.slots || !vault->places.results || !vault->sources)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    if (coll->count == 0)
        return pp_fail(PP_ERR_STATE, "there are no elements");
    PP_TRY(pp_cuda_device_open(coll->config.device - 1, &vault->device));
    PP_TRY(pp_folds_open(&vault->device, coll->config.op, coll->config.type, &vault->folds));
    PP_TRY(pp_cuda_enter(&vault->device));
    return pp_cuda_leave(&vault->device, make_memory(vault, mine));
}

/* Inside the device. */
static pp_status_t map_others(pp_device_vault_t *vault)
{
    const pp_board_t *board = &vault->board;
    for (int32_t rank = 0; rank < board->ranks; rank++)
        if (rank != board->node->index)
            PP_TRY(PP_VAULT_CALL(vault, cuIpcOpenMemHandle, &vault->bases[rank], pp_vault_offer(vault, rank)->memory,
                        CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return PP_OK;
}

/* Everything that may fail, so that the ranks then only change over. */
static pp_status_t open_others(pp_handle_t *handle, pp_device_vault_t *vault)
{
    pp_staging_t *staging = handle->staging;
    PP_TRY(pp_cuda_enter(&vault->device));
    PP_TRY(pp_cuda_leave(&vault->device, map_others(vault)));
    PP_TRY(pp_in_place_pin(staging));
    pp_lane_t lane = staging->lane;
    pp_lane_stay(&lane, vault->folds, 0, 0);
    return pp_lane_pin(&lane, staging->bytes, &vault->receive);
}

/* ---- the ranks meet ------------------------------------------------------------------------------------------ */

/* The first rank that refuses; -1: none does.  All are at the stage of which this is asked, and none writes its reason
   before they are. */
static int32_t who_refuses(const pp_device_vault_t *vault)
{
    for (int32_t rank = 0; rank < vault->board.ranks; rank++)
        if (atomic_load(&pp_vault_offer(vault, rank)->state) & PP_REFUSES)
            return rank;
    return -1;
}

static void change_over(pp_handle_t *handle, pp_device_vault_t *vault)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_staging_t   *staging = handle->staging;
    pp_board_t     *board = coll->ops->board(coll);
    vault->memory = vault->users = pp_vault_kind;
    place(vault);
    board->vault = &vault->places;
    board->lent = true;
    vault->board = *board;
    pp_in_place_begin(handle);
    coll->series.kernels.memory = coll->series.vectors.memory = &vault->memory;
    coll->series.kernels.users = &vault->users;     /* another kind: elements are always loaded and stored */
    pp_staging_keep(&staging->spare, staging->receive);
    pp_staging_unpin_spare(staging);
    pp_lane_stay(&staging->lane, vault->folds, coll->series.kernels.user_bytes, coll->series.kernels.element_bytes);
    pp_in_place_set_receive(coll, vault->receive);
    vault->receive = NULL;
    vault->in_use = true;
}


static pp_status_t meet_others(pp_handle_t *handle, pp_device_vault_t *vault)
{
    int32_t refuses;
    if (vault->stage == PP_OFFERED && pp_vault_all_at(vault, PP_OFFERED))
        pp_vault_say(vault, PP_OPENED, who_refuses(vault) < 0 ? open_others(handle, vault) : PP_OK);
    if (vault->stage == PP_OPENED && pp_vault_all_at(vault, PP_OPENED)) {
        if ((refuses = who_refuses(vault)) < 0) {
            change_over(handle, vault);
        } else {
            snprintf(vault->why, sizeof vault->why, "rank %d: %s", refuses, pp_vault_offer(vault, refuses)->why);
            pp_vault_close(vault);
        }
        pp_vault_say(vault, PP_SETTLED, PP_OK);
    }
    /* No rank makes a round, or frees memory, before all have changed over, or closed that of others. */
    return vault->stage == PP_SETTLED && pp_vault_all_at(vault, PP_SETTLED) ? PP_OK : PP_PENDING;
}

static pp_status_t meet(pp_handle_t *handle)
{
    pp_staging_t      *staging = handle->staging;
    pp_device_vault_t *vault = staging->vault;
    pp_allreduce_t    *coll = pp_allreduce_of(handle);
    if (!coll->ops->board) {
        snprintf(vault->why, sizeof vault->why, "the rounds are made of messages, not in memory that all ranks share");
        return PP_OK;
    }
    if (vault->stage == 0) {
        vault->ctx = (pp_ctx_t *)((char *)handle->engine - offsetof(pp_ctx_t, engine));
        pp_vaults_free(vault->ctx);
        vault->board = *coll->ops->board(coll);
        vault->bases = calloc((size_t)vault->board.ranks, sizeof *vault->bases);
        if (!vault->bases)
            return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
        pp_status_t status = vault->why[0] ? pp_fail(PP_ERR_STATE, "%s", vault->why)
                                           : offer(handle, vault, pp_vault_offer(vault, vault->board.node->index));
        vault->why[0] = 0;
        pp_vault_say(vault, PP_OFFERED, status);
        vault->meets = true;
        vault->ctx->flights++;       /* threads look often */
    }
    if (meet_others(handle, vault) == PP_PENDING)
        return PP_PENDING;
    vault->meets = false;
    vault->ctx->flights--;
    if (!vault->in_use)
        pp_vault_free_own(vault);
    return PP_OK;
}

pp_status_t pp_vault_ask(pp_handle_t *handle, const char *no_ipc)
{
    pp_device_vault_t *vault = calloc(1, sizeof *vault);
    if (!vault)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    if (no_ipc)
        snprintf(vault->why, sizeof vault->why, "%s", no_ipc);
    handle->staging->vault = vault;
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
    ctx->flights++;                  /* sleeps are short */
    pp_status_t status = pp_help_until(ctx, none_left, ctx, timeout_us, NULL);
    ctx->flights--;
    return status;
}
