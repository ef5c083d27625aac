/* activation.c - tells all ranks that the round is on, from any initiators (eager-SGD, section 4.1.1).  See algo.h. */
#include "algo.h"
#include "peers.h"

static const pp_region_t NOTHING = {0, 0};

static uint32_t mark_activation(pp_graph_t *graph, uint32_t vertex)
{
    if (!graph->error)
        graph->vertices[vertex].activation = true;
    return vertex;
}

/* Adds the sends and receives of all dimensions; *send and *recv get the first vertex of each, the others follow. */
static void add_messages(pp_graph_t *graph, uint32_t dimensions, uint32_t *send, uint32_t *recv)
{
    *send = *recv = graph->vertex_count;
    for (uint32_t i = 0; i < dimensions; i++) {
        int32_t to = pp_peers_told(graph->rank, i, graph->size);
        mark_activation(graph, pp_graph_send(graph, PP_NEED_ANY, to, i, 0, NOTHING));
    }
    *recv = graph->vertex_count;
    for (uint32_t i = 0; i < dimensions; i++) {
        int32_t from = pp_peers_teller(graph->rank, i, graph->size);
        mark_activation(graph, pp_graph_recv(graph, PP_NEED_ALL, from, i, 0, NOTHING, 0));
    }
}

/* tell_i fires the sends of the dimensions below i, the largest first, and then `activated`; tell_0 also fires the
   redundant sends.  The tells form a chain, instead of an edge from every receive to every send, so a redundant receive
   costs one step, and most receives are redundant.  The order of these edges is the order of the sends: see algo.h. */
void pp_algo_activation(pp_graph_t *graph)
{
    const uint32_t dimensions = pp_peers_dimensions(graph->size);
    uint32_t send, recv;
    graph->start = pp_graph_nop(graph, PP_NEED_ALL, "start");
    graph->join = pp_graph_nop(graph, PP_NEED_ALL, "join");
    graph->gate = pp_graph_nop(graph, PP_NEED_ALL, "gate");
    graph->activated = pp_graph_nop(graph, PP_NEED_ANY, "activated");
    add_messages(graph, dimensions, &send, &recv);
    const uint32_t tell = graph->vertex_count;
    for (uint32_t i = 0; i < dimensions; i++)
        pp_graph_nop(graph, PP_NEED_ANY, "tell");

    for (uint32_t i = 0; i < dimensions; i++) {
        uint32_t above = i + 1 < dimensions ? tell + i + 1 : graph->start;
        pp_graph_edge(graph, recv + i, tell + i);
        pp_graph_edge(graph, above, send + i);
        pp_graph_edge(graph, above, tell + i);
    }
    const uint32_t told = dimensions > 0 ? tell : graph->start;
    pp_graph_edge(graph, told, graph->activated);
    for (uint32_t redundant = dimensions; redundant-- > 0;)
        pp_graph_edge(graph, told, send + redundant);
    pp_graph_edge(graph, graph->join, graph->activated);
    pp_graph_take(graph);
    pp_graph_edge(graph, graph->activated, graph->take);
    pp_graph_edge(graph, graph->gate, graph->take);
}
