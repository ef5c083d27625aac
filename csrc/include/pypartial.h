/*
 * pypartial.h - the public header of the C core.  The simulation has a header of its own, pypartial_sim.h.
 *
 * The core runs *partial collectives*: rounds that a subset of the ranks can trigger and that complete on every
 * rank.  All types are opaque, and there is no mpi.h: the caller passes a communicator as the address of an MPI_Comm.
 * pypartial/_build.py hands everything between the two CDEF marks to cffi, so the interface is written down once.
 *
 * Conventions
 *   - A function that can fail returns a pp_status_t: 0 done, > 0 in progress or done with a note, < 0 an error.
 *     After an error pp_error_text() describes it, with the wrong value, in the thread that made the call.
 *   - "Local": the function does not wait for other ranks, but may wait a moment for the context's lock.
 *     "Collective": all ranks of the context make the call, in the same order among the collective calls.
 *   - A collective call is two functions: x_begin() starts it and returns, pp_call_wait() finishes the call that was
 *     begun.  A context has one collective call in progress at a time.  Meanwhile this rank has *left* its handles
 *     (design: "Leaving"): it serves the rounds of the other ranks.
 *   - A function that takes a context, or a handle, fails by PP_ERR_STATE after the context was freed and in a forked
 *     child.  Once the context has failed, every later call returns its first error.  The descriptions below do not
 *     repeat these errors, nor PP_ERR_MEMORY.
 *   - Output arguments come last; the function sets them to NULL or 0 on entry.  A buffer stays the caller's
 *     unless the description says otherwise.  A `const char *` result belongs to the library.
 *   - Counts are elements unless a name says _bytes; names of times end in _us or _ns.
 *   - Threads may use different contexts and different handles at the same time, and one handle one at a time.
 *     No function touches Python or needs the GIL.
 */
#ifndef PYPARTIAL_H
#define PYPARTIAL_H

#include <stddef.h>
#include <stdint.h>

/* CDEF BEGIN */

/* ---- status codes; each error has one Python exception (pypartial/errors.py) ------------------ */
typedef enum pp_status {
    PP_OK = 0,
    PP_PENDING = 1,            /* not finished; call again */
    PP_NOTE = 2,               /* done, and pp_ctx_log_note() has a text for the log */
    PP_ERR_ARGUMENT = -1,      /* this rank passed a wrong value: ArgumentError */
    PP_ERR_STATE = -2,         /* the call is not allowed now (order, freed, forked): Error */
    PP_ERR_MISMATCH = -3,      /* the ranks disagree, or another rank passed a wrong value: MismatchError */
    PP_ERR_THREAD_LEVEL = -4,  /* MPI was initialised with too low a thread level: ThreadLevelError */
    PP_ERR_PEER_FAILED = -5,   /* another rank died or gave the context up: PeerFailedError */
    PP_ERR_MEMORY = -6,        /* out of memory: MemoryError */
    PP_ERR_MPI = -7,           /* the MPI library reported an error: Error */
    PP_ERR_INTERNAL = -8       /* a defect of the library: Error */
} pp_status_t;

/* Local.  The text of the last error that a call in this thread returned; "" if there was none, never NULL.  Valid
   until a call in this thread fails. */
const char *pp_error_text(void);
/* Local.  The version of the package; never NULL. */
const char *pp_version(void);

/* ---- element types and operations ------------------------------------------------------------- */

/* The functions of this section are local, need no context and never block. */

typedef enum pp_type {
    PP_INT8, PP_INT16, PP_INT32, PP_INT64,
    PP_UINT8, PP_UINT16, PP_UINT32, PP_UINT64,
    PP_FLOAT16, PP_BFLOAT16, PP_FLOAT32, PP_FLOAT64, PP_LONGDOUBLE,
    PP_COMPLEX64, PP_COMPLEX128, PP_CLONGDOUBLE,
    PP_BOOL,
    PP_TYPE_COUNT
} pp_type_t;

typedef enum pp_op {
    PP_SUM, PP_PROD, PP_MIN, PP_MAX,
    PP_LAND, PP_LOR, PP_LXOR,
    PP_BAND, PP_BOR, PP_BXOR,
    PP_OP_COUNT
} pp_op_t;

/* Bytes of an element in the caller's buffers, and in accumulators and messages; 0: unknown type. */
size_t      pp_type_bytes(int32_t type);
size_t      pp_accumulator_bytes(int32_t type);
/* "unknown" for an unknown type or operation. */
const char *pp_type_name(int32_t type);
const char *pp_op_name(int32_t op);
/* 1 if MPI defines the operation on the type (complex numbers have no order, floats no bit operations); else 0. */
int32_t     pp_op_supports(int32_t op, int32_t type);
/* Reduces two buffers of `count` elements: inout[i] = left[i] (op) right[i], where inout is the left operand if
   `inout_is_left`, else the right one.  PP_ERR_ARGUMENT: unknown type or operation, an operation that MPI does not
   define on the type, a NULL or misaligned buffer, or buffers that overlap. */
pp_status_t pp_reduce_local(int32_t op, int32_t type, const void *in, void *inout, size_t count,
                            int32_t inout_is_left);

/* ---- policies, delivery, causes ------------------------------------------------------------- */
typedef enum pp_policy {
    PP_FIRST_OF,               /* the first of `policy_k` drawn ranks to wait triggers; Majority is k = 1, Solo k = P */
    PP_QUORUM                  /* a round begins when `policy_k` ranks are ready; Full is k = P */
} pp_policy_t;
int32_t     pp_policy_number(const char *name);        /* "first_of", "quorum"; -1: there is none of this name */
const char *pp_policy_name(int32_t policy);            /* NULL: there is none of this number */

