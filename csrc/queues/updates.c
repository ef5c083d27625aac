/*
 * updates.c - what has come from in-neighbours, and what of it is averaged.  See parts.h.
 *
 * Without a staleness bound the updates of the iteration that is due are averaged.  With one it is the newest update of
 * each in-neighbour, once, if it is at most `bound` older.  (Hop 4.3, 4.4, 6.2)
 */
#include "parts.h"

static pp_queues_entry_t *entry_of(const pp_queues_t *q, int32_t in, int64_t iteration)
{
    return (pp_queues_entry_t *)pp_queues_array(q, q->entries) + (int64_t)in * q->ring + iteration % q->ring;
}

static int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

void pp_updates_open(pp_queues_t *q)
{
    for (int32_t in = 0; in < q->plan.in; in++) {
        *pp_queues_sender(q, in) = (pp_queues_sender_t){.update = -1, .header = -1, .averaged = -1,
                                                        .from = PP_QUEUES_NEVER};
        for (int64_t i = 0; i < q->ring; i++)
            entry_of(q, in, i)->iteration = -1;
    }
}

int64_t pp_queues_due(const pp_queues_t *queues)
{
    return queues->phase == PP_QUEUES_ACQUIRES ? queues->goal : queues->goal - 1;
}

int64_t pp_queues_oldest(const pp_queues_t *queues) { return max(pp_queues_due(queues) - queues->bound, 0); }

/* What is older than the goal needs was not averaged in time (6.2a). */
void pp_updates_hear(pp_queues_t *q, int32_t in, int64_t iteration, pp_queues_heard_t heard)
{
    pp_queues_sender_t *sender = pp_queues_sender(q, in);
    pp_queues_entry_t  *entry = entry_of(q, in, iteration);
    const bool          is_update = heard == PP_QUEUES_THERE;
    if (entry->iteration == iteration)
        return;
    if (iteration < pp_queues_oldest(q) || iteration <= sender->averaged || iteration < entry->iteration) {
        q->dropped += is_update && iteration != sender->averaged;
        return;
    }
    q->dropped += entry->heard == PP_QUEUES_THERE;
    *entry = (pp_queues_entry_t){.iteration = iteration, .heard = heard};
    int64_t *newest = is_update ? &sender->update : &sender->header;
    *newest = max(*newest, iteration);
}

void pp_updates_lose(pp_queues_t *q, int32_t in, int64_t iteration)
{
    pp_queues_sender_t *sender = pp_queues_sender(q, in);
    pp_queues_entry_t  *entry = entry_of(q, in, iteration);
    if (entry->iteration == iteration)
        entry->heard = PP_QUEUES_OMITTED;
    sender->header = max(sender->header, iteration);
    if (sender->update == iteration)     /* none that came later */
        sender->update = sender->averaged;
    q->dropped++;
}

/* What has become of an iteration; what is no longer in the ring counts as omitted. */
static pp_queues_heard_t heard(const pp_queues_t *q, int32_t in, int64_t iteration)
{
    const pp_queues_entry_t *entry = entry_of(q, in, iteration);
    if (entry->iteration == iteration)
        return entry->heard;
    return entry->iteration > iteration || iteration >= pp_queues_sender(q, in)->from ? PP_QUEUES_OMITTED
                                                                                      : PP_QUEUES_UNKNOWN;
}

/* The update of an in-neighbour to average, or -1. */
static int64_t fresh(const pp_queues_t *q, int32_t in)
{
    const pp_queues_sender_t *sender = pp_queues_sender(q, in);
    const int64_t             newest = pp_queues_is_exact(q) ? pp_queues_due(q) : sender->update;
    const bool                is_new = newest >= 0 && heard(q, in, newest) == PP_QUEUES_THERE;      /* and not USED */
    const bool                again = pp_queues_has(q, PP_QUEUES_PLANT_TWICE) && !pp_queues_is_exact(q);
    return (is_new || again) && newest >= pp_queues_oldest(q) ? newest : -1;
}

/* With a staleness bound an update that was averaged before still counts. */
static bool has_received(const pp_queues_t *q, int32_t in)
{
    const bool still = pp_queues_sender(q, in)->averaged >= pp_queues_oldest(q);
    return fresh(q, in) >= 0 || (still && !pp_queues_has(q, PP_QUEUES_PLANT_FRESH_ONLY));
}

