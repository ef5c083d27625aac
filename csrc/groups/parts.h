/*
 * parts.h - the state of a machine, for the files of this room.
 *
 * All of it lies in one block of memory.  Its arrays are found by their distance from its beginning.
 */
#ifndef PP_GROUPS_PARTS_H
#define PP_GROUPS_PARTS_H

#include "../include/pypartial_sim.h"   /* pp_groups_plant_t */
#include "groups.h"

enum { PP_NOBODY = -1 };

/* A set of ranks: constant time for adding, removing and drawing. */
typedef struct pp_crowd {
    int32_t count;
    size_t  order, place;            /* arrays: the members; where each rank is among them, or PP_NOBODY */
} pp_crowd_t;

/* The first cache line has what each request changes. */
typedef struct pp_groups_rank {
    uint64_t iteration;              /* of its last request, or what it took over from a group */
    uint64_t requests;               /* Ripples' counter c */
    uint64_t number;                 /* its requests since the last flush */
    uint64_t completed_ns;           /* when its last request was complete, or it came back: it computes since then */
    uint64_t usual_ns;               /* its usual computation, a moving average; 0: not known yet */
    int32_t  first, last;            /* its group buffer: entries in the order of serial numbers */
    int32_t  running;                /* the group that it is locked for, or PP_NOBODY */
    int32_t  goal;                   /* the group that completes its request; PP_NOBODY: there is none, or none yet */
    uint8_t  alone;                  /* SMART: requests in a row that were completed alone */
    bool     asks;                   /* it has an outstanding request */
    bool     left;
    bool     elsewhere;              /* it waits for long for something else than a group */
    bool     waits_long;             /* ... for its request */
    bool     queued;                 /* CONTROLLER */
    bool     given;                  /* GIVEN: the group of its next request is known */

    bool     by_itself;              /* its request is for a group of this rank alone */
    bool     free;                   /* while pp_groups_untangle() looks: the rank may ask here some time */
    bool     gives_way;              /* pp_groups_untangle() has taken it out */
    bool     returns;                /* its call is over, and its request has yet to be settled */
    int32_t  node;
    int32_t  root;                   /* SMART, CONTROLLER: parent in the sync-graph's forest */
    int32_t  weight, present;        /* ... of a root: ranks of its component; those that have not left */
    int32_t  ahead, behind;          /* CONTROLLER: neighbours in the signal queue */
    int32_t  reason;                 /* why it has left: pp_groups_left_t */
    uint64_t call;                   /* the collective call for which it has left; 0: none */
    uint64_t most_at_leave;          /* the largest counter when this rank left: its lag stays as it was meanwhile */
    uint64_t unused[2];              /* two cache lines in all */
} pp_groups_rank_t;

typedef struct pp_groups_group {
    uint64_t serial;
    int32_t  first;                  /* entry of its first member, in ascending order of ranks */
    int32_t  count;                  /* members; when it has begun, those that have not finished */
    int32_t  ready;                  /* members that have started and have it first in their buffer */
    int32_t  goals;                  /* ranks whose goal it is; of no use once it has begun */
    int32_t  next_free;
    bool     begun;
    bool     asked;                  /* formed for one request, and withdrawn when no rank has it as its goal any more;
                                        otherwise a part of a division */
} pp_groups_group_t;

/* A member of a group that has not finished it. */
typedef struct pp_groups_entry {
    int32_t rank, group;
    int32_t next_member;             /* of the group; of a free entry: the next free one */
    int32_t ahead, behind;           /* in the rank's group buffer */
} pp_groups_entry_t;

/* The first cache line has what each request changes, the second what some do. */
struct pp_groups {
    uint64_t serial;                 /* of the group formed last */
    uint64_t draws;                  /* random numbers taken so far */
    uint64_t most_requests;
    uint64_t paces, paced;           /* of the ranks that have not left and whose usual computation is known: the sum of
                                        their paces, and how many they are */
    int32_t  alive;                  /* groups */
    int32_t  asking;                 /* ranks with an outstanding request */
    int32_t  free_group, free_entry;
    uint32_t releases;               /* for planted defects: finished memberships */
    int32_t  kept;                   /* lists of members that have a number */

    uint64_t recorded;               /* SMART, CONTROLLER: groups in the history since the last reset */
    uint64_t check_at;               /* ... when the history has so many groups, the sync-graph is looked at */
    int32_t  components;             /* ... those with a rank that has not left */
    int32_t  queue_first, queue_last, queued;
    uint64_t calls;                  /* the most collective calls that any rank is known to have completed */
    int32_t  elsewhere;              /* ranks that wait for long for something else */
    int32_t  reasons[PP_GROUPS_OUT + 1]; /* ranks that have left for each reason */
    bool     ended;                  /* END is told */

    pp_crowd_t idle;                 /* ranks that have not left and whose group buffers are empty */
    pp_crowd_t here;                 /* ranks that have not left */
    /* From here on nothing changes. */
    pp_groups_plan_t plan;
    int32_t  nodes;
    int32_t  window;                 /* SMART, CONTROLLER: T; 0: no sync-graph */
    int32_t  largest;                /* members of a group at most */
    bool     is_given, is_passive;   /* its generator is */
    size_t   ranks, groups, entries, history, members, iterations, weights, goals, order, by_node, node_ends, scratch,
             table, own, kept_lists, kept_counts;        /* arrays */
};

