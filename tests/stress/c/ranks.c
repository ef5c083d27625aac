/*
 * ranks.c - the core over MPI, with its progress threads and threads of the application, for a run
 * under a sanitizer.
 *
 *     mpirun -n 2..4 ranks PART SCALE SEED
 *
 * PART: loops    every policy, delivery and size; waits, tests, timeouts, questions, flushes, frees
 *       threads  two threads on two handles of a context, one on each of two other contexts, a watcher
 *                that asks all of them for their state, and a thread that opens and closes contexts
 *       errors   arguments that differ or are wrong
 *       exit     MPI_Finalize with live contexts, requests and payloads under way, and threads inside calls
 *       abandon  one rank gives a context up while its threads and the other ranks wait on it
 *       ends     two threads end one context: a Free beside calls, beside MPI_Finalize, and beside giving it up
 * SCALE: how long, 1 is a few hundred rounds.
 */
#include "check.h"

#include <mpi.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

enum {
    LIMIT_S = 60,              /* a wait that takes so long has hung */
    ROUNDS_MAX = 1 << 14,      /* of a handle */
    PATIENCE_NS = 20000000,    /* threads */
};

static const size_t sizes[] = {1, 640, 5120, 38400};   /* 8 B, 5 KB: cut; 40 KB: bulk; 300 KB: in place */
static int          ranks;
static uint64_t     seed;

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Half of the time none: several ranks then call at the same time. */
static void delay(uint64_t *random)
{
    uint64_t kind = below(random, 8);
    if (kind >= 4)
        usleep((useconds_t)below(random, kind == 7 ? 2000 : 200));
}

/* ---- a handle, and what it was given --------------------------------------------------------------- */

typedef struct handle {
    pp_ctx_t             *ctx;
    pp_handle_t            *coll;
    MPI_Comm              comm;
    pp_allreduce_config_t config;
    pp_piece_t            pieces[2];
    int       rank, size;
    size_t    count;
    uint64_t *send, *recv;
    bool      in_place, answers;        /* answers: every rank's progress thread does */
    uint64_t  starts, given;            /* given: all results added up; not PP_LATEST */
    uint64_t  next_round;
    uint64_t *sums;                     /* by round; ROUNDS_MAX of them */
    unsigned char *seen;
    uint64_t  random;
} handle_t;

static pp_ctx_t *open_ctx(MPI_Comm comm, pp_ctx_config_t config)
{
    pp_ctx_t *ctx;
    config.seed = seed;
    MUST(pp_ctx_open(&comm, &config, NULL, &ctx));
    return ctx;
}

static void explain(const handle_t *h)
{
    pp_rank_state_t states[FIELDS];
    if (pp_ask(h->ctx, pp_handle_id(h->coll), 2000000, states) < 0)
        return;
    for (int r = 0; r < h->size; r++)
        fprintf(stderr, "rank %d of handle %u: answered %d activity %d handle %u round %llu completed %llu "
                "joined %llu ready %d\n", r, pp_handle_id(h->coll), states[r].answered, states[r].activity,
                states[r].handle, (unsigned long long)states[r].round,
                (unsigned long long)states[r].completed, (unsigned long long)states[r].joined,
                states[r].ready);
}

static void finish_call(pp_ctx_t *ctx, const char *what)
{
    pp_status_t status = MUST(pp_call_wait(ctx, 100));
    if (status == PP_PENDING)
        status = must(pp_call_wait(ctx, LIMIT_S * 1000000LL), what);
    if (status == PP_PENDING)
        die("%s hangs", what);
}

static void close_ctx(pp_ctx_t *ctx)
{
    MUST(pp_ctx_free_begin(ctx));
    finish_call(ctx, "the release of a context");
    pp_ctx_release(ctx);
}

typedef struct shape {
    int    policy, k, deliver, max_lag, algorithm;
    size_t count;
    bool   in_place, two_pieces;
} shape_t;

static void open_handle(handle_t *h, pp_ctx_t *ctx, MPI_Comm comm, shape_t shape)
{
    *h = (handle_t){.ctx = ctx, .comm = comm, .rank = pp_ctx_rank(ctx), .size = pp_ctx_size(ctx),
                    .count = shape.count, .in_place = shape.in_place, .answers = true};
    h->send = allocate(h->count * 8);
    h->recv = allocate(h->count * 8);
    h->sums = allocate(ROUNDS_MAX * 8);
    h->seen = allocate(ROUNDS_MAX);
    h->random = seed * 1000 + (uint64_t)my_rank * 100 + h->count;
    size_t first = shape.two_pieces ? h->count / 3 : h->count;
    h->pieces[0] = (pp_piece_t){h->in_place ? NULL : h->send, h->recv, first};
    h->pieces[1] = (pp_piece_t){h->in_place ? NULL : h->send + first, h->recv + first, h->count - first};
    h->config = (pp_allreduce_config_t){
        .pieces = h->pieces, .piece_count = shape.two_pieces ? 2 : 1, .type = PP_UINT64, .op = PP_SUM,
        .policy = shape.policy, .policy_k = shape.k < h->size ? shape.k : h->size,
        .deliver = shape.deliver, .max_lag = shape.max_lag, .algorithm = shape.algorithm};
    MUST(pp_allreduce_init_begin(ctx, &h->config, NULL, &h->coll));
    finish_call(ctx, "the creation of a handle");
}

