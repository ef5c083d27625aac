/* lane.c - see lane.h. */
#include "lane.h"

#include <stdlib.h>
#include <string.h>

/* 1: a build for tests, in which PYPARTIAL_PLANT names a defect that they must find. */
#ifndef PP_PLANTS
#define PP_PLANTS 0
#endif

/* Calls that need the device's context: `status` is what they come to. */
#define IN_DEVICE(lane, status, ...)                                \
    do {                                                            \
        PP_TRY(pp_cuda_enter(&(lane)->device));                     \
        (status) = pp_cuda_leave(&(lane)->device, (__VA_ARGS__));   \
    } while (0)

#define CALL(lane, name, ...) PP_CUDA((lane)->device.cuda, name, __VA_ARGS__)

static bool has_plant(const char *name)
{
    const char *planted = PP_PLANTS ? getenv("PYPARTIAL_PLANT") : NULL;
    return planted && strcmp(planted, name) == 0;
}

static CUstream stream_of(uint64_t stream) { return (CUstream)(uintptr_t)stream; }

/* ---- opening and closing -------------------------------------------------------------------------- */

/* Inside the device. */
static pp_status_t make(pp_lane_t *lane)
{
    PP_TRY(CALL(lane, cuEventCreate, &lane->queued, CU_EVENT_DISABLE_TIMING));
    pp_status_t status = pp_cuda_pool_get_stream(lane->pool, &lane->own);
    if (status < 0)
        lane->device.cuda->cuEventDestroy(lane->queued);
    return status;
}

pp_status_t pp_lane_open(pp_cuda_pool_t *pool, pp_lane_t *lane)
{
    pp_status_t status;
    *lane = (pp_lane_t){.pool = pool, .device = pool->device};
    IN_DEVICE(lane, status, make(lane));
    return status;
}

void pp_lane_give_back(pp_lane_t *lane)
{
    pp_cuda_pool_leave(lane->pool, lane->borrowed);
    lane->borrowed = NULL;
}

void pp_lane_close(pp_lane_t *lane)
{
    if (lane->own && pp_cuda_enter(&lane->device) >= 0) {
        lane->device.cuda->cuEventDestroy(lane->queued);
        pp_cuda_pool_put_stream(lane->pool, lane->own);
        pp_cuda_leave(&lane->device, PP_OK);
    }
    *lane = (pp_lane_t){0};
}

/* ---- pinned memory -------------------------------------------------------------------------------- */

void pp_lane_stay(pp_lane_t *lane, const pp_folds_t *folds, size_t user_bytes, size_t element_bytes)
{
    lane->folds = folds;
    lane->user_bytes = user_bytes;
    lane->element_bytes = element_bytes;
}

static pp_cuda_item_t kind_of(const pp_lane_t *lane) { return lane->folds ? PP_CUDA_MEMORY : PP_CUDA_PINNED; }

static void release(const pp_lane_t *lane, const pp_pinned_t *pinned)
{
    if (pinned->bytes > 0)
        pp_cuda_pool_put(lane->pool, kind_of(lane), pp_cuda_address(pinned->data), NULL);
}

static pp_status_t pin(const pp_lane_t *lane, pp_pinned_t *pinned)
{
    CUdeviceptr memory = 0;
    if (pinned->bytes > 0)
        PP_TRY(pp_cuda_pool_get(lane->pool, kind_of(lane), pinned->bytes, &memory));
    pinned->data = (char *)(uintptr_t)memory;
    pp_status_t status = CALL(lane, cuEventCreate, &pinned->done, CU_EVENT_DISABLE_TIMING);
    if (status < 0)
        release(lane, pinned);
    return status;
}

static pp_status_t new_pinned(const pp_lane_t *lane, size_t bytes, pp_pinned_t **out)
{
    pp_status_t status;
    pp_pinned_t *pinned = calloc(1, sizeof *pinned);
    *out = NULL;
    if (!pinned)
        return pp_fail(PP_ERR_MEMORY, "no memory for a buffer between device and host");
    pinned->bytes = bytes;
    if ((status = pp_cuda_enter(&lane->device)) >= 0)
        status = pp_cuda_leave(&lane->device, pin(lane, pinned));
    if (status >= 0)
        *out = pinned;
    else
        free(pinned);
    return status;
}

pp_status_t pp_lane_pin(const pp_lane_t *lane, size_t bytes, pp_pinned_t **pinned)
{
    return new_pinned(lane, bytes ? bytes : 1, pinned);
}

