/*
 * machine.c - events, and the actions that follow from the state.  See parts.h.
 *
 * No rank waits for ever.  Of all ranks that have not left let a rank have announced the lowest iteration, a.  Each
 * neighbour has announced a or more, so the rank has its tokens, and has or will get the updates or headers of all
 * iterations below a: what is jumped over gets its headers, and a jump its announcement, when it is decided.  So a rank
 * that has decided to enter a does enter it, and then also sends a; a rank that is in a gets all updates of a.
 */
#include "parts.h"

/* ---- out-neighbours ---------------------------------------------------------------------------------------- */

/* What the slowest out-neighbour has announced that has not left; NEVER: all have. */
static int64_t slowest(const pp_queues_t *q)
{
    int64_t least = PP_QUEUES_NEVER;
    for (int32_t out = 0; out < q->plan.out; out++) {
        const pp_queues_receiver_t *receiver = pp_queues_receiver(q, out);
        if (!receiver->left && receiver->announced < least)
            least = receiver->announced;
    }
    return least;
}

/* Whether an out-neighbour keeps the rank from sending its update (it has not averaged the one before), or from
   entering its goal. */
static bool holds_update(const pp_queues_t *q, int64_t announced)
{
    return q->plan.protocol == PP_QUEUES_NOTIFY_ACK && announced < q->iteration;
}

static bool holds_goal(const pp_queues_t *q, int64_t announced)
{
    return q->plan.protocol == PP_QUEUES_TOKENS && announced < q->goal - q->plan.max_ig;
}

/* ---- goals ------------------------------------------------------------------------------------------------- */

static bool skips_ahead(const pp_queues_t *q) { return q->goal > q->iteration + 1; }

/* Section 5: a rank that is far behind all its out-neighbours goes up to `skip` iterations at once, and not beyond the
   slowest of them. */
static void jump(pp_queues_t *q)
{
    const int64_t ahead = slowest(q);
    if (!pp_queues_skips(&q->plan) || q->makes_all || skips_ahead(q) || ahead == PP_QUEUES_NEVER
        || ahead - q->iteration <= q->plan.skip_trigger)
        return;
    q->goal = ahead < q->iteration + q->plan.skip ? ahead : q->iteration + q->plan.skip;
}

/* A rank that has left, or is just back, is where its slowest out-neighbour is. */
static void follow(pp_queues_t *q)
{
    const int64_t ahead = slowest(q);
    if (q->makes_all || ahead == PP_QUEUES_NEVER || q->phase == PP_QUEUES_AVERAGES)
        return;
    if (q->phase != PP_QUEUES_ENTERED) {
        q->goal = ahead > q->goal ? ahead : q->goal;
    } else if (ahead > q->iteration) {
        q->skipped += ahead - q->iteration;
        q->iteration = ahead;
        q->goal = ahead + 1;
    }
}

/* ---- actions ----------------------------------------------------------------------------------------------- */

/* The iteration that the rank is in, or has decided to enter. */
static int64_t decided(const pp_queues_t *q)
{
    return skips_ahead(q) && !pp_queues_has(q, PP_QUEUES_PLANT_LATE_TOKENS) ? q->goal : q->iteration;
}

static bool tells_presence(pp_queues_t *q, pp_queues_action_t *action)
{
    if (q->left == q->told_left)
        return false;
    q->told_left = q->left;
    if (!q->left)
        q->announced = decided(q);
    action->kind = q->left ? PP_QUEUES_TELL_LEFT : PP_QUEUES_TELL_HERE;
    action->iteration = q->left ? q->said : q->announced;
    return true;
}

static bool omits(pp_queues_t *q, pp_queues_action_t *action)
{
    const int64_t end = skips_ahead(q) ? q->goal : q->iteration;
    if (q->said >= end)
        return false;
    *action = (pp_queues_action_t){.kind = PP_QUEUES_OMIT, .iteration = q->said, .end = end};
    q->said = end;
    return true;
}

static bool sends(pp_queues_t *q, pp_queues_action_t *action)
{
    if (q->phase == PP_QUEUES_ENTERED || q->said != q->iteration || holds_update(q, slowest(q)))
        return false;
    *action = (pp_queues_action_t){.kind = PP_QUEUES_SEND, .iteration = q->said++};
    return true;
}

static bool announces(pp_queues_t *q, pp_queues_action_t *action)
{
    if (q->told_left || q->announced >= decided(q))
        return false;
    q->announced = decided(q);
    if (pp_queues_has(q, PP_QUEUES_PLANT_LOST_TOKEN) && q->announced % 5 == 0)
        return false;
    *action = (pp_queues_action_t){.kind = PP_QUEUES_ANNOUNCE, .iteration = q->announced};
    return true;
}

static bool averages(pp_queues_t *q, pp_queues_action_t *action)
{
    if (q->phase != PP_QUEUES_RECEIVES || q->said <= q->iteration || !pp_updates_are_enough(q))
        return false;
    *action = (pp_queues_action_t){.kind = PP_QUEUES_AVERAGE, .iteration = pp_queues_due(q), .own = pp_updates_list(q)};
    action->count = q->count;
    action->parts = pp_queues_parts(q);
    q->phase = PP_QUEUES_AVERAGES;
    return true;
}

static bool enters(pp_queues_t *q, pp_queues_action_t *action)
{
    if (q->phase != PP_QUEUES_ACQUIRES || holds_goal(q, slowest(q)))
        return false;
    const int64_t behind = q->plan.protocol == PP_QUEUES_NONE ? pp_updates_slowest(q) : slowest(q);
    q->result.iteration = q->goal;
    q->result.gap = behind == PP_QUEUES_NEVER ? 0 : q->goal - behind;
    q->result.dropped = q->dropped;
    q->result.skipped = q->skipped + q->goal - q->iteration - 1;
    q->dropped = q->skipped = 0;
    q->iteration = q->goal++;
    q->phase = PP_QUEUES_ENTERED;
    *action = (pp_queues_action_t){.kind = PP_QUEUES_ENTER, .iteration = q->iteration};
    return true;
}