static void release_handle(handle_t *h)
{
    free(h->send);
    free(h->recv);
    free(h->sums);
    free(h->seen);
}

static uint64_t free_handle(handle_t *h)
{
    uint64_t discarded = 0;
    MUST(pp_handle_free_begin(h->coll, &discarded));
    finish_call(h->ctx, "Free");
    CHECK(discarded <= h->starts, "%llu of %llu discarded", (unsigned long long)discarded,
          (unsigned long long)h->starts);
    release_handle(h);
    return discarded;
}

static void account(handle_t *h, const pp_result_t *result)
{
    uint64_t sum = read_sum(h->recv, h->count);
    bool     merged = h->config.deliver == PP_DELIVER_SUM && result->first != result->round;
    CHECK(result->round >= h->next_round, "round %llu again", (unsigned long long)result->round);
    CHECK(result->round < ROUNDS_MAX, "round %llu is too many", (unsigned long long)result->round);
    CHECK(h->config.policy != PP_QUORUM || result->cause != PP_CAUSE_POLICY
          || result->active >= h->config.policy_k, "%d active ranks of a quorum of %d", result->active,
          h->config.policy_k);
    if (h->config.deliver != PP_LATEST)
        CHECK(result->first == h->next_round, "rounds from %llu, not %llu",
              (unsigned long long)result->first, (unsigned long long)h->next_round);
    h->next_round = result->round + 1;
    h->given += sum;
    if (merged)
        return;
    check_named(sum, result);
    h->sums[result->round] = sum;
    h->seen[result->round] = 1;
}

/* ---- calls of the application ------------------------------------------------------------------------ */

static void ask(handle_t *h)
{
    pp_rank_state_t states[FIELDS];
    pp_stats_t      stats;
    MUST(pp_ask(h->ctx, pp_handle_id(h->coll), h->answers ? LIMIT_S * 1000000LL : 1000, states));
    for (int r = 0; h->answers && r < h->size; r++)
        CHECK(states[r].answered, "rank %d did not answer", r);
    pp_ctx_stats(h->ctx, &stats);
    CHECK(stats.thread_level == 3, "thread level %d", stats.thread_level);
}

/* Reads the schedule and what it did, between two calls. */
static void look(handle_t *h)
{
    uint64_t round = 0;
    uint32_t fired[512];
    size_t   operations = 0;
    char    *text;
    if (MUST(pp_handle_fired(h->coll, &round, fired, 512, &operations)) == PP_OK)
        for (size_t i = 0; i < operations && i < 512; i++)
            CHECK(fired[i] <= 1, "operation %zu fired %u times", i, fired[i]);
    MUST(pp_handle_dump(h->coll, below(&h->random, 2) ? PP_DOT : PP_GOAL, &text));
    pp_text_free(text);
}

static void start(handle_t *h)
{
    uint64_t *from = h->in_place ? h->recv : h->send;
    fill(from, h->count, h->rank);
    MUST(pp_start(h->coll));
    h->starts++;
    if (!h->in_place && below(&h->random, 4) == 0)   /* it is ours again at once */
        memset(h->send, 0xa5, h->count * 8);
}

/* In one of several ways. */
static void collect(handle_t *h)
{
    pp_result_t result;
    uint64_t    begin = now_us(), way = below(&h->random, 4);
    pp_status_t status = PP_PENDING;
    while (status == PP_PENDING) {
        if (now_us() - begin > LIMIT_S * 1000000ULL) {
            explain(h);
            die("a Wait hangs");
        }
        if (way == 0) {
            status = MUST(pp_test(h->coll, &result));
            delay(&h->random);
        } else if (way == 1) {
            status = MUST(pp_wait(h->coll, (int64_t)below(&h->random, 300), &result));
            if (status == PP_PENDING && below(&h->random, 8) == 0)
                ask(h);
        } else {
            status = MUST(pp_wait(h->coll, 1000000, &result));
        }
    }
    CHECK(h->config.max_lag < 0 || result.missed <= (uint64_t)h->config.max_lag,
          "%llu rounds missed, max_lag is %d", (unsigned long long)result.missed, h->config.max_lag);
    account(h, &result);
}

static void step(handle_t *h)
{
    delay(&h->random);
    start(h);
    if (below(&h->random, 4) == 0)
        delay(&h->random);
    collect(h);
}

