/*
 * station.c - queues in the memory that all ranks share.  See queue.h.
 *
 * A rank has a *station*, which only it writes, and a *ring* of models.  Start copies the application's elements to the
 * entry of this iteration; publishing is a store.  A neighbour reads the entry where it lies: there is no lock, and no
 * job of another rank.  The *tag* of an entry is the iteration whose model it holds, -1 while it is written; a reader
 * looks at it before and after.  The ring is so large that an entry is overwritten under a reader only by a rank that
 * was left behind and is back.
 *
 * Flush and Free.  All ranks come; each averages the models that all have given; and none goes on before all have read
 * them.  A rank that is out comes, too, and gives none.  All go on with the newest iteration that any was in, so that
 * nothing published before counts after it.
 */
#include "queue.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

/* What a rank shows, in a cache line of its own. */
typedef struct station {
    _Alignas(64) _Atomic int64_t announced;
    _Atomic int64_t  published;      /* the newest iteration in the ring that is for all; -1: none */
    _Atomic uint64_t left;           /* as in pp_queue_t */
    _Atomic uint64_t entered;        /* ENTERED() of the last collective call that it came to */
    /* Flush and Free: */
    _Atomic int64_t  model;          /* the place in its ring of what it gives */
    _Atomic int64_t  iteration;      /* that it is in */
    _Atomic uint32_t call;           /* pp_flush_calls(); 0: it is out */
    _Atomic uint32_t came, done;     /* how often it has come, and has read what it needs */
} station_t;

/* A call, and the iteration in which a rank came to it. */
#define ENTERED(call, iteration) ((uint64_t)(call) << 40 | (uint64_t)(iteration))

/* Before the stations, in the memory of the node. */
typedef struct hall {
    _Alignas(64) _Atomic uint32_t detached;      /* ranks that will not look again */
} hall_t;

struct pp_queue_shared {
    int64_t      ring;
    size_t       stride;             /* of models in a ring */
    hall_t      *hall;
    station_t   *stations;
    _Atomic int64_t *tags;           /* `ring` entries a rank */
    char        *models;             /* one more a rank, for Flush */
    uint64_t     region;             /* offset in the memory of the node */
    bool         committed;          /* this rank's models are */
};

static station_t *station_of(const pp_queue_t *q, int32_t rank) { return &q->shared->stations[rank]; }
static station_t *mine(const pp_queue_t *q) { return station_of(q, q->handle.engine->rank); }
static int64_t slot_of(const pp_queue_t *q, int64_t iteration) { return iteration % q->shared->ring; }

static char *model_at(const pp_queue_t *q, int32_t rank, int64_t slot)
{
    return q->shared->models + (size_t)(rank * (q->shared->ring + 1) + slot) * q->shared->stride;
}

/* ---- the memory of the node -------------------------------------------------------------------------------- */

typedef struct layout {
    uint64_t ring, stride, stations, tags, models, bytes;
} layout_t;

static uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

static layout_t lay_out(const pp_queue_t *q)
{
    const uint64_t ranks = (uint64_t)q->handle.team->engine->size, ring = (uint64_t)pp_queues_ring(&q->config.plan);
    layout_t       layout = {.ring = ring, .stride = round_up(q->vector_bytes, PAGE)};
    layout.stations = sizeof(hall_t);
    layout.tags = layout.stations + ranks * sizeof(station_t);
    layout.models = round_up(layout.tags + ranks * ring * sizeof(int64_t), PAGE);
    layout.bytes = layout.models + ranks * (ring + 1) * layout.stride;
    return layout;
}

static struct pp_queue_shared find(const pp_queue_t *q, uint64_t region)
{
    const layout_t layout = lay_out(q);
    char          *base = pp_node_at(q->handle.team->engine->node, region);
    return (struct pp_queue_shared){
        .ring = (int64_t)layout.ring, .stride = layout.stride, .region = region, .hall = (hall_t *)base,
        .stations = (station_t *)(base + layout.stations), .tags = (_Atomic int64_t *)(base + layout.tags),
        .models = base + layout.models};
}

