/*
 * time.h - what time does to rounds: deadlines of ranks that wait, patience (coll/patience.h) of ranks that do not.
 *
 * The clocks of the ranks that a round lacks run together, and on from round to round until the rank's next Start, so
 * ranks that all sit in one call of the application cost one patience, however a draw goes on from each to the next.
 */
#ifndef PP_ROUNDS_TIME_H
#define PP_ROUNDS_TIME_H

#include "allreduce.h"
#include "../patience.h"

/* Before and after a Start makes its request, or adds to one. */
void     pp_round_time_before_start(pp_allreduce_t *coll);
void     pp_round_time_started(pp_allreduce_t *coll);
/* A Flush, Drain or Free begins: this rank is back. */
void     pp_round_time_returned(pp_allreduce_t *coll);
/* Another rank says that it waits for the round.  True: that is news, and this rank passes it on. */
bool     pp_round_time_awaited(pp_allreduce_t *coll, uint64_t round, uint32_t number);
/* Something has changed: a draw, or its bound, may have reached this rank only now, long after its clock began. */
void     pp_round_time_update(pp_allreduce_t *coll);
/* Looks at the time; returns the time of the next look, PP_NEVER_NS: none. */
uint64_t pp_round_time_tick(pp_allreduce_t *coll, uint64_t now_ns);

#endif
