/* commit.c - freezes a template: makes the tables of successors and tags, and refuses faults.  See graph.h. */
#include "graph.h"

#include <stdlib.h>

/* Counting sort of the edges by their origin; stable, so that successors keep the order in which the
   edges were added. */
static pp_status_t sort_edges(pp_graph_t *graph)
{
    uint32_t *outs = malloc((graph->edge_count + 1) * sizeof *outs);   /* + 1: not NULL if empty */
    if (!outs || graph->edge_count >= UINT32_MAX) {
        free(outs);
        return pp_fail(PP_ERR_MEMORY, "no memory for a schedule of %zu edges", graph->edge_count);
    }
    for (size_t i = 0; i < graph->edge_count; i++) {
        graph->vertices[graph->edges[i].from].outs_end++;
        graph->vertices[graph->edges[i].to].in_count++;
    }
    uint32_t begin = 0;
    for (uint32_t v = 0; v < graph->vertex_count; v++) {
        uint32_t degree = graph->vertices[v].outs_end;
        graph->vertices[v].outs_begin = graph->vertices[v].outs_end = begin;
        begin += degree;
    }
    for (size_t i = 0; i < graph->edge_count; i++)
        outs[graph->vertices[graph->edges[i].from].outs_end++] = graph->edges[i].to;
    graph->outs = outs;
    return PP_OK;
}

static pp_status_t settle_needs(pp_graph_t *graph)
{
    for (uint32_t i = 0; i < graph->vertex_count; i++) {
        pp_vertex_t *v = &graph->vertices[i];
        if (v->need == PP_NEED_ALL)
            v->need = v->in_count;
        if (v->need > v->in_count)
            return pp_fail(PP_ERR_ARGUMENT, "rank %d: operation l%u needs %u predecessors, but has %u",
                           graph->rank, i, v->need, v->in_count);
    }
    return PP_OK;
}

/* An edge counts once towards `need`: a second one between the same pair would count twice. */
static pp_status_t refuse_double_edges(const pp_graph_t *graph)
{
    uint32_t *seen = malloc(((size_t)graph->vertex_count + 1) * sizeof *seen);
    if (!seen)
        return pp_fail(PP_ERR_MEMORY, "no memory to check a schedule");
    for (uint32_t v = 0; v < graph->vertex_count; v++)
        seen[v] = PP_NO_VERTEX;
    pp_status_t status = PP_OK;
    for (uint32_t v = 0; v < graph->vertex_count && status == PP_OK; v++) {
        for (uint32_t i = graph->vertices[v].outs_begin; i < graph->vertices[v].outs_end; i++) {
            if (seen[graph->outs[i]] == v)
                status = pp_fail(PP_ERR_ARGUMENT, "rank %d: there are two edges from l%u to l%u",
                                 graph->rank, v, graph->outs[i]);
            seen[graph->outs[i]] = v;
        }
    }
    free(seen);
    return status;
}

/* Kahn: removes operations without predecessors, again and again; those that remain lie on or behind a cycle. */
static pp_status_t refuse_cycles(const pp_graph_t *graph)
{
    size_t count = (size_t)graph->vertex_count + 1;
    uint32_t *missing = malloc(2 * count * sizeof *missing);
    if (!missing)
        return pp_fail(PP_ERR_MEMORY, "no memory to check a schedule");
    uint32_t *queue = missing + count, head = 0, tail = 0;
    for (uint32_t v = 0; v < graph->vertex_count; v++) {
        missing[v] = graph->vertices[v].in_count;
        if (missing[v] == 0)
            queue[tail++] = v;
    }
    for (; head < tail; head++) {
        const pp_vertex_t *v = &graph->vertices[queue[head]];
        for (uint32_t i = v->outs_begin; i < v->outs_end; i++)
            if (--missing[graph->outs[i]] == 0)
                queue[tail++] = graph->outs[i];
    }
    pp_status_t status = PP_OK;
    for (uint32_t v = 0; v < graph->vertex_count && status == PP_OK; v++)
        if (missing[v] > 0)
            status = pp_fail(PP_ERR_ARGUMENT, "rank %d: operation l%u lies on or behind a cycle, and can never fire",
                             graph->rank, v);
    free(missing);
    return status;
}

static pp_status_t index_tags(pp_graph_t *graph)
{
    graph->recv_by_tag = malloc(((size_t)graph->tag_count + 1) * sizeof *graph->recv_by_tag);
    if (!graph->recv_by_tag)
        return pp_fail(PP_ERR_MEMORY, "no memory for %u tags", graph->tag_count);
    for (uint32_t tag = 0; tag < graph->tag_count; tag++)
        graph->recv_by_tag[tag] = PP_NO_VERTEX;
    for (uint32_t i = 0; i < graph->vertex_count; i++) {
        const pp_vertex_t *v = &graph->vertices[i];
        if (v->kind != PP_RECV)
            continue;
        if (graph->recv_by_tag[v->tag] != PP_NO_VERTEX)
            return pp_fail(PP_ERR_ARGUMENT, "rank %d: l%u and l%u both receive tag %u", graph->rank,
                           graph->recv_by_tag[v->tag], i, v->tag);
        graph->recv_by_tag[v->tag] = i;
        if (v->lane == PP_IN_PLACE)
            continue;
        if (v->region.count > graph->scratch_count)
            graph->scratch_count = v->region.count;
        if ((uint32_t)v->lane >= graph->lane_count)
            graph->lane_count = (uint32_t)v->lane + 1;
    }
    return PP_OK;
}

static pp_status_t freeze(pp_graph_t *graph)
{
    PP_TRY(sort_edges(graph));
    PP_TRY(refuse_double_edges(graph));
    PP_TRY(settle_needs(graph));
    PP_TRY(refuse_cycles(graph));
    return index_tags(graph);
}

pp_status_t pp_graph_commit(pp_graph_t *graph)
{
    if (graph->error)
        return graph->error;
    if (graph->outs)
        return pp_fail(PP_ERR_STATE, "rank %d: the schedule is committed already", graph->rank);
    graph->error = freeze(graph);
    free(graph->edges);
    graph->edges = NULL;
    graph->edge_count = graph->edge_capacity = 0;
    return graph->error;
}
