/* array.c - see array.h. */
#include "array.h"

#include "disposal.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

struct pp_array {
    pp_array_t      *next;
    pp_cuda_device_t device;
    CUdeviceptr      address;
    size_t           bytes;
    uint32_t         holders;
    pid_t            process;        /* that has allocated it */
};

/* All arrays of the process.  No thread calls the driver with the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pp_array_t     *arrays;

static pp_status_t allocate(pp_array_t *array)
{
    PP_TRY(pp_cuda_enter(&array->device));
    return pp_cuda_leave(&array->device, pp_dispose_alloc(array->device.cuda, &array->address, array->bytes));
}

pp_status_t pp_array_new(int32_t device, size_t bytes, pp_array_t **out)
{
    pp_array_t *array = calloc(1, sizeof *array);
    *out = NULL;
    if (!array)
        return pp_fail(PP_ERR_MEMORY, "no memory for an array on a device");
    *array = (pp_array_t){.bytes = bytes ? bytes : 1, .holders = 1, .process = getpid()};
    pp_status_t status = pp_cuda_device_open(device, &array->device);
    if (status >= 0)
        status = allocate(array);
    if (status < 0) {
        pp_cuda_device_close(&array->device);
        free(array);
        return status;
    }
    pthread_mutex_lock(&lock);
    array->next = arrays;
    arrays = array;
    pthread_mutex_unlock(&lock);
    *out = array;
    return PP_OK;
}

/* With the lock. */
static pp_array_t *find(CUdeviceptr address, size_t bytes)
{
    pp_array_t *array = arrays;
    while (array && (address < array->address || address - array->address > array->bytes
                     || bytes > array->bytes - (address - array->address)))
        array = array->next;
    return array;
}

bool pp_array_has(CUdeviceptr address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    bool has = find(address, bytes);
    pthread_mutex_unlock(&lock);
    return has;
}

pp_array_t *pp_array_hold(CUdeviceptr address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    pp_array_t *array = find(address, bytes);
    if (array)
        array->holders++;
    pthread_mutex_unlock(&lock);
    return array;
}

static bool is_last(pp_array_t *array)
{
    pthread_mutex_lock(&lock);
    bool last = --array->holders == 0;
    for (pp_array_t **link = &arrays; last && *link; link = &(*link)->next)
        if (*link == array) {
            *link = array->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    return last;
}

bool pp_array_drop(pp_array_t *array)
{
    /* In a forked child the lock may be held by a thread that it does not have. */
    if (!array || array->process != getpid() || !is_last(array))
        return false;
    pp_dispose_memory(&array->device, array->address);
    pp_dispose_device(&array->device);
    free(array);
    return true;
}

CUdeviceptr pp_array_address(const pp_array_t *array) { return array->address; }
