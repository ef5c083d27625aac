/*
 * leader.c - the rounds of a handle whose ranks are on several nodes.
 *
 * Two levels.  On a node the ranks put their parts on the node's board (combine.h).  Between nodes runs the schedule
 * of messages.c, whose participants are nodes.  A node is activated when one of its ranks triggers, or by a message;
 * it gives all pending parts of its ranks, and gets the result, which goes into the ring.  The node's *leader* in the
 * round (base/nodes.h) does this, in its call or in its progress thread.  Another rank wakes the leader when it has
 * done something that concerns the other nodes.  No other rank is woken, and no message goes to a rank that does not
 * lead.  A rank that brings a round about while the leader sleeps sends the activation to the other nodes itself,
 * before it wakes the leader.
 *
 * The rules are those of policy/policy.h.  The board shows the leader the facts about the ranks of its node.  It
 * follows a draw from rank to rank of the node, and hands it on when it comes to a rank of another node.  Ready ranks
 * are counted on the node, and then along a tree of nodes.
 */
#include "time.h"
#include "leader.h"

#include "../../algo/algo.h"

#include <stdlib.h>

static bool leads(const pp_allreduce_t *coll, uint64_t round)
{
    const pp_nodes_t *nodes = pp_nodes_of(coll);
    return pp_nodes_leader_index(nodes, nodes->mine, round) == pp_node_of(coll)->index;
}

static bool has_news(pp_allreduce_t *coll, uint64_t turn)
{
    return leads(coll, pp_turn_round(turn)) && pp_signal_told(coll) != coll->on_board->leading->told;
}

/* ---- patience ----------------------------------------------------------------------------------------- */

/* Passes the message on to the leaders of all nodes, by dissemination. */
static void pass_on(const pp_allreduce_t *coll, uint64_t round, uint32_t number)
{
    const pp_nodes_t *nodes = pp_nodes_of(coll);
    for (int64_t distance = 1; distance < nodes->count; distance *= 2) {
        int32_t node = (int32_t)((nodes->mine + distance) % nodes->count);
        pp_await_t message = {.prefix = {.kind = PP_MSG_AWAIT, .handle = coll->handle.id, .round = round},
                              .number = number};
        pp_engine_control(coll->handle.engine, pp_nodes_leader(nodes, node, round), &message.prefix, sizeof message);
    }
}

static void hear_await(pp_allreduce_t *coll, const pp_prefix_t *message)
{
    pp_crossing_t *crossing = pp_crossing_of(coll, message->round);
    uint32_t number = ((const pp_await_t *)message)->number;
    if (crossing->waited_for && crossing->awaited >= number)
        return;
    crossing->waited_for = true;
    crossing->awaited = number;
    pp_hold_await(coll, message->round);
    pass_on(coll, message->round, number);
}

/* A rank of this node has waited long: the leader tells the other nodes, once for each message of that rank. */
static void spread_await(pp_allreduce_t *coll, pp_crossing_t *crossing)
{
    uint32_t number = pp_signal_awaits(coll);
    if (crossing->waited_for && crossing->awaited >= number)
        return;
    crossing->waited_for = true;
    crossing->awaited = number;
    pass_on(coll, crossing->round, number);
}

static void await(pp_allreduce_t *coll, uint32_t number)
{
    (void)number;
    uint64_t round = coll->completed;
    PP_STEP("tell");
    atomic_fetch_add(&coll->on_board->board.shared->awaits, 1);
    pp_hold_await(coll, round);
    pp_signal_tell_leader(coll, round);
}

static void control(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    const pp_nodes_t *nodes = pp_nodes_of(coll);
    if (message->round < coll->completed)
        return;   /* the round is complete and needs no trigger any more */
    if (!leads(coll, message->round)) {
        pp_engine_fail(coll->handle.engine, PP_ERR_INTERNAL, "a message of kind %u came from rank %d to handle %u "
                       "about round %llu, which this rank does not lead", message->kind, peer, coll->handle.id,
                       (unsigned long long)message->round);
        return;
    }
    if (message->kind == PP_MSG_AWAIT) {
        hear_await(coll, message);
    } else if (message->kind == PP_MSG_DRAW) {
        pp_crossing_hear_draw(pp_crossing_of(coll, message->round), (const pp_draw_t *)message);
    } else {
        int32_t child = nodes->node_of[peer] - nodes->mine * PP_BALLOT_FANOUT - 1;
        pp_ballots_hear(&coll->on_board->leading->ballots, child, message);
    }
    pp_signal_expect(coll, message->round);
}

