/*
 * engine.h - the single-threaded state machine of one rank in one context.
 *
 * It knows no atomics, no clock, no thread and no MPI: whoever holds the context's lock drives it, by delivering
 * messages (through the transport's sink) and by the functions of coll/.  After every stimulus
 * pp_engine_settle() fires whatever has become ready, until nothing moves any more.
 *
 * A *series* is the sequence of rounds of one template; the protocol above it (its host) decides when
 * a round may start and what happens when it is done.
 */
#ifndef PP_ENGINE_H
#define PP_ENGINE_H

#include "../graph/graph.h"
#include "../include/pypartial_sim.h"   /* pp_coverage_t, pp_plant_t */
#include "../node/node.h"
#include "../base/nodes.h"
#include "../reduce/reduce.h"
#include "../transport/transport.h"
#include "handle.h"
#include "message.h"
#include "pool.h"

typedef struct pp_engine   pp_engine_t;
typedef struct pp_series   pp_series_t;
typedef struct pp_instance pp_instance_t;

/* ---- one round ---------------------------------------------------------------------------------- */

/* A message kept because its receive is not ready for it. */
typedef struct pp_stored {
    struct pp_stored *next;
    int32_t           peer;
    size_t            bytes;
    _Alignas(16) unsigned char message[];
} pp_stored_t;

typedef struct pp_vertex_state {
    pp_instance_t *instance;    /* so that the address of this struct can be a bulk cookie */
    uint32_t       arrived;     /* finished predecessors */
    uint16_t       fired;       /* 0 or 1: operations are consumable */
    bool           finished;
    pp_stored_t   *message;     /* RECV: what arrived, until the vertex is done with it */
    const void    *data;        /* RECV: where the incoming elements lie; NULL: none, or in place */
} pp_vertex_state_t;

/* A register: the tally of the ranks merged so far, and whether any of them had data. */
typedef struct pp_register {
    pp_tally_t tally;
    bool       null;
    /* Masks of series->mask_words words: none above PP_CONTRIBUTORS_MAX ranks. */
    uint64_t  *contributors;
    uint64_t  *left;            /* ranks that had left when they joined */
} pp_register_t;

struct pp_instance {
    pp_series_t       *series;
    uint64_t           round;
    uint64_t           calls;   /* stamped on the round's messages: the engine's when it was activated;
                                   a call that this round completes must not stamp its last messages */
    bool               recyclable;  /* retired and complete */
    bool               stamped;
    uint32_t           unfinished;  /* operations that have not finished; 0: retired */
    pp_vertex_state_t *states;
    pp_register_t     *registers;
    uint64_t          *masks;       /* backing store of the registers' masks */
    pp_buffer_t       *accumulator; /* NULL while nobody merged so far had data */
    pp_buffer_t       *scratch;
};

/* ---- the rounds of one template ------------------------------------------------------------------ */

/* What a participant gives to a round. */
typedef struct pp_share_of_round {
    pp_tally_t      tally;
    bool            null;            /* no data; whatever is in the accumulator */
    const uint64_t *contributors;    /* masks of ranks; NULL: this rank alone, as the tally says */
    const uint64_t *left;
} pp_share_of_round_t;

typedef struct pp_host {
    /* The take operation fires: put the contribution into instance->accumulator (or leave it NULL), and
       what is to be said of it into *share. */
    void (*take)(void *owner, pp_instance_t *instance, pp_share_of_round_t *share);
    /* The round is on here (NULL: not interested). */
    void (*activated)(void *owner, pp_instance_t *instance);
    /* Whether the round's activation is this rank's to send (NULL: always); else another of its node has. */
    bool (*announces)(void *owner, pp_instance_t *instance);
    /* The accumulator is the result.  The host may take the buffer away. */
    void (*done)(void *owner, pp_instance_t *instance);
    /* Every operation has fired, no message of the round is outstanding.  The host answers by
       pp_series_recycle() when the round is complete as well. */
    void (*retired)(void *owner, pp_instance_t *instance);
} pp_host_t;

