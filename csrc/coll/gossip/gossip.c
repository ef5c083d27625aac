/* gossip.c - gossip as a kind of handle, and what Start and locked() do in both ways.  See gossip.h. */
#include "gossip.h"

#include <stdlib.h>
#include <string.h>

static const pp_handle_kind_t kind;

bool pp_is_gossip(const pp_handle_t *handle) { return handle->kind == &kind; }

/* ---- Start ---------------------------------------------------------------------------------------------------- */

/* A simulation hears when something is in the open slot (0), and when that is not to be taken (1). */
static void let_hear(const pp_gossip_t *gossip, uint64_t what)
{
    const pp_groups_action_t action = {.kind = PP_GROUPS_ALONE, .rank = gossip->base.handle.engine->rank,
                                       .serial = what};
    pp_preduce_overheard(&gossip->base, &action);
}

static void *open_slot(const pp_gossip_t *gossip) { return gossip->slots[gossip->seat->open]; }

void *pp_gossip_open_slot(pp_gossip_t *gossip, bool *filled)
{
    pp_gossip_seat_t *seat = gossip->seat;
    if (!gossip->way->lock(&gossip->base))
        return NULL;
    *filled = seat->filled;
    seat->filled = false;
    if (*filled)
        let_hear(gossip, 1);
    void *slot = open_slot(gossip);
    gossip->way->unlock(&gossip->base);
    return slot;
}

void pp_gossip_put(const pp_gossip_t *gossip, void *slot, bool filled)
{
    const pp_kernels_t *kernels = &gossip->base.kernels;
    char               *at = slot;
    for (size_t i = 0; i < gossip->base.config.piece_count; i++) {
        const pp_piece_t *piece = &gossip->add[i];
        (filled ? kernels->users->load_combined : kernels->users->load)(kernels, at, piece->recv, piece->count);
        at += piece->count * kernels->element_bytes;
    }
}

static pp_status_t check_asks(const pp_gossip_t *gossip)
{
    if (!gossip->way->asks(gossip))
        return PP_OK;
    return pp_fail(PP_ERR_STATE, "a call for the model (locked() or Read), of another thread or interrupted, has not "
                   "ended yet: try again");
}

pp_status_t pp_gossip_ask(pp_gossip_t *gossip, bool asks)
{
    pp_preduce_t     *preduce = &gossip->base;
    pp_gossip_seat_t *seat = gossip->seat;
    if (!gossip->way->lock(preduce))
        return pp_engine_check(preduce->handle.engine);
    const bool  delays = asks && gossip->continuous.are_on && gossip->way->asks(gossip);
    pp_status_t status = asks && !delays ? check_asks(gossip) : PP_OK;
    if (status >= 0 && gossip->add) {
        if (gossip->adds_at_once)
            pp_gossip_put(gossip, open_slot(gossip), seat->filled);
        seat->filled = true;
        let_hear(gossip, 0);
    }
    if (status >= 0 && asks) {
        gossip->staleness = seat->averages - seat->given;
        gossip->continuous.delays = delays;
        if (!delays) {
            seat->wants = PP_WANTS_AVERAGE;
            return gossip->way->ask(gossip, gossip->continuous.are_on, true);
        }
    }
    gossip->way->unlock(preduce);
    return status;
}

bool pp_gossip_asks(pp_gossip_t *gossip)
{
    if (!gossip->way->lock(&gossip->base))
        return false;
    const bool asks = gossip->way->asks(gossip);
    gossip->way->unlock(&gossip->base);
    return asks;
}

/* ---- averages that go on by themselves (AD-PSGD, Appendix A) --------------------------------------------------- */

/* Between two of them this rank rests PACE times as long as one takes: the core is left to threads that compute. */
enum { PACE = 3, LEAST_REST_NS = 100000, LOOK_NS = 100000 };

/* When one is over, a request that was started meanwhile comes first. */
static void average_on(pp_gossip_t *gossip)
{
    pp_preduce_t  *preduce = &gossip->base;
    pp_engine_t   *engine = preduce->handle.engine;
    const uint64_t now = pp_engine_now(engine);
    if (!gossip->continuous.are_on || preduce->ended || engine->error)
        return;
    if (pp_gossip_asks(gossip)) {
        pp_engine_alarm(engine, now + LOOK_NS);
        return;
    }
    if (gossip->continuous.under_way) {
        const uint64_t rest = PACE * (now - gossip->continuous.begun_ns);
        gossip->continuous.under_way = false;
        gossip->continuous.next_ns = now + (rest > LEAST_REST_NS ? rest : LEAST_REST_NS);
    }
    const bool delays = gossip->continuous.delays;
    if (!delays && (preduce->said != PP_GROUPS_HERE || gossip->hold != PP_HOLDS_NOTHING
                    || pp_handle_waits(&preduce->handle)))
        return;
    if (!delays && now < gossip->continuous.next_ns) {
        pp_engine_alarm(engine, gossip->continuous.next_ns);
        return;
    }
    if (!gossip->way->lock(preduce))
        return;
    gossip->continuous.delays = false;
    gossip->continuous.under_way = !delays;
    gossip->continuous.begun_ns = now;
    preduce->iteration += !delays;
    gossip->seat->wants = delays ? PP_WANTS_AVERAGE : PP_WANTS_NOTHING;
    pp_engine_alarm(engine, now + LOOK_NS);
    if (gossip->way->ask(gossip, delays, false) < 0)
        pp_engine_fail(engine, PP_ERR_INTERNAL, "%s", pp_error_text());
}

/* ---- the model itself ----------------------------------------------------------------------------------------- */

