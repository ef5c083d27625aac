/* gossip_face.c - Start and Wait of gossip, and the model itself: what is copied long is copied with the lock released.
   See gossip_face.h. */
#include "gossip_face.h"
#include "staged_preduce.h"
#include "wait_parts.h"

/* ---- Start and Wait -------------------------------------------------------------------------------------------- */

/* Many elements get to the slot before the machine is told, without the node's lock. */
static pp_status_t add(pp_ctx_t *ctx, pp_gossip_t *gossip)
{
    bool filled;
    if (!gossip->add || gossip->adds_at_once)
        return PP_OK;
    void *slot = pp_gossip_open_slot(gossip, &filled);
    if (!slot)
        return pp_engine_check(&ctx->engine);
    pthread_mutex_unlock(&ctx->lock);
    PP_STEP("add");
    pp_gossip_put(gossip, slot, filled);
    PP_STEP("add");
    pthread_mutex_lock(&ctx->lock);
    return pp_engine_check(&ctx->engine);
}

static void look(pp_handle_t *handle)
{
    if (handle->ops->poll)
        handle->ops->poll(handle);
}

static pp_status_t ask(pp_ctx_t *ctx, pp_gossip_t *gossip)
{
    pp_preduce_t *preduce = &gossip->base;
    preduce->iteration++;
    pp_team_wait_begins(&preduce->handle, false);
    pp_status_t status = pp_gossip_ask(gossip, true);
    if (status < 0 && !ctx->engine.error) {
        preduce->iteration--;
        pp_team_wait_ends(&preduce->handle, false, PP_IDLE);
    }
    look(&preduce->handle);
    pp_engine_settle(&ctx->engine);
    while (status >= 0 && preduce->ops->has_begun && preduce->ops->has_begun(preduce) && !ctx->engine.error
           && pp_work(ctx, NULL))
        continue;
    return status < 0 ? status : pp_engine_check(&ctx->engine);
}

static bool is_holder(const pp_gossip_t *gossip)
{
    return gossip->hold == PP_HOLDS && gossip->holder == (uint64_t)pthread_self();
}

static pp_status_t start(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_gossip_t *gossip = pp_gossip_of(handle);
    if (gossip->hold != PP_HOLDS_NOTHING)
        return is_holder(gossip)
            ? pp_fail(PP_ERR_STATE, "Start inside locked(): there the model is the application's; change it in place")
            : pp_fail(PP_ERR_STATE, "Start while another thread is inside locked() or Read");
    pp_look_after_call(ctx);
    PP_TRY(pp_engine_check(&ctx->engine));
    if (gossip->base.ops->sends)
        pp_returned(ctx);
    const bool  arrived = gossip->base.ops->sends && pp_arrive(ctx);
    pp_status_t status = add(ctx, gossip);
    if (status >= 0)
        status = handle->request.state == PP_IDLE ? ask(ctx, gossip) : pp_gossip_ask(gossip, false);
    if (arrived)
        pp_leave(ctx, true);
    return status;
}

static pp_status_t give(pp_handle_t *handle) { return (void)handle, PP_PENDING; }
static bool at_once(const pp_handle_t *handle) { return !pp_preduce_of(handle)->ops->sends; }

static pp_status_t hand_out(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    const void   *vector = pp_gossip_of(handle)->result;
    (void)view;                      /* the elements are in the buffers of the application, as after a Wait */
    handle->request.state = PP_IDLE;
    handle->request.timed_out = false;
    if (vector)
        pp_preduce_copy_out(ctx, preduce, vector);
    handle->sight.given = pp_preduce_given(preduce, (uint64_t)pp_gossip_of(handle)->staleness);
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

const pp_face_t pp_gossip_face = {
    .start = start, .give = give, .hand_out = hand_out, .at_once = at_once, .timed_out = timed_out,
};

/* ---- the model itself ------------------------------------------------------------------------------------------ */

pp_status_t pp_check_holds_none(pp_ctx_t *ctx, const char *what)
{
    if (ctx->holds == 0)
        return PP_OK;
    PP_FOR_EACH_HANDLE(&ctx->engine, handle)
        if (pp_is_gossip(handle) && is_holder(pp_gossip_of(handle)))
            return pp_fail(PP_ERR_STATE, "%s inside locked(): it may wait for ranks that wait for the model; leave the "
                           "block first", what);
    return PP_OK;
}

/* Also of averages that go on by themselves: this one is over. */
static bool has_no_request(const void *arg)
{
    pp_gossip_t *gossip = pp_gossip_of(arg);
    return gossip->base.handle.request.state != PP_OUTSTANDING && !(gossip->continuous.are_on && pp_gossip_asks(gossip));
}

static bool may_hold(const void *arg)
{
    const pp_gossip_t *gossip = arg;
    return gossip->way->may_hold(gossip);
}

/* A request of this rank is served first; that takes no other rank's Start. */
static pp_status_t begin_hold(pp_ctx_t *ctx, pp_gossip_t *gossip, int64_t timeout_us)
{
    pp_handle_t *handle = &gossip->base.handle;
    PP_TRY(pp_check_holds_none(ctx, "locked() or Read"));
    if (gossip->hold == PP_HOLDS)
        return pp_fail(PP_ERR_STATE, "another thread is inside locked() or Read");
    if (gossip->hold == PP_ASKS_TO_HOLD)
        return PP_OK;
    PP_TRY(pp_call_check_none(&ctx->calls, "locked() or Read"));
    pp_look_after_call(ctx);
    PP_TRY(pp_engine_check(&ctx->engine));
    pp_status_t status = pp_help_until(ctx, has_no_request, handle, timeout_us, NULL);
    if (status == PP_OK)
        status = pp_gossip_ask_to_hold(gossip);
    if (status == PP_OK)
        look(handle);
    pp_engine_settle(&ctx->engine);
    return status;
}

pp_status_t pp_gossip_hold_locked(pp_ctx_t *ctx, pp_gossip_t *gossip, int64_t timeout_us, void **model)
{
    pp_status_t status = begin_hold(ctx, gossip, timeout_us);
    if (status == PP_OK)
        status = pp_help_until(ctx, may_hold, gossip, timeout_us, NULL);
    if (status != PP_OK)
        return status;
    gossip->hold = PP_HOLDS;
    gossip->holder = (uint64_t)pthread_self();
    ctx->holds++;
    *model = gossip->way->model(gossip);
    pthread_mutex_unlock(&ctx->lock);
    pp_gossip_fold(gossip);
    pthread_mutex_lock(&ctx->lock);
    return PP_OK;
}

pp_status_t pp_gossip_release_locked(pp_ctx_t *ctx, pp_gossip_t *gossip)
{
    ctx->holds -= gossip->hold == PP_HOLDS;
    PP_TRY(pp_engine_check(&ctx->engine));
    if (gossip->hold == PP_HOLDS_NOTHING)
        return PP_OK;
    pp_status_t status = pp_gossip_let_go(gossip);
    pp_engine_settle(&ctx->engine);
    return status;
}
