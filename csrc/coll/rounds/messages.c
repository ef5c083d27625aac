/*
 * messages.c - rounds made of messages of every rank: ready, taken, done, complete.  See ../allreduce.h.
 *
 * A rank knows only itself, and what messages say.  `taken` rounds have taken its slot; opened - window <= completed
 * <= taken <= opened.
 *
 * Draws.  A rank for which the others cannot wait hands its draw on, once a round, or lends it (draws.h); it keeps a
 * copy.  Quorums.  Ready ranks, and ranks that have left, are counted along a tree to rank 0, which activates the
 * round. Full needs no count: a waiting rank activates the round, and each rank gives its part when it is ready or has
 * left.
 */
#include "time.h"

#include "../../algo/algo.h"
#include "ballots.h"
#include "draws.h"

#include <stdlib.h>

/* What this rank knows of one round that is not complete; at round % state_count. */
typedef struct pp_round_state {
    uint64_t round;
    bool     ready;                  /* latched */
    bool     triggered;              /* this rank has activated it */
    bool     activated;              /* it is on here: triggered by this rank, or activated by a message */
    bool     joined;                 /* it took this rank's slot silently, in a Flush */
    bool     gated;                  /* this rank has let it take its part */
    bool     done;                   /* its result is in the accumulator */
    pp_loan_t held, handed_on;       /* how long this rank has a draw; for how long it has handed it on */
    uint32_t cause;                  /* the pp_cause_t that this rank gives it */
    uint64_t own_contributions;      /* this rank's Starts that it took */
    uint64_t starts_taken;
    uint64_t staleness;
    uint64_t ripe_ns;                /* when the round, which is due, may be activated; 0: it has not been due yet */
} pp_round_state_t;

typedef struct pp_messages {
    /* The pending slot: all contributions since the last take. */
    struct {
        pp_buffer_t *buffer;
        uint64_t     contributions;
        uint64_t     oldest_given;   /* the round that the oldest contribution's own call was given */
    } slot;
    uint64_t          taken;
    pp_round_state_t *states;
    size_t            state_count;
    pp_ballots_t      ballots;       /* for a quorum */
    /* This rank's place in the order of draws of `place_round`; -1: not looked up. */
    int32_t           place;
    uint64_t          place_round;
} pp_messages_t;

/* ---- facts ------------------------------------------------------------------------------------------- */

static bool pending(const pp_allreduce_t *coll) { return coll->messages->slot.contributions > 0; }

static pp_round_state_t *state_of(const pp_allreduce_t *coll, uint64_t round)
{
    const pp_messages_t *messages = coll->messages;
    pp_round_state_t *state = &messages->states[round % messages->state_count];
    return state->round == round ? state : NULL;
}

static void reset_state(pp_allreduce_t *coll, uint64_t round)
{
    coll->messages->states[round % coll->messages->state_count] = (pp_round_state_t){.round = round};
}

static pp_facts_t facts_of(const pp_allreduce_t *coll, const pp_round_state_t *state)
{
    const pp_handle_t *handle = &coll->handle;
    return (pp_facts_t){.waits = pp_rounds_asks(coll), .pending = pending(coll),
                        .ready = state && state->ready, .left = pp_handle_left(handle),
                        .out = handle->team->exits, .aside = pp_handle_aside(handle), .elsewhere = pp_handle_elsewhere(handle),
                        .overdue = coll->time.overdue};
}

static const uint64_t *left_before(const pp_allreduce_t *coll)
{
    return coll->any_left_before ? coll->left_before : NULL;
}

static int32_t own_place(pp_allreduce_t *coll)
{
    pp_messages_t *messages = coll->messages;
    if (messages->place < 0 || messages->place_round != coll->completed) {
        messages->place_round = coll->completed;
        messages->place = pp_order_place(&coll->rule, coll->completed, left_before(coll), coll->handle.engine->rank);
    }
    return messages->place;
}

static pp_loan_t held_until(const pp_allreduce_t *coll, const pp_round_state_t *state, int32_t place)
{
    return place < coll->rule.drawn ? PP_FOR_GOOD : state->held;
}