/* What a late request is given: the newest round, the sum of the rounds not given yet, the oldest not given yet. */
typedef enum pp_deliver { PP_LATEST, PP_DELIVER_SUM, PP_EACH, PP_DELIVER_COUNT } pp_deliver_t;

/* Why a round was made, weakest first.  A round's cause is the strongest that any rank gives it. */
typedef enum pp_cause {
    PP_CAUSE_POLICY, PP_CAUSE_DEPARTED, PP_CAUSE_DEADLINE, PP_CAUSE_FLUSH
} pp_cause_t;

/* What the sum of a round is divided by: nothing, the ranks, its contributors, its contributions. */
typedef enum pp_average {
    PP_AVERAGE_NONE, PP_AVERAGE_SIZE, PP_AVERAGE_CONTRIBUTORS, PP_AVERAGE_CONTRIBUTIONS
} pp_average_t;

/* The algorithm of a round's messages.  Numbers from 1 on are places in the table of csrc/algo/table.c. */
enum {
    PP_SHARED_MEMORY = -1,     /* no messages: the ranks share memory */
    PP_ALGORITHM_AUTO = 0,     /* the library chooses when the handle is made */
    PP_ALGORITHM_FIRST = 1
};
/* Local, like the next two.  The highest number of an algorithm. */
int32_t     pp_algorithm_count(void);
/* The name as users write it, also of PP_SHARED_MEMORY and PP_ALGORITHM_AUTO; NULL: no algorithm has this number. */
const char *pp_algorithm_name(int32_t algorithm);
/* 1: the algorithm cuts the vector into one chunk a rank, so its steps grow with the number of ranks. */
int32_t     pp_algorithm_chunk_a_rank(int32_t algorithm);

/* ---- which algorithm AUTO becomes --------------------------------------------------------------- */
typedef enum pp_link_kind {
    PP_LINK_NODE,              /* all ranks are on one node */
    PP_LINK_NETWORK,           /* messages travel between nodes */
    PP_LINK_KINDS
} pp_link_kind_t;

/* Parameters of the cost model, after LogGP: the time of the longest chain of messages of an allreduce. */
typedef struct pp_cost {
    double overhead_us;        /* of a round, with any algorithm */
    double copy_ns;            /* of a byte of the vector, with any algorithm */
    double latency_us;         /* of a message of any length */
    double byte_ns;            /* of a byte sent */
    double reduce_ns;          /* of a byte reduced */
} pp_cost_t;

typedef struct pp_switch {
    uint64_t bytes;            /* vectors of this size and larger take `algorithm`, up to the next switch point */
    int32_t  algorithm;
    int32_t  unused;
} pp_switch_t;

enum { PP_SWITCHES_MAX = 8 };

/* One row of a tuning table: what was measured for a number of ranks on a kind of link. */
typedef struct pp_tuned {
    int32_t     ranks;
    int32_t     link;          /* pp_link_kind_t */
    pp_cost_t   cost;          /* fitted to the measured times */
    int32_t     switch_count;  /* 0: the model decides */
    int32_t     unused;
    pp_switch_t switches[8];   /* ascending; the first is at 0 bytes */
} pp_tuned_t;

/* Why a handle has its algorithm. */
typedef enum pp_reason {
    PP_REASON_ASKED,           /* the caller named it */
    PP_REASON_SHARED_MEMORY,   /* the ranks share memory and need none */
    PP_REASON_DEFAULTS,        /* the cheapest by the model, with parameters of another machine */
    PP_REASON_MODEL,           /* the cheapest by the model, measured on another number of ranks */
    PP_REASON_MEASURED,        /* the fastest when it was measured on this number of ranks */
    PP_REASON_COUNT
} pp_reason_t;

typedef struct pp_choice {
    int32_t algorithm;
    int32_t reason;            /* pp_reason_t */
} pp_choice_t;

/* Local, without a context, as the next two.  Chooses the algorithm for `count` elements of `element_bytes` on `ranks`
   ranks.  If a row of `tuned` is for exactly this number of ranks and has switch points, they decide; else the model
   does, with the parameters of the row nearest in ranks, or with the defaults if no row has this link.
   PP_ERR_ARGUMENT: ranks < 1, or an unknown link. */
pp_status_t pp_choose(const pp_tuned_t *tuned, size_t tuned_count, size_t count, size_t element_bytes,
                      int32_t ranks, int32_t link, pp_choice_t *choice);
/* The time of an allreduce by the model; it is linear in the parameters.  PP_ERR_ARGUMENT: ranks < 1, or an unknown
   algorithm. */
pp_status_t pp_model_cost(const pp_cost_t *cost, int32_t algorithm, size_t count, size_t element_bytes,
                          int32_t ranks, double *us);
/* The parameters that the model has without a tuning table.  PP_ERR_ARGUMENT: an unknown link. */
pp_status_t pp_model_defaults(int32_t link, pp_cost_t *cost);

/* ---- context ---------------------------------------------------------------------------------- */
typedef struct pp_ctx  pp_ctx_t;    /* one rank's view of a communicator: engine, transport, progress thread */
typedef struct pp_handle pp_handle_t;   /* a persistent partial collective of a context: a "handle" */

/* Which thread serves the other ranks' rounds while the application computes: the library's own, or none until the
   application's next call. */
typedef enum pp_progress { PP_PROGRESS_THREAD, PP_PROGRESS_CALLER } pp_progress_t;

typedef enum pp_path {
    PP_PATH_AUTO,              /* shared memory on a node, messages between nodes */
    PP_PATH_MPI                /* point-to-point messages between all ranks */
} pp_path_t;

