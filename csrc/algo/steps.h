/*
 * steps.h - the steps that allreduce algorithms are made of, and the order that keeps them correct.
 *
 * An algorithm is appended once for each *segment* of the vector: a region that goes through all of its
 * steps by itself, with registers and tags of its own.  So one segment is on its way while another one is
 * reduced, and both stay in cache.
 *
 * `held` are the operations after which what this rank holds of the segment is complete; each step starts
 * there.  Edges that look redundant are not:
 *   - A send may read the accumulator long after it fired, and it carries the register's header.  What
 *     changes either of them therefore waits until the sends before it have finished.
 *   - All receives of a segment share its lane of scratch: each waits for the reduce of the one before.
 */
#ifndef PP_STEPS_H
#define PP_STEPS_H

#include "algo.h"

typedef struct pp_steps {
    pp_graph_t *graph;
    pp_region_t segment;
    uint32_t    reg;         /* the segment's first register; */
    uint32_t    tag;         /* and the next tag, the same on every rank */
    pp_ends_t   held;
    int8_t      lane;        /* of scratch: the segment's own */
    bool        weighted;    /* what this rank gives is multiplied by the weight of its number first */
    uint32_t    scratch;     /* once it has finished, the lane is free */
} pp_steps_t;

/* Where messages go: the same on both sides, but for the peer. */
typedef struct pp_step {
    int32_t     peer;
    uint32_t    tag, reg;
    pp_region_t region;
} pp_step_t;

/* Begins at graph->take, with tags from the graph's next one on. */
pp_steps_t pp_steps_begin(pp_graph_t *graph);
/* The next segment, of PP_LANES_MAX at most.  Its registers begin behind those of the one before. */
void pp_steps_begin_segment(pp_steps_t *steps, pp_region_t segment);
/* What is held of the segment belongs to the ends of the schedule. */
void pp_steps_end_segment(pp_steps_t *steps, pp_ends_t *ends);
void pp_steps_release(pp_steps_t *steps);

/* The first of what is held: all of it while the algorithm reduces. */
uint32_t pp_steps_held(const pp_steps_t *steps);
/* What is held now: this operation alone, or this one too. */
void pp_steps_hold(pp_steps_t *steps, uint32_t vertex);
void pp_steps_hold_too(pp_steps_t *steps, uint32_t vertex);

/* The register and region, once all of it is held. */
uint32_t pp_steps_send(pp_steps_t *steps, pp_step_t step);
/* A receive into scratch and its reduce, which is returned; also after `after` unless PP_NO_VERTEX. */
uint32_t pp_steps_reduce(pp_steps_t *steps, pp_step_t step, bool incoming_left, uint32_t after);
/* A receive in place, after `after` only. */
uint32_t pp_steps_place(pp_steps_t *steps, pp_step_t step, uint32_t after);

#endif
