/* fold.h - the surplus ranks of a P that is not a power of two: they give their data before the algorithm, and get the
   result after it. */
#ifndef PP_FOLD_H
#define PP_FOLD_H

#include "peers.h"
#include "steps.h"

/* The spare gives its segment to its partner, which then holds the sum of both. */
void pp_fold_in(pp_steps_t *steps, const pp_fold_t *fold);
/* The spare gets the result from its partner. */
void pp_fold_out(pp_steps_t *steps, const pp_fold_t *fold);

#endif
