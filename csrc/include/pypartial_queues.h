/*
 * pypartial_queues.h - the public header of Hop's queues: the words that its rules (csrc/queues) are told and answer.
 *
 * The conventions of pypartial.h hold here, too.  pypartial/_build.py hands everything between the two CDEF marks to
 * cffi.
 */
#ifndef PYPARTIAL_QUEUES_H
#define PYPARTIAL_QUEUES_H

#include "pypartial.h"

/* CDEF BEGIN */

/* What keeps a rank from getting far ahead of its out-neighbours (Hop, Table 1). */
typedef enum pp_queues_protocol {
    PP_QUEUES_TOKENS,          /* 4.2: it is at most max_ig iterations ahead of each */
    PP_QUEUES_NOTIFY_ACK,      /* 3.3: it sends an update when each has averaged the one before */
    PP_QUEUES_NONE,            /* 4.1: nothing but the updates that it waits for itself (Theorem 1) */
    PP_QUEUES_PROTOCOL_COUNT
} pp_queues_protocol_t;

/* An option that the application has not set, and the largest number that one takes. */
enum { PP_QUEUES_UNSET = -2147483647, PP_QUEUES_MOST = 1000000 };

/* What a rank's handle is made with.  A rank is no neighbour of its own. */
typedef struct pp_queues_plan {
    int32_t in, out;           /* how many in- and out-neighbours it has */
    int32_t protocol;          /* pp_queues_protocol_t */
    int32_t max_ig;            /* TOKENS */
    int32_t backup;            /* how many in-neighbours' updates this rank does not need */
    int32_t staleness;         /* s of 4.4; UNSET: updates of the very iteration are averaged */
    int32_t skip;              /* m: a rank that is behind enters iteration + m at most; UNSET: always the next one */
    int32_t skip_trigger;      /* ... if it is more than so many iterations behind all its out-neighbours */
    int32_t back;              /* NONE: the longest of the shortest paths from a rank to one of its in-neighbours */
    int32_t weighted;          /* 1: in-neighbours have weights of their own; 0: Hop's */
    int32_t plant;             /* 0; simulations: pp_queues_plant_t */
} pp_queues_plan_t;

/* What the state of a rank is told.  `neighbour` is a place in the list of its in-neighbours, or of its out-neighbours;
   its own events have none.  What one neighbour tells by LEFT, HERE, TOKEN and UNBOUND comes in the order in which it
   was said.  Updates and headers come in any order, and may come again. */
typedef enum pp_queues_event {
    /* its own: */
    PP_QUEUES_START,           /* its update of this iteration is there */
    PP_QUEUES_WAIT,            /* it wants the average; again: nothing happens */
    PP_QUEUES_AVERAGED,        /* what AVERAGE asked for is done */
    PP_QUEUES_LEAVE,           /* it has left */
    PP_QUEUES_BACK,            /* it is back */
    /* of an in-neighbour: */
    PP_QUEUES_UPDATE,          /* its update of an iteration is there */
    PP_QUEUES_HEADER,          /* it has omitted an iteration */
    PP_QUEUES_GONE,            /* while AVERAGE is being done: this update is not there any more */
    PP_QUEUES_LEFT,            /* it has left, and omits everything from this iteration on */
    PP_QUEUES_HERE,            /* it is back: of what it omits it sends headers */
    /* of an out-neighbour: */
    PP_QUEUES_TOKEN,           /* it has announced an iteration: it is here */
    PP_QUEUES_UNBOUND          /* it has left, and bounds nobody */
} pp_queues_event_t;