/* "Checked": opening a context fails on every rank unless the value is the same on all. */
typedef struct pp_ctx_config {
    uint64_t seed;             /* of the draws; checked */
    uint64_t chunk_bytes;      /* largest single MPI transfer; 0: the default, 1 GiB; checked */
    int32_t  window;           /* rounds of a handle in flight at once, at least 1; checked */
    int32_t  progress;         /* pp_progress_t */
    int32_t  path;             /* pp_path_t; checked */
    int32_t  node_ranks;       /* k > 0: take each k ranks of a node for a node of their own, so that one machine
                                  tests several nodes; 0: no; checked */
    int32_t  trace;            /* a number that the name of the folder for traces has; 0: none is named; checked */
    int64_t  patience_ns;      /* how long this rank may hold a round up; -1: automatic; 0, INT64_MAX: for ever */
    uint64_t backlog_bytes;    /* that PP_EACH queues for this rank while it has left by patience; 0: automatic */
    uint64_t ipc_from;         /* for pp_ctx_ipc_from(); rank 0 chooses for all ranks, so only its value matters */
} pp_ctx_config_t;

/*
 * Collective, blocking.  Opens a context on a duplicate of the communicator whose MPI_Comm lies at `comm`.  The call
 * keeps neither `comm` nor `config`.  All ranks succeed, or all fail.
 *
 * `complaint`: NULL, or what this rank's caller found wrong with its own arguments.  Then no value in `config` is
 * judged, and every rank returns an error that quotes the complaint; `comm` and `config` must be readable all the same.
 *
 * Errors: PP_ERR_STATE (MPI is not initialised, or is finalised), PP_ERR_ARGUMENT, PP_ERR_MISMATCH,
 * PP_ERR_THREAD_LEVEL (PP_PROGRESS_THREAD without MPI_THREAD_MULTIPLE), PP_ERR_PEER_FAILED, PP_ERR_MPI.
 */
pp_status_t pp_ctx_open(const void *comm, const pp_ctx_config_t *config, const char *complaint,
                        pp_ctx_t **ctx);

/* Local.  Sets the tuning table by which PP_ALGORITHM_AUTO is decided in the handles made from now on.  The rows are
   copied.  Rank 0 chooses for all ranks, so only its rows matter.  PP_ERR_ARGUMENT: a row with a wrong value. */
pp_status_t pp_ctx_tune(pp_ctx_t *ctx, const pp_tuned_t *tuned, size_t tuned_count);
/* Local.  Rank 0's `ipc_from`, for choices that all ranks make alike. */
uint64_t    pp_ctx_ipc_from(const pp_ctx_t *ctx);
/* Local.  The kind of link between the context's ranks: pp_link_kind_t. */
int32_t     pp_ctx_link(const pp_ctx_t *ctx);

/* Collective; begins the release of the context.  pp_call_wait() fails by PP_ERR_STATE on every rank if some rank still
   has a live handle; the context then goes on.  After it has returned PP_OK only pp_ctx_release() may be called; calls
   of other threads that have begun before fail by PP_ERR_STATE. */
pp_status_t pp_ctx_free_begin(pp_ctx_t *ctx);

/* Local; for leaving because of an exception.  Latches an error of this text, which every later call returns, and stops
   the progress thread.  The others fail by PP_ERR_PEER_FAILED when they have completed what is complete here. */
void        pp_ctx_abandon(pp_ctx_t *ctx, const char *why);

/* Local.  Frees a context whose collective release has succeeded; does nothing with any other.  NULL is fine.  No other
   thread may be in a call of the context, or begin one: pp_question_close(), too. */
void        pp_ctx_release(pp_ctx_t *ctx);

/* Blocking: finishes the collective call that was begun.  Returns PP_OK, PP_PENDING after `timeout_us` (< 0: no limit;
   the call goes on, wait again), or the call's error.  A call that failed by PP_ERR_MISMATCH failed on every rank.
   PP_ERR_STATE: no call was begun, or this rank is between pp_away_begin() and pp_away_end(). */
pp_status_t pp_call_wait(pp_ctx_t *ctx, int64_t timeout_us);

int32_t     pp_ctx_rank(const pp_ctx_t *ctx);
int32_t     pp_ctx_size(const pp_ctx_t *ctx);

/* Counts are of this rank, since its context was opened. */
typedef struct pp_stats {
    uint64_t rounds;                /* completed here, over all handles */
    uint64_t shared_rounds;         /* of those, made in shared memory */
    uint64_t shared_led;            /* of those, claimed and begun by this rank */
    uint64_t messages_sent;         /* small messages: headers and control */
    uint64_t messages_received;
    uint64_t bytes_sent;            /* headers included */
    uint64_t bulk_sent;             /* payloads that travelled apart from their header */
    uint64_t rings;                 /* futex wake-ups of threads of this rank and others */
    uint64_t sleeps;                /* times that a thread of this rank went to sleep */
    uint64_t unheard;               /* sleeps that timed out although a neighbour had rung: a defect if not 0 */
    uint64_t progress_cpu_ns;       /* CPU time of the progress thread */
    uint64_t buffer_bytes;          /* of pending slots, rounds and results, without memory that ranks share */
    uint64_t buffer_bytes_used;     /* of it, what is in use now; the rest is kept for the next rounds */
    uint64_t staged_bytes;          /* copied between devices and pinned memory of the host, or queued to be */
    uint64_t bounced_bytes;         /* of them, by a bounce buffer: not where rounds read and write */
    uint64_t ipc_bytes;             /* the same, between buffers and memory of devices that ranks share */
    uint64_t direct_bytes;          /* given to MPI, to send or to receive, at addresses of devices */
    uint64_t pooled_bytes;          /* memory of devices, and pinned memory, that freed handles have left for others */
    uint64_t device_rounds;         /* rounds that this rank had a device reduce */
    uint64_t device_wait_ns;        /* that threads have waited for copies before a collective call, or away, began */
    int32_t  neighbours;            /* ranks reachable by doorbell, this rank included */
    int32_t  shares_memory;         /* 1: the ranks of each node make their part of a round in shared memory */
    int32_t  thread_level;          /* MPI_Query_thread: 0 single .. 3 multiple; -1 without MPI */
} pp_stats_t;

