/*
 * tables.c - groups of a table by messages: each rank knows its group, so no rank is asked.  See preduce.h.
 *
 * A rank's k-th request since the last flush is an instance on its group of that phase.  Its key is the number of the
 * flush and k.  Other groups may have the same key: they have no rank in common with this one.
 *
 * A rank that asks activates the instance, like the initiator of a round, because each member has to hear of it: one
 * that has left *stands in* for itself.  When a message comes for a request that it has not made, it joins the instance
 * with nothing.  The header of the sum says which ranks gave something; they are the group.  When the rank is back, and
 * comes to that request, the group has run without it, and it is alone.
 *
 * A flush, and the end of the handle, are instances on all ranks.  A rank joins the flush when its last request is
 * complete; ranks that are out stand in.
 */
#include "carried.h"

#include <stdlib.h>
#include <string.h>

/* A key: flushes, then k, in which the two largest numbers mean the flush and the end. */
enum { FLUSHES_BITS = 20, K_BITS = 32, RANK_BITS = 12 };
static const uint64_t K_FLUSH = UINT32_MAX, K_END = UINT32_MAX - 1;

struct pp_table_groups {
    pp_carried_t   carried;
    uint64_t       flushes;          /* completed */
    uint64_t       k;                /* of the last request since then */
    bool           running;          /* an instance has this rank's vector, or its request */
    bool           flushed;          /* a flush was completed, and messages from after it may be here */
    uint64_t       awaited;          /* the newest key for which a member of its group has waited long; 0: none */
    bool           joined;           /* this rank is in the instance of the flush, or of the end */
    /* Requests after `k` whose groups have run without this rank: bit i is k + 1 + i. */
    uint64_t      *missed;
    size_t         missed_capacity;  /* words */
};

typedef struct pp_table_groups tables_t;

static uint64_t key_of(const tables_t *tables, uint64_t k) { return tables->flushes << K_BITS | k; }
static uint64_t k_of(uint64_t key) { return key & UINT32_MAX; }
static uint64_t flushes_of(uint64_t key) { return key >> K_BITS; }

/* ---- requests that have been missed ---------------------------------------------------------------------------- */

static void miss(pp_preduce_t *preduce, uint64_t k)
{
    tables_t     *tables = preduce->tables;
    const size_t  bit = (size_t)(k - tables->k - 1), before = tables->missed_capacity;
    if (!pp_grow((void **)&tables->missed, &tables->missed_capacity, bit / 64 + 1, sizeof *tables->missed)) {
        pp_engine_fail(preduce->handle.engine, PP_ERR_MEMORY, "no memory for the groups that this rank has missed");
        return;
    }
    for (size_t word = before; word < tables->missed_capacity; word++)
        tables->missed[word] = 0;
    tables->missed[bit / 64] |= UINT64_C(1) << bit % 64;
}

static bool has_missed(const tables_t *tables, uint64_t k)
{
    const size_t bit = (size_t)(k - tables->k - 1);
    return bit / 64 < tables->missed_capacity && (tables->missed[bit / 64] >> bit % 64 & 1);
}

/* The next request: bits move down by one.  True: its group has run without this rank. */
static bool next_request(tables_t *tables)
{
    const bool missed = has_missed(tables, tables->k + 1);
    tables->k++;
    for (size_t word = 0; word < tables->missed_capacity; word++) {
        const bool more = word + 1 < tables->missed_capacity;
        tables->missed[word] = tables->missed[word] >> 1 | (more ? tables->missed[word + 1] << 63 : 0);
    }
    return missed;
}

/* ---- instances ------------------------------------------------------------------------------------------------- */

/* The ranks of an instance, ascending. */
static int32_t ranks_of(const pp_preduce_t *preduce, uint64_t k, int32_t *ranks)
{
    const pp_engine_t *engine = preduce->handle.engine;
    const int32_t     *next = preduce->config.table;
    int32_t            count = 0, first = engine->rank;
    if (k == K_FLUSH || k == K_END) {
        for (int32_t rank = 0; rank < engine->size; rank++)
            ranks[count++] = rank;
        return count;
    }
    next += (k - 1) % (uint64_t)preduce->config.plan.phases * (uint64_t)engine->size;
    while (next[first] > first)      /* the circle ascends, but for its last rank */
        first = next[first];
    first = next[first];
    ranks[count++] = first;
    for (int32_t rank = next[first]; rank != first; rank = next[rank])
        ranks[count++] = rank;
    return count;
}

/* Joins the instance; `gives`: with this rank's vector, else with nothing.  `asks`: and activates it. */
static void join(pp_preduce_t *preduce, uint64_t key, bool gives, bool asks)
{
    const int32_t count = ranks_of(preduce, k_of(key), preduce->carried->members);
    /* Without a tuning table, which only rank 0 reads: all members must choose alike. */
    pp_carried_join(preduce, key, pp_carried_choose(preduce, NULL, 0, count), count, gives ? preduce->tables : NULL, asks);
}

