/* node.c - see node.h. */
#include "node.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#if PP_SIM
void (*pp_node_step)(const char *step);
#endif

enum { PAGE = 4096 };

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the atomics are shared between processes");

static uint64_t whole_pages(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

size_t pp_commons_bytes(int32_t size)
{
    return sizeof(pp_commons_t) + (size_t)size * sizeof(pp_presence_t);
}

/* ---- processes -------------------------------------------------------------------------------------- */

/* CPU time of a process of this user; false: the kernel does not tell it. */
static bool cpu_time(int64_t pid, uint64_t *ns)
{
    clockid_t       clock;
    struct timespec used;
    if (clock_getcpuclockid((pid_t)pid, &clock) || clock_gettime(clock, &used))
        return false;
    *ns = (uint64_t)used.tv_sec * UINT64_C(1000000000) + (uint64_t)used.tv_nsec;
    return true;
}

bool pp_node_idles(pp_node_t *node, int32_t index, uint64_t now_ns)
{
    enum { HARDLY = 8 };             /* an idle process uses less than this part of a core */
    uint64_t cpu_ns;
    if (!node->memory)
        return false;
    struct pp_pulse *pulse = &node->pulses[index];
    if (now_ns - pulse->at_ns < PP_NODE_IDLE_NS)
        return pulse->idle;
    pp_presence_t *presence = &node->commons->presence[index];
    if (!cpu_time(presence->pid, &cpu_ns))
        return false;
    cpu_ns -= atomic_load_explicit(&presence->lent_ns, memory_order_relaxed);
    /* Signed: the time lent may be counted before the CPU time of it, or after. */
    int64_t used_ns = (int64_t)(cpu_ns - pulse->cpu_ns);
    pulse->idle = pulse->at_ns != 0 && used_ns < (int64_t)((now_ns - pulse->at_ns) / HARDLY);
    pulse->cpu_ns = cpu_ns;
    pulse->at_ns = now_ns;
    return pulse->idle;
}

void pp_node_lent(pp_node_t *node, uint64_t ns)
{
    atomic_fetch_add_explicit(&node->commons->presence[node->index].lent_ns, ns, memory_order_relaxed);
}

/* ---- opening ---------------------------------------------------------------------------------------- */

bool pp_node_open(pp_node_t *node, pp_shared_t *memory, int32_t index, int32_t size)
{
    uint64_t ranges = PP_SHARED_LABEL + pp_commons_bytes(size);
    uint64_t rows = whole_pages(ranges + sizeof(pp_ranges_t));
    uint64_t common = whole_pages(rows + (uint64_t)size * sizeof(pp_row_t));
    *node = (pp_node_t){.memory = memory, .base = memory->memory, .index = index, .size = size, .magnify = 1};
    node->commons = pp_node_at(node, PP_SHARED_LABEL);
    node->ranges = pp_node_at(node, ranges);
    node->rows = pp_node_at(node, rows);
    node->pulses = calloc((size_t)size, sizeof *node->pulses);
    if (!node->pulses || !pp_shared_reach(memory, common) || !pp_shared_commit(memory, 0, common))
        return false;
    if (index == 0) {
        pp_node_make_lock(node);
        pp_ranges_give(node->ranges, common, memory->most - common);
        atomic_store(&node->commons->top, common);
    }
    node->commons->presence[index].pid = getpid();
    return true;
}

void pp_node_open_simulated(pp_node_t *node, pp_commons_t *commons, int32_t index, int32_t size,
                            uint64_t magnify, int32_t room)
{
    *node = (pp_node_t){.commons = commons, .index = index, .size = size, .magnify = magnify, .room = room};
}

void pp_node_close(pp_node_t *node)
{
    free(node->pulses);
    node->pulses = NULL;
}

/* ---- memory ----------------------------------------------------------------------------------------- */

bool pp_node_holds(const pp_node_t *node, const void *memory, size_t bytes, uint64_t *offset)
{
    const char *from = memory, *base = node->base;
    if (!node->memory || from < base || bytes > node->memory->bytes
        || from > base + node->memory->bytes - bytes)
        return false;
    *offset = (uint64_t)(from - base);
    return true;
}

/* Makes the offsets of arrays free that this process has freed.  With the lock. */
static void collect_arrays(pp_node_t *node)
{
    for (pp_range_t *range = pp_shared_taken_back(node->memory), *next; range; range = next) {
        next = range->next;
        pp_ranges_give(node->ranges, range->offset, range->bytes);
        free(range);
    }
}

/* The range has no memory any more. */
static void take_back(pp_node_t *node, uint64_t offset, uint64_t bytes)
{
    if (!pp_node_lock(node))
        return;
    pp_ranges_give(node->ranges, offset, bytes);
    pp_node_unlock(node);
}

/* The offset of free whole pages, mapped in this process; 0: none are left. */
static uint64_t give_out(pp_node_t *node, uint64_t bytes)
{
    _Atomic uint64_t *top = &node->commons->top;
    if (!pp_node_lock(node))
        return 0;
    collect_arrays(node);
    uint64_t offset = pp_ranges_take(node->ranges, bytes);
    if (offset && atomic_load(top) < offset + bytes)
        atomic_store(top, offset + bytes);
    pp_node_unlock(node);
    if (!offset || pp_shared_reach(node->memory, offset + bytes))
        return offset;
    take_back(node, offset, bytes);
    return 0;
}

bool pp_node_reach(pp_node_t *node)
{
    return !node->memory || pp_shared_reach(node->memory, atomic_load(&node->commons->top));
}

uint64_t pp_node_reserve(pp_node_t *node, uint64_t bytes)
{
    bytes = whole_pages(bytes);
    if (node->memory)
        return give_out(node, bytes);
    void *memory = NULL;
    return posix_memalign(&memory, PAGE, bytes) ? 0 : (uint64_t)(uintptr_t)memory;
}

void pp_node_release(pp_node_t *node, uint64_t offset, uint64_t bytes)
{
    bytes = whole_pages(bytes);
    if (!node->memory) {
        free((void *)(uintptr_t)offset);
        return;
    }
    pp_shared_uncommit(node->memory, offset, bytes);
    take_back(node, offset, bytes);
}

bool pp_node_commit(pp_node_t *node, uint64_t offset, uint64_t bytes)
{
    return !node->memory || bytes == 0 || pp_shared_commit(node->memory, offset, bytes);
}

void *pp_node_alloc(pp_node_t *node, size_t *bytes)
{
    if (!node->memory || *bytes > node->memory->most)
        return NULL;
    *bytes = whole_pages(*bytes ? *bytes : 1);
    uint64_t offset = give_out(node, *bytes);
    if (!offset)
        return NULL;
    if (pp_node_commit(node, offset, *bytes))
        return pp_node_at(node, offset);
    pp_shared_uncommit(node->memory, offset, *bytes);    /* a part of it may be committed */
    take_back(node, offset, *bytes);
    return NULL;
}

/* ---- presence --------------------------------------------------------------------------------------- */

/* Inside a call, or out, or waiting for something that the boards do not show: then the rules look closer. */
static bool is_away(uint64_t presence)
{
    return presence & (PP_PRESENCE_INSIDE | PP_PRESENCE_OUT | PP_PRESENCE_WAITS);
}

bool pp_node_set_presence(pp_node_t *node, uint64_t calls, bool inside, bool out, bool waits)
{
    pp_commons_t *commons = node->commons;
    uint64_t presence = calls << PP_PRESENCE_CALLS_SHIFT | (out ? PP_PRESENCE_OUT : 0)
                  | (inside ? PP_PRESENCE_INSIDE : 0) | (waits ? PP_PRESENCE_WAITS : 0);
    if (presence == node->presence)
        return false;
    pp_node_call_over(node, calls);
    /* A rank is counted before it shows that it goes away, and until after it shows that it is back.  So a rank that
       finds nobody away has looked before, and the rank that goes away looks at the rounds afterwards. */
    if (is_away(presence) && !is_away(node->presence)) {
        PP_STEP("leave");
        atomic_fetch_add(&commons->away, 1);
    }
    PP_STEP("leave");
    atomic_store(&commons->presence[node->index].shown, presence);
    if (!is_away(presence) && is_away(node->presence)) {
        PP_STEP("leave");
        atomic_fetch_sub(&commons->away, 1);
    }
    node->presence = presence;
    return true;
}

bool pp_node_anybody_away(const pp_node_t *node)
{
    PP_STEP("decide");
    return atomic_load(&node->commons->away) > 0;
}

static uint64_t most_calls(const pp_commons_t *commons)
{
    uint64_t here = atomic_load(&commons->calls);
    PP_STEP("decide");
    uint64_t heard = atomic_load(&commons->calls_heard);
    return here > heard ? here : heard;
}

bool pp_node_left(const pp_node_t *node, int32_t index)
{
    PP_STEP("decide");
    uint64_t presence = atomic_load(&node->commons->presence[index].shown);
    if (presence & PP_PRESENCE_OUT)
        return true;
    return (presence & PP_PRESENCE_INSIDE)
        && presence >> PP_PRESENCE_CALLS_SHIFT >= most_calls(node->commons);
}

bool pp_node_waits(const pp_node_t *node, int32_t index)
{
    PP_STEP("decide");
    return atomic_load(&node->commons->presence[index].shown) & PP_PRESENCE_WAITS;
}

bool pp_node_out(const pp_node_t *node, int32_t index)
{
    PP_STEP("decide");
    return atomic_load(&node->commons->presence[index].shown) & PP_PRESENCE_OUT;
}

uint64_t pp_node_calls_of(const pp_node_t *node, int32_t index)
{
    PP_STEP("decide");
    return atomic_load(&node->commons->presence[index].shown) >> PP_PRESENCE_CALLS_SHIFT;
}

uint64_t pp_node_calls(const pp_node_t *node)
{
    PP_STEP("decide");
    return atomic_load(&node->commons->calls);
}

static void raise_to(_Atomic uint64_t *most, uint64_t calls)
{
    PP_STEP("leave");
    uint64_t seen = atomic_load(most);
    while (seen < calls && !atomic_compare_exchange_weak(most, &seen, calls))
        PP_STEP("leave");
}

void pp_node_call_over(pp_node_t *node, uint64_t calls) { raise_to(&node->commons->calls, calls); }
void pp_node_hears(pp_node_t *node, uint64_t calls) { raise_to(&node->commons->calls_heard, calls); }

/* ---- sleep ------------------------------------------------------------------------------------------ */

void pp_node_asleep(pp_node_t *node)
{
    /* seq_cst: before the sleeper's last look, as the publication is before the publisher's. */
    atomic_fetch_add(&node->commons->sleepers, 1);
}

void pp_node_awake(pp_node_t *node) { atomic_fetch_sub(&node->commons->sleepers, 1); }

bool pp_node_anybody_asleep(const pp_node_t *node)
{
    PP_STEP("wake");
    return atomic_load(&node->commons->sleepers) > 0;
}
