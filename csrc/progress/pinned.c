/* pinned.c - the pinned memory of a handle on a device, and the waits for its copies.  See staging.h. */
#include "direct.h"
#include "vault.h"

#include <stdlib.h>

/* ---- pinned memory ---------------------------------------------------------------------------------------- */

pp_status_t pp_staging_take(const pp_staging_t *staging, pp_pinned_t **list, pp_pinned_t **out)
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

/* More is pinned only if there is none: the driver may take its time for that, and wait for work of the device. */
pp_status_t pp_staging_take_spare(pp_handle_t *handle, pp_pinned_t **out)
{
    pp_staging_t *staging = handle->staging;
    PP_TRY(pp_staging_reclaim(handle));
    pp_status_t status = pp_staging_take(staging, &staging->spare, out);
    if (status == PP_PENDING)
        PP_UNLOCKED(pp_ctx_of(handle), status, pp_lane_pin(&staging->lane, staging->bytes, out));
    return status;
}

/* ---- regions of the node -------------------------------------------------------------------------------------- */

/* What is copied to registered memory goes to the pages that it had when it was registered.  So the region of a freed
   handle is used again only when the driver has given that up.  Until then the context keeps the board. */
typedef struct pp_kept_region {
    struct pp_kept_region *next;
    pp_board_t board;                /* of no memory, if the rounds were made of messages */
} pp_kept_region_t;

/* `frees`: else copies may still use the region, and it stays mapped. */
static void keep_region(pp_handle_t *handle, bool frees)
{
    pp_ctx_t         *ctx = pp_ctx_of(handle);
    pp_kept_region_t *kept = calloc(1, sizeof *kept);
    if (kept)
        pp_allreduce_of(handle)->takes_board = &kept->board;
    if (!kept || !frees) {
        if (ctx->node.memory)
            pp_shared_use(ctx->node.memory);
        return;
    }
    pp_lane_give_back(&handle->staging->lane);
    kept->next = ctx->kept;
    ctx->kept = kept;
}

static void end_regions(pp_kept_region_t *kept)
{
    for (pp_kept_region_t *next; kept; kept = next) {
        next = kept->next;
        pp_board_end(&kept->board);
        free(kept);
    }
}

void pp_staging_end_kept(pp_ctx_t *ctx)
{
    end_regions(ctx->kept);
    ctx->kept = NULL;
}

/* Has the driver give up what freed handles have registered, for which it may wait: so without the lock. */
static void tidy(pp_ctx_t *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    pp_kept_region_t *kept = ctx->kept;
    ctx->kept = NULL;
    pthread_mutex_unlock(&ctx->lock);
    pp_cuda_pools_tidy(&ctx->pools);
    pthread_mutex_lock(&ctx->lock);
    end_regions(kept);
    pthread_mutex_unlock(&ctx->lock);
}

/* ---- opening and closing ---------------------------------------------------------------------------------- */

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

void pp_staging_unpin_spare(pp_staging_t *staging)
{
    pp_pinned_t *idle;
    while (pp_staging_take(staging, &staging->spare, &idle) == PP_OK)
        pp_lane_unpin(&staging->lane, idle);
}

/* With the context's lock. */
static void end(pp_handle_t *handle)
{
    pp_staging_t *staging = handle->staging;
    bool any_busy = false, reads = false;
    if (!staging)
        return;
    if (pp_vault_is_busy(handle)) {  /* it is given up in the middle of its making: the thread needs all of this */
        handle->staging = NULL;
        return;
    }
    for (pp_flight_t *next, *flight = staging->flights; flight; flight = next) {
        next = flight->next;
        pp_staging_keep(&staging->spare, flight->pinned);
        free(flight);
        pp_ctx_of(handle)->flights--;
    }
    for (pp_flight_t *next, *flight = staging->stranded; flight; flight = next) {
        next = flight->next;
        pp_staging_keep(&staging->spare, flight->pinned);
        free(flight);
    }
    if (staging->full)               /* nobody waits for room any more */
        pp_ctx_of(handle)->flights--;
    if (staging->receive)
        pp_staging_keep(&staging->spare, staging->receive);
    if (staging->shown) {            /* the application's own memory is read, which it may free when it likes */
        staging->shown->busy = staging->shown->lost = false;
        pp_staging_keep(&staging->spare, staging->shown);
    }
    for (const pp_pinned_t *result = staging->results; result; result = result->next)
        reads |= result == staging->reader;
    if (staging->reader && !reads)
        pp_staging_keep(&staging->spare, staging->reader);
    /* Freed by all ranks, or never made.  Else the process ends. */
    bool freed = handle->ended || !handle->engine;
    if (freed) {
        unpin_all(staging, staging->spare, &any_busy);
        unpin_all(staging, staging->borrowers, &any_busy);
        unpin_all(staging, staging->results, &any_busy);
    }
    if (staging->lane.borrowed)
        keep_region(handle, freed && !any_busy);
    pp_vault_end(handle, freed && !any_busy);
    pp_direct_end(handle, freed && !any_busy);
    if (freed && !any_busy)
        pp_lane_close(&staging->lane);
    handle->staging = NULL;
    free(staging->sends);
    free(staging->receives);
    free(staging);
}

