/* series.c - consecutive rounds of one template.  See series.h. */
#include "series.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- between nodes: a participant is the rank that leads a node in the round ------------------------ */

static int32_t leader(const pp_map_t *map, int32_t node, uint64_t round)
{
    return pp_nodes_leader(map->owner, node, round);
}

static int32_t node_of(const pp_map_t *map, int32_t rank, uint64_t round)
{
    (void)round;
    return ((const pp_nodes_t *)map->owner)->node_of[rank];
}

static pp_map_t map_of(const pp_engine_t *engine, const pp_nodes_t *nodes)
{
    static const pp_map_ops_t leaders = {leader, node_of};
    if (!nodes)
        return pp_map_all(engine->size);
    return (pp_map_t){.kind = PP_MAP_COMPUTED, .count = nodes->count, .ops = &leaders, .owner = nodes};
}

void pp_series_announce(pp_series_t *series, uint64_t round)
{
    pp_engine_t *engine = series->engine;
    const pp_graph_t *graph = series->graph;
    /* The largest subtree first. */
    for (uint32_t i = graph->take; i-- > graph->activated + 1;) {
        const pp_vertex_t *v = &graph->vertices[i];
        if (v->kind != PP_SEND)
            continue;
        int32_t     peer = pp_map_rank(&series->map, v->peer, round);
        pp_prefix_t prefix = pp_instance_prefix(&series->setting, round, v->tag);
        pp_status_t status = engine->transport->ops->send(engine->transport, peer, &prefix, sizeof prefix, NULL, 0);
        if (status < 0)
            pp_engine_fail(engine, status, "%s", pp_error_text());
    }
}

/* ---- rounds and their messages ---------------------------------------------------------------------- */

pp_instance_t *pp_series_instance(pp_series_t *series, uint64_t round)
{
    uint64_t index = pp_series_index(series, round);
    pp_instance_t *instance = &series->instances[index % (uint64_t)series->window];
    return index < series->opened && instance->round == round ? instance : NULL;
}

static bool is_early(const pp_series_t *series, uint64_t round)
{
    return pp_series_index(series, round) >= series->opened;
}

static void deliver(pp_series_t *series, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    pp_instance_t *instance = pp_series_instance(series, prefix->round);
    if (instance)
        pp_instance_message(instance, peer, prefix, bytes);
    else
        pp_instance_refuse(&series->setting, peer, prefix);
}

void pp_series_receive(pp_series_t *series, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    if (!is_early(series, prefix->round)) {
        deliver(series, peer, prefix, bytes);
        return;
    }
    series->engine->coverage.windows_full++;
    if (!pp_engine_has(series->engine, PP_PLANT_LOST_EARLY))
        pp_engine_keep(series->engine, &series->early, peer, prefix, bytes);
}

void pp_series_replay_early(pp_series_t *series)
{
    pp_stored_t **link = &series->early;
    while (*link && !series->engine->error) {
        pp_stored_t *stored = *link;
        const pp_prefix_t *prefix = (const pp_prefix_t *)stored->message;
        if (is_early(series, prefix->round)) {
            link = &stored->next;
            continue;
        }
        *link = stored->next;
        deliver(series, stored->peer, prefix, stored->bytes);
        free(stored);
    }
}

static void open_next(pp_series_t *series)
{
    pp_instance_t *instance = &series->instances[series->opened % (uint64_t)series->window];
    pp_instance_reset(instance, &series->map, series->first + series->opened++ * series->stride);
}

void pp_series_recycle(pp_series_t *series, pp_instance_t *instance)
{
    instance->recyclable = true;
    while (series->instances[series->opened % (uint64_t)series->window].recyclable)
        open_next(series);
    series->engine->replay = series->engine->changed = true;
}

