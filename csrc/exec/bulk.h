/*
 * bulk.h - payloads: elements that follow a message, and which the transport reads or writes where they lie.
 *
 * Where a kind of memory queues its operations (memory.h), the transport gets a payload when those that were queued
 * before are over.  Until then it is *held*: pp_bulks_look() asks for that.  A receive is held, too, because an operation
 * may still read what was there before.
 */
#ifndef PP_BULK_H
#define PP_BULK_H

#include "../reduce/memory.h"
#include "../transport/transport.h"

typedef struct pp_payload {
    bool     sends;                  /* else it receives */
    int32_t  peer;
    uint32_t tag;                    /* pp_bulks_tag() of the sender */
    uint32_t handle;                 /* for the text of an error */
    void    *elements;               /* the address for the transport */
    size_t   bytes;
    const pp_memory_t *memory;       /* of the elements */
} pp_payload_t;

/* What is to be told when a payload has travelled. */
typedef struct pp_travelled {
    void   (*over)(void *owner, uint32_t which);
    void    *owner;
    uint32_t which;
} pp_travelled_t;

/* A payload under way: the transport's cookie. */
typedef struct pp_bulk {
    pp_payload_t    payload;
    pp_travelled_t  then;
    uint64_t        mark;            /* held until the kind of memory has reached this */
    struct pp_bulk *next, *next_made;
} pp_bulk_t;

typedef struct pp_bulks {
    pp_transport_t *transport;
    pp_bulk_t *made;                 /* all */
    pp_bulk_t *idle;                 /* those not under way */
    pp_bulk_t *held, **held_end;     /* oldest first; NULL, and anything: none is held */
    uint32_t   next_tag;
} pp_bulks_t;

/* The next tag for a payload. */
uint32_t    pp_bulks_tag(pp_bulks_t *bulks);
/* Sends or receives a payload: now, or when its kind of memory lets it go.  The elements are the transport's until
   then->over(), which pp_bulks_over() calls.  After an error the transport, or the memory, is broken. */
pp_status_t pp_bulks_begin(pp_bulks_t *bulks, const pp_payload_t *payload, const pp_travelled_t *then);
/* Lets the transport have those that need not be held any more; *gone: so many more. */
pp_status_t pp_bulks_look(pp_bulks_t *bulks, int *gone);
/* Whether a payload of the handle is held. */
bool        pp_bulks_hold(const pp_bulks_t *bulks, uint32_t handle);
/* The transport has moved the payload. */
void        pp_bulks_over(pp_bulks_t *bulks, pp_bulk_t *bulk);
/* Frees all, also those under way. */
void        pp_bulks_release(pp_bulks_t *bulks);

#endif
