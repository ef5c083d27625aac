/* results.c - the outcomes of completed rounds, and how requests are given them.  See allreduce.h. */
#include "allreduce.h"

#include <stdlib.h>
#include <string.h>

pp_outcome_t *pp_outcome_new(pp_allreduce_t *coll)
{
    pp_outcome_t *outcome = coll->free_outcomes;
    if (outcome) {
        coll->free_outcomes = outcome->next;
        return outcome;
    }
    outcome = calloc(1, sizeof *outcome);
    if (!outcome)
        pp_engine_fail(coll->handle.engine, PP_ERR_MEMORY, "no memory for a result");
    return outcome;
}

/* Keeps the outcome for a later round, which writes all its fields anew. */
void pp_outcome_free(pp_allreduce_t *coll, pp_outcome_t *outcome)
{
    if (!outcome)
        return;
    pp_pool_put(&coll->series.vectors, outcome->buffer);
    outcome->buffer = NULL;
    outcome->lies = PP_NOWHERE;
    outcome->next = coll->free_outcomes;
    coll->free_outcomes = outcome;
}

void pp_outcome_free_all(pp_allreduce_t *coll)
{
    for (pp_outcome_t *outcome; (outcome = coll->free_outcomes);) {
        coll->free_outcomes = outcome->next;
        free(outcome);
    }
}

static size_t vector_bytes(const pp_allreduce_t *coll) { return coll->count * coll->series.kernels.element_bytes; }

static void count_ungiven(pp_allreduce_t *coll, int by)
{
    if (coll->config.deliver != PP_EACH)
        return;
    coll->ungiven_count += (uint64_t)by;
    coll->handle.team->queued_bytes += (uint64_t)by * vector_bytes(coll);
}

bool pp_deliver_is_full(const pp_allreduce_t *coll)
{
    const pp_team_t *team = coll->handle.team;
    return coll->config.deliver == PP_EACH && coll->ungiven_count >= (uint64_t)team->window
        && team->queued_bytes + vector_bytes(coll) > team->backlog_bytes;
}

static void append(pp_allreduce_t *coll, pp_outcome_t *outcome)
{
    outcome->next = NULL;
    if (coll->ungiven)
        coll->ungiven_last->next = outcome;
    else
        coll->ungiven = outcome;
    coll->ungiven_last = outcome;
    count_ungiven(coll, 1);
}

pp_outcome_t *pp_deliver_pop(pp_allreduce_t *coll)
{
    pp_outcome_t *outcome = coll->ungiven;
    if (outcome) {
        coll->ungiven = outcome->next;
        count_ungiven(coll, -1);
    }
    return outcome;
}

/* The newer of two merged results describes both; the older operand is the left one. */
static void merge(pp_allreduce_t *coll, pp_outcome_t *older, pp_outcome_t *newer)
{
    newer->first = older->first;
    if (coll->ops->own && !(coll->ops->own(coll, older) && coll->ops->own(coll, newer)))
        return;
    const pp_kernels_t *kernels = &coll->series.kernels;
    if (newer->buffer && older->buffer)
        kernels->memory->keep_right(kernels, newer->buffer->data, older->buffer->data, coll->count);
    if (!newer->buffer) {
        newer->buffer = older->buffer;
        older->buffer = NULL;
    }
    pp_outcome_free(coll, older);
}

static void absorb(pp_allreduce_t *coll, pp_outcome_t *outcome)
{
    pp_outcome_t *older = coll->config.deliver == PP_EACH ? NULL : pp_deliver_pop(coll);
    if (older && coll->config.deliver == PP_DELIVER_SUM)
        merge(coll, older, outcome);
    else if (older)
        pp_outcome_free(coll, older);
    append(coll, outcome);
}

void pp_deliver_complete_request(pp_allreduce_t *coll)
{
    pp_outcome_t *outcome = pp_deliver_pop(coll);
    pp_team_wait_ends(&coll->handle, coll->ops->own, PP_COMPLETE);
    coll->request.outcome = outcome;
    if (coll->counted < outcome->round + 1)
        coll->counted = outcome->round + 1;
    if (coll->seen < coll->completed)
        coll->seen = coll->completed;
}

