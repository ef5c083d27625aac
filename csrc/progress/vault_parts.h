/* vault_parts.h - a vault's parts, for vault.c and meeting.c. */
#ifndef PP_VAULT_PARTS_H
#define PP_VAULT_PARTS_H

#include "vault.h"

#define PP_VAULT_CALL(vault, name, ...) PP_CUDA((vault)->device.cuda, name, __VA_ARGS__)

enum { PP_VAULT_WHY_BYTES = 176 };

/* ---- what the ranks tell each other ------------------------------------------------------------------------- */

/* How far a rank has got, with PP_REFUSES if it does not take part.  Each waits at each stage for all others. */
enum { PP_OFFERED = 1, PP_OPENED, PP_SETTLED, PP_CLOSED, PP_STAGE = 0xff, PP_REFUSES = 0x100 };

/* In the memory of the node, one for each rank.  Its owner writes it before it sets `state`. */
typedef struct pp_offer {
    _Alignas(64) _Atomic uint32_t state;
    char           why[PP_VAULT_WHY_BYTES];   /* it refuses */
    CUipcMemHandle memory;
} pp_offer_t;

struct pp_device_vault {
    pp_memory_t        memory, users;      /* kinds of this handle's memory: of vectors, of bounce buffers */
    pp_vault_t         places;
    pp_device_vault_t *next;               /* of the context's */
    pp_ctx_t          *ctx;
    pp_board_t         board;              /* to be ended with the vault */
    uint32_t           stage;              /* of this rank */
    bool               meets, in_use;
    char               why[PP_VAULT_WHY_BYTES + 32];
    pp_cuda_device_t   device;
    pp_folds_t        *folds;
    CUstream           work, folding;      /* of operations that this rank waits for; of folds */
    CUevent            folded;
    CUdeviceptr       *bases;              /* by rank: its allocation, as mapped here; 0: not mapped */
    CUdeviceptr       *sources;            /* of a fold */
    pp_pinned_t       *receive;            /* the bounce buffer of the first result */
    size_t             stride;
    _Atomic bool       failed;             /* an operation that returned nothing */
    char               failure[256];
};

extern const pp_memory_t pp_vault_kind;

static inline void *pp_vault_pointer(CUdeviceptr address) { return (void *)(uintptr_t)address; }
static inline pp_offer_t *pp_vault_offer(const pp_device_vault_t *vault, int32_t rank)
{
    return pp_board_offer(&vault->board, rank);
}

/* Says what this rank has come to, at a stage; the text of a refusal is that of the last error. */
void pp_vault_say(pp_device_vault_t *vault, uint32_t stage, pp_status_t status);
/* Whether all ranks are at the stage. */
bool pp_vault_all_at(const pp_device_vault_t *vault, uint32_t stage);
/* Closes what this rank has opened, but its own memory, which others may have mapped; errors have no one to hear them. */
void pp_vault_close(pp_device_vault_t *vault);
/* Frees that, too: no other rank has it mapped. */
void pp_vault_free_own(pp_device_vault_t *vault);

#endif
