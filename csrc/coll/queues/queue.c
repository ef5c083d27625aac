/* queue.c - queues as a kind of handle: their arguments, what the engine and collective calls ask.  See queue.h. */
#include "queue.h"

#include <stdlib.h>
#include <string.h>

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
    snprintf(signature->text, sizeof signature->text, "queues of %llu elements of %s, %s (%08x), max_ig=%d%s%s, "
             "protocol=%s, weights=%s", (unsigned long long)q->count, pp_type_name(q->config.type), q->topology_text,
             (unsigned)q->config.fingerprint, plan.max_ig, bound, skip, protocols[plan.protocol],
             plan.weighted ? "topology" : "uniform");
    return PP_OK;
}

/* ---- what the engine and collective calls ask -------------------------------------------------------------- */

static pp_status_t open_handle(pp_handle_t *handle, const pp_agreed_t *agreed)
{
    pp_queue_t  *q = pp_queue_of(handle);
    const size_t neighbours = (size_t)(q->config.plan.in + q->config.plan.out);
    q->way = agreed->region ? &pp_queue_in_memory : &pp_queue_by_messages;
    handle->ops = &q->way->handle;
    /* Every update counts: a rank that is aside has not left, or results would depend on the time. */
    handle->waits_as_mpi = q->config.plan.backup == 0 && q->config.plan.staleness == PP_QUEUES_UNSET;
    PP_TRY(q->way->open(q, agreed));
    q->machine = malloc(pp_queues_bytes(&q->config.plan));
    q->seen = calloc(neighbours + 1, sizeof *q->seen);
    if (!q->machine || !q->seen)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    for (size_t i = 0; i < neighbours; i++)
        q->seen[i].published = -1;
    return pp_queues_open(q->machine, &q->config.plan, q->config.weights);
}

static void empty(pp_handle_t *handle)
{
    pp_queue_t *q = pp_queue_of(handle);
    if (q->way)
        q->way->close(q);
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
    q->way->end(q);
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
    return (void)round, handle->leaving != PP_STAYS || !handle->ops->retired(handle);
}

static const pp_handle_kind_t kind = {
    .init = "Queue_init", .update = update, .sign = sign, .reserve = pp_queue_reserve, .unreserve = pp_queue_unreserve,
    .open = open_handle, .empty = empty, .drop_request = drop_request, .give = give, .discard = discard,
    .in_mid_round = in_mid_round, .describe = describe, .explain = pp_queue_explain, .next_round = next_round,
    .is_behind = is_behind,
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
