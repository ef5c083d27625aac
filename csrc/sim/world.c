/* world.c - many ranks in one process: contexts over the simulated transport. */
#include "../api.h"
#include "../node/board.h"
#include "../transport/sim.h"
#include "actor.h"
#include "heard.h"
#include "pretend.h"

#include <stdlib.h>

/* The things that the threads of a rank's program wait for. */
typedef struct watch {
    pp_handle_t **handles;       /* their requests; NULL: the collective call */
    size_t        count, capacity;
} watch_t;

struct pp_sim {
    pp_simnet_t *net;
    int32_t      ranks;
    pp_ctx_t   **contexts;
    watch_t     *watches;
    pp_stage_t  *stage;        /* NULL: the ranks share no memory */
    int32_t      next_failed;  /* ranks below need not be looked at after a failure of all */
    pp_heard_t   heard;        /* groups */
};

_Static_assert((int)PP_SIM_ROOM_MAX == (int)PP_PARTS, "no room is larger than that of processes");

static pp_status_t check_config(const pp_sim_config_t *config)
{
    if (config->ranks < 1)
        return pp_fail(PP_ERR_ARGUMENT, "ranks=%d is not at least 1", config->ranks);
    if (config->ctx.window < 1)
        return pp_fail(PP_ERR_ARGUMENT, "window=%d is not at least 1", config->ctx.window);
    if (config->node_ranks < 0)
        return pp_fail(PP_ERR_ARGUMENT, "node_ranks=%d is negative", config->node_ranks);
    if (config->layout < 0 || config->layout >= PP_LAYOUT_COUNT)
        return pp_fail(PP_ERR_ARGUMENT, "layout=%d is not one of 0..%d", config->layout, PP_LAYOUT_COUNT - 1);
    if (config->pace.room < 0 || config->pace.room > PP_SIM_ROOM_MAX)
        return pp_fail(PP_ERR_ARGUMENT, "room=%d is not in 0..%d", config->pace.room, PP_SIM_ROOM_MAX);
    if (config->node_ranks && config->ranks > PP_CONTRIBUTORS_MAX)
        return pp_fail(PP_ERR_ARGUMENT, "ranks=%d cannot share memory: at most %d ranks can", config->ranks,
                       PP_CONTRIBUTORS_MAX);
    if (config->plant < 0 || config->plant >= PP_PLANT_COUNT)
        return pp_fail(PP_ERR_ARGUMENT, "plant=%d is not one of 0..%d", config->plant,
                       PP_PLANT_COUNT - 1);
    return PP_OK;
}

static pp_status_t make_rank(pp_sim_t *sim, int32_t rank)
{
    sim->contexts[rank] = calloc(1, sizeof(pp_ctx_t));
    return sim->contexts[rank] ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for rank %d", rank);
}

static pp_status_t set_up_rank(pp_sim_t *sim, int32_t rank, const pp_sim_config_t *config)
{
    pp_ctx_t *ctx = sim->contexts[rank];
    pp_status_t status = pp_ctx_setup(ctx, pp_simnet_transport(sim->net, rank), &config->ctx);
    if (status < 0) {
        free(ctx);
        sim->contexts[rank] = NULL;
        return status;
    }
    ctx->engine.plant = config->plant;
    if (sim->stage)
        pp_stage_enter(sim->stage, rank);
    return PP_OK;
}

