/*
 * recursive_doubling.c - log2 P exchanges of the whole segment.
 *
 * After the exchange at distance 2^i a position holds the reduction of the 2^(i+1) positions that differ from it in
 * the low i + 1 bits.  These positions are a contiguous block and hold equal data.
 */
#include "fold.h"
#include "table.h"

static void append(pp_steps_t *steps)
{
    const int32_t rank = steps->graph->rank;
    const pp_fold_t fold = pp_fold_make(rank, steps->graph->size);
    pp_fold_in(steps, &fold);
    for (int32_t distance = 1; distance < fold.size; distance *= 2, steps->tag++) {
        if (fold.position < 0)
            continue;
        pp_step_t step = {.peer = pp_fold_rank(&fold, fold.position ^ distance), .tag = steps->tag,
                          .reg = steps->reg, .region = steps->segment};
        uint32_t sent = pp_steps_send(steps, step);
        pp_steps_hold(steps, pp_steps_reduce(steps, step, step.peer < rank, sent));
    }
    pp_fold_out(steps, &fold);
}

static pp_chain_t chain(size_t count, double element_bytes, int32_t ranks)
{
    pp_chain_t   chain = {0};
    const double bytes = (double)count * element_bytes;
    for (int32_t distance = pp_chain_fold(&chain, bytes, ranks); distance > 1; distance /= 2)
        pp_chain_message(&chain, bytes, true);
    return chain;
}

const pp_algo_t pp_algo_recursive_doubling = {.name = "recursive_doubling", .append = append, .chain = chain};