void pp_lane_unpin(const pp_lane_t *lane, pp_pinned_t *pinned)
{
    if (pinned && pp_cuda_enter(&lane->device) >= 0) {
        lane->device.cuda->cuEventDestroy(pinned->done);
        release(lane, pinned);
        pp_cuda_leave(&lane->device, PP_OK);
    }
    free(pinned);
}

/* ---- pinned memory of others ---------------------------------------------------------------------- */

pp_status_t pp_lane_pin_nothing(const pp_lane_t *lane, pp_pinned_t **pinned) { return new_pinned(lane, 0, pinned); }

static bool is_borrowed(const pp_lane_t *lane, const void *memory)
{
    const pp_registered_t *at = lane->borrowed;
    while (at && at->memory != memory)
        at = at->next;
    return at;
}

bool pp_lane_has_borrowed(const pp_lane_t *lane, const void *memory) { return lane->folds || is_borrowed(lane, memory); }

bool pp_lane_borrow(pp_lane_t *lane, pp_pinned_t *pinned, void *memory, size_t bytes)
{
    pp_status_t status;
    pinned->data = memory;
    if (pp_lane_has_borrowed(lane, memory))
        return true;
    pp_registered_t *borrowed = malloc(sizeof *borrowed);
    if (!borrowed) {
        pp_fail(PP_ERR_MEMORY, "no memory to register %zu bytes", bytes);
        return false;
    }
    if ((status = pp_cuda_enter(&lane->device)) >= 0) {
        status = CALL(lane, cuMemHostRegister, memory, bytes, CU_MEMHOSTREGISTER_PORTABLE);
        pp_cuda_leave(&lane->device, PP_OK);
    }
    if (status < 0) {
        free(borrowed);
        return false;
    }
    *borrowed = (pp_registered_t){.next = lane->borrowed, .memory = memory, .bytes = bytes};
    lane->borrowed = borrowed;
    return true;
}

/* ---- copies --------------------------------------------------------------------------------------- */

