/* check.c - whether the templates of all ranks fit together.  See graph.h. */
#include "graph.h"

#include <stdlib.h>

static pp_status_t check_one(const pp_graph_t *graph, const pp_graph_t *first, int32_t rank,
                             int32_t size)
{
    if (!graph || !graph->outs || graph->error)
        return pp_fail(PP_ERR_STATE, "rank %d: the schedule is not committed", rank);
    if (graph->rank != rank || graph->size != size)
        return pp_fail(PP_ERR_ARGUMENT, "schedule %d of %d is not that of this rank and size, but of rank %d of %d",
                       rank, size, graph->rank, graph->size);
    if (graph->count != first->count)
        return pp_fail(PP_ERR_MISMATCH, "rank %d: the vector has %zu elements, rank 0's has %zu", rank,
                       graph->count, first->count);
    return PP_OK;
}

/* Finds the receive of a send; `matched` (one flag a tag of the receiver) remembers it. */
static pp_status_t match_send(const pp_graph_t *from, uint32_t index, const pp_graph_t *to,
                              bool *matched)
{
    const pp_vertex_t *send = &from->vertices[index];
    uint32_t found = send->tag < to->tag_count ? to->recv_by_tag[send->tag] : PP_NO_VERTEX;
    if (found == PP_NO_VERTEX || to->vertices[found].peer != from->rank)
        return pp_fail(PP_ERR_MISMATCH, "rank %d sends l%u to rank %d with tag %u, but that rank has no such receive",
                       from->rank, index, to->rank, send->tag);
    const pp_vertex_t *recv = &to->vertices[found];
    if (matched[send->tag])
        return pp_fail(PP_ERR_MISMATCH, "rank %d sends l%u to rank %d with tag %u, which it has used already",
                       from->rank, index, to->rank, send->tag);
    matched[send->tag] = true;
    if (recv->activation != send->activation)
        return pp_fail(PP_ERR_MISMATCH, "l%u of rank %d and l%u of rank %d: only one of the two is an "
                       "activation", index, from->rank, found, to->rank);
    if (recv->reg != send->reg)
        return pp_fail(PP_ERR_MISMATCH, "l%u of rank %d sends register %u, l%u of rank %d receives %u",
                       index, from->rank, send->reg, found, to->rank, recv->reg);
    if (recv->region.count != send->region.count)
        return pp_fail(PP_ERR_MISMATCH, "l%u of rank %d sends %zu elements, l%u of rank %d receives %zu",
                       index, from->rank, send->region.count, found, to->rank, recv->region.count);
    return PP_OK;
}

static pp_status_t match_all(pp_graph_t *const *graphs, int32_t size, size_t tags, bool *matched)
{
    for (int32_t rank = 0; rank < size; rank++) {
        const pp_graph_t *graph = graphs[rank];
        for (uint32_t i = 0; i < graph->vertex_count; i++) {
            const pp_vertex_t *v = &graph->vertices[i];
            if (v->kind == PP_SEND)
                PP_TRY(match_send(graph, i, graphs[v->peer], matched + (size_t)v->peer * tags));
        }
    }
    for (int32_t rank = 0; rank < size; rank++) {
        const pp_graph_t *graph = graphs[rank];
        for (uint32_t tag = 0; tag < graph->tag_count; tag++) {
            uint32_t recv = graph->recv_by_tag[tag];
            if (recv != PP_NO_VERTEX && !matched[(size_t)rank * tags + tag])
                return pp_fail(PP_ERR_MISMATCH, "rank %d receives l%u from rank %d with tag %u, but that rank has no "
                               "such send", rank, recv, graph->vertices[recv].peer, tag);
        }
    }
    return PP_OK;
}

/* A tag's place in the tag space must not depend on the rank. */
static pp_status_t check_tag_counts(pp_graph_t *const *graphs, int32_t size)
{
    for (int32_t rank = 1; rank < size; rank++)
        if (graphs[rank]->tag_count != graphs[0]->tag_count)
            return pp_fail(PP_ERR_MISMATCH, "rank %d: the schedule has %u tags, rank 0's has %u", rank,
                           graphs[rank]->tag_count, graphs[0]->tag_count);
    return PP_OK;
}

pp_status_t pp_graph_check(pp_graph_t *const *graphs, int32_t size)
{
    if (size < 1)
        return pp_fail(PP_ERR_ARGUMENT, "size=%d ranks is not at least 1", size);
    size_t tags = 0;
    for (int32_t rank = 0; rank < size; rank++) {
        PP_TRY(check_one(graphs[rank], graphs[0], rank, size));
        tags = graphs[rank]->tag_count > tags ? graphs[rank]->tag_count : tags;
    }
    bool *matched = calloc((size_t)size * tags + 1, sizeof *matched);
    if (!matched)
        return pp_fail(PP_ERR_MEMORY, "no memory to check the schedules of %d ranks", size);
    pp_status_t status = match_all(graphs, size, tags, matched);
    free(matched);
    return status < 0 ? status : check_tag_counts(graphs, size);
}
