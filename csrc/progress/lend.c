/* lend.c - see lend.h. */
#include "lend.h"
#include "vault.h"

/* Only one part at a time: then a Start that finds no free part always finds one to which its elements are added. */
pp_status_t pp_lend(pp_handle_t *handle, pp_flight_t *flight)
{
    pp_staging_t *staging = handle->staging;
    if (!staging->lends || !flight->reserved || pp_allreduce_of(handle)->users_parts != 0)
        return PP_PENDING;
    flight->target.lent = true;
    pp_status_t status;
    PP_UNLOCKED(pp_ctx_of(handle), status, pp_lane_use(&staging->lane, flight->pinned, staging->stream));
    if (status < 0)                  /* nothing uses the part's memory */
        flight->pinned->busy = flight->pinned->lost = false;
    return status;
}

/* A round that ends elsewhere wakes only ranks that wait for it: so threads that wait for the buffer look often. */
static void count_read(pp_ctx_t *ctx, pp_staging_t *staging, bool read)
{
    if (read != staging->lent_is_read)
        ctx->flights += read ? 1 : -1;
    staging->lent_is_read = read;
}

bool pp_lend_is_read(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    bool read = handle->staging->lends && coll->users_parts != 0 && coll->ops->users_are_read(coll);
    count_read(pp_ctx_of(handle), handle->staging, read);
    return read;
}

static pp_flight_t *find_lent(const pp_staging_t *staging)
{
    pp_flight_t *flight = staging->flights;
    while (flight && !flight->target.lent)
        flight = flight->next;
    return flight;
}

/* Elements on their way: they take the copy that other Starts make at once.  They are not linked meanwhile. */
static pp_status_t put_flight_aside(pp_ctx_t *ctx, pp_staging_t *staging)
{
    pp_flight_t *flight = find_lent(staging);
    pp_status_t  status;
    if (!flight)
        return PP_OK;
    staging->links = true;
    PP_UNLOCKED(ctx, status, pp_lane_out_behind(&staging->lane, staging->sends, staging->spans, flight->pinned,
                                                staging->stream));
    staging->links = false;
    PP_TRY(status);
    flight->target.lent = flight->arrived = false;
    pp_staging_count(ctx, staging, flight->pinned);
    return PP_OK;
}

static bool return_users(pp_ctx_t *ctx, pp_allreduce_t *coll)
{
    pthread_mutex_unlock(&ctx->lock);
    bool returned = coll->ops->return_users(coll);
    pthread_mutex_lock(&ctx->lock);
    return returned;
}

pp_status_t pp_lend_put_aside(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    count_read(ctx, handle->staging, false);
    PP_TRY(put_flight_aside(ctx, handle->staging));
    if (coll->users_parts != 0)
        return_users(ctx, coll);
    return pp_vault_check(handle);
}

pp_status_t pp_lend_end(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    PP_TRY(pp_lend_put_aside(ctx, handle));
    /* Rarely: a round has taken the part since pp_lend_is_read() was asked. */
    while (coll->users_parts != 0 && !return_users(ctx, coll)) {
        pp_look(ctx);
        pp_make_way(ctx);
        PP_TRY(pp_vault_check(handle));
        PP_TRY(pp_engine_check(&ctx->engine));
    }
    return pp_vault_check(handle);
}
