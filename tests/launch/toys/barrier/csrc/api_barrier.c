/* api_barrier.c - making partial barriers, and what applications do with them.  See api.h. */
#include "api.h"
#include "coll/barrier/barrier.h"

static pp_status_t start(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_returned(ctx);
    bool arrived = pp_arrive(ctx);           /* an application thread that is inside attends to messages */
    pp_barrier_come(handle);
    pp_engine_settle(&ctx->engine);
    if (arrived)
        pp_leave(ctx, true);
    return pp_engine_check(&ctx->engine);
}

static pp_status_t give(pp_handle_t *handle) { return (void)handle, PP_PENDING; }
static bool        at_once(const pp_handle_t *handle) { return (void)handle, false; }

static pp_status_t hand_out(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view)
{
    (void)ctx, (void)view;
    handle->request.state = PP_IDLE;
    handle->request.timed_out = false;
    if (result)
        *result = (pp_result_t){.initiator = -1};
    return PP_OK;
}

static pp_status_t timed_out(pp_ctx_t *ctx, pp_handle_t *handle) { return (void)ctx, (void)handle, PP_OK; }

static const pp_face_t face = {
    .start = start, .give = give, .hand_out = hand_out, .at_once = at_once, .timed_out = timed_out,
};

static pp_status_t make(pp_ctx_t *ctx, const void *config, pp_handle_t **handle)
{
    const int32_t k = *(const int32_t *)config;
    if (k < 1 || k > ctx->engine.size)
        return pp_fail(PP_ERR_ARGUMENT, "k=%d is not in 1..%d", k, ctx->engine.size);
    PP_TRY(pp_barrier_new(&ctx->team, k, handle));
    (*handle)->face = &face;
    return PP_OK;
}

static pp_status_t bare(pp_ctx_t *ctx, pp_handle_t **handle) { return make(ctx, &(int32_t){1}, handle); }

static const pp_maker_t maker = {.make = make, .bare = bare};

pp_status_t pp_barrier_init_begin(pp_ctx_t *ctx, const int32_t *k, const char *complaint, pp_handle_t **out)
{
    return pp_init_begin(ctx, &maker, k, false, complaint, out);
}
