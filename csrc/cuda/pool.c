/* pool.c - see pool.h. */
#define _GNU_SOURCE   /* pthread_setname_np */
#include "pool.h"
#include "folds.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct pp_cuda_block {
    struct pp_cuda_block *next;
    pp_cuda_item_t kind;
    bool           in_use;
    CUdeviceptr    item;
    size_t         bytes;
    CUstream       behind;           /* NULL: what was queued does not use it */
    CUipcMemHandle from;             /* of a mapping */
} block_t;

static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;

#define CALL(pool, name, ...) PP_CUDA((pool)->device.cuda, name, __VA_ARGS__)
#define FOR_EACH_POOL(pools, pool) for (pp_cuda_pool_t *pool = atomic_load(&(pools)->first); pool; pool = pool->next)

static CUstream stream_of(CUdeviceptr item) { return (CUstream)(uintptr_t)item; }
static void    *host_of(CUdeviceptr item) { return (void *)(uintptr_t)item; }
static bool     is_memory(const block_t *block) { return block->bytes > 0; }

/* ---- pools ---------------------------------------------------------------------------------------- */

static pp_status_t new_pool(int32_t number, pp_cuda_pool_t **out)
{
    pp_cuda_pool_t *pool = calloc(1, sizeof *pool);
    if (!pool)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    pool->number = number;
    pthread_mutex_init(&pool->lock, NULL);
    pp_status_t status = pp_cuda_device_open(number, &pool->device);
    if (status < 0)
        free(pool);
    else
        *out = pool;
    return status;
}

pp_status_t pp_cuda_pool_find(pp_cuda_pools_t *pools, int32_t number, pp_cuda_pool_t **out)
{
    pp_status_t status = PP_OK;
    *out = NULL;
    pthread_mutex_lock(&finding);
    FOR_EACH_POOL(pools, pool)
        if (pool->number == number)
            *out = pool;
    if (!*out && (status = new_pool(number, out)) >= 0) {
        (*out)->next = atomic_load(&pools->first);
        atomic_store(&pools->first, *out);
    }
    pthread_mutex_unlock(&finding);
    return status;
}

pp_status_t pp_cuda_pool_load(pp_cuda_pool_t *pool)
{
    PP_TRY(pp_folds_take(&pool->device));
    pthread_mutex_lock(&pool->lock);
    const bool had = pool->has_kernels;
    pool->has_kernels = true;
    pthread_mutex_unlock(&pool->lock);
    if (had)
        pp_folds_give(&pool->device);        /* one is enough */
    return PP_OK;
}

/* ---- the driver ----------------------------------------------------------------------------------- */