static bool overlap(const pp_span_t *a, const pp_span_t *b)
{
    return a->address < b->address + b->bytes && b->address < a->address + a->bytes;
}

static bool some_overlap(const pp_staging_t *staging)
{
    for (size_t i = 0; i < staging->spans; i++)
        for (size_t k = 0; k < staging->spans; k++)
            if (overlap(&staging->sends[i], &staging->receives[k]))
                return true;
    return false;
}

static pp_status_t find_spans(pp_staging_t *staging, const pp_piece_t *pieces, size_t count, size_t element_bytes)
{
    staging->spans = count;
    staging->sends = calloc(count + 1, sizeof *staging->sends);
    staging->receives = calloc(count + 1, sizeof *staging->receives);
    if (!staging->sends || !staging->receives)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle of %zu pieces", count);
    for (size_t i = 0; i < count; i++) {
        const pp_piece_t *piece = &pieces[i];
        size_t bytes = piece->count * element_bytes;
        staging->sends[i] = (pp_span_t){pp_cuda_address(piece->send ? piece->send : piece->recv), bytes};
        staging->receives[i] = (pp_span_t){pp_cuda_address(piece->recv), bytes};
        staging->bytes += bytes;
    }
    staging->overlaps = some_overlap(staging);
    return PP_OK;
}

static pp_status_t open(pp_ctx_t *ctx, pp_staging_t *staging, const pp_piece_t *pieces, size_t count,
                        size_t element_bytes, int32_t device)
{
    pp_cuda_pool_t *pool;
    PP_TRY(find_spans(staging, pieces, count, element_bytes));
    PP_TRY(pp_cuda_pool_find(&ctx->pools, device, &pool));
    PP_TRY(pp_lane_open(pool, &staging->lane));
    return pp_lane_pin(&staging->lane, staging->bytes, &staging->receive);
}

pp_status_t pp_staging_make(pp_handle_t *handle, const pp_piece_t *pieces, size_t count, size_t element_bytes,
                            int32_t device, pp_status_t (*prepare)(pp_handle_t *))
{
    pp_staging_t *staging = calloc(1, sizeof *staging);
    if (!staging)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    handle->staging = staging;
    handle->end_staging = end;
    tidy(pp_ctx_of(handle));
    pp_status_t status = open(pp_ctx_of(handle), staging, pieces, count, element_bytes, device);
    if (status >= 0)
        status = prepare(handle);
    if (status < 0) {
        char text[PP_ERROR_TEXT];    /* which what fails here must not replace */
        snprintf(text, sizeof text, "%s", pp_error_text());
        end(handle);
        pp_fail(status, "%s", text);
    }
    return status;
}

/* ---- what the faces of all such handles do ----------------------------------------------------------------- */

pp_status_t pp_staging_check_view(const pp_handle_t *handle)
{
    const pp_staging_t *staging = handle->staging;
    return staging->views || staging->shows ? pp_lane_check_view(&staging->lane, staging->viewed_on) : PP_OK;
}

pp_status_t pp_staging_check(const pp_handle_t *handle)
{
    const pp_staging_t *staging = handle->staging;
    if (!staging)
        return PP_OK;
    PP_TRY(pp_staging_check_view(handle));
    if (staging->elsewhere)
        return pp_fail(PP_ERR_ARGUMENT, "stream=%#llx is a default stream, and the current context of device %d is not its "
                       "primary one, in which the library works: make the primary context current, or pass a stream of it",
                       (unsigned long long)staging->stream, staging->lane.device.device);
    return pp_lane_check(&staging->lane, staging->stream);
}

