/* api_device.c - the public functions on handles whose buffers are in the memory of a device. */
#include "api.h"
#include "include/pypartial_device.h"
#include "cuda/folds.h"
#include "cuda/lane.h"
#include "progress/direct.h"
#include "progress/vault.h"

pp_status_t pp_devices(int32_t *version, int32_t *count)
{
    const pp_cuda_t *cuda;
    PP_TRY(pp_cuda_open(&cuda));
    PP_TRY(PP_CUDA(cuda, cuDriverGetVersion, version));
    return PP_CUDA(cuda, cuDeviceGetCount, count);
}

pp_status_t pp_device_name(int32_t device, char *name, size_t bytes)
{
    const pp_cuda_t *cuda;
    CUdevice         found;
    PP_TRY(pp_cuda_open(&cuda));
    PP_TRY(PP_CUDA(cuda, cuDeviceGet, &found, device));
    return PP_CUDA(cuda, cuDeviceGetName, name, (int)bytes, found);
}

pp_status_t pp_device_access(int32_t device, int32_t peer, int32_t *can)
{
    const pp_cuda_t *cuda;
    CUdevice         found, other;
    *can = 0;
    PP_TRY(pp_cuda_open(&cuda));
    PP_TRY(PP_CUDA(cuda, cuDeviceGet, &found, device));
    PP_TRY(PP_CUDA(cuda, cuDeviceGet, &other, peer));
    return PP_CUDA(cuda, cuDeviceCanAccessPeer, can, found, other);
}

pp_status_t pp_device_of(const void *address, uint64_t bytes, int32_t *device)
{
    return pp_lane_locate(pp_cuda_address(address), bytes, device);
}

pp_status_t pp_device_architecture(int32_t device, int32_t *major, int32_t *minor)
{
    const pp_cuda_t *cuda;
    CUdevice         found;
    *major = *minor = 0;
    PP_TRY(pp_cuda_device_find(device, &cuda, &found));
    PP_TRY(PP_CUDA(cuda, cuDeviceGetAttribute, major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, found));
    return PP_CUDA(cuda, cuDeviceGetAttribute, minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, found);
}

pp_status_t pp_device_kernels(int32_t device, const void *image, size_t bytes)
{
    return pp_folds_use(device, image, bytes);
}

static pp_status_t enter(pp_handle_t *handle, pp_ctx_t **ctx)
{
    PP_TRY(pp_enter_handle(handle, ctx));
    if (handle->face->land)
        return PP_OK;
    pp_unlock(*ctx);
    return pp_fail(PP_ERR_STATE, "the handle's buffers are the host's");
}

pp_status_t pp_device_path(pp_handle_t *handle, int32_t *path, char *why, size_t bytes)
{
    const char *refusal;
    pp_ctx_t   *ctx;
    *path = PP_DEVICE_STAGED;
    PP_TRY(enter(handle, &ctx));
    if (pp_direct_in_use(handle, &refusal))
        *path = PP_DEVICE_DIRECT;
    else if (!refusal[0])
        *path = pp_vault_in_use(handle, &refusal) ? PP_DEVICE_IPC : PP_DEVICE_STAGED;
    snprintf(why, bytes, "%s", refusal);
    pp_unlock(ctx);
    return PP_OK;
}

pp_status_t pp_first_of_node(pp_ctx_t *ctx, int32_t *first)
{
    PP_TRY(pp_enter(ctx));
    *first = !ctx->mpi || pp_mpi_neighbour_index(ctx->mpi) == 0;
    pp_unlock(ctx);
    return PP_OK;
}

pp_status_t pp_use_stream(pp_handle_t *handle, uint64_t stream)
{
    pp_ctx_t *ctx;
    PP_TRY(enter(handle, &ctx));
    pp_status_t status = pp_staging_use_stream(handle, stream);
    /* A call that has begun gives its result there, when it is repeated. */
    if (status >= 0 && ctx->calls.kind != PP_CALL_NONE && ctx->calls.handle == handle)
        status = pp_staging_check(handle);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_land_all(pp_ctx_t *ctx, uint64_t *until, int64_t timeout_us)
{
    PP_TRY(pp_enter(ctx));
    if (*until == 0)
        *until = ctx->flown + 1;
    pp_status_t status = pp_staging_land_all(ctx, *until, timeout_us);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_land(pp_handle_t *handle, uint64_t call, int32_t results, int64_t timeout_us)
{
    pp_ctx_t *ctx;
    PP_TRY(enter(handle, &ctx));
    pp_status_t status = results ? pp_staging_check_view(handle) : pp_staging_check(handle);
    if (status >= 0 && handle->face->end_view)
        status = handle->face->end_view(handle);
    if (status >= 0)
        status = handle->face->land(ctx, handle, call, results != 0, timeout_us);
    pp_unlock(ctx);
    return status;
}
