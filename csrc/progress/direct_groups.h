/*
 * direct_groups.h - models of P-Reduce in the memory of their device, where the caller runs the groups on communicators
 * (PP_BACKEND_COMM): MPI gets addresses of the device.
 *
 * What a Start or Flush has given stays in the bounce buffer that it was copied to, until the result goes to the
 * application's buffers from there.  There are two vectors of accumulators besides.  One gets the sum of a group: this
 * rank's part is made there, MPI adds up the parts, and the division makes the average, which is the model from then on.
 * The other one gets the sum of the next group, if the request has several.  So a sum that fails leaves the model as it
 * was.
 *
 * Whether all ranks have it is agreed on as in direct.h.
 */
#ifndef PP_DIRECT_GROUPS_H
#define PP_DIRECT_GROUPS_H

#include "direct.h"

/* What a member gives to the sum of its group, and what becomes of the sum. */
typedef struct pp_group_share {
    uint64_t group;                  /* the group's serial number */
    double   weight, initial_weight; /* of this rank's model, and of its initial model */
    uint64_t divide_by;
} pp_group_share_t;

/* As pp_direct_ask(), for a handle of P-Reduce. */
pp_status_t pp_direct_groups_ask(pp_handle_t *handle, const char *no_direct);
/* The model is what `staging->receive` holds. */
void        pp_direct_groups_given(const pp_handle_t *handle);
/* The model becomes the average of a group.  Blocks until all members are in it; without the lock meanwhile.  PP_ERR_MPI:
   MPI has failed, and the model is as before.  Other errors fail the context. */
pp_status_t pp_direct_groups_average(pp_ctx_t *ctx, pp_handle_t *handle, const void *comm, const pp_group_share_t *share);
/* The group of which the model is the average; 0: none since the first Start. */
uint64_t    pp_direct_groups_averaged(const pp_handle_t *handle);
/* `staging->receive` gets the model, before what is queued on the application's stream from now on.  With the lock, which
   it releases. */
pp_status_t pp_direct_groups_finish(pp_ctx_t *ctx, pp_handle_t *handle);

#endif
