/* board.c - see board.h. */
#include "board.h"

#include <string.h>

enum { LINE = 64 };

static const uint64_t STATE_BITS = PP_WORD_WAITS | PP_WORD_DIRECT | PP_WORD_OVERDUE | PP_WORD_ASIDE
                                 | UINT64_C(7) << PP_WORD_LEAVING_SHIFT | ~UINT64_C(0) << PP_WORD_ROUND_SHIFT;
static const uint64_t PART_BITS = UINT64_C(0xffff) << PP_WORD_PENDING_SHIFT;

static uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

/* ---- where everything is ------------------------------------------------------------------------------ */

typedef struct layout {
    uint64_t stations, plan, offers, ring, entry_bytes, slots, results, stride, bytes;
} layout_t;

/* A vector of a page or more begins on a page of its own, so it can be committed alone. */
static layout_t lay_out(int32_t ranks, const pp_board_size_t *size)
{
    uint64_t P = (uint64_t)ranks, K = (uint64_t)size->entries, vector_bytes = size->vector_bytes;
    layout_t at = {.stations = sizeof(pp_board_shared_t)};
    at.stride = round_up(vector_bytes, vector_bytes < PP_PAGE ? LINE : PP_PAGE);
    at.plan = at.stations + P * sizeof(pp_station_t);
    at.offers = round_up(at.plan + sizeof(pp_plan_t) + (P * PP_PARTS + P + 1) * sizeof(uint64_t), LINE);
    at.ring = round_up(at.offers + P * size->offer_bytes, LINE);
    at.entry_bytes = round_up(sizeof(pp_ring_entry_t) + P * sizeof(pp_share_t), LINE);
    at.slots = round_up(at.ring + K * at.entry_bytes, PP_PAGE);
    at.results = round_up(at.slots + P * PP_PARTS * at.stride, PP_PAGE);
    at.bytes = at.results + K * at.stride;
    return at;
}

uint64_t pp_board_bytes(int32_t ranks, const pp_board_size_t *size) { return lay_out(ranks, size).bytes; }

bool pp_board_prepare(pp_node_t *node, uint64_t offset, const pp_board_size_t *size)
{
    layout_t at = lay_out(node->size, size);
    if (!pp_node_commit(node, offset, at.slots))
        return false;
    memset(pp_node_at(node, offset), 0, at.slots);
    return true;
}

pp_status_t pp_board_open(pp_node_t *node, uint64_t offset, const pp_board_size_t *size, uint64_t spared,
                          pp_board_t *board)
{
    layout_t at = lay_out(node->size, size);
    char    *base = pp_node_at(node, offset);
    if (!pp_node_reach(node))
        return pp_fail(PP_ERR_MEMORY, "no address space for the memory that the ranks of a node share");
    *board = (pp_board_t){
        .node = node, .offset = offset, .bytes = at.bytes, .ranks = node->size, .entries = size->entries,
        .parts = size->parts, .pins = size->pins,
        .vector_bytes = size->vector_bytes, .stride = at.stride, .shared = (pp_board_shared_t *)base,
        .stations = (pp_station_t *)(base + at.stations), .plan = (pp_plan_t *)(base + at.plan),
        .ring = base + at.ring, .entry_bytes = at.entry_bytes, .slots = offset + at.slots,
        .results = offset + at.results, .offers = offset + at.offers, .offer_bytes = size->offer_bytes,
        .spared = spared};
    return PP_OK;
}

void pp_board_end(pp_board_t *board)
{
    if (board->shared && atomic_fetch_add(&board->shared->detached, 1) + 1 == (uint32_t)board->ranks)
        pp_node_release(board->node, board->offset, board->bytes);
    board->shared = NULL;
}

/* ---- stations ------------------------------------------------------------------------------------------ */

