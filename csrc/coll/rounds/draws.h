/*
 * draws.h - draws handed on by messages.
 *
 * A rank inside a collective call has left, but not towards ranks that have completed that call.  Nobody knows who will
 * wait for the round, so such a rank *lends* its draw: the message says after how many calls, and who receives it
 * holds the draw until it has completed more.  The lender's own draw was never gone: when its call has ended, the
 * round waits for it again.  What is handed on for another reason is handed on for good, or as long as it was lent to
 * the rank that hands it on.
 */
#ifndef PP_DRAWS_H
#define PP_DRAWS_H

#include "../team.h"

typedef struct pp_draw {
    pp_prefix_t prefix;              /* PP_MSG_DRAW */
    uint64_t    place;               /* in the order of draws, to which it is handed on */
    uint64_t    until;               /* pp_loan_t */
} pp_draw_t;

/* Until when a rank has a draw: until it has completed so many collective calls.  PP_FOR_GOOD: it was handed on.
   0: it never had it. */
typedef uint64_t pp_loan_t;
#define PP_FOR_GOOD UINT64_MAX

static inline bool pp_loan_lasts(pp_loan_t loan, uint64_t calls) { return loan > calls; }
/* Until when the next has a draw that its holder has until `held`.  `lends`: because of a collective call of its own,
   having completed so many. */
static inline pp_loan_t pp_loan_make(pp_loan_t held, bool lends, uint64_t calls)
{
    return lends && calls + 1 < held ? calls + 1 : held;
}

#endif
