/* mean.c - models into the ring, and averages out of it.  See queue.h. */
#include "queue.h"

enum {
    BLOCK_BYTES = 8192,              /* a block is summed up in the first cache before it goes to the buffers */
    LINE = 64
};

/* ---- into the ring ----------------------------------------------------------------------------------------- */

pp_status_t pp_queue_commit(pp_queue_t *q)
{
    const pp_node_t *node = q->handle.engine->node;
    if (!q->models || q->committed)
        return PP_OK;
    char *mine = pp_queue_model(q, q->handle.engine->rank, 0);
    const uint64_t offset = q->region + (uint64_t)(mine - (char *)pp_node_at(node, q->region));
    const size_t   bytes = (size_t)(q->ring + 1) * q->stride;
    if (!pp_node_commit((pp_node_t *)node, offset, bytes))
        pp_engine_fail(q->handle.engine, PP_ERR_MEMORY, "no shared memory for %zu bytes of models", bytes);
    q->committed = true;
    return pp_engine_check(q->handle.engine);
}

static void load(const pp_queue_t *q, char *at)
{
    const pp_kernels_t *kernels = &q->kernels;
    for (size_t i = 0; i < q->config.piece_count; i++) {
        const pp_piece_t *piece = &q->config.pieces[i];
        kernels->users->load(kernels, at, piece->recv, piece->count);
        at += piece->count * kernels->element_bytes;
    }
}

void pp_queue_load(const pp_queue_t *q, int64_t iteration)
{
    const int32_t    me = q->handle.engine->rank;
    const int64_t    slot = pp_queue_slot(q, iteration);
    _Atomic int64_t *tag = pp_queue_tag(q, me, slot);
    if (!q->models)
        return;
    PP_STEP("overwrite");
    atomic_store(tag, -1);
    atomic_thread_fence(memory_order_seq_cst);   /* before the elements are */
    PP_STEP("overwrite");
    load(q, pp_queue_model(q, me, slot));
    PP_STEP("overwrite");
    atomic_store(tag, iteration);
}

void pp_queue_load_last(const pp_queue_t *q)
{
    if (q->models)
        load(q, pp_queue_model(q, q->handle.engine->rank, q->ring));
}

/* ---- out of it --------------------------------------------------------------------------------------------- */

typedef struct operands {
    int32_t count;
    const char *(*at)(const pp_queue_t *, int32_t operand, double *weight);
} operands_t;

/* The weighted sum, from left to right, of a few elements of the operands, into the piece. */
static void sum_block(const pp_queue_t *q, const operands_t *operands, size_t first, size_t count, void *out)
{
    _Alignas(LINE) char block[BLOCK_BYTES];
    const pp_kernels_t *kernels = &q->kernels;
    bool                any = false;
    for (int32_t i = 0; i < operands->count; i++) {
        double      weight;
        const char *from = operands->at(q, i, &weight);
        if (!from || weight == 0)
            continue;
        PP_STEP("take");
        (any ? kernels->memory->add : kernels->memory->scale)(kernels, block, from + first * kernels->element_bytes,
                                                              count, weight);
        any = true;
    }
    kernels->users->store(kernels, out, block, count);
}

static void sum(const pp_queue_t *q, const operands_t *operands)
{
    const pp_kernels_t *kernels = &q->kernels;
    const size_t        most = BLOCK_BYTES / kernels->element_bytes;
    size_t              first = 0;
    for (size_t i = 0; i < q->config.piece_count; i++) {
        const pp_piece_t *piece = &q->config.pieces[i];
        for (size_t at = 0, count; at < piece->count; at += count) {
            count = piece->count - at < most ? piece->count - at : most;
            sum_block(q, operands, first + at, count, (char *)piece->recv + at * kernels->user_bytes);
        }
        first += piece->count;
    }
}

static const char *part_model(const pp_queue_t *q, const pp_queues_part_t *part)
{
    return pp_queue_model(q, q->config.ins[part->neighbour], pp_queue_slot(q, part->iteration));
}

/* This rank's own model, and the parts. */
static const char *operand_of_mean(const pp_queue_t *q, int32_t operand, double *weight)
{
    const pp_queues_part_t *part = &q->due.parts[operand - 1];
    *weight = operand == 0 ? q->due.own : part->weight;
    return operand == 0 ? pp_queue_model(q, q->handle.engine->rank, pp_queue_slot(q, q->iteration))
                        : part_model(q, part);
}

static const char *own_model(const pp_queue_t *q, int32_t operand, double *weight)
{
    *weight = 1;
    return operand_of_mean(q, operand, &(double){0});
}

static int32_t find_gone(const pp_queue_t *q)
{
    for (int32_t i = 0; i < q->due.count; i++) {
        const pp_queues_part_t *part = &q->due.parts[i];
        const int32_t           rank = q->config.ins[part->neighbour];
        PP_STEP("take");
        if (atomic_load(pp_queue_tag(q, rank, pp_queue_slot(q, part->iteration))) != part->iteration
            && !pp_engine_has(q->handle.engine, PP_PLANT_UNCHECKED_TAG))
            return i;
    }
    return -1;
}

int32_t pp_queue_average(const pp_queue_t *q)
{
    int32_t gone = find_gone(q);
    if (gone >= 0)
        return gone;
    sum(q, &(operands_t){.count = q->due.count + 1, .at = operand_of_mean});
    atomic_thread_fence(memory_order_seq_cst);   /* after the elements */
    gone = find_gone(q);
    if (gone >= 0)
        sum(q, &(operands_t){.count = 1, .at = own_model});
    return gone;
}

/* A rank that is out has no model. */
static const char *operand_of_all(const pp_queue_t *q, int32_t rank, double *weight)
{
    int32_t members = 0;
    for (int32_t other = 0; other < q->handle.engine->size; other++)
        members += atomic_load(&q->stations[other].call) != 0;
    *weight = 1.0 / members;
    return atomic_load(&q->stations[rank].call) ? pp_queue_model(q, rank, atomic_load(&q->stations[rank].model)) : NULL;
}

void pp_queue_average_all(const pp_queue_t *q)
{
    sum(q, &(operands_t){.count = q->handle.engine->size, .at = operand_of_all});
}
