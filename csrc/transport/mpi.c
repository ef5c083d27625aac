/*
 * Order between a pair of ranks rests on two facts of MPI: messages of one sender on one
 * communicator and tag are matched in the order of sending, and a message is matched by the receive
 * that was posted first.  The standing receives are a ring that is posted, and delivered, in order;
 * so only the oldest is ever tested, although a later one may complete before it (a long message at
 * the head).
 */
#define _GNU_SOURCE   /* sched_getaffinity */
#include "pp_mpi.h"
#include "doorbell.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    STANDING_RECEIVES = 16,
    PARCEL_BYTES_MAX = PP_MESSAGE_BYTES + PP_MESSAGE_ALIGN,   /* one frame of the largest message */
    PARCEL_BYTES_EAGER = 3968,                    /* within a node: 4096 with MPI's own header */
    DELIVERIES_PER_POLL = 64,                     /* then bulk and sends get their turn */
    POLLS_SKIPPED_MAX = 256,
    PARCEL_BYTES_AT_ONCE = 256,                   /* as long as Open MPI sends before MPI_Isend returns */
    PARCELS_OUT_EASY = 16,                        /* not reported as sent: more may be stuck in MPI */
    PARCELS_OUT_COLLECTED = 8,                    /* then the oldest have long been received */
    HOPE_MAX = 8,                                 /* halved each time a neighbour does not look in time */
    RINGS_WITHOUT_HOPE = 32,                      /* wake it at once, before it is tried again */
    MESSAGE_TAG = 0,
    BULK_TAG_FIRST = 1,
    BULK_TAGS_MAX = 1 << 20,
    CHUNK_BYTES_DEFAULT = 1 << 30,
    NODE_BYTES_COMMITTED = 4096,
    NODE_BYTES_MIN = 16 << 20,                    /* memory that the ranks of a node share is worth having */
    TEXT_BYTES = MPI_MAX_ERROR_STRING + 128
};

_Static_assert(PARCEL_BYTES_MAX % PP_MESSAGE_ALIGN == 0, "receive buffers stay aligned");

/* Messages to one rank between two calls of ring() travel together, as frames of one parcel: what an
   activated rank sends its first partner is one MPI message, not two.  Within a node a message that
   exceeds the eager protocol is cut into several parcels: four eager messages take half the time of one
   rendezvous. */
typedef struct frame {
    uint32_t count;              /* bytes that follow, without padding */
    uint32_t left;               /* bytes of the same message that come in the next parcels */
    uint64_t unused;
} frame_t;

_Static_assert(sizeof(frame_t) % PP_MESSAGE_ALIGN == 0, "messages in a parcel stay aligned");

typedef struct slot {            /* a parcel being filled, or on its way out */
    struct slot *next;           /* in the free list */
    size_t       length;
    _Alignas(PP_MESSAGE_ALIGN) unsigned char bytes[PARCEL_BYTES_MAX];
} slot_t;

typedef struct bulk {            /* a transfer, sent or received, of one or more chunks */
    struct bulk *next;           /* in the free list, or of those just done */
    void        *cookie;
    size_t       chunks_left;
} bulk_t;

typedef struct letter {          /* a message to this rank itself */
    struct letter *next;
    size_t         count;
    _Alignas(PP_MESSAGE_ALIGN) unsigned char bytes[];
} letter_t;

typedef struct neighbour {       /* a rank with a bell in the page */
    uint32_t unrung;             /* messages sent since the last ring */
    bool     owed;               /* rung, but not woken yet */
    pp_ring_t owed_ring;         /* that ring */
    int32_t  hope;               /* >= 0: may look by itself in time; < 0: rings until the next trial */
} neighbour_t;

typedef struct owner {           /* of an outstanding request: one of slot and bulk */
    slot_t *slot;
    bulk_t *bulk;
    int32_t peer;
    bool    receives;
} owner_t;

struct pp_mpi {
    pp_transport_t transport;    /* first: the operations cast back */
    MPI_Comm comm;
    size_t   chunk_bytes;
    int32_t  thread_level;

    MPI_Request    receives[STANDING_RECEIVES];
    unsigned char *receive_bytes;
    int            head;         /* the oldest receive */

