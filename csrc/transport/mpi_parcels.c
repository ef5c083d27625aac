/*
 * mpi_parcels.c - messages and the parcels they travel in.
 *
 * The order between a pair of ranks rests on two facts of MPI: messages of one sender on one communicator and tag are
 * matched in the order of sending, and a message is matched by the receive that was posted first.  The standing
 * receives are a ring that is posted, and delivered, in order.  So only the oldest is tested, although a later one may
 * complete before it when a long message is at the head.
 */
#include "mpi_parts.h"

#include <assert.h>
#include <string.h>

enum {
    PARCEL_BYTES_EAGER = 3968,                    /* within a node: 4096 with MPI's own header */
    DELIVERIES_PER_POLL = 64,                     /* then the poll goes on to bulk and sends */
    PARCEL_BYTES_AT_ONCE = 256                    /* the longest that Open MPI sends before MPI_Isend returns */
};

static slot_t *slot_take(pp_mpi_t *mpi)
{
    slot_t *slot = mpi->free_slots;
    if (!slot)
        return malloc(sizeof *slot);
    mpi->free_slots = slot->next;
    return slot;
}

static void note_ring(pp_mpi_t *mpi, int32_t peer)
{
    int32_t bell = mpi->bell_of[peer];
    if (bell >= 0 && mpi->neighbours[bell].unrung++ == 0)
        mpi->to_ring[mpi->to_ring_count++] = bell;
}

static void gather(unsigned char *bytes, const void *head, size_t head_bytes, const void *body,
                   size_t body_bytes)
{
    memcpy(bytes, head, head_bytes);
    if (body_bytes > 0)
        memcpy(bytes + head_bytes, body, body_bytes);
}

/* The message waits for the next poll, without MPI: the engine must not be called back while it sends. */
static pp_status_t send_to_self(pp_mpi_t *mpi, const void *head, size_t head_bytes,
                                const void *body, size_t body_bytes)
{
    letter_t *letter = malloc(sizeof *letter + head_bytes + body_bytes);
    if (!letter)
        return pp_fail(PP_ERR_MEMORY, "no memory for a message of %zu bytes",
                       head_bytes + body_bytes);
    gather(letter->bytes, head, head_bytes, body, body_bytes);
    letter->count = head_bytes + body_bytes;
    letter->next = NULL;
    *mpi->letters_end = letter;
    mpi->letters_end = &letter->next;
    mpi->transport.bulk_in_flight = true;
    return PP_OK;
}

static size_t padded(size_t count)
{
    return (count + PP_MESSAGE_ALIGN - 1) / PP_MESSAGE_ALIGN * PP_MESSAGE_ALIGN;
}

/* Sends a full or finished parcel.  If that fails, the next poll tells the sink. */
static pp_status_t post_parcel(pp_mpi_t *mpi, int32_t peer)
{
    slot_t     *slot = mpi->open_parcels[peer];
    MPI_Request request;
    int         done = 0;
    mpi->open_parcels[peer] = NULL;
    int code = MPI_Isend(slot->bytes, (int)slot->length, MPI_BYTE, peer, MESSAGE_TAG, mpi->comm,
                         &request);
    if (code != MPI_SUCCESS) {
        slot_put(mpi, slot);
        return pp_mpi_break_down(mpi, code, "sending failed", peer);
    }
    note_ring(mpi, peer);
    /* If it is complete now, its warm slot serves the next message.  A longer parcel completes only when it has been
       received, and a test that finds nothing costs as much as a poll. */
    if (slot->length <= PARCEL_BYTES_AT_ONCE)
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
        return pp_mpi_break_down(mpi, code, "sending failed", peer);
    if (done)
        slot_put(mpi, slot);
    else
        pp_mpi_record(mpi, request, (owner_t){.slot = slot, .peer = peer});
    return PP_OK;
}

void pp_mpi_post_parcels(pp_mpi_t *mpi)
{
    for (int32_t i = 0; i < mpi->to_send_count; i++)
        if (mpi->open_parcels[mpi->to_send[i]])
            post_parcel(mpi, mpi->to_send[i]);
    mpi->to_send_count = 0;
}

/* A rank stays in the list when a full parcel is sent early: its next parcel needs the same entry.  Room for the
   request is made now, so that post_parcel() cannot lack memory. */
