/* partial_allreduce.c - whole templates: activation, an allreduce, and the end of the round. */
#include "algo.h"
#include "steps.h"

#include <stdlib.h>

/*
 * `done` hands the accumulator over, so it also waits for the sends that nothing else waits for: they
 * may still read it.  Marks in `waited_for` the operations that have a successor.
 */
static void mark_predecessors(const pp_graph_t *graph, bool *waited_for)
{
    for (size_t i = 0; i < graph->edge_count; i++)
        waited_for[graph->edges[i].from] = true;
}

void pp_algo_finish(pp_graph_t *graph, const pp_ends_t *last)
{
    graph->done = pp_graph_nop(graph, PP_NEED_ALL, "done");
    if (graph->error)
        return;
    bool *waited_for = calloc(graph->vertex_count, sizeof *waited_for);
    if (!waited_for) {
        graph->error = pp_fail(PP_ERR_MEMORY, "no memory for a schedule");
        return;
    }
    mark_predecessors(graph, waited_for);
    for (size_t i = 0; i < last->count; i++)
        pp_graph_edge(graph, last->vertices[i], graph->done);
    for (uint32_t i = 0; i < graph->done; i++) {
        if (graph->vertices[i].kind != PP_SEND)
            continue;
        if (graph->vertices[i].activation)
            pp_graph_edge(graph, graph->done, i);
        else if (!waited_for[i])
            pp_graph_edge(graph, i, graph->done);
    }
    free(waited_for);
}

/* No allreduce: the round ends with the take. */
enum { NONE = -1 };

static void append(int32_t algorithm, pp_graph_t *graph, uint32_t first_tag, pp_ends_t *last)
{
    switch (algorithm) {
    case NONE:
        pp_steps_begin(graph, last);
        break;
    case PP_RECURSIVE_DOUBLING:
        pp_algo_recursive_doubling(graph, first_tag, last);
        break;
    case PP_RABENSEIFNER:
        pp_algo_rabenseifner(graph, first_tag, last);
        break;
    case PP_RING:
        pp_algo_ring(graph, first_tag, last);
        break;
    default:
        graph->error = pp_fail(PP_ERR_ARGUMENT, "algorithm=%d is not one of %d..%d", algorithm,
                               PP_RECURSIVE_DOUBLING, PP_RING);
    }
}

/* Appends the allreduce and the end, commits.  Takes the graph over: it is freed on failure. */
static pp_status_t complete(int32_t algorithm, pp_graph_t *built, pp_graph_t **graph)
{
    pp_ends_t last = {0};
    if (!built->error)
        append(algorithm, built, built->tag_count, &last);
    pp_algo_finish(built, &last);
    free(last.vertices);
    pp_status_t status = pp_graph_commit(built);
    if (status < 0)
        pp_graph_free(built);
    else
        *graph = built;
    return status;
}

static pp_status_t make(int32_t rank, int32_t size, size_t count, pp_graph_t **graph)
{
    *graph = pp_graph_new(rank, size, count);
    return *graph ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for a schedule");
}

pp_status_t pp_algo_partial_allreduce(int32_t algorithm, int32_t rank, int32_t size, size_t count,
                                      pp_graph_t **graph)
{
    pp_graph_t *built;
    *graph = NULL;
    PP_TRY(make(rank, size, count, &built));
    if (!built->error)
        pp_algo_activation(built);
    return complete(algorithm, built, graph);
}

pp_status_t pp_algo_schedule(int32_t schedule, int32_t rank, int32_t size, size_t count,
                             pp_graph_t **graph)
{
    static const int32_t algorithms[] = {
        [PP_SCHEDULE_RECURSIVE_DOUBLING] = PP_RECURSIVE_DOUBLING,
        [PP_SCHEDULE_RABENSEIFNER] = PP_RABENSEIFNER, [PP_SCHEDULE_RING] = PP_RING};
    if (schedule < 0 || schedule >= PP_SCHEDULE_COUNT)
        return pp_fail(PP_ERR_ARGUMENT, "schedule=%d is not one of 0..%d", schedule,
                       PP_SCHEDULE_COUNT - 1);
    if (schedule == PP_SCHEDULE_ACTIVATION)
        return pp_algo_partial_allreduce(NONE, rank, size, 0, graph);
    return pp_algo_synchronous_allreduce(algorithms[schedule], rank, size, count, graph);
}

pp_status_t pp_algo_synchronous_allreduce(int32_t algorithm, int32_t rank, int32_t size, size_t count,
                                          pp_graph_t **graph)
{
    pp_graph_t *built;
    *graph = NULL;
    PP_TRY(make(rank, size, count, &built));
    built->gate = pp_graph_nop(built, PP_NEED_ALL, "gate");
    pp_graph_take(built);
    pp_graph_edge(built, built->gate, built->take);
    return complete(algorithm, built, graph);
}
