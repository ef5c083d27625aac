/* station.c - what ranks show each other, and what the machine is told of it.  See queue.h. */
#include "queue.h"

/* A rank that is inside a call which is over for this one has only not noticed yet. */
static bool has_left(const pp_queue_t *q, const pp_queue_station_t *station)
{
    PP_STEP("look");
    const uint64_t left = atomic_load(&station->left);
    return left == PP_QUEUE_LEFT || left > pp_engine_calls_known(q->handle.engine);
}

static void tell_of(pp_queue_t *q, int32_t event, int32_t neighbour, int64_t iteration)
{
    if (pp_queues_event(q->machine, event, neighbour, iteration) < 0)
        pp_engine_fail(q->handle.engine, PP_ERR_INTERNAL, "%s", pp_error_text());
}

void pp_queue_tell(pp_queue_t *q, int32_t event) { tell_of(q, event, 0, 0); }

/* ---- looking --------------------------------------------------------------------------------------------- */

static void look_at_out(pp_queue_t *q, int32_t out)
{
    const pp_queue_station_t *station = &q->stations[q->config.outs[out]];
    const bool left = has_left(q, station);
    PP_STEP("look");
    tell_of(q, left ? PP_QUEUES_UNBOUND : PP_QUEUES_TOKEN, out, atomic_load(&station->announced));
}

/* What was published since the last look, and is in the ring still. */
static void look_at_ring(pp_queue_t *q, int32_t in, int64_t published)
{
    const int64_t oldest = published - q->ring + 1, next = q->seen[in].published + 1;
    for (int64_t i = oldest > next ? oldest : next; i <= published; i++) {
        PP_STEP("look");
        const bool there = atomic_load(pp_queue_tag(q, q->config.ins[in], pp_queue_slot(q, i))) == i;
        tell_of(q, there ? PP_QUEUES_UPDATE : PP_QUEUES_HEADER, in, i);
    }
    q->seen[in].published = published;
}

/* What a rank publishes it publishes before it announces the next iteration; and what it announces before it is seen to
   be back. */
static void look_at_in(pp_queue_t *q, int32_t in)
{
    const pp_queue_station_t *station = &q->stations[q->config.ins[in]];
    const bool    left = has_left(q, station);
    PP_STEP("look");
    const int64_t announced = atomic_load(&station->announced);
    PP_STEP("look");
    const int64_t published = atomic_load(&station->published);
    const bool    exact = q->config.plan.staleness == PP_QUEUES_UNSET;
    const int64_t omitted = exact ? pp_queues_due(q->machine) : announced - 1;
    if (left && !(q->seen[in].left && q->seen[in].published == published))
        tell_of(q, PP_QUEUES_LEFT, in, published + 1);
    else if (!left && q->seen[in].left)
        tell_of(q, PP_QUEUES_HERE, in, 0);
    q->seen[in].left = left;
    look_at_ring(q, in, published);
    if (published < omitted && omitted < announced)
        tell_of(q, PP_QUEUES_HEADER, in, omitted);
}

void pp_queue_look(pp_queue_t *q)
{
    for (int32_t out = 0; out < q->config.plan.out; out++)
        look_at_out(q, out);
    for (int32_t in = 0; in < q->config.plan.in; in++)
        look_at_in(q, in);
}

/* ---- what the machine says ------------------------------------------------------------------------------- */

void pp_queue_wake(const pp_queue_t *q, const int32_t *ranks, int32_t count, bool serve)
{
    const pp_node_t *node = q->handle.engine->node;
    if (!node || !(serve || pp_node_anybody_asleep(node)))
        return;
    for (int32_t i = 0; i < count; i++)
        node->wake(node->owner, ranks[i], serve);
}

/* Only a rank that computes, and whose update is held back, needs its progress thread. */
static void wake_ins(const pp_queue_t *q)
{
    pp_queue_wake(q, q->config.ins, q->config.plan.in, q->config.plan.protocol == PP_QUEUES_NOTIFY_ACK);
}

static void wake_outs(const pp_queue_t *q) { pp_queue_wake(q, q->config.outs, q->config.plan.out, false); }

