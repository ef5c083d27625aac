/*
 * transport.h - the only thing that the engine knows of the world.
 *
 * Two kinds of traffic:
 *   - Messages are small.  The transport buffers them when they are sent, and delivers them through the sink, from
 *     inside poll(), in order between a pair of ranks.  No receive is posted for them: the transport keeps standing
 *     receives, and the engine matches a message by its header.  Nothing is ever cancelled.
 *   - Bulk is a payload that follows a message.  The sender names a tag in the message; the receiver posts the receive
 *     when it has room for the data.  Both buffers belong to the transport until it reports the cookie through
 *     bulk_done().
 * Single-threaded: the context's lock protects every call.  No call blocks.
 */
#ifndef PP_TRANSPORT_H
#define PP_TRANSPORT_H

#include "../base/base.h"

/* The largest message is a header with two rank masks, and an inline payload. */
enum {
    PP_INLINE_BYTES = 16384,
    PP_HEADER_BYTES = 1024,
    PP_MESSAGE_BYTES = PP_INLINE_BYTES + PP_HEADER_BYTES,
    PP_MESSAGE_ALIGN = 16
};

/* What the engine gives to the transport. */
typedef struct pp_sink {
    void *engine;
    /* `bytes` are 16-byte aligned, and valid during the call only. */
    void (*message)(void *engine, int32_t peer, const void *bytes, size_t count);
    void (*bulk_done)(void *engine, void *cookie);
    /* The time of the last alarm() has come. */
    void (*alarm)(void *engine);
    /* The transport is broken from here on; peer < 0: no rank in particular failed. */
    void (*failed)(void *engine, pp_status_t status, int32_t peer, const char *text);
} pp_sink_t;

typedef struct pp_transport pp_transport_t;

typedef struct pp_transport_ops {
    /* Copies head and body (body may be NULL) before it returns. */
    pp_status_t (*send)(pp_transport_t *, int32_t peer, const void *head, size_t head_bytes,
                        const void *body, size_t body_bytes);
    pp_status_t (*bulk_send)(pp_transport_t *, int32_t peer, uint32_t tag, const void *data,
                             size_t bytes, void *cookie);
    pp_status_t (*bulk_recv)(pp_transport_t *, int32_t peer, uint32_t tag, void *data, size_t bytes,
                             void *cookie);
    /* Delivers what has arrived; returns the number of events. */
    int         (*poll)(pp_transport_t *);
    /* Wakes the ranks to which something was sent since the last ring(). */
    void        (*ring)(pp_transport_t *);
    uint64_t    (*now_ns)(pp_transport_t *);
    /* The same time, cheap to read and up to some milliseconds old.  NULL: there is no cheaper clock. */
    uint64_t    (*coarse_ns)(pp_transport_t *);
    /* The engine has set transport->alarm_ns, and wants sink.alarm() then.  NULL: the thread that is about to sleep
       looks at alarm_ns itself, and sleeps no longer than until then. */
    void        (*alarm)(pp_transport_t *);
    /* This rank has reduced this many bytes; virtual time may charge for it.  NULL: not of interest. */
    void        (*reduced)(pp_transport_t *, size_t bytes);
} pp_transport_ops_t;

struct pp_transport {
    const pp_transport_ops_t *ops;
    pp_sink_t sink;
    int32_t   rank, size;
    uint32_t  bulk_tags;          /* bulk tags are 0 .. bulk_tags - 1, reused cyclically */
    bool      bulk_in_flight;     /* something is under way that only polling can advance */
    bool      pins_pages;         /* bulk costs time for each page: its buffers should lie in huge pages */
    uint64_t  alarm_ns;           /* when the engine wants to look at the clock; 0: soon, UINT64_MAX: never */
    uint64_t  messages_sent, messages_received, bytes_sent, bulk_sent, rings;
};

#endif
