/*
 * policy.c - when a round is activated, and when this rank may give its part (design: "Triggering",
 * "Staleness bound").
 *
 * First of m.  All ranks draw the same order for a round.  The first m of it are drawn; a drawn rank
 * that cannot be waited for (it has left, or is pending here but waits elsewhere) sends a copy of the
 * draw to the next in the order, once a round, and keeps its own.  Ranks that the previous round lists
 * as left come last, so that a draw can still reach them when everybody else has left since.  (The list
 * only saves hops; above PP_CONTRIBUTORS_MAX ranks rounds have none, and a draw is handed on more often.)
 *
 * Quorum.  Ready and left ranks are counted along a tree to rank 0, which activates the round.
 * Quorum(P), the synchronous collective, needs no count: whoever is ready and waits activates the round,
 * and each rank gives its part when it is ready, or has left.
 */
#include "coll.h"

#include <stdlib.h>
#include <string.h>

enum { TREE_FANOUT = 16 };

bool pp_policy_is_full(const pp_coll_t *coll)
{
    return coll->config.policy == PP_QUORUM && coll->config.policy_k == coll->engine->size;
}

bool pp_policy_is_solo(const pp_coll_t *coll)
{
    return coll->config.policy == PP_FIRST_OF && coll->config.policy_k == coll->engine->size;
}

/* Does max_lag forbid this rank to give its part?  It is the slow rank that enforces the bound. */
bool pp_policy_bounded(const pp_coll_t *coll, const pp_turn_t *turn)
{
    bool exempt = pp_coll_left(coll) || pp_coll_elsewhere(coll);
    /* Our request will be given the next round that completes, which may count as given already. */
    uint64_t given = coll->counted;
    if (pp_coll_waits(coll) && given < coll->completed + 1)
        given = coll->completed + 1;
    /* A rank that Full has to wait for anyway is not held back by its bound. */
    bool awaited = pp_policy_is_full(coll) && !turn->ready;
    return !exempt && !awaited && turn->round >= given + coll->max_lag;
}

/* May this rank give its part of an activated round? */
bool pp_policy_permits(const pp_coll_t *coll, const pp_turn_t *turn)
{
    if (pp_policy_is_full(coll) && !turn->ready && !pp_coll_left(coll))
        return false;
    return !pp_policy_bounded(coll, turn);
}

static void trigger(pp_coll_t *coll, pp_turn_t *turn, pp_instance_t *instance, pp_cause_t cause)
{
    turn->triggered = turn->activated = true;
    turn->cause = cause;
    pp_instance_fire(instance, coll->series.graph->start);
}

/* ---- first of m ------------------------------------------------------------------------------------- */

int32_t pp_drawn(uint64_t seed, uint32_t handle, uint64_t round, int32_t ranks, int32_t place)
{
    return pp_permuted(pp_mix(seed, handle), round, ranks, place);
}

int32_t pp_policy_drawn_at(const pp_coll_t *coll, int32_t place)
{
    return pp_drawn(coll->engine->seed, coll->series.id, coll->completed, coll->engine->size, place);
}

/* Walks through the order until it comes behind this rank. */
static void find_behind_the_left(pp_coll_t *coll)
{
    const int32_t size = coll->engine->size;
    int32_t       position = 0, first = -1, last = -1;
    coll->successor = -1;
    for (int pass = 0; pass < 2 && coll->successor < 0; pass++)
        for (int32_t place = 0; place < size && coll->successor < 0; place++) {
            int32_t rank = pp_policy_drawn_at(coll, place);
            if (pp_mask_has(coll->left_before, rank) != (pass == 1))
                continue;
            if (first < 0)
                first = rank;
            if (last == coll->engine->rank)
                coll->successor = rank;
            if (rank == coll->engine->rank)
                coll->position = position;
            position++;
            last = rank;
        }
    if (coll->successor < 0)
        coll->successor = first;
}

static void draw_order(pp_coll_t *coll)
{
    const int32_t size = coll->engine->size;
    coll->ordered = true;
    if (coll->any_left_before) {
        find_behind_the_left(coll);
        return;
    }
    coll->position = pp_permuted_place(pp_mix(coll->engine->seed, coll->series.id), coll->completed, size,
                                       coll->engine->rank);
    coll->successor = pp_policy_drawn_at(coll, (coll->position + 1) % size);
}