static void show(pp_queue_t *q, const pp_queues_action_t *action)
{
    pp_queue_station_t *mine = pp_queue_mine(q);
    if (action->kind == PP_QUEUES_SEND) {
        PP_STEP("publish");
        atomic_store(&mine->published, action->iteration);
        wake_outs(q);
        return;
    }
    if (action->kind != PP_QUEUES_TELL_LEFT) {
        PP_STEP("announce");
        atomic_store(&mine->announced, action->iteration);
    }
    if (action->kind != PP_QUEUES_ANNOUNCE) {
        PP_STEP("leave");
        atomic_store(&mine->left, q->left);
    }
    wake_ins(q);
    wake_outs(q);                    /* an update that was jumped over is not waited for any more */
}

static void complete(pp_queue_t *q)
{
    pp_engine_t *engine = q->handle.engine;
    q->result = *pp_queues_result(q->machine);
    q->requests++;
    pp_team_wait_ends(&q->handle, false, PP_COMPLETE);
    pp_queue_wake(q, &engine->rank, 1, false);   /* another thread of it may sleep */
}

bool pp_queue_go_on(pp_queue_t *q)
{
    pp_queues_action_t action;
    bool               any = false;
    for (pp_queues_next(q->machine, &action); action.kind != PP_QUEUES_NOTHING;
         pp_queues_next(q->machine, &action), any = true) {
        if (action.kind == PP_QUEUES_ENTER)
            complete(q);
        else if (action.kind == PP_QUEUES_AVERAGE && action.count == 0)
            pp_queue_tell(q, PP_QUEUES_AVERAGED);
        else if (action.kind == PP_QUEUES_AVERAGE)
            q->due = action;
        else if (action.kind != PP_QUEUES_OMIT)  /* that is seen */
            show(q, &action);
    }
    return any;
}

/* ---- leaving ----------------------------------------------------------------------------------------------- */

void pp_queue_leave(pp_queue_t *q, uint64_t left)
{
    const bool gone = left != 0;
    if (left == q->left)
        return;
    q->left = left;
    if (gone == q->gone) {
        PP_STEP("leave");
        atomic_store(&pp_queue_mine(q)->left, left);
        return;
    }
    if (!gone)
        pp_queue_look(q);
    q->gone = gone;
    pp_queue_tell(q, gone ? PP_QUEUES_LEAVE : PP_QUEUES_BACK);
    pp_queue_go_on(q);
}

void pp_queue_drop(pp_queue_t *q)
{
    for (int32_t out = 0; out < q->config.plan.out; out++)
        tell_of(q, PP_QUEUES_UNBOUND, out, 0);
    for (int32_t in = 0; in < q->config.plan.in; in++) {
        tell_of(q, PP_QUEUES_LEFT, in, 0);
        q->seen[in].left = true;
    }
    if (q->due.kind == PP_QUEUES_NOTHING)
        pp_queue_tell(q, PP_QUEUES_WAIT);
    while (pp_handle_waits(&q->handle) && !q->handle.engine->error) {
        if (q->due.kind == PP_QUEUES_AVERAGE)
            pp_queue_tell(q, PP_QUEUES_AVERAGED);
        q->due.kind = PP_QUEUES_NOTHING;
        pp_queue_go_on(q);
    }
}

void pp_queue_go_to(pp_queue_t *q, int64_t iteration)
{
    for (int32_t out = 0; out < q->config.plan.out; out++)
        tell_of(q, PP_QUEUES_TOKEN, out, iteration);
    pp_queue_go_on(q);
}

void pp_queue_explain(pp_queue_t *q, pp_text_t *text)
{
    const int64_t due = pp_queues_due(q->machine);
    for (int32_t in = 0; in < q->config.plan.in; in++)
        if (pp_queues_awaits_update(q->machine, in))
            pp_text_add(text, "waits for the update of rank %d of iteration %lld\n", q->config.ins[in], (long long)due);
    for (int32_t out = 0; out < q->config.plan.out; out++)
        if (pp_queues_awaits_token(q->machine, out))
            pp_text_add(text, "waits for rank %d to enter iteration %lld\n", q->config.outs[out],
                        (long long)(q->config.plan.protocol == PP_QUEUES_NOTIFY_ACK ? q->iteration
                                                                                    : due - q->config.plan.max_ig));
}
