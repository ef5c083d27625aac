/* api_queues.c - the public functions on handles of queues: argument checks and the lock.  See api.h. */
#include "api.h"
#include "progress/queue_face.h"

static pp_status_t make(pp_ctx_t *ctx, const pp_queues_config_t *config, pp_handle_t **handle)
{
    PP_TRY(pp_queue_new(&ctx->team, config, handle));
    (*handle)->face = &pp_queue_face;
    return PP_OK;
}

static pp_status_t bare(pp_ctx_t *ctx, pp_handle_t **handle) { return make(ctx, NULL, handle); }

static pp_status_t make_checked(pp_ctx_t *ctx, const void *config, pp_handle_t **handle)
{
    *handle = NULL;
    PP_TRY(pp_queue_check(&ctx->team, config));
    return make(ctx, config, handle);
}

static const pp_maker_t maker = {.make = make_checked, .bare = bare};

pp_status_t pp_queue_init_begin(pp_ctx_t *ctx, const pp_queues_config_t *config, const char *complaint,
                                pp_handle_t **out)
{
    return pp_init_begin(ctx, &maker, config, false, complaint, out);
}

static pp_status_t enter_queue(pp_handle_t *handle, pp_ctx_t **ctx)
{
    PP_TRY(pp_enter_still(handle, PP_IDLE, ctx));
    if (pp_is_queue(handle))
        return PP_OK;
    pp_unlock(*ctx);
    return pp_fail(PP_ERR_ARGUMENT, "handle %u is not a handle of queues", handle->id);
}

pp_status_t pp_queue_result(pp_handle_t *handle, pp_queues_result_t *result)
{
    pp_ctx_t *ctx;
    PP_TRY(enter_queue(handle, &ctx));
    *result = pp_queue_of(handle)->result;
    pp_unlock(ctx);
    return PP_OK;
}

pp_status_t pp_queue_size(pp_handle_t *handle, int64_t iteration, int32_t rank, int32_t *size)
{
    pp_ctx_t *ctx;
    PP_TRY(enter_queue(handle, &ctx));
    pp_queue_t   *q = pp_queue_of(handle);
    const int32_t in = rank < 0 ? -1 : pp_queue_find(q->config.ins, q->config.plan.in, rank);
    pp_status_t   status = PP_OK;
    q->way->look(q);
    if (rank >= 0 && in < 0)
        status = pp_fail(PP_ERR_ARGUMENT, "rank %d is no in-neighbour of this rank", rank);
    else
        *size = pp_queues_size(q->machine, iteration, in);
    pp_unlock(ctx);
    return status;
}
