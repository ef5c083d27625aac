/*
 * shared.c - groups in the memory that all ranks share.  See preduce.h.
 *
 * The machine lies in the memory of the node.  A rank that has something to say locks the node, tells the machine, and
 * does what it answers for all ranks; no rank has to be awake for it.  The group that begins is a *job* of this rank: a
 * small one it does at once, under the lock; of a large one it hands out the chunks, and members that are inside the
 * library take them, and no other rank, which could be stopped, and hold the group up.  The rank that finishes the last
 * chunk tells the machine for all members.  Of these it wakes only those whose
 * requests are complete then.
 *
 * A rank has a *desk*: there others leave the answer to its request, and there is the job of the group of which it is
 * the lowest member.  A rank runs one group at a time, so one place a rank is enough.
 */
#include "shared.h"
#include "../../node/keeper.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

/* ---- where things lie -------------------------------------------------------------------------------------- */

static uint64_t place(uint64_t *at, uint64_t bytes, uint64_t alignment)
{
    uint64_t from = (*at + alignment - 1) / alignment * alignment;
    *at = from + bytes;
    return from;
}

typedef struct layout {
    uint64_t machine, desks, answer_members, answer_weights, job_members, job_weights, job_vectors, job_adds,
             job_results, seats, offers, fixed, vectors, initials, bytes;
    size_t   stride, each;
} layout_t;

static layout_t lay_out(const pp_preduce_t *preduce)
{
    const pp_groups_plan_t plan = pp_preduce_plan(preduce);
    const uint64_t         ranks = (uint64_t)plan.ranks;
    const uint64_t         keeps = plan.weights == PP_WEIGHTS_INITIAL ? ranks : 0;
    const pp_group_models_t *models = preduce->models;
    const uint64_t         rows = models ? ranks * ranks : 0;
    uint64_t               at = sizeof(pp_hall_t);
    layout_t               layout;
    layout.stride = (preduce->vector_bytes + PAGE - 1) / PAGE * PAGE;
    layout.each = models ? models->vectors * layout.stride : layout.stride;
    layout.machine = place(&at, pp_groups_bytes(&plan, preduce->config.table), PP_LINE);
    layout.desks = place(&at, ranks * sizeof(pp_desk_t), PP_LINE);
    layout.answer_members = place(&at, ranks * ranks * sizeof(int32_t), PP_LINE);
    layout.answer_weights = place(&at, ranks * ranks * sizeof(double), PP_LINE);
    layout.job_members = place(&at, ranks * ranks * sizeof(int32_t), PP_LINE);
    layout.job_weights = place(&at, ranks * ranks * sizeof(double), PP_LINE);
    layout.job_vectors = place(&at, ranks * ranks * sizeof(uint64_t), PP_LINE);
    layout.job_adds = place(&at, rows * sizeof(uint64_t), PP_LINE);
    layout.job_results = place(&at, rows * sizeof(uint64_t), PP_LINE);
    layout.seats = place(&at, models ? ranks * models->seat_bytes : 0, PP_LINE);
    layout.offers = place(&at, ranks * preduce->handle.offer_bytes, PP_LINE);
    layout.fixed = at;
    layout.vectors = place(&at, ranks * layout.each, PAGE);
    layout.initials = place(&at, keeps * layout.stride, PAGE);
    layout.bytes = at;
    return layout;
}

/* ---- under the lock, and after it ------------------------------------------------------------------------------ */

bool pp_shared_groups_lock(pp_preduce_t *preduce)
{
    if (pp_node_lock(preduce->shared->node))
        return true;
    pp_engine_fail(preduce->handle.engine, PP_ERR_PEER_FAILED, "a rank of this node died while it formed a group of "
                   "handle %u", preduce->handle.id);
    return false;
}

void pp_shared_groups_unlock(pp_preduce_t *preduce) { pp_node_unlock(preduce->shared->node); }

static pp_groups_t *machine_of(const pp_preduce_t *preduce) { return preduce->shared->machine; }

/* Does what events have brought about, on all handles; the ends of groups are events, too. */
static void settle_groups(const pp_preduce_t *preduce, uint64_t now_ns)
{
    pp_engine_t *engine = preduce->handle.engine;
    bool         any;
    do {
        any = false;
        if (pp_preduce_untangle(preduce, machine_of, pp_jobs_hearer, now_ns) < 0)
            pp_engine_fail(engine, PP_ERR_INTERNAL, "%s", pp_error_text());
        PP_FOR_EACH_HANDLE(engine, handle)
            if (pp_preduce_is_like(preduce, handle))
                any |= pp_jobs_do_small(pp_preduce_of(handle), now_ns);
    } while (any && !engine->error);
}

