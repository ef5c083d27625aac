/*
 * patience.h - what time does to a handle: deadlines of ranks that wait, patience of ranks that do not.
 *
 * A rank that waits long tells the others (ops->await).  Each of those that do not wait starts its clock then.  When its
 * patience is over, and the round lacks just this rank, it leaves the handle by patience: pp_handle_t.by_patience.  The
 * clocks run together, and on from round to round until the rank's next Start, so ranks that all sit in one call of the
 * application cost one patience, however a draw goes on from each to the next.  Each rank measures with its own clock; no
 * clocks are compared.  A rank that does not wait long pays nothing: the clock is read when a thread is about to sleep
 * (pp_engine_alarm()).
 */
#ifndef PP_PATIENCE_H
#define PP_PATIENCE_H

#include "allreduce.h"

/* This rank has computed from this time until now; 0: it is not known from when on. */
void     pp_patience_computed(pp_allreduce_t *coll, uint64_t since_ns);
/* Before and after a Start makes its request, or adds to one. */
void     pp_patience_before_start(pp_allreduce_t *coll);
void     pp_patience_started(pp_allreduce_t *coll);
/* A Flush, Drain or Free begins: this rank is back. */
void     pp_patience_returned(pp_allreduce_t *coll);
/* A result has been handed out. */
void     pp_patience_given(pp_allreduce_t *coll);
/* Another rank says that it waits for the round.  True: that is news, and this rank passes it on. */
bool     pp_patience_awaited(pp_allreduce_t *coll, uint64_t round, uint32_t number);
/* Something has changed: a draw, or its bound, may have reached this rank only now, long after its clock began. */
void     pp_patience_update(pp_allreduce_t *coll);
/* Looks at the time; returns the time of the next look, PP_NEVER_NS: none. */
uint64_t pp_patience_tick(pp_allreduce_t *coll, uint64_t now_ns);

#endif
