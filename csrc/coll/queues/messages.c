/*
 * messages.c - queues by messages.  See queue.h.
 *
 * What the machine says is sent as it is: an update with its elements, or followed by them as bulk, into a buffer of
 * its own.  It is no round of a series.  There all that is sent in a round is the same, the host hears of a round when
 * all of it has come, and the window goes on when every receive has ended; here an iteration is an update for some
 * neighbours and a header for others, each counts when it comes, and some come long after their average.
 *
 * The progress thread takes messages, and so answers for a rank that computes or has left.
 *
 * Flush and Free.  All ranks come, and tell rank 0 and their out-neighbours.  When all have, rank 0 tells all; a Flush
 * is then an allreduce of what they give.  A rank goes on when its in-neighbours have told it that they have come: by
 * then it has heard of all that they sent before.
 */
#include "queue.h"

#include "../../algo/algo.h"

#include <stdlib.h>
#include <string.h>

/* What a message says: an action of its sender's machine, or one of these. */
enum { COMES = PP_QUEUES_TELL_HERE + 1, ALL_HAVE_COME };

/* prefix.round is the iteration: of COMES, that the sender is in; of ALL_HAVE_COME the newest.  prefix.tag is how many
   Flushes are over for the sender. */
typedef struct message {
    pp_prefix_t prefix;              /* SEND: PP_FLAG_DATA, an update, and not its header; PP_FLAG_BULK, as bulk */
    int32_t  what;
    uint32_t calls;                  /* COMES, ALL_HAVE_COME: pp_flush_calls() */
    uint64_t number;                 /* OMIT: the end; TELL_LEFT: `left`; ALL_HAVE_COME: how many give a model */
} message_t;

_Static_assert(sizeof(message_t) % PP_MESSAGE_ALIGN == 0, "the elements of an update are aligned");

typedef struct model {
    struct model *next;
    pp_queue_t   *q;
    pp_buffer_t  *buffer;
    int64_t       iteration;
    int32_t       in;                /* whose it is: an in-neighbour's, or PP_QUEUE_OWN */
    int32_t       moves;             /* payloads under way to it, or from it */
} model_t;

/* What a neighbour has said. */
typedef struct peer {
    uint64_t left;
    int64_t  from;                   /* it has left, and omits everything from here on */
    uint32_t came;                   /* how often it has come to a Flush or Free */
} peer_t;

struct pp_queue_mail {
    pp_series_t  series;             /* Flushes; and the pool of all models */
    model_t    **models;             /* of each in-neighbour, then this rank's own; the newest first */
    peer_t      *peers;              /* as pp_queue_t's `seen` */
    message_t   *out;                /* an update that is being composed */
    pp_stored_t *kept;               /* messages of ranks for which a Flush is over, and here it is not */
    int64_t      left_from;          /* what the last TELL_LEFT said */
    int32_t      under_way;          /* payloads */
    struct {
        message_t    all;            /* at rank 0: what ALL_HAVE_COME will say */
        int32_t      came;           /* ... how many have */
        bool         all_have;
        int32_t      givers;         /* ranks that give a model */
        bool         runs;           /* the allreduce does */
        uint64_t     number;         /* of allreduces so far */
        pp_buffer_t *model;          /* that this rank gives; then the sum */
    } end;
};

typedef struct pp_queue_mail mail_t;

/* ---- models ------------------------------------------------------------------------------------------------ */

static model_t **models_of(const pp_queue_t *q, int32_t in)
{
    return &q->mail->models[in == PP_QUEUE_OWN ? q->config.plan.in : in];
}

static model_t *newest_own(const pp_queue_t *q) { return *models_of(q, PP_QUEUE_OWN); }

static pp_buffer_t *get_buffer(pp_queue_t *q)
{
    pp_buffer_t *buffer;
    if (pp_pool_get(&q->mail->series.vectors, &buffer) < 0)
        pp_engine_fail(q->handle.engine, PP_ERR_MEMORY, "%s", pp_error_text());
    return buffer;
}

