/*
 * open.c - contexts over MPI: the collective opening and closing, and what happens when a script ends
 * without Free.
 *
 * For that case there is an attribute on MPI_COMM_SELF: MPI deletes it first of all in MPI_Finalize, while
 * communication still works.  A context that is alive then has "left for good": the rank serves the rounds of the
 * other ranks until all of them have ended, too.
 */
#include "live.h"
#include "vault.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- agreement before there is an engine ------------------------------------------------------------------ */

typedef struct pp_opening {
    uint64_t seed, chunk_bytes, ipc_from;
    int32_t  window, progress, path, node_ranks, trace, complains;
    int      thread_level;
    char     complaint[PP_AGREE_TEXT];
} pp_opening_t;

static const char *path_name(int32_t path) { return path == PP_PATH_MPI ? "mpi" : "auto"; }

static pp_status_t judge(const pp_opening_t *all, int size, int rank)
{
    for (int r = 0; r < size; r++)
        if (all[r].complains)
            return pp_fail(r == rank ? PP_ERR_ARGUMENT : PP_ERR_MISMATCH, "rank %d: %s", r,
                           all[r].complaint);
    for (int r = 0; r < size; r++) {
        if (all[r].seed != all[0].seed)
            return pp_fail(PP_ERR_MISMATCH, "the ranks disagree: rank 0 has seed=%llu, rank %d has %llu",
                           (unsigned long long)all[0].seed, r, (unsigned long long)all[r].seed);
        if (all[r].window != all[0].window)
            return pp_fail(PP_ERR_MISMATCH, "the ranks disagree: rank 0 has window=%d, rank %d has %d",
                           all[0].window, r, all[r].window);
        if (all[r].path != all[0].path)
            return pp_fail(PP_ERR_MISMATCH, "the ranks disagree: rank 0 has transport=\"%s\", rank %d has "
                           "\"%s\"", path_name(all[0].path), r, path_name(all[r].path));
        if (all[r].node_ranks != all[0].node_ranks)
            return pp_fail(PP_ERR_MISMATCH, "the ranks disagree: rank 0 has PYPARTIAL_NODE_RANKS=%d, rank %d has "
                           "%d", all[0].node_ranks, r, all[r].node_ranks);
        if (all[r].trace != all[0].trace)
            return pp_fail(PP_ERR_MISMATCH, "the ranks disagree: rank 0 and rank %d have different PYPARTIAL_TRACE", r);
        if (all[r].chunk_bytes != all[0].chunk_bytes)
            return pp_fail(PP_ERR_MISMATCH, "the ranks disagree: rank 0 has chunk_bytes=%llu, rank %d has %llu",
                           (unsigned long long)all[0].chunk_bytes, r, (unsigned long long)all[r].chunk_bytes);
    }
    for (int r = 0; r < size; r++)
        if (all[r].progress == PP_PROGRESS_THREAD && all[r].thread_level < MPI_THREAD_MULTIPLE)
            return pp_fail(PP_ERR_THREAD_LEVEL, "progress=\"thread\" needs MPI_THREAD_MULTIPLE, but MPI "
                           "on rank %d was initialised with a lower level: initialise MPI with MPI_THREAD_MULTIPLE, or "
                           "use progress=\"caller\"", r);
    return PP_OK;
}

static pp_status_t agree(pp_ctx_t *ctx, const pp_ctx_config_t *config, const char *complaint)
{
    const pp_transport_t *transport = pp_mpi_transport(ctx->mpi);
    pp_opening_t mine, *all;
    memset(&mine, 0, sizeof mine);
    mine.seed = config->seed, mine.chunk_bytes = config->chunk_bytes;
    mine.window = config->window, mine.progress = config->progress;
    mine.trace = config->trace, mine.path = config->path, mine.node_ranks = config->node_ranks;
    mine.ipc_from = config->ipc_from;
    mine.complains = complaint != NULL;
    MPI_Query_thread(&mine.thread_level);
    snprintf(mine.complaint, sizeof mine.complaint, "%s", complaint ? complaint : "");
    if (!complaint && config->window < 1) {
        mine.complains = 1;
        snprintf(mine.complaint, sizeof mine.complaint, "window=%d is not at least 1", config->window);
    }
    PP_TRY(pp_mpi_gather(ctx->mpi, &mine, sizeof mine, (void **)&all));
    pp_status_t status = judge(all, transport->size, transport->rank);
    ctx->ipc_from = all[0].ipc_from;
    free(all);
    return status;
}

/* ---- the end of MPI ------------------------------------------------------------------------------------------ */

static bool call_finished(const void *calls) { return ((const pp_calls_t *)calls)->finished; }

/* The context goes on serving in the background: a peer may wait here before it comes to the end of another context. */
static void begin_to_leave(pp_ctx_t *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    if (ctx->abandoned || ctx->engine.error) {
        pp_exit_tell_gone(&ctx->calls);
    } else {
        pp_exit_begin(&ctx->calls);
    }
    ctx->engine.transport->ops->ring(ctx->engine.transport);
    pthread_mutex_unlock(&ctx->lock);
}

