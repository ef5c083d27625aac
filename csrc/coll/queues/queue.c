/* queue.c - queues as a kind of handle: their arguments, what the engine and collective calls ask.  See queue.h. */
#include "queue.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

/* ---- arguments --------------------------------------------------------------------------------------------- */

static bool is_floating(int32_t type)
{
    return type == PP_FLOAT16 || type == PP_BFLOAT16 || type == PP_FLOAT32 || type == PP_FLOAT64
        || type == PP_LONGDOUBLE;
}

static pp_status_t check_ranks(const pp_engine_t *engine, const int32_t *ranks, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        if (ranks[i] < 0 || ranks[i] >= engine->size || ranks[i] == engine->rank || (i > 0 && ranks[i] <= ranks[i - 1]))
            return pp_fail(PP_ERR_ARGUMENT, "rank %d is not another rank in 0..%d, or the neighbours do not ascend",
                           ranks[i], engine->size - 1);
    return PP_OK;
}

pp_status_t pp_queue_check(const pp_team_t *team, const pp_queues_config_t *config)
{
    const pp_engine_t *engine = team->engine;
    if (!config)
        return pp_fail(PP_ERR_ARGUMENT, "config is NULL");
    if (!is_floating(config->type))
        return pp_fail(PP_ERR_ARGUMENT, "queues average floating numbers, not %s", pp_type_name(config->type));
    if (!pp_memory_of(config->memory))
        return pp_fail(PP_ERR_ARGUMENT, "memory=%d is not a kind of memory", config->memory);
    for (size_t i = 0; i < config->piece_count; i++)
        if (config->pieces[i].send)
            return pp_fail(PP_ERR_ARGUMENT, "piece %zu has a send buffer, but queues work in place", i);
    if (config->plan.plant != 0 && !PP_SIM)
        return pp_fail(PP_ERR_ARGUMENT, "plant=%d is for simulations", config->plan.plant);
    PP_TRY(pp_queues_check(&config->plan));
    if (engine->size > 1 && (!engine->node || engine->nodes))
        return pp_fail(PP_ERR_ARGUMENT, "queues need ranks that all share the memory of one node, which these do not: "
                       "they do not go by messages yet");
    PP_TRY(check_ranks(engine, config->ins, config->plan.in));
    return check_ranks(engine, config->outs, config->plan.out);
}

static pp_status_t sign(pp_handle_t *handle, pp_signature_t *signature)
{
    static const char *const protocols[] = {"tokens", "notify-ack", "none"};
    const pp_queue_t *q = pp_queue_of(handle);
    pp_queues_plan_t  plan = q->config.plan;
    plan.in = plan.out = plan.backup = 0;        /* are this rank's own */
    struct {
        uint64_t         count, fingerprint;
        int32_t          type, unused;
        pp_queues_plan_t plan;
    } key = {.count = q->count, .fingerprint = q->config.fingerprint, .type = q->config.type, .plan = plan};
    _Static_assert(sizeof key <= PP_SIGNATURE_BYTES, "the signature must hold every argument");
    memcpy(signature->bytes, &key, sizeof key);
    char bound[40] = "", skip[60] = "";
    if (plan.staleness != PP_QUEUES_UNSET)
        snprintf(bound, sizeof bound, ", staleness=%d", plan.staleness);
    if (plan.skip != PP_QUEUES_UNSET)
        snprintf(skip, sizeof skip, ", skip=%d, skip_trigger=%d", plan.skip, plan.skip_trigger);
    snprintf(signature->text, sizeof signature->text, "queues of %llu elements of %s, %s (%08x), max_ig=%d, backup of at "
             "most %d%s%s, protocol=%s, weights=%s", (unsigned long long)q->count, pp_type_name(q->config.type),
             q->topology_text, (unsigned)q->config.fingerprint, plan.max_ig, plan.most_backup, bound, skip,
             protocols[plan.protocol], plan.weighted ? "topology" : "uniform");
    return PP_OK;
}

