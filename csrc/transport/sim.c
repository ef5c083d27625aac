/* sim.c - the simulated network: messages, bulk, and the transport of a rank.  See sim.h. */
#include "sim_net.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    BULK_TAGS = 1 << 20,
    BUCKETS_MIN = 64,          /* of posts; a power of two */
    POISON = 0xA5
};

static const uint64_t TIME_MAX = UINT64_C(1) << 62;

/* ---- travelling ----------------------------------------------------------------------------- */

static event_t *event_new(pp_simnet_t *net, kind_t kind, int32_t src, int32_t dst, size_t payload)
{
    if (!pp_grow((void **)&net->heap, &net->heap_capacity, net->live + 1, sizeof *net->heap))
        return NULL;
    event_t *event = malloc(sizeof *event + payload);
    if (!event)
        return NULL;
    *event = (event_t){.kind = kind, .src = src, .dst = dst, .count = payload, .charged = 1};
    net->live++;
    return event;
}

static void event_free(pp_simnet_t *net, event_t *event)
{
    if (event->injected)
        free(event->data);
    free(event);
    net->live--;
}

static void drop(pp_simnet_t *net, event_t *event)
{
    if (event->match)
        event_free(net, event->match);
    event_free(net, event);
}

static int32_t origin(const event_t *event) { return event->kind == CLEAR ? event->dst : event->src; }
static int32_t target(const event_t *event) { return event->kind == CLEAR ? event->src : event->dst; }

/* Sends an event on to the receiver's port.  Its time in the heap is when it would have passed a free port, so it
   mostly needs no second event: see receive().  Where o differs, a port therefore serves events in the order of these
   times. */
static void travel(pp_simnet_t *net, event_t *event, const pp_link_t *link, uint64_t arrives)
{
    event->received = false;
    pp_simnet_push(net, event, arrives + link->overhead_ns);
}

/* Takes an event through the sender's port and over the wire. */
static void dispatch(pp_simnet_t *net, event_t *event, pair_t *pair)
{
    port_t          *from = &net->ports[origin(event)];
    const pp_link_t *link = pp_simnet_link(net, event->src, event->dst);
    uint64_t wire = pp_simnet_wire_ns(link, event);
    uint64_t arrives = pp_simnet_pass_out(net, from, link, wire) + link->latency_ns + wire
                     + pp_simnet_jitter_ns(net, link);
    /* A message finds a standing receive: its request and clear-to-send only take their time. */
    if (event->kind == MESSAGE && event->charged > link->rendezvous_bytes)
        arrives += 2 * (link->latency_ns + 2 * link->overhead_ns);
    if (pair) {
        arrives = later(arrives, pair->last_ns);   /* at equal times the heap keeps the order of issue */
        pair->last_ns = arrives;
    }
    travel(net, event, link, arrives);
}

/* Takes an event through the receiver's port; false: the port was not free. */
static bool receive(pp_simnet_t *net, event_t *event)
{
    port_t          *to = &net->ports[target(event)];
    const pp_link_t *link = pp_simnet_link(net, event->src, event->dst);
    uint64_t wire = pp_simnet_wire_ns(link, event);
    uint64_t received = pp_simnet_pass_in(net, to, link, wire, net->now_ns - link->overhead_ns);
    event->received = true;
    if (received == net->now_ns)
        return true;
    pp_simnet_push(net, event, received);
    return false;
}

static bool rank_known(const port_t *port, int32_t peer)
{
    return peer >= 0 && peer < port->net->ranks;
}

/* Whether the rank is dead, or has left. */
static bool is_gone(const pp_simnet_t *net, int32_t rank)
{
    return net->ports[rank].dead || !net->ports[rank].transport.sink.message;
}

