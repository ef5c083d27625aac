/*
 * shared.c - groups in the memory that all ranks share.  See preduce.h.
 *
 * The machine lies in the memory of the node.  A rank that has something to say locks the node, tells the machine, and
 * does what it answers for all ranks; no rank has to be awake for it.  The group that begins is a *job* of this rank: a
 * small one it does at once, under the lock; of a large one it hands out the chunks, and ranks that are inside the
 * library take them.  The rank that finishes the last chunk tells the machine for all members.  Of these it wakes only
 * those whose requests are complete then.
 *
 * A rank has a *desk*: there others leave the answer to its request, and there is the job of the group of which it is
 * the lowest member.  A rank runs one group at a time, so one place a rank is enough.
 */
#include "../../node/mean.h"
#include "../../node/job.h"
#include "../preduce.h"

#include <stdlib.h>
#include <string.h>

enum {
    WHOLE_BYTES = 16384,             /* all vectors of a group together: up to this its job is done under the lock */
    CHUNK_BYTES = 65536,
    CHUNK_BYTES_MIN = 8192,
    CHUNKS_A_MEMBER = 2,             /* at least, unless the chunks become too small */
    LINE = 64,
    PAGE = 4096
};

/* Written under the lock, but for what is atomic; a job's plan is read by the threads that hold its tickets. */
typedef struct desk {
    _Alignas(LINE) _Atomic uint64_t answered;      /* requests that are complete */
    _Atomic uint32_t flushes, ends;                /* flushes, and ends of the handle, that are complete */
    _Atomic uint32_t awaited;                      /* how often a rank has said that it waits for this one */
    int32_t  count;                                /* of the members in the answer; 0: alone */
    uint64_t serial, newest;
    double   initial;
    uint64_t vector;                               /* offset: what groups average */
    pp_job_t job;
    struct plan {
        uint64_t serial, newest;
        int32_t  count;
        uint32_t chunks;
        uint64_t chunk_bytes;
        double   initial;
        bool     flush;
    } plan;
} desk_t;

typedef struct hall {
    _Alignas(LINE) _Atomic uint32_t open_jobs;     /* jobs with chunks that were handed out, and are not finished */
    _Atomic uint32_t detached;                     /* ranks that will not look again */
    _Atomic uint64_t differ;                       /* 1 << 62 | rank << 31 | other; 0: none do */
} hall_t;

/* A job whose last chunk is finished, as it was: its desk may get the next job meanwhile. */
typedef struct finished {
    struct plan plan;
    int32_t    *members;
    double     *weights;
} finished_t;

struct pp_shared_groups {
    pp_node_t   *node;
    uint64_t     region, bytes;
    int32_t      ranks, me;
    hall_t    *hall;
    pp_groups_t *machine;
    desk_t      *desks;
    int32_t     *answer_members, *job_members;     /* a row of `ranks` entries a desk, like the next */
    double      *answer_weights, *job_weights;
    uint64_t    *job_vectors;
    uint64_t     vectors, initials;                /* offsets */
    size_t       stride;
    uint64_t     user;                             /* offset of the application's buffer, if it is in the memory of the
                                                      node; 0: it is not */
    bool         committed;
    uint64_t     answered;                         /* what this rank has seen */
    uint32_t     flushes, ends, awaited;
    int32_t     *missing;                          /* ranks that this rank waits for, while it tells them */
    int32_t     *begun, begun_count;               /* desks with jobs that are this rank's to do */
    int32_t     *handed, handed_count;             /* desks with large jobs that it has handed out in this call */
    bool        *wakes, any_wakes;                 /* by rank: to be woken after the lock is released */
    finished_t   finished;
    int32_t      workers;                          /* threads of this rank that move chunks */
};

typedef struct pp_shared_groups shared_t;

/* ---- where things lie -------------------------------------------------------------------------------------- */

