/* actor.c - see actor.h. */
#define _GNU_SOURCE
#include "actor.h"

#include "../api.h"
#include "../progress/live.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK_BYTES = 256 << 10, CERTAIN = 1000, WAKE_NS = 50, PAUSE_NS = 1000 };

typedef enum task_kind { CALL, MESSAGE, BULK_DONE, ALARM, LOOK, ELSEWHERE } task_kind_t;

typedef struct task {
    struct task  *next;
    task_kind_t   kind;
    pp_sim_call_t call;
    int32_t       peer;
    bool          waits;         /* ELSEWHERE */
    void         *cookie;
    size_t        bytes;
    _Alignas(16) unsigned char message[];
} task_t;

struct pp_actor {
    pp_stage_t *stage;
    int32_t     rank;
    pp_ctx_t   *ctx;
    pp_sink_t   sink;            /* the engine's */
    task_t     *tasks, **tasks_end;
    void       *stack;           /* NULL: it has not run yet */
    ucontext_t  here, back;
    bool        running;         /* a task has begun and not ended */
    bool        asleep;          /* says that it sleeps: to be woken */
    bool        parked;          /* ... and does */
    bool        woken;
    uint64_t    resume_ns;       /* interrupted until then */
    uint64_t    expires_ns;      /* the call in progress waits no longer; 0: it does */
    bool        done;
    pp_status_t status;          /* of the call that has ended */
    char        text[PP_ERROR_TEXT];
};

struct pp_stage {
    pp_simnet_t  *net;
    int32_t       ranks;
    pp_actor_t   *actors;
    int32_t       node_ranks;    /* ranks of a node; one node may have fewer */
    int32_t       layout;        /* pp_layout_t */
    int32_t      *lowest;        /* by rank: the lowest rank of its node */
    pp_commons_t **commons;      /* by the lowest rank of a node */
    pp_nodes_t  **nodes;         /* by rank; NULL: there is one node */
    pp_pace_t     pace;
    uint64_t      seed, draws, interruptions;
    uint64_t      ran_dead;      /* entries into stacks of dead ranks */
};

static _Thread_local pp_actor_t *current;

static uint64_t draw(pp_stage_t *stage, uint64_t below)
{
    return pp_mix(stage->seed, stage->draws++) % (below ? below : 1);
}

/* ---- stacks ----------------------------------------------------------------------------------------- */

static void leave_stack(pp_actor_t *actor)
{
    current = NULL;
    swapcontext(&actor->here, &actor->back);
    current = actor;
}

static void enter_stack(pp_actor_t *actor)
{
    pp_actor_t *before = current;
    actor->stage->ran_dead += pp_simnet_dead(actor->stage->net, actor->rank);
    current = actor;
    swapcontext(&actor->back, &actor->here);
    current = before;
}

/* Interrupts the rank: it goes on after a time. */
static void interrupt(pp_actor_t *actor, uint64_t ns)
{
    pp_stage_t *stage = actor->stage;
    actor->resume_ns = pp_simnet_now_ns(stage->net) + ns;
    stage->interruptions++;
    if (pp_simnet_rouse(stage->net, actor->rank, actor->resume_ns) < 0)
        pp_engine_fail(&actor->ctx->engine, PP_ERR_MEMORY, "no memory for an event");
    else
        leave_stack(actor);
}

static void step_interrupts(const char *step)
{
    (void)step;
    pp_actor_t *actor = current;
    if (actor && draw(actor->stage, CERTAIN) < actor->stage->pace.per_mille)
        interrupt(actor, draw(actor->stage, actor->stage->pace.longest_ns + 1));
}

/* ---- tasks ------------------------------------------------------------------------------------------- */

static task_t *queue(pp_actor_t *actor, task_kind_t kind, size_t bytes)
{
    task_t *task = calloc(1, sizeof *task + bytes);
    if (!task) {
        pp_engine_fail(&actor->ctx->engine, PP_ERR_MEMORY, "no memory for a task");
        return NULL;
    }
    task->kind = kind;
    task->bytes = bytes;
    *actor->tasks_end = task;
    actor->tasks_end = &task->next;
    return task;
}

