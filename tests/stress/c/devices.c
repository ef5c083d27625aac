/*
 * devices.c - handles on a device over MPI, with progress threads and two threads of the application,
 * for a run under a sanitizer.  The device is that of the stand-in for the CUDA driver.
 *
 *     PYPARTIAL_CUDA_DRIVER=.../fakecuda.so mpirun -n 2..4 devices loops SCALE SEED
 *
 * PYPARTIAL_CUDA_KERNELS names kernels for it; without, devices share no memory.
 *
 * Each thread has a handle and a stream of its own.  It makes Starts and Waits with random delays; it
 * overwrites what a Start has read at once, and adds up its results as soon as Wait has returned.
 * SCALE: how long, 1 is some hundred rounds.
 */
#include "check.h"

#include "../../../csrc/cuda/driver.h"
#include "../../../csrc/include/pypartial_device.h"
#include "../../support/fakecuda.h"

#include <mpi.h>
#include <pthread.h>

enum { THREADS = 2, ROUNDS = 60, LIMIT_US = 60000000 };

typedef struct loop {
    pp_ctx_t           *ctx;
    pp_handle_t        *handle;
    const pp_cuda_device_t *device;
    size_t              count, bytes;
    CUstream            stream;
    CUdeviceptr         send, recv;
    uint64_t           *pinned, *other;      /* what is contributed, and overwritten by; also the result */
    uint64_t            given, random;
    int                 rounds;
} loop_t;

static const size_t counts[THREADS] = {FIELDS, 20000};

#define DRIVER(loop, name, ...) must(PP_CUDA((loop)->device->cuda, name, __VA_ARGS__), #name)

static void finish_call(pp_ctx_t *ctx, const char *what)
{
    if (must(pp_call_wait(ctx, LIMIT_US), what) == PP_PENDING)
        die("%s hangs", what);
}

static void *pin(const loop_t *loop)
{
    void *memory;
    DRIVER(loop, cuMemHostAlloc, &memory, loop->bytes, CU_MEMHOSTALLOC_PORTABLE);
    return memory;
}

static void open_loop(loop_t *loop, pp_ctx_t *ctx, const pp_cuda_device_t *device, int number, int device_path,
                      int policy, int k)
{
    int32_t taken;
    char    why[200];
    *loop = (loop_t){.ctx = ctx, .device = device, .count = counts[number], .bytes = counts[number] * 8,
                     .random = loop->random};
    MUST(pp_cuda_enter(device));
    DRIVER(loop, cuMemAlloc, &loop->send, loop->bytes);
    DRIVER(loop, cuMemAlloc, &loop->recv, loop->bytes);
    must(pp_cuda_make_stream(device->cuda, &loop->stream), "cuStreamCreateWithPriority");
    loop->pinned = pin(loop);
    loop->other = pin(loop);
    MUST(pp_cuda_leave(device, PP_OK));
    for (size_t i = 0; i < loop->count; i++) {
        loop->pinned[i] = unit(my_rank) * (2 * i + 1);
        loop->other[i] = UINT64_MAX;
    }
    pp_piece_t piece = {(void *)loop->send, (void *)loop->recv, loop->count};
    pp_allreduce_config_t config = {.pieces = &piece, .piece_count = 1, .type = PP_UINT64, .op = PP_SUM,
                                    .policy = policy, .policy_k = k, .deliver = PP_DELIVER_SUM, .max_lag = 1,
                                    .device = 1, .device_path = device_path};
    MUST(pp_allreduce_init_begin(ctx, &config, NULL, &loop->handle));
    finish_call(ctx, "the creation of a handle");
    MUST(pp_device_path(loop->handle, &taken, why, sizeof why));
    CHECK(taken == device_path, "the handle takes path %d: %s", taken, why);
    MUST(pp_use_stream(loop->handle, (uint64_t)(uintptr_t)loop->stream));
}

/* Adds up the result that is on its way. */
static void add_result(loop_t *loop)
{
    uint64_t *result = pin(loop);
    DRIVER(loop, cuMemcpyAsync, pp_cuda_address(result), loop->recv, loop->bytes, loop->stream);
    DRIVER(loop, cuStreamSynchronize, loop->stream);
    for (size_t i = 0; i < loop->count; i++)
        CHECK(result[i] == result[0] * (2 * i + 1), "element %zu of a sum", i);
    loop->given += result[0];
    DRIVER(loop, cuMemFreeHost, result);
}

static void *turn(void *arg)
{
    loop_t *loop = arg;
    MUST(pp_cuda_enter(loop->device));
    for (int i = 0; i < loop->rounds; i++) {
        DRIVER(loop, cuMemcpyAsync, loop->send, pp_cuda_address(loop->pinned), loop->bytes, loop->stream);
        MUST(pp_start(loop->handle));
        DRIVER(loop, cuMemcpyAsync, loop->send, pp_cuda_address(loop->other), loop->bytes, loop->stream);
        usleep((useconds_t)below(&loop->random, 200));
        while (MUST(pp_wait(loop->handle, 1000, NULL)) == PP_PENDING)
            continue;
        add_result(loop);
    }
    MUST(pp_cuda_leave(loop->device, PP_OK));
    return NULL;
}

