/*
 * pypartial_sim.h - the simulation: many ranks in one process, in virtual time.
 *
 * Above pypartial.h, whose functions the simulated ranks' programs call, and whose conventions hold here, too.
 * Below csrc/sim only the simulated transport, fenced memory and the engine, for its planted defects and its counters,
 * know this file.  pypartial/_build.py hands everything between the two CDEF marks to cffi.
 */
#ifndef PYPARTIAL_SIM_H
#define PYPARTIAL_SIM_H

#include "pypartial.h"

/* CDEF BEGIN */

/* ---- the network ------------------------------------------------------------------------------ */

/* A message of s bytes, after LogGP (Alexandrov et al., 1995): o at the sender and o at the receiver,
   L + (s - 1) G on the wire.  Consecutive sends of a rank begin at least max(o, g + (s - 1) G) apart, with s of
   the first of them; and so, separately, do its receives, with s of the second. */
typedef struct pp_link {
    uint64_t latency_ns;       /* L */
    uint64_t overhead_ns;      /* o */
    uint64_t gap_ns;           /* g */
    uint64_t byte_ps;          /* G, in picoseconds */
    uint64_t rendezvous_bytes; /* S: what is longer goes as request, clear-to-send, data */
    uint64_t jitter_ns;        /* a message takes a time drawn from 0..jitter_ns longer; messages
                                  between a pair of ranks stay in order, others overtake each other */
} pp_link_t;

typedef struct pp_network {
    pp_link_t between;         /* ranks of different nodes */
    pp_link_t within;          /* ranks of one node */
    int32_t   node_ranks;      /* consecutive ranks of a node, >= 1 */
    int32_t   headers_free;    /* 1: messages are charged for their payload only, at least one byte */
    uint64_t  noise_ns;        /* each rank's o takes longer by times of this mean, exponentially
                                  distributed, drawn from the rank's own stream; 0: never */
    uint64_t  reduce_ps;       /* a reduction keeps its rank busy for so many picoseconds a byte */
} pp_network_t;

/* ---- the ranks -------------------------------------------------------------------------------- */

/* Defects put in on purpose, to see that the tests find them.  Only simulated ranks can have them. */
typedef enum pp_plant {
    PP_PLANT_NONE,
    PP_PLANT_LOST_START,       /* a Start that meets an activated round drops what was pending */
    PP_PLANT_ROUND_TWICE,      /* where the parts of two initiators of a drawn round meet, one is
                                  reduced twice */
    PP_PLANT_LOST_DRAW,        /* a rank that leaves while it holds a draw handed on drops it */
    PP_PLANT_NO_PATIENCE,      /* a rank never says that it has left by patience */
    PP_PLANT_DEADLINE_TWICE,   /* a deadline that was over counts for the next request, too */
    PP_PLANT_LOST_EARLY,       /* an operation's message for a round that is not open yet is dropped */
    PP_PLANT_COUNT
} pp_plant_t;

/* The host's memory, by addresses that only the table of this kind can follow: with bit PP_FENCE_SHIFT set.  To see that
   nothing else touches what a handle was given. */
enum { PP_MEMORY_FENCED = PP_MEMORY_HOST + 1 };
enum { PP_FENCE_SHIFT = 62 };

/* Which ranks are on one node. */
typedef enum pp_layout {
    PP_LAYOUT_BLOCKS,          /* consecutive ones; the last node may have fewer */
    PP_LAYOUT_FROM_END,        /* consecutive ones; the first node may have fewer */
    PP_LAYOUT_IN_TURN,         /* dealt out in turn */
    PP_LAYOUT_COUNT
} pp_layout_t;

/* Ranks that share memory are interrupted at so many of a thousand accesses to it, each time for a time drawn
   from 0..longest_ns. */
typedef struct pp_pace {
    uint32_t per_mille;
    uint32_t magnify;          /* a byte of a vector counts for so many, where rounds of large vectors wait for ranks
                                  that come a little later, and are cut into chunks; 0 is 1 */
    uint64_t longest_ns;
} pp_pace_t;

