/* look.c - see context.h and wait_parts.h: what a thread looks for, and the work that it finds. */
#define _GNU_SOURCE
#include "direct.h"
#include "staging.h"
#include "wait_parts.h"

#include <unistd.h>

enum {
    VAIN_LOOKS = 1024,            /* looks in vain before a call looks whether another rank has died */
    LOOK_AFTER_US = 100000,       /* between such looks, while a thread waits */
    LOOK_LATER_US = 250000,       /* the same, if there is no hurry */
    TELL_PAUSE_US = 200
};

bool pp_everybody_rings(const pp_ctx_t *ctx)
{
    return pp_mpi_neighbours(ctx->mpi) == ctx->engine.size;
}

bool pp_needs_polling(const pp_ctx_t *ctx)
{
    return ctx->engine.bulks.held || pp_mpi_needs_polling(ctx->mpi);
}

bool pp_is_under_way(const pp_ctx_t *ctx)
{
    return ctx->engine.bulks.held || pp_mpi_is_under_way(ctx->mpi);
}

/* Rounds in the node's memory that others have completed. */
static int look_at_boards(pp_ctx_t *ctx)
{
    int any = 0;
    ctx->team.soon_ns = 0;
    if (ctx->engine.error || !ctx->engine.node)      /* after an error no handle catches up any more */
        return 0;
    PP_FOR_EACH_HANDLE(&ctx->engine, handle)
        any |= handle->ops->poll && handle->ops->poll(handle);
    return any;
}

pp_handle_t *pp_find_work(const pp_ctx_t *ctx)
{
    pp_handle_t *found = NULL;
    PP_FOR_EACH_HANDLE(&ctx->engine, handle)
        if (!found && handle->ops->has_work && handle->ops->has_work(handle))
            found = handle;
    return found;
}

bool pp_is_needed(const pp_ctx_t *ctx)
{
    bool needed = false;
    if (!ctx->engine.nodes)
        return false;
    PP_FOR_EACH_HANDLE(&ctx->engine, handle)
        needed |= handle->ops->needed && handle->ops->needed(handle);
    return needed;
}

bool pp_work_at_round(pp_ctx_t *ctx, const pp_handle_t *receives)
{
    uint64_t     round;
    pp_handle_t *handle = pp_find_work(ctx);
    if (!handle)
        return false;
    bool lands = handle == receives;
    handle->ops->begin_work(handle, &lands);
    pthread_mutex_unlock(&ctx->lock);
    bool last = handle->ops->work(handle, lands, &round);
    pthread_mutex_lock(&ctx->lock);
    handle->ops->worked(handle, round, last);
    pp_engine_settle(&ctx->engine);
    return true;
}

bool pp_work(pp_ctx_t *ctx, const pp_handle_t *receives)
{
    return pp_staging_work(ctx) || pp_work_at_round(ctx, receives);
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

/* ---- other ranks that may have died ---- */

/* Looks whether other ranks live: a round that a dead rank has claimed, or a message that it owes, never comes.  A look
   costs tens of microseconds. */
static bool look_at_lives(pp_ctx_t *ctx, uint64_t interval_us)
{
    uint64_t now = pp_now_us();
    if (now - ctx->looked_after_us < interval_us)
        return false;
    ctx->looked_after_us = now;
    pp_mpi_look_after(ctx->mpi);
    return true;
}

void pp_look_after_sleep(pp_ctx_t *ctx, pp_sleeper_t sleeper, bool slept)
{
    bool waits = sleeper == PP_CALLER_ASLEEP || ctx->team.waiting > 0;   /* or the application only tests */
    if (waits || !pp_everybody_rings(ctx))
        look_at_lives(ctx, slept && waits ? LOOK_AFTER_US : LOOK_LATER_US);
}

void pp_look_after_some(pp_ctx_t *ctx)
{
    if (ctx->mpi && ++ctx->vain_looks % VAIN_LOOKS == 0)
        look_at_lives(ctx, LOOK_AFTER_US);
}

void pp_look_after_call(pp_ctx_t *ctx)
{
    if (ctx->mpi && look_at_lives(ctx, LOOK_LATER_US))
        pp_look(ctx);
}

void pp_tell_failure(pp_ctx_t *ctx, uint64_t limit_us)
{
    if (!ctx->engine.error)
        return;
    pp_exit_tell_gone(&ctx->calls);
    ctx->engine.transport->ops->ring(ctx->engine.transport);
    for (uint64_t begin = ctx->mpi ? pp_now_us() : 0; ctx->mpi && !ctx->stop && pp_now_us() - begin < limit_us
                                                      && !(pp_mpi_all_told(ctx->mpi) && pp_mpi_has_sent(ctx->mpi));) {
        pthread_mutex_unlock(&ctx->lock);
        usleep(TELL_PAUSE_US);
        pthread_mutex_lock(&ctx->lock);
    }
}
