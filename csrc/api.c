/* api.c - the public functions on contexts and handles: argument checks, the lock, nothing else. */
#include "algo/choose.h"
#include "progress/context.h"

#include <stdlib.h>
#include <string.h>

enum {
    SMALL_COPY_BYTES = 65536,    /* copied under the lock: taking it twice would cost more */
    START_MOVES_BYTES = 262144,  /* of a vector whose reduction Start may do itself */
    BRIEF_COPY_BYTES = 262144    /* copied while attending: waking the progress thread would cost more */
};

/* Ranks that are in one collective call for so long make sure that it is the same one. */
static const uint64_t CHECK_ORDER_NS = 2000000000;

static void unlock(pp_ctx_t *ctx) { pthread_mutex_unlock(&ctx->lock); }

/* Locks a context that may be used. */
static pp_status_t enter(pp_ctx_t *ctx)
{
    PP_TRY(pp_ctx_usable(ctx));
    pthread_mutex_lock(&ctx->lock);
    pp_status_t status = pp_engine_check(&ctx->engine);
    if (status < 0)
        unlock(ctx);
    return status;
}

/* The context of a handle whose initialisation has finished. */
static pp_ctx_t *context_of(pp_coll_t *coll)
{
    return coll && coll->calls ? (pp_ctx_t *)((char *)coll->calls - offsetof(pp_ctx_t, calls)) : NULL;
}

static pp_status_t enter_coll(pp_coll_t *coll, pp_ctx_t **ctx)
{
    *ctx = context_of(coll);
    if (!*ctx)
        return pp_fail(PP_ERR_STATE, "the handle was freed, or its initialisation has not finished");
    return enter(*ctx);
}

/* ---- contexts --------------------------------------------------------------------------------------------- */

int32_t pp_ctx_rank(const pp_ctx_t *ctx) { return ctx->engine.rank; }
int32_t pp_ctx_size(const pp_ctx_t *ctx) { return ctx->engine.size; }

int32_t pp_ctx_link(const pp_ctx_t *ctx)
{
    bool one_node = !ctx->mpi || pp_mpi_neighbours(ctx->mpi) == ctx->engine.size;
    return one_node ? PP_LINK_NODE : PP_LINK_NETWORK;
}

pp_status_t pp_ctx_tune(pp_ctx_t *ctx, const pp_tuned_t *tuned, size_t tuned_count)
{
    PP_TRY(pp_tuned_check(tuned, tuned_count));
    PP_TRY(enter(ctx));
    pp_tuned_t *copy = calloc(tuned_count + 1, sizeof *copy);
    if (copy) {
        if (tuned_count)
            memcpy(copy, tuned, tuned_count * sizeof *copy);
        free(ctx->calls.tuned);
        ctx->calls.tuned = copy;
        ctx->calls.tuned_count = tuned_count;
    }
    unlock(ctx);
    return copy ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for %zu entries of a tuning table", tuned_count);
}

/* After the beginning of a collective call. */
static void began(pp_ctx_t *ctx, pp_status_t status)
{
    pp_transport_t *transport = ctx->engine.transport;
    if (status >= 0) {
        ctx->call_began_ns = transport->ops->now_ns(transport);
        ctx->order_checked = false;
    }
    pp_engine_settle(&ctx->engine);
}

pp_status_t pp_ctx_free_begin(pp_ctx_t *ctx)
{
    PP_TRY(enter(ctx));
    pp_status_t status = pp_calls_begin_ctx_free(&ctx->calls);
    began(ctx, status);
    unlock(ctx);
    return status;
}

/* An abandoned context still has to tell its peers at MPI_Finalize, which then releases it. */
void pp_ctx_release(pp_ctx_t *ctx)
{
    if (!ctx || !ctx->freed)
        return;
    free(ctx);
}

static bool call_finished(const void *calls) { return ((const pp_calls_t *)calls)->finished; }