/* The place of the draw that has reached this rank for the current round; -1: none has. */
static int32_t drawn_at(pp_allreduce_t *coll, const pp_round_state_t *state)
{
    if (coll->rule.trigger != PP_BY_DRAW)
        return coll->rule.trigger == PP_BY_ANYBODY ? 0 : -1;
    int32_t place = own_place(coll);
    return pp_loan_lasts(held_until(coll, state, place), coll->handle.engine->calls) ? place : -1;
}

static bool permits(const pp_allreduce_t *coll, const pp_round_state_t *state)
{
    pp_facts_t facts = facts_of(coll, state);
    return pp_rule_permits(&coll->rule, &facts, state->round, pp_rounds_bound(coll));
}

static bool withholds(const pp_allreduce_t *coll)
{
    const pp_round_state_t *state = state_of(coll, coll->messages->taken);
    pp_facts_t facts = facts_of(coll, state);
    return state && state->activated && pp_rule_withholds(&coll->rule, &facts, state->round, pp_rounds_bound(coll));
}

static bool in_mid_round(const pp_allreduce_t *coll)
{
    const pp_round_state_t *state = state_of(coll, coll->completed);
    return state && state->activated && !state->done;
}

static bool is_ready(const pp_allreduce_t *coll)
{
    const pp_round_state_t *state = state_of(coll, coll->messages->taken);
    return state && state->ready;
}

static pp_facts_t facts(const pp_allreduce_t *coll) { return facts_of(coll, state_of(coll, coll->completed)); }

static uint64_t joined(const pp_allreduce_t *coll) { return coll->messages->taken; }

static bool holds_up(pp_allreduce_t *coll)
{
    /* If the round has this rank's part, another rank is missing. */
    if (coll->messages->taken > coll->completed)
        return false;
    const pp_round_state_t *state = state_of(coll, coll->completed);
    pp_facts_t facts = facts_of(coll, state);
    return state && pp_rule_holds_up(&coll->rule, &facts, drawn_at(coll, state) >= 0, state->activated, state->round,
                                     pp_rounds_bound(coll));
}

/* Passes the message on to all ranks, by dissemination. */
static void pass_on(const pp_allreduce_t *coll, uint64_t round, uint32_t number)
{
    pp_engine_t *engine = coll->handle.engine;
    for (int64_t distance = 1; distance < engine->size; distance *= 2) {
        pp_await_t message = {.prefix = {.kind = PP_MSG_AWAIT, .handle = coll->handle.id, .round = round},
                              .number = number};
        pp_engine_control(engine, (int32_t)((engine->rank + distance) % engine->size), &message.prefix,
                          sizeof message);
    }
}

static void await(pp_allreduce_t *coll, uint32_t number) { pass_on(coll, coll->completed, number); }

static void hear_await(pp_allreduce_t *coll, const pp_prefix_t *message)
{
    uint32_t number = ((const pp_await_t *)message)->number;
    if (pp_round_time_awaited(coll, message->round, number))
        pass_on(coll, message->round, number);
}

/* ---- triggering ---------------------------------------------------------------------------------------- */

/* Whether the time between the trigger and the taking of contributions is over. */
static bool is_ripe(const pp_allreduce_t *coll, pp_round_state_t *state)
{
    pp_engine_t *engine = coll->handle.engine;
    if (coll->grace_ns == 0 || coll->grace_ns == PP_GRACE_AUTO)
        return true;
    uint64_t now = pp_engine_now(engine);
    if (state->ripe_ns == 0)
        state->ripe_ns = now + coll->grace_ns;
    if (now < state->ripe_ns)
        pp_engine_alarm(engine, state->ripe_ns);
    return now >= state->ripe_ns;
}

static void trigger(pp_allreduce_t *coll, pp_round_state_t *state, pp_instance_t *instance, pp_cause_t cause)
{
    if (!is_ripe(coll, state))
        return;
    state->triggered = state->activated = true;
    state->cause = cause;
    pp_instance_fire(instance, coll->series.graph->start);
}