static uint64_t place(uint64_t *at, uint64_t bytes, uint64_t alignment)
{
    uint64_t from = (*at + alignment - 1) / alignment * alignment;
    *at = from + bytes;
    return from;
}

typedef struct layout {
    uint64_t machine, desks, answer_members, answer_weights, job_members, job_weights, job_vectors, fixed, vectors,
             initials, bytes;
    size_t   stride;
} layout_t;

static layout_t lay_out(const pp_preduce_t *preduce)
{
    const pp_groups_plan_t plan = pp_preduce_plan(preduce);
    const uint64_t         ranks = (uint64_t)plan.ranks;
    const bool             keeps = plan.weights == PP_WEIGHTS_INITIAL;
    uint64_t               at = sizeof(hall_t);
    layout_t               layout;
    layout.stride = (preduce->vector_bytes + PAGE - 1) / PAGE * PAGE;
    layout.machine = place(&at, pp_groups_bytes(&plan, preduce->config.table), LINE);
    layout.desks = place(&at, ranks * sizeof(desk_t), LINE);
    layout.answer_members = place(&at, ranks * ranks * sizeof(int32_t), LINE);
    layout.answer_weights = place(&at, ranks * ranks * sizeof(double), LINE);
    layout.job_members = place(&at, ranks * ranks * sizeof(int32_t), LINE);
    layout.job_weights = place(&at, ranks * ranks * sizeof(double), LINE);
    layout.job_vectors = place(&at, ranks * ranks * sizeof(uint64_t), LINE);
    layout.fixed = at;
    layout.vectors = place(&at, ranks * layout.stride, PAGE);
    layout.initials = place(&at, keeps ? ranks * layout.stride : 0, PAGE);
    layout.bytes = at;
    return layout;
}

static size_t row(const shared_t *shared, int32_t desk) { return (size_t)desk * (size_t)shared->ranks; }

static uint64_t vector_of(const shared_t *shared, int32_t rank)
{
    return shared->vectors + (uint64_t)rank * shared->stride;
}

static bool is_simulated(const shared_t *shared) { return !shared->node->memory; }

/* ---- jobs: under the lock ------------------------------------------------------------------------------------ */

static bool is_small(const pp_preduce_t *preduce, const struct plan *plan)
{
    const shared_t *shared = preduce->shared;
    const size_t    whole = is_simulated(shared) ? 32 : WHOLE_BYTES;
    return plan->count == 1 || (size_t)plan->count * preduce->vector_bytes <= whole;
}

static void cut(const pp_preduce_t *preduce, struct plan *plan)
{
    const size_t bytes = preduce->vector_bytes, element = preduce->kernels.element_bytes;
    const size_t least = is_simulated(preduce->shared) ? 1 : CHUNK_BYTES_MIN;
    size_t       chunk = bytes / ((size_t)plan->count * CHUNKS_A_MEMBER);
    chunk = chunk > CHUNK_BYTES ? CHUNK_BYTES : chunk < least ? least : chunk;
    while (bytes / chunk >= PP_CHUNKS_MAX)
        chunk *= 2;
    chunk = (chunk + element * LINE - 1) / (element * LINE) * (element * LINE);
    if (is_simulated(preduce->shared))
        chunk = element;
    plan->chunk_bytes = chunk;
    plan->chunks = (uint32_t)((bytes + chunk - 1) / chunk);
}

static pp_mean_t mean_of(const pp_preduce_t *preduce, int32_t desk)
{
    const shared_t    *shared = preduce->shared;
    const struct plan *plan = &shared->desks[desk].plan;
    const bool         weighted = preduce->config.plan.weights != PP_WEIGHTS_CONSTANT && !plan->flush;
    return (pp_mean_t){.vectors = shared->job_vectors + row(shared, desk), .count = plan->count,
                          .weights = weighted ? shared->job_weights + row(shared, desk) : NULL,
                          .initial = shared->initials + (uint64_t)desk * shared->stride,
                          .initial_weight = weighted ? plan->initial : 0, .vector_bytes = preduce->vector_bytes};
}

