/* staged_preduce.c - see staged_preduce.h. */
#include "staged_preduce.h"
#include "vault.h"

#include <stdlib.h>
#include <string.h>

typedef struct flight {
    pp_flight_t base;
    int32_t     count;               /* of the members that the Start has named */
    int32_t     members[];
} flight_t;

/* ---- off the device ---------------------------------------------------------------------------------------- */

/* From now on this memory stands for the application's buffers; NULL: none does. */
static void stand_in(pp_preduce_t *preduce, pp_pinned_t *pinned)
{
    pp_piece_t *piece = (pp_piece_t *)preduce->config.pieces;   /* a copy, which the handle owns */
    preduce->handle.staging->receive = pinned;
    piece->recv = pinned ? pinned->data : NULL;
    pp_direct_groups_given(&preduce->handle);
}

/* Whether models are in the memory of devices that ranks share: then there is no memory of the host. */
static bool is_in_vault(const pp_handle_t *handle)
{
    const char *why;
    return pp_vault_in_use(handle, &why);
}

/* Whether they stay on this rank's device, and MPI gets their addresses. */
static bool is_direct(const pp_handle_t *handle)
{
    const char *why;
    return pp_direct_in_use(handle, &why);
}

/* Memory of its own, or of a vault's. */
static void keep(pp_staging_t *staging, pp_pinned_t *pinned)
{
    pp_staging_keep(pinned->bytes > 0 ? &staging->spare : &staging->borrowers, pinned);
}

static pp_status_t queue(pp_handle_t *handle, pp_flight_t *flight)
{
    pp_staging_t *staging = handle->staging;
    PP_TRY(is_in_vault(handle) ? pp_group_vault_aim(handle, &flight->pinned)
                               : pp_staging_take_spare(handle, &flight->pinned));
    pp_status_t status;
    PP_UNLOCKED(pp_ctx_of(handle), status, pp_lane_out(&staging->lane, staging->sends, staging->spans, flight->pinned,
                                                       staging->stream));
    if (status < 0) {
        pp_staging_refused(handle, flight->pinned, status);
        keep(staging, flight->pinned);
    }
    return status;
}

/* Queues a copy of the buffers off the device, and keeps the members that the Start has named.  There is one copy on
   its way at a time. */
static pp_status_t fetch(pp_ctx_t *ctx, pp_preduce_t *preduce)
{
    pp_staging_t *staging = preduce->handle.staging;
    const size_t  bytes = (size_t)preduce->asked.count * sizeof(int32_t);
    flight_t     *flight = calloc(1, sizeof *flight + bytes);
    if (!flight)
        return pp_fail(PP_ERR_MEMORY, "no memory for a Start");
    pp_status_t status = queue(&preduce->handle, &flight->base);
    if (status < 0) {
        free(flight);
        return status;
    }
    flight->count = preduce->asked.count;
    if (bytes)
        memcpy(flight->members, preduce->asked.members, bytes);
    staging->flights = staging->last = &flight->base;
    pp_staging_fly(ctx, &flight->base);
    pp_staging_count(ctx, staging, flight->base.pinned);
    return PP_OK;
}

/* Forgets what a Flush was to give that has not begun. */
static void forget(pp_ctx_t *ctx, pp_staging_t *staging)
{
    staging->copied_for = 0;
    if (!staging->flights)
        return;
    keep(staging, staging->flights->pinned);
    free(staging->flights);
    staging->flights = NULL;
    ctx->flights--;
}

/* ---- Start ------------------------------------------------------------------------------------------------- */

static pp_status_t start(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    PP_TRY(pp_preduce_check_start(preduce));
    PP_TRY(pp_staging_check(handle));
    forget(ctx, handle->staging);
    PP_TRY(fetch(ctx, preduce));
    pp_leave_flight(ctx, true);
    pp_preduce_request(preduce);
    preduce->on_its_way = true;
    pp_engine_settle(&ctx->engine);
    return pp_engine_check(&ctx->engine);
}

static pp_status_t ask(pp_ctx_t *ctx, pp_preduce_t *preduce, const flight_t *flight)
{
    preduce->on_its_way = false;
    preduce->asked.members = flight->members;
    preduce->asked.count = flight->count;
    pp_status_t status = pp_preduce_ask(ctx, preduce);
    preduce->asked.members = NULL;
    preduce->asked.count = 0;
    return status;
}

