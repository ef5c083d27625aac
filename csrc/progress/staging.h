/*
 * staging.h - handles whose buffers are in the memory of a device.
 *
 * Such a handle is the host's: its rounds know nothing of devices.  A Start queues the copy off the device, makes its
 * request, and returns: its elements are *on their way*.  When their copy is over, which threads that look find out, a
 * thread links them as a Start of the host does; so the elements of several Starts are linked in the order of the
 * Starts.  A Wait collects its result, and queues the copy to the device.  No thread waits for what the application has
 * queued, but where the application asks for it (pp_land()); with eight results on their way a request is not complete
 * for it.  What the library queues itself is waited for in a few places, without the lock: docs/cuda.md names them.
 *
 * Where rounds are made in memory that ranks share, a copy off the device goes to the part of the station that a round
 * will read, and a copy to the device comes from the ring (in_place.c).  Both are pinned when they are first used.
 * Elements travel by memory that this file has pinned, a *bounce buffer*, if they must be converted or combined, if the
 * vector is short, if a result before it is still being read in the ring, or if the driver does not pin that memory.
 *
 * Parts and results may also be memory of devices that the ranks share (vault.h).  Then the same holds, but bounce buffers
 * are on the device, and elements are converted on the way.
 */
#ifndef PP_STAGING_H
#define PP_STAGING_H

#include "../coll/rounds/allreduce.h"
#include "../cuda/lane.h"
#include "context.h"

extern const pp_face_t pp_allreduce_face, pp_staged_allreduce_face;

typedef struct pp_flight {
    struct pp_flight *next;
    pp_pinned_t *pinned;
    bool         reserved;           /* they go to `target`; else to a bounce buffer */
    pp_target_t  target;
    uint64_t     number;             /* among those of the context, from 1 on */
    pthread_t    thread;             /* that has begun it */
    uint64_t     given;              /* the round that the Start's call is given */
    uint64_t     since_ns;           /* from when on the device computes for it; 0: not known */
    bool         arrived;
    bool         followed;           /* the result that is being sent comes after it */
} pp_flight_t;

typedef struct pp_staging {
    pp_lane_t    lane;
    pp_span_t   *sends, *receives;   /* the application's buffers */
    size_t       spans;
    size_t       bytes;              /* of all of them */
    bool         overlaps;           /* a buffer that receives sends, too */
    size_t       page_bytes;         /* of the whole pages that a vector takes in the memory of the node */
    uint64_t     stream;             /* of the application's next calls */
    bool         elsewhere;          /* it is a default stream of another context than the library's */
    pp_flight_t *flights, *last;     /* Starts whose elements are on their way, oldest first */
    bool         links;              /* a thread links the oldest one's elements, or has them copied, and may have released
                                        the lock: others leave all of them alone */
    pp_pinned_t *spare;              /* bounce buffers; busy after a failure only */
    pp_pinned_t *receive;            /* that of the next result: the piece of the host; P-Reduce, which works in place,
                                        has one from a Start or Flush until its result */
    bool         in_place;           /* copies go to and from the memory of the node, if they can */
    pp_pinned_t *borrowers;          /* for Starts whose elements go to a part */
    pp_flight_t *stranded;           /* Starts that have failed, but may have queued copies to their part */
    pp_pinned_t *reader;             /* for a result that is read in the ring */
    void       (*has_read)(pp_handle_t *);     /* it has been read */
    bool         views;              /* the application reads it, by work that it queues on `viewed_on` */
    bool         shows;              /* the application reads the receive buffers so, as the last View has shown these */
    uint64_t     viewed_on;
    pp_pinned_t *shown;              /* without memory, NULL before the first such View.  Busy: its event is behind what
                                        read the receive buffers, and no result has followed it yet */
    struct pp_direct *direct;        /* MPI is to get addresses of the device (direct.h, direct_groups.h); else NULL */
    struct pp_device_vault *vault;   /* vectors are on devices, or it was asked for (vault.h); else NULL */
    pp_pinned_t *results, *newest;   /* on their way to the device, oldest first */
    int          result_count;
    uint64_t     copied_for;         /* P-Reduce: what this call of Flush gives is on its way, or in `receive`; 0: none */
    bool         full;               /* there are too many of them, which counts among ctx->flights */
} pp_staging_t;

