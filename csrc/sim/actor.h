/*
 * actor.h - simulated ranks that share memory: each runs on a stack of its own, and the seed chooses, at every
 * access to what they share, whether another one goes on first.
 *
 * What a rank does is a queue of tasks: calls of its program, and what its engine is told (messages, a request
 * for room).  They run one after the other, in virtual time: a rank that is interrupted goes on after a time
 * drawn from the seed, and meanwhile happens whatever else is due.  So any order of accesses can come about,
 * and a run can be repeated.
 */
#ifndef PP_ACTOR_H
#define PP_ACTOR_H

#include "../transport/sim.h"
#include "../progress/context.h"

typedef struct pp_actor pp_actor_t;
typedef struct pp_stage pp_stage_t;       /* the actors of a simulation */

/* Contexts whose ranks share memory, each `node_ranks` of them: to be called before their transports are used,
   with the ranks' contexts (that exist, and are zero) in `contexts`. */
pp_status_t pp_stage_open(pp_simnet_t *net, const pp_sim_config_t *config, pp_ctx_t **contexts,
                          pp_stage_t **stage);
/* The rank's context is set up: from here on its engine is told through the actor. */
void        pp_stage_enter(pp_stage_t *stage, int32_t rank);
void        pp_stage_free(pp_stage_t *stage);

/* Begins a call of the rank's program; see pp_sim_do(). */
pp_status_t pp_stage_do(pp_stage_t *stage, int32_t rank, const pp_sim_call_t *call);
/* Whether its call has ended, and how. */
bool        pp_stage_done(const pp_stage_t *stage, int32_t rank, pp_status_t *status);
/* The rank's process waits in another context, or waits there no more. */
void        pp_stage_tell_elsewhere(pp_stage_t *stage, int32_t rank, bool waits);
/* The rank was named by an event: it goes on if that was what it waited for. */
void        pp_stage_go_on(pp_stage_t *stage, int32_t rank);
/* How often a rank was interrupted so far. */
uint64_t    pp_stage_interruptions(const pp_stage_t *stage);

#endif
