/*
 * between.h - the rounds of a handle whose ranks are on several nodes.
 *
 * Two levels.  On a node the ranks put their parts on the node's board (combine.h).  Between nodes runs the
 * schedule of partial.c, with a node as a participant: it is activated when somebody there triggers or when a
 * message says so, gives what all its ranks have pending, and gets the result, which goes into the ring.  The
 * rank that *leads* the node in a round (base/nodes.h) does this, in its call or in its progress thread; the
 * other ranks wake it if they have brought about something that concerns the others: nobody else is woken, and
 * no message goes to a rank that does not lead.  Who brings a round about whose leader here sleeps sends its
 * activation to the other nodes itself, before it wakes the leader.
 *
 * The rules are those of policy.c.  What each of its ranks knows there, the board shows; so a draw is followed
 * from rank to rank of the node, and handed on when it comes to a rank of another one; ready ranks are counted
 * on the node, and then along a tree of nodes.
 */
#ifndef PP_BETWEEN_H
#define PP_BETWEEN_H

#include "combine.h"

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
    uint64_t triggers[PP_CONTRIBUTORS_WORDS];    /* by index on the node */
    uint64_t ready[PP_CONTRIBUTORS_WORDS];       /* ... latched: once ready for a round, it counts for that */
    /* Places of the order of draws: whose draws are this node's to follow, and which it has handed on. */
    uint64_t held[PP_CONTRIBUTORS_WORDS], handed_on[PP_CONTRIBUTORS_WORDS];
} pp_crossing_t;

struct pp_between {
    pp_crossing_t *crossings;        /* at pp_series_place(round) % count */
    size_t         count;
    pp_buffer_t    lent;             /* the ring's memory, as the accumulator of the round that is away */
    uint32_t       told;             /* reasons to look that this rank has heard of */
};

/* A draw handed on to a place of the order: PP_MSG_DRAW between nodes. */
typedef struct pp_draw {
    pp_prefix_t prefix;
    uint32_t    place, unused;
} pp_draw_t;

pp_status_t pp_between_open(pp_coll_t *coll, uint32_t id, int32_t algorithm, const pp_kernels_t *kernels);
void        pp_between_close(pp_coll_t *coll);

/* Goes on with the round that is open if this rank leads it, or else tells the rank that does if there is
   something to be done.  `news`: something has changed here since the last look. */
void        pp_between_look(pp_coll_t *coll, bool news);
/* Whether the leader of a round has been told to look since it last did. */
bool        pp_between_has_news(const pp_coll_t *coll, uint64_t turn);
/* The last chunk of the node's part is finished. */
void        pp_between_gathered(pp_coll_t *coll, uint64_t round);
void        pp_between_tell_leader(pp_coll_t *coll, uint64_t round);
/* No message of the rounds that this rank has led is outstanding. */
bool        pp_between_retired(const pp_coll_t *coll);
void        pp_between_explain(pp_coll_t *coll, pp_text_t *text);

#endif