/* NULL: no memory, and this error is latched. */
static model_t *new_model(pp_queue_t *q, int32_t in, int64_t iteration)
{
    model_t     *model = malloc(sizeof *model);
    pp_buffer_t *buffer = get_buffer(q);
    if (!model || !buffer) {
        pp_engine_fail(q->handle.engine, PP_ERR_MEMORY, "no memory for an update");
        pp_pool_put(&q->mail->series.vectors, buffer);
        free(model);
        return NULL;
    }
    *model = (model_t){.next = *models_of(q, in), .q = q, .buffer = buffer, .iteration = iteration, .in = in};
    *models_of(q, in) = model;
    return model;
}

/* Frees those of iterations below, unless a payload is under way. */
static void free_models(const pp_queue_t *q, int32_t in, int64_t below)
{
    for (model_t *model, **link = models_of(q, in); (model = *link);) {
        if (model->iteration >= below || model->moves > 0) {
            link = &model->next;
            continue;
        }
        *link = model->next;
        pp_pool_put(&q->mail->series.vectors, model->buffer);
        free(model);
    }
}

static pp_status_t make_room(pp_queue_t *q)
{
    for (int32_t in = 0; in < q->config.plan.in; in++)
        free_models(q, in, pp_queues_oldest(q->machine));
    free_models(q, PP_QUEUE_OWN, q->iteration);
    new_model(q, PP_QUEUE_OWN, q->iteration);
    return pp_engine_check(q->handle.engine);
}

static void load(const pp_queue_t *q) { pp_queue_load(q, newest_own(q)->buffer->data); }

static const char *model_of(const pp_queue_t *q, int32_t in, int64_t iteration)
{
    const model_t *model = *models_of(q, in);
    while (model->iteration != iteration)
        model = model->next;
    return model->buffer->data;
}

static int32_t find_gone(const pp_queue_t *q) { return (void)q, -1; }

/* ---- to neighbours ----------------------------------------------------------------------------------------- */

static void moved(void *owner, uint32_t which)
{
    model_t    *model = owner;
    pp_queue_t *q = model->q;
    (void)which;
    model->moves--;
    q->mail->under_way--;
    q->handle.engine->changed = true;
    if (model->in == PP_QUEUE_OWN)
        return;
    pp_queue_tell_of(q, PP_QUEUES_UPDATE, model->in, model->iteration);
    pp_queue_go_on(q);
}

static void move(model_t *model, bool sends, int32_t peer, uint32_t tag)
{
    pp_queue_t        *q = model->q;
    const pp_memory_t *memory = q->kernels.memory;
    const pp_payload_t payload = {.sends = sends, .peer = peer, .tag = tag, .handle = q->handle.id,
                                  .elements = memory->reach(model->buffer->data), .bytes = q->vector_bytes,
                                  .memory = memory};
    model->moves++;
    q->mail->under_way++;
    pp_engine_move(q->handle.engine, &payload, &(pp_travelled_t){moved, model, 0});
}

static message_t new_message(const pp_queue_t *q, int32_t what, int64_t iteration, uint64_t number)
{
    return (message_t){.prefix = {.kind = PP_MSG_OWN, .handle = q->handle.id, .round = (uint64_t)iteration,
                                  .tag = q->end.over},
                       .what = what, .number = number};
}

static void send(const pp_queue_t *q, int32_t peer, message_t *message)
{
    pp_engine_control(q->handle.engine, peer, &message->prefix, sizeof *message);
}

