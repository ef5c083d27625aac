/*
 * live.h - the open contexts of this process, and what one of them tells the others.
 *
 * wait.c and open.c use it: a thread that waits long in one context tells the other contexts, whose rounds may wait for
 * this rank; and MPI_Finalize walks all contexts that are still open.
 */
#ifndef PP_LIVE_H
#define PP_LIVE_H

#include "context.h"

void pp_live_add(pp_ctx_t *ctx);
/* Does nothing if the context is not in the list. */
void pp_live_remove(pp_ctx_t *ctx);
/* The context after `ctx` (NULL: the first one); NULL: there is none.  Only for MPI_Finalize, when no other thread
   opens or closes contexts. */
pp_ctx_t *pp_live_next(const pp_ctx_t *ctx);
/* Whether there is at most one open context. */
bool pp_live_is_alone(void);

/* A thread begins (+1) or ends (-1) to wait long for a request of the context.  The other contexts learn that this rank
   waits elsewhere.  Called without any context's lock. */
void pp_live_waits_long(pp_ctx_t *ctx, int delta);

#endif
