/*
 * ends.c - Flush and Free.  See queue.h.
 *
 * All ranks come; each averages the models that all have given; and none goes on before all have read them.  A rank that
 * is out comes, too, and gives none.  All go on with the newest iteration that any was in, so that nothing published
 * before counts after it.
 */
#include "queue.h"

static bool all_have(const pp_queue_t *q, bool done)
{
    const uint32_t number = q->end.over + 1;
    for (int32_t rank = 0; rank < q->handle.engine->size; rank++) {
        const pp_queue_station_t *station = &q->stations[rank];
        PP_STEP("look");
        if (atomic_load(done ? &station->done : &station->came) != number)
            return false;
    }
    return true;
}

static void wake_all(const pp_queue_t *q)
{
    for (int32_t rank = 0; rank < q->handle.engine->size; rank++)
        pp_queue_wake(q, &rank, 1, true);
}

static void come(pp_queue_t *q)
{
    pp_queue_station_t *mine = pp_queue_mine(q);
    atomic_store(&mine->iteration, pp_queues_due(q->machine));
    PP_STEP("come");
    atomic_store(&mine->call, pp_handle_flush_call(&q->handle));
    PP_STEP("come");
    atomic_store(&mine->came, q->end.over + 1);
    q->end.came = true;
    wake_all(q);
}

static void read_all(pp_queue_t *q)
{
    for (int32_t rank = 0; rank < q->handle.engine->size; rank++) {
        const int64_t iteration = atomic_load(&q->stations[rank].iteration);
        q->end.calls |= atomic_load(&q->stations[rank].call);
        q->end.newest = iteration > q->end.newest ? iteration : q->end.newest;
    }
    q->end.reads = q->models && atomic_load(&pp_queue_mine(q)->call) != 0 && !(q->end.calls & PP_IN_FREE);
    q->end.done = !q->end.reads;
}

static void finish(pp_queue_t *q)
{
    pp_team_t     *team = q->handle.team;
    const uint32_t calls = q->end.calls;
    pp_queue_go_to(q, q->end.newest);
    q->end.came = q->end.done = false;
    q->end.calls = 0;
    q->end.over++;
    team->ops->flushed(team, &q->handle, calls);
}

bool pp_queue_end(pp_queue_t *q)
{
    pp_queue_station_t *mine = pp_queue_mine(q);
    bool                any = false;
    if (!q->end.came && pp_handle_flushes(&q->handle)) {
        come(q);
        any = true;
    }
    if (q->end.came && !q->end.reads && !q->end.done && all_have(q, false)) {
        read_all(q);
        any = true;
    }
    if (q->end.done && atomic_load(&mine->done) != q->end.over + 1) {
        PP_STEP("come");
        atomic_store(&mine->done, q->end.over + 1);
        wake_all(q);
        any = true;
    }
    if (q->end.done && all_have(q, true)) {
        finish(q);
        any = true;
    }
    return any;
}

void pp_queue_explain_end(const pp_queue_t *q, pp_text_t *text)
{
    pp_listing_t listing = {.text = text, .before = "not in the call: "};
    for (int32_t rank = 0; rank < q->handle.engine->size; rank++)
        if (atomic_load(&q->stations[rank].came) != q->end.over + 1)
            pp_listing_add(&listing, rank, NULL);
    pp_listing_end(&listing, "");
}
