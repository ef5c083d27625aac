/* allreduce.c - a partial allreduce as a kind of handle: its arguments, and the choice how its rounds are made. */
#include "allreduce.h"
#include "../patience.h"
#include "time.h"

#include "../../algo/choose.h"

#include <stdlib.h>
#include <string.h>

/* ---- arguments ---------------------------------------------------------------------------------------- */

/* The algorithm that this rank would choose, and why; rank 0's choice counts. */
static pp_status_t choose(const pp_allreduce_t *coll, pp_choice_t *choice)
{
    const pp_team_t *team = coll->handle.team;
    const pp_engine_t *engine = team->engine;
    *choice = (pp_choice_t){.algorithm = coll->config.algorithm, .reason = PP_REASON_ASKED};
    if (coll->config.algorithm != PP_ALGORITHM_AUTO)
        return PP_OK;
    return pp_choose(team->tuned, team->tuned_count, coll->count, pp_accumulator_bytes(coll->config.type),
                     engine->nodes ? engine->nodes->count : engine->size, team->link, choice);
}

/* The policy as the application writes it. */
static void name_policy(const pp_allreduce_config_t *config, int32_t size, char *name, size_t bytes)
{
    pp_rule_t rule = pp_rule_make(config->policy, config->policy_k, size, config->deadline_ns > 0, 0);
    if (config->policy_text)
        snprintf(name, bytes, "%s", config->policy_text);
    else
        rule.policy->spell(&rule, name, bytes);
}

static void say_arguments(const pp_allreduce_t *coll, char *text, size_t bytes)
{
    static const char *const delivers[] = {"latest", "sum", "each"};
    static const char *const averages[] = {"None", "size", "contributors", "contributions"};
    const pp_allreduce_config_t *config = &coll->config;
    char policy[96], max_lag[16] = "None";
    name_policy(config, coll->handle.team->engine->size, policy, sizeof policy);
    if (config->max_lag >= 0)
        snprintf(max_lag, sizeof max_lag, "%d", config->max_lag);
    snprintf(text, bytes, "%llu elements of %s%s, op %s, policy %s, deliver=%s, max_lag=%s, average=%s, algorithm=%s%s",
             (unsigned long long)coll->count, pp_type_name(config->type),
             config->device > 0 ? " in the memory of a device" : "", pp_op_name(config->op), policy,
             delivers[config->deliver], max_lag, averages[config->average], pp_algorithm_name(config->algorithm),
             pp_team_path_text(config->device_path));
}

static pp_status_t sign(pp_handle_t *handle, pp_signature_t *signature)
{
    const pp_allreduce_t *coll = pp_allreduce_of(handle);
    const pp_allreduce_config_t *config = &coll->config;
    pp_choice_t choice;
    struct {
        uint64_t count;
        int64_t  deadline_ns, grace_ns;
        int32_t  type, op, policy, policy_k, deliver, max_lag, average, algorithm, segments, buffers;
    } key = {
        .count = coll->count, .type = config->type, .op = config->op, .policy = config->policy,
        .policy_k = config->policy_k, .deliver = config->deliver, .max_lag = config->max_lag < 0 ? -1 : config->max_lag,
        .average = config->average, .algorithm = config->algorithm, .segments = config->segments,
        .buffers = pp_team_buffers_key(config->device, config->device_path),
        .deadline_ns = config->deadline_ns, .grace_ns = config->grace_ns < 0 ? -1 : config->grace_ns,
    };
    _Static_assert(sizeof key <= PP_SIGNATURE_BYTES, "the signature must hold every argument");
    _Static_assert(sizeof key == 3 * sizeof(uint64_t) + 10 * sizeof(int32_t), "padding would differ on every rank");
    PP_TRY(choose(coll, &choice));
    signature->choice = choice.algorithm;
    signature->reason = choice.reason;
    memcpy(signature->bytes, &key, sizeof key);
    say_arguments(coll, signature->text, sizeof signature->text);
    return PP_OK;
}

/* ---- making and releasing ------------------------------------------------------------------------------ */