/* The memory is what groups on communicators take the model from, and what a vault does. */
static void read_initial(pp_preduce_t *preduce)
{
    pp_staging_t *staging = preduce->handle.staging;
    preduce->handle.unready = false;
    if (!preduce->initial)
        return;
    pp_preduce_load(preduce, preduce->initial);
    if (preduce->handle.meet)
        return;
    pp_staging_keep(&staging->spare, staging->receive);
    stand_in(preduce, NULL);
}

/* What has come off the device is what groups average. */
static void take(pp_preduce_t *preduce, pp_pinned_t *pinned)
{
    pp_staging_t *staging = preduce->handle.staging;
    if (is_in_vault(&preduce->handle)) {
        pp_group_vault_place(&preduce->handle);
        keep(staging, pinned);
        return;
    }
    if (staging->receive)
        pp_staging_keep(&staging->spare, staging->receive);
    stand_in(preduce, pinned);
}

/* The request may have been taken back while the lock was released: this rank's script has ended. */
static bool link(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    pp_staging_t *staging = handle->staging;
    flight_t     *flight = (flight_t *)staging->flights;
    pp_status_t   status = PP_OK;
    take(preduce, flight->base.pinned);
    if (preduce->on_its_way) {
        staging->links = true;
        status = pp_preduce_fill(ctx, preduce);
        staging->links = false;
    }
    staging->flights = NULL;
    ctx->flights--;
    if (handle->unready)
        read_initial(preduce);
    else if (preduce->on_its_way && status >= 0)
        status = ask(ctx, preduce, flight);
    free(flight);
    if (status < 0)
        pp_engine_fail(&ctx->engine, status, "%s", pp_error_text());
    ctx->engine.changed = true;
    pp_engine_settle(&ctx->engine);
    return true;
}

/* ---- results ----------------------------------------------------------------------------------------------- */

static pp_status_t check_has_come(const pp_handle_t *handle)
{
    return handle->staging->receive ? PP_OK
         : pp_fail(PP_ERR_STATE, "nothing has come off the device yet: call Start and Wait first");
}

pp_status_t pp_staged_preduce_host(const pp_handle_t *handle, void **elements)
{
    if (is_direct(handle))
        return pp_fail(PP_ERR_STATE, "no memory of the host stands for the buffers: the model stays on its device");
    PP_TRY(check_has_come(handle));
    *elements = handle->staging->receive->data;
    return PP_OK;
}

pp_status_t pp_staged_preduce_average(pp_ctx_t *ctx, pp_handle_t *handle, const void *comm, const pp_group_share_t *share)
{
    if (!is_direct(handle))
        return pp_fail(PP_ERR_STATE, "the model comes to the host, and MPI gets no address of its device");
    PP_TRY(check_has_come(handle));
    return pp_direct_groups_average(ctx, handle, comm, share);
}

uint64_t pp_staged_preduce_averaged(const pp_handle_t *handle)
{
    return is_direct(handle) ? pp_direct_groups_averaged(handle) : 0;
}

static pp_status_t deliver(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_staging_t *staging = handle->staging;
    pp_pinned_t  *pinned = staging->receive;
    if (is_in_vault(handle))
        return pp_group_vault_deliver(ctx, handle);
    if (is_direct(handle))
        PP_TRY(pp_direct_groups_finish(ctx, handle));
    pp_status_t status;
    PP_UNLOCKED(ctx, status, pp_lane_in(&staging->lane, staging->receives, staging->spans, pinned, staging->stream));
    PP_TRY(status);
    stand_in(pp_preduce_of(handle), NULL);
    pp_staging_sent(ctx, staging, pinned);
    return PP_OK;
}

/* After a failure the application has lost a result, so the context fails as a whole. */
pp_status_t pp_staged_preduce_deliver(pp_ctx_t *ctx, pp_handle_t *handle)
{
    if (!is_in_vault(handle))
        PP_TRY(check_has_come(handle));
    pp_status_t status = deliver(ctx, handle);
    if (status < 0)
        pp_engine_fail(handle->engine, status, "handle %u: a result did not get to its device: %s", handle->id,
                       pp_error_text());
    return status;
}

