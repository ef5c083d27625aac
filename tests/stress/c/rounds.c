/*
 * rounds.c - the C core over MPI, with progress threads, for runs under the sanitizers.
 *
 *     mpirun -n 3 rounds work|leave [ROUNDS [SEED]]
 *
 * Every combination of policy, delivery and algorithm; payloads that travel with their header, on their
 * own, and in chunks; two application threads on two handles; questions and counters from a third;
 * several contexts.  "leave" is apart: contexts are given up and forgotten, so what MPI may still write to
 * is not released.  Results are checked roughly, the oracles proper are in tests/support/oracles.py.  Exit
 * code 0, or 1 with a line that says why.
 */
#include "pypartial.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS_MAX = 64, DELAY_US = 150 };

static int rank, size;

#define MUST(call) must((call), #call, __LINE__)

static void give_up(const char *what, int line, const char *text)
{
    fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, line, what, text);
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static pp_status_t must(pp_status_t status, const char *what, int line)
{
    if (status < 0)
        give_up(what, line, pp_error_text());
    return status;
}

static void require(bool good, const char *what, int line)
{
    if (!good)
        give_up(what, line, "is not so");
}
#define REQUIRE(condition) require((condition), #condition, __LINE__)

/* ---- one handle ------------------------------------------------------------------------------------ */

/* One generator a thread: xorshift. */
typedef struct dice { uint64_t state; } dice_t;

static uint32_t roll(dice_t *dice, uint32_t below)
{
    dice->state ^= dice->state << 13;
    dice->state ^= dice->state >> 7;
    dice->state ^= dice->state << 17;
    return (uint32_t)(dice->state >> 33) % below;
}

typedef struct handle {
    pp_coll_t *coll;
    int64_t   *send, *recv;
    int64_t    replica[RANKS_MAX];    /* sum of the counts of all that was given */
    size_t     count;
    int32_t    deliver;
    int64_t    starts;
} handle_t;

/* The first elements count the ranks' Starts; the others follow from those. */
static void make_handle(pp_ctx_t *ctx, handle_t *handle, size_t extra, int32_t policy, int32_t k,
                        int32_t deliver, int32_t algorithm)
{
    int ranks = pp_ctx_size(ctx), me = pp_ctx_rank(ctx);
    memset(handle, 0, sizeof *handle);
    handle->count = (size_t)ranks + extra;
    handle->send = calloc(handle->count, sizeof(int64_t));
    handle->recv = calloc(handle->count, sizeof(int64_t));
    handle->deliver = deliver;
    handle->send[me] = 1;
    for (size_t i = (size_t)ranks; i < handle->count; i++)
        handle->send[i] = me + 1;
    const pp_piece_t pieces[2] = {
        {handle->send, handle->recv, (size_t)ranks},
        {handle->send + ranks, handle->recv + ranks, extra},
    };
    const pp_piece_t whole = {handle->send, handle->recv, handle->count};
    bool split = algorithm == PP_RING;
    const pp_allreduce_config_t config = {
        .pieces = split ? pieces : &whole, .piece_count = split ? 2 : 1, .type = PP_INT64, .op = PP_SUM,
        .policy = policy, .policy_k = k, .deliver = deliver, .max_lag = deliver == PP_LATEST ? -1 : 3,
        .algorithm = algorithm,
    };
    MUST(pp_allreduce_init_begin(ctx, &config, NULL, &handle->coll));
    REQUIRE(MUST(pp_call_wait(ctx, -1)) == PP_OK);
}

static void given(handle_t *handle, int ranks)
{
    int64_t expected = 0;
    for (int r = 0; r < ranks; r++) {
        handle->replica[r] += handle->recv[r];
        expected += handle->recv[r] * (r + 1);
    }
    for (size_t i = (size_t)ranks; i < handle->count; i++)
        REQUIRE(handle->recv[i] == expected);
}

static void start(handle_t *handle)
{
    MUST(pp_start(handle->coll));
    handle->starts++;
}

static void wait_for(handle_t *handle, int ranks, dice_t *dice)
{
    pp_result_t result;
    bool test = roll(dice, 4) == 0;
    for (;;) {
        pp_status_t status = test ? pp_test(handle->coll, &result)
                                  : pp_wait(handle->coll, 50000, &result);
        if (MUST(status) == PP_OK)
            break;
        if (test)
            usleep(roll(dice, 20));
    }
    REQUIRE(result.contributions > 0);
    given(handle, ranks);
}

static void loop(handle_t *handle, int ranks, int rounds, dice_t *dice)
{
    for (int i = 0; i < rounds; i++) {
        if (roll(dice, 3))
            usleep(roll(dice, DELAY_US));
        start(handle);
        wait_for(handle, ranks, dice);
    }
}

