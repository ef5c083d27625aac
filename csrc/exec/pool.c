/* pool.c - see pool.h */
#include "pool.h"

#include <stdlib.h>

void pp_pool_init(pp_pool_t *pool, size_t bytes, const pp_memory_t *memory, pp_blocks_t *blocks)
{
    *pool = (pp_pool_t){.bytes = bytes ? bytes : 1, .memory = memory, .blocks = blocks};
}

pp_buffer_t *pp_pool_get(pp_pool_t *pool)
{
    pp_buffer_t *buffer = pool->free_list;
    if (buffer) {
        pool->free_list = buffer->next;
        pool->given++;
        return buffer;
    }
    buffer = calloc(1, sizeof *buffer);
    if (!buffer)
        return NULL;
    buffer->data = pool->blocks ? pp_blocks_cut(pool->blocks, pool->bytes, &buffer->block)
                                : pool->memory->allocate(pool->memory, pool->bytes);
    if (!buffer->data) {
        free(buffer);
        return NULL;
    }
    pool->made++;
    pool->given++;
    return buffer;
}

void pp_pool_put(pp_pool_t *pool, pp_buffer_t *buffer)
{
    if (!buffer)
        return;
    buffer->next = pool->free_list;
    pool->free_list = buffer;
    pool->given--;
}

void pp_pool_count(const pp_pool_t *pool, pp_held_t *sum)
{
    sum->bytes += pool->made * pool->bytes;
    sum->used_bytes += pool->given * pool->bytes;
}

void pp_pool_release(pp_pool_t *pool)
{
    while (pool->free_list) {
        pp_buffer_t *buffer = pool->free_list;
        pool->free_list = buffer->next;
        if (buffer->block)
            pp_blocks_give_back(pool->blocks, buffer->block);
        else
            pool->memory->release(pool->memory, buffer->data);
        free(buffer);
        pool->made--;
    }
}
