/* patience.c - see patience.h. */
#include "patience.h"

enum {
    TELL_SHARE = 8,                  /* after so large a part of the patience a waiting rank tells the others, */
    TELL_NS_MAX = 50000000,          /* but no later than this */
    TELL_SOON_NS = 1000000,          /* the same, if it had to tell them for its last request, too */
    AGAIN_NS_MIN = 100000000,        /* it tells them again, twice as late each time: the handle may be new to them */
    AGAIN_MAX = 20
};

static uint64_t patience_ns(const pp_allreduce_t *coll)
{
    return pp_team_patience_ns(coll->handle.team, &coll->time.habit);
}

static bool has_patience(const pp_allreduce_t *coll)
{
    const pp_team_t *team = coll->handle.team;
    return team->patience_ns != PP_FOR_EVER && !coll->handle.waits_as_mpi && team->engine->size > 1;
}

/* A rank that is alone holds no other up. */
static bool learns(const pp_team_t *team) { return team->patience_ns != PP_FOR_EVER && team->engine->size > 1; }

/* ---- this rank's own calls -------------------------------------------------------------------------------- */

void pp_patience_returned(pp_allreduce_t *coll)
{
    coll->handle.by_patience = false;
    coll->time.held = coll->time.lacked_ns = 0;
    coll->handle.engine->changed = true;
}

void pp_patience_computed(pp_allreduce_t *coll, uint64_t since_ns)
{
    if (since_ns == 0)
        return;
    uint64_t now = pp_team_coarse_now(coll->handle.team), taken = now > since_ns ? now - since_ns : 0;
    pp_habit_add(&coll->time.habit, taken);
    pp_habit_add(&coll->handle.team->habit, taken);
}

void pp_patience_before_start(pp_allreduce_t *coll)
{
    if (coll->handle.by_patience)
        pp_patience_returned(coll);
    coll->time.held = coll->time.lacked_ns = 0;
    /* Before the request is made and other ranks see it: a new request's deadline is not over. */
    if (!pp_handle_waits(&coll->handle) && !pp_engine_has(coll->handle.engine, PP_PLANT_DEADLINE_TWICE))
        coll->time.overdue = false;
    pp_patience_computed(coll, coll->time.given_ns);
    coll->time.given_ns = 0;
}

void pp_patience_started(pp_allreduce_t *coll)
{
    /* This rank was told before that it holds the round up.  It is back, and may hold it up again; but no rank tells it
       twice. */
    if (coll->time.awaited == coll->completed + 1)
        pp_engine_alarm(coll->handle.engine, 0);
    /* After a timeout the request goes on, and so does its deadline. */
    if (coll->handle.request.timed_out && pp_handle_waits(&coll->handle))
        return;
    coll->time.since_ns = coll->time.tell_ns = 0;
    coll->time.tells_soon = coll->time.tells > 0;
    coll->time.tells = 0;
    if (!pp_handle_waits(&coll->handle))
        return;
    if (coll->deadline_ns > 0) {
        coll->time.since_ns = pp_engine_now(coll->handle.engine);
        pp_engine_alarm(coll->handle.engine, coll->time.since_ns + coll->deadline_ns);
    }
    if (has_patience(coll))
        pp_engine_alarm(coll->handle.engine, 0);
}

void pp_patience_given(pp_allreduce_t *coll)
{
    if (learns(coll->handle.team))
        coll->time.given_ns = pp_team_coarse_now(coll->handle.team);
}

/* ---- others ------------------------------------------------------------------------------------------------- */

bool pp_patience_awaited(pp_allreduce_t *coll, uint64_t round, uint32_t number)
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

static void leave(pp_allreduce_t *coll, uint64_t patience)
{
    char held[40];
    snprintf(held, sizeof held, "round %llu", (unsigned long long)coll->completed);
    pp_team_leave_by_patience(&coll->handle, held, patience);
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t later(uint64_t from, uint64_t by) { return by < PP_NEVER_NS - from ? from + by : PP_NEVER_NS - 1; }

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
    if (!has_patience(coll))
        return next;
    uint64_t patience = patience_ns(coll);
    uint64_t delay = earlier(patience / TELL_SHARE, coll->time.tells_soon ? TELL_SOON_NS : TELL_NS_MAX);
    if (coll->time.tell_ns == 0)
        coll->time.tell_ns = now + delay;
    if (coll->time.tells == AGAIN_MAX)
        return next;
    if (now >= coll->time.tell_ns) {
        uint64_t again = patience > AGAIN_NS_MIN ? patience : AGAIN_NS_MIN;
        coll->ops->await(coll, ++coll->time.told);
        coll->time.tell_ns = later(now, again << coll->time.tells++);
    }
    return earlier(next, coll->time.tell_ns);
}

/* This rank holds up a round that others wait for.  While its backlog is full it withholds, whatever they wait for. */
static bool holds_up(pp_allreduce_t *coll)
{
    return coll->time.awaited >= coll->completed + 1 && has_patience(coll) && !pp_rounds_asks(coll)
        && !pp_handle_aside(&coll->handle) && !pp_deliver_is_full(coll) && coll->ops->holds_up(coll);
}

/* It leaves when others have waited for its patience since its last Start, and it has computed for much longer than usual. */
static uint64_t when_to_leave(const pp_allreduce_t *coll, uint64_t patience)
{
    uint64_t pace = earlier(patience, pp_habit_pace(&coll->time.habit, &coll->handle.team->habit));
    uint64_t from = later(coll->time.lacked_ns, patience), computed = later(coll->time.given_ns, pace);
    return from > computed ? from : computed;
}

void pp_patience_update(pp_allreduce_t *coll)
{
    const bool holds = holds_up(coll), aside = pp_handle_aside(&coll->handle), in_call = coll->handle.team->in_call;
    /* While it has left, this rank holds nobody up, and that time is none of its usual ones. */
    if (aside || in_call)
        coll->time.given_ns = 0;
    if (aside || (in_call && !holds))
        coll->time.held = coll->time.lacked_ns = 0;
    else if (holds && coll->time.held != coll->completed + 1)
        pp_engine_alarm(coll->handle.engine, 0);
}

uint64_t pp_patience_tick(pp_allreduce_t *coll, uint64_t now)
{
    uint64_t next = pp_rounds_asks(coll) ? tick_waiting(coll, now) : PP_NEVER_NS;
    coll->time.held = 0;
    /* Also while this rank itself waits, with others, for one that sits in a call: it may be the next to come there. */
    if (coll->time.lacked_ns == 0 && (coll->time.tells > 0 || coll->time.awaited >= coll->completed + 1))
        coll->time.lacked_ns = now;
    if (!holds_up(coll))
        return next;
    coll->time.held = coll->completed + 1;
    uint64_t patience = patience_ns(coll), leaves_ns = when_to_leave(coll, patience);
    if (now < leaves_ns)
        return earlier(next, leaves_ns);
    if (pp_engine_has(coll->handle.engine, PP_PLANT_NO_PATIENCE))
        return next;
    leave(coll, patience);
    return next;
}