static task_t *pop(pp_actor_t *actor, bool only_told)
{
    task_t *task = actor->tasks;
    if (!task || (only_told && task->kind == CALL))
        return NULL;
    actor->tasks = task->next;
    if (!actor->tasks)
        actor->tasks_end = &actor->tasks;
    return task;
}

pp_status_t pp_sim_aside(pp_ctx_t *ctx, int32_t delta)
{
    PP_TRY(pp_enter(ctx));
    pp_live_tell(ctx, ctx->team.asides + (uint32_t)delta, ctx->team.waits_in_others);
    pp_unlock(ctx);
    return PP_OK;
}

static pp_status_t run_call(pp_actor_t *actor, const pp_sim_call_t *call)
{
    if (call->timeout_ns > 0) {
        actor->expires_ns = pp_simnet_now_ns(actor->stage->net) + call->timeout_ns;
        PP_TRY(pp_simnet_rouse(actor->stage->net, actor->rank, actor->expires_ns));
    }
    const intptr_t *with = call->arguments;
    pp_status_t status = call->function(with[0], with[1], with[2], with[3], with[4], with[5]);
    actor->expires_ns = 0;
    return status == PP_OK && call->then ? run_call(actor, call->then) : status;
}

/* Does the work of a progress thread, for which other nodes may wait.  Without the lock, like all that an engine is
   told here. */
static void work_for_others(pp_ctx_t *ctx)
{
    uint64_t round;
    for (pp_handle_t *handle; (handle = pp_find_work(ctx));) {
        bool lands = false;
        handle->ops->begin_work(handle, &lands);
        bool last = handle->ops->work(handle, lands, &round);
        handle->ops->worked(handle, round, last);
        pp_engine_settle(&ctx->engine);
    }
}

/* What pp_live_waits_long() does to another context. */
static void hear_elsewhere(pp_ctx_t *ctx, bool waits)
{
    if (ctx->freed || ctx->engine.error)
        return;
    ctx->team.waits_in_others = waits;
    ctx->engine.changed = true;
    pp_engine_settle(&ctx->engine);
}

/* What pp_leave() does: the progress thread does the rest. */
static void leave(pp_actor_t *actor)
{
    if (pp_is_needed(actor->ctx))
        queue(actor, LOOK, 0);
}

static void run_task(pp_actor_t *actor, const task_t *task)
{
    const pp_sink_t *sink = &actor->sink;
    switch (task->kind) {
    case CALL: {
        pp_status_t status = run_call(actor, &task->call);
        snprintf(actor->text, sizeof actor->text, "%s", status < 0 ? pp_error_text() : "");
        actor->status = status;
        actor->done = true;
        leave(actor);
        break;
    }
    case MESSAGE:   sink->message(sink->engine, task->peer, task->message, task->bytes); break;
    case BULK_DONE: sink->bulk_done(sink->engine, task->cookie); break;
    case ALARM:     sink->alarm(sink->engine); break;
    case LOOK:      pp_look(actor->ctx); work_for_others(actor->ctx); break;
    case ELSEWHERE: hear_elsewhere(actor->ctx, task->waits); break;
    }
    if (actor->ctx->engine.nodes)
        work_for_others(actor->ctx);
}

static void run_all(pp_actor_t *actor, bool only_told)
{
    for (task_t *task; (task = pop(actor, only_told));) {
        run_task(actor, task);
        free(task);
    }
}

/* The body of every stack. */
static void act(unsigned low, unsigned high)
{
    pp_actor_t *actor = (pp_actor_t *)((uintptr_t)high << 32 | low);
    for (;;) {
        run_all(actor, false);
        actor->running = false;
        leave_stack(actor);
    }
}