static pp_status_t collect_call(pp_ctx_t *ctx)
{
    pp_call_kind_t kind = ctx->calls.kind;
    pp_status_t status = ctx->calls.status;
    ctx->calls.kind = PP_CALL_NONE;
    if (kind == PP_CALL_FREE && status == PP_OK)
        *ctx->calls.discarded_out = ctx->calls.discarded;
    if (status < 0)
        pp_fail(status, "%s", ctx->calls.text);
    unlock(ctx);
    if (kind == PP_CALL_CTX_FREE && status == PP_OK && ctx->mpi)
        return pp_ctx_close_mpi(ctx);
    return status;
}

/* Ranks that are in different collective calls would wait for ever: asks once, after the time that ranks
   which are merely late take. */
static void check_order(pp_ctx_t *ctx)
{
    pp_transport_t *transport = ctx->engine.transport;
    uint64_t        now = transport->ops->now_ns(transport);
    if (ctx->order_checked || now - ctx->call_began_ns < CHECK_ORDER_NS)
        return;
    ctx->order_checked = true;
    pp_ask_order(&ctx->calls);
    pp_engine_settle(&ctx->engine);
}

pp_status_t pp_call_wait(pp_ctx_t *ctx, int64_t timeout_us)
{
    PP_TRY(enter(ctx));
    if (ctx->calls.kind == PP_CALL_NONE) {
        unlock(ctx);
        return pp_fail(PP_ERR_STATE, "no collective call of this context is in progress");
    }
    pp_status_t status = pp_help_until(ctx, call_finished, &ctx->calls, timeout_us, NULL);
    if (status == PP_OK)
        return collect_call(ctx);
    if (status == PP_PENDING)
        check_order(ctx);
    unlock(ctx);
    return status;
}

static uint64_t buffer_bytes(const pp_engine_t *engine)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < engine->series_count; i++) {
        const pp_series_t *series = engine->series[i];
        if (series)
            bytes += series->vectors.made * series->vectors.bytes
                   + series->scratches.made * series->scratches.bytes;
    }
    return bytes;
}

const char *pp_ctx_note(pp_ctx_t *ctx)
{
    const char *note = NULL;
    if (pp_ctx_usable(ctx) < 0)
        return NULL;
    pthread_mutex_lock(&ctx->lock);
    const char *apart = ctx->mpi && !ctx->path_forced ? pp_mpi_apart(ctx->mpi) : NULL;
    if (apart && !ctx->told_apart) {
        ctx->told_apart = true;
        snprintf(ctx->note, sizeof ctx->note, "rounds are made of messages, not in shared memory: %s", apart);
        note = ctx->note;
    } else if (ctx->engine.refused_bytes > 0 && !ctx->told_refused) {
        ctx->told_refused = true;
        snprintf(ctx->note, sizeof ctx->note, "the rounds of a handle are made of messages: the memory that the "
                 "ranks of the node share has no room for the %llu bytes that it needs at most",
                 (unsigned long long)ctx->engine.refused_bytes);
        note = ctx->note;
    }
    pthread_mutex_unlock(&ctx->lock);
    return note;
}

void pp_ctx_stats(pp_ctx_t *ctx, pp_stats_t *stats)
{
    *stats = (pp_stats_t){.thread_level = -1};
    if (pp_ctx_usable(ctx) < 0)
        return;
    pthread_mutex_lock(&ctx->lock);
    const pp_transport_t *transport = ctx->engine.transport;
    *stats = (pp_stats_t){
        .rounds = ctx->engine.rounds, .shared_rounds = ctx->engine.shared_rounds,
        .shared_led = ctx->engine.shared_led, .shares_memory = ctx->engine.node != NULL,
        .messages_sent = transport->messages_sent,
        .messages_received = transport->messages_received, .bytes_sent = transport->bytes_sent,
        .bulk_sent = transport->bulk_sent, .rings = transport->rings,
        .sleeps = ctx->sleeps, .unheard = ctx->unheard,
        .progress_cpu_ns = pp_thread_cpu_ns(ctx), .buffer_bytes = buffer_bytes(&ctx->engine),
        .neighbours = ctx->mpi ? pp_mpi_neighbours(ctx->mpi) : ctx->engine.size,
        .thread_level = ctx->mpi ? pp_mpi_thread_level(ctx->mpi) : -1,
    };
    unlock(ctx);
}

