/*
 * worlds.c - many simulated ranks in one process, for a run under a sanitizer that also looks for leaks.
 *
 *     worlds COUNT SEED
 *
 * Runs COUNT worlds.  Each draws a number of ranks (1 to 17), the latencies, window, policy, delivery,
 * algorithm and length, and lets every rank start, test, flush, drain and free at random times; some are
 * thrown away in the middle.  Between the worlds: wrong and different arguments, dumps, and every
 * operation on every type with random bytes.
 */
#include "check.h"
#include "../../../csrc/include/pypartial_sim.h"

enum { RANKS_MAX = 17, ROUNDS_MAX = 4096, PARTS = 2, STEPS_MAX = 100000000 };

typedef enum doing {
    CREATING, COMPUTING, WAITING, FLUSHING, FREEING, CLOSING, GONE
} doing_t;

typedef struct world {
    pp_sim_t *sim;
    int       ranks, window, handles;
    bool      equal_calls;
    size_t    count;
    pp_allreduce_config_t config;
    uint64_t  sums[2][ROUNDS_MAX][RANKS_MAX];   /* by handle, round and rank; agreed by all who see them */
    bool      seen[2][ROUNDS_MAX];
    uint64_t  starts[2][RANKS_MAX];
    uint64_t  before[PARTS + 2][2][RANKS_MAX];  /* starts before the flush that ends a part */
} world_t;

typedef struct actor {
    pp_ctx_t  *ctx;
    pp_handle_t *coll[2];
    pp_piece_t pieces[2][2];
    uint64_t  *send[2], *recv[2];
    uint64_t   given[2][RANKS_MAX], next_round[2], discarded;
    uint64_t   due_ns;
    doing_t    doing;
    bool       begun;               /* the collective call it is in */
    int        current, calls, part;
} actor_t;

static uint64_t state;

static uint64_t roll(uint64_t bound) { return below(&state, bound); }

/* ---- vectors: element i is of rank i % ranks ------------------------------------------------------------ */

static void name(uint64_t *vector, size_t count, int rank, int ranks)
{
    for (size_t i = 0; i < count; i++)
        vector[i] = i % (size_t)ranks == (size_t)rank;
}

static void take_result(world_t *w, actor_t *a, int h, const pp_result_t *result)
{
    const uint64_t *sum = a->recv[h];
    bool     named = w->count >= (size_t)w->ranks;
    bool     merged = w->config.deliver == PP_DELIVER_SUM && result->first != result->round;
    uint64_t contributions = 0;
    for (size_t i = (size_t)w->ranks; i < w->count; i++)
        CHECK(sum[i] == sum[i % (size_t)w->ranks], "element %zu", i);
    CHECK(result->round >= a->next_round[h] && result->round < ROUNDS_MAX, "round %llu after %llu",
          (unsigned long long)result->round, (unsigned long long)a->next_round[h]);
    if (w->config.deliver != PP_LATEST)
        CHECK(result->first == a->next_round[h], "rounds from %llu, not %llu",
              (unsigned long long)result->first, (unsigned long long)a->next_round[h]);
    a->next_round[h] = result->round + 1;
    if (w->config.policy == PP_QUORUM && result->cause == PP_CAUSE_POLICY)
        CHECK(result->active >= w->config.policy_k, "%d active", result->active);
    for (int r = 0; named && r < w->ranks; r++) {
        a->given[h][r] += sum[r];
        contributions += sum[r];
        if (merged)
            continue;
        CHECK((sum[r] > 0) == ((result->contributors[0] >> r) & 1), "contributor %d", r);
        CHECK(!w->seen[h][result->round] || w->sums[h][result->round][r] == sum[r],
              "ranks disagree on round %llu", (unsigned long long)result->round);
        w->sums[h][result->round][r] = sum[r];
    }
    if (named && !merged) {
        CHECK(contributions == result->contributions, "%llu contributions, not %llu",
              (unsigned long long)contributions, (unsigned long long)result->contributions);
        w->seen[h][result->round] = true;
    }
}

/* ---- what a rank does when its time has come --------------------------------------------------------- */

static void pause_for(world_t *w, actor_t *a)
{
    a->due_ns = pp_sim_now_ns(w->sim) + (roll(3) ? roll(roll(6) ? 3000 : 100000) : 0);
}

static void create(world_t *w, actor_t *a)
{
    int    h = a->current;
    size_t first = w->config.piece_count == 2 ? w->count / 3 : w->count;
    a->send[h] = allocate(w->count * 8);
    a->recv[h] = allocate(w->count * 8);
    a->pieces[h][0] = (pp_piece_t){a->send[h], a->recv[h], first};
    a->pieces[h][1] = (pp_piece_t){a->send[h] + first, a->recv[h] + first, w->count - first};
    pp_allreduce_config_t config = w->config;
    config.pieces = a->pieces[h];
    MUST(pp_allreduce_init_begin(a->ctx, &config, NULL, &a->coll[h]));
}

