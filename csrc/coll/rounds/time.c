/* time.c - see time.h. */
#include "time.h"

/* ---- this rank's own calls -------------------------------------------------------------------------------- */

void pp_round_time_returned(pp_allreduce_t *coll)
{
    coll->handle.by_patience = false;
    coll->time.held = coll->time.lacked_ns = 0;
    coll->handle.engine->changed = true;
}

void pp_round_time_before_start(pp_allreduce_t *coll)
{
    if (coll->handle.by_patience)
        pp_round_time_returned(coll);
    coll->time.held = coll->time.lacked_ns = 0;
    /* Before the request is made and other ranks see it: a new request's deadline is not over. */
    if (!pp_handle_waits(&coll->handle) && !pp_engine_has(coll->handle.engine, PP_PLANT_DEADLINE_TWICE))
        coll->time.overdue = false;
    pp_patience_asks(&coll->handle);
}

void pp_round_time_started(pp_allreduce_t *coll)
{
    /* This rank was told before that it holds the round up.  It is back, and may hold it up again; but no rank tells it
       twice. */
    if (coll->time.awaited == coll->completed + 1)
        pp_engine_alarm(coll->handle.engine, 0);
    /* After a timeout the request goes on, and so does its deadline. */
    if (coll->handle.request.timed_out && pp_handle_waits(&coll->handle))
        return;
    coll->time.since_ns = 0;
    pp_patience_anew(&coll->handle, true);
    if (!pp_handle_waits(&coll->handle))
        return;
    if (coll->deadline_ns > 0) {
        coll->time.since_ns = pp_engine_now(coll->handle.engine);
        pp_engine_alarm(coll->handle.engine, coll->time.since_ns + coll->deadline_ns);
    }
    if (pp_patience_ends(&coll->handle))
        pp_engine_alarm(coll->handle.engine, 0);
}

/* ---- others ------------------------------------------------------------------------------------------------- */

bool pp_round_time_awaited(pp_allreduce_t *coll, uint64_t round, uint32_t number)
{
    bool news = coll->time.awaited < round + 1
             || (coll->time.awaited == round + 1 && coll->time.awaited_number < number);
    if (!news)
        return false;
    coll->time.awaited = round + 1;
    coll->time.awaited_number = number;
    pp_engine_alarm(coll->handle.engine, 0);
    return true;
}

/* The tick of a rank that waits. */
static uint64_t tick_waiting(pp_allreduce_t *coll, uint64_t now)
{
    uint64_t next = PP_NEVER_NS;
    if (coll->time.since_ns == 0)
        coll->time.since_ns = now;
    if (coll->deadline_ns > 0 && !coll->time.overdue) {
        next = coll->time.since_ns + coll->deadline_ns;
        coll->time.overdue = now >= next;
        coll->handle.engine->changed |= coll->time.overdue;
        next = coll->time.overdue ? PP_NEVER_NS : next;
    }
    uint64_t tell_ns = PP_NEVER_NS;
    if (pp_patience_ends(&coll->handle) && pp_patience_tells(&coll->handle, now, &tell_ns))
        coll->ops->await(coll, ++coll->time.told);
    return pp_earlier(next, tell_ns);
}

/* This rank holds up a round that others wait for.  While its backlog is full it withholds, whatever they wait for. */
static bool holds_up(pp_allreduce_t *coll)
{
    return coll->time.awaited >= coll->completed + 1 && pp_patience_ends(&coll->handle) && !pp_rounds_asks(coll)
        && !pp_handle_aside(&coll->handle) && !pp_deliver_is_full(coll) && coll->ops->holds_up(coll);
}

/* It leaves when others have waited for its patience since its last Start, and it has computed for much longer than usual. */
static uint64_t when_to_leave(const pp_allreduce_t *coll)
{
    const pp_handle_t *handle = &coll->handle;
    const uint64_t     patience = pp_patience_ns(handle);
    uint64_t pace = pp_earlier(patience, pp_habit_pace(&handle->clock.habit, &handle->team->habit));
    uint64_t from = pp_later(coll->time.lacked_ns, patience), computed = pp_later(handle->clock.given_ns, pace);
    return from > computed ? from : computed;
}

void pp_round_time_update(pp_allreduce_t *coll)
{
    const bool holds = holds_up(coll), aside = pp_handle_aside(&coll->handle), in_call = coll->handle.team->in_call;
    /* While it has left, this rank holds nobody up, and that time is none of its usual ones. */
    if (aside || in_call)
        coll->handle.clock.given_ns = 0;
    if (aside || (in_call && !holds))
        coll->time.held = coll->time.lacked_ns = 0;
    else if (holds && coll->time.held != coll->completed + 1)
        pp_engine_alarm(coll->handle.engine, 0);
}

uint64_t pp_round_time_tick(pp_allreduce_t *coll, uint64_t now)
{
    uint64_t next = pp_rounds_asks(coll) ? tick_waiting(coll, now) : PP_NEVER_NS;
    coll->time.held = 0;
    /* Also while this rank itself waits, with others, for one that sits in a call: it may be the next to come there. */
    if (coll->time.lacked_ns == 0 && (coll->handle.clock.tells > 0 || coll->time.awaited >= coll->completed + 1))
        coll->time.lacked_ns = now;
    if (!holds_up(coll))
        return next;
    coll->time.held = coll->completed + 1;
    uint64_t leaves_ns = when_to_leave(coll);
    if (now < leaves_ns)
        return pp_earlier(next, leaves_ns);
    if (pp_engine_has(coll->handle.engine, PP_PLANT_NO_PATIENCE))
        return next;
    char held[40];
    snprintf(held, sizeof held, "round %llu", (unsigned long long)coll->completed);
    pp_patience_leave(&coll->handle, held);
    return next;
}