/* ---- memory of the node ------------------------------------------------------------------------------------ */

/* What keeps an array alive: the memory of the node, or, if there is none, memory of our own. */
typedef struct keeper {
    pp_shared_t *shared;
    size_t       offset, bytes;
    void        *own;
} keeper_t;

static bool alloc_kept(pp_ctx_t *ctx, keeper_t *keeper, void **memory)
{
    pp_node_t *node = ctx->engine.node;
    if (!node || !node->memory) {
        keeper->own = *memory = pp_alloc_aligned(keeper->bytes);
        if (*memory)
            memset(*memory, 0, keeper->bytes);
        return *memory;
    }
    *memory = pp_node_alloc(node, keeper->bytes);
    if (!*memory)
        return false;
    keeper->offset = (size_t)((char *)*memory - node->base);
    keeper->shared = pp_shared_use(node->memory);
    return true;
}

pp_status_t pp_ctx_alloc(pp_ctx_t *ctx, size_t bytes, void **memory, void **out)
{
    *memory = *out = NULL;
    PP_TRY(enter(ctx));
    keeper_t *keeper = calloc(1, sizeof *keeper);
    pp_status_t status = PP_OK;
    if (keeper)
        keeper->bytes = bytes;
    if (!keeper || !alloc_kept(ctx, keeper, memory)) {
        free(keeper);
        status = pp_fail(PP_ERR_MEMORY, "no shared memory for an array of %zu bytes", bytes);
    } else {
        *out = keeper;
    }
    unlock(ctx);
    return status;
}

void pp_unalloc(void *kept)
{
    keeper_t *keeper = kept;
    if (!keeper)
        return;
    if (keeper->shared && keeper->bytes)
        pp_shared_uncommit(keeper->shared, keeper->offset, keeper->bytes);
    pp_shared_drop(keeper->shared);
    free(keeper->own);
    free(keeper);
}

/* ---- handles ------------------------------------------------------------------------------------------------ */

static pp_status_t check_config(const pp_ctx_t *ctx, const pp_allreduce_config_t *config)
{
    const pp_allreduce_config_t *c = config;
    if (!c)
        return pp_fail(PP_ERR_ARGUMENT, "config is NULL");
    if (!pp_op_supports(c->op, c->type))
        return pp_fail(PP_ERR_ARGUMENT, "operation %s is not defined on %s", pp_op_name(c->op),
                       pp_type_name(c->type));
    if (c->policy < 0 || c->policy >= PP_POLICY_COUNT)
        return pp_fail(PP_ERR_ARGUMENT, "policy=%d is unknown", c->policy);
    if (c->policy_k < 1 || c->policy_k > ctx->engine.size)
        return pp_fail(PP_ERR_ARGUMENT, "k=%d of the policy is not in 1..%d", c->policy_k,
                       ctx->engine.size);
    if (c->deliver < 0 || c->deliver >= PP_DELIVER_COUNT)
        return pp_fail(PP_ERR_ARGUMENT, "deliver=%d is unknown", c->deliver);
    if (c->max_lag < 0 && c->deliver != PP_LATEST)
        return pp_fail(PP_ERR_ARGUMENT, "max_lag=%d: only deliver=\"latest\" can be unbounded",
                       c->max_lag);
    if (c->max_lag >= ctx->calls.window)
        return pp_fail(PP_ERR_ARGUMENT, "max_lag=%d needs a window of at least %d, and it is %d",
                       c->max_lag, c->max_lag + 1, ctx->calls.window);
    if (c->algorithm < 0 || c->algorithm >= PP_SHARED_MEMORY)
        return pp_fail(PP_ERR_ARGUMENT, "algorithm=%d is unknown", c->algorithm);
    if (c->segments < 0 || c->segments > PP_LANES_MAX)
        return pp_fail(PP_ERR_ARGUMENT, "segments=%d is not in 0..%d", c->segments, PP_LANES_MAX);
    if (c->average < PP_AVERAGE_NONE || c->average > PP_AVERAGE_CONTRIBUTIONS)
        return pp_fail(PP_ERR_ARGUMENT, "average=%d is unknown", c->average);
    return PP_OK;
}

