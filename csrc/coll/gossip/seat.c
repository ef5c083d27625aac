/* seat.c - what a group takes of a rank's seat, in both ways.  See gossip.h. */
#include "gossip.h"

/* Of every fifth average of two a planted defect makes something else. */
static bool goes_wrong(const pp_preduce_t *preduce, const pp_groups_action_t *action, int32_t plant)
{
    return pp_engine_has(preduce->handle.engine, plant) && action->count == 2 && action->serial % 5 == 0;
}

static uint64_t take(pp_gossip_seat_t *seat)
{
    if (!seat->filled)
        return 0;
    seat->filled = false;
    seat->open = !seat->open;
    return seat->slots[!seat->open];
}

uint64_t pp_gossip_take(const pp_preduce_t *preduce, pp_gossip_seat_t *seat, const pp_groups_action_t *action,
                        bool wanted, uint64_t model)
{
    uint64_t adds = take(seat);
    if (adds && goes_wrong(preduce, action, PP_PLANT_LOST_ADD))
        adds = 0;
    else if (adds && goes_wrong(preduce, action, PP_PLANT_OTHER_SLOT))
        adds = seat->slots[seat->open];
    else if (!wanted && goes_wrong(preduce, action, PP_PLANT_MEMBER_TWICE))
        adds = model;
    seat->averages += action->count > 1;
    seat->given = wanted ? seat->averages : seat->given;
    return adds;
}