pp_status_t pp_sim_open(const pp_sim_config_t *config, pp_sim_t **out)
{
    *out = NULL;
    PP_TRY(check_config(config));
    pp_sim_t *sim = calloc(1, sizeof *sim);
    if (!sim)
        return pp_fail(PP_ERR_MEMORY, "no memory for a simulation");
    sim->ranks = sim->next_failed = config->ranks;
    sim->contexts = calloc((size_t)config->ranks, sizeof(pp_ctx_t *));
    sim->watches = calloc((size_t)config->ranks, sizeof *sim->watches);
    pp_status_t status = sim->contexts && sim->watches
        ? pp_simnet_new(config->ranks, config->seed, &config->network, &sim->net)
        : pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", config->ranks);
    for (int32_t rank = 0; status >= 0 && rank < config->ranks; rank++)
        status = make_rank(sim, rank);
    if (status >= 0 && config->node_ranks)
        status = pp_stage_open(sim->net, config, sim->contexts, &sim->stage);
    for (int32_t rank = 0; status >= 0 && rank < config->ranks; rank++)
        status = set_up_rank(sim, rank, config);
    if (status < 0) {
        pp_sim_free(sim);
        return status;
    }
    *out = sim;
    return PP_OK;
}

pp_ctx_t *pp_sim_ctx(pp_sim_t *sim, int32_t rank)
{
    return rank >= 0 && rank < sim->ranks ? sim->contexts[rank] : NULL;
}

pp_status_t pp_check_pretends(pp_ctx_t *ctx)
{
    PP_TRY(pp_ctx_usable(ctx));
    PP_TRY(pp_engine_check(&ctx->engine));
    return ctx->mpi ? pp_fail(PP_ERR_STATE, "the ranks of the context are not simulated") : PP_OK;
}

pp_status_t pp_pretend(pp_ctx_t *ctx, pp_handle_t *handle, pp_handle_t **out)
{
    pp_status_t status = pp_agreement_pretend(&ctx->calls, handle);
    pp_engine_settle(&ctx->engine);
    if (status >= 0)
        *out = handle;
    return status;
}

static pp_status_t check_rank(const pp_sim_t *sim, int32_t rank)
{
    if (rank < 0 || rank >= sim->ranks)
        return pp_fail(PP_ERR_ARGUMENT, "rank %d is not in 0..%d", rank, sim->ranks - 1);
    return PP_OK;
}

pp_status_t pp_sim_kill(pp_sim_t *sim, int32_t rank, uint64_t time_ns, uint64_t detect_ns)
{
    PP_TRY(check_rank(sim, rank));
    return pp_simnet_kill(sim->net, rank, time_ns, detect_ns);
}

pp_status_t pp_sim_end_script(pp_sim_t *sim, int32_t rank)
{
    PP_TRY(check_rank(sim, rank));
    if (sim->stage)
        return pp_fail(PP_ERR_STATE, "the simulated ranks share memory: their scripts cannot end");
    pp_ctx_t *ctx = sim->contexts[rank];
    if (ctx->engine.error)
        pp_exit_tell_gone(&ctx->calls);
    else
        pp_exit_begin(&ctx->calls);
    return PP_OK;
}

uint64_t pp_sim_handles(const pp_sim_t *sim, int32_t rank) { return sim->contexts[rank]->engine.handles.count; }

/* ---- running -------------------------------------------------------------------------------- */

static pp_status_t watch_for(pp_sim_t *sim, int32_t rank, pp_handle_t *handle)
{
    watch_t *watch = &sim->watches[rank];
    for (size_t i = 0; i < watch->count; i++)
        if (watch->handles[i] == handle)
            return PP_OK;
    if (!pp_grow((void **)&watch->handles, &watch->capacity, watch->count + 1, sizeof(pp_handle_t *)))
        return pp_fail(PP_ERR_MEMORY, "no memory for what rank %d waits for", rank);
    watch->handles[watch->count++] = handle;
    return PP_OK;
}

pp_status_t pp_sim_watch(pp_sim_t *sim, int32_t rank, pp_handle_t *handle)
{
    PP_TRY(check_rank(sim, rank));
    return watch_for(sim, rank, handle);
}

void pp_sim_unwatch(pp_sim_t *sim, int32_t rank, const pp_handle_t *handle)
{
    if (check_rank(sim, rank) < 0)
        return;
    watch_t *watch = &sim->watches[rank];
    for (size_t i = 0; i < watch->count; i++)
        if (watch->handles[i] == handle)
            watch->handles[i--] = watch->handles[--watch->count];
}

