/* in_place.c - copies between a device and the memory of the node: to the part of a station that a round will read, and
   from the ring.  See staging.h. */
#include "direct.h"
#include "vault.h"
#include "../node/keeper.h"

/* The driver does not pin the node's memory, for the reason that the calling thread's error says: everything goes by
   bounce buffers. */
static void stop(pp_allreduce_t *coll)
{
    pp_ctx_t *ctx = pp_ctx_of(&coll->handle);
    coll->handle.staging->in_place = coll->lands_nothing = false;
    if (ctx->unpinned[0])
        return;
    ctx->unpinned_due = true;
    snprintf(ctx->unpinned, sizeof ctx->unpinned, "rank %d: the driver does not pin the memory that the ranks of the node "
             "share, so what handle %u copies to and from its device is copied once more: %s", ctx->engine.rank,
             coll->handle.id, pp_error_text());
}

/* The device has read a result in the ring: a round may take its place. */
static void has_read(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    coll->ops->end_view(coll);
    handle->engine->changed = true;
}

pp_status_t pp_in_place_pin(pp_staging_t *staging)
{
    staging->page_bytes = (staging->bytes + PP_PAGE - 1) / PP_PAGE * PP_PAGE;
    return staging->reader ? PP_OK : pp_lane_pin_nothing(&staging->lane, &staging->reader);
}

void pp_in_place_begin(pp_handle_t *handle)
{
    handle->staging->has_read = has_read;
    handle->staging->in_place = pp_allreduce_of(handle)->lands_nothing = true;
}

/* ---- bounce buffers ----------------------------------------------------------------------------------------- */

void pp_in_place_set_receive(pp_allreduce_t *coll, pp_pinned_t *pinned)
{
    pp_piece_t *piece = (pp_piece_t *)coll->config.pieces;      /* a copy, which the handle owns */
    coll->handle.staging->receive = pinned;
    piece->recv = pinned->data;
}

/* ---- contributions ------------------------------------------------------------------------------------------ */

/* Behind elements that go to a bounce buffer all do: if there is no free part then, those are combined with a pending
   part, and there would be none if all were reserved for elements that are linked after them. */
pp_status_t pp_in_place_reserve(pp_handle_t *handle, pp_flight_t *flight)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_staging_t   *staging = handle->staging;
    bool follows = staging->flights && !staging->last->reserved;
    pp_staging_recover(handle);
    if (!staging->in_place || follows || !coll->ops->reserve || !coll->ops->reserve(coll, &flight->target))
        return PP_PENDING;
    pp_status_t status = pp_staging_take(staging, &staging->borrowers, &flight->pinned);
    if (status == PP_PENDING)
        status = pp_lane_pin_nothing(&staging->lane, &flight->pinned);
    flight->reserved = status >= 0
        && pp_staging_borrow(handle, flight->pinned, flight->target.elements, staging->page_bytes);
    if (flight->reserved)
        return PP_OK;
    coll->ops->give_up(coll, &flight->target);
    if (status < 0)
        return status;
    pp_staging_keep(&staging->borrowers, flight->pinned);
    stop(coll);
    return PP_PENDING;
}

void pp_in_place_give_up(pp_handle_t *handle, pp_flight_t *flight)
{
    flight->next = handle->staging->stranded;
    handle->staging->stranded = flight;
    pp_staging_recover(handle);
}

/* ---- results ------------------------------------------------------------------------------------------------ */

/* Vectors of a device that hold the application's elements. */
static bool can_view(const pp_allreduce_t *coll)
{
    const char *why;
    return pp_vault_in_use(&coll->handle, &why) && !coll->series.kernels.store;
}

pp_status_t pp_in_place_collect(pp_ctx_t *ctx, pp_handle_t *handle, pp_result_t *result, pp_view_out_t *view,
                                pp_pinned_t **pinned)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_staging_t   *staging = handle->staging;
    pp_view_out_t   place = {0};
    PP_TRY(pp_staging_reclaim(handle));
    PP_TRY(pp_allreduce_collect(ctx, handle, result, staging->in_place && !coll->viewed ? &place : NULL));
    pp_unalloc(place.keeper);        /* the handle keeps the memory mapped */
    PP_TRY(pp_vault_check(handle));
    PP_TRY(pp_direct_check(handle));
    *pinned = staging->receive;
    if (!place.elements)
        return PP_OK;
    const void *elements = place.elements;
    if (pp_staging_borrow(handle, staging->reader, elements, staging->page_bytes)) {
        *pinned = staging->reader;
        /* It is asked for the end of the view in another call, perhaps of another thread, which has another such stream. */
        if (!view || !can_view(coll) || staging->stream == (uint64_t)(uintptr_t)CU_STREAM_PER_THREAD)
            return PP_OK;
        *pinned = NULL;
        view->elements = elements;
        staging->views = true;
        staging->viewed_on = staging->stream;
        return PP_OK;
    }
    stop(coll);
    const pp_memory_t *memory = coll->series.kernels.memory;
    memory->copy(memory, staging->receive->data, elements, staging->bytes);
    coll->ops->end_view(coll);
    return PP_OK;
}

pp_status_t pp_in_place_end_view(pp_handle_t *handle)
{
    pp_staging_t *staging = handle->staging;
    pp_ctx_t     *ctx = pp_ctx_of(handle);
    pp_status_t   status;
    if (!staging->views && !staging->shows)
        return PP_OK;
    bool views = staging->views;
    staging->views = staging->shows = false;
    pp_pinned_t *read = views ? staging->reader : staging->shown;
    PP_UNLOCKED(ctx, status, pp_lane_use(&staging->lane, read, staging->viewed_on));
    if (status < 0)
        pp_engine_fail(handle->engine, status, "handle %u: it is not known how long a result is read: %s", handle->id,
                       pp_error_text());
    if (views)
        pp_staging_await(ctx, staging, read);
    return pp_engine_check(handle->engine);
}
