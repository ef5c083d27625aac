/*
 * calls.c - collective calls, written as state machines so that a rank inside one goes on serving the
 * rounds of the others.  One call at a time; see coll.h.
 *
 * Initialisation and the release of a context are *agreements*: a synchronous allreduce of one word
 * (handle 0) whose merge keeps the lowest rank's signature and the first complaint.  Flush, Drain and
 * Free of a handle end with a round of that handle in which every rank had left for good.
 */
#include "between.h"

#include <stdlib.h>
#include <string.h>

/* ---- agreement ---------------------------------------------------------------------------------------- */

/* A word's signature is that of its lowest rank; a complaint about a difference names that rank and one
   whose signature differs. */
static void differ(pp_word_t *word, const pp_word_t *other)
{
    word->complains = 2;
    word->complaining_rank = other->rank;
    memcpy(word->complaint, other->text, sizeof word->complaint);
}

static void merge_words(pp_word_t *into, const pp_word_t *left, const pp_word_t *right)
{
    pp_word_t word = *left;
    word.unplaced |= right->unplaced;
    bool same = memcmp(left->signature, right->signature, PP_SIGNATURE_BYTES) == 0;
    if (!left->complains && (right->complains == 1 || (right->complains == 2 && same))) {
        word.complains = right->complains;
        word.complaining_rank = right->complaining_rank;
        memcpy(word.complaint, right->complaint, sizeof word.complaint);
    } else if (!left->complains && !same) {
        differ(&word, right);
    }
    *into = word;
}

static void words_keep_left(void *inout, const void *in, size_t count)
{
    if (count)
        merge_words(inout, inout, in);
}

static void words_keep_right(void *inout, const void *in, size_t count)
{
    if (count)
        merge_words(inout, in, inout);
}

static void agree_take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    pp_calls_t *calls = owner;
    share->tally.contributions = share->tally.contributors = 1;
    instance->accumulator = pp_pool_get(&calls->agree.vectors);
    if (instance->accumulator)
        memcpy(instance->accumulator->data, &calls->word, sizeof calls->word);
    else
        pp_engine_fail(calls->engine, PP_ERR_MEMORY, "no memory for an agreement");
}

static void agree_done(void *owner, pp_instance_t *instance)
{
    pp_calls_t *calls = owner;
    memcpy(&calls->word, instance->accumulator->data, sizeof calls->word);
    pp_pool_put(&calls->agree.vectors, instance->accumulator);
    instance->accumulator = NULL;
    calls->agree_round++;
    calls->agreed = true;
    calls->engine->changed = true;
}

static void agree_retired(void *owner, pp_instance_t *instance)
{
    pp_calls_t *calls = owner;
    pp_series_recycle(&calls->agree, instance);
}

static void agree_update(void *owner)
{
    pp_calls_t *calls = owner;
    pp_instance_t *instance = pp_series_instance(&calls->agree, calls->agree_round);
    bool agreeing = calls->kind == PP_CALL_INIT || calls->kind == PP_CALL_CTX_FREE;
    if (agreeing && !calls->finished && !calls->agreed && instance
        && !pp_instance_fired(instance, calls->agree.graph->gate) && !calls->entered) {
        calls->entered = true;
        pp_instance_fire(instance, calls->agree.graph->gate);
    }
    pp_calls_update(calls);
}

static void agree_control(void *owner, int32_t peer, const pp_prefix_t *message)
{
    pp_calls_t *calls = owner;
    pp_engine_fail(calls->engine, PP_ERR_INTERNAL, "message of kind %u from rank %d to no handle",
                   message->kind, peer);
}

static const pp_host_t agree_host = {
    .take = agree_take, .done = agree_done, .retired = agree_retired, .control = agree_control,
    .update = agree_update,
};

/* ---- beginning ------------------------------------------------------------------------------------------ */

/* Some round has begun here and is not done. */
static bool in_mid_round(const pp_engine_t *engine)
{
    bool any = false;
    for (size_t i = 1; i < engine->series_count && !any; i++)
        any = engine->series[i] && pp_coll_in_mid_round(engine->series[i]->owner);
    return any;
}

