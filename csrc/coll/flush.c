/* flush.c - Flush, Drain and Free: calls that end the rounds of a handle, for a while or for good.  See calls.h. */
#include "calls.h"

static const pp_leaving_t leaving[] = {
    [PP_CALL_FLUSH] = PP_FLUSHES, [PP_CALL_DRAIN] = PP_STEPS, [PP_CALL_FREE] = PP_FREES};

/* From here on the handle may be released. */
static void stays(pp_handle_t *handle) { handle->leaving = PP_STAYS; }

pp_status_t pp_flush_call_begin(pp_calls_t *calls, pp_handle_t *handle, pp_call_kind_t kind)
{
    pp_team_t *team = calls->team;
    PP_TRY(pp_call_begin(calls, kind, handle));
    handle->kind->drop_request(handle);
    handle->leaving = leaving[kind];
    team->discarded = 0;
    if (kind == PP_CALL_FREE)
        team->discarded += handle->kind->discard(handle);
    if (kind == PP_CALL_DRAIN && handle->kind->can_give && handle->kind->can_give(handle)) {
        /* This step has nothing to wait for, so the rank has not left. */
        stays(handle);
        team->in_call = false;
        calls->finished = true;
        handle->kind->give(handle);
    }
    pp_engine_settle(calls->engine);
    return PP_OK;
}

void pp_flush_parted(const pp_handle_t *handle)
{
    pp_engine_fail(handle->engine, PP_ERR_MISMATCH, "handle %u: before this call some ranks have made other calls, or "
                   "blocks `with ctx.away():`, than others: collective calls must be in the same order on all ranks",
                   handle->id);
}

static void check_calls(const pp_handle_t *handle, uint32_t flush_calls)
{
    const uint32_t numbers = flush_calls / PP_IN_NUMBER;
    if (flush_calls & PP_IN_FLUSH && flush_calls & PP_IN_FREE)
        pp_engine_fail(handle->engine, PP_ERR_MISMATCH, "handle %u: some ranks are in Free, others in Flush or Drain: "
                       "collective calls must be in the same order on all ranks", handle->id);
    else if (numbers & (numbers - 1))
        pp_flush_parted(handle);
}

static void flushed(pp_team_t *team, pp_handle_t *handle, uint32_t flush_calls)
{
    pp_calls_t  *calls = pp_calls_of(team);
    pp_engine_t *engine = team->engine;
    check_calls(handle, flush_calls);
    handle->ended = flush_calls & PP_IN_FREE;
    if (team->exits) {
        /* The other ranks' call is over.  This one stays out, but must not fall behind their count. */
        engine->calls++;
        engine->replay = engine->changed = true;
        return;
    }
    if (calls->handle != handle || handle->leaving == PP_STAYS)
        return;
    stays(handle);
    if (calls->kind == PP_CALL_FREE) {
        calls->agreed = engine->changed = true;     /* the last messages of the handle have not come yet */
    } else {
        handle->kind->give(handle);
        pp_call_finish(calls, PP_OK);
    }
}

/* A step of a Drain ends with any round; only the last one, the flush, ends the collective call. */
static void stepped(pp_team_t *team, pp_handle_t *handle)
{
    pp_calls_t *calls = pp_calls_of(team);
    if (handle->leaving != PP_STEPS)
        return;
    stays(handle);
    calls->finished = true;
    team->in_call = false;
    team->engine->changed = true;
    handle->kind->give(handle);
}

const pp_team_ops_t pp_flush_ops = {.flushed = flushed, .stepped = stepped};

void pp_flush_explain(const pp_calls_t *calls, pp_text_t *text)
{
    bool frees = calls->kind == PP_CALL_FREE;
    if (calls->finished || (!frees && calls->kind != PP_CALL_FLUSH && calls->kind != PP_CALL_DRAIN))
        return;
    if (frees && calls->agreed)
        pp_text_add(text, "all ranks are in the call; this rank waits for the last messages of the handle\n");
    else
        calls->handle->kind->explain(calls->handle, text);
}

void pp_flush_end_free(pp_calls_t *calls)
{
    pp_handle_t *handle = calls->handle;
    if (!handle->ops->retired(handle))
        return;
    pp_handle_keep_in_step(handle, false);
    pp_engine_forget(calls->engine, handle);
    pp_handle_release(handle);
    calls->handle = NULL;
    calls->team->live_handles--;
    pp_call_finish(calls, PP_OK);
}