static pp_status_t make(const pp_cuda_pool_t *pool, block_t *block)
{
    CUstream stream = NULL;
    void    *memory = NULL;
    switch (block->kind) {
    case PP_CUDA_PINNED:
        PP_TRY(CALL(pool, cuMemHostAlloc, &memory, block->bytes, CU_MEMHOSTALLOC_PORTABLE));
        block->item = pp_cuda_address(memory);
        return PP_OK;
    case PP_CUDA_STREAM:
        PP_TRY(pp_cuda_make_stream(pool->device.cuda, &stream));
        block->item = (CUdeviceptr)(uintptr_t)stream;
        return PP_OK;
    case PP_CUDA_MAPPING:
        return CALL(pool, cuIpcOpenMemHandle, &block->item, block->from, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    default:
        return CALL(pool, cuMemAlloc, &block->item, block->bytes);
    }
}

/* Whether the driver has taken it; an error has no one to hear it. */
static bool give(const pp_cuda_pool_t *pool, const block_t *block)
{
    const pp_cuda_t *cuda = pool->device.cuda;
    switch (block->kind) {
    case PP_CUDA_PINNED: return cuda->cuMemFreeHost(host_of(block->item)) == CUDA_SUCCESS;
    case PP_CUDA_STREAM: return cuda->cuStreamDestroy(stream_of(block->item)) == CUDA_SUCCESS;
    case PP_CUDA_MAPPING: return cuda->cuIpcCloseMemHandle(block->item) == CUDA_SUCCESS;
    default: return cuda->cuMemFree(block->item) == CUDA_SUCCESS;
    }
}

/* ---- getting -------------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
    enum { STEPS = 8, LEAST_STEP = 1024 };
    size_t step = LEAST_STEP;
    while (bytes > STEPS * step)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

static bool is_idle(const pp_cuda_pool_t *pool, const block_t *block)
{
    return !block->in_use && (!block->behind || pool->device.cuda->cuStreamQuery(block->behind) == CUDA_SUCCESS);
}

/* An item that is there and like `wanted`; NULL: there is none. */
static block_t *find_idle(pp_cuda_pool_t *pool, const block_t *wanted)
{
    pthread_mutex_lock(&pool->lock);
    block_t *block = pool->blocks;
    while (block && (block->kind != wanted->kind || block->bytes != wanted->bytes
                     || memcmp(&block->from, &wanted->from, sizeof block->from) != 0 || !is_idle(pool, block)))
        block = block->next;
    if (block)
        block->in_use = block->kind != PP_CUDA_MAPPING;
    pthread_mutex_unlock(&pool->lock);
    return block;
}

/* Gives back memory that nothing uses, and no other process maps; false: there is none. */
static bool give_idle(pp_cuda_pool_t *pool)
{
    block_t *idle = NULL;
    pthread_mutex_lock(&pool->lock);
    for (block_t *block, **link = &pool->blocks; (block = *link);) {
        if (!is_memory(block) || block->kind == PP_CUDA_SHARED || !is_idle(pool, block)) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        block->next = idle;
        idle = block;
    }
    pthread_mutex_unlock(&pool->lock);
    const bool any = idle;
    for (block_t *next; idle; idle = next) {
        next = idle->next;
        give(pool, idle);
        free(idle);
    }
    return any;
}

static pp_status_t make_block(pp_cuda_pool_t *pool, const block_t *wanted, block_t **out)
{
    block_t *block = malloc(sizeof *block);
    if (!block)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    *block = *wanted;
    pp_status_t status = make(pool, block);
    if (status == PP_ERR_MEMORY && give_idle(pool))
        status = make(pool, block);
    if (status < 0) {
        free(block);
        return status;
    }
    block->in_use = block->kind != PP_CUDA_MAPPING;
    pthread_mutex_lock(&pool->lock);
    block->next = pool->blocks;
    pool->blocks = block;
    pthread_mutex_unlock(&pool->lock);
    *out = block;
    return PP_OK;
}

static pp_status_t get(pp_cuda_pool_t *pool, const block_t *wanted, CUdeviceptr *item)
{
    PP_TRY(pp_cuda_enter(&pool->device));
    block_t    *block = find_idle(pool, wanted);
    pp_status_t status = pp_cuda_leave(&pool->device, block ? PP_OK : make_block(pool, wanted, &block));
    if (status >= 0)
        *item = block->item;
    return status;
}

pp_status_t pp_cuda_pool_get(pp_cuda_pool_t *pool, pp_cuda_item_t kind, size_t bytes, CUdeviceptr *item)
{
    const block_t wanted = {.kind = kind, .bytes = kind == PP_CUDA_STREAM ? 0 : round_up(bytes)};
    return get(pool, &wanted, item);
}

pp_status_t pp_cuda_pool_map(pp_cuda_pool_t *pool, const CUipcMemHandle *handle, CUdeviceptr *address)
{
    const block_t wanted = {.kind = PP_CUDA_MAPPING, .from = *handle};
    return get(pool, &wanted, address);
}

/* ---- putting -------------------------------------------------------------------------------------- */

/* A forked child finds the lock as another thread of its parent may have had it. */
void pp_cuda_pool_put(pp_cuda_pool_t *pool, pp_cuda_item_t kind, CUdeviceptr item, CUstream behind)
{
    if (pp_cuda_in_child())
        return;
    pthread_mutex_lock(&pool->lock);
    block_t *block = pool->blocks;
    while (block && (block->kind != kind || block->item != item))
        block = block->next;
    if (block) {
        block->behind = behind;
        block->in_use = false;
    }
    pthread_mutex_unlock(&pool->lock);
}

void pp_cuda_pool_leave(pp_cuda_pool_t *pool, pp_registered_t *registered)
{
    if (!registered || pp_cuda_in_child())
        return;
    pp_registered_t *last = registered;
    while (last->next)
        last = last->next;
    pthread_mutex_lock(&pool->lock);
    last->next = pool->left;
    pool->left = registered;
    pthread_mutex_unlock(&pool->lock);
}

uint64_t pp_cuda_pools_bytes(const pp_cuda_pools_t *pools)
{
    uint64_t bytes = 0;
    FOR_EACH_POOL(pools, pool) {
        pthread_mutex_lock(&pool->lock);
        for (const block_t *block = pool->blocks; block; block = block->next)
            bytes += block->in_use ? 0 : block->bytes;
        for (const pp_registered_t *left = pool->left; left; left = left->next)
            bytes += left->bytes;
        pthread_mutex_unlock(&pool->lock);
    }
    return bytes;
}

/* ---- giving back ---------------------------------------------------------------------------------- */

static void tidy(pp_cuda_pool_t *pool)
{
    pthread_mutex_lock(&pool->lock);
    pp_registered_t *left = pool->left;
    pool->left = NULL;
    pthread_mutex_unlock(&pool->lock);
    if (!left || pp_cuda_enter(&pool->device) < 0)
        return;
    for (pp_registered_t *next; left; left = next) {
        next = left->next;
        pool->device.cuda->cuMemHostUnregister(left->memory);
        free(left);
    }
    pp_cuda_leave(&pool->device, PP_OK);
}

void pp_cuda_pools_tidy(const pp_cuda_pools_t *pools)
{
    FOR_EACH_POOL(pools, pool)
        tidy(pool);
}

/* Inside the device.  What the driver does not take stays. */
static void give_kind(pp_cuda_pool_t *pool, pp_cuda_item_t kind)
{
    for (block_t *block, **link = &pool->blocks; (block = *link);) {
        if (block->kind != kind || !give(pool, block)) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        free(block);
    }
}

/* What was queued may use what is given back, and a driver need not wait for it. */
static void await_streams(const pp_cuda_pool_t *pool)
{
    for (const block_t *block = pool->blocks; block; block = block->next)
        if (block->kind == PP_CUDA_STREAM)
            pool->device.cuda->cuStreamSynchronize(stream_of(block->item));
}

static bool has_kind(const pp_cuda_pool_t *pool, pp_cuda_item_t kind)
{
    const block_t *block = pool->blocks;
    while (block && block->kind != kind)
        block = block->next;
    return block;
}

/* Whether no memory of other ranks is mapped any more. */
static bool close_mappings(pp_cuda_pool_t *pool)
{
    if (pp_cuda_enter(&pool->device) < 0)
        return false;
    await_streams(pool);
    give_kind(pool, PP_CUDA_MAPPING);
    pp_cuda_leave(&pool->device, PP_OK);
    return !has_kind(pool, PP_CUDA_MAPPING);
}

/* The device is closed if nothing is left there. */
static void give_all(pp_cuda_pool_t *pool, bool shared)
{
    if (pp_cuda_enter(&pool->device) < 0)
        return;
    if (shared)
        give_kind(pool, PP_CUDA_SHARED);
    for (pp_cuda_item_t kind = PP_CUDA_PINNED; kind <= PP_CUDA_STREAM; kind++)
        if (kind != PP_CUDA_SHARED)
            give_kind(pool, kind);
    pp_cuda_leave(&pool->device, PP_OK);
    if (pool->has_kernels)
        pp_folds_give(&pool->device);
    if (pool->blocks)
        return;
    pp_cuda_device_close(&pool->device);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

enum { LOOKS = 2000, PAUSE_US = 1000 };

/* The end of a context's pools.  The thread and the one that waits for it each let go of it; the last frees it. */
typedef struct ending {
    pp_cuda_pool_t   *first;
    _Atomic uint32_t *closed;
    uint32_t          ranks;
    _Atomic int       ends;
} ending_t;

/* Whether all ranks have closed what they had mapped, within the time. */
static bool await_others(const ending_t *ending)
{
    int looks = 0;
    while (atomic_load(ending->closed) < ending->ranks && looks++ < LOOKS)
        usleep(PAUSE_US);
    return atomic_load(ending->closed) >= ending->ranks;
}

static void give_back(const ending_t *ending)
{
    bool closed = true, shares = false;
    for (pp_cuda_pool_t *pool = ending->first; pool; pool = pool->next) {
        closed &= close_mappings(pool);
        shares |= has_kind(pool, PP_CUDA_SHARED);
    }
    if (closed && ending->closed)
        atomic_fetch_add(ending->closed, 1);
    shares = shares && await_others(ending);
    for (pp_cuda_pool_t *next, *pool = ending->first; pool; pool = next) {
        next = pool->next;
        give_all(pool, shares);
    }
}

static bool any_in_use(const pp_cuda_pool_t *first)
{
    for (const pp_cuda_pool_t *pool = first; pool; pool = pool->next)
        for (const block_t *block = pool->blocks; block; block = block->next)
            if (block->in_use)
                return true;
    return false;
}

static void let_go(ending_t *ending)
{
    if (atomic_fetch_add(&ending->ends, 1) == 1)
        free(ending);
}

static void *run(void *argument)
{
    ending_t *ending = argument;
    pthread_setname_np(pthread_self(), "pypartial-cuda");
    for (pp_cuda_pool_t *pool = ending->first; pool; pool = pool->next)
        tidy(pool);
    if (!any_in_use(ending->first))
        give_back(ending);
    let_go(ending);
    return NULL;
}

bool pp_cuda_pools_end(pp_cuda_pools_t *pools, _Atomic uint32_t *closed, uint32_t ranks)
{
    pthread_t thread;
    pp_cuda_pool_t *first = atomic_exchange(&pools->first, NULL);
    ending_t       *ending = first && !pp_cuda_in_child() ? calloc(1, sizeof *ending) : NULL;
    if (!ending)
        return !first;
    *ending = (ending_t){.first = first, .closed = closed, .ranks = ranks};
    if (pthread_create(&thread, NULL, run, ending) != 0) {
        free(ending);
        return false;
    }
    pthread_detach(thread);
    for (int looks = 0; looks < LOOKS && atomic_load(&ending->ends) == 0; looks++)
        usleep(PAUSE_US);
    const bool over = atomic_load(&ending->ends) > 0;
    let_go(ending);
    return over;
}