static pp_status_t begin(pp_calls_t *calls, pp_call_kind_t kind, pp_coll_t *coll)
{
    PP_TRY(pp_engine_check(calls->engine));
    if (calls->kind != PP_CALL_NONE)
        return pp_fail(PP_ERR_STATE, "another collective call of this context is still in progress");
    calls->kind = kind;
    calls->coll = coll;
    calls->finished = calls->agreed = calls->entered = false;
    calls->status = PP_OK;
    calls->text[0] = 0;
    calls->engine->in_call = true;
    calls->engine->changed = true;
    calls->engine->coverage.departures += in_mid_round(calls->engine);
    return PP_OK;
}

static pp_status_t begin_agreement(pp_calls_t *calls, pp_call_kind_t kind, pp_coll_t *coll,
                                   const char *complaint)
{
    if (calls->exited > 0)
        return pp_fail(PP_ERR_PEER_FAILED, "%d ranks have ended their scripts without freeing the "
                       "context: this collective call can never complete", calls->exited);
    PP_TRY(begin(calls, kind, coll));
    calls->word.rank = calls->word.complaining_rank = calls->engine->rank;
    calls->word.complains = complaint != NULL;
    snprintf(calls->word.complaint, sizeof calls->word.complaint, "%s", complaint ? complaint : "");
    return PP_OK;
}

/* As the application knows it. */
static void name_policy(const pp_allreduce_config_t *config, int32_t size, char *name, size_t bytes)
{
    if (config->policy_text)
        snprintf(name, bytes, "%s", config->policy_text);
    else if (config->policy == PP_FIRST_OF && config->policy_k == size)
        snprintf(name, bytes, "Solo()");
    else if (config->policy == PP_FIRST_OF && config->policy_k == 1)
        snprintf(name, bytes, "Majority()");
    else if (config->policy == PP_QUORUM && config->policy_k == size)
        snprintf(name, bytes, "Full()");
    else
        snprintf(name, bytes, "%s(%d)", config->policy == PP_FIRST_OF ? "FirstOf" : "Quorum",
                 config->policy_k);
}

/* The arguments that must be the same everywhere, as bytes to compare and as words to show. */
static void sign(pp_calls_t *calls, const pp_allreduce_config_t *config, size_t count)
{
    static const char *const delivers[] = {"latest", "sum", "each"};
    static const char *const averages[] = {"None", "size", "contributors", "contributions"};
    static const char *const algorithms[] = {"auto", "recursive-doubling", "rabenseifner", "ring",
                                             "shared-memory"};
    struct {
        uint64_t count;
        int64_t  deadline_ns, grace_ns;
        int32_t  kind, type, op, policy, policy_k, deliver, max_lag, average, algorithm, segments;
    } key;
    memset(&key, 0, sizeof key);
    key.count = count;
    key.kind = calls->kind;
    if (config) {
        key.type = config->type, key.op = config->op, key.policy = config->policy;
        key.policy_k = config->policy_k, key.deliver = config->deliver;
        key.max_lag = config->max_lag < 0 ? -1 : config->max_lag;
        key.average = config->average, key.algorithm = config->algorithm;
        key.segments = config->segments;
        key.deadline_ns = config->deadline_ns, key.grace_ns = config->grace_ns;
        char policy[96], max_lag[16] = "None";
        name_policy(config, calls->engine->size, policy, sizeof policy);
        if (key.max_lag >= 0)
            snprintf(max_lag, sizeof max_lag, "%d", key.max_lag);
        snprintf(calls->word.text, sizeof calls->word.text, "%llu elements of %s, op %s, policy %s, "
                 "deliver=%s, max_lag=%s, average=%s, algorithm=%s", (unsigned long long)count,
                 pp_type_name(config->type), pp_op_name(config->op), policy,
                 delivers[config->deliver], max_lag, averages[config->average],
                 algorithms[config->algorithm]);
    } else {
        snprintf(calls->word.text, sizeof calls->word.text, "%s",
                 calls->kind == PP_CALL_CTX_FREE ? "Free of the context" : "bad arguments");
    }
    _Static_assert(sizeof key <= PP_SIGNATURE_BYTES, "the signature must hold every argument");
    memset(calls->word.signature, 0, sizeof calls->word.signature);
    memcpy(calls->word.signature, &key, sizeof key);
}

