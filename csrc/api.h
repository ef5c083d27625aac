/* api.h - what the simulation uses of api.c, besides the public functions. */
#ifndef PP_API_H
#define PP_API_H

#include "progress/context.h"

/* Makes a handle that is not open yet.  PP_ERR_ARGUMENT: the context cannot have a handle with this configuration. */
pp_status_t pp_allreduce_make(pp_ctx_t *ctx, const pp_allreduce_config_t *config, pp_handle_t **handle);

#endif
