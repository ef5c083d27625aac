/* arrivals.c - elements that come off a device, and are linked.  See staging.h. */
#include "staging.h"
#include "../coll/patience.h"

#include <stdlib.h>

static bool look(pp_handle_t *handle)
{
    pp_flight_t *oldest = handle->staging->flights;
    if (!oldest || oldest->arrived)
        return false;
    pp_status_t status = pp_lane_over(&handle->staging->lane, oldest->pinned);
    if (status < 0) {
        char why[400];
        snprintf(why, sizeof why, "%s", pp_error_text());
        pp_engine_fail(handle->engine, status, "handle %u: a contribution did not come off its device: %s", handle->id,
                       why);
        return false;
    }
    return oldest->arrived = status == PP_OK;
}

int pp_staging_look(pp_ctx_t *ctx)
{
    int arrived = 0;
    if (ctx->flights == 0 || ctx->engine.error)
        return 0;
    PP_FOR_EACH_HANDLE(&ctx->engine, handle)
        arrived += handle->staging && look(handle);
    return arrived;
}

/* Only one thread links at a time, and only such threads add to what is pending, so the target stays as it is while
   the lock is released (allreduce_face.c). */
static bool link_oldest(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_staging_t   *staging = handle->staging;
    pp_flight_t    *flight = staging->flights;
    pp_target_t     target;
    pp_status_t     status = coll->ops->aim(coll, &target);
    if (status < 0)
        pp_engine_fail(handle->engine, status, "%s", pp_error_text());
    if (status != PP_OK)
        return false;
    const pp_piece_t piece = {.send = flight->pinned->data, .count = coll->count};
    staging->links = true;
    pp_allreduce_gather(ctx, coll, &piece, 1, &target);
    staging->links = false;
    staging->flights = flight->next;
    pp_staging_put_spare(staging, flight->pinned);
    coll->on_their_way--;
    ctx->flights--;
    if (handle->aside)               /* it had held a round up for too long */
        pp_patience_returned(coll);
    coll->ops->link(coll, &target, flight->given);
    handle->engine->changed = true;
    coll->ops->settle(coll);
    free(flight);
    return true;
}

bool pp_staging_work(pp_ctx_t *ctx)
{
    pp_handle_t *found = NULL;
    if (ctx->flights == 0 || ctx->engine.error)
        return false;
    PP_FOR_EACH_HANDLE(&ctx->engine, handle) {
        const pp_staging_t *staging = handle->staging;
        if (!found && staging && !staging->links && staging->flights && staging->flights->arrived)
            found = handle;
    }
    return found && link_oldest(ctx, found);
}