/* ---- the memory of the node -------------------------------------------------------------------------------- */

typedef struct layout {
    uint64_t stations, tags, models, bytes;
} layout_t;

static uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

static layout_t lay_out(const pp_queue_t *q)
{
    const uint64_t ranks = (uint64_t)q->handle.team->engine->size, ring = (uint64_t)q->ring;
    layout_t       layout = {.stations = sizeof(pp_queue_hall_t)};
    layout.tags = layout.stations + ranks * sizeof(pp_queue_station_t);
    layout.models = round_up(layout.tags + ranks * ring * sizeof(int64_t), PAGE);
    layout.bytes = layout.models + (ranks > 1 ? ranks * (ring + 1) * q->stride : 0);
    return layout;
}

static void point(pp_queue_t *q, char *base)
{
    const layout_t layout = lay_out(q);
    q->hall = (pp_queue_hall_t *)base;
    q->stations = (pp_queue_station_t *)(base + layout.stations);
    q->tags = (_Atomic int64_t *)(base + layout.tags);
    q->models = q->handle.team->engine->size > 1 ? base + layout.models : NULL;
}

static void begin_at(pp_queue_t *q, char *base)
{
    const int64_t ranks = q->handle.team->engine->size;
    memset(base, 0, lay_out(q).models);
    point(q, base);
    for (int64_t rank = 0; rank < ranks; rank++)
        q->stations[rank].published = -1;
    for (int64_t i = 0; i < ranks * q->ring; i++)
        q->tags[i] = -1;
}

static uint64_t reserve(pp_handle_t *handle)
{
    pp_queue_t    *q = pp_queue_of(handle);
    pp_node_t     *node = handle->team->engine->node;
    const layout_t layout = lay_out(q);
    uint64_t       region = pp_node_reserve(node, layout.bytes);
    if (region && !pp_node_commit(node, region, layout.models)) {
        pp_node_release(node, region, layout.bytes);
        region = 0;
    }
    if (region)
        begin_at(q, pp_node_at(node, region));
    return region;
}

static void unreserve(pp_handle_t *handle, uint64_t region)
{
    pp_node_release(handle->team->engine->node, region, lay_out(pp_queue_of(handle)).bytes);
}

static pp_status_t find_memory(pp_queue_t *q, uint64_t region)
{
    const layout_t layout = lay_out(q);
    pp_node_t     *node = q->handle.engine->node;
    if (!region && q->handle.engine->size == 1) {
        q->alone = aligned_alloc(PAGE, layout.models);
        if (q->alone)
            begin_at(q, q->alone);
        return q->alone ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    }
    if (!region || !pp_node_reach(node))
        return pp_fail(PP_ERR_MEMORY, "no shared memory for the %llu bytes of queues", (unsigned long long)layout.bytes);
    q->region = region;
    point(q, pp_node_at(node, region));
    return PP_OK;
}

static void leave_memory(pp_queue_t *q)
{
    if (q->region && atomic_fetch_add(&q->hall->detached, 1) + 1 == (uint32_t)q->handle.team->engine->size)
        pp_node_release(q->handle.team->engine->node, q->region, lay_out(q).bytes);
    q->region = 0;
    free(q->alone);
    q->alone = NULL;
}

/* ---- how it goes on ---------------------------------------------------------------------------------------- */

static bool poll(pp_handle_t *handle)
{
    pp_queue_t *q = pp_queue_of(handle);
    bool        any = false;
    if (pp_handle_waits(handle)) {
        pp_queue_look(q);
        any = pp_queue_go_on(q);
    }
    any |= pp_queue_end(q);
    if (any)
        pp_engine_settle(q->handle.engine);
    return any;
}

static bool averages(const pp_queue_t *q) { return q->due.kind == PP_QUEUES_AVERAGE && q->collecting > 0; }

