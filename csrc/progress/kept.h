/*
 * kept.h - the memory of the node that a driver still has registered.
 *
 * A handle on a device leaves its registrations to be given back (cuda/disposal.h), which may take long.  Until then the
 * region is not used again: what is copied to registered memory goes to the pages that it had when it was registered.  So
 * the context keeps the handle's board, and ends it when the registrations are given back.  If the context ends before,
 * the memory stays mapped until the process ends.
 */
#ifndef PP_KEPT_H
#define PP_KEPT_H

#include "staging.h"

/* The handle is released, of whose region something is registered.  To be called before its board is closed, and when the
   registrations are left to be given back.  `frees`: they are; else copies may still use them, or the process ends. */
void pp_kept_begin(pp_handle_t *handle, bool frees);
/* Ends the boards whose registrations are given back.  With the lock. */
void pp_kept_look(pp_ctx_t *ctx);
/* The context ends, on all ranks or with its process. */
void pp_kept_end(pp_ctx_t *ctx);

#endif
