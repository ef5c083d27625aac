/* combine.c - see combine.h. */
#include "between.h"
#include "rounds.h"

#include <stdlib.h>
#include <string.h>

enum {
    ENTRIES_BEYOND_WINDOW = 3,       /* being written, being copied, and kept from a flush */
    SPARED = 2,                      /* newest results that a slow reader may still copy (PP_LATEST) */
    WHOLE_BYTES = 16384,             /* moved by the claimer, at once */
    GRACE_BYTES = 49152,             /* from here on; see grace_ns() */
    GRACE_BYTES_A_NS = 32,
    GRACE_NS_MAX = 20000,
    LONG_GRACE_BYTES_A_NS = 4,
    LONG_GRACE_NS_MAX = PP_RIPENS_NS_MAX,
    HOPE_MAX = 8,                    /* halved when nobody came */
    RECRUIT_BYTES = 1 << 20,
    CHUNK_BYTES = 65536,
    CHUNK_BYTES_MIN = 8192,
    CHUNKS_A_RANK = 2                /* at least, if the chunks do not become too small */
};

/* Of a vector, where it is compared with what is large. */
static size_t weight_bytes(const pp_coll_t *coll)
{
    return coll->combine->board.vector_bytes * pp_node_of(coll)->magnify;
}

/* Whether rounds wait a moment, once they are to be run, for ranks that come a little later: with large vectors a
   round of all is much cheaper than two of some, whose ranks then copy what others get in place, and so come
   late again. */
static bool has_grace(const pp_coll_t *coll)
{
    return coll->config.policy == PP_FIRST_OF && weight_bytes(coll) >= GRACE_BYTES;
}

/* Much less than the round takes; or about as long as a rank takes that was late, if some came too late by little. */
static uint64_t grace_ns(const pp_coll_t *coll)
{
    size_t bytes = weight_bytes(coll);
    PP_STEP("ripen");
    bool     hope = atomic_load_explicit(&coll->combine->board.shared->hope, memory_order_relaxed) > 0;
    uint64_t ns = bytes / (hope ? LONG_GRACE_BYTES_A_NS : GRACE_BYTES_A_NS);
    uint64_t most = hope ? LONG_GRACE_NS_MAX : GRACE_NS_MAX;
    return ns < most ? ns : most;
}

static void set_hope(pp_coll_t *coll, uint32_t hope)
{
    PP_STEP("ripen");
    atomic_store_explicit(&coll->combine->board.shared->hope, hope, memory_order_relaxed);
}

/* Every round is given to everybody. */
static bool keeps_all(const pp_coll_t *coll) { return coll->config.deliver != PP_LATEST; }

/* ---- what a rank says of itself ------------------------------------------------------------------------- */

static pp_leaving_t leaving(const pp_coll_t *coll)
{
    /* A rank that is out says so by its presence. */
    if (coll->calls->kind == PP_CALL_EXIT || !pp_calls_flushing(coll->calls, coll))
        return PP_STAYS;
    return coll->calls->kind == PP_CALL_FREE  ? PP_FREES
         : coll->calls->kind == PP_CALL_DRAIN ? PP_STEPS
                                              : PP_FLUSHES;
}

static uint64_t state_of(const pp_coll_t *coll)
{
    const pp_combine_t *combine = coll->combine;
    pp_leaving_t leaves = leaving(coll);
    uint64_t round = coll->completed, state = 0;
    if (pp_coll_waits(coll))
        state |= PP_WORD_WAITS | (pp_board_own(&combine->board)->receive ? PP_WORD_DIRECT : 0);
    else if (leaves == PP_STAYS)
        return 0;
    else
        state |= (uint64_t)leaves << PP_WORD_LEAVING_SHIFT;
    if (leaves == PP_FLUSHES || leaves == PP_FREES)
        round = combine->flushes;
    return state | pp_word_round_bits(round) << PP_WORD_ROUND_SHIFT;
}

/* The oldest round whose entry of the ring this rank still needs. */
static uint64_t absorbed(const pp_coll_t *coll)
{
    uint64_t least = coll->completed;
    const pp_entry_t *given = coll->request.entry ? coll->request.entry : coll->combine->copied;
    if (coll->calls->kind == PP_CALL_EXIT)
        return UINT64_MAX;
    if (given && given->place == PP_IN_RING)
        least = given->round;
    for (const pp_entry_t *entry = coll->ungiven; entry; entry = entry->next)
        if (entry->place == PP_IN_RING && entry->round < least)
            least = entry->round;
    return least;
}

/* The first round that max_lag forbids to go on without this rank, unless it is exempt. */
static uint64_t bound(const pp_coll_t *coll)
{
    uint64_t given = coll->counted;
    if (coll->config.max_lag < 0)
        return UINT64_MAX;
    if (pp_coll_waits(coll) && given < coll->completed + 1)
        given = coll->completed + 1;
    return given + coll->max_lag;
}

/* What the others look at: Full waits for every rank anyway. */
static uint64_t limit(const pp_coll_t *coll) { return pp_is_bounded(coll) ? bound(coll) : UINT64_MAX; }

/* Returns whether there was something to say. */
static bool publish_bounds(pp_coll_t *coll)
{
    bool news = false;
    pp_combine_t *combine = coll->combine;
    pp_station_t *own = pp_board_own(&combine->board);
    uint64_t rounds = limit(coll), needed = absorbed(coll);
    if (rounds != combine->limit) {
        combine->limit = rounds;
        PP_STEP("say");
        atomic_store(&own->limit, rounds);
        news = true;
    }
    /* The latest result only has to stay if it is that of a flush. */
    if (needed != combine->absorbed && (keeps_all(coll) || combine->absorbed < combine->flushed)) {
        combine->absorbed = needed;
        PP_STEP("say");
        atomic_store(&own->absorbed, needed);
        news = true;
    }
    return news;
}

/* Requests that are outstanding on handles whose rounds are made of messages: nobody else can see those. */
static bool waits_for_messages(const pp_engine_t *engine)
{
    uint32_t waiting = engine->waiting;
    for (size_t i = 1; waiting > 0 && i < engine->series_count; i++) {
        const pp_coll_t *coll = engine->series[i] ? engine->series[i]->owner : NULL;
        waiting -= coll && coll->combine && pp_coll_waits(coll);
    }
    return waiting > 0;
}

static void publish_presence(const pp_coll_t *coll)
{
    const pp_engine_t *engine = coll->engine;
    pp_node_set_presence(engine->node, engine->calls, engine->in_call, coll->calls->kind == PP_CALL_EXIT,
                         waits_for_messages(engine));
}

