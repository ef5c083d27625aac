/* on_board.c - what rounds on one board and on several boards share.  See combine.h. */
#include "time.h"
#include "combine.h"
#include "../../node/keeper.h"

#include <stdlib.h>
#include <string.h>

enum {
    ENTRIES_BEYOND_WINDOW = 3,       /* one being written, one being copied, and that of a flush */
    SPARED = 2                       /* the newest results, which a slow reader may still be copying (PP_LATEST) */
};

/* ---- what other ranks have done ------------------------------------------------------------------------------- */

/* Another rank may have found that the next round lacks this one. */
static void hear_told(pp_allreduce_t *coll)
{
    const pp_told_t told = pp_hold_told(coll);
    if (told != PP_TOLD_NOTHING)
        pp_round_time_awaited(coll, coll->completed, told);
}

bool pp_on_board_has_news(pp_allreduce_t *coll)
{
    const pp_combine_t *combine = coll->on_board;
    uint64_t turn = pp_board_turn(&combine->board);
    hear_told(coll);
    return pp_turn_round(turn) != coll->completed || combine->way->has_news(coll, turn);
}

/* ---- the data of large rounds --------------------------------------------------------------------------------- */

bool pp_on_board_has_work(const pp_handle_t *handle)
{
    const pp_allreduce_t *coll = pp_allreduce_of(handle);
    const pp_board_t *board = &coll->on_board->board;
    if (pp_turn_phase(pp_board_turn(board)) != PP_MOVING)
        return false;
    return pp_board_tickets_left(board);
}

void pp_on_board_begin_work(pp_handle_t *handle, bool *lands)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    coll->on_board->workers++;
    *lands = *lands && pp_copy_begin_landing(coll);
}

bool pp_on_board_work(pp_handle_t *handle, bool lands, uint64_t *round)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    pp_combine_t *combine = coll->on_board;
    pp_board_t *board = &combine->board;
    uint64_t turn = pp_board_turn(board);
    uint32_t chunk;
    *round = pp_turn_round(turn);
    if (pp_turn_phase(turn) != PP_MOVING)
        return false;
    lands = lands && *round == combine->landed_round;
    while (pp_board_ticket(board, *round, &chunk)) {
        pp_move_chunk(board, &coll->series.kernels, lands ? coll->config.pieces : NULL, chunk);
        if (lands) {
            combine->landed[chunk] = true;
            combine->landed_count++;
        }
        if (pp_board_finished(board))
            return true;
    }
    return false;
}

void pp_on_board_worked(pp_handle_t *handle, uint64_t round, bool last)
{
    pp_allreduce_t *coll = pp_allreduce_of(handle);
    coll->on_board->news |= last;
    if (--coll->on_board->workers == 0)
        coll->handle.engine->changed = true;      /* it may be freed */
    if (last)
        coll->on_board->way->gathered(coll, round);
}

/* ---- going on -------------------------------------------------------------------------------------------------- */

/* Makes room in the ring for ranks that go on: copies this one's results aside, two rounds before there may be none.  A rank
   that was never exempt from its bound is not so far behind.  One that was stays so when its exemption ends. */
static void make_room(pp_allreduce_t *coll)
{
    const pp_combine_t *combine = coll->on_board;
    const uint64_t      ahead = coll->completed + 2;
    /* What was said last is no newer than what is needed now, so if it leaves room, there is some. */
    if (!pp_combine_keeps_all(coll) || !pp_board_may_be_full(&combine->board, combine->absorbed, ahead)
        || !pp_board_may_be_full(&combine->board, pp_say_absorbed(coll), ahead))
        return;
    if (coll->request.outcome)
        pp_copy_own(coll, coll->request.outcome);
    for (pp_outcome_t *outcome = coll->ungiven; outcome; outcome = outcome->next)
        pp_copy_own(coll, outcome);
}

bool pp_on_board_go_on(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    const pp_team_t *team = coll->handle.team;
    const pp_node_t *node = pp_node_of(coll);
    bool news = pp_combine_catch_up(coll) && !combine->way->alone;
    hear_told(coll);
    make_room(coll);
    /* What this rank has missed could not be merged: it takes part in nothing more. */
    if (coll->handle.engine->error)
        return false;
    uint64_t before = coll->completed;
    pp_team_publish_presence(team);
    news |= pp_say_bounds(coll);
    news |= pp_say_state(coll);
    /* A rank that has changed something looks whether a round is due.  Also a round that was not ripe yet counts, and
       what this rank does on other handles. */
    news |= combine->news || combine->waits != team->waits || combine->presence != node->presence;
    combine->news = false;
    combine->waits = team->waits;
    combine->presence = node->presence;
    if (!combine->way->look(coll, news))
        return false;
    return coll->completed != before || pp_turn_round(pp_board_turn(&combine->board)) != before;
}

void pp_on_board_update(pp_allreduce_t *coll) { pp_on_board_go_on(coll); }

/* ---- facts about this rank ------------------------------------------------------------------------------------- */

bool pp_on_board_in_mid_round(const pp_allreduce_t *coll)
{
    return pp_turn_phase(pp_board_turn(&coll->on_board->board)) != PP_OPEN;
}