/* Everything pending, and everything not given yet. */
static void flush(handle_t *h)
{
    pp_result_t result;
    bool        each = h->config.deliver == PP_EACH;
    do {
        MUST(each ? pp_drain_begin(h->coll) : pp_flush_begin(h->coll));
        finish_call(h->ctx, each ? "Drain" : "Flush");
        MUST(pp_collect(h->coll, &result));
        account(h, &result);
    } while (result.cause != PP_CAUSE_FLUSH);
}

/* After a flush: every contribution of every rank is in one round, and the ranks agree on the rounds.
   With PP_LATEST a rank sees some of the rounds, but nearly every round is seen by somebody. */
static void verify(handle_t *h)
{
    uint64_t mine = h->starts * unit(h->rank), all = 0, rounds = h->next_round, most = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, h->comm);
    if (h->config.deliver != PP_LATEST)
        CHECK(h->given == all, "given %llx, contributed %llx", (unsigned long long)h->given,
              (unsigned long long)all);
    MPI_Allreduce(&rounds, &most, 1, MPI_UINT64_T, MPI_MAX, h->comm);
    CHECK(rounds == most, "a flush ends with round %llu here and %llu elsewhere",
          (unsigned long long)rounds, (unsigned long long)most);
    uint64_t      *sums = allocate(rounds * 8), sum = 0;
    unsigned char *seen = allocate(rounds);
    MPI_Allreduce(h->sums, sums, (int)rounds, MPI_UINT64_T, MPI_MAX, h->comm);
    MPI_Allreduce(h->seen, seen, (int)rounds, MPI_UNSIGNED_CHAR, MPI_MAX, h->comm);
    bool complete = true;
    for (uint64_t r = 0; r < rounds; r++) {
        CHECK(!h->seen[r] || h->sums[r] == sums[r], "round %llu is %llx here and %llx elsewhere",
              (unsigned long long)r, (unsigned long long)h->sums[r], (unsigned long long)sums[r]);
        sum += sums[r];
        complete = complete && seen[r];
    }
    for (int r = 0; r < h->size; r++)
        CHECK(complete ? field(sum, r) == field(all, r) : field(sum, r) <= field(all, r),
              "the rounds hold %llx, contributed were %llx", (unsigned long long)sum,
              (unsigned long long)all);
    free(sums);
    free(seen);
}

/* ---- loops -------------------------------------------------------------------------------------------- */

static uint64_t loop(pp_ctx_t *ctx, bool answers, shape_t shape, int steps, uint64_t *common)
{
    handle_t h;
    open_handle(&h, ctx, MPI_COMM_WORLD, shape);
    h.answers = answers;
    for (int part = 0; part < 2; part++) {
        uint64_t slow = below(common, (uint64_t)ranks);
        int      mine = (uint64_t)h.rank == slow ? steps / 2 : steps;   /* unequal numbers of calls */
        for (int i = 0; i < mine; i++)
            step(&h);
        look(&h);
        if (below(&h.random, 3) == 0)
            start(&h);                     /* completes with the flush, or is discarded by Free */
        if (part == 0 || below(common, 3) > 0) {
            flush(&h);
            verify(&h);
        }
    }
    uint64_t rounds = h.next_round;
    free_handle(&h);
    return rounds;
}

static void part_loops(int scale)
{
    static const struct { int policy, k; } policies[] = {
        {PP_FIRST_OF, FIELDS}, {PP_FIRST_OF, 1}, {PP_FIRST_OF, 2}, {PP_QUORUM, 2}, {PP_QUORUM, FIELDS}};
    pp_ctx_t *plain = open_ctx(MPI_COMM_WORLD, (pp_ctx_config_t){.window = 4});
    pp_ctx_t *chunks = open_ctx(MPI_COMM_WORLD, (pp_ctx_config_t){.chunk_bytes = 10000, .window = 2});
    pp_ctx_t *caller = open_ctx(MPI_COMM_WORLD, (pp_ctx_config_t){.chunk_bytes = 30000, .window = 1,
                                                                  .progress = PP_PROGRESS_CALLER});
    uint64_t  common = seed, rounds = 0;
    char      name[100];
    for (int i = 0; i < 5 * PP_DELIVER_COUNT * 4; i++) {
        int       deliver = i / 5 % PP_DELIVER_COUNT, window_less_1;
        uint64_t  place = below(&common, 8);
        pp_ctx_t *ctx = place == 0 ? caller : place < 4 ? chunks : plain;
        window_less_1 = ctx == caller ? 0 : ctx == chunks ? 1 : 3;
        shape_t shape = {
            .policy = policies[i % 5].policy, .k = policies[i % 5].k, .deliver = deliver,
            .algorithm = (int)below(&common, 1 + pp_algorithm_count()), .count = sizes[i / 15],
            .in_place = below(&common, 4) == 0, .two_pieces = below(&common, 4) == 0};
        shape.max_lag = deliver == PP_LATEST && below(&common, 2) ? -1
            : (int)below(&common, (uint64_t)window_less_1 + 1);
        snprintf(name, sizeof name, "loops, policy %d(%d) deliver %d size %zu max_lag %d algorithm %d%s",
                 shape.policy, shape.k, deliver, shape.count, shape.max_lag, shape.algorithm,
                 ctx == caller ? ", caller" : ctx == chunks ? ", chunks" : "");
        stage = name;
        rounds += loop(ctx, ctx != caller, shape, (shape.count > 10000 ? 4 : 8) * scale, &common);
    }
    stage = "loops, the end";
    close_ctx(chunks);
    close_ctx(caller);
    close_ctx(plain);
    if (my_rank == 0)
        printf("%llu rounds of loops\n", (unsigned long long)rounds);
}

