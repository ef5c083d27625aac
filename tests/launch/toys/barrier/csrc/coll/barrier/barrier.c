/* barrier.c - see barrier.h. */
#include "barrier.h"

enum { COMES = PP_MSG_OWN, FLUSHES };        /* prefix.round: for the how manieth time */

static void tell_all(const pp_handle_t *handle, uint16_t kind, uint64_t number)
{
    pp_engine_t *engine = handle->engine;
    for (int32_t peer = 0; peer < engine->size; peer++) {
        pp_prefix_t message = {.kind = kind, .handle = handle->id, .round = number};
        if (peer != engine->rank)
            pp_engine_control(engine, peer, &message, sizeof message);
    }
}

static int32_t reached(const pp_handle_t *handle, const uint64_t *counts, uint64_t number)
{
    int32_t ranks = 0;
    for (int32_t rank = 0; rank < handle->engine->size; rank++)
        ranks += counts[rank] >= number;
    return ranks;
}

/* Goes on as far as it can. */
static void look(pp_handle_t *handle)
{
    pp_barrier_t *barrier = pp_barrier_of(handle);
    const int32_t me = handle->engine->rank;
    if (pp_handle_waits(handle) && reached(handle, barrier->starts, barrier->starts[me]) >= barrier->k)
        pp_team_wait_ends(handle, false, PP_COMPLETE);
    if (pp_handle_flushes(handle) && barrier->flushes[me] == barrier->flushed)
        tell_all(handle, FLUSHES, ++barrier->flushes[me]);
    if (reached(handle, barrier->flushes, barrier->flushed + 1) == handle->engine->size) {
        barrier->flushed++;
        handle->team->ops->flushed(handle->team, handle, pp_handle_flush_call(handle));
    }
}

void pp_barrier_come(pp_handle_t *handle)
{
    pp_team_wait_begins(handle, false);
    tell_all(handle, COMES, ++pp_barrier_of(handle)->starts[handle->engine->rank]);
    look(handle);
}

static void control(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message)
{
    pp_barrier_t *barrier = pp_barrier_of(handle);
    *(message->kind == COMES ? &barrier->starts[peer] : &barrier->flushes[peer]) = message->round;
    look(handle);
}

/* ---- what is asked of every kind --------------------------------------------------------------------------------- */

static pp_status_t sign(pp_handle_t *handle, pp_signature_t *signature)
{
    const int32_t k = pp_barrier_of(handle)->k;
    memcpy(signature->bytes, &k, sizeof k);
    snprintf(signature->text, sizeof signature->text, "barrier of %d ranks", k);
    return PP_OK;
}

static void explain(pp_handle_t *handle, pp_text_t *text)
{
    const pp_barrier_t *barrier = pp_barrier_of(handle);
    pp_text_add(text, "%d of %d ranks have come\n",
                reached(handle, barrier->starts, barrier->starts[handle->engine->rank]), barrier->k);
}

static void describe(pp_handle_t *handle, pp_rank_state_t *state)
{
    state->ready = state->waits = pp_handle_waits(handle);
    state->left = pp_handle_left(handle);
}

static bool retired(const pp_handle_t *handle) { return (void)handle, true; }

static const pp_handle_ops_t ops = {.control = control, .retired = retired, .explain = explain};

static pp_status_t open_handle(pp_handle_t *handle, const pp_agreed_t *agreed)
{
    pp_barrier_t *barrier = pp_barrier_of(handle);
    const size_t  ranks = (size_t)handle->engine->size;
    (void)agreed;
    handle->ops = &ops;
    barrier->starts = calloc(ranks, sizeof *barrier->starts);
    barrier->flushes = calloc(ranks, sizeof *barrier->flushes);
    return barrier->starts && barrier->flushes ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for a barrier");
}

static void empty(pp_handle_t *handle)
{
    free(pp_barrier_of(handle)->starts);
    free(pp_barrier_of(handle)->flushes);
}

static void     drop_request(pp_handle_t *handle) { pp_team_wait_ends(handle, false, PP_IDLE); }
static void     give(pp_handle_t *handle) { pp_team_wait_ends(handle, false, PP_COMPLETE); }
static uint64_t discard(pp_handle_t *handle) { return (void)handle, 0; }
static bool     in_mid_round(const pp_handle_t *handle) { return (void)handle, false; }
static uint64_t next_round(const pp_handle_t *handle) { return pp_barrier_of(handle)->starts[handle->engine->rank]; }
static bool     is_behind(const pp_handle_t *handle, uint64_t round) { return (void)handle, (void)round, false; }

static const pp_handle_kind_t kind = {
    .init = "Barrier_init", .update = look, .sign = sign, .open = open_handle, .empty = empty,
    .drop_request = drop_request, .give = give, .discard = discard, .in_mid_round = in_mid_round,
    .describe = describe, .explain = explain, .next_round = next_round, .is_behind = is_behind,
};

pp_status_t pp_barrier_new(pp_team_t *team, int32_t k, pp_handle_t **handle)
{
    pp_barrier_t *barrier = calloc(1, sizeof *barrier);
    *handle = NULL;
    if (!barrier)
        return pp_fail(PP_ERR_MEMORY, "no memory for a barrier");
    *barrier = (pp_barrier_t){.handle = {.kind = &kind, .team = team}, .k = k};
    *handle = &barrier->handle;
    return PP_OK;
}
