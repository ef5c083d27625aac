/* preduce_face.c - Start and Wait of P-Reduce: copying in and out, with the lock released if that takes long.  See
   context.h. */
#include "../coll/patience.h"
#include "staged_preduce.h"

enum { SMALL_COPY_BYTES = 65536 };   /* up to this, copied under the lock */

static bool copies_long(const pp_preduce_t *preduce) { return preduce->vector_bytes > SMALL_COPY_BYTES; }

static void copy_in(pp_ctx_t *ctx, const pp_preduce_t *preduce, void *vector)
{
    if (copies_long(preduce))
        pthread_mutex_unlock(&ctx->lock);
    pp_preduce_load(preduce, vector);
    if (copies_long(preduce))
        pthread_mutex_lock(&ctx->lock);
}

void pp_preduce_copy_out(pp_ctx_t *ctx, const pp_preduce_t *preduce, const void *vector)
{
    if (copies_long(preduce))
        pthread_mutex_unlock(&ctx->lock);
    pp_preduce_store(preduce, preduce->config.pieces, vector);
    if (copies_long(preduce))
        pthread_mutex_lock(&ctx->lock);
}

pp_status_t pp_preduce_fill(pp_ctx_t *ctx, pp_preduce_t *preduce)
{
    void *vector = preduce->ops->aim(preduce);
    PP_TRY(pp_engine_check(&ctx->engine));
    if (vector)
        copy_in(ctx, preduce, vector);
    return pp_engine_check(&ctx->engine);
}

void pp_preduce_request(pp_preduce_t *preduce)
{
    preduce->iteration = preduce->asked.iteration ? preduce->asked.iteration : preduce->iteration + 1;
    preduce->undelivered = preduce->config.backend == PP_BACKEND_COMM;
    pp_team_wait_begins(&preduce->handle, false);
}

pp_status_t pp_preduce_ask(pp_ctx_t *ctx, pp_preduce_t *preduce)
{
    pp_group_time_before_start(preduce);
    PP_TRY(preduce->ops->ask(preduce));
    if (preduce->handle.ops->poll)
        preduce->handle.ops->poll(&preduce->handle);
    pp_group_time_started(preduce);
    pp_engine_settle(&ctx->engine);
    return pp_engine_check(&ctx->engine);
}

static pp_status_t ask(pp_ctx_t *ctx, pp_preduce_t *preduce)
{
    const uint64_t before = preduce->iteration;
    pp_preduce_request(preduce);
    pp_status_t status = pp_preduce_ask(ctx, preduce);
    if (status < 0 && !ctx->engine.error) {
        preduce->iteration = before;
        preduce->undelivered = false;
        pp_team_wait_ends(&preduce->handle, false, PP_IDLE);
    }
    while (status >= 0 && preduce->ops->has_begun && preduce->ops->has_begun(preduce) && !ctx->engine.error
           && pp_work(ctx, NULL))
        continue;
    return status < 0 ? status : pp_engine_check(&ctx->engine);
}

pp_status_t pp_preduce_check_start(const pp_preduce_t *preduce)
{
    if (preduce->handle.request.state != PP_IDLE)
        return pp_fail(PP_ERR_STATE, "Start on a request that was not collected: its Wait ended by a timeout, so wait for "
                       "it again; the models of two Starts cannot be averaged in one group");
    if (preduce->undelivered)
        return pp_fail(PP_ERR_STATE, "Start on a request that was not collected: its Wait did not return, so wait for "
                       "it again");
    return pp_preduce_check_asked(preduce);
}

static pp_status_t start(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    PP_TRY(pp_preduce_check_start(preduce));
    if (preduce->ops->sends)
        pp_returned(ctx);
    bool arrived = preduce->ops->sends && pp_arrive(ctx);
    pp_status_t status = pp_preduce_fill(ctx, preduce);
    if (status >= 0)
        status = ask(ctx, preduce);
    if (arrived)
        pp_leave(ctx, true);
    return status;
}

/* With backend "comm" groups run, and results are delivered, beside the core.  So a request is not over when one of them
   is handed out: if that has failed, or was interrupted, a Wait that is repeated is given the same again. */
static pp_status_t give(pp_handle_t *handle)
{
    if (!pp_preduce_of(handle)->undelivered)
        return PP_PENDING;
    handle->request.state = PP_COMPLETE;
    return PP_OK;
}

static bool at_once(const pp_handle_t *handle) { return !pp_preduce_of(handle)->ops->sends; }

static pp_status_t hand_out(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    const void   *vector = preduce->ops->vector(preduce);
    (void)view;                      /* the elements are in the buffers of the application, as after a Wait */
    handle->request.state = PP_IDLE;
    handle->request.timed_out = false;
    preduce->runs = preduce->result.runs;
    if (vector && !preduce->runs)
        pp_preduce_copy_out(ctx, preduce, vector);
    pp_patience_given(&preduce->handle);
    handle->sight.given = pp_preduce_given(preduce, 0);
    if (result)
        *result = (pp_result_t){.round = preduce->result.round, .initiator = -1};
    return PP_OK;
}

static pp_status_t timed_out(pp_ctx_t *ctx, pp_handle_t *handle)
{
    (void)ctx;
    handle->request.timed_out = true;
    return PP_OK;
}

/* A request that is not collected has its vector; else the application's buffers have. */
static pp_status_t before_flush(pp_ctx_t *ctx, pp_handle_t *handle)
{
    return handle->request.state == PP_IDLE ? pp_preduce_fill(ctx, pp_preduce_of(handle)) : PP_OK;
}

const pp_face_t pp_preduce_face = {
    .start = start, .give = give, .hand_out = hand_out, .at_once = at_once, .timed_out = timed_out,
    .before_flush = before_flush,
};