static pp_status_t make_stack(pp_actor_t *actor)
{
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
    if (stack == MAP_FAILED)
        return pp_fail(PP_ERR_MEMORY, "no memory for the stack of a rank");
    actor->stack = stack;
    getcontext(&actor->here);
    actor->here.uc_stack.ss_sp = stack;
    actor->here.uc_stack.ss_size = STACK_BYTES;
    actor->here.uc_link = NULL;
    uintptr_t at = (uintptr_t)actor;
    makecontext(&actor->here, (void (*)(void))act, 2, (unsigned)at, (unsigned)(at >> 32));
    return PP_OK;
}

/* Runs the queued tasks, up to the first interruption. */
static void begin_tasks(pp_actor_t *actor)
{
    if (actor->running || !actor->tasks || pp_simnet_dead(actor->stage->net, actor->rank))
        return;
    if (!actor->stack && make_stack(actor) < 0) {
        pp_engine_fail(&actor->ctx->engine, PP_ERR_MEMORY, "%s", pp_error_text());
        return;
    }
    actor->running = true;
    enter_stack(actor);
}

/* Wakes a rank that sleeps; one that does not sleep looks before it does. */
static void rouse(pp_actor_t *actor)
{
    pp_stage_t *stage = actor->stage;
    if (!actor->asleep || actor->woken)
        return;
    actor->woken = true;
    actor->resume_ns = pp_simnet_now_ns(stage->net) + draw(stage, WAKE_NS);
    if (pp_simnet_rouse(stage->net, actor->rank, actor->resume_ns) < 0)
        pp_engine_fail(&actor->ctx->engine, PP_ERR_MEMORY, "no memory for an event");
}

/* The rank was told something.  If it runs, it deals with that at the end of its task; if it sleeps, it is woken. */
static void told(pp_actor_t *actor)
{
    if (actor->running)
        rouse(actor);
    else
        begin_tasks(actor);
}

static bool has_expired(void *owner)
{
    const pp_actor_t *actor = owner;
    return actor->expires_ns > 0 && pp_simnet_now_ns(actor->stage->net) >= actor->expires_ns;
}

void pp_stage_go_on(pp_stage_t *stage, int32_t rank)
{
    pp_actor_t *actor = &stage->actors[rank];
    if (pp_simnet_dead(stage->net, rank))
        return;
    actor->woken |= actor->parked && has_expired(actor);
    bool may = actor->running && pp_simnet_now_ns(stage->net) >= actor->resume_ns
            && (!actor->parked || actor->woken);
    if (may)
        enter_stack(actor);
}

/* ---- what a rank asks for ------------------------------------------------------------------------------- */

static void announce_sleep(void *owner, bool sleeps)
{
    pp_actor_t *actor = owner;
    actor->asleep = sleeps;
    actor->woken = false;
}

/* Sleeps until it is woken, and then deals with what it was told. */
static void park(void *owner)
{
    pp_actor_t *actor = owner;
    if (!actor->tasks && !actor->woken) {
        actor->parked = true;
        leave_stack(actor);
        actor->parked = false;
    }
    run_all(actor, true);
}

/* Time must go on, however short interruptions are, because the rank may wait for a later time. */
static void pause_actor(void *owner)
{
    pp_actor_t *actor = owner;
    uint64_t longest = actor->stage->pace.longest_ns;
    interrupt(actor, 1 + draw(actor->stage, longest > PAUSE_NS ? longest : PAUSE_NS));
    run_all(actor, true);
}

/* The rank with this index on this rank's node. */
static pp_actor_t *mate(pp_actor_t *self, int32_t index)
{
    const pp_nodes_t *nodes = self->ctx->nodes;
    return &self->stage->actors[nodes ? pp_nodes_rank(nodes, nodes->mine, index) : index];
}

static void wake(void *owner, int32_t index, bool serve)
{
    pp_actor_t *self = owner;
    pp_actor_t *actor = mate(self, index);
    if (serve && queue(actor, LOOK, 0))
        told(actor);
    else
        rouse(actor);
}