/* ---- threads ------------------------------------------------------------------------------------------ */

typedef struct job {
    handle_t *h;
    int       steps;
} job_t;

static void *work(void *arg)
{
    job_t *job = arg;
    for (int i = 0; i < job->steps; i++) {
        step(job->h);
        if (i % 16 == 15)
            ask(job->h);
    }
    return NULL;
}

typedef struct watch {
    pp_ctx_t  **ctxs;
    int         count;
    atomic_bool stop;
    uint64_t    rounds;
} watch_t;

static void *watcher(void *arg)
{
    watch_t *watch = arg;
    uint64_t random = seed + 99;
    while (!atomic_load(&watch->stop)) {
        pp_ctx_t       *ctx = watch->ctxs[below(&random, (uint64_t)watch->count)];
        pp_rank_state_t states[FIELDS];
        pp_stats_t      stats;
        pp_ctx_stats(ctx, &stats);
        watch->rounds += stats.rounds > 0;
        MUST(pp_ask(ctx, (uint32_t)below(&random, 4), LIMIT_S * 1000000LL, states));
        for (int r = 0; r < pp_ctx_size(ctx); r++)
            CHECK(states[r].answered, "rank %d did not answer the watcher", r);
        usleep((useconds_t)below(&random, 1000));
    }
    return NULL;
}

/* Contexts come and go while others of the process are waited in. */
static void *come_and_go(void *arg)
{
    (void)arg;
    for (int i = 0; i < 12; i++)
        close_ctx(open_ctx(MPI_COMM_SELF, (pp_ctx_config_t){.window = 2}));
    return NULL;
}

static void run_jobs(job_t *jobs, int count, pp_ctx_t **ctxs, int ctx_count)
{
    watch_t   watch = {.ctxs = ctxs, .count = ctx_count};
    pthread_t watching, coming, threads[8];
    pthread_create(&watching, NULL, watcher, &watch);
    pthread_create(&coming, NULL, come_and_go, NULL);
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, work, &jobs[i]);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    pthread_join(coming, NULL);
    for (int i = 0; i < count; i++)
        flush(jobs[i].h);
    /* The others may still ask: their threads answer until the contexts are closed. */
    atomic_store(&watch.stop, true);
    pthread_join(watching, NULL);
    for (int i = 0; i < count; i++)
        verify(jobs[i].h);
}

/* A rank whose thread is through holds the others up, by its draws, its place in a quorum and max_lag, until its
   patience is over.  For ever: then every request is given the round of its own number, which is complete
   everywhere when a thread is through, and what stands still has lost something. */
static void threads_at_work(int64_t patience_ns, int rounds, MPI_Comm half, MPI_Comm turned, uint64_t *common)
{
    pp_ctx_config_t large = {.chunk_bytes = 20000, .window = 3, .patience_ns = patience_ns};
    pp_ctx_config_t narrow = {.window = 2, .patience_ns = patience_ns};
    pp_ctx_config_t wide = {.window = 4, .patience_ns = patience_ns};
    pp_ctx_t *ctxs[3] = {open_ctx(MPI_COMM_WORLD, large), open_ctx(half, narrow), open_ctx(turned, wide)};
    for (int round = 0; round < rounds; round++) {
        static const struct { int policy, k; } policies[] = {
            {PP_FIRST_OF, FIELDS}, {PP_QUORUM, FIELDS}, {PP_FIRST_OF, 1}, {PP_QUORUM, 2}};
        handle_t h[4];
        job_t    jobs[4];
        stage = "threads, creation";
        for (int i = 0; i < 4; i++) {
            uint64_t policy = below(common, 4);
            int      deliver = (int)below(common, PP_DELIVER_COUNT);
            shape_t  shape = {.policy = policies[policy].policy, .k = policies[policy].k,
                              .deliver = patience_ns == INT64_MAX ? PP_EACH : deliver, .max_lag = 1,
                              .algorithm = PP_ALGORITHM_AUTO, .count = sizes[below(common, 4)],
                              .in_place = below(common, 3) == 0};
            pp_ctx_t *ctx = ctxs[i < 2 ? 0 : i - 1];
            open_handle(&h[i], ctx, i < 2 ? MPI_COMM_WORLD : i == 2 ? half : turned, shape);
            h[i].random += (uint64_t)i;
            jobs[i].h = &h[i];
            jobs[i].steps = h[i].count > 10000 ? 20 : 60;
        }
        stage = patience_ns == INT64_MAX ? "threads at work" : "threads at work, with patience";
        run_jobs(jobs, 4, ctxs, 3);
        stage = "threads, the end";
        for (int i = 0; i < 4; i++)
            free_handle(&h[i]);
    }
    for (int i = 0; i < 3; i++)
        close_ctx(ctxs[i]);
}