/* Not every driver notices each of these. */
static bool is_about_the_stream(CUresult result)
{
    return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_CONTEXT
        || result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* Whether a stream is being captured, by what cuStreamIsCapturing() gave.  `whose` begins the text. */
static pp_status_t refuse_capture(const char *whose, uint64_t stream, CUresult result, CUstreamCaptureStatus capture)
{
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return pp_fail(PP_ERR_ARGUMENT, "%sstream=%#llx cannot be used while a stream is being captured into a graph that "
                       "waits for the legacy default stream: call this outside of the capture, or capture a stream that "
                       "does not block", whose, (unsigned long long)stream);
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return pp_fail(PP_ERR_ARGUMENT, "%sstream=%#llx is being captured into a graph: call this outside of the capture",
                       whose, (unsigned long long)stream);
    return PP_OK;
}

static pp_status_t check(const pp_lane_t *lane, uint64_t stream)
{
    const pp_cuda_t      *cuda = lane->device.cuda;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUcontext             context = lane->device.context;
    const char           *call = "cuStreamIsCapturing";
    /* First: drivers before that of CUDA 12.5 do not tell the context of a stream that is being captured. */
    CUresult result = cuda->cuStreamIsCapturing(stream_of(stream), &capture);
    PP_TRY(refuse_capture("", stream, result, capture));
    if (result == CUDA_SUCCESS && !pp_lane_is_default(stream)) {
        call = "cuStreamGetCtx";
        result = cuda->cuStreamGetCtx(stream_of(stream), &context);
    }
    if (is_about_the_stream(result) || context != lane->device.context)
        return pp_fail(PP_ERR_ARGUMENT, "stream=%#llx cannot be used: it was destroyed, or is no stream of the device of "
                       "the buffers, or is of another context of that device than the primary one, such as a green "
                       "context", (unsigned long long)stream);
    return pp_cuda_status(cuda, result, call);
}

static pp_status_t check_view(const pp_lane_t *lane, uint64_t stream)
{
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = lane->device.cuda->cuStreamIsCapturing(stream_of(stream), &capture);
    return refuse_capture("the last View's ", stream, result, capture);
}

pp_status_t pp_lane_check(const pp_lane_t *lane, uint64_t stream)
{
    pp_status_t status;
    IN_DEVICE(lane, status, check(lane, stream));
    return status;
}

pp_status_t pp_lane_check_view(const pp_lane_t *lane, uint64_t stream)
{
    pp_status_t status;
    IN_DEVICE(lane, status, check_view(lane, stream));
    return status;
}

/* Its event is recorded also behind a part of the copies, so that the memory is used again only when they are over. */
static pp_status_t end_copy(const pp_lane_t *lane, pp_pinned_t *pinned, CUstream stream, pp_status_t status)
{
    pinned->busy = true;
    const CUresult recorded = lane->device.cuda->cuEventRecord(pinned->done, stream);
    pinned->lost = recorded != CUDA_SUCCESS;
    pinned->on_own = stream == lane->own;
    return status < 0 ? status : pp_cuda_status(lane->device.cuda, recorded, "cuEventRecord");
}

/* Borrowed memory of a device holds accumulators. */
static bool converts(const pp_lane_t *lane, const pp_pinned_t *pinned) { return lane->folds && pinned->bytes == 0; }

static size_t bytes_there(const pp_lane_t *lane, const pp_pinned_t *pinned, size_t bytes)
{
    return converts(lane, pinned) ? bytes / lane->user_bytes * lane->element_bytes : bytes;
}

static pp_status_t copy_out(const pp_lane_t *lane, const pp_span_t *spans, size_t count, pp_pinned_t *to,
                            CUstream stream)
{
    pp_status_t status = PP_OK;
    bool        any = false;         /* a copy is queued */
    CUdeviceptr at = pp_cuda_address(to->data);
    for (size_t i = 0; i < count && status >= 0; at += bytes_there(lane, to, spans[i++].bytes)) {
        if (spans[i].bytes == 0)
            continue;
        status = converts(lane, to)
               ? pp_folds_load(lane->folds, at, spans[i].address, spans[i].bytes / lane->user_bytes, stream)
               : CALL(lane, cuMemcpyAsync, at, spans[i].address, spans[i].bytes, stream);
        any |= status >= 0;
    }
    if (status < 0 && !any)
        return status;
    status = end_copy(lane, to, stream, status);
    if (to->lost && stream != lane->own)      /* the application may destroy its stream before it is asked again */
        to->busy = to->lost = lane->device.cuda->cuStreamSynchronize(stream) != CUDA_SUCCESS;
    if (has_plant("early-link"))
        to->busy = false;
    return status;
}

/* What was queued on the stream comes first, and what is queued there afterwards waits.  A copy to the host needs no
   more than to be queued there itself.  What may be a kernel goes by the lane's stream, whose priority is greater. */
static pp_status_t queue_out(pp_lane_t *lane, const pp_span_t *spans, size_t count, pp_pinned_t *to, CUstream stream)
{
    if (!lane->folds)
        return copy_out(lane, spans, count, to, has_plant("no-event-wait") ? lane->own : stream);
    PP_TRY(CALL(lane, cuEventRecord, lane->queued, stream));
    if (!has_plant("no-event-wait"))
        PP_TRY(CALL(lane, cuStreamWaitEvent, lane->own, lane->queued, 0));
    PP_TRY(copy_out(lane, spans, count, to, lane->own));
    return CALL(lane, cuStreamWaitEvent, stream, to->done, 0);
}

pp_status_t pp_lane_out(pp_lane_t *lane, const pp_span_t *spans, size_t count, pp_pinned_t *to, uint64_t stream)
{
    pp_status_t status;
    IN_DEVICE(lane, status, queue_out(lane, spans, count, to, stream_of(stream)));
    return status;
}

enum { MANY_BYTES = 32 << 10 };      /* measured: an H100 with driver 580 */

/* For fewer bytes than MANY_BYTES.  So few the driver puts into the commands that it sends to the device, and the
   part that runs kernels writes them there.  Where processes share a device, that part serves one after the other, at
   some 100 us for each turn (docs/cuda.md).  The driver copies rows as it copies more bytes, so these go as two rows. */
static pp_status_t copy_few(const pp_lane_t *lane, CUdeviceptr to, const char *from, size_t bytes, CUstream stream)
{
    enum { ROWS = 2 };
    const size_t        width = bytes / ROWS;
    const CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .srcPitch = width,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .dstPitch = width,
                                .WidthInBytes = width, .Height = ROWS};
    return CALL(lane, cuMemcpy2DAsync, &copy, stream);
}

static pp_status_t copy_in(const pp_lane_t *lane, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (!lane->folds && bytes < MANY_BYTES && bytes % 2 == 0)
        return copy_few(lane, to, (const char *)(uintptr_t)from, bytes, stream);
    return CALL(lane, cuMemcpyAsync, to, from, bytes, stream);
}

static pp_status_t queue_in(const pp_lane_t *lane, const pp_span_t *spans, size_t count, pp_pinned_t *from,
                            CUstream stream)
{
    pp_status_t status = PP_OK;
    if (has_plant("no-result-wait"))
        stream = lane->own;
    CUdeviceptr at = pp_cuda_address(from->data);
    for (size_t i = 0; i < count && status >= 0; at += bytes_there(lane, from, spans[i++].bytes)) {
        if (spans[i].bytes == 0)
            continue;
        status = converts(lane, from)
               ? pp_folds_store(lane->folds, spans[i].address, at, spans[i].bytes / lane->user_bytes, stream)
               : copy_in(lane, spans[i].address, at, spans[i].bytes, stream);
    }
    status = end_copy(lane, from, stream, status);
    if (has_plant("early-unpin"))
        from->busy = false;
    return status;
}

