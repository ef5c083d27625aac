/* agreement.c - collective calls on which all ranks vote.  See calls.h. */
#include "calls.h"

#include "../algo/algo.h"
#include "../node/node.h"

#include <string.h>

/* ---- votes -------------------------------------------------------------------------------------------- */

/* A merged vote has the signature of its lowest rank.  A complaint about a difference names that rank and one whose
   signature differs. */
static void differ(pp_vote_t *vote, const pp_vote_t *other)
{
    vote->complains = 2;
    vote->complaining_rank = other->rank;
    memcpy(vote->complaint, other->signature.text, sizeof vote->complaint);
}

static void quote(pp_vote_t *vote, const pp_vote_t *other)
{
    vote->complaining_rank = other->complaining_rank;
    memcpy(vote->complaint, other->complaint, sizeof vote->complaint);
}

static void merge_votes(pp_vote_t *into, const pp_vote_t *left, const pp_vote_t *right)
{
    pp_vote_t vote = *left;
    vote.no_region |= right->no_region;
    vote.lacks |= right->lacks;
    bool same = left->call == right->call
             && memcmp(left->signature.bytes, right->signature.bytes, sizeof left->signature.bytes) == 0;
    if (!left->complains && (right->complains == 1 || (right->complains == 2 && same))) {
        vote.complains = right->complains;
        quote(&vote, right);
    } else if (!left->complains && !same) {
        differ(&vote, right);
    } else if (!left->complains && !left->lacks && right->lacks) {
        quote(&vote, right);
    }
    *into = vote;
}

static void votes_keep_left(void *inout, const void *in, size_t count)
{
    if (count)
        merge_votes(inout, inout, in);
}

static void votes_keep_right(void *inout, const void *in, size_t count)
{
    if (count)
        merge_votes(inout, in, inout);
}

static void agree_take(void *owner, pp_instance_t *instance, pp_share_of_round_t *share)
{
    pp_calls_t *calls = owner;
    share->tally.contributions = share->tally.contributors = 1;
    const pp_status_t status = pp_pool_get(&calls->agree.series.vectors, &instance->accumulator);
    if (status < 0)
        pp_engine_fail(calls->engine, status, "%s", pp_error_text());
    else
        memcpy(instance->accumulator->data, &calls->vote, sizeof calls->vote);
}

static void agree_done(void *owner, pp_instance_t *instance)
{
    pp_calls_t *calls = owner;
    memcpy(&calls->vote, instance->accumulator->data, sizeof calls->vote);
    pp_pool_put(&calls->agree.series.vectors, instance->accumulator);
    instance->accumulator = NULL;
    calls->agree.round++;
    calls->agreed = true;
    calls->engine->changed = true;
}

static void agree_retired(void *owner, pp_instance_t *instance)
{
    pp_calls_t *calls = owner;
    pp_series_recycle(&calls->agree.series, instance);
}

static const pp_host_t host = {.take = agree_take, .done = agree_done, .retired = agree_retired};

static bool is_agreement(pp_call_kind_t kind) { return kind == PP_CALL_INIT || kind == PP_CALL_CTX_FREE; }

static bool is_unready(const pp_calls_t *calls) { return calls->handle && calls->handle->unready; }

void pp_agreement_vote(pp_calls_t *calls)
{
    pp_series_t   *series = &calls->agree.series;
    pp_instance_t *instance = pp_series_instance(series, calls->agree.round);
    if (is_agreement(calls->kind) && !calls->finished && !calls->agreed && !calls->entered && !is_unready(calls)
        && instance && !pp_instance_fired(instance, series->graph->gate)) {
        calls->entered = true;
        pp_instance_fire(instance, series->graph->gate);
    }
}

/* ---- beginning ------------------------------------------------------------------------------------------ */

static pp_status_t begin(pp_calls_t *calls, pp_call_kind_t kind, pp_handle_t *handle, const char *complaint)
{
    if (calls->exited > 0)
        return pp_fail(PP_ERR_PEER_FAILED, "this collective call can never complete: %d of the other ranks have ended "
                       "their scripts without freeing the context", calls->exited);
    PP_TRY(pp_call_begin(calls, kind, handle));
    calls->vote = (pp_vote_t){.rank = calls->engine->rank, .complaining_rank = calls->engine->rank,
                              .complains = complaint != NULL, .call = kind};
    snprintf(calls->vote.complaint, sizeof calls->vote.complaint, "%s", complaint ? complaint : "");
    return PP_OK;
}

