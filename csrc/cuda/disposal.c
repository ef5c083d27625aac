/* disposal.c - see disposal.h. */
#include "disposal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct left {
    struct left     *next;
    pp_cuda_device_t device;
    void           (*give)(const pp_cuda_device_t *, uint64_t);      /* NULL: the device is to be closed */
    uint64_t         what;
} left_t;

/* No thread calls the driver with `lock`.  With `giving` one does, so that a device is closed last. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, giving = PTHREAD_MUTEX_INITIALIZER;
static left_t         *oldest, **end = &oldest;

static void give_back(left_t *left)
{
    if (!left->give) {
        pp_cuda_device_close(&left->device);
    } else if (pp_cuda_enter(&left->device) >= 0) {
        left->give(&left->device, left->what);
        pp_cuda_leave(&left->device, PP_OK);
    }
}

static void leave(left_t left)
{
    left_t *kept = malloc(sizeof *kept);
    if (!kept) {
        give_back(&left);
        return;
    }
    *kept = left;
    pthread_mutex_lock(&lock);
    *end = kept;
    end = &kept->next;
    pthread_mutex_unlock(&lock);
}

/* A child finds the locks as another thread of its parent may have had them. */
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

void pp_dispose_memory(const pp_cuda_device_t *device, CUdeviceptr memory) { pp_dispose(device, give_memory, memory); }
void pp_dispose_pinned(const pp_cuda_device_t *device, const void *memory)
{
    pp_dispose(device, give_pinned, pp_cuda_address(memory));
}
void pp_dispose_registered(const pp_cuda_device_t *device, const void *memory)
{
    pp_dispose(device, give_registered, pp_cuda_address(memory));
}

static left_t *take_oldest(void)
{
    pthread_mutex_lock(&lock);
    left_t *left = oldest;
    if (left) {
        oldest = left->next;
        if (!oldest)
            end = &oldest;
    }
    pthread_mutex_unlock(&lock);
    return left;
}

/* Errors have no one to hear them: the process goes on without what the driver has not taken back.  The thread's error is
   about something else, and stays. */
static void give_back_quietly(left_t *left)
{
    char *text = strdup(pp_error_text());
    give_back(left);
    if (text)
        pp_fail(PP_OK, "%s", text);
    free(text);
    free(left);
}

void pp_dispose_all(void)
{
    if (pp_cuda_in_child())
        return;
    pthread_mutex_lock(&giving);
    for (left_t *left; (left = take_oldest());)
        give_back_quietly(left);
    pthread_mutex_unlock(&giving);
}