/* Whether all parts have been read that rounds below `taken` have taken. */
bool pp_board_has_read(const pp_board_t *board, uint64_t taken)
{
    uint64_t turn = pp_board_turn(board);
    return pp_turn_round(turn) + (pp_turn_phase(turn) == PP_AWAY) >= taken;
}

/* A taken part is read until its round is complete, or AWAY. */
static void forget_read_parts(pp_board_t *board)
{
    pp_station_t *own = pp_board_own(board);
    PP_STEP("link");
    uint32_t pending = pp_word_pending(atomic_load(&own->word));
    if (!(board->linked & ~pending))
        return;
    /* After the word, so that a take which the word shows is counted here. */
    PP_STEP("link");
    uint64_t taken = atomic_load(&own->taken);
    if (pp_board_has_read(board, taken))
        board->linked = pending;
}

int32_t pp_station_free_part(pp_board_t *board)
{
    forget_read_parts(board);
    for (int32_t part = 0; part < (board->vault ? board->vault->parts : board->parts); part++) {
        uint32_t bit = 1u << part;
        if ((board->linked | board->reserved) & bit)
            continue;
        if (!board->vault && !(board->committed & bit)
            && !pp_node_commit(board->node, pp_board_slot_offset(board, board->node->index, part),
                               board->stride))
            return -2;
        board->committed |= bit;
        return part;
    }
    return -1;
}

void pp_station_reserve(pp_board_t *board, int32_t part) { board->reserved |= 1u << part; }
void pp_station_give_up(pp_board_t *board, int32_t part) { board->reserved &= ~(1u << part); }

void pp_station_link(pp_board_t *board, int32_t part, bool users, uint64_t state)
{
    pp_station_t *own = pp_board_own(board);
    uint64_t added = UINT64_C(1) << (PP_WORD_PENDING_SHIFT + part)
                   | (uint64_t)users << (PP_WORD_USERS_SHIFT + part);
    PP_STEP("link");
    uint64_t word = atomic_load_explicit(&own->word, memory_order_relaxed);
    /* Releases the part; seq_cst: before this rank looks whether the round is due. */
    while (!atomic_compare_exchange_weak(&own->word, &word, (word & PART_BITS) | added | state))
        PP_STEP("link");
    board->linked |= 1u << part;
    board->reserved &= ~(1u << part);
    board->state = state;
}

bool pp_station_say(pp_board_t *board, uint64_t state)
{
    pp_station_t *own = pp_board_own(board);
    if (state == board->state)
        return false;
    PP_STEP("say");
    uint64_t word = atomic_load_explicit(&own->word, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&own->word, &word, (word & PART_BITS) | state))
        PP_STEP("say");
    board->state = state;
    return true;
}

uint32_t pp_station_withdraw(pp_board_t *board)
{
    pp_station_t *own = pp_board_own(board);
    PP_STEP("withdraw");
    uint64_t word = atomic_load_explicit(&own->word, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&own->word, &word, word & STATE_BITS))
        PP_STEP("withdraw");
    return pp_word_pending(word);
}

bool pp_station_moved(pp_board_t *board, int32_t part)
{
    pp_station_t *own = pp_board_own(board);
    uint64_t bit = UINT64_C(1) << (PP_WORD_USERS_SHIFT + part);
    PP_STEP("move");
    uint64_t word = atomic_load_explicit(&own->word, memory_order_relaxed);
    while (word & bit) {
        if (atomic_compare_exchange_weak(&own->word, &word, word & ~bit))
            return true;
        PP_STEP("move");
    }
    return false;
}

/* ---- the turn ------------------------------------------------------------------------------------------- */

static uint64_t turn_of(const pp_board_t *board, uint64_t round, pp_phase_t phase)
{
    return round << PP_TURN_ROUND_SHIFT | (uint64_t)board->node->index << PP_TURN_OWNER_SHIFT
         | (uint64_t)phase;
}

static const uint64_t RIPE_TIME = (UINT64_C(1) << 48) - 1;

