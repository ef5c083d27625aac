/* mpi_bulk.c - outstanding requests, and bulk: payloads that are sent and received in chunks. */
#include "mpi_parts.h"

#include <assert.h>
#include <limits.h>

bool pp_mpi_reserve(pp_mpi_t *mpi, size_t extra)
{
    size_t wanted = mpi->outstanding + (size_t)mpi->to_send_count + extra;
    size_t a = mpi->capacity, b = a, c = a, d = a;
    if (wanted <= mpi->capacity)
        return true;
    if (wanted > INT_MAX || !pp_grow((void **)&mpi->requests, &a, wanted, sizeof *mpi->requests)
        || !pp_grow((void **)&mpi->owners, &b, wanted, sizeof *mpi->owners)
        || !pp_grow((void **)&mpi->indices, &c, wanted, sizeof *mpi->indices)
        || !pp_grow((void **)&mpi->statuses, &d, wanted, sizeof *mpi->statuses))
        return false;
    assert(a == b && b == c && c == d);
    mpi->capacity = a;
    return true;
}

void pp_mpi_record(pp_mpi_t *mpi, MPI_Request request, owner_t owner)
{
    mpi->parcels_out += owner.slot != NULL;
    mpi->requests[mpi->outstanding] = request;
    mpi->owners[mpi->outstanding] = owner;
    mpi->outstanding++;
    mpi->transport.bulk_in_flight = true;
}

static void bulk_put(pp_mpi_t *mpi, bulk_t *bulk)
{
    bulk->next = mpi->free_bulks;
    mpi->free_bulks = bulk;
}

static bulk_t *bulk_take(pp_mpi_t *mpi)
{
    bulk_t *bulk = mpi->free_bulks;
    if (!bulk)
        return malloc(sizeof *bulk);
    mpi->free_bulks = bulk->next;
    return bulk;
}

/* Removes the `completed` requests at mpi->indices.  Returns the transfers that are complete with them, in order. */
static bulk_t *settle(pp_mpi_t *mpi, int completed)
{
    bulk_t *done = NULL, **end = &done;
    for (int i = 0; i < completed; i++) {
        owner_t *owner = &mpi->owners[mpi->indices[i]];
        if (owner->slot) {
            mpi->parcels_out--;
            slot_put(mpi, owner->slot);
        } else if (--owner->bulk->chunks_left == 0) {
            *end = owner->bulk;
            end = &owner->bulk->next;
        }
    }
    *end = NULL;
    size_t kept = 0;
    for (size_t i = 0; i < mpi->outstanding; i++)
        if (mpi->requests[i] != MPI_REQUEST_NULL) {
            mpi->requests[kept] = mpi->requests[i];
            mpi->owners[kept++] = mpi->owners[i];
        }
    mpi->outstanding = kept;
    return done;
}

static void advance_failed(pp_mpi_t *mpi, int code, int completed)
{
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    for (int i = 0; class == MPI_ERR_IN_STATUS && i < completed; i++)
        if (mpi->statuses[i].MPI_ERROR != MPI_SUCCESS) {
            owner_t *owner = &mpi->owners[mpi->indices[i]];
            pp_mpi_break_down(mpi, mpi->statuses[i].MPI_ERROR, owner->receives ? "receiving failed" : "sending failed",
                              owner->peer);
            return;
        }
    pp_mpi_break_down(mpi, code, "a transfer failed", -1);
}

/* A callback can post more, which may move the arrays; the list of complete transfers stays where it is. */
int pp_mpi_advance(pp_mpi_t *mpi)
{
    pp_sink_t *sink = &mpi->transport.sink;
    int        completed = 0, events = 0;
    int code = MPI_Testsome((int)mpi->outstanding, mpi->requests, &completed, mpi->indices,
                            mpi->statuses);
    if (code != MPI_SUCCESS) {
        advance_failed(mpi, code, completed == MPI_UNDEFINED ? 0 : completed);
        return 0;
    }
    if (completed == MPI_UNDEFINED || completed == 0)
        return 0;
    for (bulk_t *done = settle(mpi, completed), *next; done; done = next) {
        void *cookie = done->cookie;
        next = done->next;
        bulk_put(mpi, done);
        sink->bulk_done(sink->engine, cookie);
        events++;
    }
    return events;
}

