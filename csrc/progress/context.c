/* context.c - the life of a context, apart from MPI.  See context.h. */
#define _GNU_SOURCE   /* PTHREAD_MUTEX_ADAPTIVE_NP */
#include "sight.h"
#include "vault.h"
#include "wait_parts.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static atomic_uint_fast64_t forks;

static void forked(void) { atomic_fetch_add(&forks, 1); }

static void watch_forks(void) { pthread_atfork(NULL, NULL, forked); }

uint64_t pp_fork_count(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

pp_status_t pp_ctx_usable(pp_ctx_t *ctx)
{
    if (!ctx)
        return pp_fail(PP_ERR_STATE, "the context was freed");
    if (ctx->forks != atomic_load_explicit(&forks, memory_order_relaxed))
        return pp_fail(PP_ERR_STATE, "a context cannot be used in a forked child: the child has neither "
                       "the progress thread nor an MPI of its own");
    if (ctx->freed)
        return pp_fail(PP_ERR_STATE, "the context was freed");
    return PP_OK;
}

pp_status_t pp_ctx_ended(const pp_ctx_t *ctx)
{
    return pp_fail(PP_ERR_STATE, ctx->ending ? "the context was freed by another thread"
                                             : "MPI is being finalised by another thread");
}

/* A simulated rank that is interrupted in mid-call has the lock, and there is no other thread that could end the call. */
static pp_status_t lock_simulated(pp_ctx_t *ctx)
{
    if (pthread_mutex_trylock(&ctx->lock))
        return pp_fail(PP_ERR_STATE, "rank %d is interrupted in the middle of a call", ctx->engine.rank);
    return PP_OK;
}

pp_status_t pp_lock(pp_ctx_t *ctx)
{
    PP_TRY(pp_ctx_usable(ctx));
    if (PP_SIM && ctx->actor.park)
        PP_TRY(lock_simulated(ctx));
    else
        pthread_mutex_lock(&ctx->lock);
    if (ctx->freed) {                /* meanwhile */
        pthread_mutex_unlock(&ctx->lock);
        return pp_ctx_usable(ctx);
    }
    ctx->inside++;
    return PP_OK;
}

static uint64_t automatic_backlog(const pp_ctx_t *ctx)
{
    if (!ctx->mpi)
        return UINT64_MAX;
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return bytes / 8 / (uint64_t)pp_mpi_neighbours(ctx->mpi);
}

pp_status_t pp_ctx_setup(pp_ctx_t *ctx, pp_transport_t *transport, const pp_ctx_config_t *config)
{
    ctx->forks = pp_fork_count();
    /* A thread that finds the lock taken spins for a moment: it is held for about a microsecond at a time. */
    pthread_mutexattr_t adaptive;
    pthread_mutexattr_init(&adaptive);
    pthread_mutexattr_settype(&adaptive, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&ctx->lock, &adaptive);
    pthread_mutexattr_destroy(&adaptive);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ctx->unattended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pp_status_t status = pp_engine_init(&ctx->engine, transport, config->seed);
    if (ctx->node.commons)
        ctx->engine.node = &ctx->node;
    ctx->engine.node_calls = pp_node_calls;
    ctx->engine.node_hears = pp_node_hears;
    ctx->engine.nodes = ctx->nodes;
    if (status >= 0 && !pp_sight_open(ctx))
        status = pp_fail(PP_ERR_MEMORY, "no memory for a context");
    if (status >= 0)
        status = pp_calls_open(&ctx->calls, &ctx->team, &ctx->engine, config->window);
    if (config->patience_ns != 0)
        ctx->team.patience_ns = config->patience_ns;
    ctx->team.backlog_bytes = config->backlog_bytes ? config->backlog_bytes : automatic_backlog(ctx);
    if (status >= 0)
        pp_engine_settle(&ctx->engine);
    if (status < 0)
        pp_ctx_teardown(ctx);
    return status;
}

void pp_ctx_empty(pp_ctx_t *ctx)
{
    pp_calls_close(&ctx->calls);
    pp_sight_close(ctx);
    pp_vaults_end(ctx);
    pp_engine_release(&ctx->engine);
    pp_node_close(&ctx->node);
    ctx->nodes = NULL;               /* the transport's */
}

void pp_ctx_end(pp_ctx_t *ctx)
{
    pp_calls_end(&ctx->calls);
    pthread_cond_destroy(&ctx->unattended);
    pthread_mutex_destroy(&ctx->lock);
}

void pp_ctx_teardown(pp_ctx_t *ctx)
{
    pp_ctx_empty(ctx);
    pp_ctx_end(ctx);
}

/* Begins and ends as a call does, because another thread may free the context, or end MPI, meanwhile. */
void pp_ctx_abandon(pp_ctx_t *ctx, const char *why)
{
    enum { TELL_US = 100000 };       /* time for payloads on their way, which no thread moves afterwards */
    if (pp_lock(ctx) < 0)
        return;
    if (!ctx->abandoned) {
        ctx->abandoned = true;
        pp_engine_fail(&ctx->engine, PP_ERR_STATE, "%s", why);
        pp_tell_failure(ctx, TELL_US);
        pthread_mutex_unlock(&ctx->lock);
        pp_thread_stop(ctx);
        pthread_mutex_lock(&ctx->lock);
    }
    ctx->inside--;
    pthread_mutex_unlock(&ctx->lock);
}
