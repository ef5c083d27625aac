/* peers.h - the peers of a rank, and parts of the vector.  Arithmetic only. */
#ifndef PP_PEERS_H
#define PP_PEERS_H

#include "../graph/graph.h"

/* Smallest d with 2^d >= size: the dimensions of a dissemination. */
static inline uint32_t pp_peers_dimensions(int32_t size)
{
    uint32_t dimensions = 0;
    while (INT64_C(1) << dimensions < size)
        dimensions++;
    return dimensions;
}

/* (rank + distance) mod size, for -size <= distance <= size. */
static inline int32_t pp_peers_shift(int32_t rank, int32_t distance, int32_t size)
{
    int64_t shifted = ((int64_t)rank + distance) % size;
    return (int32_t)(shifted < 0 ? shifted + size : shifted);
}

/* The rank that a rank tells in a dimension of the activation, and the rank that tells it.  If P is a power of two,
   these are the partners of recursive doubling: an activated rank then sends its first partner the activation together
   with the first data.  Otherwise dissemination: r + 2^i mod P. */
static inline int32_t pp_peers_told(int32_t rank, uint32_t dimension, int32_t size)
{
    int32_t distance = 1 << dimension;
    return (size & (size - 1)) == 0 ? rank ^ distance : pp_peers_shift(rank, distance, size);
}

static inline int32_t pp_peers_teller(int32_t rank, uint32_t dimension, int32_t size)
{
    int32_t distance = 1 << dimension;
    return (size & (size - 1)) == 0 ? rank ^ distance : pp_peers_shift(rank, -distance, size);
}

/* The lower or upper half of a region; the lower half is the smaller one if the count is odd. */
static inline pp_region_t pp_peers_half(pp_region_t region, bool upper)
{
    size_t lower = region.count / 2;
    if (upper)
        return (pp_region_t){.offset = region.offset + lower, .count = region.count - lower};
    return (pp_region_t){.offset = region.offset, .count = lower};
}

/* Part `index` of `count` elements in `parts`; lengths differ by at most one. */
static inline pp_region_t pp_peers_chunk(size_t count, int32_t index, int32_t parts)
{
    size_t length = count / (size_t)parts, longer = count % (size_t)parts, at = (size_t)index;
    return (pp_region_t){.offset = at * length + (at < longer ? at : longer),
                         .count = length + (at < longer)};
}

/*
 * Folding P ranks onto 2^k positions: each of the first `pairs` pairs of ranks (2i, 2i + 1) has one position.  The even
 * rank acts for the pair; the odd one is a spare.  Positions 0 .. 2^k - 1 stand for contiguous blocks of ranks, in
 * order, so combining neighbouring blocks keeps the operands in rank order.
 */
typedef struct pp_fold {
    int32_t size;        /* 2^k */
    int32_t pairs;       /* P - 2^k */
    int32_t position;    /* of this rank; -1: it is a spare */
    int32_t partner;     /* the other rank of its pair; -1: it is in no pair */
} pp_fold_t;

static inline pp_fold_t pp_fold_make(int32_t rank, int32_t size)
{
    pp_fold_t fold = {.size = 1, .partner = -1};
    while (fold.size <= size / 2)
        fold.size *= 2;
    fold.pairs = size - fold.size;
    if (rank >= 2 * fold.pairs) {
        fold.position = rank - fold.pairs;
    } else {
        fold.position = rank % 2 == 0 ? rank / 2 : -1;
        fold.partner = rank ^ 1;
    }
    return fold;
}

/* The rank that acts for a position. */
static inline int32_t pp_fold_rank(const pp_fold_t *fold, int32_t position)
{
    return position < fold->pairs ? 2 * position : position + fold->pairs;
}

#endif
