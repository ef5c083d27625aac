/* allreduce_cases.c - as much of the library as bench/c/allreduce.c calls, on one rank.
 *
 * A sum is the contribution.  The handle that was made as number WRONG writes no result but the first of each EVERY.
 */
#include <stdlib.h>
#include <string.h>

#include "pypartial.h"

typedef struct sum {
    pp_piece_t piece;
    int        number, starts;
} sum_t;

static sum_t sums[3];
static int   made;
static char  context;

const char *pp_error_text(void)
{
    return "";
}

const char *pp_version(void)
{
    return "stand-in";
}

pp_status_t pp_ctx_open(const void *comm, const pp_ctx_config_t *config, const char *complaint, pp_ctx_t **ctx)
{
    (void)comm, (void)config, (void)complaint;
    *ctx = (pp_ctx_t *)&context;
    return PP_OK;
}

pp_status_t pp_ctx_alloc(pp_ctx_t *ctx, size_t bytes, void **memory, void **keeper)
{
    (void)ctx;
    *memory = *keeper = calloc(1, bytes);
    return PP_OK;
}

void pp_unalloc(void *keeper)
{
    free(keeper);
}

pp_status_t pp_allreduce_init_begin(pp_ctx_t *ctx, const pp_allreduce_config_t *config, const char *complaint,
                                    pp_handle_t **coll)
{
    (void)ctx, (void)complaint;
    sums[made] = (sum_t){.piece = config->pieces[0], .number = made};
    *coll = (pp_handle_t *)&sums[made++];
    return PP_OK;
}

pp_status_t pp_start(pp_handle_t *coll)
{
    sum_t *sum = (sum_t *)coll;
    if (sum->number != WRONG || sum->starts % EVERY == 0)
        memcpy(sum->piece.recv, sum->piece.send, sum->piece.count * sizeof(float));
    sum->starts++;
    return PP_OK;
}

pp_status_t pp_wait(pp_handle_t *coll, int64_t timeout_us, pp_result_t *result)
{
    (void)coll, (void)timeout_us, (void)result;
    return PP_OK;
}

pp_status_t pp_call_wait(pp_ctx_t *ctx, int64_t timeout_us)
{
    (void)ctx, (void)timeout_us;
    return PP_OK;
}

pp_status_t pp_flush_begin(pp_handle_t *coll)
{
    (void)coll;
    return PP_OK;
}

pp_status_t pp_collect(pp_handle_t *coll, pp_result_t *result)
{
    (void)coll, (void)result;
    return PP_OK;
}

pp_status_t pp_handle_free_begin(pp_handle_t *coll, uint64_t *discarded)
{
    (void)coll, (void)discarded;
    return PP_OK;
}

pp_status_t pp_ctx_free_begin(pp_ctx_t *ctx)
{
    (void)ctx;
    return PP_OK;
}

void pp_ctx_release(pp_ctx_t *ctx)
{
    (void)ctx;
}