struct pp_series {
    pp_engine_t     *engine;
    const pp_host_t *host;
    void            *owner;
    uint32_t         id;
    pp_graph_t      *graph;         /* owned */
    pp_kernels_t     kernels;
    int32_t          window;
    /* Between nodes: a participant is a node, and a peer of the schedule the rank that leads one in the round.
       NULL: participants are ranks. */
    const pp_nodes_t *nodes;
    /* The rounds that this rank leads, all without nodes, are first, first + stride, ...  They have places
       0, 1, ... */
    uint64_t         first, stride;
    uint64_t         opened;        /* places opened so far; place p lives in instances[p % window] */
    pp_instance_t   *instances;
    pp_stored_t     *early;         /* messages of rounds not opened yet, in order of arrival */
    pp_pool_t        vectors;       /* accumulators, pending slots, results */
    pp_pool_t        scratches;
    bool             drawn;         /* a round has several initiators by coincidence only */
    size_t           mask_words;    /* of a mask of ranks; 0: too many ranks to name any */
    unsigned char   *head;          /* where the header of the message being sent is built */
    uint32_t        *last_fired;    /* fire counts of the newest retired round */
    uint64_t         last_fired_round;
    bool             any_retired;
};

/* Opens the first rounds of a handle's series.  `nodes`: of the graph's participants; NULL
   if they are ranks.  Takes the graph over, also on failure. */
pp_status_t pp_series_open(pp_engine_t *engine, uint32_t id, pp_graph_t *graph, const pp_nodes_t *nodes,
                           const pp_kernels_t *kernels, int32_t window, const pp_host_t *host,
                           void *owner, pp_series_t *series);
/* A series without rounds of its own, for a handle that makes them in the memory of the node: only its number and
   pools are used. */
void pp_series_open_bare(pp_engine_t *engine, uint32_t id, size_t count, const pp_kernels_t *kernels,
                         pp_series_t *series);
void pp_series_close(pp_series_t *series);

/* Where the round is among those of this rank: which has so many before it. */
static inline uint64_t pp_series_place(const pp_series_t *series, uint64_t round)
{
    if (series->stride == 1)
        return round;
    return round < series->first ? 0 : (round - series->first + series->stride - 1) / series->stride;
}
/* NULL if the round is not open here (not yet, no longer, or never). */
pp_instance_t *pp_series_instance(pp_series_t *series, uint64_t round);

/* An operation's message; one for a round that is not open yet is kept. */
void pp_series_receive(pp_series_t *series, int32_t peer, const pp_prefix_t *prefix, size_t bytes);
/* Messages that came before their round was opened, and are due now. */
void pp_series_replay_early(pp_series_t *series);

/* Fires a vertex without predecessors (start, join, gate). */
void pp_instance_fire(pp_instance_t *instance, uint32_t vertex);
static inline bool pp_instance_fired(const pp_instance_t *instance, uint32_t vertex)
{
    return instance->states[vertex].fired != 0;
}
/* Between nodes: sends all activation messages of a round that another rank of the node leads, as that one's `start`
   would. */
void pp_series_announce(pp_series_t *series, uint64_t round);
/* A line for each operation that waits for a message, and whose. */
void pp_series_explain(const pp_instance_t *instance, pp_text_t *text);
/* The round is retired and complete: its place serves the round `window` later. */
void pp_series_recycle(pp_series_t *series, pp_instance_t *instance);

/* ---- the engine ---------------------------------------------------------------------------------- */

struct pp_engine {
    pp_transport_t *transport;
    int32_t         rank, size;
    uint64_t        seed;

    pp_handle_t   **handles;        /* by id; NULL: freed.  Number 0 is the agreement's */
    size_t          handle_count, handle_capacity;

    /* Completed collective calls.  A message with a higher count is deferred until this rank's own
       call has ended: towards its sender this rank has no longer left. */
    uint64_t        calls;
    pp_stored_t    *deferred;

