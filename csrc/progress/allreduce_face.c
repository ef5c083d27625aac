/* allreduce_face.c - Start and Wait of a partial allreduce: copying in and out, with the lock released if that takes
   long.  See context.h. */
#include "../coll/rounds/time.h"
#include "../node/keeper.h"
#include "staging.h"

#include <stdlib.h>

enum {
    START_MOVES_BYTES = 262144,  /* up to this, Start itself may work at the reduction */
    BRIEF_COPY_BYTES = 262144    /* up to this, copied while attending: waking the progress thread would cost more */
};

/* On a device a copy is an operation of the device. */
static bool copies_long(const pp_allreduce_t *coll)
{
    const pp_staging_t *staging = coll->handle.staging;
    return coll->series.vectors.bytes > PP_SMALL_COPY_BYTES || (staging && staging->lane.folds);
}

/* ---- Start -------------------------------------------------------------------------------------------- */

/* Finds room for the elements.  While a round reads all parts, this rank works at the round. */
static pp_status_t find_target(pp_ctx_t *ctx, pp_allreduce_t *coll, pp_target_t *target)
{
    pp_status_t status;
    while ((status = coll->ops->aim(coll, target)) == PP_PENDING) {
        PP_TRY(pp_engine_check(&ctx->engine));
        if (!pp_work(ctx, NULL))
            pp_make_way(ctx);
        pp_look(ctx);
        PP_TRY(pp_engine_check(&ctx->engine));
    }
    return status;
}

static pp_status_t contribute(pp_ctx_t *ctx, pp_allreduce_t *coll, pp_target_t *target)
{
    PP_TRY(find_target(ctx, coll, target));
    pp_allreduce_gather(ctx, coll, coll->config.pieces, coll->config.piece_count, target);
    return PP_OK;
}

static pp_status_t start_and_settle(pp_ctx_t *ctx, pp_allreduce_t *coll, const pp_target_t *target)
{
    coll->ops->start(coll, target);
    pp_round_time_started(coll);
    coll->ops->settle(coll);
    if (coll->series.vectors.bytes <= START_MOVES_BYTES && pp_handle_waits(&coll->handle))
        pp_work(ctx, NULL);
    return PP_OK;
}

/* Whether the progress thread looks after messages while this thread copies, because the copy takes long. */
static bool leaves_messages(const pp_allreduce_t *coll) { return coll->series.vectors.bytes > BRIEF_COPY_BYTES; }

/* Attends to the messages that this rank's Start sends and finds. */
static pp_status_t start_attending(pp_ctx_t *ctx, pp_allreduce_t *coll)
{
    pp_target_t target;
    pp_returned(ctx);
    bool arrived = !leaves_messages(coll) && pp_arrive(ctx);
    /* Messages that have arrived are served before a target is found, because a round could take the target. */
    pp_look(ctx);
    pp_status_t status = contribute(ctx, coll, &target);
    if (status >= 0) {
        arrived = arrived || pp_arrive(ctx);
        status = start_and_settle(ctx, coll, &target);
    }
    if (arrived)
        pp_leave(ctx, true);
    return status;
}

static pp_status_t end_view(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    if (coll->viewed)
        coll->ops->end_view(coll);
    return PP_OK;
}

static pp_status_t start(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_target_t target;
    end_view(handle);
    if (coll->ops->sends)
        return start_attending(ctx, coll);
    PP_TRY(contribute(ctx, coll, &target));
    return start_and_settle(ctx, coll, &target);
}

/* ---- Wait ---------------------------------------------------------------------------------------------- */

static pp_status_t give(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    handle->request.at = coll->completed;
    if (!coll->ungiven)
        return PP_PENDING;
    coll->request.start = 0;
    coll->request.missed = 0;
    pp_deliver_complete_request(coll);
    return PP_OK;
}

static void give_up(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    if (coll->ops->end_landing)
        coll->ops->end_landing(coll);
}

static bool at_once(const pp_handle_t *handle) { return pp_allreduce_of(handle)->ops->copy_out; }

/* Takes the outcome from the request: only the caller has it then. */
static pp_outcome_t *take_outcome(pp_allreduce_t *coll)
{
    pp_outcome_t *outcome = coll->request.outcome;
    coll->request.outcome = NULL;
    coll->handle.request.state = PP_IDLE;
    coll->handle.request.timed_out = false;
    return outcome;
}

/* The application gets sendbuf back, if rounds read it in place. */
static pp_status_t return_sendbuf(pp_ctx_t *ctx, pp_allreduce_t *coll)
{
    if (!coll->ops->return_users)
        return PP_OK;
    bool large = copies_long(coll);
    while (coll->users_parts != 0) {
        if (large)
            pthread_mutex_unlock(&ctx->lock);
        bool returned = coll->ops->return_users(coll);
        if (large)
            pthread_mutex_lock(&ctx->lock);
        if (returned)                    /* also after a failure: the result was complete before */
            continue;
        if (!pp_work(ctx, NULL))
            pp_make_way(ctx);
        PP_TRY(pp_engine_check(&ctx->engine));
    }
    return PP_OK;
}