/* ---- leading a round ------------------------------------------------------------------------------------- */

/* Takes the node's parts, under the claim.  False: there is no entry for a result. */
static bool take_parts(pp_allreduce_t *coll, pp_crossing_t *crossing)
{
    pp_combine_t *combine = coll->on_board;
    pp_board_t *board = &combine->board;
    /* Another node may have activated the round while this one waited for ranks that come a little later. */
    pp_rounds_mask_clear(coll, combine->triggers);
    if (crossing->triggered)
        pp_rounds_mask_copy(coll, combine->triggers, crossing->triggers);
    pp_rounds_mask_copy(coll, combine->ready, crossing->ready);
    int32_t index = pp_gather(coll, crossing->round);
    if (index < 0)
        return false;
    crossing->gathered = true;
    board->plan->divide_by = 1;
    board->plan->offsets[board->plan->source_count] = board->results + (uint64_t)index * board->stride;
    board->plan->target_count = 1;
    if (!pp_board_commit_result(board, index))
        pp_engine_fail(coll->handle.engine, PP_ERR_MEMORY, "no shared memory for a result of %zu bytes",
                       board->vector_bytes);
    else if (pp_gather_move(coll, crossing->round))
        pp_board_send_away(board, crossing->round);
    coll->handle.engine->changed = true;
    return true;
}

static void gathered(pp_allreduce_t *coll, uint64_t round)
{
    pp_board_send_away(&coll->on_board->board, round);
    coll->handle.engine->changed = true;
    pp_signal_tell_leader(coll, round);
}

/* Whether the node gives its part now: because the round is on, or silently, in a flush of all its ranks. */
static bool is_due(const pp_view_t *view, const pp_crossing_t *crossing)
{
    return crossing->activated ? pp_crossing_permits(view, crossing) : pp_crossing_all_flush(view);
}

/* Claims the round, which is due, and gathers the node's part.  Returns whether to look again.
   The round stays due: ready ranks are latched, and no rank takes back a flush or an activation that has begun.  A rank
   that had left or was elsewhere, and so was passed by, may come back at any moment until its part is taken, also under
   the claim: it counts the round as given (count_passed()).  But a rank that flushes now may have announced the round
   before: then the round is on, and the node does not join it silently. */
static bool claim_and_gather(pp_allreduce_t *coll, pp_crossing_t *crossing, pp_instance_t *instance, uint64_t turn)
{
    pp_board_t *board = &coll->on_board->board;
    bool announced = false, due = true, room = true;
    if (!pp_board_claim(board, turn))
        return true;
    do {
        if (!crossing->activated && pp_signal_is_activated(coll, crossing->round)) {
            pp_crossing_trigger(coll, crossing, instance, PP_CAUSE_POLICY);
            announced = true;
        }
        if (announced) {
            pp_view_t view = pp_view_of(coll, crossing->round);
            pp_crossing_latch_ready(&view, crossing);
            due = is_due(&view, crossing);
        }
        crossing->joined = !crossing->activated;
        if (due && (room = take_parts(coll, crossing)))
            return true;
    } while (!pp_board_release(board, crossing->round));
    crossing->joined = false;
    if (!room)
        pp_gather_ask_for_room(coll, crossing->round);
    return false;
}

/* The node's part is combined: gives it to the other nodes. */
static void give_part(pp_allreduce_t *coll, pp_crossing_t *crossing, pp_instance_t *instance)
{
    crossing->away = true;
    coll->handle.engine->coverage.crossings++;
    if (crossing->joined)
        pp_instance_fire(instance, coll->series.graph->join);
    pp_instance_fire(instance, coll->series.graph->gate);
}

static void publish(pp_allreduce_t *coll, pp_crossing_t *crossing, pp_instance_t *instance)
{
    pp_board_t *board = &coll->on_board->board;
    int32_t index = (int32_t)board->plan->entry;
    pp_ring_entry_t *entry = pp_board_entry(board, index);
    uint64_t round = crossing->round;
    if (!pp_board_bring_back(board, round))
        return;              /* a rank merges, and tells this one when it has finished */
    if (entry->flush)
        pp_node_call_over(board->node, pp_engine_calls(coll->handle.engine, true) + 1);
    if (coll->handle.engine->tell)
        pp_rounds_tell(coll, PP_EVENT_PUBLISH, round, &entry->tally);
    pp_board_publish(board, round, index);
    pp_gather_wake_waiters(coll, round);
    crossing->published = true;
    coll->on_board->news = coll->handle.engine->changed = true;
    if (instance->unfinished == 0)
        pp_series_recycle(&coll->series, instance);
}

