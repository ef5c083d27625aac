/* preduce.c - P-Reduce as a kind of handle: its arguments, what the engine and collective calls ask.  See preduce.h. */
#include "../patience.h"
#include "shared.h"

#include <stdlib.h>
#include <string.h>

/* ---- arguments ---------------------------------------------------------------------------------------------- */

static bool is_floating(int32_t type)
{
    return type == PP_FLOAT16 || type == PP_BFLOAT16 || type == PP_FLOAT32 || type == PP_FLOAT64
        || type == PP_LONGDOUBLE;
}

/* A notice lists the members of a group, which are all ranks in a flush. */
static pp_status_t check_most(const pp_team_t *team, const pp_preduce_config_t *config)
{
    const pp_engine_t *engine = team->engine;
    const size_t       each = sizeof(int32_t) + (config->plan.weights == PP_WEIGHTS_CONSTANT ? 0 : sizeof(double));
    const size_t       most = (PP_MESSAGE_BYTES - sizeof(pp_group_notice_t)) / each;
    int32_t            handles = 0;
    PP_FOR_EACH_HANDLE(engine, handle)
        handles += pp_is_preduce(handle);
    if (handles >= PP_PREDUCE_HANDLES_MOST)
        return pp_fail(PP_ERR_ARGUMENT, "the context has %d handles of P-Reduce already, which are the most", handles);
    if ((size_t)engine->size > most)
        return pp_fail(PP_ERR_ARGUMENT, "P-Reduce with these weights is for at most %zu ranks, and the context has %d",
                       most, engine->size);
    return PP_OK;
}

pp_status_t pp_preduce_check(const pp_team_t *team, const pp_preduce_config_t *config)
{
    const pp_engine_t *engine = team->engine;
    if (!config)
        return pp_fail(PP_ERR_ARGUMENT, "config is NULL");
    if (!is_floating(config->type))
        return pp_fail(PP_ERR_ARGUMENT, "P-Reduce averages floating numbers, not %s", pp_type_name(config->type));
    if (config->backend < 0 || config->backend >= PP_BACKEND_COUNT)
        return pp_fail(PP_ERR_ARGUMENT, "backend=%d is not a pp_backend_t", config->backend);
    if (config->backend == PP_BACKEND_NODE && (!engine->node || engine->nodes))
        return pp_fail(PP_ERR_ARGUMENT, "backend=\"node\" needs ranks that all share the memory of one node: use "
                       "\"auto\" or \"schedule\"");
    if (!pp_memory_of(config->memory))
        return pp_fail(PP_ERR_ARGUMENT, "memory=%d is not a kind of memory", config->memory);
    for (size_t i = 0; i < config->piece_count; i++)
        if (config->pieces[i].send)
            return pp_fail(PP_ERR_ARGUMENT, "piece %zu has a send buffer, but P-Reduce works in place", i);
    if (config->plan.plant != 0 && !PP_SIM)
        return pp_fail(PP_ERR_ARGUMENT, "plant=%d is for simulations", config->plan.plant);
    pp_groups_plan_t plan = config->plan;
    plan.ranks = engine->size;
    PP_TRY(pp_groups_check(&plan, config->table));
    return check_most(team, config);
}

pp_status_t pp_preduce_check_asked(const pp_preduce_t *preduce)
{
    const uint64_t next = preduce->asked.iteration;
    const int32_t *members = preduce->asked.members, count = preduce->asked.count;
    const int32_t  rank = preduce->handle.engine->rank, size = preduce->handle.engine->size;
    const bool     given = pp_groups_are_given(&preduce->config.plan);
    bool           mine = false;
    if (next == 0 && preduce->iteration == UINT64_MAX)
        return pp_fail(PP_ERR_ARGUMENT, "the last iteration was %llu, counted from 0: the largest there is",
                       (unsigned long long)preduce->iteration - 1);
    if (next != 0 && next <= preduce->iteration)
        return pp_fail(PP_ERR_ARGUMENT, "iteration %llu does not exceed the last one, %llu", (unsigned long long)next,
                       (unsigned long long)preduce->iteration);
    if (given != (count > 0))
        return pp_fail(PP_ERR_ARGUMENT, given ? "Start needs a group: the groups of this handle are given by the caller"
                                              : "Start has a group, but the generator of this handle forms the groups");
    for (int32_t i = 0; i < count; i++) {
        mine |= members[i] == rank;
        if (members[i] < 0 || members[i] >= size || (i > 0 && members[i] <= members[i - 1]))
            return pp_fail(PP_ERR_ARGUMENT, "rank %d of the group is not in 0..%d, or the ranks do not ascend",
                           members[i], size - 1);
    }
    if (given && !mine)
        return pp_fail(PP_ERR_ARGUMENT, "rank %d is not in the group that it starts", rank);
    return PP_OK;
}