static uint64_t ripe_tag(uint64_t round) { return (round + 1) << 48; }

bool pp_board_set_ripe(pp_board_t *board, uint64_t round, uint64_t time_ns)
{
    PP_STEP("ripen");
    uint64_t seen = atomic_load(&board->shared->ripe);
    for (;;) {
        if ((seen & ~RIPE_TIME) == ripe_tag(round))
            return false;
        /* After the load: if the round is over, a rank may wait for the time set for a later round. */
        if (pp_turn_round(pp_board_turn(board)) != round)
            return false;
        PP_STEP("ripen");
        if (atomic_compare_exchange_strong(&board->shared->ripe, &seen, ripe_tag(round) | (time_ns & RIPE_TIME)))
            return true;
        /* Another rank has set it: for this round, or late for an earlier one that ended at once because all were
           there. */
    }
}

bool pp_board_ripens(const pp_board_t *board, uint64_t round, uint64_t now_ns, uint64_t longest_ns, int64_t *left_ns)
{
    PP_STEP("ripen");
    /* seq_cst: a sleeper's last look, after it has counted itself. */
    uint64_t seen = atomic_load(&board->shared->ripe);
    /* Sign-extended from 48 bits: the two times are close, unless a round 65536 rounds ago has set this one. */
    *left_ns = (int64_t)((seen - now_ns) << 16) >> 16;
    if (*left_ns > 0 && (uint64_t)*left_ns > longest_ns)
        *left_ns = 0;
    return (seen & ~RIPE_TIME) == ripe_tag(round);
}

bool pp_board_claim(pp_board_t *board, uint64_t turn)
{
    PP_STEP("claim");
    return atomic_compare_exchange_strong(&board->shared->turn, &turn,
                                          turn_of(board, pp_turn_round(turn), PP_TAKING));
}

bool pp_board_hold(pp_board_t *board, uint64_t turn)
{
    PP_STEP("claim");
    return atomic_compare_exchange_strong(&board->shared->turn, &turn,
                                          turn_of(board, pp_turn_round(turn), PP_TAKING) | PP_TURN_MERGES);
}

bool pp_board_leave_news(pp_board_t *board, uint64_t turn)
{
    PP_STEP("news");
    return atomic_compare_exchange_strong(&board->shared->turn, &turn, turn | PP_TURN_NEWS);
}

bool pp_board_release(pp_board_t *board, uint64_t round)
{
    PP_STEP("release");
    uint64_t claimed = atomic_load(&board->shared->turn) & ~(uint64_t)PP_TURN_NEWS, expected = claimed;
    PP_STEP("release");
    if (atomic_compare_exchange_strong(&board->shared->turn, &expected,
                                       round << PP_TURN_ROUND_SHIFT | PP_OPEN))
        return true;
    /* There is NEWS: clear it before the claimer looks again. */
    PP_STEP("release");
    atomic_store(&board->shared->turn, claimed);
    return false;
}

pp_taken_t pp_board_take(pp_board_t *board, int32_t rank, uint64_t round)
{
    pp_station_t *station = &board->stations[rank];
    PP_STEP("take");
    uint64_t word = atomic_load(&station->word);
    if (!pp_word_pending(word))
        return (pp_taken_t){.word = word};           /* null: there is nothing to write */
    PP_STEP("take");
    atomic_store_explicit(&station->taken, round + 1, memory_order_relaxed);
    PP_STEP("take");
    while (pp_word_pending(word) && !atomic_compare_exchange_weak(&station->word, &word, word & STATE_BITS))
        PP_STEP("take");
    return (pp_taken_t){.word = word, .parts = pp_word_pending(word)};
}

/* ---- chunks ---------------------------------------------------------------------------------------------- */

void pp_board_begin_plan(pp_board_t *board) { pp_job_begin_plan(&board->shared->job); }

void pp_board_keep_turn(pp_board_t *board, uint64_t round)
{
    PP_STEP("hand_out");
    atomic_store(&board->shared->turn, turn_of(board, round, PP_MOVING));
}