static void send_update(pp_queue_t *q, int64_t iteration)
{
    model_t     *own = newest_own(q);
    message_t   *message = q->mail->out;
    const bool   is_long = q->vector_bytes > PP_INLINE_BYTES;
    const size_t elements = is_long ? 0 : q->vector_bytes;
    memcpy(message + 1, own->buffer->data, elements);
    for (int32_t out = 0; out < q->config.plan.out; out++) {
        const int32_t peer = q->config.outs[out];
        *message = new_message(q, PP_QUEUES_SEND, iteration, 0);
        if (!pp_queues_wants(q->machine, out)) {
            send(q, peer, message);
            continue;
        }
        message->prefix.flags = PP_FLAG_DATA | (is_long ? PP_FLAG_BULK : 0);
        message->prefix.bulk_tag = is_long ? pp_bulks_tag(&q->handle.engine->bulks) : 0;
        pp_engine_control(q->handle.engine, peer, &message->prefix, sizeof *message + elements);
        if (is_long)
            move(own, true, peer, message->prefix.bulk_tag);
    }
}

static void send_to_ins(const pp_queue_t *q, message_t *message)
{
    for (int32_t in = 0; in < q->config.plan.in; in++)
        if (message->what != PP_QUEUES_ANNOUNCE || pp_queues_tells(q->machine, in))
            send(q, q->config.ins[in], message);
}

/* `others`: only to those that are no in-neighbours. */
static void send_to_outs(const pp_queue_t *q, message_t *message, bool others)
{
    for (int32_t out = 0; out < q->config.plan.out; out++)
        if (!others || pp_queue_find(q->config.ins, q->config.plan.in, q->config.outs[out]) < 0)
            send(q, q->config.outs[out], message);
}

static void show(pp_queue_t *q, const pp_queues_action_t *action)
{
    const bool omits = action->kind == PP_QUEUES_OMIT, tells_left = action->kind == PP_QUEUES_TELL_LEFT;
    message_t  message = new_message(q, action->kind, action->iteration, omits ? (uint64_t)action->end : q->left);
    if (tells_left)
        q->mail->left_from = action->iteration;
    if (action->kind == PP_QUEUES_SEND)
        send_update(q, action->iteration);
    else if (omits)
        send_to_outs(q, &message, false);
    else
        send_to_ins(q, &message);
    if (tells_left || action->kind == PP_QUEUES_TELL_HERE)
        send_to_outs(q, &message, true);
}

static void show_left(pp_queue_t *q)
{
    show(q, &(pp_queues_action_t){.kind = PP_QUEUES_TELL_LEFT, .iteration = q->mail->left_from});
}

/* ---- Flush and Free ---------------------------------------------------------------------------------------- */

static void all_have_come(pp_queue_t *q, const message_t *message)
{
    q->end.newest = (int64_t)message->prefix.round;
    q->end.calls = message->calls;
    q->mail->end.givers = (int32_t)message->number;
    q->mail->end.all_have = true;
}

/* All tell rank 0; `in`: it is an in-neighbour, too, or -1. */
static void one_has_come(pp_queue_t *q, int32_t in, const message_t *message)
{
    const pp_engine_t *engine = q->handle.engine;
    message_t         *all = &q->mail->end.all;
    if (in >= 0)
        q->mail->peers[in].came++;
    if (engine->rank > 0)
        return;
    all->prefix.round = all->prefix.round > message->prefix.round ? all->prefix.round : message->prefix.round;
    all->calls |= message->calls;
    all->number += message->calls != 0;
    if (++q->mail->end.came < engine->size)
        return;
    message_t answer = new_message(q, ALL_HAVE_COME, (int64_t)all->prefix.round, all->number);
    answer.calls = all->calls;
    for (int32_t rank = 1; rank < engine->size; rank++)
        send(q, rank, &answer);
    all_have_come(q, &answer);
    q->mail->end.came = 0;
    *all = (message_t){0};
}

static void come(pp_queue_t *q)
{
    message_t message = new_message(q, COMES, pp_queues_due(q->machine), 0);
    message.calls = pp_handle_flush_call(&q->handle);
    q->end.came = true;
    send_to_outs(q, &message, false);
    if (q->handle.engine->rank == 0)
        one_has_come(q, -1, &message);
    else if (pp_queue_find(q->config.outs, q->config.plan.out, 0) < 0)
        send(q, 0, &message);
}

