/* sleep.c - see wait_parts.h: how long a thread sleeps that finds nothing to do. */
#define _GNU_SOURCE
#include "wait_parts.h"

#include <sched.h>

enum {
    ALARM_LATE_NS = 10000,        /* a thread that sleeps until an alarm looks so much later at most: the time is rounded */
    EARLY_US = 150,               /* a waiter is awake so long before an alarm: a sleep often lasts so much longer */
    AWAKE_US = 500,               /* for a round that is ripe sooner than this a waiter does not sleep */
    IN_USE_US = 1000000,          /* for this time after a call with bulk the progress thread looks by itself */
    FLEW_US = 10000,              /* the same after a call of an application that comes back at once from a Start */
    IDLE_US = 100000,             /* every peer can ring, so the timeout is only a safety net */
    BACKOFF_MIN_US = 20,          /* something moves that only polling sees */
    BACKOFF_MAX_US = 500,
    BACKOFF_IDLE_US = 1500        /* the same, after PP_IDLE_POLLS looks in vain */
};

/* If every peer rings, a timeout is only a safety net; else, and while elements are on their way from a device, the time
   backs off, within bounds.  Bulk (pp_leave()) and elements (looks_soon() of wait.c) may be left to a call that then does
   not come: they are found within PP_IN_USE_PATIENCE_US. */
int64_t pp_patience_us(const pp_ctx_t *ctx, unsigned quiet_polls)
{
    uint64_t in_use_us = ctx->engine.transport->bulk_sent > 0 ? IN_USE_US
                       : ctx->flown > 0 && ctx->returns_soon[true] ? FLEW_US : 0;
    if (pp_everybody_rings(ctx) && !pp_is_under_way(ctx) && ctx->flights == 0)
        return in_use_us > 0 && pp_now_us() - ctx->left_us < in_use_us ? PP_IN_USE_PATIENCE_US : IDLE_US;
    if (quiet_polls > PP_IDLE_POLLS)
        return BACKOFF_IDLE_US;
    int64_t backoff = BACKOFF_MIN_US;
    while (quiet_polls-- > 0 && backoff < BACKOFF_MAX_US)
        backoff *= 2;
    return backoff < BACKOFF_MAX_US ? backoff : BACKOFF_MAX_US;
}

bool pp_tick(pp_ctx_t *ctx, uint64_t now_ns)
{
    if (ctx->engine.transport->alarm_ns > now_ns || ctx->engine.error)
        return false;
    pp_engine_tick(&ctx->engine);
    return true;
}

int64_t pp_until_alarm_us(const pp_ctx_t *ctx)
{
    uint64_t alarm = ctx->engine.transport->alarm_ns, now = alarm == UINT64_MAX ? 0 : pp_now_us() * 1000;
    if (alarm == UINT64_MAX)
        return INT64_MAX;
    return alarm <= now ? 0 : (int64_t)((alarm - now) / 1000) + 1;
}

/* How long a thread may sleep before a round is ripe that waits for its grace.  The progress thread sleeps until then:
   if it were awake, it would keep the lock from the application, for which the round may wait. */
static int64_t until_ripe_us(const pp_ctx_t *ctx, bool waits)
{
    const int64_t us = (int64_t)(ctx->team.soon_ns / 1000) + 1;
    if (ctx->team.soon_ns == 0)
        return INT64_MAX;
    if (!waits)
        return us;
    return us > AWAKE_US ? us - EARLY_US : 0;
}

bool pp_doze(pp_ctx_t *ctx, pp_sleeper_t sleeper, unsigned quiet_polls, int64_t limit_us)
{
    bool     waits = sleeper == PP_CALLER_ASLEEP;
    uint64_t alarm_ns = ctx->engine.transport->alarm_ns;
    if (alarm_ns != UINT64_MAX && (pp_tick(ctx, pp_now_us() * 1000) || (waits && pp_until_alarm_us(ctx) <= EARLY_US)))
        return false;
    uint32_t seen = pp_mpi_sequence(ctx->mpi);
    bool     counted = ctx->engine.node && waits;
    pp_mpi_set_sleeper(ctx->mpi, sleeper);
    pp_mpi_ask(ctx->mpi);
    if (counted)
        pp_node_asleep(ctx->engine.node);
    /* Of a failure the other ranks are told before this thread sleeps. */
    if (pp_look(ctx) > 0 || ctx->engine.error || (counted && (until_ripe_us(ctx, true) == 0 || pp_find_work(ctx)))) {
        if (counted)
            pp_node_awake(ctx->engine.node);
        return false;
    }
    int64_t patience = pp_patience_us(ctx, quiet_polls);   /* after the poll: it may have left bulk */
    int64_t ripe_us = until_ripe_us(ctx, waits);
    if (patience > ripe_us)
        patience = ripe_us;
    int64_t alarm_us = pp_until_alarm_us(ctx) - (waits ? EARLY_US : 0);
    if (patience > alarm_us)
        patience = alarm_us > 0 ? alarm_us : 0;
    uint64_t *until_ns = sleeper == PP_PROGRESS_ASLEEP ? &ctx->thread_until_ns : &ctx->caller_until_ns;
    *until_ns = pp_now_us() * 1000 + (uint64_t)patience * 1000;
    ctx->sleeps++;
    pthread_mutex_unlock(&ctx->lock);
    bool slept = pp_mpi_sleep(ctx->mpi, sleeper, seen, patience < limit_us ? patience : limit_us);
    pthread_mutex_lock(&ctx->lock);
    *until_ns = 0;
    if (counted)
        pp_node_awake(ctx->engine.node);
    pp_look_after_sleep(ctx, sleeper, slept);
    ctx->unheard += slept && !atomic_load(&ctx->attended) && pp_mpi_sequence(ctx->mpi) != ctx->looked;
    return true;
}

/* An alarm that is to come soon hides later ones.  Patience, for which it usually is, can do without it until a thread
   sleeps the next time; deadlines cannot. */
void pp_wake_for_alarm(pp_ctx_t *ctx)
{
    const uint64_t until = pp_asleep_until_ns(ctx);
    if (ctx->team.timed && until > 0 && ctx->engine.transport->alarm_ns == 0 && !ctx->engine.error)
        pp_engine_tick(&ctx->engine);
    const uint64_t alarm = ctx->engine.transport->alarm_ns;
    if ((alarm > 0 || ctx->team.timed) && alarm < until && until - alarm > ALARM_LATE_NS)
        pp_mpi_ring_self(ctx->mpi);
}

void pp_let_others(pp_ctx_t *ctx, bool have_core)
{
    pthread_mutex_unlock(&ctx->lock);
    if (have_core)
        sched_yield();
    else
        pp_pause_core();
    pthread_mutex_lock(&ctx->lock);
}
