/* wait.c - which thread runs the engine and which sleeps: attending application threads and the progress thread.
   See context.h, and transport/pp_mpi.h for the doorbell's protocol. */
#define _GNU_SOURCE
#include "direct.h"
#include "live.h"
#include "staging.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    SPIN_POLLS = 50,              /* polls before a waiter yields the core: a thread that it woke may need it */
    SPIN_POLLS_CROWDED = 2,
    YIELD_MIN_US = 30,            /* time before it sleeps on the doorbell: several times the usual wait */
    YIELD_MAX_US = 1000,
    YIELD_WORTHWHILE_US = 250,    /* if waits usually take longer than this, it sleeps at once */
    YIELD_US_ROUND = 60,          /* a round is running: the next message will come soon */
    YIELD_US_BULK = 2000,         /* a payload under way moves only while a thread polls */
    WAKE_AFTER_US = 40,           /* time that a rank gets to look by itself; about the cost of a wake-up */
    RECENTLY_US = 200,            /* an application that came back within this time will do so again */
    ALARM_LATE_NS = 10000,        /* a thread that sleeps until an alarm looks so much later at most: the time is rounded */
    EARLY_US = 150,               /* a waiter is awake so long before an alarm: a sleep often lasts so much longer */
    LOOKS_BEFORE_LEAVING = 4,     /* if rings keep coming after that, the progress thread looks */
    VAIN_LOOKS = 1024,            /* looks in vain before a call looks whether another rank has died */
    LOOK_LATER_US = 250000,       /* between such looks, if there is no hurry */
    TELL_US = 300000,             /* time to tell all ranks of a failure, before a call returns */
    TELL_US_THREAD = 3000000,     /* the same, before the progress thread ends */
    TELL_PAUSE_US = 200,
    IN_USE_US = 1000000,          /* for this time after a call with bulk the progress thread looks by itself, */
    IN_USE_PATIENCE_US = 1000,    /* at this interval: see patience_us() */
    FLEW_US = 10000,              /* the same after a call of an application that comes back at once from a Start */
    IDLE_US = 100000,             /* every peer can ring, so the timeout is only a safety net */
    BACKOFF_MIN_US = 20,          /* something moves that only polling sees */
    BACKOFF_MAX_US = 500,
    BACKOFF_IDLE_US = 1500,       /* the same, after IDLE_POLLS looks in vain */
    IDLE_POLLS = 200
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static bool everybody_rings(const pp_ctx_t *ctx)
{
    return pp_mpi_neighbours(ctx->mpi) == ctx->engine.size;
}

/* A payload that is held for a device moves only while threads look, as those do that MPI moves. */
static bool needs_polling(const pp_ctx_t *ctx) { return ctx->engine.bulks.held || pp_mpi_needs_polling(ctx->mpi); }
static bool is_under_way(const pp_ctx_t *ctx) { return ctx->engine.bulks.held || pp_mpi_is_under_way(ctx->mpi); }

/* How long a sleep may last.  If every peer rings, a timeout is only a safety net; else, and while elements are on their
   way from a device, the time backs off, within bounds.  Bulk (pp_leave()) and elements (looks_soon()) may be left to a
   call that then does not come: they are found within IN_USE_PATIENCE_US. */
static int64_t patience_us(const pp_ctx_t *ctx, unsigned quiet_polls)
{
    uint64_t in_use_us = ctx->engine.transport->bulk_sent > 0 ? IN_USE_US
                       : ctx->flew && ctx->returns_soon[true] ? FLEW_US : 0;
    if (everybody_rings(ctx) && !is_under_way(ctx) && ctx->flights == 0)
        return in_use_us > 0 && now_us() - ctx->left_us < in_use_us ? IN_USE_PATIENCE_US : IDLE_US;
    if (quiet_polls > IDLE_POLLS)
        return BACKOFF_IDLE_US;
    int64_t backoff = BACKOFF_MIN_US;
    while (quiet_polls-- > 0 && backoff < BACKOFF_MAX_US)
        backoff *= 2;
    return backoff < BACKOFF_MAX_US ? backoff : BACKOFF_MAX_US;
}

