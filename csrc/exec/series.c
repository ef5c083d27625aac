/* series.c - rounds: opening, firing, merging, retiring.  See engine.h and graph.h. */
#include "series.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = sizeof(pp_prefix_t) + sizeof(pp_tally_t), LANE_ALIGN = 64 };

static size_t align_up(size_t bytes)
{
    return (bytes + PP_MESSAGE_ALIGN - 1) / PP_MESSAGE_ALIGN * PP_MESSAGE_ALIGN;
}

static size_t region_bytes(const pp_series_t *series, pp_region_t region)
{
    return region.count * series->kernels.element_bytes;
}

/* The region's place in the accumulator, which is made if nobody had data so far. */
static void *accumulator_at(pp_instance_t *instance, pp_region_t region)
{
    pp_series_t *series = instance->series;
    if (!instance->accumulator)
        instance->accumulator = pp_pool_get(&series->vectors);
    if (!instance->accumulator) {
        pp_engine_fail(series->engine, PP_ERR_MEMORY, "no memory for a vector of %zu bytes",
                       series->vectors.bytes);
        return NULL;
    }
    return (char *)instance->accumulator->data + region.offset * series->kernels.element_bytes;
}

/* Lanes begin on cache lines of their own. */
static size_t lane_bytes(const pp_series_t *series)
{
    size_t bytes = series->graph->scratch_count * series->kernels.element_bytes;
    return (bytes + LANE_ALIGN - 1) / LANE_ALIGN * LANE_ALIGN;
}

static void *scratch(pp_instance_t *instance, int8_t lane)
{
    pp_series_t *series = instance->series;
    if (!instance->scratch)
        instance->scratch = pp_pool_get(&series->scratches);
    if (!instance->scratch) {
        pp_engine_fail(series->engine, PP_ERR_MEMORY, "no memory for a scratch buffer of %zu bytes",
                       series->scratches.bytes);
        return NULL;
    }
    return (char *)instance->scratch->data + (size_t)lane * lane_bytes(series);
}

/* ---- firing -------------------------------------------------------------------------------------- */

static void enqueue(pp_instance_t *instance, uint32_t vertex)
{
    pp_engine_t *engine = instance->series->engine;
    if (!pp_grow((void **)&engine->queue, &engine->queue_capacity, engine->queue_tail + 1,
                 sizeof *engine->queue)) {
        pp_engine_fail(engine, PP_ERR_MEMORY, "no memory for the queue of ready operations");
        return;
    }
    engine->queue[engine->queue_tail++] = (struct pp_firing){instance, vertex};
}

static bool is_external(const pp_graph_t *graph, uint32_t vertex)
{
    return vertex == graph->start || vertex == graph->join;
}

static void retire(pp_instance_t *instance)
{
    pp_series_t *series = instance->series;
    for (uint32_t v = 0; v < series->graph->vertex_count; v++)
        series->last_fired[v] = instance->states[v].fired;
    series->last_fired_round = instance->round;
    series->any_retired = true;
    pp_pool_put(&series->scratches, instance->scratch);
    instance->scratch = NULL;
    series->host->retired(series->owner, instance);
}

/* The operation is over: its successors have one predecessor less to wait for.  The count goes on
   beyond `need`, so whoever has fired is never ready again (consumable). */
static void finish(pp_instance_t *instance, uint32_t vertex)
{
    const pp_graph_t *graph = instance->series->graph;
    const pp_vertex_t *v = &graph->vertices[vertex];
    instance->states[vertex].finished = true;
    for (uint32_t i = v->outs_begin; i < v->outs_end; i++) {
        uint32_t next = graph->outs[i];
        if (++instance->states[next].arrived == graph->vertices[next].need)
            enqueue(instance, next);
    }
    if (!is_external(graph, vertex) && --instance->unfinished == 0)
        retire(instance);
}

static void stamp(pp_instance_t *instance)
{
    if (!instance->stamped) {
        instance->stamped = true;
        instance->calls = pp_engine_calls(instance->series->engine, instance->series->nodes);
    }
}

/* ---- headers ------------------------------------------------------------------------------------- */

