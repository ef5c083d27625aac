/*
 * live.h - the open contexts of this process, and what one of them tells the others.
 *
 * wait.c and open.c use it: a thread that waits long in one context tells the other contexts, whose rounds may wait for
 * this rank; and MPI_Finalize walks all contexts that are still open.  A context is ended by the thread that takes it
 * off the list, or by the one that finalises MPI.
 */
#ifndef PP_LIVE_H
#define PP_LIVE_H

#include "context.h"

void pp_live_add(pp_ctx_t *ctx);
/* Takes the context off the list, to end it: sets `ending`.  False: another thread ends it. */
bool pp_live_take(pp_ctx_t *ctx);
/* The end of a context that was taken: no call of MPI's follows. */
void pp_live_taken(void);
/* Lists a context that has ended, but stays until the process ends, for those that look for leaks. */
void pp_live_keep(pp_ctx_t *ctx);

/* ---- MPI_Finalize */
/* From here on it ends the contexts that are listed, and no other thread takes one. */
void pp_live_finalise(void);
/* The context after `ctx` (NULL: the first one); NULL: there is none. */
pp_ctx_t *pp_live_next(const pp_ctx_t *ctx);
void pp_live_remove(pp_ctx_t *ctx);
/* Waits until the contexts that were taken before have ended; but not for long, because MPI may call the application there
   (a delete function of an attribute), which may wait for the thread that finalises: in Python, for its lock. */
void pp_live_await_taken(void);

/* ---- waits */
/* Whether there is at most one open context. */
bool pp_live_is_alone(void);

/* A thread begins (+1) or ends (-1) to wait long for a request of the context.  The other contexts learn that this rank
   waits elsewhere.  Called without any context's lock. */
void pp_live_waits_long(pp_ctx_t *ctx, int delta);
/* A blocking call of the application that the library sees begins (+1) or ends (-1): all contexts are left meanwhile.
   Returns whether one of them is inside away() as well. */
bool pp_live_aside(int delta);
/* Tells one context, with its lock: that many such calls, and such waits in other contexts. */
void pp_live_tell(pp_ctx_t *ctx, uint32_t asides, uint32_t waits_in_others);

#endif
