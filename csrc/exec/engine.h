/*
 * engine.h - the single-threaded state machine of one rank in one context.
 *
 * It knows no atomics, no clock, no thread and no MPI.  The thread that holds the context's lock drives it: it delivers
 * messages (through the transport's sink) and calls the functions of coll/.  After every stimulus pp_engine_settle()
 * fires what has become ready, until nothing moves any more.
 *
 * The engine does not know what it fires, nor what payloads are for: instance.h does.
 */
#ifndef PP_ENGINE_H
#define PP_ENGINE_H

#include "../include/pypartial_sim.h"   /* pp_coverage_t, pp_plant_t */
#include "../include/pypartial_sight.h"
#include "../base/nodes.h"
#include "../transport/transport.h"
#include "bulk.h"
#include "handles.h"
#include "message.h"
#include "pool.h"
#include "stored.h"

typedef struct pp_engine   pp_engine_t;
typedef struct pp_series   pp_series_t;
typedef struct pp_instance pp_instance_t;

/* Something that is ready to be fired: an operation of an instance. */
typedef struct pp_firing {
    void   (*fire)(void *owner, uint32_t which);
    void    *owner;
    uint32_t which;
} pp_firing_t;

/* ---- the engine ---------------------------------------------------------------------------------- */

struct pp_engine {
    pp_transport_t *transport;
    int32_t         rank, size;
    uint64_t        seed;

    pp_handles_t    handles;        /* the live ones; handle 0, which is always there, is the agreement's */

    /* The collective calls that this rank has completed, and the most that any rank is known to have completed.  If
       that is more, this rank has not left any more, although its call has not ended. */
    uint64_t        calls, calls_heard;
    pp_stored_t    *deferred;       /* messages to handles that this rank's call is about to open */

    pp_firing_t    *queue;          /* ready operations */
    size_t          queue_head, queue_tail, queue_capacity;
    pp_status_t     error;          /* the first failure; every later call returns it */
    bool            changed;        /* update() of all handles must be called */
    bool            replay;         /* kept messages may be due */
    bool            settling;       /* pp_engine_settle() is on the stack */

    pp_bulks_t      bulks;
    pp_blocks_t     blocks;         /* of large vectors and scratch */
    uint64_t        rounds;         /* completed, over all series */
    uint32_t        running;        /* rounds that have taken this rank's part and are not done: more messages will
                                       come soon */

    struct pp_node *node;           /* the memory that this rank shares with others; NULL: none */
    uint64_t      (*node_calls)(const struct pp_node *node);   /* see pp_engine_calls() */
    void          (*node_hears)(struct pp_node *node, uint64_t calls);   /* see pp_node_hears() */
    const pp_nodes_t *nodes;        /* the nodes, if there are several; NULL: all ranks share `node`, or none does */

    /* For simulations: a planted defect, and counters that change nothing else. */
    int32_t         plant;          /* pp_plant_t; simulated ranks only */
    pp_coverage_t   coverage;
    void          (*hear_group)(void *sim, pp_engine_t *engine, uint32_t handle, const pp_groups_action_t *action);
    void           *sim;            /* NULL: nobody listens */

    void          (*tell)(pp_engine_t *engine, const pp_event_t *event);   /* of a trace; NULL: there is none */

    char            error_text[PP_ERROR_TEXT];

    /* Context-wide control messages (CLOSE, EXIT, GONE, ASK, TELL) go to the owner. */
    void          (*control)(void *owner, int32_t peer, const pp_prefix_t *message);
    void           *owner;
};

/* Registers a handle under its id, when the ranks have agreed on it. */
pp_status_t pp_engine_register(pp_engine_t *engine, pp_handle_t *handle, uint32_t id);
void        pp_engine_forget(pp_engine_t *engine, pp_handle_t *handle);
static inline pp_handle_t *pp_engine_handle(const pp_engine_t *engine, uint32_t id)
{
    return pp_handles_get(&engine->handles, id);
}

