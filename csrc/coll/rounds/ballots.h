/*
 * ballots.h - how many are ready for a round: counted along a tree, towards participant 0, which activates it.
 *
 * A participant is a rank, or a node, for which the leader of the round speaks.  It counts itself and what its
 * children reported last, and reports the sum to its parent when it has changed.
 */
#ifndef PP_BALLOTS_H
#define PP_BALLOTS_H

#include "../../policy/policy.h"
#include "../team.h"

enum { PP_BALLOT_FANOUT = 16 };

typedef struct pp_ballot {
    uint64_t   round;
    pp_count_t count;
    uint64_t   left_calls;           /* collective calls that each of those that left has completed, at least */
} pp_ballot_t;

typedef struct pp_ballots {
    pp_ballot_t children[PP_BALLOT_FANOUT];   /* what they reported last */
    pp_ballot_t reported;                     /* what the parent heard last */
} pp_ballots_t;

static inline int32_t pp_ballots_parent(int32_t participant) { return (participant - 1) / PP_BALLOT_FANOUT; }

void pp_ballots_open(pp_ballots_t *ballots);
/* A report of a child (0 .. PP_BALLOT_FANOUT - 1).  Reports of rounds that are over are harmless. */
void pp_ballots_hear(pp_ballots_t *ballots, int32_t child, const pp_prefix_t *report);
/* Adds the children's to those of a participant that has completed so many collective calls.  Towards a rank that has
   completed more, "left" is void. */
void pp_ballots_add(const pp_ballots_t *ballots, pp_ballot_t *sum, uint64_t calls);
/* Tells the parent, unless it knows. */
void pp_ballots_report(pp_ballots_t *ballots, const pp_handle_t *handle, const pp_ballot_t *sum, int32_t parent_rank);

#endif
