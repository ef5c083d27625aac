/* ask.c - "what are you doing?": asked by a rank that waits too long, answered by the engines. */
#include "coll.h"

#include <string.h>

static pp_coll_t *find_coll(const pp_engine_t *engine, uint32_t handle)
{
    bool known = handle > 0 && handle < engine->series_count && engine->series[handle];
    return known ? engine->series[handle]->owner : NULL;
}

static void describe_activity(const pp_calls_t *calls, pp_rank_state_t *state)
{
    const pp_engine_t *engine = calls->engine;
    if (engine->in_call) {
        state->activity = PP_IN_CALL;
        state->handle = calls->coll ? calls->coll->series.id : 0;
        return;
    }
    state->activity = PP_COMPUTING;
    for (size_t i = 1; i < engine->series_count; i++) {
        pp_coll_t *coll = find_coll(engine, (uint32_t)i);
        if (coll && pp_coll_waits(coll)) {
            state->activity = PP_WAITING;
            state->handle = coll->series.id;
            state->round = coll->completed;
            return;
        }
    }
}

static void describe(const pp_calls_t *calls, uint32_t handle, pp_rank_state_t *state)
{
    pp_coll_t *coll = find_coll(calls->engine, handle);
    *state = (pp_rank_state_t){.answered = 1, .calls = calls->engine->calls};
    describe_activity(calls, state);
    if (!coll)
        return;
    state->completed = coll->completed;
    state->joined = coll->taken;
    pp_turn_t *turn = pp_coll_turn(coll, coll->taken);
    state->ready = turn && turn->ready;
    state->drawn = pp_policy_drawn(coll);
    state->withholding = pp_coll_withholds(coll);
}

void pp_ask_begin(pp_calls_t *calls, uint32_t handle, pp_rank_state_t *answers, pp_question_t *question)
{
    pp_engine_t *engine = calls->engine;
    *question = (pp_question_t){.next = calls->questions, .number = ++calls->ask_number,
                                .answers = answers, .missing = engine->size - 1};
    calls->questions = question;
    memset(answers, 0, (size_t)engine->size * sizeof *answers);
    describe(calls, handle, &answers[engine->rank]);
    for (int32_t peer = 0; peer < engine->size; peer++) {
        pp_prefix_t message = {.kind = PP_MSG_ASK, .handle = handle, .round = question->number};
        if (peer != engine->rank)
            pp_engine_control(engine, peer, &message, sizeof message);
    }
}

bool pp_ask_answered(const pp_question_t *question) { return question->missing == 0; }

void pp_ask_end(pp_calls_t *calls, pp_question_t *question)
{
    pp_question_t **link = &calls->questions;
    while (*link != question)
        link = &(*link)->next;
    *link = question->next;
}

void pp_ask_answer(pp_calls_t *calls, int32_t peer, const pp_prefix_t *question)
{
    pp_tell_t answer = {.prefix = {.kind = PP_MSG_TELL, .handle = question->handle,
                                   .round = question->round}};
    describe(calls, question->handle, &answer.state);
    pp_engine_control(calls->engine, peer, &answer.prefix, sizeof answer);
}

/* An answer to a question that was given up on is of no use to the next one. */
void pp_ask_told(pp_calls_t *calls, int32_t peer, const pp_tell_t *answer)
{
    for (pp_question_t *question = calls->questions; question; question = question->next)
        if (question->number == answer->prefix.round) {
            question->answers[peer] = answer->state;
            question->missing--;
        }
}
