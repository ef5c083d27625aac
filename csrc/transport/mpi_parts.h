/*
 * mpi_parts.h - what the parts of the transport over MPI share: mpi.c (poll, doorbell, release), mpi_parcels.c
 * (messages), mpi_bulk.c (payloads, and all outstanding requests), mpi_deaths.c (errors), mpi_opening.c.
 * No other file includes it.
 */
#ifndef PP_TRANSPORT_MPI_PARTS_H
#define PP_TRANSPORT_MPI_PARTS_H

#include "pp_mpi.h"
#include "doorbell.h"

#include "../base/process.h"

#include <mpi.h>
#include <stdlib.h>

enum {
    STANDING_RECEIVES = 16,
    PARCEL_BYTES_MAX = PP_MESSAGE_BYTES + PP_MESSAGE_ALIGN,   /* one frame of the largest message */
    PARCELS_OUT_EASY = 16,                        /* parcels not reported as sent; more may be stuck in MPI */
    HOPE_MAX = 8,                                 /* hope is halved each time a neighbour does not look in time */
    MESSAGE_TAG = 0,
    BULK_TAG_FIRST = 1,
    TEXT_BYTES = MPI_MAX_ERROR_STRING + 128
};

_Static_assert(PARCEL_BYTES_MAX % PP_MESSAGE_ALIGN == 0, "receive buffers stay aligned");

/* The messages to one rank between two calls of ring() travel together, as frames of one parcel: an activated rank
   sends its first partner one MPI message, not two.  Within a node a message that exceeds the eager protocol is cut
   into several parcels: four eager messages take half the time of one rendezvous. */
typedef struct frame {
    uint32_t count;              /* bytes that follow, without padding */
    uint32_t left;               /* bytes of the same message in later parcels */
    uint32_t lost;               /* an obituary: 1 + the rank that is lost; 0: a message */
    int32_t  gave_up;            /* of an obituary, 1: the rank lives, but its MPI has failed */
} frame_t;

_Static_assert(sizeof(frame_t) % PP_MESSAGE_ALIGN == 0, "messages in a parcel stay aligned");

typedef struct slot {            /* a parcel that is being filled or sent */
    struct slot *next;           /* in the free list */
    size_t       length;
    _Alignas(PP_MESSAGE_ALIGN) unsigned char bytes[PARCEL_BYTES_MAX];
} slot_t;

typedef struct bulk {            /* a transfer, sent or received, of one or more chunks */
    struct bulk *next;           /* in the free list, or in the list of complete transfers */
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
    int32_t  hope;               /* >= 0: it may look by itself in time; < 0: minus the rings until the next trial */
} neighbour_t;

typedef struct owner {           /* what an outstanding request belongs to: a slot or a bulk */
    slot_t *slot;
    bulk_t *bulk;
    int32_t peer;
    bool    receives;
} owner_t;

typedef struct watched {         /* a rank whose process this one can look up */
    int32_t      rank;
    pp_process_t process;
} watched_t;

/* What every rank first tells all others about itself. */
typedef struct pp_card {
    uint64_t     host;
    uint64_t     room;           /* how far memory may grow: pp_shared_room() */
    pp_process_t process;
} pp_card_t;

struct pp_mpi {
    pp_transport_t transport;    /* first: the operations cast back */
    MPI_Comm comm;               /* the transport's own; until it has been made, the caller's */
    MPI_Comm given;              /* the caller's */
    bool     borrows;            /* `comm` is still the caller's */
    bool     opening;            /* only pp_mpi_gather() polls */
    size_t   chunk_bytes;
    int32_t  thread_level;

    MPI_Request    receives[STANDING_RECEIVES];
    unsigned char *receive_bytes;
    int            head;         /* the oldest receive */

