/*
 * shared.h - memory that processes of one machine share.
 *
 * It is an anonymous memfd, which the other processes open through /proc/<pid>/fd.  It has no name, so it disappears
 * with the last process, however that ends.  This file knows nothing of MPI: the caller carries the ticket from the
 * process that made the memory to those that open it.
 */
#ifndef PP_SHARED_H
#define PP_SHARED_H

#include "base.h"

/* A range of the memory that is free again. */
typedef struct pp_range {
    struct pp_range *next;
    uint64_t offset, bytes;
} pp_range_t;

typedef struct pp_shared {
    void  *memory;             /* NULL: not open */
    size_t bytes, most;        /* mapped in this process; the most that pp_shared_reach() may map */
    int    fd;                 /* -1: sealed */
    int    users;              /* after pp_shared_keep() */
    pp_range_t *given_back;    /* by pp_shared_give_back(), in any thread */
} pp_shared_t;

/* By this another process of the machine finds the memory, and checks that it is the right one. */
typedef struct pp_shared_ticket {
    int64_t  pid, fd;
    uint64_t nonce;            /* 0: there is no memory */
    uint64_t bytes, committed;
    uint64_t numbers;          /* the namespace of process numbers that `pid` is of; 0: unknown */
} pp_shared_ticket_t;

/* The most bytes to which memory may grow in this process: no more than the machine could ever fill, and than the
   limits on address space and files leave.  0: /proc does not say. */
uint64_t pp_shared_room(void);

/* Makes memory whose first PP_SHARED_LABEL bytes identify it; the caller uses what follows.  `committed` bytes, in
   whole pages, are allocated and mapped at once.  The memory may grow to `bytes`; no address space is reserved for
   that, because batch systems count address space as memory.  False: not possible here; errno says why, and *ticket is
   zeroed. */
enum { PP_SHARED_LABEL = 64 };
bool pp_shared_create(pp_shared_t *shared, const char *name, size_t bytes, size_t committed,
                      pp_shared_ticket_t *ticket);
/* Opens another process's memory.  False: this process cannot reach it, it is not that memory, or its maker's process
   numbers are of another namespace. */
bool pp_shared_attach(pp_shared_t *shared, const pp_shared_ticket_t *ticket);
/* Memory that only this process sees. */
bool pp_shared_private(pp_shared_t *shared, size_t bytes);
/* Maps the memory up to `end` in this process, behind what is mapped already.  False: there is no address space.  Each
   process does so before it touches a byte there. */
bool pp_shared_reach(pp_shared_t *shared, size_t end);
/* Allocates the memory of a range.  To touch a byte that is not committed would end the process when memory is short.
   False: the machine has not enough memory, and a part of the range may be committed.  Any process may commit a range,
   also one that is committed. */
bool pp_shared_commit(pp_shared_t *shared, size_t offset, size_t bytes);
/* Gives the memory of a range back; its contents are zero when it is committed again. */
void pp_shared_uncommit(pp_shared_t *shared, size_t offset, size_t bytes);
/* Uncommits a range and keeps it for pp_shared_taken_back().  In any thread. */
void pp_shared_give_back(pp_shared_t *shared, size_t offset, size_t bytes);
/* The ranges given back since the last call; the caller frees them. */
pp_range_t *pp_shared_taken_back(pp_shared_t *shared);
/* Closes the descriptor: all processes have opened the memory, and nothing will be committed any more. */
void pp_shared_seal(pp_shared_t *shared);
void pp_shared_free(pp_shared_t *shared);

/* Moves the memory to the heap, where several parts of this process may use it; it is freed when all have dropped it.
   NULL: there is no heap memory, and the memory is freed at once. */
pp_shared_t *pp_shared_keep(pp_shared_t *shared);
pp_shared_t *pp_shared_use(pp_shared_t *kept);
void         pp_shared_drop(pp_shared_t *kept);      /* NULL is fine */

#endif