/* Local.  After the context was freed, all fields but thread_level (-1) are 0. */
void        pp_ctx_stats(pp_ctx_t *ctx, pp_stats_t *stats);

/* Local.  A text that the application should log: why rounds are made of messages although their ranks are on one node.
   One rank of those concerned gets it, once.  NULL: nothing to log; else valid until the next call. */
const char *pp_ctx_note(pp_ctx_t *ctx);

/* Local.  Allocates zeroed memory, aligned to a page, that the ranks of the node share; ordinary memory, aligned to 64
   bytes, if they share none.  Rounds read and write buffers in shared memory in place, without a copy; such a buffer
   belongs to the library from Start to the end of its Wait, as with MPI.  *keeper owns the memory: release it by
   pp_unalloc(), at any time, in any thread, also after the context.  pp_unalloc(NULL) is fine.  PP_ERR_MEMORY: there
   is no shared memory left. */
pp_status_t pp_ctx_alloc(pp_ctx_t *ctx, size_t bytes, void **memory, void **keeper);
void        pp_unalloc(void *keeper);

/* ---- partial allreduce ------------------------------------------------------------------------ */

/* A piece of the application's memory.  A handle may cover several pieces; it reduces them as one vector. */
typedef struct pp_piece {
    const void *send;          /* NULL: in place, Start reads `recv` */
    void       *recv;
    size_t      count;         /* elements */
} pp_piece_t;

/* The most segments that a vector is cut into; each has its own lane of scratch memory. */
enum { PP_LANES_MAX = 4 };

/* How elements of buffers on devices get from rank to rank. */
typedef enum pp_device_path {
    PP_DEVICE_AUTO,            /* PP_DEVICE_STAGED */
    PP_DEVICE_STAGED,          /* by memory of the host; some ranks may have their buffers there */
    PP_DEVICE_IPC,             /* by memory of devices that the ranks of the node share; if that is not possible, as
                                  PP_DEVICE_STAGED: see pp_device_path() */
    PP_DEVICE_DIRECT           /* by messages of elements in memory of devices: MPI gets addresses of devices.  Groups:
                                  with PP_BACKEND_COMM only, see pp_preduce_average().  If that is not possible, as
                                  PP_DEVICE_STAGED */
} pp_device_path_t;

/* The kind of memory that the application's buffers lie in. */
typedef enum pp_memory_kind {
    PP_MEMORY_HOST
} pp_memory_kind_t;

typedef struct pp_allreduce_config {
    const pp_piece_t *pieces;  /* the list is copied; the buffers must live until the handle is freed */
    size_t   piece_count;
    int32_t  type;             /* pp_type_t */
    int32_t  op;               /* pp_op_t */
    int32_t  policy;           /* pp_policy_t */
    int32_t  policy_k;         /* 1..P */
    int32_t  deliver;          /* pp_deliver_t */
    int32_t  max_lag;          /* rounds that a rank may miss, less than window; < 0: no bound (PP_LATEST only) */
    int32_t  average;          /* pp_average_t */
    int32_t  algorithm;        /* its number, or PP_ALGORITHM_AUTO, which rank 0 decides */
    int32_t  segments;         /* 1..PP_LANES_MAX parts of the vector, each reduced by itself; 0: by its size */
    int64_t  deadline_ns;      /* a rank that has waited this long triggers the round; 0: no deadline */
    int64_t  grace_ns;         /* from the trigger to the taking of contributions; -1: by the vector's size */
    int32_t  memory;           /* pp_memory_kind_t of the pieces' buffers, if they are the host's */
    int32_t  device;           /* 0: they are the host's; else 1 + the number of the CUDA device in whose memory they
                                  are; the ranks compare whether it is 0, unless device_path is PP_DEVICE_STAGED */
    int32_t  device_path;      /* pp_device_path_t; the ranks compare it */
    const char *no_path;       /* why this rank cannot take that path, as the caller knows; read during the call; NULL: it
                                  knows nothing */
    const char *policy_text;   /* the policy as the application wrote it, for texts; read during the call;
                                  NULL: the library writes it from policy and policy_k */
} pp_allreduce_config_t;

/*
 * Collective; begins the creation of a handle.  The ranks compare `config`, apart from addresses and policy_text; a
 * difference is PP_ERR_MISMATCH on all ranks, from pp_call_wait().
 *
 * `complaint`: NULL, or what this rank's caller found wrong with its own arguments.  `config` may then be NULL.  The
 * rank takes part in the agreement, and pp_call_wait() fails with a text that quotes the complaint: by PP_ERR_ARGUMENT
 * on ranks that complained, by PP_ERR_MISMATCH on the others.  A wrong value that this function finds itself counts as
 * such a complaint; so does a lack of memory, and an error of a device: this rank gets PP_ERR_MEMORY or PP_ERR_STATE
 * then.
 *
 * *coll may be used after pp_call_wait() has returned PP_OK.  If that call fails, the context has released the handle.
 */
pp_status_t pp_allreduce_init_begin(pp_ctx_t *ctx, const pp_allreduce_config_t *config,
                                    const char *complaint, pp_handle_t **coll);

enum { PP_CONTRIBUTORS_MAX = 1024, PP_CONTRIBUTORS_WORDS = 16 };

/* What a request completed with (design: "Status").  The fields from `round` to `contributors` describe `round` and are
   identical on every rank; those from `first` on are this rank's own. */