/* The first rank of a node does it for all, before it gives its word. */
static void reserve(pp_calls_t *calls, const pp_allreduce_config_t *config)
{
    pp_node_t *node = calls->engine->node;
    bool first = node && node->index == 0;
    calls->place = first && config ? pp_combine_reserve(calls->engine, config, calls->window) : 0;
    calls->word.unplaced = !node || (first && calls->place == 0);
    if (first)
        atomic_store(&node->commons->places[calls->agree_round % 2], calls->place);
}

/* Where the handle that was agreed on has its rounds in the node's memory; 0: not there. */
static uint64_t find_place(pp_calls_t *calls)
{
    if (calls->place && (calls->word.unplaced || calls->word.complains)) {
        pp_combine_unreserve(calls->engine, &calls->coll->config, calls->window, calls->place);
        calls->place = 0;
    }
    if (calls->word.unplaced || calls->word.complains)
        return 0;
    return atomic_load(&calls->engine->node->commons->places[(calls->agree_round - 1) % 2]);
}

/* What a handle's messages are made by, and why, as this rank sees it; rank 0's word counts.  It is asked for
   so many participants on one kind of link, and depends on nothing else of the context. */
static pp_status_t choose(const pp_calls_t *calls, const pp_allreduce_config_t *config, size_t count,
                          pp_choice_t *choice)
{
    *choice = (pp_choice_t){.algorithm = config->algorithm, .reason = PP_REASON_ASKED};
    if (config->algorithm != PP_ALGORITHM_AUTO)
        return PP_OK;
    return pp_choose(calls->tuned, calls->tuned_count, count, pp_accumulator_bytes(config->type),
                     calls->engine->nodes ? calls->engine->nodes->count : calls->engine->size, calls->link,
                     choice);
}

pp_status_t pp_calls_begin_init(pp_calls_t *calls, const pp_allreduce_config_t *config,
                                const char *complaint, pp_coll_t *coll)
{
    size_t count = 0;
    pp_choice_t choice = {0};
    for (size_t i = 0; !complaint && i < config->piece_count; i++)
        count += config->pieces[i].count;
    if (!complaint)
        PP_TRY(choose(calls, config, count, &choice));
    PP_TRY(begin_agreement(calls, PP_CALL_INIT, coll, complaint));
    sign(calls, complaint ? NULL : config, count);
    calls->word.choice = choice.algorithm;
    calls->word.reason = choice.reason;
    reserve(calls, complaint ? NULL : config);
    pp_engine_settle(calls->engine);
    return PP_OK;
}

pp_status_t pp_calls_begin_ctx_free(pp_calls_t *calls)
{
    char complaint[100];
    snprintf(complaint, sizeof complaint, "the context still has %u live handle%s: call Free() of "
             "each first", calls->live_handles, calls->live_handles == 1 ? "" : "s");
    PP_TRY(begin_agreement(calls, PP_CALL_CTX_FREE, NULL, calls->live_handles ? complaint : NULL));
    sign(calls, NULL, 0);
    pp_engine_settle(calls->engine);
    return PP_OK;
}

pp_status_t pp_calls_begin_flush(pp_calls_t *calls, pp_coll_t *coll, pp_call_kind_t kind)
{
    PP_TRY(begin(calls, kind, coll));
    pp_deliver_drop_request(coll);
    calls->discarded = 0;
    if (kind == PP_CALL_FREE)
        calls->discarded += pp_coll_discard(coll);
    if (kind == PP_CALL_DRAIN && coll->ungiven) {
        /* Nothing to wait for: this step has not left. */
        calls->engine->in_call = false;
        calls->finished = true;
        pp_deliver_bind(coll);
    }
    pp_engine_settle(calls->engine);
    return PP_OK;
}

