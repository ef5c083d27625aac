/* steps.c - see steps.h. */
#include "steps.h"

uint32_t pp_steps_held(const pp_steps_t *steps)
{
    return steps->graph->error ? PP_NO_VERTEX : steps->held->vertices[0];
}

void pp_steps_hold_too(pp_steps_t *steps, uint32_t vertex)
{
    pp_graph_t *graph = steps->graph;
    pp_ends_t *held = steps->held;
    if (graph->error)
        return;
    void *array = held->vertices;
    if (!pp_grow(&array, &held->capacity, held->count + 1, sizeof *held->vertices)) {
        graph->error = pp_fail(PP_ERR_MEMORY, "no memory for a schedule");
        return;
    }
    held->vertices = array;
    held->vertices[held->count++] = vertex;
}

void pp_steps_hold(pp_steps_t *steps, uint32_t vertex)
{
    steps->held->count = 0;
    pp_steps_hold_too(steps, vertex);
}

pp_steps_t pp_steps_begin(pp_graph_t *graph, pp_ends_t *last)
{
    /* A receive may be posted before this rank gives its part, but not before the round is on. */
    bool activated = graph->activated != PP_NO_VERTEX;
    pp_steps_t steps = {.graph = graph, .held = last,
                        .scratch = activated ? graph->activated : graph->take};
    pp_steps_hold(&steps, graph->take);
    return steps;
}

static void after_held(pp_steps_t *steps, uint32_t vertex)
{
    for (size_t i = 0; i < steps->held->count; i++)
        pp_graph_edge(steps->graph, steps->held->vertices[i], vertex);
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
                                  step.region, false);
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
                                  step.region, true);
    pp_graph_edge(steps->graph, after, recv);
    return recv;
}

void pp_steps_reserve_tags(pp_graph_t *graph, uint32_t tag_count)
{
    if (graph->tag_count < tag_count)
        graph->tag_count = tag_count;
}
