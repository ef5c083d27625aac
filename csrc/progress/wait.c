/* wait.c - an application thread runs the engine, and sleeps, in place of the progress thread (thread.c).
   See context.h, and transport/pp_mpi.h for the doorbell's protocol. */
#include "live.h"
#include "wait_parts.h"

#include <stdlib.h>
#include <string.h>

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
    LOOKS_BEFORE_LEAVING = 4,     /* if rings keep coming after that, the progress thread looks */
    TELL_US = 300000              /* time to tell all ranks of a failure, before a call returns */
};

pp_status_t pp_check_left(pp_ctx_t *ctx, pp_status_t status)
{
    if (pp_cuda_all_left())
        return PP_OK;
    status = pp_cuda_check_left(status < 0 ? status : pp_engine_check(&ctx->engine));
    ctx->engine.error = PP_OK;       /* the text has both */
    pp_engine_fail(&ctx->engine, status, "%s", pp_error_text());
    if (ctx->has_thread)             /* it tells the other ranks */
        pp_mpi_ring_self(ctx->mpi);
    return pp_engine_check(&ctx->engine);
}

/* What fails here must not replace the text of the call's error. */
static void look_after_failure(pp_ctx_t *ctx)
{
    char *text = strdup(pp_error_text());
    pp_check_left(ctx, PP_OK);
    if (ctx->mpi && !ctx->has_thread && !ctx->abandoned && !ctx->calls.told_gone)
        pp_tell_failure(ctx, TELL_US);
    else if (ctx->has_thread && !ctx->calls.told_gone)
        pp_mpi_ring_self(ctx->mpi);  /* the progress thread does */
    if (text)
        pp_fail(PP_OK, "%s", text);
    free(text);
}

/* What is left to do at the end of a call that has to do with time, devices or failures. */
static void before_unlock(pp_ctx_t *ctx)
{
    /* A thread that attends does so when it leaves, unless it sleeps. */
    if (ctx->team.timed && (!atomic_load(&ctx->attended) || ctx->caller_until_ns > 0))
        pp_wake_for_alarm(ctx);
    if (ctx->engine.error || (ctx->has_devices && !pp_cuda_all_left()))
        look_after_failure(ctx);
}

void pp_unlock(pp_ctx_t *ctx)
{
    if ((ctx->team.timed || ctx->engine.error || ctx->has_devices) && !ctx->freed)
        before_unlock(ctx);
    ctx->inside--;
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

void pp_make_way(pp_ctx_t *ctx)
{
    if (PP_SIM && ctx->actor.pause) {
        ctx->actor.pause(ctx->actor.owner);
        return;
    }
    pp_let_others(ctx, ctx->crowded);
    pp_look_after_some(ctx);
}

/* A simulated rank's attend() and pp_doze(). */
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
        returned(ctx, pp_now_us());
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
    uint64_t now = pp_now_us();
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
               || (for_bulk && in_time(pp_needs_polling(ctx), &bulk_since))))
        if (pp_look(ctx) == 0)
            pp_let_others(ctx, ctx->crowded);
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
            return !pp_needs_polling(ctx) || ctx->returns_soon[ctx->left_after_start];
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
        && ctx->thread_until_ns <= (pp_now_us() + PP_IN_USE_PATIENCE_US) * 1000;
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
    ctx->left_us = pp_now_us();
    pthread_cond_signal(&ctx->unattended);
}

void pp_leave_flight(pp_ctx_t *ctx, bool after_start)
{
    if (!ctx->mpi)
        return;
    bool attended = atomic_load(&ctx->attended);
    if (!attended && after_start) {
        ctx->left_after_start = true;
        ctx->left_us = pp_now_us();
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
    if (pp_is_under_way(ctx))
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
        pp_let_others(ctx, ctx->crowded);
        return true;
    }
    bool spin = quiet->polls++ < spins;
    if (!spin) {
        *now = pp_now_us();
        if (quiet->since_us == 0)
            quiet->since_us = *now;
        if (*now - quiet->since_us > yield_us(ctx))
            return false;
    }
    pp_let_others(ctx, !spin);
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
    uint64_t   begin = pp_now_us(), now = 0;
    pp_quiet_t quiet = {0};
    bool       told = false, ticked = false;
    returned(ctx, begin);
    pp_arrive(ctx);
    while (!over(arg) && !ctx->engine.error && !ctx->freed && now < deadline) {
        if (pp_look(ctx) > 0 || (now > 0 && pp_tick(ctx, now * 1000)) || pp_work(ctx, receives)) {
            quiet = (pp_quiet_t){0};
            continue;
        }
        if (begin >= deadline) {
            if (!ticked && pp_tick(ctx, begin * 1000)) {
                ticked = true;
                continue;
            }
            if (!ctx->has_thread)
                pp_look_after_some(ctx);
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
        if (!pp_doze(ctx, PP_CALLER_ASLEEP, quiet.sleeps++, left))
            quiet = (pp_quiet_t){0};
        pp_mpi_set_sleeper(ctx->mpi, PP_AWAKE);
        pp_mpi_defer(ctx->mpi, true);
    }
    if (!ctx->freed)
        pp_tell_failure(ctx, TELL_US);
    pp_leave(ctx, false);
    if (told)
        tell_other_contexts(ctx, &told);
    ctx->usual_wait_us = (7 * ctx->usual_wait_us + (ctx->left_us - begin)) / 8;
}

static pp_status_t outcome(const pp_ctx_t *ctx, bool over)
{
    if (over)
        return PP_OK;
    if (ctx->freed)
        return pp_ctx_ended(ctx);
    return ctx->engine.error ? pp_engine_check(&ctx->engine) : PP_PENDING;
}

/* Waits while another application thread attends. */
static void wait_for_turn(pp_ctx_t *ctx, bool (*over)(const void *), const void *arg, uint64_t deadline)
{
    while (atomic_load(&ctx->attended) && !over(arg) && !ctx->engine.error && !ctx->freed && pp_now_us() < deadline)
        wait_briefly(ctx, &ctx->unattended, 1000);
}

pp_status_t pp_help_until(pp_ctx_t *ctx, bool (*over)(const void *), const void *arg,
                          int64_t timeout_us, const pp_handle_t *receives)
{
    if (ctx->freed)
        return outcome(ctx, over(arg));
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
    uint64_t deadline = timeout_us < 0 ? UINT64_MAX : pp_now_us() + (uint64_t)timeout_us;
    wait_for_turn(ctx, over, arg, deadline);
    if (!atomic_load(&ctx->attended))
        attend(ctx, over, arg, deadline, receives);
    return outcome(ctx, over(arg));
}
