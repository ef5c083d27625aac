/*
 * sim.h - a simulated network: the transports of many ranks in one process, in virtual time.
 *
 * The model is LogGP with a rendezvous threshold (pp_network_t in pypartial_sim.h); docs/simulation.md says what it
 * charges for.  All events lie in one heap ordered by time, so a run is a function of the seed and of what the ranks
 * do. The seed chooses the order of events of the same time; messages between an ordered pair of ranks always stay in
 * order. Bulk is read from the sender's buffer, and written to the receiver's, at the last moment that the model
 * allows.  So a program that touches a buffer too early fails. Callbacks come from pp_simnet_step() only, never from
 * send(); poll() does nothing.  A rank whose sink is empty (no message function) has left, and one that was killed is
 * dead: messages to them are dropped.
 */
#ifndef PP_TRANSPORT_SIM_H
#define PP_TRANSPORT_SIM_H

#include "../include/pypartial_sim.h"
#include "transport.h"

typedef struct pp_simnet pp_simnet_t;

/* PP_ERR_ARGUMENT if a value of the network is out of range. */
pp_status_t pp_simnet_new(int32_t ranks, uint64_t seed, const pp_network_t *network, pp_simnet_t **net);
/* The rank's transport; the caller sets its sink. */
pp_transport_t *pp_simnet_transport(pp_simnet_t *net, int32_t rank);
/* Performs the earliest event, at its time.  *rank is the rank whose sink it called; -1: it called none; PP_SIMNET_ALL:
   those of all ranks.  False: there is no event. */
enum { PP_SIMNET_ALL = -2 };
bool     pp_simnet_step(pp_simnet_t *net, int32_t *rank);
uint64_t pp_simnet_now_ns(const pp_simnet_t *net);
/* The time of the earliest event; UINT64_MAX: there is none. */
uint64_t pp_simnet_next_ns(const pp_simnet_t *net);
/* Moves the clock forward to `time_ns`, never back.  Events that it passes happen late. */
void     pp_simnet_set_now(pp_simnet_t *net, uint64_t time_ns);
/* Adds an event at `time_ns` that only names the rank. */
pp_status_t pp_simnet_rouse(pp_simnet_t *net, int32_t rank, uint64_t time_ns);
/* See pp_sim_kill(). */
pp_status_t pp_simnet_kill(pp_simnet_t *net, int32_t rank, uint64_t time_ns, uint64_t detect_ns);
bool     pp_simnet_dead(const pp_simnet_t *net, int32_t rank);
/* The time until which a rank is busy with reductions. */
uint64_t pp_simnet_busy_ns(const pp_simnet_t *net, int32_t rank);
/* Frees the network; calls no sink. */
void     pp_simnet_free(pp_simnet_t *net);

#endif
