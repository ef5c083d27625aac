/*
 * paired.c - gossip by messages: two ranks average, and no third one decides.  See gossip.h.
 *
 * A rank's model is in its own memory, and in one group at a time.  Groups take turns at it, first come, first served.
 * A pair has its turn at the lower rank first: its initiator sends it there.  When the turn comes that rank sends it on
 * to the higher one, and both run an instance of an allreduce, in which the lower may be ahead.  So a model that is in a
 * group waits only for the turn of that group at a higher rank, and nothing deadlocks on any graph.  A rank that wants a
 * group by itself takes a turn at its own model.
 *
 * Rank 0's machine (../preduce/posted.c) has no groups; it knows who has left, and tells when all flush or free.  A rank
 * says that it has left when its own average is over.  A flush takes turns like any other group: a pair whose initiator
 * knows the result may still be there.
 */
#include "gossip.h"
#include "../preduce/posted.h"

#include <stdlib.h>
#include <string.h>

enum {
    PP_MSG_TURN = PP_MSG_GROUP_NOTICE + 1,
    NOBODY = -1,
    AT_ONCE_BYTES = 16384            /* up to this, what is added is added under the context's lock */
};

typedef enum what { AVERAGE, FLUSH, HOLD } what_t;

/* A group that is to have a turn at the receiver.  prefix.round: the key of its instance. */
typedef struct turn {
    pp_prefix_t prefix;
    int32_t     what;
    int32_t     algorithm;
    int32_t     initiator;           /* whose request it is; of a flush: the receiver */
    int32_t     next;                /* that has its turn after the receiver, or NOBODY */
    int32_t     count;
    int32_t     members[];           /* ascending */
} turn_t;

typedef struct paired {
    pp_posted_groups_t posted;
    pp_gossip_seat_t   seat;
    pp_groups_plan_t   plan;         /* as it was when the handle was opened */
    pp_buffer_t       *slots[2], *result;
    pp_stored_t       *turns;        /* in their order; the first one has the model if `taken` */
    bool               taken;
    bool               asks;         /* the average that this rank asked for has not happened */
    bool               asks_to_hold; /* a turn for that is among `turns` */
    struct {                         /* that this rank has left: rank 0 is told when its own average is over */
        bool     due;
        int32_t  reason;
        uint64_t number;
    } unsaid;
} paired_t;

static paired_t *paired_of(const pp_preduce_t *preduce) { return (paired_t *)preduce->posted; }
static pp_gossip_t *gossip_of(pp_preduce_t *preduce) { return (pp_gossip_t *)preduce; }
static const turn_t *first_turn(const paired_t *paired) { return (const turn_t *)paired->turns->message; }
static size_t turn_bytes(const turn_t *turn) { return sizeof *turn + (size_t)turn->count * sizeof *turn->members; }

/* ---- turns ----------------------------------------------------------------------------------------------------- */

/* A turn at this rank, to be filled in and sent before the next message. */
static turn_t *new_turn(pp_preduce_t *preduce, what_t what, uint64_t key)
{
    turn_t *turn = (turn_t *)preduce->posted->out;
    *turn = (turn_t){.prefix = {.kind = PP_MSG_TURN, .handle = preduce->handle.id, .round = key}, .what = what,
                     .initiator = preduce->handle.engine->rank, .next = NOBODY, .count = 1};
    turn->members[0] = turn->initiator;
    return turn;
}

static void queue(pp_preduce_t *preduce, int32_t peer, const turn_t *turn)
{
    pp_engine_t *engine = preduce->handle.engine;
    pp_engine_keep(engine, &paired_of(preduce)->turns, peer, turn, turn_bytes(turn));
    engine->changed = true;
}

static void send(pp_preduce_t *preduce, int32_t peer, turn_t *turn)
{
    if (peer == preduce->handle.engine->rank)
        queue(preduce, peer, turn);
    else
        pp_engine_control(preduce->handle.engine, peer, &turn->prefix, turn_bytes(turn));
}

