/* engine.c - dispatch of messages, deferral, settling, errors.  See engine.h. */
#include "engine.h"

#include "series.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void pp_engine_fail(pp_engine_t *engine, pp_status_t status, const char *format, ...)
{
    if (engine->error)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(engine->error_text, sizeof engine->error_text, format, args);
    va_end(args);
    engine->error = status;
}

pp_status_t pp_engine_check(const pp_engine_t *engine)
{
    return engine->error ? pp_fail(engine->error, "%s", engine->error_text) : PP_OK;
}

/* ---- messages ------------------------------------------------------------------------------------ */

pp_stored_t *pp_stored_new(int32_t peer, const void *message, size_t bytes)
{
    pp_stored_t *stored = malloc(sizeof *stored + bytes);
    if (!stored)
        return NULL;
    stored->next = NULL;
    stored->peer = peer;
    stored->bytes = bytes;
    memcpy(stored->message, message, bytes);
    return stored;
}

void pp_stored_append(pp_stored_t **list, pp_stored_t *stored)
{
    while (*list)
        list = &(*list)->next;
    *list = stored;
}

void pp_stored_free_all(pp_stored_t **list)
{
    while (*list) {
        pp_stored_t *first = *list;
        *list = first->next;
        free(first);
    }
}

static bool keep(pp_engine_t *engine, pp_stored_t **list, int32_t peer, const void *message,
                 size_t bytes)
{
    pp_stored_t *stored = pp_stored_new(peer, message, bytes);
    if (!stored) {
        pp_engine_fail(engine, PP_ERR_MEMORY, "no memory for a message of %zu bytes", bytes);
        return false;
    }
    pp_stored_append(list, stored);
    return true;
}

static pp_series_t *find_series(const pp_engine_t *engine, uint32_t handle)
{
    return handle < engine->series_count ? engine->series[handle] : NULL;
}

/* Due: neither from a rank that is a collective call ahead, nor for a round not opened yet. */
static void dispatch(pp_engine_t *engine, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    pp_series_t *series = find_series(engine, prefix->handle);
    if (!series) {
        /* Late control messages of a freed handle have nobody left to tell. */
        if (prefix->kind == PP_MSG_OPERATION)
            pp_engine_fail(engine, PP_ERR_INTERNAL, "rank %d sent an operation of round %llu to handle "
                           "%u, which is not open", peer, (unsigned long long)prefix->round,
                           prefix->handle);
        return;
    }
    if (prefix->kind != PP_MSG_OPERATION) {
        series->host->control(series->owner, peer, prefix);
    } else if (!series->graph) {
        pp_engine_fail(engine, PP_ERR_INTERNAL, "rank %d sent an operation to handle %u, which has none", peer,
                       prefix->handle);
    } else if (pp_series_place(series, prefix->round) >= series->opened) {
        engine->coverage.windows_full++;
        keep(engine, &series->early, peer, prefix, bytes);
    } else {
        pp_series_message(series, peer, prefix, bytes);
    }
}

static bool context_wide(uint16_t kind) { return kind >= PP_MSG_ASK; }

static void on_message(void *owner, int32_t peer, const void *message, size_t bytes)
{
    pp_engine_t *engine = owner;
    const pp_prefix_t *prefix = message;
    if (engine->error && prefix->kind != PP_MSG_GONE)
        return;
    if (context_wide(prefix->kind))
        engine->control(engine->owner, peer, prefix);
    else if (prefix->calls > engine->calls)
        keep(engine, &engine->deferred, peer, message, bytes);
    else
        dispatch(engine, peer, prefix, bytes);
    pp_engine_settle(engine);
}

static void on_bulk_done(void *owner, void *cookie)
{
    pp_engine_t *engine = owner;
    if (engine->error)
        return;
    pp_series_bulk_done(cookie);
    pp_engine_settle(engine);
}

static void on_failed(void *owner, pp_status_t status, int32_t peer, const char *text)
{
    pp_engine_t *engine = owner;
    if (peer >= 0)
        pp_engine_fail(engine, status, "rank %d: %s", peer, text);
    else
        pp_engine_fail(engine, status, "%s", text);
}

void pp_engine_call_ended(pp_engine_t *engine)
{
    engine->in_call = false;
    engine->calls++;
    engine->changed = true;
    engine->replay = true;
}

/* Kept messages whose time has come, in the order of arrival (which keeps every pair in order).  Only
   called from settle, so that the lists are never walked twice at once. */
static void replay_kept(pp_engine_t *engine)
{
    pp_stored_t **link = &engine->deferred;
    engine->replay = false;
    while (*link && !engine->error) {
        pp_stored_t *stored = *link;
        const pp_prefix_t *prefix = (const pp_prefix_t *)stored->message;
        if (prefix->calls > engine->calls) {
            link = &stored->next;
            continue;
        }
        *link = stored->next;
        dispatch(engine, stored->peer, prefix, stored->bytes);
        free(stored);
    }
    for (size_t i = 0; i < engine->series_count && !engine->error; i++)
        if (engine->series[i])
            pp_series_replay_early(engine->series[i]);
}

void pp_engine_control(pp_engine_t *engine, int32_t peer, pp_prefix_t *message, size_t bytes)
{
    const pp_series_t *series = context_wide(message->kind) ? NULL : find_series(engine, message->handle);
    message->calls = pp_engine_calls(engine, series && series->nodes);
    pp_status_t status = engine->transport->ops->send(engine->transport, peer, message, bytes, NULL, 0);
    if (status < 0)
        pp_engine_fail(engine, status, "%s", pp_error_text());
}

/* ---- settling ------------------------------------------------------------------------------------ */

static void fire_all(pp_engine_t *engine)
{
    while (engine->queue_head != engine->queue_tail && !engine->error) {
        struct pp_firing next = engine->queue[engine->queue_head++];
        pp_series_fire(next.instance, next.vertex);
    }
    engine->queue_head = engine->queue_tail = 0;
}

void pp_engine_settle(pp_engine_t *engine)
{
    if (engine->settling)
        return;
    engine->settling = true;
    do {
        fire_all(engine);
        if (engine->replay)
            replay_kept(engine);
        if (engine->changed && engine->queue_head == engine->queue_tail) {
            engine->changed = false;
            for (size_t i = 0; i < engine->series_count && !engine->error; i++)
                if (engine->series[i] && engine->series[i]->host->update)
                    engine->series[i]->host->update(engine->series[i]->owner);
        }
    } while ((engine->queue_head != engine->queue_tail || engine->changed || engine->replay)
             && !engine->error);
    engine->settling = false;
    engine->transport->ops->ring(engine->transport);
}

int pp_engine_poll(pp_engine_t *engine)
{
    pp_transport_t *transport = engine->transport;
    int events = transport->ops->poll(transport);
    transport->ops->ring(transport);
    return events;
}

pp_status_t pp_engine_init(pp_engine_t *engine, pp_transport_t *transport, uint64_t seed)
{
    *engine = (pp_engine_t){.transport = transport, .rank = transport->rank, .size = transport->size,
                            .seed = seed};
    transport->sink = (pp_sink_t){.engine = engine, .message = on_message,
                                  .bulk_done = on_bulk_done, .failed = on_failed};
    return PP_OK;
}

void pp_engine_release(pp_engine_t *engine)
{
    pp_stored_free_all(&engine->deferred);
    free(engine->queue);
    free(engine->series);
    engine->queue = NULL;
    engine->series = NULL;
    engine->series_count = 0;
}
