/* rounds.c - what all ways to make rounds share.  See allreduce.h. */
#include "allreduce.h"

#include "../../algo/algo.h"

bool pp_rounds_is_exempt(const pp_allreduce_t *coll)
{
    return pp_handle_gone(&coll->handle) || pp_handle_elsewhere(&coll->handle);
}

uint64_t pp_rounds_bound(const pp_allreduce_t *coll)
{
    if (coll->max_lag == PP_UNBOUNDED)
        return UINT64_MAX;
    return pp_rule_bound(coll->counted, coll->completed, pp_handle_waits(&coll->handle), coll->max_lag);
}

static bool is_counted(const pp_allreduce_t *coll, uint64_t rounds)
{
    return coll->counted >= rounds && coll->seen >= rounds;
}

static void count(pp_allreduce_t *coll, uint64_t rounds)
{
    coll->counted = coll->counted < rounds ? rounds : coll->counted;
    coll->seen = coll->seen < rounds ? rounds : coll->seen;
}

void pp_rounds_count_as_given(pp_allreduce_t *coll, uint64_t rounds)
{
    if (!is_counted(coll, rounds) && pp_rounds_is_exempt(coll))
        count(coll, rounds);
}

void pp_rounds_count_passed(pp_allreduce_t *coll, uint64_t rounds)
{
    if (!is_counted(coll, rounds) && rounds > pp_rounds_bound(coll))
        count(coll, rounds);
}

void pp_rounds_count_staleness(const pp_allreduce_t *coll, uint64_t staleness)
{
    uint64_t last = PP_STALENESS_BINS - 1;
    coll->handle.engine->coverage.staleness[staleness < last ? staleness : last]++;
}

uint64_t pp_rounds_divisor(const pp_allreduce_t *coll, const pp_tally_t *tally)
{
    switch (coll->config.average) {
    case PP_AVERAGE_SIZE:          return (uint64_t)coll->handle.engine->size;
    case PP_AVERAGE_CONTRIBUTORS:  return tally->contributors;
    case PP_AVERAGE_CONTRIBUTIONS: return tally->contributions;
    default:                       return 1;
    }
}

void pp_rounds_divide(const pp_allreduce_t *coll, void *vector, uint64_t by)
{
    const pp_kernels_t *kernels = &coll->series.kernels;
    kernels->memory->divide(kernels, vector, coll->count, by);
}

int32_t pp_rounds_segments(const pp_allreduce_t *coll, const pp_kernels_t *kernels, int32_t participants)
{
    return coll->config.segments
         ? coll->config.segments
         : pp_algo_segments(coll->config.algorithm, coll->count * kernels->element_bytes, participants);
}

static void remember_left(pp_allreduce_t *coll, const pp_tally_t *tally, const uint64_t *left, bool flush)
{
    coll->any_left_before = !flush && coll->series.mask_words > 0 && tally->any_left;
    if (coll->any_left_before)
        pp_rounds_mask_copy(coll, coll->left_before, left);
}

void pp_rounds_tell(const pp_allreduce_t *coll, pp_event_kind_t kind, uint64_t round, const pp_tally_t *tally)
{
    const size_t bytes = coll->count * coll->series.kernels.element_bytes;
    pp_event_t   event = {.number = round, .handle = coll->handle.id, .kind = (uint8_t)kind, .key = bytes, .d = -1};
    if (tally) {
        event.cause = (uint8_t)(tally->cause + 1);
        event.a = (int32_t)tally->active;
        event.b = (int32_t)tally->contributions;
        event.c = (int32_t)tally->contributors;
        event.d = tally->initiator == PP_NO_INITIATOR ? -1 : (int32_t)tally->initiator;
    }
    coll->handle.engine->tell(coll->handle.engine, &event);
}

void pp_rounds_complete(pp_allreduce_t *coll, pp_outcome_t *outcome, const uint64_t *left)
{
    pp_team_t *team = coll->handle.team;
    bool flush = outcome->tally.cause == PP_CAUSE_FLUSH;
    uint32_t flush_calls = outcome->tally.flush_calls;
    remember_left(coll, &outcome->tally, left, flush);
    team->engine->coverage.deadlines += outcome->tally.cause == PP_CAUSE_DEADLINE;
    team->engine->rounds += outcome->round + 1 - coll->completed;
    coll->completed = outcome->round + 1;
    team->engine->changed = true;
    pp_deliver_round(coll, outcome);
    if (flush)
        team->ops->flushed(team, &coll->handle, flush_calls);
}

uint64_t pp_rounds_request(pp_allreduce_t *coll)
{
    /* After a timeout the request stays as it is. */
    if (coll->handle.request.state != PP_IDLE) {
        coll->starts++;
        return coll->request.outcome ? coll->request.outcome->round : coll->completed;
    }
    bool late = coll->ungiven != NULL;
    uint64_t given = !late ? coll->completed
                   : coll->config.deliver == PP_EACH ? coll->ungiven->round : coll->completed - 1;
    coll->request.start = ++coll->starts;
    coll->handle.request.at = coll->completed;
    coll->request.missed = coll->completed > coll->seen ? coll->completed - coll->seen : 0;
    if (late)
        pp_deliver_complete_request(coll);
    else
        pp_team_wait_begins(&coll->handle, coll->ops->own);
    return given;
}

/* ---- what all ways answer the engine ----------------------------------------------------------------------------- */

void pp_rounds_count_buffers(const pp_handle_t *handle, pp_held_t *sum)
{
    const pp_series_t *series = &pp_allreduce_of(handle)->series;
    pp_pool_count(&series->vectors, sum);
    pp_pool_count(&series->scratches, sum);
}

void pp_rounds_operation(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message, size_t bytes)
{
    pp_series_receive(&pp_allreduce_of(handle)->series, peer, message, bytes);
}

void pp_rounds_replay(pp_handle_t *handle) { pp_series_replay_early(&pp_allreduce_of(handle)->series); }
