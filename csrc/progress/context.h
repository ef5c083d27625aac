/*
 * context.h - a context: engine, transport, lock and progress thread of one rank.
 *
 * A context has one lock.  The thread that holds it runs the engine: the progress thread, or an application thread
 * inside the library.  A waiting application thread *attends*: it polls and sleeps in place of the progress thread,
 * which then is not woken.  So a balanced round costs no context switch, and the progress thread serves the others
 * while the application is away.  No thread holds the lock while it sleeps, or copies more than a few pages of user
 * memory.
 */
#ifndef PP_CONTEXT_H
#define PP_CONTEXT_H

#include "../coll/calls.h"
#include "../cuda/pool.h"
#include "../transport/pp_mpi.h"
#include "../include/pypartial_sight.h"

#include <pthread.h>
#include <stdatomic.h>

/* How a simulated rank that shares memory waits; all NULL otherwise. */
typedef struct pp_actor_ops {
    void *owner;
    void (*announce)(void *owner, bool sleeps);   /* true: from here on the rank must be woken */
    void (*park)(void *owner);       /* sleeps until the rank is woken, or told something */
    void (*pause)(void *owner);      /* lets others go on for a moment */
    bool (*expired)(void *owner);    /* the call's own timeout is over, in virtual time */
} pp_actor_ops_t;

/* A result that the application reads in place; `elements` is NULL if the result must be copied. */
typedef struct pp_view_out {
    const void *elements;
    void       *keeper;              /* keeps the memory mapped: see pp_unalloc() */
} pp_view_out_t;

enum { PP_ANY_CALL = 0 };           /* no call of the application has this number */

/* What applications do with handles of a kind.  The functions are called with the context's lock, which they release
   during long copies. */
typedef struct pp_face {
    _Alignas(64) pp_status_t (*start)(pp_ctx_t *, pp_handle_t *);
    /* Without a request: makes a request that is given what was not given yet.  PP_PENDING: there is nothing. */
    pp_status_t (*give)(pp_handle_t *);
    /* A thread begins to wait for the request, or to test it, or has ended that.  NULL: there is nothing to do. */
    void        (*waits)(pp_ctx_t *, pp_handle_t *, bool begins);
    /* A Wait ends without a result.  NULL: there is nothing to do. */
    void        (*give_up)(pp_handle_t *);
    /* Collects the request.  `result` and `view` may be NULL. */
    pp_status_t (*hand_out)(pp_ctx_t *, pp_handle_t *, pp_result_t *result, pp_view_out_t *view);
    /* A complete request is handed out at once, without a poll: it needs no message, and later messages wake the
       progress thread. */
    bool        (*at_once)(const pp_handle_t *);
    /* A Wait has ended by its timeout: the application gets its buffers back, but for one on a device that a
       round reads. */
    pp_status_t (*timed_out)(pp_ctx_t *, pp_handle_t *);
    /* Without a request: gives a result that was not given yet.  PP_PENDING: there is none.  NULL: there never is one. */
    pp_status_t (*more)(pp_ctx_t *, pp_handle_t *, pp_result_t *result);
    /* The application calls the handle again: it no longer reads the last result in place.  NULL: results are
       never read in place. */
    pp_status_t (*end_view)(pp_handle_t *);
    /* Before a Flush begins; NULL: there is nothing to do. */
    pp_status_t (*before_flush)(pp_ctx_t *, pp_handle_t *);

    /* ---- handles on a device; NULL: not for this one (staging.h) */
    /* Whether a complete request can be handed out now. */
    bool        (*room)(const pp_handle_t *);
    /* Waits for the elements of its Starts to come off the device, and with `results` for its results to get there.
       `call`: its number, the same in each try; PP_ANY_CALL: the one that is about to begin, which has tried before. */
    pp_status_t (*land)(pp_ctx_t *, pp_handle_t *, uint64_t call, bool results, int64_t timeout_us);
    /* Links the oldest elements that have arrived; false: there is no room for them. */
    bool        (*link)(pp_ctx_t *, pp_handle_t *);
} pp_face_t;

struct pp_ctx {
    /* The fields that every call reads come first: a late rank finds little of its memory in the caches. */
    pthread_mutex_t lock;
    atomic_bool     freed;           /* set under the lock, if other threads may be inside */
    bool            abandoned;
    bool            has_thread;
    atomic_bool     attended;        /* an application thread polls */
    uint64_t        forks;           /* pp_fork_count() at creation */
    uint64_t        thread_until_ns; /* the progress thread sleeps no longer; 0: it does not sleep */
    uint64_t        caller_until_ns; /* the same of a thread of the application that attends */
    pp_mpi_t       *mpi;             /* NULL in a simulation */
    pp_engine_t     engine;
    pp_team_t       team;
    pp_calls_t      calls;
    pp_node_t       node;            /* used if engine.node */
    const pp_nodes_t *nodes;         /* owned by the transport or the simulation; NULL: one node, or each rank alone */
    pp_actor_ops_t  actor;
    bool            crowded;         /* there are more ranks than cores: waiters give the core away at once */