/* ---- bringing this rank up to date ------------------------------------------------------------------------ */

/* What the entry says that is this rank's own. */
static void describe_own(pp_coll_t *coll, const pp_ring_entry_t *from, pp_entry_t *entry)
{
    pp_combine_t *combine = coll->combine;
    int32_t me = coll->engine->node->index;
    const pp_share_t share = from->shares[me];
    entry->staleness = entry->own_contributions = 0;
    if (pp_mask_has(entry->contributors, coll->engine->rank)) {
        entry->own_contributions = share.contributions;
        if (entry->round > share.oldest_given)
            entry->staleness = entry->round - share.oldest_given;
        if (combine->starts_taken < share.starts)
            combine->starts_taken = share.starts;
    }
    entry->starts_taken = combine->starts_taken;
    entry->external = !from->flush && !pp_mask_has(from->triggers, me);
}

/* The entry of the oldest round from coll->completed on that the ring has; PP_PENDING if it was overwritten
   while we read. */
static pp_status_t read_entry(pp_coll_t *coll, pp_entry_t *entry, uint64_t *left)
{
    const pp_board_t *board = &coll->combine->board;
    size_t mask_bytes = coll->series.mask_words * sizeof(uint64_t);
    int32_t index = pp_board_find(board, coll->completed);
    uint64_t round = coll->completed;
    if (index < 0) {
        round = pp_board_oldest(board, coll->completed);
        index = round == UINT64_MAX ? -1 : pp_board_find(board, round);
    }
    if (index < 0)
        return PP_PENDING;
    const pp_ring_entry_t *from = pp_board_entry(board, index);
    entry->round = entry->first = round;
    entry->tally = from->tally;
    memcpy(entry->contributors, from->contributors, mask_bytes);
    if (from->tally.any_left)
        memcpy(left, from->left, mask_bytes);
    bool direct = pp_mask_has(from->direct, board->node->index);
    entry->place = from->null ? PP_NOWHERE : direct ? PP_IN_RECEIVE : PP_IN_RING;
    entry->ring = index;
    describe_own(coll, from, entry);
    return pp_board_still(board, index, round) ? PP_OK : PP_PENDING;
}

/* Rounds that this rank will never look at (PP_LATEST) may have taken what it had pending. */
static void count_skipped(pp_coll_t *coll, uint64_t next)
{
    pp_combine_t *combine = coll->combine;
    pp_station_t *own = pp_board_own(&combine->board);
    PP_STEP("look");
    uint32_t pending = pp_word_pending(atomic_load(&own->word));
    PP_STEP("look");
    uint64_t starts = 0, taken = atomic_load(&own->taken);
    if (taken > next)
        return;              /* by this one, whose entry says so, or by a later one */
    for (int part = 0; part < PP_PARTS; part++)
        if (pending >> part & 1)
            starts += own->parts[part].contributions;
    combine->starts_taken = coll->starts - starts;
}

/* An exempt rank has been passed beyond its bound: that counts as given. */
static void count_passed(pp_coll_t *coll, uint64_t rounds)
{
    if (rounds <= bound(coll))
        return;
    if (coll->counted < rounds)
        coll->counted = rounds;
    if (coll->seen < rounds)
        coll->seen = rounds;
}

static uint64_t rounds_taken(uint64_t turn) { return pp_turn_round(turn) + pp_turn_taken(turn); }

/* Before anything ends that exempts this rank: what has gone on until now counts as given, on all handles. */
static void count_all_as_given(const pp_coll_t *coll)
{
    const pp_engine_t *engine = coll->engine;
    bool may_be_exempt = engine->in_call || engine->waiting > 0;
    for (size_t i = 1; may_be_exempt && coll->calls->live_handles > 1 && i < engine->series_count; i++) {
        pp_coll_t *other = engine->series[i] ? engine->series[i]->owner : NULL;
        if (other && other != coll && other->combine)
            pp_coll_count_as_given(other, rounds_taken(pp_board_turn(&other->combine->board)));
    }
}

/* Where other ranks' rounds went on while nobody looked: the entries become results here. */
bool pp_combine_catch_up(pp_coll_t *coll)
{
    pp_combine_t *combine = coll->combine;
    uint64_t turn = pp_board_turn(&combine->board), rounds = pp_turn_round(turn);
    uint64_t left[PP_CONTRIBUTORS_WORDS];
    count_passed(coll, rounds_taken(turn));
    if (coll->completed == rounds) {
        pp_coll_count_as_given(coll, rounds_taken(turn));
        return false;
    }
    count_all_as_given(coll);
    while (coll->completed < rounds && !coll->engine->error) {
        pp_entry_t *entry = pp_entry_new(coll);
        if (!entry)
            break;
        uint64_t taken = combine->starts_taken;
        if (read_entry(coll, entry, left) != PP_OK) {
            combine->starts_taken = taken;
            pp_entry_free(coll, entry);
            rounds = pp_turn_round(pp_board_turn(&combine->board));
            continue;
        }
        if (entry->round > coll->completed) {
            count_skipped(coll, entry->round);
            entry->starts_taken = combine->starts_taken;
        }
        if (entry->tally.cause == PP_CAUSE_FLUSH) {
            combine->flushed = entry->round + 1;
            combine->flushes++;
        }
        coll->engine->shared_rounds += entry->round + 1 - coll->completed;
        /* Up to here; a flush may end what exempts this rank. */
        pp_coll_count_as_given(coll, entry->round + 1);
        pp_coll_complete(coll, entry, left);
    }
    if (coll->completed == pp_turn_round(turn))
        pp_coll_count_as_given(coll, rounds_taken(turn));
    coll->taken = coll->completed;
    return true;
}

static uint64_t now_ns(const pp_coll_t *coll)
{
    pp_transport_t *transport = coll->engine->transport;
    return transport->ops->now_ns(transport);
}

/* Whether there is something to be done about the handle: rounds to catch up with, or one that is ripe. */
static bool has_news(pp_coll_t *coll)
{
    const pp_board_t *board = &coll->combine->board;
    uint64_t turn = pp_board_turn(board);
    int64_t  left_ns;
    if (pp_turn_round(turn) != coll->completed)
        return true;
    if (coll->combine->between)
        return pp_between_has_news(coll, turn);
    /* Also while somebody has the claim: who then decides against the round wakes nobody. */
    if (!has_grace(coll) || pp_turn_phase(turn) == PP_MOVING
        || !pp_board_ripens(board, coll->completed, now_ns(coll), &left_ns))
        return false;
    if (left_ns > 0 && (coll->engine->soon_ns == 0 || (uint64_t)left_ns < coll->engine->soon_ns))
        coll->engine->soon_ns = (uint64_t)left_ns;
    /* Once: it may not be to be run any more, or have no room, and whoever changes that looks himself. */
    if (left_ns > 0 || coll->combine->ripe == coll->completed + 1)
        return false;
    coll->combine->ripe = coll->completed + 1;
    return coll->combine->news = true;
}

