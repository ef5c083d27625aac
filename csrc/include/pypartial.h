/*
 * pypartial.h - the public header of the C core; that of the simulation, which nobody else needs, is
 * pypartial_sim.h.
 *
 * The core runs *partial collectives*: rounds that a subset of the ranks can trigger and that
 * complete on every rank.  Opaque types, no mpi.h: a communicator enters as the address of an
 * MPI_Comm.  pypartial/_build.py hands everything between the two CDEF marks to cffi, so that the
 * interface is written down once.
 *
 * Conventions
 *   - Every function that can fail returns a pp_status_t: 0 done, > 0 in progress, < 0 an error.
 *     pp_error_text() then describes the error of the calling thread, values included.
 *   - Output arguments come last and are NULLed (or zeroed) on entry.  pp_x_free(NULL) is fine.
 *   - Counts are elements unless a name says _bytes; times say _us or _ns.
 *   - Thread safety: different handles and contexts may be used from different threads; one handle
 *     by one thread at a time.  No function touches Python or needs the GIL.
 *   - "Collective" functions come as x_begin(), which only starts the call, and pp_call_wait(),
 *     which finishes whatever call was begun.  While a call is in progress this rank has *left* its
 *     handles (design: "Leaving"): it serves the rounds of the others.
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
    PP_NOTE = 2,               /* done, and pp_ctx_patience_note() has something for the log */
    PP_ERR_ARGUMENT = -1,      /* a value is wrong: ArgumentError */
    PP_ERR_STATE = -2,         /* the call is not allowed now (order, freed, forked): Error */
    PP_ERR_MISMATCH = -3,      /* the ranks disagree on the arguments: MismatchError */
    PP_ERR_THREAD_LEVEL = -4,  /* MPI was initialised with too low a level: ThreadLevelError */
    PP_ERR_PEER_FAILED = -5,   /* another rank died or gave up: PeerFailedError */
    PP_ERR_MEMORY = -6,        /* out of memory: MemoryError */
    PP_ERR_MPI = -7,           /* the MPI library reported an error: Error */
    PP_ERR_INTERNAL = -8       /* a defect of ours: Error */
} pp_status_t;

/* Text for the last error that a call on this thread returned ("" if none).  Never NULL. */
const char *pp_error_text(void);
const char *pp_version(void);

/* ---- element types and operations ------------------------------------------------------------- */
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

size_t      pp_type_bytes(int32_t type);              /* 0 for an unknown type */
size_t      pp_accumulator_bytes(int32_t type);       /* of an element in accumulators and messages */
const char *pp_type_name(int32_t type);
const char *pp_op_name(int32_t op);
/* 1 if MPI defines the operation on the type (no order on complex, no bits in floats). */
int32_t     pp_op_supports(int32_t op, int32_t type);
/* inout[i] = left[i] (op) right[i], where inout is `left` (inout_is_left) or `right`. */
pp_status_t pp_reduce_local(int32_t op, int32_t type, const void *in, void *inout, size_t count,
                            int32_t inout_is_left);

/* ---- policies, delivery, causes ------------------------------------------------------------- */
typedef enum pp_policy {
    PP_FIRST_OF,               /* the first of `policy_k` drawn ranks triggers; Solo is k = P */
    PP_QUORUM,                 /* `policy_k` ranks are ready; Full is k = P */
    PP_POLICY_COUNT
} pp_policy_t;

typedef enum pp_deliver { PP_LATEST, PP_DELIVER_SUM, PP_EACH, PP_DELIVER_COUNT } pp_deliver_t;

/* By strength: the cause of a round is the strongest of all ranks. */
typedef enum pp_cause {
    PP_CAUSE_POLICY, PP_CAUSE_DEPARTED, PP_CAUSE_DEADLINE, PP_CAUSE_FLUSH
} pp_cause_t;

typedef enum pp_average {
    PP_AVERAGE_NONE, PP_AVERAGE_SIZE, PP_AVERAGE_CONTRIBUTORS, PP_AVERAGE_CONTRIBUTIONS
} pp_average_t;