static pp_status_t check_average(const pp_allreduce_config_t *config)
{
    pp_kernels_t kernels;
    PP_TRY(pp_kernels_find(config->op, config->type, &kernels));
    if (config->average != PP_AVERAGE_NONE && (config->op != PP_SUM || !kernels.divide))
        return pp_fail(PP_ERR_ARGUMENT, "an average is a SUM of a floating type, not %s of %s",
                       pp_op_name(config->op), pp_type_name(config->type));
    return PP_OK;
}

pp_status_t pp_allreduce_init_begin(pp_ctx_t *ctx, const pp_allreduce_config_t *config,
                                    const char *complaint, pp_coll_t **out)
{
    *out = NULL;
    PP_TRY(enter(ctx));
    /* A bad argument found here is agreed upon like one that the caller found. */
    if (!complaint && (check_config(ctx, config) < 0 || check_average(config) < 0))
        complaint = pp_error_text();
    pp_coll_t *coll = NULL;
    if (!complaint && pp_coll_new(config, &coll) < 0)
        complaint = pp_error_text();
    pp_status_t status = complaint ? pp_coll_new(NULL, &coll) : PP_OK;
    ctx->calls.link = pp_ctx_link(ctx);
    if (status >= 0)
        status = pp_calls_begin_init(&ctx->calls, config, complaint, coll);
    if (status < 0)
        pp_coll_free(coll);
    else
        *out = coll;
    began(ctx, status);
    unlock(ctx);
    return status;
}

uint64_t pp_sim_requested_at(const pp_coll_t *coll) { return coll->request.at; }

pp_status_t pp_sim_allreduce(pp_ctx_t *ctx, const pp_allreduce_config_t *config, pp_coll_t **coll)
{
    *coll = NULL;
    PP_TRY(enter(ctx));
    pp_status_t status = ctx->mpi ? pp_fail(PP_ERR_STATE, "the context's ranks are not simulated") : PP_OK;
    if (status >= 0)
        status = check_config(ctx, config);
    if (status >= 0)
        status = check_average(config);
    if (status >= 0)
        status = pp_calls_agreed_init(&ctx->calls, config, coll);
    pp_engine_settle(&ctx->engine);
    unlock(ctx);
    return status;
}

/* Copies the user's elements to `to`, or combines them with what is there. */
static void gather(const pp_coll_t *coll, char *to, bool combine)
{
    const pp_kernels_t *kernels = &coll->series.kernels;
    char *at = to;
    for (size_t i = 0; i < coll->config.piece_count; i++) {
        const pp_piece_t *piece = &coll->config.pieces[i];
        const void *from = piece->send ? piece->send : piece->recv;
        if (combine)
            pp_load_combined(kernels, at, from, piece->count);
        else if (coll->combine && !kernels->load && piece->count > 0)
            pp_move_copy(&coll->combine->board, at, from, piece->count * kernels->element_bytes);
        else
            pp_load(kernels, at, from, piece->count);
        at += piece->count * kernels->element_bytes;
    }
    if (!combine && kernels->normalise)
        kernels->normalise(to, coll->count);
}

/* A large contribution to an empty slot, copied with the lock released: only this thread links
   contributions, so the slot is still empty afterwards. */
static pp_buffer_t *copy_aside(pp_ctx_t *ctx, pp_coll_t *coll)
{
    pp_buffer_t *buffer = pp_pool_get(&coll->series.vectors);
    if (!buffer)
        return NULL;
    unlock(ctx);
    gather(coll, buffer->data, false);
    pthread_mutex_lock(&ctx->lock);
    return buffer;
}

/* While a contribution is copied that takes long, messages are the progress thread's. */
static bool copies_long(const pp_coll_t *coll)
{
    return coll->series.vectors.bytes > BRIEF_COPY_BYTES;
}