/* The model is the next one's. */
static void end_turn(pp_preduce_t *preduce)
{
    paired_t    *paired = paired_of(preduce);
    pp_stored_t *turn = paired->turns;
    paired->turns = turn->next;
    paired->taken = false;
    free(turn);
    preduce->handle.engine->changed = true;
}

/* ---- the group that has its turn ------------------------------------------------------------------------------- */

/* The application is to have a copy of the model. */
static bool is_wanted(const pp_preduce_t *preduce, const turn_t *turn)
{
    return turn->initiator == preduce->handle.engine->rank
        && (turn->what == FLUSH || paired_of(preduce)->seat.wants == PP_WANTS_AVERAGE);
}

/* Returns what is to be added to the model. */
static const void *take(pp_preduce_t *preduce, const turn_t *turn)
{
    const int32_t            rank = preduce->handle.engine->rank;
    const pp_groups_action_t action = {
        .kind = turn->what == FLUSH ? PP_GROUPS_FLUSH : PP_GROUPS_BEGIN, .rank = rank, .serial = turn->prefix.round,
        .count = turn->count, .members = turn->members, .weights = preduce->carried->weights};
    pp_preduce_overheard(preduce, &action);
    const uint64_t adds = pp_gossip_take(preduce, &paired_of(preduce)->seat, &action,
                                         turn->what != HOLD && is_wanted(preduce, turn),
                                         (uint64_t)(uintptr_t)preduce->carried->vector->data);
    return (const void *)(uintptr_t)adds;
}

static void end_average(pp_preduce_t *preduce, bool wanted)
{
    paired_of(preduce)->asks = false;
    if (wanted)
        pp_preduce_complete(preduce);
}

static void end_flush(pp_preduce_t *preduce, bool wanted)
{
    (void)wanted;
    pp_preduce_flushed(preduce, PP_IN_FLUSH);
}

static void (*const ends[])(pp_preduce_t *, bool wanted) = {[AVERAGE] = end_average, [FLUSH] = end_flush};

/* The model is that of the group. */
static void finish(pp_preduce_t *preduce)
{
    paired_t     *paired = paired_of(preduce);
    const turn_t *turn = first_turn(paired);
    const what_t  what = (what_t)turn->what;
    const bool    own = turn->initiator == preduce->handle.engine->rank, wanted = is_wanted(preduce, turn);
    const bool    alone = turn->count == 1 && what != FLUSH;
    if (wanted) {
        preduce->kernels.memory->copy(preduce->kernels.memory, paired->result->data, preduce->carried->vector->data,
                                      preduce->vector_bytes);
        pp_preduce_describe(preduce, turn->prefix.round, 0, 0, turn->count, alone ? NULL : turn->members, NULL);
    }
    end_turn(preduce);
    if (own)
        ends[what](preduce, wanted);
}

static void begin_average(pp_preduce_t *preduce, turn_t *turn)
{
    const pp_kernels_t *kernels = &preduce->kernels;
    const int32_t       next = turn->next;
    const void         *adds = take(preduce, turn);
    if (adds)
        kernels->memory->keep_left(kernels, preduce->carried->vector->data, adds, preduce->count);
    turn->next = NOBODY;
    if (next != NOBODY)
        send(preduce, next, turn);
    memcpy(preduce->carried->members, turn->members, (size_t)turn->count * sizeof *turn->members);
    if (turn->count == 1)
        finish(preduce);
    else
        pp_carried_join(preduce, turn->prefix.round, turn->algorithm, turn->count, NULL, false);
}

/* The application may have let go of it before it came. */
static void begin_hold(pp_preduce_t *preduce, turn_t *turn)
{
    paired_t *paired = paired_of(preduce);
    paired->asks_to_hold = false;
    if (paired->seat.wants != PP_WANTS_MODEL) {
        end_turn(preduce);
        return;
    }
    paired->seat.held = turn->prefix.round;
    paired->seat.held_add = (uint64_t)(uintptr_t)take(preduce, turn);
}

static void (*const begins[])(pp_preduce_t *, turn_t *) = {
    [AVERAGE] = begin_average, [FLUSH] = begin_average, [HOLD] = begin_hold,
};

static void on_take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    pp_carried_lend(owner, instance, share);
}