static void flush(pp_ctx_t *ctx, handle_t *handle, int ranks)
{
    pp_result_t result;
    do {
        if (handle->deliver == PP_EACH)
            MUST(pp_drain_begin(handle->coll));
        else
            MUST(pp_flush_begin(handle->coll));
        REQUIRE(MUST(pp_call_wait(ctx, -1)) == PP_OK);
        MUST(pp_collect(handle->coll, &result));
        given(handle, ranks);
    } while (result.cause != PP_CAUSE_FLUSH);
}

/* Everything that the ranks contributed was given here, exactly once. */
static void check_replica(const handle_t *handle, int ranks, MPI_Comm comm)
{
    int64_t starts[RANKS_MAX];
    MPI_Allgather(&handle->starts, 1, MPI_INT64_T, starts, 1, MPI_INT64_T, comm);
    for (int r = 0; r < ranks && handle->deliver != PP_LATEST; r++)
        REQUIRE(handle->replica[r] == starts[r]);
}

static void free_handle(pp_ctx_t *ctx, handle_t *handle)
{
    uint64_t discarded;
    MUST(pp_coll_free_begin(handle->coll, &discarded));
    REQUIRE(MUST(pp_call_wait(ctx, -1)) == PP_OK);
    free(handle->send);
    free(handle->recv);
}

/* ---- what is run ---------------------------------------------------------------------------------------- */

static pp_ctx_t *open_context(MPI_Comm comm, uint64_t chunk_bytes, int32_t progress)
{
    const pp_ctx_config_t config = {.seed = 5, .chunk_bytes = chunk_bytes, .window = 4,
                                    .progress = progress};
    pp_ctx_t *ctx;
    MUST(pp_ctx_open(&comm, &config, NULL, &ctx));
    return ctx;
}

static void close_context(pp_ctx_t *ctx)
{
    MUST(pp_ctx_free_begin(ctx));
    REQUIRE(MUST(pp_call_wait(ctx, -1)) == PP_OK);
    pp_ctx_release(ctx);
}

static void combinations(int rounds, dice_t *dice)
{
    static const size_t extras[] = {0, 3000, 40001};
    static const int32_t algorithms[] = {PP_RECURSIVE_DOUBLING, PP_RABENSEIFNER, PP_RING};
    const struct { int32_t policy, k; } policies[] = {
        {PP_FIRST_OF, size}, {PP_FIRST_OF, 1}, {PP_QUORUM, (size + 1) / 2}, {PP_QUORUM, size},
    };
    pp_ctx_t *ctx = open_context(MPI_COMM_WORLD, 100000, PP_PROGRESS_THREAD);
    int number = 0;
    for (size_t p = 0; p < 4; p++)
        for (int32_t deliver = PP_LATEST; deliver < PP_DELIVER_COUNT; deliver++)
            for (size_t e = 0; e < 3; e++, number++) {
                handle_t handle;
                make_handle(ctx, &handle, extras[e], policies[p].policy, policies[p].k, deliver,
                            algorithms[(e + (size_t)deliver) % 3]);
                loop(&handle, size, rounds / (e == 2 ? 4 : 1), dice);
                flush(ctx, &handle, size);
                check_replica(&handle, size, MPI_COMM_WORLD);
                free_handle(ctx, &handle);
            }
    close_context(ctx);
}

typedef struct worker {
    handle_t *handle;
    int       rounds;
    dice_t    dice;
} worker_t;

static void *work(void *arg)
{
    worker_t *worker = arg;
    loop(worker->handle, size, worker->rounds, &worker->dice);
    return NULL;
}

/* Two handles, each used by a thread of its own (Full: any order of the threads is fine), and questions
   and counters from the main thread meanwhile. */
