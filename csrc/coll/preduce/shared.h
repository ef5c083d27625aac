/* shared.h - groups in the memory that all ranks share: what the files of this way have in common.  See shared.c. */
#ifndef PP_SHARED_GROUPS_H
#define PP_SHARED_GROUPS_H

#include "../../node/job.h"
#include "../../node/mean.h"
#include "preduce.h"

enum { PP_LINE = 64 };

/* Written under the lock, but for what is atomic; a job's plan is read by the threads that hold its tickets. */
typedef struct pp_desk {
    /* One cache line: all that a small group and its members look at. */
    _Alignas(PP_LINE) _Atomic uint64_t answered;   /* requests that are complete */
    _Atomic uint32_t flushes, ends;                /* flushes, and ends of the handle, that are complete */
    _Atomic uint32_t awaited;                      /* how often a rank has said that it waits for this one */
    int32_t  count;                                /* of the members in the answer; 0: alone */
    /* The newest large job that the rank is in: the lower 32 bits of its number, then those of its desk. */
    _Atomic uint64_t joins;
    uint64_t serial;
    uint64_t newest;                               /* of the last group that the rank was in, with an answer or not */
    double   initial;
    uint64_t vector;                               /* offset, or number in a vault: what groups average */

    pp_job_t job;
    struct pp_job_plan {
        uint64_t serial, newest;
        int32_t  count;
        uint32_t chunks;
        uint64_t chunk_bytes;
        double   initial;
        int32_t  served;                           /* of a large job: the member whose progress thread is woken for it */
        bool     flush;
    } plan;
} pp_desk_t;

typedef struct pp_hall {
    _Alignas(PP_LINE) _Atomic uint32_t detached;   /* ranks that will not look again */
    _Atomic uint64_t differ;                       /* 1 << 62 | rank << 31 | other; 0: none do */
} pp_hall_t;

/* A job that is done by one rank, or whose last chunk is finished: in that rank's own memory. */
typedef struct pp_own_job {
    struct pp_job_plan plan;
    int32_t  *members;
    double   *weights;
    uint64_t *vectors, *adds, *results;
} pp_own_job_t;

/* Small jobs that this rank has begun, the newest last.  A rank runs one group at a time, so together they have no more
   members than there are ranks. */
typedef struct pp_small_jobs {
    int32_t count, entries;
    struct pp_job_plan *plans;
    int32_t  *members;                             /* an entry a member of each, like the next */
    double   *weights;
    uint64_t *adds, *results;
} pp_small_jobs_t;

/*
 * What a kind that is built on P-Reduce (coll/gossip) has to itself.  A rank's *model* stays in the memory of the node:
 * groups average it whether the rank asks or not.  All functions are called under the lock.
 */
typedef struct pp_group_models {
    uint64_t vectors;                /* of each rank in the memory of the node; the first is the model */
    size_t   seat_bytes;             /* what the kind has there of each rank, in whole cache lines; zero at first.  A rank
                                        has a group by itself then, of the number of the rank + 1, until it tells the
                                        machine that it has finished it: its model is being made */
    /* A group, or a flush, begins.  Fills by member what pp_mean_t says.  False: it is no job. */
    bool (*begin)(pp_preduce_t *preduce, const pp_groups_action_t *action, uint64_t *adds, uint64_t *results);
    /* A rank's request is complete.  False: it waits for no answer. */
    bool (*complete)(pp_preduce_t *preduce, int32_t rank);
    /* Opens a handle that has no memory of a node. */
    pp_status_t (*open)(pp_preduce_t *preduce);
} pp_group_models_t;

/* ---- vectors on devices (on_device.c) ------------------------------------------------------------------------- */

/* A rank's vectors in a vault: its model, and one from which its last result may still be read. */
enum { PP_GROUP_VECTORS = 2 };

/*
 * The ranks' vectors are in the memory of devices that all have mapped (progress/vault_groups.c), and groups average
 * them there, in place, as in the memory of the node.
 *
 * The rank that begins a group's job launches it at once, as a member or not, and tells the machine when its device has
 * done it.  So no other rank is needed, and there are no chunks.  This rank finds out when it polls; until then its
 * threads look often, and without a progress thread it waits.  What it begins meanwhile is launched then.
 */
typedef struct pp_group_vault {
    uint64_t *vectors;               /* addresses here: PP_GROUP_VECTORS for each rank */
    uint64_t *initials;              /* by rank: its initial model */
    /* Queues an average of vectors at addresses. */
    pp_status_t (*queue)(struct pp_group_vault *, const pp_mean_t *mean);
    /* The last of some averages was queued. */
    pp_status_t (*begin)(struct pp_group_vault *);
    /* PP_PENDING: the device has not done all that was queued. */
    pp_status_t (*over)(struct pp_group_vault *);
} pp_group_vault_t;

/* The handle's memory of the node.  The last rank that leaves it gives it back. */
typedef struct pp_group_region {
    pp_node_t *node;
    pp_hall_t *hall;
    uint64_t   offset, bytes;
    void      *offers;               /* handle.offer_bytes for each rank */
} pp_group_region_t;

