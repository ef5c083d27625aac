/*
 * staged_preduce.h - P-Reduce: its face, and handles whose buffers are in the memory of a device.
 *
 * P-Reduce works in place, so one vector of pinned memory stands for the application's buffers from the copy off the
 * device until the copy of the result to it, and the handle is one of the host's otherwise.  A rank asks for its group
 * when its copy is over.  What a Flush gives comes off the device before the Flush begins, and the initial model before
 * this rank votes on the handle.  Vectors on devices are in vault.h and direct_groups.h.
 */
#ifndef PP_STAGED_PREDUCE_H
#define PP_STAGED_PREDUCE_H

#include "../coll/preduce/preduce.h"
#include "direct_groups.h"

extern const pp_face_t pp_preduce_face, pp_staged_preduce_face;

/* ---- the parts of a Start (preduce_face.c) ---- */

/* Whether a Start may come now, with these arguments.  PP_ERR_STATE, PP_ERR_ARGUMENT: it may not. */
pp_status_t pp_preduce_check_start(const pp_preduce_t *preduce);
/* The application's elements become this rank's vector.  With the lock, which is released if that takes long. */
pp_status_t pp_preduce_fill(pp_ctx_t *ctx, pp_preduce_t *preduce);
/* Makes the request. */
void        pp_preduce_request(pp_preduce_t *preduce);
/* The vector is filled: asks for the request's group. */
pp_status_t pp_preduce_ask(pp_ctx_t *ctx, pp_preduce_t *preduce);
/* A vector's elements in the application's buffers.  Like pp_preduce_fill(). */
void        pp_preduce_copy_out(pp_ctx_t *ctx, const pp_preduce_t *preduce, const void *vector);

/* ---- on a device (staged_preduce.c) ---- */

/* Makes a handle whose pieces are in the memory of config.device one of the host: first what may take the driver long,
   without the lock; then, with it, the copy of an initial model and the face.  To be called before the ranks agree on
   it. */
pp_status_t pp_staged_preduce_make(pp_handle_t *handle);
pp_status_t pp_staged_preduce_open(pp_ctx_t *ctx, pp_handle_t *handle);
/* See pp_preduce_host() and its neighbours. */
pp_status_t pp_staged_preduce_host(const pp_handle_t *handle, void **elements);
pp_status_t pp_staged_preduce_average(pp_ctx_t *ctx, pp_handle_t *handle, const void *comm, const pp_group_share_t *share);
uint64_t    pp_staged_preduce_averaged(const pp_handle_t *handle);
pp_status_t pp_staged_preduce_deliver(pp_ctx_t *ctx, pp_handle_t *handle);

#endif