static bool has_omitted(const pp_queues_t *q, int32_t in)
{
    const pp_queues_sender_t *sender = pp_queues_sender(q, in);
    const bool                within = sender->header >= pp_queues_oldest(q);
    return pp_queues_is_exact(q) ? heard(q, in, pp_queues_due(q)) == PP_QUEUES_OMITTED
                                 : within || sender->from != PP_QUEUES_NEVER;
}

bool pp_updates_are_enough(const pp_queues_t *q)
{
    int32_t received = 0, omitted = 0;
    for (int32_t in = 0; in < q->plan.in; in++)
        if (has_received(q, in))
            received++;
        else
            omitted += has_omitted(q, in);
    return received >= q->plan.in - q->plan.backup || received + omitted == q->plan.in;
}

/* The weight of a model before all are divided by their sum: the topology's, Eq. 2, or 1. */
static double share(const pp_queues_t *q, int32_t in, int64_t iteration)
{
    const int64_t linear = iteration - (pp_queues_due(q) - q->bound) + 1;
    if (q->plan.weighted)
        return ((const double *)pp_queues_array(q, q->weights))[in];
    return pp_queues_is_exact(q) ? 1 : (double)max(linear, 0);
}

double pp_updates_list(pp_queues_t *q)
{
    double sum = 0;
    q->count = 0;
    q->result.staleness = 0;
    for (int32_t in = 0; in < q->plan.in; in++) {
        const int64_t iteration = fresh(q, in);
        if (iteration < 0)
            continue;
        pp_queues_part_t *part = &pp_queues_parts(q)[q->count++];
        *part = (pp_queues_part_t){.iteration = iteration, .neighbour = in, .weight = share(q, in, iteration)};
        sum += part->weight;
        q->result.staleness = max(q->result.staleness, pp_queues_due(q) - iteration);
    }
    q->result.received = q->count;
    const double own = q->plan.weighted ? 1 - sum : q->count ? share(q, 0, q->iteration) : 1;
    for (int32_t i = 0; i < q->count; i++)
        pp_queues_parts(q)[i].weight /= own + sum;
    return own / (own + sum);
}

static void drop_old(pp_queues_t *q, int32_t in)
{
    const int64_t oldest = max(q->goal - q->bound, pp_queues_sender(q, in)->averaged);
    for (int64_t i = 0; i < q->ring; i++) {
        pp_queues_entry_t *entry = entry_of(q, in, i);
        const bool is_old = entry->heard == PP_QUEUES_THERE && entry->iteration < oldest;
        entry->heard = is_old ? PP_QUEUES_OMITTED : entry->heard;
        q->dropped += is_old;
    }
}

void pp_updates_use(pp_queues_t *q)
{
    for (int32_t i = 0; i < q->count; i++) {
        const pp_queues_part_t *part = &pp_queues_parts(q)[i];
        pp_queues_entry_t      *entry = entry_of(q, part->neighbour, part->iteration);
        pp_queues_sender(q, part->neighbour)->averaged = part->iteration;
        if (entry->iteration == part->iteration)
            entry->heard = PP_QUEUES_USED;
    }
    for (int32_t in = 0; in < q->plan.in; in++)
        drop_old(q, in);
}

int64_t pp_updates_slowest(const pp_queues_t *q)
{
    int64_t slowest = PP_QUEUES_NEVER;
    for (int32_t in = 0; in < q->plan.in; in++) {
        const pp_queues_sender_t *sender = pp_queues_sender(q, in);
        const int64_t             newest = max(max(sender->update, sender->header), 0);
        if (sender->from == PP_QUEUES_NEVER && newest < slowest)
            slowest = newest;
    }
    return slowest;
}

bool pp_queues_awaits_update(const pp_queues_t *queues, int32_t in)
{
    return queues->phase == PP_QUEUES_RECEIVES && !has_received(queues, in) && !has_omitted(queues, in);
}

int32_t pp_queues_size(const pp_queues_t *queues, int64_t iteration, int32_t in)
{
    int32_t count = 0;
    for (int32_t sender = 0; sender < queues->plan.in; sender++)
        for (int64_t i = 0; i < queues->ring && (in < 0 || in == sender); i++) {
            const pp_queues_entry_t *entry = entry_of(queues, sender, i);
            count += entry->heard == PP_QUEUES_THERE && (iteration < 0 || entry->iteration == iteration)
                && entry->iteration >= pp_queues_oldest(queues);
        }
    return count;
}