static slot_t *open_parcel(pp_mpi_t *mpi, int32_t peer)
{
    slot_t *slot = pp_mpi_reserve(mpi, 1) ? slot_take(mpi) : NULL;
    if (!slot)
        return NULL;
    slot->length = 0;
    mpi->open_parcels[peer] = slot;
    for (int32_t i = 0; i < mpi->to_send_count; i++)
        if (mpi->to_send[i] == peer)
            return slot;
    mpi->to_send[mpi->to_send_count++] = peer;
    return slot;
}

/* The open parcel of the peer if it stays eager with `framed` more bytes; else a new one. */
static slot_t *parcel_for(pp_mpi_t *mpi, int32_t peer, size_t framed)
{
    slot_t *slot = mpi->open_parcels[peer];
    if (slot && slot->length + framed <= PARCEL_BYTES_EAGER)
        return slot;
    if (slot && post_parcel(mpi, peer) < 0)
        return NULL;
    return open_parcel(mpi, peer);
}

/* Copies `count` bytes of head and body, taken as one, from `at` on. */
static void gather_part(unsigned char *to, size_t at, size_t count, const void *head,
                        size_t head_bytes, const void *body)
{
    size_t from_head = at >= head_bytes ? 0 : head_bytes - at < count ? head_bytes - at : count;
    if (from_head > 0)
        memcpy(to, (const char *)head + at, from_head);
    if (count > from_head)
        memcpy(to + from_head, (const char *)body + (at + from_head - head_bytes), count - from_head);
}

static pp_status_t send_to_peer(pp_mpi_t *mpi, int32_t peer, const void *head, size_t head_bytes,
                                const void *body, size_t body_bytes)
{
    size_t count = head_bytes + body_bytes;
    size_t most = mpi->bell_of[peer] < 0 ? count : PARCEL_BYTES_EAGER - sizeof(frame_t);
    for (size_t at = 0; at < count;) {
        size_t  part = count - at < most ? count - at : most;
        size_t  framed = sizeof(frame_t) + padded(part);
        slot_t *slot = parcel_for(mpi, peer, framed);
        if (!slot)
            return mpi->failure != PP_OK ? pp_mpi_refuse(mpi)
                : pp_fail(PP_ERR_MEMORY, "no memory for a message of %zu bytes", count);
        frame_t *frame = (frame_t *)(slot->bytes + slot->length);
        *frame = (frame_t){.count = (uint32_t)part, .left = (uint32_t)(count - at - part)};
        gather_part((unsigned char *)(frame + 1), at, part, head, head_bytes, body);
        slot->length += framed;
        at += part;
    }
    return PP_OK;
}

pp_status_t pp_mpi_send(pp_transport_t *transport, int32_t peer, const void *head,
                                size_t head_bytes, const void *body, size_t body_bytes)
{
    pp_mpi_t *mpi = (pp_mpi_t *)transport;
    size_t    count = head_bytes + body_bytes;
    if (mpi->failure != PP_OK)
        return pp_mpi_refuse(mpi);
    if (peer < 0 || peer >= transport->size || count > PP_MESSAGE_BYTES)
        return pp_fail(PP_ERR_INTERNAL, "cannot send a message of %zu bytes to rank %d of %d ranks", count, peer,
                       transport->size);
    if (peer == transport->rank)
        PP_TRY(send_to_self(mpi, head, head_bytes, body, body_bytes));
    else
        PP_TRY(send_to_peer(mpi, peer, head, head_bytes, body, body_bytes));
    transport->messages_sent++;
    transport->bytes_sent += count;
    return PP_OK;
}

static void deliver(pp_mpi_t *mpi, int32_t peer, const void *bytes, size_t count)
{
    pp_sink_t *sink = &mpi->transport.sink;
    mpi->transport.messages_received++;
    sink->message(sink->engine, peer, bytes, count);
}

/* Delivers only the messages that are there at the beginning, so that a rank that answers itself does not keep poll()
   from the other ranks. */