/* Rounds in the node's memory that others have completed. */
static int look_at_boards(pp_ctx_t *ctx)
{
    int any = 0;
    ctx->team.soon_ns = 0;
    if (ctx->engine.error || !ctx->engine.node)      /* after an error no handle catches up any more */
        return 0;
    PP_FOR_EACH_HANDLE(&ctx->engine, handle)
        any |= handle->kind->poll && handle->kind->poll(handle);
    return any;
}

pp_handle_t *pp_find_work(const pp_ctx_t *ctx)
{
    pp_handle_t *found = NULL;
    if (!ctx->engine.node)
        return NULL;
    PP_FOR_EACH_HANDLE(&ctx->engine, handle)
        if (!found && handle->kind->has_work && handle->kind->has_work(handle))
            found = handle;
    return found;
}

bool pp_is_needed(const pp_ctx_t *ctx)
{
    bool needed = false;
    if (!ctx->engine.nodes)
        return false;
    PP_FOR_EACH_HANDLE(&ctx->engine, handle)
        needed |= handle->kind->needed && handle->kind->needed(handle);
    return needed;
}

static bool work_at_round(pp_ctx_t *ctx, const pp_handle_t *receives)
{
    uint64_t     round;
    pp_handle_t *handle = pp_find_work(ctx);
    if (!handle)
        return false;
    bool lands = handle == receives;
    handle->kind->begin_work(handle, &lands);
    pthread_mutex_unlock(&ctx->lock);
    bool last = handle->kind->work(handle, lands, &round);
    pthread_mutex_lock(&ctx->lock);
    handle->kind->worked(handle, round, last);
    pp_engine_settle(&ctx->engine);
    return true;
}

bool pp_work(pp_ctx_t *ctx, const pp_handle_t *receives)
{
    bool worked = pp_staging_work(ctx) || work_at_round(ctx, receives);
    if (receives && receives->face->ahead)
        worked |= receives->face->ahead(ctx, (pp_handle_t *)receives);
    return worked;
}

static int look_everywhere(pp_ctx_t *ctx)
{
    return pp_engine_poll(&ctx->engine) + look_at_boards(ctx) + pp_staging_look(ctx);
}

int pp_look(pp_ctx_t *ctx)
{
    if (!ctx->mpi)
        return look_everywhere(ctx);
    pp_direct_begin_look(ctx);
    uint32_t sequence = pp_mpi_sequence(ctx->mpi);
    int      events = look_everywhere(ctx);
    pp_direct_end_look(ctx);
    if (sequence != ctx->looked || events > 0)
        pp_mpi_set_looked(ctx->mpi, sequence);
    ctx->looked = sequence;
    return events;
}

/* Looks whether other ranks live: a round that a dead rank has claimed, or a message that it owes, never comes.  A look
   costs tens of microseconds. */
static void look_after_some(pp_ctx_t *ctx, uint64_t interval_us)
{
    uint64_t now = now_us();
    if (now - ctx->looked_after_us < interval_us)
        return;
    ctx->looked_after_us = now;
    pp_mpi_look_after(ctx->mpi);
}

/* Looks whether other ranks live, after a sleep: while a thread waits in vain; from time to time also while wake-ups
   come, which may be from others; and if no thread waits here, for ranks of other nodes, which cannot look themselves.
   */
static void look_after_sleep(pp_ctx_t *ctx, pp_sleeper_t sleeper, bool slept)
{
    bool waits = sleeper == PP_CALLER_ASLEEP || ctx->team.waiting > 0;   /* or the application only tests */
    if (waits || !everybody_rings(ctx))
        look_after_some(ctx, slept && waits ? IDLE_US : LOOK_LATER_US);
}

/* The same for calls that do not sleep. */
static void look_after_some_now_and_then(pp_ctx_t *ctx)
{
    if (ctx->mpi && ++ctx->vain_looks % VAIN_LOOKS == 0)
        look_after_some(ctx, IDLE_US);
}

/* Lets the engine look at the clock if its alarm is due; true: it was. */
static bool tick(pp_ctx_t *ctx, uint64_t now_ns)
{
    if (ctx->engine.transport->alarm_ns > now_ns || ctx->engine.error)
        return false;
    pp_engine_tick(&ctx->engine);
    return true;
}

