/* jobs.c - the groups that have begun, and the answers to requests, in the memory that all ranks share.  See shared.h. */
#include "shared.h"

#include <stdlib.h>
#include <string.h>

enum { WHOLE_BYTES = 16384 };         /* all vectors of a group together: up to this its job is done under the lock */

static bool is_simulated(const shared_t *shared) { return !shared->node->memory; }

/* ---- jobs: under the lock ------------------------------------------------------------------------------------ */

bool pp_jobs_are_small(const shared_t *shared, size_t bytes)
{
    const size_t whole = shared->vault ? 0 : is_simulated(shared) ? 32 : WHOLE_BYTES;
    return bytes <= whole;
}

/* A rank alone has nothing to do, unless something is added to its model. */
static bool is_small(const pp_preduce_t *preduce, const struct pp_job_plan *plan)
{
    return (plan->count == 1 && !preduce->models)
        || pp_jobs_are_small(preduce->shared, (size_t)plan->count * preduce->vector_bytes);
}

/* Of a rank that asks, if others may compute, which that would slow down. */
static int32_t served(const pp_preduce_t *preduce, const pp_groups_action_t *action)
{
    for (int32_t i = 0; i < action->count && preduce->models; i++)
        if (action->goals[i])
            return action->members[i];
    return action->members[action->members[0] == preduce->shared->me && action->count > 1];
}

/* Simulated ranks hand out each element by itself. */
static void cut(const pp_preduce_t *preduce, struct pp_job_plan *plan)
{
    const shared_t *shared = preduce->shared;
    const pp_cut_t  cut = pp_job_cut(shared->node, preduce->vector_bytes, preduce->kernels.element_bytes,
                                     is_simulated(shared) ? INT32_MAX : plan->count);
    plan->chunk_bytes = cut.chunk_bytes;
    plan->chunks = cut.chunks;
}

/* `lowest`: of the members. */
static pp_mean_t mean_of(const pp_preduce_t *preduce, const struct pp_job_plan *plan, int32_t lowest,
                         const uint64_t *vectors, const double *weights, const uint64_t *adds, const uint64_t *results)
{
    const shared_t *shared = preduce->shared;
    const bool      weighted = pp_job_is_weighted(preduce, plan);
    return (pp_mean_t){.vectors = vectors, .count = plan->count, .weights = weighted ? weights : NULL,
                       .adds = preduce->models ? adds : NULL, .results = preduce->models ? results : NULL,
                       .initial = shared->initials + (uint64_t)lowest * shared->stride,
                       .initial_weight = weighted ? plan->initial : 0};
}

static void begin_small(pp_small_jobs_t *small, const struct pp_job_plan *plan, const pp_groups_action_t *action)
{
    small->plans[small->count++] = *plan;
    memcpy(small->members + small->entries, action->members, (size_t)plan->count * sizeof *small->members);
    memcpy(small->weights + small->entries, action->weights, (size_t)plan->count * sizeof *small->weights);
    small->entries += plan->count;
}

/* The plan of a large job goes to a desk, where other ranks see it. */
static void begin_large(shared_t *shared, const struct pp_job_plan *plan, const pp_groups_action_t *action)
{
    const int32_t at = action->members[0];
    const size_t  row = pp_desk_row(shared, at);
    shared->desks[at].plan = *plan;
    for (int32_t i = 0; i < action->count; i++) {
        shared->job_members[row + (size_t)i] = action->members[i];
        shared->job_weights[row + (size_t)i] = action->weights[i];
        shared->job_vectors[row + (size_t)i] = shared->desks[action->members[i]].vector;
    }
    shared->begun[shared->begun_count++] = at;
}