uint64_t pp_queue_reserve(pp_handle_t *handle)
{
    const pp_queue_t *q = pp_queue_of(handle);
    pp_engine_t      *engine = handle->team->engine;
    const layout_t    layout = lay_out(q);
    uint64_t          region = engine->nodes || engine->size == 1 ? 0 : pp_node_reserve(engine->node, layout.bytes);
    if (region && !pp_node_commit(engine->node, region, layout.models)) {
        pp_node_release(engine->node, region, layout.bytes);
        region = 0;
    }
    if (region == 0)
        return 0;
    const struct pp_queue_shared shared = find(q, region);
    memset(pp_node_at(engine->node, region), 0, layout.models);
    for (int32_t rank = 0; rank < engine->size; rank++)
        shared.stations[rank].published = -1;
    for (int64_t i = 0; i < engine->size * shared.ring; i++)
        shared.tags[i] = -1;
    return region;
}

void pp_queue_unreserve(pp_handle_t *handle, uint64_t region)
{
    pp_node_release(handle->team->engine->node, region, lay_out(pp_queue_of(handle)).bytes);
}

static pp_status_t open_shared(pp_queue_t *q, const pp_agreed_t *agreed)
{
    q->shared = malloc(sizeof *q->shared);
    if (!q->shared)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    *q->shared = (struct pp_queue_shared){0};
    if (!pp_node_reach(q->handle.engine->node))
        return pp_fail(PP_ERR_MEMORY, "no shared memory for the %llu bytes of queues",
                       (unsigned long long)lay_out(q).bytes);
    *q->shared = find(q, agreed->region);
    return PP_OK;
}

static void close_shared(pp_queue_t *q)
{
    struct pp_queue_shared *shared = q->shared;
    pp_engine_t            *engine = q->handle.team->engine;
    if (shared && shared->region && atomic_fetch_add(&shared->hall->detached, 1) + 1 == (uint32_t)engine->size)
        pp_node_release(engine->node, shared->region, lay_out(q).bytes);
    free(shared);
    q->shared = NULL;
}

/* ---- this rank's models ------------------------------------------------------------------------------------ */

static pp_status_t commit(pp_queue_t *q)
{
    struct pp_queue_shared *shared = q->shared;
    pp_node_t              *node = q->handle.engine->node;
    if (shared->committed)
        return PP_OK;
    const char    *own = model_at(q, q->handle.engine->rank, 0);
    const uint64_t offset = shared->region + (uint64_t)(own - (char *)pp_node_at(node, shared->region));
    const size_t   bytes = (size_t)(shared->ring + 1) * shared->stride;
    if (!pp_node_commit(node, offset, bytes))
        pp_engine_fail(q->handle.engine, PP_ERR_MEMORY, "no shared memory for %zu bytes of models", bytes);
    shared->committed = true;
    return pp_engine_check(q->handle.engine);
}

static _Atomic int64_t *tag_of(const pp_queue_t *q, int32_t rank, int64_t iteration)
{
    return &q->shared->tags[rank * q->shared->ring + slot_of(q, iteration)];
}

static void load(const pp_queue_t *q)
{
    const int32_t    me = q->handle.engine->rank;
    _Atomic int64_t *tag = tag_of(q, me, q->iteration);
    PP_STEP("overwrite");
    atomic_store(tag, -1);
    atomic_thread_fence(memory_order_seq_cst);   /* before the elements are */
    PP_STEP("overwrite");
    pp_queue_load(q, model_at(q, me, slot_of(q, q->iteration)));
    PP_STEP("overwrite");
    atomic_store(tag, q->iteration);
}

static const char *model(const pp_queue_t *q, int32_t in, int64_t iteration)
{
    return model_at(q, in == PP_QUEUE_OWN ? q->handle.engine->rank : q->config.ins[in], slot_of(q, iteration));
}

static int32_t find_gone(const pp_queue_t *q)
{
    atomic_thread_fence(memory_order_seq_cst);   /* after the elements were read */
    for (int32_t i = 0; i < q->due.count; i++) {
        const pp_queues_part_t *part = &q->due.parts[i];
        PP_STEP("take");
        if (atomic_load(tag_of(q, q->config.ins[part->neighbour], part->iteration)) != part->iteration
            && !pp_engine_has(q->handle.engine, PP_PLANT_UNCHECKED_TAG))
            return i;
    }
    return -1;
}

/* ---- looking --------------------------------------------------------------------------------------------- */

static bool has_left(const pp_queue_t *q, const station_t *station)
{
    PP_STEP("look");
    return pp_queue_has_left(q, atomic_load(&station->left));
}

/* The iteration in which a rank is; for one inside a collective call, that in which the other came to this call: what
   others have done since, they have done as if this rank had not left. */