/* Of a handle that is open, or about to be. */
static inline pp_ctx_t *pp_ctx_of(const pp_handle_t *handle)
{
    return (pp_ctx_t *)((char *)handle->team->engine - offsetof(pp_ctx_t, engine));
}

/* Makes the device current while a call of the application is about the handle: what is inside enters it often.  PP_OK for
   a handle of the host.  Else pp_staging_leave() ends it, and returns what the call came to, or the error that the context
   has if not all scopes could be left.  Between them `device` keeps which it is. */
static inline pp_status_t pp_staging_enter(const pp_handle_t *handle, pp_cuda_device_t *device)
{
    device->context = NULL;
    if (!handle->staging)
        return PP_OK;
    *device = handle->staging->lane.device;
    return pp_cuda_enter(device);
}

static inline pp_status_t pp_staging_leave(pp_ctx_t *ctx, const pp_cuda_device_t *device, pp_status_t status)
{
    if (!device->context)
        return status;
    pp_cuda_leave(device, PP_OK);
    const pp_status_t left = pp_check_left(ctx, status);
    return left < 0 ? left : status;
}

/* Numbers a Start whose elements are on their way from now on. */
static inline void pp_staging_fly(pp_ctx_t *ctx, pp_flight_t *flight)
{
    ctx->flights++;
    flight->number = ++ctx->flown;
    flight->thread = pthread_self();
}

/* pp_lane_borrow() with the lock, which it releases if the driver is to pin the memory. */
static inline bool pp_staging_borrow(pp_handle_t *handle, pp_pinned_t *pinned, const void *memory, size_t bytes)
{
    pp_lane_t *lane = &handle->staging->lane;
    void      *there = (void *)(uintptr_t)memory;
    bool       borrowed;
    if (pp_lane_has_borrowed(lane, there))
        return pp_lane_borrow(lane, pinned, there, bytes);
    PP_UNLOCKED(pp_ctx_of(handle), borrowed, pp_lane_borrow(lane, pinned, there, bytes));
    return borrowed;
}

/* Keeps what a copy has used for a later one. */
static inline void pp_staging_keep(pp_pinned_t **list, pp_pinned_t *pinned)
{
    pinned->next = *list;
    *list = pinned;
}

/* ---- pinned memory, and waits for copies (pinned.c) ---- */

/* Makes what such a handle needs, with a bounce buffer for its first result; `prepare` makes the rest.  After a failure the
   handle is as before. */
pp_status_t pp_staging_make(pp_handle_t *handle, const pp_piece_t *pieces, size_t count, size_t element_bytes,
                            int32_t device, pp_status_t (*prepare)(pp_handle_t *));
/* The context ends, on all ranks: so do the regions that it keeps for freed handles. */
void        pp_staging_end_kept(pp_ctx_t *ctx);
/* Takes one of the list that no copy uses.  PP_PENDING: there is none. */
pp_status_t pp_staging_take(const pp_staging_t *staging, pp_pinned_t **list, pp_pinned_t **pinned);
/* Takes a bounce buffer for a Start, or for a result.  With the lock, which it may release. */
pp_status_t pp_staging_take_spare(pp_handle_t *handle, pp_pinned_t **pinned);
/* Frees the bounce buffers that nothing uses. */
void        pp_staging_unpin_spare(pp_staging_t *staging);
/* A Start, or Flush, has failed to queue the copy to this memory.  The context fails, too, if the copy may go on for ever:
   no one could tell when the memory is free. */
void        pp_staging_refused(pp_handle_t *handle, const pp_pinned_t *pinned, pp_status_t status);
/* Asked once by a call that uses the stream, when it begins; PP_OK for a handle of the host.  PP_ERR_ARGUMENT: the stream
   cannot be used, or as the next one. */
pp_status_t pp_staging_check(const pp_handle_t *handle);
/* PP_ERR_ARGUMENT: the stream of the last View is being captured, so the view cannot end. */
pp_status_t pp_staging_check_view(const pp_handle_t *handle);
/* See pp_face_t. */
pp_status_t pp_staging_land(pp_ctx_t *ctx, pp_handle_t *handle, uint64_t call, bool results, int64_t timeout_us);
/* Those of this thread to all handles, and those of other threads with a smaller number than this (pp_flight_t); if the
   context has failed, none. */
