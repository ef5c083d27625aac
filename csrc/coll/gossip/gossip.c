/* gossip.c - gossip as a kind of handle, and what groups ask of its models.  See gossip.h. */
#include "gossip.h"

#include <stdlib.h>
#include <string.h>

/* A rank's vectors: the model, two slots, and a copy of the model for the application. */
enum { MODEL, SLOT, RESULT = SLOT + 2, VECTORS };

static const pp_handle_kind_t kind;

bool pp_is_gossip(const pp_handle_t *handle) { return handle->kind == &kind; }

static pp_gossip_seat_t *seat_of(const shared_t *shared, int32_t rank)
{
    return (pp_gossip_seat_t *)shared->seats + rank;
}

static pp_gossip_seat_t *own_seat(const pp_gossip_t *gossip)
{
    return seat_of(gossip->base.shared, gossip->base.shared->me);
}

/* ---- models: under the lock ----------------------------------------------------------------------------------- */

/* Of every fifth average of two a planted defect makes something else. */
static bool goes_wrong(const pp_preduce_t *preduce, const pp_groups_action_t *action, int32_t plant)
{
    return pp_engine_has(preduce->handle.engine, plant) && action->count == 2 && action->serial % 5 == 0;
}

/* The offset of what a group adds to a member's model; 0: nothing. */
static uint64_t take(pp_gossip_seat_t *seat)
{
    if (!seat->filled)
        return 0;
    seat->filled = false;
    seat->open = !seat->open;
    return seat->slots[!seat->open];
}

static bool begin(pp_preduce_t *preduce, const pp_groups_action_t *action, uint64_t *adds, uint64_t *results)
{
    shared_t  *shared = preduce->shared;
    const bool flush = action->kind == PP_GROUPS_FLUSH;
    for (int32_t i = 0; i < action->count; i++) {
        pp_gossip_seat_t *seat = seat_of(shared, action->members[i]);
        const bool        wanted = flush || (action->goals[i] && seat->wants == PP_WANTS_AVERAGE);
        adds[i] = take(seat);
        if (adds[i] && goes_wrong(preduce, action, PP_PLANT_LOST_ADD))
            adds[i] = 0;
        else if (adds[i] && goes_wrong(preduce, action, PP_PLANT_OTHER_SLOT))
            adds[i] = seat->slots[seat->open];
        else if (!wanted && goes_wrong(preduce, action, PP_PLANT_MEMBER_TWICE))
            adds[i] = shared->desks[action->members[i]].vector;
        results[i] = wanted ? seat->result : 0;
        seat->averages += action->count > 1;
        seat->given = wanted ? seat->averages : seat->given;
    }
    pp_gossip_seat_t *seat = seat_of(shared, action->members[0]);
    if (flush || action->count > 1 || seat->wants != PP_WANTS_MODEL)
        return true;
    seat->held = action->serial;
    seat->held_add = adds[0];
    pp_jobs_answer(shared, action->members[0]);    /* what the desk says stays as it was */
    return false;
}

static bool complete(pp_preduce_t *preduce, int32_t rank)
{
    return seat_of(preduce->shared, rank)->wants == PP_WANTS_AVERAGE;
}

static const pp_group_models_t models = {
    .vectors = VECTORS, .seat_bytes = sizeof(pp_gossip_seat_t), .begin = begin, .complete = complete,
};

/* ---- Start ---------------------------------------------------------------------------------------------------- */

/* A simulation hears when something is in the open slot (0), and when that is not to be taken (1). */
static void let_hear(const pp_gossip_t *gossip, uint64_t what)
{
    const pp_groups_action_t action = {.kind = PP_GROUPS_ALONE, .rank = gossip->base.shared->me, .serial = what};
    pp_preduce_overheard(&gossip->base, &action);
}

bool pp_gossip_adds_at_once(const pp_gossip_t *gossip)
{
    return pp_jobs_are_small(gossip->base.shared, gossip->base.vector_bytes);
}

static void *open_slot(const pp_gossip_t *gossip)
{
    const pp_gossip_seat_t *seat = own_seat(gossip);
    return pp_node_at(gossip->base.shared->node, seat->slots[seat->open]);
}