    MPI_Request *requests;       /* outstanding: incomplete sends and bulk chunks; four arrays */
    owner_t     *owners;         /* of one length, because MPI_Testsome wants them so */
    int         *indices;
    MPI_Status  *statuses;
    size_t       outstanding, capacity;
    size_t       parcels_out;    /* of the outstanding */
    slot_t      *free_slots;
    slot_t     **open_parcels;   /* by rank; NULL: none */
    int32_t     *to_send;        /* ranks with an open parcel, in the order of opening */
    int32_t      to_send_count;
    bulk_t      *free_bulks;
    letter_t    *letters, **letters_end;

    pp_doorbell_t doorbell;
    pp_shared_t  *memory;        /* of the node; NULL: this rank shares none */
    pp_nodes_t   *nodes;         /* NULL: not everybody shares memory with its node */
    char          apart[160];    /* why the ranks of the node share none, said by the first of them */
    pp_bell_t    *bell;          /* this rank's own */
    int32_t       neighbour_count;
    int32_t       cores;         /* of them together */
    neighbour_t  *neighbours;    /* by bell */
    int32_t      *bell_of;       /* by rank; -1: not ringable */
    letter_t    **half_read;     /* by rank: a message of which parcels are still to come */
    int32_t      *to_ring;       /* bells with unrung messages, in the order of sending */
    int32_t       to_ring_count;
    bool          defers;        /* see pp_mpi_defer */
    int32_t      *to_wake;       /* bells that are owed a wake-up */
    int32_t       to_wake_count;
    unsigned      polls_skipped; /* since MPI was last asked */
    uint32_t      received_near; /* messages of neighbours delivered; compared with `announced` */

    pp_status_t failure;         /* latched: the first error; told to the sink once, by poll() */
    bool        failure_told;
    int32_t     failed_peer;
    char        failure_text[TEXT_BYTES];
};

/* ---- errors --------------------------------------------------------------------------------- */

static pp_status_t mpi_error(int code, const char *what)
{
    char reason[MPI_MAX_ERROR_STRING] = "unknown error";
    int  length;
    MPI_Error_string(code, reason, &length);
    return pp_fail(PP_ERR_MPI, "%s: %s", what, reason);
}

#ifdef MPIX_ERR_PROC_FAILED
static bool is_peer_failure(int code)
{
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    return class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_PROC_FAILED_PENDING;
}

/* A receive from anybody fails without naming who died: asks for the lowest known failed rank. */
static int32_t find_failed_peer(MPI_Comm comm)
{
    MPI_Group failed, all;
    int       count = 0, first = 0, peer = -1;
    if (MPIX_Comm_failure_ack(comm) != MPI_SUCCESS
        || MPIX_Comm_failure_get_acked(comm, &failed) != MPI_SUCCESS)
        return -1;
    MPI_Group_size(failed, &count);
    if (count > 0) {
        MPI_Comm_group(comm, &all);
        MPI_Group_translate_ranks(failed, 1, &first, all, &peer);
        MPI_Group_free(&all);
    }
    if (failed != MPI_GROUP_EMPTY)
        MPI_Group_free(&failed);
    return peer;
}
#else
static bool is_peer_failure(int code)
{
    (void)code;
    return false;
}

static int32_t find_failed_peer(MPI_Comm comm)
{
    (void)comm;
    return -1;
}
#endif

/* Latches the first error; later ones are its consequences.  peer < 0: not known. */
static pp_status_t break_down(pp_mpi_t *mpi, int code, const char *what, int32_t peer)
{
    if (mpi->failure == PP_OK) {
        char reason[MPI_MAX_ERROR_STRING] = "unknown error";
        int  length;
        MPI_Error_string(code, reason, &length);
        mpi->failure = is_peer_failure(code) ? PP_ERR_PEER_FAILED : PP_ERR_MPI;
        if (peer < 0 && mpi->failure == PP_ERR_PEER_FAILED)
            peer = find_failed_peer(mpi->comm);
        mpi->failed_peer = peer;
        if (peer >= 0)
            snprintf(mpi->failure_text, TEXT_BYTES, "%s, rank %d: %s", what, peer, reason);
        else
            snprintf(mpi->failure_text, TEXT_BYTES, "%s: %s", what, reason);
        mpi->transport.bulk_in_flight = true;      /* until a poll has told the sink */
    }
    return pp_fail(mpi->failure, "%s", mpi->failure_text);
}

