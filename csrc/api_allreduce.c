/* api_allreduce.c - making handles of the partial allreduce: the checks of arguments.  See api.h. */
#include "api.h"
#include "coll/rounds/allreduce.h"
#include "progress/staging.h"

static pp_status_t check_config(const pp_ctx_t *ctx, const pp_allreduce_config_t *config)
{
    const pp_allreduce_config_t *c = config;
    if (!c)
        return pp_fail(PP_ERR_ARGUMENT, "config is NULL");
    if (!pp_op_supports(c->op, c->type))
        return pp_fail(PP_ERR_ARGUMENT, "operation %s is not defined on %s", pp_op_name(c->op),
                       pp_type_name(c->type));
    if (!pp_policy_name(c->policy))
        return pp_fail(PP_ERR_ARGUMENT, "policy=%d is not a pp_policy_t", c->policy);
    if (c->policy_k < 1 || c->policy_k > ctx->engine.size)
        return pp_fail(PP_ERR_ARGUMENT, "k=%d of the policy is not in 1..%d", c->policy_k,
                       ctx->engine.size);
    if (c->deliver < 0 || c->deliver >= PP_DELIVER_COUNT)
        return pp_fail(PP_ERR_ARGUMENT, "deliver=%d is not a pp_deliver_t", c->deliver);
    if (c->max_lag < 0 && c->deliver != PP_LATEST)
        return pp_fail(PP_ERR_ARGUMENT, "max_lag=%d: only deliver=\"latest\" can be unbounded",
                       c->max_lag);
    if (c->max_lag >= ctx->team.window)
        return pp_fail(PP_ERR_ARGUMENT, "max_lag=%d needs a window of at least %d, but the context has window=%d",
                       c->max_lag, c->max_lag + 1, ctx->team.window);
    if (c->algorithm < 0 || c->algorithm > pp_algorithm_count())
        return pp_fail(PP_ERR_ARGUMENT, "algorithm=%d is not the number of an algorithm", c->algorithm);
    if (c->segments < 0 || c->segments > PP_LANES_MAX)
        return pp_fail(PP_ERR_ARGUMENT, "segments=%d is not in 0..%d", c->segments, PP_LANES_MAX);
    if (!pp_memory_of(c->memory))
        return pp_fail(PP_ERR_ARGUMENT, "memory=%d is not a kind of memory", c->memory);
    if (c->deadline_ns < 0)
        return pp_fail(PP_ERR_ARGUMENT, "deadline_ns=%lld is negative", (long long)c->deadline_ns);
    if (c->average < PP_AVERAGE_NONE || c->average > PP_AVERAGE_CONTRIBUTIONS)
        return pp_fail(PP_ERR_ARGUMENT, "average=%d is not a pp_average_t", c->average);
    return PP_OK;
}

static pp_status_t check_average(const pp_allreduce_config_t *config)
{
    pp_kernels_t kernels;
    PP_TRY(pp_kernels_find(config->op, config->type, &kernels));
    if (config->average != PP_AVERAGE_NONE && (config->op != PP_SUM || !kernels.divide))
        return pp_fail(PP_ERR_ARGUMENT, "an average needs SUM of a floating type, not %s of %s",
                       pp_op_name(config->op), pp_type_name(config->type));
    return PP_OK;
}

static pp_status_t make(pp_ctx_t *ctx, const pp_allreduce_config_t *config, pp_handle_t **handle)
{
    PP_TRY(pp_allreduce_new(&ctx->team, config, handle));
    (*handle)->face = &pp_allreduce_face;
    return PP_OK;
}

static pp_status_t bare(pp_ctx_t *ctx, pp_handle_t **handle) { return make(ctx, NULL, handle); }

pp_status_t pp_allreduce_make(pp_ctx_t *ctx, const void *config, pp_handle_t **handle)
{
    *handle = NULL;
    PP_TRY(check_config(ctx, config));
    PP_TRY(check_average(config));
    return make(ctx, config, handle);
}

static pp_status_t stage(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_status_t status;
    PP_UNLOCKED(ctx, status, pp_staging_open(handle));
    return status;
}

static const pp_maker_t maker = {.make = pp_allreduce_make, .bare = bare, .stage = stage};

pp_status_t pp_allreduce_init_begin(pp_ctx_t *ctx, const pp_allreduce_config_t *config, const char *complaint,
                                    pp_handle_t **out)
{
    return pp_init_begin(ctx, &maker, config, config && config->device != 0, complaint, out);
}