/* Tells the machine of what this rank's device has done.  False: there was nothing. */
static bool finish_averages(pp_preduce_t *preduce)
{
    const uint64_t now = pp_engine_now(preduce->handle.engine);
    if (!pp_averages_over(preduce) || !pp_shared_groups_lock(preduce))
        return false;
    pp_averages_finish(preduce, now);
    settle_groups(preduce, now);
    pp_node_unlock(preduce->shared->node);
    return true;
}

/* Launches what has begun on a device.  True: some of it is over already. */
static bool average(pp_preduce_t *preduce)
{
    if (!preduce->shared->vault)
        return false;
    pp_averages_launch(preduce);
    return finish_averages(preduce);
}

static void follow_up_all(const pp_preduce_t *preduce, bool serves)
{
    bool any;
    do {
        any = false;
        PP_FOR_EACH_HANDLE(preduce->handle.engine, handle)
            if (pp_preduce_is_like(preduce, handle)) {
                pp_jobs_follow_up(pp_preduce_of(handle), serves);
                any |= average(pp_preduce_of(handle));
            }
    } while (any);
}

pp_status_t pp_shared_groups_report_locked(pp_preduce_t *preduce, int32_t what, uint64_t number, bool stays)
{
    shared_t    *shared = preduce->shared;
    pp_engine_t *engine = preduce->handle.engine;
    const uint64_t now = pp_engine_now(engine);
    pp_status_t status = pp_jobs_event(preduce, PP_GROUPS_COMPLETED, shared->me, pp_engine_calls_known(engine), now);
    if (status >= 0 && what == PP_GROUPS_START && preduce->asked.count > 0)
        status = pp_groups_give(shared->machine, shared->me, preduce->asked.members, preduce->asked.count);
    if (status >= 0)
        status = pp_jobs_event(preduce, what, shared->me, number, now);
    if (status >= 0)
        settle_groups(preduce, now);
    pp_node_unlock(shared->node);
    follow_up_all(preduce, !stays);
    return status;
}

pp_status_t pp_shared_groups_report(pp_preduce_t *preduce, int32_t what, uint64_t number)
{
    if (!pp_shared_groups_lock(preduce))
        return pp_engine_check(preduce->handle.engine);
    return pp_shared_groups_report_locked(preduce, what, number, what == PP_GROUPS_START);
}

/* ---- the way --------------------------------------------------------------------------------------------------- */

static void *aim(pp_preduce_t *preduce)
{
    shared_t *shared = preduce->shared;
    uint64_t  own = pp_vectors_of(shared, shared->me);
    if (shared->user || shared->vault)
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
    return shared->user || shared->vault ? NULL : pp_node_at(shared->node, pp_vectors_of(shared, shared->me));
}

static pp_status_t ask(pp_preduce_t *preduce)
{
    preduce->shared->handed_count = 0;
    return pp_shared_groups_report(preduce, PP_GROUPS_START, preduce->iteration);
}

static void say(pp_preduce_t *preduce, int32_t reason, uint64_t number)
{
    bool here = reason == PP_GROUPS_HERE;
    if (pp_shared_groups_report(preduce, here ? PP_GROUPS_BACK : PP_GROUPS_LEAVE, here ? 0 : number) < 0)
        pp_engine_fail(preduce->handle.engine, PP_ERR_INTERNAL, "%s", pp_error_text());
}

static void say_long(pp_preduce_t *preduce)
{
    if (pp_shared_groups_report(preduce, PP_GROUPS_WAITS_LONG, 0) < 0)
        pp_engine_fail(preduce->handle.engine, PP_ERR_INTERNAL, "%s", pp_error_text());
}

static void say_elsewhere(pp_preduce_t *preduce, bool waits)
{
    if (pp_shared_groups_report(preduce, PP_GROUPS_ELSEWHERE, waits) < 0)
        pp_engine_fail(preduce->handle.engine, PP_ERR_INTERNAL, "%s", pp_error_text());
}

static void take_answer(pp_preduce_t *preduce)
{
    const shared_t *shared = preduce->shared;
    const pp_desk_t   *desk = &shared->desks[shared->me];
    pp_preduce_describe(preduce, desk->serial, desk->newest, desk->initial, desk->count,
                        desk->count ? shared->answer_members + pp_desk_row(shared, shared->me) : NULL,
                        shared->weighted ? shared->answer_weights + pp_desk_row(shared, shared->me) : NULL);
}