static int tell_failure(pp_mpi_t *mpi)
{
    if (mpi->failure_told)
        return 0;
    pp_sink_t *sink = &mpi->transport.sink;
    mpi->failure_told = true;
    mpi->transport.bulk_in_flight = false;
    sink->failed(sink->engine, mpi->failure, mpi->failed_peer, mpi->failure_text);
    return 1;
}

/* ---- outstanding requests ------------------------------------------------------------------- */

/* Room for `extra` more besides those of the open parcels, made before anything is started, so that no
   request goes unrecorded. */
static bool reserve(pp_mpi_t *mpi, size_t extra)
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

static void record(pp_mpi_t *mpi, MPI_Request request, owner_t owner)
{
    mpi->parcels_out += owner.slot != NULL;
    mpi->requests[mpi->outstanding] = request;
    mpi->owners[mpi->outstanding] = owner;
    mpi->outstanding++;
    mpi->transport.bulk_in_flight = true;
}

static void slot_put(pp_mpi_t *mpi, slot_t *slot)
{
    slot->next = mpi->free_slots;
    mpi->free_slots = slot;
}

static slot_t *slot_take(pp_mpi_t *mpi)
{
    slot_t *slot = mpi->free_slots;
    if (!slot)
        return malloc(sizeof *slot);
    mpi->free_slots = slot->next;
    return slot;
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

/* Settles the `completed` requests at mpi->indices; returns the transfers that are done with them,
   in order. */
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
            break_down(mpi, mpi->statuses[i].MPI_ERROR, owner->receives ? "receiving" : "sending",
                       owner->peer);
            return;
        }
    break_down(mpi, code, "transferring", -1);
}

/* Returns how many transfers were reported.  The arrays may move under a callback, which can post
   more; the list of what is done does not. */
static int advance_outstanding(pp_mpi_t *mpi)
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

/* ---- messages ------------------------------------------------------------------------------- */

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

/* Kept apart from MPI, and for the next poll: the engine is not called back while it sends. */
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

/* A full or finished parcel goes on its way.  Its error, if any, is told by the next poll. */
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
        return break_down(mpi, code, "sending", peer);
    }
    note_ring(mpi, peer);
    /* Then the same, warm slot serves the next message.  Longer ones are not complete before they have been
       received, and a test that finds nothing costs as much as a poll. */
    if (slot->length <= PARCEL_BYTES_AT_ONCE)
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
        return break_down(mpi, code, "sending", peer);
    if (done)
        slot_put(mpi, slot);
    else
        record(mpi, request, (owner_t){.slot = slot, .peer = peer});
    return PP_OK;
}

static void post_parcels(pp_mpi_t *mpi)
{
    for (int32_t i = 0; i < mpi->to_send_count; i++)
        if (mpi->open_parcels[mpi->to_send[i]])
            post_parcel(mpi, mpi->to_send[i]);
    mpi->to_send_count = 0;
}

/* The place in the list is kept when a parcel goes early because it is full: the next one of the rank
   takes it.  Room for its request is made now, so that post_parcel() cannot lack memory. */
static slot_t *open_parcel(pp_mpi_t *mpi, int32_t peer)
{
    slot_t *slot = reserve(mpi, 1) ? slot_take(mpi) : NULL;
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

/* The open parcel of the peer, if `framed` more bytes leave it eager; else a new one. */
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
            return mpi->failure != PP_OK ? pp_fail(mpi->failure, "%s", mpi->failure_text)
                : pp_fail(PP_ERR_MEMORY, "no memory for a message of %zu bytes", count);
        frame_t *frame = (frame_t *)(slot->bytes + slot->length);
        *frame = (frame_t){.count = (uint32_t)part, .left = (uint32_t)(count - at - part)};
        gather_part((unsigned char *)(frame + 1), at, part, head, head_bytes, body);
        slot->length += framed;
        at += part;
    }
    return PP_OK;
}

