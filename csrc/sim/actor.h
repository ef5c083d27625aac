/*
 * actor.h - simulated ranks that share memory.  Each runs on a stack of its own, and at every access to shared memory
 * the seed chooses whether another rank goes on first.
 *
 * A rank has a queue of tasks: calls of its program, and what its engine is told (messages, a request for room).  The
 * tasks run one after the other, in virtual time.  A rank that is interrupted goes on after a time drawn from the seed;
 * meanwhile all other events that are due happen.  So any order of accesses can occur, and a run can be repeated.
 */
#ifndef PP_ACTOR_H
#define PP_ACTOR_H

#include "../transport/sim.h"
#include "../progress/context.h"

typedef struct pp_actor pp_actor_t;
typedef struct pp_stage pp_stage_t;       /* the actors of a simulation */

/* Opens a stage for contexts whose ranks share memory, each `node_ranks` of them.  To be called before their transports
   are used; `contexts` has the ranks' contexts, which exist and are zero. */
pp_status_t pp_stage_open(pp_simnet_t *net, const pp_sim_config_t *config, pp_ctx_t **contexts,
                          pp_stage_t **stage);
/* The rank's context is set up: from here on the transport reaches its engine through the actor. */
void        pp_stage_enter(pp_stage_t *stage, int32_t rank);
void        pp_stage_free(pp_stage_t *stage);

/* Begins a call of the rank's program; see pp_sim_do(). */
pp_status_t pp_stage_do(pp_stage_t *stage, int32_t rank, const pp_sim_call_t *call);
/* Whether the rank's call has ended, and with which status. */
bool        pp_stage_done(const pp_stage_t *stage, int32_t rank, pp_status_t *status);
/* The rank's process waits in another context, or no longer does. */
void        pp_stage_tell_elsewhere(pp_stage_t *stage, int32_t rank, bool waits);
/* An event has named the rank: it goes on if it waited for that event. */
void        pp_stage_go_on(pp_stage_t *stage, int32_t rank);
/* How often a rank was interrupted so far. */
uint64_t    pp_stage_interruptions(const pp_stage_t *stage);
/* How often a dead rank went on so far: 0. */
uint64_t    pp_stage_ran_dead(const pp_stage_t *stage);

#endif
