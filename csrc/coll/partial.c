/* partial.c - a round of a partial allreduce at one rank: ready, taken, done, complete.  See coll.h. */
#include "combine.h"

#include <stdlib.h>
#include <string.h>

/* ---- what the rules look at (design: "Words") ------------------------------------------------------- */

bool pp_coll_left(const pp_coll_t *coll) { return coll->engine->in_call; }

bool pp_coll_waits(const pp_coll_t *coll) { return coll->request.state == PP_OUTSTANDING; }

bool pp_coll_elsewhere(const pp_coll_t *coll)
{
    return coll->engine->waiting > (pp_coll_waits(coll) ? 1u : 0u);
}

static bool pending(const pp_coll_t *coll) { return coll->slot.contributions > 0; }


pp_turn_t *pp_coll_turn(pp_coll_t *coll, uint64_t round)
{
    pp_turn_t *turn = &coll->turns[round % coll->turn_count];
    return turn->round == round ? turn : NULL;
}

static void reset_turn(pp_coll_t *coll, uint64_t round)
{
    coll->turns[round % coll->turn_count] = (pp_turn_t){.round = round};
}

bool pp_coll_withholds(const pp_coll_t *coll)
{
    if (coll->combine)
        return pp_combine_withholds(coll);
    const pp_turn_t *turn = pp_coll_turn((pp_coll_t *)coll, coll->taken);
    return turn && turn->activated && pp_policy_bounded(coll, turn);
}

bool pp_coll_in_mid_round(const pp_coll_t *coll)
{
    if (coll->combine)
        return pp_combine_in_mid_round(coll);
    const pp_turn_t *turn = pp_coll_turn((pp_coll_t *)coll, coll->completed);
    return turn && turn->activated && !turn->done;
}

/* ---- update: everything that a change may set off ------------------------------------------------------ */

void pp_coll_count_as_given(pp_coll_t *coll, uint64_t rounds)
{
    if (!pp_coll_left(coll) && !pp_coll_elsewhere(coll))
        return;
    if (coll->counted < rounds)
        coll->counted = rounds;
    if (coll->seen < rounds)
        coll->seen = rounds;
}

static void latch_ready(pp_coll_t *coll, pp_turn_t *turn)
{
    bool waits_for_it = pp_coll_waits(coll) && coll->taken == coll->completed;
    if (pending(coll) && (waits_for_it || pp_coll_elsewhere(coll)))
        turn->ready = true;
}

/* A rank in Flush joins one round at a time, and tells nobody: if somebody waits, that rank's
   activation finds it joined; if nobody does, the round that all have joined is the flush. */
static void join_silently(pp_coll_t *coll, pp_turn_t *turn, pp_instance_t *instance)
{
    if (!pp_calls_flushing(coll->calls, coll) || coll->taken != coll->completed || turn->joined
        || turn->activated)
        return;
    turn->joined = true;
    pp_instance_fire(instance, coll->series.graph->join);
    pp_instance_fire(instance, coll->series.graph->gate);
}

static void open_gate(pp_coll_t *coll, pp_turn_t *turn, pp_instance_t *instance)
{
    if (turn->activated && !turn->joined && !turn->gated && pp_policy_permits(coll, turn)) {
        turn->gated = true;
        /* In flight from here on: what exempts us may be over by the time it takes our slot. */
        pp_coll_count_as_given(coll, turn->round + 1);
        pp_instance_fire(instance, coll->series.graph->gate);
    }
}

static void update(void *owner)
{
    pp_coll_t *coll = owner;
    pp_coll_count_as_given(coll, coll->taken);
    pp_turn_t *turn = pp_coll_turn(coll, coll->taken);
    pp_instance_t *instance = pp_series_instance(&coll->series, coll->taken);
    if (turn && instance) {
        latch_ready(coll, turn);
        join_silently(coll, turn, instance);
    }
    pp_policy_update(coll);
    if (turn && instance)
        open_gate(coll, turn, instance);
    pp_calls_update(coll->calls);
}

/* ---- what the engine reports ---------------------------------------------------------------------------- */

