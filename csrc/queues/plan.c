/* plan.c - which options there are, and how much room they need.  See queues.h. */
#include "parts.h"

#include <string.h>

static pp_status_t check(const char *name, int32_t value, int32_t least, int32_t most)
{
    return value >= least && value <= most ? PP_OK
        : pp_fail(PP_ERR_ARGUMENT, "%s=%d is not in %d..%d", name, value, least, most);
}

pp_status_t pp_queues_check(const pp_queues_plan_t *plan)
{
    PP_TRY(check("protocol", plan->protocol, 0, PP_QUEUES_PROTOCOL_COUNT - 1));
    PP_TRY(check("max_ig", plan->max_ig, 1, PP_QUEUES_MOST));
    /* One rank waits for nobody: a program runs there unchanged. */
    PP_TRY(check("backup", plan->backup, 0, plan->in > 0 ? plan->in - 1 : PP_QUEUES_MOST));
    if (plan->staleness != PP_QUEUES_UNSET)
        PP_TRY(check("staleness", plan->staleness, 0, PP_QUEUES_MOST));
    return pp_queues_skips(plan) ? check("skip", plan->skip, 2, PP_QUEUES_MOST) : PP_OK;
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