/* Whether this defect is planted in the engine (pp_plant_t). */
static inline bool pp_engine_has(const pp_engine_t *engine, int32_t plant)
{
    return PP_SIM && engine->plant == plant;
}

pp_status_t pp_engine_init(pp_engine_t *engine, pp_transport_t *transport, uint64_t seed);
void        pp_engine_release(pp_engine_t *engine);

/* Makes the engine look at what depends on time at `time_ns`; 0: soon, before a thread sleeps.  An earlier alarm
   stays. */
void        pp_engine_alarm(pp_engine_t *engine, uint64_t time_ns);
/* Looks at what depends on time now, and sets the next alarm. */
void        pp_engine_tick(pp_engine_t *engine);
static inline uint64_t pp_engine_now(const pp_engine_t *engine)
{
    return engine->transport->ops->now_ns(engine->transport);
}
/* Lets the transport deliver what has arrived; each delivery settles.  Gives it the payloads that were held (bulk.h).
   Returns the number of events. */
int         pp_engine_poll(pp_engine_t *engine);
/* Fires what is ready and calls update() until nothing moves; then rings for the messages sent meanwhile. */
void        pp_engine_settle(pp_engine_t *engine);
/* Latches the first error; later errors are its consequences and are ignored. */
void        pp_engine_fail(pp_engine_t *engine, pp_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets the latched error as the calling thread's error, and returns it; PP_OK: there is none. */
pp_status_t pp_engine_check(const pp_engine_t *engine);

/* Keeps a message at the end of a list; false: no memory, and this error is latched. */
bool        pp_engine_keep(pp_engine_t *engine, pp_stored_t **list, int32_t peer, const void *message, size_t bytes);

/* Sends or receives a payload (bulk.h).  A failure is latched. */
void        pp_engine_move(pp_engine_t *engine, const pp_payload_t *payload, const pp_travelled_t *then);

/* Makes room for one more in the queue of ready operations; false: no memory, and this error is latched. */
bool        pp_engine_grow_queue(pp_engine_t *engine);
/* Queues an operation that is ready; pp_engine_settle() fires them in this order. */
static inline void pp_engine_ready(pp_engine_t *engine, void (*fire)(void *owner, uint32_t which), void *owner,
                                   uint32_t which)
{
    if (engine->queue_tail < engine->queue_capacity || pp_engine_grow_queue(engine))
        engine->queue[engine->queue_tail++] = (pp_firing_t){fire, owner, which};
}
/* A pool of buffers that may travel as bulk: large ones are cut out of the engine's blocks. */
void        pp_engine_pool(pp_engine_t *engine, size_t bytes, const pp_memory_t *memory, pp_pool_t *pool);

/* Sends a control message; `message` starts with a prefix whose kind, handle and round are set. */
void        pp_engine_control(pp_engine_t *engine, int32_t peer, pp_prefix_t *message, size_t bytes);
/* The collective calls that this rank has completed; or (`of_node`) the most that a rank of its node has completed.
   The latter counts between nodes, where a leader speaks for its node, and at the end of a call: a rank that has ended
   its script may not have noticed the last calls. */
static inline uint64_t pp_engine_calls(const pp_engine_t *engine, bool of_node)
{
    uint64_t most = of_node ? engine->node_calls(engine->node) : 0;
    return most > engine->calls ? most : engine->calls;
}
/* The most calls that any rank is known to have completed.  All messages carry it, so a rank learns of a completed call
   no later than of its consequences. */
static inline uint64_t pp_engine_calls_known(const pp_engine_t *engine)
{
    uint64_t here = pp_engine_calls(engine, engine->nodes);
    return engine->calls_heard > here ? engine->calls_heard : here;
}
/* Some rank is known to have completed so many calls. */
void        pp_engine_hear_calls(pp_engine_t *engine, uint64_t calls);
/* A collective call of this rank has ended: messages to a handle that it opened are due now. */
void        pp_engine_call_ended(pp_engine_t *engine);

#endif