typedef struct pp_sim_config {
    uint64_t seed;             /* of what the network draws: jitter, noise, the order of what coincides */
    int32_t  ranks;
    int32_t  plant;            /* pp_plant_t */
    int32_t  node_ranks;       /* each so many ranks are on one node, and make their rounds in its memory; 0: ranks
                                  share none */
    int32_t  layout;           /* pp_layout_t: of the nodes */
    pp_pace_t       pace;
    pp_network_t    network;
    pp_ctx_config_t ctx;       /* progress is ignored: the caller drives */
} pp_sim_config_t;

typedef struct pp_sim pp_sim_t;     /* many ranks in one process, over a simulated network */

/* Contexts over a simulated network: use them with every function of pypartial.h but the blocking ones, which
   return PP_PENDING at once (pp_wait and pp_call_wait with timeout 0 are the right calls).  What the
   ranks need is allocated here, and not compared with what the machine has left. */
pp_status_t pp_sim_open(const pp_sim_config_t *config, pp_sim_t **sim);
pp_ctx_t   *pp_sim_ctx(pp_sim_t *sim, int32_t rank);
/* Opens a handle at one simulated rank without asking the others: what an agreement of all ranks on these
   arguments would have left behind.  To be called for every rank, with the same arguments, before anything
   runs; handles made otherwise must not follow. */
pp_status_t pp_sim_allreduce(pp_ctx_t *ctx, const pp_allreduce_config_t *config, pp_handle_t **coll);
/* From this virtual time on the rank neither sends nor receives; what it sent before still arrives.  The
   others' contexts fail by PP_ERR_PEER_FAILED `detect_ns` later; UINT64_MAX: nobody tells them. */
pp_status_t pp_sim_kill(pp_sim_t *sim, int32_t rank, uint64_t time_ns, uint64_t detect_ns);

/* Ranks that share memory make their calls through pp_sim_do(), because another may go on in the middle of
   one: PP_OK: it has ended; PP_PENDING: it will, and pp_sim_advance() then tells of the rank.  One call of a
   rank at a time; what the call points to must live until it has ended. */
typedef enum pp_sim_call_kind {
    PP_SIM_START, PP_SIM_WAIT, PP_SIM_TEST, PP_SIM_INIT_BEGIN, PP_SIM_FLUSH_BEGIN, PP_SIM_DRAIN_BEGIN,
    PP_SIM_FREE_BEGIN, PP_SIM_CTX_FREE_BEGIN, PP_SIM_CALL_WAIT, PP_SIM_COLLECT, PP_SIM_MORE, PP_SIM_TIMED_OUT,
    PP_SIM_AWAY_BEGIN, PP_SIM_AWAY_END
} pp_sim_call_kind_t;

typedef struct pp_sim_call {
    int32_t      kind;         /* pp_sim_call_kind_t: the function, with these arguments; it may wait */
    uint64_t     timeout_ns;   /* WAIT: it ends by PP_PENDING after this virtual time; 0: never */
    pp_handle_t   *coll;
    pp_result_t *result;
    const pp_allreduce_config_t *config;
    const char  *complaint;
    pp_handle_t  **out;
    uint64_t    *discarded;
} pp_sim_call_t;

pp_status_t pp_sim_do(pp_sim_t *sim, int32_t rank, const pp_sim_call_t *call);
/* PP_PENDING while the call goes on; else *status is what it returned. */
pp_status_t pp_sim_done(pp_sim_t *sim, int32_t rank, int32_t *status);
/* How many rounds of the handle were complete when its last request was made: which round it was on time for. */
uint64_t    pp_sim_requested_at(const pp_handle_t *coll);
/* The rank's process waits in another context, or waits there no more (0): contexts of one process are different
   simulations. */
void        pp_sim_wait_elsewhere(pp_sim_t *sim, int32_t rank, int32_t waits);
/* How often ranks were interrupted at an access to the memory that they share. */
uint64_t    pp_sim_interruptions(const pp_sim_t *sim);