/* How long the engine can do without the clock. */
static int64_t until_alarm_us(const pp_ctx_t *ctx)
{
    uint64_t alarm = ctx->engine.transport->alarm_ns, now = alarm == UINT64_MAX ? 0 : now_us() * 1000;
    if (alarm == UINT64_MAX)
        return INT64_MAX;
    return alarm <= now ? 0 : (int64_t)((alarm - now) / 1000) + 1;
}

/* Sleeps with the lock released, unless a last poll finds something; false: it did. */
static bool doze(pp_ctx_t *ctx, pp_sleeper_t sleeper, unsigned quiet_polls, int64_t limit_us)
{
    bool     waits = sleeper == PP_CALLER_ASLEEP;
    uint64_t alarm_ns = ctx->engine.transport->alarm_ns;
    if (alarm_ns != UINT64_MAX && (tick(ctx, now_us() * 1000) || (waits && until_alarm_us(ctx) <= EARLY_US)))
        return false;
    uint32_t seen = pp_mpi_sequence(ctx->mpi);
    bool     counted = ctx->engine.node && waits;
    pp_mpi_set_sleeper(ctx->mpi, sleeper);
    pp_mpi_ask(ctx->mpi);
    if (counted)
        pp_node_asleep(ctx->engine.node);
    if (pp_look(ctx) > 0 || (counted && (ctx->team.soon_ns > 0 || pp_find_work(ctx)))) {
        if (counted)
            pp_node_awake(ctx->engine.node);
        return false;
    }
    int64_t patience = patience_us(ctx, quiet_polls);   /* after the poll: it may have left bulk */
    /* The progress thread sleeps until a round is ripe.  If it were awake, it would keep the lock from the application,
       for which the round may wait. */
    int64_t soon_us = (int64_t)(ctx->team.soon_ns / 1000) + 1;
    if (ctx->team.soon_ns > 0 && patience > soon_us)
        patience = soon_us;
    int64_t alarm_us = until_alarm_us(ctx) - (waits ? EARLY_US : 0);
    if (patience > alarm_us)
        patience = alarm_us > 0 ? alarm_us : 0;
    if (sleeper == PP_PROGRESS_ASLEEP)
        ctx->thread_until_ns = now_us() * 1000 + (uint64_t)patience * 1000;
    ctx->sleeps++;
    pthread_mutex_unlock(&ctx->lock);
    bool slept = pp_mpi_sleep(ctx->mpi, sleeper, seen, patience < limit_us ? patience : limit_us);
    pthread_mutex_lock(&ctx->lock);
    if (sleeper == PP_PROGRESS_ASLEEP)
        ctx->thread_until_ns = 0;
    if (counted)
        pp_node_awake(ctx->engine.node);
    look_after_sleep(ctx, sleeper, slept);
    ctx->unheard += slept && !atomic_load(&ctx->attended) && pp_mpi_sequence(ctx->mpi) != ctx->looked;
    return true;
}

/* Tells the peers of a failure at once, because they would wait for this rank.  Of a death every rank tells, and waits
   until the others know: an application that learns of it may end its process, and messages that MPI has not sent by
   then are lost. */
static void tell_failure(pp_ctx_t *ctx, uint64_t limit_us)
{
    if (!ctx->engine.error)
        return;
    pp_exit_tell_gone(&ctx->calls);
    ctx->engine.transport->ops->ring(ctx->engine.transport);
    for (uint64_t begin = now_us(); !ctx->stop && now_us() - begin < limit_us && !pp_mpi_all_told(ctx->mpi);) {
        pthread_mutex_unlock(&ctx->lock);
        usleep(TELL_PAUSE_US);
        pthread_mutex_lock(&ctx->lock);
    }
}

/* ---- an application thread ------------------------------------------------------------------------------ */

/* An alarm that is to come soon hides later ones.  Patience, for which it usually is, can do without it until a thread
   sleeps the next time; deadlines cannot. */
void pp_wake_for_alarm(pp_ctx_t *ctx)
{
    if (ctx->team.timed && ctx->thread_until_ns > 0 && ctx->engine.transport->alarm_ns == 0 && !ctx->engine.error)
        pp_engine_tick(&ctx->engine);
    const uint64_t alarm = ctx->engine.transport->alarm_ns, until = ctx->thread_until_ns;
    if ((alarm > 0 || ctx->team.timed) && alarm < until && until - alarm > ALARM_LATE_NS)
        pp_mpi_ring_self(ctx->mpi);
}

