/*
 * context.h - a context: engine, transport, lock and progress thread of one rank.
 *
 * One lock a context.  Whoever holds it runs the engine: the progress thread, or an application thread
 * inside the library.  A waiting application thread *attends*: it polls and sleeps in place of the
 * progress thread, which then is not woken; so a balanced round costs no context switch, and an absent
 * rank is served by its thread.  Nobody holds the lock while asleep or while copying user memory of
 * more than a few pages.
 */
#ifndef PP_CONTEXT_H
#define PP_CONTEXT_H

#include "../coll/calls.h"
#include "../transport/pp_mpi.h"

#include <pthread.h>
#include <stdatomic.h>

/* How a simulated rank that shares memory waits; all NULL otherwise. */
typedef struct pp_actor_ops {
    void *owner;
    void (*announce)(void *owner, bool sleeps);   /* from here on it is to be woken */
    void (*park)(void *owner);       /* until it is woken, or told something */
    void (*pause)(void *owner);      /* for a moment */
    bool (*expired)(void *owner);    /* the call's own timeout is over, in virtual time */
} pp_actor_ops_t;

/* Where a result may be read without being copied; `elements` is NULL if it has to be. */
typedef struct pp_view_out {
    const void *elements;
    void       *keeper;              /* keeps the memory mapped: see pp_unalloc() */
} pp_view_out_t;

/* What applications do with handles of a kind.  With the context's lock, which is released meanwhile where a copy
   takes long. */
typedef struct pp_face {
    _Alignas(64) pp_status_t (*start)(pp_ctx_t *, pp_handle_t *);
    /* Without a request: makes one of what was not given yet.  PP_PENDING: there is nothing. */
    pp_status_t (*give)(pp_handle_t *);
    /* A Wait ends without a result. */
    void        (*give_up)(pp_handle_t *);
    /* Collects the request.  `result`, `view`: may be NULL. */
    pp_status_t (*hand_out)(pp_ctx_t *, pp_handle_t *, pp_result_t *result, pp_view_out_t *view);
    /* What is complete is handed out at once: no message helps it along, and the progress thread is woken for those
       that come. */
    bool        (*at_once)(const pp_handle_t *);
    /* A Wait has ended by its timeout: the application gets its buffers back. */
    pp_status_t (*timed_out)(pp_ctx_t *, pp_handle_t *);
    /* A result that was not given yet, without a request; PP_PENDING: there is none. */
    pp_status_t (*more)(pp_ctx_t *, pp_handle_t *, pp_result_t *result);
    /* The application is back with a handle whose last result it may still read in place. */
    void        (*end_view)(pp_handle_t *);
} pp_face_t;

extern const pp_face_t pp_allreduce_face;

struct pp_ctx {
    /* First what every call looks at: a rank that comes late finds little of its memory in the caches. */
    pthread_mutex_t lock;
    bool            freed, abandoned;
    bool            has_thread;
    atomic_bool     attended;        /* an application thread polls */
    uint64_t        forks;           /* pp_fork_count() at creation */
    uint64_t        thread_until_ns; /* the progress thread sleeps no longer; 0: it does not sleep */
    pp_mpi_t       *mpi;             /* NULL in a simulation */
    pp_engine_t     engine;
    pp_team_t       team;
    pp_calls_t      calls;
    pp_node_t       node;            /* used if engine.node */
    const pp_nodes_t *nodes;         /* kept by the transport, or the simulation; NULL: one node, or each rank alone */
    pp_actor_ops_t  actor;
    bool            crowded;         /* more ranks than cores: waiters give the core away at once */

    pthread_t       thread;
    bool            stop;            /* under the lock */
    pthread_cond_t  unattended;      /* an application thread has left */
    uint64_t        usual_wait_us;   /* running mean */
    uint32_t        looked;          /* the doorbell's sequence before the last poll */
    uint64_t        left_us;         /* when an application thread was last here, and where it left: */
    bool            left_after_start;
    bool            returns_soon[2]; /* its habit, by left_after_start */
    uint64_t        thread_cpu_ns;   /* of a thread that has ended */
    uint64_t        sleeps;
    uint32_t        vain_looks;          /* of calls that do not sleep */
    uint64_t        looked_after_us;     /* when a thread that slept last did so */
    uint64_t        unheard;         /* sleeps that ended by timeout although a ring had come: defects */

    uint32_t        long_waits;      /* threads that wait long for a request here; under the lock of live.c */
    uint64_t        call_began_ns;   /* the collective call in progress */
    bool            order_checked;   /* whether all ranks are in the same one */
    bool            path_forced;     /* by the application: nothing to be told about it */
    bool            told_apart, told_refused;
    char            note[320];       /* what it was told last */
    char            patience_note[400];
    struct pp_ctx  *next;            /* live.h */
};

/* Prepares a context on a transport that exists; takes nothing over on failure. */
pp_status_t pp_ctx_setup(pp_ctx_t *ctx, pp_transport_t *transport, const pp_ctx_config_t *config);
void        pp_ctx_teardown(pp_ctx_t *ctx);

pp_status_t pp_thread_start(pp_ctx_t *ctx);
void        pp_thread_stop(pp_ctx_t *ctx);
uint64_t    pp_thread_cpu_ns(const pp_ctx_t *ctx);

/* Runs, works and sleeps until over(arg), an engine error, or the timeout (< 0: none).  Called with the lock
   held, returns with it held.  In a simulation it never waits.  `receives`: see pp_work(). */
pp_status_t pp_help_until(pp_ctx_t *ctx, bool (*over)(const void *arg), const void *arg,
                          int64_t timeout_us, const pp_handle_t *receives);
/* What a thread waits for that waits for a request (the handle): the other contexts of the process hear of it if that
   takes long.  Recognised by its address, so there is one of it. */
bool        pp_request_complete(const void *handle);
/* Moves data of a round in the node's memory, as long as there is a part left to be moved, with the lock
   released; false: there was none.  `receives`: the handle for whose result the caller waits, and into whose receive
   buffers it may write it; NULL: none. */
bool        pp_work(pp_ctx_t *ctx, const pp_handle_t *receives);

/* A handle that has chunks of a round left to be moved; NULL: none has. */
pp_handle_t *pp_find_work(const pp_ctx_t *ctx);
/* Whether some handle would hold others up if this rank left the library now. */
bool        pp_is_needed(const pp_ctx_t *ctx);

/* Polls, and lets neighbours see up to which ring.  Returns how many events there were. */
int         pp_look(pp_ctx_t *ctx);

/* Gives another thread, or rank, a moment to go on with a round that it makes, and finds out if it cannot.  With the
   lock, which is released meanwhile. */
void        pp_make_way(pp_ctx_t *ctx);

/* An application thread is back: whether soon after it left decides who looks after bulk next time. */
void        pp_returned(pp_ctx_t *ctx);
/* It begins to attend; false: there is no need, another one does. */
bool        pp_arrive(pp_ctx_t *ctx);
/* It goes, from Start or another call: when the ranks whose wake-up it owes (pp_mpi_defer) have had a
   moment to look by themselves.  From here on rings wake the progress thread.  Bulk under way is left to
   that thread, too, unless the application usually comes back at once. */
void        pp_leave(pp_ctx_t *ctx, bool after_start);

/* Number of forks between the start of the program and this process. */
uint64_t    pp_fork_count(void);

/* The usual beginning of an API call: not freed, not forked, no failure latched. */
pp_status_t pp_ctx_usable(pp_ctx_t *ctx);

/* open.c: the collective end of a context, after everybody has closed. */
pp_status_t pp_ctx_close_mpi(pp_ctx_t *ctx);

#endif
