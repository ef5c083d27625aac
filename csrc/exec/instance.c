/* instance.c - firing, matching, merging, retiring.  See instance.h and graph.h. */
#include "instance.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = sizeof(pp_prefix_t) + sizeof(pp_tally_t) };

/* A header, built where its message is sent from. */
typedef struct pp_head {
    _Alignas(PP_MESSAGE_ALIGN) unsigned char bytes[PP_HEADER_BYTES];
} pp_head_t;

static size_t align_up(size_t bytes)
{
    return (bytes + PP_MESSAGE_ALIGN - 1) / PP_MESSAGE_ALIGN * PP_MESSAGE_ALIGN;
}

static size_t region_bytes(const pp_setting_t *setting, pp_region_t region)
{
    return region.count * setting->kernels->element_bytes;
}

void *pp_instance_accumulator(pp_instance_t *instance)
{
    pp_buffer_t **held = &instance->accumulator;
    pp_status_t   status = *held ? PP_OK : pp_pool_get(instance->template->vectors, held);
    if (status < 0)
        pp_engine_fail(instance->setting->engine, status, "%s", pp_error_text());
    return *held ? (*held)->data : NULL;
}

/* Elements of the accumulator, which is made if no rank had data for it so far. */
static char *elements_at(pp_instance_t *instance, size_t offset)
{
    char *data = pp_instance_accumulator(instance);
    return data ? data + offset * instance->setting->kernels->element_bytes : NULL;
}

/* The host cannot read them: no transport gets them but as bulk. */
static bool out_of_reach(const pp_setting_t *setting) { return !setting->kernels->memory->reach; }

/* The address of elements for a transport. */
static void *reach(const pp_setting_t *setting, const void *elements)
{
    return !elements || out_of_reach(setting) ? (void *)(uintptr_t)elements : setting->kernels->memory->reach(elements);
}

static void *scratch(pp_instance_t *instance, int8_t lane)
{
    const pp_template_t *template = instance->template;
    pp_status_t status = instance->scratch ? PP_OK : pp_pool_get(template->scratches, &instance->scratch);
    if (status < 0) {
        pp_engine_fail(instance->setting->engine, status, "%s", pp_error_text());
        return NULL;
    }
    return (char *)instance->scratch->data + (size_t)lane * template->lane_bytes;
}

/* ---- firing -------------------------------------------------------------------------------------- */

static void fire(void *owner, uint32_t vertex);

static void enqueue(pp_instance_t *instance, uint32_t vertex)
{
    pp_engine_ready(instance->setting->engine, fire, instance, vertex);
}

static bool is_external(const pp_graph_t *graph, uint32_t vertex)
{
    return vertex == graph->start || vertex == graph->join;
}

static void put_scratch(pp_instance_t *instance)
{
    pp_pool_put(instance->template->scratches, instance->scratch);
    instance->scratch = NULL;
}

static void retire(pp_instance_t *instance)
{
    const pp_setting_t *setting = instance->setting;
    if (setting->retired)
        setting->retired(instance);
    put_scratch(instance);
    setting->host->retired(setting->owner, instance);
}

/* The operation is over: its successors have one predecessor less to wait for.  The count goes on beyond `need`, so an
   operation that has fired is never ready again (consumable). */