static bool has_come(const pp_queue_t *q, int32_t in) { return q->mail->peers[in].came > q->end.over; }

static bool may_go_on(const pp_queue_t *q)
{
    bool may = q->mail->end.all_have && !q->mail->end.runs;
    for (int32_t in = 0; in < q->config.plan.in; in++)
        may &= has_come(q, in);
    return may;
}

static void begin_end(pp_queue_t *q)
{
    mail_t    *mail = q->mail;
    const bool averages = mail->end.givers > 0 && !(q->end.calls & PP_IN_FREE);
    mail->end.all_have = false;
    mail->end.runs = averages;
    q->end.done = !averages;
    if (averages)
        pp_instance_fire(pp_series_instance(&mail->series, mail->end.number++), mail->series.graph->gate);
}

static void finish_end(pp_queue_t *q)
{
    pp_pool_put(&q->mail->series.vectors, q->mail->end.model);
    q->mail->end.model = NULL;
    pp_queue_finish(q);
}

static bool end(pp_queue_t *q)
{
    const bool comes = !q->end.came && pp_handle_flushes(&q->handle);
    if (comes)
        come(q);
    const bool begins = q->end.came && may_go_on(q);
    if (begins)
        begin_end(q);
    const bool ends = q->end.done;
    if (ends)
        finish_end(q);
    return comes || begins || ends;
}

static pp_status_t give(pp_queue_t *q, bool start)
{
    const pp_memory_t *memory = q->kernels.memory;
    mail_t            *mail = q->mail;
    mail->end.model = mail->end.model ? mail->end.model : get_buffer(q);
    if (mail->end.model && start)
        memory->copy(memory, mail->end.model->data, newest_own(q)->buffer->data, q->vector_bytes);
    else if (mail->end.model)
        pp_queue_load(q, mail->end.model->data);
    return PP_OK;
}

/* A rank that is out has nothing to give. */
static void on_take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    mail_t *mail = ((pp_queue_t *)owner)->mail;
    share->null = !mail->end.model;
    instance->accumulator = mail->end.model;
    mail->end.model = NULL;
}

static void on_done(void *owner, pp_instance_t *instance)
{
    pp_queue_t *q = owner;
    q->mail->end.model = instance->accumulator;
    instance->accumulator = NULL;
    q->end.reads = pp_handle_flush_call(&q->handle) != 0;
    q->end.done = !q->end.reads;
    q->handle.engine->changed = true;
}

static void on_retired(void *owner, pp_instance_t *instance)
{
    mail_t *mail = ((pp_queue_t *)owner)->mail;
    mail->end.runs = false;
    pp_series_recycle(&mail->series, instance);
}

static const pp_host_t host = {.take = on_take, .done = on_done, .retired = on_retired};

static const char *operand_of_all(const pp_queue_t *q, int32_t operand, double *weight)
{
    (void)operand;
    *weight = 1.0 / q->mail->end.givers;
    return q->mail->end.model->data;
}

static void average_all(const pp_queue_t *q) { pp_queue_sum(q, 1, operand_of_all); }

static void explain_end(const pp_queue_t *q, pp_text_t *text)
{
    const mail_t *mail = q->mail;
    pp_listing_t  listing = {.text = text, .before = "not in the call: "};
    for (int32_t in = 0; in < q->config.plan.in; in++)
        if (!has_come(q, in))
            pp_listing_add(&listing, q->config.ins[in], NULL);
    pp_listing_end(&listing, "");
    if (mail->end.runs)
        pp_series_explain(pp_series_instance((pp_series_t *)&mail->series, mail->end.number - 1), "the call", text);
    else if (!mail->end.all_have)
        pp_text_add(text, "rank 0 has not said yet that all ranks are in the call\n");
}

/* ---- from neighbours --------------------------------------------------------------------------------------- */