/* A rank has waited long for the round: tells the other nodes, and, if the round is not due here, the ranks of this
   node that hold it up. */
static void see_who_holds_up(const pp_view_t *view, pp_allreduce_t *coll, pp_crossing_t *crossing, pp_phase_t phase)
{
    spread_await(coll, crossing);
    if (phase != PP_OPEN || is_due(view, crossing))
        return;
    uint64_t draws[PP_CONTRIBUTORS_WORDS];
    pp_crossing_draws(coll, crossing, draws);
    pp_hold_tell(view, coll, crossing->activated, draws, crossing->ready);
}

/* Goes on with the open round, as far as it can; returns whether to look again. */
static bool lead(pp_allreduce_t *coll, uint64_t turn)
{
    uint64_t round = pp_turn_round(turn);
    pp_instance_t *instance = pp_series_instance(&coll->series, round);
    if (!instance)
        return false;        /* the round is opened when one before it retires */
    pp_crossing_t *crossing = pp_crossing_of(coll, round);
    pp_view_t view = pp_view_of(coll, round);
    if (pp_turn_phase(turn) == PP_OPEN)
        pp_crossing_latch_ready(&view, crossing);
    /* Not when the result is here: the instance may serve another round before the operation is fired. */
    if (!crossing->activated && !crossing->done)
        pp_crossing_bring_about(&view, coll, crossing, instance);
    if (pp_hold_is_awaited(coll, round))
        see_who_holds_up(&view, coll, crossing, pp_turn_phase(turn));
    switch (pp_turn_phase(turn)) {
    case PP_OPEN:
        return is_due(&view, crossing) && claim_and_gather(coll, crossing, instance, turn);
    case PP_AWAY:
        if (!crossing->away)
            give_part(coll, crossing, instance);
        else if (crossing->done && !crossing->published)
            publish(coll, crossing, instance);
        return crossing->published;
    case PP_TAKING:          /* a rank merges, and looks afterwards */
    case PP_MOVING:          /* the rank that finishes the last chunk tells this one */
        break;
    }
    return false;
}

/* Whether this rank, which does not lead the round, brings it about by its own wait, whatever other ranks do. */
static bool brings_about(pp_allreduce_t *coll, uint64_t round, pp_cause_t *cause)
{
    pp_facts_t facts = {.waits = pp_word_waits(pp_view_word(coll, pp_node_of(coll)->index), round),
                        .overdue = coll->time.overdue};
    int32_t drawn = coll->rule.trigger == PP_BY_DRAW ? coll->rule.drawn : 0, own = -1;
    for (int32_t place = 0; facts.waits && own < 0 && place < drawn; place++)
        if (pp_view_drawn_at(coll, place) == coll->handle.engine->rank)
            own = place;
    return pp_rule_triggers(&coll->rule, &facts, own, cause);
}

/* If the leader must be woken, this rank tells the other nodes of the round first.  If the leader is awake, it tells
   them itself, together with its data. */
static void announce(pp_allreduce_t *coll, uint64_t round)
{
    const pp_nodes_t *nodes = pp_nodes_of(coll);
    pp_node_t *node = pp_node_of(coll);
    bool waits_first = coll->grace_ns > 0 && coll->grace_ns != PP_GRACE_AUTO;
    pp_cause_t cause;
    if (waits_first || !brings_about(coll, round, &cause)
        || !node->sleeps(node->owner, pp_nodes_leader_index(nodes, nodes->mine, round))
        || !pp_signal_say_activated(coll, round, cause))
        return;
    coll->handle.engine->coverage.announced++;
    pp_series_announce(&coll->series, round);
}

/* Whether the leader of the open round has something to do about it. */
static bool is_wanted(pp_allreduce_t *coll, uint64_t round)
{
    pp_view_t view = pp_view_of(coll, round);
    /* A rank that waited on another handle when its part came may have been latched as ready: only the leader knows. */
    if (pp_signal_is_activated(coll, round))
        return view.others || pp_hold_is_awaited(coll, round) || pp_crossing_permits(&view, NULL);
    if (pp_signal_is_expected(coll, round) || pp_crossing_all_flush(&view) || pp_crossing_anybody_waits(&view))
        return true;
    /* A draw goes on from a rank that has left, or waits elsewhere, and a count has it. */
    return coll->rule.trigger != PP_BY_ANYBODY && (view.others || pp_view_anybody_aside(&view));
}

