/*
 * keeper.h - what keeps memory alive that an application may use for longer than the context lives: an array in the
 * memory of the node, or what a view of a result shows.
 *
 * The public side is a pointer that pp_unalloc() frees, on any thread, with no lock: garbage collectors call it.
 */
#ifndef PP_KEEPER_H
#define PP_KEEPER_H

#include "node.h"

/* Memory for an array, zeroed, and its keeper; NULL: none.  `node`: NULL, or without memory: the process's own. */
void *pp_keeper_alloc(pp_node_t *node, size_t bytes, void **memory);
/* Keeps the memory of the node mapped; NULL: no memory. */
void *pp_keeper_hold(const pp_node_t *node);

#endif