static void hand_on(pp_allreduce_t *coll, pp_round_state_t *state, int32_t place, bool lends)
{
    pp_engine_t *engine = coll->handle.engine;
    int32_t   next = pp_rule_next_place(&coll->rule, place);
    pp_loan_t until = pp_loan_make(held_until(coll, state, place), lends, engine->calls);
    if (state->handed_on >= until)
        return;
    state->handed_on = until;
    if (next < 0)
        return;
    if (pp_engine_has(engine, PP_PLANT_LOST_DRAW) && place >= coll->rule.drawn && pp_handle_left(&coll->handle))
        return;
    pp_draw_t message = {.prefix = {.kind = PP_MSG_DRAW, .handle = coll->handle.id, .round = state->round},
                         .place = (uint64_t)next, .until = until};
    engine->coverage.draws_handed_on++;
    pp_engine_control(engine, pp_order_rank(&coll->rule, state->round, left_before(coll), next), &message.prefix,
                      sizeof message);
}

static pp_ballot_t count_subtree(const pp_allreduce_t *coll, const pp_round_state_t *state)
{
    pp_facts_t facts = facts_of(coll, state);
    pp_ballot_t sum = {.round = state->round};
    pp_rule_count(&sum.count, &facts);
    pp_ballots_add(&coll->messages->ballots, &sum, coll->handle.engine->calls);
    return sum;
}

static void count_ready(pp_allreduce_t *coll, pp_round_state_t *state, pp_instance_t *instance)
{
    pp_engine_t *engine = coll->handle.engine;
    pp_ballot_t  sum = count_subtree(coll, state);
    pp_cause_t   cause;
    if (engine->rank != 0)
        pp_ballots_report(&coll->messages->ballots, &coll->handle, &sum, pp_ballots_parent(engine->rank));
    else if (pp_rule_enough(&coll->rule, &sum.count, &cause))
        trigger(coll, state, instance, cause);
}

/* Looks whether this rank activates the round that completes next, or can help other ranks to. */
static void bring_about(pp_allreduce_t *coll)
{
    pp_round_state_t *state = state_of(coll, coll->completed);
    pp_instance_t *instance = pp_series_instance(&coll->series, coll->completed);
    if (!state || !instance || state->activated)
        return;
    pp_facts_t facts = facts_of(coll, state);
    int32_t    place = drawn_at(coll, state);
    pp_cause_t cause;
    if (pp_rule_triggers(&coll->rule, &facts, place, &cause)) {
        trigger(coll, state, instance, cause);
    } else if (coll->rule.trigger == PP_BY_COUNT) {
        count_ready(coll, state, instance);
    } else if (coll->rule.trigger == PP_BY_DRAW && place >= 0) {
        pp_draw_verdict_t verdict = pp_rule_draw(&facts);
        if (verdict == PP_DRAW_HANDED_ON || verdict == PP_DRAW_LENT)
            hand_on(coll, state, place, verdict == PP_DRAW_LENT);
    }
}

/* Takes a draw of a round that is not complete. */
static void hear_draw(pp_allreduce_t *coll, const pp_draw_t *message)
{
    pp_round_state_t *state = state_of(coll, message->prefix.round);
    if (!state)
        pp_engine_fail(coll->handle.engine, PP_ERR_INTERNAL, "handle %u: a draw of round %llu came while this rank was "
                       "only in round %llu", coll->handle.id, (unsigned long long)message->prefix.round,
                       (unsigned long long)coll->completed);
    else if (state->held < message->until)
        state->held = message->until;
}

static void control(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    if (message->round < coll->completed)
        return;   /* the round is complete and needs no trigger any more */
    if (message->kind == PP_MSG_AWAIT) {
        hear_await(coll, message);
    } else if (message->kind == PP_MSG_DRAW) {
        hear_draw(coll, (const pp_draw_t *)message);
    } else {
        pp_ballots_hear(&coll->messages->ballots, peer - coll->handle.engine->rank * PP_BALLOT_FANOUT - 1, message);
    }
    coll->handle.engine->changed = true;
}