static void activated(void *owner, pp_instance_t *instance)
{
    pp_coll_t *coll = owner;
    pp_turn_t *turn = pp_coll_turn(coll, instance->round);
    /* A silent join is nobody's activation: the policy may still have to bring that about. */
    turn->activated = turn->triggered || !turn->joined;
    coll->engine->changed = true;
}

void pp_coll_count_staleness(pp_engine_t *engine, uint64_t staleness)
{
    uint64_t last = PP_STALENESS_BINS - 1;
    engine->coverage.staleness[staleness < last ? staleness : last]++;
}

/* Takes everything pending, atomically: from here on a Start goes to the next round. */
static void take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    pp_coll_t *coll = owner;
    pp_turn_t *turn = pp_coll_turn(coll, instance->round);
    bool flushing = pp_calls_flushing(coll->calls, coll);
    pp_tally_t *own = &share->tally;
    share->null = !pending(coll);
    own->contributors = !share->null;
    own->any_left = pp_coll_left(coll);
    own->contributions = coll->slot.contributions;
    own->active = turn->ready;
    own->flushing = flushing;
    if (flushing && coll->calls->kind != PP_CALL_EXIT)
        own->flush_calls = coll->calls->kind == PP_CALL_FREE ? PP_IN_FREE : PP_IN_FLUSH;
    own->cause = (uint16_t)turn->cause;
    if (turn->triggered)
        own->initiator = (uint32_t)coll->engine->rank;
    turn->starts_taken = coll->starts;
    turn->own_contributions = coll->slot.contributions;
    if (!share->null && instance->round > coll->slot.oldest_given)
        turn->staleness = instance->round - coll->slot.oldest_given;
    if (!share->null)
        pp_coll_count_staleness(coll->engine, turn->staleness);
    instance->accumulator = coll->slot.buffer;
    coll->slot.buffer = NULL;
    coll->slot.contributions = 0;
    coll->taken++;
    coll->engine->changed = true;
}

uint64_t pp_coll_divisor(const pp_coll_t *coll, const pp_tally_t *tally)
{
    switch (coll->config.average) {
    case PP_AVERAGE_SIZE:          return (uint64_t)coll->engine->size;
    case PP_AVERAGE_CONTRIBUTORS:  return tally->contributors;
    case PP_AVERAGE_CONTRIBUTIONS: return tally->contributions;
    default:                       return 1;
    }
}

static void divide(const pp_coll_t *coll, const pp_entry_t *entry)
{
    uint64_t by = pp_coll_divisor(coll, &entry->tally);
    if (entry->buffer && by > 1)
        coll->series.kernels.divide(entry->buffer->data, coll->count, by);
}

static pp_entry_t *make_entry(pp_coll_t *coll, const pp_turn_t *turn, pp_instance_t *instance)
{
    pp_entry_t *entry = pp_entry_new(coll);
    if (!entry)
        return NULL;
    const pp_register_t *reg = &instance->registers[0];
    entry->round = entry->first = turn->round;
    entry->tally = reg->tally;
    memcpy(entry->contributors, reg->contributors, coll->series.mask_words * sizeof(uint64_t));
    entry->starts_taken = turn->starts_taken;
    entry->own_contributions = turn->own_contributions;
    entry->staleness = turn->staleness;
    entry->external = turn->activated && !turn->triggered && !turn->joined;
    entry->buffer = instance->accumulator;
    instance->accumulator = NULL;
    pp_policy_judge(coll, &entry->tally);
    divide(coll, entry);
    return entry;
}

static void remember_left(pp_coll_t *coll, const pp_tally_t *tally, const uint64_t *left, bool flush)
{
    size_t words = coll->series.mask_words;
    coll->any_left_before = !flush && words > 0 && tally->any_left;
    if (coll->any_left_before)
        memcpy(coll->left_before, left, words * sizeof(uint64_t));
    coll->ordered = false;
}

static void check_calls(pp_coll_t *coll, const pp_tally_t *tally)
{
    if (tally->flush_calls == (PP_IN_FLUSH | PP_IN_FREE))
        pp_engine_fail(coll->engine, PP_ERR_MISMATCH, "handle %u: some ranks are in Free and others in "
                       "Flush or Drain: collective calls must be in the same order on all ranks",
                       coll->series.id);
}