static pp_status_t send_message(pp_transport_t *transport, int32_t peer, const void *head,
                                size_t head_bytes, const void *body, size_t body_bytes)
{
    pp_mpi_t *mpi = (pp_mpi_t *)transport;
    size_t    count = head_bytes + body_bytes;
    if (mpi->failure != PP_OK)
        return pp_fail(mpi->failure, "%s", mpi->failure_text);
    if (peer < 0 || peer >= transport->size || count > PP_MESSAGE_BYTES)
        return pp_fail(PP_ERR_INTERNAL, "message of %zu bytes to rank %d of %d", count, peer,
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

/* Only what lay there at the beginning: a rank that answers itself does not keep poll() from the
   others. */
static int deliver_own(pp_mpi_t *mpi)
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
            break_down(mpi, MPI_ERR_NO_MEM, "receiving a long message", peer);
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
        if (frame->left > 0 || mpi->half_read[peer])
            assemble(mpi, peer, frame);
        else
            deliver(mpi, peer, frame + 1, frame->count);
        at += sizeof *frame + padded(frame->count);
    }
}

static unsigned char *receive_buffer(const pp_mpi_t *mpi, int at)
{
    return mpi->receive_bytes + (size_t)at * PARCEL_BYTES_MAX;
}

static int post_receive(pp_mpi_t *mpi, int at)
{
    return MPI_Irecv(receive_buffer(mpi, at), PARCEL_BYTES_MAX, MPI_BYTE, MPI_ANY_SOURCE,
                     MESSAGE_TAG, mpi->comm, &mpi->receives[at]);
}

/* A neighbour may have rung for a message that MPI does not show yet: a long one takes several
   steps of both sides, and a network on the same host takes its time.  Such a rank must not go to
   sleep, for there will be no second ring. */
static bool announced_not_received(const pp_mpi_t *mpi)
{
    /* relaxed: whoever is about to sleep has read the sequence before (see pp_bell_announce). */
    uint32_t announced = atomic_load_explicit(&mpi->bell->announced, memory_order_relaxed);
    return (int32_t)(announced - mpi->received_near) > 0;   /* < 0: received before the ring */
}

/* Everybody who can send to this rank rings, nobody has, and nothing of ours is under way.  Then MPI need
   not be asked: a test that finds nothing costs a progress pass, and on a node with more ranks than cores
   MPI gives the core away in it.  Now and then it is asked all the same, for what is not ours. */
static bool nothing_announced(pp_mpi_t *mpi)
{
    return mpi->neighbour_count == mpi->transport.size && !pp_mpi_needs_polling(mpi) && !mpi->letters
        && mpi->failure == PP_OK && !announced_not_received(mpi);
}

static int deliver_received(pp_mpi_t *mpi)
{
    for (int events = 0; events < DELIVERIES_PER_POLL; events++) {
        MPI_Status status;
        int        at = mpi->head, arrived = 0, count = 0;
        int        code = MPI_Test(&mpi->receives[at], &arrived, &status);
        if (code != MPI_SUCCESS) {
            break_down(mpi, code, "receiving", -1);
            return events;
        }
        if (!arrived)
            return events;
        MPI_Get_count(&status, MPI_BYTE, &count);
        mpi->received_near += mpi->bell_of[status.MPI_SOURCE] >= 0;
        deliver_parcel(mpi, status.MPI_SOURCE, receive_buffer(mpi, at), (size_t)count);
        code = post_receive(mpi, at);
        if (code != MPI_SUCCESS) {
            break_down(mpi, code, "receiving", -1);
            return events + 1;
        }
        mpi->head = (at + 1) % STANDING_RECEIVES;
        if (nothing_announced(mpi))
            return events + 1;
    }
    return DELIVERIES_PER_POLL;
}

/* ---- bulk ----------------------------------------------------------------------------------- */

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
        return pp_fail(mpi->failure, "%s", mpi->failure_text);
    owner.bulk = reserve(mpi, chunks) ? bulk_take(mpi) : NULL;
    if (!owner.bulk)
        return pp_fail(PP_ERR_MEMORY, "no memory for a transfer in %zu chunks", chunks);
    *owner.bulk = (bulk_t){.cookie = cookie, .chunks_left = chunks};
    for (size_t at = 0; at < bytes; at += mpi->chunk_bytes) {
        size_t      left = bytes - at;
        MPI_Request request;
        int code = post_chunk(mpi, &owner, tag, data + at,
                              left < mpi->chunk_bytes ? left : mpi->chunk_bytes, &request);
        if (code != MPI_SUCCESS)
            return break_down(mpi, code, owner.receives ? "receiving" : "sending", owner.peer);
        record(mpi, request, owner);
    }
    return PP_OK;
}

