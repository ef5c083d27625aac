/*
 * device_kind.h - vectors in the memory of a device as a kind of memory (csrc/reduce/memory.h).
 *
 * Its operations are queued on a stream.  The calling thread waits until they are over; if the owner gives `marks`, it does
 * not, and mark() and reached() tell.  An operation that returns nothing may fail all the same; the first failure is kept,
 * for the owner to look at.
 */
#ifndef PP_DEVICE_KIND_H
#define PP_DEVICE_KIND_H

#include "../cuda/folds.h"
#include "../cuda/pool.h"
#include "../reduce/memory.h"

typedef struct pp_device_failure {
    _Atomic bool failed;
    char         text[256];
} pp_device_failure_t;

/* A place in what was queued, and the event that is reached there. */
typedef struct pp_fence {
    struct pp_fence *next;
    CUevent          event;
    uint64_t         mark;           /* so many operations are over then */
} pp_fence_t;

/* How far the device has come.  With the context's lock, but for `queued`. */
typedef struct pp_device_marks {
    _Atomic uint64_t queued;         /* operations so far */
    uint64_t         over;           /* so many are known to be over */
    pp_fence_t      *fences, *newest;    /* recorded, oldest first */
    pp_fence_t      *idle;
} pp_device_marks_t;

/* Kernels and stream are the owner's, and there while there is memory of this kind.  The stream is of the pool. */
typedef struct pp_device_kind {
    pp_memory_t          memory;     /* first, so that its address is this object's */
    pp_cuda_pool_t      *pool;
    pp_cuda_device_t     device;     /* the pool's */
    const pp_folds_t    *folds;
    CUstream             stream;
    pp_device_failure_t *failure;
    pp_device_marks_t   *marks;      /* NULL: operations wait */
} pp_device_kind_t;

/* Operations to copy to `memory`: those that wait, and those of an owner with marks. */
extern const pp_memory_t pp_device_operations, pp_device_queued_operations;

static inline pp_device_kind_t *pp_device_kind_of(const pp_memory_t *memory)
{
    return (pp_device_kind_t *)(uintptr_t)memory;
}

/* Waits until what was queued is over; for the kind's finish().  Any thread may call it, without the context's lock. */
pp_status_t pp_device_finish(const pp_memory_t *self);
/* With marks: whether more may be queued.  Where a stream has about a thousand operations the driver waits before it takes
   another, and these are queued with the context's lock.  PP_PENDING: not before the device has come further. */
pp_status_t pp_device_room(pp_device_kind_t *kind);
/* Inside the device: destroys the events.  Nobody asks for marks any more. */
void        pp_device_end_marks(pp_device_kind_t *kind);
/* Whether an operation that returned nothing has failed. */
pp_status_t pp_device_failed(const pp_device_failure_t *failure);

#endif
