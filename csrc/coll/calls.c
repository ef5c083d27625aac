/* calls.c - the collective calls of a context, driven by the engine.  See calls.h. */
#include "calls.h"

#include <stdlib.h>

/* Ends the call in progress if it is over. */
static void end_call(pp_calls_t *calls)
{
    /* This rank is about to be back: rounds until now were made while it had left.  Not those of the call's own handle:
       it has just been made, or ends. */
    if (calls->agreed)
        pp_team_count_as_given(calls->team, calls->handle);
    if (calls->kind == PP_CALL_EXIT)
        calls->finished = pp_exit_is_over(calls);
    else if (calls->agreed && calls->kind == PP_CALL_INIT)
        pp_agreement_end_init(calls);
    else if (calls->agreed && calls->kind == PP_CALL_FREE)
        pp_flush_end_free(calls);
    else if (calls->agreed && calls->kind == PP_CALL_CTX_FREE)
        pp_agreement_end_ctx_free(calls);
}

static void update(pp_handle_t *handle)
{
    pp_calls_t *calls = pp_calls_of(handle->team);
    pp_agreement_vote(calls);
    if (!calls->finished)
        end_call(calls);
    pp_exit_look_again(calls);
}

static void operation(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message, size_t bytes)
{
    pp_series_receive(&pp_calls_of(handle->team)->agree.series, peer, message, bytes);
}

static void replay(pp_handle_t *handle) { pp_series_replay_early(&pp_calls_of(handle->team)->agree.series); }

/* Handle 0, on which the ranks vote. */
static const pp_handle_kind_t agreement = {.update = update, .is_behind = pp_exit_is_behind};
static const pp_handle_ops_t  votes = {.operation = operation, .replay = replay};

/* Messages of the context. */
static void control(void *owner, int32_t peer, const pp_prefix_t *message)
{
    pp_calls_t *calls = owner;
    switch (message->kind) {
    case PP_MSG_ASK:   pp_ask_answer(calls, peer, (const pp_tell_t *)message); break;
    case PP_MSG_TELL:  pp_ask_told(calls, peer, (const pp_tell_t *)message); break;
    case PP_MSG_CLOSE: calls->closed++; calls->engine->changed = true; break;
    case PP_MSG_EXIT:  pp_exit_peer_exited(calls, peer, message); break;
    case PP_MSG_GONE:  pp_exit_peer_gone(calls, peer, message); break;
    }
}

static _Atomic int32_t in_step_in_process;

pp_status_t pp_calls_open(pp_calls_t *calls, pp_team_t *team, pp_engine_t *engine, int32_t window)
{
    *team = (pp_team_t){.engine = engine, .window = window, .patience_ns = PP_FOR_EVER, .ops = &pp_flush_ops,
                        .calls = calls};
    team->in_step = PP_SIM ? &team->in_step_here : &in_step_in_process;
    *calls = (pp_calls_t){.team = team, .engine = engine};
    engine->control = control;
    engine->owner = calls;
    return pp_agreement_open(calls, &agreement, &votes);
}

void pp_calls_close(pp_calls_t *calls)
{
    pp_call_drop_unborn(calls);
    pp_engine_t *engine = calls->engine;
    if (!engine)
        return;
    PP_FOR_EACH_HANDLE(engine, handle) {
        pp_handle_keep_in_step(handle, false);
        pp_engine_forget(engine, handle);
        pp_call_keep_empty(calls, handle);
    }
    pp_series_close(&calls->agree.series);
    pp_team_close(calls->team);
    calls->engine = NULL;
}

void pp_calls_end(pp_calls_t *calls)
{
    for (pp_handle_t *handle; (handle = calls->emptied);) {
        calls->emptied = handle->next;
        free(handle);
    }
}