static uint64_t reserve(pp_handle_t *handle) { return pp_board_rounds_reserve(pp_allreduce_of(handle)); }

static void unreserve(pp_handle_t *handle, uint64_t region)
{
    pp_board_rounds_unreserve(pp_allreduce_of(handle), region);
}

static pp_rule_t rule_of(const pp_allreduce_t *coll)
{
    const pp_engine_t *engine = coll->handle.engine;
    return pp_rule_make(coll->config.policy, coll->config.policy_k, engine->size, coll->config.deadline_ns > 0,
                        pp_mix(engine->seed, coll->handle.id));
}

/* A round in lockstep waits for every rank anyway.  Unasked, the library gives a grace only where ranks are drawn, so
   that a single one may trigger. */
static uint64_t grace_of(const pp_allreduce_t *coll)
{
    if (coll->config.grace_ns < 0)
        return coll->rule.drawn > 0 ? PP_GRACE_AUTO : 0;
    return coll->rule.lockstep ? 0 : (uint64_t)coll->config.grace_ns;
}

/* Whether vectors are in memory of the handle's own kind: that of rounds in memory that ranks share is not. */
static bool takes_own(pp_allreduce_t *coll, const pp_agreed_t *agreed)
{
    pp_wish_t *wish = coll->handle.wish;
    if (!coll->own || !wish->granted)
        return false;
    wish->granted = !agreed->region;
    if (agreed->region)
        snprintf(wish->why, sizeof wish->why, "the rounds are made in memory that the ranks of a node share: "
                 "transport=\"mpi\" makes them of messages");
    return wish->granted;
}

static pp_status_t open_handle(pp_handle_t *handle, const pp_agreed_t *agreed)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_kernels_t kernels;
    coll->reason = agreed->reason;
    coll->max_lag = coll->config.max_lag < 0 ? PP_UNBOUNDED : (uint64_t)coll->config.max_lag;
    coll->deadline_ns = (uint64_t)coll->config.deadline_ns;
    handle->team->timed |= coll->config.deadline_ns > 0 || coll->config.grace_ns > 0;
    coll->rule = rule_of(coll);
    coll->grace_ns = grace_of(coll);
    coll->bounded = coll->max_lag != PP_UNBOUNDED && !coll->rule.lockstep;
    handle->waits_as_mpi = coll->rule.lockstep;
    PP_TRY(pp_kernels_find(coll->config.op, coll->config.type, &kernels));
    kernels.users = takes_own(coll, agreed) ? coll->own : pp_memory_of(coll->config.memory);
    PP_TRY(!agreed->region                 ? pp_messages_open(coll, agreed, &kernels)
           : !handle->engine->nodes        ? pp_board_rounds_open(coll, agreed, &kernels)
                                           : pp_leader_open(coll, agreed, &kernels));
    coll->series.setting.drawn = coll->rule.drawn > 0;
    return PP_OK;
}

static void empty(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    if (coll->series.engine) {
        pp_deliver_drop_request(coll);
        for (pp_outcome_t *outcome; (outcome = pp_deliver_pop(coll));)
            pp_outcome_free(coll, outcome);
    }
    if (handle->staging)
        handle->end_staging(handle);
    if (coll->ops)
        coll->ops->close(coll);
    pp_series_close(&coll->series);
    pp_outcome_free_all(coll);
    if (coll->own)
        coll->own->end(coll->own);
    free((void *)coll->config.pieces);
}

/* ---- what the engine and collective calls ask ------------------------------------------------------------ */

static void update(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    coll->ops->update(coll);
    pp_round_time_update(coll);
}

static void drop_request(pp_handle_t *handle)
{
    pp_round_time_returned(pp_allreduce_of(handle));
    pp_deliver_drop_request(pp_allreduce_of(handle));
}

static void give(pp_handle_t *handle) { pp_deliver_bind(pp_allreduce_of(handle)); }
static bool drains(const pp_handle_t *handle) { return pp_allreduce_of(handle)->config.deliver == PP_EACH; }
static uint64_t tick(pp_handle_t *handle, uint64_t now_ns) { return pp_round_time_tick(pp_allreduce_of(handle), now_ns); }
static bool can_give(const pp_handle_t *handle) { return pp_allreduce_of(handle)->ungiven; }

