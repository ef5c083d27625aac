/*
 * posted.c - groups by messages.  See preduce.h.
 *
 * The machine is at rank 0.  The other ranks tell it of their events; it sends each member of a group that begins a
 * notice.  A group is an instance of the schedule of an allreduce, whose key is the group's serial number: no
 * communicator is made, and a rank that is no member has no part in it.  Rank 0's own events and notices go the same
 * way, through a list instead of a message.
 *
 * With PP_BACKEND_COMM the notice goes to the application, which averages the group itself.
 */
#include "posted.h"

#include <stdlib.h>
#include <string.h>

/* Beside the events and actions of the machine: a rank waits long, and rank 0 tells those that it waits for; and a rank
   asks, and rank 0 answers, whether a request still waits for it.  `round` is the request. */
enum { AWAITS = -1, CONFIRMS = -2 };

typedef pp_posted_groups_t posted_t;

static bool is_weighted(const pp_preduce_t *preduce) { return preduce->config.plan.weights != PP_WEIGHTS_CONSTANT; }
static bool is_comm(const pp_preduce_t *preduce) { return preduce->config.backend == PP_BACKEND_COMM; }

/* ---- messages -------------------------------------------------------------------------------------------------- */

static void send(pp_preduce_t *preduce, int32_t peer, pp_prefix_t *message, size_t bytes)
{
    pp_engine_t *engine = preduce->handle.engine;
    if (peer != engine->rank) {
        pp_engine_control(engine, peer, message, bytes);
        return;
    }
    pp_engine_keep(engine, &preduce->posted->kept, peer, message, bytes);
    engine->changed = true;
}

static void tell_rank_0(pp_preduce_t *preduce, int32_t what, uint64_t number, const int32_t *members, int32_t count)
{
    pp_group_event_t *message = (pp_group_event_t *)preduce->posted->out;
    *message = (pp_group_event_t){.prefix = {.kind = PP_MSG_GROUP_EVENT, .handle = preduce->handle.id, .round = number},
                                  .event = what, .count = count};
    if (count > 0)
        memcpy(message->members, members, (size_t)count * sizeof *members);
    send(preduce, 0, &message->prefix, sizeof *message + (size_t)count * sizeof *members);
}

/* ---- rank 0 ---------------------------------------------------------------------------------------------------- */

static void post_to_all(pp_preduce_t *preduce, const pp_groups_action_t *action)
{
    for (int32_t rank = 0; rank < preduce->handle.engine->size; rank++) {
        pp_group_notice_t message = {
            .prefix = {.kind = PP_MSG_GROUP_NOTICE, .handle = preduce->handle.id}, .kind = action->kind,
            .ranks = {action->rank, action->other}};
        send(preduce, rank, &message.prefix, sizeof message);
    }
}

static void post_answer(pp_preduce_t *preduce, const pp_groups_action_t *action)
{
    pp_group_notice_t message = {
        .prefix = {.kind = PP_MSG_GROUP_NOTICE, .handle = preduce->handle.id, .round = action->serial},
        .kind = action->kind};
    send(preduce, action->rank, &message.prefix, sizeof message);
}

/* Of a flush, ranks that are out get a notice without members. */
static void post_flush_to_others(pp_preduce_t *preduce, const pp_groups_action_t *action)
{
    for (int32_t rank = 0, i = 0; rank < preduce->handle.engine->size; rank++) {
        pp_group_notice_t message = {.prefix = {.kind = PP_MSG_GROUP_NOTICE, .handle = preduce->handle.id},
                                     .kind = PP_GROUPS_FLUSH};
        if (i < action->count && action->members[i] == rank)
            i++;
        else
            send(preduce, rank, &message.prefix, sizeof message);
    }
}

static int32_t algorithm_for(const pp_preduce_t *preduce, int32_t members)
{
    const pp_team_t *team = preduce->handle.team;
    return pp_carried_choose(preduce, team->tuned, team->tuned_count, members);
}

static void post_group(pp_preduce_t *preduce, const pp_groups_action_t *action)
{
    const size_t       count = (size_t)action->count, weights = is_weighted(preduce) ? count : 0;
    pp_group_notice_t *message = (pp_group_notice_t *)preduce->posted->out;
    *message = (pp_group_notice_t){
        .prefix = {.kind = PP_MSG_GROUP_NOTICE, .handle = preduce->handle.id, .round = action->serial},
        .kind = action->kind, .algorithm = algorithm_for(preduce, action->count), .kept = action->kept, .fresh = action->fresh,
        .count = action->count, .newest = action->newest, .initial = action->initial};
    memcpy(message->weights, action->weights, weights * sizeof(double));
    memcpy(message->weights + weights, action->members, count * sizeof(int32_t));
    for (int32_t i = 0; i < action->count; i++) {
        message->goal = action->kind == PP_GROUPS_BEGIN && action->goals[i];
        send(preduce, action->members[i], &message->prefix,
             sizeof *message + weights * sizeof(double) + count * sizeof(int32_t));
    }
}

