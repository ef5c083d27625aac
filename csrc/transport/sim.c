#include "sim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    BULK_TAGS = 1 << 20,
    BUCKETS_MIN = 64,                             /* of the hashes; powers of two */
    POISON = 0xA5
};

typedef enum kind {
    MESSAGE,
    SEND_POSTED,               /* bulk, unmatched: in the table of posts */
    RECV_POSTED,
    TRANSFER,                  /* the receive of a matched pair; `match` is the send */
    DONE                       /* tells `owner` its cookie */
} kind_t;

/* A message, or one side of a bulk transfer through its whole life: no further memory is needed
   once it was accepted. */
typedef struct event {
    kind_t        kind;
    int32_t       src, dst, owner;
    uint32_t      tag;
    size_t        count;       /* bytes */
    void         *data;        /* bulk; never written through on the sending side */
    void         *cookie;
    struct event *match;
    struct event *next;        /* in a bucket of posts */
    _Alignas(PP_MESSAGE_ALIGN) unsigned char bytes[];
} event_t;

typedef struct due {           /* heap entry; the keys lie here so that sifting stays in cache */
    uint64_t time_ns, order;
    event_t *event;
} due_t;

typedef struct pair {          /* latest delivery between an ordered pair of ranks */
    uint64_t key;              /* 0: empty */
    uint64_t last_ns;
} pair_t;

typedef struct port {
    pp_transport_t transport;  /* first: the operations cast back */
    pp_simnet_t   *net;
} port_t;

struct pp_simnet {
    uint64_t  seed, draws, orders;
    uint64_t  latency_min_ns, latency_max_ns;
    uint64_t  now_ns;
    int32_t   ranks;
    port_t   *ports;
    due_t    *heap;            /* capacity >= live, so pushing cannot fail */
    size_t    heap_count, heap_capacity;
    size_t    live;            /* events that exist: in the heap or posted */
    pair_t   *pairs;           /* open addressing, at most half full */
    size_t    pair_count, pair_capacity;
    event_t **posts;           /* chains in order of posting */
    size_t    post_count, post_buckets;
};

/* ---- time ----------------------------------------------------------------------------------- */

static uint64_t draw_ns(pp_simnet_t *net, uint64_t min_ns, uint64_t max_ns)
{
    return min_ns + pp_mix(net->seed, net->draws++) % (max_ns - min_ns + 1);
}

static uint64_t latency_ns(pp_simnet_t *net)
{
    return draw_ns(net, net->latency_min_ns, net->latency_max_ns);
}

static bool earlier(const due_t *a, const due_t *b)
{
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->order < b->order;
}

