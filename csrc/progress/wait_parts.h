/*
 * wait_parts.h - threads that look for what comes, and sleep when nothing does: what wait.c, of the application's threads,
 * and thread.c, of the progress thread, have in common.  All with the context's lock, and with MPI unless it says otherwise.
 */
#ifndef PP_WAIT_PARTS_H
#define PP_WAIT_PARTS_H

#include "context.h"

#include <time.h>

static inline uint64_t pp_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* ---- looks (look.c) ---- */

/* Whether every other rank can wake this one. */
bool    pp_everybody_rings(const pp_ctx_t *ctx);
/* Whether something moves only while threads look: bulk of MPI, or a payload that is held for a device. */
bool    pp_needs_polling(const pp_ctx_t *ctx);
/* The same, or a message is expected, or a failure is not told yet: no thread may sleep for long. */
bool    pp_is_under_way(const pp_ctx_t *ctx);
/* Also in a simulation.  Moves a chunk of a round in the node's memory, with the lock released; false: there was none.
   `receives`: as pp_work(). */
bool    pp_work_at_round(pp_ctx_t *ctx, const pp_handle_t *receives);
/* After a sleep: looks whether other ranks live, while a thread waits in vain; from time to time also while wake-ups
   come, which may be from others; and if no thread waits here, for ranks of other nodes, which cannot look themselves.
   `slept`: no wake-up came. */
void    pp_look_after_sleep(pp_ctx_t *ctx, pp_sleeper_t sleeper, bool slept);
/* Also in a simulation.  The same, for calls that do not sleep. */
void    pp_look_after_some(pp_ctx_t *ctx);
/* Also in a simulation.  The same, for a call that waits for nobody: where no call ever waits, nobody else looks. */
void    pp_look_after_call(pp_ctx_t *ctx);
/* Also in a simulation.  Tells the peers of a failure at once: they would wait for this rank.  Of a death every rank
   tells, and waits until the others know: an application that learns of it may end its process, and messages that MPI
   has not sent by then are lost.  The others may still complete rounds that are complete here, so payloads on their way
   get the same time. */
void    pp_tell_failure(pp_ctx_t *ctx, uint64_t limit_us);

/* ---- sleeps (sleep.c) ---- */

enum {
    PP_IN_USE_PATIENCE_US = 1000,  /* interval at which the progress thread looks by itself, for a time after a call that
                                      may have left something behind: see pp_patience_us() */
    PP_IDLE_POLLS = 200            /* looks in vain after which pp_patience_us() is longest */
};

/* How long a sleep may last after so many looks in vain. */
int64_t pp_patience_us(const pp_ctx_t *ctx, unsigned quiet_polls);
/* How long the engine can do without the clock. */
int64_t pp_until_alarm_us(const pp_ctx_t *ctx);
/* Lets the engine look at the clock if its alarm is due; true: it was. */
bool    pp_tick(pp_ctx_t *ctx, uint64_t now_ns);
/* Sleeps with the lock released, unless a last poll finds something; false: it did. */
bool    pp_doze(pp_ctx_t *ctx, pp_sleeper_t sleeper, unsigned quiet_polls, int64_t limit_us);
/* Also in a simulation.  Lets others have the lock, and the core too. */
void    pp_let_others(pp_ctx_t *ctx, bool have_core);

#endif