static pp_prefix_t prefix_of(const pp_series_t *series, uint64_t round, uint64_t calls, uint32_t tag)
{
    return (pp_prefix_t){.kind = PP_MSG_OPERATION, .handle = series->id, .round = round, .calls = calls, .tag = tag};
}

/* Writes the header of `vertex`'s message to series->head; returns its length. */
static size_t write_head(pp_instance_t *instance, const pp_vertex_t *v)
{
    pp_series_t *series = instance->series;
    pp_prefix_t *prefix = (pp_prefix_t *)series->head;
    memset(series->head, 0, HEAD_BYTES);
    *prefix = prefix_of(series, instance->round, instance->calls, v->tag);
    if (v->activation)
        return sizeof *prefix;
    const pp_register_t *reg = &instance->registers[v->reg];
    prefix->flags = (uint16_t)(PP_FLAG_TALLY | (reg->null ? 0 : PP_FLAG_DATA)
                               | (reg->tally.any_left && series->mask_words ? PP_FLAG_LEFT : 0));
    memcpy(series->head + sizeof *prefix, &reg->tally, sizeof reg->tally);
    size_t length = HEAD_BYTES;
    memcpy(series->head + length, reg->contributors, series->mask_words * sizeof(uint64_t));
    length += series->mask_words * sizeof(uint64_t);
    if (prefix->flags & PP_FLAG_LEFT) {
        memcpy(series->head + length, reg->left, series->mask_words * sizeof(uint64_t));
        length += series->mask_words * sizeof(uint64_t);
    }
    return align_up(length);
}

/* What a data message carries, found again in its bytes. */
typedef struct pp_incoming {
    const pp_tally_t *tally;
    const uint64_t   *contributors, *left;
    const void       *elements;       /* NULL: none inline */
} pp_incoming_t;

static pp_incoming_t read_head(const pp_series_t *series, const pp_stored_t *stored)
{
    const pp_prefix_t *prefix = (const pp_prefix_t *)stored->message;
    const unsigned char *at = stored->message + sizeof *prefix;
    pp_incoming_t in = {.tally = (const pp_tally_t *)at};
    at += sizeof *in.tally;
    in.contributors = (const uint64_t *)at;
    at += series->mask_words * sizeof(uint64_t);
    if (prefix->flags & PP_FLAG_LEFT) {
        in.left = (const uint64_t *)at;
        at += series->mask_words * sizeof(uint64_t);
    }
    at = stored->message + align_up((size_t)(at - stored->message));
    if ((prefix->flags & PP_FLAG_DATA) && !(prefix->flags & PP_FLAG_BULK))
        in.elements = at;
    return in;
}

static void merge_masks(const pp_series_t *series, pp_register_t *reg, const pp_incoming_t *in)
{
    for (size_t w = 0; w < series->mask_words; w++)
        reg->contributors[w] |= in->contributors[w];
    for (size_t w = 0; in->left && w < series->mask_words; w++)
        reg->left[w] |= in->left[w];
}

/* The rank behind a peer of the schedule. */
static int32_t rank_of(const pp_instance_t *instance, int32_t peer)
{
    const pp_nodes_t *nodes = instance->series->nodes;
    return nodes ? pp_nodes_leader(nodes, peer, instance->round) : peer;
}

/* An activation comes from whichever rank of a node brought the round about. */
static bool may_come_from(const pp_instance_t *instance, const pp_vertex_t *v, int32_t rank)
{
    const pp_nodes_t *nodes = instance->series->nodes;
    return nodes && v->activation ? nodes->node_of[rank] == v->peer : rank_of(instance, v->peer) == rank;
}

/* ---- one function per kind of operation ------------------------------------------------------------ */

