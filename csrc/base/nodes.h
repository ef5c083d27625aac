/*
 * nodes.h - which ranks of a context are on which node, and which rank leads a node in a round.
 *
 * Between nodes a round is a schedule whose participants are nodes.  In each round another rank *leads* its node: the
 * leader receives the round's messages and sends them.  Only the announcement of a round may come from any rank.
 * Every rank computes the leader from the round's number, so no rank asks for it, and the work is shared evenly.
 */
#ifndef PP_NODES_H
#define PP_NODES_H

#include "base.h"

typedef struct pp_nodes {
    int32_t  count, mine;        /* nodes, numbered in the order of their lowest ranks; this rank's node */
    int32_t *first;              /* count + 1 entries: where a node's ranks begin in `ranks` */
    int32_t *ranks;              /* by node, ascending; a rank's position among its node's is its index on the node */
    int32_t *node_of;            /* by rank */
} pp_nodes_t;

/* `lowest`: for each rank the lowest rank of its node.  NULL: no memory. */
pp_nodes_t *pp_nodes_new(const int32_t *lowest, int32_t ranks, int32_t rank);
void        pp_nodes_free(pp_nodes_t *nodes);

static inline int32_t pp_nodes_size(const pp_nodes_t *nodes, int32_t node)
{
    return nodes->first[node + 1] - nodes->first[node];
}
static inline int32_t pp_nodes_rank(const pp_nodes_t *nodes, int32_t node, int32_t index)
{
    return nodes->ranks[nodes->first[node] + index];
}
/* The index on its node of the rank that leads it in a round. */
static inline int32_t pp_nodes_leader_index(const pp_nodes_t *nodes, int32_t node, uint64_t round)
{
    return (int32_t)(round % (uint64_t)pp_nodes_size(nodes, node));
}
static inline int32_t pp_nodes_leader(const pp_nodes_t *nodes, int32_t node, uint64_t round)
{
    return pp_nodes_rank(nodes, node, pp_nodes_leader_index(nodes, node, round));
}

#endif
