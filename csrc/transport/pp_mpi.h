/*
 * pp_mpi.h - the transport over MPI point-to-point on a private communicator, and the doorbells between
 * the ranks of a node.  The only files that include <mpi.h> are transport/mpi*.[ch] and progress/open.c.
 *
 * Doorbell.  The ranks of a node share a page with one bell a rank: `sequence`, rung by a rank that sent
 * that rank something, and `sleeper`, which says who must be woken by a ring (nobody while a thread
 * of the rank is polling).  Ring: sequence++ (seq_cst), then read sleeper, futex wake if somebody is
 * asleep.  Sleep: read sequence, publish sleeper (seq_cst), poll once more, futex-wait while sequence
 * is unchanged: either the ringer sees the sleeper, or the sleeper sees the ring.  A ring can come before
 * MPI shows the message: a bell also counts what was announced, and while less than that has been
 * received pp_mpi_is_under_way() says so, and nobody may sleep for long.
 * The page is an anonymous memfd, opened by the others through /proc/<pid>/fd, so nothing can be left
 * behind in /dev/shm.  Ranks that cannot open it (another host, another container) are reached by
 * MPI alone, and a rank that has such peers sleeps for bounded times only.
 */
#ifndef PP_TRANSPORT_MPI_H
#define PP_TRANSPORT_MPI_H

#include "../base/shared.h"
#include "../base/nodes.h"
#include "transport.h"

typedef struct pp_mpi pp_mpi_t;

/* Who sleeps on a doorbell.  One application thread may stand in for the progress thread. */
typedef enum pp_sleeper {
    PP_AWAKE = 0,                /* somebody polls: do not wake */
    PP_PROGRESS_ASLEEP = 1,      /* futex bit of the progress thread */
    PP_CALLER_ASLEEP = 2         /* futex bit of a thread inside Wait */
} pp_sleeper_t;

/* Opening, in this order; all of it collective, but for the last, and nothing blocks for ever because a rank has died,
   if its process can be looked up or MPI says so: PP_ERR_PEER_FAILED.  On any failure the transport is abandoned.
   `comm` is the address of an MPI_Comm, which is duplicated. */
pp_status_t pp_mpi_meet(const void *comm, pp_mpi_t **mpi);
/* What each rank says, `bytes` long, by rank; the caller frees it. */
pp_status_t pp_mpi_gather(pp_mpi_t *mpi, const void *mine, size_t bytes, void **all);
/* The worst status of all, with the text of the lowest rank that has it. */
pp_status_t pp_mpi_agree(pp_mpi_t *mpi, pp_status_t status);
/* chunk_bytes: largest single MPI message of a bulk transfer.  node_ranks: see pp_ctx_config_t.  The status is not
   agreed on yet. */
pp_status_t pp_mpi_open(pp_mpi_t *mpi, uint64_t chunk_bytes, int32_t node_ranks);
/* From here on the sink is told. */
void        pp_mpi_opened(pp_mpi_t *mpi);
pp_transport_t *pp_mpi_transport(pp_mpi_t *mpi);
int32_t pp_mpi_neighbours(const pp_mpi_t *mpi);     /* ranks with a shared doorbell, me included */
int32_t pp_mpi_cores(const pp_mpi_t *mpi);          /* that the ranks of the node may use, together; 0: not known */
/* The memory that the neighbours share; NULL: none. */
pp_shared_t *pp_mpi_memory(pp_mpi_t *mpi);
/* Which ranks share memory: those of a node.  NULL: on some node they cannot. */
const pp_nodes_t *pp_mpi_nodes(const pp_mpi_t *mpi);
/* Why the ranks that MPI has on this node share none, for the first of them to say; NULL: nothing to be said. */
const char *pp_mpi_apart(const pp_mpi_t *mpi);
int32_t pp_mpi_neighbour_index(const pp_mpi_t *mpi);                  /* of this rank, 0 .. neighbours - 1 */
int32_t pp_mpi_neighbour_rank(const pp_mpi_t *mpi, int32_t index);
/* Wakes those of a neighbour's `sleepers` (pp_sleeper_t bits) that are asleep; true: somebody was.  For
   news that is in shared memory already: no message is announced. */
bool    pp_mpi_wake(pp_mpi_t *mpi, int32_t index, uint32_t sleepers);
/* Whether a neighbour, or its progress thread, sleeps: nobody of that rank polls. */
bool    pp_mpi_sleeps(const pp_mpi_t *mpi, int32_t index);
int32_t pp_mpi_thread_level(const pp_mpi_t *mpi);   /* 0 single .. 3 multiple */

/* The futex protocol above, for this rank's own doorbell. */
uint32_t pp_mpi_sequence(pp_mpi_t *mpi);
void     pp_mpi_set_sleeper(pp_mpi_t *mpi, pp_sleeper_t sleeper);
/* Sleeps as `sleeper` until the sequence differs from `seen`; true: until timeout_us had passed. */
bool     pp_mpi_sleep(pp_mpi_t *mpi, pp_sleeper_t sleeper, uint32_t seen, int64_t timeout_us);
/* What was rung up to this sequence has been polled for. */
void     pp_mpi_set_looked(pp_mpi_t *mpi, uint32_t sequence);

/* Whether something is under way that only polling moves.  A few parcels that MPI has not reported as sent
   are not: they were eager, and their receivers get them without us. */
bool     pp_mpi_needs_polling(const pp_mpi_t *mpi);
/* The same, or a message that is expected, or a failure that is not told yet: nobody may sleep for long. */
bool     pp_mpi_is_under_way(const pp_mpi_t *mpi);
/* The next poll asks MPI, announced or not: before a sleep nothing that MPI could move is left. */
void     pp_mpi_ask(pp_mpi_t *mpi);
/* Whether the next poll may find a message: one to this rank itself, or one that a neighbour has
   announced and MPI has not shown yet. */
bool     pp_mpi_expects(const pp_mpi_t *mpi);

/* While it defers, a ring does not wake a progress thread at once if its rank has lately come to look
   by itself, as ranks do that call at about the same time: the wake-up costs more than the messages.
   It is owed.  Whoever turns deferring on turns it off before going away or to sleep, which wakes. */
void     pp_mpi_defer(pp_mpi_t *mpi, bool defers);
bool     pp_mpi_owes(pp_mpi_t *mpi);        /* to ranks that have not looked yet */
void     pp_mpi_wake_owed(pp_mpi_t *mpi);

/* Looks whether some of the node's processes live, others each time: a system call or three for each.  If one does
   not, the sink is told, and all ranks. */
void     pp_mpi_look_after(pp_mpi_t *mpi);
/* After a failure: whether every rank that lives has shown that it knows.  Polls, for nobody else does any more. */
bool     pp_mpi_all_told(pp_mpi_t *mpi);

/* Rings this rank's own doorbell: wakes whoever sleeps on it. */
void     pp_mpi_ring_self(pp_mpi_t *mpi);

/* Collective, blocking: completes the standing receives with messages to self, frees the communicator
   and unmaps the page.  Every peer must have sent its last message and this rank received it. */
pp_status_t pp_mpi_close(pp_mpi_t *mpi);
/* Local, for a context that is given up: unmaps, leaves the communicator to MPI_Finalize unless all gave it up in the
   opening. */
void        pp_mpi_abandon(pp_mpi_t *mpi);

#endif