static pp_status_t bulk_send(pp_transport_t *transport, int32_t peer, uint32_t tag,
                             const void *data, size_t bytes, void *cookie)
{
    /* The cast only lets both directions share their code: a send does not write. */
    PP_TRY(post_bulk((pp_mpi_t *)transport, (owner_t){.peer = peer}, tag,
                     (unsigned char *)(uintptr_t)data, bytes, cookie));
    transport->bulk_sent++;
    transport->bytes_sent += bytes;
    return PP_OK;
}

static pp_status_t bulk_recv(pp_transport_t *transport, int32_t peer, uint32_t tag, void *data,
                             size_t bytes, void *cookie)
{
    return post_bulk((pp_mpi_t *)transport, (owner_t){.peer = peer, .receives = true}, tag, data,
                     bytes, cookie);
}

/* ---- poll, ring, clock ---------------------------------------------------------------------- */

/* Easy parcels are collected some at a time, or when there is nothing better to do: a test of the last one
   alone, while its receiver has not come to it, is a progress pass for nothing. */
static bool collects(const pp_mpi_t *mpi, int events)
{
    return pp_mpi_needs_polling(mpi) || mpi->parcels_out >= PARCELS_OUT_COLLECTED
        || (events == 0 && mpi->outstanding > 0);
}

static int poll_mpi(pp_transport_t *transport)
{
    pp_mpi_t *mpi = (pp_mpi_t *)transport;
    int       events = 0;
    if (nothing_announced(mpi) && mpi->polls_skipped++ < POLLS_SKIPPED_MAX)
        return 0;
    mpi->polls_skipped = 0;
    if (mpi->failure == PP_OK && mpi->letters)
        events += deliver_own(mpi);
    if (mpi->failure == PP_OK)
        events += deliver_received(mpi);
    if (mpi->failure == PP_OK && collects(mpi, events))
        events += advance_outstanding(mpi);
    if (mpi->failure != PP_OK)
        return events + tell_failure(mpi);
    transport->bulk_in_flight =
        mpi->outstanding > 0 || mpi->letters || announced_not_received(mpi);
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
    post_parcels(mpi);
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

static const pp_transport_ops_t mpi_ops = {
    .send = send_message,
    .bulk_send = bulk_send,
    .bulk_recv = bulk_recv,
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
    /* Rounds that were given up may still be read and written there. */
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
    free(mpi);
}

/* Gives up a receive; false: MPI may still write to its buffer. */
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

/* Takes back the standing receives and those of bulk.  The one place that cancels: the peers are
   not here to complete them, and a receive left behind would let MPI write to memory that is about
   to be freed.  What MPI has matched already cannot be cancelled and keeps its buffer for ever, as
   do unfinished sends; the caller does the same with the buffers of transfers that were not
   reported. */
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

static pp_status_t complete_sends(pp_mpi_t *mpi)
{
    int count = (int)mpi->outstanding;
    int code = MPI_Waitall(count, mpi->requests, MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "waiting for the last sends");
    for (int i = 0; i < count; i++)
        mpi->indices[i] = i;
    for (bulk_t *done = settle(mpi, count), *next; done; done = next) {
        next = done->next;
        bulk_put(mpi, done);
    }
    return PP_OK;
}

static pp_status_t complete_receives(pp_mpi_t *mpi)
{
    MPI_Status statuses[STANDING_RECEIVES];
    int        me = mpi->transport.rank;
    for (int i = 0; i < STANDING_RECEIVES; i++) {
        int code = MPI_Send(NULL, 0, MPI_BYTE, me, MESSAGE_TAG, mpi->comm);
        if (code != MPI_SUCCESS)
            return mpi_error(code, "closing the standing receives");
    }
    int code = MPI_Waitall(STANDING_RECEIVES, mpi->receives, statuses);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "closing the standing receives");
    for (int i = 0; i < STANDING_RECEIVES; i++)
        if (statuses[i].MPI_SOURCE != me)
            return pp_fail(PP_ERR_INTERNAL, "a message of rank %d was not received before the end",
                           statuses[i].MPI_SOURCE);
    return PP_OK;
}

pp_status_t pp_mpi_close(pp_mpi_t *mpi)
{
    if (mpi->failure != PP_OK) {
        pp_status_t status = pp_fail(mpi->failure, "%s", mpi->failure_text);
        pp_mpi_abandon(mpi);
        return status;
    }
    pp_status_t status = complete_sends(mpi);
    if (status == PP_OK)
        status = complete_receives(mpi);
    if (status < 0) {
        pp_mpi_abandon(mpi);
        return status;
    }
    int code = MPI_Comm_free(&mpi->comm);
    free_memory(mpi);
    return code == MPI_SUCCESS ? PP_OK : mpi_error(code, "freeing the communicator");
}