static void tell_all(pp_calls_t *calls, pp_message_kind_t kind)
{
    for (int32_t peer = 0; peer < calls->engine->size; peer++) {
        pp_prefix_t message = {.kind = (uint16_t)kind};
        if (peer != calls->engine->rank)
            pp_engine_control(calls->engine, peer, &message, sizeof message);
    }
}

/* A handle whose creation will not come to its end is nobody's yet. */
static void drop_unborn(pp_calls_t *calls)
{
    if (calls->kind == PP_CALL_INIT && !calls->finished)
        pp_coll_free(calls->coll);
    calls->coll = NULL;
}

/* A word that is in cannot be taken back: the others may agree without us, and wait for what follows. */
static bool agreement_interrupted(const pp_calls_t *calls)
{
    return (calls->kind == PP_CALL_INIT || calls->kind == PP_CALL_CTX_FREE) && !calls->finished;
}

/* The script has ended without Free: serve the others until they have ended, too. */
void pp_calls_begin_exit(pp_calls_t *calls)
{
    pp_engine_t *engine = calls->engine;
    if (calls->closing)      /* everybody frees the context: wait for their last messages, and send none */
        return;
    if (agreement_interrupted(calls)) {
        pp_engine_fail(engine, PP_ERR_STATE, "the script ended inside a collective call");
        pp_calls_tell_gone(calls);
        return;
    }
    for (size_t i = 1; i < engine->series_count; i++)
        if (engine->series[i])
            pp_deliver_drop_request(engine->series[i]->owner);
    drop_unborn(calls);
    calls->kind = PP_CALL_EXIT;
    calls->finished = false;
    calls->status = PP_OK;
    engine->in_call = engine->changed = true;
    tell_all(calls, PP_MSG_EXIT);
    pp_engine_settle(engine);
}

void pp_calls_tell_gone(pp_calls_t *calls)
{
    pp_engine_t *engine = calls->engine;
    for (int32_t peer = 0; !calls->told_gone && !calls->closing && peer < engine->size; peer++) {
        pp_gone_t message = {.prefix.kind = PP_MSG_GONE, .status = engine->error};
        memcpy(message.text, engine->error_text, sizeof message.text);
        if (peer != engine->rank)
            pp_engine_control(engine, peer, &message.prefix, sizeof message);
    }
    calls->told_gone = true;
}

/* ---- ending --------------------------------------------------------------------------------------------- */

static void finish_call(pp_calls_t *calls, pp_status_t status)
{
    calls->status = status;
    calls->finished = true;
    pp_engine_call_ended(calls->engine);
}

bool pp_calls_flushing(const pp_calls_t *calls, const pp_coll_t *coll)
{
    switch (calls->kind) {
    case PP_CALL_FLUSH: case PP_CALL_DRAIN: case PP_CALL_FREE:
        return calls->coll == coll && !calls->finished && !calls->agreed;
    case PP_CALL_EXIT:
        /* Somebody may still flush it. */
        return !coll->ended && calls->exited + calls->gone < calls->engine->size - 1;
    default:
        return false;
    }
}

void pp_calls_flush_done(pp_calls_t *calls, pp_coll_t *coll, uint32_t flush_calls)
{
    pp_engine_t *engine = calls->engine;
    coll->ended = flush_calls & PP_IN_FREE;
    if (calls->kind == PP_CALL_EXIT) {
        /* The others' call is over; we stay outside, but must not fall behind their count. */
        engine->calls++;
        engine->replay = engine->changed = true;
    } else if (calls->coll == coll
               && (calls->kind == PP_CALL_FLUSH || calls->kind == PP_CALL_DRAIN)) {
        pp_deliver_bind(coll);
        finish_call(calls, PP_OK);
    } else if (calls->coll == coll && calls->kind == PP_CALL_FREE) {
        calls->agreed = true;     /* pp_calls_update() waits for the last messages of the handle */
    }
}

