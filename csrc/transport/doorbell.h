/*
 * doorbell.h - the page of bells that the ranks of a node share, and the futex protocol on it (the
 * protocol and why it loses no wake-up: pp_mpi.h).  Knows nothing of MPI: the caller carries the ticket
 * from the rank that made the page to those that open it.
 */
#ifndef PP_TRANSPORT_DOORBELL_H
#define PP_TRANSPORT_DOORBELL_H

#include "../base/shared.h"

#include <stdatomic.h>

/* One rank's bell, a cache line of its own. */
typedef struct pp_bell {
    _Alignas(64)
    _Atomic uint32_t sequence;   /* the futex word; changes with every ring */
    _Atomic uint32_t sleeper;    /* futex bits of who must be woken; 0: somebody polls */
    _Atomic uint32_t announced;  /* messages to this rank that its neighbours have rung for */
    _Atomic uint32_t looked;     /* what was rung up to this sequence has been seen to */
    _Atomic uint32_t received;   /* messages of the neighbours that have been received by then */
    int32_t          rank;       /* whose bell; written once, before the page is agreed on */
} pp_bell_t;

typedef struct pp_doorbell {
    pp_shared_t page;            /* its descriptor: until pp_shared_seal() */
    pp_bell_t  *bells;           /* one for each rank of the node, or only one if private */
} pp_doorbell_t;

/* Makes a page of `count` bells; false, with *ticket zeroed: not possible here. */
bool pp_doorbell_create(pp_doorbell_t *doorbell, int32_t count, pp_shared_ticket_t *ticket);
/* Opens the page of another process; false: not reachable, or not that page. */
bool pp_doorbell_attach(pp_doorbell_t *doorbell, const pp_shared_ticket_t *ticket);
/* A single bell that only this process sees. */
bool pp_doorbell_private(pp_doorbell_t *doorbell);
void pp_doorbell_free(pp_doorbell_t *doorbell);

/* A ring: what its rank has seen when it has seen it. */
typedef struct pp_ring {
    uint32_t sequence, announced;
} pp_ring_t;

/* Announces `messages` messages (0: none, somebody is to look), after they were sent; returns the futex bits
   of who has to be woken. */
uint32_t pp_bell_announce(pp_bell_t *bell, uint32_t messages, pp_ring_t *ring);
/* Whether one of these futex bits has to be woken; for news published (seq_cst) before the call. */
bool     pp_bell_asleep(pp_bell_t *bell, uint32_t bits);
/* True: somebody was woken. */
bool     pp_bell_wake(pp_bell_t *bell, uint32_t bits);
/* Whether the ring needs no wake-up any more: its rank is awake, has looked since, or has received all
   that was announced. */
bool     pp_bell_answered(pp_bell_t *bell, pp_ring_t ring);
/* For the sleeper; the order of the calls is in pp_mpi.h. */
uint32_t pp_bell_sequence(pp_bell_t *bell);
void     pp_bell_set_sleeper(pp_bell_t *bell, uint32_t bits);
void     pp_bell_set_looked(pp_bell_t *bell, uint32_t sequence, uint32_t received);
/* Returns when the sequence differs from `seen`, after timeout_us (< 0: no limit; then true), or early
   (signal, another sleeper's ring): the caller polls and decides again. */
bool     pp_bell_sleep(pp_bell_t *bell, uint32_t bits, uint32_t seen, int64_t timeout_us);

#endif
