/* between.c - see between.h. */
#include "between.h"

#include "rounds.h"

#include <stdlib.h>
#include <string.h>

enum { TREE_FANOUT = 16 };           /* of the nodes that count for a quorum */

static const pp_nodes_t *nodes_of(const pp_coll_t *coll) { return coll->engine->nodes; }

static bool leads(const pp_coll_t *coll, uint64_t round)
{
    const pp_nodes_t *nodes = nodes_of(coll);
    return pp_nodes_leader_index(nodes, nodes->mine, round) == pp_node_of(coll)->index;
}

/* Of a round that this rank leads. */
static pp_crossing_t *crossing_of(pp_coll_t *coll, uint64_t round)
{
    pp_between_t  *between = coll->combine->between;
    pp_crossing_t *crossing = &between->crossings[pp_series_place(&coll->series, round) % between->count];
    if (crossing->round != round)
        *crossing = (pp_crossing_t){.round = round};
    return crossing;
}

/* ---- telling the leader ------------------------------------------------------------------------------ */

void pp_between_tell_leader(pp_coll_t *coll, uint64_t round)
{
    const pp_nodes_t *nodes = nodes_of(coll);
    pp_node_t *node = pp_node_of(coll);
    int32_t leader = pp_nodes_leader_index(nodes, nodes->mine, round);
    /* seq_cst: before we look whether it sleeps; a leader says that it sleeps before its last look. */
    PP_STEP("tell");
    atomic_fetch_add(&coll->combine->board.shared->told, 1);
    if (leader == node->index)
        coll->engine->changed = true;
    else
        node->wake(node->owner, leader, true);
}

static uint32_t told(const pp_coll_t *coll)
{
    PP_STEP("look");
    return atomic_load(&coll->combine->board.shared->told);
}

bool pp_between_has_news(const pp_coll_t *coll, uint64_t turn)
{
    return leads(coll, pp_turn_round(turn)) && told(coll) != coll->combine->between->told;
}

/* Other nodes have told about a round that is not open yet: whoever opens it wakes us. */
static void expect(pp_coll_t *coll, uint64_t round)
{
    pp_station_t *own = pp_board_own(&coll->combine->board);
    PP_STEP("expect");
    if (atomic_load(&own->expects) < round + 1) {
        PP_STEP("expect");
        atomic_store(&own->expects, round + 1);
    }
    coll->engine->changed = true;        /* and if it has been opened meanwhile, we look ourselves */
}

static bool is_expected(const pp_coll_t *coll, uint64_t round)
{
    const pp_nodes_t *nodes = nodes_of(coll);
    int32_t leader = pp_nodes_leader_index(nodes, nodes->mine, round);
    PP_STEP("look");
    return atomic_load(&coll->combine->board.stations[leader].expects) == round + 1;
}

/* ---- announcing: a round is on here -------------------------------------------------------------------- */

/* Each leader has a word of its own: other nodes may bring the next round about while one that this node joined
   silently is not announced yet.  (A rank that is alone on its node leads both, and has nobody to tell.) */
static _Atomic uint64_t *activated_of(const pp_coll_t *coll, uint64_t round)
{
    const pp_nodes_t *nodes = nodes_of(coll);
    return &coll->combine->board.stations[pp_nodes_leader_index(nodes, nodes->mine, round)].activated;
}

static bool is_activated(const pp_coll_t *coll, uint64_t round)
{
    PP_STEP("look");
    return atomic_load(activated_of(coll, round)) >> PP_ACTIVATED_ROUND_SHIFT == round + 1;
}

/* Says that the round is on.  True: nobody had, so that it is this rank's to announce it to the other nodes.  (No round
   completes before somebody has said so, hence a rank that was slow to compare finds another word there.) */
static bool say_activated(const pp_coll_t *coll, uint64_t round)
{
    _Atomic uint64_t *word = activated_of(coll, round);
    PP_STEP("look");
    uint64_t seen = atomic_load(word);
    if (seen >> PP_ACTIVATED_ROUND_SHIFT > round)
        return false;
    PP_STEP("activate");
    return atomic_compare_exchange_strong(word, &seen, (round + 1) << PP_ACTIVATED_ROUND_SHIFT
                                                           | (uint64_t)pp_node_of(coll)->index);
}