/* Before it votes, the first rank of a node reserves the region for all ranks of the node. */
static void reserve(pp_calls_t *calls, bool complains)
{
    pp_node_t *node = calls->engine->node;
    const pp_handle_kind_t *kind = calls->handle->kind;
    bool first = node && node->index == 0;
    calls->region = first && !complains && kind->reserve ? kind->reserve(calls->handle) : 0;
    calls->vote.no_region = !node || (first && calls->region == 0);
    if (first)
        atomic_store(&node->commons->regions[calls->agree.round % 2], calls->region);
}

/* The region of the handle that was agreed on, in the node's memory; 0: its rounds are not made there. */
static uint64_t find_region(pp_calls_t *calls)
{
    bool none = calls->vote.no_region || calls->vote.complains;
    if (calls->region && none) {
        calls->handle->kind->unreserve(calls->handle, calls->region);
        calls->region = 0;
    }
    return none ? 0 : atomic_load(&calls->engine->node->commons->regions[(calls->agree.round - 1) % 2]);
}

/* Handles of two kinds differ, whatever their arguments. */
static pp_status_t sign(pp_handle_t *handle, pp_signature_t *signature)
{
    enum { KIND_BYTES = 8 };
    PP_TRY(handle->kind->sign(handle, signature));
    memcpy(signature->bytes + PP_SIGNATURE_BYTES, handle->kind->init, KIND_BYTES);
    return PP_OK;
}

static void say_lack(pp_calls_t *calls, const pp_wish_t *wish)
{
    calls->vote.lacks = wish && wish->why[0];
    if (calls->vote.lacks)
        snprintf(calls->vote.complaint, sizeof calls->vote.complaint, "%s", wish->why);
}

/* What all ranks have come to. */
static void grant(const pp_vote_t *vote, pp_wish_t *wish)
{
    if (!wish)
        return;
    wish->granted = !vote->lacks;
    if (vote->lacks)
        snprintf(wish->why, sizeof wish->why, "rank %d: %.220s", vote->complaining_rank, vote->complaint);
}

pp_status_t pp_agreement_begin_init(pp_calls_t *calls, const char *complaint, pp_status_t complained,
                                    pp_handle_t *handle)
{
    pp_signature_t signature = {.text = "bad arguments"};
    if (!complaint)
        PP_TRY(sign(handle, &signature));
    PP_TRY(begin(calls, PP_CALL_INIT, handle, complaint));
    calls->complained = complaint ? complained : PP_OK;
    calls->vote.signature = signature;
    if (!complaint)
        say_lack(calls, handle->wish);
    reserve(calls, complaint != NULL);
    pp_engine_settle(calls->engine);
    return PP_OK;
}

pp_status_t pp_agreement_begin_ctx_free(pp_calls_t *calls)
{
    uint32_t live = calls->team->live_handles;
    char complaint[100];
    snprintf(complaint, sizeof complaint, "the context still has %u live handle%s: call Free() of "
             "each first", live, live == 1 ? "" : "s");
    PP_TRY(begin(calls, PP_CALL_CTX_FREE, NULL, live ? complaint : NULL));
    calls->vote.signature = (pp_signature_t){.text = "Free of the context"};
    pp_engine_settle(calls->engine);
    return PP_OK;
}

/* ---- ending --------------------------------------------------------------------------------------------- */

static pp_status_t verdict(pp_calls_t *calls)
{
    const pp_vote_t *vote = &calls->vote;
    if (vote->complains == 1) {
        /* The text quotes the lowest rank that complains; but each that does gets its own error. */
        snprintf(calls->text, sizeof calls->text, "rank %d: %s", vote->complaining_rank,
                 vote->complaint);
        if (calls->kind == PP_CALL_CTX_FREE)
            return PP_ERR_STATE;
        return calls->complained < 0 ? calls->complained : PP_ERR_MISMATCH;
    }
    snprintf(calls->text, sizeof calls->text, "the ranks disagree: rank %d has %s, rank %d has %s",
             vote->rank, vote->signature.text, vote->complaining_rank, vote->complaint);
    return PP_ERR_MISMATCH;
}

static pp_status_t open_handle(pp_calls_t *calls, pp_handle_t *handle, const pp_agreed_t *agreed)
{
    static const pp_handle_ops_t nothing;      /* until it is open; for good, if it cannot be */
    handle->ops = &nothing;
    PP_TRY(pp_engine_register(calls->engine, handle, agreed->id));
    pp_handle_keep_in_step(handle, true);
    return handle->kind->open(handle, agreed);
}