void pp_unlock(pp_ctx_t *ctx)
{
    if (ctx->team.timed && !atomic_load(&ctx->attended))     /* else the thread that attends does so when it leaves */
        pp_wake_for_alarm(ctx);
    if (ctx->engine.error && ctx->mpi && !ctx->has_thread && !ctx->abandoned && !ctx->calls.told_gone) {
        char *text = strdup(pp_error_text());          /* the call's, which what fails here must not replace */
        tell_failure(ctx, TELL_US);
        if (text)
            pp_fail(PP_OK, "%s", text);
        free(text);
    }
    pthread_mutex_unlock(&ctx->lock);
}

/* Waits on a condition with the context's lock, for a bounded time. */
static void wait_briefly(pp_ctx_t *ctx, pthread_cond_t *condition, int64_t timeout_us)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)timeout_us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(condition, &ctx->lock, &until);
}

/* Lets others have the lock, and the core too. */
static void let_others(pp_ctx_t *ctx, bool have_core)
{
    pthread_mutex_unlock(&ctx->lock);
    if (have_core)
        sched_yield();
    else
        pp_pause_core();
    pthread_mutex_lock(&ctx->lock);
}

void pp_make_way(pp_ctx_t *ctx)
{
    if (PP_SIM && ctx->actor.pause) {
        ctx->actor.pause(ctx->actor.owner);
        return;
    }
    let_others(ctx, ctx->crowded);
    look_after_some_now_and_then(ctx);
}

/* A simulated rank's attend() and doze(). */
static void wait_simulated(pp_ctx_t *ctx, bool (*over)(const void *), const void *arg, const pp_handle_t *receives)
{
    const pp_actor_ops_t *actor = &ctx->actor;
    while (!over(arg) && !ctx->engine.error && !actor->expired(actor->owner)) {
        if (pp_look(ctx) > 0 || pp_work(ctx, receives))
            continue;
        actor->announce(actor->owner, true);
        pp_node_asleep(ctx->engine.node);
        bool busy = pp_look(ctx) > 0 || pp_find_work(ctx) || ctx->engine.error;
        if (!busy && ctx->team.soon_ns > 0)
            actor->pause(actor->owner);
        else if (!busy) {
            pthread_mutex_unlock(&ctx->lock);
            actor->park(actor->owner);
            pthread_mutex_lock(&ctx->lock);
        }
        pp_node_awake(ctx->engine.node);
        actor->announce(actor->owner, false);
    }
}

static void returned(pp_ctx_t *ctx, uint64_t now)
{
    ctx->returns_soon[ctx->left_after_start] = now - ctx->left_us < RECENTLY_US;
}

void pp_returned(pp_ctx_t *ctx)
{
    if (ctx->mpi && !atomic_load(&ctx->attended))
        returned(ctx, now_us());
}

bool pp_arrive(pp_ctx_t *ctx)
{
    if (!ctx->mpi || atomic_load(&ctx->attended))
        return false;
    atomic_store(&ctx->attended, true);
    pp_mpi_set_sleeper(ctx->mpi, PP_AWAKE);
    pp_mpi_defer(ctx->mpi, true);
    return true;
}

/* Whether something is under way that has not yet had WAKE_AFTER_US. */
static bool in_time(bool under_way, uint64_t *since_us)
{
    if (!under_way) {
        *since_us = 0;
        return false;
    }
    uint64_t now = now_us();
    if (*since_us == 0)
        *since_us = now;
    return now - *since_us <= WAKE_AFTER_US;
}

/* Waits a moment for ranks to which this one owes a wake-up (see pp_mpi_defer), and then wakes them.  True: they still
   have time. */
static bool wait_for_answers(pp_ctx_t *ctx, uint64_t *since_us)
{
    bool owes = pp_mpi_owes(ctx->mpi);
    if (in_time(owes, since_us))
        return true;
    if (owes)
        pp_mpi_wake_owed(ctx->mpi);
    return false;
}

