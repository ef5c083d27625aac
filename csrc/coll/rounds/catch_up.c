/* catch_up.c - brings this rank up to date with rounds that others have made meanwhile.  See combine.h. */
#include "combine.h"

/* Fills in the parts of the outcome that are this rank's own. */
static void describe_own(pp_allreduce_t *coll, const pp_ring_entry_t *from, pp_outcome_t *outcome)
{
    pp_combine_t *combine = coll->on_board;
    int32_t me = coll->handle.engine->node->index;
    const pp_share_t share = from->shares[me];
    outcome->staleness = outcome->own_contributions = 0;
    if (pp_mask_has(outcome->contributors, coll->handle.engine->rank)) {
        outcome->own_contributions = share.contributions;
        if (outcome->round > share.oldest_given)
            outcome->staleness = outcome->round - share.oldest_given;
        if (combine->starts_taken < share.starts)
            combine->starts_taken = share.starts;
    }
    outcome->starts_taken = combine->starts_taken;
    outcome->external = !from->flush && !pp_mask_has(from->triggers, me);
}

/* Reads the entry of the oldest round from coll->completed on that the ring has.  PP_PENDING: it was overwritten
   meanwhile. */
static pp_status_t read_entry(pp_allreduce_t *coll, pp_outcome_t *outcome, uint64_t *left)
{
    const pp_board_t *board = &coll->on_board->board;
    int32_t index = pp_board_find(board, coll->completed);
    uint64_t round = coll->completed;
    if (index < 0) {
        round = pp_board_oldest(board, coll->completed);
        index = round == UINT64_MAX ? -1 : pp_board_find(board, round);
    }
    if (index < 0)
        return PP_PENDING;
    const pp_ring_entry_t *from = pp_board_entry(board, index);
    outcome->round = outcome->first = round;
    outcome->tally = from->tally;
    pp_rounds_mask_copy(coll, outcome->contributors, from->contributors);
    if (from->tally.any_left)
        pp_rounds_mask_copy(coll, left, from->left);
    bool direct = pp_mask_has(from->direct, board->node->index);
    outcome->lies = from->null ? PP_NOWHERE : direct ? PP_IN_RECEIVE : PP_IN_RING;
    outcome->ring = index;
    describe_own(coll, from, outcome);
    return pp_board_still(board, index, round) ? PP_OK : PP_PENDING;
}

/* Rounds that this rank skips (PP_LATEST) may have taken parts that it had pending. */
static void count_skipped(pp_allreduce_t *coll, uint64_t next)
{
    pp_combine_t *combine = coll->on_board;
    pp_station_t *own = pp_board_own(&combine->board);
    PP_STEP("look");
    uint32_t pending = pp_word_pending(atomic_load(&own->word));
    PP_STEP("look");
    uint64_t starts = 0, taken = atomic_load(&own->taken);
    if (taken > next)
        return;              /* this round has taken the parts, and its entry says so; or a later round has */
    for (int part = 0; part < PP_PARTS; part++)
        if (pending >> part & 1)
            starts += own->parts[part].contributions;
    combine->starts_taken = pp_rounds_linked(coll) - starts;
}

static uint64_t rounds_taken(uint64_t turn) { return pp_turn_round(turn) + pp_turn_taken(turn); }

void pp_combine_count_as_given(pp_handle_t *handle)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_rounds_count_as_given(coll, rounds_taken(pp_board_turn(&coll->on_board->board)));
}

/* Before this rank's exemption may end: rounds that have gone on until now count as given, on all handles. */
static void count_all_as_given(const pp_allreduce_t *coll)
{
    const pp_team_t *team = coll->handle.team;
    if (team->live_handles < 2 || !(team->in_call || team->waiting > 0))
        return;
    pp_team_count_as_given(team, &coll->handle);
}

/* Makes outcomes of the ring entries of the rounds that other ranks have made since this rank last looked. */
bool pp_combine_catch_up(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    uint64_t turn = pp_board_turn(&combine->board), rounds = pp_turn_round(turn);
    uint64_t left[PP_CONTRIBUTORS_WORDS];
    pp_rounds_count_passed(coll, rounds_taken(turn));
    if (coll->completed == rounds) {
        pp_rounds_count_as_given(coll, rounds_taken(turn));
        return false;
    }
    count_all_as_given(coll);
    while (coll->completed < rounds && !coll->handle.engine->error) {
        pp_outcome_t *outcome = pp_outcome_new(coll);
        if (!outcome)
            break;
        uint64_t taken = combine->starts_taken;
        if (read_entry(coll, outcome, left) != PP_OK) {
            combine->starts_taken = taken;
            pp_outcome_free(coll, outcome);
            rounds = pp_turn_round(pp_board_turn(&combine->board));
            continue;
        }
        if (outcome->round > coll->completed) {
            count_skipped(coll, outcome->round);
            outcome->starts_taken = combine->starts_taken;
        }
        if (outcome->tally.cause == PP_CAUSE_FLUSH) {
            combine->flushed = outcome->round + 1;
            combine->flushes++;
        }
        coll->handle.team->shared_rounds += outcome->round + 1 - coll->completed;
        /* Up to this round, because a flush may end this rank's exemption. */
        pp_rounds_count_as_given(coll, outcome->round + 1);
        pp_rounds_complete(coll, outcome, left);
    }
    if (coll->completed == pp_turn_round(turn))
        pp_rounds_count_as_given(coll, rounds_taken(turn));
    return true;
}
