/* mean.h - the vectors of a group become their average, in the memory of the node. */
#ifndef PP_MEAN_H
#define PP_MEAN_H

#include "../reduce/memory.h"
#include "node.h"

typedef struct pp_mean {
    const uint64_t *vectors;         /* offsets, in the order of ranks; each gets the average.  pp_group_vault_t has
                                        addresses instead */
    const double   *weights;         /* NULL: equal shares: the sum, divided */
    int32_t         count;
    uint64_t        initial;         /* offset of the initial model of the lowest rank; used if its weight is not 0 */
    double          initial_weight;
    /* With equal shares, by member.  NULL, like an offset of 0: there is none. */
    const uint64_t *adds;            /* offsets of what is added to the vector before */
    const uint64_t *results;         /* ... of where the average goes, too */
} pp_mean_t;

/* Averages elements first .. first + count - 1.  The lower rank's operand is the left one; the lowest rank's part is
   its weighted vector plus the weighted initial model. */
void pp_mean(const pp_node_t *node, const pp_kernels_t *kernels, const pp_mean_t *mean, size_t first,
                size_t count);

#endif
