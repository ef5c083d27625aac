/* ahead.c - see ahead.h. */
#include "ahead.h"

#include <stdlib.h>
#include <string.h>

typedef struct pp_ahead {
    pp_pinned_t *pinned;             /* the memory of chunks on their way; its event is behind the newest of them */
    const char  *elements;           /* of the round's entry in the ring */
    bool         under_way;          /* copies that the application's next work must come after */
    uint64_t     stream;             /* which comes after all of them */
    uint64_t     round;
    uint32_t     count;              /* of chunks that were queued; 0: `round` means nothing */
    bool        *queued;             /* by chunk */
    size_t       chunk_bytes;
    uint32_t     chunks;
    pp_span_t    spans[];            /* of the receive buffers that a copy goes to */
} pp_ahead_t;

/* ---- making ----------------------------------------------------------------------------------------------------- */

pp_status_t pp_ahead_make(pp_handle_t *handle)
{
    pp_staging_t *staging = handle->staging;
    if (staging->overlaps)
        return PP_OK;
    pp_ahead_t *ahead = calloc(1, sizeof *ahead + staging->spans * sizeof *ahead->spans);
    if (!ahead)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    pp_status_t status = pp_lane_pin_nothing(&staging->lane, &ahead->pinned);
    if (status < 0)
        free(ahead);
    else
        staging->ahead = ahead;
    return status;
}

void pp_ahead_end(pp_staging_t *staging)
{
    pp_ahead_t *ahead = staging->ahead;
    staging->ahead = NULL;
    if (!ahead)
        return;
    pp_staging_keep(&staging->spare, ahead->pinned);     /* which is unpinned if it is not busy */
    free(ahead->queued);
    free(ahead);
}