static void begin_job(shared_t *shared, const pp_groups_action_t *action)
{
    const int32_t at = action->members[0];
    desk_t       *desk = &shared->desks[at];
    desk->plan = (struct plan){.serial = action->serial, .newest = action->newest, .count = action->count,
                               .initial = action->initial, .flush = action->kind == PP_GROUPS_FLUSH};
    for (int32_t i = 0; i < action->count; i++) {
        shared->job_members[row(shared, at) + (size_t)i] = action->members[i];
        shared->job_weights[row(shared, at) + (size_t)i] = action->weights[i];
        shared->job_vectors[row(shared, at) + (size_t)i] = shared->desks[action->members[i]].vector;
    }
    shared->begun[shared->begun_count++] = at;
}

/* ---- answers: under the lock ----------------------------------------------------------------------------------- */

/* Describes the group that has just been averaged, or that the rank was alone (NULL). */
static void describe(shared_t *shared, int32_t rank, const finished_t *group)
{
    desk_t *desk = &shared->desks[rank];
    desk->count = group ? group->plan.count : 0;
    if (!group)
        return;
    desk->serial = group->plan.serial;
    desk->newest = group->plan.newest;
    desk->initial = group->plan.initial;
    memcpy(shared->answer_members + row(shared, rank), group->members, (size_t)desk->count * sizeof(int32_t));
    memcpy(shared->answer_weights + row(shared, rank), group->weights, (size_t)desk->count * sizeof(double));
}

static void wake(shared_t *shared, int32_t rank)
{
    shared->wakes[rank] = shared->any_wakes = true;
}

/* Releases the vector and the description to the rank. */
static void answer(shared_t *shared, int32_t rank, const finished_t *group)
{
    describe(shared, rank, group);
    atomic_fetch_add(&shared->desks[rank].answered, 1);
    wake(shared, rank);
}

static void tell(void *arg, const pp_groups_action_t *action)
{
    shared_t *shared = ((pp_preduce_t *)arg)->shared;
    pp_preduce_overheard(arg, action);
    switch ((pp_groups_action_kind_t)action->kind) {
    case PP_GROUPS_BEGIN:
    case PP_GROUPS_FLUSH:
        begin_job(shared, action);
        break;
    case PP_GROUPS_COMPLETE:
        answer(shared, action->rank, &shared->finished);
        break;
    case PP_GROUPS_ALONE:
        answer(shared, action->rank, NULL);
        break;
    case PP_GROUPS_END:
        for (int32_t rank = 0; rank < shared->ranks; rank++) {
            atomic_fetch_add(&shared->desks[rank].ends, 1);
            wake(shared, rank);
        }
        break;
    case PP_GROUPS_DIFFER:
        atomic_store(&shared->hall->differ,
                     UINT64_C(1) << 62 | (uint64_t)action->rank << 31 | (uint64_t)action->other);
        for (int32_t rank = 0; rank < shared->ranks; rank++)
            wake(shared, rank);
        break;
    }
}

static pp_groups_hearer_t hearer_of(pp_preduce_t *preduce)
{
    return (pp_groups_hearer_t){.tell = tell, .arg = preduce};
}

static pp_status_t event(pp_preduce_t *preduce, int32_t what, int32_t rank, uint64_t number)
{
    const pp_groups_hearer_t hearer = hearer_of(preduce);
    return pp_groups_event(preduce->shared->machine, what, rank, number, pp_engine_now(preduce->handle.engine), &hearer);
}

/* Ranks that are out go along with a flush; they have no part in it. */
static void finish_flush(pp_preduce_t *preduce, const finished_t *group)
{
    shared_t *shared = preduce->shared;
    for (int32_t i = 0; i < group->plan.count; i++)
        describe(shared, group->members[i], group);
    for (int32_t rank = 0; rank < shared->ranks; rank++) {
        atomic_fetch_add(&shared->desks[rank].flushes, 1);
        wake(shared, rank);
    }
}

