/* pretend.h - handles of simulated ranks that no agreement has made.  Each kind has a file of its own for them. */
#ifndef PP_PRETEND_H
#define PP_PRETEND_H

#include "../api.h"

/* Whether a handle can be made without an agreement.  Takes no lock: one thread simulates all ranks. */
pp_status_t pp_check_pretends(pp_ctx_t *ctx);
/* Opens a handle that is not open yet, as if all ranks had agreed on it. */
pp_status_t pp_pretend(pp_ctx_t *ctx, pp_handle_t *handle, pp_handle_t **out);

#endif
