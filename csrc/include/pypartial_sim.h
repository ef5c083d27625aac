/*
 * pypartial_sim.h - the public header of the simulation: many ranks in one process, in virtual time.
 *
 * The simulated ranks' programs call the functions of pypartial.h; its conventions hold here, too.  All functions are
 * local and never block.  One thread drives a simulation.
 * Besides csrc/sim only the simulated transport, fenced memory, the engine (for planted defects and counters), the
 * generators of groups and queues (for planted defects) include this file.  pypartial/_build.py hands everything between the two
 * CDEF marks to cffi.
 */
#ifndef PYPARTIAL_SIM_H
#define PYPARTIAL_SIM_H

#include "pypartial_queues.h"

/* CDEF BEGIN */

/* ---- the network ------------------------------------------------------------------------------ */

/* A message of s bytes, after LogGP (Alexandrov et al., 1995): o at the sender and o at the receiver,
   L + (s - 1) G on the wire.  Consecutive sends of a rank begin at least max(o, g + (s - 1) G) apart, where s is the
   size of the first.  Its receives do, too, separately, where s is the size of the second. */
typedef struct pp_link {
    uint64_t latency_ns;       /* L */
    uint64_t overhead_ns;      /* o */
    uint64_t gap_ns;           /* g */
    uint64_t byte_ps;          /* G, in picoseconds */
    uint64_t rendezvous_bytes; /* S: longer messages travel as request, clear-to-send, data */
    uint64_t jitter_ns;        /* a message takes a time drawn from 0..jitter_ns longer; messages
                                  between a pair of ranks stay in order, others overtake each other */
} pp_link_t;

typedef struct pp_network {
    pp_link_t between;         /* ranks of different nodes */
    pp_link_t within;          /* ranks of one node */
    int32_t   node_ranks;      /* consecutive ranks of a node, at least 1 */
    int32_t   headers_free;    /* 1: a message is charged for its payload only, at least one byte */
    uint64_t  noise_ns;        /* mean of the times by which each o is longer: exponentially distributed,
                                  drawn from the rank's own stream; 0: no noise */
    uint64_t  reduce_ps;       /* a reduction keeps its rank busy for this many picoseconds a byte */
} pp_network_t;

/* ---- the ranks -------------------------------------------------------------------------------- */

/* Planted defects: the tests plant one to see that they find it.  Only simulated ranks can have them. */
typedef enum pp_plant {
    PP_PLANT_NONE,
    PP_PLANT_LOST_START,       /* a Start that meets an activated round drops what was pending */
    PP_PLANT_ROUND_TWICE,      /* where the parts of two initiators of a drawn round meet, one part is
                                  reduced twice */
    PP_PLANT_LOST_DRAW,        /* a rank that leaves drops a draw that was handed on to it */
    PP_PLANT_NO_PATIENCE,      /* a rank never says that it has left by patience */
    PP_PLANT_DEADLINE_TWICE,   /* a deadline that has passed counts for the next request, too */
    PP_PLANT_LOST_EARLY,       /* a rank drops an operation's message for a round that it has not opened yet */
    PP_PLANT_LOST_ADD,         /* gossip, like the next ones now and then: an average forgets what was added to a member */
    PP_PLANT_OTHER_SLOT,       /* ... it takes the slot that is open now */
    PP_PLANT_MEMBER_TWICE,     /* ... the passive member's model counts twice */
    PP_PLANT_INITIATOR_FIRST,  /* gossip by messages: a pair has its first turn at the rank that asks */
    PP_PLANT_UNCHECKED_TAG,    /* a rank does not look whether a queue's update was overwritten while it read it */
    PP_PLANT_COUNT
} pp_plant_t;

/* A second pp_memory_kind_t: the host's memory by addresses with bit PP_FENCE_SHIFT set, which only the table of this
   kind can follow.  It shows that nothing else touches a handle's buffers. */
enum { PP_MEMORY_FENCED = PP_MEMORY_HOST + 1 };
enum { PP_FENCE_SHIFT = 62 };

/* Which ranks are on one node. */
typedef enum pp_layout {
    PP_LAYOUT_BLOCKS,          /* consecutive ranks; the last node may have fewer */
    PP_LAYOUT_FROM_END,        /* consecutive ranks; the first node may have fewer */
    PP_LAYOUT_IN_TURN,         /* rank r is on node r mod the number of nodes */
    PP_LAYOUT_COUNT
} pp_layout_t;

