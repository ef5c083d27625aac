/*
 * simulated.c - many ranks of the C core in one process, over the simulated transport, for runs under
 * the sanitizers: everything but threads and MPI, in orders that a real network seldom shows.
 *
 *     simulated [SEEDS [FIRST_SEED]]
 *
 * Every seed draws the number of ranks, policy, delivery, algorithm, payload, window, and what every rank
 * does when; some runs are cut short, which must release everything that is under way.  Exit code 0, or
 * 1 with a line that names the seed.
 */
#include "pypartial.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 9, HANDLES_MAX = 2, PAUSE_NS = 20000 };

static uint64_t seed, state;

static uint32_t roll(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % below;
}

static void require(bool good, const char *what, int line)
{
    if (good)
        return;
    fprintf(stderr, "seed %llu, line %d: %s is not so (%s)\n", (unsigned long long)seed, line, what,
            pp_error_text());
    exit(1);
}
#define REQUIRE(condition) require((condition), #condition, __LINE__)

typedef enum stage { INIT, START, WAIT, FLUSH, FREE, FREE_CTX, ENDED } stage_t;

typedef struct actor {
    pp_ctx_t  *ctx;
    pp_coll_t *colls[HANDLES_MAX];
    int64_t   *send[HANDLES_MAX], *recv[HANDLES_MAX];
    int64_t    replica[HANDLES_MAX][RANKS_MAX], starts;
    int32_t    handle;
    int        steps;            /* still to do */
    stage_t    stage;
    bool       in_call;
    uint64_t   wake_ns, discarded;
} actor_t;

typedef struct plan {
    int32_t  ranks, handles, deliver;
    size_t   count;
    pp_allreduce_config_t config;
} plan_t;

static pp_sim_t *open_world(plan_t *plan)
{
    static const size_t extras[] = {0, 1, 7, 500, 5000};
    *plan = (plan_t){.ranks = 1 + (int32_t)roll(RANKS_MAX), .handles = 1 + (int32_t)roll(HANDLES_MAX),
                     .deliver = (int32_t)roll(PP_DELIVER_COUNT)};
    plan->count = (size_t)plan->ranks + extras[roll(5)];
    int32_t window = 1 + (int32_t)roll(5);
    bool    bounded = plan->deliver != PP_LATEST || roll(2);
    plan->config = (pp_allreduce_config_t){
        .type = PP_INT64, .op = PP_SUM, .policy = (int32_t)roll(PP_POLICY_COUNT),
        .policy_k = 1 + (int32_t)roll((uint32_t)plan->ranks), .deliver = plan->deliver,
        .max_lag = bounded ? (int32_t)roll((uint32_t)window) : -1,
        .algorithm = (int32_t)roll(PP_ALGORITHM_COUNT),
    };
    const pp_sim_config_t config = {
        .seed = seed, .latency_min_ns = 100, .latency_max_ns = 100 + roll(30000),
        .ranks = plan->ranks, .ctx = {.seed = seed, .window = window},
    };
    pp_sim_t *sim;
    REQUIRE(pp_sim_open(&config, &sim) == PP_OK);
    return sim;
}

static void given(const plan_t *plan, actor_t *actor, int32_t handle)
{
    int64_t expected = 0;
    for (int32_t r = 0; r < plan->ranks; r++) {
        actor->replica[handle][r] += actor->recv[handle][r];
        expected += actor->recv[handle][r] * (r + 1);
    }
    for (size_t i = (size_t)plan->ranks; i < plan->count; i++)
        REQUIRE(actor->recv[handle][i] == expected);
}

/* The call that was begun: true once it is over. */
static bool call_over(actor_t *actor)
{
    pp_status_t status = pp_call_wait(actor->ctx, 0);
    REQUIRE(status >= 0);
    actor->in_call = status != PP_OK;
    return status == PP_OK;
}

static void begin_init(const plan_t *plan, actor_t *actor, int32_t rank)
{
    int32_t h = actor->handle;
    actor->send[h] = calloc(plan->count, sizeof(int64_t));
    actor->recv[h] = calloc(plan->count, sizeof(int64_t));
    actor->send[h][rank] = 1;
    for (size_t i = (size_t)plan->ranks; i < plan->count; i++)
        actor->send[h][i] = rank + 1;
    const pp_piece_t piece = {actor->send[h], actor->recv[h], plan->count};
    pp_allreduce_config_t config = plan->config;
    config.pieces = &piece;
    config.piece_count = 1;
    REQUIRE(pp_allreduce_init_begin(actor->ctx, &config, NULL, &actor->colls[h]) == PP_OK);
}

/* Goes to the next handle; after the last one to the next stage. */
static void next_handle(const plan_t *plan, actor_t *actor, stage_t stage)
{
    if (++actor->handle == plan->handles) {
        actor->handle = 0;
        actor->stage = stage;
    }
}

