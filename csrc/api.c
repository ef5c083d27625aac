/* api.c - the public functions on contexts and handles: argument checks, the lock, nothing else. */
#include "api.h"
#include "algo/choose.h"
#include "coll/rounds/allreduce.h"
#include "node/keeper.h"
#include "progress/live.h"
#include "progress/sight.h"
#include "progress/staging.h"

#include <stdlib.h>
#include <string.h>

/* After this time in a collective call a rank asks the others whether they are in the same one. */
static const uint64_t CHECK_ORDER_NS = 2000000000;

__attribute__((cold)) pp_status_t pp_refuse(pp_ctx_t *ctx)
{
    pp_status_t status = pp_engine_check(&ctx->engine);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_enter(pp_ctx_t *ctx)
{
    PP_TRY(pp_lock(ctx));
    return ctx->engine.error ? pp_refuse(ctx) : PP_OK;
}

__attribute__((cold)) pp_status_t pp_refuse_handle(void)
{
    return pp_fail(PP_ERR_STATE, "the handle was freed, or its initialisation has not finished");
}

/* ---- contexts --------------------------------------------------------------------------------------------- */

int32_t pp_ctx_rank(const pp_ctx_t *ctx) { return ctx->engine.rank; }
int32_t pp_ctx_size(const pp_ctx_t *ctx) { return ctx->engine.size; }

uint64_t pp_ctx_ipc_from(const pp_ctx_t *ctx) { return ctx->ipc_from; }

int32_t pp_ctx_link(const pp_ctx_t *ctx)
{
    bool one_node = !ctx->mpi || pp_mpi_neighbours(ctx->mpi) == ctx->engine.size;
    return one_node ? PP_LINK_NODE : PP_LINK_NETWORK;
}

pp_status_t pp_ctx_tune(pp_ctx_t *ctx, const pp_tuned_t *tuned, size_t tuned_count)
{
    PP_TRY(pp_tuned_check(tuned, tuned_count));
    PP_TRY(pp_enter(ctx));
    pp_tuned_t *copy = calloc(tuned_count + 1, sizeof *copy);
    if (copy) {
        if (tuned_count)
            memcpy(copy, tuned, tuned_count * sizeof *copy);
        free(ctx->team.tuned);
        ctx->team.tuned = copy;
        ctx->team.tuned_count = tuned_count;
    }
    pp_unlock(ctx);
    return copy ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for %zu rows of a tuning table", tuned_count);
}

void pp_began(pp_ctx_t *ctx, pp_status_t status)
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
    PP_TRY(pp_enter(ctx));
    pp_status_t status = pp_check_holds_none(ctx, "Free of the context");
    if (status >= 0)
        status = pp_agreement_begin_ctx_free(&ctx->calls);
    pp_began(ctx, status);
    pp_unlock(ctx);
    return status;
}

/* An abandoned context must still tell its peers at MPI_Finalize, which then releases what it has.  One that a thread
   has not left in time keeps its MPI, and stays. */
void pp_ctx_release(pp_ctx_t *ctx)
{
    if (ctx && ctx->freed && ctx->ending && !ctx->mpi) {
        pp_ctx_end(ctx);
        free(ctx);
    }
}

/* If another thread ends MPI meanwhile, that takes the call's place, and pp_help_until() returns its error. */
static bool call_finished(const void *arg)
{
    const pp_calls_t *calls = arg;
    return calls->finished && calls->kind != PP_CALL_EXIT;
}

static pp_status_t collect_call(pp_ctx_t *ctx)
{
    pp_call_kind_t kind = ctx->calls.kind;
    pp_status_t status = ctx->calls.status;
    if (kind == PP_CALL_CTX_FREE && status == PP_OK && ctx->mpi)
        return pp_ctx_close_mpi(ctx);
    ctx->calls.kind = PP_CALL_NONE;
    if (kind == PP_CALL_FREE && status == PP_OK)
        *ctx->calls.discarded_out = ctx->team.discarded;
    ctx->ending = kind == PP_CALL_CTX_FREE && status == PP_OK;
    if (status < 0)
        pp_fail(status, "%s", ctx->calls.text);
    pp_unlock(ctx);
    return status;
}