/* Or a step towards that is left to the program's thread. */
static bool can_collect(pp_handle_t *handle)
{
    return handle->request.state == PP_COMPLETE || (handle->ops->needed && handle->ops->needed(handle));
}

static bool can_go_on(const pp_sim_t *sim, int32_t rank)
{
    const watch_t  *watch = &sim->watches[rank];
    const pp_ctx_t *ctx = sim->contexts[rank];
    pp_status_t     status;
    if (watch->count == 0 || pp_simnet_dead(sim->net, rank))
        return false;
    if (sim->stage)
        return pp_stage_done(sim->stage, rank, &status);
    bool any = ctx->engine.error || pp_find_work(ctx);
    for (size_t i = 0; i < watch->count; i++)
        any |= watch->handles[i] ? can_collect(watch->handles[i]) : ctx->calls.finished;
    return any;
}

/* Whether the rank's program goes on now; one whose rank is busy reducing goes on when that is over. */
static pp_status_t goes_on(pp_sim_t *sim, int32_t rank, bool *now)
{
    uint64_t busy = pp_simnet_busy_ns(sim->net, rank);
    *now = can_go_on(sim, rank);
    if (*now && busy > pp_simnet_now_ns(sim->net)) {
        *now = false;
        return pp_simnet_rouse(sim->net, rank, busy);
    }
    if (*now)
        sim->watches[rank].count = 0;
    return PP_OK;
}

/* After an event that concerned all ranks: the next rank whose program can go on. */
static bool next_of_all(pp_sim_t *sim, int32_t *rank)
{
    while (sim->next_failed < sim->ranks) {
        int32_t next = sim->next_failed++;
        if (!can_go_on(sim, next))
            continue;
        sim->watches[next].count = 0;
        *rank = next;
        return true;
    }
    return false;
}

pp_status_t pp_sim_advance(pp_sim_t *sim, uint64_t until_ns, int32_t *rank)
{
    int32_t touched;
    if (next_of_all(sim, rank))
        return PP_OK;
    while (pp_simnet_next_ns(sim->net) <= until_ns && pp_simnet_step(sim->net, &touched)) {
        bool now = false;
        if (touched == PP_SIMNET_ALL) {
            sim->next_failed = 0;
            now = next_of_all(sim, rank);
        } else if (touched >= 0) {
            if (sim->stage)
                pp_stage_go_on(sim->stage, touched);
            PP_TRY(goes_on(sim, touched, &now));
            *rank = touched;
        }
        if (now)
            return PP_OK;
    }
    return PP_PENDING;
}

pp_status_t pp_sim_do(pp_sim_t *sim, int32_t rank, const pp_sim_call_t *call)
{
    PP_TRY(check_rank(sim, rank));
    if (!sim->stage)
        return pp_fail(PP_ERR_STATE, "the simulated ranks share no memory: make their calls directly");
    pp_status_t status = pp_stage_do(sim->stage, rank, call);
    if (status == PP_PENDING)
        PP_TRY(watch_for(sim, rank, NULL));
    return status;
}

pp_status_t pp_sim_done(pp_sim_t *sim, int32_t rank, int32_t *status)
{
    pp_status_t ended = PP_OK;
    PP_TRY(check_rank(sim, rank));
    if (!sim->stage || !pp_stage_done(sim->stage, rank, &ended)) {
        PP_TRY(watch_for(sim, rank, NULL));
        return PP_PENDING;
    }
    *status = ended;
    return PP_OK;
}

void pp_sim_wait_elsewhere(pp_sim_t *sim, int32_t rank, int32_t waits)
{
    pp_ctx_t *ctx = pp_sim_ctx(sim, rank);
    if (!ctx || ctx->freed || ctx->engine.error)
        return;
    if (sim->stage) {
        pp_stage_tell_elsewhere(sim->stage, rank, waits > 0);
        return;
    }
    ctx->team.waits_in_others = waits > 0;
    ctx->engine.changed = true;
    pp_engine_settle(&ctx->engine);
}