static void threads(int rounds, dice_t *dice)
{
    pp_ctx_t *ctx = open_context(MPI_COMM_WORLD, 0, PP_PROGRESS_THREAD);
    handle_t handles[3];
    worker_t workers[2];
    pthread_t ids[2];
    for (int i = 0; i < 3; i++)
        make_handle(ctx, &handles[i], 2000, PP_QUORUM, size, PP_DELIVER_SUM, PP_ALGORITHM_AUTO);
    for (int i = 0; i < 2; i++) {
        workers[i] = (worker_t){&handles[i], rounds, {dice->state + (uint64_t)i}};
        REQUIRE(!pthread_create(&ids[i], NULL, work, &workers[i]));
    }
    for (int i = 0; i < 20; i++) {
        pp_rank_state_t states[RANKS_MAX];
        pp_stats_t stats;
        MUST(pp_ask(ctx, pp_coll_id(handles[2].coll), 100000, states));
        pp_ctx_stats(ctx, &stats);
        REQUIRE(stats.neighbours >= 1);
        usleep(roll(dice, 500));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(ids[i], NULL);
    for (int i = 0; i < 3; i++) {
        flush(ctx, &handles[i], size);
        check_replica(&handles[i], size, MPI_COMM_WORLD);
        free_handle(ctx, &handles[i]);
    }
    close_context(ctx);
}

/* All ranks, and each half of them: three communicators, each with its threads. */
static void contexts(int rounds, dice_t *dice)
{
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    pp_ctx_t *whole = open_context(MPI_COMM_WORLD, 0, PP_PROGRESS_THREAD);
    pp_ctx_t *part = open_context(half, 0, PP_PROGRESS_THREAD);
    handle_t a, b;
    make_handle(whole, &a, 10, PP_FIRST_OF, size, PP_DELIVER_SUM, PP_ALGORITHM_AUTO);
    make_handle(part, &b, 5000, PP_FIRST_OF, pp_ctx_size(part), PP_DELIVER_SUM, PP_ALGORITHM_AUTO);
    for (int i = 0; i < rounds; i++) {
        start(&a);
        start(&b);
        wait_for(&b, pp_ctx_size(part), dice);
        wait_for(&a, size, dice);
    }
    flush(whole, &a, size);
    flush(part, &b, pp_ctx_size(part));
    check_replica(&a, size, MPI_COMM_WORLD);
    check_replica(&b, pp_ctx_size(part), half);
    free_handle(whole, &a);
    free_handle(part, &b);
    close_context(part);
    close_context(whole);
    MPI_Comm_free(&half);
}

/* The callers drive: rounds in lockstep. */
static void callers(int rounds, dice_t *dice)
{
    pp_ctx_t *ctx = open_context(MPI_COMM_WORLD, 0, PP_PROGRESS_CALLER);
    handle_t handle;
    make_handle(ctx, &handle, 100, PP_QUORUM, size, PP_DELIVER_SUM, PP_ALGORITHM_AUTO);
    loop(&handle, size, rounds, dice);
    flush(ctx, &handle, size);
    check_replica(&handle, size, MPI_COMM_WORLD);
    free_handle(ctx, &handle);
    close_context(ctx);
}

static void bad_calls(void)
{
    pp_ctx_t *ctx = open_context(MPI_COMM_WORLD, 0, PP_PROGRESS_THREAD);
    pp_coll_t *coll;
    pp_allreduce_config_t config = {.type = PP_INT64, .op = PP_SUM, .policy = PP_QUORUM,
                                    .policy_k = rank == 0 ? 0 : 1, .max_lag = -1};
    MUST(pp_allreduce_init_begin(ctx, &config, NULL, &coll));
    REQUIRE(pp_call_wait(ctx, -1) < 0);
    MUST(pp_allreduce_init_begin(ctx, NULL, "everybody complains", &coll));
    REQUIRE(pp_call_wait(ctx, -1) < 0);
    handle_t handle;
    make_handle(ctx, &handle, 0, PP_QUORUM, size, PP_LATEST, PP_ALGORITHM_AUTO);
    REQUIRE(pp_wait(handle.coll, 0, NULL) == PP_ERR_STATE);
    start(&handle);
    REQUIRE(pp_start(handle.coll) == PP_ERR_STATE);
    MUST(pp_wait(handle.coll, -1, NULL));
    MUST(pp_ctx_free_begin(ctx));
    REQUIRE(pp_call_wait(ctx, -1) < 0);   /* a live handle */
    free_handle(ctx, &handle);
    close_context(ctx);
}

/* Contexts that are given up, or forgotten with requests outstanding: MPI_Finalize ends them. */
static void leave(void)
{
    static handle_t forgotten, given_up;   /* their memory must live until MPI_Finalize */
    pp_ctx_t *ctx = open_context(MPI_COMM_WORLD, 0, PP_PROGRESS_THREAD);
    make_handle(ctx, &given_up, 50000, PP_QUORUM, size, PP_LATEST, PP_ALGORITHM_AUTO);
    if (rank == 0)
        start(&given_up);
    MPI_Barrier(MPI_COMM_WORLD);
    pp_ctx_abandon(ctx);
    ctx = open_context(MPI_COMM_WORLD, 0, PP_PROGRESS_THREAD);
    make_handle(ctx, &forgotten, 50000, PP_FIRST_OF, size, PP_DELIVER_SUM, PP_ALGORITHM_AUTO);
    dice_t dice = {rank + 1u};
    loop(&forgotten, size, 5 + rank, &dice);
    start(&forgotten);
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 100, level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    REQUIRE(level == MPI_THREAD_MULTIPLE && size <= RANKS_MAX);
    dice_t dice = {(argc > 3 ? strtoull(argv[3], NULL, 10) : 1) * 1000003u + (uint64_t)rank};
    REQUIRE(argc > 1);
    if (strcmp(argv[1], "leave") == 0) {
        leave();
    } else {
        combinations(rounds, &dice);
        threads(rounds, &dice);
        contexts(rounds, &dice);
        callers(rounds, &dice);
        bad_calls();
    }
    printf("rank %d: done\n", rank);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