static void begin_call(world_t *w, actor_t *a, int rank)
{
    pp_handle_t *coll = a->coll[a->current];
    if (a->doing == CREATING)
        create(w, a);
    else if (a->doing == FLUSHING)
        MUST(w->config.deliver == PP_EACH ? pp_drain_begin(coll) : pp_flush_begin(coll));
    else if (a->doing == FREEING)
        MUST(pp_handle_free_begin(coll, &a->discarded));
    else
        MUST(pp_ctx_free_begin(a->ctx));
    a->begun = true;
    w->before[a->part][a->current][rank] = w->starts[a->current][rank];
}

static void next_part(world_t *w, actor_t *a)
{
    a->current = 0;
    a->doing = a->part++ < PARTS ? COMPUTING : FREEING;
    a->calls = w->equal_calls ? 5 : (int)roll(12);
    if (a->doing == COMPUTING && a->calls == 0)
        a->doing = FLUSHING;
}

/* A call is over: the same for the next handle, or on with the program. */
static void end_call(world_t *w, actor_t *a, int rank)
{
    int         h = a->current;
    pp_result_t result;
    a->begun = false;
    if (a->doing == FLUSHING) {
        MUST(pp_collect(a->coll[h], &result));
        take_result(w, a, h, &result);
        if (result.cause != PP_CAUSE_FLUSH)
            return;
        for (int r = 0; w->config.deliver != PP_LATEST && w->count >= (size_t)w->ranks && r < w->ranks; r++)
            CHECK(a->given[h][r] == w->before[a->part][h][r], "given %llu of rank %d's %llu",
                  (unsigned long long)a->given[h][r], r, (unsigned long long)w->before[a->part][h][r]);
    }
    if (a->doing == CLOSING) {
        a->doing = GONE;
        return;
    }
    if (a->doing == FREEING)
        CHECK(a->discarded <= w->starts[h][rank], "%llu discarded", (unsigned long long)a->discarded);
    a->current = (h + 1) % w->handles;
    if (a->current != 0)
        return;
    if (a->doing == FREEING)
        a->doing = CLOSING;
    else
        next_part(w, a);
}

static void call(world_t *w, actor_t *a, int rank)
{
    if (!a->begun)
        begin_call(w, a, rank);
    if (MUST(pp_call_wait(a->ctx, 0)) == PP_OK)
        end_call(w, a, rank);
}

static void compute(world_t *w, actor_t *a, int rank)
{
    int h = a->current;
    name(a->send[h], w->count, rank, w->ranks);
    MUST(pp_start(a->coll[h]));
    if (w->count)
        memset(a->send[h], 0x5a, w->count * 8);
    w->starts[h][rank]++;
    CHECK(pp_start(a->coll[h]) == PP_ERR_STATE, "two Starts");
    a->doing = WAITING;
    if (w->handles == 1 && a->calls == 1 && roll(2))
        a->doing = FLUSHING;       /* the request completes with the flush */
}

static void look(actor_t *a)
{
    pp_rank_state_t states[RANKS_MAX];
    pp_stats_t      stats;
    uint64_t        round;
    uint32_t        fired[512];
    size_t          operations;
    char           *text;
    MUST(pp_ask(a->ctx, pp_handle_id(a->coll[0]), 0, states));
    pp_ctx_stats(a->ctx, &stats);
    MUST(pp_handle_fired(a->coll[0], &round, fired, 512, &operations));
    MUST(pp_handle_dump(a->coll[0], roll(2) ? PP_DOT : PP_GOAL, &text));
    pp_text_free(text);
}

static void wait(world_t *w, actor_t *a)
{
    int         h = a->current;
    pp_result_t result;
    if (roll(50) == 0)
        look(a);
    if (MUST(pp_test(a->coll[h], &result)) == PP_PENDING)
        return;
    CHECK(w->config.max_lag < 0 || result.missed <= (uint64_t)w->config.max_lag, "%llu missed",
          (unsigned long long)result.missed);
    take_result(w, a, h, &result);
    a->current = (h + 1) % w->handles;
    a->doing = COMPUTING;
    if (a->current == 0 && --a->calls == 0)
        a->doing = FLUSHING;
}

static void act(world_t *w, actor_t *a, int rank)
{
    if (a->doing == COMPUTING)
        compute(w, a, rank);
    else if (a->doing == WAITING)
        wait(w, a);
    else if (a->doing != GONE)
        call(w, a, rank);
    pause_for(w, a);
}

