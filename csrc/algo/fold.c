/* fold.c - see fold.h. */
#include "fold.h"

static pp_step_t whole_vector(const pp_steps_t *steps, const pp_fold_t *fold, uint32_t tag)
{
    return (pp_step_t){.peer = fold->partner, .tag = tag, .region = {0, steps->graph->count}};
}

uint32_t pp_fold_in(pp_steps_t *steps, const pp_fold_t *fold, uint32_t tag)
{
    if (fold->pairs == 0)
        return tag;
    const pp_step_t step = whole_vector(steps, fold, tag);
    if (fold->position < 0)
        pp_steps_hold(steps, pp_steps_send(steps, step));
    else if (fold->partner >= 0)
        pp_steps_hold(steps, pp_steps_reduce(steps, step, false, PP_NO_VERTEX));
    return tag + 1;
}

void pp_fold_out(pp_steps_t *steps, const pp_fold_t *fold, uint32_t tag)
{
    if (fold->pairs == 0) {
        pp_steps_reserve_tags(steps->graph, tag);
        return;
    }
    const pp_step_t step = whole_vector(steps, fold, tag);
    if (fold->position < 0)
        pp_steps_hold(steps, pp_steps_place(steps, step, pp_steps_held(steps)));
    else if (fold->partner >= 0)
        pp_steps_send(steps, step);
    pp_steps_reserve_tags(steps->graph, tag + 1);
}
