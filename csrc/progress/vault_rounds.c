/* vault_rounds.c - a vault of a partial allreduce: the parts of stations, and the results of the ring.  See vault.h. */
#include "vault_parts.h"

#include <stdlib.h>

enum { PARTS = 3 };                  /* of a station: one that is read, one that is pending, one on its way */

typedef struct round_vault {
    pp_device_vault_t base;
    pp_device_kind_t memory;         /* of vectors */
    pp_memory_t  users;              /* of bounce buffers */
    pp_device_marks_t marks;
    bool         reads;              /* what is queued holds entries of the ring: counts among ctx->flights */
    pp_vault_t   places;
    pp_board_t   board;              /* to be ended with the vault */
    CUdeviceptr *sources;            /* of a fold */
} round_vault_t;

static round_vault_t *of_rounds(pp_device_vault_t *vault) { return (round_vault_t *)vault; }

/* The vault's kind of memory. */
static round_vault_t *rounds_of(const pp_memory_t *memory)
{
    return (round_vault_t *)((char *)(uintptr_t)memory - offsetof(round_vault_t, memory));
}

static pp_device_vault_t *base_of(const pp_memory_t *memory) { return &rounds_of(memory)->base; }
static CUdeviceptr at(const void *elements) { return pp_cuda_address(elements); }

/* ---- folds: operations that go on when they return -------------------------------------------------------------- */

/* A stream of its own: it waits for nothing of the application's, as the contributions are there.  Without a progress
   thread nobody here might look when this rank computes, so it waits. */
static pp_status_t begin_fold(const pp_kernels_t *kernels, void *out, const uint64_t *vectors, uint32_t vector_count,
                              size_t count, uint64_t divide_by)
{
    round_vault_t     *rounds = rounds_of(kernels->memory);
    pp_device_vault_t *vault = &rounds->base;
    for (uint32_t i = 0; i < vector_count; i++)
        rounds->sources[i] = vectors[i];
    PP_TRY(pp_folds_fold(vault->folds, at(out), rounds->sources, vector_count, count, divide_by, vault->folding));
    vault->ctx->device_rounds++;
    if (vault->ctx->has_thread) {
        PP_TRY(pp_vault_folding(vault));
        return PP_PENDING;
    }
    PP_TRY(pp_cuda_enter(&vault->device));
    return pp_cuda_leave(&vault->device, PP_VAULT_CALL(vault, cuStreamSynchronize, vault->folding));
}

static pp_status_t fold_over(const pp_kernels_t *kernels) { return pp_vault_folded(base_of(kernels->memory)); }

/* ---- operations that the rounds ask for --------------------------------------------------------------------------- */

/* The rounds ask for the oldest mark first, and no further than to one that is not reached. */
static pp_status_t count_reads(round_vault_t *rounds, pp_status_t status)
{
    const bool reads = status == PP_PENDING;
    if (reads != rounds->reads)
        rounds->base.ctx->flights += reads ? 1 : -1;
    rounds->reads = reads;
    return status;
}

static pp_status_t mark(const pp_memory_t *self, uint64_t *mark)
{
    return count_reads(rounds_of(self), pp_device_queued_operations.mark(self, mark));
}

static pp_status_t reached(const pp_memory_t *self, uint64_t mark)
{
    return count_reads(rounds_of(self), pp_device_queued_operations.reached(self, mark));
}

/* Without marks operations are over when they return; but one may have failed. */
static pp_status_t mark_nothing(const pp_memory_t *self, uint64_t *mark)
{
    *mark = 0;
    return pp_device_failed(rounds_of(self)->memory.failure);
}

/* The vault keeps the kernels and the stream.  Without a progress thread nobody here might look when what is queued is over,
   and rounds that wait for that would stand still: so nothing is queued only. */
static void make_kind(round_vault_t *rounds)
{
    pp_device_vault_t *vault = &rounds->base;
    pp_device_kind_t  *kind = &rounds->memory;
    *kind = (pp_device_kind_t){.memory = pp_device_operations, .pool = vault->pool, .device = vault->device,
                               .folds = vault->folds, .stream = vault->work, .failure = &vault->failure};
    kind->memory.mark = mark_nothing;
    kind->memory.finish = pp_device_finish;
    if (vault->ctx->has_thread) {
        kind->marks = &rounds->marks;
        kind->memory.mark = mark;
        kind->memory.reached = reached;
    }
    kind->memory.begin_fold = begin_fold;
    kind->memory.fold_over = fold_over;
}

pp_status_t pp_vault_send(pp_ctx_t *ctx, pp_handle_t *handle, pp_pinned_t *bounce)
{
    const char *why;
    pp_device_vault_t *vault = handle->staging->vault;
    if (!pp_vault_in_use(handle, &why) || !of_rounds(vault)->memory.marks)
        return PP_OK;
    return pp_staging_follow(ctx, handle, bounce, vault->work);
}

/* ---- places --------------------------------------------------------------------------------------------------- */

