/* memory.c - gossip in the memory of a node, where P-Reduce's machine orders and excludes its groups.  See gossip.h. */
#include "gossip.h"

/* A rank's vectors: the model, two slots, and a copy of the model for the application. */
enum { MODEL, SLOT, RESULT = SLOT + 2, VECTORS };

static pp_gossip_seat_t *seat_of(const shared_t *shared, int32_t rank)
{
    return (pp_gossip_seat_t *)shared->seats + rank;
}

/* ---- models: under the lock ----------------------------------------------------------------------------------- */

static bool begin(pp_preduce_t *preduce, const pp_groups_action_t *action, uint64_t *adds, uint64_t *results)
{
    shared_t  *shared = preduce->shared;
    const bool flush = action->kind == PP_GROUPS_FLUSH;
    for (int32_t i = 0; i < action->count; i++) {
        pp_gossip_seat_t *seat = seat_of(shared, action->members[i]);
        const bool        wanted = flush || (action->goals[i] && seat->wants == PP_WANTS_AVERAGE);
        adds[i] = pp_gossip_take(preduce, seat, action, wanted, shared->desks[action->members[i]].vector);
        results[i] = wanted ? seat->result : 0;
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

const pp_group_models_t pp_gossip_in_memory = {
    .vectors = VECTORS, .seat_bytes = sizeof(pp_gossip_seat_t), .begin = begin, .complete = complete,
    .open = pp_gossip_open_paired,
};

/* ---- the way --------------------------------------------------------------------------------------------------- */

static bool asks(const pp_gossip_t *gossip)
{
    return pp_groups_asks(gossip->base.shared->machine, gossip->base.shared->me);
}

static pp_status_t ask(pp_gossip_t *gossip, bool by_itself, bool stays)
{
    gossip->base.shared->handed_count = 0;
    return pp_shared_groups_report_locked(&gossip->base, PP_GROUPS_START,
                                          by_itself ? PP_GROUPS_BY_ITSELF : gossip->base.iteration, stays);
}

static pp_status_t ask_to_hold(pp_gossip_t *gossip)
{
    gossip->base.shared->handed_count = 0;
    gossip->answers = gossip->base.shared->answered;
    return pp_shared_groups_report_locked(&gossip->base, PP_GROUPS_START, PP_GROUPS_BY_ITSELF, true);
}

static bool may_hold(const pp_gossip_t *gossip) { return gossip->base.shared->answered != gossip->answers; }

static pp_status_t let_go(pp_gossip_t *gossip)
{
    const uint64_t group = gossip->seat->held;
    gossip->seat->held = 0;
    return pp_shared_groups_report_locked(&gossip->base, PP_GROUPS_FINISH, group, false);
}

static void *model(const pp_gossip_t *gossip)
{
    const shared_t *shared = gossip->base.shared;
    return pp_node_at(shared->node, pp_vectors_of(shared, shared->me));
}

static const pp_gossip_way_t way = {
    .lock = pp_shared_groups_lock, .unlock = pp_shared_groups_unlock, .asks = asks, .ask = ask,
    .ask_to_hold = ask_to_hold, .let_go = let_go, .may_hold = may_hold, .model = model,
};

pp_status_t pp_gossip_open_in_memory(pp_gossip_t *gossip)
{
    const shared_t   *shared = gossip->base.shared;
    pp_gossip_seat_t *seat = gossip->seat = seat_of(shared, shared->me);
    const uint64_t    own = pp_vectors_of(shared, shared->me);
    gossip->way = &way;
    gossip->adds_at_once = pp_jobs_are_small(shared, gossip->base.vector_bytes);
    for (int i = 0; i < 2; i++) {
        seat->slots[i] = own + (uint64_t)(SLOT + i) * shared->stride;
        gossip->slots[i] = pp_node_at(shared->node, seat->slots[i]);
    }
    seat->result = shared->user ? shared->user : own + RESULT * shared->stride;
    gossip->result = shared->user ? NULL : pp_node_at(shared->node, seat->result);
    /* From here on the others may average it. */
    return pp_shared_groups_report(&gossip->base, PP_GROUPS_FINISH, (uint64_t)shared->me + 1);
}