enum { PP_SIM_ROOM_MAX = 8 };

/* A simulated rank is interrupted at `per_mille` of a thousand accesses to shared memory, each time for a time drawn
   from 0..longest_ns. */
typedef struct pp_pace {
    uint32_t per_mille;
    int32_t  room;             /* so many Starts of a rank can be pending one by one, what comes then is added to one of
                                  them, and the ring has no entries for views; 0: as much room as processes have */
    uint32_t magnify;          /* a byte of a vector counts for this many where the library asks whether a vector is
                                  large: for grace periods and for chunks; 0 is 1 */
    uint64_t longest_ns;
} pp_pace_t;

typedef struct pp_sim_config {
    uint64_t seed;             /* of what the network draws: jitter, noise, the order of simultaneous events */
    int32_t  ranks;
    int32_t  plant;            /* pp_plant_t */
    int32_t  node_ranks;       /* ranks of a node, which make their rounds in its memory; 0: ranks share no memory */
    int32_t  layout;           /* pp_layout_t of the nodes */
    pp_pace_t       pace;
    pp_network_t    network;
    pp_ctx_config_t ctx;       /* `progress` is ignored: the caller drives */
} pp_sim_config_t;

typedef struct pp_sim pp_sim_t;     /* many ranks in one process, over a simulated network */

/* Opens the contexts of all ranks over a simulated network.  They work with all functions of pypartial.h.  The blocking
   ones return PP_PENDING at once instead of waiting: call pp_wait() and pp_call_wait() with timeout 0.  The memory of
   all ranks is allocated here, without a look at how much the machine has left.  PP_ERR_ARGUMENT: a wrong value. */
pp_status_t pp_sim_open(const pp_sim_config_t *config, pp_sim_t **sim);
/* The context of a rank; it belongs to the simulation.  NULL: there is no such rank. */
pp_ctx_t   *pp_sim_ctx(pp_sim_t *sim, int32_t rank);
/* Opens a handle at one simulated rank as if all ranks had agreed on these arguments.  The caller makes this call for
   every rank, with the same arguments, before anything runs, and makes no handles otherwise.  PP_ERR_ARGUMENT: a wrong
   value; PP_ERR_STATE: the context is not simulated. */
pp_status_t pp_sim_allreduce(pp_ctx_t *ctx, const pp_allreduce_config_t *config, pp_handle_t **coll);
pp_status_t pp_sim_preduce(pp_ctx_t *ctx, const pp_preduce_config_t *config, pp_handle_t **handle);
/* From this virtual time on the rank neither sends nor receives; messages that it sent before still arrive.  The other
   ranks' contexts fail by PP_ERR_PEER_FAILED `detect_ns` later; UINT64_MAX: nobody tells them. */
pp_status_t pp_sim_kill(pp_sim_t *sim, int32_t rank, uint64_t time_ns, uint64_t detect_ns);

/* The rank's script ends, as if MPI were finalised: it serves the others, or, if its context has failed, tells them so.
   PP_ERR_STATE: the ranks share memory. */
pp_status_t pp_sim_end_script(pp_sim_t *sim, int32_t rank);

/* As pp_aside_begin() and pp_aside_end(), of one context. */
pp_status_t pp_sim_aside(pp_ctx_t *ctx, int32_t delta);

/* The handles that a rank's engine looks at whenever something has changed there. */
uint64_t    pp_sim_handles(const pp_sim_t *sim, int32_t rank);

enum { PP_SIM_ARGUMENTS = 6 };

/* A function of this header or of pypartial.h.  Whatever its parameters are, each is an integer or a pointer, and goes
   where an intptr_t goes: ISO C does not promise that, but the calling conventions of 64-bit machines do. */
typedef pp_status_t (*pp_sim_function_t)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t);

/* A call of a rank's program, for ranks that share memory: another rank may go on in the middle of it. */
typedef struct pp_sim_call {
    pp_sim_function_t function;
    intptr_t          arguments[PP_SIM_ARGUMENTS]; /* beyond those of the function: ignored */
    uint64_t          timeout_ns;    /* pp_wait() ends by PP_PENDING after this virtual time; 0: it waits for ever */
    const struct pp_sim_call *then;  /* made after PP_OK, before the rank can be interrupted; NULL: nothing */
} pp_sim_call_t;

