/*
 * lane.h - a device's lane: copies between its memory and pinned memory of the host.
 *
 * Copies between device and host are queued on the application's stream, in both directions.  A copy out of the
 * application's buffer to memory of a device runs on the lane's stream, and the two streams wait for each other.  In all
 * cases the host goes on, and asks the pinned memory whether the copy that uses it is over.
 *
 * One thread at a time queues on a lane, and opens and closes it.  Meanwhile another may ask pp_lane_over(), of memory that
 * the first does not use, or which it only has streams follow.  A stream is a CUstream as a number: 1 is the legacy default
 * stream, 2 the calling thread's.
 */
#ifndef PP_LANE_H
#define PP_LANE_H

#include "folds.h"
#include "pool.h"

typedef struct pp_lane {
    pp_cuda_pool_t  *pool;
    pp_cuda_device_t device;         /* the pool's */
    CUstream         own;            /* for copies that do not go to or from the host */
    CUevent          queued;         /* recorded on the application's stream */
    pp_registered_t *borrowed;       /* memory that pp_lane_borrow() has pinned */
    /* Not NULL: what is pinned and borrowed is memory of devices instead, and what is borrowed holds accumulators: elements
       are converted on the way. */
    const pp_folds_t *folds;
    size_t           user_bytes, element_bytes;    /* of the application's elements, of accumulators */
} pp_lane_t;

/* A part of a buffer in the memory of the device. */
typedef struct pp_span {
    CUdeviceptr address;
    size_t      bytes;
} pp_span_t;

/* Pinned memory, and the copy that uses it.  It belongs to one copy at a time. */
typedef struct pp_pinned {
    struct pp_pinned *next;          /* the owner's */
    char             *data;          /* NULL: pp_lane_borrow() gives it some */
    size_t            bytes;         /* 0: the memory is borrowed */
    CUevent           done;
    bool              busy;          /* a copy was queued, and is not known to be over */
    bool              lost;          /* its event could not be recorded: nothing says when it is over */
    bool              on_own;        /* a copy on the lane's stream: its event can still be recorded behind it */
} pp_pinned_t;

/* A failure leaves nothing to close. */
pp_status_t pp_lane_open(pp_cuda_pool_t *pool, pp_lane_t *lane);
/* Leaves what was borrowed to the pool.  No copy of it is queued. */
void        pp_lane_give_back(pp_lane_t *lane);
/* Nothing is pinned or borrowed by the lane any more, and no copy is queued. */
void        pp_lane_close(pp_lane_t *lane);

/* From now on the lane's memory is the device's; `folds` live longer than the lane. */
void        pp_lane_stay(pp_lane_t *lane, const pp_folds_t *folds, size_t user_bytes, size_t element_bytes);

/* PP_ERR_MEMORY: there is none. */
pp_status_t pp_lane_pin(const pp_lane_t *lane, size_t bytes, pp_pinned_t **pinned);
/* NULL is fine.  The memory is not busy.  Memory that was borrowed stays pinned. */
void        pp_lane_unpin(const pp_lane_t *lane, pp_pinned_t *pinned);

/* Makes what pp_lane_borrow() needs. */
pp_status_t pp_lane_pin_nothing(const pp_lane_t *lane, pp_pinned_t **pinned);
/* Has a copy use memory of the host that others own: whole pages, which stay mapped until the pool has given them back, and
   which the lane pins the first time.  They are not busy.  False: the driver does not pin them; the error says why. */
bool        pp_lane_borrow(pp_lane_t *lane, pp_pinned_t *pinned, void *memory, size_t bytes);
/* Whether it has: then it calls nothing that may wait. */
bool        pp_lane_has_borrowed(const pp_lane_t *lane, const void *memory);

/* Whether it is the legacy or the per-thread default stream. */
static inline bool pp_lane_is_default(uint64_t stream) { return stream <= 2; }

/* Whether the application may use the stream now.  PP_ERR_ARGUMENT: it is another device's, or another
   context's of the device than its primary one; it was destroyed, if the driver notices; work is being captured on it,
   which is not run now. */
pp_status_t pp_lane_check(const pp_lane_t *lane, uint64_t stream);
/* Whether an event can be recorded behind what reads a view on the stream.  PP_ERR_ARGUMENT: it is being captured. */
pp_status_t pp_lane_check_view(const pp_lane_t *lane, uint64_t stream);

/* Queues a copy of the spans, one behind the other, to pinned memory, when what was queued on the stream is done.  What
   is queued on that stream afterwards waits for the copy, so the application may overwrite the spans by it.  After a
   failure the pinned memory may be busy.  If the driver cannot say when a copy to the host will be over, waits for it. */
pp_status_t pp_lane_out(pp_lane_t *lane, const pp_span_t *spans, size_t count, pp_pinned_t *to, uint64_t stream);
/* Queues a copy from pinned memory to the spans on the stream.  After a failure as before. */
pp_status_t pp_lane_in(const pp_lane_t *lane, const pp_span_t *spans, size_t count, pp_pinned_t *from, uint64_t stream);
/* The same by another memory, `by`: `from` is not busy any more when its copy is, which does not wait for the stream. */
pp_status_t pp_lane_in_by(pp_lane_t *lane, const pp_span_t *spans, size_t count, pp_pinned_t *from, pp_pinned_t *by,
                          uint64_t stream);
/* What is queued on the stream from now on waits for the copy that uses the memory. */
pp_status_t pp_lane_follow(const pp_lane_t *lane, const pp_pinned_t *pinned, uint64_t stream);
/* Work that is queued on the stream uses the memory, as a copy does. */
pp_status_t pp_lane_use(const pp_lane_t *lane, pp_pinned_t *pinned, uint64_t stream);
/* PP_OK: the copy is over, and the memory not busy any more.  PP_PENDING: it is not; memory that is lost after a copy on
   a stream of the application stays so. */
pp_status_t pp_lane_over(const pp_lane_t *lane, pp_pinned_t *pinned);

/* Whether nobody will ever know that the copy is over: pp_lane_over() stays PP_PENDING. */
static inline bool pp_lane_is_lost(const pp_pinned_t *pinned) { return pinned->lost && !pinned->on_own; }

/* The device in whose own memory the first and the last byte are.  PP_ERR_ARGUMENT: in none's, or it is managed memory. */
pp_status_t pp_lane_locate(CUdeviceptr address, size_t bytes, int32_t *device);

#endif