bool pp_combine_poll(pp_engine_t *engine)
{
    bool any = false;
    engine->soon_ns = 0;
    if (engine->error)           /* nobody catches up any more */
        return false;
    for (size_t i = 1; engine->node && i < engine->series_count; i++) {
        pp_coll_t *coll = engine->series[i] ? engine->series[i]->owner : NULL;
        if (!coll || !coll->combine || !has_news(coll))
            continue;
        any = true;
        pp_combine_settle(coll);
    }
    return any;
}

/* ---- running a round, under its claim ------------------------------------------------------------------- */

static void add_source(pp_plan_t *plan, uint64_t offset) { plan->offsets[plan->source_count++] = offset; }

/* Everything that one rank has pending, into the entry's header and the plan. */
static void take_part(const pp_view_t *view, pp_coll_t *coll, int32_t rank, pp_ring_entry_t *entry)
{
    pp_board_t *board = &coll->combine->board;
    pp_station_t *station = &board->stations[rank];
    pp_taken_t taken = pp_board_take(board, rank, view->round);
    pp_share_t share = {.oldest_given = UINT64_MAX};
    pp_leaving_t leaves = pp_word_leaving(taken.word, view->round, view->flushes);
    bool left = pp_view_left(view, rank);
    bool ready = taken.parts && (pp_mask_has(coll->combine->ready, rank) || pp_view_ready(view, taken.word, rank));
    bool out = view->away && pp_node_out(board->node, rank);
    for (int part = 0; taken.parts >> part; part++) {
        const pp_part_t *from = &station->parts[part];
        if (!(taken.parts >> part & 1))
            continue;
        uint64_t given = atomic_load_explicit(&from->oldest_given, memory_order_relaxed);
        share.contributions += from->contributions;
        share.starts = from->starts > share.starts ? from->starts : share.starts;
        share.oldest_given = given < share.oldest_given ? given : share.oldest_given;
        bool users = pp_word_users(taken.word) >> part & 1;
        add_source(board->plan, users ? from->users : pp_board_slot_offset(board, rank, part));
    }
    pp_tally_t own = {.contributions = share.contributions, .contributors = taken.parts != 0,
                      .active = ready, .flushing = leaves != PP_STAYS || out,
                      .flush_calls = leaves == PP_STAYS ? 0 : leaves == PP_FREES ? PP_IN_FREE : PP_IN_FLUSH,
                      .initiator = PP_NO_INITIATOR, .any_left = left};
    if (taken.parts) {
        pp_mask_add(entry->contributors, pp_rank_at(coll, rank));
        entry->shares[rank] = share;
        pp_coll_count_staleness(coll->engine, view->round > share.oldest_given
                                                  ? view->round - share.oldest_given : 0);
    }
    if (left)
        pp_mask_add(entry->left, pp_rank_at(coll, rank));
    if (pp_word_waits(taken.word, view->round) && (taken.word & PP_WORD_DIRECT))
        pp_mask_add(entry->direct, rank);
    pp_tally_merge(&entry->tally, &own);
}

static void clear_header(const pp_coll_t *coll, pp_ring_entry_t *entry)
{
    size_t bytes = coll->series.mask_words * sizeof(uint64_t);
    entry->tally = (pp_tally_t){.initiator = PP_NO_INITIATOR};
    memset(entry->contributors, 0, bytes);
    memset(entry->left, 0, bytes);
    memset(entry->direct, 0, bytes);
    memcpy(entry->triggers, coll->combine->triggers, bytes);
}

static void name_initiator(const pp_coll_t *coll, pp_ring_entry_t *entry)
{
    pp_combine_t *combine = coll->combine;
    for (int32_t rank = 0; combine->triggered > 0 && rank < coll->engine->size; rank++)
        if (pp_mask_has(combine->triggers, rank)) {
            entry->tally.initiator = (uint32_t)rank;
            break;
        }
    entry->tally.cause = (uint16_t)combine->cause;
    pp_policy_judge(coll, &entry->tally);
    entry->flush = entry->tally.cause == PP_CAUSE_FLUSH;
    entry->kept = entry->flush || keeps_all(coll);
    if (coll->config.policy == PP_QUORUM)
        pp_mask_add(entry->triggers, coll->engine->rank);
    coll->engine->coverage.initiators_met += !pp_policy_is_solo(coll) && combine->triggered > 1;
}

/* Where the result is to be written: into receive buffers of ranks that wait, and into the ring for all
   others. */
static bool add_targets(pp_coll_t *coll, int32_t index, pp_ring_entry_t *entry)
{
    pp_board_t *board = &coll->combine->board;
    pp_plan_t *plan = board->plan;
    for (int32_t rank = 0; rank < board->ranks; rank++)
        if (pp_mask_has(entry->direct, rank))
            plan->offsets[plan->source_count + plan->target_count++] = board->stations[rank].receive;
    if (plan->target_count == (uint32_t)board->ranks)
        return true;
    plan->offsets[plan->source_count + plan->target_count++] =
        board->results + (uint64_t)index * board->stride;
    return pp_board_commit_result(board, index);
}

/* Simulated ranks cut short vectors, too: what happens then is what they are there for. */
static bool is_simulated(const pp_coll_t *coll) { return !pp_node_of(coll)->memory; }

static size_t whole_bytes(const pp_coll_t *coll) { return is_simulated(coll) ? 16 : WHOLE_BYTES; }

/* Several chunks a rank, if they do not become so small that to hand them out takes longer than to move them. */
static size_t wanted_chunk_bytes(const pp_coll_t *coll)
{
    const pp_board_t *board = &coll->combine->board;
    size_t least = is_simulated(coll) ? 1 : CHUNK_BYTES_MIN;
    size_t most = CHUNK_BYTES / pp_node_of(coll)->magnify;
    size_t bytes = board->vector_bytes / ((size_t)board->ranks * CHUNKS_A_RANK);
    /* A vector so large that tickets could not count its chunks is cut coarser. */
    if (board->vector_bytes / PP_CHUNKS_MAX >= CHUNK_BYTES)
        return board->vector_bytes / (PP_CHUNKS_MAX / 2);
    if (bytes > most)
        bytes = most;
    return bytes < least ? least : bytes;
}

