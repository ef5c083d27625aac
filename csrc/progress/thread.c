/* thread.c - the progress thread: it serves other ranks while no application thread attends (wait.c). */
#define _GNU_SOURCE
#include "sight.h"
#include "staging.h"
#include "wait_parts.h"

#include <string.h>
#include <sys/prctl.h>

enum {
    SERVE_US = 60,                /* a round is running: the next message will come soon */
    TELL_US = 3000000             /* time to tell all ranks of a failure, before the thread ends */
};

/* An application thread is inside: the progress thread has nothing to do until it leaves, and then rings wake it.  It
   sleeps no longer than until the alarm, because the application may have left by then. */
static void stand_by(pp_ctx_t *ctx)
{
    uint32_t seen = pp_mpi_sequence(ctx->mpi);
    int64_t  patience = pp_patience_us(ctx, PP_IDLE_POLLS), alarm_us = pp_until_alarm_us(ctx);
    if (alarm_us > 0 && patience > alarm_us)         /* to one that is due the application looks */
        patience = alarm_us;
    ctx->thread_until_ns = (pp_now_us() + (uint64_t)patience) * 1000;
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
    bool     worked = pp_work_at_round(ctx, NULL);
    if (worked && ctx->engine.node)
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
        now = pp_now_us();
        if (since == 0)
            since = now;
        pp_let_others(ctx, true);
    } while (!ctx->stop && !ctx->engine.error && !atomic_load(&ctx->attended) && now - since < SERVE_US);
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
        pp_sight_tell(ctx, PP_EVENT_ASLEEP, 0, 0);
        if (!pp_doze(ctx, PP_PROGRESS_ASLEEP, quiet++, INT64_MAX))
            quiet = 0;
        pp_sight_tell(ctx, PP_EVENT_AWAKE, 0, 0);
    }
    if (ctx->engine.error)           /* a thread of the application may sleep */
        pp_mpi_ring_self(ctx->mpi);
    pp_tell_failure(ctx, TELL_US);
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
        return pp_fail(PP_ERR_STATE, "cannot start the progress thread: %s. Raise the limit on processes (ulimit -u, or "
                       "the container's) or on address space (ulimit -v), or pass progress='caller'", strerror(error));
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