static bool sleeps(void *owner, int32_t index)
{
    const pp_actor_t *actor = mate(owner, index);
    return !actor->running || actor->asleep;
}

/* ---- what a rank is told --------------------------------------------------------------------------------- */

static void on_message(void *owner, int32_t peer, const void *bytes, size_t count)
{
    pp_actor_t *actor = owner;
    task_t *task = queue(actor, MESSAGE, count);
    if (!task)
        return;
    task->peer = peer;
    memcpy(task->message, bytes, count);
    told(actor);
}

static void on_bulk_done(void *owner, void *cookie)
{
    pp_actor_t *actor = owner;
    task_t *task = queue(actor, BULK_DONE, 0);
    if (!task)
        return;
    task->cookie = cookie;
    told(actor);
}

static void on_alarm(void *owner)
{
    pp_actor_t *actor = owner;
    if (queue(actor, ALARM, 0))
        told(actor);
}

void pp_stage_tell_elsewhere(pp_stage_t *stage, int32_t rank, bool waits)
{
    pp_actor_t *actor = &stage->actors[rank];
    task_t *task = queue(actor, ELSEWHERE, 0);
    if (!task)
        return;
    task->waits = waits;
    told(actor);
}

static void on_failed(void *owner, pp_status_t status, int32_t peer, const char *text)
{
    pp_actor_t *actor = owner;
    actor->sink.failed(actor->sink.engine, status, peer, text);
    rouse(actor);
}

/* ---- calls -------------------------------------------------------------------------------------------------- */

pp_status_t pp_stage_do(pp_stage_t *stage, int32_t rank, const pp_sim_call_t *call)
{
    pp_actor_t *actor = &stage->actors[rank];
    task_t *task = queue(actor, CALL, 0);
    if (!task)
        return pp_fail(PP_ERR_MEMORY, "no memory for a task");
    task->call = *call;
    actor->done = false;
    begin_tasks(actor);
    pp_status_t status;
    return pp_stage_done(stage, rank, &status) ? PP_OK : PP_PENDING;
}

bool pp_stage_done(const pp_stage_t *stage, int32_t rank, pp_status_t *status)
{
    const pp_actor_t *actor = &stage->actors[rank];
    *status = actor->status;
    if (actor->done && actor->status < 0)
        pp_fail(actor->status, "%s", actor->text);
    return actor->done;
}

uint64_t pp_stage_interruptions(const pp_stage_t *stage) { return stage->interruptions; }
uint64_t pp_stage_ran_dead(const pp_stage_t *stage) { return stage->ran_dead; }

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

static void open_actor(pp_stage_t *stage, int32_t rank, pp_ctx_t *ctx)
{
    pp_actor_t *actor = &stage->actors[rank];
    *actor = (pp_actor_t){.stage = stage, .rank = rank, .ctx = ctx};
    actor->tasks_end = &actor->tasks;
    int32_t index = 0, size = 0;
    for (int32_t other = 0; other < stage->ranks; other++) {
        index += other < rank && stage->lowest[other] == stage->lowest[rank];
        size += stage->lowest[other] == stage->lowest[rank];
    }
    pp_node_open_simulated(&ctx->node, stage->commons[stage->lowest[rank]], index, size,
                           stage->pace.magnify ? stage->pace.magnify : 1, stage->pace.room);
    ctx->nodes = stage->nodes ? stage->nodes[rank] : NULL;
    ctx->node.wake = wake;
    ctx->node.sleeps = sleeps;
    ctx->node.owner = actor;
    ctx->actor = (pp_actor_ops_t){.owner = actor, .announce = announce_sleep, .park = park,
                                  .pause = pause_actor, .expired = has_expired};
}

static int32_t count_nodes(const pp_stage_t *stage)
{
    return (stage->ranks + stage->node_ranks - 1) / stage->node_ranks;
}

