/* mpi.c - poll, ring and clock, and the release of the transport over MPI.  See pp_mpi.h. */
#include "mpi_parts.h"

#include <time.h>

enum {
    POLLS_SKIPPED_MAX = 256,
    PARCELS_OUT_COLLECTED = 8,                    /* with so many out, the oldest have long been received */
    RINGS_WITHOUT_HOPE = 32                       /* rings that wake a neighbour at once, before the next trial */
};

/* ---- poll, ring, clock ---------------------------------------------------------------------- */

/* Whether this poll tests the outstanding requests.  Parcels are tested several at a time, or when there is nothing
   else to do: a test of the last one alone, before its receiver has come to it, is a useless progress pass. */
static bool collects(const pp_mpi_t *mpi, int events)
{
    return pp_mpi_needs_polling(mpi) || mpi->parcels_out >= PARCELS_OUT_COLLECTED
        || (events == 0 && mpi->outstanding > 0);
}

static int poll_mpi(pp_transport_t *transport)
{
    pp_mpi_t *mpi = (pp_mpi_t *)transport;
    int       events = 0;
    if (pp_mpi_nothing_announced(mpi) && mpi->polls_skipped++ < POLLS_SKIPPED_MAX)
        return 0;
    mpi->polls_skipped = 0;
    if (mpi->failure == PP_OK && mpi->letters)
        events += pp_mpi_deliver_own(mpi);
    if (mpi->failure == PP_OK)
        events += pp_mpi_deliver_received(mpi);
    if (mpi->failure == PP_OK && collects(mpi, events))
        events += pp_mpi_advance(mpi);
    if (mpi->failure != PP_OK)
        return events + pp_mpi_tell_sink(mpi);
    transport->bulk_in_flight =
        mpi->outstanding > 0 || mpi->letters || pp_mpi_announced_not_received(mpi);
    return events;
}

static void owe(pp_mpi_t *mpi, int32_t bell, pp_ring_t ring)
{
    neighbour_t *neighbour = &mpi->neighbours[bell];
    if (!neighbour->owed)
        mpi->to_wake[mpi->to_wake_count++] = bell;
    neighbour->owed = true;
    neighbour->owed_ring = ring;
}

static void ring(pp_transport_t *transport)
{
    pp_mpi_t *mpi = (pp_mpi_t *)transport;
    pp_mpi_post_parcels(mpi);
    for (int32_t i = 0; i < mpi->to_ring_count; i++) {
        int32_t      bell = mpi->to_ring[i];
        neighbour_t *neighbour = &mpi->neighbours[bell];
        pp_ring_t    ring;
        uint32_t     bits = pp_bell_announce(&mpi->doorbell.bells[bell], neighbour->unrung, &ring);
        neighbour->unrung = 0;
        if (bits == PP_PROGRESS_ASLEEP && mpi->defers && neighbour->hope >= 0) {
            owe(mpi, bell, ring);
        } else {
            neighbour->hope += neighbour->hope < 0 && bits != 0;
            transport->rings += pp_bell_wake(&mpi->doorbell.bells[bell], bits);
        }
    }
    mpi->to_ring_count = 0;
}

bool pp_mpi_owes(pp_mpi_t *mpi)
{
    int32_t left = 0;
    for (int32_t i = 0; i < mpi->to_wake_count; i++) {
        int32_t      bell = mpi->to_wake[i];
        neighbour_t *neighbour = &mpi->neighbours[bell];
        if (pp_bell_answered(&mpi->doorbell.bells[bell], neighbour->owed_ring)) {
            neighbour->owed = false;
            neighbour->hope = HOPE_MAX;
        } else {
            mpi->to_wake[left++] = bell;
        }
    }
    mpi->to_wake_count = left;
    return left > 0;
}

void pp_mpi_wake_owed(pp_mpi_t *mpi)
{
    pp_mpi_owes(mpi);
    for (int32_t i = 0; i < mpi->to_wake_count; i++) {
        int32_t      bell = mpi->to_wake[i];
        neighbour_t *neighbour = &mpi->neighbours[bell];
        neighbour->owed = false;
        neighbour->hope = neighbour->hope > 0 ? neighbour->hope / 2 : -RINGS_WITHOUT_HOPE;
        mpi->transport.rings += pp_bell_wake(&mpi->doorbell.bells[bell], PP_PROGRESS_ASLEEP);
    }
    mpi->to_wake_count = 0;
}

