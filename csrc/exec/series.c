/* series.c - consecutive rounds of one template.  See series.h. */
#include "series.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- between nodes: a participant is whoever leads a node in the round ------------------------------ */

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
    uint64_t calls = pp_engine_calls(engine, true);
    /* From the largest subtree on. */
    for (uint32_t i = graph->take; i-- > graph->activated + 1;) {
        const pp_vertex_t *v = &graph->vertices[i];
        if (v->kind != PP_SEND)
            continue;
        int32_t     peer = pp_map_rank(&series->map, v->peer, round);
        pp_prefix_t prefix = pp_instance_prefix(&series->setting, round, calls, v->tag);
        pp_status_t status = engine->transport->ops->send(engine->transport, peer, &prefix, sizeof prefix, NULL, 0);
        if (status < 0)
            pp_engine_fail(engine, status, "%s", pp_error_text());
    }
}

<<<<<<< HEAD
/* A placed region replaces ours, and its header, complete by then, replaces the register. */
static void place_register(pp_instance_t *instance, uint32_t vertex)
{
    pp_series_t *series = instance->series;
    pp_vertex_state_t *state = &instance->states[vertex];
    pp_register_t *reg = &instance->registers[series->graph->vertices[vertex].reg];
    pp_incoming_t in = read_head(series, state->message);
    reg->tally = *in.tally;
    reg->null = !(((const pp_prefix_t *)state->message->message)->flags & PP_FLAG_DATA);
    merge_masks(series, reg, &in);
}

static void forget_message(pp_vertex_state_t *state)
{
    free(state->message);
    state->message = NULL;
    state->data = NULL;
}

/* Elements and header of a RECV are here.  A REDUCE still needs the message. */
static void finish_recv(pp_instance_t *instance, uint32_t vertex)
{
    const pp_vertex_t *v = &instance->series->graph->vertices[vertex];
    if (v->lane == PP_IN_PLACE)
        place_register(instance, vertex);
    if (v->lane == PP_IN_PLACE || v->activation)
        forget_message(&instance->states[vertex]);
    finish(instance, vertex);
}

/* The receive is posted and its message is here: find a place for the elements. */
static void land(pp_instance_t *instance, uint32_t vertex)
{
    pp_series_t *series = instance->series;
    const pp_vertex_t *v = &series->graph->vertices[vertex];
    pp_vertex_state_t *state = &instance->states[vertex];
    const pp_prefix_t *prefix = (const pp_prefix_t *)state->message->message;
    if (v->activation) {
        finish_recv(instance, vertex);
        return;
    }
    pp_incoming_t in = read_head(series, state->message);
    size_t bytes = region_bytes(series, v->region);
    /* Before the take nobody knows yet whether the accumulator will hold something of ours. */
    bool taken = instance->states[series->graph->take].fired;
    bool direct = v->lane == PP_IN_PLACE || (taken && instance->registers[v->reg].null);
    state->data = NULL;
    if (!(prefix->flags & PP_FLAG_DATA) || bytes == 0) {
        finish_recv(instance, vertex);
        return;
    }
    void *target = direct ? accumulator_at(instance, v->region)
                 : in.elements ? NULL : scratch(instance, v->lane);
    if (series->engine->error)
        return;
    if (in.elements && direct)
        memcpy(target, in.elements, bytes);
    if (!direct)
        state->data = in.elements ? in.elements : target;
    if (in.elements) {
        finish_recv(instance, vertex);
        return;
    }
    pp_transport_t *transport = series->engine->transport;
    pp_status_t status = transport->ops->bulk_recv(transport, state->message->peer, prefix->bulk_tag,
                                                   target, bytes, state);
    if (status < 0)
        pp_engine_fail(series->engine, status, "%s", pp_error_text());
}

/* Rounds that several ranks triggered before they heard of each other. */
static bool initiators_meet(const pp_tally_t *ours, const pp_tally_t *theirs)
{
    return ours->initiator != PP_NO_INITIATOR && theirs->initiator != PP_NO_INITIATOR
        && ours->initiator != theirs->initiator;
}

static void report_reduced(pp_series_t *series, pp_region_t region)
{
    pp_transport_t *transport = series->engine->transport;
    if (transport->ops->reduced)
        transport->ops->reduced(transport, region_bytes(series, region));
}

