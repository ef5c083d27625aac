/* deliver.c - what completed rounds become: results that requests are given.  See coll.h. */
#include "combine.h"

#include <stdlib.h>
#include <string.h>

pp_entry_t *pp_entry_new(pp_coll_t *coll)
{
    pp_entry_t *entry = coll->free_entries;
    if (entry) {
        coll->free_entries = entry->next;
        return entry;
    }
    entry = calloc(1, sizeof *entry);
    if (!entry)
        pp_engine_fail(coll->engine, PP_ERR_MEMORY, "no memory for a result");
    return entry;
}

/* Kept for the next round; its fields are written anew. */
void pp_entry_free(pp_coll_t *coll, pp_entry_t *entry)
{
    if (!entry)
        return;
    pp_pool_put(&coll->series.vectors, entry->buffer);
    entry->buffer = NULL;
    entry->place = PP_NOWHERE;
    entry->next = coll->free_entries;
    coll->free_entries = entry;
}

void pp_entry_free_all(pp_coll_t *coll)
{
    for (pp_entry_t *entry; (entry = coll->free_entries);) {
        coll->free_entries = entry->next;
        free(entry);
    }
}

static void append(pp_coll_t *coll, pp_entry_t *entry)
{
    entry->next = NULL;
    if (coll->ungiven)
        coll->ungiven_last->next = entry;
    else
        coll->ungiven = entry;
    coll->ungiven_last = entry;
}

pp_entry_t *pp_deliver_pop(pp_coll_t *coll)
{
    pp_entry_t *entry = coll->ungiven;
    if (entry)
        coll->ungiven = entry->next;
    return entry;
}

/* The sum of two results is described by the newer one; the older operand is the left one. */
static void merge(pp_coll_t *coll, pp_entry_t *older, pp_entry_t *newer)
{
    newer->first = older->first;
    if (coll->combine && !(pp_combine_own(coll, older) && pp_combine_own(coll, newer)))
        return;
    if (newer->buffer && older->buffer)
        coll->series.kernels.keep_right(newer->buffer->data, older->buffer->data, coll->count);
    if (!newer->buffer) {
        newer->buffer = older->buffer;
        older->buffer = NULL;
    }
    pp_entry_free(coll, older);
}

static void absorb(pp_coll_t *coll, pp_entry_t *entry)
{
    pp_entry_t *older = coll->config.deliver == PP_EACH ? NULL : pp_deliver_pop(coll);
    if (older && coll->config.deliver == PP_DELIVER_SUM)
        merge(coll, older, entry);
    else if (older)
        pp_entry_free(coll, older);
    append(coll, entry);
}

void pp_deliver_complete_request(pp_coll_t *coll)
{
    pp_entry_t *entry = pp_deliver_pop(coll);
    if (coll->request.state == PP_OUTSTANDING)
        coll->engine->waiting--;
    coll->request.state = PP_COMPLETE;
    coll->request.entry = entry;
    if (coll->counted < entry->round + 1)
        coll->counted = entry->round + 1;
    if (coll->seen < coll->completed)
        coll->seen = coll->completed;
    coll->engine->changed = true;
}

/* What a Flush or a drain step gives is settled when the engine is through with it: rounds that complete
   before the application comes for it belong to the next request. */
void pp_deliver_bind(pp_coll_t *coll)
{
    coll->request.start = coll->starts;
    coll->request.missed = coll->completed > coll->seen ? coll->completed - coll->seen : 0;
    pp_deliver_complete_request(coll);
}

void pp_deliver_round(pp_coll_t *coll, pp_entry_t *entry)
{
    if (pp_calls_flushing(coll->calls, coll) && coll->calls->kind == PP_CALL_FREE) {
        if (entry->tally.cause == PP_CAUSE_FLUSH)
            coll->calls->discarded += entry->own_contributions;
        pp_entry_free(coll, entry);
        return;
    }
    absorb(coll, entry);
    if (pp_coll_waits(coll))
        pp_deliver_complete_request(coll);
    pp_calls_drain_step(coll->calls, coll);
}

/* Before a Flush, Drain or Free: what a request was given and nobody collected is not given after all. */
void pp_deliver_drop_request(pp_coll_t *coll)
{
    pp_entry_t *entry = coll->request.entry;
    if (coll->request.state == PP_OUTSTANDING) {
        coll->engine->waiting--;
        /* Its call is given the flush, the last round there is: in none can it be stale. */
        if (coll->combine)
            pp_combine_forgive(coll);
        else if (coll->slot.contributions == 1)
            coll->slot.oldest_given = UINT64_MAX;
    }
    coll->request.state = PP_IDLE;
    coll->request.entry = NULL;
    coll->engine->changed = true;
    if (!entry)
        return;
    if (coll->ungiven && coll->config.deliver == PP_LATEST) {
        pp_entry_free(coll, entry);
    } else if (coll->ungiven && coll->config.deliver == PP_DELIVER_SUM) {
        merge(coll, entry, coll->ungiven);
    } else {
        entry->next = coll->ungiven;
        if (!coll->ungiven)
            coll->ungiven_last = entry;
        coll->ungiven = entry;
    }
}

void pp_deliver_copy_out(const pp_coll_t *coll, const pp_entry_t *entry)
{
    const pp_kernels_t *kernels = &coll->series.kernels;
    const char *from = entry->buffer ? entry->buffer->data : NULL;
    for (size_t i = 0; i < coll->config.piece_count; i++) {
        const pp_piece_t *piece = &coll->config.pieces[i];
        if (piece->count == 0)
            continue;
        if (from) {
            pp_store(kernels, piece->recv, from, piece->count);
            from += piece->count * kernels->element_bytes;
        } else {
            pp_identity_fill(coll->config.op, coll->config.type, piece->recv, piece->count);
        }
    }
}

void pp_deliver_describe(const pp_coll_t *coll, const pp_entry_t *entry, uint64_t start,
                         uint64_t missed, pp_result_t *result)
{
    const pp_tally_t *tally = &entry->tally;
    *result = (pp_result_t){
        .round = entry->round, .first = entry->first, .contributions = tally->contributions,
        .active = (int32_t)tally->active, .cause = (int32_t)tally->cause,
        .initiator = tally->initiator == PP_NO_INITIATOR ? -1 : (int32_t)tally->initiator,
        .contributors_known = coll->series.mask_words > 0, .missed = missed,
        .staleness = entry->staleness, .included = start > 0 && start <= entry->starts_taken,
        .external = entry->external,
    };
    memcpy(result->contributors, entry->contributors, sizeof result->contributors);
}