/* The rank's program waits: for the request of `handle`, or with NULL for its collective call; its threads for several.
   All is forgotten when pp_sim_advance() has told of the rank. */
pp_status_t pp_sim_watch(pp_sim_t *sim, int32_t rank, pp_handle_t *handle);
void        pp_sim_unwatch(pp_sim_t *sim, int32_t rank, const pp_handle_t *handle);
/* Performs what happens up to and including `until_ns`, and stops behind the first event after which the
   program of a watched rank can go on: PP_OK, *rank is this rank, and the clock stands there.  PP_PENDING:
   none can; the clock stands at the last event, and is not moved to `until_ns`. */
pp_status_t pp_sim_advance(pp_sim_t *sim, uint64_t until_ns, int32_t *rank);
/* Moves the clock on to a time before or at the next event. */
pp_status_t pp_sim_set_now(pp_sim_t *sim, uint64_t time_ns);
uint64_t    pp_sim_now_ns(const pp_sim_t *sim);
/* Time of the earliest event; UINT64_MAX if there is none. */
uint64_t    pp_sim_next_ns(const pp_sim_t *sim);

/* The rank at a place of the order in which a round's initiators are drawn (PP_FIRST_OF), while nobody has
   left: places below m are drawn, the others one after the other if those leave. */
int32_t     pp_sim_drawn(uint64_t seed, uint32_t handle, uint64_t round, int32_t ranks, int32_t place);

/* How often the interleavings occurred that are hard to get right, over all ranks. */
enum { PP_STALENESS_BINS = 33 };

typedef struct pp_coverage {
    uint64_t initiators_met;   /* PP_FIRST_OF: parts of a round with different initiators merged */
    uint64_t departures;       /* collective calls begun while a round had begun here and was not done */
    uint64_t windows_full;     /* messages that came for a round beyond the window */
    uint64_t draws_handed_on;
    uint64_t crossings;        /* parts that a node gave to rounds with others */
    uint64_t announced;        /* such rounds that a rank brought about which does not lead its node there */
    uint64_t landings;         /* results of which a rank had put a part in place while it was reduced */
    uint64_t graces_met;       /* rounds that waited for ranks to come a little later, until all were there, */
    uint64_t graces_over;      /* or until their time was over */
    uint64_t asides;           /* times that a rank left a handle by patience */
    uint64_t deadlines;        /* rounds that a deadline brought about */
    /* Parts that ranks gave to rounds, by the staleness of their oldest contribution; the last number is
       everything above. */
    uint64_t staleness[33];
} pp_coverage_t;

void        pp_sim_coverage(const pp_sim_t *sim, pp_coverage_t *coverage);
/* Releases the ranks and their contexts. */
void        pp_sim_free(pp_sim_t *sim);

/* ---- one schedule by itself ------------------------------------------------------------------- */

/* A schedule is the activation, by rank 0: a rank finishes when it is activated; or the algorithm of this number,
   which all begin at once. */
enum { PP_SCHEDULE_ACTIVATION = 0 };

typedef struct pp_sim_traffic {
    uint64_t messages, bytes;  /* sent by all ranks, headers included unless they are free */
} pp_sim_traffic_t;

/* One execution of one schedule for `bytes` bytes in `segments` segments (1..PP_LANES_MAX; 0: by the size), from
   time 0: each rank's finishing time, into `finished_ns` with an entry a rank. */
pp_status_t pp_sim_schedule(int32_t schedule, int32_t ranks, size_t bytes, int32_t segments, uint64_t seed,
                            const pp_network_t *network, uint64_t *finished_ns,
                            pp_sim_traffic_t *traffic);
/* The same schedule as text. */
pp_status_t pp_sim_schedule_dump(int32_t schedule, int32_t ranks, size_t bytes, int32_t format,
                                 char **text);

/* CDEF END */

#endif