/* ---- update: all that a change may set off -------------------------------------------------------------- */

static void latch_ready(pp_allreduce_t *coll, pp_round_state_t *state)
{
    pp_facts_t facts = facts_of(coll, state);
    facts.waits &= coll->messages->taken == coll->completed;
    if (pp_facts_ready(&facts))
        state->ready = true;
}

/* A rank in Flush joins one round at a time and tells no other rank.  If a rank waits, its activation finds this one
   joined; if no rank waits, the round that all ranks have joined is the flush. */
static void join_silently(pp_allreduce_t *coll, pp_round_state_t *state, pp_instance_t *instance)
{
    if (!pp_handle_flushes(&coll->handle) || coll->messages->taken != coll->completed || state->joined
        || state->activated)
        return;
    state->joined = true;
    pp_instance_fire(instance, coll->series.graph->join);
    pp_instance_fire(instance, coll->series.graph->gate);
}

static void open_gate(pp_allreduce_t *coll, pp_round_state_t *state, pp_instance_t *instance)
{
    if (state->activated && !state->joined && !state->gated && permits(coll, state)) {
        state->gated = true;
        /* The round is in flight from here on: this rank's exemption may be over when the round takes its slot. */
        pp_rounds_count_as_given(coll, state->round + 1);
        pp_instance_fire(instance, coll->series.graph->gate);
    }
}

static void update(pp_allreduce_t *coll)
{
    uint64_t taken = coll->messages->taken;
    pp_rounds_count_as_given(coll, taken);
    pp_round_state_t *state = state_of(coll, taken);
    pp_instance_t *instance = pp_series_instance(&coll->series, taken);
    if (state && instance) {
        latch_ready(coll, state);
        join_silently(coll, state, instance);
    }
    bring_about(coll);
    if (state && instance)
        open_gate(coll, state, instance);
}

/* ---- what the engine reports ---------------------------------------------------------------------------- */

static void activated(void *owner, pp_instance_t *instance)
{
    pp_allreduce_t *coll = owner;
    pp_round_state_t *state = state_of(coll, instance->round);
    /* A silent join activates nothing: the policy may still have to bring the round about. */
    state->activated = state->triggered || !state->joined;
    coll->handle.engine->changed = true;
    if (coll->handle.engine->tell) {
        const int32_t me = coll->handle.engine->rank;
        pp_rounds_tell(coll, PP_EVENT_ACTIVATE, instance->round,
                       state->triggered ? &(pp_tally_t){.initiator = (uint32_t)me} : NULL);
    }
}

static pp_tally_t tally_of(const pp_allreduce_t *coll, const pp_round_state_t *state)
{
    const pp_handle_t *handle = &coll->handle;
    bool lifted = pp_handle_aside(handle) && state->round >= pp_rounds_bound(coll);
    uint32_t cause = lifted && state->cause < PP_CAUSE_DEPARTED ? PP_CAUSE_DEPARTED : state->cause;
    return (pp_tally_t){
        .contributions = coll->messages->slot.contributions, .contributors = pending(coll),
        .active = state->ready, .flushing = pp_handle_flushes(handle),
        .flush_calls = pp_handle_flush_call(handle), .any_left = pp_handle_gone(handle),
        .initiator = state->triggered ? (uint32_t)handle->engine->rank : PP_NO_INITIATOR,
        .cause = (uint16_t)cause};
}

/* Takes all that is pending, atomically: the next Start goes to a later round. */
static void take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    pp_allreduce_t *coll = owner;
    pp_messages_t  *messages = coll->messages;
    pp_round_state_t *state = state_of(coll, instance->round);
    share->null = !pending(coll);
    share->tally = tally_of(coll, state);
    state->starts_taken = pp_rounds_linked(coll);
    state->own_contributions = messages->slot.contributions;
    if (!share->null && instance->round > messages->slot.oldest_given)
        state->staleness = instance->round - messages->slot.oldest_given;
    if (!share->null)
        pp_rounds_count_staleness(coll, state->staleness);
    instance->accumulator = messages->slot.buffer;
    messages->slot.buffer = NULL;
    messages->slot.contributions = 0;
    messages->taken++;
    coll->handle.engine->changed = true;
    if (coll->handle.engine->tell)
        pp_rounds_tell(coll, PP_EVENT_JOIN, instance->round, NULL);
}