pp_status_t pp_ahead_over(const pp_staging_t *staging)
{
    return staging->ahead ? pp_lane_over(&staging->lane, staging->ahead->pinned) : PP_OK;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Which receive buffers the bytes belong to. */
static size_t find_spans(const pp_staging_t *staging, size_t first, size_t bytes)
{
    pp_span_t *spans = staging->ahead->spans;
    size_t     count = 0;
    for (const pp_span_t *span = staging->receives; bytes > 0; span++) {
        if (first >= span->bytes) {
            first -= span->bytes;
            continue;
        }
        size_t part = span->bytes - first < bytes ? span->bytes - first : bytes;
        spans[count++] = (pp_span_t){.address = span->address + first, .bytes = part};
        bytes -= part;
        first = 0;
    }
    return count;
}

/* Queues a copy of chunks first .. end - 1; adds their bytes to the count. */
static pp_status_t copy(pp_staging_t *staging, pp_pinned_t *from, uint32_t first, uint32_t end, uint64_t *count)
{
    pp_ahead_t *ahead = staging->ahead;
    size_t at = first * ahead->chunk_bytes, to = end * ahead->chunk_bytes;
    size_t bytes = (to < staging->bytes ? to : staging->bytes) - at;
    from->data = (char *)ahead->elements + at;
    *count += bytes;
    return pp_lane_in(&staging->lane, ahead->spans, find_spans(staging, at, bytes), from, staging->stream);
}

void pp_ahead_in_another_call(pp_staging_t *staging)
{
    if (staging->ahead)
        staging->ahead->stream = 0;      /* of no stream */
}

/* What is queued on the stream from now on comes after the copies that are on their way. */
static pp_status_t follow(pp_staging_t *staging)
{
    pp_ahead_t *ahead = staging->ahead;
    if (!ahead->under_way || ahead->stream == staging->stream)
        return PP_OK;
    PP_TRY(pp_lane_follow(&staging->lane, ahead->pinned, staging->stream));
    ahead->stream = staging->stream;
    return PP_OK;
}

static void forget_round(pp_ahead_t *ahead)
{
    if (ahead->count > 0)
        memset(ahead->queued, 0, ahead->chunks * sizeof *ahead->queued);
    ahead->count = 0;
}

/* ---- while ranks reduce ------------------------------------------------------------------------------------------ */

/* How the handle's results are cut does not change. */
static bool learn_chunks(pp_ahead_t *ahead, const pp_chunks_t *chunks)
{
    if (!ahead->queued) {
        ahead->queued = calloc(chunks->count, sizeof *ahead->queued);
        ahead->chunks = chunks->count;
        ahead->chunk_bytes = chunks->bytes;
    }
    return ahead->queued;
}

/* The first copy of a round.  False: the driver has not pinned the entry yet, for a result that was there. */
static bool begin(pp_staging_t *staging, uint64_t round, const char *elements)
{
    pp_ahead_t *ahead = staging->ahead;
    if (!pp_lane_has_borrowed(&staging->lane, elements))
        return false;
    ahead->round = round;
    ahead->elements = elements;
    return true;
}

/* The end of the chunks that are finished and not queued, of which those before `end` are. */
static uint32_t end_of_run(const pp_allreduce_t *coll, const pp_ahead_t *ahead, uint64_t round, uint32_t end)
{
    while (end < ahead->chunks && !ahead->queued[end] && coll->ops->chunk(coll, round, end))
        end++;
    return end;
}

static pp_status_t queue_run(pp_ctx_t *ctx, pp_staging_t *staging, uint32_t first, uint32_t end)
{
    pp_ahead_t *ahead = staging->ahead;
    PP_TRY(follow(staging));
    memset(ahead->queued + first, true, (end - first) * sizeof *ahead->queued);
    ahead->count += end - first;
    ahead->under_way = true;
    ahead->stream = staging->stream;
    return copy(staging, ahead->pinned, first, end, &ctx->staged_bytes);
}

/* The thread attends, so it makes no call that may wait: it queues copies only behind its own.  Behind other work they would
   not be early.  Another thread may have begun a capture that a question to the stream would end, and a copy would be a
   part of. */
static bool may_queue(const pp_staging_t *staging)
{
    const pp_ahead_t *ahead = staging->ahead;
    if (pp_lane_is_captured(&staging->lane, staging->stream))
        return false;
    return (ahead->count > 0 && ahead->stream == staging->stream) || pp_lane_is_idle(&staging->lane, staging->stream);
}

/* Queues what is finished, in so many copies. */
static pp_status_t queue_finished(pp_ctx_t *ctx, pp_allreduce_t *coll, uint64_t round, int *copies)
{
    pp_staging_t *staging = coll->handle.staging;
    pp_ahead_t   *ahead = staging->ahead;
    *copies = 0;
    for (uint32_t first = 0, end; first < ahead->chunks; first = end) {
        /* Asked once: a later round may change the mark at any moment. */
        const char *from = ahead->queued[first] ? NULL : coll->ops->chunk(coll, round, first);
        end = first + 1;
        if (!from)
            continue;
        end = end_of_run(coll, ahead, round, end);
        if (!may_queue(staging)
            || (ahead->count == 0 && !begin(staging, round, from - first * ahead->chunk_bytes)))
            return PP_OK;
        PP_TRY(queue_run(ctx, staging, first, end));
        ++*copies;
    }
    return PP_OK;
}

/* While the device still reads the result before in the ring, nothing is looked for: there is one reader.  An error is
   found again when the result is collected. */
static bool may_go_on(pp_allreduce_t *coll)
{
    const pp_staging_t *staging = coll->handle.staging;
    if (!staging->ahead || !staging->in_place || staging->lane.folds)
        return false;
    if (staging->shown && staging->shown->busy)
        return false;                /* a View has shown the result before where this one goes, and is being read */
    if (coll->viewed && !staging->views)
        pp_staging_reclaim(&coll->handle);
    return !coll->viewed;
}

bool pp_ahead_go_on(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_ahead_t     *ahead = handle->staging->ahead;
    pp_chunks_t     chunks;
    int             copies;
    if (!may_go_on(coll) || !coll->ops->chunks || !coll->ops->chunks(coll, &chunks) || !learn_chunks(ahead, &chunks))
        return false;
    if (ahead->round != chunks.round)
        forget_round(ahead);
    pp_status_t status = queue_finished(ctx, coll, chunks.round, &copies);
    if (status < 0)
        pp_engine_fail(handle->engine, status, "handle %u: a result did not get to its device: %s", handle->id,
                       pp_error_text());
    return copies > 0;
}

/* ---- when the result is there ------------------------------------------------------------------------------------- */

static pp_status_t send_rest(pp_staging_t *staging, pp_pinned_t *pinned, uint64_t *count)
{
    const pp_ahead_t *ahead = staging->ahead;
    for (uint32_t first = 0, end; first < ahead->chunks; first = end) {
        for (end = first + 1; end < ahead->chunks && ahead->queued[end] == ahead->queued[first];)
            end++;
        if (!ahead->queued[first])
            PP_TRY(copy(staging, pinned, first, end, count));
    }
    return pp_lane_use(&staging->lane, pinned, staging->stream);
}

pp_status_t pp_ahead_send_rest(pp_ctx_t *ctx, pp_handle_t *handle, pp_pinned_t *pinned, uint64_t round)
{
    pp_staging_t *staging = handle->staging;
    pp_ahead_t   *ahead = staging->ahead;
    if (!ahead)
        return PP_PENDING;
    bool some = ahead->count > 0 && pinned == staging->reader && ahead->round == round
             && ahead->elements == pinned->data;
    uint64_t    bytes = 0;
    pp_status_t status;
    PP_UNLOCKED(ctx, status, follow(staging));
    PP_TRY(status);
    if (some)
        PP_UNLOCKED(ctx, status, send_rest(staging, pinned, &bytes));
    else
        status = PP_PENDING;
    ctx->staged_bytes += bytes;
    forget_round(ahead);
    ahead->under_way = false;
    return status;
}
