/* series.h - what engine.c and series.c share, for nobody else. */
#ifndef PP_SERIES_H
#define PP_SERIES_H

#include "engine.h"

pp_stored_t *pp_stored_new(int32_t peer, const void *message, size_t bytes);
void         pp_stored_append(pp_stored_t **list, pp_stored_t *stored);
/* Keeps a message at the end of a list; false: no memory, latched. */
bool         pp_stored_keep(pp_engine_t *engine, pp_stored_t **list, int32_t peer, const void *message, size_t bytes);
void         pp_stored_free_all(pp_stored_t **list);

void pp_series_bulk_done(void *cookie);
void pp_series_fire(pp_instance_t *instance, uint32_t vertex);

#endif