static void on_done(void *owner, pp_instance_t *instance)
{
    pp_preduce_t *preduce = owner;
    pp_carried_get_back(preduce, instance, first_turn(paired_of(preduce))->count);
    finish(preduce);
}

static const pp_host_t instances = {.take = on_take, .done = on_done, .retired = pp_carried_retired};

/* ---- requests: the context's lock is that of the seat ---------------------------------------------------------- */

static bool lock(pp_preduce_t *preduce) { return (void)preduce, true; }
static void unlock(pp_preduce_t *preduce) { (void)preduce; }
static bool asks(const pp_gossip_t *gossip) { return paired_of(&gossip->base)->asks; }

/* The member of this rank's last average that it has drawn. */
static int32_t neighbour(const pp_preduce_t *preduce)
{
    return pp_groups_neighbour(&paired_of(preduce)->plan, preduce->config.table, preduce->handle.engine->rank,
                               preduce->iteration);
}

/* Iterations begin with 1, so these keys exceed those of flushes. */
static pp_status_t ask(pp_gossip_t *gossip, bool by_itself, bool stays)
{
    (void)stays;                     /* there are no jobs */
    pp_preduce_t  *preduce = &gossip->base;
    const int32_t  rank = preduce->handle.engine->rank, other = by_itself ? rank : neighbour(preduce);
    turn_t        *turn = new_turn(preduce, AVERAGE, preduce->iteration << 32 | (uint64_t)rank);
    const bool     lower = rank < other || pp_engine_has(preduce->handle.engine, PP_PLANT_INITIATOR_FIRST);
    paired_of(preduce)->asks = true;
    if (other != rank) {
        turn->count = 2;
        turn->members[0] = rank < other ? rank : other;
        turn->members[1] = rank < other ? other : rank;
        /* Without a tuning table, which only rank 0 reads: both must choose alike. */
        turn->algorithm = pp_carried_choose(preduce, NULL, 0, 2);
        turn->next = lower ? other : rank;
    }
    send(preduce, lower ? rank : other, turn);
    return PP_OK;
}

static pp_status_t ask_to_hold(pp_gossip_t *gossip)
{
    paired_t *paired = paired_of(&gossip->base);
    if (!paired->asks_to_hold)
        queue(&gossip->base, gossip->base.handle.engine->rank, new_turn(&gossip->base, HOLD, PP_GROUPS_BY_ITSELF));
    paired->asks_to_hold = true;
    return PP_OK;
}

static pp_status_t let_go(pp_gossip_t *gossip)
{
    gossip->seat->held = 0;
    end_turn(&gossip->base);
    return PP_OK;
}

static bool may_hold(const pp_gossip_t *gossip) { return gossip->seat->held > 0; }
static void *model(const pp_gossip_t *gossip) { return gossip->base.carried->vector->data; }

static const pp_gossip_way_t gossip_way = {
    .lock = lock, .unlock = unlock, .asks = asks, .ask = ask, .ask_to_hold = ask_to_hold, .let_go = let_go,
    .may_hold = may_hold, .model = model,
};

/* ---- the way --------------------------------------------------------------------------------------------------- */

/* A flush begins; it is one of those that take turns. */
static void flush(pp_preduce_t *preduce, const pp_group_notice_t *notice)
{
    turn_t *turn = new_turn(preduce, FLUSH, notice->prefix.round);
    turn->algorithm = notice->algorithm;
    turn->count = notice->count;
    memcpy(turn->members, notice->weights, (size_t)notice->count * sizeof *turn->members);   /* no weights are sent */
    queue(preduce, turn->initiator, turn);
}

static void control(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message)
{
    if (message->kind == PP_MSG_TURN)
        queue(pp_preduce_of(handle), peer, (const turn_t *)message);
    else
        pp_posted_control(handle, peer, message);
}

/* That it is back a rank says at once, unless rank 0 has not heard that it had left. */
static void say(pp_preduce_t *preduce, int32_t reason, uint64_t number)
{
    paired_t *paired = paired_of(preduce);
    if (reason == PP_GROUPS_HERE && !paired->unsaid.due)
        pp_posted_say(preduce, reason, number);
    paired->unsaid.due = reason != PP_GROUPS_HERE;
    preduce->handle.engine->changed = true;
    paired->unsaid.reason = reason;
    paired->unsaid.number = number;
}