pp_status_t pp_staging_land_all(pp_ctx_t *ctx, uint64_t until, int64_t timeout_us);
/* The stream of the application's next calls.  In its thread, outside of scopes. */
pp_status_t pp_staging_use_stream(pp_handle_t *handle, uint64_t stream);

/* ---- results on their way (sent.c) ---- */

/* The vector's bytes are queued to be copied, to or from `pinned`. */
void        pp_staging_count(pp_ctx_t *ctx, const pp_staging_t *staging, const pp_pinned_t *pinned);
/* Looks which results have got to the device: their memory can be used again. */
pp_status_t pp_staging_reclaim(pp_handle_t *handle);
/* The result's copy to the device was queued. */
void        pp_staging_sent(pp_ctx_t *ctx, pp_staging_t *staging, pp_pinned_t *result);
/* What was queued on `operations` has written to the bounce buffer, and what is queued on the application's stream from now
   on comes after it.  With the lock, which it releases. */
pp_status_t pp_staging_follow(pp_ctx_t *ctx, pp_handle_t *handle, pp_pinned_t *bounce, CUstream operations);
/* Work on the device uses a result, until the event of `result`. */
void        pp_staging_await(pp_ctx_t *ctx, pp_staging_t *staging, pp_pinned_t *result);
/* See pp_face_t.  A request is complete for the application when its result can go to the device as well. */
bool        pp_staging_room(const pp_handle_t *handle);

/* ---- the partial allreduce (staging.c) ---- */

/* Makes a handle whose pieces are in the memory of config.device one of the host, and gives it the face.  To be called
   before the ranks agree on it, without the lock, as the driver may take long.  After a failure the handle is as
   before. */
pp_status_t pp_staging_open(pp_handle_t *handle);

/* ---- copies to and from the memory of the node (in_place.c) ---- */

/* Makes what such copies need; then has the handle make them. */
pp_status_t pp_in_place_pin(pp_staging_t *staging);
void        pp_in_place_begin(pp_handle_t *handle);
/* The bounce buffer of the next result. */
void        pp_in_place_set_receive(pp_allreduce_t *coll, pp_pinned_t *pinned);
/* Reserves a part for the elements.  PP_PENDING: there is none, so they go to a bounce buffer. */
pp_status_t pp_in_place_reserve(pp_handle_t *handle, pp_flight_t *flight);
/* The copy to the part has failed; the flight is taken over. */
void        pp_in_place_give_up(pp_handle_t *handle, pp_flight_t *flight);
/* Collects the request.  The result is then in *pinned, which is the bounce buffer or `reader`; NULL: in *view, which the
   caller may give for that. */
pp_status_t pp_in_place_collect(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view,
                                pp_pinned_t **pinned);
/* The application has queued all that reads the last result, which a View has shown. */
pp_status_t pp_in_place_end_view(pp_handle_t *handle);

/* ---- what the face of the host's handles does, too (gather.c, allreduce_face.c) ---- */

enum { PP_SMALL_COPY_BYTES = 65536 };    /* up to this, copied under the lock: taking it twice would cost more */
/* Copies elements to the target of a Start, or combines them with those that are there.  With the lock, which is
   released if that takes long. */
void        pp_allreduce_gather(pp_ctx_t *ctx, const pp_allreduce_t *coll, const pp_piece_t *pieces, size_t count,
                                const pp_target_t *target);
/* Collects the request, as hand_out() does.  A result before it may still be read in place. */
pp_status_t pp_allreduce_collect(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view);
/* A More has a result to give, and makes a request for it; PP_PENDING: there is none. */
pp_status_t pp_allreduce_find_more(pp_handle_t *handle);

/* ---- what threads that look and work call (arrivals.c) ---- */

/* See pp_face_t. */
bool        pp_allreduce_link(pp_ctx_t *ctx, pp_handle_t *handle);
/* Frees the parts of Starts that have failed, when nothing is written to them any more. */
void        pp_staging_recover(pp_handle_t *handle);
/* Looks whether elements on their way have arrived; returns how many.  With the lock. */
int         pp_staging_look(pp_ctx_t *ctx);
/* Links elements that have arrived; false: there are none, or there is no room for them.  With the lock, which it may
   release. */
bool        pp_staging_work(pp_ctx_t *ctx);

#endif