    pthread_t       thread;
    bool            stop;            /* under the lock */
    uint32_t        inside;          /* calls of the application that have begun: they may have released the lock */
    pthread_cond_t  unattended;      /* an application thread has left */
    uint64_t        usual_wait_us;   /* running mean */
    uint32_t        looked;          /* the doorbell's sequence before the last poll */
    uint64_t        left_us;         /* when an application thread last left */
    bool            left_after_start;   /* it left from a Start */
    bool            returns_soon[2]; /* the application's habit, by left_after_start */
    uint64_t        thread_cpu_ns;   /* CPU time of a progress thread that has ended */
    uint64_t        sleeps;
    uint32_t        vain_looks;          /* of calls that do not sleep */
    uint64_t        looked_after_us;     /* when this rank last looked whether the others live */
    uint64_t        unheard;         /* sleeps that ended by timeout although a ring had come: defects */

    bool            has_devices;     /* a handle on one was made, or tried to be */
    uint64_t        flown;           /* Starts that have given elements on a device */
    uint32_t        flights;         /* what threads look for on devices: elements on their way, room for results */
    uint64_t        staged_bytes, bounced_bytes, ipc_bytes, direct_bytes, device_rounds, device_wait_ns;  /* pp_stats_t */
    bool            unpinned_due;    /* `unpinned` is to be told */
    char            unpinned[320];   /* for the log, once: why copies go by bounce buffers; "": they need not */
    struct pp_direct *directs;       /* of the handles in direct.h, the newest first */
    bool            looks;           /* a look for messages is in progress */
    pp_cuda_device_t looks_on;       /* the device that is current until its end, if there is a context */
    struct pp_device_vault *vaults;  /* of handles that were freed: see vault.h */
    pp_cuda_pools_t pools;
    struct pp_kept_region *kept;     /* of freed handles: see pinned.c */
    bool            ending;          /* all ranks free the context, and a thread of this one ends it */
    uint32_t        long_waits;      /* threads that wait long for a request here; under the lock of live.c */
    uint32_t        holds;           /* models that threads of this process hold (gossip_face.h) */
    uint64_t        call_began_ns;   /* when the collective call in progress began */
    bool            order_checked;   /* this rank has asked whether all ranks are in the same call */
    uint64_t        ipc_from;        /* rank 0's: pp_ctx_config_t */
    bool            path_forced;     /* the application chose messages: there is nothing to tell it about that */
    bool            told_apart, told_refused;
    char            note[320];       /* the last text of pp_ctx_note() */
    char            log_note[500];   /* that of pp_ctx_log_note() */
    struct {                         /* sight.h */
        pp_row_t *row;               /* NULL: nothing is counted */
        pp_trace_head_t *trace;      /* NULL: there is none */
        uint64_t  next;              /* where its next event goes */
        struct pp_counter {          /* of the processor's counter: see sight.c */
            bool     used;
            uint64_t ticks, ns;      /* when both were read last */
            double   ns_per_tick;    /* 0: not known yet */
        } counter;
        uint64_t  away_ns;           /* when the block of away() in progress began; 0: not timed */
        uint64_t  every_ns, due_ns;  /* pp_ctx_report_every(); 0: never */
        bool      is_due;
    } sight;
    struct pp_ctx  *next;            /* live.h */
};

/* Calls of the driver that may wait for a device, with the lock released: this rank's other handles go on meanwhile.  The
   caller's data is such that other threads leave it alone. */
#define PP_UNLOCKED(ctx, status, ...)           \
    do {                                        \
        pthread_mutex_unlock(&(ctx)->lock);     \
        (status) = (__VA_ARGS__);               \
        pthread_mutex_lock(&(ctx)->lock);       \
    } while (0)

/* Prepares a context on a transport that exists.  On failure it takes nothing over. */
pp_status_t pp_ctx_setup(pp_ctx_t *ctx, pp_transport_t *transport, const pp_ctx_config_t *config);
/* Releases what the context has, but for its lock and the handles themselves: later calls are refused. */
void        pp_ctx_empty(pp_ctx_t *ctx);
/* Releases these.  No thread may come any more. */
void        pp_ctx_end(pp_ctx_t *ctx);
void        pp_ctx_teardown(pp_ctx_t *ctx);      /* both */

