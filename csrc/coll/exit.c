/* exit.c - ranks that no longer take part: scripts that have ended, contexts that were given up.  See calls.h. */
#include "calls.h"

#include <string.h>

/* A rank waits no longer than this for what is complete at another one that gave the context up. */
enum { GONE_NS = 500000000 };

bool pp_exit_is_over(const pp_calls_t *calls) { return calls->exited + calls->gone >= calls->engine->size - 1; }

static bool in_agreement(const pp_calls_t *calls)
{
    return calls->kind == PP_CALL_INIT || calls->kind == PP_CALL_CTX_FREE;
}

/* This rank may have voted, and cannot take that back: the others may agree, and then wait for it. */
static bool agreement_interrupted(const pp_calls_t *calls) { return in_agreement(calls) && !calls->finished; }

/* The peer has completed the agreement that this rank still waits for.  So all ranks have voted, the peer has sent all
   that it had to send for it, and what is missing comes from others: the agreement will be over here, too. */
bool pp_exit_is_behind(const pp_handle_t *handle, uint64_t agreed)
{
    const pp_calls_t *calls = pp_calls_of(handle->team);
    return in_agreement(calls) && !calls->agreed && agreed > calls->agree.round;
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
        PP_FOR_EACH_HANDLE(engine, handle) {
            pp_prefix_t reached = {.kind = PP_MSG_GONE, .handle = handle->id, .round = handle->kind->next_round(handle)};
            if (peer != engine->rank)
                pp_engine_control(engine, peer, &reached, sizeof reached);
        }
        if (peer != engine->rank)
            pp_engine_control(engine, peer, &message.prefix, sizeof message);
    }
    calls->told_gone = true;
}

/* The first peer has given the context up. */
static void latch(pp_calls_t *calls, int32_t peer, const pp_gone_t *message)
{
    /* What it has completed in memory that ranks share is there. */
    PP_FOR_EACH_HANDLE(calls->engine, handle)
        if (handle->ops->poll)
            handle->ops->poll(handle);
    /* An error that concerns all ranks is passed on as it is, so that all of them show the first cause. */
    const bool of_all = message->status == PP_ERR_MISMATCH || message->status == PP_ERR_PEER_FAILED;
    calls->gone_status = of_all ? message->status : PP_ERR_PEER_FAILED;
    calls->gone_until_ns = pp_engine_now(calls->engine) + GONE_NS;
    if (of_all)
        snprintf(calls->gone_text, sizeof calls->gone_text, "%s", message->text);
    else
        snprintf(calls->gone_text, sizeof calls->gone_text, "rank %d gave the context up: %s", peer, message->text);
}

void pp_exit_peer_gone(pp_calls_t *calls, int32_t peer, const pp_prefix_t *message)
{
    pp_handle_t *handle = pp_engine_handle(calls->engine, message->handle);
    if (handle && handle->gone_at > message->round)
        handle->gone_at = message->round;
    if (message->handle > 0)
        return;
    calls->gone++;
    calls->team->serves = !pp_exit_is_over(calls);
    if (calls->kind != PP_CALL_EXIT && calls->gone_status == PP_OK && !calls->engine->error)
        latch(calls, peer, (const pp_gone_t *)message);
    calls->engine->changed = true;
}

/* Something is under way here that is complete at all ranks which gave the context up.  So they have sent all that they
   had to send for it, and what is missing comes from others. */
static bool is_behind(const pp_engine_t *engine)
{
    bool behind = false;
    for (pp_walk_t walk = pp_walk_begin(&engine->handles, 0); pp_walk_on(&engine->handles, &walk);)
        behind |= walk.here->gone_at != UINT64_MAX && walk.here->kind->is_behind(walk.here, walk.here->gone_at);
    return behind;
}

void pp_exit_look_again(pp_calls_t *calls)
{
    pp_engine_t *engine = calls->engine;
    if (calls->gone_status == PP_OK)
        return;
    if (is_behind(engine) && pp_engine_now(engine) < calls->gone_until_ns)
        pp_engine_alarm(engine, calls->gone_until_ns);
    else
        pp_engine_fail(engine, calls->gone_status, "%s", calls->gone_text);
}

void pp_exit_peer_exited(pp_calls_t *calls, int32_t peer, const pp_prefix_t *message)
{
    calls->exited++;
    calls->team->serves = !pp_exit_is_over(calls);
    calls->engine->changed = true;
    if (in_agreement(calls) && !calls->agreed && !pp_exit_is_behind(&calls->agree.handle, message->round))
        pp_engine_fail(calls->engine, PP_ERR_PEER_FAILED, "this collective call can never complete: rank %d has ended "
                       "its script without freeing the context", peer);
}
