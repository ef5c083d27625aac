/*
 * draws.h - draws handed on by messages.
 *
 * A rank inside a collective call has left, but not towards ranks that have completed that call.  Nobody knows who will
 * wait for the round, so such a rank *lends* its draw: the message says after how many calls, and who receives it
 * holds the draw until it has completed more.  The lender's own draw was never gone: when its call has ended, the
 * round waits for it again.  What is handed on for another reason is handed on for good.
 */
#ifndef PP_DRAWS_H
#define PP_DRAWS_H

#include "../team.h"

typedef struct pp_draw {
    pp_prefix_t prefix;              /* PP_MSG_DRAW; its `calls` are the lender's */
    uint32_t    place;               /* in the order of draws, to which it is handed on */
    uint32_t    lent;                /* 0: for good */
} pp_draw_t;

/* Until when a draw is lent, as the calls that are completed by then; 0: it is not. */
typedef uint64_t pp_loan_t;

static inline pp_loan_t pp_loan_make(uint64_t calls) { return calls + 1; }
static inline bool pp_loan_lasts(pp_loan_t loan, uint64_t calls) { return loan > calls; }

#endif