pp_status_t pp_gossip_ask_to_hold(pp_gossip_t *gossip)
{
    if (!gossip->way->lock(&gossip->base))
        return pp_engine_check(gossip->base.handle.engine);
    pp_status_t status = check_asks(gossip);
    if (status < 0) {
        gossip->way->unlock(&gossip->base);
        return status;
    }
    gossip->seat->wants = PP_WANTS_MODEL;
    status = gossip->way->ask_to_hold(gossip);
    if (status >= 0)
        gossip->hold = PP_ASKS_TO_HOLD;
    return status;
}

/* The slot that the group has taken is the one that is not open. */
void pp_gossip_fold(const pp_gossip_t *gossip)
{
    const pp_kernels_t *kernels = &gossip->base.kernels;
    if (gossip->seat->held_add)
        kernels->memory->keep_left(kernels, gossip->way->model(gossip), gossip->slots[!gossip->seat->open],
                                   gossip->base.count);
}

/* Where the model has not come yet, its group then has nothing to do. */
pp_status_t pp_gossip_let_go(pp_gossip_t *gossip)
{
    gossip->hold = PP_HOLDS_NOTHING;
    if (!gossip->way->lock(&gossip->base))
        return pp_engine_check(gossip->base.handle.engine);
    if (gossip->seat->held)
        return gossip->way->let_go(gossip);
    gossip->seat->wants = PP_WANTS_NOTHING;
    gossip->way->unlock(&gossip->base);
    return PP_OK;
}

/* ---- the kind ------------------------------------------------------------------------------------------------- */

static pp_status_t sign(pp_handle_t *handle, pp_signature_t *signature)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    struct {
        uint64_t count, edges, layout, continuous;    /* no padding: all bytes are compared */
        int32_t  type, plant;
    } key = {.count = preduce->count, .edges = preduce->table_hash, .layout = pp_gossip_of(handle)->layout,
             .type = preduce->config.type, .plant = preduce->config.plan.plant,
             .continuous = pp_gossip_of(handle)->is_continuous};
    _Static_assert(sizeof key <= PP_SIGNATURE_BYTES, "the signature must hold every argument");
    memcpy(signature->bytes, &key, sizeof key);
    snprintf(signature->text, sizeof signature->text, "gossip of %llu elements of %s, %s (%08x)",
             (unsigned long long)preduce->count, pp_type_name(preduce->config.type), preduce->generator_text,
             (unsigned)preduce->table_hash);
    return PP_OK;
}

static pp_status_t open_handle(pp_handle_t *handle, const pp_agreed_t *agreed)
{
    PP_TRY(pp_preduce_open(handle, agreed));
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    const int32_t      *starts = preduce->config.table + handle->engine->rank;
    pp_gossip_of(handle)->continuous.are_on = pp_gossip_of(handle)->is_continuous && starts[0] < starts[1];
    handle->waits_as_mpi = true;     /* nobody waits for a rank that computes, so there is no patience */
    pp_handle_keep_in_step(handle, false);
    return agreed->region ? pp_gossip_open_in_memory(pp_gossip_of(handle)) : PP_OK;
}

static void update(pp_handle_t *handle)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    preduce->ops->go_on(preduce);
    pp_preduce_say(preduce);
    average_on(pp_gossip_of(handle));
}

static uint64_t tick(pp_handle_t *handle, uint64_t now_ns) { return (void)handle, (void)now_ns, PP_NEVER_NS; }

static const pp_handle_kind_t kind = {
    PP_PREDUCE_PARTS, .init = "Gossip_init", .update = update, .sign = sign, .open = open_handle, .tick = tick,
};

/* ---- a new handle --------------------------------------------------------------------------------------------- */

pp_status_t pp_gossip_new(pp_team_t *team, const pp_gossip_config_t *config, pp_handle_t **out)
{
    const int32_t ranks = team->engine->size;
    *out = NULL;
    pp_preduce_config_t groups = {.backend = PP_BACKEND_AUTO};
    if (config) {
        groups.pieces = config->pieces;
        groups.piece_count = config->piece_count;
        groups.type = config->type;
        groups.memory = config->memory;
        groups.table = config->edges;
        groups.generator_text = config->topology_text;
        groups.plan = (pp_groups_plan_t){.generator = pp_generator_number("neighbour"), .size = ranks > 1 ? 2 : 1,
                                         .weights = PP_WEIGHTS_CONSTANT, .plant = config->plant};
        PP_TRY(pp_preduce_check(team, &groups));
    }
    pp_gossip_t *gossip = calloc(1, sizeof *gossip);
    if (!gossip)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    gossip->base.handle = (pp_handle_t){.kind = &kind, .team = team};
    gossip->base.models = &pp_gossip_in_memory;
    gossip->layout = config ? config->layout : 0;
    gossip->is_continuous = config && config->continuous;
    pp_status_t status = config ? pp_preduce_configure(&gossip->base, &groups, ranks) : PP_OK;
    if (status < 0)
        pp_handle_release(&gossip->base.handle);
    else
        *out = &gossip->base.handle;
    return status;
}

pp_status_t pp_gossip_add(pp_gossip_t *gossip, const pp_piece_t *pieces, size_t count)
{
    const pp_preduce_config_t *config = &gossip->base.config;
    bool                       same = count == config->piece_count;
    for (size_t i = 0; same && i < count; i++)
        same = pieces[i].count == config->pieces[i].count;
    gossip->add = pieces;
    return same ? PP_OK : pp_fail(PP_ERR_ARGUMENT, "the buffers are not as many, and as long, as those of the handle");
}
