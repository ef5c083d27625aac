/* direct_test.c - whether MPI takes addresses of a device: what a process of its own tries before ranks do.  See
   pypartial_device.h. */
#include "../cuda/driver.h"
#include "../include/pypartial_device.h"
#include "../transport/pp_mpi.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL = 256, LARGE = 4 << 20, VECTORS = 3 };   /* bytes: MPI may take other ways for each */

typedef struct bench {
    pp_cuda_device_t device;
    CUstream    stream;
    CUdeviceptr vectors[VECTORS];    /* sent, received, reduced */
    float      *host;
} bench_t;

#define CALL(bench, name, ...) PP_CUDA((bench)->device.cuda, name, __VA_ARGS__)

/* All are whole numbers, so that a sum over one rank has the same bits. */
static float value(size_t i) { return (float)(i % 8191 + 1); }

static pp_status_t copy(bench_t *bench, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    PP_TRY(CALL(bench, cuMemcpyAsync, to, from, bytes, bench->stream));
    return CALL(bench, cuStreamSynchronize, bench->stream);
}

static pp_status_t check(bench_t *bench, CUdeviceptr vector, size_t bytes, const char *what)
{
    memset(bench->host, 0, bytes);
    PP_TRY(copy(bench, pp_cuda_address(bench->host), vector, bytes));
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        if (bench->host[i] != value(i))
            return pp_fail(PP_ERR_STATE, "%s of %zu bytes has element %zu as %g instead of %g", what, bytes, i,
                           (double)bench->host[i], (double)value(i));
    return PP_OK;
}

static pp_status_t try_bytes(bench_t *bench, size_t bytes)
{
    CUdeviceptr *vectors = bench->vectors;
    memset(bench->host, 0, bytes);
    for (int v = 1; v < VECTORS; v++)
        PP_TRY(copy(bench, vectors[v], pp_cuda_address(bench->host), bytes));
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        bench->host[i] = value(i);
    PP_TRY(copy(bench, vectors[0], pp_cuda_address(bench->host), bytes));
    PP_TRY(pp_mpi_self_test((void *)(uintptr_t)vectors[0], (void *)(uintptr_t)vectors[1],
                            (void *)(uintptr_t)vectors[2], bytes));
    PP_TRY(check(bench, vectors[1], bytes, "a message to itself"));
    return check(bench, vectors[2], bytes, "an allreduce");
}

/* Inside the device: MPI finds its context current. */
static pp_status_t try_all(bench_t *bench)
{
    PP_TRY(pp_cuda_make_stream(bench->device.cuda, &bench->stream));
    for (int v = 0; v < VECTORS; v++) {
        PP_TRY(CALL(bench, cuMemAlloc, &bench->vectors[v], LARGE));
        PP_TRY(pp_cuda_prepare_for_mpi(bench->device.cuda, bench->vectors[v]));
    }
    PP_TRY(try_bytes(bench, SMALL));
    return try_bytes(bench, LARGE);
}

static void clear(bench_t *bench)
{
    for (int v = 0; v < VECTORS; v++)
        if (bench->vectors[v])
            bench->device.cuda->cuMemFree(bench->vectors[v]);
    if (bench->stream)
        bench->device.cuda->cuStreamDestroy(bench->stream);
}

pp_status_t pp_device_self_test(int32_t device)
{
    bench_t bench = {.host = malloc(LARGE)};
    if (!bench.host)
        return pp_fail(PP_ERR_MEMORY, "no memory for a test of MPI");
    pp_status_t status = pp_cuda_device_open(device, &bench.device);
    if (status >= 0 && (status = pp_cuda_enter(&bench.device)) >= 0) {
        status = try_all(&bench);
        clear(&bench);
        status = pp_cuda_leave(&bench.device, status);
    }
    pp_cuda_device_close(&bench.device);
    free(bench.host);
    return status;
}
