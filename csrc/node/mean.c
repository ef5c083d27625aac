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

static void sum_equal(const pp_node_t *node, const pp_kernels_t *kernels, const pp_mean_t *mean, size_t first,
                      size_t count, void *sum)
{
    const size_t       element = kernels->element_bytes;
    const pp_memory_t *memory = kernels->memory;
    const void        *left = vector_at(node, mean->vectors[0], first, element);
    int32_t            merged = 1;
    if (kernels->into && mean->count > 1)
        memory->into(kernels, sum, left, vector_at(node, mean->vectors[merged++], first, element), count);
    else
        memory->copy(memory, sum, left, count * element);
    for (int32_t i = merged; i < mean->count; i++)
        memory->keep_left(kernels, sum, vector_at(node, mean->vectors[i], first, element), count);
    if (mean->count > 1)
        memory->divide(kernels, sum, count, (uint64_t)mean->count);
}

void pp_mean(const pp_node_t *node, const pp_kernels_t *kernels, const pp_mean_t *mean, size_t first,
                size_t count)
{
    _Alignas(LINE) char block[BLOCK_BYTES];
    const size_t        element = kernels->element_bytes, most = BLOCK_BYTES / element;
    for (size_t part; count > 0; count -= part, first += part) {
        part = count < most ? count : most;
        (mean->weights ? sum_weighted : sum_equal)(node, kernels, mean, first, part, block);
        /* Through the caches, however large the vectors are: the block has just been read from where it goes. */
        for (int32_t i = 0; i < mean->count; i++)
            kernels->memory->copy(kernels->memory, vector_at(node, mean->vectors[i], first, element), block, part * element);
    }
}
