/*
 * pp_mpi.h - the transport over MPI point-to-point on a private communicator, and the doorbells between the ranks of a
 * node.  The only files that include <mpi.h> are transport/mpi*.[ch] and progress/open.c.
 *
 * Doorbell.  The ranks of a node share a page with one bell a rank.  A sender increments the receiver's `sequence`;
 * the receiver's `sleeper` says which of its threads a ring must wake: none while a thread of that rank polls.
 *   Ring: sequence++ (seq_cst), then read sleeper, and futex-wake the threads that are asleep.
 *   Sleep: read sequence, publish sleeper (seq_cst), poll once more, and futex-wait while sequence is unchanged.
 * Either the ringer sees the sleeper, or the sleeper sees the ring.  A ring can come before MPI shows the message.  So
 * a bell also counts the announced messages; while fewer have been received, pp_mpi_is_under_way() is true, and no
 * thread of the rank may sleep for long. The page is an anonymous memfd, which the other ranks open through
 * /proc/<pid>/fd, so nothing can be left behind in /dev/shm.  Ranks that cannot open it (on another host, in another
 * container) are reached by MPI alone, and a rank that has such peers sleeps for bounded times only.
 */
#ifndef PP_TRANSPORT_MPI_H
#define PP_TRANSPORT_MPI_H

#include "../base/shared.h"
#include "../base/nodes.h"
#include "transport.h"

typedef struct pp_mpi pp_mpi_t;

/* Which thread sleeps on a doorbell.  An application thread may stand in for the progress thread. */
typedef enum pp_sleeper {
    PP_AWAKE = 0,                /* a thread polls: do not wake any */
    PP_PROGRESS_ASLEEP = 1,      /* futex bit of the progress thread */
    PP_CALLER_ASLEEP = 2         /* futex bit of a thread inside Wait */
} pp_sleeper_t;

/* The opening, in this order: meet, gather and agree, open, opened.  All but the last are collective.  They wait for
   other ranks, but not for ever if a rank dies: they return PP_ERR_PEER_FAILED if its process can be looked up or MPI
   reports the death.  After any failure the caller abandons the transport.  `comm` is the address of an MPI_Comm,
   which is duplicated. */
pp_status_t pp_mpi_meet(const void *comm, pp_mpi_t **mpi);
/* *all gets what each rank gave, `bytes` a rank, in the order of ranks; the caller frees it. */
pp_status_t pp_mpi_gather(pp_mpi_t *mpi, const void *mine, size_t bytes, void **all);
/* The worst status of all ranks, with the text of the lowest rank that has it. */
pp_status_t pp_mpi_agree(pp_mpi_t *mpi, pp_status_t status);
/* chunk_bytes: the largest single MPI message of a bulk transfer.  node_ranks: see pp_ctx_config_t.  The ranks have yet
   to agree on the status. */
pp_status_t pp_mpi_open(pp_mpi_t *mpi, uint64_t chunk_bytes, int32_t node_ranks);
/* Local.  From here on the sink is told of failures. */
void        pp_mpi_opened(pp_mpi_t *mpi);
/* For a process that has initialised MPI alone: sends `bytes` at `send` to itself, and reduces them as floats over itself.
   No instruction of this process touches the three buffers, unless MPI's does: that may end the process. */
pp_status_t pp_mpi_self_test(void *send, void *receive, void *sum, size_t bytes);
/* Blocking: the vectors of all ranks of a communicator become their sum.  They hold float32 or float64, and the host
   need not be able to touch them if MPI can.  `comm` is the address of an MPI_Comm whose errors are returned. */
pp_status_t pp_mpi_sum(const void *comm, void *vector, size_t count, size_t element_bytes);
pp_transport_t *pp_mpi_transport(pp_mpi_t *mpi);
int32_t pp_mpi_neighbours(const pp_mpi_t *mpi);     /* ranks with a shared doorbell, this one included */
int32_t pp_mpi_cores(const pp_mpi_t *mpi);          /* that the ranks of the node may use, together; 0: not known */
/* The memory that the neighbours share; NULL: none. */
pp_shared_t *pp_mpi_memory(pp_mpi_t *mpi);
/* The nodes: the ranks of a node share memory.  NULL: on some node they cannot. */
const pp_nodes_t *pp_mpi_nodes(const pp_mpi_t *mpi);
/* Why the ranks that MPI has on this node share no memory; only the first of them gets the text.  NULL: nothing to
   say. */
