/* template.h - a schedule as one rank runs it: the committed graph, and the pools of its instances' memory. */
#ifndef PP_TEMPLATE_H
#define PP_TEMPLATE_H

#include "../graph/graph.h"
#include "pool.h"

typedef struct pp_template {
    pp_graph_t *graph;           /* owned */
    size_t      lane_bytes;      /* lanes of scratch begin on cache lines of their own */
    pp_pool_t  *vectors;         /* accumulators */
    pp_pool_t  *scratches;
} pp_template_t;

/* Bytes of a lane of scratch, for one instance of the graph. */
static inline size_t pp_template_lane_bytes(const pp_graph_t *graph, size_t element_bytes)
{
    enum { LANE_ALIGN = 64 };
    return (graph->scratch_count * element_bytes + LANE_ALIGN - 1) / LANE_ALIGN * LANE_ALIGN;
}

#endif
