/*
 * device_kind.h - vectors in the memory of a device as a kind of memory (csrc/reduce/memory.h).
 *
 * Its operations are over when they return: each is queued on a stream, and the calling thread waits for that.  An
 * operation that returns nothing may fail all the same; the first failure is kept, for the owner to look at.
 */
#ifndef PP_DEVICE_KIND_H
#define PP_DEVICE_KIND_H

#include "../cuda/folds.h"
#include "../reduce/memory.h"

typedef struct pp_device_failure {
    _Atomic bool failed;
    char         text[256];
} pp_device_failure_t;

/* Device, kernels and stream are the owner's, and open while there is memory of this kind. */
typedef struct pp_device_kind {
    pp_memory_t          memory;     /* first, so that its address is this object's */
    pp_cuda_device_t     device;
    const pp_folds_t    *folds;
    CUstream             stream;
    pp_device_failure_t *failure;
} pp_device_kind_t;

/* Operations to copy to `memory`. */
extern const pp_memory_t pp_device_operations;

static inline pp_device_kind_t *pp_device_kind_of(const pp_memory_t *memory)
{
    return (pp_device_kind_t *)(uintptr_t)memory;
}

/* Waits for what was queued, if it could be. */
void        pp_device_finish(pp_device_kind_t *kind, pp_status_t status);
/* Whether an operation that returned nothing has failed. */
pp_status_t pp_device_failed(const pp_device_failure_t *failure);

#endif
