/* dump.h - all ranks' templates in one text.  Of one rank: pp_graph_dump() in graph.h. */
#ifndef PP_DUMP_H
#define PP_DUMP_H

#include "graph.h"

/* GOAL-like: one block a rank.  DOT: one cluster a rank, with the messages between them. */
void pp_graph_dump_all(pp_graph_t *const *graphs, int32_t size, int32_t format,
                       size_t element_bytes, pp_text_t *text);

#endif
