/* ask.c - "what are you doing?": a rank that waits too long asks, the other ranks' engines answer. */
#include "calls.h"

#include <string.h>

static void describe_activity(const pp_calls_t *calls, pp_rank_state_t *state)
{
    if (calls->team->in_call) {
        state->activity = PP_IN_CALL;
        state->call = calls->kind;
        /* A handle that is being made gets its id when the ranks have agreed, which one may know before another. */
        state->handle = calls->handle && calls->kind != PP_CALL_INIT ? calls->handle->id : 0;
        return;
    }
    state->activity = PP_COMPUTING;
    PP_FOR_EACH_HANDLE(calls->engine, handle)
        if (pp_handle_waits(handle) && state->activity == PP_COMPUTING) {
            state->activity = PP_WAITING;
            state->handle = handle->id;
            state->round = handle->kind->next_round(handle);
        }
}

static pp_handle_t *find(const pp_calls_t *calls, uint32_t id)
{
    return id > 0 ? pp_engine_handle(calls->engine, id) : NULL;
}

static void describe(const pp_calls_t *calls, uint32_t id, pp_rank_state_t *state)
{
    pp_handle_t *handle = find(calls, id);
    *state = (pp_rank_state_t){.answered = 1, .calls = calls->engine->calls, .last = calls->team->last.call,
                               .last_handle = calls->team->last.handle, .blocks = calls->blocks, .place = -1};
    describe_activity(calls, state);
    if (handle)
        handle->kind->describe(handle, state);
}

static void ask_all(pp_calls_t *calls, uint32_t handle, uint64_t number, const pp_rank_state_t *mine)
{
    pp_engine_t *engine = calls->engine;
    for (int32_t peer = 0; !calls->closing && peer < engine->size; peer++) {
        pp_tell_t message = {.prefix = {.kind = PP_MSG_ASK, .handle = handle, .round = number},
                             .state = *mine};
        if (peer != engine->rank)
            pp_engine_control(engine, peer, &message.prefix, sizeof message);
    }
}

static void name_call(const pp_rank_state_t *state, char *name, size_t bytes)
{
    static const char *const calls[] = {
        [PP_CALL_FLUSH] = "Flush", [PP_CALL_DRAIN] = "Drain", [PP_CALL_FREE] = "Free"};
    if (state->call == PP_CALL_INIT)
        snprintf(name, bytes, "the init of a handle");
    else if (state->call == PP_CALL_CTX_FREE)
        snprintf(name, bytes, "Free of the context");
    else if (state->call == PP_CALL_AWAY)
        snprintf(name, bytes, "away()");
    else
        snprintf(name, bytes, "%s of handle %u", calls[state->call], state->handle);
}

/* One rank is inside another collective call than the block that the other one has made as its call of that number.  A
   block waits for nobody, but all that follow would: so these are blocks, too. */
static bool has_parted(const pp_rank_state_t *inside, const pp_rank_state_t *other)
{
    return inside->activity == PP_IN_CALL && inside->call != PP_CALL_EXIT && inside->call != PP_CALL_AWAY
        && other->calls > inside->calls && other->calls - other->blocks <= inside->calls;
}

static void refuse_block(pp_calls_t *calls, int32_t in, const pp_rank_state_t *inside, int32_t out)
{
    char name[40];
    name_call(inside, name, sizeof name);
    pp_engine_fail(calls->engine, PP_ERR_MISMATCH, "rank %d is in %s, and rank %d has made a block `with ctx.away():` "
                   "in its place: collective calls must be in the same order on all ranks", in, name, out);
}

/* Two ranks inside collective calls of one number are in the same call, or they will never come out. */
static void compare_calls(pp_calls_t *calls, int32_t peer, const pp_rank_state_t *theirs)
{
    pp_rank_state_t mine;
    char here[40], there[40];
    describe(calls, 0, &mine);
    if (has_parted(&mine, theirs))
        refuse_block(calls, calls->engine->rank, &mine, peer);
    if (has_parted(theirs, &mine))
        refuse_block(calls, peer, theirs, calls->engine->rank);
    if (mine.activity != PP_IN_CALL || theirs->activity != PP_IN_CALL || mine.calls != theirs->calls
        || mine.call == PP_CALL_EXIT || theirs->call == PP_CALL_EXIT
        || (mine.call == theirs->call && mine.handle == theirs->handle))
        return;
    name_call(&mine, here, sizeof here);
    name_call(theirs, there, sizeof there);
    pp_engine_fail(calls->engine, PP_ERR_MISMATCH, "rank %d is in %s and rank %d in %s: collective calls "
                   "must be in the same order on all ranks", calls->engine->rank, here, peer, there);
}

void pp_ask_begin(pp_calls_t *calls, uint32_t handle, pp_rank_state_t *answers, pp_question_t *question)
{
    pp_engine_t *engine = calls->engine;
    *question = (pp_question_t){.next = calls->questions, .number = ++calls->ask_number,
                                .answers = answers, .missing = engine->size - 1};
    calls->questions = question;
    memset(answers, 0, (size_t)engine->size * sizeof *answers);
    describe(calls, handle, &answers[engine->rank]);
    ask_all(calls, handle, question->number, &answers[engine->rank]);
}

void pp_ask_order(pp_calls_t *calls)
{
    pp_rank_state_t mine;
    describe(calls, 0, &mine);
    ask_all(calls, 0, 0, &mine);
}

bool pp_ask_answered(const pp_question_t *question) { return question->missing == 0; }

void pp_ask_end(pp_calls_t *calls, pp_question_t *question)
{
    pp_question_t **link = &calls->questions;
    while (*link != question)
        link = &(*link)->next;
    *link = question->next;
}

void pp_ask_answer(pp_calls_t *calls, int32_t peer, const pp_tell_t *question)
{
    const pp_prefix_t *asked = &question->prefix;
    pp_tell_t answer = {.prefix = {.kind = PP_MSG_TELL, .handle = asked->handle, .round = asked->round}};
    /* While it computes, other ranks make rounds in memory that they share. */
    pp_handle_t *handle = find(calls, asked->handle);
    if (handle)
        handle->kind->update(handle);
    describe(calls, asked->handle, &answer.state);
    if (!calls->closing)
        pp_engine_control(calls->engine, peer, &answer.prefix, sizeof answer);
    compare_calls(calls, peer, &question->state);
}

/* An answer counts only for its own question, not for a later one. */
void pp_ask_told(pp_calls_t *calls, int32_t peer, const pp_tell_t *answer)
{
    for (pp_question_t *question = calls->questions; question; question = question->next)
        if (question->number == answer->prefix.round) {
            question->answers[peer] = answer->state;
            question->missing--;
        }
    compare_calls(calls, peer, &answer->state);
}
