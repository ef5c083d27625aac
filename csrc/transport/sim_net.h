/* sim_net.h - what the files of the simulated network share; no other file includes it. */
#ifndef PP_TRANSPORT_SIM_NET_H
#define PP_TRANSPORT_SIM_NET_H

#include "sim.h"

typedef enum kind {
    /* Events that travel from src to dst; CLEAR travels back. */
    MESSAGE,
    REQUEST, CLEAR, DATA,      /* of bulk; the event is the sending side */
    /* Events at one rank, the owner. */
    INJECTED,                  /* bulk has left the sender's buffer */
    RECEIVED,                  /* bulk goes to the receiver's buffer; `match` is the receive */
    ROUSE, ALARM, KILL, DETECT,
    /* Entries of the table of posts; not in the heap. */
    SEND_POSTED,               /* a request or data without a receive */
    RECV_POSTED
} kind_t;

/* A message, or one side of a bulk transfer through its whole life. */
typedef struct event {
    kind_t        kind;
    bool          received;    /* travelling: it has passed its receiver's port */
    bool          injected;    /* bulk: `data` is the network's copy */
    uint64_t      order;       /* number of issue */
    int32_t       src, dst, owner;
    uint32_t      tag;
    size_t        count;       /* bytes */
    size_t        charged;     /* bytes that cost something; at least 1 */
    void         *data;        /* bulk; on the sending side only read */
    void         *cookie;
    uint64_t      detect_ns;   /* KILL */
    struct event *match;       /* sending side: the receive */
    struct event *next;        /* in a bucket of posts */
    _Alignas(PP_MESSAGE_ALIGN) unsigned char bytes[];
} event_t;

typedef struct due {           /* an entry of the heap; it holds the keys, so that sifting stays in cache */
    uint64_t time_ns, key;
    event_t *event;
} due_t;

typedef struct pair {          /* latest arrival between an ordered pair of ranks */
    uint64_t key;              /* 0: empty */
    uint64_t last_ns;
} pair_t;

typedef struct port {
    pp_transport_t transport;  /* first: the operations cast back */
    pp_simnet_t   *net;
    uint64_t       send_free_ns;                /* when the next send may begin */
    uint64_t       recv_begun_ns, recv_free_ns; /* when the last receive began, and when it was over */
    bool           has_received;
    uint64_t       busy_ns;                     /* reducing until then */
    uint64_t       noises;                      /* drawn so far */
    bool           dead;
} port_t;

struct pp_simnet {
    uint64_t     seed, jitters, orders;
    pp_network_t network;
    bool         overtakes;    /* messages of a pair could overtake each other, so their order must be kept */
    uint64_t     now_ns;
    int32_t      ranks;
    port_t      *ports;
    due_t       *heap;         /* capacity >= live, so pushing cannot fail */
    size_t       heap_count, heap_capacity;
    size_t       live;         /* events that exist: in the heap or posted */
    pair_t      *pairs;        /* open addressing, at most half full */
    size_t       pair_count, pair_capacity;
    event_t    **posts;        /* chains in order of posting */
    size_t       post_count, post_buckets;
};

static inline uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- what things cost (sim_model.c) ----------------------------------------------------------- */

/* PP_ERR_ARGUMENT if a value of the network is out of range. */
pp_status_t pp_simnet_check(const pp_network_t *network);
/* Whether a message could come in before one that its sender sent earlier. */
bool pp_simnet_overtakes(const pp_network_t *network);
const pp_link_t *pp_simnet_link(const pp_simnet_t *net, int32_t a, int32_t b);
/* The time that the bytes of an event take on the wire, without L. */
uint64_t pp_simnet_wire_ns(const pp_link_t *link, const event_t *event);
/* The drawn time by which a message takes longer. */
uint64_t pp_simnet_jitter_ns(pp_simnet_t *net, const pp_link_t *link);
/* A send begins when the port is free and the rank is not busy.  Returns the time at which it is over for the
   processor, after o.  The port is free again when the bytes have left. */
uint64_t pp_simnet_pass_out(pp_simnet_t *net, port_t *from, const pp_link_t *link, uint64_t wire);
/* A receive begins when the last byte is there; returns the time at which it is over.  Its bytes come in after the
   receive before it has begun, so a small message behind a large one waits for o and g only. */
uint64_t pp_simnet_pass_in(pp_simnet_t *net, port_t *to, const pp_link_t *link, uint64_t wire,
                           uint64_t arrives);
/* The rank reduces this many bytes. */
void pp_simnet_reduce(port_t *port, size_t bytes);

/* ---- the order of events (sim_order.c) -------------------------------------------------------- */

/* Cannot fail: the heap has capacity for all events that exist. */
void  pp_simnet_push(pp_simnet_t *net, event_t *event, uint64_t time_ns);
due_t pp_simnet_pop(pp_simnet_t *net);
/* The entry of an ordered pair of ranks, made if there is none; NULL: no memory. */
pair_t *pp_simnet_pair(pp_simnet_t *net, int32_t src, int32_t dst);

#endif