/* Adds the user's elements to the slot. */
static pp_status_t contribute(pp_ctx_t *ctx, pp_coll_t *coll)
{
    pp_pool_t *pool = &coll->series.vectors;
    if (coll->slot.buffer) {
        bool lost = ctx->engine.plant == PP_PLANT_LOST_START && pp_coll_withholds(coll);
        gather(coll, coll->slot.buffer->data, !lost);
        return PP_OK;
    }
    bool large = pool->bytes > SMALL_COPY_BYTES;
    pp_buffer_t *buffer = large ? copy_aside(ctx, coll) : pp_pool_get(pool);
    if (!buffer)
        return pp_fail(PP_ERR_MEMORY, "no memory for a contribution of %zu bytes", pool->bytes);
    if (!large)
        gather(coll, buffer->data, false);
    coll->slot.buffer = buffer;
    return PP_OK;
}

/* A part that is free, or one to add to; while a round reads all of them, this rank works at it. */
static pp_status_t find_part(pp_ctx_t *ctx, pp_coll_t *coll, int32_t *part, void **elements, bool *merges)
{
    pp_status_t status;
    *merges = false;
    while ((status = pp_combine_part(coll, part, elements)) == PP_PENDING && !ctx->engine.error) {
        *elements = pp_combine_merge(coll, part);
        *merges = *elements != NULL;
        if (*merges)
            return PP_OK;
        if (!pp_work(ctx, NULL))
            pp_make_way(ctx);
        pp_look(ctx);
    }
    return status == PP_PENDING ? pp_engine_check(&ctx->engine) : status;
}

/* In the node's memory: this rank's part is linked, and a round that it brings about is run. */
static pp_status_t start_combined(pp_ctx_t *ctx, pp_coll_t *coll)
{
    void   *elements;
    int32_t part;
    bool    large = coll->combine->board.vector_bytes > SMALL_COPY_BYTES, merges;
    pp_combine_end_view(coll);
    PP_TRY(find_part(ctx, coll, &part, &elements, &merges));
    if (elements && large)
        unlock(ctx);
    if (elements)
        gather(coll, elements, merges);
    if (elements && large)
        pthread_mutex_lock(&ctx->lock);
    if (merges)
        pp_combine_merged(coll, part);
    else
        pp_combine_start(coll, part);
    pp_combine_settle(coll);
    if (coll->combine->board.vector_bytes <= START_MOVES_BYTES && coll->request.state == PP_OUTSTANDING)
        pp_work(ctx, NULL);
    return PP_OK;
}

/* The leader's messages are as those of start_messages(), and what they need afterwards. */
static pp_status_t start_between(pp_ctx_t *ctx, pp_coll_t *coll)
{
    pp_returned(ctx);
    bool arrived = pp_arrive(ctx);
    pp_look(ctx);
    pp_status_t status = start_combined(ctx, coll);
    if (arrived)
        pp_leave(ctx, true);
    return status;
}

static pp_status_t start_messages(pp_ctx_t *ctx, pp_coll_t *coll)
{
    pp_returned(ctx);
    bool arrived = !copies_long(coll) && pp_arrive(ctx);
    /* What has arrived already is served first.  Not between contribute() and pp_coll_started(): a
       take there would find elements that are not counted yet. */
    pp_look(ctx);
    pp_status_t status = contribute(ctx, coll);
    if (status >= 0) {
        arrived = arrived || pp_arrive(ctx);
        pp_coll_started(coll);
        pp_engine_settle(&ctx->engine);
    }
    if (arrived)
        pp_leave(ctx, true);
    return status;
}

pp_status_t pp_start(pp_coll_t *coll)
{
    pp_ctx_t *ctx;
    PP_TRY(enter_coll(coll, &ctx));
    pp_status_t status;
    if (coll->request.state != PP_IDLE)
        status = pp_fail(PP_ERR_STATE, "Start on a request that was not collected: call Wait, or Test "
                         "until it returns True, first");
    else if (ctx->calls.kind != PP_CALL_NONE)
        status = pp_fail(PP_ERR_STATE, "Start inside a collective call of the context");
    else
        status = !coll->combine      ? start_messages(ctx, coll)
               : ctx->engine.nodes ? start_between(ctx, coll)
                                   : start_combined(ctx, coll);
    unlock(ctx);
    return status;
}

static bool request_complete(const void *coll)
{
    return ((const pp_coll_t *)coll)->request.state == PP_COMPLETE;
}