/* The job of this desk is done: tells the machine for all members. */
static void finish_job(pp_preduce_t *preduce, int32_t at)
{
    shared_t   *shared = preduce->shared;
    finished_t *group = &shared->finished;
    group->plan = shared->desks[at].plan;
    memcpy(group->members, shared->job_members + row(shared, at), (size_t)group->plan.count * sizeof(int32_t));
    memcpy(group->weights, shared->job_weights + row(shared, at), (size_t)group->plan.count * sizeof(double));
    if (group->plan.flush) {
        finish_flush(preduce, group);
        return;
    }
    for (int32_t i = 0; i < group->plan.count; i++)
        if (event(preduce, PP_GROUPS_FINISH, group->members[i], group->plan.serial) < 0)
            pp_engine_fail(preduce->handle.engine, PP_ERR_INTERNAL, "%s", pp_error_text());
}

/* Does the small jobs that this rank has begun, and those that begin thereby.  The large ones stay in `begun`.  False:
   there was none. */
static bool do_small_jobs(pp_preduce_t *preduce)
{
    shared_t *shared = preduce->shared;
    bool      any = false;
    for (int32_t i = 0; i < shared->begun_count && !preduce->handle.engine->error;) {
        const int32_t at = shared->begun[i];
        if (!is_small(preduce, &shared->desks[at].plan)) {
            i++;
            continue;
        }
        const int32_t rest = --shared->begun_count - i;
        memmove(shared->begun + i, shared->begun + i + 1, (size_t)rest * sizeof *shared->begun);
        if (shared->desks[at].plan.count > 1) {
            const pp_mean_t mean = mean_of(preduce, at);
            pp_mean(shared->node, &preduce->kernels, &mean, 0, preduce->count);
        }
        finish_job(preduce, at);
        any = true;
    }
    return any;
}

/* ---- under the lock, and after it --------------------------------------------------------------------------------- */

static bool lock(pp_preduce_t *preduce)
{
    if (pp_node_lock(preduce->shared->node))
        return true;
    pp_engine_fail(preduce->handle.engine, PP_ERR_PEER_FAILED, "a rank of this node died while it formed a group of "
                   "handle %u", preduce->handle.id);
    return false;
}

static void wake_all(shared_t *shared)
{
    const pp_node_t *node = shared->node;
    if (!shared->any_wakes)
        return;
    bool asleep = pp_node_anybody_asleep(node);
    for (int32_t rank = 0; rank < shared->ranks; rank++) {
        if (asleep && shared->wakes[rank] && rank != shared->me)
            node->wake(node->owner, rank, false);
        shared->wakes[rank] = false;
    }
    shared->any_wakes = false;
}

/* Hands out the large jobs that have begun, and wakes the ranks that wait for what was done.  `serves`: this
   rank does not stay to work at them, so the progress thread of a member is woken. */
static void follow_up(pp_preduce_t *preduce, bool serves)
{
    shared_t        *shared = preduce->shared;
    const pp_node_t *node = shared->node;
    for (int32_t i = 0; i < shared->begun_count; i++) {
        const int32_t at = shared->begun[i];
        desk_t       *desk = &shared->desks[at];
        pp_job_begin_plan(&desk->job);
        cut(preduce, &desk->plan);
        atomic_fetch_add(&shared->hall->open_jobs, 1);
        if (shared->handed_count < shared->ranks)
            shared->handed[shared->handed_count++] = at;
        /* The members first: once the chunks are handed out, the job may end, and its desk have another. */
        for (int32_t m = 0; m < desk->plan.count; m++)
            wake(shared, shared->job_members[row(shared, at) + (size_t)m]);
        pp_job_hand_out(&desk->job, desk->plan.serial, desk->plan.chunks);
        if (serves && at != shared->me)
            node->wake(node->owner, at, true);
    }
    shared->begun_count = 0;
    wake_all(shared);
}