static void part_threads(int scale)
{
    MPI_Comm half, turned;
    uint64_t common = seed + 5;
    MPI_Comm_split(MPI_COMM_WORLD, my_rank % 2, my_rank, &half);
    MPI_Comm_split(MPI_COMM_WORLD, 0, ranks - my_rank, &turned);
    threads_at_work(PATIENCE_NS, 1 + scale, half, turned, &common);
    threads_at_work(INT64_MAX, 1 + scale, half, turned, &common);
    MPI_Comm_free(&half);
    MPI_Comm_free(&turned);
}

/* ---- errors ------------------------------------------------------------------------------------------- */

static void part_errors(int scale)
{
    MPI_Comm  comm = MPI_COMM_WORLD;
    pp_ctx_t *ctx;
    handle_t  h;
    stage = "errors";
    for (int i = 0; i < 3 * scale; i++) {
        pp_ctx_config_t config = {.seed = seed, .window = my_rank == ranks - 1 ? 3 : 2};
        CHECK(pp_ctx_open(&comm, &config, NULL, &ctx) == PP_ERR_MISMATCH && !ctx, "two windows");
        config.window = 2;
        CHECK(pp_ctx_open(&comm, &config, my_rank ? NULL : "no", &ctx) < 0 && !ctx, "a complaint");
        ctx = open_ctx(comm, (pp_ctx_config_t){.window = 2});
        open_handle(&h, ctx, comm, (shape_t){.policy = PP_QUORUM, .k = FIELDS, .deliver = PP_EACH,
                                             .max_lag = 1, .count = 640});
        pp_handle_t *other;
        pp_allreduce_config_t wrong = h.config;
        wrong.op = my_rank ? PP_SUM : PP_MAX;
        MUST(pp_allreduce_init_begin(ctx, &wrong, NULL, &other));
        CHECK(pp_call_wait(ctx, LIMIT_S * 1000000LL) == PP_ERR_MISMATCH, "two operations");
        MUST(pp_allreduce_init_begin(ctx, my_rank ? &h.config : NULL, my_rank ? NULL : "bad", &other));
        CHECK(pp_call_wait(ctx, LIMIT_S * 1000000LL) < 0, "a complaint about a handle");
        CHECK(pp_collect(h.coll, NULL) == PP_ERR_STATE, "nothing to collect");
        CHECK(pp_wait(h.coll, 0, NULL) == PP_ERR_STATE, "nothing started");
        CHECK(pp_flush_begin(h.coll) == PP_ERR_STATE, "Flush of PP_EACH");
        start(&h);
        CHECK(pp_start(h.coll) == PP_ERR_STATE, "two Starts");
        collect(&h);
        MUST(pp_ctx_free_begin(ctx));
        CHECK(pp_call_wait(ctx, LIMIT_S * 1000000LL) == PP_ERR_STATE, "a live handle");
        flush(&h);
        verify(&h);
        free_handle(&h);
        close_ctx(ctx);
    }
}

/* ---- ends without Free ----------------------------------------------------------------------------------- */

enum { LEFT_BEHIND = 3 };
static handle_t left_behind[LEFT_BEHIND], in_vain;   /* their memory outlives MPI */
static pp_handle_t *group;                  /* of P-Reduce, left behind, too */
static pp_handle_t *unborn;                 /* the other ranks never make it */
static uint64_t     group_vector[8];

static void leave_group_behind(pp_ctx_t *ctx)
{
    pp_piece_t          piece = {NULL, group_vector, 8};
    pp_preduce_config_t config = {
        .pieces = &piece, .piece_count = 1, .type = PP_FLOAT64,
        .plan = {.generator = pp_generator_number("random"), .ranks = ranks, .size = 2, .seed = seed}};
    MUST(pp_preduce_init_begin(ctx, &config, NULL, &group));
    finish_call(ctx, "the creation of a handle");
}

static void leave_behind(pp_ctx_t **ctxs)
{
    static const struct { int policy, deliver; } kinds[LEFT_BEHIND] = {
        {PP_FIRST_OF, PP_LATEST}, {PP_QUORUM, PP_EACH}, {PP_FIRST_OF, PP_DELIVER_SUM}};
    for (int i = 0; i < LEFT_BEHIND; i++)
        open_handle(&left_behind[i], ctxs[i % 2], MPI_COMM_WORLD,
                    (shape_t){.policy = kinds[i].policy, .k = FIELDS, .deliver = kinds[i].deliver,
                              .max_lag = 1, .count = sizes[3 - i], .algorithm = i});
}

