/* partial_allreduce.c - whole templates: activation, an allreduce, and the end of the round. */
#include "algo.h"
#include "table.h"

#include <stdlib.h>

enum { SEGMENT_BYTES_MIN = 1 << 20 };

/*
 * `done` hands the accumulator over, so it also waits for the sends that no other operation waits for: they may still
 * read it.  This function marks in `waited_for` the operations that have a successor.
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

/*
 * With four segments transfers and reductions overlap; more segments only hinder each other (docs/performance.md,
 * "Segments").  Each message keeps a fair size: a ring cuts a segment once more, into one chunk a rank.
 */
int32_t pp_algo_segments(int32_t algorithm, size_t bytes, int32_t ranks)
{
    const size_t chunks = pp_algorithm_chunk_a_rank(algorithm) ? (size_t)ranks : 1;
    const size_t segments = bytes / SEGMENT_BYTES_MIN / chunks;
    return segments < 1 ? 1 : segments > PP_LANES_MAX ? PP_LANES_MAX : (int32_t)segments;
}

static void append(int32_t algorithm, int32_t segments, pp_graph_t *graph, pp_ends_t *ends)
{
    pp_steps_t steps = pp_steps_begin(graph);
    if (graph->size == 1)
        segments = 1;
    const pp_algo_t *algo = pp_algo_of(algorithm);
    if (!algo)
        graph->error = pp_algo_unknown(algorithm);
    else if (segments < 1 || segments > PP_LANES_MAX)
        graph->error = pp_fail(PP_ERR_ARGUMENT, "segments=%d is not in 1..%d", segments, PP_LANES_MAX);
    for (int32_t i = 0; i < segments && !graph->error; i++) {
        pp_steps_begin_segment(&steps, pp_peers_chunk(graph->count, i, segments));
        algo->append(&steps);
        pp_steps_end_segment(&steps, ends);
    }
    pp_steps_release(&steps);
}

/* Appends the allreduce and the end, and commits.  Takes the graph over: on failure it is freed. */
static pp_status_t complete(int32_t algorithm, int32_t segments, pp_graph_t *built, pp_graph_t **graph)
{
    pp_ends_t last = {0};
    if (!built->error)
        append(algorithm, segments, built, &last);
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
                                      int32_t segments, pp_graph_t **graph)
{
    pp_graph_t *built;
    *graph = NULL;
    PP_TRY(make(rank, size, count, &built));
    if (!built->error)
        pp_algo_activation(built);
    return complete(algorithm, segments, built, graph);
}

pp_status_t pp_algo_synchronous_allreduce(int32_t algorithm, int32_t rank, int32_t size, size_t count,
                                          int32_t segments, pp_graph_t **graph)
{
    pp_graph_t *built;
    *graph = NULL;
    PP_TRY(make(rank, size, count, &built));
    built->gate = pp_graph_nop(built, PP_NEED_ALL, "gate");
    pp_graph_take(built);
    pp_graph_edge(built, built->gate, built->take);
    return complete(algorithm, segments, built, graph);
}
