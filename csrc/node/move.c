/* move.c - see move.h. */
#include "move.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    BLOCK_BYTES = 8192,              /* reduced in the first cache before it goes to the targets */
    LINE = 64,
    STREAM_BYTES = 24 << 20,         /* of all vectors together: more than the caches hold */
    COPY_STREAM_BYTES = 32 << 20     /* ... with those that are copied from and to */
};

/* Past the caches, which what is written would only push other data out of. */
static void stream(char *to, const char *from, size_t bytes)
{
#if defined(__SSE2__)
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    if (head < bytes) {
        memcpy(to, from, head);
        to += head;
        from += head;
        bytes -= head;
        for (size_t lines = bytes / LINE; lines > 0; lines--, to += LINE, from += LINE)
            for (int part = 0; part < LINE / 16; part++)
                _mm_stream_si128((__m128i *)to + part, _mm_loadu_si128((const __m128i *)from + part));
        bytes %= LINE;
    }
#endif
    memcpy(to, from, bytes);
}

static void fence_streams(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

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
        kernels->into(sum, left, vector_at(board, merged++, first, element), count);
    else
        memcpy(sum, left, count * element);
    for (uint32_t i = merged; i < plan->source_count; i++)
        kernels->keep_left(sum, vector_at(board, i, first, element), count);
    if (plan->divide_by > 1)
        kernels->divide(sum, count, plan->divide_by);
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
            if (past)
                stream(to, block, part * element);
            else
                memcpy(to, block, part * element);
        }
        if (pieces)
            pp_move_out(board, kernels, pieces, first, block, part);
    }
    if (past)
        fence_streams();
}

void pp_move_copy(const pp_board_t *board, void *to, const void *from, size_t bytes)
{
    /* A rank's send and receive buffers and its part, and the result. */
    if ((3 * (uint64_t)board->ranks + 1) * board->vector_bytes <= COPY_STREAM_BYTES) {
        memcpy(to, from, bytes);
        return;
    }
    stream(to, from, bytes);
    fence_streams();
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
        if (kernels->store)
            kernels->store(to, next, part);
        else
            pp_move_copy(board, to, next, part * kernels->element_bytes);
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
