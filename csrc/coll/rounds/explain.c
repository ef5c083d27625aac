/* explain.c - which ranks a round on a board waits for, and what they are doing, as the board shows.  See combine.h. */
#include "combine.h"

/* ---- one rank ------------------------------------------------------------------------------------------------- */

static const char *in_which_call(const pp_view_t *view, int32_t index)
{
    static const char *const calls[] = {
        [PP_STAYS] = "inside a collective call", [PP_FLUSHES] = "inside Flush of this handle",
        [PP_FREES] = "inside Free of this handle", [PP_STEPS] = "inside Drain of this handle"};
    return calls[pp_word_leaving(pp_view_word(view->coll, index), view->round, view->flushes)];
}

static const char *does(const pp_view_t *view, int32_t index, const pp_facts_t *facts)
{
    if (facts->out)
        return "its script has ended";
    if (facts->left)
        return in_which_call(view, index);
    if (facts->waits)
        return facts->pending ? "waiting for the round" : "waiting for the round, with nothing pending";
    if (pp_view_elsewhere(view, index))
        return "waiting on another handle";
    if (facts->aside)
        return "computing; it has left the handle by patience";
    return facts->pending ? "computing; it has started, but does not wait" : "computing";
}

static void list(const pp_view_t *view, int32_t index, const pp_facts_t *facts, pp_listing_t *listing)
{
    pp_listing_add(listing, pp_rank_at(view->coll, index), does(view, index, facts));
}

/* ---- which ranks bring the round about ------------------------------------------------------------------------ */

/* Another node has brought the round about: it waits for the part of this node. */
static bool is_on(const pp_view_t *view)
{
    return !view->coll->on_board->way->alone && pp_signal_is_activated(view->coll, view->round);
}

static void explain_due(const pp_view_t *view, pp_text_t *text)
{
    pp_text_add(text, "round %llu is %s\n", (unsigned long long)view->round, is_on(view) ? "activated" : "due");
}

static void list_drawn(const pp_view_t *view, pp_allreduce_t *coll, const pp_draw_end_t *end, pp_listing_t *listing)
{
    int32_t rank = pp_view_drawn_at(coll, end->place), index = pp_view_index_of(coll, rank);
    if (index < 0) {
        pp_listing_add(listing, rank, "on another node");
    } else {
        pp_facts_t facts = pp_view_facts(view, index);
        list(view, index, &facts, listing);
    }
}

/* The ranks at which the draws end. */
static void explain_draws(const pp_view_t *view, pp_allreduce_t *coll, pp_text_t *text)
{
    char before[80];
    snprintf(before, sizeof before, "round %llu is not activated; drawn to trigger it: ",
             (unsigned long long)view->round);
    pp_listing_t listing = {.text = text, .before = before};
    for (int32_t place = 0; place < coll->rule.drawn; place++) {
        pp_draw_end_t end = pp_view_follow(view, coll, place);
        if (end.verdict == PP_DRAW_KEPT || end.verdict == PP_DRAW_OUT_OF_SIGHT)
            list_drawn(view, coll, &end, &listing);
    }
    if (!pp_listing_end(&listing, ""))
        explain_due(view, text);
}

static void list_not_ready(const pp_view_t *view, bool gone, const char *before, pp_text_t *text)
{
    pp_listing_t listing = {.text = text, .before = before};
    for (int32_t index = 0; index < pp_node_of(view->coll)->size; index++) {
        pp_facts_t facts = pp_view_facts(view, index);
        if (!facts.ready && pp_facts_gone(&facts) == gone)
            list(view, index, &facts, &listing);
    }
    pp_listing_end(&listing, "");
}