/* A Wait without a Start gives what was not given yet. */
static pp_status_t give_without_start(pp_coll_t *coll)
{
    if (coll->request.state != PP_IDLE)
        return PP_OK;
    coll->request.at = coll->completed;
    if (!coll->ungiven)
        return pp_fail(PP_ERR_STATE, "nothing was started and there is nothing to give: call Start first");
    coll->request.start = 0;
    coll->request.missed = 0;
    pp_deliver_complete_request(coll);
    return PP_OK;
}

/* Where a result may be read without being copied; `elements` is NULL if it has to be. */
typedef struct pp_view_out {
    pp_coll_t  *coll;
    const void *elements;
    keeper_t   *keeper;
} pp_view_out_t;

/* Takes the request's result away: nobody else has it then. */
static pp_entry_t *take_entry(pp_coll_t *coll)
{
    pp_entry_t *entry = coll->request.entry;
    coll->request.entry = NULL;
    coll->request.state = PP_IDLE;
    return entry;
}

/* The application gets sendbuf back, if rounds read it where it is. */
static pp_status_t return_sendbuf(pp_ctx_t *ctx, pp_coll_t *coll, bool large)
{
    for (bool returned = false; !returned;) {
        if (large)
            unlock(ctx);
        returned = pp_combine_return_users(coll);
        if (large)
            pthread_mutex_lock(&ctx->lock);
        if (!returned && !pp_work(ctx, NULL))
            pp_make_way(ctx);
        PP_TRY(pp_engine_check(&ctx->engine));
    }
    return PP_OK;
}

/* The memory that a view is in stays mapped as long as the view is kept. */
static bool keep_view(pp_ctx_t *ctx, pp_view_out_t *view)
{
    keeper_t *keeper = calloc(1, sizeof *keeper);
    if (!keeper) {
        pp_combine_end_view(view->coll);
        view->elements = NULL;
        return false;
    }
    if (ctx->engine.node->memory)
        keeper->shared = pp_shared_use(ctx->engine.node->memory);
    view->keeper = keeper;
    return true;
}

/* False: the place that the result had in the node's memory was used again, for a later round. */
static bool copy_out(pp_ctx_t *ctx, pp_coll_t *coll, const pp_entry_t *entry, pp_view_out_t *view)
{
    if (view && coll->combine && (view->elements = pp_combine_view(coll, entry)) && keep_view(ctx, view))
        return true;
    if (entry->place != PP_NOWHERE)
        return pp_combine_copy_out(coll, entry);
    pp_deliver_copy_out(coll, entry);
    return true;
}

/* Copies with the lock released if that takes long.  NULL: the result was overwritten, and a failure keeps newer
   ones away. */
static pp_entry_t *copy_newest(pp_ctx_t *ctx, pp_coll_t *coll, bool large, pp_view_out_t *view)
{
    for (;;) {
        pp_entry_t *entry = take_entry(coll);
        if (coll->combine)
            pp_combine_begin_copy(coll, entry);
        if (large)
            unlock(ctx);
        bool copied = copy_out(ctx, coll, entry, view);
        if (large)
            pthread_mutex_lock(&ctx->lock);
        if (coll->combine)
            pp_combine_end_copy(coll);
        if (copied)
            return entry;
        pp_entry_free(coll, entry);
        pp_look(ctx);
        if (!coll->ungiven)
            return NULL;
        pp_deliver_complete_request(coll);
    }
}

/* Hands the request's result out.  Called with the lock, returns without it. */
static pp_status_t hand_out(pp_ctx_t *ctx, pp_coll_t *coll, pp_result_t *result, pp_view_out_t *view)
{
    bool        large = coll->series.vectors.bytes > SMALL_COPY_BYTES;
    pp_combine_end_view(coll);
    pp_status_t status = coll->combine ? return_sendbuf(ctx, coll, large) : PP_OK;
    if (status >= 0) {
        pp_entry_t *entry = copy_newest(ctx, coll, large, view);
        if (!entry && (status = pp_engine_check(&ctx->engine)) >= 0)
            status = pp_fail(PP_ERR_INTERNAL, "handle %u: a result is gone, and there is none after it",
                             coll->series.id);
        else if (entry && result)
            pp_deliver_describe(coll, entry, coll->request.start, coll->request.missed, result);
        pp_entry_free(coll, entry);
        if (coll->combine)
            pp_combine_end_landing(coll);
        if (coll->combine && pp_combine_given(coll))
            pp_engine_settle(&ctx->engine);
    }
    unlock(ctx);
    return status;
}

