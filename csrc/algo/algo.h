/*
 * algo.h - algorithms append operations to a template; they know no engine and no policy, no atomics, no clock
 * and no thread.
 *
 * A partial allreduce is: pp_algo_activation(), then one allreduce algorithm, then pp_algo_finish().
 * In all of them any number of ranks is right, 1 and odd numbers included.
 */
#ifndef PP_ALGO_H
#define PP_ALGO_H

#include "../graph/graph.h"

/*
 * Activation by recursive doubling over the union of P binomial trees (eager-SGD, section 4.1.1), for
 * any P: in dimension i = 0 .. ceil(log2 P) - 1, rank r tells r xor 2^i if P is a power of two, else
 * r + 2^i mod P (dissemination).
 * Adds start, join, gate, activated and take:
 *   tell_i    = OR(tell_(i+1), the activation receive of dimension i), with start above the highest
 *   activated = OR(tell_0, join);  take = AND(activated, gate)
 *   send_i    = OR(tell_(i+1), tell_0, done): a rank that joined silently still sends
 *               its messages once the round is done, so that every round has the same messages.
 * From `start` the largest subtree is told first; on a receive in dimension i, the dimensions below i
 * (which reach new ranks) before `activated`, and the redundant ones last.
 * Uses tags 0 .. ceil(log2 P) - 1.  pp_algo_finish() adds the edges from `done`.
 */
void pp_algo_activation(pp_graph_t *graph);

/* The vertices that must have finished for (a segment of) the accumulator to be the result. */
typedef struct pp_ends {
    uint32_t *vertices;
    size_t    count, capacity;
} pp_ends_t;

/*
 * Each appends the reduction of one segment of the vector (steps.h), and holds the result at its end.  The
 * lower rank's operand is the left one, and every element is reduced in one place only or in the same order
 * on all ranks: results are identical bit for bit, and, but for the ring, the same however the vector is cut.
 * A null register travels as a header alone.
 */
typedef struct pp_steps pp_steps_t;

/* log2 P exchanges of the whole segment; P that is no power of two folds the surplus ranks in before
   and out after.  For small vectors. */
void pp_algo_recursive_doubling(pp_steps_t *steps);
/* Recursive halving reduce-scatter, recursive doubling allgather (Rabenseifner); same fold. */
void pp_algo_rabenseifner(pp_steps_t *steps);
/* P - 1 reduce-scatter steps and P - 1 allgather steps on P chunks, one register a chunk. */
void pp_algo_ring(pp_steps_t *steps);

/* Adds `done` after `last`, and the edges done -> activation sends. */
void pp_algo_finish(pp_graph_t *graph, const pp_ends_t *last);

/* How many segments a vector is best cut into. */
int32_t pp_algo_segments(int32_t algorithm, size_t bytes, int32_t ranks);

/* All of it: the committed template of a partial allreduce for one rank, in 1 .. PP_LANES_MAX segments. */
pp_status_t pp_algo_partial_allreduce(int32_t algorithm, int32_t rank, int32_t size, size_t count,
                                      int32_t segments, pp_graph_t **graph);

/* A synchronous allreduce without activation: take = gate.  For agreements inside collective calls. */
pp_status_t pp_algo_synchronous_allreduce(int32_t algorithm, int32_t rank, int32_t size, size_t count,
                                          int32_t segments, pp_graph_t **graph);

/* The same of what the ranks give times their weights: rank i's has the instance's weight i, whose product is rounded
   before anything is added. */
pp_status_t pp_algo_weighted_allreduce(int32_t algorithm, int32_t rank, int32_t size, size_t count,
                                       int32_t segments, pp_graph_t **graph);

/* Makes the template of one rank; `which` is the maker's own. */
typedef pp_status_t (*pp_algo_make_t)(int32_t which, int32_t rank, int32_t size, size_t count,
                                      int32_t segments, pp_graph_t **graph);
/* Whether the templates of so many ranks can be had as text (pp_format_t). */
pp_status_t pp_algo_dump_check(int32_t size, int32_t format);
/* They all as text, checked first. */
pp_status_t pp_algo_dump(pp_algo_make_t make, int32_t which, int32_t size, size_t count, int32_t segments,
                         size_t element_bytes, int32_t format, char **text);

#endif
