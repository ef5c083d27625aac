/*
 * net_cases.c - the simulated network by itself: whatever it charges for, messages between a pair of ranks
 * arrive in order, each once.  "net_cases WORLDS": random networks; one line for each kind of them.
 */
#include "transport/sim.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, MESSAGES = 300 };

typedef struct rank {
    int32_t  number;
    uint64_t sent[RANKS], received[RANKS];
} rank_t;

static pp_simnet_t *net;
static rank_t       ranks[RANKS];
static uint64_t     stream, draws;
static int          left, disorder;

static uint64_t roll(uint64_t below) { return pp_mix(stream, draws++) % below; }

static void send_one(rank_t *from)
{
    unsigned char   bytes[256] = {0};
    int32_t         peer = (from->number + 1 + (int32_t)roll(RANKS - 1)) % RANKS;
    pp_transport_t *transport = pp_simnet_transport(net, from->number);
    from->sent[peer]++;
    memcpy(bytes, &from->sent[peer], sizeof from->sent[peer]);
    if (transport->ops->send(transport, peer, bytes, 8 + roll(200), NULL, 0) < 0)
        abort();
}

static void on_message(void *owner, int32_t peer, const void *bytes, size_t count)
{
    rank_t         *rank = owner;
    pp_transport_t *transport = pp_simnet_transport(net, rank->number);
    uint64_t        number;
    (void)count;
    memcpy(&number, bytes, sizeof number);
    disorder += number != rank->received[peer] + 1;
    rank->received[peer] = number;
    if (roll(2))
        transport->ops->reduced(transport, roll(200));
    while (left > 0 && roll(3)) {
        left--;
        send_one(rank);
    }
}

static void on_bulk_done(void *owner, void *cookie)
{
    (void)owner;
    (void)cookie;
}

static void on_failed(void *owner, pp_status_t status, int32_t peer, const char *text)
{
    (void)owner;
    (void)status;
    (void)peer;
    (void)text;
}

static pp_link_t some_link(bool jitter, bool rendezvous)
{
    return (pp_link_t){.latency_ns = 10 * roll(20), .overhead_ns = 10 * roll(5), .gap_ns = 10 * roll(5),
                       .byte_ps = roll(2) * 10000, .rendezvous_bytes = rendezvous ? 100 : UINT64_MAX,
                       .jitter_ns = jitter ? roll(100) : 0};
}

static void play(uint64_t world, bool jitter, bool noise, bool reduce, bool rendezvous, bool levels)
{
    stream = world;
    draws = 0;
    left = MESSAGES;
    memset(ranks, 0, sizeof ranks);
    pp_network_t network = {.between = some_link(jitter, rendezvous), .node_ranks = levels ? 2 : 1,
                            .noise_ns = noise ? 1 + roll(20) : 0, .reduce_ps = reduce ? 1000 : 0};
    network.within = levels ? some_link(jitter, rendezvous) : network.between;
    if (pp_simnet_new(RANKS, world, &network, &net) < 0)
        abort();
    for (int32_t r = 0; r < RANKS; r++) {
        ranks[r].number = r;
        pp_simnet_transport(net, r)->sink = (pp_sink_t){
            .engine = &ranks[r], .message = on_message, .bulk_done = on_bulk_done, .failed = on_failed};
    }
    for (int32_t r = 0; r < RANKS; r++)
        for (int i = 0; i < 5; i++)
            send_one(&ranks[r]);
    for (int32_t touched; pp_simnet_step(net, &touched);)
        continue;
    for (int32_t a = 0; a < RANKS; a++)
        for (int32_t b = 0; b < RANKS; b++)
            disorder += ranks[a].sent[b] != ranks[b].received[a];
    pp_simnet_free(net);
}

int main(int argc, char **argv)
{
    uint64_t worlds = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    for (int kind = 0; kind < 32; kind++) {
        disorder = 0;
        for (uint64_t world = 1; world <= worlds; world++)
            play(world, kind & 1, kind & 2, kind & 4, kind & 8, kind & 16);
        printf("%s%s%s%s%s: %d\n", kind & 1 ? "jitter " : "", kind & 2 ? "noise " : "",
               kind & 4 ? "reduce " : "", kind & 8 ? "rendezvous " : "", kind & 16 ? "levels" : "", disorder);
    }
    return 0;
}
