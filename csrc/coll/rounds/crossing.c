/* crossing.c - the rules of a round for a node among several.  See leader.h. */
#include "leader.h"

#include <string.h>

pp_crossing_t *pp_crossing_of(pp_allreduce_t *coll, uint64_t round)
{
    pp_leading_t  *leading = coll->on_board->leading;
    pp_crossing_t *crossing = &leading->crossings[pp_series_index(&coll->series, round) % leading->count];
    if (crossing->round == round)
        return crossing;
    *crossing = (pp_crossing_t){.round = round, .held = crossing->held, .handed_on = crossing->handed_on};
    if (crossing->held)
        memset(crossing->held, 0, 2 * (size_t)coll->rule.size * sizeof *crossing->held);
    return crossing;
}

/* ---- the rules, for a node ------------------------------------------------------------------------------ */

bool pp_crossing_anybody_waits(const pp_view_t *view)
{
    for (int32_t index = 0; index < pp_node_size(view->coll); index++)
        if (pp_word_waits(pp_view_word(view->coll, index), view->round))
            return true;
    return false;
}

/* Whether all ranks of this node flush.  Ranks that are out go along with any flush, as long as some rank may still ask
   for one. */
bool pp_crossing_all_flush(const pp_view_t *view)
{
    const pp_team_t *team = view->coll->handle.team;
    bool any = !view->coll->handle.ended && team->serves;
    for (int32_t index = 0; index < pp_node_size(view->coll); index++) {
        if (!pp_view_flushes(view, index))
            return false;
        any |= !pp_node_out(pp_node_of(view->coll), index);
    }
    return any;
}

/* Whether the node may give its part.  In lockstep it waits for every rank that has not left, else for none; max_lag
   may withhold a part with any policy.  The leader counts only on ranks that it has latched: a rank that waited elsewhere
   may no longer be ready when its part is taken.  `crossing`: NULL for ranks that do not lead the round, and do not know
   which are latched: a latched rank waits, or has something pending, until the node gives its part. */
bool pp_crossing_permits(const pp_view_t *view, const pp_crossing_t *crossing)
{
    const pp_allreduce_t *coll = view->coll;
    for (int32_t index = 0; coll->rule.lockstep && index < pp_node_size(coll); index++) {
        uint64_t word = crossing ? 0 : pp_view_word(coll, index);
        bool     ready = crossing ? pp_mask_has(crossing->ready, index)
                                  : pp_word_pending(word) || pp_word_waits(word, view->round);
        if (!ready && !pp_view_left(view, index))
            return false;
    }
    return pp_view_permit(view);
}

/* The rank was seen waiting: it is ready for the round that it brings about, whatever it does next. */
static void mark_trigger(pp_crossing_t *crossing, int32_t index)
{
    pp_mask_add(crossing->triggers, index);
    pp_mask_add(crossing->ready, index);
}

/* Keeps the strongest cause by which a rank of this node triggers, because all such ranks are initiators. */
static void give_cause(pp_crossing_t *crossing, int32_t cause)
{
    if (crossing->cause < (uint32_t)cause)
        crossing->cause = (uint32_t)cause;
}

/* Called by the leader when the round is on for it.  The rank that has announced the round counts as an initiator,
   even if other ranks do, too: the other nodes may have heard of no other. */
void pp_crossing_find_announcer(pp_allreduce_t *coll, pp_crossing_t *crossing)
{
    if (crossing->announced)
        return;
    crossing->announced = true;
    crossing->announces = pp_node_size(coll) == 1 || pp_signal_say_activated(coll, crossing->round, PP_CAUSE_POLICY);
    if (!crossing->announces) {
        pp_cause_t cause;
        crossing->triggered = true;
        mark_trigger(crossing, pp_signal_activated_by(coll, crossing->round, &cause));
        give_cause(crossing, (int32_t)cause);
    }
}