typedef struct pp_result {
    uint64_t round;            /* newest round delivered */
    uint64_t contributions;    /* Starts merged into it */
    int32_t  active;           /* ranks that were ready when they took their slot */
    int32_t  cause;            /* pp_cause_t */
    int32_t  initiator;        /* lowest rank that triggered; -1: none */
    int32_t  contributors_known;  /* 0 above PP_CONTRIBUTORS_MAX ranks: `contributors` is empty then */
    uint64_t contributors[16]; /* bit r % 64 of word r / 64: rank r had data in the round */
    uint64_t first;            /* oldest round delivered (PP_DELIVER_SUM) */
    uint64_t missed;           /* rounds completed between the previous request's completion and this Start */
    uint64_t staleness;        /* of this rank's oldest contribution in `round` */
    int32_t  included;         /* 1: this call's contribution is in a round <= `round` */
    int32_t  external;         /* 1: a message activated the round here */
} pp_result_t;

/* Local.  Copies the send pieces, adds them to what is pending, and triggers the round if this rank may.  A round may
   read send pieces in memory from pp_ctx_alloc() in place, until the end of the Wait.  PP_OK or PP_NOTE.
   PP_ERR_STATE: the last request was not collected (but for pp_timed_out()), or a collective call is in progress. */
pp_status_t pp_start(pp_handle_t *coll);

/* Blocking: collects the request.  PP_OK: the result is in the `recv` pieces, and *result is filled (`result` may be
   NULL).  Until then the calling thread helps the engine along and sleeps, for at most `timeout_us` (< 0: no limit).
   PP_PENDING: the time is over; the request stays as it is, but parts of a result may be in the `recv` pieces.
   Without a request it gives what was not given yet.  PP_ERR_STATE: nothing is there to give, or this rank is away.
   pp_test(): never sleeps.  pp_await(): does not collect; PP_OK: the request is complete, or there is none. */
pp_status_t pp_wait(pp_handle_t *coll, int64_t timeout_us, pp_result_t *result);
pp_status_t pp_await(pp_handle_t *coll, int64_t timeout_us);
pp_status_t pp_test(pp_handle_t *coll, pp_result_t *result);
/* Local; PP_EACH only.  Gives the next complete round that was not given yet; PP_PENDING: there is none.
   PP_ERR_STATE: a request is not collected, or the handle delivers otherwise. */
pp_status_t pp_more(pp_handle_t *handle, pp_result_t *result);
/* Local.  Says that the application's wait for the request has ended by its timeout.  From then on a Start may add to
   what is pending, and the send pieces belong to the application again.  The request stays as it is. */
pp_status_t pp_timed_out(pp_handle_t *handle);
/* Local.  PP_PENDING: a request was started and not collected, with PP_BACKEND_COMM not delivered, as is seen after an
   interrupted call; else PP_OK. */
pp_status_t pp_is_outstanding(pp_handle_t *handle);
/* pp_wait() that does not copy a result which lies in memory that the ranks of the node share.  On PP_OK *elements
   points at it, all pieces one after the other.  It may be read until the handle's next call.  The memory stays
   mapped, with other contents, until pp_unalloc(*keeper).  *elements is NULL if the result is in the `recv` pieces, as
   after pp_wait(). */
pp_status_t pp_wait_view(pp_handle_t *coll, int64_t timeout_us, pp_result_t *result, const void **elements,
                         void **keeper);
/* pp_wait() for PP_SLICE_US without a result: a call with one argument costs the least. */
enum { PP_SLICE_US = 50000 };
pp_status_t pp_wait_slice(pp_handle_t *coll);

/* Collective; begins a last, synchronous round, which takes what is pending on any rank.  After pp_call_wait() has
   returned PP_OK, pp_collect() copies the result out.  The handle goes on.  PP_ERR_STATE: PP_EACH needs
   pp_drain_begin(). */
pp_status_t pp_flush_begin(pp_handle_t *coll);

/* PP_EACH only; begins one step of a drain.  After pp_call_wait() has returned PP_OK, pp_collect() gives one round,
   oldest first.  Repeat both until result.cause == PP_CAUSE_FLUSH: that round is the last.  All steps together are one
   collective call; ranks may take different numbers of steps.  PP_ERR_STATE: the handle delivers otherwise. */
pp_status_t pp_drain_begin(pp_handle_t *coll);
/* Local.  Copies the result of a Flush, or of a step of a drain, into the `recv` pieces, and fills *result (may be
   NULL).  PP_ERR_STATE: neither has finished. */
pp_status_t pp_collect(pp_handle_t *coll, pp_result_t *result);

/* Collective; begins the release of the handle: discards what is pending here, ends the handle's rounds and releases
   its buffers.  After pp_call_wait() has returned PP_OK the handle must not be used, and *discarded is the number of
   this rank's Starts that were pending, or that only the last round took, in which all ranks were freeing.
   `discarded` must live until then. */
pp_status_t pp_handle_free_begin(pp_handle_t *coll, uint64_t *discarded);

/* ---- groups: which ranks average with each other ----------------------------------------------- */

/* Which group a rank that asks for one gets is decided by a generator (docs/groups.md); they are numbered from 0.
   random      Ripples 4.1: the rank that asks, and others at random
   smart       Ripples 5: group buffers, global division, slow ranks filtered
   controller  Partial Reduce: ranks in the order in which they ask
   table       a table of phases; request k since the last flush, from 0, is phase k mod `phases`
   given       each request names its group, which begins when all members ask for the same one */
int32_t     pp_generator_number(const char *name);     /* -1: there is none of this name */
const char *pp_generator_name(int32_t generator);      /* NULL: there is none of this number */

typedef enum pp_weights {
    PP_WEIGHTS_CONSTANT,       /* equal shares */
    PP_WEIGHTS_CLOSEST,        /* Eq. 9 of Partial Reduce; the share of a missing version goes to the closest one */
    PP_WEIGHTS_INITIAL,        /* Eq. 9; the shares of missing versions go to the initial model */
    PP_WEIGHTS_COUNT
} pp_weights_t;