/* This rank has left, or waits elsewhere for long, and a member of its group has waited long, too.  It has not left for
   a call that is known to be over elsewhere, although it may not have noticed yet. */
static bool is_absent(const pp_preduce_t *preduce, uint64_t key)
{
    const bool is_over = preduce->said_call > 0 && !pp_handle_left(&preduce->handle);
    return (preduce->said != PP_GROUPS_HERE && !is_over)
        || (preduce->said_elsewhere && key <= preduce->tables->awaited);
}

/* Joins what others have begun and this rank does not make now, because it has left or is out. */
static void stand_in(pp_preduce_t *preduce, uint64_t key)
{
    tables_t      *tables = preduce->tables;
    const uint64_t k = k_of(key);
    if (flushes_of(key) != tables->flushes || !is_absent(preduce, key) || preduce->ended)
        return;
    if (k == K_FLUSH || k == K_END) {
        if (preduce->said != PP_GROUPS_OUT || tables->joined)
            return;
        tables->joined = true;
        join(preduce, key, false, false);
    } else if (k > tables->k) {
        miss(preduce, k);
        join(preduce, key, false, false);
    }
}

/* Joins the flush, or the end, when this rank's last request is complete. */
static void join_call(pp_preduce_t *preduce)
{
    tables_t  *tables = preduce->tables;
    const bool flushes = preduce->said == PP_GROUPS_FLUSHES, frees = preduce->said == PP_GROUPS_FREES;
    if ((!flushes && !frees) || tables->joined || tables->running)
        return;
    tables->joined = true;
    join(preduce, key_of(tables, flushes ? K_FLUSH : K_END), flushes, true);
}

static void on_take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    pp_preduce_t *preduce = owner;
    share->tally.flush_calls = pp_handle_flush_call(&preduce->handle);
    share->null = !instance->context;
    if (!share->null)
        pp_carried_lend(preduce, instance, share);
}

/* The members that gave something are the group. */
static void describe(pp_preduce_t *preduce, const pp_instance_t *instance, int32_t count)
{
    pp_carried_t  *carried = preduce->carried;
    const uint64_t key = instance->key;
    int32_t        at = 0;
    for (int32_t rank = 0; rank < preduce->handle.engine->size; rank++)
        if (pp_mask_has(instance->registers[0].contributors, rank))
            carried->members[at++] = rank;
    for (int32_t i = 0; i < count; i++)
        carried->weights[i] = 1.0 / count;
    const uint64_t serial = key << RANK_BITS | (uint64_t)carried->members[0];
    if (carried->members[0] == preduce->handle.engine->rank)
        pp_preduce_overheard(preduce, &(pp_groups_action_t){
            .kind = k_of(key) == K_FLUSH ? PP_GROUPS_FLUSH : PP_GROUPS_BEGIN, .rank = -1, .serial = serial,
            .count = count, .members = carried->members, .weights = carried->weights});
    if (count == 1 && k_of(key) != K_FLUSH)
        pp_preduce_describe(preduce, 0, 0, 0, 0, NULL, NULL);
    else
        pp_preduce_describe(preduce, serial, 0, 0, count, carried->members, carried->weights);
}

static void flush(pp_preduce_t *preduce, uint32_t flush_calls)
{
    tables_t *tables = preduce->tables;
    if (++tables->flushes >> FLUSHES_BITS)
        pp_engine_fail(preduce->handle.engine, PP_ERR_INTERNAL, "handle %u: there have been 2^%d flushes",
                       preduce->handle.id, FLUSHES_BITS);
    tables->k = 0;
    tables->joined = false;
    tables->flushed = preduce->handle.engine->changed = true;
    if (tables->missed_capacity)
        memset(tables->missed, 0, tables->missed_capacity * sizeof *tables->missed);
    pp_preduce_flushed(preduce, PP_IN_FLUSH | flush_calls);
}

static void on_done(void *owner, pp_instance_t *instance)
{
    pp_preduce_t  *preduce = owner;
    tables_t      *tables = preduce->tables;
    const uint64_t k = k_of(instance->key);
    if (instance->context) {
        const int32_t count = (int32_t)instance->registers[0].tally.contributors;
        pp_carried_get_back(preduce, instance, count);
        describe(preduce, instance, count);
    }
    if (k == K_FLUSH) {
        flush(preduce, instance->registers[0].tally.flush_calls);
    } else if (k == K_END) {
        pp_preduce_flushed(preduce, PP_IN_FREE | instance->registers[0].tally.flush_calls);
    } else if (instance->context) {
        tables->running = false;
        pp_preduce_complete(preduce);
        preduce->handle.engine->changed = true;
    }
}

static const pp_host_t host = {.take = on_take, .done = on_done, .retired = pp_carried_retired};

/* ---- the way --------------------------------------------------------------------------------------------------- */

