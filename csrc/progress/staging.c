/* staging.c - see staging.h. */
#include "staging.h"
#include "../coll/patience.h"
#include "../node/board.h"
#include "../node/keeper.h"

#include <stdlib.h>

enum {
    PINNED_AT_FIRST = 3,             /* for a Start, for a result on its way, for the next result */
    RESULTS_MAX = 8                  /* on their way to the device at once; a Flush may add one */
};

/* Elements go straight to the memory of the node, and come from there, if its ranks make the rounds there. */
static bool uses_node(const pp_allreduce_t *coll, const pp_staging_t *staging)
{
    return coll->handle.team->engine->node && staging->bytes >= PP_PAGE;
}

static size_t whole_pages(size_t bytes) { return (bytes + PP_PAGE - 1) / PP_PAGE * PP_PAGE; }

/* ---- pinned memory ---------------------------------------------------------------------------------------- */

static pp_pinned_t *pop_result(pp_staging_t *staging)
{
    pp_pinned_t *oldest = staging->results;
    staging->results = oldest->next;
    staging->result_count--;
    return oldest;
}

/* While there are so many results that no more can be handed out, a thread that waits looks at the device often. */
static void count_full(pp_ctx_t *ctx, pp_staging_t *staging)
{
    bool full = staging->result_count >= RESULTS_MAX;
    if (full != staging->full)
        ctx->flights += full ? 1 : -1;
    staging->full = full;
}

/* The memory of results that have got to the device is spare; a round may take their place in the ring. */
static pp_status_t reclaim(pp_allreduce_t *coll)
{
    pp_staging_t *staging = coll->handle.staging;
    while (staging->results) {
        pp_status_t status = pp_lane_over(&staging->lane, staging->results);
        if (status != PP_OK)
            return status < 0 ? status : PP_OK;
        pp_pinned_t *pinned = pop_result(staging);
        if (pinned != staging->in_ring) {
            pp_staging_keep(&staging->spare, pinned);
        } else {
            coll->ops->end_view(coll);
            coll->handle.engine->changed = true;
        }
    }
    return PP_OK;
}

/* Takes one of the list that no copy uses.  PP_PENDING: there is none. */
static pp_status_t take(const pp_staging_t *staging, pp_pinned_t **list, pp_pinned_t **out)
{
    for (pp_pinned_t **link = list; *link; link = &(*link)->next) {
        pp_status_t status = pp_lane_over(&staging->lane, *link);
        if (status < 0)
            return status;
        if (status == PP_OK) {
            *out = *link;
            *link = (*link)->next;
            return PP_OK;
        }
    }
    return PP_PENDING;
}

/* Takes a bounce buffer for a Start, or for a result.  More is pinned only if there is none: the driver may take its
   time for that, and wait for work of the device. */
static pp_status_t take_spare(pp_allreduce_t *coll, pp_pinned_t **out)
{
    pp_staging_t *staging = coll->handle.staging;
    PP_TRY(reclaim(coll));
    pp_status_t status = take(staging, &staging->spare, out);
    return status == PP_PENDING ? pp_lane_pin(&staging->lane, staging->bytes, out) : status;
}

/* ---- opening and closing ---------------------------------------------------------------------------------- */

static void set_receive(pp_allreduce_t *coll, pp_pinned_t *pinned)
{
    pp_piece_t *piece = (pp_piece_t *)coll->config.pieces;      /* a copy, which the handle owns */
    coll->handle.staging->receive = pinned;
    piece->recv = pinned->data;
}

static void unpin_all(pp_staging_t *staging, pp_pinned_t *list, bool *any_busy)
{
    for (pp_pinned_t *next; list; list = next) {
        next = list->next;
        /* Its memory must outlive the copy; there is no one left to free it then. */
        if (pp_lane_over(&staging->lane, list) == PP_OK)
            pp_lane_unpin(&staging->lane, list);
        else
            *any_busy = true;
    }
}