/* Lets the application read the result in place, if that is possible.  The memory stays mapped while the keeper lives.
   */
static bool views(pp_ctx_t *ctx, pp_allreduce_t *coll, const pp_outcome_t *outcome, pp_view_out_t *view)
{
    if (!view || !coll->ops->view || !(view->elements = coll->ops->view(coll, outcome)))
        return false;
    view->keeper = pp_keeper_hold(ctx->engine.node);
    if (view->keeper)
        return true;
    coll->ops->end_view(coll);
    view->elements = NULL;
    return false;
}

/* False: a later round has used the result's entry on the board. */
static bool copy_out(pp_ctx_t *ctx, pp_allreduce_t *coll, const pp_outcome_t *outcome, pp_view_out_t *view)
{
    if (views(ctx, coll, outcome, view))
        return true;
    if (outcome->lies != PP_NOWHERE)
        return coll->ops->copy_out(coll, outcome);
    pp_deliver_copy_out(coll, outcome);
    return true;
}

/* Copies the result out, with the lock released if that takes long.  If the result was overwritten, the newest one.
   NULL: there is none, because of a failure. */
static pp_outcome_t *copy_newest(pp_ctx_t *ctx, pp_allreduce_t *coll, pp_view_out_t *view)
{
    bool large = copies_long(coll);
    for (;;) {
        pp_outcome_t *outcome = take_outcome(coll);
        if (large) {
            coll->copied = outcome;
            pthread_mutex_unlock(&ctx->lock);
        }
        bool copied = copy_out(ctx, coll, outcome, view);
        if (large) {
            pthread_mutex_lock(&ctx->lock);
            coll->copied = NULL;
        }
        if (copied)
            return outcome;
        pp_outcome_free(coll, outcome);
        pp_look(ctx);
        if (!coll->ungiven)
            return NULL;
        pp_deliver_complete_request(coll);
    }
}

/* The round that a Start is the first to be able to join follows the one that was given last. */
static void tell_sight(pp_allreduce_t *coll, const pp_outcome_t *outcome)
{
    struct pp_given *given = &coll->handle.sight.given;
    const pp_tally_t *tally = &outcome->tally;
    *given = (struct pp_given){
        .key = given->next + 1, .number = outcome->round, .next = outcome->round + 1,
        .contributions = tally->contributions,
        .missed = coll->request.missed, .staleness = outcome->staleness, .active = (int32_t)tally->active,
        .cause = (int32_t)tally->cause, .initiator = tally->initiator == PP_NO_INITIATOR ? -1 : (int32_t)tally->initiator,
        .late = coll->request.start > 0 && outcome->round < coll->handle.request.at, .external = outcome->external};
}

pp_status_t pp_allreduce_collect(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    PP_TRY(return_sendbuf(ctx, coll));
    pp_status_t   status = PP_OK;
    pp_outcome_t *outcome = copy_newest(ctx, coll, view);
    if (!outcome && (status = pp_engine_check(&ctx->engine)) >= 0)
        status = pp_fail(PP_ERR_INTERNAL, "handle %u: a result was overwritten, and there is no newer one", handle->id);
    else if (outcome)
        tell_sight(coll, outcome);
    if (outcome && result)
        pp_deliver_describe(coll, outcome, coll->request.start, coll->request.missed, result);
    pp_outcome_free(coll, outcome);
    give_up(handle);
    pp_patience_given(&coll->handle);
    if (coll->ops->handed_out && coll->ops->handed_out(coll))
        pp_engine_settle(&ctx->engine);
    return status;
}

static pp_status_t hand_out(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view)
{
    end_view(handle);
    return pp_allreduce_collect(ctx, handle, result, view);
}

static pp_status_t timed_out(pp_ctx_t *ctx, pp_handle_t *handle)
{
    PP_TRY(return_sendbuf(ctx, pp_allreduce_of(handle)));
    handle->request.timed_out = true;
    return PP_OK;
}

pp_status_t pp_allreduce_find_more(pp_handle_t *handle)
{
    if (pp_allreduce_of(handle)->config.deliver != PP_EACH)
        return pp_fail(PP_ERR_STATE, "More is for deliver=\"each\": with \"sum\" and \"latest\" a Wait gives all there "
                       "is");
    pp_status_t status = give(handle);
    return status == PP_OK && handle->request.state != PP_COMPLETE ? PP_PENDING : status;
}

static pp_status_t more(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result)
{
    pp_status_t status = pp_allreduce_find_more(handle);
    return status == PP_OK ? hand_out(ctx, handle, result, NULL) : status;
}

const pp_face_t pp_allreduce_face = {
    .start = start, .give = give, .give_up = give_up, .hand_out = hand_out, .at_once = at_once, .timed_out = timed_out,
    .more = more, .end_view = end_view,
};
