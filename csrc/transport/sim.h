/*
 * sim.h - a simulated network: the transports of many ranks in one process, in virtual time.
 *
 * The model is LogGP with a rendezvous threshold (pp_network_t in pypartial_sim.h); docs/simulation.md says what
 * it charges for.  Everything that will happen lies in one heap ordered by time, so a run is a function of the
 * seed and of what the ranks do.  What coincides happens in an order that the seed chooses; messages between
 * an ordered pair of ranks always stay in order.
 * Bulk leaves its buffer at the last moment at which the model allows it, and reaches the receiver's at the
 * last moment, too: a buffer that is touched too early shows.
 * Callbacks come from pp_simnet_step() only, never from send(); poll() does nothing.  A rank whose sink is
 * empty (no message function) has left, and one that was killed is dead: what would reach it is dropped.
 */
#ifndef PP_TRANSPORT_SIM_H
#define PP_TRANSPORT_SIM_H

#include "../include/pypartial_sim.h"
#include "transport.h"

typedef struct pp_simnet pp_simnet_t;

/* PP_ERR_ARGUMENT if the network makes no sense. */
pp_status_t pp_simnet_new(int32_t ranks, uint64_t seed, const pp_network_t *network, pp_simnet_t **net);
/* The caller sets its sink. */
pp_transport_t *pp_simnet_transport(pp_simnet_t *net, int32_t rank);
/* Performs the earliest event, at its time; *rank is the rank whose sink it called, or -1, or
   PP_SIMNET_ALL.  false: there is no event. */
enum { PP_SIMNET_ALL = -2 };
bool     pp_simnet_step(pp_simnet_t *net, int32_t *rank);
uint64_t pp_simnet_now_ns(const pp_simnet_t *net);
/* Time of the earliest event; UINT64_MAX if none. */
uint64_t pp_simnet_next_ns(const pp_simnet_t *net);
/* Moves the clock on to `time_ns`; it never goes back.  Events that it passes happen late. */
void     pp_simnet_set_now(pp_simnet_t *net, uint64_t time_ns);
/* An event at `time_ns` that does nothing, but names the rank. */
pp_status_t pp_simnet_rouse(pp_simnet_t *net, int32_t rank, uint64_t time_ns);
/* See pp_sim_kill(). */
pp_status_t pp_simnet_kill(pp_simnet_t *net, int32_t rank, uint64_t time_ns, uint64_t detect_ns);
bool     pp_simnet_dead(const pp_simnet_t *net, int32_t rank);
/* The time up to which its reductions keep a rank busy. */
uint64_t pp_simnet_busy_ns(const pp_simnet_t *net, int32_t rank);
/* Calls no sink. */
void     pp_simnet_free(pp_simnet_t *net);

#endif