static size_t results_of(const pp_board_t *board, int32_t rank)
{
    return (size_t)((board->entries - rank + board->ranks - 1) / board->ranks);
}

static size_t vectors(const pp_device_vault_t *vault, int32_t rank)
{
    return PARTS + results_of(&((const round_vault_t *)vault)->board, rank);
}

static void place(round_vault_t *rounds)
{
    const pp_device_vault_t *vault = &rounds->base;
    const pp_board_t        *board = &rounds->board;
    rounds->places.parts = PARTS;
    for (int32_t rank = 0; rank < board->ranks; rank++) {
        for (int32_t part = 0; part < PARTS; part++)
            rounds->places.slots[rank * PP_PARTS + part] = pp_vault_pointer(pp_vault_vector(vault, rank, (size_t)part));
    }
    for (int32_t entry = 0; entry < board->entries; entry++) {
        const size_t number = PARTS + (size_t)(entry / board->ranks);
        rounds->places.results[entry] = pp_vault_pointer(pp_vault_vector(vault, entry % board->ranks, number));
    }
}

/* ---- the ranks meet ------------------------------------------------------------------------------------------- */

static const char *find(pp_handle_t *handle, pp_device_vault_t *vault)
{
    const pp_allreduce_t *coll = pp_allreduce_of(handle);
    if (!coll->ops->board)
        return "the rounds are made of messages, not in memory that all ranks share";
    pp_board_t *board = &of_rounds(vault)->board;
    *board = *coll->ops->board((pp_allreduce_t *)coll);
    vault->node = board->node;
    vault->ranks = board->ranks;
    vault->offers = pp_board_offer(board, 0);
    vault->vector_bytes = board->vector_bytes;
    vault->op = coll->config.op;
    vault->type = coll->config.type;
    vault->count = coll->count;
    return NULL;
}

static pp_status_t make(pp_device_vault_t *vault)
{
    round_vault_t    *rounds = of_rounds(vault);
    const pp_board_t *board = &rounds->board;
    rounds->places.slots = calloc((size_t)board->ranks * PP_PARTS, sizeof(void *));
    rounds->places.results = calloc((size_t)board->entries, sizeof(void *));
    rounds->sources = calloc((size_t)board->ranks * PP_PARTS, sizeof *rounds->sources);
    if (!rounds->places.slots || !rounds->places.results || !rounds->sources)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    return PP_OK;
}

static pp_status_t fill(pp_device_vault_t *vault)
{
    pp_staging_t *staging = vault->staging;
    pp_lane_t     lane = staging->lane;
    PP_TRY(pp_in_place_pin(staging));
    pp_lane_stay(&lane, vault->folds, 0, 0);
    return pp_lane_pin(&lane, staging->bytes, &vault->receive);
}

static void change_over(pp_handle_t *handle, pp_device_vault_t *vault)
{
    round_vault_t  *rounds = of_rounds(vault);
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_staging_t   *staging = handle->staging;
    pp_board_t     *board = coll->ops->board(coll);
    make_kind(rounds);
    rounds->users = pp_device_operations;
    place(rounds);
    board->vault = &rounds->places;
    board->lent = true;
    rounds->board = *board;
    pp_in_place_begin(handle);
    coll->series.kernels.memory = coll->series.vectors.memory = &rounds->memory.memory;
    coll->series.kernels.users = &rounds->users;     /* another kind: elements are always loaded and stored */
    pp_staging_keep(&staging->spare, staging->receive);
    pp_staging_unpin_spare(staging);
    pp_lane_stay(&staging->lane, vault->folds, coll->series.kernels.user_bytes, coll->series.kernels.element_bytes);
    pp_in_place_set_receive(coll, vault->receive);
    vault->receive = NULL;
}

static void leave(pp_handle_t *handle, pp_device_vault_t *vault, bool frees)
{
    pp_pool_t        *vectors = &pp_allreduce_of(handle)->series.vectors;
    pp_device_kind_t *kind = &of_rounds(vault)->memory;
    count_reads(of_rounds(vault), PP_OK);
    if (!frees) {
        vectors->free_list = NULL;   /* the driver takes all back from a process that ends */
        return;
    }
    pp_pool_release(vectors);
    if (kind->marks && pp_cuda_enter(&vault->device) >= 0) {
        pp_device_end_marks(kind);
        pp_cuda_leave(&vault->device, PP_OK);
    }
}

static void unmake(pp_device_vault_t *vault)
{
    round_vault_t *rounds = of_rounds(vault);
    free(rounds->places.slots);
    free(rounds->places.results);
    free(rounds->sources);
}

static void end(pp_device_vault_t *vault) { pp_board_end(&of_rounds(vault)->board); }

const pp_vault_use_t pp_vault_of_rounds = {
    .bytes = sizeof(round_vault_t), .find = find, .vectors = vectors, .make = make, .fill = fill,
    .change_over = change_over, .leave = leave, .unmake = unmake, .end = end,
};