/* The machine knows it: no message is needed. */
static void confirm(pp_preduce_t *preduce)
{
    const shared_t *shared = preduce->shared;
    if (!pp_shared_groups_lock(preduce))
        return;
    const uint64_t request = pp_groups_awaits(shared->machine, shared->me, preduce->time.awaited);
    pp_node_unlock(shared->node);
    pp_group_time_confirmed(preduce, request);
}

static bool poll(pp_handle_t *handle)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    shared_t     *shared = preduce->shared;
    const pp_desk_t *desk = &shared->desks[shared->me];
    bool             any = shared->vault && finish_averages(preduce);
    if (any)
        follow_up_all(preduce, true);
    /* The answers last: one that came before a flush is taken before it, else the next request would take it for its own. */
    PP_STEP("look");
    uint32_t flushes = atomic_load(&desk->flushes), ends = atomic_load(&desk->ends);
    PP_STEP("look");
    uint64_t answered = atomic_load(&desk->answered);
    uint32_t awaited = atomic_load(&desk->awaited);
    uint64_t differ = atomic_load(&shared->hall->differ);
    if (awaited != shared->awaited) {
        shared->awaited = awaited;
        pp_engine_hear_calls(preduce->handle.engine, pp_node_calls(shared->node));
        confirm(preduce);
        any = true;
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

/* The ranks that compute have to be woken: their progress threads look at the clock.  A rank may be in a call that the
   machine knows to be over elsewhere; no message has told it, so it hears of it here, and then holds the group up. */
static void await(pp_preduce_t *preduce)
{
    shared_t        *shared = preduce->shared;
    const pp_node_t *node = shared->node;
    if (!pp_shared_groups_lock(preduce))
        return;
    int32_t count = pp_groups_missing(shared->machine, shared->me, shared->missing, shared->ranks);
    pp_node_call_over(shared->node, pp_groups_calls(shared->machine));
    pp_node_unlock(shared->node);
    for (int32_t i = 0; i < count; i++) {
        atomic_fetch_add(&shared->desks[shared->missing[i]].awaited, 1);
        node->wake(node->owner, shared->missing[i], true);
    }
}

static void go_on(pp_preduce_t *preduce) { (void)preduce; }

/* ---- chunks -------------------------------------------------------------------------------------------------- */

static bool has_work(const pp_handle_t *handle)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    return pp_jobs_any(preduce->shared);
}

static bool on_device(const pp_handle_t *handle)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    return preduce->shared->launched_count > 0;
}

static bool has_begun(const pp_preduce_t *preduce)
{
    const shared_t *shared = preduce->shared;
    for (int32_t i = 0; i < shared->handed_count; i++)
        if (pp_job_is_open(&shared->desks[shared->handed[i]].job))
            return true;
    return false;
}

static void begin_work(pp_handle_t *handle, bool *lands)
{
    *lands = false;
    pp_preduce_of(handle)->shared->workers++;
}

static void worked(pp_handle_t *handle, uint64_t job, bool last)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    shared_t *shared = preduce->shared;
    if (--shared->workers == 0)
        preduce->handle.engine->changed = true;
    if (!last)
        return;
    const uint64_t now = pp_engine_now(preduce->handle.engine);
    if (!pp_shared_groups_lock(preduce))
        return;
    pp_jobs_finish(preduce, (int32_t)job, now);
    settle_groups(preduce, now);
    pp_node_unlock(shared->node);
    follow_up_all(preduce, true);
}

/* ---- questions ------------------------------------------------------------------------------------------------- */

static void explain(pp_handle_t *handle, pp_text_t *text)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
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

static bool retired(const pp_handle_t *handle)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    return preduce->shared->workers == 0;
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

static void ignore(void *arg, const pp_groups_action_t *action) { (void)arg, (void)action; }

/* The ranks' models are being made. */
static bool begin_models(pp_groups_t *machine, int32_t ranks, uint64_t now_ns)
{
    const pp_groups_hearer_t nobody = {.tell = ignore};
    bool                     begun = true;
    for (int32_t rank = 0; rank < ranks; rank++)
        begun &= pp_groups_event(machine, PP_GROUPS_START, rank, PP_GROUPS_BY_ITSELF, now_ns, &nobody) >= 0;
    return begun;
}

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
        if (ready && preduce->models)
            ready = begin_models(pp_node_at(node, region + layout.machine), plan.ranks, pp_engine_now(team->engine));
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

/* Groups may average the application's buffer in place if it is an array in the memory of the node. */
static uint64_t users_offset(const pp_preduce_t *preduce, const pp_node_t *node)
{
    const pp_preduce_config_t *config = &preduce->config;
    uint64_t offset = 0;
    if (config->piece_count != 1 || preduce->vector_bytes == 0 || !pp_users_are_vectors(&preduce->kernels))
        return 0;
    preduce->shared->kept = pp_keeper_share(node, config->pieces[0].recv, preduce->vector_bytes);
    if (preduce->shared->kept)
        pp_node_holds(node, config->pieces[0].recv, preduce->vector_bytes, &offset);
    return offset;
}

