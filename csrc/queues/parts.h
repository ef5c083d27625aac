/*
 * parts.h - the state of a rank, for the files of this room.
 *
 * All of it lies in one block of memory.  Its arrays are found by their distance from its beginning.
 */
#ifndef PP_QUEUES_PARTS_H
#define PP_QUEUES_PARTS_H

#include "../include/pypartial_sim.h"   /* pp_queues_plant_t */
#include "queues.h"

#define PP_QUEUES_NEVER INT64_MAX    /* of an iteration: there is none */

/* What the rank does with its current iteration, in this order. */
typedef enum pp_queues_phase {
    PP_QUEUES_ENTERED,               /* nothing yet */
    PP_QUEUES_STARTED,               /* its update is there */
    PP_QUEUES_RECEIVES,              /* it waits for enough updates */
    PP_QUEUES_AVERAGES,              /* the caller averages */
    PP_QUEUES_ACQUIRES               /* it waits for tokens */
} pp_queues_phase_t;

/* What is known of an in-neighbour. */
typedef struct pp_queues_sender {
    int64_t update, header;          /* the newest iteration of which its update, or its header, has come; or -1 */
    int64_t averaged;                /* the newest of its updates that was averaged, or -1 */
    int64_t from;                    /* it has left, and omits everything from here on; NEVER: it is here */
} pp_queues_sender_t;

/* What is known of an out-neighbour. */
typedef struct pp_queues_receiver {
    int64_t announced;
    bool    left;
} pp_queues_receiver_t;

typedef enum pp_queues_heard {
    PP_QUEUES_UNKNOWN, PP_QUEUES_THERE, PP_QUEUES_OMITTED, PP_QUEUES_USED
} pp_queues_heard_t;

/* What has come of an iteration; `ring` entries an in-neighbour, and a newer iteration takes the place of an older. */
typedef struct pp_queues_entry {
    int64_t iteration;
    int64_t heard;                   /* pp_queues_heard_t */
} pp_queues_entry_t;

struct pp_queues {
    pp_queues_plan_t plan;
    int64_t ring;
    int64_t bound;                   /* s; 0 where it is not set */
    size_t  senders, receivers, entries, weights, parts;      /* arrays */
    /* From here on it changes. */
    int32_t phase;                   /* pp_queues_phase_t */
    bool    left, told_left;         /* ... as far as the neighbours know */
    bool    makes_all;               /* it leaves out no iteration */
    int64_t iteration;
    int64_t goal;                    /* the iteration that it enters next */
    int64_t said;                    /* out-neighbours have the updates or headers of all iterations below */
    int64_t announced;
    int32_t count;                   /* parts of the average */
    int64_t dropped, skipped;        /* since it entered */
    pp_queues_result_t result;
};

static inline void *pp_queues_array(const pp_queues_t *q, size_t at) { return (char *)(uintptr_t)q + at; }
static inline pp_queues_sender_t *pp_queues_sender(const pp_queues_t *q, int32_t in)
{
    return (pp_queues_sender_t *)pp_queues_array(q, q->senders) + in;
}
static inline pp_queues_receiver_t *pp_queues_receiver(const pp_queues_t *q, int32_t out)
{
    return (pp_queues_receiver_t *)pp_queues_array(q, q->receivers) + out;
}
static inline pp_queues_part_t *pp_queues_parts(const pp_queues_t *q) { return pp_queues_array(q, q->parts); }
static inline bool pp_queues_has(const pp_queues_t *q, int32_t plant) { return PP_SIM && q->plan.plant == plant; }
static inline bool pp_queues_is_exact(const pp_queues_t *q) { return q->plan.staleness == PP_QUEUES_UNSET; }
static inline bool pp_queues_skips(const pp_queues_plan_t *plan) { return plan->skip != PP_QUEUES_UNSET; }

/* ---- updates (updates.c) ------------------------------------------------------------------------------- */

/* Nothing has come yet. */
void    pp_updates_open(pp_queues_t *q);
/* An in-neighbour's update (THERE) or header (OMITTED) has come. */
void    pp_updates_hear(pp_queues_t *q, int32_t in, int64_t iteration, pp_queues_heard_t heard);
/* An update of the average was not there any more: it counts as omitted. */
void    pp_updates_lose(pp_queues_t *q, int32_t in, int64_t iteration);
bool    pp_updates_are_enough(const pp_queues_t *q);
/* Lists what is averaged, and notes it in the result; returns the weight of the rank's own model. */
double  pp_updates_list(pp_queues_t *q);
/* What is listed is averaged, and what is older than the goal needs is dropped. */
void    pp_updates_use(pp_queues_t *q);
/* The newest iteration of the slowest in-neighbour that has not left; NEVER: all have. */
int64_t pp_updates_slowest(const pp_queues_t *q);

#endif