void pp_mpi_abandon(pp_mpi_t *mpi)
{
    int finalized = 0;
    if (!mpi)
        return;
    MPI_Finalized(&finalized);
    if (!finalized)
        withdraw_all(mpi);
    free_memory(mpi);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Collective: the worst status of all, with the text of the lowest rank that has it. */
static pp_status_t agree(MPI_Comm comm, pp_status_t status)
{
    struct {
        int status, rank;
    } mine = {status, 0}, worst = {0, 0};
    char text[TEXT_BYTES] = "";
    MPI_Comm_rank(comm, &mine.rank);
    int code = MPI_Allreduce(&mine, &worst, 1, MPI_2INT, MPI_MINLOC, comm);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "opening the transport");
    if (worst.status >= 0)
        return PP_OK;
    if (mine.rank == worst.rank)
        snprintf(text, sizeof text, "%s", pp_error_text());
    code = MPI_Bcast(text, sizeof text, MPI_CHAR, worst.rank, comm);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "opening the transport");
    if (mine.rank == worst.rank)
        return pp_fail(worst.status, "%s", text);
    return pp_fail(worst.status, "rank %d: %s", worst.rank, text);
}

static int32_t query_thread_level(void)
{
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    return level == MPI_THREAD_MULTIPLE     ? 3
           : level == MPI_THREAD_SERIALIZED ? 2
           : level == MPI_THREAD_FUNNELED   ? 1
                                            : 0;
}

static uint32_t count_bulk_tags(MPI_Comm comm)
{
    int *limit = NULL, found = 0;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &limit, &found);
    int tags = found ? *limit - BULK_TAG_FIRST : 32767 - BULK_TAG_FIRST;   /* MPI's minimum */
    return (uint32_t)(tags < BULK_TAGS_MAX ? tags : BULK_TAGS_MAX);
}

/* The local part. */
static pp_status_t make_transport(MPI_Comm comm, uint64_t chunk_bytes, pp_mpi_t **result)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    pp_mpi_t *mpi = calloc(1, sizeof *mpi);
    *result = mpi;
    if (!mpi)
        return pp_fail(PP_ERR_MEMORY, "no memory for the transport");
    mpi->transport = (pp_transport_t){
        .ops = &mpi_ops, .rank = rank, .size = size, .bulk_tags = count_bulk_tags(comm),
        .pins_pages = true};
    mpi->comm = comm;
    mpi->chunk_bytes = chunk_bytes == 0        ? CHUNK_BYTES_DEFAULT
                       : chunk_bytes > INT_MAX ? INT_MAX
                                               : (size_t)chunk_bytes;
    mpi->thread_level = query_thread_level();
    mpi->letters_end = &mpi->letters;
    mpi->doorbell.page.fd = -1;
    for (int i = 0; i < STANDING_RECEIVES; i++)
        mpi->receives[i] = MPI_REQUEST_NULL;
    mpi->receive_bytes = pp_alloc_aligned((size_t)STANDING_RECEIVES * PARCEL_BYTES_MAX);
    mpi->bell_of = malloc((size_t)size * sizeof *mpi->bell_of);
    mpi->open_parcels = calloc((size_t)size, sizeof(slot_t *));
    mpi->to_send = calloc((size_t)size, sizeof *mpi->to_send);
    mpi->half_read = calloc((size_t)size, sizeof(letter_t *));
    if (!mpi->receive_bytes || !mpi->bell_of || !mpi->open_parcels || !mpi->to_send || !mpi->half_read)
        return pp_fail(PP_ERR_MEMORY, "no memory for the transport of %d ranks", size);
    for (int i = 0; i < size; i++)
        mpi->bell_of[i] = -1;
    return PP_OK;
}

/* By the first of `size` ranks that MPI has on this node; `error`: of its own attempt, 0 if the others failed. */
static void explain_apart(pp_mpi_t *mpi, int size, int error)
{
    if (error)
        snprintf(mpi->apart, sizeof mpi->apart, "rank %d can make no memory for the %d ranks of its node: %s",
                 mpi->transport.rank, size, strerror(error));
    else
        snprintf(mpi->apart, sizeof mpi->apart, "not all of the %d ranks on its node can open the memory of rank "
                 "%d, as in different containers", size, mpi->transport.rank);
}