static void fire_reduce(pp_instance_t *instance, uint32_t vertex)
{
    pp_series_t *series = instance->series;
    const pp_vertex_t *v = &series->graph->vertices[vertex];
    pp_vertex_state_t *source = &instance->states[v->source];
    pp_register_t *reg = &instance->registers[v->reg];
    pp_incoming_t in = read_head(series, source->message);
    bool met = series->drawn && initiators_meet(&reg->tally, in.tally);
    bool twice = met && pp_engine_has(series->engine, PP_PLANT_ROUND_TWICE);
    series->engine->coverage.initiators_met += met;
    if (source->data) {
        char *ours = accumulator_at(instance, v->region);
        pp_kernel_t kernel = v->incoming_left ? series->kernels.keep_right : series->kernels.keep_left;
        if (series->engine->error)
            return;
        if (reg->null) {
            memcpy(ours, source->data, region_bytes(series, v->region));
        } else {
            kernel(ours, source->data, v->region.count);
            report_reduced(series, v->region);
        }
        if (twice && !reg->null)
            kernel(ours, source->data, v->region.count);
    }
    if (((const pp_prefix_t *)source->message->message)->flags & PP_FLAG_DATA)
        reg->null = false;
    pp_tally_merge(&reg->tally, in.tally);
    merge_masks(series, reg, &in);
    forget_message(source);
    finish(instance, vertex);
}

static void set_masks(const pp_series_t *series, pp_register_t *reg, const pp_share_of_round_t *share)
{
    size_t bytes = series->mask_words * sizeof(uint64_t);
    if (bytes == 0)
        return;
    if (share->contributors) {
        memcpy(reg->contributors, share->contributors, bytes);
        memcpy(reg->left, share->left, bytes);
        return;
    }
    if (share->tally.contributors)
        pp_mask_add(reg->contributors, series->engine->rank);
    if (share->tally.any_left)
        pp_mask_add(reg->left, series->engine->rank);
}

static void fire_take(pp_instance_t *instance, uint32_t vertex)
{
    pp_series_t *series = instance->series;
    pp_share_of_round_t share = {.tally.initiator = PP_NO_INITIATOR};
    stamp(instance);
    series->engine->running++;
    series->host->take(series->owner, instance, &share);
    for (uint32_t r = 0; r < series->graph->reg_count; r++) {
        pp_register_t *reg = &instance->registers[r];
        reg->tally = share.tally;
        reg->null = share.null;
        set_masks(series, reg, &share);
    }
    finish(instance, vertex);
}

static void fire_nop(pp_instance_t *instance, uint32_t vertex)
{
    pp_series_t *series = instance->series;
    if (vertex == series->graph->activated) {
        stamp(instance);
        if (series->host->activated)
            series->host->activated(series->owner, instance);
    }
    if (vertex == series->graph->done) {
        series->engine->running--;
        series->host->done(series->owner, instance);
    }
    finish(instance, vertex);
}

void pp_series_fire(pp_instance_t *instance, uint32_t vertex)
{
    pp_vertex_state_t *state = &instance->states[vertex];
    state->fired++;
    switch (instance->series->graph->vertices[vertex].kind) {
    case PP_NOP:    fire_nop(instance, vertex); break;
    case PP_SEND:   fire_send(instance, vertex); break;
    case PP_REDUCE: fire_reduce(instance, vertex); break;
    case PP_COPY:   fire_take(instance, vertex); break;
    case PP_RECV:
        if (state->message)
            land(instance, vertex);
        break;
    }
}

void pp_instance_fire(pp_instance_t *instance, uint32_t vertex)
{
    enqueue(instance, vertex);
}

/* ---- arrivals -------------------------------------------------------------------------------------- */

void pp_series_bulk_done(void *cookie)
{
    pp_vertex_state_t *state = cookie;
    pp_instance_t *instance = state->instance;
    uint32_t vertex = (uint32_t)(state - instance->states);
    if (instance->series->graph->vertices[vertex].kind == PP_RECV)
        finish_recv(instance, vertex);
    else
        finish(instance, vertex);
}

