/*
 * choose.c - the cheapest algorithm for a vector, a number of ranks and a kind of link.
 *
 * The model follows LogGP.  The time of an allreduce is a fixed cost plus the time of its longest chain of messages
 * (pp_algo_t).  Each message costs a latency, and a time for every byte that it carries and for every byte that is
 * reduced afterwards.  The model is linear in its parameters, so `pypartial tune` can fit them to measured times.  If
 * this number of ranks was measured itself, the measured switch points decide instead.
 */
#include "choose.h"
#include "table.h"

#include <math.h>

/* Measured with `pypartial tune`, see "Choosing an algorithm" in docs/performance.md. */
static const pp_cost_t defaults[PP_LINK_KINDS] = {
    [PP_LINK_NODE] = {.overhead_us = 3, .copy_ns = 0.38, .latency_us = 1.4, .reduce_ns = 0.028},
    [PP_LINK_NETWORK] = {.overhead_us = 25, .copy_ns = 0.38, .latency_us = 20, .byte_ns = 0.4,
                         .reduce_ns = 0.1},
};

/* ---- the model ------------------------------------------------------------------------------------------ */

static double cost_of(const pp_cost_t *cost, int32_t algorithm, size_t count, size_t element_bytes,
                      int32_t ranks)
{
    const pp_chain_t chain = pp_algo_of(algorithm)->chain(count, (double)element_bytes, ranks);
    return cost->overhead_us + (double)count * (double)element_bytes * cost->copy_ns * 1e-3
         + chain.messages * cost->latency_us + chain.bytes_sent * cost->byte_ns * 1e-3
         + chain.bytes_reduced * cost->reduce_ns * 1e-3;
}

static pp_status_t check_ranks(int32_t ranks, int32_t link)
{
    if (ranks < 1)
        return pp_fail(PP_ERR_ARGUMENT, "ranks=%d is not at least 1", ranks);
    if (link < 0 || link >= PP_LINK_KINDS)
        return pp_fail(PP_ERR_ARGUMENT, "link=%d is not one of 0..%d", link, PP_LINK_KINDS - 1);
    return PP_OK;
}

pp_status_t pp_model_cost(const pp_cost_t *cost, int32_t algorithm, size_t count, size_t element_bytes,
                          int32_t ranks, double *us)
{
    *us = 0;
    PP_TRY(check_ranks(ranks, PP_LINK_NODE));
    if (!pp_algo_of(algorithm))
        return pp_algo_unknown(algorithm);
    *us = cost_of(cost, algorithm, count, element_bytes, ranks);
    return PP_OK;
}

pp_status_t pp_model_defaults(int32_t link, pp_cost_t *cost)
{
    *cost = (pp_cost_t){0};
    PP_TRY(check_ranks(1, link));
    *cost = defaults[link];
    return PP_OK;
}

/* ---- choosing ------------------------------------------------------------------------------------------- */

/* The row for this kind of link whose number of ranks is nearest by ratio; NULL: there is none for this link. */
static const pp_tuned_t *nearest(const pp_tuned_t *tuned, size_t tuned_count, int32_t ranks, int32_t link)
{
    const pp_tuned_t *best = NULL;
    double            least = 0;
    for (size_t i = 0; i < tuned_count; i++) {
        const double distance = fabs(log((double)tuned[i].ranks / ranks));
        if (tuned[i].link == link && (!best || distance < least)) {
            best = &tuned[i];
            least = distance;
        }
    }
    return best;
}

static int32_t cheapest(const pp_cost_t *cost, size_t count, size_t element_bytes, int32_t ranks)
{
    int32_t best = PP_ALGORITHM_FIRST;
    double  least = cost_of(cost, best, count, element_bytes, ranks);
    for (int32_t algorithm = best + 1; algorithm <= pp_algorithm_count(); algorithm++) {
        const double us = cost_of(cost, algorithm, count, element_bytes, ranks);
        if (us < least) {
            best = algorithm;
            least = us;
        }
    }
    return best;
}

static int32_t measured(const pp_tuned_t *row, double bytes)
{
    int32_t i = row->switch_count - 1;
    while (i > 0 && (double)row->switches[i].bytes > bytes)
        i--;
    return row->switches[i].algorithm;
}

pp_status_t pp_choose(const pp_tuned_t *tuned, size_t tuned_count, size_t count, size_t element_bytes,
                      int32_t ranks, int32_t link, pp_choice_t *choice)
{
    *choice = (pp_choice_t){0};
    PP_TRY(check_ranks(ranks, link));
    const pp_tuned_t *row = nearest(tuned, tuned_count, ranks, link);
    if (row && row->ranks == ranks && row->switch_count > 0) {
        choice->algorithm = measured(row, (double)count * (double)element_bytes);
        choice->reason = PP_REASON_MEASURED;
    } else {
        choice->algorithm = cheapest(row ? &row->cost : &defaults[link], count, element_bytes, ranks);
        choice->reason = row ? PP_REASON_MODEL : PP_REASON_DEFAULTS;
    }
    return PP_OK;
}

/* ---- checks of a tuning table --------------------------------------------------------------------------- */

static bool is_time(double value) { return isfinite(value) && value >= 0; }

static pp_status_t check_switches(const pp_tuned_t *row)
{
    if (row->switch_count < 0 || row->switch_count > PP_SWITCHES_MAX)
        return pp_fail(PP_ERR_ARGUMENT, "switch_count=%d of the row for %d ranks is not in 0..%d",
                       row->switch_count, row->ranks, PP_SWITCHES_MAX);
    for (int32_t i = 0; i < row->switch_count; i++) {
        const pp_switch_t *at = &row->switches[i];
        if (!pp_algo_of(at->algorithm))
            return pp_fail(PP_ERR_ARGUMENT, "algorithm=%d of a switch point for %d ranks is not one of "
                           "1..%d", at->algorithm, row->ranks, pp_algorithm_count());
        if (i == 0 ? at->bytes != 0 : at->bytes <= at[-1].bytes)
            return pp_fail(PP_ERR_ARGUMENT, "switch point %d for %d ranks is at %llu bytes: the first must be at 0 "
                           "bytes, each other one above the one before", i, row->ranks,
                           (unsigned long long)at->bytes);
    }
    return PP_OK;
}

pp_status_t pp_tuned_check(const pp_tuned_t *tuned, size_t tuned_count)
{
    for (size_t i = 0; i < tuned_count; i++) {
        const pp_cost_t *cost = &tuned[i].cost;
        PP_TRY(check_ranks(tuned[i].ranks, tuned[i].link));
        PP_TRY(check_switches(&tuned[i]));
        if (!is_time(cost->overhead_us) || !is_time(cost->copy_ns) || !is_time(cost->latency_us)
            || !is_time(cost->byte_ns) || !is_time(cost->reduce_ns))
            return pp_fail(PP_ERR_ARGUMENT, "a cost for %d ranks is not a finite time of 0 or more: overhead_us=%g, "
                           "copy_ns=%g, latency_us=%g, byte_ns=%g, reduce_ns=%g", tuned[i].ranks, cost->overhead_us,
                           cost->copy_ns, cost->latency_us, cost->byte_ns, cost->reduce_ns);
    }
    return PP_OK;
}