/* Collective over the node: a page of bells for all of it, and memory; neither if anybody cannot open it. */
static int share_page(pp_mpi_t *mpi, MPI_Comm node, bool *shared)
{
    pp_shared_ticket_t tickets[2] = {0};
    pp_shared_t        memory = {.fd = -1};
    int                rank, size, error = 0, mine[2] = {0}, all[2] = {0};
    uint64_t           room = pp_shared_room();
    if (room < NODE_BYTES_MIN)
        room = 0;
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    /* The memory grows no further than every rank of the node can follow. */
    int code = MPI_Allreduce(MPI_IN_PLACE, &room, 1, MPI_UINT64_T, MPI_MIN, node);
    if (code == MPI_SUCCESS && rank == 0) {
        mine[0] = pp_doorbell_create(&mpi->doorbell, size, &tickets[0]);
        error = mine[0] ? 0 : errno;
        mine[1] = pp_shared_create(&memory, "pypartial-node", room, NODE_BYTES_COMMITTED, &tickets[1]);
        error = mine[1] || error ? error : errno;
    }
    if (code == MPI_SUCCESS)
        code = MPI_Bcast(tickets, sizeof tickets, MPI_BYTE, 0, node);
    if (code == MPI_SUCCESS && rank != 0) {
        mine[0] = pp_doorbell_attach(&mpi->doorbell, &tickets[0]);
        mine[1] = pp_shared_attach(&memory, &tickets[1]);
    }
    if (mine[0])
        mpi->doorbell.bells[rank].rank = mpi->transport.rank;
    if (code == MPI_SUCCESS)
        code = MPI_Allreduce(mine, all, 2, MPI_INT, MPI_LAND, node);
    pp_shared_seal(&mpi->doorbell.page);
    if (!all[0])
        pp_doorbell_free(&mpi->doorbell);
    if (all[0] && all[1])
        mpi->memory = pp_shared_keep(&memory);
    else
        pp_shared_free(&memory);
    if (rank == 0 && size > 1 && !mpi->memory)
        explain_apart(mpi, size, error);
    *shared = all[0];
    return code;
}

/* The tables of who can be rung, from the page: everybody has written its rank into its bell. */
static pp_status_t list_neighbours(pp_mpi_t *mpi, int bell, int bells)
{
    mpi->neighbour_count = bells;
    mpi->bell = &mpi->doorbell.bells[bell];
    mpi->neighbours = calloc((size_t)bells, sizeof *mpi->neighbours);
    mpi->to_ring = calloc((size_t)bells, sizeof *mpi->to_ring);
    mpi->to_wake = calloc((size_t)bells, sizeof *mpi->to_wake);
    for (int i = 0; mpi->neighbours && i < bells; i++)
        mpi->neighbours[i].hope = HOPE_MAX;
    if (!mpi->neighbours || !mpi->to_ring || !mpi->to_wake)
        return pp_fail(PP_ERR_MEMORY, "no memory for %d neighbours", bells);
    for (int i = 0; i < bells; i++)
        if (i != bell)
            mpi->bell_of[mpi->doorbell.bells[i].rank] = i;
    return PP_OK;
}

/* Collective over the node: launchers give each rank cores of its own, or all of them all. */
static int count_cores(MPI_Comm node, int32_t *count)
{
    cpu_set_t mine, all;
    CPU_ZERO(&mine);
    bool known = sched_getaffinity(0, sizeof mine, &mine) == 0;
    if (!known)
        CPU_ZERO(&mine);
    int code = MPI_Allreduce(&mine, &all, sizeof mine, MPI_BYTE, MPI_BOR, node);
    *count = code == MPI_SUCCESS ? CPU_COUNT(&all) : 0;
    return code;
}

/* Collective.  No page for the node is not an error; no bell at all is. */
static int find_node(const pp_mpi_t *mpi, int32_t node_ranks, MPI_Comm *node)
{
    MPI_Comm whole;
    int      rank;
    int code = MPI_Comm_split_type(mpi->comm, MPI_COMM_TYPE_SHARED, mpi->transport.rank, MPI_INFO_NULL, &whole);
    if (node_ranks <= 0 || code != MPI_SUCCESS) {
        *node = whole;
        return code;
    }
    MPI_Comm_rank(whole, &rank);
    code = MPI_Comm_split(whole, rank / node_ranks, rank, node);
    MPI_Comm_free(&whole);
    return code;
}

