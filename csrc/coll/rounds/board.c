/* board.c - rounds of ranks that are all on one node.  See combine.h. */
#include "combine.h"

enum {
    GRACE_BYTES = 49152,             /* vectors from this size on have an automatic grace; see grace_ns() */
    GRACE_BYTES_A_NS = 32,
    GRACE_NS_MAX = 20000,
    LONG_GRACE_BYTES_A_NS = 4,
    LONG_GRACE_NS_MAX = 20000000,
    LATECOMERS_MAX = 8               /* halved in each round without latecomers */
};

/* ---- is the round due? ------------------------------------------------------------------------------------ */

/* Whether all ranks flush.  Ranks that are out go along with any flush, but ask for none. */
static bool all_flush(const pp_view_t *view)
{
    bool any = false;
    for (int32_t rank = 0; rank < pp_node_of(view->coll)->size; rank++) {
        if (!pp_view_flushes(view, rank))
            return false;
        any |= !pp_node_out(pp_node_of(view->coll), rank);
    }
    return any;
}

static void trigger(pp_combine_t *combine, int32_t rank, pp_cause_t cause)
{
    combine->triggered += !pp_mask_has(combine->triggers, rank);
    pp_mask_add(combine->triggers, rank);
    pp_mask_add(combine->ready, rank);
    if (combine->cause < (uint32_t)cause)
        combine->cause = cause;
}

/* Ranks whose deadline is over trigger, whichever ranks are drawn. */
static void deadlines_trigger(const pp_view_t *view, pp_allreduce_t *coll)
{
    for (int32_t rank = 0; coll->rule.deadline && rank < coll->rule.size; rank++) {
        uint64_t word = pp_view_word(coll, rank);
        if (pp_word_waits(word, view->round) && (word & PP_WORD_OVERDUE))
            trigger(coll->on_board, rank, PP_CAUSE_DEADLINE);
    }
}

static bool draws_trigger(const pp_view_t *view, pp_allreduce_t *coll)
{
    const pp_rule_t *rule = &coll->rule;
    for (int32_t place = 0; place < rule->drawn; place++) {
        pp_draw_end_t end = pp_view_follow(view, coll, place);
        if (end.verdict == PP_DRAW_TRIGGERS)
            trigger(coll->on_board, pp_view_drawn_at(coll, end.place), pp_rule_draw_cause(rule, end.place));
        coll->handle.engine->coverage.draws_handed_on += (uint64_t)end.hops;
    }
    if (coll->on_board->triggered == 0)
        deadlines_trigger(view, coll);
    return coll->on_board->triggered > 0;
}

static bool anybody_triggers(const pp_view_t *view, pp_allreduce_t *coll)
{
    for (int32_t rank = 0; rank < coll->handle.engine->size; rank++)
        if (pp_word_waits(pp_view_word(coll, rank), view->round))
            trigger(coll->on_board, rank, PP_CAUSE_POLICY);
    return coll->on_board->triggered > 0;
}

static bool enough_are_ready(const pp_view_t *view, pp_allreduce_t *coll)
{
    const pp_rule_t *rule = &coll->rule;
    pp_combine_t *combine = coll->on_board;
    pp_count_t    count = {0};
    for (int32_t rank = 0; rank < rule->size; rank++) {
        pp_facts_t facts = pp_view_facts(view, rank);
        pp_rule_count(&count, &facts);
        if (facts.ready)
            pp_mask_add(combine->ready, rank);
        /* One rank that is not ready decides. */
        if (rule->lockstep && !facts.ready && !view->away)
            return false;
    }
    pp_cause_t cause;
    bool enough = pp_rule_enough(rule, &count, &cause);
    combine->cause = cause;
    return enough;
}

static bool is_brought_about(const pp_view_t *view, pp_allreduce_t *coll)
{
    if (coll->rule.lockstep || coll->rule.trigger == PP_BY_COUNT)
        return enough_are_ready(view, coll);
    return coll->rule.trigger == PP_BY_DRAW ? draws_trigger(view, coll) : anybody_triggers(view, coll);
}

/* Whether the round is due.  Writes the ranks that bring it about into coll->on_board. */
static bool decide(pp_allreduce_t *coll, uint64_t round)
{
    pp_combine_t *combine = coll->on_board;
    pp_view_t view = pp_view_of(coll, round);
    pp_rounds_mask_clear(coll, combine->triggers);
    pp_rounds_mask_clear(coll, combine->ready);
    combine->triggered = 0;
    combine->cause = PP_CAUSE_POLICY;
    if (view.away && all_flush(&view))
        return true;
    bool activated = is_brought_about(&view, coll);
    if (activated && pp_view_permit(&view))
        return true;
    if (pp_hold_is_awaited(coll, round))
        pp_hold_tell(&view, coll, activated, NULL, NULL);
    return false;
}

