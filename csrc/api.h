/* api.h - what the files of the API share, and what the simulation uses of it besides the public functions. */
#ifndef PP_API_H
#define PP_API_H

#include "progress/context.h"

/* Locks a context that may be used. */
pp_status_t pp_enter(pp_ctx_t *ctx);
/* Unlocks a context that has failed, and returns its error. */
pp_status_t pp_refuse(pp_ctx_t *ctx);
pp_status_t pp_refuse_handle(void);

/* Locks the context of a handle whose initialisation has finished, if it may be used, or if another rank has given it up
   while the handle's request is in this state (-1: not then).  Inline, because Start and Wait begin with it. */
static inline pp_status_t pp_enter_still(pp_handle_t *handle, int32_t state, pp_ctx_t **ctx)
{
    *ctx = NULL;
    if (!handle || !handle->engine)
        return pp_refuse_handle();
    *ctx = (pp_ctx_t *)((char *)handle->engine - offsetof(pp_ctx_t, engine));
    PP_TRY(pp_lock(*ctx));
    const pp_status_t error = (*ctx)->engine.error;
    const bool goes = !error || (error == PP_ERR_PEER_FAILED && (int32_t)handle->request.state == state);
    return goes ? PP_OK : pp_refuse(*ctx);
}
static inline pp_status_t pp_enter_handle(pp_handle_t *handle, pp_ctx_t **ctx) { return pp_enter_still(handle, -1, ctx); }
/* To be called after a collective call has begun. */
void        pp_began(pp_ctx_t *ctx, pp_status_t status);
pp_status_t pp_start_locked(pp_ctx_t *ctx, pp_handle_t *handle);

/* How handles of a kind are made. */
typedef struct pp_maker {
    /* Makes a handle that is not open yet.  PP_ERR_ARGUMENT: the context cannot have one with this configuration. */
    pp_status_t (*make)(pp_ctx_t *, const void *config, pp_handle_t **handle);
    /* The same without a configuration, for an agreement on an error. */
    pp_status_t (*bare)(pp_ctx_t *, pp_handle_t **handle);
    /* Gets what a handle needs whose buffers are in the memory of a device.  NULL: there are none such. */
    pp_status_t (*stage)(pp_ctx_t *, pp_handle_t *handle);
} pp_maker_t;

/* The public function that begins to make a handle.  `complaint`: why this rank's arguments are wrong; or NULL. */
pp_status_t pp_init_begin(pp_ctx_t *ctx, const pp_maker_t *maker, const void *config, bool on_device,
                          const char *complaint, pp_handle_t **out);
/* See pp_maker_t.make. */
pp_status_t pp_allreduce_make(pp_ctx_t *ctx, const void *config, pp_handle_t **handle);
pp_status_t pp_preduce_make(pp_ctx_t *ctx, const void *config, pp_handle_t **handle);

#endif
