/* wait.c - who runs the engine and who sleeps: attending application threads and the progress thread.
   See context.h, and transport/pp_mpi.h for the doorbell's protocol. */
#define _GNU_SOURCE
#include "context.h"

#include <errno.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

enum {
    SPIN_POLLS = 50,              /* then yield the core: a thread that we woke may need it */
    SPIN_POLLS_CROWDED = 2,
    YIELD_MIN_US = 30,            /* then sleep on the doorbell: after several times the usual wait */
    YIELD_MAX_US = 1000,
    YIELD_WORTHWHILE_US = 250,    /* but if waits usually take longer than this, sleep at once */
    YIELD_US_ROUND = 60,          /* a round is running: the next message will not be long */
    YIELD_US_BULK = 2000,         /* a payload on its way moves only while somebody polls */
    RECENTLY_US = 200,            /* a thread that was here so recently will be back */
    ATTENDED_US = 5000,           /* and one that waits will leave soon, unless it has waited for long */
    NAP_MAX_US = 800,             /* while it keeps coming, the progress thread naps longer and longer */
    IDLE_US = 100000,             /* every peer can ring: the timeout is a safety net */
    BACKOFF_MIN_US = 20,          /* something moves that only polling sees */
    BACKOFF_MAX_US = 500,
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* How long a sleep may last: for ever if every peer rings, else with bounded back-off. */
static int64_t patience_us(const pp_ctx_t *ctx, unsigned quiet_polls)
{
    bool everybody_rings = pp_mpi_neighbours(ctx->mpi) == ctx->engine.size;
    if (everybody_rings && !ctx->engine.transport->bulk_in_flight)
        return IDLE_US;
    int64_t backoff = BACKOFF_MIN_US;
    while (quiet_polls-- > 0 && backoff < BACKOFF_MAX_US)
        backoff *= 2;
    return backoff < BACKOFF_MAX_US ? backoff : BACKOFF_MAX_US;
}

/* Sleeps with the lock released, unless a last poll finds something. */
static bool doze(pp_ctx_t *ctx, pp_sleeper_t sleeper, int64_t timeout_us)
{
    uint32_t seen = pp_mpi_sequence(ctx->mpi);
    pp_mpi_set_sleeper(ctx->mpi, sleeper);
    bool quiet = pp_engine_poll(&ctx->engine) == 0;
    if (quiet) {
        ctx->sleeps++;
        pthread_mutex_unlock(&ctx->lock);
        pp_mpi_sleep(ctx->mpi, sleeper, seen, timeout_us);
        pthread_mutex_lock(&ctx->lock);
    }
    return quiet;
}

/* ---- an application thread ------------------------------------------------------------------------------ */

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

static void pause_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Publishes who is to be woken while nobody attends.  An application thread that comes and goes finds
   its messages itself: to wake the progress thread for each would cost two context switches a message,
   so that thread then looks by itself, every RECENTLY_US. */
static void leave_watch(pp_ctx_t *ctx)
{
    ctx->visited_us = now_us();
    pp_mpi_set_sleeper(ctx->mpi, ctx->has_thread && ctx->armed ? PP_PROGRESS_ASLEEP : PP_AWAKE);
}

void pp_visited(pp_ctx_t *ctx)
{
    if (ctx->mpi && ctx->has_thread && !atomic_load(&ctx->attended))
        ctx->visited_us = now_us();
}

static void stop_attending(pp_ctx_t *ctx)
{
    uint32_t seen = pp_mpi_sequence(ctx->mpi);
    atomic_store(&ctx->attended, false);
    leave_watch(ctx);
    /* Rings while we were awake woke nobody: look once more, now that they would. */
    if (ctx->has_thread && ctx->armed && !ctx->engine.error
        && (ctx->engine.transport->bulk_in_flight || pp_mpi_sequence(ctx->mpi) != seen))
        pp_mpi_ring_self(ctx->mpi);
    pthread_cond_signal(&ctx->unattended);
}

/* A waiter's patience with an engine in which nothing happens: poll, then yield, then sleep. */
typedef struct pp_quiet {
    unsigned polls, sleeps;       /* since something happened */
    uint64_t since_us;            /* when yielding began */
} pp_quiet_t;

static uint64_t yield_us(const pp_ctx_t *ctx)
{
    uint64_t worthwhile = 4 * ctx->usual_wait_us;
    uint64_t least = ctx->engine.running ? YIELD_US_ROUND : YIELD_MIN_US;
    if (ctx->engine.transport->bulk_in_flight)
        return YIELD_US_BULK;
    if (ctx->usual_wait_us > YIELD_WORTHWHILE_US || worthwhile < least)
        return least;
    return worthwhile < YIELD_MAX_US ? worthwhile : YIELD_MAX_US;
}

/* Returns false if it is time to sleep. */
static bool give_way(pp_ctx_t *ctx, pp_quiet_t *quiet, uint64_t *now)
{
    unsigned spins = ctx->crowded ? SPIN_POLLS_CROWDED : SPIN_POLLS;
    bool spin = quiet->polls++ < spins;
    if (!spin) {
        *now = now_us();
        if (quiet->since_us == 0)
            quiet->since_us = *now;
        if (*now - quiet->since_us > yield_us(ctx))
            return false;
    }
    pthread_mutex_unlock(&ctx->lock);
    if (spin)
        pause_core();
    else
        sched_yield();
    pthread_mutex_lock(&ctx->lock);
    return true;
}

static pp_status_t attend(pp_ctx_t *ctx, bool (*over)(const void *), const void *arg,
                          int64_t timeout_us)
{
    uint64_t deadline = timeout_us < 0 ? UINT64_MAX : now_us() + (uint64_t)timeout_us, now = 0;
    pp_quiet_t quiet = {0};
    atomic_store(&ctx->attended, true);
    uint64_t begin = ctx->visited_us = now_us();
    pp_mpi_set_sleeper(ctx->mpi, PP_AWAKE);
    while (!over(arg) && !ctx->engine.error && now < deadline) {
        if (pp_engine_poll(&ctx->engine) > 0) {
            quiet = (pp_quiet_t){0};
            continue;
        }
        if (give_way(ctx, &quiet, &now))
            continue;
        int64_t patience = patience_us(ctx, quiet.sleeps++);
        if (deadline - now < (uint64_t)patience)
            patience = deadline > now ? (int64_t)(deadline - now) : 0;
        if (!doze(ctx, PP_CALLER_ASLEEP, patience))
            quiet = (pp_quiet_t){0};
        pp_mpi_set_sleeper(ctx->mpi, PP_AWAKE);
    }
    bool done = over(arg);
    stop_attending(ctx);
    ctx->usual_wait_us = (7 * ctx->usual_wait_us + (ctx->visited_us - begin)) / 8;
    return done ? PP_OK : ctx->engine.error ? pp_engine_check(&ctx->engine) : PP_PENDING;
}

pp_status_t pp_help_until(pp_ctx_t *ctx, bool (*over)(const void *), const void *arg,
                          int64_t timeout_us)
{
    if (!over(arg))
        pp_engine_poll(&ctx->engine);
    if (over(arg))
        return PP_OK;
    PP_TRY(pp_engine_check(&ctx->engine));
    if (!ctx->mpi || timeout_us == 0)
        return PP_PENDING;
    uint64_t deadline = timeout_us < 0 ? UINT64_MAX : now_us() + (uint64_t)timeout_us;
    while (atomic_load(&ctx->attended)) {
        wait_briefly(ctx, &ctx->unattended, 1000);
        if (over(arg))
            return PP_OK;
        uint64_t now = now_us();
        if (now >= deadline)
            return PP_PENDING;
        timeout_us = timeout_us < 0 ? -1 : (int64_t)(deadline - now);
    }
    return attend(ctx, over, arg, timeout_us);
}

/* ---- the progress thread ---------------------------------------------------------------------------------- */

/* An application thread is inside for long: nothing to do before it leaves.  From then on rings wake us. */
static void stand_by(pp_ctx_t *ctx)
{
    uint32_t seen = pp_mpi_sequence(ctx->mpi);
    ctx->armed = true;
    pthread_mutex_unlock(&ctx->lock);
    pp_mpi_sleep(ctx->mpi, PP_PROGRESS_ASLEEP, seen, IDLE_US);
    pthread_mutex_lock(&ctx->lock);
}

/* An application thread is here, or will be back at once: no ring wakes us. */
static int64_t nap(pp_ctx_t *ctx, int64_t nap_us)
{
    ctx->armed = false;
    wait_briefly(ctx, &ctx->stopping, nap_us);
    return nap_us * 2 < NAP_MAX_US ? nap_us * 2 : NAP_MAX_US;
}

/* Polls until nothing comes any more; while a round is running, also a little longer: going to sleep and
   being woken between any two of its messages would cost more than the messages. */
static bool serve(pp_ctx_t *ctx)
{
    bool any = false;
    uint64_t since = 0, now = 0;
    do {
        if (pp_engine_poll(&ctx->engine) > 0) {
            any = true;
            since = 0;
            continue;
        }
        if (!any || !ctx->engine.running)
            break;
        now = now_us();
        if (since == 0)
            since = now;
        pthread_mutex_unlock(&ctx->lock);
        sched_yield();
        pthread_mutex_lock(&ctx->lock);
    } while (!ctx->stop && !atomic_load(&ctx->attended) && now - since < YIELD_US_ROUND);
    return any;
}

static void *progress(void *arg)
{
    pp_ctx_t *ctx = arg;
    unsigned quiet = 0;
    int64_t  nap_us = RECENTLY_US;
    prctl(PR_SET_NAME, "pypartial");
    prctl(PR_SET_TIMERSLACK, 1000);   /* 1 us: back-off sleeps are short */
    pthread_mutex_lock(&ctx->lock);
    while (!ctx->stop && !ctx->engine.error) {
        bool attended = atomic_load(&ctx->attended);
        bool recently = now_us() - ctx->visited_us < (attended ? ATTENDED_US : RECENTLY_US);
        if (attended && !recently) {
            stand_by(ctx);
            continue;
        }
        if (!attended) {
            pp_mpi_set_sleeper(ctx->mpi, PP_AWAKE);
            if (serve(ctx))
                quiet = 0;
        }
        if (recently) {
            nap_us = nap(ctx, nap_us);
            continue;
        }
        nap_us = RECENTLY_US;
        ctx->armed = true;
        if (!doze(ctx, PP_PROGRESS_ASLEEP, patience_us(ctx, quiet++)))
            quiet = 0;
    }
    pthread_mutex_unlock(&ctx->lock);
    return NULL;
}

static uint64_t cpu_ns(clockid_t clock)
{
    struct timespec t;
    return clock_gettime(clock, &t) ? 0 : (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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
        return pp_fail(PP_ERR_INTERNAL, "cannot start the progress thread (error %d)", error);
    ctx->has_thread = true;
    return PP_OK;
}

void pp_thread_stop(pp_ctx_t *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    bool      had_thread = ctx->has_thread;
    pthread_t thread = ctx->thread;
    if (had_thread) {
        /* Before the join: nobody asks for the clock of a thread that is gone. */
        ctx->thread_cpu_ns = pp_thread_cpu_ns(ctx);
        ctx->has_thread = false;
        ctx->stop = true;
        pthread_cond_signal(&ctx->stopping);
        pp_mpi_set_sleeper(ctx->mpi, PP_PROGRESS_ASLEEP | PP_CALLER_ASLEEP);
        pp_mpi_ring_self(ctx->mpi);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (had_thread)
        pthread_join(thread, NULL);
}