static pp_status_t open_doorbell(pp_mpi_t *mpi, int32_t node_ranks)
{
    MPI_Comm node;
    int      rank, size;
    bool     shared = false;
    int code = find_node(mpi, node_ranks, &node);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "finding the ranks of the node");
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    code = count_cores(node, &mpi->cores);
    if (code == MPI_SUCCESS)
        code = share_page(mpi, node, &shared);
    MPI_Comm_free(&node);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "sharing the doorbell");
    if (shared)
        return list_neighbours(mpi, rank, size);
    if (!pp_doorbell_private(&mpi->doorbell))
        return pp_fail(PP_ERR_MEMORY, "no memory for a doorbell");
    return list_neighbours(mpi, 0, 1);
}

/* Collective. */
static pp_status_t find_nodes(pp_mpi_t *mpi)
{
    enum { NO_MEMORY = -1 };
    int32_t  size = mpi->transport.size, mine = mpi->memory ? mpi->doorbell.bells[0].rank : NO_MEMORY;
    int32_t *lowest = calloc((size_t)size, sizeof *lowest);
    pp_status_t status = agree(mpi->comm, lowest ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", size));
    if (status >= 0) {
        int code = MPI_Allgather(&mine, 1, MPI_INT32_T, lowest, 1, MPI_INT32_T, mpi->comm);
        bool all = true;
        for (int32_t r = 0; r < size; r++)
            all &= lowest[r] != NO_MEMORY;
        if (code != MPI_SUCCESS)
            status = mpi_error(code, "finding out who is on which node");
        else if (all && !(mpi->nodes = pp_nodes_new(lowest, size, mpi->transport.rank)))
            status = pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", size);
    }
    free(lowest);
    return status;
}

static pp_status_t post_receives(pp_mpi_t *mpi)
{
    for (int i = 0; i < STANDING_RECEIVES; i++) {
        int code = post_receive(mpi, i);
        if (code != MPI_SUCCESS)
            return mpi_error(code, "posting the standing receives");
    }
    return PP_OK;
}

/* Collective, from `comm` being ours; *mpi is what there is to release on failure. */
static pp_status_t open_transport(MPI_Comm comm, uint64_t chunk_bytes, int32_t node_ranks, pp_mpi_t **mpi)
{
    PP_TRY(agree(comm, make_transport(comm, chunk_bytes, mpi)));
    PP_TRY(agree(comm, open_doorbell(*mpi, node_ranks)));
    pp_status_t status = find_nodes(*mpi);
    if (status == PP_OK)
        status = post_receives(*mpi);
    return agree(comm, status);
}

pp_status_t pp_mpi_open(const void *comm, uint64_t chunk_bytes, int32_t node_ranks, pp_mpi_t **result)
{
    MPI_Comm given = *(const MPI_Comm *)comm, own;
    pp_mpi_t *mpi = NULL;
    int       inter = 0;
    *result = NULL;
    MPI_Comm_test_inter(given, &inter);
    if (inter)
        return pp_fail(PP_ERR_ARGUMENT, "the communicator is an intercommunicator");
    /* Without the caller's hints: one of them lets messages overtake each other, another promises
       that nobody receives from MPI_ANY_SOURCE. */
    int code = MPI_Comm_dup_with_info(given, MPI_INFO_NULL, &own);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "duplicating the communicator");
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    pp_status_t status = open_transport(own, chunk_bytes, node_ranks, &mpi);
    if (status < 0) {
        pp_mpi_abandon(mpi);
        MPI_Comm_free(&own);
        return status;
    }
    *result = mpi;
    return PP_OK;
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
    return mpi->outstanding > mpi->parcels_out || mpi->parcels_out > PARCELS_OUT_EASY;
}

void pp_mpi_ask(pp_mpi_t *mpi)
{
    mpi->polls_skipped = POLLS_SKIPPED_MAX;
}

bool pp_mpi_expects(const pp_mpi_t *mpi)
{
    return mpi->letters || announced_not_received(mpi);
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
    pp_bell_wake(mpi->bell, bits);
}
