/*
 * draws.h - draws handed on by messages.
 *
 * A rank inside a collective call has left, but not towards ranks that have completed that call.  It cannot know which
 * ranks will wait for the round, so it *lends* its draw: the message names a number of calls, and the receiver holds
 * the draw until it has completed that many.  The lender keeps its own copy: when its call has ended, the round waits
 * for it again.  A draw that is handed on for another reason is handed on for good, or for as long as it was lent to
 * the rank that hands it on.
 */
#ifndef PP_DRAWS_H
#define PP_DRAWS_H

#include "../team.h"
#include "wire.h"

typedef struct pp_draw {
    pp_prefix_t prefix;              /* PP_MSG_DRAW */
    uint64_t    place;               /* the place in the order of draws to which the draw is handed on */
    uint64_t    until;               /* pp_loan_t */
} pp_draw_t;

/* How long a rank has a draw: until it has completed this many collective calls.  PP_FOR_GOOD: for good.  0: it has
   never had the draw. */
typedef uint64_t pp_loan_t;
#define PP_FOR_GOOD UINT64_MAX

static inline bool pp_loan_lasts(pp_loan_t loan, uint64_t calls) { return loan > calls; }
/* How long the next rank has a draw that its holder has until `held`.  `lends`: the holder hands it on because of a
   collective call of its own, after having completed `calls`. */
static inline pp_loan_t pp_loan_make(pp_loan_t held, bool lends, uint64_t calls)
{
    return lends && calls + 1 < held ? calls + 1 : held;
}

#endif