void pp_group_region_leave(const pp_group_region_t *region)
{
    if (atomic_fetch_add(&region->hall->detached, 1) + 1 == (uint32_t)region->node->size)
        pp_node_release(region->node, region->offset, region->bytes);
}

static void close_groups(pp_preduce_t *preduce)
{
    shared_t *shared = preduce->shared;
    if (!shared)
        return;
    if (shared->hall && !shared->vault)
        pp_group_region_leave(&shared->region);
    pp_unalloc(shared->kept);
    free(shared->missing);
    pp_jobs_close(shared);
    free(shared);
    preduce->shared = NULL;
}

static const pp_grouping_t ops = {
    .untangles = true, .aim = aim, .ask = ask, .say = say, .say_elsewhere = say_elsewhere, .say_long = say_long,
    .vector = vector, .await = await, .confirm = confirm, .go_on = go_on, .close = close_groups, .has_begun = has_begun,
    .handle = {.retired = retired, .explain = explain, .poll = poll, .has_work = has_work, .begin_work = begin_work,
               .work = pp_jobs_work, .worked = worked, .on_device = on_device},
};

/* The initial model; or the model, for which all vectors are committed. */
static pp_status_t open_initial(pp_preduce_t *preduce)
{
    shared_t    *shared = preduce->shared;
    const bool   keeps = !preduce->models;
    const size_t bytes = keeps ? shared->stride : shared->each;
    uint64_t     own = (keeps ? shared->initials : shared->vectors) + (uint64_t)shared->me * bytes;
    if (!preduce->initial)
        return PP_OK;
    if (!pp_node_commit(shared->node, own, bytes))
        return pp_fail(PP_ERR_MEMORY, "no shared memory for the initial model of %zu bytes", preduce->vector_bytes);
    preduce->kernels.memory->copy(preduce->kernels.memory, pp_node_at(shared->node, own), preduce->initial, preduce->vector_bytes);
    return PP_OK;
}

pp_status_t pp_shared_groups_open(pp_preduce_t *preduce, uint64_t region)
{
    pp_node_t     *node = preduce->handle.engine->node;
    const layout_t layout = lay_out(preduce);
    const size_t   ranks = (size_t)node->size;
    shared_t      *shared = preduce->shared = calloc(1, sizeof *shared);
    preduce->ops = &ops;
    preduce->handle.ops = &ops.handle;
    if (!shared)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    *shared = (shared_t){.node = node, .ranks = node->size, .me = node->index,
                         .vectors = region + layout.vectors, .initials = region + layout.initials,
                         .stride = layout.stride, .each = layout.each,
                         .weighted = preduce->config.plan.weights != PP_WEIGHTS_CONSTANT};
    shared->missing = calloc(ranks, sizeof *shared->missing);
    if (!pp_jobs_open(shared, ranks) || !shared->missing)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    if (!pp_node_reach(node))
        return pp_fail(PP_ERR_MEMORY, "no address space for the memory that the ranks of the node share");
    shared->hall = pp_node_at(node, region);
    shared->region = (pp_group_region_t){.node = node, .hall = shared->hall, .offset = region, .bytes = layout.bytes,
                                         .offers = pp_node_at(node, region + layout.offers)};
    shared->machine = pp_node_at(node, region + layout.machine);
    shared->desks = pp_node_at(node, region + layout.desks);
    shared->answer_members = pp_node_at(node, region + layout.answer_members);
    shared->answer_weights = pp_node_at(node, region + layout.answer_weights);
    shared->job_members = pp_node_at(node, region + layout.job_members);
    shared->job_weights = pp_node_at(node, region + layout.job_weights);
    shared->job_vectors = pp_node_at(node, region + layout.job_vectors);
    shared->job_adds = pp_node_at(node, region + layout.job_adds);
    shared->job_results = pp_node_at(node, region + layout.job_results);
    shared->seats = pp_node_at(node, region + layout.seats);
    shared->user = users_offset(preduce, node);
    const bool in_place = shared->user && !preduce->models;
    shared->desks[shared->me].vector = in_place ? shared->user : pp_vectors_of(shared, shared->me);
    return open_initial(preduce);
}

pp_group_region_t *pp_shared_groups_region(pp_preduce_t *preduce)
{
    return preduce->ops == &ops ? &preduce->shared->region : NULL;
}