static void finish(loop_t *loop)
{
    uint64_t call = 0, discarded;
    MUST(pp_land_all(loop->ctx, &call, 0));
    while (MUST(pp_land(loop->handle, call, 0, 1000)) == PP_PENDING)
        continue;
    MUST(pp_flush_begin(loop->handle));
    finish_call(loop->ctx, "Flush");
    MUST(pp_collect(loop->handle, NULL));
    MUST(pp_cuda_enter(loop->device));
    add_result(loop);
    for (int rank = 0; rank < pp_ctx_size(loop->ctx); rank++)
        CHECK(field(loop->given, rank) == (uint64_t)loop->rounds, "%llu contributions of rank %d were given",
              (unsigned long long)field(loop->given, rank), rank);
    call = 0;
    MUST(pp_land_all(loop->ctx, &call, 0));
    while (MUST(pp_land(loop->handle, call, 1, 1000)) == PP_PENDING)
        continue;
    MUST(pp_handle_free_begin(loop->handle, &discarded));
    finish_call(loop->ctx, "Free");
    DRIVER(loop, cuMemFree, loop->send);
    DRIVER(loop, cuMemFree, loop->recv);
    DRIVER(loop, cuMemFreeHost, loop->pinned);
    DRIVER(loop, cuMemFreeHost, loop->other);
    DRIVER(loop, cuStreamDestroy, loop->stream);
    MUST(pp_cuda_leave(loop->device, PP_OK));
}

static void together(uint64_t seed, int path, int device_path, int policy, int k, int rounds)
{
    MPI_Comm         comm = MPI_COMM_WORLD;
    pp_ctx_config_t  config = {.seed = seed, .window = 2, .path = path, .patience_ns = 20000000};
    pp_cuda_device_t device;
    pp_ctx_t        *ctx;
    loop_t           loops[THREADS];
    pthread_t        threads[THREADS];
    MUST(pp_cuda_device_open(0, &device));
    MUST(pp_ctx_open(&comm, &config, NULL, &ctx));
    for (int i = 0; i < THREADS; i++) {
        loops[i].random = seed * 100 + (uint64_t)(my_rank * THREADS + i);
        open_loop(&loops[i], ctx, &device, i, device_path, policy, k);
        loops[i].rounds = rounds;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, turn, &loops[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        finish(&loops[i]);
    MUST(pp_ctx_free_begin(ctx));
    finish_call(ctx, "the release of a context");
    pp_ctx_release(ctx);
    pp_cuda_device_close(&device);
    for (int us = 0; fake_leaks()[0] && us < LIMIT_US; us += 1000)       /* the thread that gives back may take longer */
        usleep(1000);
    CHECK(fake_leaks()[0] == 0, "left on the device: %s", fake_leaks());
    CHECK(fake_misuses() == 0, "memory was freed under a copy");
}

static void use_kernels(const char *file)
{
    static char image[8 << 20];
    FILE *from = fopen(file, "rb");
    if (!from)
        die("%s cannot be read", file);
    size_t bytes = fread(image, 1, sizeof image - 1, from);
    fclose(from);
    MUST(pp_device_kernels(0, image, bytes + 1));
}

static void all_policies(uint64_t seed, int path, int device_path, int ranks, int rounds)
{
    together(seed, path, device_path, PP_FIRST_OF, ranks, rounds);
    together(seed, path, device_path, PP_FIRST_OF, 1, rounds);
    together(seed, path, device_path, PP_QUORUM, ranks, rounds);
}

int main(int argc, char **argv)
{
    int level, ranks;
    if (argc != 4)
        die("usage: devices loops SCALE SEED");
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    uint64_t seed = strtoull(argv[3], NULL, 10);
    int      rounds = ROUNDS * atoi(argv[2]);
    fake_seed(seed * 10 + (uint64_t)my_rank + 1);
    stage = "in shared memory";
    all_policies(seed, PP_PATH_AUTO, PP_DEVICE_STAGED, ranks, rounds);
    stage = "by messages";
    all_policies(seed, PP_PATH_MPI, PP_DEVICE_STAGED, ranks, rounds);
    const char *kernels = getenv("PYPARTIAL_CUDA_KERNELS");
    if (kernels) {
        stage = "on the devices";
        use_kernels(kernels);
        all_policies(seed, PP_PATH_AUTO, PP_DEVICE_IPC, ranks, rounds);
    }
    if (my_rank == 0)
        printf("loops: passed\n");
    MPI_Finalize();
    return 0;
}
