/*
 * queue.h - queues (Hop) as a kind of handle.
 *
 * A machine (queues/queues.h), in this rank's own memory, decides when the rank averages, with which updates, and when
 * it enters its next iteration.  This room tells the machine of the other ranks, and does what it says.
 *
 * There are two ways: in the memory that all ranks share, and by messages.  What differs is a table of functions,
 * pp_queue_way_t.  Both average in the same order, so they give the same bits.  A rank alone goes by messages.
 *
 * The machine's average is *due* when there is enough of it.  A thread of this rank computes it while the application
 * is inside Wait or Test, since until then the buffers are the application's, which may read them.
 *
 * queue.c     the kind: arguments, what the engine asks
 * driver.c    what the machine is told, and what it says
 * mean.c      models out of the application's buffers, and averages into them
 * station.c   the way in memory
 * messages.c  the way by messages
 */
#ifndef PP_QUEUE_H
#define PP_QUEUE_H

#include "../../queues/queues.h"
#include "../team.h"

#define PP_QUEUE_LEFT UINT64_MAX
enum { PP_QUEUE_OWN = -1 };          /* in place of an in-neighbour: this rank */

typedef struct pp_queue pp_queue_t;

/* The model of an operand of a weighted sum, and its weight; NULL: there is none. */
typedef const char *(*pp_queue_operand_t)(const pp_queue_t *, int32_t operand, double *weight);

typedef struct pp_queue_way {
    pp_handle_ops_t handle;
    pp_status_t (*open)(pp_queue_t *, const pp_agreed_t *);
    void        (*close)(pp_queue_t *);              /* of what open() began, too */

    /* Tells the machine what is new of the neighbours. */
    void        (*look)(pp_queue_t *);
    /* Does what the machine says that concerns neighbours. */
    void        (*show)(pp_queue_t *, const pp_queues_action_t *);
    /* This rank had left, and now has for another reason: `left` has changed. */
    void        (*show_left)(pp_queue_t *);

    /* Makes room for the model of `iteration`; then, without the lock, copies the application's elements there. */
    pp_status_t (*make_room)(pp_queue_t *);
    void        (*load)(const pp_queue_t *);
    /* A model that the average takes, of an in-neighbour or PP_QUEUE_OWN. */
    const char *(*model)(const pp_queue_t *, int32_t in, int64_t iteration);
    /* The number of a part that is not there any more; -1: all are. */
    int32_t     (*find_gone)(const pp_queue_t *);

    /* What this rank gives to a Flush: what its buffers have, or the model of its Start. */
    pp_status_t (*give)(pp_queue_t *, bool start);
    /* Goes on with a Flush or Free; true: there was something. */
    bool        (*end)(pp_queue_t *);
    /* Without the lock: the average of the models that ranks give to a Flush, into the buffers. */
    void        (*average_all)(const pp_queue_t *);
    void        (*explain_end)(const pp_queue_t *, pp_text_t *);
} pp_queue_way_t;

/* What this rank has told its machine of a neighbour. */
typedef struct pp_queue_seen {
    int64_t published;               /* in memory, of an in-neighbour */
    bool    left;
} pp_queue_seen_t;

struct pp_queue {
    pp_handle_t        handle;
    const pp_queue_way_t *way;       /* NULL: not open yet */
    pp_queues_config_t config;       /* its arrays are copies that this object owns */
    char         topology_text[160];
    size_t       count;              /* elements of all pieces */
    size_t       vector_bytes;
    pp_kernels_t kernels;
    pp_queues_t *machine;
    pp_queue_seen_t *seen;           /* in-neighbours, then out-neighbours */

    uint64_t     left;               /* 0: this rank is here; PP_QUEUE_LEFT: it has left; else it is inside the
                                        collective call of this number, counted from 1 */
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
        bool     came, reads, done;  /* this rank has come; all have, and it averages models; it has what it needs */
    } end;

    union {
        struct pp_queue_shared *shared;  /* station.c */
        struct pp_queue_mail   *mail;    /* messages.c */
    };
};

static inline pp_queue_t *pp_queue_of(const pp_handle_t *handle) { return (pp_queue_t *)handle; }

/* ---- queue.c ------------------------------------------------------------------------------------------- */

/* PP_ERR_ARGUMENT: a wrong value of the configuration. */
pp_status_t pp_queue_check(const pp_team_t *team, const pp_queues_config_t *config);
pp_status_t pp_queue_new(pp_team_t *team, const pp_queues_config_t *config, pp_handle_t **handle);
bool        pp_is_queue(const pp_handle_t *handle);

/* ---- driver.c ------------------------------------------------------------------------------------------ */

/* The place of a rank in a list; -1: it is not there. */
int32_t     pp_queue_find(const int32_t *ranks, int32_t count, int32_t rank);
/* An event of this rank's own; of a neighbour. */
void        pp_queue_tell(pp_queue_t *queue, int32_t event);
void        pp_queue_tell_of(pp_queue_t *queue, int32_t event, int32_t neighbour, int64_t iteration);
/* A neighbour has said that it has left: as `left`.  One that is inside a call which is over for this rank has only not
   noticed yet. */
bool        pp_queue_has_left(const pp_queue_t *queue, uint64_t left);
/* Does what the machine says, until nothing is left but an average; false: there was nothing. */
bool        pp_queue_go_on(pp_queue_t *queue);
/* This rank leaves, or is back. */
void        pp_queue_leave(pp_queue_t *queue, uint64_t left);
/* The request is over, without a result: the machine goes on to the next iteration as if all neighbours had left. */
void        pp_queue_drop(pp_queue_t *queue);
/* A Flush or Free is over.  All ranks go on beyond the newest iteration: what was sent before is averaged no more. */
void        pp_queue_finish(pp_queue_t *queue);

/* What all ways answer the engine. */
bool        pp_queue_has_work(const pp_handle_t *handle);
void        pp_queue_begin_work(pp_handle_t *handle, bool *lands);
bool        pp_queue_work(pp_handle_t *handle, bool lands, uint64_t *job);
void        pp_queue_worked(pp_handle_t *handle, uint64_t job, bool last);
void        pp_queue_explain(pp_handle_t *handle, pp_text_t *text);
#define PP_QUEUE_PARTS                                                                                    \
    .has_work = pp_queue_has_work, .begin_work = pp_queue_begin_work, .work = pp_queue_work,              \
    .worked = pp_queue_worked, .explain = pp_queue_explain

/* ---- mean.c -------------------------------------------------------------------------------------------- */

/* The application's elements. */
void        pp_queue_load(const pp_queue_t *queue, char *model);
/* The weighted sum of the operands, from left to right, into the application's buffers. */
void        pp_queue_sum(const pp_queue_t *queue, int32_t count, pp_queue_operand_t operand);
/* Without the lock: the average that is due into the application's buffers.  -1: done; else the number of a part that
   was not there any more. */
int32_t     pp_queue_average(const pp_queue_t *queue);

/* ---- the ways ------------------------------------------------------------------------------------------ */

extern const pp_queue_way_t pp_queue_in_memory, pp_queue_by_messages;
/* The region of the node's memory for a handle; 0: there is none. */
uint64_t    pp_queue_reserve(pp_handle_t *handle);
void        pp_queue_unreserve(pp_handle_t *handle, uint64_t region);

#endif
