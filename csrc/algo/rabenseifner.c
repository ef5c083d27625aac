/*
 * rabenseifner.c - reduce-scatter by recursive halving, allgather by recursive doubling.
 *
 * The halving goes through the distances 1, 2, 4, ...: neighbours come first.  After distance 2^i a position holds one
 * of 2^(i+1) parts of the segment, reduced over the contiguous block of positions that differ from it in the low i + 1
 * bits.  So every element goes through the same tree of blocks, lower ranks left, and the result is bit for bit that
 * of recursive doubling.  (The textbook order, with far partners first, sends as many bytes but combines every second,
 * fourth, ... rank.)
 *
 * The register describes the part that this rank holds: which ranks are merged in it, and whether it is null.  The
 * allgather replaces the register by equal ones, because every part has gone through all ranks.
 */
#include "fold.h"
#include "table.h"

enum { HALVINGS_MAX = 31 };

/* One halving; the allgather undoes the halvings in reverse order. */
typedef struct halving {
    pp_region_t kept, given;
} halving_t;

static pp_step_t exchange(const pp_steps_t *steps, const pp_fold_t *fold, int32_t distance)
{
    return (pp_step_t){.peer = pp_fold_rank(fold, fold->position ^ distance), .tag = steps->tag,
                       .reg = steps->reg};
}

static void reduce_scatter(pp_steps_t *steps, const pp_fold_t *fold, halving_t *halvings)
{
    pp_region_t part = steps->segment;
    for (int32_t distance = 1, i = 0; distance < fold->size; distance *= 2, i++, steps->tag++) {
        if (fold->position < 0)
            continue;
        bool upper = fold->position & distance;
        halvings[i] = (halving_t){.kept = pp_peers_half(part, upper),
                                  .given = pp_peers_half(part, !upper)};
        pp_step_t step = exchange(steps, fold, distance);
        step.region = halvings[i].given;
        uint32_t sent = pp_steps_send(steps, step);
        step.region = part = halvings[i].kept;
        pp_steps_hold(steps, pp_steps_reduce(steps, step, upper, sent));
    }
}

static void allgather(pp_steps_t *steps, const pp_fold_t *fold, const halving_t *halvings)
{
    /* A partner may be ahead, but no receive may replace the register before the last reduce here. */
    const uint32_t scattered = pp_steps_held(steps);
    for (int32_t distance = fold->size / 2, i = (int32_t)pp_peers_dimensions(fold->size) - 1; i >= 0;
         distance /= 2, i--, steps->tag++) {
        if (fold->position < 0)
            continue;
        pp_step_t step = exchange(steps, fold, distance);
        step.region = halvings[i].kept;
        pp_steps_send(steps, step);
        step.region = halvings[i].given;
        pp_steps_hold_too(steps, pp_steps_place(steps, step, scattered));
    }
}

static void append(pp_steps_t *steps)
{
    const pp_fold_t fold = pp_fold_make(steps->graph->rank, steps->graph->size);
    halving_t halvings[HALVINGS_MAX] = {0};
    pp_fold_in(steps, &fold);
    reduce_scatter(steps, &fold, halvings);
    allgather(steps, &fold, halvings);
    pp_fold_out(steps, &fold);
}

static pp_chain_t chain(size_t count, double element_bytes, int32_t ranks)
{
    pp_chain_t chain = {0};
    for (int32_t distance = pp_chain_fold(&chain, (double)count * element_bytes, ranks); distance > 1;
         distance /= 2) {
        count = count / 2 + count % 2;
        const double bytes = (double)count * element_bytes;
        pp_chain_message(&chain, bytes, true);
        pp_chain_message(&chain, bytes, false);     /* the allgather's */
    }
    return chain;
}

const pp_algo_t pp_algo_rabenseifner = {.name = "rabenseifner", .append = append, .chain = chain};
