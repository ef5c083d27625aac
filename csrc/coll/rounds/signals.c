/* signals.c - what the ranks of a node say to the leader of a round.  See combine.h. */
#include "combine.h"

/* ---- telling the leader ------------------------------------------------------------------------------ */

void pp_signal_tell_leader(pp_allreduce_t *coll, uint64_t round)
{
    const pp_nodes_t *nodes = coll->handle.engine->nodes;
    pp_node_t *node = pp_node_of(coll);
    int32_t leader = pp_nodes_leader_index(nodes, nodes->mine, round);
    /* seq_cst: before this rank looks whether the leader sleeps; a leader says that it sleeps before its last look. */
    PP_STEP("tell");
    atomic_fetch_add(&coll->on_board->board.shared->told, 1);
    if (leader == node->index)
        coll->handle.engine->changed = true;
    else
        node->wake(node->owner, leader, true);
}

uint32_t pp_signal_told(const pp_allreduce_t *coll)
{
    PP_STEP("look");
    return atomic_load(&coll->on_board->board.shared->told);
}

/* How often a rank of the node has said that it waits long. */
uint32_t pp_signal_awaits(const pp_allreduce_t *coll)
{
    PP_STEP("look");
    return atomic_load(&coll->on_board->board.shared->awaits);
}

/* Other nodes have told this rank about a round that is not open yet: the rank that opens the round wakes this one. */
void pp_signal_expect(pp_allreduce_t *coll, uint64_t round)
{
    pp_station_t *own = pp_board_own(&coll->on_board->board);
    PP_STEP("expect");
    if (atomic_load(&own->expects) < round + 1) {
        PP_STEP("expect");
        atomic_store(&own->expects, round + 1);
    }
    coll->handle.engine->changed = true;        /* if it has been opened meanwhile, this rank looks itself */
}

bool pp_signal_is_expected(const pp_allreduce_t *coll, uint64_t round)
{
    const pp_nodes_t *nodes = coll->handle.engine->nodes;
    int32_t leader = pp_nodes_leader_index(nodes, nodes->mine, round);
    PP_STEP("look");
    return atomic_load(&coll->on_board->board.stations[leader].expects) == round + 1;
}

/* ---- announcing: a round is on here -------------------------------------------------------------------- */

/* Each leader's station has such a word: other nodes may bring the next round about while a round that this node joined
   silently is not announced yet.  (A rank that is alone on its node leads both rounds, and has no other to tell.) */
static _Atomic uint64_t *activated_of(const pp_allreduce_t *coll, uint64_t round)
{
    const pp_nodes_t *nodes = coll->handle.engine->nodes;
    return &coll->on_board->board.stations[pp_nodes_leader_index(nodes, nodes->mine, round)].activated;
}

bool pp_signal_is_activated(const pp_allreduce_t *coll, uint64_t round)
{
    PP_STEP("look");
    return atomic_load(activated_of(coll, round)) >> PP_ACTIVATED_ROUND_SHIFT == round + 1;
}

/* Says that the round is on.  True: this rank is the first to say so, and announces the round to the other nodes.  No
   round completes before a rank has said so; so a rank that compares late finds the number of another round. */
bool pp_signal_say_activated(const pp_allreduce_t *coll, uint64_t round, pp_cause_t cause)
{
    _Atomic uint64_t *activated = activated_of(coll, round);
    PP_STEP("look");
    uint64_t seen = atomic_load(activated);
    if (seen >> PP_ACTIVATED_ROUND_SHIFT > round)
        return false;
    PP_STEP("activate");
    uint64_t by = (uint64_t)pp_node_of(coll)->index | (cause == PP_CAUSE_DEADLINE ? PP_ACTIVATED_LATE : 0);
    return atomic_compare_exchange_strong(activated, &seen, (round + 1) << PP_ACTIVATED_ROUND_SHIFT | by);
}

int32_t pp_signal_activated_by(const pp_allreduce_t *coll, uint64_t round, pp_cause_t *cause)
{
    PP_STEP("look");
    uint64_t activated = atomic_load(activated_of(coll, round));
    *cause = activated & PP_ACTIVATED_LATE ? PP_CAUSE_DEADLINE : PP_CAUSE_POLICY;
    return (int32_t)(activated & PP_ACTIVATED_BY);
}
