/* api_sight.c - the public functions on reports and traces: the lock.  See include/pypartial_sight.h. */
#include "progress/sight.h"

#include <string.h>

/* Another rank may be writing its newest sample, in the place of its oldest: that one is left out. */
static void copy_row(pp_row_t *to, const pp_row_t *from)
{
    const uint64_t before = __atomic_load_n(&from->samples, __ATOMIC_ACQUIRE);
    memcpy(to, from, sizeof *to);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    const uint64_t after = __atomic_load_n(&from->samples, __ATOMIC_RELAXED);
    to->samples = before;
    for (uint64_t i = before; i <= after; i++)
        to->sample[i % PP_SAMPLES].start_ns = 0;
}

int32_t pp_ctx_rows(pp_ctx_t *ctx, pp_row_t *rows, int32_t *ranks, int32_t most)
{
    if (pp_lock(ctx) < 0)
        return 0;
    const pp_row_t *all = ctx->node.rows;
    int32_t         count = !ctx->sight.row ? 0 : all ? ctx->node.size : 1;
    for (int32_t i = 0; i < count && i < most; i++) {
        copy_row(&rows[i], all ? &all[i] : ctx->sight.row);
        ranks[i] = !all ? ctx->engine.rank : ctx->nodes ? pp_nodes_rank(ctx->nodes, ctx->nodes->mine, i) : i;
    }
    pp_unlock(ctx);
    return count;
}

void pp_ctx_report_every(pp_ctx_t *ctx, uint64_t ns)
{
    ctx->sight.every_ns = ns;
    ctx->sight.due_ns = pp_engine_now(&ctx->engine) + ns;
}

pp_status_t pp_trace_begin(pp_ctx_t *ctx, pp_trace_head_t *head)
{
    PP_TRY(pp_lock(ctx));
    pp_status_t status = ctx->sight.trace ? pp_fail(PP_ERR_STATE, "the context has a trace already") : PP_OK;
    if (status >= 0) {
        pp_trace_keep(ctx, head);
    }
    pp_unlock(ctx);
    return status;
}

/* Also of a context that has failed, or is over. */
void pp_trace_tell(pp_ctx_t *ctx, int32_t kind, int32_t a, int32_t b)
{
    pthread_mutex_lock(&ctx->lock);
    pp_sight_tell(ctx, kind, a, b);
    pthread_mutex_unlock(&ctx->lock);
}