static uint64_t discard(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    return coll->ops->discard(coll);
}

static bool in_mid_round(const pp_handle_t *handle)
{
    const pp_allreduce_t *coll = pp_allreduce_of(handle);
    return coll->ops->in_mid_round(coll);
}

/* ---- questions --------------------------------------------------------------------------------------------- */

static pp_device_wait_t device_wait(const pp_allreduce_t *coll)
{
    if (coll->on_their_way > 0)
        return PP_CONTRIBUTION_ON_ITS_WAY;
    return coll->handle.ops->on_device && coll->handle.ops->on_device(&coll->handle) ? PP_DEVICE_PART : PP_WAITS_FOR_NO_DEVICE;
}

static void describe(pp_handle_t *handle, pp_rank_state_t *state)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_facts_t facts = coll->ops->facts(coll);
    pp_draw_verdict_t draw = pp_rule_draw(&facts);
    state->device_wait = device_wait(coll);
    state->completed = coll->completed;
    state->joined = coll->ops->joined(coll);
    state->taken = coll->ungiven && coll->ungiven->first < coll->counted ? coll->ungiven->first : coll->counted;
    state->quiet_ns = pp_patience_quiet_ns(handle);
    if (coll->rule.drawn > 0)
        state->place = pp_order_place(&coll->rule, coll->completed, coll->any_left_before ? coll->left_before : NULL,
                                      handle->engine->rank);
    state->waits = facts.waits;
    state->overdue = facts.waits && facts.overdue;
    state->ready = facts.ready;
    state->left = facts.left;
    state->aside = facts.aside;
    state->passes = draw == PP_DRAW_HANDED_ON || draw == PP_DRAW_LENT;
    state->withholding = coll->bounded && !pp_rounds_is_exempt(coll) && coll->completed >= pp_rounds_bound(coll);
    state->full = pp_deliver_is_full(coll);
}

static void explain(pp_handle_t *handle, pp_text_t *text)
{
    static const char *const texts[] = {
        [PP_WAITS_FOR_NO_DEVICE] = "",
        [PP_CONTRIBUTION_ON_ITS_WAY] = "this rank's contribution is on its way from its device\n",
        [PP_DEVICE_PART] = "this rank's device has yet to do its part of a round\n",
    };
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_text_add(text, "%s", texts[device_wait(coll)]);
    handle->ops->explain(handle, text);
}

static uint64_t next_round(const pp_handle_t *handle) { return pp_allreduce_of(handle)->completed; }
static bool is_behind(const pp_handle_t *handle, uint64_t round) { return pp_allreduce_of(handle)->completed < round; }

static const pp_handle_kind_t kind = {
    .init = "Allreduce_init", .update = update, .sign = sign, .reserve = reserve, .unreserve = unreserve,
    .open = open_handle, .empty = empty, .drop_request = drop_request, .give = give, .drains = drains,
    .can_give = can_give, .discard = discard, .in_mid_round = in_mid_round, .tick = tick, .describe = describe,
    .explain = explain, .next_round = next_round, .is_behind = is_behind,
};

bool pp_is_allreduce(const pp_handle_t *handle) { return handle->kind == &kind; }

pp_status_t pp_allreduce_new(pp_team_t *team, const pp_allreduce_config_t *config, pp_handle_t **out)
{
    pp_allreduce_t *coll = calloc(1, sizeof *coll);
    size_t pieces = config ? config->piece_count : 0;
    pp_piece_t *copy = calloc(pieces + 1, sizeof *copy);
    *out = NULL;
    if (!coll || !copy) {
        free(coll);
        free(copy);
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle of %zu pieces", pieces);
    }
    coll->handle = (pp_handle_t){.kind = &kind, .team = team};
    if (config)
        coll->config = *config;
    for (size_t i = 0; i < pieces; i++) {
        copy[i] = config->pieces[i];
        coll->count += copy[i].count;
    }
    coll->config.pieces = copy;
    *out = &coll->handle;
    return PP_OK;
}