/* For a round that is open here. */
static void take_message(pp_series_t *series, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    pp_engine_t *engine = series->engine;
    pp_instance_t *instance = pp_series_instance(series, prefix->round);
    uint32_t vertex = prefix->tag < series->graph->tag_count
                    ? series->graph->recv_by_tag[prefix->tag] : PP_NO_VERTEX;
    if (!instance || vertex == PP_NO_VERTEX || instance->states[vertex].message
        || instance->states[vertex].finished
        || !may_come_from(instance, &series->graph->vertices[vertex], peer)) {
        pp_engine_fail(engine, PP_ERR_INTERNAL, "handle %u, round %llu: no receive for tag %u from rank "
                       "%d", series->id, (unsigned long long)prefix->round, prefix->tag, peer);
        return;
    }
    pp_vertex_state_t *state = &instance->states[vertex];
    if (state->fired && series->graph->vertices[vertex].activation) {
        finish(instance, vertex);        /* nothing in it has to be kept */
        return;
    }
    pp_stored_t *stored = pp_stored_new(peer, prefix, bytes);
    if (!stored) {
        pp_engine_fail(engine, PP_ERR_MEMORY, "no memory for a message of %zu bytes", bytes);
        return;
    }
    state->message = stored;
    if (state->fired)
        land(instance, vertex);
}

void pp_series_receive(pp_series_t *series, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    if (pp_series_place(series, prefix->round) < series->opened) {
        take_message(series, peer, prefix, bytes);
        return;
    }
    series->engine->coverage.windows_full++;
    pp_stored_keep(series->engine, &series->early, peer, prefix, bytes);
}

void pp_series_explain(const pp_instance_t *instance, pp_text_t *text)
{
    const pp_graph_t *graph = instance->series->graph;
    for (uint32_t i = 0; i < graph->vertex_count; i++) {
        const pp_vertex_t       *v = &graph->vertices[i];
        const pp_vertex_state_t *state = &instance->states[i];
        if (v->kind == PP_RECV && state->fired && !state->finished)
            pp_text_add(text, "round %llu: l%u: recv from %d tag %u%s\n",
                        (unsigned long long)instance->round, i, rank_of(instance, v->peer), v->tag,
                        v->activation ? " activation" : "");
    }
}

/* ---- opening and closing --------------------------------------------------------------------------- */
=======
/* ---- rounds and their messages ---------------------------------------------------------------------- */
>>>>>>> e08f7e0 (graph: named buffers, COPY and REDUCE between registers, and weights)

pp_instance_t *pp_series_instance(pp_series_t *series, uint64_t round)
{
    uint64_t place = pp_series_place(series, round);
    pp_instance_t *instance = &series->instances[place % (uint64_t)series->window];
    return place < series->opened && instance->round == round ? instance : NULL;
}

static bool is_early(const pp_series_t *series, uint64_t round)
{
    return pp_series_place(series, round) >= series->opened;
}

static void deliver(pp_series_t *series, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    pp_instance_t *instance = pp_series_instance(series, prefix->round);
    if (instance)
        pp_instance_message(instance, peer, prefix, bytes);
    else
        pp_instance_refuse(&series->setting, peer, prefix);
}

