/* sent.c - results on their way to the device.  See staging.h. */
#include "staging.h"

enum { RESULTS_MAX = 8 };            /* on their way to the device at once; a Flush may add one */

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

pp_status_t pp_staging_reclaim(pp_handle_t *handle)
{
    pp_staging_t *staging = handle->staging;
    while (staging->results) {
        pp_status_t status = pp_lane_over(&staging->lane, staging->results);
        if (status != PP_OK)
            return status < 0 ? status : PP_OK;
        pp_pinned_t *pinned = pop_result(staging);
        if (pinned == staging->reader)
            staging->has_read(handle);
        else
            pp_staging_keep(&staging->spare, pinned);
    }
    return PP_OK;
}

pp_status_t pp_staging_follow(pp_ctx_t *ctx, pp_handle_t *handle, pp_pinned_t *bounce, CUstream operations)
{
    pp_staging_t *staging = handle->staging;
    pp_status_t   status;
    PP_TRY(pp_lane_use(&staging->lane, bounce, (uint64_t)(uintptr_t)operations));
    PP_UNLOCKED(ctx, status, pp_lane_follow(&staging->lane, bounce, staging->stream));
    return status;
}

void pp_staging_await(pp_ctx_t *ctx, pp_staging_t *staging, pp_pinned_t *result)
{
    result->next = NULL;
    if (staging->results)
        staging->newest->next = result;
    else
        staging->results = result;
    staging->newest = result;
    staging->result_count++;
    count_full(ctx, staging);
}

void pp_staging_sent(pp_ctx_t *ctx, pp_staging_t *staging, pp_pinned_t *result)
{
    pp_staging_await(ctx, staging, result);
    pp_staging_count(ctx, staging, result);
}

void pp_staging_count(pp_ctx_t *ctx, const pp_staging_t *staging, const pp_pinned_t *pinned)
{
    const bool on_device = staging->lane.folds, bounces = pinned->bytes > 0;
    if (!on_device) {
        ctx->staged_bytes += staging->bytes;
        ctx->bounced_bytes += bounces ? staging->bytes : 0;
    } else if (!staging->direct) {
        ctx->ipc_bytes += staging->bytes;
    }
}

bool pp_staging_room(const pp_handle_t *handle)
{
    pp_staging_t *staging = handle->staging;
    pp_status_t   status = staging->result_count < RESULTS_MAX ? PP_OK : pp_staging_reclaim((pp_handle_t *)handle);
    count_full(pp_ctx_of(handle), staging);     /* a Start may have reclaimed some */
    return status < 0 || staging->result_count < RESULTS_MAX;      /* the error is found again */
}