/* By which messages a round is made.  The algorithms are numbered from 1 on, by their table (csrc/algo/table.c). */
enum {
    PP_SHARED_MEMORY = -1,     /* none: the ranks share memory */
    PP_ALGORITHM_AUTO = 0,
    PP_ALGORITHM_FIRST = 1
};
int32_t     pp_algorithm_count(void);
/* As users write it, those two included; NULL: there is none of this number. */
const char *pp_algorithm_name(int32_t algorithm);
/* 1: it cuts the vector into a chunk a rank, so that its steps grow with the ranks. */
int32_t     pp_algorithm_chunk_a_rank(int32_t algorithm);

/* ---- which algorithm AUTO becomes --------------------------------------------------------------- */
typedef enum pp_link_kind {
    PP_LINK_NODE,              /* the ranks are on one node */
    PP_LINK_NETWORK,           /* messages go from node to node */
    PP_LINK_KINDS
} pp_link_kind_t;

/* Parameters of the cost model, after LogGP: what the longest chain of messages of an allreduce takes. */
typedef struct pp_cost {
    double overhead_us;        /* of a round, whatever its algorithm */
    double copy_ns;            /* of a byte of the vector, whatever the algorithm */
    double latency_us;         /* of a message, however short */
    double byte_ns;            /* of a byte sent */
    double reduce_ns;          /* of a byte reduced */
} pp_cost_t;

typedef struct pp_switch {
    uint64_t bytes;            /* of the vector: from here on */
    int32_t  algorithm;        /* its number */
    int32_t  unused;
} pp_switch_t;

enum { PP_SWITCHES_MAX = 8 };

/* What was measured for a number of ranks on a kind of link. */
typedef struct pp_tuned {
    int32_t     ranks;
    int32_t     link;          /* pp_link_kind_t */
    pp_cost_t   cost;          /* fitted */
    int32_t     switch_count;  /* 0: the model decides */
    int32_t     unused;
    pp_switch_t switches[8];   /* ascending, the first at 0 bytes */
} pp_tuned_t;

/* Why a handle has its algorithm. */
typedef enum pp_reason {
    PP_REASON_ASKED,           /* its configuration names it */
    PP_REASON_SHARED_MEMORY,   /* the ranks share memory, and need none */
    PP_REASON_DEFAULTS,        /* cheapest by the model, with parameters of another machine */
    PP_REASON_MODEL,           /* cheapest by the model, measured on another number of ranks */
    PP_REASON_MEASURED,        /* fastest when it was measured on so many ranks */
    PP_REASON_COUNT
} pp_reason_t;

typedef struct pp_choice {
    int32_t algorithm;         /* its number */
    int32_t reason;            /* pp_reason_t */
} pp_choice_t;

/* The algorithm for `count` elements of `element_bytes` on so many ranks: by the switch points of the
   row for just these ranks; else by the model, with the parameters of the row nearest in ranks, or the
   defaults. */
pp_status_t pp_choose(const pp_tuned_t *tuned, size_t tuned_count, size_t count, size_t element_bytes,
                      int32_t ranks, int32_t link, pp_choice_t *choice);
/* What the model says that an allreduce takes; linear in the parameters. */
pp_status_t pp_model_cost(const pp_cost_t *cost, int32_t algorithm, size_t count, size_t element_bytes,
                          int32_t ranks, double *us);
pp_status_t pp_model_defaults(int32_t link, pp_cost_t *cost);

/* ---- context ---------------------------------------------------------------------------------- */
typedef struct pp_ctx  pp_ctx_t;    /* one rank's view of a communicator: engine, transport, thread */
typedef struct pp_handle pp_handle_t;   /* a persistent partial collective ("handle") of a context */

typedef enum pp_progress { PP_PROGRESS_THREAD, PP_PROGRESS_CALLER } pp_progress_t;