static void look(pp_queue_t *q)
{
    const int32_t ins = q->config.plan.in;
    for (int32_t i = 0; i < ins + q->config.plan.out; i++) {
        const peer_t *peer = &q->mail->peers[i];
        const bool    left = pp_queue_has_left(q, peer->left);
        if (left == q->seen[i].left)
            continue;
        q->seen[i].left = left;
        if (i < ins)
            pp_queue_tell_of(q, left ? PP_QUEUES_LEFT : PP_QUEUES_HERE, i, peer->from);
        else
            pp_queue_tell_of(q, left ? PP_QUEUES_UNBOUND : PP_QUEUES_TOKEN, i - ins, 0);
    }
}

static void take_update(pp_queue_t *q, int32_t in, const message_t *message)
{
    const pp_memory_t *memory = q->kernels.memory;
    const int64_t      iteration = (int64_t)message->prefix.round;
    model_t           *model = message->prefix.flags & PP_FLAG_DATA ? new_model(q, in, iteration) : NULL;
    if (model && message->prefix.flags & PP_FLAG_BULK) {
        move(model, false, q->config.ins[in], message->prefix.bulk_tag);
        return;
    }
    if (model)
        memory->copy(memory, model->buffer->data, message + 1, q->vector_bytes);
    pp_queue_tell_of(q, model ? PP_QUEUES_UPDATE : PP_QUEUES_HEADER, in, iteration);
}

static void take_omitted(pp_queue_t *q, int32_t in, const message_t *message)
{
    for (uint64_t i = message->prefix.round; i < message->number; i++)
        pp_queue_tell_of(q, PP_QUEUES_HEADER, in, (int64_t)i);
}

static void take_presence(pp_queue_t *q, int32_t in, int32_t out, const message_t *message)
{
    peer_t *peers = q->mail->peers;
    if (in >= 0) {
        peers[in].left = message->number;
        peers[in].from = (int64_t)message->prefix.round;
    }
    if (out >= 0)
        peers[q->config.plan.in + out].left = message->number;
    if (out >= 0 && message->what == PP_QUEUES_TELL_HERE)
        pp_queue_tell_of(q, PP_QUEUES_TOKEN, out, (int64_t)message->prefix.round);
    look(q);
}

static void take(pp_queue_t *q, int32_t peer, const message_t *message)
{
    const int32_t in = pp_queue_find(q->config.ins, q->config.plan.in, peer);
    const int32_t out = pp_queue_find(q->config.outs, q->config.plan.out, peer);
    switch (message->what) {
    case PP_QUEUES_SEND:     take_update(q, in, message); break;
    case PP_QUEUES_OMIT:     take_omitted(q, in, message); break;
    case PP_QUEUES_ANNOUNCE: pp_queue_tell_of(q, PP_QUEUES_TOKEN, out, (int64_t)message->prefix.round); break;
    case COMES:              one_has_come(q, in, message); break;
    case ALL_HAVE_COME:      all_have_come(q, message); break;
    default:                 take_presence(q, in, out, message); break;
    }
    pp_queue_go_on(q);
    q->handle.engine->changed = true;
}

/* A rank for which the Flush is over goes on: what it says is taken when the Flush is over here, where the iteration is
   else not the newest of all, but a later one. */
static bool is_later(const pp_queue_t *q, const message_t *message) { return message->prefix.tag > q->end.over; }

static void take_kept(pp_queue_t *q)
{
    for (pp_stored_t *stored, **link = &q->mail->kept; (stored = *link);) {
        if (is_later(q, (const message_t *)stored->message)) {
            link = &stored->next;
            continue;
        }
        *link = stored->next;
        take(q, stored->peer, (const message_t *)stored->message);
        free(stored);
    }
}

