/* sight.c - see sight.h. */
#include "sight.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(pp_trace_head_t) == PP_TRACE_HEAD, "the events follow the head");
_Static_assert(sizeof(pp_event_t) == 48 && sizeof(pp_sample_t) == 48, "as the readers of files and rows take them");

enum {
    FAST = 64,                       /* Starts within one tick */
    LOOKS = 16,
    THREADS = 64,                    /* more share their accounts */
    PAIR_TICKS = 1000,
    FRESH_TICKS = 1 << 21            /* about a millisecond */
};

static _Atomic uint32_t timed;       /* cycles of this process that are being timed */
/* What each thread has spent in calls that may block, while there were some. */
static _Atomic uint64_t inside_ns[THREADS];

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Of the processor's counter; 0: there is none that a program may read. */
static uint64_t ticks_now(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

/* Reads the counter and the clock together; false: the thread was put aside between the two. */
static bool read_pair(uint64_t *ticks, uint64_t *ns)
{
    *ticks = ticks_now();
    *ns = clock_ns(CLOCK_MONOTONIC);
    return ticks_now() - *ticks < PAIR_TICKS;
}

/* The clock, in half the time while there is a trace: from the processor's counter and its pace so far, where the kernel makes
   the clock of that counter, too.  Both are read again after FRESH_TICKS, so the error stays far below a microsecond; and
   after a jump of the counter, as when a machine was suspended, the times are right again as soon. */
static uint64_t quick_ns(pp_ctx_t *ctx)
{
    struct pp_counter *counter = &ctx->sight.counter;
    if (!counter->used)
        return clock_ns(CLOCK_MONOTONIC);
    uint64_t   ticks = ticks_now(), ns;
    const bool is_fresh = ticks - counter->ticks < FRESH_TICKS;
    if (is_fresh && counter->ns_per_tick > 0)
        return counter->ns + (uint64_t)((double)(ticks - counter->ticks) * counter->ns_per_tick);
    if (read_pair(&ticks, &ns) && !is_fresh) {
        counter->ns_per_tick = (double)(ns - counter->ns) / (double)(ticks - counter->ticks);
        counter->ticks = ticks;
        counter->ns = ns;
    }
    return ns;
}

/* The number of the calling thread's account. */
static uint32_t account(void)
{
    static _Atomic uint32_t threads;
    static _Thread_local uint32_t mine;      /* + 1 */
    if (mine == 0)
        mine = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % THREADS + 1;
    return mine - 1;
}

static uint64_t inside(uint32_t thread) { return atomic_load_explicit(&inside_ns[thread], memory_order_relaxed); }

uint64_t pp_sight_enter(void)
{
    return atomic_load_explicit(&timed, memory_order_relaxed) ? clock_ns(CLOCK_MONOTONIC) : 0;
}

/* No atomic addition: the account is the thread's own, but of more than THREADS. */
static void leave(uint64_t since_ns, uint64_t now_ns)
{
    const uint32_t mine = account();
    atomic_store_explicit(&inside_ns[mine], inside(mine) + now_ns - since_ns, memory_order_relaxed);
}

void pp_sight_leave(uint64_t since_ns)
{
    if (since_ns)
        leave(since_ns, clock_ns(CLOCK_MONOTONIC));
}

/* ---- rows ------------------------------------------------------------------------------------------------- */

bool pp_sight_open(pp_ctx_t *ctx)
{
    if (!ctx->mpi)
        return true;
    ctx->sight.row = ctx->node.rows ? &ctx->node.rows[ctx->node.index] : calloc(1, sizeof *ctx->sight.row);
    return ctx->sight.row != NULL;
}

void pp_sight_close(pp_ctx_t *ctx)
{
    pp_trace_forget(ctx);
    if (!ctx->node.rows)
        free(ctx->sight.row);
    ctx->sight.row = NULL;
}

/* What the rank has computed in the cycle that ends now.  0: it is not known, as where a Wait of another thread than the
   last one's has ended it: a request may be started in one thread and waited for in another, whose time counts. */
static uint64_t computed(const pp_handle_t *handle, uint64_t now_ns)
{
    const struct pp_cycle *cycle = &handle->sight.cycle;
    if (!cycle->start_ns || !cycle->given_ns || cycle->waiter != handle->sight.waiter)
        return 0;
    const uint64_t own = inside(cycle->waiter) - cycle->inside_ns, whole = now_ns - cycle->start_ns;
    return whole > own ? whole - own : 1;
}

static void add_sample(pp_row_t *row, const pp_handle_t *handle)
{
    const struct pp_cycle *cycle = &handle->sight.cycle;
    row->sample[row->samples % PP_SAMPLES] = (pp_sample_t){
        .key = cycle->key, .start_ns = cycle->start_ns, .given_ns = cycle->given_ns, .waited_ns = cycle->waited_ns,
        .computed_ns = handle->sight.computed_ns, .handle = handle->id, .late = cycle->late};
    __atomic_store_n(&row->samples, row->samples + 1, __ATOMIC_RELEASE);
}

void pp_sight_ends(pp_handle_t *handle)
{
    if (handle->sight.cycle.start_ns)
        atomic_fetch_sub_explicit(&timed, 1, memory_order_relaxed);
    handle->sight.cycle.start_ns = 0;
}

/* The handle's cycles take microseconds. */
static bool is_fast(const pp_handle_t *handle) { return handle->sight.same >= FAST; }

/* Whether a cycle is timed: not in a loop in which the coarse clock has stood still for a while, where only each 16th Start
   looks at it. */
static bool is_timed(pp_ctx_t *ctx, pp_handle_t *handle)
{
    if (is_fast(handle) && handle->sight.same++ % LOOKS != 0)
        return false;
    const uint64_t tick = ctx->engine.transport->ops->coarse_ns(ctx->engine.transport);
    ctx->sight.is_due = ctx->sight.every_ns && tick >= ctx->sight.due_ns;
    handle->sight.same = tick == handle->sight.tick ? handle->sight.same + 1 : 0;
    handle->sight.tick = tick;
    return !is_fast(handle);
}

uint64_t pp_sight_starts(pp_ctx_t *ctx, pp_handle_t *handle)
{
    if (!ctx->sight.row)
        return 0;
    handle->sight.begins = is_timed(ctx, handle) || ctx->sight.trace;
    const bool     read = handle->sight.begins || handle->sight.cycle.start_ns;
    const uint64_t since_ns = read ? quick_ns(ctx) : pp_sight_enter();
    handle->sight.computed_ns = read ? computed(handle, since_ns) : 0;
    if (ctx->sight.trace)
        pp_trace_add(ctx, &(pp_event_t){.ns = since_ns, .kind = PP_EVENT_START, .handle = handle->id,
                                        .number = ctx->sight.row->calls + 1, .key = handle->sight.computed_ns});
    return since_ns;
}

void pp_sight_started(pp_ctx_t *ctx, pp_handle_t *handle, uint64_t since_ns, pp_status_t status)
{
    pp_row_t *row = ctx->sight.row;
    if (row && status >= 0)
        row->calls++;
    if (!since_ns)
        return;
    const struct pp_cycle *cycle = &handle->sight.cycle;
    if (!is_fast(handle)) {              /* else the Start took microseconds at most */
        leave(since_ns, quick_ns(ctx));
        if (status >= 0 && handle->sight.computed_ns)
            add_sample(row, handle);
    }
    if (status < 0)
        return;
    if (!handle->sight.begins) {
        pp_sight_ends(handle);
        return;
    }
    if (!cycle->start_ns)
        atomic_fetch_add_explicit(&timed, 1, memory_order_relaxed);
    const uint32_t waiter = handle->sight.waiter;
    handle->sight.cycle = (struct pp_cycle){.start_ns = since_ns, .waiter = waiter, .inside_ns = inside(waiter)};
}

static void begin_wait(pp_ctx_t *ctx, pp_handle_t *handle)
{
    handle->sight.wait_ns = ctx->sight.trace ? quick_ns(ctx) : pp_sight_enter();
    if (handle->sight.wait_ns)
        handle->sight.waiter = account();
}

void pp_sight_waits(pp_ctx_t *ctx, pp_handle_t *handle)
{
    handle->sight.wait_ns = 0;
    if (!is_fast(handle))                /* else one that does not have to wait takes microseconds at most */
        begin_wait(ctx, handle);
}

void pp_sight_must_wait(pp_ctx_t *ctx, pp_handle_t *handle)
{
    if (!handle->sight.wait_ns)
        begin_wait(ctx, handle);
    if (ctx->sight.trace && !handle->sight.cycle.waits)
        pp_trace_add(ctx, &(pp_event_t){.ns = handle->sight.wait_ns, .kind = PP_EVENT_WAIT, .handle = handle->id});
    handle->sight.cycle.waits = true;
}

void pp_sight_waited(pp_ctx_t *ctx, pp_handle_t *handle, pp_status_t status)
{
    const uint64_t since_ns = handle->sight.wait_ns;
    const uint64_t now_ns = since_ns || ctx->sight.trace ? quick_ns(ctx) : 0;
    if (since_ns) {
        leave(since_ns, now_ns);
        if (handle->sight.cycle.waits)
            handle->sight.cycle.waited_ns += now_ns - since_ns;
    }
    if (status == PP_OK)
        pp_sight_given(ctx, handle, now_ns);
}

void pp_sight_given(pp_ctx_t *ctx, pp_handle_t *handle, uint64_t now_ns)
{
    pp_row_t *row = ctx->sight.row;
    const struct pp_given *given = &handle->sight.given;
    if (!row || given->goes_on)
        return;
    row->given++;
    row->late += given->late;
    row->external += given->external;
    row->contributions += given->contributions;
    row->active += (uint64_t)given->active;
    row->missed += given->missed;
    row->staleness += given->staleness;
    if (row->most_stale < given->staleness)
        row->most_stale = given->staleness;
    if (given->cause >= 0)
        row->causes[given->cause]++;
    struct pp_cycle *cycle = &handle->sight.cycle;
    if (now_ns)
        cycle->given_ns = now_ns, cycle->key = given->key, cycle->late = given->late;
    cycle->waits = false;
    const uint64_t missed = given->missed < UINT16_MAX >> 2 ? given->missed : UINT16_MAX >> 2;
    if (ctx->sight.trace)
        pp_trace_add(ctx, &(pp_event_t){
            .ns = now_ns ? now_ns : quick_ns(ctx), .number = given->number, .key = given->key,
            .handle = handle->id, .kind = PP_EVENT_GIVEN, .cause = (uint8_t)(given->cause + 1),
            .flags = (uint16_t)(given->late | given->external << 1 | missed << 2), .a = given->active,
            .b = (int32_t)given->contributions, .c = (int32_t)given->staleness, .d = given->initiator});
}

/* ---- traces ----------------------------------------------------------------------------------------------- */

void pp_trace_add(pp_ctx_t *ctx, const pp_event_t *event)
{
    pp_trace_head_t *head = ctx->sight.trace;
    pp_event_t      *events = (pp_event_t *)(head + 1);
    events[ctx->sight.next] = *event;
    ctx->sight.next = ctx->sight.next + 1 == head->capacity ? 0 : ctx->sight.next + 1;
    __atomic_store_n(&head->count, head->count + 1, __ATOMIC_RELEASE);   /* a killed rank keeps whole events */
}

static void tell(pp_engine_t *engine, const pp_event_t *event)
{
    pp_ctx_t  *ctx = (pp_ctx_t *)((char *)engine - offsetof(pp_ctx_t, engine));
    pp_event_t at = *event;
    at.ns = quick_ns(ctx);
    pp_trace_add(ctx, &at);
}

void pp_sight_tell(pp_ctx_t *ctx, pp_event_kind_t kind, int32_t a, int32_t b)
{
    if (ctx->sight.trace)
        tell(&ctx->engine, &(pp_event_t){.kind = (uint8_t)kind, .a = a, .b = b});
}

/* With a trace all calls are timed. */
void pp_trace_keep(pp_ctx_t *ctx, pp_trace_head_t *head)
{
    atomic_fetch_add_explicit(&timed, 1, memory_order_relaxed);
    ctx->sight.trace = head;
    ctx->sight.next = 0;
    struct pp_counter *counter = &ctx->sight.counter;
    counter->ns_per_tick = 0;
    counter->used = read_pair(&counter->ticks, &counter->ns) && pp_trace_by_counter();
    ctx->engine.tell = tell;
}

void pp_trace_forget(pp_ctx_t *ctx)
{
    if (ctx->sight.trace)
        atomic_fetch_sub_explicit(&timed, 1, memory_order_relaxed);
    ctx->sight.trace = NULL;
    ctx->engine.tell = NULL;
}
