#define _GNU_SOURCE              /* syscall */
#include "doorbell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(pp_bell_t) == PP_SHARED_LABEL, "the bells start on a cache line of their own");
_Static_assert(sizeof(_Atomic uint32_t) == 4, "a futex word has 4 bytes");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "the atomics are shared between processes");

static size_t page_bytes(int32_t count)
{
    return PP_SHARED_LABEL + (size_t)count * sizeof(pp_bell_t);
}

static bool opened(pp_doorbell_t *doorbell, bool is)
{
    doorbell->bells = is ? (pp_bell_t *)((char *)doorbell->page.memory + PP_SHARED_LABEL) : NULL;
    return is;
}

bool pp_doorbell_create(pp_doorbell_t *doorbell, int32_t count, pp_shared_ticket_t *ticket)
{
    size_t bytes = page_bytes(count);
    return opened(doorbell, pp_shared_create(&doorbell->page, "pypartial-doorbell", bytes, bytes, ticket));
}

bool pp_doorbell_attach(pp_doorbell_t *doorbell, const pp_shared_ticket_t *ticket)
{
    return opened(doorbell, pp_shared_attach(&doorbell->page, ticket));
}

bool pp_doorbell_private(pp_doorbell_t *doorbell)
{
    return opened(doorbell, pp_shared_private(&doorbell->page, page_bytes(1)));
}

void pp_doorbell_free(pp_doorbell_t *doorbell)
{
    pp_shared_free(&doorbell->page);
    doorbell->bells = NULL;
}

uint32_t pp_bell_announce(pp_bell_t *bell, uint32_t messages, pp_ring_t *ring)
{
    /* relaxed: the sequence publishes it, and a rank that compares the count has read the sequence before. */
    ring->announced =
        atomic_fetch_add_explicit(&bell->announced, messages, memory_order_relaxed) + messages;
    /* Both seq_cst.  In the single order of such accesses either this load comes after the sleeper's store, and the
       sleeper is woken, or the addition comes before the sleeper's comparison, and it does not sleep.  The addition
       also releases the message to the thread that reads the new sequence. */
    ring->sequence = atomic_fetch_add_explicit(&bell->sequence, 1, memory_order_seq_cst) + 1;
    return atomic_load_explicit(&bell->sleeper, memory_order_seq_cst);
}

bool pp_bell_asleep(pp_bell_t *bell, uint32_t bits)
{
    /* seq_cst, as in pp_bell_announce(), with the published news in place of the sequence. */
    return atomic_load_explicit(&bell->sleeper, memory_order_seq_cst) & bits;
}

bool pp_bell_wake(pp_bell_t *bell, uint32_t bits)
{
    if (bits == 0)
        return false;
    /* Not FUTEX_PRIVATE: the word is shared between processes. */
    return syscall(SYS_futex, &bell->sequence, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, bits) > 0;
}

bool pp_bell_answered(pp_bell_t *bell, pp_ring_t ring)
{
    /* seq_cst, as in pp_bell_announce().  A rank that is awake compares the sequence once more after it has published
       that it sleeps, so it cannot miss what was announced before this load. */
    if (atomic_load_explicit(&bell->sleeper, memory_order_seq_cst) == 0)
        return true;
    /* A message can be received before its ring, and then its receiver does not look again.  The counts are of all
       neighbours together: if this rank's message was not received, but one that another neighbour has not announced
       yet was, then that neighbour will find its ring not answered. */
    uint32_t looked = atomic_load_explicit(&bell->looked, memory_order_relaxed);
    uint32_t received = atomic_load_explicit(&bell->received, memory_order_relaxed);
    return (int32_t)(looked - ring.sequence) >= 0 || (int32_t)(received - ring.announced) >= 0;
}

uint32_t pp_bell_sequence(pp_bell_t *bell)
{
    /* acquire: messages sent before a ring that is counted here are visible to the next poll.  seq_cst: a rank that
       goes away loads the sequence after it has stored the sleeper. */
    return atomic_load_explicit(&bell->sequence, memory_order_seq_cst);
}

void pp_bell_set_sleeper(pp_bell_t *bell, uint32_t bits)
{
    /* seq_cst: visible before the poll and the comparison that follow, see pp_bell_announce().  Waking up needs no
       order: a ringer that still sees the sleeper only makes a needless call. */
    atomic_store_explicit(&bell->sleeper, bits, bits ? memory_order_seq_cst : memory_order_relaxed);
}

void pp_bell_set_looked(pp_bell_t *bell, uint32_t sequence, uint32_t received)
{
    /* relaxed: these only save a wake-up. */
    atomic_store_explicit(&bell->looked, sequence, memory_order_relaxed);
    atomic_store_explicit(&bell->received, received, memory_order_relaxed);
}

bool pp_bell_sleep(pp_bell_t *bell, uint32_t bits, uint32_t seen, int64_t timeout_us)
{
    static const int64_t forever_us = INT64_C(1000000) * 3600 * 24 * 365;
    struct timespec      until, *limit = NULL;
    if (timeout_us >= 0 && timeout_us < forever_us) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(timeout_us % 1000000) * 1000;
        until.tv_sec += (time_t)(timeout_us / 1000000 + until.tv_nsec / 1000000000);
        until.tv_nsec %= 1000000000;
        limit = &until;
    }
    /* WAIT_BITSET takes the absolute time on CLOCK_MONOTONIC, and wakes only for these bits. */
    return syscall(SYS_futex, &bell->sequence, FUTEX_WAIT_BITSET, seen, limit, NULL, bits) < 0
        && errno == ETIMEDOUT;
}