/* ---- a world --------------------------------------------------------------------------------------------- */

static void make_world(world_t *w)
{
    static const size_t counts[] = {0, 1, 17, 85, 640, 5000, 12000};
    uint64_t latency = roll(20000);
    memset(w, 0, sizeof *w);
    w->ranks = 1 + (int)roll(RANKS_MAX);
    w->window = 1 + (int)roll(4);
    w->handles = 1 + (roll(3) == 0);
    w->equal_calls = w->handles > 1;
    w->count = counts[roll(roll(3) ? 5 : 7)];
    w->config = (pp_allreduce_config_t){
        .piece_count = 1 + (w->count > 2 && roll(3) == 0), .type = PP_UINT64, .op = PP_SUM,
        .policy = (int)roll(PP_QUORUM + 1), .policy_k = 1 + (int)roll((uint64_t)w->ranks),
        .deliver = (int)roll(PP_DELIVER_COUNT), .algorithm = (int)roll(1 + pp_algorithm_count())};
    w->config.max_lag = w->config.deliver == PP_LATEST && roll(2) ? -1 : (int)roll((uint64_t)w->window);
    pp_link_t link = {.latency_ns = latency / 4, .jitter_ns = latency - latency / 4,
                      .rendezvous_bytes = roll(2) ? 0 : UINT64_MAX};
    if (roll(2))
        link.overhead_ns = link.gap_ns = roll(500), link.byte_ps = roll(2000);
    pp_sim_config_t config = {
        .seed = roll(UINT64_MAX), .ranks = w->ranks,
        .network = {.between = link, .within = link, .node_ranks = 1 + (int)roll(3),
                    .noise_ns = roll(3) ? 0 : roll(2000), .reduce_ps = roll(3) ? 0 : roll(10000)},
        .ctx = {.seed = roll(UINT64_MAX), .window = w->window}};
    MUST(pp_sim_open(&config, &w->sim));
}

/* What happens next, and what happens at the same time; false: nothing. */
static bool step(pp_sim_t *sim)
{
    int32_t  rank;
    uint64_t next = pp_sim_next_ns(sim);
    if (next == UINT64_MAX)
        return false;
    MUST(pp_sim_advance(sim, next, &rank));
    return true;
}

/* The rank whose time comes first, unless a message comes before. */
static int next_actor(const world_t *w, const actor_t *actors)
{
    int next = -1;
    for (int r = 0; r < w->ranks; r++)
        if (actors[r].doing != GONE && (next < 0 || actors[r].due_ns < actors[next].due_ns))
            next = r;
    return next;
}

static void run_world(world_t *w, actor_t *actors, uint64_t steps)
{
    for (uint64_t i = 0; i < steps; i++) {
        int r = next_actor(w, actors);
        if (r < 0) {
            while (step(w->sim))
                continue;
            return;
        }
        CHECK(i < STEPS_MAX && pp_sim_now_ns(w->sim) < 1000000000, "no end: rank %d is at %d", r,
              actors[r].doing);
        if (pp_sim_next_ns(w->sim) <= actors[r].due_ns) {
            step(w->sim);
        } else {
            MUST(pp_sim_set_now(w->sim, actors[r].due_ns));
            act(w, &actors[r], r);
        }
    }
}

static void play(void)
{
    static world_t w;
    static actor_t actors[RANKS_MAX];
    static char    text[200];
    make_world(&w);
    memset(actors, 0, sizeof actors);
    snprintf(text, sizeof text, "P %d, window %d, handles %d, count %zu, policy %d(%d), deliver %d, max_lag "
             "%d, algorithm %d", w.ranks, w.window, w.handles, w.count, w.config.policy,
             w.config.policy_k, w.config.deliver, w.config.max_lag, w.config.algorithm);
    stage = text;
    for (int r = 0; r < w.ranks; r++) {
        actors[r].ctx = pp_sim_ctx(w.sim, r);
        actors[r].due_ns = roll(5000);
    }
    bool cut_short = roll(5) == 0;
    run_world(&w, actors, cut_short ? roll(3000) : UINT64_MAX);
    pp_sim_free(w.sim);
    for (int r = 0; r < w.ranks; r++)
        for (int h = 0; h < w.handles; h++) {
            free(actors[r].send[h]);
            free(actors[r].recv[h]);
        }
}

/* ---- between the worlds --------------------------------------------------------------------------------- */

static void settle(pp_sim_t *sim)
{
    while (step(sim))
        continue;
}

