/* mean.c - models out of the application's buffers, and averages into them.  See queue.h. */
#include "queue.h"

enum {
    BLOCK_BYTES = 8192,              /* a block is summed up in the first cache before it goes to the buffers */
    LINE = 64
};

void pp_queue_load(const pp_queue_t *q, char *model)
{
    const pp_kernels_t *kernels = &q->kernels;
    for (size_t i = 0; i < q->config.piece_count; i++) {
        const pp_piece_t *piece = &q->config.pieces[i];
        kernels->users->load(kernels, model, piece->recv, piece->count);
        model += piece->count * kernels->element_bytes;
    }
}

/* ---- averages ------------------------------------------------------------------------------------------------ */

typedef struct sum {
    const pp_queue_t  *q;
    int32_t            count;
    pp_queue_operand_t operand;
} sum_t;

/* A few elements of the sum, into a piece. */
static void sum_block(const sum_t *sum, size_t first, size_t count, void *out)
{
    _Alignas(LINE) char block[BLOCK_BYTES];
    const pp_kernels_t *kernels = &sum->q->kernels;
    bool                any = false;
    for (int32_t i = 0; i < sum->count; i++) {
        double      weight;
        const char *from = sum->operand(sum->q, i, &weight);
        if (!from || weight == 0)
            continue;
        PP_STEP("take");
        (any ? kernels->memory->add : kernels->memory->scale)(kernels, block, from + first * kernels->element_bytes,
                                                              count, weight);
        any = true;
    }
    kernels->users->store(kernels, out, block, count);
}

void pp_queue_sum(const pp_queue_t *q, int32_t operands, pp_queue_operand_t operand)
{
    const pp_kernels_t *kernels = &q->kernels;
    const sum_t         sum = {.q = q, .count = operands, .operand = operand};
    const size_t        most = BLOCK_BYTES / kernels->element_bytes;
    size_t              first = 0;
    for (size_t i = 0; i < q->config.piece_count; i++) {
        const pp_piece_t *piece = &q->config.pieces[i];
        for (size_t at = 0, count; at < piece->count; at += count) {
            count = piece->count - at < most ? piece->count - at : most;
            sum_block(&sum, first + at, count, (char *)piece->recv + at * kernels->user_bytes);
        }
        first += piece->count;
    }
}

/* This rank's own model, and the parts. */
static const char *operand_of_mean(const pp_queue_t *q, int32_t operand, double *weight)
{
    const pp_queues_part_t *part = &q->due.parts[operand - 1];
    *weight = operand == 0 ? q->due.own : part->weight;
    return operand == 0 ? q->way->model(q, PP_QUEUE_OWN, q->iteration)
                        : q->way->model(q, part->neighbour, part->iteration);
}

static const char *own_model(const pp_queue_t *q, int32_t operand, double *weight)
{
    (void)operand;
    *weight = 1;
    return q->way->model(q, PP_QUEUE_OWN, q->iteration);
}

int32_t pp_queue_average(const pp_queue_t *q)
{
    int32_t gone = q->way->find_gone(q);
    if (gone >= 0)
        return gone;
    pp_queue_sum(q, q->due.count + 1, operand_of_mean);
    gone = q->way->find_gone(q);
    if (gone >= 0)
        pp_queue_sum(q, 1, own_model);
    return gone;
}