static void fire_send(pp_instance_t *instance, uint32_t vertex)
{
    pp_series_t *series = instance->series;
    pp_transport_t *transport = series->engine->transport;
    const pp_vertex_t *v = &series->graph->vertices[vertex];
    stamp(instance);
    if (v->activation && series->host->announces && !series->host->announces(series->owner, instance)) {
        finish(instance, vertex);
        return;
    }
    size_t head_bytes = write_head(instance, v);
    pp_prefix_t *prefix = (pp_prefix_t *)series->head;
    size_t bytes = (prefix->flags & PP_FLAG_DATA) ? region_bytes(series, v->region) : 0;
    const char *elements = bytes ? (const char *)instance->accumulator->data
                                       + v->region.offset * series->kernels.element_bytes : NULL;
    bool bulk = bytes > PP_INLINE_BYTES;
    if (bulk) {
        prefix->flags |= PP_FLAG_BULK;
        prefix->bulk_tag = series->engine->next_bulk_tag++ % transport->bulk_tags;
    }
    uint32_t bulk_tag = prefix->bulk_tag;
    int32_t  peer = rank_of(instance, v->peer);
    pp_status_t status = transport->ops->send(transport, peer, series->head, head_bytes,
                                              bulk ? NULL : elements, bulk ? 0 : bytes);
    if (status >= 0 && bulk)
        status = transport->ops->bulk_send(transport, peer, bulk_tag, elements, bytes,
                                           &instance->states[vertex]);
    if (status < 0)
        pp_engine_fail(series->engine, status, "%s", pp_error_text());
    else if (!bulk)
        finish(instance, vertex);
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
        int32_t     peer = pp_nodes_leader(series->nodes, v->peer, round);
        pp_prefix_t prefix = prefix_of(series, round, calls, v->tag);
        pp_status_t status = engine->transport->ops->send(engine->transport, peer, &prefix, sizeof prefix, NULL, 0);
        if (status < 0)
            pp_engine_fail(engine, status, "%s", pp_error_text());
    }
}

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

pp_instance_t *pp_series_instance(pp_series_t *series, uint64_t round)
{
    uint64_t place = pp_series_place(series, round);
    pp_instance_t *instance = &series->instances[place % (uint64_t)series->window];
    return place < series->opened && instance->round == round ? instance : NULL;
}

void pp_series_replay_early(pp_series_t *series)
{
    pp_stored_t **link = &series->early;
    while (*link && !series->engine->error) {
        pp_stored_t *stored = *link;
        const pp_prefix_t *prefix = (const pp_prefix_t *)stored->message;
        if (pp_series_place(series, prefix->round) >= series->opened) {
            link = &stored->next;
            continue;
        }
        *link = stored->next;
        take_message(series, stored->peer, prefix, stored->bytes);
        free(stored);
    }
}

static void open_next(pp_series_t *series)
{
    const pp_graph_t *graph = series->graph;
    pp_instance_t *instance = &series->instances[series->opened % (uint64_t)series->window];
    instance->round = series->first + series->opened++ * series->stride;
    instance->recyclable = instance->stamped = false;
    instance->unfinished = graph->vertex_count - (graph->start != PP_NO_VERTEX)
                         - (graph->join != PP_NO_VERTEX);
    memset(instance->masks, 0, 2 * series->mask_words * graph->reg_count * sizeof(uint64_t));
    for (uint32_t v = 0; v < graph->vertex_count; v++)
        instance->states[v] = (pp_vertex_state_t){.instance = instance};
    for (uint32_t v = 0; v < graph->vertex_count; v++)
        if (graph->vertices[v].in_count == 0 && graph->vertices[v].kind != PP_NOP)
            enqueue(instance, v);
}

void pp_series_recycle(pp_series_t *series, pp_instance_t *instance)
{
    instance->recyclable = true;
    while (series->instances[series->opened % (uint64_t)series->window].recyclable)
        open_next(series);
    series->engine->replay = series->engine->changed = true;
}

static pp_status_t instance_alloc(pp_series_t *series, pp_instance_t *instance)
{
    const pp_graph_t *graph = series->graph;
    size_t words = 2 * series->mask_words;
    instance->series = series;
    instance->recyclable = true;
    instance->states = calloc(graph->vertex_count, sizeof *instance->states);
    instance->registers = calloc(graph->reg_count, sizeof *instance->registers);
    instance->masks = calloc(words * graph->reg_count + 1, sizeof *instance->masks);
    if (!instance->states || !instance->registers || !instance->masks)
        return pp_fail(PP_ERR_MEMORY, "no memory for a round of %u operations", graph->vertex_count);
    for (uint32_t r = 0; r < graph->reg_count; r++) {
        instance->registers[r].left = instance->masks + r * words;
        instance->registers[r].contributors = instance->registers[r].left + series->mask_words;
    }
    return PP_OK;
}