typedef struct victim {
    handle_t   *h;
    pp_ctx_t   *ctx;
    pp_status_t status;
    pthread_t   thread;
} victim_t;

static victim_t late[2];                    /* they are inside a call at MPI_Finalize */

static void *wait_too_long(void *arg)
{
    victim_t *victim = arg;
    victim->status = victim->h ? pp_wait(victim->h->coll, LIMIT_S * 1000000LL, NULL)
                               : pp_call_wait(victim->ctx, LIMIT_S * 1000000LL);
    return NULL;
}

/* What the application still holds refuses its calls. */
static void check_refuses(pp_handle_t *handle)
{
    char *text;
    CHECK(pp_handle_id(handle) > 0, "a handle has lost its number");
    CHECK(pp_start(handle) == PP_ERR_STATE, "a request begins after MPI's end");
    CHECK(pp_wait(handle, LIMIT_S * 1000000LL, NULL) == PP_ERR_STATE, "a Wait begins after MPI's end");
    CHECK(strstr(pp_error_text(), "the context was freed"), "a Wait says: %s", pp_error_text());
    CHECK(pp_handle_obstacles(handle, &text) == PP_ERR_STATE, "a question begins after MPI's end");
}

static void check_late(void)
{
    for (int i = 0; my_rank == 0 && i < 2; i++) {
        pp_stats_t stats;
        pthread_join(late[i].thread, NULL);
        CHECK(late[i].status == PP_ERR_STATE, "a call returned %d, and MPI has ended", late[i].status);
        pp_ctx_stats(late[i].ctx, &stats);
        CHECK(stats.thread_level == -1, "a context has outlived MPI");
        CHECK(pp_call_wait(late[i].ctx, 0) == PP_ERR_STATE, "a call begins after MPI's end");
    }
    check_refuses(in_vain.coll);
    for (int i = 0; i < LEFT_BEHIND; i++)
        check_refuses(left_behind[i].coll);
    check_refuses(group);
    CHECK(pp_preduce_start(group, 0, NULL, 0) == PP_ERR_STATE, "a request begins after MPI's end");
    CHECK(pp_preduce_backend(group) == PP_BACKEND_NODE, "what a handle is has changed");
    release_handle(&in_vain);
}

