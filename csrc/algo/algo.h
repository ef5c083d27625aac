/*
 * algo.h - algorithms append operations to a template; they know no engine and no policy, no atomics, no clock
 * and no thread.
 *
 * A partial allreduce is: pp_algo_activation(), then one allreduce algorithm, then pp_algo_finish().
 * All of them work for any number of ranks, also 1 and odd numbers.
 */
#ifndef PP_ALGO_H
#define PP_ALGO_H

#include "../graph/graph.h"

/*
 * Activation by recursive doubling over the union of P binomial trees (eager-SGD, section 4.1.1), for any P: in
 * dimension i = 0 .. ceil(log2 P) - 1, rank r tells r xor 2^i if P is a power of two, else r + 2^i mod P
 * (dissemination).
 * Adds start, join, gate, activated and take:
 *   tell_i    = OR(tell_(i+1), the activation receive of dimension i); `start` stands above the highest tell
 *   activated = OR(tell_0, join);  take = AND(activated, gate)
 *   send_i    = OR(tell_(i+1), tell_0, done): a rank that joined silently sends its messages when the round is
 *               done, so every round has the same messages.
 * `start` tells the largest subtree first.  A receive in dimension i first tells the dimensions below i, which reach
 * new ranks, then fires `activated`, and then sends the redundant messages.
 * Uses tags 0 .. ceil(log2 P) - 1.  pp_algo_finish() adds the edges from `done`.
 */
void pp_algo_activation(pp_graph_t *graph);

/* The accumulator, or a segment of it, is the result when these vertices have finished. */
typedef struct pp_ends {
    uint32_t *vertices;
    size_t    count, capacity;
} pp_ends_t;

/*
 * An algorithm (table.h) appends the reduction of one segment of the vector (steps.h), and holds the result at its end.
 * The lower rank's operand is the left one.  Every element is reduced in one place only, or in the same order on all
 * ranks, so the results of all ranks are identical bit for bit.  They do not depend on how the vector is cut, except
 * with the ring.  Of a null register only the header travels.
 */

/* Adds `done` after `last`, and edges from `done` to the activation sends. */
void pp_algo_finish(pp_graph_t *graph, const pp_ends_t *last);

/* The number of segments into which a vector is best cut. */
int32_t pp_algo_segments(int32_t algorithm, size_t bytes, int32_t ranks);

/* The committed template of a partial allreduce for one rank, in 1 .. PP_LANES_MAX segments. */
pp_status_t pp_algo_partial_allreduce(int32_t algorithm, int32_t rank, int32_t size, size_t count,
                                      int32_t segments, pp_graph_t **graph);

/* A synchronous allreduce without activation: take = gate.  For agreements inside collective calls. */
pp_status_t pp_algo_synchronous_allreduce(int32_t algorithm, int32_t rank, int32_t size, size_t count,
                                          int32_t segments, pp_graph_t **graph);

/* Makes the template of one rank; `which` means what the maker says. */
typedef pp_status_t (*pp_algo_make_t)(int32_t which, int32_t rank, int32_t size, size_t count,
                                      int32_t segments, pp_graph_t **graph);
/* PP_ERR_ARGUMENT if the templates of `size` ranks cannot be had as text in this format (pp_format_t). */
pp_status_t pp_algo_dump_check(int32_t size, int32_t format);
/* The templates of all ranks as text, checked first.  The caller frees the text. */
pp_status_t pp_algo_dump(pp_algo_make_t make, int32_t which, int32_t size, size_t count, int32_t segments,
                         size_t element_bytes, int32_t format, char **text);

#endif