static void tell(void *arg, const pp_groups_action_t *action)
{
    pp_preduce_t *preduce = arg;
    pp_preduce_overheard(preduce, action);
    switch ((pp_groups_action_kind_t)action->kind) {
    case PP_GROUPS_BEGIN:
        post_group(preduce, action);
        break;
    case PP_GROUPS_FLUSH:
        post_group(preduce, action);
        post_flush_to_others(preduce, action);
        break;
    case PP_GROUPS_COMPLETE:         /* the member knows by `goals` */
        break;
    case PP_GROUPS_ALONE:
        post_answer(preduce, action);
        break;
    case PP_GROUPS_END:
    case PP_GROUPS_DIFFER:
        post_to_all(preduce, action);
        break;
    }
}

static pp_groups_hearer_t hearer_of(pp_preduce_t *preduce)
{
    return (pp_groups_hearer_t){.tell = tell, .arg = preduce};
}

static pp_groups_t *machine_of(const pp_preduce_t *preduce) { return preduce->posted->machine; }

static void post_waiter(pp_preduce_t *preduce, int32_t rank, int32_t kind, uint64_t of)
{
    pp_group_notice_t message = {.prefix = {.kind = PP_MSG_GROUP_NOTICE, .handle = preduce->handle.id,
                                            .round = pp_groups_awaits(preduce->posted->machine, rank, of)},
                                 .kind = kind};
    send(preduce, rank, &message.prefix, sizeof message);
}

static void post_awaited(pp_preduce_t *preduce, int32_t waiter)
{
    posted_t     *posted = preduce->posted;
    int32_t      *missing = (int32_t *)posted->out;
    const int32_t most = (int32_t)(PP_MESSAGE_BYTES / sizeof *missing);
    const int32_t count = pp_groups_missing(posted->machine, waiter, missing, most);
    for (int32_t i = 0; i < count && i < most; i++)
        post_waiter(preduce, missing[i], AWAITS, (uint64_t)waiter);
}

static void take_event(pp_preduce_t *preduce, int32_t peer, const pp_group_event_t *message)
{
    if (message->event == AWAITS) {
        post_awaited(preduce, peer);
        return;
    }
    if (message->event == CONFIRMS) {
        post_waiter(preduce, peer, CONFIRMS, message->prefix.round);
        return;
    }
    pp_engine_t             *engine = preduce->handle.engine;
    pp_groups_t             *machine = preduce->posted->machine;
    const pp_groups_hearer_t hearer = hearer_of(preduce);
    /* The message has told this rank how many calls its sender knows to be completed. */
    pp_status_t status = pp_groups_event(machine, PP_GROUPS_COMPLETED, peer, pp_engine_calls_known(engine),
                                         pp_engine_now(engine), &hearer);
    if (status >= 0 && message->count > 0)
        status = pp_groups_give(machine, peer, message->members, message->count);
    if (status >= 0)
        status = pp_groups_event(machine, message->event, peer, message->prefix.round, pp_engine_now(engine), &hearer);
    if (status >= 0)
        status = pp_preduce_untangle(preduce, machine_of, hearer_of, pp_engine_now(engine));
    if (status < 0)
        pp_engine_fail(engine, PP_ERR_INTERNAL, "handle %u: %s", preduce->handle.id, pp_error_text());
}

/* ---- a member -------------------------------------------------------------------------------------------------- */

static void describe(pp_preduce_t *preduce)
{
    const posted_t *posted = preduce->posted;
    /* A group that has shrunk to one rank is none. */
    if (posted->group.count == 1 && !posted->group.flush)
        pp_preduce_describe(preduce, 0, posted->group.newest, 0, 0, NULL, NULL);
    else
        pp_preduce_describe(preduce, posted->group.serial, posted->group.newest, posted->group.initial,
                            posted->group.count, posted->carried.members, posted->carried.weights);
}

static void finish_group(pp_preduce_t *preduce)
{
    posted_t *posted = preduce->posted;
    posted->group.active = false;
    if (posted->group.flush) {
        describe(preduce);
        pp_preduce_flushed(preduce, PP_IN_FLUSH);
        return;
    }
    tell_rank_0(preduce, PP_GROUPS_FINISH, posted->group.serial, NULL, 0);
    if (!posted->group.goal)
        return;
    describe(preduce);
    pp_preduce_complete(preduce);
}

/* The application averages the group, in the Wait that it is in, or comes to. */
static void offer_group(pp_preduce_t *preduce, const pp_group_notice_t *message)
{
    if (preduce->posted->group.flush) {
        finish_group(preduce);
        return;
    }
    describe(preduce);
    preduce->result.runs = true;
    preduce->result.kept = message->kept;
    preduce->result.fresh = message->fresh;
    pp_preduce_complete(preduce);
}