static void begin_job(pp_preduce_t *preduce, const pp_groups_action_t *action)
{
    shared_t                *shared = preduce->shared;
    pp_small_jobs_t         *list = &shared->small;
    const struct pp_job_plan plan = {.serial = action->serial, .newest = action->newest, .count = action->count,
                                     .initial = action->initial, .served = served(preduce, action),
                                     .flush = action->kind == PP_GROUPS_FLUSH};
    const bool   small = is_small(preduce, &plan);
    const size_t row = pp_desk_row(shared, action->members[0]);
    uint64_t    *adds = small ? list->adds + list->entries : shared->job_adds + row;
    uint64_t    *results = small ? list->results + list->entries : shared->job_results + row;
    if (preduce->models && !preduce->models->begin(preduce, action, adds, results))
        return;
    if (small)
        begin_small(list, &plan, action);
    else
        begin_large(shared, &plan, action);
}

/* Takes the newest small job off the list; it becomes the rank's own job. */
static void take_small(shared_t *shared)
{
    pp_small_jobs_t *small = &shared->small;
    pp_own_job_t    *job = &shared->job;
    job->plan = small->plans[--small->count];
    small->entries -= job->plan.count;
    for (int32_t i = 0; i < job->plan.count; i++) {
        job->members[i] = small->members[small->entries + i];
        job->weights[i] = small->weights[small->entries + i];
        job->adds[i] = small->adds[small->entries + i];
        job->results[i] = small->results[small->entries + i];
        job->vectors[i] = shared->desks[job->members[i]].vector;
    }
}

bool pp_jobs_open(shared_t *shared, size_t ranks)
{
    pp_small_jobs_t *small = &shared->small;
    pp_own_job_t    *job = &shared->job;
    small->plans = calloc(ranks, sizeof *small->plans);
    small->members = calloc(ranks, sizeof *small->members);
    small->weights = calloc(ranks, sizeof *small->weights);
    small->adds = calloc(ranks, sizeof *small->adds);
    small->results = calloc(ranks, sizeof *small->results);
    job->members = calloc(ranks, sizeof *job->members);
    job->weights = calloc(ranks, sizeof *job->weights);
    job->vectors = calloc(ranks, sizeof *job->vectors);
    job->adds = calloc(ranks, sizeof *job->adds);
    job->results = calloc(ranks, sizeof *job->results);
    shared->begun = calloc(ranks, sizeof *shared->begun);
    shared->handed = calloc(ranks, sizeof *shared->handed);
    shared->launched = calloc(ranks, sizeof *shared->launched);
    shared->wakes = calloc(ranks, sizeof *shared->wakes);
    return small->plans && small->members && small->weights && small->adds && small->results && job->members
        && job->weights && job->vectors && job->adds && job->results && shared->begun && shared->handed
        && shared->launched && shared->wakes;
}

void pp_jobs_close(shared_t *shared)
{
    free(shared->small.plans);
    free(shared->small.members);
    free(shared->small.weights);
    free(shared->small.adds);
    free(shared->small.results);
    free(shared->job.members);
    free(shared->job.weights);
    free(shared->job.vectors);
    free(shared->job.adds);
    free(shared->job.results);
    free(shared->begun);
    free(shared->handed);
    free(shared->launched);
    free(shared->wakes);
}

/* ---- answers: under the lock ----------------------------------------------------------------------------------- */

/* Describes the group that has just been averaged, or that the rank was alone (NULL). */
static void describe(shared_t *shared, int32_t rank, const pp_own_job_t *group)
{
    pp_desk_t *desk = &shared->desks[rank];
    /* A group that has shrunk to one rank is none. */
    desk->count = group && (group->plan.count > 1 || group->plan.flush) ? group->plan.count : 0;
    if (desk->count == 0)
        return;
    desk->serial = group->plan.serial;
    desk->initial = group->plan.initial;
    memcpy(shared->answer_members + pp_desk_row(shared, rank), group->members, (size_t)desk->count * sizeof(int32_t));
    if (shared->weighted)
        memcpy(shared->answer_weights + pp_desk_row(shared, rank), group->weights,
               (size_t)desk->count * sizeof(double));
}

static void wake(shared_t *shared, int32_t rank)
{
    shared->wakes[rank] = shared->any_wakes = true;
}

