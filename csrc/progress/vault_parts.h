/* vault_parts.h - a vault's parts, for meeting.c and the vault's own files. */
#ifndef PP_VAULT_PARTS_H
#define PP_VAULT_PARTS_H

#include "device_kind.h"
#include "vault.h"

#define PP_VAULT_CALL(vault, name, ...) PP_CUDA((vault)->device.cuda, name, __VA_ARGS__)

enum { PP_VAULT_WHY_BYTES = 176 };

/* ---- what the ranks tell each other ------------------------------------------------------------------------- */

/* How far a rank has got, with PP_REFUSES if it does not take part.  Each waits at each stage for all others. */
enum { PP_OFFERED = 1, PP_OPENED, PP_SETTLED, PP_LEFT, PP_STAGE = 0xff, PP_REFUSES = 0x100 };

/* In the memory of the node, one for each rank.  Its owner writes it before it sets `state`. */
typedef struct pp_offer {
    _Alignas(64) _Atomic uint32_t state;
    char         why[PP_VAULT_WHY_BYTES];     /* it refuses */
    CUipcMemHandle memory;
} pp_offer_t;

struct pp_device_vault {
    const pp_vault_use_t *use;
    pp_device_vault_t *next;               /* of the context's */
    pp_ctx_t          *ctx;
    /* As find() has found them. */
    pp_node_t         *node;
    int32_t            ranks, index;       /* of the node; this rank's there */
    pp_offer_t        *offers;             /* in the memory of the node, by rank */
    size_t             vector_bytes;
    int32_t            op, type;
    size_t             count;              /* elements */

    uint32_t           stage;              /* of this rank */
    bool               meets, in_use;
    /* What a thread of its own does; NULL: nothing.  The context may end meanwhile: a job uses nothing of it, nor of the
       handle but `staging`, which is kept for that. */
    pp_status_t      (*job)(pp_device_vault_t *);
    _Atomic bool       job_over;           /* `job_status` and `why`, its error, are there */
    pp_status_t        job_status;
    pp_staging_t      *staging;            /* the handle's; jobs of the meeting use it */
    CUipcMemHandle     mine, *theirs;      /* what this rank offers, and copies of what all do, for such jobs */
    char               refusal[PP_VAULT_WHY_BYTES + 32];       /* why there is no such memory; "": there is */
    char               why[PP_VAULT_WHY_BYTES];
    pp_cuda_pool_t    *pool;
    pp_cuda_device_t   device;             /* the pool's */
    pp_folds_t        *folds;
    CUstream           work, folding;      /* of operations that this rank waits for; of folds and averages */
    CUevent            folded;
    CUdeviceptr       *bases;              /* by rank: its allocation, as mapped here; 0: not mapped */
    pp_pinned_t       *receive;            /* a bounce buffer that the handle will need */
    size_t             stride;             /* of vectors in an allocation */
    pp_device_failure_t failure;           /* of an operation that returned nothing */
};

/* What a vault is used for: rounds (vault_rounds.c), or groups (vault_groups.c). */
struct pp_vault_use {
    size_t       bytes;                    /* of an object that begins with a pp_device_vault_t */
    /* The ranks have agreed on the handle: finds what the vault has to know of it.  Returns why it cannot have one, on any
       rank; or NULL. */
    const char *(*find)(pp_handle_t *, pp_device_vault_t *);
    /* How many vectors a rank's allocation has. */
    size_t     (*vectors)(const pp_device_vault_t *, int32_t rank);
    /* Makes what is needed besides, before this rank offers its memory. */
    pp_status_t (*make)(pp_device_vault_t *);
    /* The memory of all ranks is mapped: does the last that may fail.  Without the lock. */
    pp_status_t (*fill)(pp_device_vault_t *);
    /* From now on the handle's vectors are there. */
    void       (*change_over)(pp_handle_t *, pp_device_vault_t *);
    /* The handle is released: it forgets its vectors there, or releases them.  NULL: it has none. */
    void       (*leave)(pp_handle_t *, pp_device_vault_t *, bool frees);
    /* Frees what make() has made. */
    void       (*unmake)(pp_device_vault_t *);
    /* No rank uses the vault any more: gives the memory of the node back. */
    void       (*end)(pp_device_vault_t *);
};

static inline void *pp_vault_pointer(CUdeviceptr address) { return (void *)(uintptr_t)address; }
/* A vector of a rank's allocation, as mapped here. */
static inline CUdeviceptr pp_vault_vector(const pp_device_vault_t *vault, int32_t rank, size_t number)
{
    return vault->bases[rank] + number * vault->stride;
}

/* Says what this rank has come to, at a stage; the text of a refusal is that of the last error. */
void pp_vault_say(pp_device_vault_t *vault, uint32_t stage, pp_status_t status);
/* Whether all ranks are at the stage. */
bool pp_vault_all_at(const pp_device_vault_t *vault, uint32_t stage);
/* Folds or averages were queued on `folding`; whether they are over.  None were under way. */
pp_status_t pp_vault_folding(pp_device_vault_t *vault);
pp_status_t pp_vault_folded(pp_device_vault_t *vault);
/* Has a thread of its own do something for which the driver may wait.  Nobody else uses meanwhile what that does. */
void pp_vault_begin(pp_device_vault_t *vault, pp_status_t (*job)(pp_device_vault_t *));
/* PP_PENDING: a job is not over.  Else there is none any more, and this is what the last one came to. */
pp_status_t pp_vault_job(pp_device_vault_t *vault);
/* Puts what was made for it back to the pool. */
void pp_vault_put(pp_device_vault_t *vault);

#endif
