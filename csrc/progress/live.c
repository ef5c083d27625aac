/* live.c - see live.h. */
#define _GNU_SOURCE
#include "live.h"
#include "sight.h"

#include <unistd.h>

static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static pp_ctx_t *live;
static pp_ctx_t *kept;
static atomic_int open_contexts;       /* as many as `live` lists */
static bool finalises;
static int  taken;                     /* contexts that threads end */
static uint64_t taken_after;           /* so many forks: a forked child has not these threads */
static uint32_t long_waits;            /* threads that wait long, in all contexts */
static uint32_t asides;                /* blocking calls of the application that the library sees */

void pp_live_add(pp_ctx_t *ctx)
{
    pthread_mutex_lock(&live_lock);
    ctx->next = live;
    live = ctx;
    pthread_mutex_lock(&ctx->lock);
    ctx->team.asides = ctx->has_thread ? asides : 0;
    pthread_mutex_unlock(&ctx->lock);
    atomic_fetch_add(&open_contexts, 1);
    pthread_mutex_unlock(&live_lock);
}

static bool unlist(pp_ctx_t *ctx)
{
    for (pp_ctx_t **link = &live; *link; link = &(*link)->next)
        if (*link == ctx) {
            *link = ctx->next;
            atomic_fetch_sub(&open_contexts, 1);
            return true;
        }
    return false;
}

void pp_live_remove(pp_ctx_t *ctx)
{
    pthread_mutex_lock(&live_lock);
    unlist(ctx);
    pthread_mutex_unlock(&live_lock);
}

bool pp_live_take(pp_ctx_t *ctx)
{
    pthread_mutex_lock(&live_lock);
    const bool takes = !finalises && unlist(ctx);
    if (takes) {
        taken++;
        taken_after = ctx->forks;
        pthread_mutex_lock(&ctx->lock);
        ctx->ending = true;
        pthread_mutex_unlock(&ctx->lock);
    }
    pthread_mutex_unlock(&live_lock);
    return takes;
}

void pp_live_taken(void)
{
    pthread_mutex_lock(&live_lock);
    taken--;
    pthread_mutex_unlock(&live_lock);
}

void pp_live_keep(pp_ctx_t *ctx)
{
    pthread_mutex_lock(&live_lock);
    ctx->next = kept;
    kept = ctx;
    pthread_mutex_unlock(&live_lock);
}

void pp_live_finalise(void)
{
    pthread_mutex_lock(&live_lock);
    finalises = true;
    pthread_mutex_unlock(&live_lock);
}

void pp_live_await_taken(void)
{
    enum { LOOKS = 1000, PAUSE_US = 1000 };
    pthread_mutex_lock(&live_lock);
    for (int looks = 0; taken > 0 && taken_after == pp_fork_count() && looks < LOOKS; looks++) {
        pthread_mutex_unlock(&live_lock);
        usleep(PAUSE_US);
        pthread_mutex_lock(&live_lock);
    }
    pthread_mutex_unlock(&live_lock);
}

pp_ctx_t *pp_live_next(const pp_ctx_t *ctx) { return ctx ? ctx->next : live; }

/* Called with a context's lock, which pp_live_waits_long() takes after the list's: so it may not take that one. */
bool pp_live_is_alone(void) { return atomic_load(&open_contexts) <= 1; }

/* Rounds that went on without this rank, until the other ranks could see that it is back, count as given. */
void pp_live_tell(pp_ctx_t *ctx, uint32_t asides, uint32_t waits_in_others)
{
    pp_team_t *team = &ctx->team;
    uint32_t   before = team->waits_in_others;
    team->waits_in_others = waits_in_others;
    if (ctx->engine.node)
        pp_team_publish_presence(team);
    team->waits_in_others = before;
    pp_team_count_as_given(team, NULL);
    team->waits_in_others = waits_in_others;
    team->asides = asides;
    ctx->engine.changed = true;
    pp_engine_settle(&ctx->engine);
    /* All threads of the context may sleep: they look at the clock no sooner than they know of now. */
    if (ctx->engine.transport->alarm_ns == 0)
        pp_engine_tick(&ctx->engine);
    if (ctx->mpi && (ctx->engine.error || ctx->engine.transport->alarm_ns < pp_asleep_until_ns(ctx)))
        pp_mpi_ring_self(ctx->mpi);
}

/* Tells all contexts that are usable what has changed for them.  Called with the list's lock. */
static void tell_all(void)
{
    for (pp_ctx_t *ctx = live; ctx; ctx = ctx->next) {
        pthread_mutex_lock(&ctx->lock);
        uint32_t waits = long_waits - ctx->long_waits, aside = ctx->has_thread ? asides : 0;
        if ((waits != ctx->team.waits_in_others || aside != ctx->team.asides) && !ctx->freed && !ctx->engine.error)
            pp_live_tell(ctx, aside, waits);
        pthread_mutex_unlock(&ctx->lock);
    }
}

void pp_live_waits_long(pp_ctx_t *ctx, int delta)
{
    pthread_mutex_lock(&live_lock);
    long_waits += (uint32_t)delta;
    ctx->long_waits += (uint32_t)delta;
    tell_all();
    pthread_mutex_unlock(&live_lock);
}

bool pp_live_aside(int delta)
{
    bool away = false;
    pthread_mutex_lock(&live_lock);
    asides += (uint32_t)delta;
    for (pp_ctx_t *ctx = live; ctx; ctx = ctx->next) {
        pthread_mutex_lock(&ctx->lock);
        away |= ctx->calls.kind == PP_CALL_AWAY && !ctx->engine.error;
        pp_sight_tell(ctx, delta > 0 ? PP_EVENT_CALL : PP_EVENT_CALL_END, PP_TRACE_ASIDE, 0);
        pthread_mutex_unlock(&ctx->lock);
    }
    tell_all();
    pthread_mutex_unlock(&live_lock);
    return away;
}
