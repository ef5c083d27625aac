/*
 * job.h - work on a large vector that is cut into chunks, for the threads that take them: ranks that are inside the
 * library hand the work out among themselves by tickets.
 *
 * A job has a number, so that a late helper cannot take a chunk of the job that comes after it in the same place: its
 * compare-and-swap fails.
 */
#ifndef PP_JOB_H
#define PP_JOB_H

#include "node.h"

enum { PP_CHUNKS_MAX = 65535 };

typedef struct pp_job {
    /* The lower 32 bits of the number, then 16 bits each: the first chunk that is not handed out, and the end of those
       chunks. */
    _Alignas(64) _Atomic uint64_t tickets;
    _Alignas(64) _Atomic uint32_t unfinished;      /* chunks */
} pp_job_t;

/* How a vector is cut into chunks. */
typedef struct pp_cut {
    size_t   chunk_bytes;            /* of all but the last */
    uint32_t chunks;
} pp_cut_t;
/* Cuts a vector for as many ranks. */
pp_cut_t pp_job_cut(const pp_node_t *node, size_t bytes, size_t element_bytes, int32_t ranks);
/* Called before a new plan is written where the last one was. */
void pp_job_begin_plan(const pp_job_t *job);
/* Hands out the chunks of a plan that is written. */
void pp_job_hand_out(pp_job_t *job, uint64_t number, uint32_t chunks);
/* Whether chunks are left; a sleeper's last look. */
bool pp_job_is_open(const pp_job_t *job);
/* Gives a chunk of the job of this number; false: none is left, or the job is over.  `front`: from the front, else from
   the back: in a loop the same data stay near the same core. */
bool pp_job_ticket(pp_job_t *job, uint64_t number, bool front, uint32_t *chunk);
/* The number of the job whose chunks are handed out, its lower 32 bits. */
uint64_t pp_job_number(const pp_job_t *job);
/* A chunk is finished.  True: it was the last one. */
bool pp_job_finished(pp_job_t *job);

#endif
