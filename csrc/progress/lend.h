/*
 * lend.h - send buffers that the other ranks read where they lie, without a copy.
 *
 * Such a buffer is one array of the library's (cuda/array.h), its elements are reduced as they are, and the vectors of
 * the handle are in a vault, by which the other ranks have it mapped.  It is *lent* from Start until a Wait has given a
 * result.  A Start then only records an event; when that is over, its part is linked, with the USERS bit.
 *
 * As with the host's arrays (coll/rounds/contribute.c), a Wait copies aside what no round has taken yet, and lets a
 * round that reads the buffer end.  What is still on its way is copied aside on the device, behind the work for which it
 * waits.  Then the application may write the buffer again.
 */
#ifndef PP_LEND_H
#define PP_LEND_H

#include "staging.h"

/* Queues what a Start needs instead of its copy.  PP_PENDING: this one is not lent, so copy it. */
pp_status_t pp_lend(pp_handle_t *handle, pp_flight_t *flight);
/* Whether a round reads the buffer now, so that the application cannot have it back. */
bool        pp_lend_is_read(pp_handle_t *handle);
/* Gives it back: waits for a round that reads it. */
pp_status_t pp_lend_end(pp_ctx_t *ctx, pp_handle_t *handle);
/* Copies aside what no round has taken; does not wait for one that reads the buffer, which stays lent then. */
pp_status_t pp_lend_put_aside(pp_ctx_t *ctx, pp_handle_t *handle);

#endif
