/*
 * pool.h - what a context has of a device, for its handles: memory, streams, mappings and kernels.
 *
 * Before the driver takes memory back, closes a mapping or unloads kernels it may wait for all that is queued on the
 * device, which may wait for other ranks; and it may let no other call begin meanwhile.  So a handle that is freed gives
 * nothing back.  What it had goes to the pool, by no call of the driver, and later handles get it from there.  The driver
 * gets all of it when the context ends.
 *
 * Sizes are rounded up to 5, 6, 7 or 8 times a power of two, so that handles of about one size use the same memory.  At
 * most a fifth of it is not needed; with powers of two it were a half.
 *
 * What was queued on a stream of the pool may still use memory of a freed handle.  Streams stay as long as the pool: it
 * asks them, and gives such memory to no one before that is over.
 *
 * Any thread may call these functions.
 */
#ifndef PP_CUDA_POOL_H
#define PP_CUDA_POOL_H

#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>

/* Pinned memory of the host, for all contexts of the driver; memory of the device; such that other processes map, until
   the context ends; a stream of the library (pp_cuda_make_stream()). */
typedef enum pp_cuda_item { PP_CUDA_PINNED, PP_CUDA_MEMORY, PP_CUDA_SHARED, PP_CUDA_STREAM, PP_CUDA_MAPPING } pp_cuda_item_t;

/* Memory of others that a handle has registered. */
typedef struct pp_registered {
    struct pp_registered *next;
    void  *memory;
    size_t bytes;
} pp_registered_t;

typedef struct pp_cuda_pool {
    struct pp_cuda_pool  *next;      /* of the context's, one for each device */
    int32_t               number;
    pp_cuda_device_t      device;    /* open as long as the pool */
    pthread_mutex_t       lock;      /* of what follows; no call that may wait is made with it */
    struct pp_cuda_block *blocks;
    pp_registered_t      *left;
    bool                  has_kernels;
} pp_cuda_pool_t;

/* The pools of a context.  Zeroed: none. */
typedef struct pp_cuda_pools {
    _Atomic(pp_cuda_pool_t *) first;
} pp_cuda_pools_t;

/* The context's pool of a device, which is opened for the first handle there: errors as of pp_cuda_device_open(). */
pp_status_t pp_cuda_pool_find(pp_cuda_pools_t *pools, int32_t number, pp_cuda_pool_t **pool);
/* Has the kernels of the device loaded (folds.h) as long as the pool. */
pp_status_t pp_cuda_pool_load(pp_cuda_pool_t *pool);

/* Gets an item, with so many bytes of memory.  If the driver has no memory it gets back what nothing uses.  In a
   scope of the device or outside. */
pp_status_t pp_cuda_pool_get(pp_cuda_pool_t *pool, pp_cuda_item_t kind, size_t bytes, CUdeviceptr *item);
/* Puts it back.  `behind`: what is queued so far on this stream of the pool may use it; NULL: nothing does. */
void        pp_cuda_pool_put(pp_cuda_pool_t *pool, pp_cuda_item_t kind, CUdeviceptr item, CUstream behind);
static inline pp_status_t pp_cuda_pool_get_stream(pp_cuda_pool_t *pool, CUstream *stream)
{
    CUdeviceptr       item = 0;
    const pp_status_t status = pp_cuda_pool_get(pool, PP_CUDA_STREAM, 0, &item);
    *stream = (CUstream)(uintptr_t)item;
    return status;
}
static inline void pp_cuda_pool_put_stream(pp_cuda_pool_t *pool, CUstream stream)
{
    pp_cuda_pool_put(pool, PP_CUDA_STREAM, (CUdeviceptr)(uintptr_t)stream, NULL);
}
/* Maps memory that another rank's pool shares; it stays mapped, and is found again by its handle. */
pp_status_t pp_cuda_pool_map(pp_cuda_pool_t *pool, const CUipcMemHandle *handle, CUdeviceptr *address);
/* A handle that ends leaves what it has registered.  Its owner must not use that again before pp_cuda_pools_tidy(). */
void        pp_cuda_pool_leave(pp_cuda_pool_t *pool, pp_registered_t *registered);

/* Gives back what was left so far.  The driver may wait for the device. */
void        pp_cuda_pools_tidy(const pp_cuda_pools_t *pools);
/* Bytes that no handle uses. */
uint64_t    pp_cuda_pools_bytes(const pp_cuda_pools_t *pools);

/* The context ends.  A thread gives all back, and is waited for two seconds at most; false: it takes longer, and goes on
   when the driver lets it.  If a handle still has something, all stays with the process.  `closed`, in memory that the
   `ranks` of the node share: how many of them have closed what they had mapped.  Memory that others map is given back when
   all have, within that time; else it stays with the process. */
bool        pp_cuda_pools_end(pp_cuda_pools_t *pools, _Atomic uint32_t *closed, uint32_t ranks);

#endif
