/* view.c - the facts that the board of a node shows.  See combine.h. */
#include "combine.h"

uint64_t pp_view_word(const pp_allreduce_t *coll, int32_t rank)
{
    PP_STEP("decide");
    return atomic_load(&coll->on_board->board.stations[rank].word);
}

/* Whether the rank has an outstanding request on another handle. */
static bool elsewhere(const pp_allreduce_t *coll, int32_t index)
{
    const pp_team_t *team = coll->handle.team;
    for (size_t i = 0; i < team->board_count; i++) {
        const pp_board_t *other = team->boards[i];
        if (other == &coll->on_board->board)
            continue;
        uint64_t round = pp_turn_round(pp_board_turn(other));
        PP_STEP("decide");
        if (pp_word_waits(atomic_load(&other->stations[index].word), round))
            return true;
    }
    return pp_node_waits(pp_node_of(coll), index);
}

pp_view_t pp_view_of(const pp_allreduce_t *coll, uint64_t round)
{
    bool away = pp_node_anybody_away(pp_node_of(coll));
    return (pp_view_t){.coll = coll, .round = round, .away = away,
                       /* Even with one handle here, because a rank may wait in another context. */
                       .others = away || coll->handle.team->live_handles > 1,
                       .flushes = pp_board_flushes(&coll->on_board->board)};
}

bool pp_view_left(const pp_view_t *view, int32_t rank)
{
    const pp_allreduce_t *coll = view->coll;
    if (!view->away || !pp_node_left(pp_node_of(coll), rank))
        return false;
    /* A step of a Drain is over when its round is. */
    uint64_t word = pp_view_word(coll, rank);
    return (word >> PP_WORD_LEAVING_SHIFT & 7) != PP_STEPS || pp_word_is_of(word, view->round);
}

bool pp_view_elsewhere(const pp_view_t *view, int32_t rank)
{
    return view->others && elsewhere(view->coll, rank);
}

bool pp_view_ready(const pp_view_t *view, uint64_t word, int32_t rank)
{
    return pp_word_pending(word) && (pp_word_waits(word, view->round) || pp_view_elsewhere(view, rank));
}

bool pp_view_flushes(const pp_view_t *view, int32_t rank)
{
    return pp_word_leaving(pp_view_word(view->coll, rank), view->round, view->flushes) != PP_STAYS
        || pp_node_out(pp_node_of(view->coll), rank);
}

pp_facts_t pp_view_facts(const pp_view_t *view, int32_t index)
{
    uint64_t   word = pp_view_word(view->coll, index);
    pp_facts_t facts = {.waits = pp_word_waits(word, view->round), .pending = pp_word_pending(word),
                        .aside = word & PP_WORD_ASIDE, .overdue = word & PP_WORD_OVERDUE};
    facts.left = pp_view_left(view, index);
    facts.out = facts.left && pp_node_out(pp_node_of(view->coll), index);
    facts.elsewhere = facts.pending && !facts.waits && pp_view_elsewhere(view, index);
    facts.ready = pp_facts_ready(&facts);
    return facts;
}

int32_t pp_view_drawn_at(pp_allreduce_t *coll, int32_t place)
{
    pp_combine_t *combine = coll->on_board;
    if (combine->order_round != coll->completed) {
        combine->order_round = coll->completed;
        combine->ordered = 0;
    }
    if (combine->ordered <= place)
        combine->ordered = pp_order_fill(&coll->rule, coll->completed, coll->any_left_before ? coll->left_before : NULL,
                                         combine->order, combine->ordered, place);
    return combine->order[place];
}

int32_t pp_view_index_of(const pp_allreduce_t *coll, int32_t rank)
{
    const pp_nodes_t *nodes = coll->handle.engine->nodes;
    if (!nodes)
        return rank;
    if (nodes->node_of[rank] != nodes->mine)
        return -1;
    for (int32_t index = 0; index < pp_node_of(coll)->size; index++)
        if (pp_rank_at(coll, index) == rank)
            return index;
    return -1;
}

typedef struct sight {
    const pp_view_t *view;
    pp_allreduce_t  *coll;
} sight_t;

static bool facts_at(void *arg, int32_t place, pp_facts_t *facts)
{
    const sight_t *sight = arg;
    int32_t index = pp_view_index_of(sight->coll, pp_view_drawn_at(sight->coll, place));
    if (index >= 0)
        *facts = pp_view_facts(sight->view, index);
    return index >= 0;
}

pp_draw_end_t pp_view_follow(const pp_view_t *view, pp_allreduce_t *coll, int32_t place)
{
    sight_t sight = {.view = view, .coll = coll};
    return pp_rule_follow(&coll->rule, place, facts_at, &sight);
}

bool pp_view_withholds(const pp_view_t *view, int32_t index)
{
    return !(pp_view_word(view->coll, index) & PP_WORD_ASIDE) && !pp_view_left(view, index)
        && !pp_view_elsewhere(view, index);
}

bool pp_view_anybody_aside(const pp_view_t *view)
{
    bool any = false;
    for (int32_t index = 0; !any && index < pp_node_of(view->coll)->size; index++)
        any = pp_view_word(view->coll, index) & PP_WORD_ASIDE;
    return any;
}

bool pp_view_permit(const pp_view_t *view)
{
    const pp_allreduce_t *coll = view->coll;
    for (int32_t rank = 0; coll->bounded && rank < pp_node_of(coll)->size; rank++) {
        PP_STEP("decide");
        uint64_t rounds = atomic_load(&coll->on_board->board.stations[rank].limit);
        if (view->round >= rounds && pp_view_withholds(view, rank))
            return false;
    }
    return true;
}
