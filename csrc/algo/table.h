/*
 * table.h - what an algorithm says about itself, and the table of all algorithms.
 *
 * To add an algorithm, write its file with a pp_algo_t, and its line in table.c: see docs/algorithms.md.
 */
#ifndef PP_TABLE_H
#define PP_TABLE_H

#include "peers.h"
#include "steps.h"

/* The longest chain of messages of an allreduce; the cost model counts these (choose.c). */
typedef struct pp_chain {
    double messages, bytes_sent, bytes_reduced;
} pp_chain_t;

typedef struct pp_algo {
    const char *name;          /* as users write it */
    /* Appends the reduction of one segment: see algo.h. */
    void (*append)(pp_steps_t *steps);
    pp_chain_t (*chain)(size_t count, double element_bytes, int32_t ranks);
    bool chunk_a_rank;         /* it cuts each segment once more, into one chunk a rank */
} pp_algo_t;

/* NULL: there is no such algorithm. */
const pp_algo_t *pp_algo_of(int32_t algorithm);
/* Fails by PP_ERR_ARGUMENT: "algorithm=7 is not one of 1..3". */
pp_status_t pp_algo_unknown(int32_t algorithm);

static inline void pp_chain_message(pp_chain_t *chain, double bytes, bool reduced)
{
    chain->messages++;
    chain->bytes_sent += bytes;
    chain->bytes_reduced += reduced ? bytes : 0;
}

/* The ranks beyond a power of two give their vectors before the algorithm, and get the result after it.  Returns that
   power. */
static inline int32_t pp_chain_fold(pp_chain_t *chain, double bytes, int32_t ranks)
{
    const pp_fold_t fold = pp_fold_make(0, ranks);
    if (fold.pairs > 0) {
        pp_chain_message(chain, bytes, true);
        pp_chain_message(chain, bytes, false);
    }
    return fold.size;
}

#endif