/* ---- the rules, for a node ------------------------------------------------------------------------------ */

static int32_t node_size(const pp_coll_t *coll) { return pp_node_of(coll)->size; }

static bool anybody_waits(const pp_view_t *view)
{
    for (int32_t index = 0; index < node_size(view->coll); index++)
        if (pp_word_waits(pp_view_word(view->coll, index), view->round))
            return true;
    return false;
}

/* All ranks here flush.  Those that are out go along with any flush, as long as somebody may still ask for one. */
static bool all_flush(const pp_view_t *view)
{
    const pp_calls_t *calls = view->coll->calls;
    bool any = !view->coll->ended && calls->exited + calls->gone < view->coll->engine->size - 1;
    for (int32_t index = 0; index < node_size(view->coll); index++) {
        if (!pp_view_flushes(view, index))
            return false;
        any |= !pp_node_out(pp_node_of(view->coll), index);
    }
    return any;
}

/* Full waits for everybody who has not left, the others for nobody; max_lag may withhold a part in any case.
   `crossing`: NULL for ranks that do not lead the round, and do not know who was ready before.  The leader counts on
   nobody whom it has not latched: who waited elsewhere may be ready no more when its part is taken. */
static bool permits(const pp_view_t *view, const pp_crossing_t *crossing)
{
    const pp_coll_t *coll = view->coll;
    for (int32_t index = 0; pp_policy_is_full(coll) && index < node_size(coll); index++) {
        bool ready = crossing ? pp_mask_has(crossing->ready, index)
                              : pp_view_ready(view, pp_view_word(coll, index), index);
        if (!ready && !pp_view_left(view, index))
            return false;
    }
    return pp_view_permit(view);
}

/* It was seen waiting; whatever it does next, it is ready for the round that it brings about. */
static void mark_trigger(pp_crossing_t *crossing, int32_t index)
{
    pp_mask_add(crossing->triggers, index);
    pp_mask_add(crossing->ready, index);
}

/* By the leader, when the round is on for it.  Who has announced it has brought it about, whoever else did: the
   others may have heard of no other initiator. */
static void find_announcer(pp_coll_t *coll, pp_crossing_t *crossing)
{
    if (crossing->announced)
        return;
    crossing->announced = true;
    crossing->announces = node_size(coll) == 1 || say_activated(coll, crossing->round);
    if (!crossing->announces) {
        crossing->triggered = true;
        PP_STEP("look");
        mark_trigger(crossing, (int32_t)(atomic_load(activated_of(coll, crossing->round)) & PP_ACTIVATED_BY));
    }
}

static void trigger(pp_coll_t *coll, pp_crossing_t *crossing, pp_instance_t *instance, int32_t cause)
{
    crossing->triggered = crossing->activated = true;
    crossing->cause = (uint32_t)cause;
    find_announcer(coll, crossing);
    pp_instance_fire(instance, coll->series.graph->start);
}

static bool mark_waiting(const pp_view_t *view, pp_crossing_t *crossing)
{
    bool any = false;
    for (int32_t index = 0; index < node_size(view->coll); index++)
        if (pp_word_waits(pp_view_word(view->coll, index), view->round)) {
            mark_trigger(crossing, index);
            any = true;
        }
    return any;
}

/* ---- first of m ------------------------------------------------------------------------------------- */

static void hand_on(pp_coll_t *coll, pp_crossing_t *crossing, int32_t place, int32_t node)
{
    pp_draw_t message = {.prefix = {.kind = PP_MSG_DRAW, .handle = coll->series.id, .round = crossing->round},
                         .place = (uint32_t)place};
    if (pp_mask_has(crossing->handed_on, place))
        return;
    pp_mask_add(crossing->handed_on, place);
    coll->engine->coverage.draws_handed_on++;
    pp_engine_control(coll->engine, pp_nodes_leader(nodes_of(coll), node, crossing->round), &message.prefix,
                      sizeof message);
}

static int32_t index_of(const pp_coll_t *coll, int32_t rank)
{
    for (int32_t index = 0; index < node_size(coll); index++)
        if (pp_rank_at(coll, index) == rank)
            return index;
    return -1;
}