static void finish(pp_instance_t *instance, uint32_t vertex)
{
    const pp_graph_t *graph = instance->template->graph;
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

/* ---- headers ------------------------------------------------------------------------------------- */

pp_prefix_t pp_instance_prefix(const pp_setting_t *setting, uint64_t key, uint32_t tag)
{
    return (pp_prefix_t){.kind = PP_MSG_OPERATION, .handle = setting->handle, .round = key,
                         .calls = pp_engine_calls_known(setting->engine), .tag = tag};
}

/* Returns the header's length. */
static size_t write_head(const pp_instance_t *instance, const pp_vertex_t *v, pp_head_t *head)
{
    const pp_setting_t *setting = instance->setting;
    pp_prefix_t *prefix = (pp_prefix_t *)head->bytes;
    size_t mask_bytes = setting->mask_words * sizeof(uint64_t);
    *prefix = pp_instance_prefix(setting, instance->key, v->tag);
    if (v->activation)
        return sizeof *prefix;
    const pp_register_t *reg = &instance->registers[v->reg];
    prefix->flags = (uint16_t)((reg->null ? 0 : PP_FLAG_DATA)
                               | (reg->tally.any_left && mask_bytes ? PP_FLAG_LEFT : 0));
    memcpy(head->bytes + sizeof *prefix, &reg->tally, sizeof reg->tally);
    size_t length = HEAD_BYTES;
    memcpy(head->bytes + length, reg->contributors, mask_bytes);
    length += mask_bytes;
    if (prefix->flags & PP_FLAG_LEFT) {
        memcpy(head->bytes + length, reg->left, mask_bytes);
        length += mask_bytes;
    }
    memset(head->bytes + length, 0, align_up(length) - length);
    return align_up(length);
}

/* The parts of a data message, as pointers into its bytes. */
typedef struct pp_incoming {
    const pp_tally_t *tally;
    const uint64_t   *contributors, *left;
    const void       *elements;       /* NULL: no elements are inline */
} pp_incoming_t;

static pp_incoming_t read_head(const pp_setting_t *setting, const pp_stored_t *stored)
{
    const pp_prefix_t *prefix = (const pp_prefix_t *)stored->message;
    const unsigned char *at = stored->message + sizeof *prefix;
    pp_incoming_t in = {.tally = (const pp_tally_t *)at};
    at += sizeof *in.tally;
    in.contributors = (const uint64_t *)at;
    at += setting->mask_words * sizeof(uint64_t);
    if (prefix->flags & PP_FLAG_LEFT) {
        in.left = (const uint64_t *)at;
        at += setting->mask_words * sizeof(uint64_t);
    }
    at = stored->message + align_up((size_t)(at - stored->message));
    if ((prefix->flags & PP_FLAG_DATA) && !(prefix->flags & PP_FLAG_BULK))
        in.elements = at;
    return in;
}

static void merge_masks(const pp_setting_t *setting, pp_register_t *reg, const pp_incoming_t *in)
{
    for (size_t w = 0; w < setting->mask_words; w++)
        reg->contributors[w] |= in->contributors[w];
    for (size_t w = 0; in->left && w < setting->mask_words; w++)
        reg->left[w] |= in->left[w];
}

/* The rank of a peer of the schedule. */
static int32_t rank_of(const pp_instance_t *instance, int32_t peer)
{
    return pp_map_rank(instance->map, peer, instance->key);
}

/* An activation may come from any rank of the peer's node; other messages come from the peer's rank only. */
static bool may_come_from(const pp_instance_t *instance, const pp_vertex_t *v, int32_t rank)
{
    return v->activation ? pp_map_participant(instance->map, rank, instance->key) == v->peer
                         : rank_of(instance, v->peer) == rank;
}

/* ---- one function per kind of operation ------------------------------------------------------------ */

static void finish_send(void *owner, uint32_t vertex) { finish(owner, vertex); }

static void send_bulk(pp_instance_t *instance, uint32_t vertex, uint32_t tag, void *elements, size_t bytes)
{
    const pp_setting_t *setting = instance->setting;
    const pp_payload_t  payload = {.sends = true,
                                   .peer = rank_of(instance, instance->template->graph->vertices[vertex].peer),
                                   .tag = tag, .handle = setting->handle, .elements = elements, .bytes = bytes,
                                   .memory = setting->kernels->memory};
    pp_engine_move(setting->engine, &payload, &(pp_travelled_t){finish_send, instance, vertex});
}

static void fire_send(pp_instance_t *instance, uint32_t vertex)
{
    const pp_setting_t *setting = instance->setting;
    pp_transport_t *transport = setting->engine->transport;
    const pp_vertex_t *v = &instance->template->graph->vertices[vertex];
    if (v->activation && setting->host->announces && !setting->host->announces(setting->owner, instance)) {
        finish(instance, vertex);
        return;
    }
    pp_head_t head;
    size_t head_bytes = write_head(instance, v, &head);
    pp_prefix_t *prefix = (pp_prefix_t *)head.bytes;
    size_t bytes = (prefix->flags & PP_FLAG_DATA) ? region_bytes(setting, v->region) : 0;
    void *elements = bytes ? reach(setting, elements_at(instance, v->region.offset)) : NULL;
    bool bulk = bytes > PP_INLINE_BYTES || (bytes > 0 && out_of_reach(setting));
    if (bytes && !elements)
        return;
    if (bulk) {
        prefix->flags |= PP_FLAG_BULK;
        prefix->bulk_tag = pp_bulks_tag(&setting->engine->bulks);
    }
    int32_t  peer = rank_of(instance, v->peer);
    pp_status_t status = transport->ops->send(transport, peer, head.bytes, head_bytes,
                                              bulk ? NULL : elements, bulk ? 0 : bytes);
    if (status < 0)
        pp_engine_fail(setting->engine, status, "%s", pp_error_text());
    else if (bulk)
        send_bulk(instance, vertex, prefix->bulk_tag, elements, bytes);
    else
        finish(instance, vertex);
}

/* A placed region replaces this rank's, and its header, which is complete then, replaces the register. */
static void place_register(pp_instance_t *instance, uint32_t vertex)
{
    const pp_setting_t *setting = instance->setting;
    pp_vertex_state_t *state = &instance->states[vertex];
    pp_register_t *reg = &instance->registers[instance->template->graph->vertices[vertex].reg];
    pp_incoming_t in = read_head(setting, state->message);
    reg->tally = *in.tally;
    reg->null = !(((const pp_prefix_t *)state->message->message)->flags & PP_FLAG_DATA);
    merge_masks(setting, reg, &in);
}

static void forget_message(pp_vertex_state_t *state)
{
    free(state->message);
    state->message = NULL;
    state->data = NULL;
}

/* Elements and header of a RECV are here.  A later REDUCE still needs the message. */
static void finish_recv(void *owner, uint32_t vertex)
{
    pp_instance_t     *instance = owner;
    const pp_vertex_t *v = &instance->template->graph->vertices[vertex];
    if (v->lane == PP_IN_PLACE)
        place_register(instance, vertex);
    if (v->lane == PP_IN_PLACE || v->activation)
        forget_message(&instance->states[vertex]);
    finish(instance, vertex);
}

static void recv_bulk(pp_instance_t *instance, uint32_t vertex, void *target, size_t bytes)
{
    const pp_setting_t *setting = instance->setting;
    const pp_stored_t  *header = instance->states[vertex].message;
    const pp_payload_t  payload = {.peer = header->peer, .tag = ((const pp_prefix_t *)header->message)->bulk_tag,
                                   .handle = setting->handle, .elements = reach(setting, target), .bytes = bytes,
                                   .memory = setting->kernels->memory};
    if (payload.elements)
        pp_engine_move(setting->engine, &payload, &(pp_travelled_t){finish_recv, instance, vertex});
}

/* The receive is posted and its message is here: finds room for the elements. */
static void land(pp_instance_t *instance, uint32_t vertex)
{
    const pp_setting_t *setting = instance->setting;
    const pp_vertex_t *v = &instance->template->graph->vertices[vertex];
    pp_vertex_state_t *state = &instance->states[vertex];
    const pp_prefix_t *prefix = (const pp_prefix_t *)state->message->message;
    if (v->activation) {
        finish_recv(instance, vertex);
        return;
    }
    pp_incoming_t in = read_head(setting, state->message);
    size_t bytes = region_bytes(setting, v->region);
    /* Before the take it is not known whether the accumulator will hold a contribution of this rank. */
    bool taken = instance->states[instance->template->graph->take].fired;
    bool direct = v->lane == PP_IN_PLACE || (taken && instance->registers[v->reg].null);
    state->data = NULL;
    if (!(prefix->flags & PP_FLAG_DATA) || bytes == 0) {
        finish_recv(instance, vertex);
        return;
    }
    void *target = direct ? elements_at(instance, v->region.offset)
                 : in.elements ? NULL : scratch(instance, v->lane);
    if (setting->engine->error)
        return;
    if (in.elements && direct)
        setting->kernels->memory->copy(setting->kernels->memory, target, in.elements, bytes);
    if (!direct)
        state->data = in.elements ? in.elements : target;
    if (in.elements) {
        finish_recv(instance, vertex);
        return;
    }
    recv_bulk(instance, vertex, target, bytes);
}

/* Two ranks triggered the round before they heard of each other. */
static bool initiators_meet(const pp_tally_t *ours, const pp_tally_t *theirs)
{
    return ours->initiator != PP_NO_INITIATOR && theirs->initiator != PP_NO_INITIATOR
        && ours->initiator != theirs->initiator;
}

static void report_reduced(const pp_setting_t *setting, pp_region_t region)
{
    pp_transport_t *transport = setting->engine->transport;
    if (transport->ops->reduced)
        transport->ops->reduced(transport, region_bytes(setting, region));
}

/* Combines `in` with the elements of a region, which are replaced if the region was `null`. */
static void combine(pp_instance_t *instance, const pp_vertex_t *v, const void *in, bool null)
{
    const pp_setting_t *setting = instance->setting;
    const pp_kernels_t *kernels = setting->kernels;
    const pp_memory_t  *memory = kernels->memory;
    char               *ours = elements_at(instance, v->region.offset);
    if (!ours)
        return;
    if (null) {
        memory->copy(memory, ours, in, region_bytes(setting, v->region));
        return;
    }
    (v->incoming_left ? memory->keep_right : memory->keep_left)(kernels, ours, in, v->region.count);
    report_reduced(setting, v->region);
}

/* A planted defect, for the fuzzer: where two initiators meet, a part is reduced twice. */
static void combine_again(pp_instance_t *instance, const pp_vertex_t *v, const void *in, bool null)
{
    const pp_kernels_t *kernels = instance->setting->kernels;
    if (!null)
        kernels->memory->keep_left(kernels, elements_at(instance, v->region.offset), in, v->region.count);
}

static void fire_reduce(pp_instance_t *instance, uint32_t vertex)
{
    const pp_setting_t *setting = instance->setting;
    const pp_vertex_t *v = &instance->template->graph->vertices[vertex];
    pp_vertex_state_t *source = &instance->states[v->source];
    pp_register_t *reg = &instance->registers[v->reg];
    pp_incoming_t in = read_head(setting, source->message);
    bool met = setting->drawn && initiators_meet(&reg->tally, in.tally);
    setting->engine->coverage.initiators_met += met;
    if (source->data) {
        combine(instance, v, source->data, reg->null);
        if (setting->engine->error)
            return;
        if (met && pp_engine_has(setting->engine, PP_PLANT_ROUND_TWICE))
            combine_again(instance, v, source->data, reg->null);
    }
    if (((const pp_prefix_t *)source->message->message)->flags & PP_FLAG_DATA)
        reg->null = false;
    pp_tally_merge(&reg->tally, in.tally);
    merge_masks(setting, reg, &in);
    forget_message(source);
    finish(instance, vertex);
}

static void set_masks(const pp_setting_t *setting, pp_register_t *reg, const pp_share_of_round_t *share)
{
    size_t bytes = setting->mask_words * sizeof(uint64_t);
    if (bytes == 0)
        return;
    if (share->contributors) {
        memcpy(reg->contributors, share->contributors, bytes);
        memcpy(reg->left, share->left, bytes);
        return;
    }
    if (share->tally.contributors)
        pp_mask_add(reg->contributors, setting->engine->rank);
    if (share->tally.any_left)
        pp_mask_add(reg->left, setting->engine->rank);
}

static void fire_take(pp_instance_t *instance, uint32_t vertex)
{
    const pp_setting_t *setting = instance->setting;
    pp_share_of_round_t share = {.tally.initiator = PP_NO_INITIATOR};
    setting->engine->running++;
    setting->host->take(setting->owner, instance, &share);
    for (uint32_t r = 0; r < instance->template->graph->reg_count; r++) {
        pp_register_t *reg = &instance->registers[r];
        reg->tally = share.tally;
        reg->null = share.null;
        set_masks(setting, reg, &share);
    }
    finish(instance, vertex);
}

static void fire_nop(pp_instance_t *instance, uint32_t vertex)
{
    const pp_setting_t *setting = instance->setting;
    if (vertex == instance->template->graph->activated) {
        if (setting->host->activated)
            setting->host->activated(setting->owner, instance);
    }
    if (vertex == instance->template->graph->done) {
        setting->engine->running--;
        setting->host->done(setting->owner, instance);
    }
    finish(instance, vertex);
}

static void fire(void *owner, uint32_t vertex)
{
    pp_instance_t     *instance = owner;
    pp_vertex_state_t *state = &instance->states[vertex];
    state->fired++;
    const pp_vertex_t *v = &instance->template->graph->vertices[vertex];
    switch (v->kind) {
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

void pp_instance_refuse(const pp_setting_t *setting, int32_t peer, const pp_prefix_t *prefix)
{
    pp_engine_fail(setting->engine, PP_ERR_INTERNAL, "handle %u has no receive in round %llu for tag %u from rank %d",
                   setting->handle, (unsigned long long)prefix->round, prefix->tag, peer);
}

void pp_instance_message(pp_instance_t *instance, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    const pp_graph_t *graph = instance->template->graph;
    uint32_t vertex = prefix->tag < graph->tag_count ? graph->recv_by_tag[prefix->tag] : PP_NO_VERTEX;
    if (vertex == PP_NO_VERTEX || instance->states[vertex].message || instance->states[vertex].finished
        || !may_come_from(instance, &graph->vertices[vertex], peer)) {
        pp_instance_refuse(instance->setting, peer, prefix);
        return;
    }
    pp_vertex_state_t *state = &instance->states[vertex];
    if (state->fired && graph->vertices[vertex].activation) {
        finish(instance, vertex);        /* nothing in it has to be kept */
        return;
    }
    pp_stored_t *stored = pp_stored_new(peer, prefix, bytes);
    if (!stored) {
        pp_engine_fail(instance->setting->engine, PP_ERR_MEMORY, "no memory for a message of %zu bytes", bytes);
        return;
    }
    state->message = stored;
    if (state->fired)
        land(instance, vertex);
}

static bool is_open_receive(const pp_instance_t *instance, uint32_t vertex)
{
    const pp_vertex_state_t *state = &instance->states[vertex];
    return instance->template->graph->vertices[vertex].kind == PP_RECV && state->fired && !state->finished;
}

void pp_instance_explain(const pp_instance_t *instance, pp_text_t *text)
{
    const pp_graph_t *graph = instance->template->graph;
    for (uint32_t i = 0; i < graph->vertex_count; i++) {
        const pp_vertex_t *v = &graph->vertices[i];
        if (is_open_receive(instance, i))
            pp_text_add(text, "instance %llu: l%u waits for a message from rank %d with tag %u%s\n",
                        (unsigned long long)instance->key, i, rank_of(instance, v->peer), v->tag,
                        v->activation ? ", an activation" : "");
    }
}

void pp_instance_list_senders(const pp_instance_t *instance, pp_listing_t *listing)
{
    const pp_graph_t *graph = instance->template->graph;
    uint64_t *listed = calloc(pp_mask_words(instance->setting->engine->size), sizeof *listed);
    listing->text->failed |= !listed;
    for (uint32_t i = 0; listed && i < graph->vertex_count; i++) {
        const pp_vertex_t *v = &graph->vertices[i];
        if (v->activation || !is_open_receive(instance, i))
            continue;
        int32_t rank = rank_of(instance, v->peer);
        if (!pp_mask_has(listed, rank))
            pp_listing_add(listing, rank, NULL);
        pp_mask_add(listed, rank);
    }
    free(listed);
}

/* ---- the memory of an instance --------------------------------------------------------------------- */

pp_status_t pp_instance_make(const pp_setting_t *setting, const pp_template_t *template, pp_instance_t *instance)
{
    const pp_graph_t *graph = template->graph;
    size_t words = 2 * setting->mask_words;
    *instance = (pp_instance_t){.setting = setting, .template = template, .recyclable = true};
    instance->states = calloc(graph->vertex_count, sizeof *instance->states);
    instance->registers = calloc(graph->reg_count, sizeof *instance->registers);
    instance->masks = calloc(words * graph->reg_count + 1, sizeof *instance->masks);
    if (!instance->states || !instance->registers || !instance->masks)
        return pp_fail(PP_ERR_MEMORY, "no memory for a round of %u operations", graph->vertex_count);
    for (uint32_t r = 0; r < graph->reg_count; r++) {
        instance->registers[r].left = instance->masks + r * words;
        instance->registers[r].contributors = instance->registers[r].left + setting->mask_words;
    }
    return PP_OK;
}

void pp_instance_reset(pp_instance_t *instance, const pp_map_t *map, uint64_t key)
{
    const pp_graph_t *graph = instance->template->graph;
    instance->map = map;
    instance->key = key;
    instance->recyclable = false;
    instance->unfinished = graph->vertex_count - (graph->start != PP_NO_VERTEX) - (graph->join != PP_NO_VERTEX);
    memset(instance->masks, 0, 2 * instance->setting->mask_words * graph->reg_count * sizeof(uint64_t));
    memset(instance->states, 0, graph->vertex_count * sizeof *instance->states);
    for (uint32_t v = 0; v < graph->vertex_count; v++)
        if (graph->vertices[v].in_count == 0 && graph->vertices[v].kind != PP_NOP)
            enqueue(instance, v);
}

void pp_instance_release(pp_instance_t *instance)
{
    if (!instance->setting)
        return;
    bool in_transfer = instance->setting->engine->transport->bulk_in_flight && instance->unfinished > 0;
    for (uint32_t v = 0; instance->states && v < instance->template->graph->vertex_count; v++)
        free(instance->states[v].message);
    if (!in_transfer) {
        pp_pool_put(instance->template->vectors, instance->accumulator);
        put_scratch(instance);
    }
    free(instance->states);
    free(instance->registers);
    free(instance->masks);
    *instance = (pp_instance_t){0};
}