/* Before leaving: waits a moment for neighbours to answer; after a Wait also for this rank's last bulk, which otherwise
   the progress thread would have to look after. */
static void linger(pp_ctx_t *ctx, bool for_bulk)
{
    uint64_t owing_since = 0, bulk_since = 0;
    while (!ctx->engine.error
           && (wait_for_answers(ctx, &owing_since)
               || (for_bulk && in_time(needs_polling(ctx), &bulk_since))))
        if (pp_look(ctx) == 0)
            let_others(ctx, ctx->crowded);
}

/* Whether nothing is left to do.  Rings since the last look woke no thread; now they do, so it looks again. */
static bool leaves_nothing(pp_ctx_t *ctx)
{
    for (int looks = 0; looks < LOOKS_BEFORE_LEAVING; looks++) {
        pp_mpi_set_sleeper(ctx->mpi, PP_PROGRESS_ASLEEP);
        if (ctx->engine.error)
            return true;
        if (pp_is_needed(ctx))
            return false;
        if (pp_mpi_sequence(ctx->mpi) == ctx->looked && !pp_mpi_expects(ctx->mpi))
            return !needs_polling(ctx) || ctx->returns_soon[ctx->left_after_start];
        pp_look(ctx);
    }
    return false;
}

/* Whether elements that are on their way can be left alone: the application looks for them itself, since it usually comes
   back at once from a Start; and if it does not, the progress thread will look soon.  To wake that would cost more than the
   copy of few elements, and it would have the lock when the application wants it. */
static bool looks_soon(const pp_ctx_t *ctx)
{
    return ctx->returns_soon[true] && ctx->thread_until_ns > 0
        && ctx->thread_until_ns <= (now_us() + IN_USE_PATIENCE_US) * 1000;
}

void pp_leave(pp_ctx_t *ctx, bool after_start)
{
    bool watched = after_start && looks_soon(ctx);
    linger(ctx, !after_start);
    pp_mpi_defer(ctx->mpi, false);
    atomic_store(&ctx->attended, false);
    ctx->left_after_start = after_start;
    if (ctx->has_thread && (!leaves_nothing(ctx) || (ctx->flights > 0 && !watched)))
        pp_mpi_ring_self(ctx->mpi);
    ctx->left_us = now_us();
    pthread_cond_signal(&ctx->unattended);
}

void pp_leave_flight(pp_ctx_t *ctx, bool after_start)
{
    if (!ctx->mpi)
        return;
    bool attended = atomic_load(&ctx->attended);
    if (!attended && after_start) {
        ctx->left_after_start = true;
        ctx->left_us = now_us();
    }
    if (attended || (ctx->has_thread && !(after_start && looks_soon(ctx))))
        pp_mpi_ring_self(ctx->mpi);
}

/* How long nothing has happened while a thread waits: it polls, then yields, then sleeps. */
typedef struct pp_quiet {
    unsigned polls, sleeps;       /* since something happened */
    uint64_t since_us;            /* when yielding began */
    uint64_t owing_since_us;
} pp_quiet_t;

static uint64_t yield_us(const pp_ctx_t *ctx)
{
    uint64_t worthwhile = 4 * ctx->usual_wait_us;
    uint64_t least = ctx->engine.running ? YIELD_US_ROUND : YIELD_MIN_US;
    if (is_under_way(ctx))
        return YIELD_US_BULK;
    if (ctx->usual_wait_us > YIELD_WORTHWHILE_US || worthwhile < least)
        return least;
    return worthwhile < YIELD_MAX_US ? worthwhile : YIELD_MAX_US;
}

/* Spins or yields; false: it is time to sleep. */
static bool give_way(pp_ctx_t *ctx, pp_quiet_t *quiet, uint64_t *now)
{
    unsigned spins = ctx->crowded ? SPIN_POLLS_CROWDED : SPIN_POLLS;
    if (wait_for_answers(ctx, &quiet->owing_since_us)) {
        let_others(ctx, ctx->crowded);
        return true;
    }
    bool spin = quiet->polls++ < spins;
    if (!spin) {
        *now = now_us();
        if (quiet->since_us == 0)
            quiet->since_us = *now;
        if (*now - quiet->since_us > yield_us(ctx))
            return false;
    }
    let_others(ctx, !spin);
    return true;
}