pp_facts_t pp_on_board_facts(const pp_allreduce_t *coll)
{
    pp_view_t view = pp_view_of(coll, coll->completed);
    return pp_view_facts(&view, pp_node_of(coll)->index);
}

uint64_t pp_on_board_joined(const pp_allreduce_t *coll)
{
    uint64_t turn = pp_board_turn(&coll->on_board->board);
    return pp_turn_round(turn) + pp_turn_taken(turn);
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

static size_t vector_bytes(const pp_allreduce_t *coll)
{
    return coll->count * pp_accumulator_bytes(coll->config.type);
}

static pp_board_size_t size_of_board(const pp_allreduce_t *coll)
{
    const pp_team_t *team = coll->handle.team;
    const pp_node_t *node = team->engine->node;
    const int32_t    pins = node->room ? 0 : pp_board_pins_max(node->size);
    return (pp_board_size_t){.entries = team->window + ENTRIES_BEYOND_WINDOW + pins,
                             .parts = node->room ? node->room : PP_PARTS, .pins = pins,
                             .vector_bytes = vector_bytes(coll), .offer_bytes = coll->handle.offer_bytes};
}

static uint64_t region_bytes(const pp_allreduce_t *coll)
{
    pp_board_size_t size = size_of_board(coll);
    return pp_board_bytes(coll->handle.team->engine->node->size, &size);
}

uint64_t pp_board_rounds_reserve(const pp_allreduce_t *coll)
{
    pp_team_t *team = coll->handle.team;
    pp_node_t *node = team->engine->node;
    if (!node || pp_allreduce_wants_messages(coll))
        return 0;
    pp_board_size_t size = size_of_board(coll);
    uint64_t needed = region_bytes(coll), region = pp_node_reserve(node, needed);
    if (region && !pp_board_prepare(node, region, &size)) {
        pp_node_release(node, region, needed);
        region = 0;
    }
    if (!region && team->refused_bytes == 0)
        team->refused_bytes = needed;
    return region;
}

void pp_board_rounds_unreserve(const pp_allreduce_t *coll, uint64_t region)
{
    if (region)
        pp_node_release(coll->handle.team->engine->node, region, region_bytes(coll));
}

/* Finds out whether rounds may read and write the application's buffers in place: they are arrays in the memory of the
   node. */
static void find_users(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    const pp_kernels_t *kernels = &coll->series.kernels;
    const pp_piece_t *piece = coll->config.pieces;
    size_t bytes = combine->board.vector_bytes;
    pp_node_t *node = combine->board.node;
    if (coll->config.piece_count != 1 || bytes == 0 || !pp_users_are_vectors(kernels))
        return;
    if (!kernels->normalise)
        combine->kept_send = pp_keeper_share(node, piece->send ? piece->send : piece->recv, bytes);
    if (combine->way->alone)         /* between nodes a result is written to one buffer only */
        combine->kept_receive = pp_keeper_share(node, piece->recv, bytes);
    combine->users = combine->kept_send;
    combine->direct = combine->kept_receive
        && pp_node_holds(node, piece->recv, bytes, &pp_board_own(&combine->board)->receive);
}

pp_status_t pp_on_board_open(pp_allreduce_t *coll, const pp_way_t *way, uint64_t region)
{
    pp_engine_t *engine = coll->handle.engine;
    pp_combine_t *combine = coll->on_board = calloc(1, sizeof *combine);
    if (!combine)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    combine->way = way;
    uint64_t spared = coll->max_lag != PP_UNBOUNDED ? coll->max_lag + 1 : SPARED;
    pp_board_size_t size = size_of_board(coll);
    PP_TRY(pp_board_open(engine->node, region, &size, spared, &combine->board));
    combine->order = calloc((size_t)engine->size, sizeof *combine->order);
    if (!combine->order)
        return pp_fail(PP_ERR_MEMORY, "no memory for the order of draws of a handle");
    combine->order_round = UINT64_MAX;
    combine->cut = pp_job_cut(engine->node, combine->board.vector_bytes, coll->series.kernels.element_bytes,
                              combine->board.ranks);
    if (combine->board.vector_bytes > pp_combine_whole_bytes(coll)) {
        combine->landed = calloc(combine->cut.chunks, sizeof *combine->landed);
        if (!combine->landed)
            return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    }
    combine->limit = pp_say_limit(coll);
    atomic_store(&pp_board_own(&combine->board)->limit, combine->limit);
    find_users(coll);
    return pp_team_add_board(coll->handle.team, &combine->board);
}

void pp_on_board_close(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    if (!combine)
        return;
    pp_board_t *board = &combine->board;
    pp_team_remove_board(coll->handle.team, board);
    pp_copy_end_view(coll);
    if (coll->takes_board)
        *coll->takes_board = *board;
    else if (!board->lent)
        pp_board_end(board);
    pp_unalloc(combine->kept_send);
    pp_unalloc(combine->kept_receive);
    free(combine->order);
    free(combine->landed);
    free(combine);
    coll->on_board = NULL;
}