/* Ranks in different collective calls would wait for ever.  So this rank asks once, when the others have had time to be
   merely late. */
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

static pp_status_t call_wait(pp_ctx_t *ctx, int64_t timeout_us)
{
    PP_TRY(pp_lock(ctx));
    const pp_call_kind_t kind = ctx->calls.kind;
    if (pp_call_stands(&ctx->calls))
        return collect_call(ctx);
    pp_status_t status = pp_engine_check(&ctx->engine);
    if (status == PP_OK && (kind == PP_CALL_NONE || kind == PP_CALL_AWAY || kind == PP_CALL_MAKING))
        status = pp_fail(PP_ERR_STATE, "no collective call of this context is in progress: begin one first");
    if (status == PP_OK)
        status = pp_help_until(ctx, call_finished, &ctx->calls, timeout_us, NULL);
    if (status == PP_OK)
        return collect_call(ctx);
    if (status == PP_PENDING)
        check_order(ctx);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_call_wait(pp_ctx_t *ctx, int64_t timeout_us)
{
    const uint64_t since_ns = pp_sight_enter();
    pp_status_t    status = call_wait(ctx, timeout_us);
    pp_sight_leave(since_ns);
    return status;
}

static pp_held_t count_buffers(const pp_engine_t *engine)
{
    pp_held_t sum = {0};
    PP_FOR_EACH_HANDLE(engine, handle)
        if (handle->ops->count_buffers)
            handle->ops->count_buffers(handle, &sum);
    return sum;
}

const char *pp_ctx_note(pp_ctx_t *ctx)
{
    const char *note = NULL;
    if (pp_lock(ctx) < 0)
        return NULL;
    const char *apart = ctx->mpi && !ctx->path_forced ? pp_mpi_apart(ctx->mpi) : NULL;
    if (apart && !ctx->told_apart) {
        ctx->told_apart = true;
        snprintf(ctx->note, sizeof ctx->note, "rounds are made of messages, not in shared memory: %s", apart);
        note = ctx->note;
    } else if (ctx->team.refused_bytes > 0 && !ctx->told_refused) {
        ctx->told_refused = true;
        snprintf(ctx->note, sizeof ctx->note, "the rounds of a handle are made of messages: the memory that the "
                 "ranks of the node share has no room for the %llu bytes that the handle may need",
                 (unsigned long long)ctx->team.refused_bytes);
        note = ctx->note;
    }
    pp_unlock(ctx);
    return note;
}

void pp_ctx_stats(pp_ctx_t *ctx, pp_stats_t *stats)
{
    *stats = (pp_stats_t){.thread_level = -1};
    if (pp_lock(ctx) < 0)
        return;
    const pp_transport_t *transport = ctx->engine.transport;
    const pp_held_t       held = count_buffers(&ctx->engine);
    *stats = (pp_stats_t){
        .rounds = ctx->engine.rounds, .shared_rounds = ctx->team.shared_rounds,
        .shared_led = ctx->team.shared_led, .shares_memory = ctx->engine.node != NULL,
        .messages_sent = transport->messages_sent,
        .messages_received = transport->messages_received, .bytes_sent = transport->bytes_sent,
        .bulk_sent = transport->bulk_sent, .rings = transport->rings,
        .sleeps = ctx->sleeps, .unheard = ctx->unheard,
        .progress_cpu_ns = pp_thread_cpu_ns(ctx), .buffer_bytes = held.bytes,
        .buffer_bytes_used = held.used_bytes, .staged_bytes = ctx->staged_bytes,
        .bounced_bytes = ctx->bounced_bytes,
        .ipc_bytes = ctx->ipc_bytes, .direct_bytes = ctx->direct_bytes,
        .pooled_bytes = pp_cuda_pools_bytes(&ctx->pools),
        .device_rounds = ctx->device_rounds, .device_wait_ns = ctx->device_wait_ns,
        .neighbours = ctx->mpi ? pp_mpi_neighbours(ctx->mpi) : ctx->engine.size,
        .thread_level = ctx->mpi ? pp_mpi_thread_level(ctx->mpi) : -1,
    };
    pp_unlock(ctx);
}

/* ---- memory of the node ------------------------------------------------------------------------------------ */

pp_status_t pp_ctx_alloc(pp_ctx_t *ctx, size_t bytes, void **memory, void **out)
{
    *memory = *out = NULL;
    PP_TRY(pp_enter(ctx));
    *out = pp_keeper_alloc(ctx->engine.node, bytes, memory);
    pp_unlock(ctx);
    return *out ? PP_OK : pp_fail(PP_ERR_MEMORY, "no shared memory for an array of %zu bytes", bytes);
}

/* ---- handles ------------------------------------------------------------------------------------------------ */

/* A handle whose buffers are in the memory of a device gets what it needs there; if it cannot, it is released.  Only if the
   call can begin, because copies may be on their way then; and no other call begins meanwhile. */
static pp_status_t stage(pp_ctx_t *ctx, const pp_maker_t *maker, pp_handle_t **handle)
{
    pp_status_t status = pp_call_check_none(&ctx->calls, "making a handle");
    if (status >= 0) {
        ctx->calls.kind = PP_CALL_MAKING;
        ctx->has_devices = true;
        status = maker->stage(ctx, *handle);
        if (ctx->calls.kind == PP_CALL_MAKING)   /* else the process ends */
            ctx->calls.kind = PP_CALL_NONE;
    }
    if (status < 0) {
        pp_handle_release(*handle);
        *handle = NULL;
    }
    return status;
}

pp_status_t pp_init_begin(pp_ctx_t *ctx, const pp_maker_t *maker, const void *config, bool on_device,
                          const char *complaint, pp_handle_t **out)
{
    *out = NULL;
    PP_TRY(pp_enter(ctx));
    /* The ranks agree on a wrong argument found here as on one that the caller found. */
    pp_handle_t *handle = NULL;
    pp_status_t holds = pp_check_holds_none(ctx, "making a handle");
    if (holds < 0) {
        pp_unlock(ctx);
        return holds;
    }
    pp_status_t complained = complaint ? PP_ERR_ARGUMENT : maker->make(ctx, config, &handle);
    if (complained >= 0 && on_device)
        complained = stage(ctx, maker, &handle);
    if (complained < 0 && !complaint)
        complaint = pp_error_text();
    pp_status_t status = complaint ? maker->bare(ctx, &handle) : PP_OK;
    ctx->team.link = pp_ctx_link(ctx);
    if (status >= 0)
        status = pp_agreement_begin_init(&ctx->calls, complaint, complained, handle);
    if (status >= 0)
        *out = handle;
    else if (handle)
        pp_handle_release(handle);
    pp_began(ctx, status);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_start_locked(pp_ctx_t *ctx, pp_handle_t *handle)
{
    pp_cuda_device_t device;
    pp_status_t      status;
    if (handle->request.state != PP_IDLE && !handle->request.timed_out)
        status = pp_fail(PP_ERR_STATE, "Start on a request that was not collected: call Wait, or Test "
                         "until it returns True, first");
    else if (ctx->calls.kind != PP_CALL_NONE)
        status = pp_call_check_none(&ctx->calls, "Start");
    else if ((status = pp_staging_enter(handle, &device)) >= 0) {
        const uint64_t since_ns = pp_sight_starts(ctx, handle);
        status = pp_staging_leave(ctx, &device, handle->face->start(ctx, handle));
        pp_sight_started(ctx, handle, since_ns, status);
    }
    pp_team_called(&ctx->team, PP_CALL_START, handle->id);
    bool note = ctx->team.has_note || ctx->unpinned_due || ctx->sight.is_due;
    pp_wake_for_alarm(ctx);
    return status == PP_OK && note ? PP_NOTE : status;
}

pp_status_t pp_start(pp_handle_t *handle)
{
    pp_ctx_t *ctx;
    PP_TRY(pp_enter_handle(handle, &ctx));
    pp_status_t status = pp_start_locked(ctx, handle);
    pp_unlock(ctx);
    return status;
}

/* A Wait without a Start gives what was not given yet. */
static pp_status_t give_without_start(pp_ctx_t *ctx, pp_handle_t *handle)
{
    if (handle->request.state != PP_IDLE)
        return PP_OK;
    pp_look(ctx);
    if (handle->face->give(handle) == PP_PENDING) {
        PP_TRY(pp_engine_check(&ctx->engine));
        return pp_fail(PP_ERR_STATE, "nothing was started and there is nothing to give: call Start first");
    }
    pp_engine_settle(&ctx->engine);      /* a round that this rank's bound held back may go on */
    return PP_OK;
}

static bool needs_help(const pp_ctx_t *ctx, const pp_handle_t *handle)
{
    return !ctx->has_thread || handle->request.state != PP_COMPLETE || !handle->face->at_once(handle);
}

/* Before a call that may collect a result. */
static pp_status_t check_collects(const pp_ctx_t *ctx, const pp_handle_t *handle, const char *what)
{
    /* What a Flush or Drain of the handle that has timed out comes to is given when it is repeated. */
    if (ctx->calls.kind == PP_CALL_AWAY || (ctx->calls.kind != PP_CALL_NONE && ctx->calls.handle == handle))
        PP_TRY(pp_call_check_none(&ctx->calls, what));
    return pp_staging_check(handle);
}

/* A Wait ends without a result. */
static void give_up(pp_handle_t *handle)
{
    if (handle->face->give_up)
        handle->face->give_up(handle);
}

static pp_status_t help(pp_ctx_t *ctx, pp_handle_t *handle, int64_t timeout_us, const pp_handle_t *receives)
{
    if (timeout_us != 0)
        pp_sight_must_wait(ctx, handle);
    if (handle->face->waits)
        handle->face->waits(ctx, handle, true);
    pp_status_t status = pp_help_until(ctx, pp_request_complete, handle, timeout_us, receives);
    if (handle->face->waits)
        handle->face->waits(ctx, handle, false);
    return status;
}

static pp_status_t wait_inside(pp_ctx_t *ctx, pp_handle_t *handle, int64_t timeout_us, pp_result_t *result,
                               pp_view_out_t *view)
{
    pp_status_t status = check_collects(ctx, handle, "Wait or Test");
    if (status >= 0 && timeout_us != 0)
        status = pp_check_holds_none(ctx, "Wait");
    if (status >= 0)
        status = give_without_start(ctx, handle);
    if (status >= 0 && needs_help(ctx, handle))
        status = help(ctx, handle, timeout_us, view || timeout_us == 0 ? NULL : handle);
    if (status == PP_OK)
        status = handle->face->hand_out(ctx, handle, result, view);
    else
        give_up(handle);
    return status;
}

static pp_status_t wait(pp_handle_t *handle, int64_t timeout_us, pp_result_t *result, pp_view_out_t *view)
{
    pp_ctx_t *ctx;
    PP_TRY(pp_enter_still(handle, PP_COMPLETE, &ctx));
    if (timeout_us != 0)                 /* a Test does not undo the timeout of the last Wait */
        handle->request.timed_out = false;
    pp_team_called(&ctx->team, timeout_us == 0 ? PP_CALL_TEST : PP_CALL_WAIT, handle->id);
    pp_sight_waits(ctx, handle);
    pp_cuda_device_t device;
    pp_status_t      status = pp_staging_enter(handle, &device);
    if (status >= 0)
        status = pp_staging_leave(ctx, &device, wait_inside(ctx, handle, timeout_us, result, view));
    else
        give_up(handle);
    pp_sight_waited(ctx, handle, status);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_wait(pp_handle_t *handle, int64_t timeout_us, pp_result_t *result)
{
    return wait(handle, timeout_us, result, NULL);
}

pp_status_t pp_wait_view(pp_handle_t *handle, int64_t timeout_us, pp_result_t *result, const void **elements,
                         void **keeper)
{
    pp_view_out_t view = {0};
    pp_status_t status = wait(handle, timeout_us, result, &view);
    *elements = view.elements;
    *keeper = view.keeper;
    return status;
}

pp_status_t pp_await(pp_handle_t *handle, int64_t timeout_us)
{
    pp_ctx_t *ctx;
    pp_cuda_device_t device;
    PP_TRY(pp_enter_still(handle, PP_COMPLETE, &ctx));
    pp_status_t status = check_collects(ctx, handle, "Wait");
    if (status >= 0)
        status = pp_check_holds_none(ctx, "Wait");
    pp_sight_waits(ctx, handle);
    if (status >= 0 && handle->request.state != PP_IDLE && (status = pp_staging_enter(handle, &device)) >= 0)
        status = pp_staging_leave(ctx, &device, help(ctx, handle, timeout_us, NULL));
    pp_sight_waited(ctx, handle, PP_PENDING);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_test(pp_handle_t *handle, pp_result_t *result) { return pp_wait(handle, 0, result); }

pp_status_t pp_timed_out(pp_handle_t *handle)
{
    pp_ctx_t *ctx;
    PP_TRY(pp_enter_handle(handle, &ctx));
    pp_status_t status = handle->request.state == PP_IDLE ? PP_OK : handle->face->timed_out(ctx, handle);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_is_outstanding(pp_handle_t *handle)
{
    pp_ctx_t *ctx;
    PP_TRY(pp_enter_handle(handle, &ctx));
    const bool outstanding = handle->kind->is_uncollected ? handle->kind->is_uncollected(handle)
                                                          : handle->request.state != PP_IDLE;
    pp_unlock(ctx);
    return outstanding ? PP_PENDING : PP_OK;
}

pp_status_t pp_more(pp_handle_t *handle, pp_result_t *result)
{
    pp_ctx_t *ctx;
    PP_TRY(pp_enter_handle(handle, &ctx));
    pp_status_t status = check_collects(ctx, handle, "More");
    pp_team_called(&ctx->team, PP_CALL_MORE, handle->id);
    if (status >= 0 && handle->request.state != PP_IDLE)
        status = pp_fail(PP_ERR_STATE, "More on a request that was not collected: call Wait, or Test until it returns "
                         "True, first");
    if (status >= 0 && !handle->face->more)
        status = pp_fail(PP_ERR_STATE, "More is for rounds: a request of this handle has one result");
    if (status >= 0) {
        pp_look(ctx);
        status = handle->face->more(ctx, handle, result);
        if (status == PP_OK) {
            pp_sight_given(ctx, handle, 0);
            pp_engine_settle(&ctx->engine);
        }
    }
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_wait_slice(pp_handle_t *handle) { return pp_wait(handle, PP_SLICE_US, NULL); }

/* Elements on their way from a device have to be in the round that ends the handle's rounds. */
static pp_status_t check_landed(pp_ctx_t *ctx, pp_handle_t *handle, pp_call_kind_t kind)
{
    pp_status_t status = handle->face->land(ctx, handle, PP_ANY_CALL, kind == PP_CALL_FREE, 0);
    if (status == PP_PENDING)
        return pp_fail(PP_ERR_STATE, "elements of this handle are on their way between device and host: call pp_land() "
                       "first");
    return status;
}

static pp_status_t begin_flush(pp_handle_t *handle, pp_call_kind_t kind, uint64_t *discarded)
{
    pp_ctx_t *ctx;
    PP_TRY(pp_enter_handle(handle, &ctx));
    bool each = handle->kind->drains && handle->kind->drains(handle);
    /* A call that is refused has changed nothing. */
    pp_status_t status = pp_call_check_none(&ctx->calls, pp_call_name(kind));
    if (status >= 0)
        status = pp_check_holds_none(ctx, pp_call_name(kind));
    if (status >= 0 && handle->face->end_view)
        status = handle->face->end_view(handle);
    if (status >= 0 && kind == PP_CALL_FLUSH && each)
        status = pp_fail(PP_ERR_STATE, "Flush on a handle with deliver=\"each\", which gives one round at a time: use "
                         "Drain");
    if (status >= 0 && kind == PP_CALL_DRAIN && !each)
        status = pp_fail(PP_ERR_STATE, "Drain on a handle without deliver=\"each\": use Flush");
    if (status >= 0 && handle->face->land)
        status = check_landed(ctx, handle, kind);
    if (status >= 0 && kind == PP_CALL_FLUSH && handle->face->before_flush)
        status = handle->face->before_flush(ctx, handle);
    pp_sight_ends(handle);               /* the next call may be over at once, and have freed it */
    if (status >= 0)
        status = pp_flush_call_begin(&ctx->calls, handle, kind);
    if (status >= 0)
        ctx->calls.discarded_out = discarded;
    pp_began(ctx, status);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_flush_begin(pp_handle_t *handle) { return begin_flush(handle, PP_CALL_FLUSH, NULL); }
pp_status_t pp_drain_begin(pp_handle_t *handle) { return begin_flush(handle, PP_CALL_DRAIN, NULL); }

pp_status_t pp_handle_free_begin(pp_handle_t *handle, uint64_t *discarded)
{
    *discarded = 0;
    return begin_flush(handle, PP_CALL_FREE, discarded);
}

pp_status_t pp_collect(pp_handle_t *handle, pp_result_t *result)
{
    pp_ctx_t *ctx;
    PP_TRY(pp_enter_still(handle, PP_COMPLETE, &ctx));
    if (handle->request.state != PP_COMPLETE) {
        pp_unlock(ctx);
        return pp_fail(PP_ERR_STATE, "there is no result to collect: no Flush or Drain of the handle has finished");
    }
    pp_status_t status = handle->face->hand_out(ctx, handle, result, NULL);
    if (status == PP_OK)
        pp_sight_given(ctx, handle, 0);
    pp_unlock(ctx);
    return status;
}

/* ---- away ----------------------------------------------------------------------------------------------------- */

pp_status_t pp_away_begin(pp_ctx_t *ctx)
{
    PP_TRY(pp_enter(ctx));
    pp_status_t status = pp_check_holds_none(ctx, "away()");
    if (status >= 0)
        status = pp_call_begin(&ctx->calls, PP_CALL_AWAY, NULL);
    ctx->sight.away_ns = status >= 0 ? pp_sight_enter() : 0;
    pp_engine_settle(&ctx->engine);
    pp_unlock(ctx);
    return status;
}

pp_status_t pp_away_end(pp_ctx_t *ctx)
{
    PP_TRY(pp_enter(ctx));
    pp_status_t status = PP_OK;
    if (ctx->calls.kind != PP_CALL_AWAY) {
        status = pp_fail(PP_ERR_STATE, "this rank is not inside ctx.away(), and cannot leave it");
    } else {
        pp_sight_leave(ctx->sight.away_ns);
        pp_team_count_as_given(&ctx->team, NULL);
        pp_call_finish(&ctx->calls, PP_OK);
        ctx->calls.kind = PP_CALL_NONE;
        pp_engine_settle(&ctx->engine);
    }
    pp_unlock(ctx);
    return status;
}

/* Such calls may contain each other, and be inside away(): a thread's outermost one counts. */
static _Thread_local struct { uint32_t depth; uint64_t since_ns; } aside;

void pp_aside_begin(void)
{
    const bool away = pp_live_aside(1);
    if (aside.depth++ == 0)
        aside.since_ns = away ? 0 : pp_sight_enter();
}

void pp_aside_end(void)
{
    pp_live_aside(-1);
    if (--aside.depth == 0)
        pp_sight_leave(aside.since_ns);
}

/* If there are two, the next Start asks for the other. */
const char *pp_ctx_log_note(pp_ctx_t *ctx)
{
    if (pp_lock(ctx) < 0)
        return NULL;
    bool *due = ctx->unpinned_due ? &ctx->unpinned_due : &ctx->team.has_note, any = *due;
    snprintf(ctx->log_note, sizeof ctx->log_note, "%s", ctx->unpinned_due ? ctx->unpinned : ctx->team.patience_note);
    *due = false;
    if (!any && ctx->sight.is_due) {
        ctx->sight.is_due = false;
        ctx->sight.due_ns = pp_team_coarse_now(&ctx->team) + ctx->sight.every_ns;
        ctx->log_note[0] = 0;
        any = true;
    }
    pp_unlock(ctx);
    return any ? ctx->log_note : NULL;
}

/* ---- questions ------------------------------------------------------------------------------------------------ */

static bool answered(const void *question) { return pp_ask_answered(question); }

pp_status_t pp_ask(pp_ctx_t *ctx, uint32_t handle, int64_t timeout_us, pp_rank_state_t *states)
{
    PP_TRY(pp_enter(ctx));
    pp_question_t question;
    pp_ask_begin(&ctx->calls, handle, states, &question);
    pp_engine_settle(&ctx->engine);
    pp_status_t status = pp_help_until(ctx, answered, &question, timeout_us, NULL);
    pp_ask_end(&ctx->calls, &question);
    pp_unlock(ctx);
    return status < 0 ? status : PP_OK;
}

pp_status_t pp_question_open(pp_ctx_t *ctx, uint32_t handle, pp_rank_state_t *states, pp_question_t **out)
{
    *out = NULL;
    PP_TRY(pp_enter(ctx));
    pp_question_t *question = malloc(sizeof *question);
    if (question) {
        pp_ask_begin(&ctx->calls, handle, states, question);
        pp_engine_settle(&ctx->engine);
    }
    pp_unlock(ctx);
    *out = question;
    return question ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for a question");
}

/* Also if the context has failed meanwhile, or MPI ends: the engine must no longer write into the question. */
void pp_question_close(pp_ctx_t *ctx, pp_question_t *question)
{
    pthread_mutex_lock(&ctx->lock);
    pp_ask_end(&ctx->calls, question);
    pthread_mutex_unlock(&ctx->lock);
    free(question);
}

uint32_t pp_handle_id(const pp_handle_t *handle) { return handle->id; }

pp_status_t pp_handle_unties(pp_handle_t *handle)
{
    pp_ctx_t *ctx;
    PP_TRY(pp_enter_handle(handle, &ctx));
    pp_handle_keep_in_step(handle, false);
    pp_unlock(ctx);
    return PP_OK;
}

pp_status_t pp_ctx_obstacles(pp_ctx_t *ctx, char **out)
{
    *out = NULL;
    PP_TRY(pp_enter(ctx));
    pp_text_t text = {0};
    pp_text_add(&text, "%s", "");
    pp_agreement_explain(&ctx->calls, &text);
    pp_flush_explain(&ctx->calls, &text);
    pp_unlock(ctx);
    if (text.failed)
        return pp_fail(PP_ERR_MEMORY, "no memory for a text");
    *out = text.chars;
    return PP_OK;
}

pp_status_t pp_handle_obstacles(pp_handle_t *handle, char **out)
{
    pp_ctx_t *ctx;
    *out = NULL;
    PP_TRY(pp_enter_handle(handle, &ctx));
    pp_text_t text = {0};
    pp_text_add(&text, "%s", "");
    handle->kind->explain(handle, &text);
    pp_unlock(ctx);
    if (text.failed)
        return pp_fail(PP_ERR_MEMORY, "no memory for a text");
    *out = text.chars;
    return PP_OK;
}