static bool look(pp_allreduce_t *coll, bool news)
{
    pp_board_t *board = &coll->on_board->board;
    for (bool again = true; again && !coll->handle.engine->error;) {
        uint32_t reasons = pp_signal_told(coll);       /* first: before the facts that the reasons are about */
        news |= pp_combine_catch_up(coll);
        uint64_t turn = pp_board_turn(board), round = pp_turn_round(turn);
        again = round != coll->completed;
        if (again)
            continue;
        if (leads(coll, round)) {
            coll->on_board->leading->told = reasons;
            again = lead(coll, turn);
        } else if (news && pp_turn_phase(turn) == PP_TAKING) {
            /* A claimer that decides against the round sees the NEWS, and looks again. */
            again = !(turn & PP_TURN_NEWS) && !pp_board_leave_news(board, turn);
        } else if (news && pp_turn_phase(turn) == PP_OPEN) {
            announce(coll, round);
            if (is_wanted(coll, round))
                pp_signal_tell_leader(coll, round);
        }
    }
    return true;
}

/* ---- what the engine reports -------------------------------------------------------------------------------- */

static void activated(void *owner, pp_instance_t *instance)
{
    pp_allreduce_t *coll = owner;
    pp_crossing_t *crossing = pp_crossing_of(coll, instance->round);
    /* A silent join activates nothing: the policy may still have to bring the round about. */
    crossing->activated = crossing->triggered || !crossing->joined;
    if (crossing->activated)
        pp_crossing_find_announcer(coll, crossing);
    pp_signal_expect(coll, instance->round);
}

static bool announces(void *owner, pp_instance_t *instance)
{
    pp_crossing_t *crossing = pp_crossing_of(owner, instance->round);
    pp_crossing_find_announcer(owner, crossing);
    return crossing->announces;
}

static void take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    pp_allreduce_t *coll = owner;
    pp_combine_t *combine = coll->on_board;
    pp_crossing_t *crossing = pp_crossing_of(coll, instance->round);
    int32_t index = (int32_t)combine->board.plan->entry;
    const pp_ring_entry_t *entry = pp_board_entry(&combine->board, index);
    share->tally = entry->tally;
    share->null = entry->null;
    share->contributors = entry->contributors;
    share->left = entry->left;
    if (crossing->triggered && share->tally.cause < crossing->cause)
        share->tally.cause = (uint16_t)crossing->cause;
    for (int32_t i = 0; crossing->triggered && i < pp_node_size(coll); i++)
        if (pp_mask_has(crossing->triggers, i)) {
            share->tally.initiator = (uint32_t)pp_rank_at(coll, i);
            break;
        }
    /* Data from other nodes are reduced, or put, in the result's own memory. */
    combine->leading->lent = (pp_buffer_t){.data = pp_board_result(&combine->board, index)};
    instance->accumulator = coll->count ? &combine->leading->lent : NULL;
}

static void done(void *owner, pp_instance_t *instance)
{
    pp_allreduce_t *coll = owner;
    pp_board_t *board = &coll->on_board->board;
    pp_ring_entry_t *entry = pp_board_entry(board, (int32_t)board->plan->entry);
    const pp_register_t *reg = &instance->registers[0];
    instance->accumulator = NULL;
    entry->tally = reg->tally;
    pp_rounds_mask_copy(coll, entry->contributors, reg->contributors);
    pp_rounds_mask_copy(coll, entry->left, reg->left);
    entry->null = reg->null;
    pp_rule_judge(&coll->rule, &entry->tally);
    entry->flush = entry->tally.cause == PP_CAUSE_FLUSH;
    entry->kept = entry->flush || coll->config.deliver != PP_LATEST;
    uint64_t by = pp_rounds_divisor(coll, &entry->tally);
    if (!entry->null && by > 1)
        pp_rounds_divide(coll, pp_board_result(board, (int32_t)board->plan->entry), by);
    pp_crossing_of(coll, instance->round)->done = true;
    coll->handle.engine->changed = true;
}

static void retired(void *owner, pp_instance_t *instance)
{
    pp_allreduce_t *coll = owner;
    if (pp_crossing_of(coll, instance->round)->published)
        pp_series_recycle(&coll->series, instance);
}

static const pp_host_t host = {
    .take = take, .activated = activated, .announces = announces, .done = done, .retired = retired,
};

/* ---- explaining, opening and closing --------------------------------------------------------------------------- */