/* One event: the machine and who hears its actions. */
typedef struct pp_groups_call {
    pp_groups_t *groups;
    const pp_groups_hearer_t *hearer;
    uint64_t now_ns;
} pp_groups_call_t;

static inline void *pp_groups_array(const pp_groups_t *g, size_t at) { return (char *)(uintptr_t)g + at; }
static inline pp_groups_rank_t *pp_groups_rank(const pp_groups_t *g, int32_t rank)
{
    return (pp_groups_rank_t *)pp_groups_array(g, g->ranks) + rank;
}
static inline pp_groups_group_t *pp_groups_group(const pp_groups_t *g, int32_t group)
{
    return (pp_groups_group_t *)pp_groups_array(g, g->groups) + group;
}
static inline pp_groups_entry_t *pp_groups_entry(const pp_groups_t *g, int32_t entry)
{
    return (pp_groups_entry_t *)pp_groups_array(g, g->entries) + entry;
}
/* The memory of the generator's own (pp_generator_t.own_bytes). */
static inline void *pp_groups_own(const pp_groups_t *g) { return pp_groups_array(g, g->own); }
static inline bool pp_groups_has(const pp_groups_t *g, int32_t plant) { return PP_SIM && g->plan.plant == plant; }

/* ---- random numbers and sets (draw.c) ---------------------------------------------------------------- */

/* The next random number, below `limit`. */
int32_t pp_groups_draw(pp_groups_t *g, int32_t limit);
/* Moves `wanted` of `count` ranks, drawn at random, to the front, in random order. */
void    pp_groups_shuffle(pp_groups_t *g, int32_t *ranks, int32_t count, int32_t wanted);

void    pp_crowd_clear(const pp_groups_t *g, const pp_crowd_t *crowd);
void    pp_crowd_add(const pp_groups_t *g, pp_crowd_t *crowd, int32_t rank);
void    pp_crowd_remove(const pp_groups_t *g, pp_crowd_t *crowd, int32_t rank);
/* Fills `drawn` with up to `wanted` members other than `rank`, at random; returns how many. */
int32_t pp_crowd_draw(pp_groups_t *g, pp_crowd_t *crowd, int32_t rank, int32_t wanted, int32_t *drawn);

/* ---- the ledger (ledger.c) ------------------------------------------------------------------------------ */

/* Forms a group of different ranks that have not left, unless members are passive, and sorts `members`.  `asked`: for one
   request, as opposed to a division.  Only the rank whose event this is may be ready for it already, or passive ones;
   pp_ledger_review() lets it begin.  Returns the group; PP_NOBODY: no room (a defect). */
int32_t pp_ledger_form(const pp_groups_call_t *call, int32_t *members, int32_t count, bool asked);
/* The same for members that all ask, and whose requests it completes: it begins.  Some may have left.  False: no
   room. */
bool    pp_ledger_form_at_once(const pp_groups_call_t *call, int32_t *members, int32_t count);
/* This group completes the rank's request. */
void    pp_ledger_set_goal(pp_groups_t *g, int32_t rank, int32_t group);
/* The first group in the rank's group buffer; PP_NOBODY: the buffer is empty. */
int32_t pp_ledger_first(const pp_groups_t *g, int32_t rank);
/* The request is complete without a group. */
void    pp_ledger_go_alone(const pp_groups_call_t *call, int32_t rank);

/* The rank's part in these events; whether they are allowed is checked before. */
void    pp_ledger_start(const pp_groups_call_t *call, int32_t rank, uint64_t iteration);
void    pp_ledger_finish(const pp_groups_call_t *call, int32_t rank);
void    pp_ledger_leave(const pp_groups_call_t *call, int32_t rank);
void    pp_ledger_back(const pp_groups_call_t *call, int32_t rank);
/* The first group in the rank's buffer begins if all its members are ready; a start may have made it so. */
void    pp_ledger_review(const pp_groups_call_t *call, int32_t rank);
/* All ranks have left: those that flush average, and nothing is outstanding any more. */
void    pp_ledger_flush(const pp_groups_call_t *call);
/* All members of the first group in the rank's buffer are ready for it, or free; also without a group. */
bool    pp_ledger_may_complete(const pp_groups_t *g, int32_t rank);
/* The other rank is a member of the first group in the rank's buffer, and keeps it from beginning. */
bool    pp_ledger_is_missing(const pp_groups_t *g, int32_t rank, int32_t other);

/* ---- numbers of lists of members (kept.c) ----------------------------------------------------------------- */

/* The number of a list of several members; PP_NOBODY: it has none, or needs none.  *fresh: 1: it gets the number now. */
int32_t pp_kept_number(pp_groups_t *g, const int32_t *members, int32_t count, int32_t *fresh);

/* ---- paces (pace.c) ------------------------------------------------------------------------------------- */

