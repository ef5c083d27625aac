/*
 * pool.h - buffers of one size, allocated when first needed and kept until the pool is released.
 * The last buffer put back is given out first, because it is warm.
 */
#ifndef PP_POOL_H
#define PP_POOL_H

#include "../reduce/memory.h"

typedef struct pp_buffer {
    struct pp_buffer *next;     /* free list */
    void             *data;     /* 64-byte aligned */
    pp_block_t       *block;    /* the block that it was cut out of; NULL: it has memory of its own */
} pp_buffer_t;

typedef struct pp_pool {
    pp_buffer_t *free_list;
    size_t       bytes;         /* of a buffer */
    size_t       made;          /* buffers alive */
    size_t       given;         /* of those, the ones that have not been put back */
    pp_blocks_t *blocks;        /* blocks of the host's memory to cut buffers out of; NULL: each is allocated alone */
    const pp_memory_t *memory;  /* the kind of memory */
} pp_pool_t;

/* What pools hold. */
typedef struct pp_held {
    uint64_t bytes;
    uint64_t used_bytes;        /* of buffers that have not been put back */
} pp_held_t;

void         pp_pool_init(pp_pool_t *pool, size_t bytes, const pp_memory_t *memory, pp_blocks_t *blocks);
pp_status_t  pp_pool_make(pp_pool_t *pool, pp_buffer_t **buffer);
/* An error leaves *buffer NULL. */
static inline pp_status_t pp_pool_get(pp_pool_t *pool, pp_buffer_t **buffer)
{
    pp_buffer_t *last = pool->free_list;
    if (!last)
        return pp_pool_make(pool, buffer);
    pool->free_list = last->next;
    pool->given++;
    *buffer = last;
    return PP_OK;
}
void         pp_pool_put(pp_pool_t *pool, pp_buffer_t *buffer);   /* NULL is fine */
void         pp_pool_count(const pp_pool_t *pool, pp_held_t *sum);      /* adds what it holds */
/* Every buffer must have been put back. */
void         pp_pool_release(pp_pool_t *pool);

#endif