typedef enum pp_path {
    PP_PATH_AUTO,              /* ranks of one node meet in shared memory */
    PP_PATH_MPI                /* point-to-point messages between all ranks */
} pp_path_t;

typedef struct pp_ctx_config {
    uint64_t seed;             /* of the draws; the same on all ranks (checked) */
    uint64_t chunk_bytes;      /* largest single MPI transfer; 0: the default, 1 GiB */
    int32_t  window;           /* rounds of a handle in flight at once; >= 1 */
    int32_t  progress;         /* pp_progress_t */
    int32_t  path;             /* pp_path_t; the same on all ranks (checked) */
    int32_t  node_ranks;       /* 0; or as if each so many ranks of a node were on one of their own, for tests of
                                  several nodes on one; the same on all ranks (checked) */
    int32_t  unused;
    int64_t  patience_ns;      /* how long this rank may hold a round up; -1: automatic; 0, INT64_MAX: for ever */
} pp_ctx_config_t;

/*
 * Collective, blocking.  Duplicates the communicator whose MPI_Comm lies at `comm`; nothing else of
 * the caller's is touched afterwards.  All ranks fail or succeed together: `complaint`, if not
 * NULL, is what this rank's caller found wrong with its own arguments (they are then not looked at),
 * and every rank returns an error that quotes it.
 */
pp_status_t pp_ctx_open(const void *comm, const pp_ctx_config_t *config, const char *complaint,
                        pp_ctx_t **ctx);

/* Local.  What AUTO goes by in the handles made from now on; copied.  Rank 0 chooses for all ranks, so
   that its rows are the only ones that matter. */
pp_status_t pp_ctx_tune(pp_ctx_t *ctx, const pp_tuned_t *tuned, size_t tuned_count);
/* pp_link_kind_t: between the context's ranks. */
int32_t     pp_ctx_link(const pp_ctx_t *ctx);

/* Begins the collective release: every rank has freed its handles (checked).  After pp_call_wait()
   returned PP_OK only pp_ctx_release() may be called. */
pp_status_t pp_ctx_free_begin(pp_ctx_t *ctx);

/* Local, never blocks on other ranks: stops the thread and latches an error that every later call
   returns.  For leaving because of an exception.  At MPI_Finalize the peers are told, and the memory is
   released: pp_ctx_release() does nothing before. */
void        pp_ctx_abandon(pp_ctx_t *ctx);

/* Frees the memory of a context that was freed or abandoned, and of its handles.  Local. */
void        pp_ctx_release(pp_ctx_t *ctx);

/* Finishes the collective call in progress: PP_OK, PP_PENDING after `timeout_us` (< 0: no limit), or
   the call's error.  A call that failed by PP_ERR_MISMATCH failed on every rank. */
pp_status_t pp_call_wait(pp_ctx_t *ctx, int64_t timeout_us);

int32_t     pp_ctx_rank(const pp_ctx_t *ctx);
int32_t     pp_ctx_size(const pp_ctx_t *ctx);

typedef struct pp_stats {
    uint64_t rounds;                /* completed here, over all handles */
    uint64_t shared_rounds;         /* of those, made in shared memory */
    uint64_t shared_led;            /* of those, claimed and begun by this rank */
    uint64_t messages_sent;         /* small messages, headers and control */
    uint64_t messages_received;
    uint64_t bytes_sent;            /* headers included */
    uint64_t bulk_sent;             /* payloads that travelled on their own */
    uint64_t rings;                 /* futex wake-ups of other ranks */
    uint64_t sleeps;                /* times a thread of ours went to sleep */
    uint64_t unheard;               /* sleeps that timed out although a neighbour had rung: none */
    uint64_t progress_cpu_ns;       /* CPU time of the progress thread */
    uint64_t buffer_bytes;          /* held for pending slots, rounds and results, all handles; without what
                                       lies in memory that ranks share */
    int32_t  neighbours;            /* ranks reachable by doorbell (this rank included) */
    int32_t  shares_memory;         /* 1: the ranks of each node make their part of a round in shared memory */
    int32_t  thread_level;          /* MPI_Query_thread: 0 single .. 3 multiple; -1 without MPI */
} pp_stats_t;

