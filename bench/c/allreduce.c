/*
 * allreduce.c - what an allreduce costs in C: MPI's own, and Start and Wait of this library.
 *
 *     mpirun -n P allreduce BYTES BLOCKS CALLS SKEW_US FILE
 *
 * The ways take turns in blocks of calls.  Without skew a block counts with the mean of its slowest rank; with
 * skew every call is a round: the ranks meet, rank r sleeps r times the skew, then calls, and a block counts with
 * the mean over its calls and ranks.  Rank 0 writes medians over the blocks: `bench latency` and `bench skew` in C.
 * Of a block the last sum is verified, with skew every sum; a call that does not write would be noticed.
 */
#define _GNU_SOURCE 1
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pypartial.h"

#if MPI_VERSION >= 4 || (defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5)
#define HAS_PERSISTENT 1
#endif

enum { MPI_BLOCKING, MPI_NONBLOCKING, MPI_PERSISTENT, FULL, SOLO, MAJORITY, WAYS };

static const char *const names[WAYS] = {"mpi", "mpi-nonblocking", "mpi-persistent", "full", "solo", "majority"};

typedef struct bench {
    pp_ctx_t    *ctx;
    pp_handle_t *handles[WAYS];
    MPI_Request  persistent;
    MPI_Comm     comm;         /* MPI's calls */
    MPI_Comm     control;      /* the benchmark's own */
    float       *send, *recv, *mpi_send, *mpi_recv;
    int          count, rank, ranks;
} bench_t;