pp_status_t pp_thread_start(pp_ctx_t *ctx);
void        pp_thread_stop(pp_ctx_t *ctx);
uint64_t    pp_thread_cpu_ns(const pp_ctx_t *ctx);

/* Runs the engine, works and sleeps until over(arg), an engine error, or the timeout (< 0: none).  Called with the
   lock, and returns with it.  In a simulation it never waits.  `receives`: see pp_work().  PP_ERR_STATE: the context
   ends, and the caller must leave it. */
pp_status_t pp_help_until(pp_ctx_t *ctx, bool (*over)(const void *arg), const void *arg,
                          int64_t timeout_us, const pp_handle_t *receives);
/* The `over` of a thread that waits for a handle's request.  If the wait takes long, the other contexts of the process
   are told.  pp_help_until() recognises this function by its address. */
bool        pp_request_complete(const void *handle);
/* Moves data of a round in the node's memory, with the lock released, until no chunk is left; false: there was none.
   `receives`: the handle for whose result the caller waits, and into whose receive buffers it may write; NULL: none. */
bool        pp_work(pp_ctx_t *ctx, const pp_handle_t *receives);

/* A handle that has chunks of a round left to be moved; NULL: none has. */
pp_handle_t *pp_find_work(const pp_ctx_t *ctx);
/* Whether a handle would hold other ranks up if this rank left the library now. */
bool        pp_is_needed(const pp_ctx_t *ctx);

/* Polls, and publishes up to which ring it has looked.  Returns the number of events. */
int         pp_look(pp_ctx_t *ctx);

/* Gives another thread, or rank, a moment to go on with the round that it makes, and now and then looks whether it has
   died.  With the lock, which is released meanwhile. */
void        pp_make_way(pp_ctx_t *ctx);

/* An application thread is back.  How soon after it left decides which thread looks after bulk next time. */
void        pp_returned(pp_ctx_t *ctx);
/* The thread begins to attend; false: another one does already. */
bool        pp_arrive(pp_ctx_t *ctx);
/* Rings the progress thread if it would sleep beyond the alarm: it looks at the clock while the application computes. */
void        pp_wake_for_alarm(pp_ctx_t *ctx);
/* How long threads that sleep stay so, unless they are woken; 0: none sleeps. */
static inline uint64_t pp_asleep_until_ns(const pp_ctx_t *ctx)
{
    return ctx->thread_until_ns > ctx->caller_until_ns ? ctx->thread_until_ns : ctx->caller_until_ns;
}
/* Begins a call of the application: takes the lock, unless the context is unusable.  Until pp_unlock() the end of the
   context waits for the call. */
pp_status_t pp_lock(pp_ctx_t *ctx);
/* Ends a call of the application: releases the lock.  Where handles have deadlines or graces, rings as above.  Without a
   progress thread the other ranks are told here of an error that the call has latched. */
void        pp_unlock(pp_ctx_t *ctx);
/* Latches an error if a scope of this thread on a device could not be left (pp_cuda_leave()), and returns it; else PP_OK.
   The text has also that of `status`, if the call has failed, or of the context's error. */
pp_status_t pp_check_left(pp_ctx_t *ctx, pp_status_t status);
/* The thread goes away, from Start or another call, after the ranks to which it owes a wake-up (pp_mpi_defer) have had
   a moment to look by themselves.  From here on rings wake the progress thread.  That thread also looks after bulk
   under way, unless the application usually comes back at once. */
void        pp_leave(pp_ctx_t *ctx, bool after_start);
/* The same for a thread that has not attended, and by which elements are on their way from a device.  The progress thread,
   or the one that attends, looks for them, unless the application usually comes back at once from a Start. */
void        pp_leave_flight(pp_ctx_t *ctx, bool after_start);

/* Before a call that can wait.  PP_ERR_STATE: this thread holds a model. */
pp_status_t pp_check_holds_none(pp_ctx_t *ctx, const char *what);

/* The number of forks between the start of the program and this process. */
uint64_t    pp_fork_count(void);

/* PP_ERR_STATE if the context was freed, or this process is a forked child. */
pp_status_t pp_ctx_usable(pp_ctx_t *ctx);
/* PP_ERR_STATE: another thread has ended the context during the call.  Called with the lock. */
pp_status_t pp_ctx_ended(const pp_ctx_t *ctx);

/* open.c: the collective end of a context, after all ranks have sent their closing messages.  Called with the lock, and
   ends the call as pp_unlock() does.  PP_ERR_STATE: also if another thread ends the context. */
pp_status_t pp_ctx_close_mpi(pp_ctx_t *ctx);

#endif