/* A draw passes by ranks that have left, or are pending here and wait elsewhere; it goes on on another node if it
   comes to a rank there.  PP_CAUSE_FLUSH: nobody triggers. */
static int32_t follow_draw(const pp_view_t *view, pp_coll_t *coll, pp_crossing_t *crossing, int32_t place)
{
    const pp_nodes_t *nodes = nodes_of(coll);
    int32_t size = coll->engine->size;
    for (int32_t hops = 0; hops < size; hops++) {
        int32_t at = (place + hops) % size, rank = pp_combine_drawn_at(coll, at), node = nodes->node_of[rank];
        if (node != nodes->mine) {
            hand_on(coll, crossing, at, node);
            return PP_CAUSE_FLUSH;
        }
        int32_t  index = index_of(coll, rank);
        uint64_t word = pp_view_word(coll, index);
        if (pp_word_waits(word, view->round)) {
            mark_trigger(crossing, index);
            return at < coll->config.policy_k ? PP_CAUSE_POLICY : PP_CAUSE_DEPARTED;
        }
        if (!pp_view_left(view, index) && !(pp_word_pending(word) && pp_view_elsewhere(view, index)))
            return PP_CAUSE_FLUSH;
        coll->engine->coverage.draws_handed_on++;
    }
    return PP_CAUSE_FLUSH;
}

static void follow_draws(const pp_view_t *view, pp_coll_t *coll, pp_crossing_t *crossing, pp_instance_t *instance)
{
    const pp_nodes_t *nodes = nodes_of(coll);
    int32_t strongest = -1;
    for (int32_t place = 0; place < coll->config.policy_k; place++)
        if (nodes->node_of[pp_combine_drawn_at(coll, place)] == nodes->mine)
            pp_mask_add(crossing->held, place);
    for (int32_t place = 0; place < coll->engine->size; place++) {
        if (!pp_mask_has(crossing->held, place))
            continue;
        int32_t cause = follow_draw(view, coll, crossing, place);
        if (cause != PP_CAUSE_FLUSH && cause > strongest)
            strongest = cause;
    }
    if (strongest >= 0)
        trigger(coll, crossing, instance, strongest);
}

/* ---- quorum ------------------------------------------------------------------------------------------ */

static pp_quorum_child_t count_here(const pp_view_t *view, const pp_crossing_t *crossing)
{
    const pp_coll_t *coll = view->coll;
    pp_quorum_child_t sum = {.round = view->round, .calls = pp_engine_calls(coll->engine, true)};
    for (int32_t index = 0; index < node_size(coll); index++) {
        bool ready = pp_mask_has(crossing->ready, index);
        sum.ready += ready;
        sum.left += !ready && pp_view_left(view, index);
        sum.waits |= pp_word_waits(pp_view_word(coll, index), view->round);
    }
    return sum;
}

static void add_children(const pp_coll_t *coll, pp_quorum_child_t *sum)
{
    for (int i = 0; i < TREE_FANOUT; i++) {
        const pp_quorum_child_t *child = &coll->children[i];
        if (child->round != sum->round)
            continue;
        sum->ready += child->ready;
        sum->waits |= child->waits;
        /* Towards a rank that has completed more calls, "left" is void. */
        if (child->calls == sum->calls)
            sum->left += child->left;
    }
}

static void report(pp_coll_t *coll, const pp_quorum_child_t *sum)
{
    const pp_nodes_t *nodes = nodes_of(coll);
    pp_quorum_child_t *last = &coll->reported;
    pp_report_t message = {.prefix = {.kind = PP_MSG_REPORT, .handle = coll->series.id, .round = sum->round},
                           .ready = sum->ready, .left = sum->left, .waits = sum->waits};
    if (last->round != sum->round)
        *last = (pp_quorum_child_t){.round = sum->round};
    if (last->ready == sum->ready && last->left == sum->left && last->waits == sum->waits
        && (last->calls == sum->calls || (last->left == 0 && sum->left == 0)))
        return;
    *last = *sum;
    int32_t parent = (nodes->mine - 1) / TREE_FANOUT;
    pp_engine_control(coll->engine, pp_nodes_leader(nodes, parent, sum->round), &message.prefix, sizeof message);
}

