/* driver.c - what the machine is told, and what it says.  See queue.h. */
#include "queue.h"

int32_t pp_queue_find(const int32_t *ranks, int32_t count, int32_t rank)
{
    for (int32_t i = 0; i < count; i++)
        if (ranks[i] == rank)
            return i;
    return -1;
}

void pp_queue_tell_of(pp_queue_t *q, int32_t event, int32_t neighbour, int64_t iteration)
{
    if (pp_queues_event(q->machine, event, neighbour, iteration) < 0)
        pp_engine_fail(q->handle.engine, PP_ERR_INTERNAL, "%s", pp_error_text());
}

void pp_queue_tell(pp_queue_t *q, int32_t event) { pp_queue_tell_of(q, event, 0, 0); }

bool pp_queue_has_left(const pp_queue_t *q, uint64_t left)
{
    return left == PP_QUEUE_LEFT || left > pp_engine_calls_known(q->handle.engine);
}

static void complete(pp_queue_t *q)
{
    const pp_node_t *node = q->handle.engine->node;
    q->result = *pp_queues_result(q->machine);
    q->requests++;
    pp_team_wait_ends(&q->handle, false, PP_COMPLETE);
    if (node && pp_node_anybody_asleep(node))    /* another thread of this rank may sleep */
        node->wake(node->owner, node->index, false);
}

/* A rank that left out iterations here, but makes all of another handle's, would be ahead of its neighbours here and
   behind them there: they would wait for each other in a circle.  A Flush brings all to one iteration. */
bool pp_queue_go_on(pp_queue_t *q)
{
    pp_queues_action_t action;
    bool               any = false;
    pp_queues_make_all(q->machine, pp_handle_is_tied(&q->handle) && !q->end.done);
    for (pp_queues_next(q->machine, &action); action.kind != PP_QUEUES_NOTHING;
         pp_queues_next(q->machine, &action), any = true) {
        if (action.kind == PP_QUEUES_ENTER)
            complete(q);
        else if (action.kind == PP_QUEUES_AVERAGE && action.count == 0)
            pp_queue_tell(q, PP_QUEUES_AVERAGED);
        else if (action.kind == PP_QUEUES_AVERAGE)
            q->due = action;
        else
            q->way->show(q, &action);
    }
    return any;
}

/* ---- leaving ----------------------------------------------------------------------------------------------- */

void pp_queue_leave(pp_queue_t *q, uint64_t left)
{
    const bool gone = left != 0;
    if (left == q->left)
        return;
    if (!gone)
        q->way->look(q);
    q->left = left;
    if (gone == q->gone) {
        q->way->show_left(q);
        return;
    }
    q->gone = gone;
    pp_queue_tell(q, gone ? PP_QUEUES_LEAVE : PP_QUEUES_BACK);
    pp_queue_go_on(q);
}

void pp_queue_drop(pp_queue_t *q)
{
    const int32_t ins = q->config.plan.in, outs = q->config.plan.out;
    for (int32_t i = 0; i < ins + outs; i++) {
        pp_queue_tell_of(q, i < ins ? PP_QUEUES_LEFT : PP_QUEUES_UNBOUND, i < ins ? i : i - ins, 0);
        q->seen[i].left = true;
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

void pp_queue_finish(pp_queue_t *q)
{
    pp_team_t     *team = q->handle.team;
    const uint32_t calls = q->end.calls;
    const int64_t  bound = q->config.plan.staleness;
    /* Beyond what was sent before: that is too old from here on. */
    const int64_t  next = q->end.newest + (bound == PP_QUEUES_UNSET ? 0 : bound);
    for (int32_t out = 0; out < q->config.plan.out; out++)
        pp_queue_tell_of(q, PP_QUEUES_TOKEN, out, next);
    pp_queue_go_on(q);
    for (int32_t out = 0; out < q->config.plan.out; out++)
        q->seen[q->config.plan.in + out].left = false;
    q->way->look(q);                 /* one may be in its next call */
    q->end.came = q->end.done = false;
    q->end.calls = 0;
    q->end.over++;
    team->ops->flushed(team, &q->handle, calls);
}

/* ---- what all ways answer the engine ----------------------------------------------------------------------- */

static bool averages(const pp_queue_t *q) { return q->due.kind == PP_QUEUES_AVERAGE && q->collecting > 0; }

bool pp_queue_has_work(const pp_handle_t *handle)
{
    const pp_queue_t *q = pp_queue_of(handle);
    return q->workers == 0 && (averages(q) || q->end.reads);
}

void pp_queue_begin_work(pp_handle_t *handle, bool *lands)
{
    *lands = false;
    pp_queue_of(handle)->workers++;
}

bool pp_queue_work(pp_handle_t *handle, bool lands, uint64_t *job)
{
    const pp_queue_t *q = pp_queue_of(handle);
    (void)lands;
    if (q->end.reads)
        q->way->average_all(q);
    else
        *job = (uint64_t)(pp_queue_average(q) + 1);
    return true;
}

void pp_queue_worked(pp_handle_t *handle, uint64_t job, bool last)
{
    pp_queue_t *q = pp_queue_of(handle);
    (void)last;
    q->workers--;
    q->handle.engine->changed = true;
    if (q->end.reads) {
        q->end.reads = false;
        q->end.done = true;
        q->way->end(q);
        return;
    }
    q->due.kind = PP_QUEUES_NOTHING;
    if (job == 0) {
        q->averaged = true;
        pp_queue_tell(q, PP_QUEUES_AVERAGED);
    } else {
        const pp_queues_part_t *part = &q->due.parts[job - 1];
        pp_queue_tell_of(q, PP_QUEUES_GONE, part->neighbour, part->iteration);
    }
    q->way->look(q);
    pp_queue_go_on(q);
}

/* Which neighbours the request waits for. */
static void explain_request(const pp_queue_t *q, pp_text_t *text)
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

void pp_queue_explain(pp_handle_t *handle, pp_text_t *text)
{
    const pp_queue_t *q = pp_queue_of(handle);
    if (handle->leaving != PP_STAYS)
        q->way->explain_end(q, text);
    else if (pp_handle_waits(handle))
        explain_request(q, text);
}