/* The outcome of a Flush, or of a step of a Drain, is fixed when the engine has finished it.  Rounds that complete
   before the application collects it belong to the next request. */
void pp_deliver_bind(pp_allreduce_t *coll)
{
    coll->request.start = coll->starts;
    coll->request.missed = coll->completed > coll->seen ? coll->completed - coll->seen : 0;
    pp_deliver_complete_request(coll);
}

void pp_deliver_round(pp_allreduce_t *coll, pp_outcome_t *outcome)
{
    pp_team_t *team = coll->handle.team;
    bool flush = outcome->tally.cause == PP_CAUSE_FLUSH;
    if (pp_handle_flush_call(&coll->handle) & PP_IN_FREE) {
        if (flush)
            team->discarded += outcome->own_contributions;
        pp_outcome_free(coll, outcome);
        return;
    }
    const bool waits = pp_handle_waits(&coll->handle);
    if (waits || !team->exits)
        absorb(coll, outcome);
    else
        pp_outcome_free(coll, outcome);      /* the script has ended: nobody takes it */
    if (waits)
        pp_deliver_complete_request(coll);
    /* With a full backlog the rank withholds again. */
    if (coll->handle.by_patience && pp_deliver_is_full(coll))
        coll->handle.by_patience = false;
    if (!flush)
        team->ops->stepped(team, &coll->handle);
}

/* Before a Flush, Drain or Free: takes back the outcome of a request that the application has not collected. */
void pp_deliver_drop_request(pp_allreduce_t *coll)
{
    pp_outcome_t *outcome = coll->request.outcome;
    /* The call is given the flush, the last round there is, so its contribution cannot be stale. */
    if (pp_handle_waits(&coll->handle))
        coll->ops->forgive(coll);
    pp_team_wait_ends(&coll->handle, coll->ops->own, PP_IDLE);
    coll->request.outcome = NULL;
    if (!outcome)
        return;
    if (coll->ungiven && coll->config.deliver == PP_LATEST) {
        pp_outcome_free(coll, outcome);
    } else if (coll->ungiven && coll->config.deliver == PP_DELIVER_SUM) {
        merge(coll, outcome, coll->ungiven);
    } else {
        outcome->next = coll->ungiven;
        if (!coll->ungiven)
            coll->ungiven_last = outcome;
        coll->ungiven = outcome;
        count_ungiven(coll, 1);
    }
}

void pp_deliver_copy_out(const pp_allreduce_t *coll, const pp_outcome_t *outcome)
{
    const pp_kernels_t *kernels = &coll->series.kernels;
    const char *from = outcome->buffer ? outcome->buffer->data : NULL;
    for (size_t i = 0; i < coll->config.piece_count; i++) {
        const pp_piece_t *piece = &coll->config.pieces[i];
        if (piece->count == 0)
            continue;
        if (from) {
            kernels->users->store(kernels, piece->recv, from, piece->count);
            from += piece->count * kernels->element_bytes;
        } else {
            kernels->users->fill(kernels, piece->recv, piece->count);
        }
    }
}

void pp_deliver_describe(const pp_allreduce_t *coll, const pp_outcome_t *outcome, uint64_t start,
                         uint64_t missed, pp_result_t *result)
{
    const pp_tally_t *tally = &outcome->tally;
    *result = (pp_result_t){
        .round = outcome->round, .first = outcome->first, .contributions = tally->contributions,
        .active = (int32_t)tally->active, .cause = (int32_t)tally->cause,
        .initiator = tally->initiator == PP_NO_INITIATOR ? -1 : (int32_t)tally->initiator,
        .contributors_known = coll->series.mask_words > 0, .missed = missed,
        .staleness = outcome->staleness, .included = start > 0 && start <= outcome->starts_taken,
        .external = outcome->external,
    };
    memcpy(result->contributors, outcome->contributors, sizeof result->contributors);
}
