/* device_kind.c - see device_kind.h. */
#include "device_kind.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* Each may have an event behind it, and rounds queue a few more. */
enum { BACKLOG_MAX = 128 };

#define CALL(kind, name, ...) PP_CUDA((kind)->device.cuda, name, __VA_ARGS__)

static CUdeviceptr at(const void *elements) { return pp_cuda_address(elements); }

static void keep_failure(pp_device_failure_t *failure, pp_status_t status)
{
    if (status >= 0 || atomic_load(&failure->failed))
        return;
    snprintf(failure->text, sizeof failure->text, "%s", pp_error_text());
    atomic_store(&failure->failed, true);
}

static pp_status_t synchronize(const pp_device_kind_t *kind)
{
    PP_TRY(pp_cuda_enter(&kind->device));
    return pp_cuda_leave(&kind->device, CALL(kind, cuStreamSynchronize, kind->stream));
}

/* An operation was queued, if it could be.  One that has failed counts as well: a part of it may be queued. */
static void finish(pp_device_kind_t *kind, pp_status_t status)
{
    if (kind->marks)
        atomic_fetch_add(&kind->marks->queued, 1);
    else if (status >= 0)
        status = synchronize(kind);
    keep_failure(kind->failure, status);
}

pp_status_t pp_device_finish(const pp_memory_t *self)
{
    pp_device_kind_t *kind = pp_device_kind_of(self);
    if (kind->marks)
        keep_failure(kind->failure, synchronize(kind));
    return pp_device_failed(kind->failure);
}

pp_status_t pp_device_failed(const pp_device_failure_t *failure)
{
    return atomic_load(&failure->failed) ? pp_fail(PP_ERR_STATE, "an operation on vectors of a device has failed: %s",
                                                   failure->text)
                                         : PP_OK;
}

/* ---- marks ----------------------------------------------------------------------------------------------------- */

static bool is_reached(const pp_device_marks_t *marks, uint64_t mark) { return marks->over >= mark; }

/* Inside the device, as the next two.  Asks for the oldest fences, until one is not reached: PP_PENDING. */
static pp_status_t look(const pp_device_kind_t *kind)
{
    pp_device_marks_t *marks = kind->marks;
    for (pp_fence_t *oldest; (oldest = marks->fences);) {
        pp_status_t status = CALL(kind, cuEventQuery, oldest->event);
        if (status != PP_OK)
            return status;
        marks->over = oldest->mark;
        marks->fences = oldest->next;
        oldest->next = marks->idle;
        marks->idle = oldest;
    }
    return PP_OK;
}

static pp_status_t take_fence(const pp_device_kind_t *kind, pp_fence_t **out)
{
    pp_device_marks_t *marks = kind->marks;
    pp_fence_t        *fence = marks->idle;
    if (!fence) {
        if (!(fence = calloc(1, sizeof *fence)))
            return pp_fail(PP_ERR_MEMORY, "no memory to wait for a device");
        pp_status_t status = CALL(kind, cuEventCreate, &fence->event, CU_EVENT_DISABLE_TIMING);
        if (status < 0) {
            free(fence);
            return status;
        }
    } else {
        marks->idle = fence->next;
    }
    fence->next = NULL;
    *out = fence;
    return PP_OK;
}

/* Has a fence say when so many operations are over, which are queued already. */
static pp_status_t put_fence(const pp_device_kind_t *kind, uint64_t mark)
{
    pp_device_marks_t *marks = kind->marks;
    pp_fence_t        *fence = NULL;
    if (marks->fences && marks->newest->mark >= mark)
        return PP_PENDING;
    PP_TRY(take_fence(kind, &fence));
    pp_status_t status = CALL(kind, cuEventRecord, fence->event, kind->stream);
    if (status < 0) {
        fence->next = marks->idle;
        marks->idle = fence;
        return status;
    }
    fence->mark = mark;
    if (marks->fences)
        marks->newest->next = fence;
    else
        marks->fences = fence;
    marks->newest = fence;
    return PP_PENDING;
}

static pp_status_t look_and_put_fence(const pp_device_kind_t *kind, uint64_t mark)
{
    pp_status_t status = look(kind);
    return status < 0 || is_reached(kind->marks, mark) ? status : put_fence(kind, mark);
}

static pp_status_t device_mark(const pp_memory_t *self, uint64_t *mark)
{
    pp_device_kind_t *kind = pp_device_kind_of(self);
    PP_TRY(pp_device_failed(kind->failure));
    *mark = atomic_load(&kind->marks->queued);
    if (is_reached(kind->marks, *mark))
        return PP_OK;
    PP_TRY(pp_cuda_enter(&kind->device));
    return pp_cuda_leave(&kind->device, look_and_put_fence(kind, *mark));
}