/* Begins a call of the rank's program.  PP_OK: the call has ended.  PP_PENDING: it goes on, and pp_sim_advance() names
   the rank when it has ended.  A rank has one call at a time; what the call points to must live until it has ended.
   PP_ERR_STATE: the ranks share no memory. */
pp_status_t pp_sim_do(pp_sim_t *sim, int32_t rank, const pp_sim_call_t *call);
/* PP_PENDING while the call goes on; PP_OK: it has ended, and *status is what it returned. */
pp_status_t pp_sim_done(pp_sim_t *sim, int32_t rank, int32_t *status);
/* The number of rounds of the handle that were complete when its last request was made: the round that this request
   was on time for. */
uint64_t    pp_sim_requested_at(const pp_handle_t *coll);
/* P-Reduce with a table, by messages: this rank goes on as after so many flushes, and requests since the last one.  All
   ranks must be told the same, and have no request outstanding.  PP_ERR_ARGUMENT: another handle, or too many. */
pp_status_t pp_sim_count_from(pp_handle_t *coll, uint64_t flushes, uint64_t requests);
/* Says that the rank's process waits in another context (1), or no longer does (0).  Contexts of one process are
   different simulations. */
void        pp_sim_wait_elsewhere(pp_sim_t *sim, int32_t rank, int32_t waits);
/* How often ranks were interrupted at an access to shared memory. */
uint64_t    pp_sim_interruptions(const pp_sim_t *sim);
/* How often a rank that shares memory went on when it was dead: 0, or the simulation itself is wrong. */
uint64_t    pp_sim_ran_dead(const pp_sim_t *sim);

/* Says that the rank's program waits: for the request of `handle`, or, with NULL, for its collective call.  A program
   with several threads may wait for several.  pp_sim_advance() forgets all of them when it names the rank. */
pp_status_t pp_sim_watch(pp_sim_t *sim, int32_t rank, pp_handle_t *handle);
void        pp_sim_unwatch(pp_sim_t *sim, int32_t rank, const pp_handle_t *handle);
/* Performs the events up to and including `until_ns`, and stops after the first one that lets the program of a watched
   rank go on.  PP_OK: *rank is that rank, and the clock stands at the event.  PP_PENDING: no program can go on; the
   clock stands at the last event performed, not at `until_ns`. */
pp_status_t pp_sim_advance(pp_sim_t *sim, uint64_t until_ns, int32_t *rank);
/* Moves the clock forward, at most to the next event; PP_ERR_ARGUMENT: `time_ns` is past, or after that event. */
pp_status_t pp_sim_set_now(pp_sim_t *sim, uint64_t time_ns);
uint64_t    pp_sim_now_ns(const pp_sim_t *sim);
/* The time of the earliest event; UINT64_MAX: there is none. */
uint64_t    pp_sim_next_ns(const pp_sim_t *sim);

/* The rank at a place of a round's order of draws (PP_FIRST_OF), as long as nobody has left.  The ranks at places
   below m are drawn; the others are next if those leave. */
int32_t     pp_sim_drawn(uint64_t seed, uint32_t handle, uint64_t round, int32_t ranks, int32_t place);

/* A group of a handle of P-Reduce that has begun, a flush, or a rank whose request is complete without a group. */
typedef struct pp_sim_group {
    uint64_t       time_ns;
    uint64_t       serial;
    uint64_t       newest;
    uint32_t       handle;     /* its id */
    int32_t        flush;
    int32_t        rank;       /* without a group; with one: the member whose model is in it from now on; -1: all are */
    int32_t        count;
    const int32_t *members;
    const double  *weights;
    double         initial;
} pp_sim_group_t;

/* From now on the simulation keeps what groups begin, until pp_sim_group() has told of them. */
void        pp_sim_keep_groups(pp_sim_t *sim);
/* The oldest group that it was not called for yet; valid until the next call.  NULL: there is none.  Memory may have
   run short: then the contexts have failed. */
const pp_sim_group_t *pp_sim_group(pp_sim_t *sim);

enum { PP_STALENESS_BINS = 33 };