/* ---- grace --------------------------------------------------------------------------------------------------- */

/* The size of a vector where the library asks whether it is large. */
static size_t weight_bytes(const pp_allreduce_t *coll)
{
    return coll->on_board->board.vector_bytes * pp_node_of(coll)->magnify;
}

/* Whether a round that is due waits a moment for ranks that come a little later.  With large vectors one round of all
   ranks is much cheaper than two rounds of some: a rank that was late copies what the others get in place, and so comes
   late again. */
static bool has_grace(const pp_allreduce_t *coll)
{
    if (coll->grace_ns == PP_GRACE_AUTO)
        return weight_bytes(coll) >= GRACE_BYTES;
    return coll->grace_ns > 0;
}

/* The longest that a round of the handle may wait. */
static uint64_t longest_ns(const pp_allreduce_t *coll)
{
    return coll->grace_ns == PP_GRACE_AUTO ? LONG_GRACE_NS_MAX : coll->grace_ns;
}

/* The handle's grace.  If that is automatic: much less than the time of a round; or, if ranks have lately come too
   late by little, about the time that a late rank takes. */
static uint64_t grace_ns(const pp_allreduce_t *coll)
{
    size_t bytes = weight_bytes(coll);
    if (coll->grace_ns != PP_GRACE_AUTO)
        return coll->grace_ns;
    PP_STEP("ripen");
    bool     late = atomic_load_explicit(&coll->on_board->board.shared->latecomers, memory_order_relaxed) > 0;
    uint64_t ns = bytes / (late ? LONG_GRACE_BYTES_A_NS : GRACE_BYTES_A_NS);
    uint64_t most = late ? LONG_GRACE_NS_MAX : GRACE_NS_MAX;
    return ns < most ? ns : most;
}

static void set_latecomers(pp_allreduce_t *coll, uint32_t latecomers)
{
    PP_STEP("ripen");
    atomic_store_explicit(&coll->on_board->board.shared->latecomers, latecomers, memory_order_relaxed);
}

/* Every rank has a contribution pending or has left: to wait longer would bring in no other rank. */
static bool all_there(const pp_allreduce_t *coll, uint64_t round)
{
    pp_view_t view = pp_view_of(coll, round);
    for (int32_t rank = 0; rank < coll->handle.engine->size; rank++) {
        uint64_t word = pp_view_word(coll, rank);
        if (!pp_word_pending(word) && !(word & PP_WORD_ASIDE) && !pp_view_left(&view, rank))
            return false;
    }
    return true;
}

/* Whether a round that is due may be taken now: its grace is over. */
static bool is_ripe(pp_allreduce_t *coll, uint64_t round)
{
    pp_board_t *board = &coll->on_board->board;
    pp_coverage_t *coverage = &coll->handle.engine->coverage;
    int64_t  left_ns;
    if (!has_grace(coll))
        return true;
    if (all_there(coll, round)) {
        coverage->graces_met += pp_board_ripens(board, round, 0, longest_ns(coll), &left_ns);
        return true;
    }
    if (pp_board_set_ripe(board, round, pp_engine_now(coll->handle.engine) + grace_ns(coll))) {
        /* This rank may go on to something else; then the ranks that wait see to the round. */
        pp_gather_wake_waiters(coll, round);
        return false;
    }
    bool over = pp_board_ripens(board, round, pp_engine_now(coll->handle.engine), longest_ns(coll), &left_ns)
             && left_ns <= 0;
    coverage->graces_over += over;
    return over;
}

/* ---- running it, under its claim --------------------------------------------------------------------------- */

static void name_initiator(const pp_allreduce_t *coll, pp_ring_entry_t *entry)
{
    pp_combine_t *combine = coll->on_board;
    for (int32_t rank = 0; combine->triggered > 0 && rank < coll->handle.engine->size; rank++)
        if (pp_mask_has(combine->triggers, rank)) {
            entry->tally.initiator = (uint32_t)rank;
            break;
        }
    if (entry->tally.cause < combine->cause)
        entry->tally.cause = (uint16_t)combine->cause;
    pp_rule_judge(&coll->rule, &entry->tally);
    entry->flush = entry->tally.cause == PP_CAUSE_FLUSH;
    entry->kept = entry->flush || pp_combine_keeps_all(coll);
    if (coll->rule.drawn == 0)
        pp_mask_add(entry->triggers, coll->handle.engine->rank);
    coll->handle.engine->coverage.initiators_met += coll->rule.trigger != PP_BY_ANYBODY && combine->triggered > 1;
}