static int64_t reached(const pp_queue_t *q, const station_t *station)
{
    PP_STEP("look");
    const int64_t announced = atomic_load(&station->announced);
    PP_STEP("look");
    const uint64_t then = atomic_load(&station->entered) - ENTERED(q->left, 0);
    const bool     inside = q->left != 0 && q->left != PP_QUEUE_LEFT;
    return inside && then < (uint64_t)announced ? (int64_t)then : announced;
}

static void look_at_out(pp_queue_t *q, int32_t out)
{
    const station_t *station = station_of(q, q->config.outs[out]);
    const bool       left = has_left(q, station);
    pp_queue_tell_of(q, left ? PP_QUEUES_UNBOUND : PP_QUEUES_TOKEN, out, reached(q, station));
}

/* What was published since the last look, and is in the ring still. */
static void look_at_ring(pp_queue_t *q, int32_t in, int64_t published)
{
    const int64_t oldest = published - q->shared->ring + 1, next = q->seen[in].published + 1;
    for (int64_t i = oldest > next ? oldest : next; i <= published; i++) {
        PP_STEP("look");
        const bool there = atomic_load(tag_of(q, q->config.ins[in], i)) == i;
        pp_queue_tell_of(q, there ? PP_QUEUES_UPDATE : PP_QUEUES_HEADER, in, i);
    }
    q->seen[in].published = published;
}

/* What a rank publishes it publishes before it announces the next iteration; and what it announces before it is seen to
   be back. */
static void look_at_in(pp_queue_t *q, int32_t in)
{
    const station_t *station = station_of(q, q->config.ins[in]);
    const bool       left = has_left(q, station);
    PP_STEP("look");
    const int64_t announced = atomic_load(&station->announced);
    PP_STEP("look");
    const int64_t published = atomic_load(&station->published);
    const bool    exact = q->config.plan.staleness == PP_QUEUES_UNSET;
    const int64_t omitted = exact ? pp_queues_due(q->machine) : announced - 1;
    if (left && !(q->seen[in].left && q->seen[in].published == published))
        pp_queue_tell_of(q, PP_QUEUES_LEFT, in, published + 1);
    else if (!left && q->seen[in].left)
        pp_queue_tell_of(q, PP_QUEUES_HERE, in, 0);
    q->seen[in].left = left;
    look_at_ring(q, in, published);
    if (published < omitted && omitted < announced)
        pp_queue_tell_of(q, PP_QUEUES_HEADER, in, omitted);
}

static void look(pp_queue_t *q)
{
    for (int32_t out = 0; out < q->config.plan.out; out++)
        look_at_out(q, out);
    for (int32_t in = 0; in < q->config.plan.in; in++)
        look_at_in(q, in);
}

/* ---- what the machine says ------------------------------------------------------------------------------- */

static void wake(const pp_queue_t *q, const int32_t *ranks, int32_t count, bool serve)
{
    const pp_node_t *node = q->handle.engine->node;
    for (int32_t i = 0; i < count && (serve || pp_node_anybody_asleep(node)); i++)
        node->wake(node->owner, ranks[i], serve);
}

/* Only a rank that computes, and whose update is held back, needs its progress thread. */
static void wake_ins(const pp_queue_t *q)
{
    wake(q, q->config.ins, q->config.plan.in, q->config.plan.protocol == PP_QUEUES_NOTIFY_ACK);
}

static void wake_outs(const pp_queue_t *q) { wake(q, q->config.outs, q->config.plan.out, false); }

static void show_left(pp_queue_t *q)
{
    station_t *own = mine(q);
    if (q->left != 0 && q->left != PP_QUEUE_LEFT) {
        PP_STEP("leave");
        atomic_store(&own->entered, ENTERED(q->left, pp_queues_due(q->machine)));
    }
    PP_STEP("leave");
    atomic_store(&own->left, q->left);
}

static void show(pp_queue_t *q, const pp_queues_action_t *action)
{
    station_t *own = mine(q);
    if (action->kind == PP_QUEUES_OMIT)      /* that is seen */
        return;
    if (action->kind == PP_QUEUES_SEND) {
        PP_STEP("publish");
        atomic_store(&own->published, action->iteration);
        wake_outs(q);
        return;
    }
    if (action->kind != PP_QUEUES_TELL_LEFT) {
        PP_STEP("announce");
        atomic_store(&own->announced, action->iteration);
    }
    if (action->kind != PP_QUEUES_ANNOUNCE)
        show_left(q);
    wake_ins(q);
    wake_outs(q);                    /* an update that was jumped over is not waited for any more */
}

/* ---- Flush and Free ---------------------------------------------------------------------------------------- */