/* Creations that fail on all ranks, a handle used wrongly, and a context that still has it. */
static void mistakes(void)
{
    int             ranks = 2 + (int)roll(8);
    int64_t         send[4] = {0}, recv[4] = {0};
    pp_piece_t      piece = {send, recv, 4};
    pp_handle_t      *coll[RANKS_MAX];
    pp_sim_t       *sim;
    pp_link_t       link = {.jitter_ns = 100};
    pp_sim_config_t config = {.ranks = ranks, .network = {link, link, .node_ranks = 1},
                              .ctx = {.window = 2}};
    pp_allreduce_config_t good = {.pieces = &piece, .piece_count = 1, .type = PP_INT64, .policy_k = 1};
    stage = "mistakes";
    MUST(pp_sim_open(&config, &sim));
    for (int kind = 0; kind < 5; kind++) {
        int odd = (int)roll((uint64_t)ranks);
        for (int r = 0; r < ranks; r++) {
            pp_allreduce_config_t own = good;
            if (r == odd && kind == 0)
                own.op = PP_BXOR;
            if (r == odd && kind == 1)
                own.policy_k = ranks + 1;
            if (r == odd && kind == 2)
                own.deliver = PP_DELIVER_COUNT + 7;
            bool complains = r == odd && kind == 3;
            MUST(pp_allreduce_init_begin(pp_sim_ctx(sim, r), complains ? NULL : &own,
                                         complains ? "a buffer is read-only" : NULL, &coll[r]));
        }
        settle(sim);
        for (int r = 0; r < ranks; r++) {
            pp_status_t status = pp_call_wait(pp_sim_ctx(sim, r), 0);
            CHECK(kind == 4 ? status == PP_OK : status < 0 && pp_error_text()[0], "kind %d: status %d", kind,
                  status);
        }
    }
    for (int r = 0; r < ranks; r++) {
        CHECK(pp_wait(coll[r], 0, NULL) == PP_ERR_STATE, "nothing started");
        CHECK(pp_drain_begin(coll[r]) == PP_ERR_STATE, "Drain");
        CHECK(pp_call_wait(pp_sim_ctx(sim, r), 0) == PP_ERR_STATE, "no call");
        MUST(pp_ctx_free_begin(pp_sim_ctx(sim, r)));
        CHECK(pp_ctx_free_begin(pp_sim_ctx(sim, r)) == PP_ERR_STATE, "two calls");
    }
    settle(sim);
    for (int r = 0; r < ranks; r++)
        CHECK(pp_call_wait(pp_sim_ctx(sim, r), 0) == PP_ERR_STATE, "a live handle");
    pp_ctx_abandon(pp_sim_ctx(sim, 0), "an exception");
    CHECK(pp_start(coll[0]) == PP_ERR_STATE, "a context that was given up");
    MUST(pp_start(coll[1]));
    settle(sim);
    pp_sim_free(sim);
}

/* Random bytes: signed overflow, bytes that are no bool, NaNs, subnormal halves, wide products. */
static void kernels(void)
{
    enum { COUNT = 37 };
    stage = "kernels";
    for (int type = -1; type <= PP_TYPE_COUNT; type++)
        for (int op = -1; op <= PP_OP_COUNT; op++) {
            size_t   bytes = pp_type_bytes(type) * COUNT;
            uint8_t *in = allocate(bytes), *inout = allocate(bytes);
            for (size_t i = 0; i < bytes; i++) {
                in[i] = (uint8_t)draw(&state);
                inout[i] = roll(4) ? (uint8_t)draw(&state) : 0xff;
            }
            pp_status_t status = pp_reduce_local(op, type, in, inout, COUNT, (int)roll(2));
            CHECK((status == PP_OK) == (pp_op_supports(op, type) == 1), "%s of %s: %d", pp_op_name(op),
                  pp_type_name(type), status);
            MUST(pp_op_supports(op, type) ? pp_reduce_local(op, type, in, inout, 0, 1) : PP_OK);
            free(in);
            free(inout);
        }
}

static void dumps(void)
{
    char *text;
    int   ranks = 1 + (int)roll(33);
    stage = "dumps";
    MUST(pp_schedule_dump((int)roll(1 + pp_algorithm_count()), ranks, roll(200), PP_FLOAT32, (int)roll(2), &text));
    CHECK(strlen(text) > 0, "an empty dump");
    pp_text_free(text);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: %s COUNT SEED", argv[0]);
    long     count = atol(argv[1]);
    uint64_t seed = strtoull(argv[2], NULL, 10);
    for (long i = 0; i < count; i++) {
        state = seed * 1000003 + (uint64_t)i;
        my_rank = (int)i;      /* what die() names is the world */
        play();
        if (i % 10 == 0)
            mistakes();
        if (i % 10 == 1)
            dumps();
        if (i % 100 == 2)
            kernels();
    }
    printf("%ld worlds: passed\n", count);
    return 0;
}