/* How the members of a group add up their vectors. */
typedef enum pp_backend {
    PP_BACKEND_AUTO,           /* NODE if all ranks share memory, else SCHEDULE */
    PP_BACKEND_NODE,           /* in the memory of the node */
    PP_BACKEND_SCHEDULE,       /* by messages between the members; rank 0 forms groups */
    PP_BACKEND_COMM,           /* the caller does it: pp_preduce_ran() */
    PP_BACKEND_COUNT
} pp_backend_t;

typedef struct pp_groups_plan {
    int32_t  generator;        /* pp_generator_number() */
    int32_t  ranks;
    int32_t  size;             /* RANDOM, SMART, CONTROLLER: ranks of a group, 2..ranks; ignored by the others */
    uint64_t seed;
    int32_t  reuse;            /* RANDOM: 1: a group that a rank is in already serves its request */
    int32_t  division;         /* SMART: 1: all idle ranks are divided into groups at once */
    int32_t  inter_intra;      /* SMART: 1: a division makes groups between nodes, and then one in each node */
    int32_t  c_thres;          /* SMART: a rank that is this many requests behind the asking one is left out */
    int32_t  foresight;        /* SMART: a rank is left out whose next request is further ahead than this, in hundredths
                                  of a mean computation, 0..100000; 0: no such filter */
    int32_t  history;          /* CONTROLLER: T, at least ceil((ranks - 1) / (size - 1)); 0: four times as much */
    int32_t  unfreeze;         /* SMART, CONTROLLER: 1: it connects ranks that the last groups leave unconnected */
    int32_t  phases;           /* TABLE */
    int32_t  weights;          /* pp_weights_t */
    int32_t  cache;            /* how many groups get a number under which their members keep a communicator, 0..4096 */
    double   alpha;            /* of Eq. 9, in [0, 1) */
    int32_t  plant;            /* 0; simulations: pp_groups_plant_t */
    int32_t  splits;           /* TABLE: 1: its groups have communicators (COMM), only those that have shrunk a number */
} pp_groups_plan_t;

/* Why a rank has left.  The number of PP_GROUPS_LEAVE is the reason + PP_GROUPS_CALL * the number of the collective call
   that the rank is in, from 1 on; 0: it is in none. */
enum { PP_GROUPS_CALL = 256 };
typedef enum pp_groups_left {
    PP_GROUPS_IN_CALL,         /* it is inside a collective call, until any rank has completed that call; or (0) it has
                                  left by patience */
    PP_GROUPS_FLUSHES,         /* it is inside Flush: when all ranks that are not out are, they average */
    PP_GROUPS_FREES,           /* it is inside Free: when all ranks that are not out are, the handle ends */
    PP_GROUPS_OUT              /* its script has ended: it goes along with a flush or an end, and gives nothing */
} pp_groups_left_t;

typedef enum pp_groups_event {
    PP_GROUPS_START,           /* the rank asks for a group; number: its iteration, 0 for one more than its last */
    PP_GROUPS_FINISH,          /* the rank has the result of a group; number: the group's */
    PP_GROUPS_LEAVE,           /* the rank has left: it is in no new group, but for that of a request that names it
                                  (TABLE, GIVEN), unless it flushes, frees or is out.  Again with another number: only
                                  the reason has changed */
    PP_GROUPS_BACK,            /* it is back, if it has left; an outstanding request asks anew */
    PP_GROUPS_COMPLETED,       /* the rank knows that some rank has completed so many collective calls (number): ranks that
                                  are inside one of them are back, although they may not have noticed yet */
    PP_GROUPS_ELSEWHERE,       /* the rank waits (1) for long for something else than a group, or does not any more (0) */
    PP_GROUPS_WAITS_LONG       /* the rank has waited long for its outstanding request: from now on ranks that are
                                  elsewhere give way (pp_groups_untangle()) */
} pp_groups_event_t;

typedef enum pp_groups_action_kind {
    PP_GROUPS_BEGIN,           /* the members of a group average their parts, with these weights */
    PP_GROUPS_COMPLETE,        /* the request of `rank` is complete, with group `serial` */
    PP_GROUPS_ALONE,           /* the request of `rank` is complete without a group */
    PP_GROUPS_FLUSH,           /* all members, which are the ranks that flush, average their parts with equal weights.
                                  Their outstanding requests are over, and they are back */
    PP_GROUPS_END,             /* all ranks free the handle */
    PP_GROUPS_DIFFER           /* `rank` and a higher `other` wait for different groups; a lower: they are in other calls */
} pp_groups_action_kind_t;

typedef struct pp_groups_action {
    int32_t  kind;             /* pp_groups_action_kind_t */
    int32_t  rank;             /* COMPLETE, ALONE, DIFFER */
    int32_t  other;            /* DIFFER */
    int32_t  kept;             /* BEGIN: the number under which the members keep a communicator, 0..cache - 1; -1: none,
                                  as always where a group has one member */
    uint64_t serial;           /* BEGIN, COMPLETE, FLUSH: groups and flushes are numbered from 1, in the order in which
                                  they are formed */
    /* BEGIN and FLUSH only, an entry a member: */
    int32_t         count;
    int32_t         fresh;         /* BEGIN: 1: no group had the number `kept` before */
    const int32_t  *members;       /* in ascending order */
    const uint64_t *iterations;
    const double   *weights;
    const int32_t  *goals;         /* BEGIN: 1: the member's request will be complete with this group */
    double          initial;       /* the weight of the initial model */
    uint64_t        newest;        /* the newest of the iterations */
} pp_groups_action_t;

/* ---- partial all-reduce ------------------------------------------------------------------------- */

