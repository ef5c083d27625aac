/* move.c - see move.h. */
#include "move.h"

enum {
    BLOCK_BYTES = 8192,              /* a block is reduced in the first cache before it goes to the targets */
    LINE = 64,
    STREAM_BYTES = 24 << 20,         /* all vectors together: above this they do not fit the caches */
    COPY_STREAM_BYTES = 32 << 20     /* the same, with the buffers that are copied from and to */
};

static char *vector_at(const pp_board_t *board, uint32_t index, size_t first, size_t element_bytes)
{
    return (char *)pp_node_at(board->node, board->plan->offsets[index]) + first * element_bytes;
}

static void reduce_block(const pp_board_t *board, const pp_kernels_t *kernels, size_t first, size_t count,
                         void *sum)
{
    const pp_plan_t *plan = board->plan;
    size_t element = kernels->element_bytes;
    const char *left = vector_at(board, 0, first, element);
    uint32_t merged = 1;
    if (kernels->into && plan->source_count > 1)
        kernels->memory->into(kernels, sum, left, vector_at(board, merged++, first, element), count);
    else
        kernels->memory->copy(kernels->memory, sum, left, count * element);
    for (uint32_t i = merged; i < plan->source_count; i++)
        kernels->memory->keep_left(kernels, sum, vector_at(board, i, first, element), count);
    if (plan->divide_by > 1)
        kernels->memory->divide(kernels, sum, count, plan->divide_by);
}

void pp_move(const pp_board_t *board, const pp_kernels_t *kernels, const pp_piece_t *pieces, size_t first,
             size_t count)
{
    _Alignas(LINE) char block[BLOCK_BYTES];
    const pp_plan_t *plan = board->plan;
    size_t element = kernels->element_bytes, most = BLOCK_BYTES / element;
    bool past = (plan->source_count + plan->target_count) * (uint64_t)board->vector_bytes > STREAM_BYTES;
    for (size_t part; count > 0; count -= part, first += part) {
        part = count < most ? count : most;
        reduce_block(board, kernels, first, part, block);
        for (uint32_t t = 0; t < plan->target_count; t++) {
            char *to = vector_at(board, plan->source_count + t, first, element);
            (past ? kernels->memory->copy_past : kernels->memory->copy)(kernels->memory, to, block, part * element);
        }
        if (pieces)
            pp_move_out(board, kernels, pieces, first, block, part);
    }
    if (past)
        kernels->memory->settle();
}

void pp_move_copy(const pp_board_t *board, const pp_memory_t *memory, void *to, const void *from, size_t bytes)
{
    /* Of each rank the send and receive buffers and a part; and the result. */
    if ((3 * (uint64_t)board->ranks + 1) * board->vector_bytes <= COPY_STREAM_BYTES) {
        memory->copy(memory, to, from, bytes);
        return;
    }
    memory->copy_past(memory, to, from, bytes);
    memory->settle();
}

void pp_move_out(const pp_board_t *board, const pp_kernels_t *kernels, const pp_piece_t *pieces, size_t first,
                 const void *from, size_t count)
{
    const char *next = from;
    for (const pp_piece_t *piece = pieces; count > 0; piece++) {
        if (first >= piece->count) {
            first -= piece->count;
            continue;
        }
        size_t part = piece->count - first < count ? piece->count - first : count;
        char  *to = (char *)piece->recv + first * kernels->user_bytes;
        if (pp_users_are_vectors(kernels))
            pp_move_copy(board, kernels->memory, to, next, part * kernels->element_bytes);
        else
            kernels->users->store(kernels, to, next, part);
        next += part * kernels->element_bytes;
        count -= part;
        first = 0;
    }
}

void pp_move_chunk(const pp_board_t *board, const pp_kernels_t *kernels, const pp_piece_t *pieces, uint32_t chunk)
{
    const pp_plan_t *plan = board->plan;
    size_t elements = board->vector_bytes / kernels->element_bytes;
    size_t each = plan->chunk_bytes / kernels->element_bytes, first = chunk * each;
    pp_move(board, kernels, pieces, first, elements - first < each ? elements - first : each);
}