bool pp_request_complete(const void *arg)
{
    const pp_handle_t *handle = arg;
    return handle->request.state == PP_COMPLETE && (!handle->face->room || handle->face->room(handle));
}

/* Before the thread sleeps, and when its wait is over: tells the other contexts of the process, whose rounds may wait
   for this rank, that it waits here. */
static void tell_other_contexts(pp_ctx_t *ctx, bool *told)
{
    pthread_mutex_unlock(&ctx->lock);
    pp_live_waits_long(ctx, *told ? -1 : 1);
    pthread_mutex_lock(&ctx->lock);
    *told = !*told;
}

/* Looks at least once: at the clock, too, if the alarm is due. */
static void attend(pp_ctx_t *ctx, bool (*over)(const void *), const void *arg, uint64_t deadline,
                   const pp_handle_t *receives)
{
    uint64_t   begin = now_us(), now = 0;
    pp_quiet_t quiet = {0};
    bool       told = false, ticked = false;
    returned(ctx, begin);
    pp_arrive(ctx);
    while (!over(arg) && !ctx->engine.error && now < deadline) {
        if (pp_look(ctx) > 0 || (now > 0 && tick(ctx, now * 1000)) || pp_work(ctx, receives)) {
            quiet = (pp_quiet_t){0};
            continue;
        }
        if (begin >= deadline) {
            if (!ticked && tick(ctx, begin * 1000)) {
                ticked = true;
                continue;
            }
            if (!ctx->has_thread)
                look_after_some_now_and_then(ctx);
            break;
        }
        if (give_way(ctx, &quiet, &now))
            continue;
        if (now >= deadline)   /* it passed during a sleep */
            break;
        if (!told && over == pp_request_complete && !pp_live_is_alone()) {
            tell_other_contexts(ctx, &told);
            continue;
        }
        int64_t left = deadline - now < INT64_MAX ? (int64_t)(deadline - now) : INT64_MAX;
        pp_mpi_defer(ctx->mpi, false);
        if (!doze(ctx, PP_CALLER_ASLEEP, quiet.sleeps++, left))
            quiet = (pp_quiet_t){0};
        pp_mpi_set_sleeper(ctx->mpi, PP_AWAKE);
        pp_mpi_defer(ctx->mpi, true);
    }
    tell_failure(ctx, TELL_US);
    pp_leave(ctx, false);
    if (told)
        tell_other_contexts(ctx, &told);
    ctx->usual_wait_us = (7 * ctx->usual_wait_us + (ctx->left_us - begin)) / 8;
}

static pp_status_t outcome(const pp_ctx_t *ctx, bool over)
{
    if (over)
        return PP_OK;
    return ctx->engine.error ? pp_engine_check(&ctx->engine) : PP_PENDING;
}

/* Waits while another application thread attends. */
static void wait_for_turn(pp_ctx_t *ctx, bool (*over)(const void *), const void *arg, uint64_t deadline)
{
    while (atomic_load(&ctx->attended) && !over(arg) && !ctx->engine.error && now_us() < deadline)
        wait_briefly(ctx, &ctx->unattended, 1000);
}

pp_status_t pp_help_until(pp_ctx_t *ctx, bool (*over)(const void *), const void *arg,
                          int64_t timeout_us, const pp_handle_t *receives)
{
    if (!ctx->mpi || atomic_load(&ctx->attended)) {
        pp_work(ctx, receives);
        pp_look(ctx);
    }
    if (ctx->mpi && over(arg))
        return PP_OK;
    if (!ctx->mpi) {
        if (PP_SIM && ctx->actor.park && timeout_us != 0)
            wait_simulated(ctx, over, arg, receives);
        return outcome(ctx, over(arg));
    }
    uint64_t deadline = timeout_us < 0 ? UINT64_MAX : now_us() + (uint64_t)timeout_us;
    wait_for_turn(ctx, over, arg, deadline);
    if (!atomic_load(&ctx->attended))
        attend(ctx, over, arg, deadline, receives);
    return outcome(ctx, over(arg));
}

/* ---- the progress thread ---------------------------------------------------------------------------------- */

