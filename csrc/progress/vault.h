/*
 * vault.h - the vectors of a handle in the memory of devices, which the ranks of a node share (CUDA's IPC).
 *
 * Each rank keeps the parts of its station, and some results of the ring, in one allocation on its device; the others
 * map it.  The rounds are those of the node's board; but the rank that claims one has its device reduce all parts in one
 * kernel, and publishes the result when that is over.  The copies between these vectors and the application's buffers
 * are those of staging.h.
 *
 * The ranks *meet* when they have agreed on the handle: each offers its memory, opens that of the others, and says
 * whether it could.  If one could not, all have the handle as it was, with vectors in memory of the host.
 *
 * A rank's memory, and what it has mapped of the others', are of its pool (cuda/pool.h): mappings stay until the context
 * ends.  The memory goes back to the pool when no other rank's device uses it any more, which may be after the handle was
 * freed here: until then the context keeps the vault.
 */
#ifndef PP_VAULT_H
#define PP_VAULT_H

#include "../node/board.h"
#include "staging.h"

typedef struct pp_device_vault pp_device_vault_t;
typedef struct pp_vault_use pp_vault_use_t;
extern const pp_vault_use_t pp_vault_of_rounds, pp_vault_of_groups;

/* Has the ranks meet when they have agreed on the handle.  To be called before that.  `no_ipc`: why this rank cannot use
   such memory; NULL: nothing is known. */
pp_status_t pp_vault_ask(pp_handle_t *handle, const pp_vault_use_t *use, const char *no_ipc);
/* The handle has no vault although it was asked for, on all ranks. */
pp_status_t pp_vault_refuse(pp_handle_t *handle, const char *why);
/* Whether the meeting can go on: the engine has to settle. */
bool        pp_vault_meets(const pp_handle_t *handle);
/* Whether a thread still works for the meeting, and uses what the handle has.  Waits a moment for that. */
bool        pp_vault_is_busy(const pp_handle_t *handle);
/* Whether vectors are in it; else *why says why not, or is "" if nobody has asked. */
bool        pp_vault_in_use(const pp_handle_t *handle, const char **why);
/* An operation that returned nothing has failed: latches that for the context.  With the lock. */
pp_status_t pp_vault_check(pp_handle_t *handle);

/* ---- rounds in it (vault_rounds.c) ---- */

/* A result was put into a bounce buffer, by operations that may only be queued: what is queued on the application's stream
   from now on comes after it.  With the lock, which it releases.  Does nothing if there is no vault. */
pp_status_t pp_vault_send(pp_ctx_t *ctx, pp_handle_t *handle, pp_pinned_t *bounce);

/* ---- models in it (vault_groups.c) ---- */

/* Finds the vector to which the next Start or Flush copies; `pinned` stands for it. */
pp_status_t pp_group_vault_aim(pp_handle_t *handle, pp_pinned_t **pinned);
/* The copy is over: groups average that vector from now on. */
void        pp_group_vault_place(pp_handle_t *handle);
/* Queues the copy of a result to the application's buffers. */
pp_status_t pp_group_vault_deliver(pp_ctx_t *ctx, pp_handle_t *handle);

/* ---- the end ---- */

/* The handle is released.  `frees`: by all ranks; else the process ends. */
void        pp_vault_end(pp_handle_t *handle, bool frees);
/* Tells the others what this rank's device does not use any more, and puts the memory of vaults that no device does. */
void        pp_vaults_look(pp_ctx_t *ctx);
/* The context ends, on all ranks or with its process. */
void        pp_vaults_end(pp_ctx_t *ctx);

#endif