void pp_mpi_defer(pp_mpi_t *mpi, bool defers)
{
    mpi->defers = defers;
    if (!defers)
        pp_mpi_wake_owed(mpi);
}

static uint64_t coarse_ns(pp_transport_t *transport)
{
    struct timespec t;
    (void)transport;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(pp_transport_t *transport)
{
    struct timespec now;
    (void)transport;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

const pp_transport_ops_t pp_mpi_ops = {
    .send = pp_mpi_send,
    .bulk_send = pp_mpi_bulk_send,
    .bulk_recv = pp_mpi_bulk_recv,
    .poll = poll_mpi,
    .ring = ring,
    .now_ns = now_ns,
    .coarse_ns = coarse_ns,
};

/* ---- release -------------------------------------------------------------------------------- */

static void free_memory(pp_mpi_t *mpi)
{
    for (slot_t *slot = mpi->free_slots, *next; slot; slot = next) {
        next = slot->next;
        free(slot);
    }
    for (bulk_t *bulk = mpi->free_bulks, *next; bulk; bulk = next) {
        next = bulk->next;
        free(bulk);
    }
    for (letter_t *letter = mpi->letters, *next; letter; letter = next) {
        next = letter->next;
        free(letter);
    }
    pp_doorbell_free(&mpi->doorbell);
    /* Otherwise MPI may still read and write rounds there that were given up. */
    if (mpi->outstanding == mpi->parcels_out)
        pp_shared_drop(mpi->memory);
    pp_nodes_free(mpi->nodes);
    free(mpi->receive_bytes);
    for (int i = 0; mpi->half_read && i < mpi->transport.size; i++)
        free(mpi->half_read[i]);
    free(mpi->half_read);
    free(mpi->open_parcels);
    free(mpi->to_send);
    free(mpi->requests);
    free(mpi->owners);
    free(mpi->indices);
    free(mpi->statuses);
    free(mpi->bell_of);
    free(mpi->neighbours);
    free(mpi->to_wake);
    free(mpi->to_ring);
    free(mpi->cards);
    free(mpi->watched);
    free(mpi->heard);
    free(mpi);
}

/* Takes a receive back; false: MPI may still write to its buffer. */
static bool withdraw(MPI_Request *request)
{
    int done = 0;
    if (*request == MPI_REQUEST_NULL)
        return true;
    MPI_Cancel(request);
    if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done)
        return done;
    MPI_Request_free(request);
    return false;
}

/* Takes back the standing receives and those of bulk.  This is the one place that cancels: no peer will complete these
   receives, and with a receive left behind MPI would write to memory that is about to be freed.  A receive that MPI has
   matched already cannot be cancelled and keeps its buffer for ever, and so does an unfinished send.  The caller also
   keeps the buffers of transfers that were not reported. */
static void withdraw_all(pp_mpi_t *mpi)
{
    bool all = true;
    for (int i = 0; i < STANDING_RECEIVES; i++)
        all &= withdraw(&mpi->receives[i]);
    if (!all)
        mpi->receive_bytes = NULL;
    for (size_t i = 0; i < mpi->outstanding; i++)
        if (mpi->owners[i].receives)
            withdraw(&mpi->requests[i]);
}

pp_status_t pp_mpi_close(pp_mpi_t *mpi)
{
    if (mpi->failure != PP_OK) {
        pp_status_t status = pp_mpi_refuse(mpi);
        pp_mpi_abandon(mpi);
        return status;
    }
    pp_status_t status = pp_mpi_complete_sends(mpi);
    if (status == PP_OK)
        status = pp_mpi_complete_receives(mpi);
    if (status < 0) {
        pp_mpi_abandon(mpi);
        return status;
    }
    int code = MPI_Comm_free(&mpi->comm);
    free_memory(mpi);
    return code == MPI_SUCCESS ? PP_OK : pp_mpi_error(code, "freeing the communicator failed");
}

void pp_mpi_abandon(pp_mpi_t *mpi)
{
    int finalized = 0;
    if (!mpi)
        return;
    MPI_Finalized(&finalized);
    if (!finalized)
        withdraw_all(mpi);
    /* All ranks have given the opening up, and no message is under way. */
    if (mpi->opening && !mpi->borrows && mpi->failure == PP_OK)
        MPI_Comm_free(&mpi->comm);
    free_memory(mpi);
}

/* ---- small things --------------------------------------------------------------------------- */

pp_transport_t *pp_mpi_transport(pp_mpi_t *mpi)
{
    return &mpi->transport;
}

int32_t pp_mpi_cores(const pp_mpi_t *mpi)
{
    return mpi->cores;
}

int32_t pp_mpi_neighbours(const pp_mpi_t *mpi)
{
    return mpi->neighbour_count;
}

pp_shared_t *pp_mpi_memory(pp_mpi_t *mpi)
{
    return mpi->memory;
}

const pp_nodes_t *pp_mpi_nodes(const pp_mpi_t *mpi)
{
    return mpi->nodes;
}

const char *pp_mpi_apart(const pp_mpi_t *mpi) { return mpi->apart[0] ? mpi->apart : NULL; }

int32_t pp_mpi_neighbour_rank(const pp_mpi_t *mpi, int32_t index)
{
    return mpi->doorbell.bells[index].rank;
}

int32_t pp_mpi_neighbour_index(const pp_mpi_t *mpi)
{
    return (int32_t)(mpi->bell - mpi->doorbell.bells);
}

bool pp_mpi_wake(pp_mpi_t *mpi, int32_t index, uint32_t sleepers)
{
    pp_ring_t  ring;
    pp_bell_t *bell = &mpi->doorbell.bells[index];
    bool       woken = pp_bell_asleep(bell, sleepers)
        && pp_bell_wake(bell, pp_bell_announce(bell, 0, &ring) & sleepers);
    mpi->transport.rings += woken;
    return woken;
}

bool pp_mpi_sleeps(const pp_mpi_t *mpi, int32_t index)
{
    return pp_bell_asleep(&mpi->doorbell.bells[index], PP_CALLER_ASLEEP | PP_PROGRESS_ASLEEP);
}

int32_t pp_mpi_thread_level(const pp_mpi_t *mpi)
{
    return mpi->thread_level;
}

uint32_t pp_mpi_sequence(pp_mpi_t *mpi)
{
    return pp_bell_sequence(mpi->bell);
}

void pp_mpi_set_sleeper(pp_mpi_t *mpi, pp_sleeper_t sleeper)
{
    pp_bell_set_sleeper(mpi->bell, sleeper);
}

bool pp_mpi_needs_polling(const pp_mpi_t *mpi)
{
    return needs_polling(mpi);
}

void pp_mpi_ask(pp_mpi_t *mpi)
{
    mpi->polls_skipped = POLLS_SKIPPED_MAX;
}

bool pp_mpi_expects(const pp_mpi_t *mpi)
{
    return mpi->letters || pp_mpi_announced_not_received(mpi);
}

bool pp_mpi_is_under_way(const pp_mpi_t *mpi)
{
    return pp_mpi_needs_polling(mpi) || pp_mpi_expects(mpi) || (mpi->failure != PP_OK && !mpi->failure_told);
}

void pp_mpi_set_looked(pp_mpi_t *mpi, uint32_t sequence)
{
    pp_bell_set_looked(mpi->bell, sequence, mpi->received_near);
}

bool pp_mpi_sleep(pp_mpi_t *mpi, pp_sleeper_t sleeper, uint32_t seen, int64_t timeout_us)
{
    return pp_bell_sleep(mpi->bell, sleeper, seen, timeout_us);
}

void pp_mpi_ring_self(pp_mpi_t *mpi)
{
    pp_ring_t ring;
    uint32_t  bits = pp_bell_announce(mpi->bell, 0, &ring);
    mpi->transport.rings += pp_bell_wake(mpi->bell, bits);
}