static void begin_group(pp_preduce_t *preduce, const pp_group_notice_t *message)
{
    posted_t      *posted = preduce->posted;
    const size_t   count = (size_t)message->count, weights = is_weighted(preduce) ? count : 0;
    const int32_t *members = (const int32_t *)(message->weights + weights);
    posted->group.active = true;
    posted->group.flush = message->kind == PP_GROUPS_FLUSH;
    posted->group.goal = message->goal;
    posted->group.serial = message->prefix.round;
    posted->group.newest = message->newest;
    posted->group.initial = message->initial;
    posted->group.count = message->count;
    for (size_t i = 0; i < count; i++) {
        posted->carried.members[i] = members[i];
        posted->carried.weights[i] = weights ? message->weights[i] : 1.0 / message->count;
        if (members[i] == preduce->handle.engine->rank)
            posted->group.position = (int32_t)i;
    }
    if (message->count == 1)
        finish_group(preduce);
    else if (is_comm(preduce))
        offer_group(preduce, message);
    else
        pp_carried_join(preduce, posted->group.serial, message->algorithm, posted->group.count, NULL, false);
}

static void take_notice(pp_preduce_t *preduce, const pp_group_notice_t *message)
{
    if (message->count > 0) {
        preduce->posted->begin(preduce, message);
    } else if (message->kind == AWAITS) {
        pp_group_time_awaited(preduce, message->prefix.round);
    } else if (message->kind == CONFIRMS) {
        pp_group_time_confirmed(preduce, message->prefix.round);
    } else if (message->kind == PP_GROUPS_FLUSH) {
        pp_preduce_flushed(preduce, PP_IN_FLUSH);
    } else if (message->kind == PP_GROUPS_END) {
        pp_preduce_flushed(preduce, PP_IN_FREE);
    } else if (message->kind == PP_GROUPS_DIFFER) {
        pp_preduce_differ(preduce, message->ranks[0], message->ranks[1]);
    } else {
        pp_preduce_describe(preduce, 0, preduce->posted->group.newest, 0, 0, NULL, NULL);
        pp_preduce_complete(preduce);
    }
}

void pp_posted_control(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    if (message->kind == PP_MSG_GROUP_EVENT)
        take_event(preduce, peer, (const pp_group_event_t *)message);
    else
        take_notice(preduce, (const pp_group_notice_t *)message);
}

void pp_posted_go_on(pp_preduce_t *preduce)
{
    posted_t *posted = preduce->posted;
    while (posted->kept && !preduce->handle.engine->error) {
        pp_stored_t *stored = posted->kept;
        posted->kept = stored->next;
        pp_posted_control(&preduce->handle, stored->peer, (const pp_prefix_t *)stored->message);
        free(stored);
    }
}

void pp_posted_operation(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message, size_t bytes)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    pp_instances_message(&preduce->carried->instances, peer, message, bytes);
}

/* ---- the instance of a group ----------------------------------------------------------------------------------- */

static void on_take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    pp_preduce_t *preduce = owner;
    posted_t     *posted = preduce->posted;
    const bool    lowest = posted->group.position == 0;
    pp_carried_lend(preduce, instance, share);
    if (is_weighted(preduce) && !posted->group.flush)
        pp_preduce_weigh(preduce, instance->accumulator->data, instance->accumulator->data, preduce->count,
                         posted->carried.weights[posted->group.position], posted->initial ? posted->initial->data : NULL,
                         lowest ? posted->group.initial : 0);
}

static void on_done(void *owner, pp_instance_t *instance)
{
    pp_preduce_t *preduce = owner;
    const bool    weighted = is_weighted(preduce) && !preduce->posted->group.flush;
    pp_carried_get_back(preduce, instance, weighted ? 1 : preduce->posted->group.count);
    finish_group(preduce);
}

static const pp_host_t host = {.take = on_take, .done = on_done, .retired = pp_carried_retired};

/* ---- the way --------------------------------------------------------------------------------------------------- */

static void *aim(pp_preduce_t *preduce) { return is_comm(preduce) ? NULL : pp_carried_aim(preduce); }

static const void *vector(const pp_preduce_t *preduce)
{
    return is_comm(preduce) ? NULL : pp_carried_vector(preduce);
}

static pp_status_t ask(pp_preduce_t *preduce)
{
    tell_rank_0(preduce, PP_GROUPS_START, preduce->iteration, preduce->asked.members, preduce->asked.count);
    return PP_OK;
}