uint64_t pp_sim_interruptions(const pp_sim_t *sim) { return sim->stage ? pp_stage_interruptions(sim->stage) : 0; }
uint64_t pp_sim_ran_dead(const pp_sim_t *sim) { return sim->stage ? pp_stage_ran_dead(sim->stage) : 0; }

pp_status_t pp_sim_set_now(pp_sim_t *sim, uint64_t time_ns)
{
    if (time_ns < pp_simnet_now_ns(sim->net) || time_ns > pp_simnet_next_ns(sim->net))
        return pp_fail(PP_ERR_ARGUMENT, "time_ns=%llu is not between now (%llu) and the next event",
                       (unsigned long long)time_ns, (unsigned long long)pp_simnet_now_ns(sim->net));
    pp_simnet_set_now(sim->net, time_ns);
    return PP_OK;
}

uint64_t pp_sim_now_ns(const pp_sim_t *sim) { return pp_simnet_now_ns(sim->net); }
uint64_t pp_sim_next_ns(const pp_sim_t *sim) { return pp_simnet_next_ns(sim->net); }

int32_t pp_sim_drawn(uint64_t seed, uint32_t handle, uint64_t round, int32_t ranks, int32_t place)
{
    return pp_permuted(pp_mix(seed, handle), round, ranks, place);
}

void pp_sim_coverage(const pp_sim_t *sim, pp_coverage_t *coverage)
{
    *coverage = (pp_coverage_t){0};
    for (int32_t rank = 0; rank < sim->ranks; rank++) {
        const pp_coverage_t *one = &sim->contexts[rank]->engine.coverage;
        coverage->initiators_met += one->initiators_met;
        coverage->departures += one->departures;
        coverage->windows_full += one->windows_full;
        coverage->draws_handed_on += one->draws_handed_on;
        coverage->crossings += one->crossings;
        coverage->landings += one->landings;
        coverage->graces_met += one->graces_met;
        coverage->graces_over += one->graces_over;
        coverage->announced += one->announced;
        coverage->merges += one->merges;
        coverage->merges_away += one->merges_away;
        coverage->asides += one->asides;
        coverage->deadlines += one->deadlines;
        for (int bin = 0; bin < PP_STALENESS_BINS; bin++)
            coverage->staleness[bin] += one->staleness[bin];
    }
}

static void hear_group(void *sim, pp_engine_t *engine, uint32_t handle, const pp_groups_action_t *action)
{
    if (!pp_heard_add(&((pp_sim_t *)sim)->heard, pp_engine_now(engine), handle, action))
        pp_engine_fail(engine, PP_ERR_MEMORY, "no memory for what is heard of groups");
}

void pp_sim_keep_groups(pp_sim_t *sim)
{
    for (int32_t rank = 0; rank < sim->ranks; rank++) {
        sim->contexts[rank]->engine.hear_group = hear_group;
        sim->contexts[rank]->engine.sim = sim;
    }
}

const pp_sim_group_t *pp_sim_group(pp_sim_t *sim) { return pp_heard_next(&sim->heard); }

void pp_sim_free(pp_sim_t *sim)
{
    if (!sim)
        return;
    /* The first rank last, because it has the memory that all of them share. */
    for (int32_t r = sim->ranks - 1; sim->contexts && r >= 0; r--)
        if (sim->contexts[r]) {
            if (sim->contexts[r]->engine.transport)
                pp_ctx_teardown(sim->contexts[r]);
            free(sim->contexts[r]);
        }
    pp_heard_release(&sim->heard);
    pp_stage_free(sim->stage);
    pp_simnet_free(sim->net);
    for (int32_t r = 0; sim->watches && r < sim->ranks; r++)
        free(sim->watches[r].handles);
    free(sim->contexts);
    free(sim->watches);
    free(sim);
}