pp_status_t pp_lane_in(const pp_lane_t *lane, const pp_span_t *spans, size_t count, pp_pinned_t *from, uint64_t stream)
{
    pp_status_t status;
    IN_DEVICE(lane, status, queue_in(lane, spans, count, from, stream_of(stream)));
    return status;
}

static pp_status_t queue_in_by(pp_lane_t *lane, const pp_span_t *spans, size_t count, pp_pinned_t *from, pp_pinned_t *by,
                               CUstream stream)
{
    const pp_span_t there = {.address = pp_cuda_address(by->data), .bytes = by->bytes};
    PP_TRY(queue_in(lane, &there, 1, from, lane->own));
    PP_TRY(CALL(lane, cuStreamWaitEvent, stream, from->done, 0));
    return queue_in(lane, spans, count, by, stream);
}

pp_status_t pp_lane_in_by(pp_lane_t *lane, const pp_span_t *spans, size_t count, pp_pinned_t *from, pp_pinned_t *by,
                          uint64_t stream)
{
    pp_status_t status;
    IN_DEVICE(lane, status, queue_in_by(lane, spans, count, from, by, stream_of(stream)));
    return status;
}

pp_status_t pp_lane_follow(const pp_lane_t *lane, const pp_pinned_t *pinned, uint64_t stream)
{
    pp_status_t status;
    IN_DEVICE(lane, status, CALL(lane, cuStreamWaitEvent, stream_of(stream), pinned->done, 0));
    return status;
}

pp_status_t pp_lane_use(const pp_lane_t *lane, pp_pinned_t *pinned, uint64_t stream)
{
    pp_status_t status;
    IN_DEVICE(lane, status, end_copy(lane, pinned, stream_of(stream), PP_OK));
    return status;
}

/* The lane's own stream is still there, and an event that is recorded now is behind the copy. */
static bool is_still_lost(const pp_lane_t *lane, pp_pinned_t *pinned)
{
    if (pinned->on_own && pp_cuda_enter(&lane->device) >= 0) {
        pinned->lost = lane->device.cuda->cuEventRecord(pinned->done, lane->own) != CUDA_SUCCESS;
        pp_cuda_leave(&lane->device, PP_OK);
    }
    return pinned->lost;
}

pp_status_t pp_lane_over(const pp_lane_t *lane, pp_pinned_t *pinned)
{
    pp_status_t status = PP_OK;
    if (pinned->lost && is_still_lost(lane, pinned))
        return PP_PENDING;
    if (pinned->busy)
        IN_DEVICE(lane, status, CALL(lane, cuEventQuery, pinned->done));
    pinned->busy = status != PP_OK;
    return status;
}

/* ---- where memory is ------------------------------------------------------------------------------ */

static pp_status_t locate(CUdeviceptr address, int32_t *device)
{
    const pp_cuda_t *cuda;
    uint32_t    type = 0, managed = 0;
    int         ordinal = CU_DEVICE_INVALID;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *answers[] = {&type, &managed, &ordinal};
    PP_TRY(pp_cuda_open(&cuda));
    PP_TRY(PP_CUDA(cuda, cuPointerGetAttributes, sizeof which / sizeof *which, which, answers, address));
    if (managed)
        return pp_fail(PP_ERR_ARGUMENT, "address %#llx is in managed memory: pass memory of one device", address);
    if (type != CU_MEMORYTYPE_DEVICE || ordinal < 0)
        return pp_fail(PP_ERR_ARGUMENT, "address %#llx is not in the memory of a device that CUDA knows", address);
    *device = ordinal;
    return PP_OK;
}

/* The ends are looked at, and not the size of an allocation: what is mapped to consecutive addresses may be several. */
pp_status_t pp_lane_locate(CUdeviceptr address, size_t bytes, int32_t *device)
{
    int32_t last = CU_DEVICE_INVALID;
    PP_TRY(locate(address, device));
    const pp_status_t status = locate(bytes > 0 ? address + bytes - 1 : address, &last);
    if (status == PP_ERR_ARGUMENT || (status >= 0 && last != *device))
        return pp_fail(PP_ERR_ARGUMENT, "%zu bytes from address %#llx on do not end in the memory of device %d", bytes,
                       address, *device);
    return status;
}