static pp_status_t sign(pp_handle_t *handle, pp_signature_t *signature)
{
    static const char *const backends[] = {"auto", "node", "schedule", "comm"};
    static const char *const weights[] = {"constant", "dynamic, missing=closest", "dynamic, missing=initial"};
    const pp_preduce_t        *preduce = pp_preduce_of(handle);
    const pp_preduce_config_t *config = &preduce->config;
    struct {
        uint64_t         count, table;
        int32_t          type, backend, buffers, unused;
        pp_groups_plan_t plan;
    } key = {.count = preduce->count, .table = preduce->table_hash, .type = config->type, .backend = config->backend,
             .buffers = pp_team_buffers_key(config->device, config->device_path),
             .plan = config->plan};
    _Static_assert(sizeof key <= PP_SIGNATURE_BYTES, "the signature must hold every argument");
    memcpy(signature->bytes, &key, sizeof key);
    snprintf(signature->text, sizeof signature->text, "P-Reduce of %llu elements of %s%s, groups %s, "
             "weights=%s, alpha=%g, backend=%s, cache=%d%s", (unsigned long long)preduce->count,
             pp_type_name(config->type), config->device > 0 ? " in the memory of a device" : "",
             preduce->generator_text, weights[config->plan.weights], config->plan.alpha, backends[config->backend],
             config->plan.cache, pp_team_path_text(config->device_path));
    return PP_OK;
}

/* ---- making and releasing ------------------------------------------------------------------------------------- */

static bool wants_memory(const pp_preduce_t *preduce)
{
    const pp_engine_t *engine = preduce->handle.team->engine;
    return engine->node && !engine->nodes
        && (preduce->config.backend == PP_BACKEND_AUTO || preduce->config.backend == PP_BACKEND_NODE);
}

uint64_t pp_preduce_reserve(pp_handle_t *handle)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    return wants_memory(preduce) ? pp_shared_groups_reserve(preduce) : 0;
}

void pp_preduce_unreserve(pp_handle_t *handle, uint64_t region)
{
    pp_shared_groups_unreserve(pp_preduce_of(handle), region);
}

pp_status_t pp_preduce_open(pp_handle_t *handle, const pp_agreed_t *agreed)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    const size_t  ranks = (size_t)handle->team->engine->size;
    preduce->members = calloc(ranks, sizeof *preduce->members);
    preduce->weights = calloc(ranks, sizeof *preduce->weights);
    if (!preduce->members || !preduce->weights)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    preduce->said = PP_GROUPS_HERE;
    handle->waits_as_mpi = pp_groups_are_named(&preduce->config.plan);
    pp_status_t status = agreed->region                 ? pp_shared_groups_open(preduce, agreed->region)
                       : preduce->models                ? preduce->models->open(preduce)
                       : pp_table_groups_serve(preduce) ? pp_table_groups_open(preduce)
                                                        : pp_posted_groups_open(preduce);
    if (preduce->initial)
        preduce->kernels.memory->release(preduce->kernels.memory, preduce->initial);
    preduce->initial = NULL;
    return status;
}

void pp_preduce_empty(pp_handle_t *handle)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    if (handle->staging)
        handle->end_staging(handle);
    if (preduce->ops)
        preduce->ops->close(preduce);
    if (preduce->initial)
        preduce->kernels.memory->release(preduce->kernels.memory, preduce->initial);
    free((void *)preduce->config.pieces);
    free((void *)preduce->config.table);
    free(preduce->members);
    free(preduce->weights);
}

/* ---- who has left ---------------------------------------------------------------------------------------------- */

/* How many requests of this process are outstanding that no machine of this context's groups knows of. */
static uint64_t waits_elsewhere(const pp_preduce_t *preduce)
{
    const pp_team_t *team = preduce->handle.team;
    uint64_t         waits = team->waits_in_others + team->waiting;
    if (waits == pp_handle_waits(&preduce->handle))
        return 0;
    PP_FOR_EACH_HANDLE(team->engine, other)
        waits -= pp_handle_waits(other) && pp_is_preduce(other) && pp_preduce_of(other)->ops == preduce->ops
              && (preduce->ops->untangles || other == &preduce->handle);
    return waits;
}