static pp_status_t hand_out(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view)
{
    PP_TRY(pp_preduce_face.hand_out(ctx, handle, result, view));
    if (pp_preduce_of(handle)->config.backend == PP_BACKEND_COMM)
        return PP_OK;                /* the caller has yet to average, and delivers */
    return pp_staged_preduce_deliver(ctx, handle);
}

/* ---- Flush ------------------------------------------------------------------------------------------------- */

/* A Flush gives what the buffers hold, unless it has a request to give.  If it ends here by a timeout, its repetition
   goes on with the copy, and another call makes a new one; if it has begun, it has all that it needs. */
static pp_status_t land(pp_ctx_t *ctx, pp_handle_t *handle, uint64_t call, bool results, int64_t timeout_us)
{
    pp_staging_t *staging = handle->staging;
    const bool    copied = staging->copied_for && (call == PP_ANY_CALL || staging->copied_for == call);
    if (!results && handle->request.state == PP_IDLE && !copied && ctx->calls.kind == PP_CALL_NONE) {
        if (staging->copied_for)
            forget(ctx, staging);
        PP_TRY(fetch(ctx, pp_preduce_of(handle)));
        pp_leave_flight(ctx, false);
        staging->copied_for = call == PP_ANY_CALL ? UINT64_MAX : call;
    }
    return pp_staging_land(ctx, handle, call, results, timeout_us);
}

static pp_status_t before_flush(pp_ctx_t *ctx, pp_handle_t *handle)
{
    handle->staging->copied_for = 0;
    return pp_preduce_face.before_flush(ctx, handle);
}

/* ---- opening ----------------------------------------------------------------------------------------------- */

static pp_status_t ask_for_path(pp_handle_t *handle)
{
    const pp_preduce_config_t *config = &pp_preduce_of(handle)->config;
    const bool                 by_comm = config->backend == PP_BACKEND_COMM;
    if (config->device_path == PP_DEVICE_DIRECT)
        return by_comm ? pp_direct_groups_ask(handle, config->no_path)
                       : pp_vault_refuse(handle, "groups give MPI addresses of devices with backend=\"comm\" only");
    if (config->device_path != PP_DEVICE_IPC)
        return PP_OK;
    if (by_comm)
        return pp_vault_refuse(handle, "with backend=\"comm\" ranks share no memory of devices: device_path=\"direct\" gives "
                               "MPI their addresses");
    return pp_vault_ask(handle, &pp_vault_of_groups, config->no_path);
}

pp_status_t pp_staged_preduce_make(pp_handle_t *handle)
{
    const pp_preduce_config_t *config = &pp_preduce_of(handle)->config;
    return pp_staging_make(handle, config->pieces, config->piece_count, pp_type_bytes(config->type), config->device - 1,
                           ask_for_path);
}

pp_status_t pp_staged_preduce_open(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_preduce_t              *preduce = pp_preduce_of(handle);
    const pp_preduce_config_t *config = &preduce->config;
    handle->face = &pp_staged_preduce_face;
    pp_piece_t *pieces = (pp_piece_t *)config->pieces;
    pieces[0] = (pp_piece_t){.count = preduce->count};
    preduce->config.piece_count = 1;
    pp_staging_keep(&handle->staging->spare, handle->staging->receive);
    stand_in(preduce, NULL);
    if (config->plan.weights != PP_WEIGHTS_INITIAL)
        return PP_OK;
    PP_TRY(pp_staging_use_stream(handle, config->stream));
    PP_TRY(pp_staging_check(handle));
    PP_TRY(fetch(ctx, preduce));
    pp_leave_flight(ctx, false);
    handle->unready = true;
    return PP_OK;
}

/* ---- as with the host's buffers ------------------------------------------------------------------------------- */

static pp_status_t give(pp_handle_t *handle) { return pp_preduce_face.give(handle); }
static pp_status_t timed_out(pp_ctx_t *ctx, pp_handle_t *handle) { return pp_preduce_face.timed_out(ctx, handle); }

static bool at_once(const pp_handle_t *handle) { return pp_staging_room(handle) && pp_preduce_face.at_once(handle); }

const pp_face_t pp_staged_preduce_face = {
    .start = start, .give = give, .hand_out = hand_out, .at_once = at_once, .timed_out = timed_out,
    .before_flush = before_flush, .room = pp_staging_room, .land = land, .link = link,
};
