/* habit.c - see habit.h. */
#include "habit.h"

void pp_habit_add(pp_habit_t *habit, uint64_t ns) { habit->ns[habit->count++ % PP_PATIENCE_SAMPLES] = ns; }

static uint64_t median(const pp_habit_t *habit)
{
    uint64_t sorted[PP_PATIENCE_SAMPLES];
    uint32_t count = habit->count < PP_PATIENCE_SAMPLES ? (uint32_t)habit->count : PP_PATIENCE_SAMPLES;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > habit->ns[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = habit->ns[i];
    }
    return sorted[count / 2];
}

uint64_t pp_habit_pace(const pp_habit_t *own, const pp_habit_t *others)
{
    static const uint64_t UNKNOWN_NS = 2000000000;
    const pp_habit_t *habit = own->count >= PP_PATIENCE_ENOUGH ? own : others;
    if (habit->count < PP_PATIENCE_ENOUGH)
        return UNKNOWN_NS;
    uint64_t usual = median(habit);
    return usual > UINT64_MAX / 10 ? INT64_MAX : 5 * usual;
}

uint64_t pp_habit_patience(const pp_habit_t *own, const pp_habit_t *others)
{
    static const uint64_t LEAST_NS = 1000000000;
    uint64_t pace = pp_habit_pace(own, others);
    return pace > LEAST_NS ? pace : LEAST_NS;
}
