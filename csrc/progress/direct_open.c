/* direct_open.c - how a handle gets vectors in the memory of its device, on all ranks or on none.  See direct.h. */
#include "direct_parts.h"

#include <stdlib.h>

void pp_direct_begin(pp_handle_t *handle, pp_direct_t *direct, pp_status_t (*meet)(pp_handle_t *))
{
    pp_direct_make_kind(direct);
    direct->ctx = pp_ctx_of(handle);
    direct->gives_back = true;
    handle->staging->direct = direct;
    handle->wish = &direct->wish;
    handle->meet = meet;
}

void pp_direct_lack(pp_direct_t *direct) { snprintf(direct->wish.why, sizeof direct->wish.why, "%s", pp_error_text()); }

pp_status_t pp_direct_open(const pp_handle_t *handle, pp_direct_t *direct, const pp_direct_elements_t *elements)
{
    pp_device_kind_t *kind = &direct->kind;
    pp_lane_t         lane = handle->staging->lane;
    if (elements->count == 0)
        return pp_fail(PP_ERR_STATE, "there are no elements");
    kind->pool = lane.pool;
    kind->device = lane.device;
    PP_TRY(pp_cuda_pool_load(kind->pool));
    PP_TRY(pp_folds_open(&kind->device, elements->op, elements->type, &direct->folds));
    kind->folds = direct->folds;
    PP_TRY(pp_cuda_pool_get_stream(kind->pool, &kind->stream));
    pp_lane_stay(&lane, direct->folds, 0, 0);
    return pp_lane_pin(&lane, handle->staging->bytes, &direct->receive);
}

static void change_over(pp_handle_t *handle, pp_direct_t *direct)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_staging_t   *staging = handle->staging;
    pp_staging_keep(&staging->spare, staging->receive);
    pp_staging_unpin_spare(staging);
    pp_lane_stay(&staging->lane, direct->folds, coll->series.kernels.user_bytes, coll->series.kernels.element_bytes);
    pp_in_place_set_receive(coll, direct->receive);
    direct->receive = NULL;
    direct->next = direct->ctx->directs;
    direct->ctx->directs = direct;
}

/* The ranks have agreed.  Nothing here can fail: a rank that goes back would not be alone. */
static pp_status_t meet(pp_handle_t *handle)
{
    pp_direct_t *direct = handle->staging->direct;
    if (direct->wish.granted) {
        change_over(handle, direct);
    } else {
        pp_direct_unpin_receive(direct);
        pp_direct_close(direct);
    }
    return PP_OK;
}

pp_status_t pp_direct_ask(pp_handle_t *handle, const char *no_direct)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_direct_t *direct = calloc(1, sizeof *direct);
    if (!direct)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle on a device");
    pp_direct_begin(handle, direct, meet);
    coll->own = &direct->kind.memory;
    const pp_direct_elements_t elements = {.op = coll->config.op, .type = coll->config.type, .count = coll->count};
    if ((no_direct ? pp_fail(PP_ERR_STATE, "%s", no_direct) : pp_direct_open(handle, direct, &elements)) < 0)
        pp_direct_lack(direct);
    return PP_OK;
}