static bool is_shared(const pp_handle_t *handle);

/* Two ranks that wait on different handles may wait for each other. */
static void untangle(pp_engine_t *engine)
{
    enum { MOST = 64 };
    pp_groups_t       *machines[MOST];
    pp_groups_hearer_t hearers[MOST];
    int32_t            count = 0;
    PP_FOR_EACH_HANDLE(engine, handle)
        if (is_shared(handle) && count < MOST) {
            machines[count] = pp_preduce_of(handle)->shared->machine;
            hearers[count++] = hearer_of(pp_preduce_of(handle));
        }
    if (count > 1 && pp_groups_untangle(machines, hearers, count, pp_engine_now(engine)) < 0)
        pp_engine_fail(engine, PP_ERR_INTERNAL, "%s", pp_error_text());
}

/* Does what events have brought about, on all handles; the ends of groups are events, too. */
static void settle_groups(pp_engine_t *engine)
{
    bool any;
    do {
        any = false;
        untangle(engine);
        PP_FOR_EACH_HANDLE(engine, handle)
            if (is_shared(handle))
                any |= do_small_jobs(pp_preduce_of(handle));
    } while (any && !engine->error);
}

static void follow_up_all(pp_engine_t *engine, bool serves)
{
    PP_FOR_EACH_HANDLE(engine, handle)
        if (is_shared(handle))
            follow_up(pp_preduce_of(handle), serves);
}

/* Tells the machine something about this rank, and does what follows. */
static pp_status_t report(pp_preduce_t *preduce, int32_t what, uint64_t number)
{
    shared_t    *shared = preduce->shared;
    pp_engine_t *engine = preduce->handle.engine;
    pp_status_t  status = PP_OK;
    if (!lock(preduce))
        return pp_engine_check(engine);
    if (what == PP_GROUPS_START && preduce->asked.count > 0)
        status = pp_groups_give(shared->machine, shared->me, preduce->asked.members, preduce->asked.count);
    if (status >= 0)
        status = event(preduce, what, shared->me, number);
    if (status >= 0)
        settle_groups(engine);
    pp_node_unlock(shared->node);
    follow_up_all(engine, what != PP_GROUPS_START);
    return status;
}

/* ---- the way --------------------------------------------------------------------------------------------------------- */

static void *aim(pp_preduce_t *preduce)
{
    shared_t *shared = preduce->shared;
    uint64_t  own = vector_of(shared, shared->me);
    if (shared->user)
        return NULL;
    if (!shared->committed && !pp_node_commit(shared->node, own, shared->stride)) {
        pp_engine_fail(preduce->handle.engine, PP_ERR_MEMORY, "no shared memory for a vector of %zu bytes",
                       preduce->vector_bytes);
        return NULL;
    }
    shared->committed = true;
    return pp_node_at(shared->node, own);
}

static const void *vector(const pp_preduce_t *preduce)
{
    const shared_t *shared = preduce->shared;
    return shared->user ? NULL : pp_node_at(shared->node, vector_of(shared, shared->me));
}

static pp_status_t ask(pp_preduce_t *preduce)
{
    preduce->shared->handed_count = 0;
    return report(preduce, PP_GROUPS_START, preduce->iteration);
}

static void say(pp_preduce_t *preduce, int32_t reason)
{
    bool here = reason == PP_GROUPS_HERE;
    if (report(preduce, here ? PP_GROUPS_BACK : PP_GROUPS_LEAVE, here ? 0 : (uint64_t)reason) < 0)
        pp_engine_fail(preduce->handle.engine, PP_ERR_INTERNAL, "%s", pp_error_text());
}

static void take_answer(pp_preduce_t *preduce)
{
    const shared_t *shared = preduce->shared;
    const desk_t   *desk = &shared->desks[shared->me];
    pp_preduce_describe(preduce, desk->serial, desk->newest, desk->initial, desk->count,
                        desk->count ? shared->answer_members + row(shared, shared->me) : NULL,
                        shared->answer_weights + row(shared, shared->me));
}

