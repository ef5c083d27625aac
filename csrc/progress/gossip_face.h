/* gossip_face.h - what applications do with handles of gossip.  With the context's lock, which is released meanwhile. */
#ifndef PP_GOSSIP_FACE_H
#define PP_GOSSIP_FACE_H

#include "../coll/gossip/gossip.h"
#include "context.h"

extern const pp_face_t pp_gossip_face;

/* See pp_gossip_hold() and the others. */
pp_status_t pp_gossip_hold_locked(pp_ctx_t *ctx, pp_gossip_t *gossip, int64_t timeout_us, void **model);
/* Also in a context that has failed. */
pp_status_t pp_gossip_release_locked(pp_ctx_t *ctx, pp_gossip_t *gossip);

#endif