void pp_queues_make_all(pp_queues_t *q, bool makes_all) { q->makes_all = makes_all; }

void pp_queues_next(pp_queues_t *q, pp_queues_action_t *action)
{
    *action = (pp_queues_action_t){.kind = PP_QUEUES_NOTHING};
    if (q->left && tells_presence(q, action))
        return;
    if (q->told_left)
        follow(q);
    else if (q->phase == PP_QUEUES_RECEIVES)
        jump(q);
    (void)(omits(q, action) || tells_presence(q, action) || sends(q, action) || announces(q, action)
           || averages(q, action) || enters(q, action));
}

/* ---- events ------------------------------------------------------------------------------------------------ */

static pp_status_t move_on(pp_queues_t *q, pp_queues_phase_t from, pp_queues_phase_t to)
{
    if (q->phase != (int32_t)from)
        return pp_fail(PP_ERR_STATE, "a rank in phase %d cannot get from %d to %d", q->phase, from, to);
    if (to == PP_QUEUES_ACQUIRES)
        pp_updates_use(q);
    q->phase = to;
    return PP_OK;
}

static pp_status_t own_event(pp_queues_t *q, int32_t event)
{
    const bool waits = q->phase > PP_QUEUES_STARTED;
    switch (event) {
    case PP_QUEUES_START:    return move_on(q, PP_QUEUES_ENTERED, PP_QUEUES_STARTED);
    case PP_QUEUES_WAIT:     return waits ? PP_OK : move_on(q, PP_QUEUES_STARTED, PP_QUEUES_RECEIVES);
    case PP_QUEUES_AVERAGED: return move_on(q, PP_QUEUES_AVERAGES, PP_QUEUES_ACQUIRES);
    default:                 q->left = event == PP_QUEUES_LEAVE; return PP_OK;
    }
}

static pp_status_t in_event(pp_queues_t *q, int32_t event, int32_t in, int64_t iteration)
{
    switch (event) {
    case PP_QUEUES_UPDATE: pp_updates_hear(q, in, iteration, PP_QUEUES_THERE); return PP_OK;
    case PP_QUEUES_HEADER: pp_updates_hear(q, in, iteration, PP_QUEUES_OMITTED); return PP_OK;
    case PP_QUEUES_GONE:
        if (q->phase != PP_QUEUES_RECEIVES)      /* no other one was gone before */
            PP_TRY(move_on(q, PP_QUEUES_AVERAGES, PP_QUEUES_RECEIVES));
        pp_updates_lose(q, in, iteration);
        return PP_OK;
    default:
        pp_queues_sender(q, in)->from = event == PP_QUEUES_LEFT ? iteration : PP_QUEUES_NEVER;
        if (event == PP_QUEUES_LEFT && q->plan.protocol == PP_QUEUES_NONE)
            q->announced = -1;       /* is announced again, to ranks that have left */
        return PP_OK;
    }
}

static pp_status_t out_event(pp_queues_t *q, int32_t event, int32_t out, int64_t iteration)
{
    pp_queues_receiver_t *receiver = pp_queues_receiver(q, out);
    receiver->left = event == PP_QUEUES_UNBOUND;
    if (!receiver->left && iteration > receiver->announced)
        receiver->announced = iteration;
    return PP_OK;
}

pp_status_t pp_queues_event(pp_queues_t *queues, int32_t event, int32_t neighbour, int64_t iteration)
{
    if (event < PP_QUEUES_START || event > PP_QUEUES_UNBOUND)
        return pp_fail(PP_ERR_ARGUMENT, "event %d is not known", event);
    if (event <= PP_QUEUES_BACK)
        return own_event(queues, event);
    const bool is_out = event >= PP_QUEUES_TOKEN;
    if (neighbour < 0 || neighbour >= (is_out ? queues->plan.out : queues->plan.in) || iteration < 0)
        return pp_fail(PP_ERR_ARGUMENT, "neighbour %d, iteration %lld", neighbour, (long long)iteration);
    return is_out ? out_event(queues, event, neighbour, iteration) : in_event(queues, event, neighbour, iteration);
}

/* ---- questions --------------------------------------------------------------------------------------------- */

const pp_queues_result_t *pp_queues_result(const pp_queues_t *queues) { return &queues->result; }

/* A rank that has announced a jump may still average the iteration before. */
bool pp_queues_wants(const pp_queues_t *queues, int32_t out)
{
    const pp_queues_receiver_t *receiver = pp_queues_receiver(queues, out);
    return !receiver->left && receiver->announced < queues->said + queues->bound + pp_queues_skips(&queues->plan);
}

bool pp_queues_tells(const pp_queues_t *queues, int32_t in)
{
    return queues->plan.protocol != PP_QUEUES_NONE || pp_queues_sender(queues, in)->from != PP_QUEUES_NEVER;
}

bool pp_queues_awaits_token(const pp_queues_t *queues, int32_t out)
{
    const pp_queues_receiver_t *receiver = pp_queues_receiver(queues, out);
    const bool unsent = queues->phase == PP_QUEUES_RECEIVES && queues->said == queues->iteration;
    return !receiver->left && (unsent ? holds_update(queues, receiver->announced)
                                      : queues->phase == PP_QUEUES_ACQUIRES && holds_goal(queues, receiver->announced));
}
