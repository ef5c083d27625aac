/* exit.c - ranks that no longer take part: scripts that have ended, contexts that were given up.  See calls.h. */
#include "calls.h"

#include <string.h>

bool pp_exit_is_over(const pp_calls_t *calls) { return calls->exited + calls->gone >= calls->engine->size - 1; }

static bool in_agreement(const pp_calls_t *calls)
{
    return calls->kind == PP_CALL_INIT || calls->kind == PP_CALL_CTX_FREE;
}

/* This rank may have voted, and cannot take that back: the others may agree, and then wait for it. */
static bool agreement_interrupted(const pp_calls_t *calls) { return in_agreement(calls) && !calls->finished; }

/* The peer has completed the agreement that this rank still waits for.  So all ranks have voted, the peer has sent all
   that it had to send for it, and what is missing comes from others: the agreement will be over here, too. */
static bool is_ahead(const pp_calls_t *calls, const pp_prefix_t *message)
{
    return in_agreement(calls) && !calls->agreed && message->round > calls->agree.round;
}

void pp_exit_begin(pp_calls_t *calls)
{
    pp_engine_t *engine = calls->engine;
    if (calls->closing)      /* all ranks free the context: this one waits for their last messages, and sends none */
        return;
    if (agreement_interrupted(calls)) {
        pp_engine_fail(engine, PP_ERR_STATE, "its script ended inside a collective call");
        pp_exit_tell_gone(calls);
        return;
    }
    PP_FOR_EACH_HANDLE(engine, handle) {
        handle->kind->drop_request(handle);
        handle->leaving = PP_STAYS;
    }
    pp_call_drop_unborn(calls);
    calls->kind = PP_CALL_EXIT;
    calls->finished = false;
    calls->status = PP_OK;
    calls->team->exits = calls->team->in_call = engine->changed = true;
    calls->team->serves = !pp_exit_is_over(calls);
    pp_call_tell_all(calls, PP_MSG_EXIT);
    pp_engine_settle(engine);
}

void pp_exit_tell_gone(pp_calls_t *calls)
{
    pp_engine_t *engine = calls->engine;
    for (int32_t peer = 0; !calls->told_gone && !calls->closing && peer < engine->size; peer++) {
        pp_gone_t message = {.prefix = {.kind = PP_MSG_GONE, .round = calls->agree.round}, .status = engine->error};
        memcpy(message.text, engine->error_text, sizeof message.text);
        if (peer != engine->rank)
            pp_engine_control(engine, peer, &message.prefix, sizeof message);
    }
    calls->told_gone = true;
}

void pp_exit_peer_gone(pp_calls_t *calls, int32_t peer, const pp_gone_t *message)
{
    calls->gone++;
    calls->team->serves = !pp_exit_is_over(calls);
    calls->engine->changed = true;
    if (calls->kind == PP_CALL_EXIT)
        return;
    /* An error that concerns all ranks is passed on as it is, so that all of them show the first cause. */
    const bool   of_all = message->status == PP_ERR_MISMATCH || message->status == PP_ERR_PEER_FAILED;
    pp_status_t  status = of_all ? message->status : PP_ERR_PEER_FAILED;
    char         text[sizeof calls->gone_text];
    if (of_all)
        snprintf(text, sizeof text, "%s", message->text);
    else
        snprintf(text, sizeof text, "rank %d gave the context up: %s", peer, message->text);
    if (!is_ahead(calls, &message->prefix)) {
        pp_engine_fail(calls->engine, status, "%s", text);
    } else if (calls->gone_status == PP_OK) {
        calls->gone_status = status;
        memcpy(calls->gone_text, text, sizeof text);
    }
}

void pp_exit_look_again(pp_calls_t *calls)
{
    if (calls->gone_status < 0 && (calls->agreed || !in_agreement(calls)))
        pp_engine_fail(calls->engine, calls->gone_status, "%s", calls->gone_text);
}

void pp_exit_peer_exited(pp_calls_t *calls, int32_t peer, const pp_prefix_t *message)
{
    calls->exited++;
    calls->team->serves = !pp_exit_is_over(calls);
    calls->engine->changed = true;
    if (in_agreement(calls) && !calls->agreed && !is_ahead(calls, message))
        pp_engine_fail(calls->engine, PP_ERR_PEER_FAILED, "this collective call can never complete: rank %d has ended "
                       "its script without freeing the context", peer);
}