    struct pp_firing { pp_instance_t *instance; uint32_t vertex; } *queue;   /* ready operations */
    size_t          queue_head, queue_tail, queue_capacity;
    bool            changed;        /* hosts must be asked to update() */
    bool            replay;         /* deferred messages may be due */
    bool            settling;       /* pp_engine_settle() is on the stack */

    uint32_t        next_bulk_tag;
    pp_blocks_t     blocks;         /* of large vectors and scratch */
    uint64_t        rounds;         /* completed, over all series */
    uint32_t        running;        /* rounds that have taken our part and are not done: more messages
                                       are to come soon */

    pp_node_t      *node;           /* memory that this rank shares with others; NULL: none */
    const pp_nodes_t *nodes;        /* there are others, too; NULL: all ranks share it */

    /* What a simulation may break in an engine, and what it reads: neither changes anything else. */
    int32_t         plant;          /* pp_plant_t; simulated ranks only */
    pp_coverage_t   coverage;

    /* First failure; every later call returns it. */
    pp_status_t     error;
    char            error_text[PP_ERROR_TEXT];

    /* Context-wide control messages (CLOSE, EXIT, GONE, ASK, TELL) go to the owner. */
    void          (*control)(void *owner, int32_t peer, const pp_prefix_t *message);
    void           *owner;
};

/* Handles are registered under an id when the ranks have agreed on them. */
pp_status_t pp_engine_register(pp_engine_t *engine, pp_handle_t *handle, uint32_t id);
void        pp_engine_forget(pp_engine_t *engine, pp_handle_t *handle);
static inline pp_handle_t *pp_engine_handle(const pp_engine_t *engine, uint32_t id)
{
    return id < engine->handle_count ? engine->handles[id] : NULL;
}

/* Whether a defect was put into this engine (pp_plant_t). */
static inline bool pp_engine_has(const pp_engine_t *engine, int32_t plant)
{
    return PP_SIM && engine->plant == plant;
}

pp_status_t pp_engine_init(pp_engine_t *engine, pp_transport_t *transport, uint64_t seed);
void        pp_engine_release(pp_engine_t *engine);

/* The engine is to look at what depends on time at `time_ns`; 0: soon, before anybody sleeps.  An earlier alarm
   stands. */
void        pp_engine_alarm(pp_engine_t *engine, uint64_t time_ns);
/* Looks now, and sets the next alarm. */
void        pp_engine_tick(pp_engine_t *engine);
static inline uint64_t pp_engine_now(const pp_engine_t *engine)
{
    return engine->transport->ops->now_ns(engine->transport);
}
/* Kept messages of a handle may be due although this rank's collective call has not ended. */
void        pp_engine_undefer(pp_engine_t *engine);
/* Lets the transport deliver what has arrived; every delivery settles. */
int         pp_engine_poll(pp_engine_t *engine);
/* Fires what is ready and updates hosts until nothing moves; then what was sent goes on its way. */
void        pp_engine_settle(pp_engine_t *engine);
/* Latches the first error; later ones are consequences. */
void        pp_engine_fail(pp_engine_t *engine, pp_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The latched error as the calling thread's error, PP_OK if there is none. */
pp_status_t pp_engine_check(const pp_engine_t *engine);

/* Sends a control message; `message` starts with a prefix whose kind, handle and round are set. */
void        pp_engine_control(pp_engine_t *engine, int32_t peer, pp_prefix_t *message, size_t bytes);
/* Completed collective calls: of this rank; or of whoever of its node completed most, for whom it speaks
   between nodes, or ends one: a rank that has ended its script may not have noticed the last ones. */
static inline uint64_t pp_engine_calls(const pp_engine_t *engine, bool of_node)
{
    uint64_t most = of_node ? pp_node_calls(engine->node) : 0;
    return most > engine->calls ? most : engine->calls;
}
/* A collective call of this rank has ended: messages of ranks that are ahead are now due. */
void        pp_engine_call_ended(pp_engine_t *engine);

#endif
