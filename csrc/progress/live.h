/*
 * live.h - the contexts of this process: what one does that another has to know.
 *
 * It stands below those who wait and those who open: a thread that waits long in one context tells the others, whose
 * rounds may wait for this rank, and MPI_Finalize walks all that are still open.
 */
#ifndef PP_LIVE_H
#define PP_LIVE_H

#include "context.h"

void pp_live_add(pp_ctx_t *ctx);
/* No matter if it is not there. */
void pp_live_remove(pp_ctx_t *ctx);
/* The one after `ctx`; NULL: the first, or there is none.  For MPI_Finalize: no other thread opens or closes any. */
pp_ctx_t *pp_live_next(const pp_ctx_t *ctx);
bool pp_live_is_alone(void);

/* A thread begins (+1) or ends (-1) to wait long for a request of the context.  The other contexts learn that it waits
   elsewhere.  Without any context's lock. */
void pp_live_waits_long(pp_ctx_t *ctx, int delta);

#endif
