/* say.c - what a rank says to the others of its node by its station.  See combine.h. */
#include "combine.h"

uint64_t pp_say_state_of(const pp_allreduce_t *coll)
{
    const pp_combine_t *combine = coll->on_board;
    /* A rank that is out says so by its presence. */
    pp_leaving_t leaves = coll->handle.team->exits ? PP_STAYS : coll->handle.leaving;
    uint64_t round = coll->completed, state = pp_handle_aside(&coll->handle) ? PP_WORD_ASIDE : 0;
    if (pp_rounds_asks(coll))
        state |= PP_WORD_WAITS | (combine->direct ? PP_WORD_DIRECT : 0)
               | (coll->time.overdue ? PP_WORD_OVERDUE : 0);
    else if (leaves == PP_STAYS)
        return state;
    else
        state |= (uint64_t)leaves << PP_WORD_LEAVING_SHIFT;
    if (leaves == PP_FLUSHES || leaves == PP_FREES)
        round = combine->flushes;
    return state | pp_word_round_bits(round) << PP_WORD_ROUND_SHIFT;
}

/* The oldest round whose ring entry this rank still needs. */
uint64_t pp_say_absorbed(const pp_allreduce_t *coll)
{
    const pp_combine_t *combine = coll->on_board;
    uint64_t least = coll->completed;
    const pp_outcome_t *given = coll->request.outcome ? coll->request.outcome : coll->copied;
    if (coll->handle.team->exits)
        return UINT64_MAX;
    for (uint32_t i = 0; i < combine->read_count; i++)
        if (combine->reads[i].round < least)
            least = combine->reads[i].round;
    if (given && given->lies == PP_IN_RING && given->round < least)
        least = given->round;
    for (const pp_outcome_t *outcome = coll->ungiven; outcome; outcome = outcome->next)
        if (outcome->lies == PP_IN_RING && outcome->round < least)
            least = outcome->round;
    return least;
}

/* The limit that other ranks look at. */
uint64_t pp_say_limit(const pp_allreduce_t *coll) { return coll->bounded ? pp_rounds_bound(coll) : UINT64_MAX; }

/* Publishes limit and absorbed; returns whether one had changed. */
bool pp_say_bounds(pp_allreduce_t *coll)
{
    bool news = false;
    pp_combine_t *combine = coll->on_board;
    pp_station_t *own = pp_board_own(&combine->board);
    uint64_t rounds = pp_say_limit(coll), needed = pp_say_absorbed(coll);
    if (rounds != combine->limit) {
        combine->limit = rounds;
        PP_STEP("say");
        atomic_store(&own->limit, rounds);
        news = true;
    }
    /* With PP_LATEST only the result of a flush must stay. */
    if (needed != combine->absorbed && (pp_combine_keeps_all(coll) || combine->absorbed < combine->flushed)) {
        combine->absorbed = needed;
        PP_STEP("say");
        atomic_store(&own->absorbed, needed);
        news = true;
    }
    return news;
}

/* Publishes the state.  A stale WAITS, for a round that is complete, is harmless, and stays. */
bool pp_say_state(pp_allreduce_t *coll)
{
    pp_board_t *board = &coll->on_board->board;
    uint64_t state = pp_say_state_of(coll);
    bool over = (board->state & PP_WORD_WAITS) && !pp_word_is_of(board->state, coll->completed);
    return (state || !over) && pp_station_say(board, state);
}

bool pp_say_given(pp_allreduce_t *coll)
{
    uint64_t before = coll->on_board->absorbed;
    pp_say_bounds(coll);
    if (coll->on_board->absorbed == before)
        return false;
    /* A round may have waited for the entry. */
    coll->on_board->news = coll->handle.engine->changed = true;
    return true;
}
