/* build.c - the builder of schedule templates.  See graph.h. */
#include "graph.h"

#include <stdlib.h>

/* Tags are dense, so a large one is a mistake; and the tag table has a row for each. */
enum { TAGS_MAX = 1 << 24 };

static void latch(pp_graph_t *graph, pp_status_t status)
{
    if (!graph->error)
        graph->error = status;
}

pp_graph_t *pp_graph_new(int32_t rank, int32_t size, size_t count)
{
    pp_graph_t *graph = calloc(1, sizeof *graph);
    if (!graph)
        return NULL;
    graph->rank = rank;
    graph->size = size;
    graph->count = count;
    graph->start = graph->join = graph->gate = PP_NO_VERTEX;
    graph->activated = graph->take = graph->done = PP_NO_VERTEX;
    if (size < 1)
        latch(graph, pp_fail(PP_ERR_ARGUMENT, "a schedule needs at least one rank, not %d", size));
    else if (rank < 0 || rank >= size)
        latch(graph, pp_fail(PP_ERR_ARGUMENT, "rank %d is not in 0..%d", rank, size - 1));
    return graph;
}

void pp_graph_free(pp_graph_t *graph)
{
    if (!graph)
        return;
    free(graph->edges);
    free(graph->recv_by_tag);
    free(graph->outs);
    free(graph->vertices);
    free(graph);
}

static bool writable(pp_graph_t *graph)
{
    if (!graph->error && graph->outs)
        latch(graph, pp_fail(PP_ERR_STATE, "rank %d: the schedule is committed and cannot be changed", graph->rank));
    return !graph->error;
}

static uint32_t add_vertex(pp_graph_t *graph, pp_vertex_t vertex)
{
    if (!writable(graph))
        return PP_NO_VERTEX;
    void *array = graph->vertices;
    if (graph->vertex_count >= PP_NO_VERTEX - 1
        || !pp_grow(&array, &graph->vertex_capacity, (size_t)graph->vertex_count + 1,
                    sizeof *graph->vertices)) {
        latch(graph, pp_fail(PP_ERR_MEMORY, "no memory for operation %u of a schedule",
                             graph->vertex_count));
        return PP_NO_VERTEX;
    }
    graph->vertices = array;
    graph->vertices[graph->vertex_count] = vertex;
    return graph->vertex_count++;
}

/* Checks what SEND and RECV have in common and counts its tag and register. */
static bool accept_message(pp_graph_t *graph, const pp_vertex_t *v)
{
    const pp_region_t region = v->region;
    const char       *kind = v->kind == PP_SEND ? "send" : "recv";
    if (!writable(graph))
        return false;
    if (v->peer < 0 || v->peer >= graph->size || v->peer == graph->rank)
        latch(graph, pp_fail(PP_ERR_ARGUMENT, "rank %d: a %s names peer %d, which is not another rank "
                             "of 0..%d", graph->rank, kind, v->peer, graph->size - 1));
    else if (v->tag >= TAGS_MAX)
        latch(graph, pp_fail(PP_ERR_ARGUMENT, "rank %d: a %s has tag %u, which is not in 0..%d", graph->rank,
                             kind, v->tag, TAGS_MAX - 1));
    else if (v->reg == UINT32_MAX)
        latch(graph, pp_fail(PP_ERR_ARGUMENT, "rank %d: a %s has register %u, which is too large", graph->rank, kind,
                             v->reg));
    else if (region.offset > graph->count || region.count > graph->count - region.offset)
        latch(graph, pp_fail(PP_ERR_ARGUMENT, "rank %d: a %s covers %zu elements from element %zu on, but the vector "
                             "has %zu elements", graph->rank, kind, region.count, region.offset, graph->count));
    if (graph->error)
        return false;
    if (v->tag >= graph->tag_count)
        graph->tag_count = v->tag + 1;
    if (v->reg >= graph->reg_count)
        graph->reg_count = v->reg + 1;
    return true;
}