static int32_t node_of(const pp_stage_t *stage, int32_t rank)
{
    switch ((pp_layout_t)stage->layout) {
    case PP_LAYOUT_FROM_END: return (stage->ranks - 1) / stage->node_ranks
                                  - (stage->ranks - 1 - rank) / stage->node_ranks;
    case PP_LAYOUT_IN_TURN:  return rank % count_nodes(stage);
    default:                 return rank / stage->node_ranks;
    }
}

static bool find_lowest(pp_stage_t *stage)
{
    stage->lowest = calloc((size_t)stage->ranks, sizeof *stage->lowest);
    for (int32_t rank = 0; stage->lowest && rank < stage->ranks; rank++) {
        int32_t lowest = 0;
        while (node_of(stage, lowest) != node_of(stage, rank))
            lowest++;
        stage->lowest[rank] = lowest;
    }
    return stage->lowest;
}

static bool make_nodes(pp_stage_t *stage)
{
    stage->nodes = calloc((size_t)stage->ranks, sizeof(pp_nodes_t *));
    bool made = stage->nodes;
    for (int32_t rank = 0; made && rank < stage->ranks; rank++)
        made = (stage->nodes[rank] = pp_nodes_new(stage->lowest, stage->ranks, rank));
    return made;
}

static bool make_commons(pp_stage_t *stage)
{
    size_t bytes = pp_commons_bytes(stage->node_ranks);
    stage->commons = calloc((size_t)stage->ranks, sizeof(pp_commons_t *));
    for (int32_t rank = 0; stage->commons && rank < stage->ranks; rank++) {
        if (stage->lowest[rank] != rank)
            continue;
        stage->commons[rank] = pp_alloc_aligned(bytes);
        if (!stage->commons[rank])
            return false;
        memset(stage->commons[rank], 0, bytes);
    }
    return stage->commons;
}

pp_status_t pp_stage_open(pp_simnet_t *net, const pp_sim_config_t *config, pp_ctx_t **contexts,
                          pp_stage_t **out)
{
    *out = NULL;
    int32_t ranks = config->ranks;
    pp_stage_t *stage = calloc(1, sizeof *stage);
    if (!stage)
        return pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", ranks);
    stage->net = net;
    stage->ranks = ranks;
    stage->pace = config->pace;
    stage->layout = config->layout;
    stage->seed = pp_mix(config->seed, 0x5eed);
    stage->actors = calloc((size_t)ranks, sizeof *stage->actors);
    stage->node_ranks = config->node_ranks < ranks ? config->node_ranks : ranks;
    bool made = stage->actors && find_lowest(stage) && make_commons(stage)
             && (count_nodes(stage) == 1 || make_nodes(stage));
    if (!made) {
        pp_stage_free(stage);
        return pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", ranks);
    }
    for (int32_t rank = 0; rank < ranks; rank++)
        open_actor(stage, rank, contexts[rank]);
    pp_node_step = step_interrupts;
    *out = stage;
    return PP_OK;
}

void pp_stage_enter(pp_stage_t *stage, int32_t rank)
{
    pp_actor_t *actor = &stage->actors[rank];
    pp_transport_t *transport = pp_simnet_transport(stage->net, rank);
    actor->sink = transport->sink;
    transport->sink = (pp_sink_t){.engine = actor, .message = on_message, .bulk_done = on_bulk_done,
                                  .alarm = on_alarm, .failed = on_failed};
}

void pp_stage_free(pp_stage_t *stage)
{
    if (!stage)
        return;
    for (int32_t rank = 0; stage->actors && rank < stage->ranks; rank++) {
        pp_actor_t *actor = &stage->actors[rank];
        for (task_t *task; (task = pop(actor, false));)
            free(task);
        if (actor->stack)
            munmap(actor->stack, STACK_BYTES);
    }
    for (int32_t rank = 0; stage->commons && rank < stage->ranks; rank++)
        free(stage->commons[rank]);
    for (int32_t rank = 0; stage->nodes && rank < stage->ranks; rank++)
        pp_nodes_free(stage->nodes[rank]);
    free(stage->actors);
    free(stage->commons);
    free(stage->lowest);
    free(stage->nodes);
    free(stage);
}
