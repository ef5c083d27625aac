/*
 * leader.h - a node in a round among several: what its leader knows of the round, and the rules for the node
 * (crossing.c).  See leader.c.
 */
#ifndef PP_LEADER_H
#define PP_LEADER_H

#include "ballots.h"
#include "combine.h"
#include "draws.h"

/* What the leader of a round knows of it. */
typedef struct pp_crossing {
    uint64_t round;                  /* UINT64_MAX: none yet */
    bool     triggered;              /* a rank of this node has triggered it */
    bool     activated;              /* it is on: triggered here, or activated by a message */
    bool     announced;              /* the other nodes know: a rank of this node has announced it */
    bool     announces;              /* ... this rank announces it */
    bool     joined;                 /* all ranks of the node flush: the node takes their parts silently */
    bool     gathered;               /* claimed, and all parts are taken */
    bool     away;                   /* the node's part is given */
    bool     done;                   /* the result is in the ring, but the round is not published yet */
    bool     published;
    uint32_t cause;
    uint32_t awaited;                /* number of the last message that a rank waits long for the round */
    bool     waited_for;             /* there was such a message */
    uint64_t ripe_ns;                /* when the round, which is due, may be activated; 0: it has not been due yet */
    uint64_t triggers[PP_CONTRIBUTORS_WORDS];    /* by index on the node */
    uint64_t ready[PP_CONTRIBUTORS_WORDS];       /* the same; latched: once ready for a round, a rank counts for it */
    /* By place in the order of draws: how long this node follows that draw, and for how long it has handed it on.
       NULL: the policy has no draws. */
    pp_loan_t *held, *handed_on;
} pp_crossing_t;

typedef struct pp_leading {
    pp_crossing_t *crossings;        /* at pp_series_index(round) % count */
    size_t         count;
    pp_loan_t     *loans;            /* memory for all crossings' */
    pp_buffer_t    lent;             /* the ring's memory, as the accumulator of the round that is AWAY */
    uint32_t       told;             /* reasons to look that this rank has dealt with */
    pp_ballots_t   ballots;
} pp_leading_t;

static inline const pp_nodes_t *pp_nodes_of(const pp_allreduce_t *coll) { return coll->handle.engine->nodes; }

static inline int32_t pp_node_size(const pp_allreduce_t *coll) { return pp_node_of(coll)->size; }

/* What this rank knows of a round that it leads. */
pp_crossing_t *pp_crossing_of(pp_allreduce_t *coll, uint64_t round);

bool pp_crossing_anybody_waits(const pp_view_t *view);
/* Whether all ranks of this node flush.  Ranks that are out go along with any flush, as long as some rank may still ask
   for one. */
bool pp_crossing_all_flush(const pp_view_t *view);
/* The node may give its part of an activated round.  `crossing`: NULL for ranks that do not lead it. */
bool pp_crossing_permits(const pp_view_t *view, const pp_crossing_t *crossing);
void pp_crossing_latch_ready(const pp_view_t *view, pp_crossing_t *crossing);
/* Called by the leader when the round is on for it: finds the rank that has announced the round to the other nodes. */
void pp_crossing_find_announcer(pp_allreduce_t *coll, pp_crossing_t *crossing);
void pp_crossing_trigger(pp_allreduce_t *coll, pp_crossing_t *crossing, pp_instance_t *instance, int32_t cause);
/* A draw was handed on to a rank of this node. */
void pp_crossing_hear_draw(pp_crossing_t *crossing, const pp_draw_t *message);
/* The places of the draws that this node follows now, as a mask. */
void pp_crossing_draws(const pp_allreduce_t *coll, const pp_crossing_t *crossing, uint64_t *places);
/* Looks whether this node brings the round about, or can help other nodes to. */
void pp_crossing_bring_about(const pp_view_t *view, pp_allreduce_t *coll, pp_crossing_t *crossing,
                             pp_instance_t *instance);

#endif