static void cut(pp_coll_t *coll)
{
    pp_combine_t *combine = coll->combine;
    size_t vector_bytes = combine->board.vector_bytes;
    /* Elements of a chunk are a multiple: it begins with a cache line, of any type. */
    size_t multiple = is_simulated(coll) ? 1 : 64;
    size_t unit_bytes = multiple * coll->series.kernels.element_bytes;
    size_t elements = wanted_chunk_bytes(coll) / coll->series.kernels.element_bytes;
    size_t units = (elements + multiple - 1) / multiple;
    combine->chunk_bytes = (units ? units : 1) * unit_bytes;
    combine->chunks = (uint32_t)((vector_bytes + combine->chunk_bytes - 1) / combine->chunk_bytes);
}

void pp_combine_wake_waiters(pp_coll_t *coll, uint64_t round)
{
    pp_node_t *node = pp_node_of(coll);
    for (int32_t rank = 0; pp_node_anybody_asleep(node) && rank < node->size; rank++) {
        uint64_t word = pp_view_word(coll, rank);
        bool waits = (word & PP_WORD_WAITS) && pp_word_round_bits(round) >= pp_word_round(word);
        /* Also this one: its progress thread may have lent the core when the call came. */
        if (waits || (word >> PP_WORD_LEAVING_SHIFT & 7))
            node->wake(node->owner, rank, false);
    }
}

/* Before a round is published: ranks that have begun to wait for it since it was taken came too late by little. */
static void learn(pp_coll_t *coll, uint64_t round, const pp_ring_entry_t *entry)
{
    bool late = false;
    for (int32_t rank = 0; rank < coll->engine->size && !late; rank++) {
        uint64_t word = pp_view_word(coll, rank);
        late = pp_word_waits(word, round) && pp_word_pending(word) && !pp_mask_has(entry->direct, rank);
    }
    PP_STEP("ripen");
    uint32_t hope = atomic_load_explicit(&coll->combine->board.shared->hope, memory_order_relaxed);
    bool     all = entry->tally.contributors == (uint32_t)coll->engine->size;
    if (late || (hope > 0 && all))
        set_hope(coll, HOPE_MAX);
    else if (hope > 0)
        set_hope(coll, hope / 2);
}

static void publish(pp_coll_t *coll, uint64_t round, int32_t index)
{
    pp_board_t *board = &coll->combine->board;
    if (has_grace(coll))
        learn(coll, round, pp_board_entry(board, index));
    if (pp_board_entry(board, index)->flush)
        pp_node_call_over(board->node, pp_engine_calls(coll->engine, true) + 1);
    pp_board_publish(board, round, index);
    pp_combine_wake_waiters(coll, round);
    coll->engine->changed = true;
}

/* How many of the newest results somebody may be copying.  Whoever waits for the round has been given those before:
   if all do, its result can have the place of the last, whose memory the caches still hold.  (Leaders may have to send
   that to other nodes yet.) */
static uint64_t spared(const pp_coll_t *coll, uint64_t round)
{
    const pp_board_t *board = &coll->combine->board;
    if (board->vector_bytes <= whole_bytes(coll) || coll->combine->between)
        return board->spared;
    for (int32_t rank = 0; rank < board->ranks; rank++)
        if (!pp_word_waits(pp_view_word(coll, rank), round))
            return board->spared;
    return 0;
}

int32_t pp_combine_collect(pp_coll_t *coll, uint64_t round)
{
    pp_board_t *board = &coll->combine->board;
    pp_plan_t *plan = board->plan;
    int32_t index = pp_board_pick(board, round, spared(coll, round));
    if (index < 0)
        return -1;
    pp_ring_entry_t *entry = pp_board_entry(board, index);
    pp_view_t view = pp_view_of(coll, round);
    if (board->vector_bytes > whole_bytes(coll))
        pp_board_begin_plan(board);
    clear_header(coll, entry);
    plan->source_count = plan->target_count = 0;
    plan->entry = (uint32_t)index;
    for (int32_t rank = 0; rank < board->ranks; rank++)
        take_part(&view, coll, rank, entry);
    entry->null = plan->source_count == 0;
    coll->engine->shared_led++;
    return index;
}

/* A large round's data: ranks that wait work at them anyway; of those that sleep elsewhere, as many as there are
   cores left over are asked to, whose progress threads have no better use for theirs. */
static void recruit(pp_coll_t *coll)
{
    pp_node_t *node = pp_node_of(coll);
    int32_t  spare = coll->engine->cores;
    uint64_t now = now_ns(coll);
    for (int32_t index = 0; index < node->size; index++)
        spare -= index == node->index || !pp_node_idles(node, index, now);
    for (int32_t index = 0; spare > 0 && index < node->size; index++) {
        if (index == node->index || !pp_node_idles(node, index, now))
            continue;
        node->wake(node->owner, index, true);
        spare--;
    }
}

bool pp_combine_move(pp_coll_t *coll, uint64_t round)
{
    pp_board_t *board = &coll->combine->board;
    if (board->plan->source_count == 0)
        return true;
    if (board->vector_bytes <= whole_bytes(coll)) {
        pp_move(board, &coll->series.kernels, NULL, 0, coll->count);
        return true;
    }
    board->plan->chunk_bytes = coll->combine->chunk_bytes;
    board->plan->chunks = coll->combine->chunks;
    pp_board_hand_out(board, round);
    /* This rank may go on to something else. */
    pp_combine_wake_waiters(coll, round);
    if (board->vector_bytes >= RECRUIT_BYTES)
        recruit(coll);
    return false;
}

/* Returns false if the result has no place: somebody has to give room first. */
static bool run(pp_coll_t *coll, uint64_t round)
{
    pp_board_t *board = &coll->combine->board;
    int32_t index = pp_combine_collect(coll, round);
    if (index < 0)
        return false;
    pp_ring_entry_t *entry = pp_board_entry(board, index);
    name_initiator(coll, entry);
    board->plan->divide_by = pp_coll_divisor(coll, &entry->tally);
    if (!entry->null && !add_targets(coll, index, entry))
        pp_engine_fail(coll->engine, PP_ERR_MEMORY, "no shared memory for a result of %zu bytes",
                       board->vector_bytes);
    else if (pp_combine_move(coll, round))
        publish(coll, round, index);
    return true;
}

void pp_combine_ask_for_room(pp_coll_t *coll, uint64_t round)
{
    pp_node_t *node = pp_node_of(coll);
    for (int32_t rank = 0; rank < node->size; rank++) {
        PP_STEP("decide");
        uint64_t needed = atomic_load(&coll->combine->board.stations[rank].absorbed);
        if (rank != node->index && needed + coll->combine->board.entries <= round + 1)
            node->wake(node->owner, rank, true);
    }
}