typedef struct pp_preduce_config {
    const pp_piece_t *pieces;  /* `send` is NULL; the list is copied; the buffers must live until the handle is freed */
    size_t   piece_count;
    int32_t  type;             /* pp_type_t, of floating numbers */
    int32_t  backend;          /* pp_backend_t */
    int32_t  memory;           /* pp_memory_kind_t of the pieces' buffers */
    int32_t  device, device_path;    /* as in pp_allreduce_config_t, like the next one */
    const char *no_path;
    uint64_t stream;           /* with a device and PP_WEIGHTS_INITIAL: the initial model is there when what was queued
                                  here is done */
    pp_groups_plan_t plan;     /* `ranks` and `seed` are the context's */
    /* TABLE: by phase and rank, the next rank of the rank's group, the lowest after the highest; itself: it has none.
       Copied. */
    const int32_t *table;
    const char *generator_text;   /* the generator as the application wrote it, for texts; read during the call */
} pp_preduce_config_t;

/* Collective; begins the creation of a handle for P-Reduce.  The same rules as for pp_allreduce_init_begin().  Where
   weights are PP_WEIGHTS_INITIAL, the contents of the pieces are the initial model.  PP_ERR_ARGUMENT, by pp_call_wait():
   PP_BACKEND_NODE where ranks do not all share memory, PP_BACKEND_COMM in a simulation, more ranks than notices can
   list.  Where the memory of the node has no room for the handle, its groups are made of messages (pp_ctx_note()). */
pp_status_t pp_preduce_init_begin(pp_ctx_t *ctx, const pp_preduce_config_t *config, const char *complaint,
                                  pp_handle_t **handle);

/* Local.  pp_start() with arguments: `iteration` exceeds that of the last request (0: one more); GIVEN: the members of
   the group, ascending, this rank among them.  pp_start() passes 0 and no members.  PP_ERR_ARGUMENT: a wrong value;
   nothing was started. */
pp_status_t pp_preduce_start(pp_handle_t *handle, uint64_t iteration, const int32_t *members, int32_t count);

/* What a request of P-Reduce completed with. */
typedef struct pp_group_result {
    uint64_t       round;      /* serial number of the group; 0: this rank was alone */
    uint64_t       iteration;  /* with weights by iteration the newest of the members', else this rank's own */
    int32_t        count;
    int32_t        runs;       /* PP_BACKEND_COMM: 1: the request is not complete: the caller is to run this group */
    int32_t        kept;       /* PP_BACKEND_COMM: the number under which a communicator is kept; -1: none */
    int32_t        fresh;      /* PP_BACKEND_COMM: 1: no group had the number `kept` before */
    const int32_t *members;    /* ascending */
    const double  *weights;
    double         initial;    /* the weight of the initial model */
} pp_group_result_t;

/* Local.  Describes what the last pp_wait(), pp_test() or pp_collect() that returned PP_OK gave.  What it points to lives
   until the handle's next call.  PP_ERR_STATE: there was none. */
pp_status_t pp_preduce_result(pp_handle_t *handle, pp_group_result_t *result);
/* Local; PP_BACKEND_COMM only, after pp_wait() has returned PP_OK with result.runs: the caller has run the group.  The
   request goes on: wait again. */
pp_status_t pp_preduce_ran(pp_handle_t *handle);
/* Local; PP_BACKEND_COMM with buffers on a device only.  The memory of the host that stands for the buffers: it has
   what Start or Flush has copied off the device, and with PP_WEIGHTS_INITIAL the initial model until the first Start.
   It stays until pp_preduce_deliver(), or the next Start, Flush or Free.  PP_ERR_STATE: nothing has come. */
pp_status_t pp_preduce_host(pp_handle_t *handle, void **elements);
/* Local; PP_BACKEND_COMM only.  The caller has written a result to the buffers; to those on a device this queues a copy
   of that memory, and if it fails, so does the context.  The request is over; before, pp_wait() gives the same again. */
pp_status_t pp_preduce_deliver(pp_handle_t *handle);
/* Blocking; PP_BACKEND_COMM with PP_DEVICE_DIRECT only, instead of pp_preduce_host(): the model stays on its device, and
   becomes the average of group `round`, by MPI_Allreduce on the members' communicator, whose address is `comm`.  A member
   gives `weight` times its model plus `initial` times its initial model.  Their sum is divided by `divide_by`.
   PP_ERR_MPI: MPI has failed, and the model is as before.  If the device fails, so does the context.  PP_ERR_STATE: also
   as for pp_preduce_host(), or the handle has another path. */
pp_status_t pp_preduce_average(pp_handle_t *handle, const void *comm, uint64_t round, double weight, double initial,
                               uint64_t divide_by);
/* Local.  *round: of which group pp_preduce_average() has made the average last; 0: of none. */
pp_status_t pp_preduce_averaged(pp_handle_t *handle, uint64_t *round);
/* Local.  What AUTO became: pp_backend_t. */
int32_t     pp_preduce_backend(const pp_handle_t *handle);
/* Local.  Fills `node_of` with the node of each rank, numbered from 0 in the order of their lowest ranks. */
pp_status_t pp_ctx_nodes(pp_ctx_t *ctx, int32_t *node_of);
/* Local.  The static table (Ripples 4.2) in the form of pp_preduce_config_t.table: four phases of nodes * per_node
   ranks. PP_ERR_ARGUMENT: a wrong value. */
enum { PP_STATIC_PHASES = 4 };
pp_status_t pp_groups_static_table(int32_t nodes, int32_t per_node, int32_t *table);

/* ---- away ----------------------------------------------------------------------------------- */

/* Two halves of one collective call, around the application's own blocking calls.  Neither waits for other ranks.
   Between them this rank has left all its handles, and its Start, Wait, Test, More and other collective calls in this
   context fail by PP_ERR_STATE.  All ranks make the same number of these pairs, in the same order with
   their other collective calls.  PP_ERR_STATE: a collective call is in progress, or pp_away_end() without a begin. */