void pp_board_hand_out(pp_board_t *board, uint64_t round)
{
    pp_job_hand_out(&board->shared->job, round, board->plan->chunks);
    PP_STEP("hand_out");
    atomic_store(&board->shared->turn, turn_of(board, round, PP_MOVING));
}

bool pp_board_tickets_left(const pp_board_t *board) { return pp_job_is_open(&board->shared->job); }

bool pp_board_ticket(pp_board_t *board, uint64_t round, uint32_t *chunk)
{
    return pp_job_ticket(&board->shared->job, round, board->node->index % 2 == 0, chunk);
}

bool pp_board_finished(pp_board_t *board) { return pp_job_finished(&board->shared->job); }

/* ---- between nodes ----------------------------------------------------------------------------------------- */

void pp_board_send_away(pp_board_t *board, uint64_t round)
{
    PP_STEP("away");
    atomic_store(&board->shared->turn, turn_of(board, round, PP_AWAY));
}

bool pp_board_bring_back(pp_board_t *board, uint64_t round)
{
    PP_STEP("back");
    uint64_t turn = atomic_load(&board->shared->turn);
    for (;;) {
        bool     merges = turn & PP_TURN_MERGES;
        uint64_t next = merges ? turn | PP_TURN_NEWS : turn_of(board, round, PP_TAKING);
        PP_STEP("back");
        if (atomic_compare_exchange_weak(&board->shared->turn, &turn, next))
            return !merges;
    }
}

bool pp_board_begin_merge(pp_board_t *board, uint64_t turn)
{
    PP_STEP("merge");
    return atomic_compare_exchange_strong(&board->shared->turn, &turn,
                                          turn_of(board, pp_turn_round(turn), PP_AWAY) | PP_TURN_MERGES);
}

bool pp_board_end_merge(pp_board_t *board, uint64_t round)
{
    uint64_t away = turn_of(board, round, PP_AWAY);
    PP_STEP("merge");
    return atomic_exchange(&board->shared->turn, away) & PP_TURN_NEWS;
}

/* ---- the ring --------------------------------------------------------------------------------------------- */

static uint64_t complete(uint64_t round) { return 2 * (round + 1); }

static uint64_t least_absorbed(const pp_board_t *board)
{
    uint64_t least = UINT64_MAX;
    for (int32_t rank = 0; rank < board->ranks; rank++) {
        PP_STEP("pick");
        uint64_t absorbed = atomic_load(&board->stations[rank].absorbed);
        if (absorbed < least)
            least = absorbed;
    }
    return least;
}

static bool is_pinned(const pp_board_t *board, uint64_t round)
{
    PP_STEP("pick");
    if (atomic_load(&board->shared->pins) == 0)
        return false;
    for (int32_t rank = 0; rank < board->ranks; rank++) {
        PP_STEP("pick");
        if (atomic_load(&board->stations[rank].pinned) == round + 1)
            return true;
    }
    return false;
}

bool pp_board_pin(pp_board_t *board, int32_t index, uint64_t round)
{
    _Atomic uint64_t *sequence = &pp_board_entry(board, index)->sequence;
    PP_STEP("pin");
    if (atomic_fetch_add(&board->shared->pins, 1) < PP_PINS_MAX) {
        PP_STEP("pin");
        atomic_store(&pp_board_own(board)->pinned, round + 1);
        /* seq_cst, like the writer's mark and its look at the pins: the reader sees the writer, or the other way
           round. */
        PP_STEP("pin");
        if (atomic_load(sequence) == complete(round))
            return true;
    }
    pp_board_unpin(board);
    return false;
}

void pp_board_unpin(pp_board_t *board)
{
    PP_STEP("pin");
    atomic_store(&pp_board_own(board)->pinned, 0);
    PP_STEP("pin");
    atomic_fetch_sub(&board->shared->pins, 1);
}