    MPI_Request *requests;       /* outstanding: incomplete sends and bulk chunks.  Four arrays */
    owner_t     *owners;         /* of one length, as MPI_Testsome wants */
    int         *indices;
    MPI_Status  *statuses;
    size_t       outstanding, capacity;
    size_t       parcels_out;    /* outstanding requests that are parcels */
    slot_t      *free_slots;
    slot_t     **open_parcels;   /* by rank; NULL: none */
    int32_t     *to_send;        /* ranks with an open parcel, in the order of opening */
    int32_t      to_send_count;
    bulk_t      *free_bulks;
    letter_t    *letters, **letters_end;

    pp_doorbell_t doorbell;
    pp_shared_t  *memory;        /* of the node; NULL: this rank shares none */
    pp_nodes_t   *nodes;         /* NULL: some rank does not share memory with its node */
    char          apart[160];    /* why the ranks of the node share no memory; the first of them says it */
    pp_bell_t    *bell;          /* this rank's own */
    int32_t       neighbour_count;
    int32_t       cores;         /* that the ranks of the node may use, together */
    neighbour_t  *neighbours;    /* by bell */
    int32_t      *bell_of;       /* by rank; -1: it cannot be rung */
    letter_t    **half_read;     /* by rank: a message whose last parcels have not come yet */
    int32_t      *to_ring;       /* bells with unrung messages, in the order of sending */
    int32_t       to_ring_count;
    bool          defers;        /* see pp_mpi_defer */
    int32_t      *to_wake;       /* bells that are owed a wake-up */
    int32_t       to_wake_count;
    unsigned      polls_skipped; /* since MPI was last asked */
    uint32_t      received_near; /* messages of neighbours delivered; compared with `announced` */

    pp_status_t failure;         /* the first error, latched; poll() tells the sink once */
    bool        failure_told;
    int32_t     failed_peer;
    char        failure_text[TEXT_BYTES];

    pp_card_t  *cards;           /* of all ranks, while it opens */
    watched_t  *watched;         /* the other ranks of this node whose processes can be looked up */
    int32_t     watched_count, next_watched;
    int32_t     lost;            /* after a failure: the rank that is lost */
    bool        gave_up;         /* ... it lives, but its MPI has failed */
    bool        deaf;            /* this rank can receive nothing more */
    bool       *heard;           /* by rank: it has told this rank of a failure */
    int32_t     heard_count;
};

/* ---- mpi.c ---------------------------------------------------------------------------------- */

extern const pp_transport_ops_t pp_mpi_ops;

/* ---- mpi_parcels.c -------------------------------------------------------------------------- */

pp_status_t pp_mpi_send(pp_transport_t *transport, int32_t peer, const void *head, size_t head_bytes,
                        const void *body, size_t body_bytes);
/* Sends all open parcels. */
void        pp_mpi_post_parcels(pp_mpi_t *mpi);
pp_status_t pp_mpi_post_receives(pp_mpi_t *mpi);
/* Both return the number of messages delivered. */
int         pp_mpi_deliver_own(pp_mpi_t *mpi);
int         pp_mpi_deliver_received(pp_mpi_t *mpi);
pp_status_t pp_mpi_complete_receives(pp_mpi_t *mpi);

static inline unsigned char *pp_mpi_receive_buffer(const pp_mpi_t *mpi, int at)
{
    return mpi->receive_bytes + (size_t)at * PARCEL_BYTES_MAX;
}

static inline int pp_mpi_post_receive(pp_mpi_t *mpi, int at)
{
    return MPI_Irecv(pp_mpi_receive_buffer(mpi, at), PARCEL_BYTES_MAX, MPI_BYTE, MPI_ANY_SOURCE,
                     MESSAGE_TAG, mpi->comm, &mpi->receives[at]);
}

static inline void slot_put(pp_mpi_t *mpi, slot_t *slot)
{
    slot->next = mpi->free_slots;
    mpi->free_slots = slot;
}

/* A neighbour may have rung for a message that MPI does not show yet: a long message takes several steps of both sides,
   and a network on the same host takes its time.  Until then this rank must not go to sleep, because there is no second
   ring. */