static void note_fired(pp_instance_t *instance)
{
    pp_series_t *series = (pp_series_t *)((char *)instance->setting - offsetof(pp_series_t, setting));
    for (uint32_t v = 0; v < series->graph->vertex_count; v++)
        series->last_fired[v] = instance->states[v].fired;
    series->last_fired_round = instance->round;
    series->any_retired = true;
}

/* ---- explaining -------------------------------------------------------------------------------------- */

void pp_series_explain(const pp_instance_t *instance, const char *what, pp_text_t *text)
{
    char before[80];
    snprintf(before, sizeof before, "%s waits for messages from ", what);
    pp_listing_t listing = {.text = text, .before = before};
    pp_instance_list_senders(instance, &listing);
    pp_listing_end(&listing, ", which may wait for others");
}

/* ---- opening and closing --------------------------------------------------------------------------- */

static pp_status_t series_alloc(pp_series_t *series)
{
    const pp_graph_t *graph = series->graph;
    series->last_fired = calloc(graph->vertex_count, sizeof *series->last_fired);
    series->instances = calloc((size_t)series->window, sizeof *series->instances);
    if (!series->last_fired || !series->instances)
        return pp_fail(PP_ERR_MEMORY, "no memory for %d rounds", series->window);
    for (int32_t i = 0; i < series->window; i++)
        PP_TRY(pp_instance_make(&series->setting, &series->template, &series->instances[i]));
    return PP_OK;
}

pp_status_t pp_series_open(pp_engine_t *engine, uint32_t id, pp_graph_t *graph, const pp_nodes_t *nodes,
                           const pp_kernels_t *kernels, int32_t window, const pp_host_t *host,
                           void *owner, pp_series_t *series)
{
    *series = (pp_series_t){.engine = engine, .graph = graph, .kernels = *kernels, .window = window,
                            .map = map_of(engine, nodes), .stride = 1};
    if (nodes) {
        const int32_t node = nodes->node_of[engine->rank];
        series->stride = (uint64_t)pp_nodes_size(nodes, node);
        while (pp_nodes_rank(nodes, node, (int32_t)series->first) != engine->rank)
            series->first++;
    }
    series->mask_words = engine->size <= PP_CONTRIBUTORS_MAX ? pp_mask_words(engine->size) : 0;
    series->setting = (pp_setting_t){.engine = engine, .host = host, .owner = owner, .kernels = &series->kernels,
                                     .retired = note_fired, .handle = id, .mask_words = series->mask_words};
    series->template = (pp_template_t){.graph = graph, .vectors = &series->vectors, .scratches = &series->scratches,
                                       .lane_bytes = pp_template_lane_bytes(graph, kernels->element_bytes)};
    pp_engine_pool(engine, graph->count * kernels->element_bytes, kernels->memory, &series->vectors);
    pp_engine_pool(engine, graph->lane_count * series->template.lane_bytes, kernels->memory, &series->scratches);
    pp_status_t status = series_alloc(series);
    if (status < 0) {
        pp_series_close(series);
        return status;
    }
    for (int32_t i = 0; i < window; i++)
        open_next(series);
    return PP_OK;
}

void pp_series_open_bare(pp_engine_t *engine, size_t count, const pp_kernels_t *kernels, pp_series_t *series)
{
    *series = (pp_series_t){.engine = engine, .kernels = *kernels};
    series->mask_words = pp_mask_words(engine->size);
    pp_pool_init(&series->vectors, count * kernels->element_bytes, kernels->memory, NULL);
    pp_pool_init(&series->scratches, 0, kernels->memory, NULL);
}

void pp_series_close(pp_series_t *series)
{
    if (!series->engine)
        return;
    for (int32_t i = 0; series->instances && i < series->window; i++)
        pp_instance_release(&series->instances[i]);
    pp_stored_free_all(&series->early);
    pp_pool_release(&series->vectors);
    pp_pool_release(&series->scratches);
    free(series->instances);
    free(series->last_fired);
    pp_graph_free(series->graph);
    *series = (pp_series_t){0};
}