/* Why this rank is in no group now. */
static int32_t reason_of(const pp_preduce_t *preduce)
{
    const pp_handle_t *handle = &preduce->handle;
    if (handle->team->exits)
        return PP_GROUPS_OUT;
    if (handle->leaving != PP_STAYS)
        return handle->leaving == PP_FREES ? PP_GROUPS_FREES : PP_GROUPS_FLUSHES;
    return pp_handle_gone(handle) ? PP_GROUPS_IN_CALL : PP_GROUPS_HERE;
}

void pp_preduce_say(pp_preduce_t *preduce)
{
    const int32_t  reason = reason_of(preduce);
    /* That it is aside is not over when a call is: no number is said. */
    const bool     in_call = reason == PP_GROUPS_FLUSHES || reason == PP_GROUPS_FREES
                          || (reason == PP_GROUPS_IN_CALL && !pp_handle_aside(&preduce->handle));
    const uint64_t call = in_call ? preduce->handle.engine->calls + 1 : 0;
    if (preduce->ended)
        return;
    if (reason != preduce->said || call != preduce->said_call) {
        preduce->said = reason;
        preduce->said_call = call;
        preduce->ops->say(preduce, reason, (uint64_t)reason + PP_GROUPS_CALL * call);
    }
    if (preduce->time.elsewhere != preduce->said_elsewhere && !preduce->ended) {
        preduce->said_elsewhere = preduce->time.elsewhere;
        preduce->ops->say_elsewhere(preduce, preduce->said_elsewhere);
    }
}

static uint64_t tick(pp_handle_t *handle, uint64_t now_ns)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    return pp_group_time_tick(preduce, now_ns, waits_elsewhere(preduce));
}

static void update(pp_handle_t *handle)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    preduce->ops->go_on(preduce);
    pp_group_time_update(preduce, waits_elsewhere(preduce));
    pp_preduce_say(preduce);
}

/* ---- what the engine and collective calls ask ------------------------------------------------------------------ */

void pp_preduce_drop_request(pp_handle_t *handle)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    pp_group_time_returned(preduce);
    preduce->dropped = pp_handle_waits(handle);
    preduce->runs = preduce->undelivered = preduce->on_its_way = false;
    pp_team_wait_ends(handle, false, PP_IDLE);
    handle->request.timed_out = false;
}

void pp_preduce_give(pp_handle_t *handle) { pp_team_wait_ends(handle, false, PP_COMPLETE); }

uint64_t pp_preduce_discard(pp_handle_t *handle) { return pp_preduce_of(handle)->dropped; }

bool pp_preduce_in_mid_round(const pp_handle_t *handle) { return pp_handle_waits(handle); }

/* ---- questions ------------------------------------------------------------------------------------------------- */

/* With PP_BACKEND_COMM until the caller has delivered the result. */
static bool is_uncollected(const pp_handle_t *handle)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    return preduce->config.backend == PP_BACKEND_COMM ? preduce->undelivered : handle->request.state != PP_IDLE;
}

static pp_device_wait_t device_wait(const pp_preduce_t *preduce)
{
    if (preduce->on_its_way)
        return PP_CONTRIBUTION_ON_ITS_WAY;
    const pp_handle_ops_t *ops = preduce->handle.ops;
    return ops && ops->on_device && ops->on_device(&preduce->handle) ? PP_DEVICE_PART : PP_WAITS_FOR_NO_DEVICE;
}

void pp_preduce_describe_rank(pp_handle_t *handle, pp_rank_state_t *state)
{
    state->completed = pp_preduce_of(handle)->requests;
    state->device_wait = device_wait(pp_preduce_of(handle));
    state->joined = state->taken = state->completed;
    state->quiet_ns = pp_patience_quiet_ns(handle);
    state->ready = state->waits = pp_handle_waits(handle);
    state->left = pp_handle_left(handle);
    state->aside = pp_handle_aside(handle);
}

void pp_preduce_explain(pp_handle_t *handle, pp_text_t *text)
{
    pp_preduce_t          *preduce = pp_preduce_of(handle);
    const pp_device_wait_t wait = device_wait(preduce);
    if (wait == PP_CONTRIBUTION_ON_ITS_WAY) {
        pp_text_add(text, "this rank has not asked for a group yet: what it gives is on its way from its device\n");
        return;
    }
    if (wait == PP_DEVICE_PART)
        pp_text_add(text, "this rank's device has yet to do its part of a round\n");
    handle->ops->explain(handle, text);
}