void *pp_gossip_open_slot(pp_gossip_t *gossip, bool *filled)
{
    pp_gossip_seat_t *seat = own_seat(gossip);
    if (!pp_shared_groups_lock(&gossip->base))
        return NULL;
    *filled = seat->filled;
    seat->filled = false;
    if (*filled)
        let_hear(gossip, 1);
    void *slot = open_slot(gossip);
    pp_shared_groups_unlock(&gossip->base);
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

/* The machine has ended the last request that this rank has let go of. */
static pp_status_t check_asks(pp_gossip_t *gossip)
{
    if (!pp_groups_asks(gossip->base.shared->machine, gossip->base.shared->me))
        return PP_OK;
    return pp_fail(PP_ERR_STATE, "a call for the model (locked() or Read), of another thread or interrupted, has not "
                   "ended yet: try again");
}

/* With the lock, which it releases. */
static pp_status_t ask(pp_gossip_t *gossip, pp_wish_for_t wants, uint64_t number)
{
    gossip->base.shared->handed_count = 0;
    own_seat(gossip)->wants = (uint8_t)wants;
    return pp_shared_groups_report_locked(&gossip->base, PP_GROUPS_START, number);
}

pp_status_t pp_gossip_ask(pp_gossip_t *gossip, bool asks)
{
    pp_preduce_t     *preduce = &gossip->base;
    pp_gossip_seat_t *seat = own_seat(gossip);
    if (!pp_shared_groups_lock(preduce))
        return pp_engine_check(preduce->handle.engine);
    pp_status_t status = asks ? check_asks(gossip) : PP_OK;
    if (status >= 0 && gossip->add) {
        if (pp_gossip_adds_at_once(gossip))
            pp_gossip_put(gossip, open_slot(gossip), seat->filled);
        seat->filled = true;
        let_hear(gossip, 0);
    }
    if (status >= 0 && asks) {
        gossip->staleness = seat->averages - seat->given;
        return ask(gossip, PP_WANTS_AVERAGE, preduce->iteration);
    }
    pp_shared_groups_unlock(preduce);
    return status;
}

const void *pp_gossip_result_at(const pp_gossip_t *gossip)
{
    const shared_t *shared = gossip->base.shared;
    return shared->user ? NULL : pp_node_at(shared->node, own_seat(gossip)->result);
}

/* ---- the model itself ----------------------------------------------------------------------------------------- */

pp_status_t pp_gossip_ask_to_hold(pp_gossip_t *gossip)
{
    pp_preduce_t *preduce = &gossip->base;
    if (!pp_shared_groups_lock(preduce))
        return pp_engine_check(preduce->handle.engine);
    pp_status_t status = check_asks(gossip);
    if (status < 0) {
        pp_shared_groups_unlock(preduce);
        return status;
    }
    gossip->answers = preduce->shared->answered;
    status = ask(gossip, PP_WANTS_MODEL, PP_GROUPS_BY_ITSELF);
    if (status >= 0)
        gossip->hold = PP_ASKS_TO_HOLD;
    return status;
}

bool pp_gossip_may_hold(const pp_gossip_t *gossip) { return gossip->base.shared->answered != gossip->answers; }

void *pp_gossip_model(const pp_gossip_t *gossip)
{
    const shared_t *shared = gossip->base.shared;
    return pp_node_at(shared->node, pp_vectors_of(shared, shared->me));
}

void pp_gossip_fold(const pp_gossip_t *gossip)
{
    const shared_t *shared = gossip->base.shared;
    const uint64_t  model = pp_vectors_of(shared, shared->me), add = own_seat(gossip)->held_add;
    const pp_mean_t mean = {.vectors = &model, .count = 1, .adds = &add};
    if (add)
        pp_mean(shared->node, &gossip->base.kernels, &mean, 0, gossip->base.count);
}

/* Where the model has not come yet, its group then has nothing to do. */
pp_status_t pp_gossip_let_go(pp_gossip_t *gossip)
{
    pp_preduce_t     *preduce = &gossip->base;
    pp_gossip_seat_t *seat = own_seat(gossip);
    gossip->hold = PP_HOLDS_NOTHING;
    if (!pp_shared_groups_lock(preduce))
        return pp_engine_check(preduce->handle.engine);
    if (seat->held) {
        const uint64_t group = seat->held;
        seat->held = 0;
        return pp_shared_groups_report_locked(preduce, PP_GROUPS_FINISH, group);
    }
    seat->wants = PP_WANTS_NOTHING;
    pp_shared_groups_unlock(preduce);
    return PP_OK;
}

/* ---- the kind ------------------------------------------------------------------------------------------------- */

static pp_status_t sign(pp_handle_t *handle, pp_signature_t *signature)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    struct {
        uint64_t count, edges, layout;
        int32_t  type, plant;
    } key = {.count = preduce->count, .edges = preduce->table_hash, .layout = pp_gossip_of(handle)->layout,
             .type = preduce->config.type, .plant = preduce->config.plan.plant};
    _Static_assert(sizeof key <= PP_SIGNATURE_BYTES, "the signature must hold every argument");
    memcpy(signature->bytes, &key, sizeof key);
    snprintf(signature->text, sizeof signature->text, "gossip of %llu elements of %s, shapes and order %08x, on the "
             "graph %s (%08x)", (unsigned long long)preduce->count, pp_type_name(preduce->config.type),
             (unsigned)key.layout, preduce->generator_text, (unsigned)preduce->table_hash);
    return PP_OK;
}