void pp_coll_complete(pp_coll_t *coll, pp_entry_t *entry, const uint64_t *left)
{
    bool flush = entry->tally.cause == PP_CAUSE_FLUSH;
    uint32_t flush_calls = entry->tally.flush_calls;
    if (flush)
        check_calls(coll, &entry->tally);
    remember_left(coll, &entry->tally, left, flush);
    coll->engine->rounds += entry->round + 1 - coll->completed;
    coll->completed = entry->round + 1;
    coll->engine->changed = true;
    pp_deliver_round(coll, entry);
    if (flush)
        pp_calls_flush_done(coll->calls, coll, flush_calls);
}

/* Rounds complete in order. */
static void complete_round(pp_coll_t *coll)
{
    uint64_t round = coll->completed;
    pp_instance_t *instance = pp_series_instance(&coll->series, round);
    pp_entry_t *entry = make_entry(coll, pp_coll_turn(coll, round), instance);
    if (!entry)
        return;
    reset_turn(coll, round + coll->turn_count);
    pp_coll_complete(coll, entry, instance->registers[0].left);
    if (instance->unfinished == 0)
        pp_series_recycle(&coll->series, instance);
}

static void done(void *owner, pp_instance_t *instance)
{
    pp_coll_t *coll = owner;
    pp_coll_turn(coll, instance->round)->done = true;
    while (!coll->engine->error && pp_coll_turn(coll, coll->completed)->done)
        complete_round(coll);
}

static void retired(void *owner, pp_instance_t *instance)
{
    pp_coll_t *coll = owner;
    if (instance->round < coll->completed)
        pp_series_recycle(&coll->series, instance);
}

static const pp_host_t host = {
    .take = take, .activated = activated, .done = done, .retired = retired,
    .control = pp_policy_control, .update = update,
};

/* ---- Start -------------------------------------------------------------------------------------------- */

uint64_t pp_coll_request(pp_coll_t *coll)
{
    bool late = coll->ungiven != NULL;
    uint64_t given = !late ? coll->completed
                   : coll->config.deliver == PP_EACH ? coll->ungiven->round : coll->completed - 1;
    coll->request.start = ++coll->starts;
    coll->request.at = coll->completed;
    coll->request.missed = coll->completed > coll->seen ? coll->completed - coll->seen : 0;
    if (late) {
        pp_deliver_complete_request(coll);
    } else {
        coll->request.state = PP_OUTSTANDING;
        coll->engine->waiting++;
        coll->engine->waits++;
    }
    coll->engine->changed = true;
    return given;
}

void pp_coll_started(pp_coll_t *coll)
{
    uint64_t given = pp_coll_request(coll);
    if (coll->slot.contributions++ == 0)
        coll->slot.oldest_given = given;
}

/* A rank that is ready has been counted for its next round: what is pending goes there. */
uint64_t pp_coll_discard(pp_coll_t *coll)
{
    if (coll->combine)
        return pp_combine_discard(coll);
    uint64_t discarded = coll->slot.contributions;
    const pp_turn_t *turn = pp_coll_turn(coll, coll->taken);
    if (turn && turn->ready)
        return 0;
    pp_pool_put(&coll->series.vectors, coll->slot.buffer);
    coll->slot.buffer = NULL;
    coll->slot.contributions = 0;
    return discarded;
}

/* ---- explaining ----------------------------------------------------------------------------------------- */

static void explain_turn(const pp_coll_t *coll, const pp_turn_t *turn, pp_instance_t *instance,
                         pp_text_t *text)
{
    const pp_graph_t *graph = coll->series.graph;
    unsigned long long round = turn->round;
    if (!turn->activated && !turn->joined) {
        pp_text_add(text, "round %llu is not activated%s%s: ", round, turn->ready ? ", ready" : "",
                    turn->handed_on ? ", its draw handed on" : "");
        pp_policy_explain(coll, turn, text);
    } else if (pp_coll_withholds(coll) && turn->round == coll->taken) {
        pp_text_add(text, "round %llu: gate withheld by max_lag\n", round);
    } else if (!pp_instance_fired(instance, graph->gate)) {
        pp_text_add(text, "round %llu: gate waits for this rank\n", round);
    }
}