/* Sets the targets of the result: the receive buffers of waiting ranks that are in the node's memory, and the ring for
   all other ranks. */
static bool add_targets(pp_allreduce_t *coll, int32_t index, pp_ring_entry_t *entry)
{
    pp_board_t *board = &coll->on_board->board;
    pp_plan_t *plan = board->plan;
    if (board->vault)
        return true;                 /* the ring's entry is the only one */
    for (int32_t rank = 0; rank < board->ranks; rank++)
        if (pp_mask_has(entry->direct, rank))
            plan->offsets[plan->source_count + plan->target_count++] = board->stations[rank].receive;
    if (plan->target_count == (uint32_t)board->ranks)
        return true;
    plan->offsets[plan->source_count + plan->target_count++] =
        board->results + (uint64_t)index * board->stride;
    return pp_board_commit_result(board, index);
}

/* Before a round is published, looks for latecomers: ranks that have begun to wait for it since it was taken. */
static void learn(pp_allreduce_t *coll, uint64_t round, const pp_ring_entry_t *entry)
{
    bool late = false;
    for (int32_t rank = 0; rank < coll->handle.engine->size && !late; rank++) {
        uint64_t word = pp_view_word(coll, rank);
        late = pp_word_waits(word, round) && pp_word_pending(word) && !pp_mask_has(entry->direct, rank);
    }
    PP_STEP("ripen");
    uint32_t seen = atomic_load_explicit(&coll->on_board->board.shared->latecomers, memory_order_relaxed);
    bool     all = entry->tally.contributors == (uint32_t)coll->handle.engine->size;
    if (late || (seen > 0 && all))
        set_latecomers(coll, LATECOMERS_MAX);
    else if (seen > 0)
        set_latecomers(coll, seen / 2);
}

static void publish_entry(pp_allreduce_t *coll, uint64_t round, int32_t index)
{
    pp_board_t *board = &coll->on_board->board;
    if (has_grace(coll))
        learn(coll, round, pp_board_entry(board, index));
    if (pp_board_entry(board, index)->flush)
        pp_node_call_over(board->node, pp_engine_calls(coll->handle.engine, true) + 1);
    if (coll->handle.engine->tell)
        pp_rounds_tell(coll, PP_EVENT_PUBLISH, round, &pp_board_entry(board, index)->tally);
    pp_board_publish(board, round, index);
    pp_gather_wake_waiters(coll, round);
    coll->handle.engine->changed = true;
}

/* False: there is no entry for the result, and some rank must give room first. */
static bool run(pp_allreduce_t *coll, uint64_t round)
{
    pp_board_t *board = &coll->on_board->board;
    int32_t index = pp_gather(coll, round);
    if (index < 0)
        return false;
    pp_ring_entry_t *entry = pp_board_entry(board, index);
    name_initiator(coll, entry);
    board->plan->divide_by = pp_rounds_divisor(coll, &entry->tally);
    if (!entry->null && !add_targets(coll, index, entry))
        pp_engine_fail(coll->handle.engine, PP_ERR_MEMORY, "no shared memory for a result of %zu bytes",
                       board->vector_bytes);
    else if (pp_gather_move(coll, round))
        publish_entry(coll, round, index);
    return true;
}

/* Claims the open round and runs it if it is due.  False: there is nothing more to do. */
static bool claim_and_run(pp_allreduce_t *coll, uint64_t turn)
{
    pp_board_t *board = &coll->on_board->board;
    uint64_t round = pp_turn_round(turn);
    bool room = true;
    if (!pp_board_claim(board, turn))
        return true;
    do {
        /* Decides once more, under the claim: the facts may have changed. */
        if (decide(coll, round) && (room = run(coll, round)))
            /* No rank waits for the next round yet; but all may flush. */
            return pp_node_anybody_away(board->node);
    } while (!pp_board_release(board, round));
    if (!room)
        pp_gather_ask_for_room(coll, round);
    return false;
}