void        pp_ctx_stats(pp_ctx_t *ctx, pp_stats_t *stats);

/* Local.  What the application should be told, each thing once and on one rank of those concerned: why rounds are
   made of messages although their ranks are on one node.  NULL: nothing; else valid until the next call. */
const char *pp_ctx_note(pp_ctx_t *ctx);

/* Local.  Zeroed memory that the ranks of the node share, a page aligned: buffers in it are read and written by
   rounds where they are, without a copy.  It then belongs to the library between Start and the end of its
   Wait, as with MPI.  If the ranks share none, it is ordinary memory.  Free `keeper` with pp_unalloc(), at any
   time, also after the context; *memory is NULL on failure. */
pp_status_t pp_ctx_alloc(pp_ctx_t *ctx, size_t bytes, void **memory, void **keeper);
void        pp_unalloc(void *keeper);

/* ---- partial allreduce ------------------------------------------------------------------------ */

/* A piece of the user's memory; a handle may cover several, reduced as one vector. */
typedef struct pp_piece {
    const void *send;          /* NULL: in place, `recv` is read at Start */
    void       *recv;
    size_t      count;         /* elements */
} pp_piece_t;

/* Segments of a vector: each has its lane of scratch memory. */
enum { PP_LANES_MAX = 4 };

/* Kinds of memory that buffers may lie in. */
typedef enum pp_memory_kind {
    PP_MEMORY_HOST
} pp_memory_kind_t;

typedef struct pp_allreduce_config {
    const pp_piece_t *pieces;  /* copied; the memory they name must live until the handle is freed */
    size_t   piece_count;
    int32_t  type;             /* pp_type_t */
    int32_t  op;               /* pp_op_t */
    int32_t  policy;           /* pp_policy_t */
    int32_t  policy_k;         /* 1..P */
    int32_t  deliver;          /* pp_deliver_t */
    int32_t  max_lag;          /* < 0: no bound (PP_LATEST only); else max_lag + 1 <= window */
    int32_t  average;          /* pp_average_t */
    int32_t  algorithm;        /* its number; AUTO is decided by rank 0 */
    int32_t  segments;         /* of the vector, each reduced by itself, 1..PP_LANES_MAX; 0: by its size */
    int64_t  deadline_ns;      /* a rank that has waited so long triggers; 0: none */
    int64_t  grace_ns;         /* from the trigger to the taking of contributions; -1: by the vector's size */
    int32_t  memory;           /* pp_memory_kind_t: where the pieces' buffers lie */
    const char *policy_text;   /* the policy as the application wrote it, for texts; read at once; NULL: as PP_... say */
} pp_allreduce_config_t;

/*
 * Collective: begins the creation of a handle.  The ranks compare everything in `config` but the
 * addresses; a difference is PP_ERR_MISMATCH on all of them, from pp_call_wait().  `complaint`, if
 * not NULL, is what this rank's caller found wrong with its own arguments: `config` may then be
 * NULL, the call takes part in the agreement, and every rank fails quoting the complaint.
 * On failure *coll is released by the context and must not be used.
 */
pp_status_t pp_allreduce_init_begin(pp_ctx_t *ctx, const pp_allreduce_config_t *config,
                                    const char *complaint, pp_handle_t **coll);

enum { PP_CONTRIBUTORS_MAX = 1024, PP_CONTRIBUTORS_WORDS = 16 };

/* What a request completed with (design: "Status").  Everything up to `initiator` describes `round`
   and is identical on every rank; the rest is this rank's own. */