bool pp_policy_drawn(pp_coll_t *coll)
{
    if (coll->config.policy != PP_FIRST_OF)
        return false;
    if (pp_policy_is_solo(coll))
        return true;
    if (!coll->ordered)
        draw_order(coll);
    return coll->position < coll->config.policy_k
        || (!coll->combine && pp_coll_turn(coll, coll->completed)->drawn);
}

static void hand_on(pp_coll_t *coll, pp_turn_t *turn)
{
    turn->handed_on = true;
    if (coll->engine->size == 1)
        return;
    if (coll->engine->plant == PP_PLANT_LOST_DRAW && turn->drawn && pp_coll_left(coll))
        return;
    pp_prefix_t message = {.kind = PP_MSG_DRAW, .handle = coll->series.id, .round = turn->round};
    coll->engine->coverage.draws_handed_on++;
    pp_engine_control(coll->engine, coll->successor, &message, sizeof message);
}

static void update_first_of(pp_coll_t *coll, pp_turn_t *turn, pp_instance_t *instance)
{
    if (pp_policy_is_solo(coll)) {
        if (pp_coll_waits(coll))
            trigger(coll, turn, instance, PP_CAUSE_POLICY);
        return;
    }
    if (!pp_policy_drawn(coll))
        return;
    bool own_draw = coll->position < coll->config.policy_k;
    if (pp_coll_waits(coll))
        trigger(coll, turn, instance, own_draw ? PP_CAUSE_POLICY : PP_CAUSE_DEPARTED);
    else if (!turn->handed_on
             && (pp_coll_left(coll)
                 || (coll->slot.contributions > 0 && pp_coll_elsewhere(coll))))
        hand_on(coll, turn);
}

/* ---- quorum ------------------------------------------------------------------------------------------ */

static pp_quorum_child_t count_subtree(const pp_coll_t *coll, const pp_turn_t *turn)
{
    const pp_engine_t *engine = coll->engine;
    pp_quorum_child_t sum = {.round = turn->round, .calls = engine->calls, .ready = turn->ready,
                             .left = !turn->ready && pp_coll_left(coll),
                             .waits = pp_coll_waits(coll)};
    for (int i = 0; i < TREE_FANOUT; i++) {
        const pp_quorum_child_t *child = &coll->children[i];
        if (child->round != turn->round)
            continue;
        sum.ready += child->ready;
        sum.waits |= child->waits;
        /* Towards a rank that has completed more calls, "left" is void. */
        if (child->calls == engine->calls)
            sum.left += child->left;
    }
    return sum;
}

static bool same_count(const pp_quorum_child_t *a, const pp_quorum_child_t *b)
{
    return a->round == b->round && a->ready == b->ready && a->left == b->left && a->waits == b->waits
        && (a->calls == b->calls || (a->left == 0 && b->left == 0));
}

static void report(pp_coll_t *coll, const pp_quorum_child_t *sum)
{
    pp_report_t message = {.prefix = {.kind = PP_MSG_REPORT, .handle = coll->series.id,
                                      .round = sum->round},
                           .ready = sum->ready, .left = sum->left, .waits = sum->waits};
    if (coll->reported.round != sum->round)
        coll->reported = (pp_quorum_child_t){.round = sum->round};
    if (same_count(&coll->reported, sum))
        return;
    coll->reported = *sum;
    pp_engine_control(coll->engine, (coll->engine->rank - 1) / TREE_FANOUT, &message.prefix,
                      sizeof message);
}

static void update_quorum(pp_coll_t *coll, pp_turn_t *turn, pp_instance_t *instance)
{
    if (pp_policy_is_full(coll)) {
        if (pp_coll_waits(coll))
            trigger(coll, turn, instance, PP_CAUSE_POLICY);
        return;
    }
    pp_quorum_child_t sum = count_subtree(coll, turn);
    if (coll->engine->rank != 0)
        report(coll, &sum);
    else if (sum.waits && (sum.ready >= (uint32_t)coll->config.policy_k
                           || sum.ready + sum.left == (uint32_t)coll->engine->size))
        trigger(coll, turn, instance, PP_CAUSE_POLICY);
}