bool pp_mpi_has_sent(pp_mpi_t *mpi)
{
    bool sends = false;
    if (mpi->failure == PP_OK)
        pp_mpi_advance(mpi);
    for (size_t i = 0; mpi->failure == PP_OK && i < mpi->outstanding; i++)
        sends |= mpi->owners[i].bulk && !mpi->owners[i].receives;
    return !sends;
}

pp_status_t pp_mpi_complete_sends(pp_mpi_t *mpi)
{
    int count = (int)mpi->outstanding;
    int code = MPI_Waitall(count, mpi->requests, MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS)
        return pp_mpi_error(code, "waiting for the last sends failed");
    for (int i = 0; i < count; i++)
        mpi->indices[i] = i;
    for (bulk_t *done = settle(mpi, count), *next; done; done = next) {
        next = done->next;
        bulk_put(mpi, done);
    }
    return PP_OK;
}

static int post_chunk(pp_mpi_t *mpi, const owner_t *owner, uint32_t tag, unsigned char *data,
                      size_t bytes, MPI_Request *request)
{
    int mpi_tag = BULK_TAG_FIRST + (int)tag;
    return owner->receives
               ? MPI_Irecv(data, (int)bytes, MPI_BYTE, owner->peer, mpi_tag, mpi->comm, request)
               : MPI_Isend(data, (int)bytes, MPI_BYTE, owner->peer, mpi_tag, mpi->comm, request);
}

/* The chunks of a transfer share its tag: MPI keeps them in order. */
static pp_status_t post_bulk(pp_mpi_t *mpi, owner_t owner, uint32_t tag, unsigned char *data,
                             size_t bytes, void *cookie)
{
    size_t chunks = bytes / mpi->chunk_bytes + (bytes % mpi->chunk_bytes > 0);
    assert(bytes > 0 && tag < mpi->transport.bulk_tags);
    if (mpi->failure != PP_OK)
        return pp_mpi_refuse(mpi);
    owner.bulk = pp_mpi_reserve(mpi, chunks) ? bulk_take(mpi) : NULL;
    if (!owner.bulk)
        return pp_fail(PP_ERR_MEMORY, "no memory for a transfer in %zu chunks", chunks);
    *owner.bulk = (bulk_t){.cookie = cookie, .chunks_left = chunks};
    for (size_t at = 0; at < bytes; at += mpi->chunk_bytes) {
        size_t      left = bytes - at;
        MPI_Request request;
        int code = post_chunk(mpi, &owner, tag, data + at,
                              left < mpi->chunk_bytes ? left : mpi->chunk_bytes, &request);
        if (code != MPI_SUCCESS)
            return pp_mpi_break_down(mpi, code, owner.receives ? "receiving failed" : "sending failed", owner.peer);
        pp_mpi_record(mpi, request, owner);
    }
    return PP_OK;
}

pp_status_t pp_mpi_bulk_send(pp_transport_t *transport, int32_t peer, uint32_t tag,
                             const void *data, size_t bytes, void *cookie)
{
    /* The cast only lets both directions share their code: a send does not write. */
    PP_TRY(post_bulk((pp_mpi_t *)transport, (owner_t){.peer = peer}, tag,
                     (unsigned char *)(uintptr_t)data, bytes, cookie));
    transport->bulk_sent++;
    transport->bytes_sent += bytes;
    return PP_OK;
}

pp_status_t pp_mpi_bulk_recv(pp_transport_t *transport, int32_t peer, uint32_t tag, void *data,
                             size_t bytes, void *cookie)
{
    return post_bulk((pp_mpi_t *)transport, (owner_t){.peer = peer, .receives = true}, tag, data,
                     bytes, cookie);
}