static bool has_work(const pp_handle_t *handle)
{
    const pp_queue_t *q = pp_queue_of(handle);
    return q->workers == 0 && (averages(q) || q->end.reads);
}

static void begin_work(pp_handle_t *handle, bool *lands)
{
    *lands = false;
    pp_queue_of(handle)->workers++;
}

static bool work(pp_handle_t *handle, bool lands, uint64_t *job)
{
    const pp_queue_t *q = pp_queue_of(handle);
    (void)lands;
    if (q->end.reads)
        pp_queue_average_all(q);
    else
        *job = (uint64_t)(pp_queue_average(q) + 1);
    return true;
}

static void worked(pp_handle_t *handle, uint64_t job, bool last)
{
    pp_queue_t *q = pp_queue_of(handle);
    (void)last;
    q->workers--;
    q->handle.engine->changed = true;
    if (q->end.reads) {
        q->end.reads = false;
        q->end.done = true;
        pp_queue_end(q);
        return;
    }
    q->due.kind = PP_QUEUES_NOTHING;
    if (job == 0) {
        q->averaged = true;
        pp_queue_tell(q, PP_QUEUES_AVERAGED);
    } else {
        const pp_queues_part_t *part = &q->due.parts[job - 1];
        if (pp_queues_event(q->machine, PP_QUEUES_GONE, part->neighbour, part->iteration) < 0)
            pp_engine_fail(q->handle.engine, PP_ERR_INTERNAL, "%s", pp_error_text());
    }
    pp_queue_look(q);
    pp_queue_go_on(q);
}

static bool retired(const pp_handle_t *handle) { return pp_queue_of(handle)->workers == 0; }

static void explain(pp_handle_t *handle, pp_text_t *text)
{
    pp_queue_t *q = pp_queue_of(handle);
    if (handle->leaving != PP_STAYS)
        pp_queue_explain_end(q, text);
    else if (pp_handle_waits(handle))
        pp_queue_explain(q, text);
}

static const pp_handle_ops_t ops = {
    .retired = retired, .poll = poll, .has_work = has_work, .begin_work = begin_work, .work = work, .worked = worked,
    .explain = explain,
};

/* ---- what the engine and collective calls ask -------------------------------------------------------------- */

static pp_status_t open_handle(pp_handle_t *handle, const pp_agreed_t *agreed)
{
    pp_queue_t *q = pp_queue_of(handle);
    const size_t in = (size_t)q->config.plan.in;
    handle->ops = &ops;
    PP_TRY(find_memory(q, agreed->region));
    q->machine = malloc(pp_queues_bytes(&q->config.plan));
    q->seen = calloc(in + 1, sizeof *q->seen);
    if (!q->machine || !q->seen)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    for (size_t i = 0; i < in; i++)
        q->seen[i].published = -1;
    return pp_queues_open(q->machine, &q->config.plan, q->config.weights);
}

static void empty(pp_handle_t *handle)
{
    pp_queue_t *q = pp_queue_of(handle);
    leave_memory(q);
    free(q->machine);
    free(q->seen);
    free((void *)q->config.pieces);
    free((void *)q->config.ins);
    free((void *)q->config.outs);
    free((void *)q->config.weights);
}

/* That it is aside, or out, is not over when a call is. */
static uint64_t leaves(const pp_handle_t *handle)
{
    if (!pp_handle_gone(handle))
        return 0;
    return handle->team->exits || pp_handle_aside(handle) ? PP_QUEUE_LEFT : handle->engine->calls + 1;
}

static void update(pp_handle_t *handle)
{
    pp_queue_t *q = pp_queue_of(handle);
    if (!q->machine)
        return;
    if (!q->end.came)                /* else it has left until the call is over here, too */
        pp_queue_leave(q, leaves(handle));
    pp_queue_end(q);
}