static void go_on(pp_preduce_t *preduce)
{
    paired_t *paired = paired_of(preduce);
    if (paired->unsaid.due && !paired->asks) {
        paired->unsaid.due = false;
        pp_posted_say(preduce, paired->unsaid.reason, paired->unsaid.number);
    }
    pp_posted_go_on(preduce);
    while (paired->turns && !paired->taken && !preduce->handle.engine->error) {
        turn_t *turn = (turn_t *)paired->turns->message;
        paired->taken = true;
        begins[turn->what](preduce, turn);
    }
}

static bool retired(const pp_handle_t *handle)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    return preduce->carried->instances.open == 0 && !preduce->posted->kept && !paired_of(preduce)->turns;
}

static void explain(pp_handle_t *handle, pp_text_t *text)
{
    pp_preduce_t   *preduce = pp_preduce_of(handle);
    const paired_t *paired = paired_of(preduce);
    const turn_t   *turn = paired->turns ? first_turn(paired) : NULL;
    pp_instances_explain(&preduce->carried->instances, text);
    if (turn && turn->count == 2)
        pp_text_add(text, "this rank's model is in an average of ranks %d and %d\n", turn->members[0],
                    turn->members[1]);
    if (paired->seat.held)
        pp_text_add(text, "this rank's model is locked\n");
    if (paired->asks && !(turn && turn->initiator == handle->engine->rank))
        pp_text_add(text, "this rank's average is not the next one at rank %d\n", neighbour(preduce));
}

static void close_groups(pp_preduce_t *preduce)
{
    paired_t *paired = paired_of(preduce);
    if (!paired)
        return;
    for (int i = 0; i < 2; i++)
        pp_pool_put(&preduce->carried->vectors, paired->slots[i]);
    pp_pool_put(&preduce->carried->vectors, paired->result);
    pp_stored_free_all(&paired->turns);
    pp_posted_close(preduce);
}

static const pp_grouping_t ops = {
    .sends = true, .say = say, .go_on = go_on, .close = close_groups,
    .handle = {.control = control, .operation = pp_posted_operation, .retired = retired, .explain = explain,
               .count_buffers = pp_carried_count_buffers},
};

/* ---- opening --------------------------------------------------------------------------------------------------- */

static pp_status_t make_vectors(pp_gossip_t *gossip)
{
    paired_t          *paired = paired_of(&gossip->base);
    pp_pool_t         *pool = &paired->posted.carried.vectors;
    const pp_memory_t *memory = gossip->base.kernels.memory;
    PP_TRY(pp_pool_get(pool, &paired->posted.carried.vector));
    PP_TRY(pp_pool_get(pool, &paired->result));
    for (int i = 0; i < 2; i++) {
        PP_TRY(pp_pool_get(pool, &paired->slots[i]));
        gossip->slots[i] = paired->slots[i]->data;
        paired->seat.slots[i] = (uint64_t)(uintptr_t)gossip->slots[i];
    }
    gossip->result = paired->result->data;
    if (gossip->base.initial)
        memory->copy(memory, model(gossip), gossip->base.initial, gossip->base.vector_bytes);
    return PP_OK;
}

pp_status_t pp_gossip_open_paired(pp_preduce_t *preduce)
{
    pp_gossip_t *gossip = gossip_of(preduce);
    paired_t    *paired = aligned_alloc(_Alignof(paired_t), sizeof *paired);
    preduce->posted = (pp_posted_groups_t *)paired;
    if (paired) {
        *paired = (paired_t){.plan = pp_preduce_plan(preduce)};
        gossip->way = &gossip_way;
        gossip->seat = &paired->seat;
        gossip->adds_at_once = preduce->vector_bytes <= AT_ONCE_BYTES;
    }
    PP_TRY(pp_posted_open(preduce, &ops, &instances, flush));
    return make_vectors(gossip);
}
