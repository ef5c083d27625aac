/* nodes.c - see nodes.h. */
#include "nodes.h"

#include <stdlib.h>

static int32_t count_nodes(const int32_t *lowest, int32_t ranks)
{
    int32_t count = 0;
    for (int32_t r = 0; r < ranks; r++)
        count += lowest[r] == r;
    return count;
}

/* Numbers the nodes in the order of their lowest ranks: a node's lowest rank comes before its others. */
static void number(pp_nodes_t *nodes, const int32_t *lowest, int32_t ranks)
{
    int32_t next = 0;
    for (int32_t r = 0; r < ranks; r++) {
        nodes->node_of[r] = lowest[r] == r ? next++ : nodes->node_of[lowest[r]];
        nodes->first[nodes->node_of[r] + 1]++;
    }
    for (int32_t node = 0; node < nodes->count; node++)
        nodes->first[node + 1] += nodes->first[node];
}

static void list(pp_nodes_t *nodes, int32_t ranks)
{
    int32_t at = 0;
    for (int32_t node = 0; node < nodes->count; node++)
        for (int32_t r = 0; r < ranks; r++)
            if (nodes->node_of[r] == node)
                nodes->ranks[at++] = r;
}

pp_nodes_t *pp_nodes_new(const int32_t *lowest, int32_t ranks, int32_t rank)
{
    pp_nodes_t *nodes = calloc(1, sizeof *nodes);
    if (!nodes)
        return NULL;
    nodes->count = count_nodes(lowest, ranks);
    nodes->first = calloc((size_t)nodes->count + 1, sizeof *nodes->first);
    nodes->ranks = calloc((uint32_t)ranks, sizeof *nodes->ranks);
    nodes->node_of = calloc((uint32_t)ranks, sizeof *nodes->node_of);
    if (!nodes->first || !nodes->ranks || !nodes->node_of) {
        pp_nodes_free(nodes);
        return NULL;
    }
    number(nodes, lowest, ranks);
    list(nodes, ranks);
    nodes->mine = nodes->node_of[rank];
    return nodes;
}

void pp_nodes_free(pp_nodes_t *nodes)
{
    if (!nodes)
        return;
    free(nodes->first);
    free(nodes->ranks);
    free(nodes->node_of);
    free(nodes);
}
