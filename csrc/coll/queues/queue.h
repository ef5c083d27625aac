/*
 * queue.h - queues (Hop) as a kind of handle, in the memory that all ranks share.
 *
 * A machine (queues/queues.h), in this rank's own memory, decides when the rank averages, with which updates, and when
 * it enters its next iteration.  This room shows the machine the other ranks, and does what it says.
 *
 * A rank has a *station*, which only it writes, and a *ring* of models.  Start copies the application's elements to the
 * entry of this iteration; publishing is a store.  A neighbour reads the entry where it lies: there is no lock, and no
 * job of another rank.  The *tag* of an entry is the iteration whose model it holds, -1 while it is written; a reader
 * looks at it before and after.  The ring is so large that an entry is overwritten under a reader only by a rank that
 * was left behind and is back.
 *
 * The machine's average is *due* when there is enough of it.  A thread of this rank computes it while the application is
 * inside Wait or Test, since until then the buffers are the application's, which may read them.
 *
 * queue.c    the kind: arguments, what the engine asks
 * station.c  what ranks show each other, and what the machine is told of it
 * mean.c     models into the ring, averages out of it
 * ends.c     Flush and Free
 */
#ifndef PP_QUEUE_H
#define PP_QUEUE_H

#include "../../queues/queues.h"
#include "../team.h"

/* What a rank shows, in a cache line of its own. */
typedef struct pp_queue_station {
    _Alignas(64) _Atomic int64_t announced;
    _Atomic int64_t  published;      /* the newest iteration in the ring that is for all; -1: none */
    _Atomic uint64_t left;           /* 0: it is here; PP_QUEUE_LEFT: it has left; else it is inside the collective call
                                        of this number, counted from 1 */
    /* Flush and Free: ends.c */
    _Atomic int64_t  model;          /* the place in its ring of what it gives */
    _Atomic int64_t  iteration;      /* that it is in */
    _Atomic uint32_t call;           /* pp_flush_calls(); 0: it is out */
    _Atomic uint32_t came, done;     /* how often it has come, and has read what it needs */
} pp_queue_station_t;

#define PP_QUEUE_LEFT UINT64_MAX

/* Before the stations, in the memory of the node. */
typedef struct pp_queue_hall {
    _Alignas(64) _Atomic uint32_t detached;      /* ranks that will not look again */
} pp_queue_hall_t;

/* What this rank has told its machine of an in-neighbour. */
typedef struct pp_queue_seen {
    int64_t published;
    bool    left;
} pp_queue_seen_t;

typedef struct pp_queue {
    pp_handle_t        handle;
    pp_queues_config_t config;       /* its arrays are copies that this object owns */
    char         topology_text[120];
    size_t       count;              /* elements of all pieces */
    size_t       vector_bytes;
    pp_kernels_t kernels;
    pp_queues_t *machine;
    pp_queue_seen_t *seen;

    int64_t      ring;
    size_t       stride;             /* of models in a ring */
    uint64_t     region;             /* offset in the memory of the node */
    void        *alone;              /* P = 1, and no node: the region, in the memory of this process */
    pp_queue_hall_t    *hall;
    pp_queue_station_t *stations;
    _Atomic int64_t    *tags;        /* `ring` entries a rank */
    char        *models;             /* one more a rank, for Flush; NULL: P = 1 */
    bool         committed;          /* this rank's models are */

    uint64_t     left;               /* what this rank's station says */
    bool         gone;               /* what the machine knows */
    int64_t      iteration;          /* of the newest Start */
    pp_queues_action_t due;          /* the average that is due: kind AVERAGE; else NOTHING */
    bool         averaged;           /* that of the request is in the buffers */
    int32_t      collecting;         /* threads of the application that are inside Wait or Test */
    int32_t      workers;            /* threads that average: one at most */
    uint64_t     requests;           /* completed */
    pp_queues_result_t result;       /* of the newest one */
    bool         dropped;            /* a Flush or Free has taken an outstanding request back */
    struct {                         /* Flush and Free */
        uint32_t over;               /* how many are */
        int64_t  newest;             /* the newest iteration of any rank */
        uint32_t calls;              /* those that the ranks are in: pp_flush_calls() */
        bool     came, reads, done;  /* this rank has come; all have, and it reads their models; it has read them */
    } end;
} pp_queue_t;

static inline pp_queue_t *pp_queue_of(const pp_handle_t *handle) { return (pp_queue_t *)handle; }
static inline pp_queue_station_t *pp_queue_mine(const pp_queue_t *q) { return &q->stations[q->handle.engine->rank]; }
static inline int64_t pp_queue_slot(const pp_queue_t *q, int64_t iteration) { return iteration % q->ring; }
static inline _Atomic int64_t *pp_queue_tag(const pp_queue_t *q, int32_t rank, int64_t slot)
{
    return &q->tags[rank * q->ring + slot];
}
static inline char *pp_queue_model(const pp_queue_t *q, int32_t rank, int64_t slot)
{
    return q->models + (size_t)(rank * (q->ring + 1) + slot) * q->stride;
}

/* ---- queue.c ------------------------------------------------------------------------------------------- */

/* PP_ERR_ARGUMENT: a wrong value of the configuration. */
pp_status_t pp_queue_check(const pp_team_t *team, const pp_queues_config_t *config);
pp_status_t pp_queue_new(pp_team_t *team, const pp_queues_config_t *config, pp_handle_t **handle);
bool        pp_is_queue(const pp_handle_t *handle);

/* ---- station.c ----------------------------------------------------------------------------------------- */

/* Tells the machine what the neighbours show. */
void pp_queue_look(pp_queue_t *queue);
/* An event of this rank's own. */
void pp_queue_tell(pp_queue_t *queue, int32_t event);
/* Does what the machine says, until nothing is left but an average; false: there was nothing. */
bool pp_queue_go_on(pp_queue_t *queue);
/* This rank leaves, or is back: `left` as in a station. */
void pp_queue_leave(pp_queue_t *queue, uint64_t left);
/* The request is over, without a result: the machine goes on to the next iteration as if all neighbours had left. */
void pp_queue_drop(pp_queue_t *queue);
/* All ranks go on with this iteration: what was published before is not averaged any more. */
void pp_queue_go_to(pp_queue_t *queue, int64_t iteration);
/* Wakes the ranks that sleep. */
void pp_queue_wake(const pp_queue_t *queue, const int32_t *ranks, int32_t count, bool serve);
void pp_queue_explain(pp_queue_t *queue, pp_text_t *text);

/* ---- mean.c -------------------------------------------------------------------------------------------- */

/* The memory for this rank's models. */
pp_status_t pp_queue_commit(pp_queue_t *queue);
/* Without the lock: the application's elements into the ring, as this rank's model of an iteration. */
void pp_queue_load(const pp_queue_t *queue, int64_t iteration);
/* ... as what it gives to a Flush. */
void pp_queue_load_last(const pp_queue_t *queue);
/* Without the lock: the average that is due into the application's buffers.  -1: done; else the number of a part that
   was overwritten meanwhile. */
int32_t pp_queue_average(const pp_queue_t *queue);
/* The average of the models that ranks give to a Flush, into the buffers. */
void pp_queue_average_all(const pp_queue_t *queue);

/* ---- ends.c -------------------------------------------------------------------------------------------- */

/* Goes on with a Flush or Free; true: there was something. */
bool pp_queue_end(pp_queue_t *queue);
void pp_queue_explain_end(const pp_queue_t *queue, pp_text_t *text);

#endif