void pp_posted_say(pp_preduce_t *preduce, int32_t reason, uint64_t number)
{
    bool here = reason == PP_GROUPS_HERE;
    tell_rank_0(preduce, here ? PP_GROUPS_BACK : PP_GROUPS_LEAVE, here ? 0 : number, NULL, 0);
}

static void say_long(pp_preduce_t *preduce) { tell_rank_0(preduce, PP_GROUPS_WAITS_LONG, 0, NULL, 0); }

static void say_elsewhere(pp_preduce_t *preduce, bool waits)
{
    tell_rank_0(preduce, PP_GROUPS_ELSEWHERE, waits, NULL, 0);
}

static void await(pp_preduce_t *preduce) { tell_rank_0(preduce, AWAITS, 0, NULL, 0); }

static void confirm(pp_preduce_t *preduce) { tell_rank_0(preduce, CONFIRMS, preduce->time.awaited, NULL, 0); }

static void ran(pp_preduce_t *preduce)
{
    preduce->result.runs = false;
    finish_group(preduce);
}

static bool retired(const pp_handle_t *handle)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    return preduce->carried->instances.open == 0 && !preduce->posted->kept;
}

static void explain(pp_handle_t *handle, pp_text_t *text)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    enum { MOST = PP_LISTED + 1 };
    const posted_t *posted = preduce->posted;
    int32_t         missing[MOST], count;
    pp_listing_t    listing = {.text = text, .before = "the group waits for "};
    pp_instances_explain(&posted->carried.instances, text);
    if (posted->machine) {
        count = pp_groups_missing(posted->machine, 0, missing, MOST);
        for (int32_t i = 0; i < count && i < MOST; i++)
            pp_listing_add(&listing, missing[i], NULL);
        pp_listing_end(&listing, count > MOST ? " and more" : "");
    } else if (!posted->group.active) {
        pp_text_add(text, "rank 0 has not formed a group with this rank yet\n");
    }
}

void pp_posted_close(pp_preduce_t *preduce)
{
    posted_t *posted = preduce->posted;
    if (!posted)
        return;
    pp_pool_put(&posted->carried.vectors, posted->initial);
    pp_stored_free_all(&posted->kept);
    free(posted->machine);
    free(posted->out);
    pp_carried_close(preduce);
}

static const pp_grouping_t ops = {
    .untangles = true, .sends = true, .aim = aim, .ask = ask, .say = pp_posted_say, .say_elsewhere = say_elsewhere,
    .say_long = say_long, .vector = vector, .await = await, .confirm = confirm, .ran = ran, .go_on = pp_posted_go_on,
    .close = pp_posted_close,
    .handle = {.control = pp_posted_control, .operation = pp_posted_operation, .retired = retired, .explain = explain,
               .count_buffers = pp_carried_count_buffers},
};

/* ---- opening --------------------------------------------------------------------------------------------------- */

static pp_status_t open_machine(pp_preduce_t *preduce)
{
    const pp_engine_t     *engine = preduce->handle.engine;
    const pp_groups_plan_t plan = pp_preduce_plan(preduce);
    pp_groups_t           *machine = malloc(pp_groups_bytes(&plan, preduce->config.table));
    preduce->posted->machine = machine;
    if (!machine)
        return pp_fail(PP_ERR_MEMORY, "no memory for the groups of %d ranks", engine->size);
    return pp_groups_open(machine, &plan, preduce->config.table, engine->nodes ? engine->nodes->node_of : NULL,
                          pp_engine_now(engine));
}

pp_status_t pp_posted_open(pp_preduce_t *preduce, const pp_grouping_t *way, const pp_host_t *instances,
                           void (*begin)(pp_preduce_t *, const pp_group_notice_t *))
{
    posted_t *posted = preduce->posted;
    preduce->ops = way;
    preduce->handle.ops = &way->handle;
    if (!posted)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    posted->begin = begin;
    posted->out = malloc(PP_MESSAGE_BYTES);
    if (!posted->out)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    /* Others may be ahead of this rank, whose notice is still under way: of one group, or, where pairs average without
       rank 0, each of its own with this rank; with one message for each receive. */
    PP_TRY(pp_carried_open(preduce, instances, false, 4 * (size_t)preduce->handle.engine->size + 64));
    return preduce->handle.engine->rank == 0 ? open_machine(preduce) : PP_OK;
}

pp_status_t pp_posted_groups_open(pp_preduce_t *preduce)
{
    preduce->posted = calloc(1, sizeof *preduce->posted);
    PP_TRY(pp_posted_open(preduce, &ops, &host, begin_group));
    if (preduce->initial) {
        posted_t *posted = preduce->posted;
        PP_TRY(pp_pool_get(&posted->carried.vectors, &posted->initial));
        preduce->kernels.memory->copy(preduce->kernels.memory, posted->initial->data, preduce->initial,
                                      preduce->vector_bytes);
    }
    return PP_OK;
}
