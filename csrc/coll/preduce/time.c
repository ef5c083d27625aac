/*
 * time.c - what time does to groups.  See preduce.h.
 *
 * A rank that waits long tells the ranks that its group waits for.  Such a rank starts its own clock; when its patience
 * is over, it leaves the handle by patience, until its next Start.  The request that has told it may be over by then,
 * or wait for others only: so this rank looks whether that one still waits for it, and else begins anew with another
 * request, or forgets it.  A rank that waits for long on a handle of another
 * kind, or in another context, says so, and so does one that waits long for its group: the first gives way to the
 * second, for which it may wait.  Groups that the caller gives, or that stand in a table, know no patience: they wait as
 * any MPI does.
 */
#include "../patience.h"
#include "preduce.h"

enum { LONG_NS = 5000000 };

/* ---- this rank's own calls ------------------------------------------------------------------------------------- */

void pp_group_time_returned(pp_preduce_t *preduce)
{
    preduce->handle.by_patience = false;
    preduce->time.awaited = preduce->time.leave_ns = 0;
    preduce->time.confirms = false;
    preduce->handle.engine->changed = true;
}

void pp_group_time_before_start(pp_preduce_t *preduce)
{
    if (preduce->handle.by_patience || preduce->time.awaited)
        pp_group_time_returned(preduce);
    pp_patience_asks(&preduce->handle);
}

void pp_group_time_started(pp_preduce_t *preduce)
{
    preduce->time.long_ns = 0;
    pp_patience_anew(&preduce->handle, false);
    if (pp_handle_waits(&preduce->handle) && preduce->handle.engine->size > 1)
        pp_engine_alarm(preduce->handle.engine, 0);
}

/* ---- others ---------------------------------------------------------------------------------------------------- */

/* Another rank waits for this one, which has not left. */
static bool holds_up(const pp_preduce_t *preduce)
{
    return preduce->time.awaited && !pp_handle_gone(&preduce->handle)
        && !pp_engine_has(preduce->handle.engine, PP_PLANT_NO_PATIENCE);
}

static void confirm(pp_preduce_t *preduce)
{
    if (preduce->time.confirms)
        return;
    preduce->time.confirms = true;
    preduce->ops->confirm(preduce);
}

static bool is_over(const pp_preduce_t *preduce, uint64_t now)
{
    return holds_up(preduce) && preduce->time.leave_ns > 0 && now >= preduce->time.leave_ns;
}

void pp_group_time_confirmed(pp_preduce_t *preduce, uint64_t request)
{
    pp_engine_t *engine = preduce->handle.engine;
    preduce->time.confirms = false;
    if (pp_preduce_asks(preduce) || !pp_patience_ends(&preduce->handle))
        return;
    if (request != preduce->time.awaited) {
        preduce->time.awaited = request;
        preduce->time.leave_ns = 0;
        pp_engine_alarm(engine, 0);
    } else if (is_over(preduce, pp_engine_now(engine))) {
        preduce->time.awaited = 0;
        pp_patience_leave(&preduce->handle, "a group");
    }
}

/* While the clock runs for another request, that one may be over. */
void pp_group_time_awaited(pp_preduce_t *preduce, uint64_t request)
{
    if (pp_preduce_asks(preduce) || !pp_patience_ends(&preduce->handle) || request == preduce->time.awaited)
        return;
    if (preduce->time.awaited)
        confirm(preduce);
    else
        pp_group_time_confirmed(preduce, request);
}

void pp_group_time_update(pp_preduce_t *preduce, uint64_t waits)
{
    const pp_team_t *team = preduce->handle.team;
    if (waits == 0 || preduce->time.seen_waits != team->waits) {
        preduce->time.elsewhere = false;
        preduce->time.elsewhere_ns = 0;
    }
    preduce->time.seen_waits = team->waits;
    if (waits > 0 && preduce->time.elsewhere_ns == 0 && team->engine->size > 1)
        pp_engine_alarm(team->engine, 0);
    /* While it had left, this rank held nobody up, and that time is none of its usual ones.  It is waited for still when it
       is back. */
    if (pp_handle_gone(&preduce->handle))
        preduce->time.leave_ns = preduce->handle.clock.given_ns = 0;
    else if (holds_up(preduce) && preduce->time.leave_ns == 0)
        pp_engine_alarm(team->engine, 0);
}

/* ---- looks ----------------------------------------------------------------------------------------------------- */

static uint64_t tick_waiting(pp_preduce_t *preduce, uint64_t now)
{
    uint64_t next;
    if (pp_patience_tells(&preduce->handle, now, &next))
        preduce->ops->await(preduce);
    return next;
}

static uint64_t tick_long(pp_preduce_t *preduce, uint64_t now)
{
    if (preduce->time.long_ns == 0)
        preduce->time.long_ns = now + LONG_NS;
    if (now < preduce->time.long_ns || preduce->time.long_ns == PP_NEVER_NS)
        return preduce->time.long_ns;
    preduce->time.long_ns = PP_NEVER_NS;
    preduce->ops->say_long(preduce);
    return PP_NEVER_NS;
}

static uint64_t tick_awaited(pp_preduce_t *preduce, uint64_t now)
{
    if (preduce->time.leave_ns == 0)
        preduce->time.leave_ns = now + pp_patience_ns(&preduce->handle);
    if (!is_over(preduce, now))
        return preduce->time.leave_ns;
    confirm(preduce);
    return PP_NEVER_NS;
}

static uint64_t tick_elsewhere(pp_preduce_t *preduce, uint64_t now)
{
    if (preduce->time.elsewhere_ns == 0)
        preduce->time.elsewhere_ns = now + LONG_NS;
    if (now < preduce->time.elsewhere_ns)
        return preduce->time.elsewhere_ns;
    preduce->time.elsewhere = true;
    preduce->handle.engine->changed = true;
    return PP_NEVER_NS;
}

uint64_t pp_group_time_tick(pp_preduce_t *preduce, uint64_t now, uint64_t waits)
{
    uint64_t next = PP_NEVER_NS;
    if (pp_preduce_asks(preduce) && preduce->handle.engine->size > 1)
        next = tick_long(preduce, now);
    if (pp_preduce_asks(preduce) && pp_patience_ends(&preduce->handle))
        next = pp_earlier(next, tick_waiting(preduce, now));
    if (holds_up(preduce))
        next = pp_earlier(next, tick_awaited(preduce, now));
    if (waits > 0 && !preduce->time.elsewhere)
        next = pp_earlier(next, tick_elsewhere(preduce, now));
    return next;
}
