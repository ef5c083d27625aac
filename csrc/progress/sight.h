/*
 * sight.h - what is counted of this rank for a report, and told of it in a trace.  See include/pypartial_sight.h.
 *
 * A *cycle* of a handle goes from a Start to the next one.  It is timed, unless the coarse clock has stood still for many
 * of them: a loop of microseconds times one in dozens.  With a trace every cycle is.  What the thread that waits spends
 * meanwhile in calls that may block, on any handle, is not computation: while a cycle is timed, those calls are, too.  All but the last two functions are called with the context's lock.
 */
#ifndef PP_SIGHT_H
#define PP_SIGHT_H

#include "context.h"

/* Before the first call.  Simulated ranks have no row, and nothing is counted of them. */
bool     pp_sight_open(pp_ctx_t *ctx);
void     pp_sight_close(pp_ctx_t *ctx);

/* Around a Start: what the first returns is the second's `since_ns`; 0: it is not timed. */
uint64_t pp_sight_starts(pp_ctx_t *ctx, pp_handle_t *handle);
void     pp_sight_started(pp_ctx_t *ctx, pp_handle_t *handle, uint64_t since_ns, pp_status_t status);
/* Around a Wait or a Test; between them, where a Wait finds no result yet and is to wait for it. */
void     pp_sight_waits(pp_ctx_t *ctx, pp_handle_t *handle);
void     pp_sight_must_wait(pp_ctx_t *ctx, pp_handle_t *handle);
void     pp_sight_waited(pp_ctx_t *ctx, pp_handle_t *handle, pp_status_t status);
/* A result was handed out, which the kind has described in handle->sight.given; `now_ns`: 0 if that is not timed. */
void     pp_sight_given(pp_ctx_t *ctx, pp_handle_t *handle, uint64_t now_ns);
/* No cycle of the handle is timed any more. */
void     pp_sight_ends(pp_handle_t *handle);
/* A trace: its beginning, an event, its end.  An event without a handle, if there is a trace. */
void     pp_trace_keep(pp_ctx_t *ctx, pp_trace_head_t *head);
void     pp_trace_add(pp_ctx_t *ctx, const pp_event_t *event);
void     pp_trace_forget(pp_ctx_t *ctx);
void     pp_sight_tell(pp_ctx_t *ctx, pp_event_kind_t kind, int32_t a, int32_t b);

/* Around any other call that may block: 0: nothing is timed. */
uint64_t pp_sight_enter(void);
void     pp_sight_leave(uint64_t since_ns);

#endif
