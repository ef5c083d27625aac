/*
 * queues.h - Hop: when a rank averages, with which updates, and when it enters its next iteration.
 *
 * Pure: no messages, no atomics, no clock, no thread.  The state of ONE rank, of fixed size and without pointers.  Its
 * caller tells it of events, one at a time, and after each does what pp_queues_next() says until nothing is due.
 * (design: "Queues", "Pure protocols")
 *
 * plan.c     the values of options, and how much room there must be
 * updates.c  what has come from in-neighbours, when it is enough, and with which weights it is averaged
 * machine.c  events and actions: iterations, tokens, jumps, leaving
 *
 * The rank is in `iteration` k.  START: its update k is there.  WAIT: it averages updates of the iteration that is
 * *due*, which is k, and then enters its *goal*, which is k + 1.  A rank that is behind may *decide* on a higher goal
 * (skip): then goal - 1 is due.  Of each iteration an out-neighbour gets the update or a header, once.
 *
 * Tokens.  A rank *announces* an iteration when it enters it, or has decided to.  A neighbour's newest announcement is
 * all that is kept of tokens: TokenQ(j -> i) of Fig. 7 has announced(j) - iteration(i) + max_ig tokens.  It has max_ig
 * at first, when both are 0; j's entering puts in one, and i's entering takes one out (the proof of Theorem 2).  So i
 * may enter a goal up to announced(j) + max_ig of each out-neighbour j.  By messages an announcement is a message that
 * carries the iteration, and stands for all tokens up to it: one that overtakes another, or takes the place of a lost
 * one, does no harm.  On a node it is a word of memory that j writes and i reads.
 *
 * Who owns what.  The caller owns models, messages and memory.  It keeps an update from UPDATE until its iteration is
 * below pp_queues_oldest().  A caller by messages passes on what comes: UPDATE and HEADER of each round, the others as
 * control messages, in order.  While its rank has left, the progress thread goes on telling it of TOKENs: that sends
 * the headers of what it omits.
 * A caller on a node looks, while its rank waits and before it says BACK: at an out-neighbour's announcement for TOKEN
 * (UNBOUND: it has left); at an in-neighbour's announcement, and *then* at what it has published.  Published up to or
 * beyond an iteration: UPDATE if the ring has it, else HEADER.  Announced beyond an iteration that is not published:
 * HEADER, it was jumped over.  With `staleness` the newest one published is enough.  It has left: LEFT, from the one
 * after that on.  To tell anything again does no harm.
 */
#ifndef PP_QUEUES_H
#define PP_QUEUES_H

#include "../base/base.h"
#include "../include/pypartial_queues.h"

typedef struct pp_queues pp_queues_t;

/* PP_ERR_ARGUMENT: a value that is out of its range.  Which options go together the application's language knows. */
pp_status_t pp_queues_check(const pp_queues_plan_t *plan);
/* How many iterations of an in-neighbour are of use at once: the models of a node's ring, the window of rounds by
   messages.  Of a plan that is right, as the next one. */
int64_t     pp_queues_ring(const pp_queues_plan_t *plan);
/* The bytes of a state; they are to be aligned to 8. */
size_t      pp_queues_bytes(const pp_queues_plan_t *plan);
/* Everybody is in iteration 0.  `weights`: of each in-neighbour, where plan->weighted; the rest of 1, and the weight of
   what is not averaged, is the rank's own.  PP_ERR_ARGUMENT: a wrong value of the plan. */
pp_status_t pp_queues_open(pp_queues_t *queues, const pp_queues_plan_t *plan, const double *weights);

/* An event (pp_queues_event_t).  PP_ERR_ARGUMENT: no such event, neighbour or iteration; PP_ERR_STATE: the rank's state
   does not permit it.  Both leave the state as it was. */
pp_status_t pp_queues_event(pp_queues_t *queues, int32_t event, int32_t neighbour, int64_t iteration);
/* Whether the rank makes all iterations from here on: it neither skips, nor follows its neighbours while it has left. */
void        pp_queues_make_all(pp_queues_t *queues, bool makes_all);
/* The next action that is due.  It counts as done, but for AVERAGE. */
void        pp_queues_next(pp_queues_t *queues, pp_queues_action_t *action);

/* SEND: whether an out-neighbour gets the update, or the header only: it has left, or is known to be past it (6.2b). */
bool        pp_queues_wants(const pp_queues_t *queues, int32_t out);
/* ANNOUNCE: whether an in-neighbour is told.  With NONE only ranks that have left are: they need it to come back. */
bool        pp_queues_tells(const pp_queues_t *queues, int32_t in);

/* The iteration whose updates are, or will be, averaged; what is older than the other one is of no use any more. */
int64_t     pp_queues_due(const pp_queues_t *queues);
int64_t     pp_queues_oldest(const pp_queues_t *queues);
/* Whether the outstanding request waits for an in-neighbour's update, or an out-neighbour's announcement. */
bool        pp_queues_awaits_update(const pp_queues_t *queues, int32_t in);
bool        pp_queues_awaits_token(const pp_queues_t *queues, int32_t out);
/* Updates that have come and may still be averaged (4.1: q.size); -1: of any iteration, of any in-neighbour. */
int32_t     pp_queues_size(const pp_queues_t *queues, int64_t iteration, int32_t in);
/* What the last request completed with. */
const pp_queues_result_t *pp_queues_result(const pp_queues_t *queues);

#endif