static pp_status_t open_handle(pp_handle_t *handle, const pp_agreed_t *agreed)
{
    pp_gossip_t *gossip = pp_gossip_of(handle);
    PP_TRY(pp_preduce_open(handle, agreed));
    const shared_t   *shared = gossip->base.shared;
    pp_gossip_seat_t *seat = own_seat(gossip);
    const uint64_t    own = pp_vectors_of(shared, shared->me);
    for (int i = 0; i < 2; i++)
        seat->slots[i] = own + (uint64_t)(SLOT + i) * shared->stride;
    seat->result = shared->user ? shared->user : own + RESULT * shared->stride;
    handle->waits_as_mpi = true;     /* nobody waits for a rank that computes, so there is no patience */
    /* From here on the others may average it. */
    return pp_shared_groups_report(&gossip->base, PP_GROUPS_FINISH, (uint64_t)shared->me + 1);
}

static void update(pp_handle_t *handle) { pp_preduce_say(pp_preduce_of(handle)); }

static uint64_t tick(pp_handle_t *handle, uint64_t now_ns) { return (void)handle, (void)now_ns, PP_NEVER_NS; }

static const pp_handle_kind_t kind = {
    PP_PREDUCE_PARTS, .init = "Gossip_init", .update = update, .sign = sign, .open = open_handle, .tick = tick,
    .needs_region = true,
};

/* ---- a new handle --------------------------------------------------------------------------------------------- */

static pp_status_t check(const pp_team_t *team, const pp_preduce_config_t *config)
{
    if (!team->engine->node || team->engine->nodes)
        return pp_fail(PP_ERR_ARGUMENT, "gossip between nodes, or without memory that the ranks share, is not there "
                       "yet");
    return pp_preduce_check(team, config);
}

pp_status_t pp_gossip_new(pp_team_t *team, const pp_gossip_config_t *config, pp_handle_t **out)
{
    const int32_t ranks = team->engine->size;
    *out = NULL;
    pp_preduce_config_t groups = {.backend = PP_BACKEND_NODE};
    if (config) {
        groups.pieces = config->pieces;
        groups.piece_count = config->piece_count;
        groups.type = config->type;
        groups.memory = config->memory;
        groups.table = config->edges;
        groups.generator_text = config->topology_text;
        groups.plan = (pp_groups_plan_t){.generator = pp_generator_number("neighbour"), .size = ranks > 1 ? 2 : 1,
                                         .weights = PP_WEIGHTS_CONSTANT, .plant = config->plant};
        PP_TRY(check(team, &groups));
    }
    pp_gossip_t *gossip = calloc(1, sizeof *gossip);
    if (!gossip)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    gossip->base.handle = (pp_handle_t){.kind = &kind, .team = team};
    gossip->base.models = &models;
    gossip->layout = config ? config->layout : 0;
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