static void count_quorum(const pp_view_t *view, pp_coll_t *coll, pp_crossing_t *crossing,
                         pp_instance_t *instance)
{
    pp_quorum_child_t sum = count_here(view, crossing);
    add_children(coll, &sum);
    if (nodes_of(coll)->mine != 0)
        report(coll, &sum);
    else if (sum.waits && (sum.ready >= (uint32_t)coll->config.policy_k
                           || sum.ready + sum.left == (uint32_t)coll->engine->size))
        trigger(coll, crossing, instance, PP_CAUSE_POLICY);
}

static void control(void *owner, int32_t peer, const pp_prefix_t *message)
{
    pp_coll_t *coll = owner;
    const pp_nodes_t *nodes = nodes_of(coll);
    if (message->round < coll->completed)
        return;   /* that round needs no trigger any more */
    if (!leads(coll, message->round)) {
        pp_engine_fail(coll->engine, PP_ERR_INTERNAL, "message of kind %u from rank %d to handle %u about round "
                       "%llu, which this rank does not lead", message->kind, peer, coll->series.id,
                       (unsigned long long)message->round);
        return;
    }
    if (message->kind == PP_MSG_DRAW) {
        pp_mask_add(crossing_of(coll, message->round)->held, (int32_t)((const pp_draw_t *)message)->place);
    } else {
        const pp_report_t *report = (const pp_report_t *)message;
        pp_quorum_child_t *child = &coll->children[nodes->node_of[peer] - nodes->mine * TREE_FANOUT - 1];
        /* Each round's come from another of its ranks: one of the round before may be the later to arrive. */
        if (child->round == UINT64_MAX || child->round <= message->round)
            *child = (pp_quorum_child_t){.round = message->round, .calls = message->calls, .ready = report->ready,
                                         .left = report->left, .waits = report->waits};
    }
    expect(coll, message->round);
}

/* ---- leading a round ------------------------------------------------------------------------------------- */

static void latch_ready(const pp_view_t *view, pp_crossing_t *crossing)
{
    for (int32_t index = 0; index < node_size(view->coll); index++)
        if (pp_view_ready(view, pp_view_word(view->coll, index), index))
            pp_mask_add(crossing->ready, index);
}

/* Looks whether this node brings the round about, or can help others to. */
static void bring_about(const pp_view_t *view, pp_coll_t *coll, pp_crossing_t *crossing, pp_instance_t *instance)
{
    if (!crossing->announced && is_activated(coll, crossing->round))
        trigger(coll, crossing, instance, PP_CAUSE_POLICY);
    else if (coll->config.policy == PP_FIRST_OF && !pp_policy_is_solo(coll))
        follow_draws(view, coll, crossing, instance);
    else if (coll->config.policy == PP_QUORUM && !pp_policy_is_full(coll))
        count_quorum(view, coll, crossing, instance);
    else if (mark_waiting(view, crossing))
        trigger(coll, crossing, instance, PP_CAUSE_POLICY);
}

/* Under the claim.  False: there is no place for a result. */
static bool gather(pp_coll_t *coll, pp_crossing_t *crossing)
{
    pp_combine_t *combine = coll->combine;
    pp_board_t *board = &combine->board;
    memcpy(combine->triggers, crossing->triggers, pp_mask_bytes(coll));
    memcpy(combine->ready, crossing->ready, pp_mask_bytes(coll));
    int32_t index = pp_combine_collect(coll, crossing->round);
    if (index < 0)
        return false;
    crossing->gathered = true;
    board->plan->divide_by = 1;
    board->plan->offsets[board->plan->source_count] = board->results + (uint64_t)index * board->stride;
    board->plan->target_count = 1;
    if (!pp_board_commit_result(board, index))
        pp_engine_fail(coll->engine, PP_ERR_MEMORY, "no shared memory for a result of %zu bytes",
                       board->vector_bytes);
    else if (pp_combine_move(coll, crossing->round))
        pp_board_send_away(board, crossing->round);
    coll->engine->changed = true;
    return true;
}