static bool poll(pp_preduce_t *preduce)
{
    shared_t     *shared = preduce->shared;
    const desk_t *desk = &shared->desks[shared->me];
    PP_STEP("look");
    uint64_t answered = atomic_load(&desk->answered);
    uint32_t flushes = atomic_load(&desk->flushes), ends = atomic_load(&desk->ends);
    uint32_t awaited = atomic_load(&desk->awaited);
    uint64_t differ = atomic_load(&shared->hall->differ);
    bool     any = false;
    if (awaited != shared->awaited) {
        shared->awaited = awaited;
        pp_group_time_awaited(preduce);
    }
    if (differ)
        pp_preduce_differ(preduce, (int32_t)(differ >> 31 & INT32_MAX), (int32_t)(differ & INT32_MAX));
    if (answered != shared->answered) {
        shared->answered = answered;
        take_answer(preduce);
        pp_preduce_complete(preduce);
        any = true;
    }
    if (flushes != shared->flushes) {
        shared->flushes = flushes;
        take_answer(preduce);
        /* Other ranks of the node may not have noticed yet that their call is over. */
        pp_node_call_over(shared->node, preduce->handle.engine->calls + 1);
        pp_preduce_flushed(preduce, PP_IN_FLUSH);
        any = true;
    }
    if (ends != shared->ends) {
        shared->ends = ends;
        pp_preduce_flushed(preduce, PP_IN_FREE);
        any = true;
    }
    if (any)
        pp_engine_settle(preduce->handle.engine);
    return any || differ;
}

/* The ranks that compute have to be woken: their progress threads look at the clock. */
static void await(pp_preduce_t *preduce)
{
    shared_t        *shared = preduce->shared;
    const pp_node_t *node = shared->node;
    if (!lock(preduce))
        return;
    int32_t count = pp_groups_missing(shared->machine, shared->me, shared->missing, shared->ranks);
    pp_node_unlock(shared->node);
    for (int32_t i = 0; i < count; i++) {
        atomic_fetch_add(&shared->desks[shared->missing[i]].awaited, 1);
        node->wake(node->owner, shared->missing[i], true);
    }
}

static void go_on(pp_preduce_t *preduce) { (void)preduce; }

/* ---- chunks -------------------------------------------------------------------------------------------------------------- */

static int32_t find_open(const shared_t *shared)
{
    PP_STEP("look");
    if (atomic_load(&shared->hall->open_jobs) == 0)
        return -1;
    for (int32_t i = 0; i < shared->ranks; i++) {
        int32_t at = (shared->me + i) % shared->ranks;
        if (pp_job_is_open(&shared->desks[at].job))
            return at;
    }
    return -1;
}

static bool has_work(const pp_preduce_t *preduce) { return find_open(preduce->shared) >= 0; }

static bool has_begun(const pp_preduce_t *preduce)
{
    const shared_t *shared = preduce->shared;
    for (int32_t i = 0; i < shared->handed_count; i++)
        if (pp_job_is_open(&shared->desks[shared->handed[i]].job))
            return true;
    return false;
}

static void begin_work(pp_preduce_t *preduce) { preduce->shared->workers++; }

static bool work(pp_preduce_t *preduce, uint64_t *job)
{
    shared_t *shared = preduce->shared;
    int32_t   at = find_open(shared);
    uint32_t  chunk;
    *job = (uint64_t)at;
    if (at < 0)
        return false;
    desk_t        *desk = &shared->desks[at];
    const uint64_t number = pp_job_number(&desk->job);
    while (pp_job_ticket(&desk->job, number, shared->me % 2 == 0, &chunk)) {
        const pp_mean_t mean = mean_of(preduce, at);
        const size_t       each = desk->plan.chunk_bytes / preduce->kernels.element_bytes, first = chunk * each;
        const size_t       rest = preduce->count - first;
        pp_mean(shared->node, &preduce->kernels, &mean, first, rest < each ? rest : each);
        if (pp_job_finished(&desk->job))
            return true;
    }
    return false;
}