/* A thread inside a Flush, and one inside a Wait, which cannot complete, because the other ranks wait here, too. */
static void leave_threads_behind(pp_ctx_t *ctx, pp_ctx_t *caller)
{
    late[0] = (victim_t){.ctx = ctx};
    late[1] = (victim_t){.ctx = caller, .h = &in_vain};
    if (my_rank == 0) {
        MUST(pp_flush_begin(left_behind[2].coll));
        start(&in_vain);
        for (int i = 0; i < 2; i++)
            pthread_create(&late[i].thread, NULL, wait_too_long, &late[i]);
        usleep(50000);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (my_rank > 0)                        /* rank 0's calls would go on without ranks that have ended */
        sleep(5);
}

/* Rank 0 ends at once, the others go on for a while; everybody leaves requests behind, and rank 0 also threads. */
static void part_exit(int scale)
{
    stage = "exit";
    pp_ctx_t *ctxs[2] = {open_ctx(MPI_COMM_WORLD, (pp_ctx_config_t){.chunk_bytes = 50000, .window = 2}),
                         open_ctx(MPI_COMM_WORLD, (pp_ctx_config_t){.window = 3})};
    pp_ctx_t *caller = open_ctx(MPI_COMM_WORLD, (pp_ctx_config_t){.window = 2, .progress = PP_PROGRESS_CALLER});
    leave_behind(ctxs);
    leave_group_behind(ctxs[1]);
    open_handle(&in_vain, caller, MPI_COMM_WORLD, (shape_t){.policy = PP_QUORUM, .k = FIELDS, .count = 640});
    for (int i = 0; i < 4; i++)
        step(&left_behind[0]);
    for (int i = 0; my_rank == 0 && i < LEFT_BEHIND; i++)
        start(&left_behind[i]);
    leave_threads_behind(ctxs[0], caller);
    for (int i = 0; i < my_rank * 10 * scale; i++)
        step(&left_behind[0]);
    for (int i = 0; my_rank > 0 && i < LEFT_BEHIND; i++)
        start(&left_behind[i]);
    stage = "exit, MPI_Finalize";
}

static void *wait_in_vain(void *arg)
{
    victim_t *victim = arg;
    do
        victim->status = pp_start(victim->h->coll);
    while (victim->status == PP_OK
           && (victim->status = pp_wait(victim->h->coll, LIMIT_S * 1000000LL, NULL)) == PP_OK);
    return NULL;
}

/* Rank 0 gives the contexts up while a thread of its own is inside a Wait, and the peers learn of it at
   its MPI_Finalize. */
static void part_abandon(int scale)
{
    (void)scale;
    stage = "abandon";
    pp_ctx_t *ctxs[2] = {open_ctx(MPI_COMM_WORLD, (pp_ctx_config_t){.chunk_bytes = 50000, .window = 2}),
                         open_ctx(MPI_COMM_WORLD, (pp_ctx_config_t){.window = 3})};
    victim_t  victims[LEFT_BEHIND];
    pthread_t threads[LEFT_BEHIND];
    leave_behind(ctxs);
    for (int i = 0; i < LEFT_BEHIND; i++) {
        victims[i] = (victim_t){.h = &left_behind[i]};
        pthread_create(&threads[i], NULL, wait_in_vain, &victims[i]);
    }
    usleep(100000);
    if (my_rank == 0)
        MUST(pp_allreduce_init_begin(ctxs[1], &left_behind[1].config, NULL, &unborn));
    for (int i = 0; my_rank == 0 && i < 2; i++) {
        pp_stats_t stats;
        pp_ctx_stats(ctxs[i], &stats);
        pp_ctx_abandon(ctxs[i], "given up by an exception");
        pp_ctx_abandon(ctxs[i], "given up by an exception");
        pp_ctx_stats(ctxs[i], &stats);
        pp_ctx_release(ctxs[i]);
    }
    for (int i = 0; my_rank == 0 && i < LEFT_BEHIND; i++) {
        pthread_join(threads[i], NULL);
        CHECK(victims[i].status == PP_ERR_STATE, "a Wait returned %d in a context that was given up",
              victims[i].status);
    }
    stage = "abandon, MPI_Finalize";
    if (my_rank == 0)
        return;
    for (int i = 0; i < LEFT_BEHIND; i++) {
        pthread_join(threads[i], NULL);
        CHECK(victims[i].status == PP_ERR_PEER_FAILED, "a Wait returned %d, and rank 0 gave up",
              victims[i].status);
    }
    if (my_rank == 1)                       /* the others leave that to MPI_Finalize */
        for (int i = 0; i < 2; i++)
            pp_ctx_abandon(ctxs[i], "given up by an exception");
}

/* ---- two threads end one context ---------------------------------------------------------------------------- */

typedef struct end {
    pp_ctx_t   *ctx;
    pp_status_t status;
    char        text[400];
    unsigned    delay;                      /* so that contexts are given up at every moment of their Free */
    pthread_t   thread, other;
} end_t;

static void note(end_t *end, pp_status_t status)
{
    end->status = status;
    snprintf(end->text, sizeof end->text, "%s", status < 0 ? pp_error_text() : "");
}

/* Once the ranks have agreed to free the context nobody answers a question: its thread is inside when they free it. */
static void *ask_till_the_end(void *arg)
{
    end_t          *end = arg;
    pp_rank_state_t states[FIELDS];
    pp_stats_t      stats;
    pp_status_t     status;
    while ((status = pp_ask(end->ctx, 0, LIMIT_S * 1000000LL, states)) == PP_OK)
        pp_ctx_stats(end->ctx, &stats);
    note(end, status);
    return NULL;
}

static void free_beside_calls(int progress)
{
    end_t end = {.ctx = open_ctx(MPI_COMM_WORLD, (pp_ctx_config_t){.window = 2, .progress = progress})};
    pthread_create(&end.thread, NULL, ask_till_the_end, &end);
    MUST(pp_ctx_free_begin(end.ctx));
    finish_call(end.ctx, "the release of a context");
    pthread_join(end.thread, NULL);
    CHECK(end.status == PP_ERR_STATE && strstr(end.text, "the context was freed"),
          "a question in a context that is freed returned %d: %s", end.status, end.text);
    pp_ctx_release(end.ctx);
}

enum { ENDS = 16 };                         /* rank 0 gives every other one up meanwhile */
static end_t ends[ENDS];
static sem_t freeing, finalising;
static atomic_bool holds;

/* In the place of MPI's: the first context that is freed is not until MPI_Finalize has begun, which then must wait. */
int MPI_Comm_free(MPI_Comm *comm)
{
    if (atomic_exchange(&holds, false)) {
        sem_post(&freeing);
        sem_wait(&finalising);
        for (int looks = 0, over; looks < 20; looks++) {
            usleep(5000);
            MPI_Finalized(&over);
            CHECK(!over, "MPI has ended while a thread frees a context");
        }
    }
    return PMPI_Comm_free(comm);
}

static int say_finalising(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    sem_post(&finalising);
    return MPI_SUCCESS;
}

static void *free_it(void *arg)
{
    end_t      *end = arg;
    pp_status_t status = pp_ctx_free_begin(end->ctx);
    note(end, status < 0 ? status : pp_call_wait(end->ctx, LIMIT_S * 1000000LL));
    return NULL;
}

/* One of `ends`: if none of them can be freed, because other ranks have ended, nothing holds the end of MPI up. */
static void *free_one(void *arg)
{
    static atomic_int over;
    free_it(arg);
    if (atomic_fetch_add(&over, 1) + 1 == ENDS)
        sem_post(&freeing);
    return NULL;
}

static void *give_it_up(void *arg)
{
    end_t *end = arg;
    for (unsigned turns = end->delay; turns > 0; turns--)
        pp_ctx_rank(end->ctx);
    pp_ctx_abandon(end->ctx, "given up by an exception");
    return NULL;
}

/* A context of this rank alone, because other ranks would wait for one that was given up after it had voted. */
static void free_beside_giving_up(unsigned delay)
{
    end_t end = {.ctx = open_ctx(MPI_COMM_SELF, (pp_ctx_config_t){.window = 2}), .delay = delay};
    pthread_create(&end.other, NULL, give_it_up, &end);
    free_it(&end);
    pthread_join(end.other, NULL);
    CHECK(end.status == PP_OK || (end.status == PP_ERR_STATE && strstr(end.text, "given up")),
          "Free of a context that is given up returned %d: %s", end.status, end.text);
    pp_ctx_release(end.ctx);
}

static bool gives_up(int i) { return my_rank == 0 && i % 2; }

static void part_ends(int scale)
{
    stage = "ends, beside calls";
    for (int i = 0; i < 10 * scale; i++)
        free_beside_calls(i % 2 ? PP_PROGRESS_CALLER : PP_PROGRESS_THREAD);
    stage = "ends, beside giving up";
    for (unsigned i = 0; i < 200; i++)
        free_beside_giving_up(i * 20);
    stage = "ends, MPI_Finalize";
    for (int i = 0; i < ENDS; i++)
        ends[i].ctx = open_ctx(MPI_COMM_WORLD, (pp_ctx_config_t){
                                   .window = 2, .progress = i % 4 < 2 ? PP_PROGRESS_THREAD : PP_PROGRESS_CALLER});
    /* MPI deletes the newest attribute first. */
    int key;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, say_finalising, &key, NULL);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    sem_init(&freeing, 0, 0);
    sem_init(&finalising, 0, 0);
    atomic_store(&holds, true);
    for (int i = 0; i < ENDS; i++) {
        pthread_create(&ends[i].thread, NULL, free_one, &ends[i]);
        if (gives_up(i))
            pthread_create(&ends[i].other, NULL, give_it_up, &ends[i]);
    }
    sem_wait(&freeing);
}