static bool look(pp_allreduce_t *coll, bool news)
{
    pp_board_t *board = &coll->on_board->board;
    if (!news && !coll->handle.team->in_call)
        return false;
    for (bool again = true; again && !coll->handle.engine->error;) {
        uint64_t turn = pp_board_turn(board);
        if (pp_turn_round(turn) != coll->completed) {
            pp_combine_catch_up(coll);
            continue;
        }
        switch (pp_turn_phase(turn)) {
        case PP_OPEN:
            again = decide(coll, coll->completed) && is_ripe(coll, coll->completed) && claim_and_run(coll, turn);
            break;
        case PP_TAKING:
            again = !(turn & PP_TURN_NEWS) && !pp_board_leave_news(board, turn);
            break;
        case PP_MOVING:          /* the publisher looks again */
        case PP_AWAY:
            again = false;
            break;
        }
    }
    return true;
}

/* Whether the round is ripe.  Also asked while the turn is claimed, because a claimer that decides against the round
   wakes no rank. */
static bool has_news(pp_allreduce_t *coll, uint64_t turn)
{
    pp_team_t *team = coll->handle.team;
    pp_combine_t *combine = coll->on_board;
    int64_t left_ns;
    if (!has_grace(coll) || pp_turn_phase(turn) == PP_MOVING
        || !pp_board_ripens(&combine->board, coll->completed, pp_engine_now(coll->handle.engine), longest_ns(coll),
                            &left_ns))
        return false;
    if (left_ns > 0 && (team->soon_ns == 0 || (uint64_t)left_ns < team->soon_ns))
        team->soon_ns = (uint64_t)left_ns;
    /* Only once: the round may no longer be due, or have no room; the rank that changes that looks itself. */
    if (left_ns > 0 || combine->ripe == coll->completed + 1)
        return false;
    combine->ripe = coll->completed + 1;
    return combine->news = true;
}

static void gathered(pp_allreduce_t *coll, uint64_t round)
{
    publish_entry(coll, round, (int32_t)coll->on_board->board.plan->entry);
}

/* ---- the way ------------------------------------------------------------------------------------------------- */

static const pp_way_t way = {.alone = true, .look = look, .has_news = has_news, .gathered = gathered};

/* Settles only this handle instead of the whole engine, if nothing else has changed. */
static void settle(pp_allreduce_t *coll)
{
    pp_engine_t *engine = coll->handle.engine;
    pp_team_t   *team = coll->handle.team;
    if (!team->in_call && !engine->replay) {
        while (!engine->error && pp_on_board_go_on(coll))
            continue;
        /* Other handles see only one change: that this rank may wait here. */
        engine->changed = false;
        if (!pp_handle_waits(&coll->handle) || team->live_handles == 1)
            return;
    }
    engine->changed = true;
    pp_engine_settle(engine);
}

static bool poll_board(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    bool folded = pp_gather_fold_over(coll), read = pp_copy_has_read(coll);
    if (folded)
        gathered(coll, coll->completed);
    if (!folded && !read && !pp_on_board_has_news(coll))
        return false;
    settle(coll);
    return true;
}

static bool has_retired(const pp_handle_t *handle)
{
    const pp_allreduce_t *coll = pp_allreduce_of(handle);
    return coll->on_board->workers == 0 && !coll->on_board->folds;
}

/* The device folds; or a round waits for room in the ring, of which the device still reads entries. */
static bool on_device(const pp_handle_t *handle)
{
    const pp_allreduce_t *coll = pp_allreduce_of(handle);
    const pp_combine_t *combine = coll->on_board;
    if (combine->folds)
        return true;
    return combine->read_count > 0 && !coll->handle.team->exits
        && pp_board_may_be_full(&combine->board, combine->absorbed, coll->completed + 1);
}

static void await(pp_allreduce_t *coll, uint32_t number)
{
    (void)number;                    /* the ranks of the node see it each time that they look */
    pp_hold_await(coll, coll->completed);
}

static pp_board_t *board_of(pp_allreduce_t *coll) { return &coll->on_board->board; }

static const pp_rounds_ops_t ops = {
    PP_ON_BOARD_OPS, .board = board_of, .await = await, .settle = settle, .close = pp_on_board_close,
    .handle = {PP_ON_BOARD_HANDLE_OPS, .on_device = on_device, .poll = poll_board, .retired = has_retired,
               .explain = pp_on_board_explain},
};

pp_status_t pp_board_rounds_open(pp_allreduce_t *coll, const pp_agreed_t *agreed, const pp_kernels_t *kernels)
{
    coll->ops = &ops;
    coll->handle.ops = &ops.handle;
    coll->config.algorithm = PP_SHARED_MEMORY;
    pp_series_open_bare(coll->handle.engine, coll->count, kernels, &coll->series);
    return pp_on_board_open(coll, &way, agreed->region);
}