/* Claims the round that is open and runs it if it is to be run.  Returns false if there is nothing to do. */
static bool claim_and_run(pp_coll_t *coll, uint64_t turn)
{
    pp_board_t *board = &coll->combine->board;
    uint64_t round = pp_turn_round(turn);
    bool room = true;
    if (!pp_board_claim(board, turn))
        return true;
    do {
        /* Once more: what was decided may have been overtaken. */
        if (pp_combine_decide(coll, round) && (room = run(coll, round)))
            /* Nobody waits for the next round yet; but all may flush. */
            return pp_node_anybody_away(board->node);
    } while (!pp_board_release(board, round));
    if (!room)
        pp_combine_ask_for_room(coll, round);
    return false;
}

/* Nobody is missing whom to wait for could bring in. */
static bool all_there(const pp_coll_t *coll, uint64_t round)
{
    pp_view_t view = pp_view_of(coll, round);
    for (int32_t rank = 0; rank < coll->engine->size; rank++)
        if (!pp_word_pending(pp_view_word(coll, rank)) && !pp_view_left(&view, rank))
            return false;
    return true;
}

/* Whether the time has come to take a round that is to be run. */
static bool is_ripe(pp_coll_t *coll, uint64_t round)
{
    pp_board_t *board = &coll->combine->board;
    pp_coverage_t *coverage = &coll->engine->coverage;
    int64_t  left_ns;
    if (!has_grace(coll))
        return true;
    if (all_there(coll, round)) {
        coverage->graces_met += pp_board_ripens(board, round, 0, &left_ns);
        return true;
    }
    if (pp_board_set_ripe(board, round, now_ns(coll) + grace_ns(coll))) {
        /* This rank may go on to something else: then the others see to it. */
        pp_combine_wake_waiters(coll, round);
        return false;
    }
    bool over = pp_board_ripens(board, round, now_ns(coll), &left_ns) && left_ns <= 0;
    coverage->graces_over += over;
    return over;
}

static void try_round(pp_coll_t *coll)
{
    pp_board_t *board = &coll->combine->board;
    for (bool again = true; again && !coll->engine->error;) {
        uint64_t turn = pp_board_turn(board);
        if (pp_turn_round(turn) != coll->completed) {
            pp_combine_catch_up(coll);
            continue;
        }
        switch (pp_turn_phase(turn)) {
        case PP_OPEN:
            again = pp_combine_decide(coll, coll->completed) && is_ripe(coll, coll->completed)
                 && claim_and_run(coll, turn);
            break;
        case PP_TAKING:
            again = !(turn & PP_TURN_NEWS) && !pp_board_leave_news(board, turn);
            break;
        case PP_MOVING:          /* whoever publishes looks again */
        case PP_AWAY:
            again = false;
            break;
        }
    }
}

/* ---- the data of large rounds ----------------------------------------------------------------------------- */

static bool has_work(const pp_coll_t *coll)
{
    const pp_board_t *board = &coll->combine->board;
    if (pp_turn_phase(pp_board_turn(board)) != PP_MOVING)
        return false;
    return pp_board_tickets_left(board);
}

static pp_coll_t *one_with_work(const pp_engine_t *engine)
{
    for (size_t i = 1; engine->node && i < engine->series_count; i++) {
        pp_coll_t *coll = engine->series[i] ? engine->series[i]->owner : NULL;
        if (coll && coll->combine && has_work(coll))
            return coll;
    }
    return NULL;
}

bool pp_combine_is_needed(pp_engine_t *engine)
{
    bool needed = false;
    for (size_t i = 1; engine->nodes && i < engine->series_count; i++) {
        pp_coll_t *coll = engine->series[i] ? engine->series[i]->owner : NULL;
        if (coll && coll->combine)
            needed |= has_work(coll) || has_news(coll);
    }
    return needed;
}

bool pp_combine_has_work(const pp_engine_t *engine) { return one_with_work(engine); }

pp_coll_t *pp_combine_find_work(pp_engine_t *engine)
{
    pp_coll_t *coll = one_with_work(engine);
    if (coll)
        coll->combine->workers++;
    return coll;
}

bool pp_combine_begin_landing(pp_coll_t *coll)
{
    pp_combine_t *combine = coll->combine;
    /* Results that go to the receive buffers directly are not put there twice, those that other nodes have a part in
       are not ready yet. */
    if (!combine->landed || combine->between || pp_board_own(&combine->board)->receive || !pp_coll_waits(coll))
        return false;
    /* The round that is under way is what the request will be given, unless it is overwritten before. */
    if (combine->landed_round != coll->completed)
        pp_combine_end_landing(coll);
    combine->landed_round = coll->completed;
    return true;
}

void pp_combine_end_landing(pp_coll_t *coll)
{
    pp_combine_t *combine = coll->combine;
    if (combine->landed_count > 0)
        memset(combine->landed, 0, combine->chunks * sizeof *combine->landed);
    combine->landed_count = 0;
}

bool pp_combine_work(pp_coll_t *coll, bool lands, uint64_t *round)
{
    pp_combine_t *combine = coll->combine;
    pp_board_t *board = &combine->board;
    uint64_t turn = pp_board_turn(board);
    uint32_t chunk;
    *round = pp_turn_round(turn);
    if (pp_turn_phase(turn) != PP_MOVING)
        return false;
    lands = lands && *round == combine->landed_round;
    while (pp_board_ticket(board, *round, &chunk)) {
        pp_move_chunk(board, &coll->series.kernels, lands ? coll->config.pieces : NULL, chunk);
        if (lands) {
            combine->landed[chunk] = true;
            combine->landed_count++;
        }
        if (pp_board_finished(board))
            return true;
    }
    return false;
}

void pp_combine_worked(pp_coll_t *coll, uint64_t round, bool last)
{
    coll->combine->news |= last;
    if (--coll->combine->workers == 0)
        coll->engine->changed = true;      /* it may be freed */
    if (last && coll->combine->between)
        pp_between_gathered(coll, round);
    else if (last)
        publish(coll, round, (int32_t)coll->combine->board.plan->entry);
}

/* ---- what the engine asks ------------------------------------------------------------------------------------ */

/* Room for those who go on while this rank is exempt from its bound. */
static void make_room(pp_coll_t *coll)
{
    bool exempt = pp_coll_left(coll) || pp_coll_elsewhere(coll);
    if (!keeps_all(coll) || !exempt
        || coll->completed - absorbed(coll) + 2 < (uint64_t)coll->combine->board.entries)
        return;
    if (coll->request.entry)
        pp_combine_own(coll, coll->request.entry);
    for (pp_entry_t *entry = coll->ungiven; entry; entry = entry->next)
        pp_combine_own(coll, entry);
}