/* ---- explaining ---------------------------------------------------------------------------------------- */

void pp_policy_explain(const pp_coll_t *coll, const pp_turn_t *turn, pp_text_t *text)
{
    const pp_engine_t *engine = coll->engine;
    if (coll->config.policy == PP_FIRST_OF && !pp_policy_is_solo(coll)) {
        pp_text_add(text, "drawn");
        for (int32_t place = 0; place < coll->config.policy_k; place++)
            pp_text_add(text, " %d", pp_drawn(engine->seed, coll->series.id, turn->round, engine->size,
                                              place));
        pp_text_add(text, ", then %d\n", pp_drawn(engine->seed, coll->series.id, turn->round, engine->size,
                                                  coll->config.policy_k));
    } else if (coll->config.policy == PP_QUORUM && !pp_policy_is_full(coll)) {
        pp_quorum_child_t sum = count_subtree(coll, turn);
        pp_text_add(text, "rank 0 counts; here %u ready and %u left, of %d\n", sum.ready, sum.left,
                    coll->config.policy_k);
    } else {
        pp_text_add(text, "nobody waits for it\n");
    }
}

/* ---- common -------------------------------------------------------------------------------------------- */

/* Cause and initiator of a complete round follow from its tally, so they are the same everywhere.  The
   root of a quorum may have joined from a Flush before it activated the round, so the count decides:
   fewer than k were ready only if all the others had left. */
void pp_policy_judge(const pp_coll_t *coll, pp_tally_t *tally)
{
    if (coll->config.policy == PP_QUORUM) {
        bool enough = tally->active >= (uint32_t)coll->config.policy_k;
        tally->cause = enough ? PP_CAUSE_POLICY : PP_CAUSE_DEPARTED;
        tally->initiator = PP_NO_INITIATOR;
    }
    if (tally->flushing == (uint32_t)coll->engine->size) {
        tally->cause = PP_CAUSE_FLUSH;
        tally->initiator = PP_NO_INITIATOR;
    }
}

void pp_policy_update(pp_coll_t *coll)
{
    pp_turn_t *turn = pp_coll_turn(coll, coll->completed);
    pp_instance_t *instance = pp_series_instance(&coll->series, coll->completed);
    if (!turn || !instance || turn->activated)
        return;
    if (coll->config.policy == PP_FIRST_OF)
        update_first_of(coll, turn, instance);
    else
        update_quorum(coll, turn, instance);
}

void pp_policy_control(void *owner, int32_t peer, const pp_prefix_t *message)
{
    pp_coll_t *coll = owner;
    if (message->round < coll->completed)
        return;   /* that round needs no trigger any more */
    if (message->kind == PP_MSG_DRAW) {
        pp_turn_t *turn = pp_coll_turn(coll, message->round);
        if (!turn)
            pp_engine_fail(coll->engine, PP_ERR_INTERNAL, "handle %u: a draw of round %llu came while "
                           "round %llu runs", coll->series.id, (unsigned long long)message->round,
                           (unsigned long long)coll->completed);
        else
            turn->drawn = true;
    } else {
        const pp_report_t *report = (const pp_report_t *)message;
        coll->children[peer - coll->engine->rank * TREE_FANOUT - 1] = (pp_quorum_child_t){
            .round = message->round, .calls = message->calls, .ready = report->ready,
            .left = report->left, .waits = report->waits};
    }
    coll->engine->changed = true;
}

pp_status_t pp_policy_open(pp_coll_t *coll)
{
    coll->children = calloc(TREE_FANOUT, sizeof *coll->children);
    if (!coll->children)
        return pp_fail(PP_ERR_MEMORY, "no memory for a policy");
    for (int i = 0; i < TREE_FANOUT; i++)
        coll->children[i].round = UINT64_MAX;
    return PP_OK;
}

void pp_policy_close(pp_coll_t *coll)
{
    free(coll->children);
    coll->children = NULL;
}