const char *pp_mpi_apart(const pp_mpi_t *mpi);
int32_t pp_mpi_neighbour_index(const pp_mpi_t *mpi);                  /* this rank's, 0 .. neighbours - 1 */
int32_t pp_mpi_neighbour_rank(const pp_mpi_t *mpi, int32_t index);
/* Wakes those threads of a neighbour in `sleepers` (pp_sleeper_t bits) that are asleep; true: one was.  For news that
   is in shared memory already: no message is announced. */
bool    pp_mpi_wake(pp_mpi_t *mpi, int32_t index, uint32_t sleepers);
/* Whether no thread of a neighbour polls: its caller or its progress thread sleeps. */
bool    pp_mpi_sleeps(const pp_mpi_t *mpi, int32_t index);
int32_t pp_mpi_thread_level(const pp_mpi_t *mpi);   /* 0 single .. 3 multiple */

/* The futex protocol above, for this rank's own doorbell. */
uint32_t pp_mpi_sequence(pp_mpi_t *mpi);
void     pp_mpi_set_sleeper(pp_mpi_t *mpi, pp_sleeper_t sleeper);
/* Sleeps as `sleeper` until the sequence differs from `seen`, or for timeout_us; true: the time was over. */
bool     pp_mpi_sleep(pp_mpi_t *mpi, pp_sleeper_t sleeper, uint32_t seen, int64_t timeout_us);
/* This rank has polled for all rings up to this sequence. */
void     pp_mpi_set_looked(pp_mpi_t *mpi, uint32_t sequence);

/* Whether something is under way that only polling moves.  A few parcels that MPI has not reported as sent do not
   count: they were eager, and their receivers get them without this rank. */
bool     pp_mpi_needs_polling(const pp_mpi_t *mpi);
/* The same, or a message is expected, or a failure is not told yet: no thread may sleep for long. */
bool     pp_mpi_is_under_way(const pp_mpi_t *mpi);
/* Makes the next poll ask MPI even if no message was announced: before a sleep nothing must be left that MPI could
   move. */
void     pp_mpi_ask(pp_mpi_t *mpi);
/* Whether the next poll may find a message: one to this rank itself, or one that a neighbour has announced and MPI has
   not shown yet. */
bool     pp_mpi_expects(const pp_mpi_t *mpi);

/* While this rank defers, a ring does not at once wake the progress thread of a rank that has lately come to look by
   itself, as ranks do that call at about the same time: the wake-up costs more than the messages.  This rank then owes
   the wake-up.  The thread that turns deferring on turns it off before it goes away or to sleep; that wakes. */
void     pp_mpi_defer(pp_mpi_t *mpi, bool defers);
bool     pp_mpi_owes(pp_mpi_t *mpi);        /* to ranks that have not looked yet */
void     pp_mpi_wake_owed(pp_mpi_t *mpi);

/* Looks whether some of the node's processes live, others each time; each costs one to three system calls.  If one has
   died, the sink and all ranks are told. */
void     pp_mpi_look_after(pp_mpi_t *mpi);
/* After a failure: whether every rank that lives has shown that it knows.  Polls, because no other function does any
   more. */
bool     pp_mpi_all_told(pp_mpi_t *mpi);
/* Polls; whether no payload of this rank is on its way to others.  True after a failure. */
bool     pp_mpi_has_sent(pp_mpi_t *mpi);

/* Rings this rank's own doorbell: wakes the threads that sleep on it. */
void     pp_mpi_ring_self(pp_mpi_t *mpi);

/* Collective, blocking: completes the standing receives with messages to this rank itself, frees the communicator and
   unmaps the page.  Every peer must have sent its last message, and this rank must have received it. */
pp_status_t pp_mpi_close(pp_mpi_t *mpi);
/* Local; for a context that is given up.  Unmaps the page, and leaves the communicator to MPI_Finalize; if all ranks
   gave up the opening, it frees the communicator. */
void        pp_mpi_abandon(pp_mpi_t *mpi);

#endif
