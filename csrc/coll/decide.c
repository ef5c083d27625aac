/* decide.c - is a round on a node's board to be run now?  The rules of policy.c, read off the stations.  See rounds.h. */
#include "rounds.h"

#include <string.h>

uint64_t pp_view_word(const pp_coll_t *coll, int32_t rank)
{
    PP_STEP("decide");
    return atomic_load(&coll->combine->board.stations[rank].word);
}

/* Whether the rank has a request outstanding on another handle. */
static bool elsewhere(const pp_coll_t *coll, int32_t rank)
{
    const pp_engine_t *engine = coll->engine;
    for (size_t i = 1; i < engine->series_count; i++) {
        const pp_coll_t *other = engine->series[i] ? engine->series[i]->owner : NULL;
        if (!other || other == coll || !other->combine)
            continue;
        uint64_t round = pp_turn_round(pp_board_turn(&other->combine->board));
        if (pp_word_waits(pp_view_word(other, rank), round))
            return true;
    }
    return pp_node_waits(engine->node, rank);
}

pp_view_t pp_view_of(const pp_coll_t *coll, uint64_t round)
{
    return (pp_view_t){.coll = coll, .round = round, .away = pp_node_anybody_away(pp_node_of(coll)),
                       .others = coll->calls->live_handles > 1, .flushes = pp_board_flushes(&coll->combine->board)};
}

bool pp_view_left(const pp_view_t *view, int32_t rank)
{
    const pp_coll_t *coll = view->coll;
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

/* Those that are out go along with any flush, but ask for none. */
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

int32_t pp_combine_drawn_at(pp_coll_t *coll, int32_t place)
{
    pp_combine_t *combine = coll->combine;
    int32_t size = coll->engine->size;
    if (combine->order_round != coll->completed) {
        combine->order_round = coll->completed;
        combine->ordered = 0;
        for (int pass = 0; coll->any_left_before && pass < 2; pass++)
            for (int32_t i = 0; i < size; i++) {
                int32_t rank = pp_policy_drawn_at(coll, i);
                if (pp_mask_has(coll->left_before, rank) == (pass == 1))
                    combine->order[combine->ordered++] = rank;
            }
    }
    while (combine->ordered <= place) {
        combine->order[combine->ordered] = pp_policy_drawn_at(coll, combine->ordered);
        combine->ordered++;
    }
    return combine->order[place];
}

static void trigger(pp_combine_t *combine, int32_t rank, pp_cause_t cause)
{
    combine->triggered += !pp_mask_has(combine->triggers, rank);
    pp_mask_add(combine->triggers, rank);
    pp_mask_add(combine->ready, rank);
    if (combine->cause < (uint32_t)cause)
        combine->cause = cause;
}

/* A draw passes by ranks that have left, or are pending here and wait elsewhere. */
static void follow_draw(const pp_view_t *view, pp_coll_t *coll, int32_t place)
{
    int32_t size = coll->engine->size;
    for (int32_t hops = 0; hops < size; hops++) {
        int32_t  at = (place + hops) % size, rank = pp_combine_drawn_at(coll, at);
        uint64_t word = pp_view_word(coll, rank);
        if (pp_word_waits(word, view->round)) {
            trigger(coll->combine, rank,
                    at < coll->config.policy_k ? PP_CAUSE_POLICY : PP_CAUSE_DEPARTED);
            return;
        }
        if (!pp_view_left(view, rank) && !(pp_word_pending(word) && pp_view_elsewhere(view, rank)))
            return;
        coll->engine->coverage.draws_handed_on++;
    }
}

static bool draws_trigger(const pp_view_t *view, pp_coll_t *coll)
{
    if (pp_policy_is_solo(coll)) {
        for (int32_t rank = 0; rank < coll->engine->size; rank++)
            if (pp_word_waits(pp_view_word(coll, rank), view->round))
                trigger(coll->combine, rank, PP_CAUSE_POLICY);
    } else {
        for (int32_t place = 0; place < coll->config.policy_k; place++)
            follow_draw(view, coll, place);
    }
    return coll->combine->triggered > 0;
}

static bool quorum_is_there(const pp_view_t *view, pp_coll_t *coll)
{
    int32_t ready = 0, left = 0, size = coll->engine->size;
    bool waits = false;
    for (int32_t rank = 0; rank < size; rank++) {
        uint64_t word = pp_view_word(coll, rank);
        bool counts = pp_view_ready(view, word, rank);
        ready += counts;
        if (counts)
            pp_mask_add(coll->combine->ready, rank);
        left += !counts && pp_view_left(view, rank);
        waits |= pp_word_waits(word, view->round);
        /* Full, usually: no need to look at the others. */
        if (size - rank - 1 < coll->config.policy_k - ready && !view->away)
            return false;
    }
    return waits && (ready >= coll->config.policy_k || ready + left == size);
}

bool pp_view_permit(const pp_view_t *view)
{
    const pp_coll_t *coll = view->coll;
    for (int32_t rank = 0; pp_is_bounded(coll) && rank < pp_node_of(coll)->size; rank++) {
        PP_STEP("decide");
        uint64_t rounds = atomic_load(&coll->combine->board.stations[rank].limit);
        if (view->round >= rounds && !pp_view_left(view, rank) && !pp_view_elsewhere(view, rank))
            return false;
    }
    return true;
}

bool pp_combine_decide(pp_coll_t *coll, uint64_t round)
{
    pp_combine_t *combine = coll->combine;
    pp_view_t view = pp_view_of(coll, round);
    memset(combine->triggers, 0, coll->series.mask_words * sizeof(uint64_t));
    memset(combine->ready, 0, coll->series.mask_words * sizeof(uint64_t));
    combine->triggered = 0;
    combine->cause = PP_CAUSE_POLICY;
    if (view.away && all_flush(&view))
        return true;
    return (coll->config.policy == PP_FIRST_OF ? draws_trigger(&view, coll) : quorum_is_there(&view, coll))
        && pp_view_permit(&view);
}
