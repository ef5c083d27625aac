/*
 * nodes.h - which ranks of a context are on which node, and who speaks for a node.
 *
 * Between nodes a round is a schedule of which every node is one participant.  In each round another rank
 * *leads* its node: it receives the round's messages, and sends them, but that any rank may announce the round.
 * All know who that is, so nobody is asked, and no rank of a node has to be there more often than the others.
 */
#ifndef PP_NODES_H
#define PP_NODES_H

#include "base.h"

typedef struct pp_nodes {
    int32_t  count, mine;        /* nodes, numbered by their lowest ranks; this rank's */
    int32_t *first;              /* count + 1: where a node's ranks begin in `ranks` */
    int32_t *ranks;              /* by node, then ascending: a rank's place there is its index on the node */
    int32_t *node_of;            /* by rank */
} pp_nodes_t;

/* `lowest` names, by rank, the lowest rank of its node.  NULL: no memory. */
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