/* A drain step ends with any round; only the last one, the flush, ends the collective call. */
void pp_calls_drain_step(pp_calls_t *calls, pp_coll_t *coll)
{
    if (calls->kind != PP_CALL_DRAIN || calls->coll != coll || calls->finished
        || coll->ungiven_last->tally.cause == PP_CAUSE_FLUSH)
        return;
    calls->finished = true;
    calls->engine->in_call = false;
    calls->engine->changed = true;
    pp_deliver_bind(coll);
}

static pp_status_t verdict(pp_calls_t *calls)
{
    const pp_word_t *word = &calls->word;
    if (word->complains == 1) {
        bool mine = word->complaining_rank == calls->engine->rank;
        snprintf(calls->text, sizeof calls->text, "rank %d: %s", word->complaining_rank,
                 word->complaint);
        if (calls->kind == PP_CALL_CTX_FREE)
            return PP_ERR_STATE;
        return mine ? PP_ERR_ARGUMENT : PP_ERR_MISMATCH;
    }
    snprintf(calls->text, sizeof calls->text, "the ranks disagree: rank %d has %s, rank %d has %s",
             word->rank, word->text, word->complaining_rank, word->complaint);
    return PP_ERR_MISMATCH;
}

static void end_init(pp_calls_t *calls)
{
    pp_status_t status = PP_OK;
    uint64_t    place = find_place(calls);
    if (calls->word.complains) {
        status = verdict(calls);
        pp_coll_free(calls->coll);
        finish_call(calls, status);
        return;
    }
    /* Numbered by agreements, not by handles: ranks whose Allreduce_init met another rank's Free of the
       context have counted alike. */
    calls->coll->reason = calls->word.reason;
    status = pp_coll_open(calls->coll, calls, (uint32_t)calls->agree_round, calls->word.choice, place);
    if (status < 0) {
        /* The others have the handle, and would wait for us. */
        snprintf(calls->text, sizeof calls->text, "%s", pp_error_text());
        pp_engine_fail(calls->engine, status, "%s", calls->text);
        pp_calls_tell_gone(calls);
    }
    calls->live_handles++;
    finish_call(calls, status);
}

pp_status_t pp_calls_agreed_init(pp_calls_t *calls, const pp_allreduce_config_t *config,
                                 pp_coll_t **coll)
{
    pp_choice_t choice;
    PP_TRY(pp_coll_new(config, coll));
    pp_status_t status = choose(calls, config, (*coll)->count, &choice);
    (*coll)->reason = choice.reason;
    if (status >= 0)
        status = pp_coll_open(*coll, calls, ++calls->live_handles, choice.algorithm, 0);
    if (status >= 0)
        return PP_OK;
    pp_coll_free(*coll);
    *coll = NULL;
    return status;
}

static bool all_retired(const pp_coll_t *coll)
{
    if (coll->combine)
        return coll->combine->workers == 0 && (!coll->combine->between || pp_between_retired(coll));
    return coll->series.opened == coll->completed + (uint64_t)coll->series.window;
}

static void end_free(pp_calls_t *calls)
{
    pp_coll_t *coll = calls->coll;
    if (!all_retired(coll))
        return;
    pp_coll_free(coll);
    calls->coll = NULL;
    calls->live_handles--;
    finish_call(calls, PP_OK);
}

static void end_ctx_free(pp_calls_t *calls)
{
    if (calls->word.complains) {
        finish_call(calls, verdict(calls));
        return;
    }
    if (!calls->closing)
        tell_all(calls, PP_MSG_CLOSE);
    calls->closing = true;
    if (calls->closed == calls->engine->size - 1)
        finish_call(calls, PP_OK);
}