void pp_coll_explain(pp_coll_t *coll, pp_text_t *text)
{
    if (coll->combine) {
        pp_combine_explain(coll, text);
        return;
    }
    for (uint64_t round = coll->completed; round < coll->series.opened; round++) {
        pp_turn_t     *turn = pp_coll_turn(coll, round);
        pp_instance_t *instance = pp_series_instance(&coll->series, round);
        if (!turn || !instance)
            continue;
        bool current = round == coll->completed || turn->activated || turn->joined;
        if (current)
            explain_turn(coll, turn, instance, text);
        if (turn->activated || turn->joined)
            pp_series_explain(instance, text);
    }
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

/* The handle as the caller described it; it has no rounds before the ranks have agreed on it. */
pp_status_t pp_coll_new(const pp_allreduce_config_t *config, pp_coll_t **out)
{
    pp_coll_t *coll = calloc(1, sizeof *coll);
    size_t pieces = config ? config->piece_count : 0;
    pp_piece_t *copy = calloc(pieces + 1, sizeof *copy);
    *out = NULL;
    if (!coll || !copy) {
        free(coll);
        free(copy);
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle of %zu pieces", pieces);
    }
    if (config)
        coll->config = *config;
    coll->config.policy_text = NULL;   /* the caller's */
    for (size_t i = 0; i < pieces; i++) {
        copy[i] = config->pieces[i];
        coll->count += copy[i].count;
    }
    coll->config.pieces = copy;
    *out = coll;
    return PP_OK;
}

int32_t pp_coll_segments(const pp_coll_t *coll, const pp_kernels_t *kernels, int32_t participants)
{
    return coll->config.segments
         ? coll->config.segments
         : pp_algo_segments(coll->config.algorithm, coll->count * kernels->element_bytes, participants);
}

static pp_status_t open_messages(pp_coll_t *coll, uint32_t id, int32_t algorithm,
                                 const pp_kernels_t *kernels)
{
    pp_engine_t *engine = coll->engine;
    pp_graph_t *graph = NULL;
    int32_t window = coll->calls->window;
    /* A draw can name a round one beyond the rounds that may be in flight here. */
    coll->turn_count = (size_t)window + 2;
    coll->turns = calloc(coll->turn_count, sizeof *coll->turns);
    if (!coll->turns)
        return pp_fail(PP_ERR_MEMORY, "no memory for %d rounds", window);
    for (size_t i = 0; i < coll->turn_count; i++)
        reset_turn(coll, i);
    coll->config.algorithm = algorithm;
    PP_TRY(pp_algo_partial_allreduce(algorithm, engine->rank, engine->size, coll->count,
                                     pp_coll_segments(coll, kernels, engine->size), &graph));
    return pp_series_open(engine, id, graph, NULL, kernels, window, &host, coll, &coll->series);
}

pp_status_t pp_coll_open(pp_coll_t *coll, pp_calls_t *calls, uint32_t id, int32_t algorithm, uint64_t place)
{
    pp_kernels_t kernels;
    coll->engine = calls->engine;
    coll->calls = calls;
    coll->max_lag = coll->config.max_lag < 0 ? UINT64_MAX / 2 : (uint64_t)coll->config.max_lag;
    PP_TRY(pp_kernels_find(coll->config.op, coll->config.type, &kernels));
    PP_TRY(pp_policy_open(coll));
    PP_TRY(place ? pp_combine_open(coll, id, algorithm, place, &kernels)
                 : open_messages(coll, id, algorithm, &kernels));
    coll->series.drawn = coll->config.policy == PP_FIRST_OF;
    return PP_OK;
}

void pp_coll_free(pp_coll_t *coll)
{
    if (!coll)
        return;
    if (coll->series.engine) {
        pp_deliver_drop_request(coll);
        for (pp_entry_t *entry; (entry = pp_deliver_pop(coll));)
            pp_entry_free(coll, entry);
        pp_pool_put(&coll->series.vectors, coll->slot.buffer);
    }
    pp_combine_close(coll);
    pp_series_close(&coll->series);
    pp_entry_free_all(coll);
    pp_policy_close(coll);
    free((void *)coll->config.pieces);
    free(coll->turns);
    free(coll);
}