pp_status_t pp_away_begin(pp_ctx_t *ctx);
pp_status_t pp_away_end(pp_ctx_t *ctx);

/* Local.  Around a blocking call of the application that the library sees.  Between the two this rank has left all handles
   of this process, as by patience.  Nothing is counted; other threads go on.  Pairs may be nested. */
void pp_aside_begin(void);
void pp_aside_end(void);

/* Local.  A text for the log: the first round that this rank left by patience; why the driver of a device does not pin
   memory of the node.  Each is said once in a context.  NULL: nothing to log; else valid until the next call. */
const char *pp_ctx_log_note(pp_ctx_t *ctx);

/* ---- who is waited for ---------------------------------------------------------------------- */
typedef enum pp_activity {
    PP_COMPUTING,              /* outside the library, or inside with nothing outstanding */
    PP_WAITING,                /* has an outstanding request on `handle`, for `round` */
    PP_IN_CALL                 /* inside a collective call; `handle` is the call's handle, 0 for none */
} pp_activity_t;

/* What of a handle a rank's device has yet to come to; the last is the rank's part of a round. */
typedef enum pp_device_wait { PP_WAITS_FOR_NO_DEVICE, PP_CONTRIBUTION_ON_ITS_WAY, PP_DEVICE_PART } pp_device_wait_t;

/* What a rank answers. */
typedef struct pp_rank_state {
    int32_t  answered;         /* 0: no answer yet (the rank has died, or computes with progress="caller"): all is 0 */
    int32_t  activity;         /* pp_activity_t */
    uint32_t handle;           /* what it waits on */
    uint32_t call;             /* the collective call that it is in; 0: none */
    uint64_t round, calls, blocks;        /* `calls`: it has completed so many; the last `blocks` were ctx.away() */
    uint32_t last, last_handle;           /* the call of any kind that the application has made last */
    /* Of the handle asked about: */
    uint64_t completed, joined, taken;    /* rounds; `taken`: given to the application */
    uint64_t quiet_ns;         /* since its last call, if that took a result of the handle; 0: not known */
    /* Of its next round: */
    int32_t  place;            /* of the rank in the order of draws, if there is one; -1: it does not know the handle */
    int32_t  waits, overdue;   /* it waits for the round; for longer than the deadline */
    int32_t  left, aside;      /* it has left: in a collective call, or out; by patience, or for a call that is seen */
    int32_t  ready, passes, withholding, full;   /* it passes a draw on; max_lag withholds its part; its backlog is full */
    int32_t  device_wait;      /* pp_device_wait_t */
} pp_rank_state_t;
const char *pp_call_name(int32_t call);   /* of a `call` or `last`, as users know it; "": of none */

/* Blocking, not collective.  Asks every rank what it is doing with the handle of this id (0: with none), and waits for
   the answers of their engines for at most `timeout_us`; PP_OK also if some do not come.  `states` has room for one a
   rank.  Over a simulated transport only this rank's own is filled in: nobody answers while the caller holds the clock. */
pp_status_t pp_ask(pp_ctx_t *ctx, uint32_t handle, int64_t timeout_us, pp_rank_state_t *states);
/* Local: the same question without waiting.  Whichever thread runs the engine writes the answers into `states`, which
   must live until pp_question_close().  Until then only the members `answered` may be read.  pp_question_close() frees
   the question, also after the context has failed. */
typedef struct pp_question pp_question_t;
pp_status_t pp_question_open(pp_ctx_t *ctx, uint32_t handle, pp_rank_state_t *states, pp_question_t **question);
void        pp_question_close(pp_ctx_t *ctx, pp_question_t *question);
/* Local, like the next two.  The handle's id: the same on all ranks, from 1 on. */
uint32_t    pp_handle_id(const pp_handle_t *coll);
int32_t     pp_handle_algorithm(const pp_handle_t *coll);   /* its algorithm: what AUTO became */
int32_t     pp_handle_reason(const pp_handle_t *coll);      /* why, a pp_reason_t; the same on all ranks */

/* Local.  What keeps the rounds of a handle, or the collective call in progress, from going on, as far as this rank
   knows.  Each line names the ranks that are waited for and what they are doing, or the ranks whose messages are
   missing; at most 8 ranks a line are named.  "": nothing known.  Free the text by pp_text_free(). */
pp_status_t pp_handle_obstacles(pp_handle_t *coll, char **text);
pp_status_t pp_ctx_obstacles(pp_ctx_t *ctx, char **text);

/* ---- schedules -------------------------------------------------------------------------------- */
typedef enum pp_format { PP_DOT, PP_GOAL } pp_format_t;

/* Local, without a context.  The schedule of a partial allreduce for all `size` ranks (1..1024) as text.  It is checked
   first: it has no cycle, and sends and receives match.  Free the text by pp_text_free().  PP_ERR_ARGUMENT: a wrong
   value. */
pp_status_t pp_schedule_dump(int32_t algorithm, int32_t size, size_t count, int32_t type,
                             int32_t format, char **text);
/* Local.  This rank's schedule of a live handle as text; rounds in shared memory have none, and the text says so.
   Free the text by pp_text_free(). */
pp_status_t pp_handle_dump(pp_handle_t *coll, int32_t format, char **text);
void        pp_text_free(char *text);      /* NULL is fine */

/* Local.  How often each operation of the schedule fired in the newest retired round, whose number goes to *round.
   *count gets the number of operations; `fired` gets the first `capacity` of them.  PP_PENDING: no round has retired
   yet, or the handle has no schedule. */
pp_status_t pp_handle_fired(pp_handle_t *coll, uint64_t *round, uint32_t *fired, size_t capacity,
                          size_t *count);

/* CDEF END */

#endif
