/* mean.c - see mean.h. */
#include "mean.h"

enum {
    BLOCK_BYTES = 8192,              /* a block is summed up in the first cache before it goes to the vectors */
    LINE = 64
};

static void *vector_at(const pp_node_t *node, uint64_t offset, size_t first, size_t element_bytes)
{
    return (char *)pp_node_at(node, offset) + first * element_bytes;
}

static void sum_weighted(const pp_node_t *node, const pp_kernels_t *kernels, const pp_mean_t *mean, size_t first,
                         size_t count, void *sum)
{
    const size_t       element = kernels->element_bytes;
    const pp_memory_t *memory = kernels->memory;
    memory->scale(kernels, sum, vector_at(node, mean->vectors[0], first, element), count, mean->weights[0]);
    if (mean->initial_weight > 0)
        memory->add(kernels, sum, vector_at(node, mean->initial, first, element), count, mean->initial_weight);
    for (int32_t i = 1; i < mean->count; i++)
        memory->add(kernels, sum, vector_at(node, mean->vectors[i], first, element), count, mean->weights[i]);
}

static void add(const pp_kernels_t *kernels, void *sum, const void *left, const void *right, size_t count)
{
    const pp_memory_t *memory = kernels->memory;
    if (kernels->into) {
        memory->into(kernels, sum, left, right, count);
        return;
    }
    memory->copy(memory, sum, left, count * kernels->element_bytes);
    memory->keep_left(kernels, sum, right, count);
}

/* What a member gives: its vector; or in `scratch`, if something is added to it. */
static const void *part(const pp_node_t *node, const pp_kernels_t *kernels, const pp_mean_t *mean, int32_t member,
                        size_t first, size_t count, void *scratch)
{
    const void *vector = vector_at(node, mean->vectors[member], first, kernels->element_bytes);
    if (!mean->adds || !mean->adds[member])
        return vector;
    add(kernels, scratch, vector, vector_at(node, mean->adds[member], first, kernels->element_bytes), count);
    return scratch;
}

static void sum_equal(const pp_node_t *node, const pp_kernels_t *kernels, const pp_mean_t *mean, size_t first,
                      size_t count, void *sum)
{
    _Alignas(LINE) char scratch[BLOCK_BYTES];
    const pp_memory_t  *memory = kernels->memory;
    const void         *left = part(node, kernels, mean, 0, first, count, sum);
    int32_t             merged = 1;
    if (left != sum && mean->count > 1)
        add(kernels, sum, left, part(node, kernels, mean, merged++, first, count, scratch), count);
    else if (left != sum)
        memory->copy(memory, sum, left, count * kernels->element_bytes);
    for (int32_t i = merged; i < mean->count; i++)
        memory->keep_left(kernels, sum, part(node, kernels, mean, i, first, count, scratch), count);
    if (mean->count > 1)
        memory->divide(kernels, sum, count, (uint64_t)mean->count);
}

static void put(const pp_node_t *node, const pp_kernels_t *kernels, uint64_t offset, size_t first, size_t count,
                const void *block)
{
    kernels->memory->copy(kernels->memory, vector_at(node, offset, first, kernels->element_bytes), block,
                          count * kernels->element_bytes);
}

void pp_mean(const pp_node_t *node, const pp_kernels_t *kernels, const pp_mean_t *mean, size_t first,
                size_t count)
{
    _Alignas(LINE) char block[BLOCK_BYTES];
    const size_t        element = kernels->element_bytes, most = BLOCK_BYTES / element;
    for (size_t here; count > 0; count -= here, first += here) {
        here = count < most ? count : most;
        (mean->weights ? sum_weighted : sum_equal)(node, kernels, mean, first, here, block);
        /* Through the caches, however large the vectors are: the block has just been read from where it goes. */
        for (int32_t i = 0; i < mean->count; i++) {
            put(node, kernels, mean->vectors[i], first, here, block);
            if (mean->results && mean->results[i])
                put(node, kernels, mean->results[i], first, here, block);
        }
    }
}