static void check(pp_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "allreduce: %s\n", pp_error_text());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void sleep_until(int64_t ns)
{
    struct timespec time = {ns / 1000000000, ns % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

static void call(bench_t *b, int way)
{
    switch (way) {
    case MPI_BLOCKING:
        MPI_Allreduce(b->mpi_send, b->mpi_recv, b->count, MPI_FLOAT, MPI_SUM, b->comm);
        break;
    case MPI_NONBLOCKING: {
        MPI_Request request;
        MPI_Iallreduce(b->mpi_send, b->mpi_recv, b->count, MPI_FLOAT, MPI_SUM, b->comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        break;
    }
    case MPI_PERSISTENT:
        MPI_Start(&b->persistent);
        MPI_Wait(&b->persistent, MPI_STATUS_IGNORE);
        break;
    default:
        check(pp_start(b->handles[way]));
        check(pp_wait(b->handles[way], -1, NULL));
    }
}

/* No sum is negative. */
static void spoil(const bench_t *b, int way)
{
    float *spoiled = way < FULL ? b->mpi_recv : b->recv;
    for (int i = 0; i < b->count; i++)
        spoiled[i] = -1;
}

/* Everybody's ones: in Full and MPI all ranks', else those of some. */
static void verify(const bench_t *b, int way)
{
    const float *found = way < FULL ? b->mpi_recv : b->recv;
    for (int i = 0; i < b->count; i++)
        if (way <= FULL ? found[i] != (float)b->ranks : found[i] < 1) {
            fprintf(stderr, "allreduce: %s: element %d is %g\n", names[way], i, found[i]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
}

static double balanced_block(bench_t *b, int way, int calls)
{
    call(b, way);
    spoil(b, way);
    MPI_Barrier(b->control);
    int64_t began = now_ns();
    for (int i = 0; i < calls; i++)
        call(b, way);
    double mean = (double)(now_ns() - began) / calls, slowest;
    verify(b, way);
    MPI_Allreduce(&mean, &slowest, 1, MPI_DOUBLE, MPI_MAX, b->control);
    return slowest;
}

static double skewed_block(bench_t *b, int way, int calls, int64_t skew_ns)
{
    double sum = 0, all;
    for (int i = 0; i < calls; i++) {
        int64_t start = 0;
        spoil(b, way);
        MPI_Barrier(b->control);
        if (b->rank == 0)
            start = now_ns() + 500000; /* all ranks share the clock of the node */
        MPI_Bcast(&start, 1, MPI_INT64_T, 0, b->control);
        sleep_until(start + b->rank * skew_ns);
        int64_t began = now_ns();
        call(b, way);
        if (i > 0) /* the first takes what came late to the way's turn before */
            sum += (double)(now_ns() - began);
        sleep_until(start + b->ranks * skew_ns);
        verify(b, way);
    }
    sum /= calls > 1 ? calls - 1 : 1;
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, b->control);
    return all / b->ranks;
}

static void open_handle(bench_t *b, int way)
{
    pp_piece_t            piece = {b->send, b->recv, (size_t)b->count};
    pp_allreduce_config_t config = {
        .pieces = &piece, .piece_count = 1, .type = PP_FLOAT32, .op = PP_SUM, .policy = PP_FIRST_OF,
        .policy_k = way == SOLO ? b->ranks : 1, .deliver = PP_LATEST, .max_lag = -1, .grace_ns = -1,
    };
    if (way == FULL) {
        config.policy = PP_QUORUM;
        config.policy_k = b->ranks;
    }
    check(pp_allreduce_init_begin(b->ctx, &config, NULL, &b->handles[way]));
    check(pp_call_wait(b->ctx, -1));
}

static void close_handle(bench_t *b, int way)
{
    pp_result_t result;
    uint64_t    discarded;
    check(pp_flush_begin(b->handles[way]));
    check(pp_call_wait(b->ctx, -1));
    check(pp_collect(b->handles[way], &result));
    check(pp_handle_free_begin(b->handles[way], &discarded));
    check(pp_call_wait(b->ctx, -1));
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static bool measured(int way, bool skewed)
{
#ifndef HAS_PERSISTENT
    if (way == MPI_PERSISTENT)
        return false;
#endif
    if (skewed)
        return way != MPI_NONBLOCKING && way != MPI_PERSISTENT;
    return way != MAJORITY;
}

int main(int argc, char **argv)
{
    bench_t b = {.comm = MPI_COMM_NULL};
    int     level;
    if (argc != 6) {
        fprintf(stderr, "allreduce BYTES BLOCKS CALLS SKEW_US FILE\n");
        return 2;
    }
    size_t  bytes = strtoull(argv[1], NULL, 10);
    int     blocks = atoi(argv[2]), calls = atoi(argv[3]);
    int64_t skew_ns = 1000 * strtoll(argv[4], NULL, 10);

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_dup(MPI_COMM_WORLD, &b.comm);
    MPI_Comm_dup(MPI_COMM_WORLD, &b.control);
    MPI_Comm_rank(b.comm, &b.rank);
    MPI_Comm_size(b.comm, &b.ranks);
    b.count = (int)(bytes / sizeof(float));

    pp_ctx_config_t config = {.window = 4, .progress = PP_PROGRESS_THREAD, .path = PP_PATH_AUTO};
    MPI_Comm        world = MPI_COMM_WORLD;
    check(pp_ctx_open(&world, &config, NULL, &b.ctx));
    void *keepers[2], *memory[2];
    for (int i = 0; i < 2; i++)
        check(pp_ctx_alloc(b.ctx, bytes, &memory[i], &keepers[i]));
    b.send = memory[0];
    b.recv = memory[1];
    b.mpi_send = malloc(bytes);
    b.mpi_recv = malloc(bytes);
    for (int i = 0; i < b.count; i++)
        b.send[i] = b.mpi_send[i] = 1;
    for (int way = FULL; way < WAYS; way++)
        open_handle(&b, way);
#ifdef HAS_PERSISTENT
    MPI_Allreduce_init(b.mpi_send, b.mpi_recv, b.count, MPI_FLOAT, MPI_SUM, b.comm, MPI_INFO_NULL, &b.persistent);
#endif

    double *times = calloc((size_t)WAYS * (size_t)blocks, sizeof *times);
    for (int block = 0; block < blocks; block++)
        for (int turn = 0; turn < WAYS; turn++) {
            int way = (turn + block) % WAYS; /* the order rotates */
            if (measured(way, skew_ns > 0))
                times[way * blocks + block] = skew_ns > 0 ? skewed_block(&b, way, calls + 1, skew_ns)
                                                          : balanced_block(&b, way, calls);
        }

    if (b.rank == 0) {
        FILE       *file = fopen(argv[5], "w");
        const char *between = "";
        if (file == NULL) {
            perror(argv[5]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        fprintf(file, "{\"meta\": {\"version\": \"%s\"}, \"rows\": [", pp_version());
        for (int way = 0; way < WAYS; way++)
            if (measured(way, skew_ns > 0)) {
                double *its = times + way * blocks;
                qsort(its, (size_t)blocks, sizeof *its, ascending);
                double median = (its[(blocks - 1) / 2] + its[blocks / 2]) / 2;
                fprintf(file, "%s{\"policy\": \"%s\", \"bytes\": %zu, \"ranks\": %d, \"us\": %.4f}", between,
                        names[way], bytes, b.ranks, median / 1000);
                between = ", ";
            }
        fprintf(file, "]}\n");
        fclose(file);
    }

#ifdef HAS_PERSISTENT
    MPI_Request_free(&b.persistent);
#endif
    for (int way = FULL; way < WAYS; way++)
        close_handle(&b, way);
    check(pp_ctx_free_begin(b.ctx));
    check(pp_call_wait(b.ctx, -1));
    pp_ctx_release(b.ctx);
    for (int i = 0; i < 2; i++)
        pp_unalloc(keepers[i]);
    MPI_Comm_free(&b.comm);
    MPI_Comm_free(&b.control);
    free(b.mpi_send);
    free(b.mpi_recv);
    free(times);
    MPI_Finalize();
    return 0;
}