static pp_status_t series_alloc(pp_series_t *series)
{
    const pp_graph_t *graph = series->graph;
    size_t mask_bytes = 2 * series->mask_words * sizeof(uint64_t);
    series->head = pp_alloc_aligned(align_up(HEAD_BYTES + mask_bytes));
    series->last_fired = calloc(graph->vertex_count, sizeof *series->last_fired);
    series->instances = calloc((size_t)series->window, sizeof *series->instances);
    if (!series->head || !series->last_fired || !series->instances)
        return pp_fail(PP_ERR_MEMORY, "no memory for %d rounds", series->window);
    for (int32_t i = 0; i < series->window; i++)
        PP_TRY(instance_alloc(series, &series->instances[i]));
    return PP_OK;
}

/* What may travel as bulk comes from the engine's blocks. */
static void open_pool(pp_pool_t *pool, pp_engine_t *engine, size_t bytes)
{
    bool from_blocks = engine->transport->pins_pages && bytes > PP_INLINE_BYTES;
    pp_pool_init(pool, bytes, from_blocks ? &engine->blocks : NULL);
}

pp_status_t pp_series_open(pp_engine_t *engine, uint32_t id, pp_graph_t *graph, const pp_nodes_t *nodes,
                           const pp_kernels_t *kernels, int32_t window, const pp_host_t *host,
                           void *owner, pp_series_t *series)
{
    *series = (pp_series_t){.engine = engine, .host = host, .owner = owner, .id = id, .graph = graph,
                            .kernels = *kernels, .window = window, .nodes = nodes, .stride = 1};
    if (nodes) {
        series->first = (uint64_t)engine->node->index;
        series->stride = (uint64_t)engine->node->size;
    }
    series->mask_words = engine->size <= PP_CONTRIBUTORS_MAX ? pp_mask_words(engine->size) : 0;
    open_pool(&series->vectors, engine, graph->count * kernels->element_bytes);
    open_pool(&series->scratches, engine, graph->lane_count * lane_bytes(series));
    pp_status_t status = series_alloc(series);
    if (status < 0) {
        pp_series_close(series);
        return status;
    }
    for (int32_t i = 0; i < window; i++)
        open_next(series);
    return PP_OK;
}

void pp_series_open_bare(pp_engine_t *engine, uint32_t id, size_t count, const pp_kernels_t *kernels,
                         pp_series_t *series)
{
    *series = (pp_series_t){.engine = engine, .id = id, .kernels = *kernels};
    series->mask_words = pp_mask_words(engine->size);
    pp_pool_init(&series->vectors, count * kernels->element_bytes, NULL);
    pp_pool_init(&series->scratches, 0, NULL);
}

/* A round under way in a context that is given up: the transport may still read and write its buffers,
   which are therefore left to the process. */
static void instance_release(pp_series_t *series, pp_instance_t *instance)
{
    bool in_transfer = series->engine->transport->bulk_in_flight && instance->unfinished > 0;
    for (uint32_t v = 0; instance->states && v < series->graph->vertex_count; v++)
        free(instance->states[v].message);
    if (!in_transfer) {
        pp_pool_put(&series->vectors, instance->accumulator);
        pp_pool_put(&series->scratches, instance->scratch);
    }
    free(instance->states);
    free(instance->registers);
    free(instance->masks);
}

void pp_series_close(pp_series_t *series)
{
    if (!series->engine)
        return;
    for (int32_t i = 0; series->instances && i < series->window; i++)
        instance_release(series, &series->instances[i]);
    pp_stored_free_all(&series->early);
    pp_pool_release(&series->vectors);
    pp_pool_release(&series->scratches);
    free(series->instances);
    free(series->last_fired);
    free(series->head);
    pp_graph_free(series->graph);
    *series = (pp_series_t){0};
}