void pp_between_gathered(pp_coll_t *coll, uint64_t round)
{
    pp_board_send_away(&coll->combine->board, round);
    coll->engine->changed = true;
    pp_between_tell_leader(coll, round);
}

/* Whether the node's part is to be given now: because the round is on, or silently, in a flush of all its ranks. */
static bool is_due(const pp_view_t *view, const pp_crossing_t *crossing)
{
    return crossing->activated ? permits(view, crossing) : all_flush(view);
}

/* Claims the round, which is due, and gathers the node's part.  Returns whether to look again.
   It stays due: who was ready is latched, and what a flush or an activation has begun nobody takes back.  A rank that
   had left, or was elsewhere, and so was passed by, may come back at any moment until its part is taken, under the
   claim as before it: it counts the round as given (count_passed()).  But a rank that flushes now may have announced
   the round before: then it is on, and nobody joins it silently. */
static bool claim_and_gather(pp_coll_t *coll, pp_crossing_t *crossing, pp_instance_t *instance, uint64_t turn)
{
    pp_board_t *board = &coll->combine->board;
    bool announced = false, due = true, room = true;
    if (!pp_board_claim(board, turn))
        return true;
    do {
        if (!crossing->activated && is_activated(coll, crossing->round)) {
            trigger(coll, crossing, instance, PP_CAUSE_POLICY);
            announced = true;
        }
        if (announced) {
            pp_view_t view = pp_view_of(coll, crossing->round);
            latch_ready(&view, crossing);
            due = is_due(&view, crossing);
        }
        crossing->joined = !crossing->activated;
        if (due && (room = gather(coll, crossing)))
            return true;
    } while (!pp_board_release(board, crossing->round));
    crossing->joined = false;
    if (!room)
        pp_combine_ask_for_room(coll, crossing->round);
    return false;
}

/* The node's part is combined: it goes to the other nodes. */
static void give_part(pp_coll_t *coll, pp_crossing_t *crossing, pp_instance_t *instance)
{
    crossing->away = true;
    coll->engine->coverage.crossings++;
    if (crossing->joined)
        pp_instance_fire(instance, coll->series.graph->join);
    pp_instance_fire(instance, coll->series.graph->gate);
}

static void publish(pp_coll_t *coll, pp_crossing_t *crossing, pp_instance_t *instance)
{
    pp_board_t *board = &coll->combine->board;
    int32_t index = (int32_t)board->plan->entry;
    pp_ring_entry_t *entry = pp_board_entry(board, index);
    uint64_t round = crossing->round;
    if (!pp_board_bring_back(board, round))
        return;              /* whoever merges tells us when it has */
    if (entry->flush)
        pp_node_call_over(board->node, pp_engine_calls(coll->engine, true) + 1);
    pp_board_publish(board, round, index);
    pp_combine_wake_waiters(coll, round);
    crossing->published = true;
    coll->combine->news = coll->engine->changed = true;
    if (instance->unfinished == 0)
        pp_series_recycle(&coll->series, instance);
}

/* Goes on with the open round, as far as it can; returns whether to look again. */
static bool lead(pp_coll_t *coll, uint64_t turn)
{
    uint64_t round = pp_turn_round(turn);
    pp_instance_t *instance = pp_series_instance(&coll->series, round);
    if (!instance)
        return false;        /* it is opened when one before it retires */
    pp_crossing_t *crossing = crossing_of(coll, round);
    pp_view_t view = pp_view_of(coll, round);
    if (pp_turn_phase(turn) == PP_OPEN)
        latch_ready(&view, crossing);
    if (!crossing->activated)
        bring_about(&view, coll, crossing, instance);
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
    case PP_MOVING:          /* whoever finishes the last chunk tells us */
        break;
    }
    return false;
}

/* Whether this rank, which does not lead the round, brings it about by waiting for it, whatever others do. */
static bool brings_about(pp_coll_t *coll, uint64_t round)
{
    if (!pp_word_waits(pp_view_word(coll, pp_node_of(coll)->index), round))
        return false;
    if (pp_policy_is_full(coll) || pp_policy_is_solo(coll))
        return true;
    for (int32_t place = 0; coll->config.policy == PP_FIRST_OF && place < coll->config.policy_k; place++)
        if (pp_combine_drawn_at(coll, place) == coll->engine->rank)
            return true;
    return false;
}

