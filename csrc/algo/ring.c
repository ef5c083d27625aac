/*
 * ring.c - P - 1 steps of reduce-scatter and P - 1 of allgather, each to the right neighbour.
 *
 * Chunk c starts at rank c and collects one rank a step: c, c + 1, ..., P - 1, 0, ..., c - 1.  The received operand is
 * always the left one, so a chunk is reduced along one path, the same for all ranks.  The path is in rank order only up
 * to the rotation: a ring cannot do better, and the operations commute.  Each chunk has a register; its header is
 * complete at the end of the path.
 */
#include "table.h"

#include <stdlib.h>

static pp_step_t chunk_step(const pp_steps_t *steps, int32_t peer, int32_t chunk)
{
    pp_region_t region = pp_peers_chunk(steps->segment.count, chunk, steps->graph->size);
    region.offset += steps->segment.offset;
    return (pp_step_t){.peer = peer, .tag = steps->tag, .reg = steps->reg + (uint32_t)chunk, .region = region};
}

/* Rank r first sends chunk r, and in each later step the chunk that it has just reduced. */
static void reduce_scatter(pp_steps_t *steps, uint32_t *sent)
{
    const pp_graph_t *graph = steps->graph;
    const int32_t right = pp_peers_shift(graph->rank, 1, graph->size);
    const int32_t left = pp_peers_shift(graph->rank, -1, graph->size);
    for (int32_t i = 0; i < graph->size - 1; i++, steps->tag++) {
        int32_t mine = pp_peers_shift(graph->rank, -i, graph->size);
        int32_t next = pp_peers_shift(graph->rank, -i - 1, graph->size);
        sent[i] = pp_steps_send(steps, chunk_step(steps, right, mine));
        pp_steps_hold(steps, pp_steps_reduce(steps, chunk_step(steps, left, next), true, PP_NO_VERTEX));
    }
}

/* Rank r first passes chunk r + 1 on, and in each later step the chunk that it has just received.  A received chunk
   replaces the one that this rank sent in the same step of the reduce-scatter. */
static void allgather(pp_steps_t *steps, const uint32_t *sent)
{
    pp_graph_t *graph = steps->graph;
    const int32_t right = pp_peers_shift(graph->rank, 1, graph->size);
    const int32_t left = pp_peers_shift(graph->rank, -1, graph->size);
    uint32_t complete = pp_steps_held(steps);
    for (int32_t i = 0; i < graph->size - 1; i++, steps->tag++) {
        int32_t mine = pp_peers_shift(graph->rank, 1 - i, graph->size);
        int32_t next = pp_peers_shift(graph->rank, -i, graph->size);
        pp_step_t out = chunk_step(steps, right, mine);
        uint32_t send = pp_graph_send(graph, PP_NEED_ALL, out.peer, out.tag, out.reg, out.region);
        pp_graph_edge(graph, complete, send);
        complete = pp_steps_place(steps, chunk_step(steps, left, next), sent[i]);
        pp_steps_hold_too(steps, complete);
    }
}

static void append(pp_steps_t *steps)
{
    pp_graph_t *graph = steps->graph;
    if (graph->error)
        return;
    uint32_t *sent = malloc((size_t)graph->size * sizeof *sent);
    if (!sent) {
        graph->error = pp_fail(PP_ERR_MEMORY, "no memory for a ring of %d ranks", graph->size);
        return;
    }
    reduce_scatter(steps, sent);
    allgather(steps, sent);
    free(sent);
}

static pp_chain_t chain(size_t count, double element_bytes, int32_t ranks)
{
    const double chunk = (double)(count / (size_t)ranks + (count % (size_t)ranks != 0)) * element_bytes;
    const double steps = ranks - 1;
    return (pp_chain_t){.messages = 2 * steps, .bytes_sent = 2 * steps * chunk,
                        .bytes_reduced = steps * chunk};
}

const pp_algo_t pp_algo_ring = {.name = "ring", .append = append, .chain = chain, .chunk_a_rank = true};