/* A word about a round that is complete says nothing any more, and may stand. */
static bool say_state(pp_coll_t *coll)
{
    pp_board_t *board = &coll->combine->board;
    uint64_t state = state_of(coll);
    bool over = (board->state & PP_WORD_WAITS) && !pp_word_is_of(board->state, coll->completed);
    return (state || !over) && pp_station_say(board, state);
}

/* Returns whether there are results to go on from. */
static bool go_on(pp_coll_t *coll)
{
    pp_combine_t *combine = coll->combine;
    bool news = pp_combine_catch_up(coll) && combine->between;
    make_room(coll);
    uint64_t before = coll->completed;
    publish_presence(coll);
    news |= publish_bounds(coll);
    news |= say_state(coll);
    /* Whoever has changed something looks whether a round is to be run; here also what others have seen to be
       due, but not yet, and what this rank does elsewhere. */
    news |= combine->news || combine->waits != coll->engine->waits
         || combine->presence != coll->engine->node->presence;
    combine->news = false;
    combine->waits = coll->engine->waits;
    combine->presence = coll->engine->node->presence;
    if (combine->between)
        pp_between_look(coll, news);
    else if (news || coll->engine->in_call)
        try_round(coll);
    else
        return false;
    return coll->completed != before || pp_turn_round(pp_board_turn(&combine->board)) != before;
}

static void update(void *owner)
{
    pp_coll_t *coll = owner;
    go_on(coll);
    if (!coll->engine->error)
        pp_calls_update(coll->calls);
}

void pp_combine_settle(pp_coll_t *coll)
{
    pp_engine_t *engine = coll->engine;
    if (!engine->in_call && !engine->replay && !engine->nodes && coll->calls->kind == PP_CALL_NONE) {
        while (!engine->error && go_on(coll))
            continue;
        /* Nothing that others look at has changed but this handle, and that this rank may wait for it. */
        engine->changed = false;
        if (!pp_coll_waits(coll) || coll->calls->live_handles == 1)
            return;
    }
    engine->changed = true;
    pp_engine_settle(engine);
}

static void control(void *owner, int32_t peer, const pp_prefix_t *message)
{
    pp_coll_t *coll = owner;
    pp_engine_fail(coll->engine, PP_ERR_INTERNAL, "message of kind %u from rank %d to handle %u, whose rounds "
                   "are made in shared memory", message->kind, peer, coll->series.id);
}

static const pp_host_t host = {.control = control, .update = update};

void pp_combine_update(pp_coll_t *coll) { update(coll); }

/* ---- Start and its end ---------------------------------------------------------------------------------- */

pp_status_t pp_combine_part(pp_coll_t *coll, int32_t *part, void **elements)
{
    pp_board_t *board = &coll->combine->board;
    *elements = NULL;
    *part = pp_station_free_part(board);
    if (*part == -1)
        return PP_PENDING;
    if (*part < 0)
        return pp_fail(PP_ERR_MEMORY, "no shared memory for a contribution of %zu bytes",
                       board->vector_bytes);
    if (!coll->combine->users)
        *elements = pp_node_at(board->node, pp_board_slot_offset(board, board->node->index, *part));
    return PP_OK;
}

void pp_combine_start(pp_coll_t *coll, int32_t part)
{
    pp_combine_t *combine = coll->combine;
    const pp_piece_t *piece = coll->config.pieces;
    pp_part_t *own = &pp_board_own(&combine->board)->parts[part];
    pp_combine_catch_up(coll);
    uint64_t given = pp_coll_request(coll);
    own->contributions = 1;
    own->starts = coll->starts;
    atomic_store_explicit(&own->oldest_given, given, memory_order_relaxed);
    if (combine->users) {
        pp_node_holds(combine->board.node, piece->send ? piece->send : piece->recv,
                      combine->board.vector_bytes, &own->users);
        combine->users_parts |= 1u << part;
    }
    pp_station_link(&combine->board, part, combine->users, state_of(coll));
    combine->news = true;
}

/* While a round is away, it cannot be published; else no round can be taken. */
static bool begin_merge(pp_coll_t *coll, uint64_t turn)
{
    pp_combine_t *combine = coll->combine;
    combine->merges_away = pp_turn_phase(turn) == PP_AWAY;
    if (combine->merges_away)
        return !(turn & PP_TURN_MERGES) && pp_board_begin_merge(&combine->board, turn);
    return pp_turn_phase(turn) == PP_OPEN && pp_board_hold(&combine->board, turn);
}

/* Others may have looked meanwhile, and found the turn claimed; this rank looks in any case. */
static void end_merge(pp_coll_t *coll)
{
    pp_combine_t *combine = coll->combine;
    uint64_t round = pp_turn_round(pp_board_turn(&combine->board));
    if (combine->merges_away) {
        if (pp_board_end_merge(&combine->board, round))
            pp_between_tell_leader(coll, round);
    } else {
        while (!pp_board_release(&combine->board, round))
            continue;
    }
    combine->news = true;
}

void *pp_combine_merge(pp_coll_t *coll, int32_t *part)
{
    pp_board_t *board = &coll->combine->board;
    if (!begin_merge(coll, pp_board_turn(board)))
        return NULL;
    PP_STEP("merge");
    uint64_t word = atomic_load(&pp_board_own(board)->word);
    for (*part = 0; *part < PP_PARTS; ++*part) {
        uint32_t bit = 1u << *part;
        if ((pp_word_pending(word) & bit) && !(pp_word_users(word) & bit))
            return pp_node_at(board->node, pp_board_slot_offset(board, board->node->index, *part));
    }
    /* What was pending has been taken since: there are free parts. */
    end_merge(coll);
    return NULL;
}

void pp_combine_merged(pp_coll_t *coll, int32_t part)
{
    pp_board_t *board = &coll->combine->board;
    pp_part_t  *own = &pp_board_own(board)->parts[part];
    pp_combine_catch_up(coll);
    pp_coll_request(coll);
    own->contributions++;
    own->starts = coll->starts;
    pp_station_say(board, state_of(coll));
    end_merge(coll);
}

static uint64_t in_ring(const pp_coll_t *coll, const pp_entry_t *entry)
{
    const pp_board_t *board = &coll->combine->board;
    return board->results + (uint64_t)entry->ring * board->stride;
}

static const void *elements_of(const pp_coll_t *coll, const pp_entry_t *entry)
{
    return entry->place == PP_IN_RING ? pp_node_at(pp_node_of(coll), in_ring(coll, entry))
                                      : coll->config.pieces[0].recv;
}

