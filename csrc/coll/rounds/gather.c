/* gather.c - takes the parts of a node's ranks, and moves their data.  See combine.h. */
#include "combine.h"

enum {
    WHOLE_BYTES = 16384,             /* the claimer moves vectors up to this size at once */
    RECRUIT_BYTES = 1 << 20
};

size_t pp_combine_whole_bytes(const pp_allreduce_t *coll) { return pp_combine_is_simulated(coll) ? 16 : WHOLE_BYTES; }

static void add_source(pp_plan_t *plan, uint64_t offset) { plan->offsets[plan->source_count++] = offset; }

/* Takes all pending parts of one rank into the entry's header and the plan. */
static void take_part(const pp_view_t *view, pp_allreduce_t *coll, int32_t rank, pp_ring_entry_t *entry)
{
    pp_board_t *board = &coll->on_board->board;
    pp_station_t *station = &board->stations[rank];
    pp_taken_t taken = pp_board_take(board, rank, view->round);
    pp_share_t share = {.oldest_given = UINT64_MAX};
    pp_leaving_t leaves = pp_word_leaving(taken.word, view->round, view->flushes);
    bool aside = taken.word & PP_WORD_ASIDE, left = aside || pp_view_left(view, rank);
    PP_STEP("decide");
    bool lifted = aside && view->round >= atomic_load(&station->limit);
    bool ready = taken.parts && (pp_mask_has(coll->on_board->ready, rank) || pp_view_ready(view, taken.word, rank));
    bool out = view->away && pp_node_out(board->node, rank);
    for (int part = 0; taken.parts >> part; part++) {
        const pp_part_t *from = &station->parts[part];
        if (!(taken.parts >> part & 1))
            continue;
        uint64_t given = atomic_load_explicit(&from->oldest_given, memory_order_relaxed);
        share.contributions += from->contributions;
        share.starts = from->starts > share.starts ? from->starts : share.starts;
        share.oldest_given = given < share.oldest_given ? given : share.oldest_given;
        bool users = pp_word_users(taken.word) >> part & 1;
        add_source(board->plan, board->vault ? (uint64_t)(uintptr_t)pp_board_slot(board, rank, part)
                                : users      ? from->users
                                             : pp_board_slot_offset(board, rank, part));
    }
    pp_tally_t own = {.contributions = share.contributions, .contributors = taken.parts != 0,
                      .active = ready, .flushing = leaves != PP_STAYS || out,
                      .flush_calls = leaves == PP_STAYS ? 0 : pp_flush_calls(leaves, pp_node_calls_of(board->node, rank)),
                      .initiator = PP_NO_INITIATOR, .any_left = left,
                      .cause = lifted ? PP_CAUSE_DEPARTED : PP_CAUSE_POLICY};
    if (taken.parts) {
        pp_mask_add(entry->contributors, pp_rank_at(coll, rank));
        entry->shares[rank] = share;
        pp_rounds_count_staleness(coll, view->round > share.oldest_given
                                                  ? view->round - share.oldest_given : 0);
    }
    if (left)
        pp_mask_add(entry->left, pp_rank_at(coll, rank));
    if (pp_word_waits(taken.word, view->round) && (taken.word & PP_WORD_DIRECT))
        pp_mask_add(entry->direct, rank);
    pp_tally_merge(&entry->tally, &own);
}

static void clear_header(const pp_allreduce_t *coll, pp_ring_entry_t *entry)
{
    entry->tally = (pp_tally_t){.initiator = PP_NO_INITIATOR};
    pp_rounds_mask_clear(coll, entry->contributors);
    pp_rounds_mask_clear(coll, entry->left);
    pp_rounds_mask_clear(coll, entry->direct);
    pp_rounds_mask_copy(coll, entry->triggers, coll->on_board->triggers);
}

void pp_gather_wake_waiters(pp_allreduce_t *coll, uint64_t round)
{
    pp_node_t *node = pp_node_of(coll);
    for (int32_t rank = 0; pp_node_anybody_asleep(node) && rank < node->size; rank++) {
        uint64_t word = pp_view_word(coll, rank);
        bool waits = (word & PP_WORD_WAITS) && pp_word_round_bits(round) >= pp_word_round(word);
        /* Also this rank: its progress thread may have been lending its core when the call came. */
        if (waits || (word >> PP_WORD_LEAVING_SHIFT & 7))
            node->wake(node->owner, rank, false);
    }
}

/* How many of the newest results a rank may still be copying.  A rank that waits for the round has collected all
   results before.  If all ranks wait, the result can take the entry of the newest, whose memory the caches still
   hold.  Not between nodes, because a leader may still be sending that result to other nodes. */
