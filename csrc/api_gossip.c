/* api_gossip.c - the public functions on handles of gossip: argument checks and the lock.  See api.h. */
#include "api.h"
#include "progress/gossip_face.h"

static pp_status_t make(pp_ctx_t *ctx, const void *config, pp_handle_t **handle)
{
    *handle = NULL;
    if (!config)
        return pp_fail(PP_ERR_ARGUMENT, "config is NULL");
    PP_TRY(pp_gossip_new(&ctx->team, config, handle));
    (*handle)->face = &pp_gossip_face;
    return PP_OK;
}

static pp_status_t bare(pp_ctx_t *ctx, pp_handle_t **handle) { return pp_gossip_new(&ctx->team, NULL, handle); }

static const pp_maker_t maker = {.make = make, .bare = bare};

pp_status_t pp_gossip_init_begin(pp_ctx_t *ctx, const pp_gossip_config_t *config, const char *complaint,
                                 pp_handle_t **out)
{
    return pp_init_begin(ctx, &maker, config, false, complaint, out);
}

static pp_status_t check(const pp_handle_t *handle)
{
    return pp_is_gossip(handle) ? PP_OK : pp_fail(PP_ERR_ARGUMENT, "handle %u is not a handle of gossip", handle->id);
}

/* Locks the context of a handle of gossip. */
static pp_status_t enter_gossip(pp_handle_t *handle, pp_ctx_t **ctx)
{
    PP_TRY(pp_enter_handle(handle, ctx));
    pp_status_t status = check(handle);
    if (status < 0)
        pp_unlock(*ctx);
    return status;
}

pp_status_t pp_gossip_start(pp_handle_t *handle, const pp_piece_t *add, size_t count)
{
    pp_ctx_t *ctx;
    PP_TRY(enter_gossip(handle, &ctx));
    pp_status_t status = pp_gossip_add(pp_gossip_of(handle), add, count);
    if (status >= 0)
        status = pp_start_locked(ctx, handle);
    pp_gossip_of(handle)->add = NULL;
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_gossip_result(pp_handle_t *handle, pp_gossip_result_t *result)
{
    pp_ctx_t *ctx;
    PP_TRY(pp_enter_still(handle, PP_IDLE, &ctx));
    pp_status_t status = check(handle);
    if (status >= 0 && !pp_preduce_of(handle)->described)
        status = pp_fail(PP_ERR_STATE, "no request has been collected yet");
    if (status >= 0)
        *result = (pp_gossip_result_t){.group = pp_preduce_of(handle)->result,
                                       .staleness = pp_gossip_of(handle)->staleness};
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_gossip_hold(pp_handle_t *handle, int64_t timeout_us, void **model)
{
    pp_ctx_t *ctx;
    *model = NULL;
    PP_TRY(enter_gossip(handle, &ctx));
    pp_status_t status = pp_gossip_hold_locked(ctx, pp_gossip_of(handle), timeout_us, model);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_gossip_release(pp_handle_t *handle)
{
    pp_ctx_t *ctx;
    if (!handle || !handle->engine)
        return pp_refuse_handle();
    ctx = (pp_ctx_t *)((char *)handle->engine - offsetof(pp_ctx_t, engine));
    PP_TRY(pp_lock(ctx));
    pp_status_t status = check(handle);
    if (status >= 0)
        status = pp_gossip_release_locked(ctx, pp_gossip_of(handle));
    pp_unlock(ctx);
    return status;
}