static void copy_elements(const pp_coll_t *coll, const pp_entry_t *entry, size_t first, size_t count)
{
    const pp_kernels_t *kernels = &coll->series.kernels;
    const char *from = elements_of(coll, entry);
    pp_move_out(&coll->combine->board, kernels, coll->config.pieces, first, from + first * kernels->element_bytes,
                count);
}

/* What this rank has not put into its receive buffers while it moved it, in as few pieces as possible. */
static void copy_rest(const pp_coll_t *coll, const pp_entry_t *entry)
{
    const pp_combine_t *combine = coll->combine;
    size_t each = combine->chunk_bytes / coll->series.kernels.element_bytes;
    for (uint32_t chunk = 0, next; chunk < combine->chunks; chunk = next) {
        for (next = chunk + 1; next < combine->chunks && combine->landed[next] == combine->landed[chunk];)
            next++;
        size_t end = next == combine->chunks ? coll->count : next * each;
        if (!combine->landed[chunk])
            copy_elements(coll, entry, chunk * each, end - chunk * each);
    }
}

static bool has_landed(const pp_combine_t *combine, const pp_entry_t *entry)
{
    return combine->landed_count > 0 && combine->landed_round == entry->round;
}

void pp_combine_begin_copy(pp_coll_t *coll, const pp_entry_t *entry)
{
    coll->combine->copied = entry;
    coll->engine->coverage.landings += has_landed(coll->combine, entry);
}

void pp_combine_end_copy(pp_coll_t *coll) { coll->combine->copied = NULL; }

bool pp_combine_copy_out(const pp_coll_t *coll, const pp_entry_t *entry)
{
    const pp_combine_t *combine = coll->combine;
    if (entry->place == PP_IN_RECEIVE)
        return true;
    if (has_landed(combine, entry))
        copy_rest(coll, entry);
    else
        copy_elements(coll, entry, 0, coll->count);
    return pp_board_still(&combine->board, entry->ring, entry->round);
}

const void *pp_combine_view(pp_coll_t *coll, const pp_entry_t *entry)
{
    pp_combine_t *combine = coll->combine;
    /* One that is converted, or has nothing in it, exists in the receive buffers only. */
    if (entry->place != PP_IN_RING || coll->series.kernels.store || coll->count == 0)
        return NULL;
    combine->viewed = pp_board_pin(&combine->board, entry->ring, entry->round);
    return combine->viewed ? elements_of(coll, entry) : NULL;
}

void pp_combine_end_view(pp_coll_t *coll)
{
    pp_combine_t *combine = coll->combine;
    if (!combine || !combine->viewed)
        return;
    combine->viewed = false;
    pp_board_unpin(&combine->board);
    combine->news = true;                /* a round may have waited for the place */
}

bool pp_combine_own(pp_coll_t *coll, pp_entry_t *entry)
{
    if (entry->place == PP_NOWHERE)
        return true;
    entry->buffer = pp_pool_get(&coll->series.vectors);
    if (!entry->buffer) {
        pp_engine_fail(coll->engine, PP_ERR_MEMORY, "no memory for a result of %zu bytes",
                       coll->series.vectors.bytes);
        return false;
    }
    memcpy(entry->buffer->data, elements_of(coll, entry), coll->series.vectors.bytes);
    entry->place = PP_NOWHERE;
    return true;
}

bool pp_combine_return_users(pp_coll_t *coll)
{
    pp_combine_t *combine = coll->combine;
    pp_board_t *board = &combine->board;
    for (int part = 0; combine->users_parts >> part; part++) {
        uint32_t bit = 1u << part;
        if (!(combine->users_parts & bit))
            continue;
        PP_STEP("move");
        uint64_t word = atomic_load(&pp_board_own(board)->word);
        if (pp_word_users(word) & bit) {
            uint64_t slot = pp_board_slot_offset(board, board->node->index, part);
            memcpy(pp_node_at(board->node, slot),
                   pp_node_at(board->node, pp_board_own(board)->parts[part].users), board->vector_bytes);
            if (pp_station_moved(board, part)) {
                combine->users_parts &= ~bit;
                continue;
            }
        }
        PP_STEP("move");
        if (!pp_board_has_read(board, atomic_load(&pp_board_own(board)->taken)))
            return false;
        combine->users_parts &= ~bit;
    }
    return true;
}

bool pp_combine_given(pp_coll_t *coll)
{
    uint64_t before = coll->combine->absorbed;
    publish_bounds(coll);
    if (coll->combine->absorbed == before)
        return false;
    /* A round may have waited for the place. */
    coll->combine->news = coll->engine->changed = true;
    return true;
}

uint64_t pp_combine_discard(pp_coll_t *coll)
{
    pp_board_t *board = &coll->combine->board;
    uint64_t discarded = 0;
    /* In this order: who finds all ranks flushing must not find that one of them has not left, and keeps its draw. */
    publish_presence(coll);
    pp_station_say(board, state_of(coll));
    /* Under a claim: whoever else has one may have counted on this rank; so may, between nodes, those who count for
       a quorum.  What is not withdrawn goes into the flush. */
    uint64_t turn = pp_board_turn(board);
    if (coll->combine->between || pp_turn_phase(turn) != PP_OPEN || !pp_board_hold(board, turn))
        return 0;
    uint32_t parts = pp_station_withdraw(board);
    while (!pp_board_release(board, pp_turn_round(turn)))
        continue;
    coll->combine->news = true;          /* others may have looked meanwhile */
    for (int part = 0; parts >> part; part++)
        if (parts >> part & 1)
            discarded += pp_board_own(board)->parts[part].contributions;
    return discarded;
}

/* ---- explaining ------------------------------------------------------------------------------------------------ */

void pp_combine_forgive(pp_coll_t *coll)
{
    pp_station_t *own = pp_board_own(&coll->combine->board);
    PP_STEP("say");
    uint32_t pending = pp_word_pending(atomic_load(&own->word));
    for (int part = 0; pending >> part; part++)
        if (pending == 1u << part && own->parts[part].contributions == 1)
            atomic_store_explicit(&own->parts[part].oldest_given, UINT64_MAX, memory_order_relaxed);
}

bool pp_combine_withholds(const pp_coll_t *coll)
{
    return coll->combine->limit <= coll->completed && !pp_coll_left(coll) && !pp_coll_elsewhere(coll);
}

bool pp_combine_in_mid_round(const pp_coll_t *coll)
{
    return pp_turn_phase(pp_board_turn(&coll->combine->board)) != PP_OPEN;
}