typedef struct pp_result {
    uint64_t round;            /* newest round delivered */
    uint64_t contributions;    /* Starts merged into it */
    int32_t  active;           /* ranks that were ready when they took their slot */
    int32_t  cause;            /* pp_cause_t */
    int32_t  initiator;        /* lowest rank that triggered; -1: none */
    int32_t  contributors_known;  /* 0 above PP_CONTRIBUTORS_MAX ranks */
    uint64_t contributors[16]; /* bit r of word r / 64: rank r had data in the round */
    uint64_t first;            /* oldest round delivered (PP_DELIVER_SUM) */
    uint64_t missed;           /* rounds completed between the previous completion and this Start */
    uint64_t staleness;        /* of my oldest contribution in `round` */
    int32_t  included;         /* this call's contribution is in a round <= `round` */
    int32_t  external;         /* 1: a message activated the round here */
} pp_result_t;

/* Local.  Copies the pieces, adds them to what is pending, triggers.  PP_ERR_STATE if the previous
   request was not collected, unless pp_timed_out() was called.  PP_OK or PP_NOTE. */
pp_status_t pp_start(pp_handle_t *coll);

/* Collect the request: on PP_OK the result is in the `recv` pieces and *result is filled (it may be
   NULL).  pp_wait() sleeps and helps the engine along until then, at most `timeout_us` (< 0: no
   limit); PP_PENDING leaves the request as it is, but may have written to the pieces.  Without a request they give what was not given
   yet, or fail with PP_ERR_STATE. */
pp_status_t pp_wait(pp_handle_t *coll, int64_t timeout_us, pp_result_t *result);
pp_status_t pp_test(pp_handle_t *coll, pp_result_t *result);
/* Local.  PP_EACH: the next complete round that was not given yet, without waiting; PP_PENDING: there is none.
   PP_ERR_STATE while a request is not collected. */
pp_status_t pp_more(pp_handle_t *handle, pp_result_t *result);
/* Local.  The application's wait for the request has ended by its timeout: a Start may now add to what is pending, the
   request stays as it is, and the send pieces are the application's again. */
pp_status_t pp_timed_out(pp_handle_t *handle);
/* pp_wait(), but a result that lies in memory that the ranks of the node share is not copied: on PP_OK
   *elements is where it may be read, all pieces one after the other, until the handle's next call of any
   kind; and the memory stays mapped (with other contents) until pp_unalloc(*keeper).  NULL: it is in the
   `recv` pieces, as after pp_wait(). */
pp_status_t pp_wait_view(pp_handle_t *coll, int64_t timeout_us, pp_result_t *result, const void **elements,
                         void **keeper);
/* pp_wait() for PP_SLICE_US, and without a result: one argument costs the least to call. */
enum { PP_SLICE_US = 50000 };
pp_status_t pp_wait_slice(pp_handle_t *coll);

/* Collective: the last synchronous round.  After pp_call_wait() returned PP_OK, pp_collect() copies
   out the result. */
pp_status_t pp_flush_begin(pp_handle_t *coll);

/* Collective, PP_EACH: one step of the drain.  After pp_call_wait(), pp_collect() gives one round,
   oldest first; result.cause == PP_CAUSE_FLUSH marks the last. */
pp_status_t pp_drain_begin(pp_handle_t *coll);
pp_status_t pp_collect(pp_handle_t *coll, pp_result_t *result);

/* Collective: discards what is pending here, ends the handle's rounds and releases its buffers.  After
   pp_call_wait() returned PP_OK, *discarded (which must live until then) is the number of Starts of this
   rank that were left pending, or that only the last round took, in which all ranks were freeing; and the
   handle must not be used. */
pp_status_t pp_handle_free_begin(pp_handle_t *coll, uint64_t *discarded);

/* ---- away ----------------------------------------------------------------------------------- */

/* A collective call whose inside belongs to the application, and which waits for nobody: between the two this rank
   has left all its handles, and every other call of the context but these fails by PP_ERR_STATE.  The ranks must
   make the same number of them, in the same order with other collective calls. */
pp_status_t pp_away_begin(pp_ctx_t *ctx);
pp_status_t pp_away_end(pp_ctx_t *ctx);