static void divide(const pp_allreduce_t *coll, const pp_outcome_t *outcome)
{
    uint64_t by = pp_rounds_divisor(coll, &outcome->tally);
    if (outcome->buffer && by > 1)
        pp_rounds_divide(coll, outcome->buffer->data, by);
}

static pp_outcome_t *make_outcome(pp_allreduce_t *coll, const pp_round_state_t *state, pp_instance_t *instance)
{
    pp_outcome_t *outcome = pp_outcome_new(coll);
    if (!outcome)
        return NULL;
    const pp_register_t *reg = &instance->registers[0];
    outcome->round = outcome->first = state->round;
    outcome->tally = reg->tally;
    pp_rounds_mask_copy(coll, outcome->contributors, reg->contributors);
    outcome->starts_taken = state->starts_taken;
    outcome->own_contributions = state->own_contributions;
    outcome->staleness = state->staleness;
    outcome->external = state->activated && !state->triggered && !state->joined;
    outcome->buffer = instance->accumulator;
    instance->accumulator = NULL;
    pp_rule_judge(&coll->rule, &outcome->tally);
    divide(coll, outcome);
    return outcome;
}

/* Rounds complete in order. */
static void complete_round(pp_allreduce_t *coll)
{
    uint64_t round = coll->completed;
    pp_instance_t *instance = pp_series_instance(&coll->series, round);
    pp_outcome_t *outcome = make_outcome(coll, state_of(coll, round), instance);
    if (!outcome)
        return;
    reset_state(coll, round + coll->messages->state_count);
    if (coll->handle.engine->tell)
        pp_rounds_tell(coll, PP_EVENT_PUBLISH, round, &outcome->tally);
    pp_rounds_complete(coll, outcome, instance->registers[0].left);
    if (instance->unfinished == 0)
        pp_series_recycle(&coll->series, instance);
}

static void done(void *owner, pp_instance_t *instance)
{
    pp_allreduce_t *coll = owner;
    state_of(coll, instance->round)->done = true;
    while (!coll->handle.engine->error && state_of(coll, coll->completed)->done)
        complete_round(coll);
}

static void retired(void *owner, pp_instance_t *instance)
{
    pp_allreduce_t *coll = owner;
    if (instance->round < coll->completed)
        pp_series_recycle(&coll->series, instance);
}

static const pp_host_t host = {.take = take, .activated = activated, .done = done, .retired = retired};

/* ---- Start -------------------------------------------------------------------------------------------- */

static pp_status_t aim(pp_allreduce_t *coll, pp_target_t *target)
{
    pp_buffer_t *slot = coll->messages->slot.buffer;
    *target = (pp_target_t){.combine = slot, .locked = slot};
    if (slot) {
        target->drop = pp_engine_has(coll->handle.engine, PP_PLANT_LOST_START) && withholds(coll);
    } else {
        /* Only this thread links contributions, so the slot is still empty when the copy is complete. */
        PP_TRY(pp_pool_get(&coll->series.vectors, &target->buffer));
        slot = target->buffer;
    }
    target->elements = slot->data;
    return PP_OK;
}

static uint64_t request(pp_allreduce_t *coll)
{
    pp_rounds_count_as_given(coll, coll->messages->taken);
    pp_round_time_before_start(coll);
    return pp_rounds_request(coll);
}

static void link(pp_allreduce_t *coll, const pp_target_t *target, uint64_t given)
{
    pp_messages_t *messages = coll->messages;
    if (target->buffer)
        messages->slot.buffer = target->buffer;
    if (messages->slot.contributions++ == 0)
        messages->slot.oldest_given = given;
}