static void worked(pp_preduce_t *preduce, uint64_t job, bool last)
{
    shared_t *shared = preduce->shared;
    if (--shared->workers == 0)
        preduce->handle.engine->changed = true;
    if (!last || !lock(preduce))
        return;
    atomic_fetch_sub(&shared->hall->open_jobs, 1);
    finish_job(preduce, (int32_t)job);
    settle_groups(preduce->handle.engine);
    pp_node_unlock(shared->node);
    follow_up_all(preduce->handle.engine, true);
}

/* ---- questions -------------------------------------------------------------------------------------------------------------- */

static void explain(pp_preduce_t *preduce, pp_text_t *text)
{
    enum { MOST = PP_LISTED + 1 };
    shared_t    *shared = preduce->shared;
    int32_t      missing[MOST], count = 0;
    pp_listing_t listing = {.text = text, .before = "the group waits for "};
    if (!pp_node_lock(shared->node))
        return;
    count = pp_groups_missing(shared->machine, shared->me, missing, MOST);
    pp_node_unlock(shared->node);
    for (int32_t i = 0; i < count && i < MOST; i++)
        pp_listing_add(&listing, missing[i], NULL);
    pp_listing_end(&listing, count > MOST ? " and more" : "");
}

static bool retired(const pp_preduce_t *preduce) { return preduce->shared->workers == 0; }

static uint64_t buffer_bytes(const pp_preduce_t *preduce) { return (void)preduce, 0; }

/* Nothing comes by messages. */
static void control(pp_preduce_t *preduce, int32_t peer, const pp_prefix_t *message)
{
    pp_engine_fail(preduce->handle.engine, PP_ERR_INTERNAL, "a message of kind %u came from rank %d to handle %u, whose "
                   "groups are formed in shared memory", message->kind, peer, preduce->handle.id);
}

static void operation(pp_preduce_t *preduce, int32_t peer, const pp_prefix_t *message, size_t bytes)
{
    (void)bytes;
    control(preduce, peer, message);
}

/* ---- opening and closing ------------------------------------------------------------------------------------------------------ */

uint64_t pp_shared_groups_reserve(pp_preduce_t *preduce)
{
    pp_team_t             *team = preduce->handle.team;
    pp_node_t             *node = team->engine->node;
    const layout_t         layout = lay_out(preduce);
    const pp_groups_plan_t plan = pp_preduce_plan(preduce);
    uint64_t               region = pp_node_reserve(node, layout.bytes);
    bool                   ready = region && pp_node_commit(node, region, layout.fixed);
    if (ready) {
        memset(pp_node_at(node, region), 0, layout.fixed);
        ready = pp_groups_open(pp_node_at(node, region + layout.machine), &plan, preduce->config.table, NULL,
                               pp_engine_now(team->engine)) >= 0;
    }
    if (region && !ready) {
        pp_node_release(node, region, layout.bytes);
        region = 0;
    }
    if (!region && team->refused_bytes == 0)
        team->refused_bytes = layout.bytes;
    return region;
}

void pp_shared_groups_unreserve(pp_preduce_t *preduce, uint64_t region)
{
    if (region)
        pp_node_release(preduce->handle.team->engine->node, region, lay_out(preduce).bytes);
}

/* Groups may average the application's buffer in place if it is in the memory of the node. */
static uint64_t users_offset(const pp_preduce_t *preduce, const pp_node_t *node)
{
    const pp_preduce_config_t *config = &preduce->config;
    uint64_t offset = 0;
    if (config->piece_count != 1 || preduce->vector_bytes == 0 || !pp_users_are_vectors(&preduce->kernels)
        || !pp_node_holds(node, config->pieces[0].recv, preduce->vector_bytes, &offset))
        return 0;
    return offset;
}

