/* allreduce.c - simulated handles of a partial allreduce. */
#include "../include/pypartial_sim.h"
#include "pretend.h"

pp_status_t pp_sim_allreduce(pp_ctx_t *ctx, const pp_allreduce_config_t *config, pp_handle_t **out)
{
    pp_handle_t *handle;
    *out = NULL;
    PP_TRY(pp_check_pretends(ctx));
    PP_TRY(pp_allreduce_make(ctx, config, &handle));
    return pp_pretend(ctx, handle, out);
}

uint64_t pp_sim_requested_at(const pp_handle_t *handle) { return handle->request.at; }