typedef enum pp_queues_action_kind {
    PP_QUEUES_NOTHING,         /* ... is due until the next event */
    PP_QUEUES_SEND,            /* the update of `iteration` goes to all out-neighbours, or its header only
                                  (pp_queues_wants()) */
    PP_QUEUES_OMIT,            /* headers of the iterations `iteration` to `end` - 1 go to all out-neighbours */
    PP_QUEUES_ANNOUNCE,        /* in-neighbours (pp_queues_tells()) hear that this rank is in `iteration`, or has
                                  decided to enter it: TOKEN */
    PP_QUEUES_AVERAGE,         /* the caller averages `parts` with this rank's own model of weight `own`, and then says
                                  AVERAGED.  No part: the model stays as it is */
    PP_QUEUES_ENTER,           /* the request is complete, and the rank is in `iteration` */
    PP_QUEUES_TELL_LEFT,       /* all neighbours hear that this rank has left, and omits everything from `iteration` on:
                                  LEFT or UNBOUND, or both */
    PP_QUEUES_TELL_HERE        /* all neighbours hear that it is back, in `iteration`: HERE or TOKEN, or both */
} pp_queues_action_kind_t;

/* An update to average. */
typedef struct pp_queues_part {
    int64_t iteration;
    double  weight;
    int32_t neighbour;
    int32_t unused;
} pp_queues_part_t;

typedef struct pp_queues_action {
    int32_t kind;              /* pp_queues_action_kind_t */
    int32_t count;             /* AVERAGE: parts, in the order of in-neighbours */
    int64_t iteration;         /* AVERAGE: that whose updates are averaged (Recv) */
    int64_t end;               /* OMIT */
    double  own;               /* AVERAGE: all weights add up to 1 */
    const pp_queues_part_t *parts;   /* AVERAGE: valid until AVERAGED or GONE */
} pp_queues_action_t;

/* What a request completed with. */
typedef struct pp_queues_result {
    int64_t iteration;         /* the one that the rank has entered */
    int64_t gap;               /* how far it is ahead of its slowest out-neighbour, as far as it knows; NONE: of the
                                  slowest in-neighbour */
    int64_t staleness;         /* how much older than the iteration averaged the oldest part was */
    int64_t received;          /* parts */
    int64_t dropped;           /* updates that came and were in no average, since the request before */
    int64_t skipped;           /* iterations that the rank did not enter, since the request before */
} pp_queues_result_t;

/* ---- handles ---------------------------------------------------------------------------------- */

typedef struct pp_queues_config {
    const pp_piece_t *pieces;  /* `send` is NULL; the list is copied; the buffers must live until the handle is freed */
    size_t   piece_count;
    int32_t  type;             /* pp_type_t, of floating numbers */
    int32_t  memory;           /* pp_memory_kind_t of the pieces' buffers */
    pp_queues_plan_t plan;
    const int32_t *ins, *outs; /* the ranks of the neighbours, ascending; copied, like the next one */
    const double  *weights;    /* of in-neighbours, where plan.weighted */
    uint64_t fingerprint;      /* equal on all ranks: of the arrays' layout, the topology, its weights and each rank's
                                  `backup` */
    const char *topology_text; /* layout, topology and backups, for texts; read during the call */
} pp_queues_config_t;

/* Collective; begins the creation of a handle for queues.  The same rules as for pp_allreduce_init_begin().
   PP_ERR_ARGUMENT, by pp_call_wait(): a value of the plan is out of its range; which ones go together is the caller's
   to check.  Between pp_start() and pp_wait() the application may read the buffers; from the first pp_wait() or
   pp_test() until one returns PP_OK they are the library's. */
pp_status_t pp_queue_init_begin(pp_ctx_t *ctx, const pp_queues_config_t *config, const char *complaint,
                                pp_handle_t **handle);
/* Local.  Describes what the last pp_wait(), pp_test() or pp_collect() that returned PP_OK gave.  PP_ERR_STATE: there
   was none. */
pp_status_t pp_queue_result(pp_handle_t *handle, pp_queues_result_t *result);
/* Local.  How many updates have come that may still be averaged, of an iteration and of a rank that is an in-neighbour;
   -1: of all. */
pp_status_t pp_queue_size(pp_handle_t *handle, int64_t iteration, int32_t rank, int32_t *size);
/* Local.  The application starts the handle only where its rank has left all queues: aside, or for a Flush at once.  So
   it does not keep ranks in step. */
pp_status_t pp_handle_unties(pp_handle_t *coll);

/* CDEF END */

#endif
