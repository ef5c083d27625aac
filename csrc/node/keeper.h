/*
 * keeper.h - a keeper keeps memory alive that an application may use for longer than the context lives: an array in the
 * memory of the node, or a result that the application views in place.
 *
 * The application has a pointer that it frees by pp_unalloc(), in any thread and without a lock: garbage collectors do.
 */
#ifndef PP_KEEPER_H
#define PP_KEEPER_H

#include "node.h"

/* Allocates zeroed memory for an array; returns its keeper, NULL: no memory.  If `node` is NULL or has no memory, the
   array is in memory of this process. */
void *pp_keeper_alloc(pp_node_t *node, size_t bytes, void **memory);
/* A handle whose rounds read or write an array in place keeps it, too, until its own pp_unalloc(): other ranks may reach
   for it when the application has dropped it, as after a Start that nobody has waited for.  Returns the array's keeper;
   NULL: this memory is not, as a whole, in an array in the memory of the node. */
void *pp_keeper_share(const pp_node_t *node, const void *memory, size_t bytes);
/* Keeps the memory of the node mapped.  NULL: no memory for the keeper. */
void *pp_keeper_hold(const pp_node_t *node);

#endif
