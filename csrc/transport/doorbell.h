/*
 * doorbell.h - the page of bells that the ranks of a node share, and the futex protocol on it (pp_mpi.h: the protocol,
 * and why it loses no wake-up).  This file knows nothing of MPI: the caller carries the ticket from the rank that made
 * the page to those that open it.
 */
#ifndef PP_TRANSPORT_DOORBELL_H
#define PP_TRANSPORT_DOORBELL_H

#include "../base/shared.h"

#include <stdatomic.h>

/* One rank's bell, on a cache line of its own. */
typedef struct pp_bell {
    _Alignas(64)
    _Atomic uint32_t sequence;   /* the futex word; changes with every ring */
    _Atomic uint32_t sleeper;    /* futex bits of the threads that must be woken; 0: a thread of the rank polls */
    _Atomic uint32_t announced;  /* messages to this rank that its neighbours have rung for */
    _Atomic uint32_t looked;     /* this rank has polled for all rings up to this sequence */
    _Atomic uint32_t received;   /* messages from neighbours that it had received by then */
    int32_t          rank;       /* the bell's rank; written once, before the page is agreed on */
} pp_bell_t;

typedef struct pp_doorbell {
    pp_shared_t page;            /* has its descriptor until pp_shared_seal() */
    pp_bell_t  *bells;           /* one for each rank of the node; only one if private */
} pp_doorbell_t;

/* Makes a page of `count` bells.  False: not possible here; *ticket is zeroed. */
bool pp_doorbell_create(pp_doorbell_t *doorbell, int32_t count, pp_shared_ticket_t *ticket);
/* Opens the page of another process.  False: this process cannot reach it, or it is not that page. */
bool pp_doorbell_attach(pp_doorbell_t *doorbell, const pp_shared_ticket_t *ticket);
/* A single bell that only this process sees. */
bool pp_doorbell_private(pp_doorbell_t *doorbell);
void pp_doorbell_free(pp_doorbell_t *doorbell);

/* What a bell counted when it was rung. */
typedef struct pp_ring {
    uint32_t sequence, announced;
} pp_ring_t;

/* Rings for `messages` messages that were sent before (0: none; the rank is to look).  Returns the futex bits of the
   threads that must be woken. */
uint32_t pp_bell_announce(pp_bell_t *bell, uint32_t messages, pp_ring_t *ring);
/* Whether a thread with one of these futex bits must be woken; for news published (seq_cst) before the call. */
bool     pp_bell_asleep(pp_bell_t *bell, uint32_t bits);
/* True: a thread was woken. */
bool     pp_bell_wake(pp_bell_t *bell, uint32_t bits);
/* Whether the ring no longer needs a wake-up: the rank is awake, has looked since, or has received all messages that
   were announced. */
bool     pp_bell_answered(pp_bell_t *bell, pp_ring_t ring);
/* For the sleeper; the order of the calls is in pp_mpi.h. */
uint32_t pp_bell_sequence(pp_bell_t *bell);
void     pp_bell_set_sleeper(pp_bell_t *bell, uint32_t bits);
void     pp_bell_set_looked(pp_bell_t *bell, uint32_t sequence, uint32_t received);
/* Sleeps until the sequence differs from `seen`, or for timeout_us (< 0: no limit); true: the time was over.  It may
   return early (a signal, another sleeper's ring): the caller polls and decides again. */
bool     pp_bell_sleep(pp_bell_t *bell, uint32_t bits, uint32_t seen, int64_t timeout_us);

#endif
