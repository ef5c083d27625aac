/* api.h - what the files of the API share, and what the simulation uses of it besides the public functions. */
#ifndef PP_API_H
#define PP_API_H

#include "progress/context.h"

/* Locks a context that may be used, or that of a handle whose initialisation has finished. */
pp_status_t pp_enter(pp_ctx_t *ctx);
pp_status_t pp_enter_handle(pp_handle_t *handle, pp_ctx_t **ctx);
/* The same, also if another rank has given the context up while the handle's request is in this state. */
pp_status_t pp_enter_still(pp_handle_t *handle, int32_t state, pp_ctx_t **ctx);
/* To be called after a collective call has begun. */
void        pp_began(pp_ctx_t *ctx, pp_status_t status);
pp_status_t pp_start_locked(pp_ctx_t *ctx, pp_handle_t *handle);

/* Each makes a handle that is not open yet.  PP_ERR_ARGUMENT: the context cannot have a handle with this
   configuration. */
pp_status_t pp_allreduce_make(pp_ctx_t *ctx, const pp_allreduce_config_t *config, pp_handle_t **handle);
pp_status_t pp_preduce_make(pp_ctx_t *ctx, const pp_preduce_config_t *config, pp_handle_t **handle);

#endif