static pp_status_t ask(pp_preduce_t *preduce)
{
    tables_t *tables = preduce->tables;
    if (tables->k + 1 == K_END) /* the keys from here on are the flush's and the end's; nothing has been counted */
        return pp_fail(PP_ERR_STATE, "there have been 2^32 requests since the last flush: call Flush");
    const bool missed = next_request(tables);
    if (missed || ranks_of(preduce, tables->k, tables->carried.members) == 1) {
        pp_preduce_describe(preduce, 0, 0, 0, 0, NULL, NULL);
        pp_preduce_complete(preduce);
        return PP_OK;
    }
    tables->running = true;
    join(preduce, key_of(tables, tables->k), true, true);
    return PP_OK;
}

/* Stands in where others have begun while this rank had not left, or before it had completed the flush. */
static void stand_in_for_all(pp_preduce_t *preduce)
{
    const pp_instances_t *instances = &preduce->carried->instances;
    uint64_t              key = 0;
    for (bool any = pp_instances_next_early(instances, NULL, &key); any;
         any = pp_instances_next_early(instances, &key, &key))
        stand_in(preduce, key);
}

static void say(pp_preduce_t *preduce, int32_t reason, uint64_t number)
{
    (void)number;
    if (reason == PP_GROUPS_HERE)
        return;
    stand_in_for_all(preduce);
    join_call(preduce);
}

/* Tells the members of this rank's group. */
static void say_long(pp_preduce_t *preduce)
{
    tables_t      *tables = preduce->tables;
    const int32_t *members = tables->carried.members, count = ranks_of(preduce, tables->k, tables->carried.members);
    for (int32_t i = 0; i < count; i++) {
        pp_group_notice_t message = {.prefix = {.kind = PP_MSG_GROUP_NOTICE, .handle = preduce->handle.id,
                                                .round = key_of(tables, tables->k)}};
        if (members[i] != preduce->handle.engine->rank)
            pp_engine_control(preduce->handle.engine, members[i], &message.prefix, sizeof message);
    }
}

static void say_elsewhere(pp_preduce_t *preduce, bool waits)
{
    if (waits)
        stand_in_for_all(preduce);
}

static void go_on(pp_preduce_t *preduce)
{
    tables_t *tables = preduce->tables;
    if (tables->flushed)
        stand_in_for_all(preduce);
    tables->flushed = false;
    join_call(preduce);
}

static void operation(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message, size_t bytes)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    pp_instances_t *instances = &preduce->carried->instances;
    const uint64_t  key = message->round;
    const bool      is_open = pp_instances_find(instances, key);     /* the message may be the last, and close it */
    pp_instances_message(instances, peer, message, bytes);
    if (!is_open)
        stand_in(preduce, key);
}

/* A member of this rank's group has waited long. */
static void control(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    (void)peer;
    if (message->round > preduce->tables->awaited)
        preduce->tables->awaited = message->round;
    stand_in_for_all(preduce);
}

static void await(pp_preduce_t *preduce) { (void)preduce; }

static bool retired(const pp_handle_t *handle)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    return preduce->carried->instances.open == 0;
}

static void explain(pp_handle_t *handle, pp_text_t *text)
{
    pp_preduce_t *preduce = pp_preduce_of(handle);
    pp_instances_explain(&preduce->carried->instances, text);
}

static void close_groups(pp_preduce_t *preduce)
{
    if (!preduce->tables)
        return;
    free(preduce->tables->missed);
    pp_carried_close(preduce);
}

static const pp_grouping_t ops = {
    .sends = true, .aim = pp_carried_aim, .ask = ask, .say = say, .say_elsewhere = say_elsewhere, .say_long = say_long,
    .vector = pp_carried_vector, .await = await, .go_on = go_on, .close = close_groups,
    .handle = {.control = control, .operation = operation, .retired = retired, .explain = explain,
               .count_buffers = pp_carried_count_buffers},
};

/* ---- opening --------------------------------------------------------------------------------------------------- */

bool pp_table_groups_serve(const pp_preduce_t *preduce)
{
    const pp_preduce_config_t *config = &preduce->config;
    return pp_groups_have_table(&config->plan) && config->plan.weights == PP_WEIGHTS_CONSTANT
        && config->backend != PP_BACKEND_COMM && preduce->handle.engine->size <= PP_CONTRIBUTORS_MAX;
}

#if PP_SIM
pp_status_t pp_table_groups_count_from(pp_preduce_t *preduce, uint64_t flushes, uint64_t requests)
{
    if (preduce->ops != &ops || flushes >> FLUSHES_BITS || requests >= K_END)
        return pp_fail(PP_ERR_ARGUMENT, "handle %u has no table by messages, or cannot count so far",
                       preduce->handle.id);
    preduce->tables->flushes = flushes;
    preduce->tables->k = requests;
    return PP_OK;
}
#endif

pp_status_t pp_table_groups_open(pp_preduce_t *preduce)
{
    preduce->tables = calloc(1, sizeof *preduce->tables);
    preduce->ops = &ops;
    preduce->handle.ops = &ops.handle;
    if (!preduce->tables)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    /* Each other rank may be in one instance that this rank has not joined yet, with a message for each receive. */
    return pp_carried_open(preduce, &host, true, 64 * (size_t)preduce->handle.engine->size);
}