static void heap_push(pp_simnet_t *net, event_t *event, uint64_t time_ns)
{
    assert(net->heap_count < net->heap_capacity);
    due_t  due = {time_ns, net->orders++, event};
    size_t at = net->heap_count++;
    while (at > 0 && earlier(&due, &net->heap[(at - 1) / 2])) {
        net->heap[at] = net->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    net->heap[at] = due;
}

static due_t heap_pop(pp_simnet_t *net)
{
    due_t *heap = net->heap, top = heap[0], last = heap[--net->heap_count];
    size_t at = 0, count = net->heap_count;
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && earlier(&heap[child + 1], &heap[child]))
            child++;
        if (!earlier(&heap[child], &last))
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

/* ---- order between pairs -------------------------------------------------------------------- */

static pair_t *pair_slot(pair_t *pairs, size_t capacity, uint64_t key)
{
    size_t at = pp_mix(0, key) & (capacity - 1);
    while (pairs[at].key != 0 && pairs[at].key != key)
        at = (at + 1) & (capacity - 1);
    return &pairs[at];
}

/* Rebuilds the table without the pairs that have nothing under way (they constrain no later
   message), so that its size follows the messages under way and not the square of the ranks. */
static bool pairs_rebuild(pp_simnet_t *net)
{
    size_t live = 0, capacity = BUCKETS_MIN;
    for (size_t i = 0; i < net->pair_capacity; i++)
        live += net->pairs[i].key != 0 && net->pairs[i].last_ns > net->now_ns;
    while (capacity < 4 * (live + 1))
        capacity *= 2;
    pair_t *pairs = calloc(capacity, sizeof *pairs);
    if (!pairs)
        return false;
    for (size_t i = 0; i < net->pair_capacity; i++)
        if (net->pairs[i].key != 0 && net->pairs[i].last_ns > net->now_ns)
            *pair_slot(pairs, capacity, net->pairs[i].key) = net->pairs[i];
    free(net->pairs);
    net->pairs = pairs;
    net->pair_capacity = capacity;
    net->pair_count = live;
    return true;
}

/* The pair's entry, made if need be; NULL: no memory. */
static pair_t *pair_of(pp_simnet_t *net, int32_t src, int32_t dst)
{
    uint64_t key = 1 + (uint64_t)src * (uint64_t)net->ranks + (uint64_t)dst;
    if (2 * (net->pair_count + 1) > net->pair_capacity && !pairs_rebuild(net))
        return NULL;
    pair_t *pair = pair_slot(net->pairs, net->pair_capacity, key);
    if (pair->key == 0) {
        *pair = (pair_t){key, 0};
        net->pair_count++;
    }
    return pair;
}

/* ---- events --------------------------------------------------------------------------------- */

static event_t *event_new(pp_simnet_t *net, kind_t kind, int32_t src, int32_t dst, size_t payload)
{
    if (!pp_grow((void **)&net->heap, &net->heap_capacity, net->live + 1, sizeof *net->heap))
        return NULL;
    event_t *event = malloc(sizeof *event + payload);
    if (!event)
        return NULL;
    *event = (event_t){.kind = kind, .src = src, .dst = dst, .count = payload};
    net->live++;
    return event;
}

static void event_free(pp_simnet_t *net, event_t *event)
{
    free(event);
    net->live--;
}

static bool rank_known(const port_t *port, int32_t peer)
{
    return peer >= 0 && peer < port->net->ranks;
}

static pp_status_t send_message(pp_transport_t *transport, int32_t peer, const void *head,
                                size_t head_bytes, const void *body, size_t body_bytes)
{
    port_t      *port = (port_t *)transport;
    pp_simnet_t *net = port->net;
    size_t       count = head_bytes + body_bytes;
    if (!rank_known(port, peer) || count > PP_MESSAGE_BYTES)
        return pp_fail(PP_ERR_INTERNAL, "message of %zu bytes to rank %d of %d", count, peer,
                       net->ranks);
    pair_t  *pair = pair_of(net, transport->rank, peer);
    event_t *event = pair ? event_new(net, MESSAGE, transport->rank, peer, count) : NULL;
    if (!event)
        return pp_fail(PP_ERR_MEMORY, "no memory for a message of %zu bytes", count);
    memcpy(event->bytes, head, head_bytes);
    if (body_bytes > 0)
        memcpy(event->bytes + head_bytes, body, body_bytes);

    uint64_t time_ns = net->now_ns + latency_ns(net);
    if (time_ns < pair->last_ns)
        time_ns = pair->last_ns;          /* equal times: the heap keeps the order of issue */
    pair->last_ns = time_ns;
    heap_push(net, event, time_ns);
    transport->messages_sent++;
    transport->bytes_sent += count;
    return PP_OK;
}

/* ---- bulk ----------------------------------------------------------------------------------- */

static event_t **post_bucket(event_t **posts, size_t buckets, const event_t *post)
{
    uint64_t pair = ((uint64_t)(uint32_t)post->src << 32) | (uint32_t)post->dst;
    return &posts[pp_mix(pair, post->tag) & (buckets - 1)];
}

static void post_append(event_t **link, event_t *post)
{
    while (*link)
        link = &(*link)->next;
    post->next = NULL;
    *link = post;
}

/* Doubles the buckets; without memory the chains just grow longer. */
static void posts_grow(pp_simnet_t *net)
{
    size_t    buckets = 2 * net->post_buckets;
    event_t **posts = calloc(buckets, sizeof(event_t *));
    if (!posts)
        return;
    for (size_t i = 0; i < net->post_buckets; i++)
        for (event_t *post = net->posts[i], *next; post; post = next) {
            next = post->next;
            post_append(post_bucket(posts, buckets, post), post);
        }
    free(net->posts);
    net->posts = posts;
    net->post_buckets = buckets;
}

/* Takes the oldest post of the other side with the same ranks and tag out of the table. */
static event_t *post_take_match(pp_simnet_t *net, const event_t *post)
{
    event_t **link = post_bucket(net->posts, net->post_buckets, post);
    for (; *link; link = &(*link)->next) {
        event_t *other = *link;
        if (other->src == post->src && other->dst == post->dst && other->tag == post->tag
            && other->kind != post->kind) {
            *link = other->next;
            net->post_count--;
            return other;
        }
    }
    return NULL;
}

static pp_status_t bulk_post(port_t *port, kind_t kind, int32_t peer, uint32_t tag, void *data,
                             size_t bytes, void *cookie)
{
    pp_simnet_t *net = port->net;
    int32_t      me = port->transport.rank;
    bool         sends = kind == SEND_POSTED;
    if (!rank_known(port, peer) || tag >= BULK_TAGS || bytes == 0)
        return pp_fail(PP_ERR_INTERNAL, "bulk of %zu bytes, tag %u, between rank %d and %d of %d",
                       bytes, tag, me, peer, net->ranks);
    event_t *post = event_new(net, kind, sends ? me : peer, sends ? peer : me, 0);
    if (!post)
        return pp_fail(PP_ERR_MEMORY, "no memory for a bulk transfer");
    post->owner = me;
    post->tag = tag;
    post->data = data;
    post->count = bytes;
    post->cookie = cookie;
    event_t *other = post_take_match(net, post);
    if (other) {
        event_t *receive = sends ? other : post;
        receive->kind = TRANSFER;
        receive->match = sends ? post : other;
        heap_push(net, receive, net->now_ns + latency_ns(net));
        return PP_OK;
    }
    if (++net->post_count > net->post_buckets)
        posts_grow(net);
    post_append(post_bucket(net->posts, net->post_buckets, post), post);
    return PP_OK;
}

static pp_status_t bulk_send(pp_transport_t *transport, int32_t peer, uint32_t tag,
                             const void *data, size_t bytes, void *cookie)
{
    PP_TRY(bulk_post((port_t *)transport, SEND_POSTED, peer, tag, (void *)(uintptr_t)data, bytes,
                     cookie));
    transport->bulk_sent++;
    transport->bytes_sent += bytes;
    return PP_OK;
}

static pp_status_t bulk_recv(pp_transport_t *transport, int32_t peer, uint32_t tag, void *data,
                             size_t bytes, void *cookie)
{
    PP_TRY(bulk_post((port_t *)transport, RECV_POSTED, peer, tag, data, bytes, cookie));
    memset(data, POISON, bytes);          /* ours from here on: whoever still reads it sees that */
    return PP_OK;
}

/* ---- what happens --------------------------------------------------------------------------- */

static void deliver_message(pp_simnet_t *net, event_t *event)
{
    pp_transport_t *to = &net->ports[event->dst].transport;
    if (to->sink.message) {
        to->messages_received++;
        to->sink.message(to->sink.engine, event->src, event->bytes, event->count);
    }
    event_free(net, event);               /* the bytes were valid during the call only */
}

/* Data moves now, at the last moment; afterwards the receiver is told, and the sender, whose
   acknowledgement has to travel. */
static void transfer(pp_simnet_t *net, event_t *receive)
{
    event_t        *sent = receive->match;
    pp_transport_t *from = &net->ports[receive->src].transport;
    pp_transport_t *to = &net->ports[receive->dst].transport;
    bool            fits = receive->count == sent->count;
    if (fits && from->sink.message && to->sink.message)   /* else a buffer may be gone */
        memcpy(receive->data, sent->data, sent->count);
    receive->kind = sent->kind = DONE;
    heap_push(net, receive,
              net->now_ns + draw_ns(net, 0, net->latency_max_ns - net->latency_min_ns));
    heap_push(net, sent, net->now_ns + latency_ns(net));
    if (!fits && to->sink.failed) {
        char text[128];
        snprintf(text, sizeof text, "bulk of %zu bytes from rank %d met a receive of %zu bytes",
                 sent->count, from->rank, receive->count);
        to->sink.failed(to->sink.engine, PP_ERR_INTERNAL, from->rank, text);
    }
}

static void report_done(pp_simnet_t *net, event_t *event)
{
    pp_sink_t *sink = &net->ports[event->owner].transport.sink;
    void      *cookie = event->cookie;
    event_free(net, event);
    if (sink->bulk_done)
        sink->bulk_done(sink->engine, cookie);
}

bool pp_simnet_step(pp_simnet_t *net)
{
    if (net->heap_count == 0)
        return false;
    due_t due = heap_pop(net);
    pp_simnet_set_now(net, due.time_ns);
    switch (due.event->kind) {
    case MESSAGE:  deliver_message(net, due.event); break;
    case TRANSFER: transfer(net, due.event); break;
    case DONE:     report_done(net, due.event); break;
    case SEND_POSTED:
    case RECV_POSTED: assert(!"posts are not in the heap"); break;
    }
    return true;
}

/* ---- the rest of the transport, and the net ------------------------------------------------- */

static int poll_nothing(pp_transport_t *transport)
{
    (void)transport;
    return 0;
}

static void ring_nobody(pp_transport_t *transport)
{
    (void)transport;
}

static uint64_t now_ns(pp_transport_t *transport)
{
    return ((port_t *)transport)->net->now_ns;
}

static const pp_transport_ops_t sim_ops = {
    .send = send_message,
    .bulk_send = bulk_send,
    .bulk_recv = bulk_recv,
    .poll = poll_nothing,
    .ring = ring_nobody,
    .now_ns = now_ns,
};

pp_status_t pp_simnet_new(int32_t ranks, uint64_t seed, uint64_t latency_min_ns,
                          uint64_t latency_max_ns, pp_simnet_t **result)
{
    *result = NULL;
    if (ranks < 1)
        return pp_fail(PP_ERR_ARGUMENT, "ranks=%d is not positive", ranks);
    if (latency_max_ns < latency_min_ns || latency_max_ns > INT64_MAX)
        return pp_fail(PP_ERR_ARGUMENT, "latencies %llu..%llu ns are no range",
                       (unsigned long long)latency_min_ns, (unsigned long long)latency_max_ns);
    pp_simnet_t *net = calloc(1, sizeof *net);
    if (net) {
        net->ports = calloc((size_t)ranks, sizeof *net->ports);
        net->posts = calloc(BUCKETS_MIN, sizeof(event_t *));
    }
    if (!net || !net->ports || !net->posts) {
        pp_simnet_free(net);
        return pp_fail(PP_ERR_MEMORY, "no memory for %d simulated ranks", ranks);
    }
    net->seed = seed;
    net->ranks = ranks;
    net->latency_min_ns = latency_min_ns;
    net->latency_max_ns = latency_max_ns;
    net->post_buckets = BUCKETS_MIN;
    for (int32_t rank = 0; rank < ranks; rank++) {
        net->ports[rank].net = net;
        net->ports[rank].transport = (pp_transport_t){
            .ops = &sim_ops, .rank = rank, .size = ranks, .bulk_tags = BULK_TAGS};
    }
    *result = net;
    return PP_OK;
}

pp_transport_t *pp_simnet_transport(pp_simnet_t *net, int32_t rank)
{
    return &net->ports[rank].transport;
}

uint64_t pp_simnet_now_ns(const pp_simnet_t *net)
{
    return net->now_ns;
}

uint64_t pp_simnet_next_ns(const pp_simnet_t *net)
{
    return net->heap_count > 0 ? net->heap[0].time_ns : UINT64_MAX;
}

void pp_simnet_set_now(pp_simnet_t *net, uint64_t time_ns)
{
    if (time_ns > net->now_ns)
        net->now_ns = time_ns;
}

void pp_simnet_free(pp_simnet_t *net)
{
    if (!net)
        return;
    for (size_t i = 0; i < net->heap_count; i++) {
        if (net->heap[i].event->kind == TRANSFER)
            free(net->heap[i].event->match);
        free(net->heap[i].event);
    }
    for (size_t i = 0; i < net->post_buckets; i++)
        for (event_t *post = net->posts[i], *next; post; post = next) {
            next = post->next;
            free(post);
        }
    free(net->heap);
    free(net->pairs);
    free(net->posts);
    free(net->ports);
    free(net);
}