/* If its leader here has to be woken, the other nodes hear of the round before.  If it is awake they will in any case,
   and then together with its data. */
static void announce(pp_coll_t *coll, uint64_t round)
{
    const pp_nodes_t *nodes = nodes_of(coll);
    pp_node_t *node = pp_node_of(coll);
    if (!brings_about(coll, round) || !node->sleeps(node->owner, pp_nodes_leader_index(nodes, nodes->mine, round))
        || !say_activated(coll, round))
        return;
    coll->engine->coverage.announced++;
    pp_series_announce(&coll->series, round);
}

/* Whether the leader of the open round has something to do about it. */
static bool is_wanted(pp_coll_t *coll, uint64_t round)
{
    pp_view_t view = pp_view_of(coll, round);
    /* Who waited for another handle when its part came may have been latched as ready: only the leader knows. */
    if (is_activated(coll, round))
        return view.others || permits(&view, NULL);
    if (is_expected(coll, round) || all_flush(&view) || anybody_waits(&view))
        return true;
    bool passes_on = !pp_policy_is_full(coll) && !pp_policy_is_solo(coll);
    return passes_on && (view.away || view.others);
}

void pp_between_look(pp_coll_t *coll, bool news)
{
    pp_board_t *board = &coll->combine->board;
    for (bool again = true; again && !coll->engine->error;) {
        uint32_t reasons = told(coll);       /* before everything that they are about */
        news |= pp_combine_catch_up(coll);
        uint64_t turn = pp_board_turn(board), round = pp_turn_round(turn);
        again = round != coll->completed;
        if (again)
            continue;
        if (leads(coll, round)) {
            coll->combine->between->told = reasons;
            again = lead(coll, turn);
        } else if (news && pp_turn_phase(turn) == PP_TAKING) {
            /* A leader that decides against the round looks again. */
            again = !(turn & PP_TURN_NEWS) && !pp_board_leave_news(board, turn);
        } else if (news && pp_turn_phase(turn) == PP_OPEN) {
            announce(coll, round);
            if (is_wanted(coll, round))
                pp_between_tell_leader(coll, round);
        }
    }
}

/* ---- what the engine reports -------------------------------------------------------------------------------- */

static void activated(void *owner, pp_instance_t *instance)
{
    pp_coll_t *coll = owner;
    pp_crossing_t *crossing = crossing_of(coll, instance->round);
    /* A silent join is nobody's activation: the policy may still have to bring that about. */
    crossing->activated = crossing->triggered || !crossing->joined;
    if (crossing->activated)
        find_announcer(coll, crossing);
    expect(coll, instance->round);
}

static bool announces(void *owner, pp_instance_t *instance)
{
    pp_crossing_t *crossing = crossing_of(owner, instance->round);
    find_announcer(owner, crossing);
    return crossing->announces;
}

static void take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    pp_coll_t *coll = owner;
    pp_combine_t *combine = coll->combine;
    pp_crossing_t *crossing = crossing_of(coll, instance->round);
    int32_t index = (int32_t)combine->board.plan->entry;
    const pp_ring_entry_t *entry = pp_board_entry(&combine->board, index);
    share->tally = entry->tally;
    share->null = entry->null;
    share->contributors = entry->contributors;
    share->left = entry->left;
    share->tally.cause = (uint16_t)crossing->cause;
    for (int32_t i = 0; crossing->triggered && i < node_size(coll); i++)
        if (pp_mask_has(crossing->triggers, i)) {
            share->tally.initiator = (uint32_t)pp_rank_at(coll, i);
            break;
        }
    /* What comes from other nodes is reduced, or put, where the result belongs. */
    combine->between->lent = (pp_buffer_t){.data = pp_board_result(&combine->board, index)};
    instance->accumulator = coll->count ? &combine->between->lent : NULL;
}