/* Whether the time between the trigger and the taking of contributions is over. */
static bool is_ripe(const pp_allreduce_t *coll, pp_crossing_t *crossing)
{
    pp_engine_t *engine = coll->handle.engine;
    if (coll->grace_ns == 0 || coll->grace_ns == PP_GRACE_AUTO)
        return true;
    uint64_t now = pp_engine_now(engine);
    if (crossing->ripe_ns == 0)
        crossing->ripe_ns = now + coll->grace_ns;
    if (now < crossing->ripe_ns)
        pp_engine_alarm(engine, crossing->ripe_ns);
    return now >= crossing->ripe_ns;
}

void pp_crossing_trigger(pp_allreduce_t *coll, pp_crossing_t *crossing, pp_instance_t *instance, int32_t cause)
{
    crossing->triggered = crossing->activated = true;
    give_cause(crossing, cause);
    pp_crossing_find_announcer(coll, crossing);
    pp_instance_fire(instance, coll->series.graph->start);
}

static void trigger_when_ripe(pp_allreduce_t *coll, pp_crossing_t *crossing, pp_instance_t *instance, int32_t cause)
{
    give_cause(crossing, cause);
    if (is_ripe(coll, crossing))
        pp_crossing_trigger(coll, crossing, instance, cause);
}

static bool mark_waiting(const pp_view_t *view, pp_crossing_t *crossing)
{
    bool any = false;
    for (int32_t index = 0; index < pp_node_size(view->coll); index++)
        if (pp_word_waits(pp_view_word(view->coll, index), view->round)) {
            mark_trigger(crossing, index);
            any = true;
        }
    return any;
}

/* ---- draws ------------------------------------------------------------------------------------------ */

void pp_crossing_hear_draw(pp_crossing_t *crossing, const pp_draw_t *message)
{
    pp_loan_t *held = &crossing->held[message->place];
    if (*held < message->until)
        *held = message->until;
}

void pp_crossing_draws(const pp_allreduce_t *coll, const pp_crossing_t *crossing, uint64_t *places)
{
    uint64_t calls = pp_engine_calls(coll->handle.engine, true);
    memset(places, 0, PP_CONTRIBUTORS_WORDS * sizeof *places);
    for (int32_t place = 0; crossing->held && place < coll->rule.size; place++)
        if (pp_loan_lasts(crossing->held[place], calls))
            pp_mask_add(places, place);
}

static void hand_on(pp_allreduce_t *coll, pp_crossing_t *crossing, int32_t place, int32_t node, pp_loan_t until)
{
    pp_draw_t message = {.prefix = {.kind = PP_MSG_DRAW, .handle = coll->handle.id, .round = crossing->round},
                         .place = (uint64_t)place, .until = until};
    if (crossing->handed_on[place] >= until)
        return;
    crossing->handed_on[place] = until;
    coll->handle.engine->coverage.draws_handed_on++;
    pp_engine_control(coll->handle.engine, pp_nodes_leader(pp_nodes_of(coll), node, crossing->round),
                      &message.prefix, sizeof message);
}

/* Follows a draw that is this node's, and hands it on if it comes to a rank of another node.  Returns the cause by
   which it triggers; -1: it does not trigger. */
static int32_t follow_draw(const pp_view_t *view, pp_allreduce_t *coll, pp_crossing_t *crossing, int32_t place)
{
    pp_draw_end_t end = pp_view_follow(view, coll, place);
    coll->handle.engine->coverage.draws_handed_on += (uint64_t)end.hops;
    if (end.verdict == PP_DRAW_OUT_OF_SIGHT)
        hand_on(coll, crossing, end.place, pp_nodes_of(coll)->node_of[pp_view_drawn_at(coll, end.place)],
                pp_loan_make(crossing->held[place], end.lent, pp_engine_calls(coll->handle.engine, true)));
    if (end.verdict != PP_DRAW_TRIGGERS)
        return -1;
    mark_trigger(crossing, pp_view_index_of(coll, pp_view_drawn_at(coll, end.place)));
    return (int32_t)pp_rule_draw_cause(&coll->rule, end.place);
}