int pp_mpi_deliver_own(pp_mpi_t *mpi)
{
    letter_t *letter = mpi->letters;
    int       events = 0;
    mpi->letters = NULL;
    mpi->letters_end = &mpi->letters;
    for (letter_t *next; letter; letter = next) {
        next = letter->next;
        deliver(mpi, mpi->transport.rank, letter->bytes, letter->count);
        free(letter);
        events++;
    }
    return events;
}

/* One more piece of a message that was cut. */
static void assemble(pp_mpi_t *mpi, int32_t peer, const frame_t *frame)
{
    letter_t *letter = mpi->half_read[peer];
    if (!letter) {
        letter = malloc(sizeof *letter + frame->count + frame->left);
        if (!letter) {
            pp_mpi_break_down(mpi, MPI_ERR_NO_MEM, "receiving a long message failed", peer);
            return;
        }
        letter->count = 0;
        mpi->half_read[peer] = letter;
    }
    memcpy(letter->bytes + letter->count, frame + 1, frame->count);
    letter->count += frame->count;
    if (frame->left == 0) {
        mpi->half_read[peer] = NULL;
        deliver(mpi, peer, letter->bytes, letter->count);
        free(letter);
    }
}

static void deliver_parcel(pp_mpi_t *mpi, int32_t peer, const unsigned char *bytes, size_t length)
{
    for (size_t at = 0; at < length && mpi->failure == PP_OK;) {
        const frame_t *frame = (const frame_t *)(bytes + at);
        if (frame->lost)
            pp_mpi_read_obituary(mpi, peer, frame);
        else if (frame->left > 0 || mpi->half_read[peer])
            assemble(mpi, peer, frame);
        else
            deliver(mpi, peer, frame + 1, frame->count);
        at += sizeof *frame + padded(frame->count);
    }
}

pp_status_t pp_mpi_post_receives(pp_mpi_t *mpi)
{
    for (int i = 0; i < STANDING_RECEIVES; i++) {
        int code = pp_mpi_post_receive(mpi, i);
        if (code != MPI_SUCCESS)
            return pp_mpi_error(code, "posting the standing receives failed");
    }
    return PP_OK;
}

int pp_mpi_deliver_received(pp_mpi_t *mpi)
{
    for (int events = 0; events < DELIVERIES_PER_POLL; events++) {
        MPI_Status status;
        int        at = mpi->head, arrived = 0, count = 0;
        int        code = MPI_Test(&mpi->receives[at], &arrived, &status);
        if (code != MPI_SUCCESS) {
            pp_mpi_break_down(mpi, code, "receiving failed", -1);
            return events;
        }
        if (!arrived)
            return events;
        MPI_Get_count(&status, MPI_BYTE, &count);
        mpi->received_near += mpi->bell_of[status.MPI_SOURCE] >= 0;
        deliver_parcel(mpi, status.MPI_SOURCE, pp_mpi_receive_buffer(mpi, at), (size_t)count);
        code = pp_mpi_post_receive(mpi, at);
        if (code != MPI_SUCCESS) {
            pp_mpi_break_down(mpi, code, "receiving failed", -1);
            return events + 1;
        }
        mpi->head = (at + 1) % STANDING_RECEIVES;
        if (mpi->failure != PP_OK || pp_mpi_nothing_announced(mpi))
            return events + 1;
    }
    return DELIVERIES_PER_POLL;
}

pp_status_t pp_mpi_complete_receives(pp_mpi_t *mpi)
{
    MPI_Status statuses[STANDING_RECEIVES];
    int        me = mpi->transport.rank;
    for (int i = 0; i < STANDING_RECEIVES; i++) {
        int code = MPI_Send(NULL, 0, MPI_BYTE, me, MESSAGE_TAG, mpi->comm);
        if (code != MPI_SUCCESS)
            return pp_mpi_error(code, "closing the standing receives failed");
    }
    int code = MPI_Waitall(STANDING_RECEIVES, mpi->receives, statuses);
    if (code != MPI_SUCCESS)
        return pp_mpi_error(code, "closing the standing receives failed");
    for (int i = 0; i < STANDING_RECEIVES; i++)
        if (statuses[i].MPI_SOURCE != me && !pp_mpi_is_obituary(mpi, i, &statuses[i]))
            return pp_fail(PP_ERR_INTERNAL, "a message from rank %d was not received before the context was closed",
                           statuses[i].MPI_SOURCE);
    return PP_OK;
}
