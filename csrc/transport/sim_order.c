/* sim_order.c - the order of events in the simulated network: the heap, and pairs of ranks.  See sim.h. */
#include "sim_net.h"

#include <assert.h>
#include <stdlib.h>

enum {
    ORDER_BITS = 40,           /* of a heap key: these hold the number of issue, those above the seed's choice */
    HEAP_FANOUT = 4,           /* fewer cache misses than two */
    PAIRS_MIN = 64             /* slots of the table; a power of two */
};

/* ---- the heap ------------------------------------------------------------------------------- */

static bool earlier(const due_t *a, const due_t *b)
{
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->key < b->key;
}

void pp_simnet_push(pp_simnet_t *net, event_t *event, uint64_t time_ns)
{
    assert(net->heap_count < net->heap_capacity);
    /* The seed orders events of the same time, except for two of one pair of ranks: those get the same choice. */
    uint64_t pair = (uint64_t)(uint32_t)event->src << 32 | (uint32_t)event->dst;
    uint64_t choice = pp_mix(net->seed ^ pair, time_ns) >> ORDER_BITS;
    /* An event that a busy receiver has put off keeps its number, and so stays before those that its sender sent
       later. */
    if (!event->received)
        event->order = net->orders++;
    due_t    due = {time_ns, choice << ORDER_BITS | event->order, event};
    size_t at = net->heap_count++;
    while (at > 0 && earlier(&due, &net->heap[(at - 1) / HEAP_FANOUT])) {
        net->heap[at] = net->heap[(at - 1) / HEAP_FANOUT];
        at = (at - 1) / HEAP_FANOUT;
    }
    net->heap[at] = due;
}

due_t pp_simnet_pop(pp_simnet_t *net)
{
    due_t *heap = net->heap, top = heap[0], last = heap[--net->heap_count];
    size_t at = 0, count = net->heap_count;
    for (size_t first; (first = HEAP_FANOUT * at + 1) < count;) {
        size_t end = first + HEAP_FANOUT < count ? first + HEAP_FANOUT : count, least = first;
        for (size_t child = first + 1; child < end; child++)
            if (earlier(&heap[child], &heap[least]))
                least = child;
        if (!earlier(&heap[least], &last))
            break;
        heap[at] = heap[least];
        at = least;
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

/* Rebuilds the table without the pairs that have no message under way: they constrain no later message.  So its size
   follows the messages under way, not the square of the ranks. */
static bool pairs_rebuild(pp_simnet_t *net)
{
    size_t live = 0, capacity = PAIRS_MIN;
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

pair_t *pp_simnet_pair(pp_simnet_t *net, int32_t src, int32_t dst)
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
