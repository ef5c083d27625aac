/* staging.c - see staging.h. */
#include "direct.h"
#include "vault.h"
#include "../coll/rounds/time.h"

#include <stdlib.h>

/* ---- opening ---------------------------------------------------------------------------------------------- */

/* Copies may go to the memory of the node, if rounds are made there, of elements that need not be converted. */
static bool may_be_in_place(const pp_handle_t *handle)
{
    const pp_allreduce_config_t *config = &pp_allreduce_of(handle)->config;
    return handle->team->engine->node && handle->staging->bytes >= PP_PAGE
        && pp_accumulator_bytes(config->type) == pp_type_bytes(config->type);
}

/* Pins now what the handle is about to need. */
static pp_status_t prepare(pp_handle_t *handle)
{
    enum { MORE_AT_FIRST = 2 };      /* for a Start, and for a result on its way */
    const pp_allreduce_config_t *config = &pp_allreduce_of(handle)->config;
    pp_staging_t *staging = handle->staging;
    pp_pinned_t  *pinned;
    if (config->device_path == PP_DEVICE_IPC)
        PP_TRY(pp_vault_ask(handle, &pp_vault_of_rounds, config->no_path));
    if (config->device_path == PP_DEVICE_DIRECT)
        PP_TRY(pp_direct_ask(handle, config->no_path));
    if (may_be_in_place(handle)) {
        PP_TRY(pp_in_place_pin(staging));
        pp_in_place_begin(handle);
        return PP_OK;
    }
    for (int i = 0; i < MORE_AT_FIRST; i++) {
        PP_TRY(pp_lane_pin(&staging->lane, staging->bytes, &pinned));
        pp_staging_keep(&staging->spare, pinned);
    }
    return PP_OK;
}

pp_status_t pp_staging_open(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    PP_TRY(pp_staging_make(handle, coll->config.pieces, coll->config.piece_count, pp_type_bytes(coll->config.type),
                           coll->config.device - 1, prepare));
    handle->face = &pp_staged_allreduce_face;
    pp_piece_t *pieces = (pp_piece_t *)coll->config.pieces;
    pieces[0] = (pp_piece_t){.count = coll->count};
    coll->config.piece_count = 1;
    pp_in_place_set_receive(coll, handle->staging->receive);
    return PP_OK;
}

/* ---- Start ------------------------------------------------------------------------------------------------- */

static void append(pp_staging_t *staging, pp_flight_t *flight)
{
    if (staging->flights)
        staging->last->next = flight;
    else
        staging->flights = flight;
    staging->last = flight;
}

/* The driver waits where a stream has no room for more work. */
static pp_status_t queue(pp_ctx_t *ctx, pp_handle_t *handle, pp_flight_t **out)
{
    pp_staging_t *staging = handle->staging;
    pp_flight_t  *flight = calloc(1, sizeof *flight);
    if (!flight)
        return pp_fail(PP_ERR_MEMORY, "no memory for a Start");
    pp_status_t status = pp_in_place_reserve(handle, flight);
    if (status == PP_PENDING)
        status = pp_staging_take_spare(handle, &flight->pinned);
    if (status >= 0) {
        PP_UNLOCKED(ctx, status, pp_lane_out(&staging->lane, staging->sends, staging->spans, flight->pinned,
                                             staging->stream));
        if (status < 0)
            pp_staging_refused(handle, flight->pinned, status);
        if (status < 0 && flight->reserved) {
            pp_in_place_give_up(handle, flight);
            return status;
        }
        if (status < 0)
            pp_staging_keep(&staging->spare, flight->pinned);
    }
    if (status < 0)
        free(flight);
    else
        *out = flight;
    return status;
}

/* The application gets its request, as from any Start.  That it waits is told to the other ranks when the elements are
   linked. */
static void request(pp_ctx_t *ctx, pp_allreduce_t *coll, pp_flight_t *flight)
{
    flight->since_ns = coll->handle.clock.given_ns;
    coll->handle.clock.given_ns = 0;
    flight->given = coll->ops->request(coll);
    coll->on_their_way++;
    append(coll->handle.staging, flight);
    pp_staging_fly(ctx, flight);
    pp_staging_count(ctx, coll->handle.staging, flight->pinned);
    pp_round_time_started(coll);
    coll->ops->settle(coll);
}

static pp_status_t start(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_flight_t    *flight = NULL;
    PP_TRY(pp_staging_check(handle));
    PP_TRY(pp_in_place_end_view(handle));
    /* Without a progress thread a rank that is always late would never link what has arrived. */
    while (!ctx->has_thread && (pp_look(ctx) > 0 || pp_staging_work(ctx)))
        continue;
    PP_TRY(queue(ctx, handle, &flight));
    pp_returned(ctx);
    bool arrived = coll->ops->sends && pp_arrive(ctx);
    pp_look(ctx);                    /* a round that is complete makes the request late */
    request(ctx, coll, flight);
    if (arrived)
        pp_leave(ctx, true);
    else
        pp_leave_flight(ctx, true);
    return pp_engine_check(&ctx->engine);
}

