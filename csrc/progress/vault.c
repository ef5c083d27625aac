/* vault.c - see vault.h. */
#include "vault.h"

#include <stdlib.h>
#include <string.h>

enum {
    PARTS = 3,                       /* of a station: one that is read, one that is pending, one on its way */
    UNIT_BYTES = 512,                /* vectors begin at multiples of this */
    WHY_BYTES = 176
};

/* ---- what the ranks tell each other ------------------------------------------------------------------------- */

/* How far a rank has got, with REFUSES if it does not take part.  Each waits at each stage for all others. */
enum { OFFERED = 1, OPENED, SETTLED, CLOSED, STAGE = 0xff, REFUSES = 0x100 };

/* In the memory of the node, one for each rank.  Its owner writes it before it sets `state`. */
typedef struct offer {
    _Alignas(64) _Atomic uint32_t state;
    char           why[WHY_BYTES];   /* it refuses */
    CUipcMemHandle memory;
} offer_t;

struct pp_device_vault {
    pp_memory_t        memory, users;      /* kinds of this handle's memory: of vectors, of bounce buffers */
    pp_vault_t         places;
    pp_device_vault_t *next;               /* of the context's */
    pp_ctx_t          *ctx;
    pp_board_t         board;              /* to be ended with the vault */
    uint32_t           stage;              /* of this rank */
    bool               meets, in_use;
    char               why[WHY_BYTES + 32];
    pp_cuda_device_t   device;
    pp_folds_t        *folds;
    CUstream           work, folding;      /* of operations that this rank waits for; of folds */
    CUevent            folded;
    CUdeviceptr       *bases;              /* by rank: its allocation, as mapped here; 0: not mapped */
    CUdeviceptr       *sources;            /* of a fold */
    pp_pinned_t       *receive;            /* the bounce buffer of the first result */
    size_t             stride;
    _Atomic bool       failed;             /* an operation that returned nothing */
    char               failure[256];
};

#define CALL(vault, name, ...) PP_CUDA((vault)->device.cuda, name, __VA_ARGS__)

static pp_device_vault_t *vault_of(const pp_memory_t *memory) { return (pp_device_vault_t *)(uintptr_t)memory; }
static CUdeviceptr at(const void *elements) { return pp_cuda_address(elements); }
static void *pointer(CUdeviceptr address) { return (void *)(uintptr_t)address; }

static offer_t *offer_of(const pp_device_vault_t *vault, int32_t rank) { return pp_board_offer(&vault->board, rank); }

/* ---- the kind of memory: operations that are over when they return ------------------------------------------- */

/* Waits for what was queued, if it could be.  The first failure is kept for pp_vault_check(). */
static void finish(pp_device_vault_t *vault, pp_status_t status)
{
    if (status >= 0 && (status = pp_cuda_enter(&vault->device)) >= 0)
        status = pp_cuda_leave(&vault->device, CALL(vault, cuStreamSynchronize, vault->work));
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
        status = pp_cuda_leave(&vault->device, CALL(vault, cuMemAlloc, &address, bytes));
    return status < 0 ? NULL : pointer(address);
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
        status = pp_cuda_leave(&vault->device, CALL(vault, cuMemcpyAsync, at(to), at(from), bytes, vault->work));
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
    PP_TRY(pp_cuda_leave(&vault->device, CALL(vault, cuEventRecord, vault->folded, vault->folding)));
    vault->ctx->flights++;           /* threads look often */
    vault->ctx->device_rounds++;
    return PP_OK;
}

static pp_status_t fold_over(const pp_kernels_t *kernels)
{
    pp_device_vault_t *vault = vault_of(kernels->memory);
    PP_TRY(pp_cuda_enter(&vault->device));
    pp_status_t status = pp_cuda_leave(&vault->device, CALL(vault, cuEventQuery, vault->folded));
    vault->ctx->flights -= status != PP_PENDING;
    return status;
}

static const pp_memory_t kind = {
    .name = "device", .allocate = vault_allocate, .release = vault_release, .copy = vault_copy,
    .keep_left = vault_keep_left, .keep_right = vault_keep_right, .normalise = vault_normalise, .load = vault_load,
    .load_combined = vault_load_combined, .store = vault_store, .fill = vault_fill, .begin_fold = begin_fold,
    .fold_over = fold_over,
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
            vault->places.slots[rank * PP_PARTS + part] = pointer(vault->bases[rank] + (size_t)part * vault->stride);
    for (int32_t entry = 0; entry < board->entries; entry++)
        vault->places.results[entry] = pointer(vault->bases[entry % board->ranks]
                                               + (PARTS + (size_t)(entry / board->ranks)) * vault->stride);
}

/* Inside the device. */
static pp_status_t make_memory(pp_device_vault_t *vault, offer_t *offer)
{
    int32_t me = vault->board.node->index;
    size_t  bytes = (PARTS + results_of(vault, me)) * vault->stride;
    PP_TRY(CALL(vault, cuStreamCreate, &vault->work, CU_STREAM_NON_BLOCKING));
    PP_TRY(CALL(vault, cuStreamCreate, &vault->folding, CU_STREAM_NON_BLOCKING));
    PP_TRY(CALL(vault, cuEventCreate, &vault->folded, CU_EVENT_DISABLE_TIMING));
    PP_TRY(CALL(vault, cuMemAlloc, &vault->bases[me], bytes));
    return CALL(vault, cuIpcGetMemHandle, &offer->memory, vault->bases[me]);
}

