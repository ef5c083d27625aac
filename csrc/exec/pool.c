/* pool.c - see pool.h */
#include "pool.h"

#include <stdlib.h>

void pp_pool_init(pp_pool_t *pool, size_t bytes, const pp_memory_t *memory, pp_blocks_t *blocks)
{
    *pool = (pp_pool_t){.bytes = bytes ? bytes : 1, .memory = memory, .blocks = blocks};
}

static pp_status_t allocate(pp_pool_t *pool, pp_buffer_t *buffer)
{
    if (!pool->blocks)
        return pool->memory->allocate(pool->memory, pool->bytes, &buffer->data);
    buffer->data = pp_blocks_cut(pool->blocks, pool->bytes, &buffer->block);
    return buffer->data ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for a vector of %zu bytes", pool->bytes);
}

pp_status_t pp_pool_make(pp_pool_t *pool, pp_buffer_t **out)
{
    *out = NULL;
    pp_buffer_t *buffer = calloc(1, sizeof *buffer);
    if (!buffer)
        return pp_fail(PP_ERR_MEMORY, "no memory for a vector of %zu bytes", pool->bytes);
    const pp_status_t status = allocate(pool, buffer);
    if (status < 0) {
        free(buffer);
        return status;
    }
    pool->made++;
    pool->given++;
    *out = buffer;
    return PP_OK;
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