/* How often each interleaving occurred that is hard to get right, over all ranks. */
typedef struct pp_coverage {
    uint64_t initiators_met;   /* PP_FIRST_OF: parts of a round with different initiators merged */
    uint64_t departures;       /* collective calls begun while a round had begun here and was not done */
    uint64_t windows_full;     /* messages that came for a round beyond the window */
    uint64_t draws_handed_on;
    uint64_t crossings;        /* parts that a node gave to rounds between nodes */
    uint64_t announced;        /* rounds between nodes that a rank announced which does not lead its node in them */
    uint64_t landings;         /* results of which a rank had put a part in place while it reduced them */
    uint64_t graces_met;       /* grace periods that ended because all ranks were there */
    uint64_t graces_over;      /* grace periods that ended because their time was over */
    uint64_t merges;           /* contributions added to one that was pending, because the rank had no room left */
    uint64_t merges_away;      /* ... while the round was between nodes */
    uint64_t asides;           /* times that a rank left a handle by patience */
    uint64_t deadlines;        /* rounds that a deadline brought about */
    /* Parts that ranks gave to rounds, by the staleness of their oldest contribution; the last bin counts this
       staleness and all above. */
    uint64_t staleness[33];
} pp_coverage_t;

void        pp_sim_coverage(const pp_sim_t *sim, pp_coverage_t *coverage);
/* Frees the simulation, its ranks and their contexts.  NULL is fine. */
void        pp_sim_free(pp_sim_t *sim);

/* ---- one schedule by itself ------------------------------------------------------------------- */

/* Schedule 0 is the activation, which rank 0 begins: a rank finishes when it is activated.  Any other number is that of
   an algorithm, which all ranks begin at once. */
enum { PP_SCHEDULE_ACTIVATION = 0 };

typedef struct pp_sim_traffic {
    uint64_t messages, bytes;  /* sent by all ranks; headers count unless they are free */
} pp_sim_traffic_t;

/* Runs a schedule once, for `bytes` bytes in `segments` segments (1..PP_LANES_MAX; 0: by the size), from time 0.
   `finished_ns` gets each rank's finishing time: it has one entry a rank.  PP_ERR_ARGUMENT: a wrong value. */
pp_status_t pp_sim_schedule(int32_t schedule, int32_t ranks, size_t bytes, int32_t segments, uint64_t seed,
                            const pp_network_t *network, uint64_t *finished_ns,
                            pp_sim_traffic_t *traffic);
/* The same schedule as text, for 1..1024 ranks.  Free the text by pp_text_free(). */
pp_status_t pp_sim_schedule_dump(int32_t schedule, int32_t ranks, size_t bytes, int32_t format,
                                 char **text);

/* ---- groups: the protocols of P-Reduce by themselves ------------------------------------------- */

/* Planted defects of generators (pp_groups_plan_t.plant); only simulations can have them. */
typedef enum pp_groups_plant {
    PP_GROUPS_PLANT_NONE,
    PP_GROUPS_PLANT_LOST_RELEASE,  /* now and then a rank that has finished a group stays locked */
    PP_GROUPS_PLANT_OTHER_ORDER,   /* now and then a member gets two groups in the other order */
    PP_GROUPS_PLANT_COUNT
} pp_groups_plant_t;

typedef struct pp_sim_groups pp_sim_groups_t;

/* Opens a generator.  `table`: for "table" (pp_preduce_config_t.table); NULL for the others.  `node_of` has
   the node of each rank, numbered from 0; NULL: one node.  PP_ERR_ARGUMENT: a wrong value. */
pp_status_t pp_sim_groups_open(const pp_groups_plan_t *plan, const int32_t *table, const int32_t *node_of,
                               pp_sim_groups_t **groups);
/* Tells the generator of an event; *actions is how many actions it answers.  PP_ERR_STATE: the rank's state does not
   permit this event; nothing has changed. */
pp_status_t pp_sim_groups_event(pp_sim_groups_t *groups, int32_t event, int32_t rank, uint64_t number, uint64_t now_ns,
                                int32_t *actions);
/* "given", before a start: the group that the rank's next request is for. */
pp_status_t pp_sim_groups_give(pp_sim_groups_t *groups, int32_t rank, const int32_t *members, int32_t count);
/* Whether the rank has an outstanding request. */
int32_t     pp_sim_groups_asks(const pp_sim_groups_t *groups, int32_t rank);
/* Ends circles of ranks that wait for each other on different generators (csrc/groups/untangle.c); actions[i] is how
   many actions generator i answers. */