static void explain_count(const pp_view_t *view, pp_text_t *text)
{
    const pp_allreduce_t *coll = view->coll;
    const pp_rule_t *rule = &coll->rule;
    int32_t    size = pp_node_of(coll)->size;
    pp_count_t count = {0};
    pp_cause_t cause;
    for (int32_t index = 0; index < size; index++) {
        pp_facts_t facts = pp_view_facts(view, index);
        pp_rule_count(&count, &facts);
    }
    if (pp_rule_enough(rule, &count, &cause)) {
        explain_due(view, text);
        return;
    }
    pp_text_add(text, "round %llu is %s: %u of %d ranks%s are ready", (unsigned long long)view->round,
                is_on(view) ? "activated" : "not activated", count.ready, size,
                coll->on_board->way->alone ? "" : " of this node");
    if (!rule->lockstep)
        pp_text_add(text, ", and its policy needs %d", rule->needed);
    pp_text_add(text, "\n");
    list_not_ready(view, false, "not ready: ", text);
    list_not_ready(view, true, "not ready, but not waited for because they have left: ", text);
}

/* Ranks whose parts max_lag holds back: the round stands still even when it is due. */
static void explain_bounds(const pp_view_t *view, pp_text_t *text)
{
    const pp_allreduce_t *coll = view->coll;
    pp_listing_t listing = {.text = text, .before = "withheld from it by max_lag: "};
    for (int32_t index = 0; coll->bounded && index < pp_node_of(coll)->size; index++) {
        PP_STEP("decide");
        uint64_t rounds = atomic_load(&coll->on_board->board.stations[index].limit);
        pp_facts_t facts = pp_view_facts(view, index);
        if (view->round >= rounds && pp_view_withholds(view, index))
            list(view, index, &facts, &listing);
    }
    pp_listing_end(&listing, "");
}

static void explain_rule(const pp_view_t *view, pp_allreduce_t *coll, pp_text_t *text)
{
    if (coll->rule.lockstep)
        explain_count(view, text);
    else if (coll->rule.trigger == PP_BY_ANYBODY || is_on(view))
        explain_due(view, text);
    else if (coll->rule.trigger == PP_BY_DRAW)
        explain_draws(view, coll, text);
    else
        explain_count(view, text);
    explain_bounds(view, text);
}

/* ---- this rank is inside Flush, Drain or Free ------------------------------------------------------------------ */

static void explain_flush(const pp_view_t *view, pp_text_t *text)
{
    const pp_allreduce_t *coll = view->coll;
    pp_listing_t listing = {.text = text, .before = "not in the call: "};
    for (int32_t index = 0; index < pp_node_of(coll)->size; index++) {
        pp_facts_t facts = pp_view_facts(view, index);
        if (!pp_view_flushes(view, index))
            list(view, index, &facts, &listing);
    }
    if (!pp_listing_end(&listing, ""))
        pp_text_add(text, "all ranks%s are in the call\n", coll->on_board->way->alone ? "" : " of this node");
}

/* ---- all of it ------------------------------------------------------------------------------------------------- */

static void explain_taken(const pp_allreduce_t *coll, uint64_t turn, pp_text_t *text)
{
    pp_text_add(text, "round %llu is being reduced", (unsigned long long)pp_turn_round(turn));
    if (pp_turn_phase(turn) == PP_AWAY)
        pp_text_add(text, " between nodes\n");
    else
        pp_text_add(text, "; rank %d has claimed it\n",
                    pp_rank_at(coll, (int32_t)(turn >> PP_TURN_OWNER_SHIFT & PP_TURN_OWNER)));
}

void pp_on_board_explain(pp_handle_t *handle, pp_text_t *text)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    uint64_t  turn = pp_board_turn(&coll->on_board->board);
    pp_view_t view = pp_view_of(coll, coll->completed);
    if (pp_turn_round(turn) != coll->completed)
        pp_text_add(text, "round %llu is complete, and this rank is about to take its result\n",
                    (unsigned long long)coll->completed);
    else if (coll->handle.leaving != PP_STAYS && (!pp_turn_taken(turn) || pp_turn_phase(turn) == PP_AWAY))
        explain_flush(&view, text);
    else if (pp_turn_taken(turn))
        explain_taken(coll, turn, text);
    else
        explain_rule(&view, coll, text);
}
