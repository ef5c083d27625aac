/* preduce.c - simulated handles of P-Reduce. */
#include "../coll/preduce/preduce.h"
#include "../include/pypartial_sim.h"
#include "pretend.h"

pp_status_t pp_sim_preduce(pp_ctx_t *ctx, const pp_preduce_config_t *config, pp_handle_t **out)
{
    pp_handle_t *handle;
    *out = NULL;
    PP_TRY(pp_check_pretends(ctx));
    PP_TRY(pp_preduce_make(ctx, config, &handle));
    return pp_pretend(ctx, handle, out);
}

pp_status_t pp_sim_count_from(pp_handle_t *handle, uint64_t flushes, uint64_t requests)
{
    if (!pp_is_preduce(handle))
        return pp_fail(PP_ERR_ARGUMENT, "handle %u is not a handle of P-Reduce", handle->id);
    return pp_table_groups_count_from(pp_preduce_of(handle), flushes, requests);
}
