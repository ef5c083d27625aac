/*
 * shared.h - memory that processes of one machine share.
 *
 * It is an anonymous memfd, opened by the others through /proc/<pid>/fd: nothing of it has a name, so
 * nothing can be left behind, whatever becomes of the processes.  Knows nothing of MPI: the caller carries
 * the ticket from the process that made the memory to those that open it.
 */
#ifndef PP_SHARED_H
#define PP_SHARED_H

#include "base.h"

/* A range that nobody uses any more. */
typedef struct pp_range {
    struct pp_range *next;
    uint64_t offset, bytes;
} pp_range_t;

typedef struct pp_shared {
    void  *memory;             /* NULL: not open */
    size_t bytes, most;        /* mapped here, and what pp_shared_reach() may make of it */
    int    fd;                 /* -1: sealed */
    int    users;              /* of a pp_shared_keep() */
    pp_range_t *given_back;    /* by pp_shared_give_back(), from any thread */
} pp_shared_t;

/* How another process of the machine finds the memory, and knows that it is the right one. */
typedef struct pp_shared_ticket {
    int64_t  pid, fd;
    uint64_t nonce;            /* 0: there is no memory */
    uint64_t bytes, committed;
    uint64_t numbers;          /* what process numbers `pid` is one of; 0: unknown */
} pp_shared_ticket_t;

/* The most that memory which grows may be told to become in this process: no more than the machine could ever
   fill, and than limits on address space and files leave.  0: /proc does not say. */
uint64_t pp_shared_room(void);

/* Makes memory of which the first PP_SHARED_LABEL bytes are taken: they identify it.  `committed` bytes of it are
   there and mapped at once; it may grow to `bytes`, of which nothing is reserved: batch systems count address space
   as memory.  False, with *ticket zeroed: not possible here, for the reason in errno. */
enum { PP_SHARED_LABEL = 64 };
bool pp_shared_create(pp_shared_t *shared, const char *name, size_t bytes, size_t committed,
                      pp_shared_ticket_t *ticket);
/* Opens another process's memory; false: not reachable, not that memory, or of a process that is not known here by
   the number it has for itself. */
bool pp_shared_attach(pp_shared_t *shared, const pp_shared_ticket_t *ticket);
/* Memory that only this process sees. */
bool pp_shared_private(pp_shared_t *shared, size_t bytes);
/* Maps all up to `end` in this process, behind what is mapped; false: there is no address space.  Every process that
   looks at something has to reach it first. */
bool pp_shared_reach(pp_shared_t *shared, size_t end);
/* Memory is there for the range: touching what is not committed would end the process when memory is short.
   False: there is not so much memory.  What is committed stays so; any process may ask. */
bool pp_shared_commit(pp_shared_t *shared, size_t offset, size_t bytes);
/* Gives the memory of a range back; its contents are zero when it is committed again. */
void pp_shared_uncommit(pp_shared_t *shared, size_t offset, size_t bytes);
/* Uncommits a range, and keeps it for pp_shared_taken_back(); from any thread. */
void pp_shared_give_back(pp_shared_t *shared, size_t offset, size_t bytes);
/* The ranges given back since the last call; the caller frees them. */
pp_range_t *pp_shared_taken_back(pp_shared_t *shared);
/* Nothing is committed any more, and everybody has opened it: closes the descriptor. */
void pp_shared_seal(pp_shared_t *shared);
void pp_shared_free(pp_shared_t *shared);

/* Memory on the heap with several users in this process: what pp_shared_t's own functions opened is moved
   there, and freed when all have dropped it.  NULL: no memory, and it is freed at once. */
pp_shared_t *pp_shared_keep(pp_shared_t *shared);
pp_shared_t *pp_shared_use(pp_shared_t *kept);
void         pp_shared_drop(pp_shared_t *kept);      /* NULL is fine */

#endif
