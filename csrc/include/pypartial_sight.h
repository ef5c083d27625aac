/*
 * pypartial_sight.h - who is slow, and what happened: the rows of a report, and the files of a trace.
 *
 * A row has what the library counts of one rank.  The ranks of a node have their rows in memory that they share, so each
 * of them reads all; no message is sent for it.  A trace is a file for each rank, which the rank maps: a killed rank
 * keeps what it had.  Times are of CLOCK_MONOTONIC.
 */
#ifndef PYPARTIAL_SIGHT_H
#define PYPARTIAL_SIGHT_H

#include "pypartial.h"

/* CDEF BEGIN */

/* One cycle of a handle: from a Start to the next one.  Every cycle is timed where fewer than 64 fit into a tick of the
   kernel's coarse clock, some milliseconds; else those at the beginning of each tick. */
typedef struct pp_sample {
    uint64_t key;           /* the same for ranks that could meet: the round that the Start was the first to be able to
                               join, the number of the group, or the iteration */
    uint64_t start_ns;      /* the Start; its result was in the receive buffers */
    uint64_t given_ns;
    uint64_t waited_ns;     /* inside Wait, from one on that found no result yet */
    uint64_t computed_ns;   /* in the whole cycle outside the library, and outside blocking calls that it sees */
    uint32_t handle;
    uint32_t late;          /* 1: its round was complete before the Start */
} pp_sample_t;

enum { PP_SAMPLES = 256, PP_CAUSES = 4 };

typedef struct pp_row {
    uint64_t calls;         /* Starts, of all handles of the context */
    uint64_t given;         /* results handed out; the following describe these, as pp_result_t does */
    uint64_t late;          /* of rounds that were complete before the Start */
    uint64_t external;
    uint64_t contributions, active, missed, staleness;   /* sums */
    uint64_t most_stale;
    uint64_t causes[PP_CAUSES];                          /* by pp_cause_t; rounds only */
    uint64_t samples;       /* so far; number i is at i % PP_SAMPLES */
    pp_sample_t sample[PP_SAMPLES];
} pp_row_t;

/* Local.  Copies the rows of the ranks of this node: up to `most` of them; ranks[i] is the rank of rows[i].  A rank may
   write its row meanwhile, so its newest sample may be torn: it is left out.  Returns how many there are. */
int32_t pp_ctx_rows(pp_ctx_t *ctx, pp_row_t *rows, int32_t *ranks, int32_t most);
/* Local.  From now on, after each `ns`, a Start returns PP_NOTE, and pp_ctx_log_note() an empty text: a report is due. */
void    pp_ctx_report_every(pp_ctx_t *ctx, uint64_t ns);

/* ---- traces --------------------------------------------------------------------------------------------- */

/* What an event says; `number` and the fields a to d mean something for the kinds that name them. */
typedef enum pp_event_kind {
    PP_EVENT_START = 1,     /* number: of the Start among those of all handles of the rank; key: nanoseconds
                               computed in the cycle that ends, as in pp_sample_t; 0: not known */
    PP_EVENT_WAIT,          /* Wait finds no result yet; the time is that of its beginning */
    PP_EVENT_GIVEN,         /* Wait ends with a result.  number: its round, group or iteration; key: as in pp_sample_t;
                               flags: 1 late, 2 external, from 4 on missed rounds; a: active, b: contributions, c: staleness, d: initiator or -1;
                               cause */
    PP_EVENT_CLAIM,         /* this rank takes the parts of a round in the memory of the node, if that takes longer than to
                               publish it.  number: round */
    PP_EVENT_ACTIVATE,      /* a round made of messages is activated here.  number: round; d: this rank, if it has done
                               so, or -1: by a message */
    PP_EVENT_JOIN,          /* a round made of messages takes this rank's part.  number: round */
    PP_EVENT_PUBLISH,       /* a round is complete, by this rank.  number: round; key: bytes; a: active, b: contributions,
                               c: contributors, d: initiator or -1; cause */
    PP_EVENT_CALL,          /* a collective call begins, or a blocking call of ctx.comm.  a: its name, as for spans */
    PP_EVENT_CALL_END,
    PP_EVENT_AWAKE,         /* the progress thread wakes up; goes to sleep */
    PP_EVENT_ASLEEP,
    PP_EVENT_SPAN,          /* the application's.  a: name, an offset in pp_trace_head_t.names; b: the thread */
    PP_EVENT_SPAN_END       /* a, b: as it began */
} pp_event_kind_t;

typedef struct pp_event {
    uint64_t ns, number, key;
    uint32_t handle;        /* 0: none */
    uint8_t  kind, cause;   /* pp_event_kind_t; pp_cause_t + 1, 0: none */
    uint16_t flags;
    int32_t  a, b, c, d;
} pp_event_t;

enum { PP_TRACE_VERSION = 1, PP_TRACE_HEAD = 65536, PP_TRACE_NAMES = 65344, PP_TRACE_MEETINGS = 2,
       PP_TRACE_ASIDE = 6 /* the name of calls of ctx.comm, after that of what has none */ };

/* The beginning of a file.  The events follow, PP_TRACE_HEAD bytes after it: number i is at i % capacity. */
typedef struct pp_trace_head {
    char     magic[8];      /* "pptrace" */
    uint32_t version, event_bytes;
    uint64_t run[2];        /* the same on all ranks of a run, and on no other */
    int32_t  rank, size;    /* of the context */
    int64_t  pid;
    uint64_t capacity;      /* events that the file has room for */
    uint64_t count;         /* events so far */
    /* Where the ranks met: a time of this rank's clock, by how much it was ahead of rank 0's, and by how much that may be
       wrong.  When the trace began, and when it ended; all 0: it has not. */
    struct { int64_t ns, ahead_ns, error_ns; } met[PP_TRACE_MEETINGS];
    char     host[64];
    int64_t  wall_ns;       /* CLOCK_REALTIME less CLOCK_MONOTONIC, when the trace began */
    uint64_t told;          /* bytes of `names` in use */
    char     names[PP_TRACE_NAMES];   /* texts, one after the other, each with its 0 */
} pp_trace_head_t;

/* Local.  Makes the file, maps it, and fills in the head but for rank, size, run, met and wall_ns.  PP_ERR_STATE: it is there
   already; PP_ERR_ARGUMENT: it cannot be made; PP_ERR_MEMORY: the disk has no room for it. */
pp_status_t pp_trace_open(const char *path, uint64_t capacity, pp_trace_head_t **out);
/* Unmaps the file; after the context was freed. */
void        pp_trace_close(pp_trace_head_t *head);
/* Local.  From now on the context writes its events there, to its end.  PP_ERR_STATE: it has a trace already. */
pp_status_t pp_trace_begin(pp_ctx_t *ctx, pp_trace_head_t *head);
/* Local.  An event of the application's: a span, or a collective call.  Nothing happens without a trace. */
void        pp_trace_tell(pp_ctx_t *ctx, int32_t kind, int32_t a, int32_t b);

/* CDEF END */

#endif