uint32_t pp_graph_nop(pp_graph_t *graph, uint32_t need, const char *label)
{
    return add_vertex(graph, (pp_vertex_t){.kind = PP_NOP, .need = need, .label = label});
}

uint32_t pp_graph_send(pp_graph_t *graph, uint32_t need, int32_t peer, uint32_t tag, uint32_t reg,
                       pp_region_t region)
{
    const pp_vertex_t send = {.kind = PP_SEND, .need = need, .peer = peer, .tag = tag, .reg = reg,
                              .region = region};
    return accept_message(graph, &send) ? add_vertex(graph, send) : PP_NO_VERTEX;
}

uint32_t pp_graph_recv(pp_graph_t *graph, uint32_t need, int32_t peer, uint32_t tag, uint32_t reg,
                       pp_region_t region, int8_t lane)
{
    const pp_vertex_t recv = {.kind = PP_RECV, .need = need, .peer = peer, .tag = tag, .reg = reg,
                              .region = region, .lane = lane};
    if (lane < PP_IN_PLACE || lane >= PP_LANES_MAX)
        latch(graph, pp_fail(PP_ERR_ARGUMENT, "rank %d: a recv names lane %d of scratch, which has %d lanes",
                             graph->rank, lane, PP_LANES_MAX));
    return accept_message(graph, &recv) ? add_vertex(graph, recv) : PP_NO_VERTEX;
}

uint32_t pp_graph_reduce(pp_graph_t *graph, uint32_t recv, bool incoming_left)
{
    if (!writable(graph))
        return PP_NO_VERTEX;
    if (recv >= graph->vertex_count || graph->vertices[recv].kind != PP_RECV
        || graph->vertices[recv].lane == PP_IN_PLACE) {
        latch(graph, pp_fail(PP_ERR_ARGUMENT, "rank %d: a reduce names operation %u, which is not a recv "
                             "into scratch", graph->rank, recv));
        return PP_NO_VERTEX;
    }
    const pp_vertex_t *from = &graph->vertices[recv];
    uint32_t reduce = add_vertex(graph, (pp_vertex_t){.kind = PP_REDUCE, .need = PP_NEED_ALL,
                                                      .reg = from->reg, .source = recv,
                                                      .incoming_left = incoming_left,
                                                      .region = from->region});
    pp_graph_edge(graph, recv, reduce);
    return reduce;
}

uint32_t pp_graph_take(pp_graph_t *graph)
{
    if (!writable(graph))
        return PP_NO_VERTEX;
    if (graph->take != PP_NO_VERTEX) {
        latch(graph, pp_fail(PP_ERR_ARGUMENT, "rank %d: the schedule takes the contribution a second time",
                             graph->rank));
        return PP_NO_VERTEX;
    }
    const pp_region_t all = {.offset = 0, .count = graph->count};
    if (graph->reg_count == 0)
        graph->reg_count = 1;
    graph->take = add_vertex(graph, (pp_vertex_t){.kind = PP_COPY, .need = PP_NEED_ALL,
                                                  .region = all, .label = "take"});
    return graph->take;
}

void pp_graph_edge(pp_graph_t *graph, uint32_t from, uint32_t to)
{
    if (!writable(graph))
        return;
    if (from >= graph->vertex_count || to >= graph->vertex_count) {
        latch(graph, pp_fail(PP_ERR_ARGUMENT, "rank %d: an edge goes from operation %u to operation %u, but there are "
                             "%u operations", graph->rank, from, to, graph->vertex_count));
        return;
    }
    void *array = graph->edges;
    if (!pp_grow(&array, &graph->edge_capacity, graph->edge_count + 1, sizeof *graph->edges)) {
        latch(graph, pp_fail(PP_ERR_MEMORY, "no memory for edge %zu of a schedule",
                             graph->edge_count));
        return;
    }
    graph->edges = array;
    graph->edges[graph->edge_count++] = (struct pp_edge){.from = from, .to = to};
}