void pp_staging_refused(pp_handle_t *handle, const pp_pinned_t *pinned, pp_status_t status)
{
    if (!pp_lane_is_lost(pinned))
        return;
    pp_engine_fail(handle->team->engine, status, "handle %u: it is not known when a contribution comes off its device: %s",
                   handle->id, pp_error_text());
    if (pp_ctx_of(handle)->has_thread)   /* it tells the other ranks */
        pp_mpi_ring_self(pp_ctx_of(handle)->mpi);
}

/* What a thread waits for. */
typedef struct landing {
    pp_handle_t *handle;
    bool         results;            /* these, too */
} landing_t;

static bool any_is_used(const pp_lane_t *lane, pp_pinned_t *pinned)
{
    while (pinned && pp_lane_over(lane, pinned) != PP_PENDING)
        pinned = pinned->next;
    return pinned;
}

/* Starts that have failed may have left copies: their memory is not freed before those are over. */
static bool has_failed_copies(pp_handle_t *handle)
{
    const pp_staging_t *staging = handle->staging;
    if (staging->stranded)
        pp_staging_recover(handle);
    return staging->stranded || any_is_used(&staging->lane, staging->spare)
        || any_is_used(&staging->lane, staging->borrowers);
}

/* An error of the driver ends the context, so that the other ranks do not wait for this one. */
static bool has_landed(const void *arg)
{
    const landing_t    *landing = arg;
    const pp_staging_t *staging = landing->handle->staging;
    if (landing->results && has_failed_copies(landing->handle))
        return false;
    pp_status_t status = PP_OK;
    for (pp_pinned_t *result = staging->results; landing->results && result && status == PP_OK; result = result->next)
        status = pp_lane_over(&staging->lane, result);
    if (status < 0)
        pp_engine_fail(landing->handle->engine, status, "handle %u: a result did not get to its device: %s",
                       landing->handle->id, pp_error_text());
    return status == PP_OK && !staging->flights;
}

static pp_status_t await(pp_ctx_t *ctx, bool (*over)(const void *), const void *arg, int64_t timeout_us)
{
    uint64_t since_ns = pp_engine_now(&ctx->engine);
    if (over(arg))
        return PP_OK;
    ctx->flights++;                  /* sleeps are short */
    pp_status_t status = pp_help_until(ctx, over, arg, timeout_us, NULL);
    ctx->flights--;
    ctx->device_wait_ns += pp_engine_now(&ctx->engine) - since_ns;
    return status;
}

pp_status_t pp_staging_land(pp_ctx_t *ctx, pp_handle_t *handle, uint64_t call, bool results, int64_t timeout_us)
{
    (void)call;                      /* each try waits for what has begun by then */
    const landing_t landing = {.handle = handle, .results = results};
    pp_status_t     status = await(ctx, has_landed, &landing, timeout_us);
    pp_staging_room(handle);         /* results that have arrived do not count any more */
    return status;
}

typedef struct landings {
    const pp_ctx_t *ctx;
    uint64_t        until;
    pthread_t       thread;
} landings_t;

static bool all_have_landed(const void *arg)
{
    const landings_t *landings = arg;
    bool              landed = true;
    PP_FOR_EACH_HANDLE(&landings->ctx->engine, handle)
        for (pp_flight_t *flight = handle->staging ? handle->staging->flights : NULL; flight; flight = flight->next)
            landed &= flight->number >= landings->until && !pthread_equal(flight->thread, landings->thread);
    return landed;
}

pp_status_t pp_staging_land_all(pp_ctx_t *ctx, uint64_t until, int64_t timeout_us)
{
    const landings_t landings = {ctx, until, pthread_self()};
    return ctx->flights == 0 || ctx->engine.error ? PP_OK : await(ctx, all_have_landed, &landings, timeout_us);
}

/* The default streams are those of the current context.  Asked here, once a call of the application, because inside of
   scopes that is the primary one; and for default streams only. */
pp_status_t pp_staging_use_stream(pp_handle_t *handle, uint64_t stream)
{
    pp_staging_t *staging = handle->staging;
    staging->stream = stream;
    staging->elsewhere = false;
    return pp_lane_is_default(stream) ? pp_cuda_is_elsewhere(&staging->lane.device, &staging->elsewhere) : PP_OK;
}