/* An application thread is inside: the progress thread has nothing to do until it leaves, and then rings wake it.  It
   sleeps no longer than until the alarm, because the application may have left by then. */
static void stand_by(pp_ctx_t *ctx)
{
    uint32_t seen = pp_mpi_sequence(ctx->mpi);
    int64_t  patience = patience_us(ctx, IDLE_POLLS), alarm_us = until_alarm_us(ctx);
    if (alarm_us > 0 && patience > alarm_us)         /* to one that is due the application looks */
        patience = alarm_us;
    ctx->thread_until_ns = (now_us() + (uint64_t)patience) * 1000;
    pthread_mutex_unlock(&ctx->lock);
    pp_mpi_sleep(ctx->mpi, PP_PROGRESS_ASLEEP, seen, patience);
    pthread_mutex_lock(&ctx->lock);
    ctx->thread_until_ns = 0;
}

static uint64_t cpu_ns(clockid_t clock)
{
    struct timespec t;
    return clock_gettime(clock, &t) ? 0 : (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Works at a round for other ranks while the application is away. */
static bool lend_core(pp_ctx_t *ctx)
{
    uint64_t begin_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    bool     worked = work_at_round(ctx, NULL);
    if (worked)
        pp_node_lent(ctx->engine.node, cpu_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns);
    return worked;
}

/* Polls until nothing comes any more.  While a round is running it polls a little longer, because to sleep and be woken
   between two of its messages would cost more than the messages. */
static bool serve(pp_ctx_t *ctx)
{
    bool any = false;
    uint64_t since = 0, now = 0;
    do {
        if (pp_look(ctx) > 0 || pp_staging_work(ctx) || lend_core(ctx)) {
            any = true;
            since = 0;
            continue;
        }
        if (!any || !ctx->engine.running)
            break;
        now = now_us();
        if (since == 0)
            since = now;
        let_others(ctx, true);
    } while (!ctx->stop && !ctx->engine.error && !atomic_load(&ctx->attended) && now - since < YIELD_US_ROUND);
    return any;
}

static void *progress(void *arg)
{
    pp_ctx_t *ctx = arg;
    unsigned  quiet = 0;
    prctl(PR_SET_NAME, "pypartial");
    prctl(PR_SET_TIMERSLACK, 1000);   /* 1 us: back-off sleeps are short */
    pthread_mutex_lock(&ctx->lock);
    while (!ctx->stop && !ctx->engine.error) {
        if (atomic_load(&ctx->attended)) {
            stand_by(ctx);
            continue;
        }
        pp_mpi_set_sleeper(ctx->mpi, PP_AWAKE);
        if (serve(ctx))
            quiet = 0;
        if (atomic_load(&ctx->attended))
            continue;
        if (!doze(ctx, PP_PROGRESS_ASLEEP, quiet++, INT64_MAX))
            quiet = 0;
    }
    tell_failure(ctx, TELL_US_THREAD);
    pthread_mutex_unlock(&ctx->lock);
    return NULL;
}

uint64_t pp_thread_cpu_ns(const pp_ctx_t *ctx)
{
    clockid_t clock;
    if (!ctx->has_thread || pthread_getcpuclockid(ctx->thread, &clock))
        return ctx->thread_cpu_ns;
    return cpu_ns(clock);
}

pp_status_t pp_thread_start(pp_ctx_t *ctx)
{
    int error = pthread_create(&ctx->thread, NULL, progress, ctx);
    if (error)
        return pp_fail(PP_ERR_INTERNAL, "cannot start the progress thread (pthread_create: error %d)", error);
    ctx->has_thread = true;
    return PP_OK;
}

void pp_thread_stop(pp_ctx_t *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    bool      had_thread = ctx->has_thread;
    pthread_t thread = ctx->thread;
    if (had_thread) {
        /* Before the join: the clock of a thread that has ended cannot be read. */
        ctx->thread_cpu_ns = pp_thread_cpu_ns(ctx);
        ctx->has_thread = false;
        ctx->stop = true;
        pp_mpi_set_sleeper(ctx->mpi, PP_PROGRESS_ASLEEP | PP_CALLER_ASLEEP);
        pp_mpi_ring_self(ctx->mpi);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (had_thread)
        pthread_join(thread, NULL);
}