pp_status_t pp_sim_groups_untangle(pp_sim_groups_t *const *groups, int32_t count, uint64_t now_ns, int32_t *actions);
/* One of the actions that the last event was answered with, 0..actions - 1.  What it points to lives until the next
   event. */
const pp_groups_action_t *pp_sim_groups_action(const pp_sim_groups_t *groups, int32_t index);
/* Moves the generator to another address, and overwrites the memory where it was. */
pp_status_t pp_sim_groups_move(pp_sim_groups_t *groups);
/* Groups that are formed and not over, and how many there can be at most. */
int32_t     pp_sim_groups_alive(const pp_sim_groups_t *groups);
int32_t     pp_sim_groups_most(const pp_sim_groups_t *groups);
void        pp_sim_groups_free(pp_sim_groups_t *groups);

/* The members of the group of a rank in a phase of the static table, in ascending order; `members` has room for as many
   as there are nodes and as a node has ranks.  *count is 0 if the rank is idle.  PP_ERR_ARGUMENT: a wrong value. */
pp_status_t pp_sim_groups_static(int32_t nodes, int32_t per_node, uint64_t phase, int32_t rank, int32_t *members,
                                 int32_t *count);
/* The weights of a group of ranks of these iterations, and of the initial model. */
pp_status_t pp_sim_groups_weights(int32_t kind, double alpha, int32_t count, const uint64_t *iterations,
                                  double *weights, double *initial);

/* ---- queues: Hop's rules by themselves ----------------------------------------------------------- */

/* Planted defects of queues (pp_queues_plan_t.plant); only simulations can have them. */
typedef enum pp_queues_plant {
    PP_QUEUES_PLANT_NONE,
    PP_QUEUES_PLANT_LOST_TOKEN,    /* now and then an iteration is not announced */
    PP_QUEUES_PLANT_TWICE,         /* staleness: an update within the bound is averaged again */
    PP_QUEUES_PLANT_LATE_TOKENS,   /* a jump is announced when the rank enters, not when it decides */
    PP_QUEUES_PLANT_FRESH_ONLY,    /* staleness: each average needs a new update of each (Fig. 9, line 7 as printed) */
    PP_QUEUES_PLANT_COUNT
} pp_queues_plant_t;

typedef struct pp_sim_queues pp_sim_queues_t;

/* Opens the state of one rank.  `weights`: of each in-neighbour, where the plan says so; else NULL.  PP_ERR_ARGUMENT: a
   wrong value. */
pp_status_t pp_sim_queues_open(const pp_queues_plan_t *plan, const double *weights, pp_sim_queues_t **queues);
/* An event, and then each of the actions that are due, one at a time. */
pp_status_t pp_sim_queues_event(pp_sim_queues_t *queues, int32_t event, int32_t neighbour, int64_t iteration);
void        pp_sim_queues_next(pp_sim_queues_t *queues, pp_queues_action_t *action);
/* Questions: csrc/queues/queues.h. */
int32_t     pp_sim_queues_wants(const pp_sim_queues_t *queues, int32_t out);
int32_t     pp_sim_queues_tells(const pp_sim_queues_t *queues, int32_t in);
int32_t     pp_sim_queues_awaits_update(const pp_sim_queues_t *queues, int32_t in);
int32_t     pp_sim_queues_awaits_token(const pp_sim_queues_t *queues, int32_t out);
int64_t     pp_sim_queues_due(const pp_sim_queues_t *queues);
int64_t     pp_sim_queues_oldest(const pp_sim_queues_t *queues);
int32_t     pp_sim_queues_size(const pp_sim_queues_t *queues, int64_t iteration, int32_t in);
void        pp_sim_queues_result(const pp_sim_queues_t *queues, pp_queues_result_t *result);
int64_t     pp_sim_queues_ring(const pp_queues_plan_t *plan);
/* Moves the state to another address, and overwrites the memory where it was. */
pp_status_t pp_sim_queues_move(pp_sim_queues_t *queues);
void        pp_sim_queues_free(pp_sim_queues_t *queues);

/* CDEF END */

#endif