/* What is complete is handed out at once: no message helps it along, and the progress thread is woken for those
   that come. */
static bool needs_help(const pp_ctx_t *ctx, const pp_coll_t *coll)
{
    return !coll->combine || !ctx->has_thread || coll->request.state != PP_COMPLETE;
}

static pp_status_t wait(pp_coll_t *coll, int64_t timeout_us, pp_result_t *result, pp_view_out_t *view)
{
    pp_ctx_t *ctx;
    PP_TRY(enter_coll(coll, &ctx));
    pp_status_t status = give_without_start(coll);
    if (status >= 0 && needs_help(ctx, coll))
        status = pp_help_until(ctx, request_complete, coll, timeout_us, view || timeout_us == 0 ? NULL : coll);
    if (status != PP_OK) {
        if (coll->combine)
            pp_combine_end_landing(coll);
        unlock(ctx);
        return status;
    }
    return hand_out(ctx, coll, result, view);
}

pp_status_t pp_wait(pp_coll_t *coll, int64_t timeout_us, pp_result_t *result)
{
    return wait(coll, timeout_us, result, NULL);
}

pp_status_t pp_wait_view(pp_coll_t *coll, int64_t timeout_us, pp_result_t *result, const void **elements,
                         void **keeper)
{
    pp_view_out_t view = {.coll = coll};
    pp_status_t status = wait(coll, timeout_us, result, &view);
    *elements = view.elements;
    *keeper = view.keeper;
    return status;
}

pp_status_t pp_test(pp_coll_t *coll, pp_result_t *result) { return pp_wait(coll, 0, result); }
pp_status_t pp_wait_slice(pp_coll_t *coll) { return pp_wait(coll, PP_SLICE_US, NULL); }

static pp_status_t begin_flush(pp_coll_t *coll, pp_call_kind_t kind, uint64_t *discarded)
{
    pp_ctx_t *ctx;
    PP_TRY(enter_coll(coll, &ctx));
    bool each = coll->config.deliver == PP_EACH;
    pp_status_t status = PP_OK;
    pp_combine_end_view(coll);
    if (kind == PP_CALL_FLUSH && each)
        status = pp_fail(PP_ERR_STATE, "deliver=\"each\" gives one round at a time: use Drain");
    if (kind == PP_CALL_DRAIN && !each)
        status = pp_fail(PP_ERR_STATE, "Drain is for deliver=\"each\": use Flush");
    if (status >= 0)
        status = pp_calls_begin_flush(&ctx->calls, coll, kind);
    if (status >= 0)
        ctx->calls.discarded_out = discarded;
    began(ctx, status);
    unlock(ctx);
    return status;
}

pp_status_t pp_flush_begin(pp_coll_t *coll) { return begin_flush(coll, PP_CALL_FLUSH, NULL); }
pp_status_t pp_drain_begin(pp_coll_t *coll) { return begin_flush(coll, PP_CALL_DRAIN, NULL); }

pp_status_t pp_coll_free_begin(pp_coll_t *coll, uint64_t *discarded)
{
    *discarded = 0;
    return begin_flush(coll, PP_CALL_FREE, discarded);
}

pp_status_t pp_collect(pp_coll_t *coll, pp_result_t *result)
{
    pp_ctx_t *ctx;
    PP_TRY(enter_coll(coll, &ctx));
    if (coll->request.state != PP_COMPLETE) {
        unlock(ctx);
        return pp_fail(PP_ERR_STATE, "there is no result to collect: Flush or Drain has not finished");
    }
    return hand_out(ctx, coll, result, NULL);
}

/* ---- questions ------------------------------------------------------------------------------------------------ */

