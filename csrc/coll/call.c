/* call.c - the collective call in progress.  See calls.h. */
#include "calls.h"

/* Whether a round has begun here and is not done. */
static bool in_mid_round(const pp_engine_t *engine)
{
    bool any = false;
    PP_FOR_EACH_HANDLE(engine, handle)
        any |= handle->kind->in_mid_round(handle);
    return any;
}

pp_status_t pp_call_check_none(const pp_calls_t *calls, const char *what)
{
    if (calls->kind == PP_CALL_NONE)
        return PP_OK;
    if (calls->kind == PP_CALL_AWAY)
        return pp_fail(PP_ERR_STATE, "%s inside ctx.away(): leave the block first, in all threads", what);
    if (calls->kind == PP_CALL_EXIT)
        return pp_fail(PP_ERR_STATE, "MPI is being finalised by another thread, and %s comes too late", what);
    return pp_fail(PP_ERR_STATE, "%s inside a collective call of this context that is still in progress: finish that "
                   "call first, or if it was interrupted leave the context by its exception", what);
}

const char *pp_call_name(int32_t call)
{
    static const char *const names[] = {
        [PP_CALL_NONE] = "", [PP_CALL_INIT] = "making a handle", [PP_CALL_FLUSH] = "Flush", [PP_CALL_DRAIN] = "Drain",
        [PP_CALL_FREE] = "Free", [PP_CALL_CTX_FREE] = "Free of the context", [PP_CALL_EXIT] = "the end of the script",
        [PP_CALL_AWAY] = "away()", [PP_CALL_MAKING] = "", [PP_CALL_START] = "Start", [PP_CALL_WAIT] = "Wait",
        [PP_CALL_TEST] = "Test", [PP_CALL_MORE] = "More"};
    return names[call];
}

pp_status_t pp_call_begin(pp_calls_t *calls, pp_call_kind_t kind, pp_handle_t *handle)
{
    PP_TRY(pp_engine_check(calls->engine));
    PP_TRY(pp_call_check_none(calls, pp_call_name(kind)));
    calls->kind = kind;
    calls->handle = handle;
    calls->finished = calls->agreed = calls->entered = calls->opened = false;
    calls->status = PP_OK;
    calls->text[0] = 0;
    pp_team_called(calls->team, kind, handle ? handle->id : 0);
    calls->team->in_call = true;
    calls->engine->changed = true;
    calls->engine->coverage.departures += in_mid_round(calls->engine);
    return PP_OK;
}

void pp_call_finish(pp_calls_t *calls, pp_status_t status)
{
    calls->status = status;
    calls->finished = true;
    calls->blocks = calls->kind == PP_CALL_AWAY ? calls->blocks + 1 : 0;
    calls->team->in_call = false;
    pp_engine_call_ended(calls->engine);
}

bool pp_call_stands(const pp_calls_t *calls)
{
    const bool agreement = calls->kind == PP_CALL_INIT || calls->kind == PP_CALL_CTX_FREE;
    const bool ends = calls->kind == PP_CALL_FLUSH || calls->kind == PP_CALL_DRAIN || calls->kind == PP_CALL_FREE;
    return calls->finished
        && ((ends && calls->engine->error == PP_ERR_PEER_FAILED) || (agreement && calls->status < 0));
}

void pp_call_tell_all(pp_calls_t *calls, pp_message_kind_t kind)
{
    for (int32_t peer = 0; peer < calls->engine->size; peer++) {
        pp_prefix_t message = {.kind = (uint16_t)kind, .round = calls->agree.round};
        if (peer != calls->engine->rank)
            pp_engine_control(calls->engine, peer, &message, sizeof message);
    }
}

void pp_call_keep_empty(pp_calls_t *calls, pp_handle_t *handle)
{
    handle->kind->empty(handle);
    handle->next = calls->emptied;
    calls->emptied = handle;
}

void pp_call_drop_unborn(pp_calls_t *calls)
{
    if (calls->kind == PP_CALL_INIT && !calls->finished && !calls->opened && calls->handle)
        pp_call_keep_empty(calls, calls->handle);
    calls->handle = NULL;
}
