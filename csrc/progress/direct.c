/* direct.c - see direct.h. */
#include "direct_parts.h"

#include <stdlib.h>

static pp_direct_t *direct_of(const pp_memory_t *memory) { return (pp_direct_t *)(uintptr_t)memory; }

/* ---- the kind of memory ---------------------------------------------------------------------------------------- */

static pp_status_t allocate(const pp_memory_t *self, size_t bytes, void **elements)
{
    const pp_cuda_device_t *device = &direct_of(self)->kind.device;
    PP_TRY(pp_device_queued_operations.allocate(self, bytes, elements));
    pp_status_t status = pp_cuda_enter(device);
    if (status >= 0)
        status = pp_cuda_leave(device, pp_cuda_prepare_for_mpi(device->cuda, pp_cuda_address(*elements)));
    if (status < 0) {
        pp_device_operations.release(self, *elements);
        *elements = NULL;
    }
    return status;
}

static pp_status_t lend(const pp_memory_t *self, size_t bytes)
{
    pp_direct_t *direct = direct_of(self);
    PP_TRY(pp_device_failed(&direct->failure));
    direct->ctx->direct_bytes += bytes;
    return pp_cuda_enter(&direct->kind.device);   /* an MPI may look which device is current */
}

/* A look goes on with what it has begun: the device stays current until its end. */
static bool stays(pp_ctx_t *ctx, const pp_cuda_device_t *device)
{
    if (!ctx->looks || ctx->looks_on.context)
        return false;
    ctx->looks_on = *device;
    return true;
}

static pp_status_t lent(const pp_memory_t *self, pp_status_t status)
{
    pp_direct_t *direct = direct_of(self);
    return stays(direct->ctx, &direct->kind.device) ? status : pp_cuda_leave(&direct->kind.device, status);
}

static void release(const pp_memory_t *self, void *elements)
{
    if (direct_of(self)->gives_back)
        pp_device_operations.release(self, elements);
}

void pp_direct_close(pp_direct_t *direct)
{
    pp_device_kind_t *kind = &direct->kind;
    if (kind->stream && pp_cuda_enter(&kind->device) >= 0) {
        pp_device_end_marks(kind);
        pp_cuda_pool_put_stream(kind->pool, kind->stream);
        pp_cuda_leave(&kind->device, PP_OK);
    }
    kind->stream = NULL;
    pp_folds_close(direct->folds);
    direct->folds = NULL;
}

static void end(const pp_memory_t *self)
{
    pp_direct_t *direct = direct_of(self);
    if (direct->gives_back)
        pp_direct_close(direct);
    free(direct);
}

void pp_direct_make_kind(pp_direct_t *direct)
{
    direct->kind.memory = pp_device_queued_operations;
    direct->kind.memory.allocate = allocate;
    direct->kind.memory.release = release;
    direct->kind.memory.lend = lend;
    direct->kind.memory.lent = lent;
    direct->kind.memory.end = end;
    direct->kind.failure = &direct->failure;
    direct->kind.marks = &direct->marks;
}

void pp_direct_unpin_receive(pp_direct_t *direct)
{
    pp_lane_t lane = {.pool = direct->kind.pool, .device = direct->kind.device, .folds = direct->folds};
    if (direct->receive)
        pp_lane_unpin(&lane, direct->receive);
    direct->receive = NULL;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

bool pp_direct_in_use(const pp_handle_t *handle, const char **why)
{
    const pp_direct_t *direct = handle->staging->direct;
    *why = direct ? direct->wish.why : "";
    return direct && direct->wish.granted;
}

pp_status_t pp_direct_room(pp_handle_t *handle)
{
    pp_direct_t *direct = handle->staging->direct;
    return direct && direct->wish.granted ? pp_device_room(&direct->kind) : PP_OK;
}

pp_status_t pp_direct_use(pp_handle_t *handle, pp_pinned_t *bounce)
{
    const pp_direct_t *direct = handle->staging->direct;
    if (!direct || !direct->wish.granted)
        return PP_OK;
    return pp_lane_use(&handle->staging->lane, bounce, (uint64_t)(uintptr_t)direct->kind.stream);
}

pp_status_t pp_direct_send(pp_ctx_t *ctx, pp_handle_t *handle, pp_pinned_t *bounce)
{
    const pp_direct_t *direct = handle->staging->direct;
    if (!direct || !direct->wish.granted)
        return PP_OK;
    return pp_staging_follow(ctx, handle, bounce, direct->kind.stream);
}

void pp_direct_begin_look(pp_ctx_t *ctx)
{
    ctx->looks = true;               /* the first such handle may begin within the look */
    if (ctx->directs && pp_mpi_is_under_way(ctx->mpi) && pp_cuda_enter(&ctx->directs->kind.device) >= 0)
        stays(ctx, &ctx->directs->kind.device);
}

void pp_direct_end_look(pp_ctx_t *ctx)
{
    ctx->looks = false;
    if (!ctx->looks_on.context)
        return;
    pp_cuda_leave(&ctx->looks_on, PP_OK);
    ctx->looks_on.context = NULL;
}

pp_status_t pp_direct_check(pp_handle_t *handle)
{
    const pp_direct_t *direct = handle->staging->direct;
    pp_status_t status = direct ? pp_device_failed(&direct->failure) : PP_OK;
    if (status >= 0)
        return PP_OK;
    pp_engine_fail(handle->engine, status, "handle %u: %s", handle->id, pp_error_text());
    return pp_engine_check(handle->engine);
}

/* ---- the end ------------------------------------------------------------------------------------------------------ */

void pp_direct_end(pp_handle_t *handle, bool frees)
{
    pp_direct_t *direct = handle->staging->direct;
    if (!direct)
        return;
    handle->staging->direct = NULL;
    handle->wish = NULL;
    for (pp_direct_t **link = &direct->ctx->directs; *link; link = &(*link)->next)
        if (*link == direct) {
            *link = direct->next;
            break;
        }
    direct->gives_back = frees;
    if (frees)
        pp_direct_unpin_receive(direct);
    if (direct->ends_alone)
        direct->kind.memory.end(&direct->kind.memory);
}