static bool answered(const void *question) { return pp_ask_answered(question); }

pp_status_t pp_ask(pp_ctx_t *ctx, uint32_t handle, int64_t timeout_us, pp_rank_state_t *states)
{
    PP_TRY(enter(ctx));
    pp_question_t question;
    pp_ask_begin(&ctx->calls, handle, states, &question);
    pp_engine_settle(&ctx->engine);
    pp_status_t status = pp_help_until(ctx, answered, &question, timeout_us, NULL);
    pp_ask_end(&ctx->calls, &question);
    unlock(ctx);
    return status < 0 ? status : PP_OK;
}

pp_status_t pp_question_open(pp_ctx_t *ctx, uint32_t handle, pp_rank_state_t *states, pp_question_t **out)
{
    *out = NULL;
    PP_TRY(enter(ctx));
    pp_question_t *question = malloc(sizeof *question);
    if (question) {
        pp_ask_begin(&ctx->calls, handle, states, question);
        pp_engine_settle(&ctx->engine);
    }
    unlock(ctx);
    *out = question;
    return question ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for a question");
}

/* Whether or not the context has failed meanwhile: the engine must not write into it any more. */
void pp_question_close(pp_ctx_t *ctx, pp_question_t *question)
{
    pthread_mutex_lock(&ctx->lock);
    pp_ask_end(&ctx->calls, question);
    unlock(ctx);
    free(question);
}

uint32_t pp_coll_id(const pp_coll_t *coll) { return coll->series.id; }
int32_t  pp_coll_algorithm(const pp_coll_t *coll) { return coll->config.algorithm; }

int32_t  pp_coll_reason(const pp_coll_t *coll)
{
    return coll->config.algorithm == PP_SHARED_MEMORY ? PP_REASON_SHARED_MEMORY : coll->reason;
}

pp_status_t pp_coll_dump(pp_coll_t *coll, int32_t format, char **out)
{
    pp_ctx_t *ctx;
    *out = NULL;
    PP_TRY(enter_coll(coll, &ctx));
    pp_text_t text = {0};
    if (!coll->series.graph)
        pp_text_add(&text, format == PP_DOT ? "digraph {}\n" : "// no schedule: shared memory\n");
    else
        pp_graph_dump(coll->series.graph, format, coll->series.kernels.element_bytes, &text);
    unlock(ctx);
    if (text.failed)
        return pp_fail(PP_ERR_MEMORY, "no memory for the text of a schedule");
    *out = text.chars;
    return PP_OK;
}

pp_status_t pp_ctx_obstacles(pp_ctx_t *ctx, char **out)
{
    *out = NULL;
    PP_TRY(enter(ctx));
    pp_text_t text = {0};
    pp_text_add(&text, "%s", "");
    pp_calls_explain(&ctx->calls, &text);
    unlock(ctx);
    if (text.failed)
        return pp_fail(PP_ERR_MEMORY, "no memory for a text");
    *out = text.chars;
    return PP_OK;
}

pp_status_t pp_coll_obstacles(pp_coll_t *coll, char **out)
{
    pp_ctx_t *ctx;
    *out = NULL;
    PP_TRY(enter_coll(coll, &ctx));
    pp_text_t text = {0};
    pp_text_add(&text, "%s", "");
    pp_coll_explain(coll, &text);
    unlock(ctx);
    if (text.failed)
        return pp_fail(PP_ERR_MEMORY, "no memory for a text");
    *out = text.chars;
    return PP_OK;
}

pp_status_t pp_coll_fired(pp_coll_t *coll, uint64_t *round, uint32_t *fired, size_t capacity,
                          size_t *count)
{
    pp_ctx_t *ctx;
    *count = 0;
    PP_TRY(enter_coll(coll, &ctx));
    const pp_series_t *series = &coll->series;
    pp_status_t status = series->any_retired ? PP_OK : PP_PENDING;
    if (status == PP_OK) {
        *round = series->last_fired_round;
        *count = series->graph->vertex_count;
        memcpy(fired, series->last_fired,
               sizeof *fired * (capacity < *count ? capacity : *count));
    }
    unlock(ctx);
    return status;
}
