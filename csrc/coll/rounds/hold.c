/* hold.c - rounds on a board that a rank has waited long for: which ranks hold them up.  See combine.h. */
#include "time.h"
#include "combine.h"

void pp_hold_await(pp_allreduce_t *coll, uint64_t round)
{
    _Atomic uint64_t *awaited = &coll->on_board->board.shared->awaited;
    PP_STEP("say");
    uint64_t seen = atomic_load(awaited);
    while (seen < round + 1 && !atomic_compare_exchange_weak(awaited, &seen, round + 1))
        PP_STEP("say");
    coll->on_board->news = coll->handle.engine->changed = true;
}

bool pp_hold_is_awaited(const pp_allreduce_t *coll, uint64_t round)
{
    PP_STEP("look");
    return atomic_load(&coll->on_board->board.shared->awaited) == round + 1;
}

/* Tells a rank that others wait for the round, so that its clock runs, or also that it holds the round up. */
static void tell(const pp_view_t *view, pp_allreduce_t *coll, int32_t index, bool holds)
{
    pp_node_t *node = pp_node_of(coll);
    _Atomic uint64_t *lacked = &coll->on_board->board.stations[index].lacked;
    const uint64_t news = 2 * (view->round + 1) + holds;
    PP_STEP("say");
    uint64_t seen = atomic_load(lacked);
    do {
        if (seen >= news)
            return;
        PP_STEP("say");
    } while (!atomic_compare_exchange_weak(lacked, &seen, news));
    if (index != node->index)
        node->wake(node->owner, index, true);
    else
        pp_round_time_awaited(coll, view->round, holds ? PP_TOLD_THAT_IT_HOLDS : PP_TOLD_THAT_OTHERS_WAIT);
}

/* So the clocks of all ranks that the round may come to lack run together. */
static void tell_all(const pp_view_t *view, pp_allreduce_t *coll)
{
    for (int32_t index = 0; index < pp_node_of(coll)->size; index++) {
        pp_facts_t facts = pp_view_facts(view, index);
        if (!facts.waits && !pp_facts_gone(&facts))
            tell(view, coll, index, false);
    }
}

static void tell_drawn(const pp_view_t *view, pp_allreduce_t *coll, const uint64_t *draws)
{
    int32_t places = draws ? coll->rule.size : coll->rule.drawn;
    for (int32_t place = 0; place < places; place++) {
        if (draws && !pp_mask_has(draws, place))
            continue;
        pp_draw_end_t end = pp_view_follow(view, coll, place);
        if (end.verdict == PP_DRAW_KEPT)
            tell(view, coll, pp_view_index_of(coll, pp_view_drawn_at(coll, end.place)), true);
    }
}

static void tell_missing(const pp_view_t *view, pp_allreduce_t *coll, const uint64_t *ready)
{
    for (int32_t index = 0; index < pp_node_of(coll)->size; index++) {
        pp_facts_t facts = pp_view_facts(view, index);
        bool is_ready = facts.ready || (ready && pp_mask_has(ready, index));
        if (!is_ready && !pp_facts_gone(&facts))
            tell(view, coll, index, true);
    }
}

void pp_hold_tell(const pp_view_t *view, pp_allreduce_t *coll, bool activated, const uint64_t *draws,
                  const uint64_t *ready)
{
    const pp_board_t *board = &coll->on_board->board;
    tell_all(view, coll);
    if (!activated && coll->rule.trigger == PP_BY_DRAW)
        tell_drawn(view, coll, draws);
    else if (!activated && coll->rule.trigger == PP_BY_COUNT)
        tell_missing(view, coll, ready);
    for (int32_t index = 0; coll->bounded && index < board->ranks; index++) {
        PP_STEP("decide");
        if (view->round >= atomic_load(&board->stations[index].limit) && pp_view_withholds(view, index))
            tell(view, coll, index, true);
    }
}

pp_told_t pp_hold_told(const pp_allreduce_t *coll)
{
    PP_STEP("look");
    const uint64_t lacked = atomic_load(&pp_board_own(&coll->on_board->board)->lacked);
    if (lacked / 2 != coll->completed + 1)
        return PP_TOLD_NOTHING;
    return lacked % 2 ? PP_TOLD_THAT_IT_HOLDS : PP_TOLD_THAT_OTHERS_WAIT;
}

/* This rank was not told why it holds the round up: because of a draw that has reached it, a count, or its bound.  So
   it asks the rules as a rank that is drawn and has no bound: has it done anything since that takes it out? To wait on
   another handle now and then does not count, because nothing latches that here, and its patience would begin anew
   each time.  A rank that waits was ready when it began to wait, even if its part has been taken since. */
bool pp_hold_holds_up(pp_allreduce_t *coll)
{
    pp_view_t  view = pp_view_of(coll, coll->completed);
    pp_facts_t facts = pp_view_facts(&view, pp_node_of(coll)->index);
    facts.elsewhere = false;
    facts.ready = facts.waits;
    return pp_hold_told(coll) == PP_TOLD_THAT_IT_HOLDS
        && pp_rule_holds_up(&coll->rule, &facts, true, false, view.round, PP_UNBOUNDED);
}
