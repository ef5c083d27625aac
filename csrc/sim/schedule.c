/* schedule.c - one execution of one schedule over the simulated network: what a round costs. */
#include "../algo/algo.h"
#include "../exec/series.h"
#include "../transport/sim.h"

#include <stdlib.h>
#include <string.h>

/* ---- the schedule of a rank ------------------------------------------------------------------- */

static pp_status_t make_activation(int32_t rank, int32_t size, pp_graph_t **graph)
{
    pp_graph_t *built = pp_graph_new(rank, size, 0);
    if (!built)
        return pp_fail(PP_ERR_MEMORY, "no memory for a schedule");
    if (!built->error)
        pp_algo_activation(built);
    pp_algo_finish(built, &(pp_ends_t){.vertices = &built->take, .count = 1});
    pp_status_t status = pp_graph_commit(built);
    if (status < 0)
        pp_graph_free(built);
    else
        *graph = built;
    return status;
}

/* An activation alone, or a synchronous allreduce (pypartial_sim.h) of elements of one byte; segments = 0: by the
   vector's size. */
static pp_status_t make_schedule(int32_t schedule, int32_t rank, int32_t size, size_t count, int32_t segments,
                                 pp_graph_t **graph)
{
    *graph = NULL;
    if (schedule < 0 || schedule > pp_algorithm_count())
        return pp_fail(PP_ERR_ARGUMENT, "schedule=%d is not one of 0..%d", schedule, pp_algorithm_count());
    if (schedule == PP_SCHEDULE_ACTIVATION)
        return make_activation(rank, size, graph);
    if (segments == 0)
        segments = pp_algo_segments(schedule, count, size);
    return pp_algo_synchronous_allreduce(schedule, rank, size, count, segments, graph);
}

pp_status_t pp_sim_schedule_dump(int32_t schedule, int32_t ranks, size_t bytes, int32_t format,
                                 char **text)
{
    return pp_algo_dump(make_schedule, schedule, ranks, bytes, 0, 1, format, text);
}

/* ---- its execution ---------------------------------------------------------------------------- */

typedef struct run run_t;

typedef struct member {
    pp_handle_t handle;        /* first: the engine knows it only */
    run_t      *run;
    pp_engine_t engine;
    pp_series_t series;
} member_t;

struct run {
    pp_simnet_t *net;
    member_t    *members;
    int32_t      ranks;
    bool         activation;   /* a rank finishes when it is activated */
    uint64_t    *finished_ns;
    int32_t      finished;
};

static void finish(run_t *run, int32_t rank)
{
    uint64_t now = pp_simnet_now_ns(run->net), busy = pp_simnet_busy_ns(run->net, rank);
    run->finished_ns[rank] = now > busy ? now : busy;
    run->finished++;
}

static void on_take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    member_t *member = owner;
    share->null = instance->template->graph->count == 0;
    share->tally.contributions = 1;
    share->tally.contributors = !share->null;
    if (share->null)
        return;
    const pp_status_t status = pp_pool_get(instance->template->vectors, &instance->accumulator);
    if (status < 0)
        pp_engine_fail(&member->engine, status, "%s", pp_error_text());
    else
        memset(instance->accumulator->data, 0, instance->template->vectors->bytes);
}

static void on_activated(void *owner, pp_instance_t *instance)
{
    member_t *member = owner;
    (void)instance;
    if (member->run->activation)
        finish(member->run, member->engine.rank);
}

static void on_done(void *owner, pp_instance_t *instance)
{
    member_t *member = owner;
    pp_pool_put(instance->template->vectors, instance->accumulator);
    instance->accumulator = NULL;
    if (!member->run->activation)
        finish(member->run, member->engine.rank);
}

static void on_retired(void *owner, pp_instance_t *instance)
{
    (void)owner;
    (void)instance;
}

static const pp_host_t host = {
    .take = on_take, .activated = on_activated, .done = on_done, .retired = on_retired,
};

static void on_operation(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message, size_t bytes)
{
    pp_series_receive(&((member_t *)handle)->series, peer, message, bytes);
}

static const pp_handle_kind_t kind = {.init = "a schedule"};
static const pp_handle_ops_t  ops = {.operation = on_operation};

static pp_status_t join(run_t *run, int32_t rank, int32_t schedule, size_t bytes, int32_t segments)
{
    member_t    *member = &run->members[rank];
    pp_kernels_t kernels;
    pp_graph_t  *graph;
    member->run = run;
    member->handle.kind = &kind;
    member->handle.ops = &ops;
    PP_TRY(pp_kernels_find(PP_SUM, PP_UINT8, &kernels));
    PP_TRY(pp_engine_init(&member->engine, pp_simnet_transport(run->net, rank), 0));
    PP_TRY(pp_engine_register(&member->engine, &member->handle, 0));
    PP_TRY(make_schedule(schedule, rank, run->ranks, bytes, segments, &graph));
    return pp_series_open(&member->engine, 0, graph, NULL, &kernels, 1, &host, member, &member->series);
}

static pp_status_t open_run(run_t *run, int32_t schedule, size_t bytes, int32_t segments, uint64_t seed,
                            const pp_network_t *network)
{
    PP_TRY(pp_simnet_new(run->ranks, seed, network, &run->net));
    run->members = calloc((size_t)run->ranks, sizeof *run->members);
    if (!run->members)
        return pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", run->ranks);
    for (int32_t rank = 0; rank < run->ranks; rank++)
        PP_TRY(join(run, rank, schedule, bytes, segments));
    return PP_OK;
}

static void close_run(run_t *run)
{
    for (int32_t rank = 0; run->members && rank < run->ranks; rank++)
        if (run->members[rank].series.engine) {
            pp_series_close(&run->members[rank].series);
            pp_engine_release(&run->members[rank].engine);
        }
    pp_simnet_free(run->net);
    free(run->members);
}

static pp_status_t execute(run_t *run, pp_sim_traffic_t *traffic)
{
    for (int32_t rank = 0; rank < run->ranks; rank++) {
        member_t         *member = &run->members[rank];
        const pp_graph_t *graph = member->series.graph;
        pp_instance_t    *instance = pp_series_instance(&member->series, 0);
        pp_instance_fire(instance, graph->gate);
        if (graph->start != PP_NO_VERTEX && rank == 0)
            pp_instance_fire(instance, graph->start);
        pp_engine_settle(&member->engine);
    }
    for (int32_t rank; pp_simnet_step(run->net, &rank);)
        continue;
    for (int32_t rank = 0; rank < run->ranks; rank++) {
        const pp_transport_t *transport = pp_simnet_transport(run->net, rank);
        PP_TRY(pp_engine_check(&run->members[rank].engine));
        traffic->messages += transport->messages_sent + transport->bulk_sent;
        traffic->bytes += transport->bytes_sent;
    }
    if (run->finished != run->ranks)
        return pp_fail(PP_ERR_INTERNAL, "only %d of %d ranks finished the schedule", run->finished, run->ranks);
    return PP_OK;
}

pp_status_t pp_sim_schedule(int32_t schedule, int32_t ranks, size_t bytes, int32_t segments, uint64_t seed,
                            const pp_network_t *network, uint64_t *finished_ns,
                            pp_sim_traffic_t *traffic)
{
    run_t run = {.ranks = ranks, .activation = schedule == PP_SCHEDULE_ACTIVATION,
                 .finished_ns = finished_ns};
    *traffic = (pp_sim_traffic_t){0};
    pp_status_t status = open_run(&run, schedule, bytes, segments, seed, network);
    if (status >= 0)
        status = execute(&run, traffic);
    close_run(&run);
    return status;
}
