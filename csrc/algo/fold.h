/* fold.h - the surplus ranks of a P that is no power of two: in before, out after. */
#ifndef PP_FOLD_H
#define PP_FOLD_H

#include "peers.h"
#include "steps.h"

/* The spare gives its segment to its partner, which holds the pair's from then on. */
void pp_fold_in(pp_steps_t *steps, const pp_fold_t *fold);
/* The spare gets the result; it holds nothing else. */
void pp_fold_out(pp_steps_t *steps, const pp_fold_t *fold);

#endif
