/* contribute.c - a contribution on a board, from its Start on.  See combine.h. */
#include "time.h"
#include "combine.h"

#include <string.h>

/* Begins to add to a pending part.  Until it ends, a round that is AWAY is not published, and no other round is taken.
   */
static bool begin_merge(pp_allreduce_t *coll, uint64_t turn)
{
    pp_combine_t *combine = coll->on_board;
    combine->merges_away = pp_turn_phase(turn) == PP_AWAY;
    combine->merges = combine->merges_away
                    ? !(turn & PP_TURN_MERGES) && pp_board_begin_merge(&combine->board, turn)
                    : pp_turn_phase(turn) == PP_OPEN && pp_board_hold(&combine->board, turn);
    return combine->merges;
}

/* Other ranks may have looked meanwhile, and found the turn claimed; so this rank looks in any case. */
static void end_merge(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    uint64_t round = pp_turn_round(pp_board_turn(&combine->board));
    if (combine->merges_away) {
        if (pp_board_end_merge(&combine->board, round))
            combine->way->merge_awaited(coll, round);
    } else {
        while (!pp_board_release(&combine->board, round))
            continue;
    }
    combine->merges = false;
    combine->news = true;
}

/* Finds a pending part to which the Start's elements may be added until end_merge(): no round takes it meanwhile.
   False: a round is being made. */
static bool find_pending(pp_allreduce_t *coll, int32_t *part)
{
    pp_board_t *board = &coll->on_board->board;
    if (!begin_merge(coll, pp_board_turn(board)))
        return false;
    PP_STEP("merge");
    uint64_t word = atomic_load(&pp_board_own(board)->word);
    for (*part = 0; *part < PP_PARTS; ++*part) {
        uint32_t bit = 1u << *part;
        if ((pp_word_pending(word) & bit) && !(pp_word_users(word) & bit))
            return true;
    }
    /* A round has taken the pending parts since: there are free parts. */
    end_merge(coll);
    return false;
}

/* Aims at a free part, or else at a pending one to add to. */
pp_status_t pp_contribute_aim(pp_allreduce_t *coll, pp_target_t *target)
{
    const pp_combine_t *combine = coll->on_board;
    pp_board_t *board = &coll->on_board->board;
    *target = (pp_target_t){.part = pp_station_free_part(board)};
    if (target->part < -1)
        return pp_fail(PP_ERR_MEMORY, "no shared memory for a contribution of %zu bytes", board->vector_bytes);
    if (target->part < 0 && !find_pending(coll, &target->part))
        return PP_PENDING;
    target->combine = combine->merges;
    if (target->combine || !combine->users)
        target->elements = pp_board_slot(board, board->node->index, target->part);
    return PP_OK;
}

static void link_new(pp_allreduce_t *coll, int32_t part, uint64_t given)
{
    pp_combine_t *combine = coll->on_board;
    const pp_piece_t *piece = coll->config.pieces;
    pp_part_t *own = &pp_board_own(&combine->board)->parts[part];
    own->contributions = 1;
    own->starts = pp_rounds_linked(coll);
    atomic_store_explicit(&own->oldest_given, given, memory_order_relaxed);
    if (combine->users) {
        pp_node_holds(combine->board.node, piece->send ? piece->send : piece->recv,
                      combine->board.vector_bytes, &own->users);
        coll->users_parts |= 1u << part;
    }
    pp_station_link(&combine->board, part, combine->users, pp_say_state_of(coll));
    combine->news = true;
}

bool pp_contribute_reserve(pp_allreduce_t *coll, pp_target_t *target)
{
    pp_board_t *board = &coll->on_board->board;
    const pp_kernels_t *kernels = &coll->series.kernels;
    *target = (pp_target_t){.part = -1};
    if (board->vault || (board->vector_bytes >= PP_PAGE && pp_users_are_vectors(kernels) && !kernels->normalise))
        target->part = pp_station_free_part(board);
    if (target->part < 0)
        return false;
    pp_station_reserve(board, target->part);
    target->elements = pp_board_slot(board, board->node->index, target->part);
    return true;
}