/* Whether the context has finished leaving.  One with an error has, and so has an abandoned one. */
static bool has_left(pp_ctx_t *ctx, int64_t timeout_us)
{
    pthread_mutex_lock(&ctx->lock);
    pp_status_t status = pp_help_until(ctx, call_finished, &ctx->calls, timeout_us, NULL);
    if (status < 0) {
        pp_exit_tell_gone(&ctx->calls);
        ctx->engine.transport->ops->ring(ctx->engine.transport);
    }
    pthread_mutex_unlock(&ctx->lock);
    return status != PP_PENDING;
}

/* Refuses further calls, and waits for those of other threads, which notice it: a daemon thread of Python, say, is still
   inside one when the interpreter ends.  Only the thread that ends the context calls this. */
static void refuse_calls(pp_ctx_t *ctx)
{
    enum { LOOKS = 1000, PAUSE_US = 1000 };
    pp_thread_stop(ctx);
    pthread_mutex_lock(&ctx->lock);
    ctx->freed = true;
    pp_mpi_set_sleeper(ctx->mpi, PP_CALLER_ASLEEP);
    pp_mpi_ring_self(ctx->mpi);
    for (int looks = 0; ctx->inside > 0 && looks < LOOKS; looks++) {
        pthread_mutex_unlock(&ctx->lock);
        usleep(PAUSE_US);
        pthread_mutex_lock(&ctx->lock);
    }
    pthread_mutex_unlock(&ctx->lock);
}

/* Whether all threads have come out. */
static bool nobody_inside(pp_ctx_t *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    bool nobody = ctx->inside == 0;
    pthread_mutex_unlock(&ctx->lock);
    return nobody;
}

/* The context and its handles themselves stay until the process ends: calls of other threads find there that they are
   refused.  So does what they have, if a thread did not come out. */
static void release_left(pp_ctx_t *ctx)
{
    if (nobody_inside(ctx)) {
        pp_ctx_empty(ctx);
        pp_mpi_abandon(ctx->mpi);
        ctx->mpi = NULL;
    }
    pp_live_keep(ctx);
}

static int at_finalize(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    pp_live_finalise();
    for (pp_ctx_t *ctx = pp_live_next(NULL), *next; ctx; ctx = next) {
        next = pp_live_next(ctx);
        if (ctx->forks == pp_fork_count())
            begin_to_leave(ctx);
        else
            pp_live_remove(ctx);
    }
    /* In turns, because a context may have no thread of its own. */
    for (bool all = false; !all;) {
        all = true;
        for (pp_ctx_t *ctx = pp_live_next(NULL); ctx; ctx = pp_live_next(ctx))
            all &= has_left(ctx, pp_live_is_alone() ? -1 : 1000);
    }
    /* First of all of them: a thread that waits in one looks at the others, too. */
    for (pp_ctx_t *ctx = pp_live_next(NULL); ctx; ctx = pp_live_next(ctx))
        refuse_calls(ctx);
    for (pp_ctx_t *ctx; (ctx = pp_live_next(NULL));) {
        pp_live_remove(ctx);
        release_left(ctx);
    }
    pp_live_await_taken();
    return MPI_SUCCESS;
}

static void watch_finalize(void)
{
    int key;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &key, NULL);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
}

/* ---- opening and closing -------------------------------------------------------------------------------------- */

static void wake(void *owner, int32_t index, bool serve)
{
    pp_ctx_t *ctx = owner;
    pp_mpi_wake(ctx->mpi, index, PP_CALLER_ASLEEP | (serve ? PP_PROGRESS_ASLEEP : 0));
}

static bool sleeps(void *owner, int32_t index)
{
    pp_ctx_t *ctx = owner;
    return pp_mpi_sleeps(ctx->mpi, index);
}

/* If the ranks of each node share memory, rounds are made there, unless every rank is alone on its node. */
static pp_status_t open_node(pp_ctx_t *ctx, const pp_ctx_config_t *config)
{
    const pp_nodes_t *nodes = pp_mpi_nodes(ctx->mpi);
    pp_shared_t *memory = pp_mpi_memory(ctx->mpi);
    int32_t      size = pp_mpi_neighbours(ctx->mpi), ranks = pp_mpi_transport(ctx->mpi)->size;
    if (!nodes || config->path == PP_PATH_MPI || ranks > PP_CONTRIBUTORS_MAX
        || (nodes->count == ranks && ranks > 1))
        return PP_OK;
    ctx->nodes = nodes->count > 1 ? nodes : NULL;
    if (!pp_node_open(&ctx->node, memory, pp_mpi_neighbour_index(ctx->mpi), size))
        return pp_fail(PP_ERR_MEMORY, "no shared memory for the ranks of a node");
    ctx->node.wake = wake;
    ctx->node.sleeps = sleeps;
    ctx->node.owner = ctx;
    return PP_OK;
}

