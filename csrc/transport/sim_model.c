/* sim_model.c - what the simulated network charges for: LogGP, noise, reductions.  See sim.h. */
#include "sim_net.h"

enum { CONTROL_BYTES = 1 };    /* what a request or a clear-to-send is charged for */

/* ---- the values of a network ------------------------------------------------------------------ */

/* With these limits the times of millions of messages in a row, and of thousands of gigabytes, are below 2^62 ns. */
enum { LIMIT_BITS_NS = 40, LIMIT_BITS_PS = 30 };

static pp_status_t check_link(const pp_link_t *link)
{
    const uint64_t limit_ns = UINT64_C(1) << LIMIT_BITS_NS, limit_ps = UINT64_C(1) << LIMIT_BITS_PS;
    if (link->latency_ns > limit_ns || link->overhead_ns > limit_ns || link->gap_ns > limit_ns
        || link->jitter_ns > limit_ns)
        return pp_fail(PP_ERR_ARGUMENT, "L=%llu, o=%llu, g=%llu, jitter=%llu ns: each must be at most 2^40 ns",
                       (unsigned long long)link->latency_ns, (unsigned long long)link->overhead_ns,
                       (unsigned long long)link->gap_ns, (unsigned long long)link->jitter_ns);
    if (link->byte_ps > limit_ps)
        return pp_fail(PP_ERR_ARGUMENT, "G=%llu ps must be at most 2^30 ps",
                       (unsigned long long)link->byte_ps);
    return PP_OK;
}

pp_status_t pp_simnet_check(const pp_network_t *network)
{
    PP_TRY(check_link(&network->between));
    PP_TRY(check_link(&network->within));
    if (network->node_ranks < 1)
        return pp_fail(PP_ERR_ARGUMENT, "node_ranks=%d is not at least 1", network->node_ranks);
    if (network->noise_ns > UINT64_C(1) << LIMIT_BITS_NS
        || network->reduce_ps > UINT64_C(1) << LIMIT_BITS_PS)
        return pp_fail(PP_ERR_ARGUMENT, "noise_ns=%llu must be at most 2^40, and reduce_ps=%llu at most 2^30",
                       (unsigned long long)network->noise_ns, (unsigned long long)network->reduce_ps);
    return PP_OK;
}

static bool may_overtake(const pp_link_t *link)
{
    return link->jitter_ns > 0 || link->rendezvous_bytes < PP_MESSAGE_BYTES;
}

bool pp_simnet_overtakes(const pp_network_t *network)
{
    return may_overtake(&network->between) || may_overtake(&network->within) || network->noise_ns > 0;
}

/* ---- time ------------------------------------------------------------------------------------- */

const pp_link_t *pp_simnet_link(const pp_simnet_t *net, int32_t a, int32_t b)
{
    const pp_network_t *network = &net->network;
    return a / network->node_ranks == b / network->node_ranks ? &network->within : &network->between;
}

/* The time of `bytes` bytes, rounded to the nearest ns. */
static uint64_t bytes_ns(uint64_t byte_ps, size_t bytes)
{
    return (uint64_t)(((unsigned __int128)byte_ps * bytes + 500) / 1000);
}

uint64_t pp_simnet_wire_ns(const pp_link_t *link, const event_t *event)
{
    bool control = event->kind == REQUEST || event->kind == CLEAR;
    return bytes_ns(link->byte_ps, (control ? CONTROL_BYTES : event->charged) - 1);
}

uint64_t pp_simnet_jitter_ns(pp_simnet_t *net, const pp_link_t *link)
{
    return link->jitter_ns > 0 ? pp_mix(net->seed, net->jitters++) % (link->jitter_ns + 1) : 0;
}

/* An exponentially distributed time, after von Neumann (1951).  It only compares uniform numbers, so it is the same on
   every machine. */
static uint64_t noise_ns(pp_simnet_t *net, port_t *port)
{
    const uint64_t stream = pp_mix(~net->seed, (uint64_t)port->transport.rank);
    const uint64_t mean = net->network.noise_ns;
    if (mean == 0)
        return 0;
    for (uint64_t whole = 0;; whole++) {
        uint64_t first = pp_mix(stream, port->noises++), last = first, drawn;
        bool     odd = true;
        while ((drawn = pp_mix(stream, port->noises++)) < last) {
            last = drawn;
            odd = !odd;
        }
        if (odd)
            return whole * mean + (uint64_t)((unsigned __int128)first * mean >> 64);
    }
}

uint64_t pp_simnet_pass_out(pp_simnet_t *net, port_t *from, const pp_link_t *link, uint64_t wire)
{
    uint64_t begin = later(later(net->now_ns, from->busy_ns), from->send_free_ns);
    uint64_t overhead = link->overhead_ns + noise_ns(net, from);
    from->send_free_ns = begin + later(overhead, link->gap_ns + wire);
    return begin + overhead;
}

uint64_t pp_simnet_pass_in(pp_simnet_t *net, port_t *to, const pp_link_t *link, uint64_t wire,
                           uint64_t arrives)
{
    uint64_t begin = arrives;
    if (to->has_received)
        begin = later(later(arrives, to->recv_free_ns), to->recv_begun_ns + link->gap_ns + wire);
    to->has_received = true;
    to->recv_begun_ns = begin;
    to->recv_free_ns = begin + link->overhead_ns + noise_ns(net, to);
    return later(to->recv_free_ns, to->busy_ns);
}

void pp_simnet_reduce(port_t *port, size_t bytes)
{
    if (port->net->network.reduce_ps > 0)
        port->busy_ns = later(port->busy_ns, port->net->now_ns)
                      + bytes_ns(port->net->network.reduce_ps, bytes);
}