/* Who is back because a call is over elsewhere is so before what the message says. */
static void control(pp_handle_t *handle, int32_t peer, const pp_prefix_t *prefix)
{
    pp_queue_t      *q = pp_queue_of(handle);
    const message_t *message = (const message_t *)prefix;
    const size_t     elements = prefix->flags == PP_FLAG_DATA ? q->vector_bytes : 0;
    handle->kind->update(handle);
    take_kept(q);
    if (is_later(q, message))
        pp_engine_keep(handle->engine, &q->mail->kept, peer, prefix, sizeof *message + elements);
    else
        take(q, peer, message);
}

static void operation(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message, size_t bytes)
{
    pp_series_receive(&pp_queue_of(handle)->mail->series, peer, message, bytes);
}

static void replay(pp_handle_t *handle)
{
    pp_queue_t *q = pp_queue_of(handle);
    pp_series_replay_early(&q->mail->series);
    handle->kind->update(handle);
    take_kept(q);
}

/* ---- the way ----------------------------------------------------------------------------------------------- */

static pp_status_t open_mail(pp_queue_t *q, const pp_agreed_t *agreed)
{
    const pp_engine_t *engine = q->handle.engine;
    const size_t       ins = (size_t)q->config.plan.in, bytes = q->kernels.element_bytes;
    mail_t            *mail = q->mail = calloc(1, sizeof *mail);
    pp_choice_t        choice;
    pp_graph_t        *graph = NULL;
    if (!mail)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    mail->models = calloc(ins + 1, sizeof *mail->models);
    mail->peers = calloc(ins + (size_t)q->config.plan.out + 1, sizeof *mail->peers);
    mail->out = malloc(sizeof *mail->out + PP_INLINE_BYTES);
    if (!mail->models || !mail->peers || !mail->out)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    /* Without a tuning table, which only rank 0 reads: all must choose alike. */
    PP_TRY(pp_choose(NULL, 0, q->count, bytes, engine->size, q->handle.team->link, &choice));
    PP_TRY(pp_algo_synchronous_allreduce(choice.algorithm, engine->rank, engine->size, q->count,
                                         pp_algo_segments(choice.algorithm, q->vector_bytes, engine->size), &graph));
    return pp_series_open(q->handle.engine, agreed->id, graph, NULL, &q->kernels, 2, &host, q, &mail->series);
}

/* Of a context that is given up the transport may still read or write models: these are left to the process. */
static void close_mail(pp_queue_t *q)
{
    mail_t *mail = q->mail;
    if (!mail)
        return;
    for (int32_t in = PP_QUEUE_OWN; mail->models && in < q->config.plan.in; in++)
        free_models(q, in, INT64_MAX);
    pp_pool_put(&mail->series.vectors, mail->end.model);
    pp_stored_free_all(&mail->kept);
    pp_series_close(&mail->series);
    free(mail->models);
    free(mail->peers);
    free(mail->out);
    free(mail);
    q->mail = NULL;
}

static bool retired(const pp_handle_t *handle)
{
    const pp_queue_t *q = pp_queue_of(handle);
    return q->workers == 0 && q->mail->under_way == 0 && !q->mail->end.runs;
}

/* An average waits for the application's next Wait or Test. */
static bool needed(pp_handle_t *handle) { return pp_queue_of(handle)->due.kind == PP_QUEUES_AVERAGE; }

static void count_buffers(const pp_handle_t *handle, pp_held_t *sum)
{
    const pp_series_t *series = &pp_queue_of(handle)->mail->series;
    pp_pool_count(&series->vectors, sum);
    pp_pool_count(&series->scratches, sum);
}

const pp_queue_way_t pp_queue_by_messages = {
    .handle = {.control = control, .operation = operation, .replay = replay, .retired = retired, .needed = needed,
               .count_buffers = count_buffers, PP_QUEUE_PARTS},
    .open = open_mail, .close = close_mail, .look = look, .show = show, .show_left = show_left,
    .make_room = make_room, .load = load, .model = model_of, .find_gone = find_gone, .give = give, .end = end,
    .average_all = average_all, .explain_end = explain_end,
};
