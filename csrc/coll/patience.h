/*
 * patience.h - the clock of a handle: what a rank usually computes, how long it may hold others up, and when it tells
 * others that it waits.
 *
 * A rank that waits long tells the others.  Each of those that do not wait starts its clock then.  When its patience is
 * over, and what the others wait for lacks just this rank, it leaves the handle by patience: pp_handle_t.by_patience.
 * Each rank measures with its own clock; no clocks are compared.  A rank that does not wait long pays nothing: the clock
 * is read when a thread is about to sleep (pp_engine_alarm()).  What lacks this rank is the kind's to say,
 * in its time.c.
 */
#ifndef PP_PATIENCE_H
#define PP_PATIENCE_H

#include "team.h"

/* Nobody waits for ever for this rank on the handle. */
bool     pp_patience_ends(const pp_handle_t *handle);
/* How long this rank may hold others up on it. */
uint64_t pp_patience_ns(const pp_handle_t *handle);
/* A result has been handed out: the application computes from now on. */
void     pp_patience_given(pp_handle_t *handle);
/* It has computed since then; it makes a request. */
void     pp_patience_asks(pp_handle_t *handle);
/* It has computed from this time on; 0: it is not known from when on. */
void     pp_patience_computed(pp_handle_t *handle, uint64_t since_ns);
/* A request has been made.  `soon`: if this rank had to tell others that it waited for its last one, too, it tells them
   sooner. */
void     pp_patience_anew(pp_handle_t *handle, bool soon);
/* A look at the clock while this rank waits: whether it is to tell the others now.  *next: the time of the next look. */
bool     pp_patience_tells(pp_handle_t *handle, uint64_t now_ns, uint64_t *next_ns);
/* Leaves the handle, on which this rank has `held` something up.  The note is for the application's log, once in a
   context: its next call returns PP_NOTE. */
void     pp_patience_leave(pp_handle_t *handle, const char *held);
/* The time since the application's last call, if that was given a result of the handle; 0: not known. */
uint64_t pp_patience_quiet_ns(const pp_handle_t *handle);

static inline uint64_t pp_earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }
/* Before PP_NEVER_NS. */
static inline uint64_t pp_later(uint64_t from, uint64_t by)
{
    return by < PP_NEVER_NS - from ? from + by : PP_NEVER_NS - 1;
}

#endif
