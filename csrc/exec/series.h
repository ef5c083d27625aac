/* series.h - what engine.c and series.c share, for nobody else. */
#ifndef PP_SERIES_H
#define PP_SERIES_H

#include "engine.h"

pp_stored_t *pp_stored_new(int32_t peer, const void *message, size_t bytes);
void         pp_stored_append(pp_stored_t **list, pp_stored_t *stored);
void         pp_stored_free_all(pp_stored_t **list);

/* An operation's message for a round that is open here. */
void pp_series_message(pp_series_t *series, int32_t peer, const pp_prefix_t *prefix, size_t bytes);
void pp_series_bulk_done(void *cookie);
/* Messages that came before their round was opened, and are due now. */
void pp_series_replay_early(pp_series_t *series);
void pp_series_fire(pp_instance_t *instance, uint32_t vertex);

#endif