void pp_group_region_leave(const pp_group_region_t *region);

struct pp_shared_groups {
    pp_node_t   *node;
    pp_group_region_t region;
    int32_t      ranks, me;
    pp_hall_t   *hall;
    pp_groups_t *machine;
    pp_group_vault_t *vault;                       /* it leaves the region; NULL: vectors are in the region */
    pp_desk_t   *desks;
    int32_t     *answer_members, *job_members;     /* a row of `ranks` entries a desk, like the next */
    double      *answer_weights, *job_weights;
    uint64_t    *job_vectors, *job_adds, *job_results;       /* the last two: with models only */
    uint64_t     vectors, initials;                /* offsets */
    size_t       stride, each;                     /* bytes from a vector of a rank to its next, and to those of the next
                                                      rank */
    char        *seats;                            /* of `models` */
    bool         weighted;                         /* weights are not always equal: answers say them */
    uint64_t     user;                             /* offset of the application's buffer, if it is in the memory of the
                                                      node; 0: it is not */
    void        *kept;                             /* that array's keeper, or NULL */
    bool         committed;
    uint64_t     answered;                         /* what this rank has seen */
    uint32_t     flushes, ends, awaited;
    int32_t     *missing;                          /* ranks that this rank waits for, while it tells them */
    pp_small_jobs_t small;
    int32_t     *begun, begun_count;               /* desks with large jobs that are this rank's to hand out */
    int32_t     *handed, handed_count;             /* desks with large jobs that it has handed out in this call */
    int32_t     *launched, launched_count;         /* desks with jobs that its device does */
    bool        *wakes, any_wakes;                 /* by rank: to be woken after the lock is released */
    pp_own_job_t job;                              /* the one that is being done, or was finished last */
    int32_t      workers;                          /* threads of this rank that move chunks */
};

typedef struct pp_shared_groups shared_t;

/* Where the entries of a desk begin in the arrays that have a row a desk. */
static inline size_t pp_desk_row(const shared_t *shared, int32_t desk) { return (size_t)desk * (size_t)shared->ranks; }

/* The offset of a rank's vectors. */
static inline uint64_t pp_vectors_of(const shared_t *shared, int32_t rank)
{
    return shared->vectors + (uint64_t)rank * shared->each;
}

/* ---- jobs.c: under the lock, but for what follows ------------------------------------------------------------ */

/* Room for the jobs of this many ranks, in this process's memory.  False: no memory; pp_jobs_close() is called anyway. */
bool        pp_jobs_open(shared_t *shared, size_t ranks);
void        pp_jobs_close(shared_t *shared);

/* Tells the machine of an event, and begins the jobs and gives the answers that follow. */
pp_status_t pp_jobs_event(pp_preduce_t *preduce, int32_t what, int32_t rank, uint64_t number, uint64_t now_ns);
/* Hears the actions of the machine. */
pp_groups_hearer_t pp_jobs_hearer(pp_preduce_t *preduce);
/* Does the small jobs that this rank has begun, and those that begin thereby.  False: there was none. */
bool        pp_jobs_do_small(pp_preduce_t *preduce, uint64_t now_ns);
/* The large job of this desk is done: tells the machine for all members. */
void        pp_jobs_finish(pp_preduce_t *preduce, int32_t at, uint64_t now_ns);

/* After the lock was released: hands out the large jobs that have begun (without a vault), and wakes the ranks that wait
   for what was done.  `serves`: this rank does not stay to work at them, so the progress thread of a member is woken. */
void        pp_jobs_follow_up(pp_preduce_t *preduce, bool serves);
/* Whether so many bytes may be moved under the lock. */
bool        pp_jobs_are_small(const shared_t *shared, size_t bytes);
/* The rank has an answer, and is woken after the lock is released. */
void        pp_jobs_answer(shared_t *shared, int32_t rank);
/* Without any lock: whether chunks are left of the job of this rank's group.  A rank takes no chunk of a group that it is
   not in, so those groups go on if its process is stopped. */
bool        pp_jobs_any(const shared_t *shared);
/* Without any lock: moves chunks of a job until none is left.  True: this rank has finished its last one. */
bool        pp_jobs_work(pp_handle_t *handle, bool lands, uint64_t *job);
/* Whether the weights of a job are not equal. */
static inline bool pp_job_is_weighted(const pp_preduce_t *preduce, const struct pp_job_plan *plan)
{
    return preduce->config.plan.weights != PP_WEIGHTS_CONSTANT && !plan->flush;
}

/* ---- on_device.c: after the lock was released, with a vault --------------------------------------------------- */

/* Launches the jobs that have begun, unless the device has others to do. */
void        pp_averages_launch(pp_preduce_t *preduce);
/* Whether the device has done those that were launched. */
bool        pp_averages_over(pp_preduce_t *preduce);
/* Under the lock: tells the machine of them. */
void        pp_averages_finish(pp_preduce_t *preduce, uint64_t now_ns);

#endif