/* Of the entries that may be overwritten, the one used last: its memory is warm. */
static int32_t choose(const pp_board_t *board, uint64_t round, uint64_t spared)
{
    int32_t  best = -1, unused = -1;
    uint64_t best_round = 0, absorbed = 0;
    for (int32_t i = 0; i < board->entries; i++) {
        const pp_ring_entry_t *entry = pp_board_entry(board, i);
        PP_STEP("pick");
        if (atomic_load_explicit(&entry->sequence, memory_order_relaxed) == 0) {
            unused = unused < 0 ? i : unused;
            continue;
        }
        if (entry->round + spared >= round || (best >= 0 && entry->round < best_round))
            continue;
        if (entry->kept && absorbed == 0)
            absorbed = least_absorbed(board);
        if (entry->kept && entry->round >= absorbed)
            continue;
        if (is_pinned(board, entry->round))
            continue;
        best = i;
        best_round = entry->round;
    }
    return best >= 0 ? best : unused;
}

int32_t pp_board_pick(pp_board_t *board, uint64_t round, uint64_t spared)
{
    for (int32_t index; (index = choose(board, round, spared)) >= 0;) {
        pp_ring_entry_t *entry = pp_board_entry(board, index);
        PP_STEP("pick");
        uint64_t before = atomic_exchange(&entry->sequence, 2 * round + 1);
        if (before != 0 && is_pinned(board, entry->round)) {
            PP_STEP("pick");
            atomic_store(&entry->sequence, before);
            continue;        /* a reader has pinned it since */
        }
        /* A reader that sees any of the writes below also sees that the entry has changed. */
        atomic_thread_fence(memory_order_release);
        entry->round = round;
        return index;
    }
    return -1;
}

bool pp_board_commit_result(pp_board_t *board, int32_t index)
{
    pp_ring_entry_t *entry = pp_board_entry(board, index);
    /* The machine may have no memory left for what it has given already. */
    if (!entry->committed)
        entry->committed =
            pp_node_commit(board->node, board->results + (uint64_t)index * board->stride, board->stride);
    return entry->committed;
}

void pp_board_publish(pp_board_t *board, uint64_t round, int32_t index)
{
    pp_ring_entry_t *entry = pp_board_entry(board, index);
    if (entry->flush) {
        PP_STEP("publish");
        atomic_fetch_add(&board->shared->flushes, 1);
    }
    PP_STEP("publish");
    atomic_store_explicit(&entry->sequence, complete(round), memory_order_release);
    /* seq_cst: before the publisher looks for sleepers. */
    PP_STEP("publish");
    atomic_store(&board->shared->turn, (round + 1) << PP_TURN_ROUND_SHIFT | PP_OPEN);
}


int32_t pp_board_find(const pp_board_t *board, uint64_t round)
{
    for (int32_t i = 0; i < board->entries; i++) {
        PP_STEP("read");
        if (atomic_load_explicit(&pp_board_entry(board, i)->sequence, memory_order_acquire)
            == complete(round))
            return i;
    }
    return -1;
}

uint64_t pp_board_oldest(const pp_board_t *board, uint64_t round)
{
    uint64_t oldest = UINT64_MAX;
    for (int32_t i = 0; i < board->entries; i++) {
        PP_STEP("read");
        uint64_t sequence = atomic_load_explicit(&pp_board_entry(board, i)->sequence, memory_order_acquire);
        if (sequence >= complete(round) && sequence % 2 == 0 && sequence / 2 - 1 < oldest)
            oldest = sequence / 2 - 1;
    }
    return oldest;
}

bool pp_board_still(const pp_board_t *board, int32_t index, uint64_t round)
{
    atomic_thread_fence(memory_order_acquire);
    PP_STEP("read");
    return atomic_load_explicit(&pp_board_entry(board, index)->sequence, memory_order_relaxed)
        == complete(round);
}
