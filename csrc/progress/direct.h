/*
 * direct.h - the vectors of a handle whose rounds are made of messages in the memory of its device: MPI gets addresses
 * of the device.  Models of P-Reduce whose groups the caller averages are in direct_groups.h.
 *
 * They are a kind of memory of the handle's own.  The rounds are those of the host; what they do with elements, the
 * device does in kernels, on one stream.  No thread waits for them: MPI gets a payload when they are over (exec/bulk.h).
 * The copies between vectors and the application's buffers are those of staging.h, by bounce buffers on the device.
 *
 * Elements travel as bulk, also the few that would fit into the message that announces them.  The host would have to
 * copy those out of the device and wait for that, and the receiver back; an MPI that knows devices has faster ways.
 *
 * Each rank says when the ranks agree on the handle whether it can (pp_wish_t).  If one cannot, all have the handle as
 * it was, with vectors in memory of the host.
 */
#ifndef PP_DIRECT_H
#define PP_DIRECT_H

#include "staging.h"

/* Makes what such vectors need, and has the handle wish for them.  To be called before the ranks agree on the handle.
   `no_direct`: why this rank's MPI cannot; NULL: it can. */
pp_status_t pp_direct_ask(pp_handle_t *handle, const char *no_direct);
/* Whether vectors are there; else *why says why not, or is "" if nobody has asked. */
bool        pp_direct_in_use(const pp_handle_t *handle, const char **why);
/* An operation that returned nothing has failed: latches that for the context.  With the lock. */
pp_status_t pp_direct_check(pp_handle_t *handle);
/* Whether a contribution may be combined with vectors now: PP_PENDING, not before the device has come further. */
pp_status_t pp_direct_room(pp_handle_t *handle);
/* What was queued for vectors reads the bounce buffer, which is busy until that is over. */
pp_status_t pp_direct_use(pp_handle_t *handle, pp_pinned_t *bounce);
/* What was queued for vectors writes to the bounce buffer, and what is queued on the application's stream from now on comes
   after it.  With the lock, which it releases.  Does nothing if vectors are not there. */
pp_status_t pp_direct_send(pp_ctx_t *ctx, pp_handle_t *handle, pp_pinned_t *bounce);
/* Around a look for messages: MPI may look which device is current when it goes on with them.  The device is that of a
   handle in ctx->directs, from the time when bulk is under way, or the look begins to send or receive some; with several
   devices it is one of them.  Both with the lock. */
void        pp_direct_begin_look(pp_ctx_t *ctx);
void        pp_direct_end_look(pp_ctx_t *ctx);
/* The handle is released, but for its vectors.  `frees`: by all ranks; else the process ends, and the driver takes
   back what is left. */
void        pp_direct_end(pp_handle_t *handle, bool frees);

#endif