static pp_status_t offer(pp_handle_t *handle, pp_device_vault_t *vault, offer_t *mine)
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
            PP_TRY(CALL(vault, cuIpcOpenMemHandle, &vault->bases[rank], offer_of(vault, rank)->memory,
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

/* Errors have no one to hear them.  Memory that others may have mapped stays. */
static void close_others(pp_device_vault_t *vault)
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

/* No other rank has this one's memory mapped. */
static void free_own(pp_device_vault_t *vault)
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

/* ---- the ranks meet ------------------------------------------------------------------------------------------ */

/* What this rank has come to, at a stage; the text of a refusal is that of the last error. */
static void say(pp_device_vault_t *vault, uint32_t stage, pp_status_t status)
{
    offer_t *mine = offer_of(vault, vault->board.node->index);
    uint32_t refuses = atomic_load(&mine->state) & REFUSES;
    if (status < 0 && !refuses) {
        snprintf(mine->why, sizeof mine->why, "%s", pp_error_text());
        refuses = REFUSES;
    }
    vault->stage = stage;
    atomic_store(&mine->state, stage | refuses);
}

/* Whether all ranks are at the stage. */
static bool all_at(const pp_device_vault_t *vault, uint32_t stage)
{
    for (int32_t rank = 0; rank < vault->board.ranks; rank++)
        if ((atomic_load(&offer_of(vault, rank)->state) & STAGE) < stage)
            return false;
    return true;
}

/* The first rank that refuses; -1: none does.  All are at the stage of which this is asked, and none writes its reason
   before they are. */
static int32_t who_refuses(const pp_device_vault_t *vault)
{
    for (int32_t rank = 0; rank < vault->board.ranks; rank++)
        if (atomic_load(&offer_of(vault, rank)->state) & REFUSES)
            return rank;
    return -1;
}

static void change_over(pp_handle_t *handle, pp_device_vault_t *vault)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_staging_t   *staging = handle->staging;
    pp_board_t     *board = coll->ops->board(coll);
    vault->memory = vault->users = kind;
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
    pp_staging_set_receive(coll, vault->receive);
    vault->receive = NULL;
    vault->in_use = true;
}


static pp_status_t meet_others(pp_handle_t *handle, pp_device_vault_t *vault)
{
    int32_t refuses;
    if (vault->stage == OFFERED && all_at(vault, OFFERED))
        say(vault, OPENED, who_refuses(vault) < 0 ? open_others(handle, vault) : PP_OK);
    if (vault->stage == OPENED && all_at(vault, OPENED)) {
        if ((refuses = who_refuses(vault)) < 0) {
            change_over(handle, vault);
        } else {
            snprintf(vault->why, sizeof vault->why, "rank %d: %s", refuses, offer_of(vault, refuses)->why);
            close_others(vault);
        }
        say(vault, SETTLED, PP_OK);
    }
    /* No rank makes a round, or frees memory, before all have changed over, or closed that of others. */
    return vault->stage == SETTLED && all_at(vault, SETTLED) ? PP_OK : PP_PENDING;
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
                                           : offer(handle, vault, offer_of(vault, vault->board.node->index));
        vault->why[0] = 0;
        say(vault, OFFERED, status);
        vault->meets = true;
        vault->ctx->flights++;       /* threads look often */
    }
    if (meet_others(handle, vault) == PP_PENDING)
        return PP_PENDING;
    vault->meets = false;
    vault->ctx->flights--;
    if (!vault->in_use)
        free_own(vault);
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
    handle->offer_bytes = sizeof(offer_t);
    return PP_OK;
}

bool pp_vault_meets(const pp_handle_t *handle)
{
    const pp_device_vault_t *vault = handle->staging->vault;
    return vault && vault->meets && all_at(vault, vault->stage);
}

bool pp_vault_in_use(const pp_handle_t *handle, const char **why)
{
    const pp_device_vault_t *vault = handle->staging->vault;
    *why = vault ? vault->why : "";
    return vault && vault->in_use;
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
    if (!frees || !vault->in_use) {              /* the driver takes all back from a process that ends */
        free(vault);
        return;
    }
    pp_pool_release(&pp_allreduce_of(handle)->series.vectors);
    close_others(vault);
    say(vault, CLOSED, PP_OK);
    vault->next = vault->ctx->vaults;
    vault->ctx->vaults = vault;
    pp_vaults_free(vault->ctx);
}

void pp_vaults_free(pp_ctx_t *ctx)
{
    for (pp_device_vault_t *vault, **link = &ctx->vaults; (vault = *link);) {
        if (!all_at(vault, CLOSED)) {
            link = &vault->next;
            continue;
        }
        *link = vault->next;
        free_own(vault);
        pp_board_end(&vault->board);
        free(vault);
    }
}

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