static void begin_call(const plan_t *plan, actor_t *actor, int32_t rank)
{
    pp_coll_t *coll = actor->colls[actor->handle];
    actor->in_call = true;
    switch (actor->stage) {
    case INIT:
        begin_init(plan, actor, rank);
        break;
    case FLUSH:
        REQUIRE((plan->deliver == PP_EACH ? pp_drain_begin(coll) : pp_flush_begin(coll)) == PP_OK);
        break;
    case FREE:
        REQUIRE(pp_coll_free_begin(coll, &actor->discarded) == PP_OK);
        break;
    default:
        REQUIRE(pp_ctx_free_begin(actor->ctx) == PP_OK);
    }
}

static void end_call(const plan_t *plan, actor_t *actor)
{
    pp_result_t result;
    switch (actor->stage) {
    case INIT:
        next_handle(plan, actor, actor->steps ? START : FLUSH);
        break;
    case FLUSH:
        REQUIRE(pp_collect(actor->colls[actor->handle], &result) == PP_OK);
        given(plan, actor, actor->handle);
        if (result.cause == PP_CAUSE_FLUSH)
            next_handle(plan, actor, FREE);
        break;
    case FREE:
        REQUIRE(actor->discarded == 0);
        next_handle(plan, actor, FREE_CTX);
        break;
    default:
        actor->stage = ENDED;
    }
}

/* One move of a rank that is awake; false if it waits for something. */
static bool move(const plan_t *plan, actor_t *actor, int32_t rank)
{
    pp_result_t result;
    pp_status_t status;
    switch (actor->stage) {
    case ENDED:
        return false;
    case START:
        REQUIRE(pp_start(actor->colls[actor->handle]) == PP_OK);
        actor->starts += actor->handle == 0;
        actor->stage = WAIT;
        return true;
    case WAIT:
        status = pp_test(actor->colls[actor->handle], &result);
        REQUIRE(status >= 0);
        if (status == PP_PENDING)
            return false;
        given(plan, actor, actor->handle);
        actor->stage = START;
        if (++actor->handle == plan->handles) {
            actor->handle = 0;
            if (--actor->steps == 0)
                actor->stage = FLUSH;
        }
        return true;
    default:
        if (!actor->in_call)
            begin_call(plan, actor, rank);
        if (!call_over(actor))
            return false;
        end_call(plan, actor);
        return true;
    }
}

static uint64_t earliest_wake(const plan_t *plan, const actor_t *actors, uint64_t now)
{
    uint64_t earliest = UINT64_MAX;
    for (int32_t r = 0; r < plan->ranks; r++)
        if (actors[r].wake_ns > now && actors[r].wake_ns < earliest)
            earliest = actors[r].wake_ns;
    return earliest;
}

/* Returns whether all have ended; stops after `moves` moves. */
static bool play(pp_sim_t *sim, const plan_t *plan, actor_t *actors, uint64_t moves)
{
    for (;;) {
        uint64_t now = pp_sim_now_ns(sim);
        bool moved = false, ended = true;
        for (int32_t r = 0; r < plan->ranks; r++) {
            if (actors[r].wake_ns <= now && move(plan, &actors[r], r)) {
                moved = true;
                actors[r].wake_ns = now + (roll(2) ? roll(PAUSE_NS) : 0);
                if (moves-- == 0)
                    return false;
            }
            ended &= actors[r].stage == ENDED;
        }
        if (ended)
            return true;
        if (moved)
            continue;
        uint64_t wake = earliest_wake(plan, actors, now), message = pp_sim_next_ns(sim);
        REQUIRE(wake != UINT64_MAX || message != UINT64_MAX);   /* a deadlock */
        if (message <= wake)
            pp_sim_step(sim);
        else
            REQUIRE(pp_sim_run_until(sim, wake) == PP_OK);
    }
}

static void check(const plan_t *plan, const actor_t *actors)
{
    for (int32_t r = 0; r < plan->ranks && plan->deliver != PP_LATEST; r++)
        for (int32_t h = 0; h < plan->handles; h++)
            for (int32_t q = 0; q < plan->ranks; q++)
                REQUIRE(actors[r].replica[h][q] == actors[q].starts);
}

static void run(void)
{
    plan_t plan;
    actor_t actors[RANKS_MAX] = {0};
    state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    pp_sim_t *sim = open_world(&plan);
    int common = 1 + (int)roll(12);
    bool same = plan.handles > 1;   /* several handles: each once a step, the same steps everywhere */
    for (int32_t r = 0; r < plan.ranks; r++) {
        actors[r].ctx = pp_sim_ctx(sim, r);
        actors[r].steps = same ? common : (int)roll(13);
        actors[r].wake_ns = roll(PAUSE_NS);
    }
    uint64_t moves = roll(8) ? UINT64_MAX : roll(100);
    if (play(sim, &plan, actors, moves))
        check(&plan, actors);
    pp_sim_free(sim);
    for (int32_t r = 0; r < plan.ranks; r++)
        for (int32_t h = 0; h < plan.handles; h++) {
            free(actors[r].send[h]);
            free(actors[r].recv[h]);
        }
}

int main(int argc, char **argv)
{
    uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (seed = first; seed < first + seeds; seed++)
        run();
    printf("%llu seeds: done\n", (unsigned long long)seeds);
    return 0;
}
