/* draw.c - random numbers, and sets of ranks to draw from.  See parts.h. */
#include "parts.h"

int32_t pp_groups_draw(pp_groups_t *g, int32_t limit)
{
    uint64_t drawn = pp_mix(g->plan.seed, g->draws++) >> 32;
    return (int32_t)(drawn * (uint64_t)limit >> 32);
}

void pp_groups_shuffle(pp_groups_t *g, int32_t *ranks, int32_t count, int32_t wanted)
{
    for (int32_t i = 0; i < wanted && i < count - 1; i++) {
        int32_t other = i + pp_groups_draw(g, count - i), rank = ranks[i];
        ranks[i] = ranks[other];
        ranks[other] = rank;
    }
}

static int32_t *order_of(const pp_groups_t *g, const pp_crowd_t *crowd) { return pp_groups_array(g, crowd->order); }
static int32_t *place_of(const pp_groups_t *g, const pp_crowd_t *crowd) { return pp_groups_array(g, crowd->place); }

void pp_crowd_clear(const pp_groups_t *g, const pp_crowd_t *crowd)
{
    for (int32_t rank = 0; rank < g->plan.ranks; rank++)
        place_of(g, crowd)[rank] = PP_NOBODY;
}

void pp_crowd_add(const pp_groups_t *g, pp_crowd_t *crowd, int32_t rank)
{
    if (place_of(g, crowd)[rank] != PP_NOBODY)
        return;
    place_of(g, crowd)[rank] = crowd->count;
    order_of(g, crowd)[crowd->count++] = rank;
}

static void put(const pp_groups_t *g, const pp_crowd_t *crowd, int32_t place, int32_t rank)
{
    order_of(g, crowd)[place] = rank;
    place_of(g, crowd)[rank] = place;
}

void pp_crowd_remove(const pp_groups_t *g, pp_crowd_t *crowd, int32_t rank)
{
    int32_t place = place_of(g, crowd)[rank];
    if (place == PP_NOBODY)
        return;
    put(g, crowd, place, order_of(g, crowd)[--crowd->count]);
    place_of(g, crowd)[rank] = PP_NOBODY;
}

int32_t pp_crowd_draw(pp_groups_t *g, pp_crowd_t *crowd, int32_t rank, int32_t wanted, int32_t *drawn)
{
    int32_t       *order = order_of(g, crowd), count = 0;
    const int32_t  last = crowd->count - 1;
    const bool     inside = place_of(g, crowd)[rank] != PP_NOBODY;
    if (inside) {                    /* the rank itself goes to the end, where none is drawn */
        int32_t other = order[last];
        put(g, crowd, place_of(g, crowd)[rank], other);
        put(g, crowd, last, rank);
    }
    const int32_t among = crowd->count - inside;
    for (; count < wanted && count < among; count++) {
        int32_t place = count + pp_groups_draw(g, among - count), chosen = order[place];
        put(g, crowd, place, order[count]);
        put(g, crowd, count, chosen);
        drawn[count] = chosen;
    }
    return count;
}