static void close_groups(pp_preduce_t *preduce)
{
    shared_t *shared = preduce->shared;
    if (!shared)
        return;
    /* The last rank that leaves gives the memory back. */
    if (shared->hall && atomic_fetch_add(&shared->hall->detached, 1) + 1 == (uint32_t)shared->ranks)
        pp_node_release(shared->node, shared->region, shared->bytes);
    free(shared->missing);
    free(shared->begun);
    free(shared->handed);
    free(shared->wakes);
    free(shared->finished.members);
    free(shared->finished.weights);
    free(shared);
    preduce->shared = NULL;
}

static const pp_grouping_t ops = {
    .aim = aim, .ask = ask, .say = say, .vector = vector, .await = await, .go_on = go_on, .control = control, .operation = operation,
    .retired = retired, .explain = explain, .buffer_bytes = buffer_bytes, .close = close_groups, .poll = poll,
    .has_work = has_work, .begin_work = begin_work, .work = work, .worked = worked, .has_begun = has_begun,
};

static bool is_shared(const pp_handle_t *handle)
{
    return pp_is_preduce(handle) && pp_preduce_of(handle)->ops == &ops;
}

static pp_status_t open_initial(pp_preduce_t *preduce)
{
    shared_t *shared = preduce->shared;
    uint64_t  own = shared->initials + (uint64_t)shared->me * shared->stride;
    if (!preduce->initial)
        return PP_OK;
    if (!pp_node_commit(shared->node, own, shared->stride))
        return pp_fail(PP_ERR_MEMORY, "no shared memory for the initial model of %zu bytes", preduce->vector_bytes);
    preduce->kernels.memory->copy(pp_node_at(shared->node, own), preduce->initial, preduce->vector_bytes);
    return PP_OK;
}

pp_status_t pp_shared_groups_open(pp_preduce_t *preduce, uint64_t region)
{
    pp_node_t     *node = preduce->handle.engine->node;
    const layout_t layout = lay_out(preduce);
    const size_t   ranks = (size_t)node->size;
    shared_t      *shared = preduce->shared = calloc(1, sizeof *shared);
    preduce->ops = &ops;
    if (!shared)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    *shared = (shared_t){.node = node, .region = region, .bytes = layout.bytes, .ranks = node->size, .me = node->index,
                         .vectors = region + layout.vectors, .initials = region + layout.initials,
                         .stride = layout.stride};
    shared->missing = calloc(ranks, sizeof *shared->missing);
    shared->begun = calloc(2 * ranks, sizeof *shared->begun);
    shared->handed = calloc(ranks, sizeof *shared->handed);
    shared->wakes = calloc(ranks, sizeof *shared->wakes);
    shared->finished.members = calloc(ranks, sizeof(int32_t));
    shared->finished.weights = calloc(ranks, sizeof(double));
    if (!shared->missing || !shared->begun || !shared->handed || !shared->wakes || !shared->finished.members || !shared->finished.weights)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    if (!pp_node_reach(node))
        return pp_fail(PP_ERR_MEMORY, "no address space for the memory that the ranks of the node share");
    shared->hall = pp_node_at(node, region);
    shared->machine = pp_node_at(node, region + layout.machine);
    shared->desks = pp_node_at(node, region + layout.desks);
    shared->answer_members = pp_node_at(node, region + layout.answer_members);
    shared->answer_weights = pp_node_at(node, region + layout.answer_weights);
    shared->job_members = pp_node_at(node, region + layout.job_members);
    shared->job_weights = pp_node_at(node, region + layout.job_weights);
    shared->job_vectors = pp_node_at(node, region + layout.job_vectors);
    shared->user = users_offset(preduce, node);
    shared->desks[shared->me].vector = shared->user ? shared->user : vector_of(shared, shared->me);
    return open_initial(preduce);
}
