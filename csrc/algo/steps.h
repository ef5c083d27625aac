/*
 * steps.h - the steps that allreduce algorithms are made of, and the order that keeps them correct.
 *
 * An algorithm is appended once for each *segment* of the vector.  A segment goes through all steps by itself, with
 * registers and tags of its own.  So one segment travels while another is reduced, and both stay in cache.
 *
 * This rank's part of the segment is complete when the operations in `held` have finished; each step starts there.
 * Two kinds of edges look redundant, but are needed:
 *   - A send may read the accumulator long after it fired, and it carries the register's header.  So an operation that
 *     changes either of them waits until the sends before it have finished.
 *   - All receives of a segment share its lane of scratch, so each waits for the reduce of the one before.
 */
#ifndef PP_STEPS_H
#define PP_STEPS_H

#include "algo.h"

typedef struct pp_steps {
    pp_graph_t *graph;
    pp_region_t segment;
    uint32_t    reg;         /* the segment's first register */
    uint32_t    tag;         /* the next tag; the same on every rank */
    pp_ends_t   held;
    int8_t      lane;        /* the segment's lane of scratch */
    uint32_t    scratch;     /* the lane is free when this operation has finished */
} pp_steps_t;

/* A message; both sides give the same values, except for the peer. */
typedef struct pp_step {
    int32_t     peer;
    uint32_t    tag, reg;
    pp_region_t region;
} pp_step_t;

/* Begins at graph->take, with the graph's next unused tag. */
pp_steps_t pp_steps_begin(pp_graph_t *graph);
/* Begins the next of at most PP_LANES_MAX segments.  Its registers follow those of the one before. */
void pp_steps_begin_segment(pp_steps_t *steps, pp_region_t segment);
/* Adds the segment's `held` operations to the ends of the schedule. */
void pp_steps_end_segment(pp_steps_t *steps, pp_ends_t *ends);
void pp_steps_release(pp_steps_t *steps);

/* The first operation in `held`; while the algorithm reduces, the only one. */
uint32_t pp_steps_held(const pp_steps_t *steps);
/* Makes this operation the only one in `held`, or adds it. */
void pp_steps_hold(pp_steps_t *steps, uint32_t vertex);
void pp_steps_hold_too(pp_steps_t *steps, uint32_t vertex);

/* Sends the register and region, after all operations in `held`. */
uint32_t pp_steps_send(pp_steps_t *steps, pp_step_t step);
/* A receive into scratch and its reduce, which is returned.  The reduce also waits for `after` unless PP_NO_VERTEX. */
uint32_t pp_steps_reduce(pp_steps_t *steps, pp_step_t step, bool incoming_left, uint32_t after);
/* A receive in place, which waits for `after` only. */
uint32_t pp_steps_place(pp_steps_t *steps, pp_step_t step, uint32_t after);

#endif