bool pp_combine_ready(const pp_coll_t *coll)
{
    pp_view_t view = pp_view_of(coll, coll->completed);
    int32_t me = pp_node_of(coll)->index;
    return pp_view_ready(&view, pp_view_word(coll, me), me);
}

static void explain_ranks(pp_coll_t *coll, pp_text_t *text)
{
    pp_view_t view = pp_view_of(coll, coll->completed);
    for (int32_t rank = 0; rank < pp_node_of(coll)->size; rank++) {
        uint64_t word = pp_view_word(coll, rank);
        PP_STEP("decide");
        uint64_t rounds = atomic_load(&coll->combine->board.stations[rank].limit);
        bool held = pp_is_bounded(coll) && view.round >= rounds && !pp_view_left(&view, rank);
        if (pp_word_waits(word, view.round) || pp_word_pending(word) || held || pp_view_flushes(&view, rank))
            pp_text_add(text, "rank %d:%s%s%s%s\n", pp_rank_at(coll, rank), pp_word_waits(word, view.round) ? " waits" : "",
                        pp_word_pending(word) ? " has data pending" : "",
                        held ? " withholds its part by max_lag" : "",
                        pp_view_flushes(&view, rank) ? " flushes" : "");
    }
}

void pp_combine_explain(pp_coll_t *coll, pp_text_t *text)
{
    static const char *const phases[] = {"is not activated", "is being activated", "is being reduced",
                                         "is being reduced between nodes"};
    uint64_t turn = pp_board_turn(&coll->combine->board);
    pp_text_add(text, "round %llu %s\n", (unsigned long long)pp_turn_round(turn),
                phases[pp_turn_phase(turn)]);
    if (coll->config.policy == PP_FIRST_OF && !pp_policy_is_solo(coll))
        pp_text_add(text, "drawn first: %d\n", pp_combine_drawn_at(coll, 0));
    explain_ranks(coll, text);
    if (coll->combine->between)
        pp_between_explain(coll, text);
}

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

static size_t vector_bytes(const pp_allreduce_config_t *config, const pp_kernels_t *kernels)
{
    size_t count = 0;
    for (size_t i = 0; i < config->piece_count; i++)
        count += config->pieces[i].count;
    return count * kernels->element_bytes;
}

static int32_t entries(int32_t window, int32_t ranks)
{
    return window + ENTRIES_BEYOND_WINDOW + (ranks < PP_PINS_MAX ? ranks : PP_PINS_MAX);
}

uint64_t pp_combine_reserve(pp_engine_t *engine, const pp_allreduce_config_t *config, int32_t window)
{
    pp_kernels_t kernels;
    if (!engine->node || config->algorithm != PP_ALGORITHM_AUTO
        || pp_kernels_find(config->op, config->type, &kernels) < 0)
        return 0;
    size_t   bytes = vector_bytes(config, &kernels);
    int32_t  count = entries(window, engine->node->size);
    uint64_t needed = pp_board_bytes(engine->node->size, count, bytes);
    uint64_t place = pp_node_reserve(engine->node, needed);
    if (place && !pp_board_prepare(engine->node, place, count, bytes)) {
        pp_node_release(engine->node, place, needed);
        place = 0;
    }
    if (!place && engine->refused_bytes == 0)
        engine->refused_bytes = needed;
    return place;
}

void pp_combine_unreserve(pp_engine_t *engine, const pp_allreduce_config_t *config, int32_t window,
                          uint64_t place)
{
    pp_kernels_t kernels;
    if (place && pp_kernels_find(config->op, config->type, &kernels) >= 0)
        pp_node_release(engine->node, place, pp_board_bytes(engine->node->size, entries(window, engine->node->size),
                                                            vector_bytes(config, &kernels)));
}

/* Buffers of the application in the memory of the node are read and written where they are. */
static void find_users(pp_coll_t *coll)
{
    pp_combine_t *combine = coll->combine;
    const pp_kernels_t *kernels = &coll->series.kernels;
    const pp_piece_t *piece = coll->config.pieces;
    size_t bytes = combine->board.vector_bytes;
    uint64_t offset;
    if (coll->config.piece_count != 1 || bytes == 0 || kernels->load || kernels->store)
        return;
    combine->users = !kernels->normalise
        && pp_node_holds(combine->board.node, piece->send ? piece->send : piece->recv, bytes, &offset);
    /* What comes back from other nodes is not written to several places. */
    if (!combine->between && pp_node_holds(combine->board.node, piece->recv, bytes, &offset))
        pp_board_own(&combine->board)->receive = offset;
}

pp_status_t pp_combine_open(pp_coll_t *coll, uint32_t id, int32_t algorithm, uint64_t place,
                            const pp_kernels_t *kernels)
{
    pp_engine_t *engine = coll->engine;
    pp_combine_t *combine = coll->combine = calloc(1, sizeof *combine);
    if (!combine)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    PP_TRY(engine->nodes ? pp_between_open(coll, id, algorithm, kernels)
                         : pp_series_open_bare(engine, id, coll->count, kernels, &host, coll, &coll->series));
    int32_t window = coll->calls->window;
    uint64_t spared = coll->config.max_lag >= 0 ? coll->max_lag + 1 : SPARED;
    PP_TRY(pp_board_open(engine->node, place, entries(window, engine->node->size), coll->count * kernels->element_bytes, spared,
                         &combine->board));
    combine->order = calloc((size_t)engine->size, sizeof *combine->order);
    if (!combine->order)
        return pp_fail(PP_ERR_MEMORY, "no memory for a policy");
    combine->order_round = UINT64_MAX;
    cut(coll);
    if (combine->board.vector_bytes > whole_bytes(coll)) {
        combine->landed = calloc(combine->chunks, sizeof *combine->landed);
        if (!combine->landed)
            return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    }
    combine->limit = limit(coll);
    if (!engine->nodes)
        coll->config.algorithm = PP_SHARED_MEMORY;
    atomic_store(&pp_board_own(&combine->board)->limit, combine->limit);
    find_users(coll);
    return PP_OK;
}

void pp_combine_close(pp_coll_t *coll)
{
    pp_combine_t *combine = coll->combine;
    if (!combine)
        return;
    pp_board_t *board = &combine->board;
    pp_combine_end_view(coll);
    /* Whoever is the last to go gives the memory back.  (Only the first rank can use its place again.) */
    if (pp_board_detach(board))
        pp_node_release(coll->engine->node, board->offset, board->bytes);
    pp_between_close(coll);
    free(combine->order);
    free(combine->landed);
    free(combine);
    coll->combine = NULL;
}
