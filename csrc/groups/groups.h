/*
 * groups.h - which ranks average with each other, and when: the protocols of P-Reduce.
 *
 * Pure: no messages, no atomics, no clock, no thread.  A machine is a state of fixed size without pointers, so it can
 * lie in memory that several processes map at different addresses.  Its callers tell it of events, one at a time, and
 * do what it answers.  A caller is a rank of a node that holds the node's lock, the one rank that decides for several
 * nodes, or the simulator.  (design: "P-Reduce", "Pure protocols")
 *
 * ledger.c   decides when a group begins: Ripples' lock vector, pending group queue and group buffers
 * random.c smart.c controller.c named.c neighbour.c   decide which groups there are: the generators
 * generators.c   the table of the generators
 * graph.c    tells smart.c and controller.c which ranks the last groups connect
 * kept.c     numbers the groups whose members keep a communicator
 * static.c weights.c   functions without a state
 * machine.c  the events
 * untangle.c several machines
 *
 * A group begins when all its members have started and it is the first in the group buffer of each.  Members of some
 * generators are passive: they need not have started.  Groups get their
 * numbers when they are formed and enter all buffers in this order, so every rank runs its groups in the order of their
 * numbers.  All members of the lowest unfinished group have it first: it can run as soon as they have started.  So the
 * ranks of one handle do not deadlock.
 *
 * Several handles have a machine each.  Rank 0 may wait on the first for a group with rank 1, which waits on the second
 * for a group with rank 0.  pp_groups_untangle() finds such circles, and takes a rank out of groups of a handle on which
 * it has not asked.
 */
#ifndef PP_GROUPS_H
#define PP_GROUPS_H

#include "../base/base.h"

typedef struct pp_groups pp_groups_t;

/* Who hears the actions.  `tell` is called within the event and may not call the machine; what the action points to
   lives until it returns. */
typedef struct pp_groups_hearer {
    void (*tell)(void *arg, const pp_groups_action_t *action);
    void *arg;
} pp_groups_hearer_t;

/* PP_ERR_ARGUMENT: a wrong value.  `table`: for "table" (pp_preduce_config_t.table) and "neighbour"
   (pp_gossip_config_t.edges); NULL for the others. */
pp_status_t pp_groups_check(const pp_groups_plan_t *plan, const int32_t *table);
/* The most members that a group can have; of a plan that is right. */
int32_t     pp_groups_largest(const pp_groups_plan_t *plan, const int32_t *table);
/* What a generator is, of a plan that is right.  Requests name their groups, and wait for all members, as a collective
   call of MPI does; in particular by pp_groups_give(); or by a table, which says all groups before anyone asks. */
bool        pp_groups_are_named(const pp_groups_plan_t *plan);
bool        pp_groups_are_given(const pp_groups_plan_t *plan);
bool        pp_groups_have_table(const pp_groups_plan_t *plan);
/* The entries of its table, of which it may have one also where that does not say all groups. */
size_t      pp_groups_table_entries(const pp_groups_plan_t *plan, const int32_t *table);
/* "neighbour": the rank with which a rank's request of this iteration averages; the rank itself: it has no neighbours.
   `plan` has the ranks and the seed. */
int32_t     pp_groups_neighbour(const pp_groups_plan_t *plan, const int32_t *table, int32_t rank, uint64_t iteration);
/* The bytes of a machine of a plan that is right; they are to be aligned to 8, better to a cache line. */
size_t      pp_groups_bytes(const pp_groups_plan_t *plan, const int32_t *table);
/* `table` is copied.  `node_of`: the node of each rank, from 0 and below the number of ranks; NULL: all are on one.
   `now_ns`: the ranks begin to compute. */
pp_status_t pp_groups_open(pp_groups_t *groups, const pp_groups_plan_t *plan, const int32_t *table,
                           const int32_t *node_of, uint64_t now_ns);

/* The number of a START that is for a group of the rank alone, where members are passive.  It is no iteration: the rank's
   stays as it was. */
#define PP_GROUPS_BY_ITSELF UINT64_MAX

/* An event (pp_groups_event_t).  PP_ERR_ARGUMENT: no such rank or event, or an iteration that does not exceed the
   rank's last, a reason that is none, or GIVEN and no group; PP_ERR_STATE: the rank's state does not permit it.  Both
   leave the machine as it was.  PP_ERR_INTERNAL: the machine itself is wrong. */
pp_status_t pp_groups_event(pp_groups_t *groups, int32_t event, int32_t rank, uint64_t number, uint64_t now_ns,
                            const pp_groups_hearer_t *hearer);
/* GIVEN, before its START: the group that the rank's next request is for.  PP_ERR_ARGUMENT: `members` do not ascend, are
   no ranks, or lack the rank itself; PP_ERR_STATE: the rank has an outstanding request. */
pp_status_t pp_groups_give(pp_groups_t *groups, int32_t rank, const int32_t *members, int32_t count);
/* Whether the rank has an outstanding request. */
bool        pp_groups_asks(const pp_groups_t *groups, int32_t rank);

/* The ranks that the rank's outstanding request waits for.  Fills `ranks` with up to `most` of them; returns how many
   there are. */
int32_t     pp_groups_missing(const pp_groups_t *groups, int32_t rank, int32_t *ranks, int32_t most);

/* Whether a request waits for the rank: `of`, if that one still does, else another one; 0: none does.  A request has
   its number until the next flush.  `of` may also be a rank, whose request is looked at first. */
uint64_t    pp_groups_awaits(const pp_groups_t *groups, int32_t rank, uint64_t of);

/* The most collective calls that the machine knows any rank to have completed. */
uint64_t    pp_groups_calls(const pp_groups_t *groups);

/* Ends circles of ranks that wait for each other on different handles; to be called after each event where there are
   several handles: also a FINISH or LEAVE may be the last event before all ranks wait.  It returns at once while ranks
   wait on one handle only.  All machines have the same ranks.  A rank is taken to compute, and so to ask on any handle
   some time, if it has an outstanding request on none of them, and is not ELSEWHERE. */
pp_status_t pp_groups_untangle(pp_groups_t *const *machines, const pp_groups_hearer_t *hearers, int32_t count,
                               uint64_t now_ns);

/* Groups that are formed and not over, and how many there can be at most. */
int32_t pp_groups_alive(const pp_groups_t *groups);
int32_t pp_groups_most(const pp_groups_t *groups);

/* The static table (Ripples, Fig. 10) for nodes of per_node consecutive ranks.  Fills `members` in ascending order, which
   has room for max(nodes, per_node); returns how many there are, 0 for an idle rank. */
int32_t pp_groups_static(int32_t nodes, int32_t per_node, uint64_t phase, int32_t rank, int32_t *members);

/* The weights (pp_weights_t) of ranks of these iterations; returns that of the initial model.  `scratch` has room for
   `count`. */
double pp_groups_weights(int32_t kind, double alpha, int32_t count, const uint64_t *iterations, double *weights,
                         int32_t *scratch);

#endif