static void explain(pp_handle_t *handle, pp_text_t *text)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    const pp_nodes_t *nodes = pp_nodes_of(coll);
    uint64_t turn = pp_board_turn(&coll->on_board->board), round = pp_turn_round(turn);
    pp_instance_t *instance = leads(coll, round) ? pp_series_instance(&coll->series, round) : NULL;
    pp_on_board_explain(handle, text);
    pp_text_add(text, "rank %d leads this node in round %llu\n", pp_nodes_leader(nodes, nodes->mine, round),
                (unsigned long long)round);
    if (instance && pp_turn_phase(turn) == PP_AWAY)
        pp_series_explain(instance, "this rank", text);
}

/* Whether all rounds that this rank has led have retired, and nothing of the rounds opened since is about to fire. */
static bool has_retired(const pp_handle_t *handle)
{
    const pp_allreduce_t *coll = pp_allreduce_of(handle);
    const pp_series_t *series = &coll->series;
    const pp_engine_t *engine = coll->handle.engine;
    if (coll->on_board->workers > 0 || engine->queue_head != engine->queue_tail)
        return false;
    return series->opened == pp_series_index(series, coll->completed) + (uint64_t)series->window;
}

static void settle(pp_allreduce_t *coll)
{
    coll->handle.engine->changed = true;
    pp_engine_settle(coll->handle.engine);
}

static bool poll_board(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    if (!pp_on_board_has_news(coll))
        return false;
    settle(coll);
    return true;
}

static bool is_needed(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    return pp_on_board_has_work(handle) || pp_on_board_has_news(coll);
}

static const pp_way_t way = {.look = look, .has_news = has_news, .gathered = gathered,
                             .merge_awaited = pp_signal_tell_leader};

static void free_leading(pp_leading_t *leading)
{
    if (leading) {
        free(leading->crossings);
        free(leading->loans);
    }
    free(leading);
}

/* In a context that is given up rounds may be under way: they must not free the ring's memory that was lent to them. */
static void close_rounds(pp_allreduce_t *coll)
{
    pp_leading_t *leading = coll->on_board ? coll->on_board->leading : NULL;
    pp_series_t  *series = &coll->series;
    for (int32_t i = 0; leading && series->instances && i < series->window; i++)
        if (series->instances[i].accumulator == &leading->lent)
            series->instances[i].accumulator = NULL;
    free_leading(leading);
    pp_on_board_close(coll);
}

static const pp_rounds_ops_t ops = {
    PP_ON_BOARD_OPS, .await = await, .sends = true, .settle = settle, .close = close_rounds,
    .handle = {PP_ON_BOARD_HANDLE_OPS, .control = control, .operation = pp_rounds_operation, .replay = pp_rounds_replay,
               .poll = poll_board, .needed = is_needed, .retired = has_retired, .explain = explain},
};

/* Two more than the window: other nodes may tell of the round after those that are open here. */
static pp_leading_t *new_leading(const pp_rule_t *rule, int32_t window)
{
    pp_leading_t *leading = calloc(1, sizeof *leading);
    size_t count = (size_t)window + 2;
    if (!leading)
        return NULL;
    size_t loans = rule->trigger == PP_BY_DRAW ? (size_t)rule->size : 0;       /* held, and as many handed on */
    leading->crossings = calloc(count, sizeof *leading->crossings);
    leading->loans = calloc(count * 2 * loans + 1, sizeof *leading->loans);
    if (!leading->crossings || !leading->loans) {
        free_leading(leading);
        return NULL;
    }
    leading->count = count;
    for (size_t i = 0; i < count; i++) {
        pp_loan_t *held = leading->loans + 2 * loans * i;
        leading->crossings[i] = (pp_crossing_t){.round = UINT64_MAX, .held = loans ? held : NULL,
                                                .handed_on = loans ? held + loans : NULL};
    }
    pp_ballots_open(&leading->ballots);
    return leading;
}

pp_status_t pp_leader_open(pp_allreduce_t *coll, const pp_agreed_t *agreed, const pp_kernels_t *kernels)
{
    pp_engine_t *engine = coll->handle.engine;
    const pp_nodes_t *nodes = engine->nodes;
    int32_t window = coll->handle.team->window;
    pp_graph_t *graph = NULL;
    coll->ops = &ops;
    coll->handle.ops = &ops.handle;
    coll->config.algorithm = agreed->choice;
    PP_TRY(pp_algo_partial_allreduce(agreed->choice, nodes->mine, nodes->count, coll->count,
                                     pp_rounds_segments(coll, kernels, nodes->count), &graph));
    PP_TRY(pp_series_open(engine, agreed->id, graph, nodes, kernels, window, &host, coll, &coll->series));
    PP_TRY(pp_on_board_open(coll, &way, agreed->region));
    coll->on_board->leading = new_leading(&coll->rule, window);
    return coll->on_board->leading ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for %d rounds", window);
}
