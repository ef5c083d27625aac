/* engine.c - dispatch of messages, deferral, settling, errors.  See engine.h. */
#include "engine.h"

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

bool pp_engine_keep(pp_engine_t *engine, pp_stored_t **list, int32_t peer, const void *message, size_t bytes)
{
    pp_stored_t *stored = pp_stored_new(peer, message, bytes);
    if (!stored) {
        pp_engine_fail(engine, PP_ERR_MEMORY, "no memory for a message of %zu bytes", bytes);
        return false;
    }
    pp_stored_append(list, stored);
    return true;
}

/* Takes a message that is due: its sender is not a collective call ahead of the handle. */
static void dispatch(pp_engine_t *engine, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    pp_handle_t *handle = pp_engine_handle(engine, prefix->handle);
    const pp_handle_ops_t *ops = handle ? handle->ops : NULL;
    if (ops && prefix->kind != PP_MSG_OPERATION && ops->control) {
        ops->control(handle, peer, prefix);
    } else if (ops && prefix->kind == PP_MSG_OPERATION && ops->operation) {
        ops->operation(handle, peer, prefix, bytes);
    } else if (handle || prefix->kind == PP_MSG_OPERATION) {
        /* Only a late control message to a freed handle may find no receiver. */
        pp_engine_fail(engine, PP_ERR_INTERNAL, "rank %d sent a message of kind %u and round %llu to handle %u, "
                       "which %s here", peer, prefix->kind, (unsigned long long)prefix->round, prefix->handle,
                       handle ? "expects none" : "is not open");
    }
}

static bool context_wide(uint16_t kind) { return kind >= PP_MSG_ASK; }

/* The sender has completed the call that opens the handle; this rank has not. */
static bool is_deferred(const pp_engine_t *engine, const pp_prefix_t *prefix)
{
    return prefix->calls > engine->calls && !pp_engine_handle(engine, prefix->handle);
}

void pp_engine_hear_calls(pp_engine_t *engine, uint64_t calls)
{
    if (calls <= engine->calls_heard)
        return;
    engine->calls_heard = calls;
    engine->changed = true;
    if (engine->nodes)
        engine->node_hears(engine->node, calls);
}

static void on_message(void *owner, int32_t peer, const void *message, size_t bytes)
{
    pp_engine_t *engine = owner;
    const pp_prefix_t *prefix = message;
    if (engine->error && prefix->kind != PP_MSG_GONE)
        return;
    if (!context_wide(prefix->kind))
        pp_engine_hear_calls(engine, prefix->calls);
    if (context_wide(prefix->kind))
        engine->control(engine->owner, peer, prefix);
    else if (is_deferred(engine, prefix))
        pp_engine_keep(engine, &engine->deferred, peer, message, bytes);
    else
        dispatch(engine, peer, prefix, bytes);
    pp_engine_settle(engine);
}

static void on_bulk_done(void *owner, void *cookie)
{
    pp_engine_t *engine = owner;
    if (engine->error)
        return;
    pp_bulks_over(&engine->bulks, cookie);
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
    engine->calls++;
    engine->changed = true;
    engine->replay = true;
}

/* Delivers the kept messages that are due now, in the order of arrival, which keeps those of a pair of ranks in order.
   Called from settle only, so that the lists are never walked twice at once. */
static void replay_kept(pp_engine_t *engine)
{
    pp_stored_t **link = &engine->deferred;
    engine->replay = false;
    while (*link && !engine->error) {
        pp_stored_t *stored = *link;
        const pp_prefix_t *prefix = (const pp_prefix_t *)stored->message;
        if (is_deferred(engine, prefix)) {
            link = &stored->next;
            continue;
        }
        *link = stored->next;
        dispatch(engine, stored->peer, prefix, stored->bytes);
        free(stored);
    }
    for (pp_walk_t walk = pp_walk_begin(&engine->handles, 0); !engine->error && pp_walk_on(&engine->handles, &walk);)
        if (walk.here->ops->replay)
            walk.here->ops->replay(walk.here);
}

void pp_engine_control(pp_engine_t *engine, int32_t peer, pp_prefix_t *message, size_t bytes)
{
    message->calls = pp_engine_calls_known(engine);
    pp_status_t status = engine->transport->ops->send(engine->transport, peer, message, bytes, NULL, 0);
    if (status < 0)
        pp_engine_fail(engine, status, "%s", pp_error_text());
}

void pp_engine_move(pp_engine_t *engine, const pp_payload_t *payload, const pp_travelled_t *then)
{
    pp_status_t status = pp_bulks_begin(&engine->bulks, payload, then);
    if (status < 0)
        pp_engine_fail(engine, status, "%s", pp_error_text());
}

