/* plan.c - which options go together, and how much room they need.  See queues.h. */
#include "parts.h"

#include <string.h>

static pp_status_t wrong(const char *name, int32_t value, const char *why)
{
    return pp_fail(PP_ERR_ARGUMENT, "%s=%d %s", name, value, why);
}

static bool is_in(int32_t value, int32_t least, int32_t most) { return value >= least && value <= most; }

static pp_status_t check_skip(const pp_queues_plan_t *plan, bool bounded)
{
    if (!is_in(plan->skip, 2, PP_QUEUES_MOST))
        return wrong("skip", plan->skip, "is not in 2..1000000: without skip a rank enters its next iteration");
    if (plan->most_backup == 0 && !bounded)
        return wrong("skip", plan->skip, "needs backup or staleness: without them the others wait for each iteration");
    if (plan->protocol != PP_QUEUES_TOKENS)
        return wrong("skip", plan->skip, "needs protocol=\"tokens\": by its tokens a rank sees how far it is behind");
    if (!is_in(plan->skip_trigger, 0, plan->max_ig - 1))
        return pp_fail(PP_ERR_ARGUMENT, "skip_trigger=%d is not in 0..%d: it must be below max_ig=%d",
                       plan->skip_trigger, plan->max_ig - 1, plan->max_ig);
    return PP_OK;
}

static pp_status_t check_protocol(const pp_queues_plan_t *plan, bool bounded)
{
    const char *with = plan->most_backup > 0 ? "backup" : bounded ? "staleness" : NULL;
    switch (plan->protocol) {
    case PP_QUEUES_TOKENS:
        return PP_OK;
    case PP_QUEUES_NOTIFY_ACK:
        return !with ? PP_OK : pp_fail(PP_ERR_ARGUMENT, "protocol=\"notify-ack\" does not go with %s: it keeps "
                                                        "neighbours within 2 iterations (Hop 3.4, 3.5)", with);
    case PP_QUEUES_NONE:
        return plan->most_backup == 0 ? PP_OK
            : pp_fail(PP_ERR_ARGUMENT, "protocol=\"none\" does not go with backup: nothing bounds the gap (Hop 4.3)");
    default:
        return wrong("protocol", plan->protocol, "is not a protocol");
    }
}

pp_status_t pp_queues_check(const pp_queues_plan_t *plan)
{
    const bool bounded = plan->staleness != PP_QUEUES_UNSET;
    if (!is_in(plan->max_ig, 1, PP_QUEUES_MOST))
        return wrong("max_ig", plan->max_ig, "is not in 1..1000000");
    /* One rank waits for nobody: a program runs there unchanged. */
    if (!is_in(plan->backup, 0, plan->in > 0 ? plan->in - 1 : PP_QUEUES_MOST))
        return pp_fail(PP_ERR_ARGUMENT, "backup=%d must be at least 0 and below the number of in-neighbours, %d",
                       plan->backup, plan->in);
    if (bounded && !is_in(plan->staleness, 0, PP_QUEUES_MOST))
        return wrong("staleness", plan->staleness, "is not in 0..1000000");
    if (plan->weighted && (plan->most_backup > 0 || bounded))
        return pp_fail(PP_ERR_ARGUMENT, "weights=\"topology\" does not go with %s",
                       bounded ? "staleness: Eq. 2 gives the weights" : "backup: what is averaged changes");
    PP_TRY(check_protocol(plan, bounded));
    return pp_queues_skips(plan) ? check_skip(plan, bounded) : PP_OK;
}

/* An in-neighbour that sends `lead` iterations beyond what this rank has announced, and this rank, which still averages
   what is `bound` older, or one more while it has announced a jump. */
int64_t pp_queues_ring(const pp_queues_plan_t *plan)
{
    const int64_t bound = plan->staleness == PP_QUEUES_UNSET ? 0 : plan->staleness;
    const int64_t lead = plan->protocol == PP_QUEUES_TOKENS ? plan->max_ig
        : plan->protocol == PP_QUEUES_NONE ? (bound + 1) * plan->back : 1;
    return lead + bound + 1 + pp_queues_skips(plan);
}

static size_t place(size_t *at, size_t count, size_t bytes)
{
    const size_t here = *at;
    *at += count * bytes;
    return here;
}

static size_t lay_out(pp_queues_t *q, const pp_queues_plan_t *plan)
{
    const size_t in = (size_t)plan->in, ring = (size_t)pp_queues_ring(plan);
    size_t       at = sizeof(*q);
    q->senders = place(&at, in, sizeof(pp_queues_sender_t));
    q->receivers = place(&at, (size_t)plan->out, sizeof(pp_queues_receiver_t));
    q->parts = place(&at, in, sizeof(pp_queues_part_t));
    q->weights = place(&at, plan->weighted ? in : 0, sizeof(double));
    q->entries = place(&at, in * ring, sizeof(pp_queues_entry_t));
    return at;
}

size_t pp_queues_bytes(const pp_queues_plan_t *plan) { return lay_out(&(pp_queues_t){0}, plan); }

pp_status_t pp_queues_open(pp_queues_t *queues, const pp_queues_plan_t *plan, const double *weights)
{
    PP_TRY(pp_queues_check(plan));
    memset(queues, 0, pp_queues_bytes(plan));
    lay_out(queues, plan);
    queues->plan = *plan;
    queues->ring = pp_queues_ring(plan);
    queues->bound = pp_queues_is_exact(queues) ? 0 : plan->staleness;
    queues->goal = 1;
    pp_updates_open(queues);
    if (plan->weighted)
        memcpy(pp_queues_array(queues, queues->weights), weights, (size_t)plan->in * sizeof(*weights));
    return PP_OK;
}