static pp_status_t send_message(pp_transport_t *transport, int32_t peer, const void *head,
                                size_t head_bytes, const void *body, size_t body_bytes)
{
    port_t      *port = (port_t *)transport;
    pp_simnet_t *net = port->net;
    size_t       count = head_bytes + body_bytes;
    pair_t      *pair = NULL;
    if (!rank_known(port, peer) || count > PP_MESSAGE_BYTES)
        return pp_fail(PP_ERR_INTERNAL, "cannot send a message of %zu bytes to rank %d of %d ranks", count, peer,
                       net->ranks);
    if (port->dead)
        return PP_OK;
    event_t *event = event_new(net, MESSAGE, transport->rank, peer, count);
    if (event && net->overtakes)
        pair = pp_simnet_pair(net, transport->rank, peer);
    if (!event || (net->overtakes && !pair)) {
        if (event)
            event_free(net, event);
        return pp_fail(PP_ERR_MEMORY, "no memory for a message of %zu bytes", count);
    }
    memcpy(event->bytes, head, head_bytes);
    if (body_bytes > 0)
        memcpy(event->bytes + head_bytes, body, body_bytes);
    size_t charged = net->network.headers_free ? body_bytes : count;
    event->charged = charged > 0 ? charged : 1;
    dispatch(net, event, pair);
    transport->messages_sent++;
    transport->bytes_sent += net->network.headers_free ? body_bytes : count;
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

/* Doubles the buckets; if there is no memory, the chains grow longer. */
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

/* The event goes on as another kind, at a rank. */
static void happen(pp_simnet_t *net, event_t *event, kind_t kind, int32_t owner, uint64_t time_ns)
{
    event->kind = kind;
    event->owner = owner;
    pp_simnet_push(net, event, time_ns);
}

static void send_control(pp_simnet_t *net, event_t *sent, kind_t kind)
{
    sent->kind = kind;
    dispatch(net, sent, NULL);
}

/* The data leave the sender.  Its buffer belongs to it again after the last byte, and is read only then, at the last
   moment. */
static void inject(pp_simnet_t *net, event_t *sent)
{
    port_t          *from = &net->ports[sent->src];
    const pp_link_t *link = pp_simnet_link(net, sent->src, sent->dst);
    sent->kind = DATA;
    uint64_t wire = pp_simnet_wire_ns(link, sent);
    happen(net, sent, INJECTED, sent->src, pp_simnet_pass_out(net, from, link, wire) + wire);
}

static bool report_done(pp_simnet_t *net, int32_t rank, void *cookie)
{
    pp_sink_t *sink = &net->ports[rank].transport.sink;
    if (is_gone(net, rank))
        return false;
    sink->bulk_done(sink->engine, cookie);
    return true;
}

static void fail_at(pp_simnet_t *net, int32_t rank, pp_status_t status, int32_t peer, const char *text)
{
    pp_sink_t *sink = &net->ports[rank].transport.sink;
    if (!is_gone(net, rank) && sink->failed)
        sink->failed(sink->engine, status, peer, text);
}

static bool on_injected(pp_simnet_t *net, event_t *sent)
{
    const pp_link_t *link = pp_simnet_link(net, sent->src, sent->dst);
    if (is_gone(net, sent->src)) {        /* with its buffer */
        drop(net, sent);
        return false;
    }
    void *copy = malloc(sent->count);
    if (!copy) {
        fail_at(net, sent->src, PP_ERR_MEMORY, sent->dst, "no memory for a bulk transfer to it");
        drop(net, sent);
        return true;
    }
    memcpy(copy, sent->data, sent->count);
    sent->data = copy;
    sent->injected = true;
    sent->kind = DATA;
    travel(net, sent, link, net->now_ns + link->latency_ns + pp_simnet_jitter_ns(net, link));
    return report_done(net, sent->src, sent->cookie);
}

/* The data are here and the receive is posted: they go to the receiver's buffer. */
static bool on_received(pp_simnet_t *net, event_t *sent)
{
    event_t *posted = sent->match;
    int32_t  dst = sent->dst;
    bool     fits = posted->count == sent->count, reached = false;
    void    *cookie = posted->cookie;
    if (fits && !is_gone(net, dst))       /* else the receiver's buffer may be gone */
        memcpy(posted->data, sent->data, sent->count);
    if (!fits) {
        char text[128];
        snprintf(text, sizeof text, "a bulk transfer of %zu bytes from rank %d met a receive of %zu bytes",
                 sent->count, sent->src, posted->count);
        fail_at(net, dst, PP_ERR_INTERNAL, sent->src, text);
        reached = true;
    }
    event_free(net, posted);
    event_free(net, sent);
    return fits ? report_done(net, dst, cookie) : reached;
}

static void post_add(pp_simnet_t *net, event_t *post)
{
    if (++net->post_count > net->post_buckets)
        posts_grow(net);
    post_append(post_bucket(net->posts, net->post_buckets, post), post);
}

/* Both sides have posted: a request is answered, or data go to the receiver's buffer. */
static void meet(pp_simnet_t *net, event_t *sent, event_t *posted)
{
    sent->match = posted;
    if (sent->injected)
        happen(net, sent, RECEIVED, sent->dst, net->now_ns);
    else
        send_control(net, sent, CLEAR);
}

/* A request or data have reached the receiver. */
static void come_in(pp_simnet_t *net, event_t *sent)
{
    event_t *posted = sent->match;
    sent->kind = SEND_POSTED;
    if (!posted)
        posted = post_take_match(net, sent);
    if (posted)
        meet(net, sent, posted);
    else
        post_add(net, sent);
}

static pp_status_t bulk_post(port_t *port, kind_t kind, int32_t peer, uint32_t tag, void *data,
                             size_t bytes, void *cookie, event_t **out)
{
    pp_simnet_t *net = port->net;
    int32_t      me = port->transport.rank;
    bool         sends = kind == SEND_POSTED;
    *out = NULL;
    if (!rank_known(port, peer) || tag >= BULK_TAGS || bytes == 0)
        return pp_fail(PP_ERR_INTERNAL, "cannot transfer %zu bytes with tag %u between rank %d and rank %d of %d ranks",
                       bytes, tag, me, peer, net->ranks);
    event_t *post = event_new(net, kind, sends ? me : peer, sends ? peer : me, 0);
    if (!post)
        return pp_fail(PP_ERR_MEMORY, "no memory for a bulk transfer");
    post->owner = me;
    post->tag = tag;
    post->data = data;
    post->count = post->charged = bytes;
    post->cookie = cookie;
    *out = post;
    return PP_OK;
}

static pp_status_t bulk_send(pp_transport_t *transport, int32_t peer, uint32_t tag,
                             const void *data, size_t bytes, void *cookie)
{
    port_t  *port = (port_t *)transport;
    event_t *sent;
    if (port->dead)
        return PP_OK;
    PP_TRY(bulk_post(port, SEND_POSTED, peer, tag, (void *)(uintptr_t)data, bytes, cookie, &sent));
    if (bytes > pp_simnet_link(port->net, transport->rank, peer)->rendezvous_bytes)
        send_control(port->net, sent, REQUEST);
    else
        inject(port->net, sent);
    transport->bulk_sent++;
    transport->bytes_sent += bytes;
    return PP_OK;
}

static pp_status_t bulk_recv(pp_transport_t *transport, int32_t peer, uint32_t tag, void *data,
                             size_t bytes, void *cookie)
{
    pp_simnet_t *net = ((port_t *)transport)->net;
    event_t     *posted;
    PP_TRY(bulk_post((port_t *)transport, RECV_POSTED, peer, tag, data, bytes, cookie, &posted));
    memset(data, POISON, bytes);          /* the transport's from here on: a wrong read finds the poison */
    event_t *sent = post_take_match(net, posted);
    if (sent)
        meet(net, sent, posted);
    else
        post_add(net, posted);
    return PP_OK;
}

/* ---- what happens --------------------------------------------------------------------------- */

static bool deliver_message(pp_simnet_t *net, event_t *event)
{
    pp_transport_t *to = &net->ports[event->dst].transport;
    to->messages_received++;
    to->sink.message(to->sink.engine, event->src, event->bytes, event->count);
    event_free(net, event);               /* the bytes were valid during the call only */
    return true;
}

/* An event has passed its receiver's port. */
static bool deliver(pp_simnet_t *net, event_t *event)
{
    if (is_gone(net, target(event))) {
        drop(net, event);
        return false;
    }
    switch (event->kind) {
    case MESSAGE: return deliver_message(net, event);
    case CLEAR:   inject(net, event); return false;
    default:      come_in(net, event); return false;
    }
}

/* The rank may have set an earlier or later alarm since. */
static bool on_alarm(pp_simnet_t *net, event_t *event)
{
    port_t *port = &net->ports[event->owner];
    pp_transport_t *transport = &port->transport;
    bool due = !port->dead && transport->alarm_ns <= net->now_ns;
    event_free(net, event);
    if (due)
        transport->sink.alarm(transport->sink.engine);
    return due;
}

static void on_kill(pp_simnet_t *net, event_t *event)
{
    net->ports[event->owner].dead = true;
    if (event->detect_ns < TIME_MAX - net->now_ns)
        happen(net, event, DETECT, event->owner, net->now_ns + event->detect_ns);
    else
        event_free(net, event);
}

static void on_detect(pp_simnet_t *net, event_t *event)
{
    for (int32_t rank = 0; rank < net->ranks; rank++)
        fail_at(net, rank, PP_ERR_PEER_FAILED, event->owner, "its process has died");
    event_free(net, event);
}

bool pp_simnet_step(pp_simnet_t *net, int32_t *rank)
{
    *rank = -1;
    if (net->heap_count == 0)
        return false;
    due_t    due = pp_simnet_pop(net);
    event_t *event = due.event;
    int32_t  owner = event->owner;
    pp_simnet_set_now(net, due.time_ns);
    switch (event->kind) {
    case MESSAGE: case REQUEST: case CLEAR: case DATA: {
        int32_t to = target(event);
        if ((event->received || receive(net, event)) && deliver(net, event))
            *rank = to;
        break;
    }
    case INJECTED:
        if (on_injected(net, event))
            *rank = owner;
        break;
    case RECEIVED:
        if (on_received(net, event))
            *rank = owner;
        break;
    case ROUSE:
        *rank = owner;
        event_free(net, event);
        break;
    case ALARM:
        *rank = on_alarm(net, event) ? owner : -1;
        break;
    case KILL:   on_kill(net, event); break;
    case DETECT: on_detect(net, event); *rank = PP_SIMNET_ALL; break;
    case SEND_POSTED:
    case RECV_POSTED: assert(!"posts are not in the heap"); break;
    }
    return true;
}

static pp_status_t happen_at(pp_simnet_t *net, kind_t kind, int32_t rank, uint64_t time_ns,
                             uint64_t detect_ns)
{
    event_t *event = event_new(net, kind, rank, rank, 0);
    if (!event)
        return pp_fail(PP_ERR_MEMORY, "no memory for an event");
    event->detect_ns = detect_ns;
    happen(net, event, kind, rank, later(time_ns, net->now_ns));
    return PP_OK;
}

pp_status_t pp_simnet_rouse(pp_simnet_t *net, int32_t rank, uint64_t time_ns)
{
    return happen_at(net, ROUSE, rank, time_ns, 0);
}

pp_status_t pp_simnet_kill(pp_simnet_t *net, int32_t rank, uint64_t time_ns, uint64_t detect_ns)
{
    return happen_at(net, KILL, rank, time_ns, detect_ns);
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

static void set_alarm(pp_transport_t *transport)
{
    port_t *port = (port_t *)transport;
    if (happen_at(port->net, ALARM, transport->rank, transport->alarm_ns, 0) < 0)
        fail_at(port->net, transport->rank, PP_ERR_MEMORY, -1, "no memory for an event");
}

static void reduced(pp_transport_t *transport, size_t bytes)
{
    pp_simnet_reduce((port_t *)transport, bytes);
}

static const pp_transport_ops_t sim_ops = {
    .send = send_message,
    .bulk_send = bulk_send,
    .bulk_recv = bulk_recv,
    .poll = poll_nothing,
    .ring = ring_nobody,
    .now_ns = now_ns,
    .alarm = set_alarm,
    .reduced = reduced,
};

pp_status_t pp_simnet_new(int32_t ranks, uint64_t seed, const pp_network_t *network,
                          pp_simnet_t **result)
{
    *result = NULL;
    if (ranks < 1)
        return pp_fail(PP_ERR_ARGUMENT, "ranks=%d is not at least 1", ranks);
    PP_TRY(pp_simnet_check(network));
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
    net->network = *network;
    net->overtakes = pp_simnet_overtakes(network);
    net->ranks = ranks;
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

bool pp_simnet_dead(const pp_simnet_t *net, int32_t rank) { return net->ports[rank].dead; }

uint64_t pp_simnet_busy_ns(const pp_simnet_t *net, int32_t rank) { return net->ports[rank].busy_ns; }

void pp_simnet_free(pp_simnet_t *net)
{
    if (!net)
        return;
    for (size_t i = 0; i < net->heap_count; i++)
        drop(net, net->heap[i].event);
    for (size_t i = 0; i < net->post_buckets; i++)
        for (event_t *post = net->posts[i], *next; post; post = next) {
            next = post->next;
            drop(net, post);
        }
    free(net->heap);
    free(net->pairs);
    free(net->posts);
    free(net->ports);
    free(net);
}