/* What a Free may be told, if it did not succeed. */
static bool explains(const end_t *end)
{
    static const char *const texts[] = {
        "MPI is being finalised", "the context was freed", "given up", "its script ended"};
    for (size_t i = 0; end->status == PP_ERR_STATE && i < sizeof texts / sizeof *texts; i++)
        if (strstr(end->text, texts[i]))
            return true;
    return end->status == PP_ERR_PEER_FAILED;
}

static void check_ends(void)
{
    for (int i = 0; i < ENDS; i++) {
        pp_stats_t stats;
        pthread_join(ends[i].thread, NULL);
        if (gives_up(i))
            pthread_join(ends[i].other, NULL);
        CHECK(ends[i].status == PP_OK || explains(&ends[i]), "Free of a context returned %d: %s", ends[i].status,
              ends[i].text);
        pp_ctx_stats(ends[i].ctx, &stats);
        CHECK(stats.thread_level == -1, "a context has outlived MPI");
        pp_ctx_release(ends[i].ctx);
    }
}

/* ---- main --------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(int scale); } parts[] = {
        {"loops", part_loops}, {"threads", part_threads}, {"errors", part_errors}, {"exit", part_exit},
        {"abandon", part_abandon}, {"ends", part_ends}};
    int  level;
    bool known = false;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(argc == 4, "usage: %s PART SCALE SEED", argv[0]);
    CHECK(level == MPI_THREAD_MULTIPLE && ranks <= FIELDS, "thread level %d, %d ranks", level, ranks);
    seed = strtoull(argv[3], NULL, 10);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(argv[1], parts[i].name) == 0) {
            known = true;
            parts[i].run(atoi(argv[2]));
        }
    CHECK(known, "there is no part %s", argv[1]);
    MPI_Finalize();
    if (late[0].ctx)
        check_late();
    if (ends[0].ctx)
        check_ends();
    CHECK(!unborn || pp_start(unborn) == PP_ERR_STATE, "a handle begins that not all ranks have made");
    for (int i = 0; i < LEFT_BEHIND; i++)
        release_handle(&left_behind[i]);
    if (my_rank == 0)
        printf("%s: passed\n", argv[1]);
    return 0;
}
