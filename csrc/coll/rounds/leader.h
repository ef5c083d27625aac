/*
 * leader.h - a node in a round among several: what its leader knows, and the rules for it (crossing.c).  See leader.c.
 */
#ifndef PP_LEADER_H
#define PP_LEADER_H

#include "ballots.h"
#include "combine.h"
#include "draws.h"

/* What the leader of a round knows of it. */
typedef struct pp_crossing {
    uint64_t round;                  /* UINT64_MAX: none yet */
    bool     triggered;              /* by a rank of this node */
    bool     activated;              /* it is on: by us or by a message */
    bool     announced;              /* to other nodes: by us or by another rank of this node */
    bool     announces;              /* ... by us */
    bool     joined;                 /* all ranks of the node flush: it takes their parts silently */
    bool     gathered;               /* claimed, and everything taken */
    bool     away;                   /* our part is given */
    bool     done;                   /* the result is in the ring, but the round not published yet */
    bool     published;
    uint32_t cause;
    uint32_t awaited;                /* number of the last message that somebody waits for it, */
    bool     waited_for;             /* if there was one */
    uint64_t ripe_ns;                /* when it may be activated that is due; 0: it has not been */
    uint64_t triggers[PP_CONTRIBUTORS_WORDS];    /* by index on the node */
    uint64_t ready[PP_CONTRIBUTORS_WORDS];       /* ... latched: once ready for a round, it counts for that */
    /* By place in the order of draws: until when that draw is this node's to follow, and until when it has handed it on.
       Only if there are draws. */
    pp_loan_t *held, *handed_on;
} pp_crossing_t;

typedef struct pp_leading {
    pp_crossing_t *crossings;        /* at pp_series_index(round) % count */
    size_t         count;
    pp_loan_t     *loans;            /* of all crossings */
    pp_buffer_t    lent;             /* the ring's memory, as the accumulator of the round that is away */
    uint32_t       told;             /* reasons to look that this rank has heard of */
    pp_ballots_t   ballots;
} pp_leading_t;

static inline const pp_nodes_t *pp_nodes_of(const pp_allreduce_t *coll) { return coll->handle.engine->nodes; }

static inline int32_t pp_node_size(const pp_allreduce_t *coll) { return pp_node_of(coll)->size; }

/* Of a round that this rank leads. */
pp_crossing_t *pp_crossing_of(pp_allreduce_t *coll, uint64_t round);

bool pp_crossing_anybody_waits(const pp_view_t *view);
/* All ranks here flush.  Those that are out go along with any flush, as long as somebody may still ask for one. */
bool pp_crossing_all_flush(const pp_view_t *view);
/* The node may give its part of an activated round.  `crossing`: NULL for ranks that do not lead it. */
bool pp_crossing_permits(const pp_view_t *view, const pp_crossing_t *crossing);
void pp_crossing_latch_ready(const pp_view_t *view, pp_crossing_t *crossing);
/* By the leader, when the round is on for it: who has announced it to the other nodes? */
void pp_crossing_find_announcer(pp_allreduce_t *coll, pp_crossing_t *crossing);
void pp_crossing_trigger(pp_allreduce_t *coll, pp_crossing_t *crossing, pp_instance_t *instance, int32_t cause);
/* A draw was handed on to a rank of this node. */
void pp_crossing_hear_draw(pp_crossing_t *crossing, const pp_draw_t *message);
/* The draws that are this node's to follow now. */
void pp_crossing_draws(const pp_allreduce_t *coll, const pp_crossing_t *crossing, uint64_t *places);
/* Looks whether this node brings the round about, or can help others to. */
void pp_crossing_bring_about(const pp_view_t *view, pp_allreduce_t *coll, pp_crossing_t *crossing,
                             pp_instance_t *instance);

#endif