/* ---- results ------------------------------------------------------------------------------------------------ */

static pp_flight_t *find_unfollowed(const pp_staging_t *staging)
{
    pp_flight_t *flight = staging->flights;
    while (flight && (flight->arrived || flight->followed))
        flight = flight->next;
    return flight;
}

/* The result of a request that is late may come while its own contribution is still to be read from the buffer to which
   the result goes.  So what is queued on the stream of this call from now on comes after the copies of all contributions,
   whatever their streams are.  While the lock is released, others may end flights; only this thread begins some. */
static pp_status_t follow_flights(pp_ctx_t *ctx, pp_staging_t *staging)
{
    pp_status_t status = PP_OK;
    if (!staging->overlaps)
        return PP_OK;
    for (pp_flight_t *flight = staging->flights; flight; flight = flight->next)
        flight->followed = false;
    for (pp_flight_t *flight; status >= 0 && (flight = find_unfollowed(staging));) {
        const pp_pinned_t *pinned = flight->pinned;      /* outlives the flight */
        flight->followed = true;
        PP_UNLOCKED(ctx, status, pp_lane_follow(&staging->lane, pinned, staging->stream));
    }
    return status;
}

/* The result before is read in the receive buffers, by work that was queued on another stream. */
static pp_status_t follow_view(pp_ctx_t *ctx, pp_staging_t *staging)
{
    pp_status_t status = PP_OK;
    if (staging->shown && staging->shown->busy)
        PP_UNLOCKED(ctx, status, pp_lane_follow(&staging->lane, staging->shown, staging->stream));
    if (staging->shown && status >= 0)
        staging->shown->busy = false;
    return status;
}

/* A View has shown the receive buffers: see pp_in_place_end_view().  In another thread the per-thread default stream is
   another one, so what reads them there is left to the application. */
static pp_status_t show(pp_staging_t *staging)
{
    if (staging->stream == (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD)
        return PP_OK;
    if (!staging->shown)
        PP_TRY(pp_lane_pin_nothing(&staging->lane, &staging->shown));
    staging->shows = true;
    staging->viewed_on = staging->stream;
    return PP_OK;
}

static pp_status_t send_result(pp_ctx_t *ctx, pp_handle_t *handle, pp_pinned_t *pinned)
{
    pp_staging_t *staging = handle->staging;
    PP_TRY(follow_view(ctx, staging));
    if (pinned == staging->receive) {
        PP_TRY(pp_direct_send(ctx, handle, pinned));
        PP_TRY(pp_vault_send(ctx, handle, pinned));
    }
    pp_staging_count(ctx, staging, pinned);
    pp_status_t status;
    PP_UNLOCKED(ctx, status, pp_lane_in(&staging->lane, staging->receives, staging->spans, pinned,
                                        staging->stream));
    PP_TRY(status);
    if (pinned == staging->receive) {
        pp_pinned_t *next;
        PP_TRY(pp_staging_take_spare(handle, &next));
        pp_in_place_set_receive(pp_allreduce_of(handle), next);
    }
    pp_staging_await(ctx, staging, pinned);
    return PP_OK;
}

/* After a failure the application has lost a result, so the context fails as a whole. */
static pp_status_t hand_out(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view)
{
    pp_pinned_t *pinned = NULL;
    pp_result_t  mine;
    result = result ? result : &mine;
    pp_status_t status = pp_in_place_end_view(handle);
    if (status >= 0)
        status = pp_in_place_collect(ctx, handle, result, view, &pinned);
    if (status >= 0)
        status = follow_flights(ctx, handle->staging);
    if (status >= 0 && pinned)
        status = send_result(ctx, handle, pinned);
    if (status >= 0 && pinned && view)
        status = show(handle->staging);
    if (status < 0)
        pp_engine_fail(handle->engine, status, "handle %u: a result did not get to its device: %s", handle->id,
                       pp_error_text());
    return status;
}

static pp_status_t more(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result)
{
    PP_TRY(pp_in_place_end_view(handle));
    if (!pp_staging_room(handle))
        return PP_PENDING;
    pp_status_t status = pp_allreduce_find_more(handle);
    return status == PP_OK ? hand_out(ctx, handle, result, NULL) : status;
}

/* ---- as with the host's buffers -------------------------------------------------------------------------------- */

static pp_status_t give(pp_handle_t *handle) { return pp_allreduce_face.give(handle); }
static void        give_up(pp_handle_t *handle) { pp_allreduce_face.give_up(handle); }

static pp_status_t timed_out(pp_ctx_t *ctx, pp_handle_t *handle) { return pp_allreduce_face.timed_out(ctx, handle); }

static bool at_once(const pp_handle_t *handle)
{
    return pp_staging_room(handle) && pp_allreduce_face.at_once(handle);
}

const pp_face_t pp_staged_allreduce_face = {
    .start = start, .give = give, .give_up = give_up, .hand_out = hand_out, .at_once = at_once, .timed_out = timed_out,
    .more = more, .end_view = pp_in_place_end_view, .room = pp_staging_room,
    .land = pp_staging_land, .link = pp_allreduce_link,
};