/* The rank has started: the time since its last request was complete, or it came back, is a sample. */
void     pp_pace_started(pp_groups_t *g, int32_t rank, uint64_t now_ns);
/* The rank no longer counts, or counts again. */
void     pp_pace_leave(pp_groups_t *g, int32_t rank);
void     pp_pace_back(pp_groups_t *g, int32_t rank);
/* The usual computation of a rank that has not left: the harmonic mean, which a few slow ranks hardly change.  0: not
   known yet. */
uint64_t pp_pace_mean(const pp_groups_t *g);
/* How far ahead the rank's next request is, by its usual computation.  A rank that already computes for longer is taken
   to be as far from the end as it is late. */
uint64_t pp_pace_ahead(const pp_groups_t *g, int32_t rank, uint64_t now_ns);
/* It usually takes more than twice as long as the mean, or does so now. */
bool     pp_pace_is_slow(const pp_groups_t *g, int32_t rank, uint64_t now_ns);

/* ---- the sync-graph (graph.c) ----------------------------------------------------------------------------- */

/* The history is empty; ranks may have left. */
void    pp_graph_open(pp_groups_t *g);
void    pp_graph_record(pp_groups_t *g, const int32_t *members, int32_t count);
/* The rank has left, or has not any more. */
void    pp_graph_leave(pp_groups_t *g, int32_t rank);
void    pp_graph_back(pp_groups_t *g, int32_t rank);
/* The last groups do not connect the ranks that have not left. */
bool    pp_graph_is_frozen(pp_groups_t *g);
/* Tells components apart: ranks of one have the same root, until the next call of another function. */
int32_t pp_graph_root(const pp_groups_t *g, int32_t rank);
/* How many ranks that have not left are in other components than the rank. */
int32_t pp_graph_outside(const pp_groups_t *g, int32_t rank);
/* The fewest groups that connect all ranks. */
int32_t pp_graph_least_window(const pp_groups_plan_t *plan);

/* ---- generators ------------------------------------------------------------------------------------------- */

/* Whether ranks that wait for each other on several handles may give way on one with this generator
   (pp_groups_untangle()). */
typedef enum pp_gives_way { PP_GIVES_WAY, PP_GIVES_WAY_LAST, PP_GIVES_WAY_NEVER } pp_gives_way_t;

/* A generator: one file, and one line in the table below.  Where a function is NULL, what its comment calls usual
   holds. */
typedef struct pp_generator {
    bool           is_named;         /* requests name their groups: plan.size is not looked at, and a request waits for
                                        its members, as a collective call of MPI does */
    bool           is_given;         /* ... by pp_groups_give() */
    bool           has_table;        /* ... in a table of plan.phases phases: known before anyone asks */
    bool           is_passive;       /* a group waits for no member to ask, and a rank that leaves stays in its groups;
                                        requests may be for a rank by itself (PP_GROUPS_BY_ITSELF) */
    pp_gives_way_t gives_way;

    /* PP_ERR_ARGUMENT: a wrong value.  What all generators have is right.  Usual: all is well. */
    pp_status_t (*check)(const pp_groups_plan_t *plan, const int32_t *table);
    /* The entries of a table that is right.  Usual: 0, there is none. */
    size_t (*table_entries)(const pp_groups_plan_t *plan, const int32_t *table);
    /* The most members of a group.  Usual: plan.size. */
    int32_t (*largest)(const pp_groups_plan_t *plan, const int32_t *table);
    /* The groups that the sync-graph looks back.  Usual: 0, it has none. */
    int32_t (*window)(const pp_groups_plan_t *plan);
    /* The bytes of memory of its own, pp_groups_own(), which is zero at first.  Usual: 0. */
    size_t (*own_bytes)(const pp_groups_plan_t *plan);
    /* It knows no groups and no requests: a machine is opened, or all ranks have flushed. */
    void (*open)(pp_groups_t *g);
    /* The rank has an outstanding request without a goal, has not left and runs no group: the generator finds it a
       goal, completes the request alone, or puts it off.  False: there is no room for another group (a defect). */
    bool (*ask)(const pp_groups_call_t *call, int32_t rank);
    /* A rank has left: what this means for requests of others that were put off.  False: as for `ask`. */
    bool (*leave)(const pp_groups_call_t *call, int32_t rank);
    /* The rank's request would be complete once all free ranks have asked.  Usual: pp_ledger_may_complete(). */
    bool (*may_complete)(pp_groups_t *g, int32_t rank);
    /* The rank's request waits for the other rank.  Usual: pp_ledger_is_missing(). */
    bool (*is_missing)(const pp_groups_t *g, int32_t rank, int32_t other);
} pp_generator_t;

/* The table of generators.  Each is a pp_generator_NAME in its file, and has the number of its place. */
#define PP_GENERATORS(line) \
    line(random)            \
    line(smart)             \
    line(controller)        \
    line(table)             \
    line(neighbour)         \
    line(given)

#define PP_GENERATOR_DECLARED(name) extern const pp_generator_t pp_generator_##name;
PP_GENERATORS(PP_GENERATOR_DECLARED)

/* The generator of a plan that is right. */
const pp_generator_t *pp_generator_of(const pp_groups_plan_t *plan);

#endif
