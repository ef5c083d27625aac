/*
 * patience.h - what time does to a handle: deadlines of those who wait, patience with those who do not.
 *
 * A rank that waits long says so to the others (ops->await).  One that finds that it holds that round up, and does so
 * for longer than its patience, leaves the handle by patience: pp_handle_t.aside.  No clocks are compared; each rank
 * measures with its own.  Nothing here costs a rank anything that does not wait long: the clock is read when somebody
 * is about to sleep (pp_engine_alarm()).
 */
#ifndef PP_PATIENCE_H
#define PP_PATIENCE_H

#include "allreduce.h"

/* A Start has made a request, or added to one; before: what happened until then counts as before. */
void     pp_patience_before_start(pp_allreduce_t *coll);
void     pp_patience_started(pp_allreduce_t *coll);
/* A Flush, Drain or Free begins: this rank is back. */
void     pp_patience_returned(pp_allreduce_t *coll);
/* A result has been handed out. */
void     pp_patience_given(pp_allreduce_t *coll);
/* Another rank says that it waits for the round.  True: that is news, to be passed on. */
bool     pp_patience_awaited(pp_allreduce_t *coll, uint64_t round, uint32_t number);
/* Something has changed: a rank that holds up only now what others have waited for since long, because a draw has reached
   it or a bound, begins to count the time. */
void     pp_patience_update(pp_allreduce_t *coll);
uint64_t pp_patience_tick(pp_allreduce_t *coll, uint64_t now_ns);

#endif
