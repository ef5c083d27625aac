/* arrivals.c - elements that come off a device, and are linked.  See staging.h. */
#include "direct.h"
#include "vault.h"
#include "../coll/rounds/time.h"

#include <stdlib.h>

/* A handle on which the ranks do not agree yet, but which waits for its device; NULL: there is none. */
static pp_handle_t *find_unready(const pp_ctx_t *ctx)
{
    pp_handle_t *handle = ctx->calls.kind == PP_CALL_INIT ? ctx->calls.handle : NULL;
    return handle && handle->unready ? handle : NULL;
}

static bool look(pp_handle_t *handle)
{
    pp_flight_t *oldest = handle->staging->flights;
    if (!oldest || oldest->arrived || handle->staging->links)
        return false;
    pp_status_t status = pp_lane_over(&handle->staging->lane, oldest->pinned);
    if (status < 0) {
        pp_engine_fail(handle->team->engine, status, "handle %u: a contribution did not come off its device: %s", handle->id,
                       pp_error_text());
        return false;
    }
    return oldest->arrived = status == PP_OK;
}

int pp_staging_look(pp_ctx_t *ctx)
{
    int  arrived = 0;
    bool meets = false;
    if (ctx->vaults)
        pp_vaults_look(ctx);
    if (ctx->flights == 0 || ctx->engine.error)
        return 0;
    pp_handle_t *unready = find_unready(ctx);
    if (unready)
        arrived += look(unready);
    PP_FOR_EACH_HANDLE(&ctx->engine, handle) {
        arrived += handle->staging && look(handle);
        meets |= handle->staging && pp_vault_meets(handle);
    }
    if (meets) {
        ctx->engine.changed = true;
        pp_engine_settle(&ctx->engine);
    }
    return arrived + meets;
}

void pp_staging_recover(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_staging_t   *staging = handle->staging;
    for (pp_flight_t *flight, **link = &staging->stranded; (flight = *link);) {
        if (pp_lane_over(&staging->lane, flight->pinned) != PP_OK) {
            link = &flight->next;
            continue;
        }
        *link = flight->next;
        coll->ops->give_up(coll, &flight->target);
        pp_staging_keep(&staging->borrowers, flight->pinned);
        free(flight);
    }
}

/* Brings elements from their bounce buffer to where the rounds read them.  PP_PENDING: there is no room.  Only one thread
   links at a time, and only such threads add to what is pending, so the target stays as it is while the lock is released
   (gather.c). */
static pp_status_t bring(pp_ctx_t *ctx, pp_allreduce_t *coll, pp_flight_t *flight)
{
    pp_staging_t *staging = coll->handle.staging;
    if (staging->stranded)
        pp_staging_recover(&coll->handle);
    pp_status_t status = pp_direct_room(&coll->handle);
    if (status == PP_OK)
        status = coll->ops->aim(coll, &flight->target);
    if (status != PP_OK)
        return status;
    const pp_piece_t piece = {.send = flight->pinned->data, .count = coll->count};
    staging->links = true;
    pp_allreduce_gather(ctx, coll, &piece, 1, &flight->target);
    staging->links = false;
    PP_TRY(pp_vault_check(&coll->handle));
    PP_TRY(pp_direct_check(&coll->handle));
    return pp_direct_use(&coll->handle, flight->pinned);
}

bool pp_allreduce_link(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_staging_t   *staging = handle->staging;
    pp_flight_t    *flight = staging->flights;
    pp_status_t     status = flight->reserved ? PP_OK : bring(ctx, coll, flight);
    if (status < 0)
        pp_engine_fail(handle->engine, status, "%s", pp_error_text());
    if (status != PP_OK)
        return false;
    staging->flights = flight->next;
    pp_staging_keep(flight->reserved ? &staging->borrowers : &staging->spare, flight->pinned);
    coll->on_their_way--;
    ctx->flights--;
    if (handle->by_patience) {       /* it had held a round up for too long */
        if (handle->ops->count_as_given)
            handle->ops->count_as_given(handle);
        pp_round_time_returned(coll);
    }
    pp_patience_computed(&coll->handle, flight->since_ns);
    coll->ops->link(coll, &flight->target, flight->given);
    if (pp_rounds_asks(coll))        /* from now on this rank waits for others */
        pp_engine_alarm(&ctx->engine, 0);
    handle->engine->changed = true;
    coll->ops->settle(coll);
    free(flight);
    return true;
}

static bool can_link(const pp_staging_t *staging)
{
    return staging && !staging->links && staging->flights && staging->flights->arrived;
}

bool pp_staging_work(pp_ctx_t *ctx)
{
    bool linked = false;
    if (ctx->flights == 0 || ctx->engine.error)
        return false;
    pp_handle_t *unready = find_unready(ctx);
    if (unready && can_link(unready->staging))
        return unready->face->link(ctx, unready);
    PP_FOR_EACH_HANDLE(&ctx->engine, handle) {
        /* After the first the list may be another one: the lock was released. */
        if (!linked && can_link(handle->staging))
            linked = handle->face->link(ctx, handle);
    }
    return linked;
}