void pp_contribute_give_up(pp_allreduce_t *coll, const pp_target_t *target)
{
    pp_station_give_up(&coll->on_board->board, target->part);
}

uint64_t pp_contribute_request(pp_allreduce_t *coll)
{
    pp_combine_catch_up(coll);
    pp_round_time_before_start(coll);
    return pp_rounds_request(coll);
}

void pp_contribute_link(pp_allreduce_t *coll, const pp_target_t *target, uint64_t given)
{
    pp_board_t *board = &coll->on_board->board;
    if (!target->combine) {
        link_new(coll, target->part, given);
        return;
    }
    pp_part_t *own = &pp_board_own(board)->parts[target->part];
    PP_STEP("merge");
    own->contributions++;
    own->starts = pp_rounds_linked(coll);
    coll->handle.engine->coverage.merges++;
    coll->handle.engine->coverage.merges_away += coll->on_board->merges_away;
    pp_station_say(board, pp_say_state_of(coll));
    end_merge(coll);
}

void pp_contribute_start(pp_allreduce_t *coll, const pp_target_t *target)
{
    pp_contribute_link(coll, target, pp_contribute_request(coll));
}

/* ---- after the Start ------------------------------------------------------------------------------------------ */

bool pp_contribute_return_users(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    pp_board_t *board = &combine->board;
    for (int part = 0; coll->users_parts >> part; part++) {
        uint32_t bit = 1u << part;
        if (!(coll->users_parts & bit))
            continue;
        PP_STEP("move");
        uint64_t word = atomic_load(&pp_board_own(board)->word);
        if (pp_word_users(word) & bit) {
            const pp_memory_t *memory = coll->series.kernels.memory;
            const uint64_t at = pp_board_own(board)->parts[part].users;
            memory->copy(memory, pp_board_slot(board, board->node->index, part), pp_node_at(board->node, at),
                         board->vector_bytes);
            if (pp_station_moved(board, part)) {
                coll->users_parts &= ~bit;
                continue;
            }
        }
        PP_STEP("move");
        if (!pp_board_has_read(board, atomic_load(&pp_board_own(board)->taken)))
            return false;
        coll->users_parts &= ~bit;
    }
    return true;
}

uint64_t pp_contribute_discard(pp_allreduce_t *coll)
{
    pp_board_t *board = &coll->on_board->board;
    uint64_t discarded = 0;
    /* In this order: a rank that finds all ranks flushing must not find one of them that has not left, and keeps its
       draw. */
    pp_team_publish_presence(coll->handle.team);
    pp_station_say(board, pp_say_state_of(coll));
    /* Under a claim, because another claimer may have counted on this rank.  Between nodes the leaders that count for a
       quorum may have, too, so nothing is withdrawn.  Parts that are not withdrawn go into the flush. */
    uint64_t turn = pp_board_turn(board);
    if (!coll->on_board->way->alone || pp_turn_phase(turn) != PP_OPEN || !pp_board_hold(board, turn))
        return 0;
    uint32_t parts = pp_station_withdraw(board);
    while (!pp_board_release(board, pp_turn_round(turn)))
        continue;
    coll->on_board->news = true;          /* other ranks may have looked meanwhile, and found the turn claimed */
    for (int part = 0; parts >> part; part++)
        if (parts >> part & 1)
            discarded += pp_board_own(board)->parts[part].contributions;
    return discarded;
}

void pp_contribute_forgive(pp_allreduce_t *coll)
{
    pp_station_t *own = pp_board_own(&coll->on_board->board);
    PP_STEP("say");
    uint32_t pending = pp_word_pending(atomic_load(&own->word));
    for (int part = 0; pending >> part; part++)
        if (pending == 1u << part && own->parts[part].contributions == 1)
            atomic_store_explicit(&own->parts[part].oldest_given, UINT64_MAX, memory_order_relaxed);
}
