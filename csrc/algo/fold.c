/* fold.c - see fold.h. */
#include "fold.h"

static pp_step_t whole_segment(pp_steps_t *steps, const pp_fold_t *fold)
{
    return (pp_step_t){.peer = fold->partner, .tag = steps->tag++, .reg = steps->reg,
                       .region = steps->segment};
}

void pp_fold_in(pp_steps_t *steps, const pp_fold_t *fold)
{
    if (fold->pairs == 0)
        return;
    const pp_step_t step = whole_segment(steps, fold);
    if (fold->position < 0)
        pp_steps_hold(steps, pp_steps_send(steps, step));
    else if (fold->partner >= 0)
        pp_steps_hold(steps, pp_steps_reduce(steps, step, false, PP_NO_VERTEX));
}

void pp_fold_out(pp_steps_t *steps, const pp_fold_t *fold)
{
    if (fold->pairs == 0)
        return;
    const pp_step_t step = whole_segment(steps, fold);
    if (fold->position < 0)
        pp_steps_hold(steps, pp_steps_place(steps, step, pp_steps_held(steps)));
    else if (fold->partner >= 0)
        pp_steps_send(steps, step);
}