static void drop_request(pp_handle_t *handle)
{
    pp_queue_t *q = pp_queue_of(handle);
    q->dropped = pp_handle_waits(handle);
    if (q->dropped)
        pp_queue_drop(q);
    q->requests -= q->dropped;
    pp_team_wait_ends(handle, false, PP_IDLE);
    handle->request.timed_out = false;
}

static void give(pp_handle_t *handle)
{
    pp_queue_t *q = pp_queue_of(handle);
    q->result = (pp_queues_result_t){.iteration = pp_queues_due(q->machine)};
    pp_team_wait_ends(handle, false, PP_COMPLETE);
}

static uint64_t discard(pp_handle_t *handle) { return pp_queue_of(handle)->dropped; }

static bool in_mid_round(const pp_handle_t *handle) { return pp_handle_waits(handle); }

static void describe(pp_handle_t *handle, pp_rank_state_t *state)
{
    state->completed = state->joined = state->taken = pp_queue_of(handle)->requests;
    state->ready = state->waits = pp_handle_waits(handle);
    state->left = pp_handle_left(handle);
    state->aside = pp_handle_aside(handle);
}

static uint64_t next_round(const pp_handle_t *handle) { return pp_queue_of(handle)->requests; }

/* What a peer has published is there; but a Flush or Free that is over there may still be read here. */
static bool is_behind(const pp_handle_t *handle, uint64_t round)
{
    return (void)round, handle->leaving != PP_STAYS || !retired(handle);
}

static const pp_handle_kind_t kind = {
    .init = "Queue_init", .update = update, .sign = sign, .reserve = reserve, .unreserve = unreserve,
    .open = open_handle, .empty = empty, .drop_request = drop_request, .give = give, .discard = discard,
    .in_mid_round = in_mid_round, .describe = describe, .explain = explain, .next_round = next_round,
    .is_behind = is_behind, .needs_region = true,
};

bool pp_is_queue(const pp_handle_t *handle) { return handle->kind == &kind; }

/* ---- a new handle ------------------------------------------------------------------------------------------ */

static void *copy(const void *from, int32_t count, size_t bytes)
{
    void *to = malloc((size_t)count * bytes + 1);
    if (to && count > 0)
        memcpy(to, from, (size_t)count * bytes);
    return to;
}

static pp_status_t configure(pp_queue_t *q, const pp_queues_config_t *config)
{
    const pp_queues_plan_t *plan = &config->plan;
    q->config = *config;
    q->config.pieces = copy(config->pieces, (int32_t)config->piece_count, sizeof *config->pieces);
    q->config.ins = copy(config->ins, plan->in, sizeof *config->ins);
    q->config.outs = copy(config->outs, plan->out, sizeof *config->outs);
    q->config.weights = copy(config->weights, plan->weighted ? plan->in : 0, sizeof *config->weights);
    q->config.topology_text = NULL;
    if (!q->config.pieces || !q->config.ins || !q->config.outs || !q->config.weights)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle of %zu pieces", config->piece_count);
    for (size_t i = 0; i < config->piece_count; i++)
        q->count += config->pieces[i].count;
    snprintf(q->topology_text, sizeof q->topology_text, "%s", config->topology_text ? config->topology_text : "");
    PP_TRY(pp_kernels_find(PP_SUM, config->type, &q->kernels));
    q->kernels.users = pp_memory_of(config->memory);
    q->vector_bytes = q->count * q->kernels.element_bytes;
    q->stride = round_up(q->vector_bytes, PAGE);
    q->ring = pp_queues_ring(plan);
    return PP_OK;
}

pp_status_t pp_queue_new(pp_team_t *team, const pp_queues_config_t *config, pp_handle_t **out)
{
    pp_queue_t *q = calloc(1, sizeof *q);
    *out = NULL;
    if (!q)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    q->handle = (pp_handle_t){.kind = &kind, .team = team};
    pp_status_t status = config ? configure(q, config) : PP_OK;
    if (status < 0)
        pp_handle_release(&q->handle);
    else
        *out = &q->handle;
    return status;
}