static void start(pp_allreduce_t *coll, const pp_target_t *target) { link(coll, target, request(coll)); }
static void settle(pp_allreduce_t *coll) { pp_engine_settle(coll->handle.engine); }

/* A rank that is ready has been counted for its next round, so its contributions go there and are not discarded. */
static uint64_t discard(pp_allreduce_t *coll)
{
    pp_messages_t *messages = coll->messages;
    uint64_t discarded = messages->slot.contributions;
    if (is_ready(coll))
        return 0;
    pp_pool_put(&coll->series.vectors, messages->slot.buffer);
    messages->slot.buffer = NULL;
    messages->slot.contributions = 0;
    return discarded;
}

static void forgive(pp_allreduce_t *coll)
{
    if (coll->messages->slot.contributions == 1)
        coll->messages->slot.oldest_given = UINT64_MAX;
}

static bool has_retired(const pp_handle_t *handle)
{
    const pp_allreduce_t *coll = pp_allreduce_of(handle);
    return coll->series.opened == coll->completed + (uint64_t)coll->series.window;
}

static bool holds_payloads(const pp_handle_t *handle)
{
    const pp_allreduce_t *coll = pp_allreduce_of(handle);
    return pp_bulks_hold(&coll->handle.engine->bulks, coll->handle.id);
}

/* ---- explaining ----------------------------------------------------------------------------------------- */

/* The drawn ranks.  Only they know whether they have left, and have handed their draws on. */
static void explain_draws(const pp_allreduce_t *coll, const pp_round_state_t *state, pp_text_t *text)
{
    pp_listing_t listing = {.text = text, .before = "drawn to trigger it, or to hand the draw on: "};
    for (int32_t place = 0; place < coll->rule.drawn; place++) {
        int32_t rank = pp_order_rank(&coll->rule, state->round, left_before(coll), place);
        pp_listing_add(&listing, rank, rank == coll->handle.engine->rank ? "this rank" : NULL);
    }
    pp_listing_end(&listing, "");
}

/* The number of ranks that a rank counts, itself included. */
static uint32_t subtree(int64_t rank, int64_t size)
{
    int64_t ranks = 0;
    for (int64_t first = rank, last = rank; first < size;
         first = first * PP_BALLOT_FANOUT + 1, last = (last + 1) * PP_BALLOT_FANOUT)
        ranks += (last < size ? last : size - 1) - first + 1;
    return (uint32_t)ranks;
}

/* The count, as rank 0 knows it. */
static void explain_count(const pp_allreduce_t *coll, const pp_round_state_t *state, pp_text_t *text)
{
    const int32_t size = coll->rule.size;
    pp_ballot_t   sum = count_subtree(coll, state);
    pp_listing_t  listing = {.text = text, .before = "not known to be ready: "};
    pp_text_add(text, "%u of %d ranks are known to be ready, and its policy needs %d\n", sum.count.ready, size,
                coll->rule.needed);
    if (!state->ready)
        pp_listing_add(&listing, 0, "this rank");
    for (int32_t child = 1; child <= PP_BALLOT_FANOUT && child < size; child++) {
        const pp_ballot_t *heard = &coll->messages->ballots.children[child - 1];
        bool     current = heard->round == state->round;
        uint32_t ranks = subtree(child, size);
        if (!current || heard->count.ready < ranks)
            pp_listing_add(&listing, child, ranks > 1                       ? "or ranks that it counts"
                                            : current && heard->count.left ? "has left"
                                                                           : NULL);
    }
    pp_listing_end(&listing, "");
}

/* What a round that is not activated waits for. */
static void explain_rule(const pp_allreduce_t *coll, const pp_round_state_t *state, pp_text_t *text)
{
    if (coll->rule.trigger == PP_BY_DRAW)
        explain_draws(coll, state, text);
    else if (coll->rule.trigger == PP_BY_ANYBODY)
        pp_text_add(text, "this rank knows of no rank that waits for it\n");
    else if (coll->handle.engine->rank == 0)
        explain_count(coll, state, text);
    else
        pp_text_add(text, "rank 0 counts the ranks that are ready; the policy needs %d of %d\n", coll->rule.needed,
                    coll->rule.size);
}

