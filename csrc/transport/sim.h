/*
 * sim.h - a simulated network: the transports of many ranks in one process, in virtual time.
 *
 * Everything that will happen lies in one heap ordered by (time, number of issue), so a run is a
 * function of the seed and of what the ranks do.  A message takes a time drawn from [min, max];
 * messages between an ordered pair of ranks stay in order, everything else is reordered.  Bulk data
 * is copied as late as possible and only then are both sides told, each at its own time: a buffer
 * that is touched too early shows.
 * Callbacks come from pp_simnet_step() only, never from send(); poll() does nothing.  A rank whose
 * sink is empty (no message function) has left: what would reach it is dropped.
 */
#ifndef PP_TRANSPORT_SIM_H
#define PP_TRANSPORT_SIM_H

#include "transport.h"

typedef struct pp_simnet pp_simnet_t;

pp_status_t pp_simnet_new(int32_t ranks, uint64_t seed, uint64_t latency_min_ns,
                          uint64_t latency_max_ns, pp_simnet_t **net);
/* The caller sets its sink. */
pp_transport_t *pp_simnet_transport(pp_simnet_t *net, int32_t rank);
/* Performs the earliest event, at its time, which calls at most one sink; false: there is none. */
bool     pp_simnet_step(pp_simnet_t *net);
uint64_t pp_simnet_now_ns(const pp_simnet_t *net);
/* Time of the earliest event; UINT64_MAX if none. */
uint64_t pp_simnet_next_ns(const pp_simnet_t *net);
/* Moves the clock on to `time_ns`; it never goes back.  Events that it passes happen late. */
void     pp_simnet_set_now(pp_simnet_t *net, uint64_t time_ns);
/* Calls no sink. */
void     pp_simnet_free(pp_simnet_t *net);

#endif