static inline bool pp_mpi_announced_not_received(const pp_mpi_t *mpi)
{
    /* relaxed: a thread that is about to sleep has read the sequence before (see pp_bell_announce). */
    uint32_t announced = atomic_load_explicit(&mpi->bell->announced, memory_order_relaxed);
    return (int32_t)(announced - mpi->received_near) > 0;   /* < 0: received before the ring */
}

static inline bool needs_polling(const pp_mpi_t *mpi)
{
    return mpi->outstanding > mpi->parcels_out || mpi->parcels_out > PARCELS_OUT_EASY;
}

/* Every rank that can send to this one rings, none has, and nothing of this rank is under way.  Then MPI need not be
   asked: a test that finds nothing costs a progress pass, and on a node with more ranks than cores MPI gives the core
   away in it.  Now and then MPI is asked all the same, for traffic that is not the library's. */
static inline bool pp_mpi_nothing_announced(pp_mpi_t *mpi)
{
    return mpi->neighbour_count == mpi->transport.size && !needs_polling(mpi) && !mpi->letters
        && mpi->failure == PP_OK && !pp_mpi_announced_not_received(mpi);
}

/* ---- mpi_deaths.c --------------------------------------------------------------------------- */

pp_status_t pp_mpi_error(int code, const char *what);
/* Sets the latched failure as the calling thread's error, and returns it. */
pp_status_t pp_mpi_refuse(const pp_mpi_t *mpi);
/* Tells the sink of the failure, once; returns 1 if it did. */
int         pp_mpi_tell_sink(pp_mpi_t *mpi);
/* PP_ERR_PEER_FAILED if the code means a peer's death, else PP_ERR_MPI. */
pp_status_t pp_mpi_class(int code);
/* Latches the first error and tells all other ranks; later errors are its consequences.  peer < 0: not known. */
pp_status_t pp_mpi_break_down(pp_mpi_t *mpi, int code, const char *what, int32_t peer);

/* The highest tag of a communicator. */
int         pp_mpi_last_tag(MPI_Comm comm);
/* Lists the ranks to watch, from the cards; false: no memory. */
bool        pp_mpi_watch(pp_mpi_t *mpi);
/* Latches the loss of a rank as the failure, and tells all other ranks. */
void        pp_mpi_lose(pp_mpi_t *mpi, int32_t lost, bool gave_up);
void        pp_mpi_tell(pp_mpi_t *mpi);
void        pp_mpi_read_obituary(pp_mpi_t *mpi, int32_t peer, const frame_t *frame);
/* Whether a standing receive has completed with an obituary. */
bool        pp_mpi_is_obituary(const pp_mpi_t *mpi, int at, const MPI_Status *status);
/* While the transport opens, when nothing else is received: latches the failure that an obituary tells, if one has
   come. */
void        pp_mpi_look_for_obituaries(pp_mpi_t *mpi);
/* A rank that MPI itself knows to have failed, the lowest; -1: none. */
int32_t     pp_mpi_failed(MPI_Comm comm);
/* The same, or else a rank whose process has died: MPI may report the consequence of a death as an internal error. */
int32_t     pp_mpi_find_dead(pp_mpi_t *mpi);

/* ---- mpi_bulk.c ----------------------------------------------------------------------------- */

/* Makes room for `extra` requests besides those of the open parcels.  To be called before a request is started, so that
   each can be recorded. */
bool        pp_mpi_reserve(pp_mpi_t *mpi, size_t extra);
void        pp_mpi_record(pp_mpi_t *mpi, MPI_Request request, owner_t owner);
/* Tests the outstanding requests; returns the number of transfers that it reported as complete. */
int         pp_mpi_advance(pp_mpi_t *mpi);
pp_status_t pp_mpi_complete_sends(pp_mpi_t *mpi);
pp_status_t pp_mpi_bulk_send(pp_transport_t *transport, int32_t peer, uint32_t tag, const void *data,
                             size_t bytes, void *cookie);
pp_status_t pp_mpi_bulk_recv(pp_transport_t *transport, int32_t peer, uint32_t tag, void *data,
                             size_t bytes, void *cookie);

#endif