static void explain_state(const pp_allreduce_t *coll, const pp_round_state_t *state, pp_instance_t *instance,
                          pp_text_t *text)
{
    unsigned long long round = state->round;
    if (!state->activated && !state->joined) {
        pp_text_add(text, "round %llu is not activated%s%s: ", round, state->ready ? ", though this rank is ready" : "",
                    state->handed_on ? ", and this rank has handed its draw on" : "");
        explain_rule(coll, state, text);
    } else if (withholds(coll) && state->round == coll->messages->taken) {
        pp_text_add(text, "round %llu waits for this rank, and max_lag keeps it from giving its part\n", round);
    } else if (!pp_instance_fired(instance, coll->series.graph->gate)) {
        pp_text_add(text, "round %llu waits for this rank to give its part\n", round);
    }
}

static void explain_senders(const pp_instance_t *instance, pp_text_t *text)
{
    char what[40];
    snprintf(what, sizeof what, "round %llu", (unsigned long long)instance->round);
    pp_series_explain(instance, what, text);
}

static void explain(pp_handle_t *handle, pp_text_t *text)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    for (uint64_t round = coll->completed; round < coll->series.opened; round++) {
        pp_round_state_t *state = state_of(coll, round);
        pp_instance_t    *instance = pp_series_instance(&coll->series, round);
        if (!state || !instance)
            continue;
        if (round == coll->completed || state->activated || state->joined)
            explain_state(coll, state, instance, text);
        if (state->activated || state->joined)
            explain_senders(instance, text);
    }
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

static void close_rounds(pp_allreduce_t *coll)
{
    pp_messages_t *messages = coll->messages;
    if (!messages)
        return;
    if (coll->series.engine)
        pp_pool_put(&coll->series.vectors, messages->slot.buffer);
    free(messages->states);
    free(messages);
    coll->messages = NULL;
}

static const pp_rounds_ops_t ops = {
    .sends = true, .aim = aim, .start = start, .settle = settle, .update = update, .request = request, .link = link,
    .facts = facts, .in_mid_round = in_mid_round, .joined = joined, .discard = discard, .forgive = forgive,
    .await = await, .holds_up = holds_up, .close = close_rounds,
    .handle = {.control = control, .operation = pp_rounds_operation, .replay = pp_rounds_replay, .retired = has_retired,
               .on_device = holds_payloads, .explain = explain, .count_buffers = pp_rounds_count_buffers},
};

pp_status_t pp_messages_open(pp_allreduce_t *coll, const pp_agreed_t *agreed, const pp_kernels_t *kernels)
{
    pp_engine_t *engine = coll->handle.engine;
    pp_graph_t  *graph = NULL;
    pp_kernels_t own = *kernels;
    int32_t window = coll->handle.team->window;
    pp_messages_t *messages = coll->messages = calloc(1, sizeof *messages);
    coll->ops = &ops;
    coll->handle.ops = &ops.handle;
    /* A draw can be of the round after those that may be in flight here. */
    size_t count = (size_t)window + 2;
    if (messages)
        messages->states = calloc(count, sizeof *messages->states);
    if (!messages || !messages->states)
        return pp_fail(PP_ERR_MEMORY, "no memory for %d rounds", window);
    messages->state_count = count;
    messages->place = -1;
    for (size_t i = 0; i < count; i++)
        reset_state(coll, i);
    pp_ballots_open(&messages->ballots);
    coll->config.algorithm = agreed->choice;
    PP_TRY(pp_algo_partial_allreduce(agreed->choice, engine->rank, engine->size, coll->count,
                                     pp_rounds_segments(coll, kernels, engine->size), &graph));
    own.memory = own.users;
    return pp_series_open(engine, agreed->id, graph, NULL, &own, window, &host, coll, &coll->series);
}