static void end(pp_handle_t *handle)
{
    pp_staging_t *staging = handle->staging;
    bool any_busy = false;
    if (!staging)
        return;
    handle->staging = NULL;
    for (pp_flight_t *next, *flight = staging->flights; flight; flight = next) {
        next = flight->next;
        pp_staging_keep(&staging->spare, flight->pinned);
        free(flight);
    }
    if (staging->receive)
        pp_staging_keep(&staging->spare, staging->receive);
    if (staging->in_ring && !pp_allreduce_of(handle)->viewed)     /* else it is among the results */
        pp_staging_keep(&staging->spare, staging->in_ring);
    /* Freed by all ranks, or never made.  Else the process ends, and the driver would wait for the device. */
    if (handle->ended || !handle->engine) {
        unpin_all(staging, staging->spare, &any_busy);
        unpin_all(staging, staging->borrowers, &any_busy);
        unpin_all(staging, staging->results, &any_busy);
        if (!any_busy)
            pp_lane_close(&staging->lane);
    }
    free(staging->sends);
    free(staging->receives);
    free(staging);
}

static pp_status_t find_spans(pp_staging_t *staging, const pp_allreduce_config_t *config)
{
    size_t element = pp_type_bytes(config->type);
    staging->spans = config->piece_count;
    staging->sends = calloc(config->piece_count + 1, sizeof *staging->sends);
    staging->receives = calloc(config->piece_count + 1, sizeof *staging->receives);
    if (!staging->sends || !staging->receives)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle of %zu pieces", config->piece_count);
    for (size_t i = 0; i < config->piece_count; i++) {
        const pp_piece_t *piece = &config->pieces[i];
        size_t bytes = piece->count * element;
        staging->sends[i] = (pp_span_t){pp_cuda_address(piece->send ? piece->send : piece->recv), bytes};
        staging->receives[i] = (pp_span_t){pp_cuda_address(piece->recv), bytes};
        staging->bytes += bytes;
    }
    return PP_OK;
}

static pp_status_t open(pp_allreduce_t *coll, pp_staging_t *staging)
{
    pp_pinned_t *pinned;
    PP_TRY(find_spans(staging, &coll->config));
    PP_TRY(pp_lane_open(coll->config.device - 1, &staging->lane));
    coll->lands_nothing = uses_node(coll, staging);
    if (coll->lands_nothing)
        PP_TRY(pp_lane_pin_nothing(&staging->lane, &staging->in_ring));
    for (int i = 0; i < (coll->lands_nothing ? 1 : PINNED_AT_FIRST); i++) {
        PP_TRY(pp_lane_pin(&staging->lane, staging->bytes, &pinned));
        pp_staging_keep(&staging->spare, pinned);
    }
    PP_TRY(take(staging, &staging->spare, &pinned));
    pp_piece_t *pieces = (pp_piece_t *)coll->config.pieces;
    pieces[0] = (pp_piece_t){.count = coll->count};
    coll->config.piece_count = 1;
    set_receive(coll, pinned);
    return PP_OK;
}

