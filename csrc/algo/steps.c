/* steps.c - see steps.h. */
#include "steps.h"

#include <stdlib.h>

static void add_end(pp_graph_t *graph, pp_ends_t *ends, uint32_t vertex)
{
    if (graph->error)
        return;
    void *array = ends->vertices;
    if (!pp_grow(&array, &ends->capacity, ends->count + 1, sizeof *ends->vertices)) {
        graph->error = pp_fail(PP_ERR_MEMORY, "no memory for a schedule");
        return;
    }
    ends->vertices = array;
    ends->vertices[ends->count++] = vertex;
}

uint32_t pp_steps_held(const pp_steps_t *steps)
{
    return steps->graph->error ? PP_NO_VERTEX : steps->held.vertices[0];
}

void pp_steps_hold_too(pp_steps_t *steps, uint32_t vertex) { add_end(steps->graph, &steps->held, vertex); }

void pp_steps_hold(pp_steps_t *steps, uint32_t vertex)
{
    steps->held.count = 0;
    pp_steps_hold_too(steps, vertex);
}

pp_steps_t pp_steps_begin(pp_graph_t *graph)
{
    return (pp_steps_t){.graph = graph, .tag = graph->tag_count, .lane = -1};
}

void pp_steps_begin_segment(pp_steps_t *steps, pp_region_t segment)
{
    const pp_graph_t *graph = steps->graph;
    steps->segment = segment;
    steps->reg = steps->lane < 0 ? 0 : graph->reg_count;
    steps->lane++;
    /* A receive may be posted before this rank gives its part, but not before the round is activated. */
    steps->scratch = graph->activated != PP_NO_VERTEX ? graph->activated : graph->take;
    pp_steps_hold(steps, graph->take);
}

void pp_steps_end_segment(pp_steps_t *steps, pp_ends_t *ends)
{
    pp_graph_t *graph = steps->graph;
    for (size_t i = 0; i < steps->held.count; i++)
        add_end(graph, ends, steps->held.vertices[i]);
    /* Every rank's template has the same number of tags and registers, even if it does not use all of them. */
    if (graph->tag_count < steps->tag)
        graph->tag_count = steps->tag;
    if (graph->reg_count <= steps->reg)
        graph->reg_count = steps->reg + 1;
}

void pp_steps_release(pp_steps_t *steps)
{
    free(steps->held.vertices);
    steps->held = (pp_ends_t){0};
}

static void after_held(pp_steps_t *steps, uint32_t vertex)
{
    for (size_t i = 0; i < steps->held.count; i++)
        pp_graph_edge(steps->graph, steps->held.vertices[i], vertex);
}

uint32_t pp_steps_send(pp_steps_t *steps, pp_step_t step)
{
    uint32_t send = pp_graph_send(steps->graph, PP_NEED_ALL, step.peer, step.tag, step.reg,
                                  step.region);
    after_held(steps, send);
    return send;
}

uint32_t pp_steps_reduce(pp_steps_t *steps, pp_step_t step, bool incoming_left, uint32_t after)
{
    uint32_t recv = pp_graph_recv(steps->graph, PP_NEED_ALL, step.peer, step.tag, step.reg,
                                  step.region, steps->lane);
    pp_graph_edge(steps->graph, steps->scratch, recv);
    uint32_t reduce = pp_graph_reduce(steps->graph, recv, incoming_left);
    after_held(steps, reduce);
    if (after != PP_NO_VERTEX)
        pp_graph_edge(steps->graph, after, reduce);
    steps->scratch = reduce;
    return reduce;
}

uint32_t pp_steps_place(pp_steps_t *steps, pp_step_t step, uint32_t after)
{
    uint32_t recv = pp_graph_recv(steps->graph, PP_NEED_ALL, step.peer, step.tag, step.reg,
                                  step.region, PP_IN_PLACE);
    pp_graph_edge(steps->graph, after, recv);
    return recv;
}