static void done(void *owner, pp_instance_t *instance)
{
    pp_coll_t *coll = owner;
    pp_board_t *board = &coll->combine->board;
    pp_ring_entry_t *entry = pp_board_entry(board, (int32_t)board->plan->entry);
    const pp_register_t *reg = &instance->registers[0];
    size_t bytes = pp_mask_bytes(coll);
    instance->accumulator = NULL;
    entry->tally = reg->tally;
    memcpy(entry->contributors, reg->contributors, bytes);
    memcpy(entry->left, reg->left, bytes);
    entry->null = reg->null;
    pp_policy_judge(coll, &entry->tally);
    entry->flush = entry->tally.cause == PP_CAUSE_FLUSH;
    entry->kept = entry->flush || coll->config.deliver != PP_LATEST;
    uint64_t by = pp_coll_divisor(coll, &entry->tally);
    if (!entry->null && by > 1)
        coll->series.kernels.divide(pp_board_result(board, (int32_t)board->plan->entry), coll->count, by);
    crossing_of(coll, instance->round)->done = true;
    coll->engine->changed = true;
}

static void retired(void *owner, pp_instance_t *instance)
{
    pp_coll_t *coll = owner;
    if (crossing_of(coll, instance->round)->published)
        pp_series_recycle(&coll->series, instance);
}

static void update(void *owner) { pp_combine_update(owner); }

static const pp_host_t host = {
    .take = take, .activated = activated, .announces = announces, .done = done, .retired = retired,
    .control = control, .update = update,
};

/* ---- explaining, opening and closing ------------------------------------------------------------------------------ */

void pp_between_explain(pp_coll_t *coll, pp_text_t *text)
{
    const pp_nodes_t *nodes = nodes_of(coll);
    uint64_t round = pp_turn_round(pp_board_turn(&coll->combine->board));
    pp_instance_t *instance = leads(coll, round) ? pp_series_instance(&coll->series, round) : NULL;
    pp_text_add(text, "rank %d leads its node in round %llu%s\n", pp_nodes_leader(nodes, nodes->mine, round),
                (unsigned long long)round, is_activated(coll, round) ? ", which is on" : "");
    if (instance)
        pp_series_explain(instance, text);
}

/* As far as this rank has led; and nothing of the rounds that were opened since is about to fire. */
bool pp_between_retired(const pp_coll_t *coll)
{
    const pp_series_t *series = &coll->series;
    if (coll->engine->queue_head != coll->engine->queue_tail)
        return false;
    return series->opened == pp_series_place(series, coll->completed) + (uint64_t)series->window;
}

pp_status_t pp_between_open(pp_coll_t *coll, uint32_t id, int32_t algorithm, const pp_kernels_t *kernels)
{
    const pp_nodes_t *nodes = nodes_of(coll);
    int32_t window = coll->calls->window;
    pp_graph_t *graph = NULL;
    pp_between_t *between = coll->combine->between = calloc(1, sizeof *between);
    /* Other nodes may tell of the round after those that are open here. */
    size_t count = (size_t)window + 2;
    pp_crossing_t *crossings = calloc(count, sizeof *crossings);
    if (!between || !crossings) {
        free(crossings);
        return pp_fail(PP_ERR_MEMORY, "no memory for %d rounds", window);
    }
    between->crossings = crossings;
    between->count = count;
    for (size_t i = 0; i < count; i++)
        crossings[i].round = UINT64_MAX;
    coll->config.algorithm = algorithm;
    PP_TRY(pp_algo_partial_allreduce(algorithm, nodes->mine, nodes->count, coll->count,
                                     pp_coll_segments(coll, kernels, nodes->count), &graph));
    return pp_series_open(coll->engine, id, graph, nodes, kernels, window, &host, coll, &coll->series);
}

/* Rounds under way in a context that is given up: what was lent to them is not theirs to free. */
void pp_between_close(pp_coll_t *coll)
{
    pp_between_t *between = coll->combine->between;
    pp_series_t  *series = &coll->series;
    if (!between)
        return;
    for (int32_t i = 0; series->instances && i < series->window; i++)
        if (series->instances[i].accumulator == &between->lent)
            series->instances[i].accumulator = NULL;
    free(between->crossings);
    free(between);
    coll->combine->between = NULL;
}