void pp_calls_update(pp_calls_t *calls)
{
    if (calls->finished)
        return;
    if (calls->kind == PP_CALL_EXIT) {
        if (calls->exited + calls->gone >= calls->engine->size - 1)
            calls->finished = true;
        return;
    }
    if (!calls->agreed)
        return;
    if (calls->kind == PP_CALL_INIT)
        end_init(calls);
    else if (calls->kind == PP_CALL_FREE)
        end_free(calls);
    else if (calls->kind == PP_CALL_CTX_FREE)
        end_ctx_free(calls);
}

void pp_calls_explain(const pp_calls_t *calls, pp_text_t *text)
{
    const pp_instance_t *instance =
        pp_series_instance((pp_series_t *)&calls->agree, calls->agree_round);
    if (calls->kind != PP_CALL_INIT && calls->kind != PP_CALL_CTX_FREE)
        return;
    if (!calls->agreed && instance)
        pp_series_explain(instance, text);
    else if (calls->closing)
        pp_text_add(text, "%d of %d closing messages have come\n", calls->closed,
                    calls->engine->size - 1);
}

/* ---- messages of the context --------------------------------------------------------------------------- */

static void peer_gone(pp_calls_t *calls, int32_t peer, const pp_gone_t *message)
{
    calls->gone++;
    calls->engine->changed = true;
    if (calls->kind == PP_CALL_EXIT)
        return;
    /* What concerns all ranks is passed on as it is, so that all of them show the first cause. */
    if (message->status == PP_ERR_MISMATCH || message->status == PP_ERR_PEER_FAILED)
        pp_engine_fail(calls->engine, message->status, "%s", message->text);
    else
        pp_engine_fail(calls->engine, PP_ERR_PEER_FAILED, "rank %d gave the context up: %s", peer,
                       message->text);
}

static void peer_exited(pp_calls_t *calls, int32_t peer)
{
    bool agreeing = calls->kind == PP_CALL_INIT || calls->kind == PP_CALL_CTX_FREE;
    calls->exited++;
    calls->engine->changed = true;
    if (agreeing && !calls->agreed)
        pp_engine_fail(calls->engine, PP_ERR_PEER_FAILED, "rank %d has ended its script without freeing "
                       "the context: this collective call can never complete", peer);
}

static void control(void *owner, int32_t peer, const pp_prefix_t *message)
{
    pp_calls_t *calls = owner;
    switch (message->kind) {
    case PP_MSG_ASK:   pp_ask_answer(calls, peer, (const pp_tell_t *)message); break;
    case PP_MSG_TELL:  pp_ask_told(calls, peer, (const pp_tell_t *)message); break;
    case PP_MSG_CLOSE: calls->closed++; calls->engine->changed = true; break;
    case PP_MSG_EXIT:  peer_exited(calls, peer); break;
    case PP_MSG_GONE:  peer_gone(calls, peer, (const pp_gone_t *)message); break;
    }
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

pp_status_t pp_calls_open(pp_calls_t *calls, pp_engine_t *engine, int32_t window)
{
    pp_kernels_t kernels = {.keep_left = words_keep_left, .keep_right = words_keep_right,
                            .element_bytes = sizeof(pp_word_t)};
    pp_graph_t *graph = NULL;
    *calls = (pp_calls_t){.engine = engine, .window = window};
    engine->control = control;
    engine->owner = calls;
    PP_TRY(pp_algo_synchronous_allreduce(PP_RECURSIVE_DOUBLING, engine->rank, engine->size, 1,
                                         1, &graph));
    return pp_series_open(engine, 0, graph, NULL, &kernels, 2, &agree_host, calls, &calls->agree);
}

void pp_calls_close(pp_calls_t *calls)
{
    drop_unborn(calls);
    pp_engine_t *engine = calls->engine;
    if (!engine)
        return;
    for (size_t i = 1; i < engine->series_count; i++)
        if (engine->series[i])
            pp_coll_free(engine->series[i]->owner);
    pp_series_close(&calls->agree);
    free(calls->tuned);
    calls->tuned = NULL;
    calls->engine = NULL;
}