void pp_engine_pool(pp_engine_t *engine, size_t bytes, const pp_memory_t *memory, pp_pool_t *pool)
{
    bool from_blocks = memory == &pp_memory_host && engine->transport->pins_pages && bytes > PP_INLINE_BYTES;
    pp_pool_init(pool, bytes, memory, from_blocks ? &engine->blocks : NULL);
}

/* ---- settling ------------------------------------------------------------------------------------ */

bool pp_engine_grow_queue(pp_engine_t *engine)
{
    bool grown = pp_grow((void **)&engine->queue, &engine->queue_capacity, engine->queue_tail + 1,
                         sizeof *engine->queue);
    if (!grown)
        pp_engine_fail(engine, PP_ERR_MEMORY, "no memory for the queue of ready operations");
    return grown;
}

static void fire_all(pp_engine_t *engine)
{
    while (engine->queue_head != engine->queue_tail && !engine->error) {
        pp_firing_t next = engine->queue[engine->queue_head++];
        next.fire(next.owner, next.which);
    }
    engine->queue_head = engine->queue_tail = 0;
}

static void update_all(pp_engine_t *engine)
{
    for (pp_walk_t walk = pp_walk_begin(&engine->handles, 0); !engine->error && pp_walk_on(&engine->handles, &walk);)
        if (walk.here->kind->update)
            walk.here->kind->update(walk.here);
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
            update_all(engine);
        }
    } while ((engine->queue_head != engine->queue_tail || engine->changed || engine->replay)
             && !engine->error);
    engine->settling = false;
    engine->transport->ops->ring(engine->transport);
}

/* ---- time ------------------------------------------------------------------------------------------ */

void pp_engine_alarm(pp_engine_t *engine, uint64_t time_ns)
{
    pp_transport_t *transport = engine->transport;
    if (time_ns >= transport->alarm_ns)
        return;
    transport->alarm_ns = time_ns;
    if (transport->ops->alarm)
        transport->ops->alarm(transport);
}

void pp_engine_tick(pp_engine_t *engine)
{
    uint64_t now = pp_engine_now(engine), next = PP_NEVER_NS;
    engine->transport->alarm_ns = PP_NEVER_NS;
    engine->changed = true;   /* an update() that waits for a time sets its alarm again */
    for (pp_walk_t walk = pp_walk_begin(&engine->handles, 1); !engine->error && pp_walk_on(&engine->handles, &walk);) {
        uint64_t at = walk.here->kind->tick ? walk.here->kind->tick(walk.here, now) : PP_NEVER_NS;
        next = at < next ? at : next;
    }
    if (next != PP_NEVER_NS)
        pp_engine_alarm(engine, next);
    pp_engine_settle(engine);
}

static void on_alarm(void *owner)
{
    pp_engine_t *engine = owner;
    if (!engine->error)
        pp_engine_tick(engine);
}

int pp_engine_poll(pp_engine_t *engine)
{
    pp_transport_t *transport = engine->transport;
    int events = transport->ops->poll(transport);
    pp_status_t status = engine->bulks.held && !engine->error ? pp_bulks_look(&engine->bulks, &events) : PP_OK;
    if (status < 0)
        pp_engine_fail(engine, status, "%s", pp_error_text());
    transport->ops->ring(transport);
    return events;
}

pp_status_t pp_engine_register(pp_engine_t *engine, pp_handle_t *handle, uint32_t id)
{
    if (!pp_handles_add(&engine->handles, id, handle))
        return pp_fail(PP_ERR_MEMORY, "no memory for another handle");
    handle->engine = engine;
    handle->id = id;
    handle->gone_at = UINT64_MAX;
    return PP_OK;
}

void pp_engine_forget(pp_engine_t *engine, pp_handle_t *handle)
{
    pp_handles_remove(&engine->handles, handle);
}

pp_status_t pp_engine_init(pp_engine_t *engine, pp_transport_t *transport, uint64_t seed)
{
    *engine = (pp_engine_t){.transport = transport, .rank = transport->rank, .size = transport->size,
                            .seed = seed};
    transport->sink = (pp_sink_t){.engine = engine, .message = on_message,
                                  .bulk_done = on_bulk_done, .alarm = on_alarm, .failed = on_failed};
    transport->alarm_ns = PP_NEVER_NS;
    engine->bulks.transport = transport;
    return PP_OK;
}

void pp_engine_release(pp_engine_t *engine)
{
    pp_stored_free_all(&engine->deferred);
    pp_bulks_release(&engine->bulks);
    free(engine->queue);
    engine->queue = NULL;
    pp_handles_release(&engine->handles);
}