/* False: the ranks do not make the handle. */
static bool begin_handle(pp_calls_t *calls, pp_status_t *status)
{
    pp_handle_t *handle = calls->handle;
    uint64_t     region = find_region(calls);
    if (calls->vote.complains) {
        *status = verdict(calls);
        calls->handle = NULL;
        pp_handle_release(handle);
        return false;
    }
    /* The id is the number of the agreement, not of the handle: so ranks whose *_init met another rank's Free of the
       context have counted alike. */
    const pp_agreed_t agreed = {.id = (uint32_t)calls->agree.round, .choice = calls->vote.signature.choice,
                                .reason = calls->vote.signature.reason, .region = region};
    grant(&calls->vote, handle->wish);
    *status = open_handle(calls, handle, &agreed);
    calls->team->live_handles++;
    return true;
}

void pp_agreement_end_init(pp_calls_t *calls)
{
    pp_status_t status = PP_OK;
    if (!calls->opened && !begin_handle(calls, &status)) {
        pp_call_finish(calls, status);
        return;
    }
    calls->opened = true;
    if (status >= 0 && calls->handle->meet)
        status = calls->handle->meet(calls->handle);
    if (status == PP_PENDING)
        return;
    if (status < 0) {
        /* The other ranks have the handle, and would wait for this one. */
        snprintf(calls->text, sizeof calls->text, "%s", pp_error_text());
        pp_engine_fail(calls->engine, status, "%s", calls->text);
        pp_exit_tell_gone(calls);
    }
    pp_call_finish(calls, status);
}

pp_status_t pp_agreement_pretend(pp_calls_t *calls, pp_handle_t *handle)
{
    pp_signature_t signature = {0};
    pp_status_t status = handle->kind->sign(handle, &signature);
    const pp_agreed_t agreed = {.id = calls->team->live_handles + 1, .choice = signature.choice,
                                .reason = signature.reason};
    if (status >= 0)
        status = open_handle(calls, handle, &agreed);
    if (status >= 0)
        calls->team->live_handles++;
    return status;
}

void pp_agreement_end_ctx_free(pp_calls_t *calls)
{
    if (calls->vote.complains) {
        pp_call_finish(calls, verdict(calls));
        return;
    }
    if (!calls->closing)
        pp_call_tell_all(calls, PP_MSG_CLOSE);
    calls->closing = true;
    if (calls->closed == calls->engine->size - 1)
        pp_call_finish(calls, PP_OK);
}

/* Lists the ranks of this node that are not in the call, by their presence; it is published only with rounds on
   boards. */
static void list_absent(const pp_calls_t *calls, pp_text_t *text)
{
    const pp_node_t  *node = calls->engine->node;
    const pp_nodes_t *nodes = calls->engine->nodes;
    pp_listing_t listing = {.text = text, .before = "not in the call: "};
    for (int32_t index = 0; calls->team->board_count > 0 && index < node->size; index++)
        if (index != node->index && !pp_node_left(node, index))
            pp_listing_add(&listing, nodes ? pp_nodes_rank(nodes, nodes->mine, index) : index, NULL);
    pp_listing_end(&listing, "");
}

void pp_agreement_explain(const pp_calls_t *calls, pp_text_t *text)
{
    const pp_instance_t *instance = pp_series_instance((pp_series_t *)&calls->agree.series, calls->agree.round);
    if (!is_agreement(calls->kind))
        return;
    if (is_unready(calls))
        pp_text_add(text, "what this rank's buffers hold is on its way from their device\n");
    if (!calls->agreed)
        list_absent(calls, text);
    if (!calls->agreed && instance)
        pp_series_explain(instance, "the call", text);
    else if (calls->closing)
        pp_text_add(text, "this rank has received %d of the %d closing messages of the other ranks\n", calls->closed,
                    calls->engine->size - 1);
}

pp_status_t pp_agreement_open(pp_calls_t *calls, const pp_handle_kind_t *kind, const pp_handle_ops_t *ops)
{
    pp_kernels_t kernels = {.keep_left = votes_keep_left, .keep_right = votes_keep_right,
                            .element_bytes = sizeof(pp_vote_t), .memory = &pp_memory_host};
    pp_engine_t *engine = calls->engine;
    pp_graph_t  *graph = NULL;
    calls->agree.handle = (pp_handle_t){.kind = kind, .ops = ops, .team = calls->team};
    PP_TRY(pp_engine_register(engine, &calls->agree.handle, 0));
    PP_TRY(pp_algo_synchronous_allreduce(PP_ALGORITHM_FIRST, engine->rank, engine->size, 1, 1, &graph));
    return pp_series_open(engine, 0, graph, NULL, &kernels, 2, &host, calls, &calls->agree.series);
}
