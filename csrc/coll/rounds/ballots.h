/*
 * ballots.h - the count of ready ranks for a round.  It goes along a tree to participant 0, which activates the round.
 *
 * A participant is a rank, or a node, whose leader speaks for it.  It adds its own count to the last ballots of its
 * children, and sends the sum to its parent as its own ballot when the sum has changed.
 */
#ifndef PP_BALLOTS_H
#define PP_BALLOTS_H

#include "../../policy/policy.h"
#include "../team.h"
#include "wire.h"

enum { PP_BALLOT_FANOUT = 16 };

typedef struct pp_ballot {
    uint64_t   round;
    pp_count_t count;
    uint64_t   left_calls;           /* the fewest collective calls that a rank in count.left has completed */
} pp_ballot_t;

typedef struct pp_ballots {
    pp_ballot_t children[PP_BALLOT_FANOUT];   /* their last ballots */
    pp_ballot_t reported;                     /* the last ballot sent to the parent */
} pp_ballots_t;

static inline int32_t pp_ballots_parent(int32_t participant) { return (participant - 1) / PP_BALLOT_FANOUT; }

void pp_ballots_open(pp_ballots_t *ballots);
/* Takes the ballot of a child (0 .. PP_BALLOT_FANOUT - 1).  A stale ballot is harmless. */
void pp_ballots_hear(pp_ballots_t *ballots, int32_t child, const pp_prefix_t *report);
/* Adds the children's ballots to that of a participant that has completed `calls` collective calls.  Towards a rank
   that has completed more calls, "left" is void. */
void pp_ballots_add(const pp_ballots_t *ballots, pp_ballot_t *sum, uint64_t calls);
/* Sends the ballot to the parent, unless the parent has it already. */
void pp_ballots_report(pp_ballots_t *ballots, const pp_handle_t *handle, const pp_ballot_t *sum, int32_t parent_rank);

#endif