void pp_series_message(pp_series_t *series, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    if (!is_early(series, prefix->round)) {
        deliver(series, peer, prefix, bytes);
        return;
    }
    series->engine->coverage.windows_full++;
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

/* ---- opening and closing --------------------------------------------------------------------------- */

static pp_status_t register_series(pp_engine_t *engine, pp_series_t *series)
{
    size_t capacity = engine->series_capacity;
    if (!pp_grow((void **)&engine->series, &engine->series_capacity, series->id + 1,
                 sizeof(pp_series_t *)))
        return pp_fail(PP_ERR_MEMORY, "no memory for another handle");
    for (size_t i = capacity; i < engine->series_capacity; i++)
        engine->series[i] = NULL;
    if (engine->series_count <= series->id)
        engine->series_count = series->id + 1;
    engine->series[series->id] = series;
    return PP_OK;
}

static pp_status_t open_named(pp_series_t *series)
{
    const uint32_t count = series->graph->buffer_count;
    if (count == 0)
        return PP_OK;
    series->named = calloc(count, sizeof *series->named);
    series->template.buffers = malloc(count * sizeof(pp_pool_t *));
    if (!series->named || !series->template.buffers)
        return pp_fail(PP_ERR_MEMORY, "no memory for the buffers of a schedule");
    for (uint32_t b = 0; b < count; b++) {
        pp_engine_pool(series->engine, series->graph->buffers[b].count * series->kernels.element_bytes,
                       &series->named[b]);
        series->template.buffers[b] = &series->named[b];
    }
    return PP_OK;
}

static pp_status_t series_alloc(pp_series_t *series)
{
    const pp_graph_t *graph = series->graph;
    series->last_fired = calloc(graph->vertex_count, sizeof *series->last_fired);
    series->instances = calloc((size_t)series->window, sizeof *series->instances);
    if (!series->last_fired || !series->instances)
        return pp_fail(PP_ERR_MEMORY, "no memory for %d rounds", series->window);
    PP_TRY(open_named(series));
    for (int32_t i = 0; i < series->window; i++)
        PP_TRY(pp_instance_make(&series->setting, &series->template, &series->instances[i]));
    return register_series(series->engine, series);
}

static void open_setting(pp_series_t *series)
{
    series->setting = (pp_setting_t){
        .engine = series->engine, .host = series->host, .owner = series->owner, .kernels = &series->kernels,
        .retired = note_fired, .handle = series->id, .by_node = series->nodes,
        .mask_words = series->mask_words};
}

pp_status_t pp_series_open(pp_engine_t *engine, uint32_t id, pp_graph_t *graph, const pp_nodes_t *nodes,
                           const pp_kernels_t *kernels, int32_t window, const pp_host_t *host,
                           void *owner, pp_series_t *series)
{
    *series = (pp_series_t){.engine = engine, .host = host, .owner = owner, .id = id, .graph = graph,
                            .kernels = *kernels, .window = window, .nodes = nodes,
                            .map = map_of(engine, nodes), .stride = 1};
    if (nodes) {
        series->first = (uint64_t)engine->node->index;
        series->stride = (uint64_t)engine->node->size;
    }
    series->mask_words = engine->size <= PP_CONTRIBUTORS_MAX ? pp_mask_words(engine->size) : 0;
    open_setting(series);
    series->template = (pp_template_t){.graph = graph, .vectors = &series->vectors, .scratches = &series->scratches,
                                       .lane_bytes = pp_template_lane_bytes(graph, kernels->element_bytes)};
    pp_engine_pool(engine, graph->count * kernels->element_bytes, &series->vectors);
    pp_engine_pool(engine, graph->lane_count * series->template.lane_bytes, &series->scratches);
    pp_status_t status = graph->weight_count > 0 && !kernels->weighted
                       ? pp_fail(PP_ERR_ARGUMENT, "handle %u weighs elements that cannot be weighed", id)
                       : series_alloc(series);
    if (status < 0) {
        pp_series_close(series);
        return status;
    }
    for (int32_t i = 0; i < window; i++)
        open_next(series);
    return PP_OK;
}

pp_status_t pp_series_open_bare(pp_engine_t *engine, uint32_t id, size_t count, const pp_kernels_t *kernels,
                                const pp_host_t *host, void *owner, pp_series_t *series)
{
    *series = (pp_series_t){.engine = engine, .host = host, .owner = owner, .id = id, .kernels = *kernels};
    series->mask_words = pp_mask_words(engine->size);
    pp_pool_init(&series->vectors, count * kernels->element_bytes, NULL);
    pp_pool_init(&series->scratches, 0, NULL);
    return register_series(engine, series);
}

void pp_series_close(pp_series_t *series)
{
    pp_engine_t *engine = series->engine;
    if (!engine)
        return;
    if (series->id < engine->series_count && engine->series[series->id] == series)
        engine->series[series->id] = NULL;
    for (int32_t i = 0; series->instances && i < series->window; i++)
        pp_instance_release(&series->instances[i]);
    pp_stored_free_all(&series->early);
    pp_pool_release(&series->vectors);
    pp_pool_release(&series->scratches);
    for (uint32_t b = 0; series->named && b < series->graph->buffer_count; b++)
        pp_pool_release(&series->named[b]);
    free(series->named);
    free(series->template.buffers);
    free(series->instances);
    free(series->last_fired);
    pp_graph_free(series->graph);
    *series = (pp_series_t){0};
}
