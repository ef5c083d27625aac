/* disposal.c - see disposal.h. */
#include "disposal.h"
#include "aside.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

typedef struct left {
    struct left     *next;
    pp_cuda_device_t device;
    void           (*give)(const pp_cuda_device_t *, uint64_t);      /* NULL: the device is to be closed */
    uint64_t         what;
} left_t;

/* `lock` protects all that follows.  No thread calls the driver with it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t  once = PTHREAD_ONCE_INIT;
static pthread_cond_t  given;                    /* after `once` */
static left_t         *oldest, **end = &oldest;
static bool            gives;                    /* a thread gives back */
static uint64_t        left_count, given_count;

static void make_condition(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&given, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Errors have no one to hear them: the process goes on without what the driver has not taken back. */
static void give_back(left_t *left)
{
    if (!left->give) {
        pp_cuda_device_close(&left->device);
    } else if (pp_cuda_enter(&left->device) >= 0) {
        left->give(&left->device, left->what);
        pp_cuda_leave(&left->device, PP_OK);
    }
    free(left);
}

static left_t *take_oldest(void)
{
    left_t *left = oldest;
    if (left) {
        oldest = left->next;
        if (!oldest)
            end = &oldest;
    }
    return left;
}

static void give_all(void *nothing)
{
    (void)nothing;
    pthread_once(&once, make_condition);
    pthread_mutex_lock(&lock);
    for (left_t *left; (left = take_oldest());) {
        pthread_mutex_unlock(&lock);
        give_back(left);
        pthread_mutex_lock(&lock);
        given_count++;
        pthread_cond_broadcast(&given);
    }
    gives = false;
    pthread_mutex_unlock(&lock);
}

static bool leave(left_t left)
{
    left_t *kept = malloc(sizeof *kept);
    if (!kept)                       /* the process keeps what it has */
        return false;
    *kept = left;
    pthread_mutex_lock(&lock);
    *end = kept;
    end = &kept->next;
    left_count++;
    const bool begins = !gives;
    gives = true;
    pthread_mutex_unlock(&lock);
    if (begins)
        pp_aside(give_all, NULL);
    return true;
}

/* A child finds the lock as another thread of its parent may have had it. */
static bool can_leave(const pp_cuda_device_t *device) { return device->cuda && !pp_cuda_in_child(); }

void pp_dispose(const pp_cuda_device_t *device, void (*give)(const pp_cuda_device_t *, uint64_t what), uint64_t what)
{
    if (can_leave(device))
        leave((left_t){.device = *device, .give = give, .what = what});
}

void pp_dispose_device(pp_cuda_device_t *device)
{
    if (can_leave(device))
        leave((left_t){.device = *device});
    *device = (pp_cuda_device_t){0};
}

static void give_memory(const pp_cuda_device_t *device, uint64_t what) { device->cuda->cuMemFree(what); }
static void give_pinned(const pp_cuda_device_t *device, uint64_t what)
{
    device->cuda->cuMemFreeHost((void *)(uintptr_t)what);
}
static void give_registered(const pp_cuda_device_t *device, uint64_t what)
{
    device->cuda->cuMemHostUnregister((void *)(uintptr_t)what);
}

static void give_stream(const pp_cuda_device_t *device, uint64_t what)
{
    device->cuda->cuStreamSynchronize((CUstream)(uintptr_t)what);
    device->cuda->cuStreamDestroy((CUstream)(uintptr_t)what);
}
static void wait_for_stream(const pp_cuda_device_t *device, uint64_t what)
{
    device->cuda->cuStreamSynchronize((CUstream)(uintptr_t)what);
}

void pp_dispose_memory(const pp_cuda_device_t *device, CUdeviceptr memory) { pp_dispose(device, give_memory, memory); }
void pp_dispose_pinned(const pp_cuda_device_t *device, const void *memory)
{
    pp_dispose(device, give_pinned, pp_cuda_address(memory));
}
void pp_dispose_registered(const pp_cuda_device_t *device, const void *memory)
{
    pp_dispose(device, give_registered, pp_cuda_address(memory));
}

void pp_dispose_stream(const pp_cuda_device_t *device, CUstream stream)
{
    pp_dispose(device, give_stream, (uint64_t)(uintptr_t)stream);
}
bool pp_dispose_behind(const pp_cuda_device_t *device, CUstream stream)
{
    return !can_leave(device)
        || leave((left_t){.device = *device, .give = wait_for_stream, .what = (uint64_t)(uintptr_t)stream});
}

bool pp_dispose_wait(int64_t timeout_us)
{
    struct timespec until;
    if (pp_cuda_in_child())
        return true;
    pthread_once(&once, make_condition);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_us / 1000000;
    until.tv_nsec += timeout_us % 1000000 * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    const uint64_t so_far = left_count;
    while (given_count < so_far && pthread_cond_timedwait(&given, &lock, &until) == 0)
        continue;
    const bool all = given_count >= so_far;
    pthread_mutex_unlock(&lock);
    return all;
}

/* Whether to try again: the driver had no memory, and has got some back. */
static bool gets_more(pp_status_t status)
{
    pthread_mutex_lock(&lock);
    const bool some = given_count < left_count;
    pthread_mutex_unlock(&lock);
    return status == PP_ERR_MEMORY && some && pp_dispose_wait(PP_DISPOSE_MOMENT_US);
}

pp_status_t pp_dispose_alloc(const pp_cuda_t *cuda, CUdeviceptr *address, size_t bytes)
{
    pp_status_t status = PP_CUDA(cuda, cuMemAlloc, address, bytes);
    return gets_more(status) ? PP_CUDA(cuda, cuMemAlloc, address, bytes) : status;
}

pp_status_t pp_dispose_alloc_pinned(const pp_cuda_t *cuda, void **memory, size_t bytes)
{
    pp_status_t status = PP_CUDA(cuda, cuMemHostAlloc, memory, bytes, CU_MEMHOSTALLOC_PORTABLE);
    return gets_more(status) ? PP_CUDA(cuda, cuMemHostAlloc, memory, bytes, CU_MEMHOSTALLOC_PORTABLE) : status;
}