/* What the log should say once: the first round that this rank left by patience.  NULL: nothing; else valid until
   the next call. */
const char *pp_ctx_patience_note(pp_ctx_t *ctx);

/* ---- who is waited for ---------------------------------------------------------------------- */
typedef enum pp_activity {
    PP_COMPUTING,              /* outside the library, or inside with nothing outstanding */
    PP_WAITING,                /* has an outstanding request on `handle`, for `round` */
    PP_IN_CALL                 /* inside a collective call; `handle` is its handle, 0 for none */
} pp_activity_t;

typedef struct pp_rank_state {
    int32_t  answered;         /* 0: nothing heard (a rank outside the library with
                                  progress="caller", or gone) */
    int32_t  activity;         /* pp_activity_t */
    uint32_t handle;           /* what it waits on */
    uint32_t call;             /* which collective call it is in; 0: none */
    uint64_t round;
    uint64_t calls;            /* collective calls it has completed in this context */
    uint64_t completed;        /* of the handle asked about: rounds completed, rounds joined */
    uint64_t joined;
    int32_t  ready;            /* ready for its next round */
    int32_t  drawn;            /* drawn for its next round (PP_FIRST_OF) */
    int32_t  withholding;      /* its max_lag keeps it from joining an activated round */
    int32_t  aside;            /* it has left the handle by patience */
    int32_t  unused;
} pp_rank_state_t;

/* Asks every rank what it is doing with the handle of this id (0: with none) and waits for at most `timeout_us`; `states` has
   one a rank.  Not collective; the other ranks' engines answer.  Over a simulated transport only
   this rank's own state is filled in: nobody answers while the caller holds the clock. */
pp_status_t pp_ask(pp_ctx_t *ctx, uint32_t handle, int64_t timeout_us, pp_rank_state_t *states);
/* The same without waiting: answers are written into `states`, which must live until the question is closed, while
   the engine runs, in whatever thread; they may be read meanwhile for their member `answered`, and all when the
   question is closed. */
typedef struct pp_question pp_question_t;
pp_status_t pp_question_open(pp_ctx_t *ctx, uint32_t handle, pp_rank_state_t *states, pp_question_t **question);
void        pp_question_close(pp_ctx_t *ctx, pp_question_t *question);
uint32_t    pp_handle_id(const pp_handle_t *coll);
int32_t     pp_handle_algorithm(const pp_handle_t *coll);   /* what AUTO became */
int32_t     pp_handle_reason(const pp_handle_t *coll);      /* pp_reason_t: why; the same on all ranks */

/* What keeps the rounds of a handle, or a collective call, from going on, as far as this rank knows, a line each: who
   is waited for and what they are doing, or whose messages are missing.  Few ranks are named.  Free the text with
   pp_text_free(). */
pp_status_t pp_handle_obstacles(pp_handle_t *coll, char **text);
pp_status_t pp_ctx_obstacles(pp_ctx_t *ctx, char **text);

/* ---- schedules -------------------------------------------------------------------------------- */
typedef enum pp_format { PP_DOT, PP_GOAL } pp_format_t;

/* The schedule of a partial allreduce for all `size` ranks as text, checked first (acyclic, sends and
   receives match).  Free the text with pp_text_free(). */
pp_status_t pp_schedule_dump(int32_t algorithm, int32_t size, size_t count, int32_t type,
                             int32_t format, char **text);
/* This rank's schedule of a live handle. */
pp_status_t pp_handle_dump(pp_handle_t *coll, int32_t format, char **text);
void        pp_text_free(char *text);

/* How often each operation of the schedule fired in the newest retired round: `fired` has `capacity`
   of them, *count gets the number of operations.  PP_PENDING before the first. */
pp_status_t pp_handle_fired(pp_handle_t *coll, uint64_t *round, uint32_t *fired, size_t capacity,
                          size_t *count);

/* CDEF END */

#endif
