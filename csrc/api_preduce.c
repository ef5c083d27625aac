/* api_preduce.c - the public functions on handles of P-Reduce: argument checks and the lock.  See api.h. */
#include "api.h"
#include "progress/staged_preduce.h"

static pp_status_t make(pp_ctx_t *ctx, const pp_preduce_config_t *config, pp_handle_t **handle)
{
    PP_TRY(pp_preduce_new(&ctx->team, config, handle));
    (*handle)->face = &pp_preduce_face;
    return PP_OK;
}

static pp_status_t bare(pp_ctx_t *ctx, pp_handle_t **handle) { return make(ctx, NULL, handle); }

pp_status_t pp_preduce_make(pp_ctx_t *ctx, const void *config, pp_handle_t **handle)
{
    const pp_preduce_config_t *c = config;
    *handle = NULL;
    PP_TRY(pp_preduce_check(&ctx->team, c));
    if (c->backend == PP_BACKEND_COMM && !ctx->mpi)
        return pp_fail(PP_ERR_ARGUMENT, "backend=\"comm\" needs MPI, which simulated ranks have not");
    return make(ctx, c, handle);
}

static pp_status_t stage(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_status_t status;
    PP_UNLOCKED(ctx, status, pp_staged_preduce_make(handle));
    return status < 0 ? status : pp_staged_preduce_open(ctx, handle);
}

static const pp_maker_t maker = {.make = pp_preduce_make, .bare = bare, .stage = stage};

pp_status_t pp_preduce_init_begin(pp_ctx_t *ctx, const pp_preduce_config_t *config, const char *complaint,
                                  pp_handle_t **out)
{
    return pp_init_begin(ctx, &maker, config, config && config->device != 0, complaint, out);
}

/* Locks the context of a handle of P-Reduce. */
static pp_status_t enter_preduce(pp_handle_t *handle, pp_ctx_t **ctx, pp_preduce_t **preduce)
{
    PP_TRY(pp_enter_handle(handle, ctx));
    if (pp_is_preduce(handle)) {
        *preduce = pp_preduce_of(handle);
        return PP_OK;
    }
    pp_unlock(*ctx);
    return pp_fail(PP_ERR_ARGUMENT, "handle %u is not a handle of P-Reduce", handle->id);
}

pp_status_t pp_preduce_start(pp_handle_t *handle, uint64_t iteration, const int32_t *members, int32_t count)
{
    pp_ctx_t     *ctx;
    pp_preduce_t *preduce = NULL;
    PP_TRY(enter_preduce(handle, &ctx, &preduce));
    preduce->asked.iteration = iteration;
    preduce->asked.members = members;
    preduce->asked.count = count;
    pp_status_t status = pp_start_locked(ctx, handle);
    preduce->asked.iteration = 0;
    preduce->asked.members = NULL;
    preduce->asked.count = 0;
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_preduce_result(pp_handle_t *handle, pp_group_result_t *result)
{
    pp_ctx_t *ctx;
    PP_TRY(pp_enter_still(handle, PP_IDLE, &ctx));
    pp_status_t status = PP_OK;
    if (!pp_is_preduce(handle))
        status = pp_fail(PP_ERR_ARGUMENT, "handle %u is not a handle of P-Reduce", handle->id);
    else if (!pp_preduce_of(handle)->described)
        status = pp_fail(PP_ERR_STATE, "no request has been collected yet");
    else
        *result = pp_preduce_of(handle)->result;
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_preduce_ran(pp_handle_t *handle)
{
    pp_ctx_t     *ctx;
    pp_preduce_t *preduce = NULL;
    PP_TRY(enter_preduce(handle, &ctx, &preduce));
    pp_status_t status = preduce->runs ? PP_OK : pp_fail(PP_ERR_STATE, "there is no group that the caller is to run");
    if (status >= 0) {
        preduce->runs = false;
        pp_team_wait_begins(handle, false);
        preduce->ops->ran(preduce);
        pp_engine_settle(&ctx->engine);
    }
    pp_unlock(ctx);
    return status;
}

/* Locks the context of a handle that the caller runs groups of, and whose buffers are on a device if that is needed. */
static pp_status_t enter_by_hand(pp_handle_t *handle, bool on_device, pp_ctx_t **ctx)
{
    pp_preduce_t *preduce = NULL;
    PP_TRY(enter_preduce(handle, ctx, &preduce));
    if ((handle->staging || !on_device) && preduce->config.backend == PP_BACKEND_COMM)
        return PP_OK;
    pp_unlock(*ctx);
    return pp_fail(PP_ERR_STATE, "the caller runs no groups of this handle, or its buffers are the host's");
}

pp_status_t pp_preduce_host(pp_handle_t *handle, void **elements)
{
    pp_ctx_t *ctx;
    *elements = NULL;
    PP_TRY(enter_by_hand(handle, true, &ctx));
    pp_status_t status = pp_staged_preduce_host(handle, elements);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_preduce_deliver(pp_handle_t *handle)
{
    pp_ctx_t *ctx;
    PP_TRY(enter_by_hand(handle, false, &ctx));
    pp_status_t status = handle->staging ? pp_staged_preduce_deliver(ctx, handle) : PP_OK;
    if (status >= 0)
        pp_preduce_of(handle)->undelivered = false;
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_preduce_average(pp_handle_t *handle, const void *comm, uint64_t round, double weight, double initial,
                               uint64_t divide_by)
{
    const pp_group_share_t share = {.group = round, .weight = weight, .initial_weight = initial, .divide_by = divide_by};
    pp_ctx_t *ctx;
    PP_TRY(enter_by_hand(handle, true, &ctx));
    pp_status_t status = pp_staged_preduce_average(ctx, handle, comm, &share);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_preduce_averaged(pp_handle_t *handle, uint64_t *round)
{
    pp_ctx_t *ctx;
    *round = 0;
    PP_TRY(enter_by_hand(handle, true, &ctx));
    *round = pp_staged_preduce_averaged(handle);
    pp_unlock(ctx);
    return PP_OK;
}

int32_t pp_preduce_backend(const pp_handle_t *handle)
{
    if (!pp_is_preduce(handle))
        return PP_BACKEND_AUTO;
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    return preduce->config.backend == PP_BACKEND_COMM ? PP_BACKEND_COMM
         : preduce->ops->sends                        ? PP_BACKEND_SCHEDULE
                                                      : PP_BACKEND_NODE;
}

pp_status_t pp_ctx_nodes(pp_ctx_t *ctx, int32_t *node_of)
{
    PP_TRY(pp_lock(ctx));
    for (int32_t rank = 0; rank < ctx->engine.size; rank++)
        node_of[rank] = ctx->nodes ? ctx->nodes->node_of[rank] : 0;
    pp_unlock(ctx);
    return PP_OK;
}