static void follow_draws(const pp_view_t *view, pp_allreduce_t *coll, pp_crossing_t *crossing,
                         pp_instance_t *instance)
{
    const pp_nodes_t *nodes = pp_nodes_of(coll);
    uint64_t draws[PP_CONTRIBUTORS_WORDS];
    int32_t strongest = -1;
    for (int32_t place = 0; place < coll->rule.drawn; place++)
        if (nodes->node_of[pp_view_drawn_at(coll, place)] == nodes->mine)
            crossing->held[place] = PP_FOR_GOOD;
    pp_crossing_draws(coll, crossing, draws);
    for (int32_t place = 0; place < coll->handle.engine->size; place++) {
        if (!pp_mask_has(draws, place))
            continue;
        int32_t cause = follow_draw(view, coll, crossing, place);
        strongest = cause > strongest ? cause : strongest;
    }
    if (strongest >= 0)
        trigger_when_ripe(coll, crossing, instance, strongest);
}

/* ---- counts ------------------------------------------------------------------------------------------ */

static pp_ballot_t count_here(const pp_view_t *view, const pp_crossing_t *crossing)
{
    const pp_allreduce_t *coll = view->coll;
    pp_ballot_t sum = {.round = view->round};
    for (int32_t index = 0; index < pp_node_size(coll); index++) {
        pp_facts_t facts = pp_view_facts(view, index);
        facts.ready = pp_mask_has(crossing->ready, index);
        pp_rule_count(&sum.count, &facts);
    }
    return sum;
}

static void count_ready(const pp_view_t *view, pp_allreduce_t *coll, pp_crossing_t *crossing,
                        pp_instance_t *instance)
{
    const pp_nodes_t *nodes = pp_nodes_of(coll);
    pp_ballots_t *ballots = &coll->on_board->leading->ballots;
    pp_ballot_t   sum = count_here(view, crossing);
    pp_cause_t    cause;
    pp_ballots_add(ballots, &sum, pp_engine_calls(coll->handle.engine, true));
    if (nodes->mine != 0)
        pp_ballots_report(ballots, &coll->handle, &sum,
                          pp_nodes_leader(nodes, pp_ballots_parent(nodes->mine), sum.round));
    else if (pp_rule_enough(&coll->rule, &sum.count, &cause))
        trigger_when_ripe(coll, crossing, instance, (int32_t)cause);
}

void pp_crossing_latch_ready(const pp_view_t *view, pp_crossing_t *crossing)
{
    for (int32_t index = 0; index < pp_node_size(view->coll); index++)
        if (pp_view_ready(view, pp_view_word(view->coll, index), index))
            pp_mask_add(crossing->ready, index);
}

/* Marks the ranks whose deadline is over. */
static bool mark_overdue(const pp_view_t *view, pp_crossing_t *crossing)
{
    bool any = false;
    for (int32_t index = 0; view->coll->rule.deadline && index < pp_node_size(view->coll); index++) {
        pp_facts_t facts = pp_view_facts(view, index);
        if (facts.waits && facts.overdue) {
            mark_trigger(crossing, index);
            any = true;
        }
    }
    return any;
}

/* Looks whether this node brings the round about, or can help other nodes to. */
void pp_crossing_bring_about(const pp_view_t *view, pp_allreduce_t *coll, pp_crossing_t *crossing,
                             pp_instance_t *instance)
{
    if (!crossing->announced && pp_signal_is_activated(coll, crossing->round))
        pp_crossing_trigger(coll, crossing, instance, PP_CAUSE_POLICY);
    else if (coll->rule.trigger == PP_BY_DRAW)
        follow_draws(view, coll, crossing, instance);
    else if (coll->rule.trigger == PP_BY_COUNT)
        count_ready(view, coll, crossing, instance);
    else if (mark_waiting(view, crossing))
        trigger_when_ripe(coll, crossing, instance, PP_CAUSE_POLICY);
    if (!crossing->triggered && mark_overdue(view, crossing))
        trigger_when_ripe(coll, crossing, instance, PP_CAUSE_DEADLINE);
}