uint64_t pp_preduce_next_round(const pp_handle_t *handle) { return pp_preduce_of(handle)->requests; }

/* The number says nothing of this rank's groups.  A group that is complete at a member has begun at all of them. */
bool pp_preduce_is_behind(const pp_handle_t *handle, uint64_t round)
{
    return (void)round, !handle->ops->retired(handle);
}

static const pp_handle_kind_t kind = {
    PP_PREDUCE_PARTS, .init = "Preduce_init", .update = update, .sign = sign, .open = pp_preduce_open, .tick = tick,
    .is_uncollected = is_uncollected,
};

bool pp_is_preduce(const pp_handle_t *handle) { return handle->kind == &kind; }

/* ---- a new handle ---------------------------------------------------------------------------------------------- */

static uint64_t hash(const int32_t *table, size_t entries)
{
    uint64_t hashed = entries;
    for (size_t i = 0; i < entries; i++)
        hashed = pp_mix(hashed, (uint64_t)table[i]);
    return hashed;
}

static pp_status_t copy_table(pp_preduce_t *preduce, const pp_preduce_config_t *config, int32_t ranks)
{
    pp_groups_plan_t plan = config->plan;
    plan.ranks = ranks;
    const size_t entries = pp_groups_table_entries(&plan, config->table);
    preduce->config.table = NULL;
    if (entries == 0)
        return PP_OK;
    int32_t *table = malloc(entries * sizeof *table);
    if (!table)
        return pp_fail(PP_ERR_MEMORY, "no memory for a table of %zu entries", entries);
    memcpy(table, config->table, entries * sizeof *table);
    preduce->config.table = table;
    preduce->table_hash = hash(table, entries);
    return PP_OK;
}

/* The initial model, or the model, is what the application's buffers hold now.  What buffers on a device hold comes
   later. */
static pp_status_t copy_initial(pp_preduce_t *preduce)
{
    const bool keeps = preduce->config.plan.weights == PP_WEIGHTS_INITIAL && preduce->config.backend != PP_BACKEND_COMM;
    if (!keeps && !preduce->models)
        return PP_OK;
    const pp_memory_t *memory = preduce->kernels.memory;
    PP_TRY(memory->allocate(memory, preduce->vector_bytes + 1, &preduce->initial));
    if (preduce->config.device == 0)
        pp_preduce_load(preduce, preduce->initial);
    return PP_OK;
}

pp_status_t pp_preduce_configure(pp_preduce_t *preduce, const pp_preduce_config_t *config, int32_t ranks)
{
    pp_piece_t *pieces = calloc(config->piece_count + 1, sizeof *pieces);
    preduce->config = *config;
    preduce->config.pieces = pieces;
    preduce->config.table = NULL;
    if (!pieces)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle of %zu pieces", config->piece_count);
    for (size_t i = 0; i < config->piece_count; i++) {
        pieces[i] = config->pieces[i];
        preduce->count += pieces[i].count;
    }
    preduce->config.plan.ranks = 0;
    preduce->config.plan.seed = 0;   /* are the context's */
    snprintf(preduce->generator_text, sizeof preduce->generator_text, "%s",
             config->generator_text ? config->generator_text : "of a generator");
    preduce->config.generator_text = NULL;
    PP_TRY(pp_kernels_find(PP_SUM, config->type, &preduce->kernels));
    preduce->kernels.users = pp_memory_of(config->memory);
    preduce->vector_bytes = preduce->count * preduce->kernels.element_bytes;
    PP_TRY(copy_table(preduce, config, ranks));
    return copy_initial(preduce);
}

pp_status_t pp_preduce_new(pp_team_t *team, const pp_preduce_config_t *config, pp_handle_t **out)
{
    pp_preduce_t *preduce = calloc(1, sizeof *preduce);
    *out = NULL;
    if (!preduce)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    preduce->handle = (pp_handle_t){.kind = &kind, .team = team};
    pp_status_t status = config ? pp_preduce_configure(preduce, config, team->engine->size) : PP_OK;
    if (status < 0)
        pp_handle_release(&preduce->handle);
    else
        *out = &preduce->handle;
    return status;
}
