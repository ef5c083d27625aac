/* queue_face.c - Start and Wait of queues: copying in with the lock released if that takes long.  See context.h. */
#include "queue_face.h"
#include "wait_parts.h"

enum { SMALL_COPY_BYTES = 65536 };   /* up to this, copied under the lock */

static bool by_messages(const pp_queue_t *q) { return q->way == &pp_queue_by_messages; }

static pp_status_t fill(pp_ctx_t *ctx, pp_queue_t *q)
{
    const bool is_long = q->vector_bytes > SMALL_COPY_BYTES;
    q->iteration = pp_queues_due(q->machine);
    PP_TRY(q->way->make_room(q));
    q->averaged = false;
    if (is_long)
        pthread_mutex_unlock(&ctx->lock);
    q->way->load(q);
    if (is_long)
        pthread_mutex_lock(&ctx->lock);
    return pp_engine_check(&ctx->engine);
}

static pp_status_t ask(pp_ctx_t *ctx, pp_queue_t *q)
{
    PP_TRY(fill(ctx, q));
    pp_team_wait_begins(&q->handle, false);
    q->way->look(q);                 /* an update may be held back, or not wanted */
    pp_queue_tell(q, PP_QUEUES_START);
    pp_queue_go_on(q);
    pp_engine_settle(&ctx->engine);
    return pp_engine_check(&ctx->engine);
}

static pp_status_t start(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_queue_t *q = pp_queue_of(handle);
    if (handle->request.state != PP_IDLE)
        return pp_fail(PP_ERR_STATE, "Start on a request that was not collected: its Wait ended by a timeout, so wait for "
                       "it again; an iteration has one update");
    pp_look_after_call(ctx);         /* nobody waits for a rank that died while it was away */
    if (by_messages(q))
        pp_returned(ctx);
    const bool        arrived = by_messages(q) && pp_arrive(ctx);
    const pp_status_t status = ask(ctx, q);
    if (arrived)
        pp_leave(ctx, true);
    return status;
}

static pp_status_t give(pp_handle_t *handle) { return (void)handle, PP_PENDING; }
static bool        at_once(const pp_handle_t *handle) { return !by_messages(pp_queue_of(handle)); }

/* From here on the buffers are the library's, as long as the thread waits. */
static void waits(pp_ctx_t *ctx, pp_handle_t *handle, bool begins)
{
    pp_queue_t *q = pp_queue_of(handle);
    q->collecting += begins ? 1 : -1;
    if (begins && pp_handle_waits(handle) && q->due.kind == PP_QUEUES_NOTHING) {
        pp_queue_tell(q, PP_QUEUES_WAIT);
        q->way->look(q);
        pp_queue_go_on(q);
        pp_engine_settle(&ctx->engine);
    }
    while (!begins && q->collecting == 0 && q->workers > 0 && !ctx->freed)
        pp_make_way(ctx);
}

static pp_status_t hand_out(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view)
{
    (void)ctx, (void)view;           /* the elements are in the buffers of the application */
    handle->request.state = PP_IDLE;
    handle->request.timed_out = false;
    const pp_queues_result_t *given = &pp_queue_of(handle)->result;
    handle->sight.given = (struct pp_given){
        .key = (uint64_t)given->iteration + 1, .number = (uint64_t)given->iteration, .active = (int32_t)given->received,
        .staleness = (uint64_t)given->staleness, .missed = (uint64_t)given->skipped, .cause = -1, .initiator = -1};
    if (result)
        *result = (pp_result_t){.round = (uint64_t)given->iteration, .initiator = -1};
    return PP_OK;
}

static pp_status_t timed_out(pp_ctx_t *ctx, pp_handle_t *handle)
{
    (void)ctx;
    handle->request.timed_out = true;
    return PP_OK;
}

/* A request whose average is not there gives its Start's model; else the buffers have what this rank gives. */
static pp_status_t before_flush(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_queue_t *q = pp_queue_of(handle);
    const bool  starts = pp_handle_waits(handle) && !q->averaged;
    PP_TRY(q->way->give(q, starts));
    return pp_engine_check(&ctx->engine);
}

const pp_face_t pp_queue_face = {
    .start = start, .give = give, .waits = waits, .hand_out = hand_out, .at_once = at_once, .timed_out = timed_out,
    .before_flush = before_flush,
};