/* The local part, after the transport.  On success the lock is held. */
static pp_status_t begin_to_work(pp_ctx_t *ctx, const pp_ctx_config_t *config)
{
    int32_t cores = pp_mpi_cores(ctx->mpi);
    /* With more ranks than cores a waiting thread must make room. */
    ctx->crowded = cores > 0 && pp_mpi_neighbours(ctx->mpi) > cores;
    ctx->path_forced = config->path == PP_PATH_MPI;
    PP_TRY(open_node(ctx, config));
    PP_TRY(pp_ctx_setup(ctx, pp_mpi_transport(ctx->mpi), config));
    ctx->team.cores = cores;
    pthread_mutex_lock(&ctx->lock);
    pp_status_t status = config->progress == PP_PROGRESS_THREAD ? pp_thread_start(ctx) : PP_OK;
    if (status < 0) {
        pthread_mutex_unlock(&ctx->lock);
        pp_ctx_teardown(ctx);
    }
    return status;
}

/* Collective: the local part succeeds on all ranks, or is undone on all.  Until that is known the progress thread waits
   for the lock, because it must not act on messages that have come already. */
static pp_status_t begin_together(pp_ctx_t *ctx, const pp_ctx_config_t *config, pp_status_t status)
{
    bool begun = false;
    if (status == PP_OK) {
        status = begin_to_work(ctx, config);
        begun = status == PP_OK;
    }
    status = pp_mpi_agree(ctx->mpi, status);
    if (status == PP_OK)
        pp_mpi_opened(ctx->mpi);
    if (begun)
        pthread_mutex_unlock(&ctx->lock);
    if (begun && status < 0) {
        pp_thread_stop(ctx);
        pp_ctx_teardown(ctx);
    }
    return status;
}

static pp_status_t open_together(pp_ctx_t *ctx, const pp_ctx_config_t *config, const char *complaint)
{
    PP_TRY(agree(ctx, config, complaint));
    pp_status_t status = pp_mpi_open(ctx->mpi, config->chunk_bytes, config->node_ranks);
    return status == PP_ERR_PEER_FAILED ? status : begin_together(ctx, config, status);
}

pp_status_t pp_ctx_open(const void *comm, const pp_ctx_config_t *config, const char *complaint,
                        pp_ctx_t **out)
{
    int       initialized, finalized;
    pp_mpi_t *mpi;
    *out = NULL;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (!initialized || finalized)
        return pp_fail(PP_ERR_STATE, "a context needs MPI, which is %s",
                       finalized ? "already finalised" : "not initialised");
    PP_TRY(pp_mpi_meet(comm, &mpi));
    pp_ctx_t *ctx = calloc(1, sizeof *ctx), nobody = {.mpi = mpi};
    if (ctx)
        ctx->mpi = mpi;
    pp_status_t status = open_together(ctx ? ctx : &nobody, config, ctx ? complaint : "no memory for a context");
    if (status < 0) {
        pp_mpi_abandon(mpi);
        free(ctx);
        return status;
    }
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_finalize);
    pp_live_add(ctx);
    *out = ctx;
    return PP_OK;
}

/* If that takes too long, registered memory of the node, and what the ranks tell each other, stay mapped: there is no one
   left who could unmap it. */
static void give_devices_back(pp_ctx_t *ctx)
{
    pp_node_t *node = &ctx->node;
    _Atomic uint32_t *unmapped = node->commons ? &node->commons->unmapped : NULL;
    const bool over = pp_cuda_pools_end(&ctx->pools, unmapped, (uint32_t)node->size);
    if (!over && node->memory)
        pp_shared_use(node->memory);
}

/* Releases what the context has, which no rank needs any more; but if a thread did not come out, that stays. */
static pp_status_t release_freed(pp_ctx_t *ctx)
{
    refuse_calls(ctx);
    if (!nobody_inside(ctx)) {
        pp_live_keep(ctx);
        return PP_OK;
    }
    pp_staging_end_kept(ctx);
    pp_ctx_empty(ctx);
    give_devices_back(ctx);
    pp_status_t status = pp_mpi_close(ctx->mpi);
    ctx->mpi = NULL;
    return status;
}

/* The call in progress stays the release of the context, so that no other begins meanwhile. */
pp_status_t pp_ctx_close_mpi(pp_ctx_t *ctx)
{
    pthread_mutex_unlock(&ctx->lock);        /* the list's comes first */
    bool takes = pp_live_take(ctx);
    pthread_mutex_lock(&ctx->lock);
    pp_status_t status = takes ? PP_OK : pp_ctx_ended(ctx);
    ctx->inside--;
    pthread_mutex_unlock(&ctx->lock);
    if (takes) {
        status = release_freed(ctx);
        pp_live_taken();
    }
    return status;
}
