/* device_kind.c - see device_kind.h. */
#include "device_kind.h"
#include "../cuda/disposal.h"

#include <stdatomic.h>
#include <stdio.h>

#define CALL(kind, name, ...) PP_CUDA((kind)->device.cuda, name, __VA_ARGS__)

static CUdeviceptr at(const void *elements) { return pp_cuda_address(elements); }

void pp_device_finish(pp_device_kind_t *kind, pp_status_t status)
{
    pp_device_failure_t *failure = kind->failure;
    if (status >= 0 && (status = pp_cuda_enter(&kind->device)) >= 0)
        status = pp_cuda_leave(&kind->device, CALL(kind, cuStreamSynchronize, kind->stream));
    if (status >= 0 || atomic_load(&failure->failed))
        return;
    snprintf(failure->text, sizeof failure->text, "%s", pp_error_text());
    atomic_store(&failure->failed, true);
}

pp_status_t pp_device_failed(const pp_device_failure_t *failure)
{
    return atomic_load(&failure->failed) ? pp_fail(PP_ERR_STATE, "an operation on vectors of a device has failed: %s",
                                                   failure->text)
                                         : PP_OK;
}

static void *device_allocate(const pp_memory_t *self, size_t bytes)
{
    pp_device_kind_t *kind = pp_device_kind_of(self);
    CUdeviceptr address = 0;
    if (pp_cuda_enter(&kind->device) < 0)
        return NULL;
    /* An error of leaving is found again; the memory is there. */
    pp_cuda_leave(&kind->device, CALL(kind, cuMemAlloc, &address, bytes));
    return (void *)(uintptr_t)address;
}

static void device_release(const pp_memory_t *self, void *elements)
{
    pp_dispose_memory(&pp_device_kind_of(self)->device, at(elements));
}

static void device_copy(const pp_memory_t *self, void *to, const void *from, size_t bytes)
{
    pp_device_kind_t *kind = pp_device_kind_of(self);
    pp_status_t status = pp_cuda_enter(&kind->device);
    if (status >= 0)
        status = pp_cuda_leave(&kind->device, CALL(kind, cuMemcpyAsync, at(to), at(from), bytes, kind->stream));
    pp_device_finish(kind, status);
}

static void keep(const pp_kernels_t *kernels, void *inout, const void *left, const void *right, size_t count)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    const CUdeviceptr vectors[2] = {at(left), at(right)};
    pp_device_finish(kind, pp_folds_fold(kind->folds, at(inout), vectors, 2, count, 1, kind->stream));
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
    pp_device_finish(kind, pp_folds_fold(kind->folds, vector, &vector, 1, count, by, kind->stream));
}

/* Loading has done so. */
static void device_normalise(const pp_kernels_t *kernels, void *values, size_t count)
{
    (void)kernels, (void)values, (void)count;
}

static void device_load(const pp_kernels_t *kernels, void *to, const void *from, size_t count)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    pp_device_finish(kind, pp_folds_load(kind->folds, at(to), at(from), count, kind->stream));
}

static void device_load_combined(const pp_kernels_t *kernels, void *inout, const void *from, size_t count)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    pp_device_finish(kind, pp_folds_load_combined(kind->folds, at(inout), at(from), count, kind->stream));
}

static void device_store(const pp_kernels_t *kernels, void *to, const void *from, size_t count)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    pp_device_finish(kind, pp_folds_store(kind->folds, at(to), at(from), count, kind->stream));
}

static void device_fill(const pp_kernels_t *kernels, void *values, size_t count)
{
    pp_device_kind_t *kind = pp_device_kind_of(kernels->memory);
    pp_device_finish(kind, pp_folds_fill(kind->folds, at(values), count, kind->stream));
}

const pp_memory_t pp_device_operations = {
    .name = "device", .allocate = device_allocate, .release = device_release, .copy = device_copy,
    .keep_left = device_keep_left, .keep_right = device_keep_right, .divide = device_divide,
    .normalise = device_normalise, .load = device_load, .load_combined = device_load_combined, .store = device_store,
    .fill = device_fill,
};