void pp_jobs_answer(shared_t *shared, int32_t rank)
{
    atomic_fetch_add(&shared->desks[rank].answered, 1);
    wake(shared, rank);
}

/* Releases the vector and the description to the rank. */
static void answer(shared_t *shared, int32_t rank, const pp_own_job_t *group)
{
    describe(shared, rank, group);
    pp_jobs_answer(shared, rank);
}

static void tell(void *arg, const pp_groups_action_t *action)
{
    pp_preduce_t *preduce = arg;
    shared_t     *shared = preduce->shared;
    pp_preduce_overheard(arg, action);
    switch ((pp_groups_action_kind_t)action->kind) {
    case PP_GROUPS_BEGIN:
    case PP_GROUPS_FLUSH:
        begin_job(arg, action);
        break;
    case PP_GROUPS_COMPLETE:
        if (!preduce->models || preduce->models->complete(preduce, action->rank))
            answer(shared, action->rank, &shared->job);
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

pp_groups_hearer_t pp_jobs_hearer(pp_preduce_t *preduce)
{
    return (pp_groups_hearer_t){.tell = tell, .arg = preduce};
}

pp_status_t pp_jobs_event(pp_preduce_t *preduce, int32_t what, int32_t rank, uint64_t number, uint64_t now_ns)
{
    const pp_groups_hearer_t hearer = pp_jobs_hearer(preduce);
    return pp_groups_event(preduce->shared->machine, what, rank, number, now_ns, &hearer);
}

/* Ranks that are out go along with a flush; they have no part in it. */
static void finish_flush(pp_preduce_t *preduce, const pp_own_job_t *group)
{
    shared_t *shared = preduce->shared;
    for (int32_t i = 0; i < group->plan.count; i++)
        describe(shared, group->members[i], group);
    for (int32_t rank = 0; rank < shared->ranks; rank++) {
        atomic_fetch_add(&shared->desks[rank].flushes, 1);
        wake(shared, rank);
    }
}

/* Tells the machine that the members have finished the rank's own job. */
static void finish(pp_preduce_t *preduce, uint64_t now_ns)
{
    shared_t           *shared = preduce->shared;
    const pp_own_job_t *group = &shared->job;
    for (int32_t i = 0; i < group->plan.count; i++)
        shared->desks[group->members[i]].newest = group->plan.newest;
    if (group->plan.flush) {
        finish_flush(preduce, group);
        return;
    }
    for (int32_t i = 0; i < group->plan.count; i++)
        if (pp_jobs_event(preduce, PP_GROUPS_FINISH, group->members[i], group->plan.serial, now_ns) < 0)
            pp_engine_fail(preduce->handle.engine, PP_ERR_INTERNAL, "%s", pp_error_text());
}

void pp_jobs_finish(pp_preduce_t *preduce, int32_t at, uint64_t now_ns)
{
    shared_t     *shared = preduce->shared;
    pp_own_job_t *group = &shared->job;
    const size_t  row = pp_desk_row(shared, at);
    /* The desk may get the next job meanwhile. */
    group->plan = shared->desks[at].plan;
    memcpy(group->members, shared->job_members + row, (size_t)group->plan.count * sizeof *group->members);
    memcpy(group->weights, shared->job_weights + row, (size_t)group->plan.count * sizeof *group->weights);
    finish(preduce, now_ns);
}

bool pp_jobs_do_small(pp_preduce_t *preduce, uint64_t now_ns)
{
    shared_t           *shared = preduce->shared;
    const pp_own_job_t *job = &shared->job;
    bool                any = false;
    for (; shared->small.count > 0 && !preduce->handle.engine->error; any = true) {
        take_small(shared);
        if (job->plan.count > 1 || preduce->models) {
            const pp_mean_t mean = mean_of(preduce, &job->plan, job->members[0], job->vectors, job->weights, job->adds,
                                           job->results);
            pp_mean(shared->node, &preduce->kernels, &mean, 0, preduce->count);
        }
        finish(preduce, now_ns);
    }
    return any;
}

static void wake_all(shared_t *shared)
{
    const pp_node_t *node = shared->node;
    if (!shared->any_wakes)
        return;
    bool asleep = pp_node_anybody_asleep(node);
    for (int32_t rank = 0; rank < shared->ranks; rank++) {
        /* Also this rank: its progress thread may have done this while the application went to sleep. */
        if (asleep && shared->wakes[rank])
            node->wake(node->owner, rank, false);
        shared->wakes[rank] = false;
    }
    shared->any_wakes = false;
}

/* Tells the members of a large job where it is, and wakes them later; returns whether this rank is one of them. */
static bool invite(shared_t *shared, int32_t at)
{
    const pp_desk_t *desk = &shared->desks[at];
    const int32_t   *members = shared->job_members + pp_desk_row(shared, at);
    bool             invited = false;
    for (int32_t i = 0; i < desk->plan.count; i++) {
        atomic_store(&shared->desks[members[i]].joins, desk->plan.serial << 32 | (uint32_t)at);
        wake(shared, members[i]);
        invited |= members[i] == shared->me;
    }
    return invited;
}

static void hand_out(pp_preduce_t *preduce, bool serves)
{
    shared_t        *shared = preduce->shared;
    const pp_node_t *node = shared->node;
    for (int32_t i = 0; i < shared->begun_count; i++) {
        const int32_t at = shared->begun[i];
        pp_desk_t    *desk = &shared->desks[at];
        pp_job_begin_plan(&desk->job);
        cut(preduce, &desk->plan);
        /* The members first: once the chunks are handed out, the job may end, and its desk have another. */
        const bool mine = invite(shared, at);
        if (mine && shared->handed_count < shared->ranks)
            shared->handed[shared->handed_count++] = at;
        const int32_t rank = desk->plan.served;
        pp_job_hand_out(&desk->job, desk->plan.serial, desk->plan.chunks);
        if (serves || !mine)
            node->wake(node->owner, rank, true);
    }
    shared->begun_count = 0;
}

void pp_jobs_follow_up(pp_preduce_t *preduce, bool serves)
{
    if (!preduce->shared->vault)
        hand_out(preduce, serves);
    wake_all(preduce->shared);
}

/* ---- after it: chunks ------------------------------------------------------------------------------------------ */

/* Returns the desk of the open job that this rank is in, and its number; -1: there is none. */
static int32_t find(const shared_t *shared, uint64_t *number)
{
    PP_STEP("look");
    const uint64_t  joins = atomic_load(&shared->desks[shared->me].joins);
    const int32_t   at = (int32_t)(joins & UINT32_MAX);
    const pp_job_t *job = &shared->desks[at].job;
    *number = joins >> 32;
    return pp_job_is_open(job) && pp_job_number(job) == *number ? at : -1;
}

bool pp_jobs_any(const shared_t *shared)
{
    uint64_t number;
    return find(shared, &number) >= 0;
}

bool pp_jobs_work(pp_handle_t *handle, bool lands, uint64_t *job)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    shared_t           *shared = preduce->shared;
    (void)lands;
    uint64_t  number;
    int32_t   at = find(shared, &number);
    uint32_t  chunk;
    *job = (uint64_t)at;
    if (at < 0)
        return false;
    pp_desk_t   *desk = &shared->desks[at];
    const size_t row = pp_desk_row(shared, at);
    while (pp_job_ticket(&desk->job, number, shared->me % 2 == 0, &chunk)) {
        const pp_mean_t mean = mean_of(preduce, &desk->plan, at, shared->job_vectors + row, shared->job_weights + row,
                                       shared->job_adds + row, shared->job_results + row);
        const size_t    each = desk->plan.chunk_bytes / preduce->kernels.element_bytes, first = chunk * each;
        const size_t    rest = preduce->count - first;
        pp_mean(shared->node, &preduce->kernels, &mean, first, rest < each ? rest : each);
        if (pp_job_finished(&desk->job))
            return true;
    }
    return false;
}
