/* kept.c - see kept.h. */
#include "kept.h"
#include "../cuda/disposal.h"
#include "../node/board.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef struct pp_kept {
    struct pp_kept *next;
    pp_board_t      board;           /* of no memory, if the rounds were made of messages */
    _Atomic bool    given_back;
} pp_kept_t;

static void say_given_back(const pp_cuda_device_t *device, uint64_t kept)
{
    (void)device;
    atomic_store(&((pp_kept_t *)(uintptr_t)kept)->given_back, true);
}

/* There is no one left who could unmap it. */
static void keep_mapped(const pp_ctx_t *ctx)
{
    if (ctx->node.memory)
        pp_shared_use(ctx->node.memory);
}

void pp_kept_begin(pp_handle_t *handle, bool frees)
{
    pp_ctx_t  *ctx = pp_ctx_of(handle);
    pp_kept_t *kept = calloc(1, sizeof *kept);
    if (kept)
        pp_allreduce_of(handle)->takes_board = &kept->board;
    if (!kept || !frees) {           /* nobody ends it */
        keep_mapped(ctx);
        return;
    }
    kept->next = ctx->kept;
    ctx->kept = kept;
    pp_dispose(&handle->staging->lane.device, say_given_back, (uint64_t)(uintptr_t)kept);
}

void pp_kept_look(pp_ctx_t *ctx)
{
    for (pp_kept_t *kept, **link = &ctx->kept; (kept = *link);) {
        if (!atomic_load(&kept->given_back)) {
            link = &kept->next;
            continue;
        }
        *link = kept->next;
        pp_board_end(&kept->board);
        free(kept);
    }
}

void pp_kept_end(pp_ctx_t *ctx)
{
    pp_kept_look(ctx);
    if (ctx->kept)
        keep_mapped(ctx);
}