static uint64_t spared(const pp_allreduce_t *coll, uint64_t round)
{
    const pp_board_t *board = &coll->on_board->board;
    if (board->vector_bytes <= pp_combine_whole_bytes(coll) || !coll->on_board->way->alone)
        return board->spared;
    for (int32_t rank = 0; rank < board->ranks; rank++)
        if (!pp_word_waits(pp_view_word(coll, rank), round))
            return board->spared;
    return 0;
}

int32_t pp_gather(pp_allreduce_t *coll, uint64_t round)
{
    pp_board_t *board = &coll->on_board->board;
    pp_plan_t *plan = board->plan;
    int32_t index = pp_board_pick(board, round, spared(coll, round));
    if (index < 0)
        return -1;
    pp_ring_entry_t *entry = pp_board_entry(board, index);
    pp_view_t view = pp_view_of(coll, round);
    if (board->vector_bytes > pp_combine_whole_bytes(coll)) {
        if (coll->handle.engine->tell)   /* a shorter round is published at once */
            pp_rounds_tell(coll, PP_EVENT_CLAIM, round, NULL);
        pp_board_begin_plan(board);
    }
    clear_header(coll, entry);
    plan->source_count = plan->target_count = 0;
    plan->entry = (uint32_t)index;
    for (int32_t rank = 0; rank < board->ranks; rank++)
        take_part(&view, coll, rank, entry);
    entry->null = plan->source_count == 0;
    coll->handle.team->shared_led++;
    return index;
}

/* For the data of a large round: ranks that wait work at them anyway.  Of the ranks that sleep outside the library as
   many are woken as there are spare cores: their progress threads help. */
static void recruit(pp_allreduce_t *coll)
{
    pp_node_t *node = pp_node_of(coll);
    int32_t  spare = coll->handle.team->cores;
    uint64_t now = pp_engine_now(coll->handle.engine);
    for (int32_t index = 0; index < node->size; index++)
        spare -= index == node->index || !pp_node_idles(node, index, now);
    for (int32_t index = 0; spare > 0 && index < node->size; index++) {
        if (index == node->index || !pp_node_idles(node, index, now))
            continue;
        node->wake(node->owner, index, true);
        spare--;
    }
}

/* One rank alone has the vectors of a vault folded.  It looks whether that is over when it looks at the board.  True: it
   is over already. */
static bool begin_fold(pp_allreduce_t *coll, uint64_t round)
{
    pp_combine_t *combine = coll->on_board;
    const pp_plan_t *plan = combine->board.plan;
    const pp_kernels_t *kernels = &coll->series.kernels;
    pp_status_t status = kernels->memory->begin_fold(kernels, pp_board_result(&combine->board, (int32_t)plan->entry),
                                                     plan->offsets, plan->source_count, coll->count, plan->divide_by);
    if (status == PP_OK)
        return true;
    if (status < 0)
        pp_engine_fail(coll->handle.engine, status, "handle %u: round %llu could not be reduced: %s", coll->handle.id,
                       (unsigned long long)round, pp_error_text());
    combine->folds = true;
    pp_board_keep_turn(&combine->board, round);
    return false;
}

bool pp_gather_fold_over(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    const pp_kernels_t *kernels = &coll->series.kernels;
    if (!combine->folds || coll->handle.engine->error)
        return false;
    pp_status_t status = kernels->memory->fold_over(kernels);
    if (status < 0)
        pp_engine_fail(coll->handle.engine, status, "handle %u: a round could not be reduced: %s", coll->handle.id,
                       pp_error_text());
    combine->folds = status == PP_PENDING;
    return status == PP_OK;
}

bool pp_gather_move(pp_allreduce_t *coll, uint64_t round)
{
    pp_board_t *board = &coll->on_board->board;
    if (board->plan->source_count == 0)
        return true;
    if (board->vault)
        return begin_fold(coll, round);
    if (board->vector_bytes <= pp_combine_whole_bytes(coll)) {
        pp_move(board, &coll->series.kernels, NULL, 0, coll->count);
        return true;
    }
    board->plan->chunk_bytes = coll->on_board->cut.chunk_bytes;
    board->plan->chunks = coll->on_board->cut.chunks;
    pp_board_hand_out(board, round);
    /* This rank may go on to something else; then the ranks that wait do the work. */
    pp_gather_wake_waiters(coll, round);
    if (board->vector_bytes >= RECRUIT_BYTES)
        recruit(coll);
    return false;
}

void pp_gather_ask_for_room(pp_allreduce_t *coll, uint64_t round)
{
    pp_node_t *node = pp_node_of(coll);
    for (int32_t rank = 0; rank < node->size; rank++) {
        PP_STEP("decide");
        uint64_t needed = atomic_load(&coll->on_board->board.stations[rank].absorbed);
        if (rank != node->index && pp_board_may_be_full(&coll->on_board->board, needed, round + 1))
            node->wake(node->owner, rank, true);
    }
}