static bool all_have(const pp_queue_t *q, bool done)
{
    const uint32_t number = q->end.over + 1;
    for (int32_t rank = 0; rank < q->handle.engine->size; rank++) {
        const station_t *station = station_of(q, rank);
        PP_STEP("look");
        if (atomic_load(done ? &station->done : &station->came) != number)
            return false;
    }
    return true;
}

static void wake_all(const pp_queue_t *q)
{
    for (int32_t rank = 0; rank < q->handle.engine->size; rank++)
        wake(q, &rank, 1, true);
}

static void come(pp_queue_t *q)
{
    station_t *own = mine(q);
    atomic_store(&own->iteration, pp_queues_due(q->machine));
    PP_STEP("come");
    atomic_store(&own->call, pp_handle_flush_call(&q->handle));
    PP_STEP("come");
    atomic_store(&own->came, q->end.over + 1);
    q->end.came = true;
    wake_all(q);
}

static void read_all(pp_queue_t *q)
{
    for (int32_t rank = 0; rank < q->handle.engine->size; rank++) {
        const int64_t iteration = atomic_load(&station_of(q, rank)->iteration);
        q->end.calls |= atomic_load(&station_of(q, rank)->call);
        q->end.newest = iteration > q->end.newest ? iteration : q->end.newest;
    }
    q->end.reads = atomic_load(&mine(q)->call) != 0 && !(q->end.calls & PP_IN_FREE);
    q->end.done = !q->end.reads;
}

static bool end(pp_queue_t *q)
{
    station_t *own = mine(q);
    bool       any = false;
    if (!q->end.came && pp_handle_flushes(&q->handle)) {
        come(q);
        any = true;
    }
    if (q->end.came && !q->end.reads && !q->end.done && all_have(q, false)) {
        read_all(q);
        any = true;
    }
    if (q->end.done && atomic_load(&own->done) != q->end.over + 1) {
        PP_STEP("come");
        atomic_store(&own->done, q->end.over + 1);
        wake_all(q);
        any = true;
    }
    if (q->end.done && all_have(q, true)) {
        pp_queue_finish(q);
        any = true;
    }
    return any;
}

static void explain_end(const pp_queue_t *q, pp_text_t *text)
{
    pp_listing_t listing = {.text = text, .before = "not in the call: "};
    for (int32_t rank = 0; rank < q->handle.engine->size; rank++)
        if (atomic_load(&station_of(q, rank)->came) != q->end.over + 1)
            pp_listing_add(&listing, rank, NULL);
    pp_listing_end(&listing, "");
}

static pp_status_t give(pp_queue_t *q, bool start)
{
    const int64_t last = q->shared->ring, slot = start ? slot_of(q, q->iteration) : last;
    PP_TRY(commit(q));
    if (!start)
        pp_queue_load(q, model_at(q, q->handle.engine->rank, last));
    atomic_store(&mine(q)->model, slot);
    return PP_OK;
}

/* A rank that is out has no model. */
static const char *operand_of_all(const pp_queue_t *q, int32_t rank, double *weight)
{
    const station_t *station = station_of(q, rank);
    int32_t          members = 0;
    for (int32_t other = 0; other < q->handle.engine->size; other++)
        members += atomic_load(&station_of(q, other)->call) != 0;
    *weight = 1.0 / members;
    return atomic_load(&station->call) ? model_at(q, rank, atomic_load(&station->model)) : NULL;
}

static void average_all(const pp_queue_t *q) { pp_queue_sum(q, q->handle.engine->size, operand_of_all); }

/* ---- the way ----------------------------------------------------------------------------------------------- */

static bool poll(pp_handle_t *handle)
{
    pp_queue_t *q = pp_queue_of(handle);
    bool        any = false;
    if (pp_handle_waits(handle)) {
        look(q);
        any = pp_queue_go_on(q);
    }
    any |= end(q);
    if (any)
        pp_engine_settle(q->handle.engine);
    return any;
}

static bool retired(const pp_handle_t *handle) { return pp_queue_of(handle)->workers == 0; }

const pp_queue_way_t pp_queue_in_memory = {
    .handle = {.retired = retired, .poll = poll, PP_QUEUE_PARTS},
    .open = open_shared, .close = close_shared, .look = look, .show = show, .show_left = show_left,
    .make_room = commit, .load = load, .model = model, .find_gone = find_gone, .give = give,
    .end = end, .average_all = average_all, .explain_end = explain_end,
};