pp_status_t pp_staging_open(pp_handle_t *handle)
{
    pp_staging_t *staging = calloc(1, sizeof *staging);
    if (!staging)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    handle->staging = staging;
    handle->end_staging = end;
    handle->face = &pp_staged_allreduce_face;
    pp_status_t status = open(pp_allreduce_of(handle), staging);
    if (status < 0)
        end(handle);
    return status;
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

/* The driver does not pin the node's memory: all goes by bounce buffers. */
static void stop_borrowing(pp_allreduce_t *coll)
{
    coll->handle.staging->refused = true;
    coll->lands_nothing = false;
}

/* Reserves a part for the elements.  Behind elements that go to a bounce buffer all do: those are combined with a
   pending part, which there would not be if all were reserved for elements that are linked after them. */
static pp_status_t reserve(pp_allreduce_t *coll, pp_flight_t *flight)
{
    pp_staging_t *staging = coll->handle.staging;
    bool follows = staging->flights && !staging->last->reserved;
    if (!uses_node(coll, staging) || staging->refused || follows || !coll->ops->reserve
        || !coll->ops->reserve(coll, &flight->target))
        return PP_PENDING;
    pp_status_t status = take(staging, &staging->borrowers, &flight->pinned);
    if (status == PP_PENDING)
        status = pp_lane_pin_nothing(&staging->lane, &flight->pinned);
    flight->reserved = status >= 0
        && pp_lane_borrow(&staging->lane, flight->pinned, flight->target.elements, whole_pages(staging->bytes));
    if (flight->reserved)
        return PP_OK;
    coll->ops->give_up(coll, &flight->target);
    if (status < 0)
        return status;
    pp_staging_keep(&staging->borrowers, flight->pinned);
    stop_borrowing(coll);
    return PP_PENDING;
}

/* After a failure.  A part that a copy may still write to stays reserved. */
static void land_nowhere(pp_allreduce_t *coll, pp_flight_t *flight)
{
    pp_staging_t *staging = coll->handle.staging;
    if (flight->reserved && !flight->pinned->busy)
        coll->ops->give_up(coll, &flight->target);
    pp_staging_keep(flight->reserved ? &staging->borrowers : &staging->spare, flight->pinned);
}

static pp_status_t queue(pp_allreduce_t *coll, pp_flight_t **out)
{
    pp_staging_t *staging = coll->handle.staging;
    pp_flight_t  *flight = calloc(1, sizeof *flight);
    if (!flight)
        return pp_fail(PP_ERR_MEMORY, "no memory for a Start");
    pp_status_t status = reserve(coll, flight);
    if (status == PP_PENDING)
        status = take_spare(coll, &flight->pinned);
    if (status >= 0) {
        status = pp_lane_out(&staging->lane, staging->sends, staging->spans, flight->pinned, staging->stream);
        if (status < 0)
            land_nowhere(coll, flight);
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
    flight->since_ns = coll->time.given_ns;
    coll->time.given_ns = 0;
    flight->given = coll->ops->request(coll);
    coll->on_their_way++;
    append(coll->handle.staging, flight);
    ctx->flights++;
    ctx->staged_bytes += coll->handle.staging->bytes;
    pp_patience_started(coll);
    coll->ops->settle(coll);
}

static pp_status_t start(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_staging_t   *staging = handle->staging;
    pp_flight_t    *flight = NULL;
    PP_TRY(pp_lane_check(&staging->lane, staging->stream));
    /* Without a progress thread a rank that is always late would never link what has arrived. */
    while (!ctx->has_thread && (pp_look(ctx) > 0 || pp_staging_work(ctx)))
        continue;
    PP_TRY(queue(coll, &flight));
    pp_returned(ctx);
    bool arrived = coll->ops->sends && pp_arrive(ctx);
    pp_look(ctx);                    /* a round that is complete makes the request late */
    request(ctx, coll, flight);
    if (arrived)
        pp_leave(ctx, true);
    /* The progress thread, or the one that attends, looks from now on whether the elements have arrived. */
    if (ctx->has_thread || (ctx->mpi && atomic_load(&ctx->attended)))
        pp_mpi_ring_self(ctx->mpi);
    return pp_engine_check(&ctx->engine);
}

/* ---- results ------------------------------------------------------------------------------------------------ */

static pp_status_t check(const pp_handle_t *handle)
{
    return pp_lane_check(&handle->staging->lane, handle->staging->stream);
}

/* A request is complete for the application when its result can go to the device as well. */
static bool room(const pp_handle_t *handle)
{
    pp_staging_t *staging = handle->staging;
    pp_ctx_t     *ctx = (pp_ctx_t *)((char *)handle->engine - offsetof(pp_ctx_t, engine));
    pp_status_t status = staging->result_count < RESULTS_MAX ? PP_OK : reclaim(pp_allreduce_of(handle));
    count_full(ctx, staging);        /* a Start may have reclaimed some */
    return status < 0 || staging->result_count < RESULTS_MAX;      /* the error is found again */
}

/* The result is read where it lies in the ring; false: it has been copied to the bounce buffer, or is now. */
static bool read_in_ring(pp_allreduce_t *coll, const void *elements)
{
    pp_staging_t *staging = coll->handle.staging;
    if (!elements)
        return false;
    if (pp_lane_borrow(&staging->lane, staging->in_ring, (void *)(uintptr_t)elements, whole_pages(staging->bytes)))
        return true;
    stop_borrowing(coll);
    coll->series.kernels.memory->copy(staging->receive->data, elements, staging->bytes);
    coll->ops->end_view(coll);
    return false;
}

/* After a failure the application has lost a result, so the context fails as a whole. */
static pp_status_t send_result(pp_ctx_t *ctx, pp_allreduce_t *coll, const void *in_ring)
{
    pp_staging_t *staging = coll->handle.staging;
    bool          bounces = !read_in_ring(coll, in_ring);
    pp_pinned_t  *pinned = bounces ? staging->receive : staging->in_ring, *next;
    pp_status_t   status = pp_lane_in(&staging->lane, staging->receives, staging->spans, pinned, staging->stream);
    if (status >= 0 && bounces && (status = take_spare(coll, &next)) >= 0)
        set_receive(coll, next);
    if (status < 0)
        return status;
    pinned->next = NULL;
    if (staging->results)
        staging->newest->next = pinned;
    else
        staging->results = pinned;
    staging->newest = pinned;
    staging->result_count++;
    count_full(ctx, staging);
    ctx->staged_bytes += staging->bytes;
    return PP_OK;
}

static pp_status_t hand_out(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_view_out_t   in_ring = {0};
    (void)view;                      /* a result on a device is copied there */
    pp_status_t status = reclaim(coll);
    if (status >= 0)
        status = pp_allreduce_collect(ctx, handle, result, coll->lands_nothing && !coll->viewed ? &in_ring : NULL);
    pp_unalloc(in_ring.keeper);      /* the handle keeps the memory mapped */
    if (status >= 0)
        status = send_result(ctx, coll, in_ring.elements);
    if (status < 0)
        pp_engine_fail(handle->engine, status, "handle %u: a result did not get to its device: %s", handle->id,
                       pp_error_text());
    return status;
}

static pp_status_t more(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result)
{
    if (!room(handle))
        return PP_PENDING;
    pp_status_t status = pp_allreduce_find_more(handle);
    return status == PP_OK ? hand_out(ctx, handle, result, NULL) : status;
}

/* ---- the application waits for the device --------------------------------------------------------------------- */

static bool has_landed(const void *arg)
{
    const pp_handle_t *handle = arg;
    return !handle->staging->flights;
}

static bool has_arrived(const void *arg)
{
    const pp_handle_t  *handle = arg;
    const pp_staging_t *staging = handle->staging;
    for (pp_pinned_t *result = staging->results; result; result = result->next)
        if (pp_lane_over(&staging->lane, result) == PP_PENDING)
            return false;
    return !staging->flights;
}

static pp_status_t land(pp_ctx_t *ctx, pp_handle_t *handle, bool results, int64_t timeout_us)
{
    bool (*over)(const void *) = results ? has_arrived : has_landed;
    pp_status_t status = PP_OK;
    if (!over(handle)) {
        ctx->flights++;              /* sleeps are short */
        status = pp_help_until(ctx, over, handle, timeout_us, NULL);
        ctx->flights--;
    }
    room(handle);                    /* results that have arrived do not count any more */
    return status;
}

static void use_stream(pp_handle_t *handle, uint64_t stream) { handle->staging->stream = stream; }

/* ---- as with the host's buffers -------------------------------------------------------------------------------- */

static pp_status_t give(pp_handle_t *handle) { return pp_allreduce_face.give(handle); }
static void        give_up(pp_handle_t *handle) { pp_allreduce_face.give_up(handle); }
static bool        at_once(const pp_handle_t *handle) { return room(handle) && pp_allreduce_face.at_once(handle); }
static void        end_view(pp_handle_t *handle) { (void)handle; }      /* a result is read in place by a copy only */
static pp_status_t timed_out(pp_ctx_t *ctx, pp_handle_t *handle) { return pp_allreduce_face.timed_out(ctx, handle); }

const pp_face_t pp_staged_allreduce_face = {
    .start = start, .give = give, .give_up = give_up, .hand_out = hand_out, .at_once = at_once, .timed_out = timed_out,
    .more = more, .end_view = end_view, .check = check, .room = room, .land = land, .use_stream = use_stream,
};
