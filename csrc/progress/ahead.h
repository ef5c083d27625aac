/*
 * ahead.h - a large result goes to the device in chunks: those that are finished are copied while ranks still reduce the
 * others.
 *
 * The entry's memory is pinned already, for a result before, and the stream has nothing else to do: so no call of the
 * driver waits here, where the thread does the work of the progress thread, too.
 *
 * Only a thread inside Wait does so, on the stream of that Wait, from the ring of results to the receive buffers; for a
 * round that the request will be given, if its entry is not overwritten before.  Then the thread that collects the result
 * queues copies of the rest.  If the request was given something else, it queues a copy of all of it, behind those.  The entry is pinned only
 * when the result is collected, and found unchanged; until then a copy may read elements of a later round, which the copy
 * of the whole result replaces.
 *
 * Not if a receive buffer is a send buffer, too: after a Wait that times out a Start may contribute what is there.
 */
#ifndef PP_AHEAD_H
#define PP_AHEAD_H

#include "staging.h"

/* Makes what such copies need, if the handle is to make them. */
pp_status_t pp_ahead_make(pp_handle_t *handle);
void        pp_ahead_end(pp_staging_t *staging);
/* What is queued from now on is another call's.  Its stream may be another one, although it has the same number: that of
   one that was destroyed, or the default one of another thread. */
void        pp_ahead_in_another_call(pp_staging_t *staging);
/* See pp_face_t. */
bool        pp_ahead_go_on(pp_ctx_t *ctx, pp_handle_t *handle);
/* Of a result, some of which may be on its way, queues copies of the rest; `pinned` has the result, of that round, and is
   busy then.  PP_PENDING: all of it is still to be copied; what is queued on the stream now comes after earlier copies. */
pp_status_t pp_ahead_send_rest(pp_ctx_t *ctx, pp_handle_t *handle, pp_pinned_t *pinned, uint64_t round);
/* Whether no such copy is on its way; PP_PENDING: one is. */
pp_status_t pp_ahead_over(const pp_staging_t *staging);

#endif