static pp_status_t device_reached(const pp_memory_t *self, uint64_t mark)
{
    pp_device_kind_t *kind = pp_device_kind_of(self);
    PP_TRY(pp_device_failed(kind->failure));
    if (is_reached(kind->marks, mark))
        return PP_OK;
    PP_TRY(pp_cuda_enter(&kind->device));
    PP_TRY(pp_cuda_leave(&kind->device, look(kind)));
    return is_reached(kind->marks, mark) ? PP_OK : PP_PENDING;
}

static bool has_room(const pp_device_marks_t *marks) { return atomic_load(&marks->queued) - marks->over < BACKLOG_MAX; }

pp_status_t pp_device_room(pp_device_kind_t *kind)
{
    uint64_t mark;
    if (has_room(kind->marks))
        return PP_OK;
    PP_TRY(device_mark(&kind->memory, &mark));
    return has_room(kind->marks) ? PP_OK : PP_PENDING;
}

void pp_device_end_marks(pp_device_kind_t *kind)
{
    pp_device_marks_t *marks = kind->marks;
    if (marks->fences)
        marks->newest->next = marks->idle;
    for (pp_fence_t *next, *fence = marks->fences ? marks->fences : marks->idle; fence; fence = next) {
        next = fence->next;
        kind->device.cuda->cuEventDestroy(fence->event);
        free(fence);
    }
    marks->fences = marks->idle = NULL;
}

/* ---- the operations -------------------------------------------------------------------------------------------- */

static pp_status_t device_allocate(const pp_memory_t *self, size_t bytes, void **elements)
{
    CUdeviceptr       address = 0;
    const pp_status_t status = pp_cuda_pool_get(pp_device_kind_of(self)->pool, PP_CUDA_MEMORY, bytes, &address);
    *elements = (void *)(uintptr_t)address;
    return status;
}

/* What is queued may use a vector that is released. */
static void device_release(const pp_memory_t *self, void *elements)
{
    const pp_device_kind_t *kind = pp_device_kind_of(self);
    pp_cuda_pool_put(kind->pool, PP_CUDA_MEMORY, at(elements), kind->stream);
}

static void device_copy(const pp_memory_t *self, void *to, const void *from, size_t bytes)
{
    pp_device_kind_t *kind = pp_device_kind_of(self);
    pp_status_t status = pp_cuda_enter(&kind->device);
    if (status >= 0)
        status = pp_cuda_leave(&kind->device, CALL(kind, cuMemcpyAsync, at(to), at(from), bytes, kind->stream));
    finish(kind, status);
}

static void keep(const pp_kernels_t *kernels, void *inout, const void *left, const void *right, size_t count)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    const CUdeviceptr vectors[2] = {at(left), at(right)};
    finish(kind, pp_folds_fold(kind->folds, at(inout), vectors, 2, count, 1, kind->stream));
}

static void device_keep_left(const pp_kernels_t *kernels, void *inout, const void *in, size_t count)
{
    keep(kernels, inout, inout, in, count);
}

static void device_keep_right(const pp_kernels_t *kernels, void *inout, const void *in, size_t count)
{
    keep(kernels, inout, in, inout, count);
}

static void device_divide(const pp_kernels_t *kernels, void *values, size_t count, uint64_t by)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    const CUdeviceptr vector = at(values);
    finish(kind, pp_folds_fold(kind->folds, vector, &vector, 1, count, by, kind->stream));
}

/* Loading has done so. */
static void device_normalise(const pp_kernels_t *kernels, void *values, size_t count)
{
    (void)kernels, (void)values, (void)count;
}

static void device_load(const pp_kernels_t *kernels, void *to, const void *from, size_t count)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    finish(kind, pp_folds_load(kind->folds, at(to), at(from), count, kind->stream));
}

static void device_load_combined(const pp_kernels_t *kernels, void *inout, const void *from, size_t count)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    finish(kind, pp_folds_load_combined(kind->folds, at(inout), at(from), count, kind->stream));
}

static void device_store(const pp_kernels_t *kernels, void *to, const void *from, size_t count)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    finish(kind, pp_folds_store(kind->folds, at(to), at(from), count, kind->stream));
}

static void device_fill(const pp_kernels_t *kernels, void *values, size_t count)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    finish(kind, pp_folds_fill(kind->folds, at(values), count, kind->stream));
}

#define OPERATIONS                                                                                                  \
    .name = "device", .allocate = device_allocate, .release = device_release, .copy = device_copy,                  \
    .keep_left = device_keep_left, .keep_right = device_keep_right, .divide = device_divide,                        \
    .normalise = device_normalise, .load = device_load, .load_combined = device_load_combined, .store = device_store, \
    .fill = device_fill

const pp_memory_t pp_device_operations = {OPERATIONS};
const pp_memory_t pp_device_queued_operations = {OPERATIONS, .mark = device_mark, .reached = device_reached};
