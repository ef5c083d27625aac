/*
 * ranges.h - which offsets of a node's memory are free.
 *
 * The ranks of the node share the table, in that memory, and one at a time changes it (pp_node_lock()).  A free range
 * is used again for a range of its size, so arrays and handles that come and go in a loop take no more and more.  For
 * any other size the free ranges are joined where they touch, and the smallest that has room is cut: so what is free is
 * usable for every size, by every rank.
 */
#ifndef PP_RANGES_H
#define PP_RANGES_H

#include <stdint.h>

enum { PP_RANGES_MAX = 4096 };

/* Zeroed: nothing is free. */
typedef struct pp_ranges {
    uint64_t count;
    struct { uint64_t offset, bytes; } free[PP_RANGES_MAX];     /* sorted */
} pp_ranges_t;

/* The offset of a range that is in use from here on; 0: there is none of that size. */
uint64_t pp_ranges_take(pp_ranges_t *ranges, uint64_t bytes);
/* The range is free.  If the table is full, and no two ranges touch, the offsets are lost; there are plenty. */
void     pp_ranges_give(pp_ranges_t *ranges, uint64_t offset, uint64_t bytes);

#endif
