/*
 * untangle.c - ranks that wait for each other on several handles.  See groups.h.
 *
 * Each handle has a machine.  A rank that waits on one cannot ask on another.  The look finds the ranks that wait for
 * such ranks only: a rank is free if it waits nowhere or runs a group, and becomes free if one of its requests would be
 * complete once free ranks have asked.  The ranks that do not become free are tangled.
 *
 * A tangled rank gives way on a machine on which it does not ask: it leaves it, and so is taken out of groups that have
 * not begun and is not waited for.  At the end it comes back; it is in those groups no more.  Its pace stays as it was.
 * Groups that the callers give are theirs: no rank gives way there.  A table is served as well as possible: ranks give
 * way on it only where giving way on the others does not help.
 *
 * A rank that waits elsewhere for long, as in a round of an allreduce, may wait there for a rank that waits here.  When
 * such a rank has waited long, too, the other one is taken to be tangled, and gives way.  Sooner it may be on its way
 * here, and not have said so yet.
 *
 * Who is found: of ranks that can never go on, take those that wait on one machine, and of the groups that are first in
 * their buffers the one with the lowest number.  It lacks a member that can never go on either (a rank that goes on
 * asks here some time), and that does not ask here: if it did, its own first group would have a lower number.  That
 * member keeps the others from becoming free, whatever the order of the look.  So the look, after the last event,
 * finds them.
 *
 * What helps: when all tangled ranks have left the machines on which they do not ask, the lowest group has only members
 * that ask and members that are free.  So no rank is tangled any more, and if no rank is free, a group has begun.
 * Where a group still waits for a free rank, those that gave way may be waited for again when they are back (by the
 * controller and tables, whose groups are formed late).  The look after that rank's event finds them again, and as it
 * asks now, their group begins.  A rank gives way on a machine at most once a look, so a look ends.
 */
#include "parts.h"

/* The machines of all handles. */
typedef struct tangle {
    pp_groups_t *const *machines;
    int32_t             count;
    bool                long_waits;  /* a rank has waited long for its request */
} tangle_t;

static pp_groups_rank_t *rank_at(const tangle_t *t, int32_t machine, int32_t rank)
{
    return pp_groups_rank(t->machines[machine], rank);
}

static int32_t ranks_of(const tangle_t *t) { return t->machines[0]->plan.ranks; }

static bool waits(const pp_groups_rank_t *rank) { return rank->asks && !rank->left && rank->running == PP_NOBODY; }

static bool is_free(const tangle_t *t, int32_t rank) { return rank_at(t, 0, rank)->free; }

static void set_free(const tangle_t *t, int32_t rank, bool is)
{
    for (int32_t m = 0; m < t->count; m++)
        rank_at(t, m, rank)->free = is;
}

static bool is_elsewhere(const tangle_t *t, int32_t rank)
{
    bool is = false;
    for (int32_t m = 0; m < t->count && t->long_waits; m++)
        is |= rank_at(t, m, rank)->elsewhere;
    return is;
}

/* Whether ranks may wait on more than one machine, or elsewhere.  After most events they do not, and the look at each
   rank is spared. */
static bool may_be_apart(const tangle_t *t)
{
    int32_t asked_on = 0;
    bool    any_elsewhere = false;
    for (int32_t m = 0; m < t->count; m++) {
        asked_on += t->machines[m]->asking > 0;
        any_elsewhere |= t->machines[m]->elsewhere > 0;
    }
    return asked_on > 1 || any_elsewhere;
}

/* Whether ranks wait on more than one machine, or elsewhere: on one alone they do not wait for each other. */
static bool are_apart(tangle_t *t)
{
    int32_t waited_on = 0;
    bool    any_elsewhere = false;
    for (int32_t m = 0; m < t->count; m++) {
        bool here = false;
        for (int32_t rank = 0; rank < ranks_of(t); rank++) {
            const pp_groups_rank_t *r = rank_at(t, m, rank);
            here |= waits(r);
            t->long_waits |= waits(r) && r->waits_long;
            any_elsewhere |= r->elsewhere;
        }
        waited_on += here;
    }
    return waited_on > 1 || (any_elsewhere && t->long_waits);
}

/* The rank does not wait, or runs a group, whose end changes what it waits for. */
static bool goes_on(const tangle_t *t, int32_t rank)
{
    bool asks = false, runs = false;
    for (int32_t m = 0; m < t->count; m++) {
        asks |= waits(rank_at(t, m, rank));
        runs |= rank_at(t, m, rank)->running != PP_NOBODY;
    }
    return runs || !(asks || is_elsewhere(t, rank));
}

static bool may_complete(pp_groups_t *g, int32_t rank)
{
    const pp_generator_t *generator = pp_generator_of(&g->plan);
    return generator->may_complete ? generator->may_complete(g, rank) : pp_ledger_may_complete(g, rank);
}

/* Marks the ranks that are free; returns how many are not. */
static int32_t look(const tangle_t *t)
{
    int32_t tangled = 0, before;
    for (int32_t rank = 0; rank < ranks_of(t); rank++) {
        set_free(t, rank, goes_on(t, rank));
        tangled += !is_free(t, rank);
    }
    do {
        before = tangled;
        for (int32_t rank = 0; rank < ranks_of(t); rank++)
            for (int32_t m = 0; m < t->count && !is_free(t, rank); m++)
                if (waits(rank_at(t, m, rank)) && may_complete(t->machines[m], rank)) {
                    set_free(t, rank, true);
                    tangled--;
                }
    } while (tangled && tangled < before);
    return tangled;
}

/* A tangled rank asks on the machine. */
static bool is_waited_on(const tangle_t *t, int32_t machine)
{
    for (int32_t rank = 0; rank < ranks_of(t); rank++)
        if (!is_free(t, rank) && waits(rank_at(t, machine, rank)))
            return true;
    return false;
}

static bool may_give_way(const tangle_t *t, int32_t machine, int32_t rank, pp_gives_way_t how)
{
    const pp_groups_rank_t *r = rank_at(t, machine, rank);
    return !is_free(t, rank) && !r->asks && !r->left
           && pp_generator_of(&t->machines[machine]->plan)->gives_way == how && is_waited_on(t, machine);
}

/* Lets tangled ranks give way until none is tangled; returns how many are. */
static int32_t give_way(const tangle_t *t, const pp_groups_hearer_t *hearers, uint64_t now_ns, int32_t tangled,
                        pp_gives_way_t how, pp_status_t *status)
{
    for (int32_t rank = 0; rank < ranks_of(t); rank++)
        for (int32_t m = 0; m < t->count && tangled; m++)
            if (may_give_way(t, m, rank, how)) {
                pp_status_t left = pp_groups_event(t->machines[m], PP_GROUPS_LEAVE, rank, PP_GROUPS_IN_CALL, now_ns,
                                                   &hearers[m]);
                *status = left < 0 ? left : *status;
                rank_at(t, m, rank)->gives_way = true;
                tangled = look(t);
            }
    return tangled;
}

pp_status_t pp_groups_untangle(pp_groups_t *const *machines, const pp_groups_hearer_t *hearers, int32_t count,
                               uint64_t now_ns)
{
    tangle_t t = {.machines = machines, .count = count};
    pp_status_t    status = PP_OK;
    int32_t        tangled = may_be_apart(&t) && are_apart(&t) ? look(&t) : 0;
    if (!tangled)
        return PP_OK;
    tangled = give_way(&t, hearers, now_ns, tangled, PP_GIVES_WAY, &status);
    give_way(&t, hearers, now_ns, tangled, PP_GIVES_WAY_LAST, &status);
    for (int32_t m = 0; m < count; m++)
        for (int32_t rank = 0; rank < ranks_of(&t); rank++) {
            pp_groups_rank_t *r = rank_at(&t, m, rank);
            const uint64_t    completed_ns = r->completed_ns;
            if (!r->gives_way)
                continue;
            pp_status_t back = pp_groups_event(machines[m], PP_GROUPS_BACK, rank, 0, now_ns, &hearers[m]);
            status = back < 0 ? back : status;
            r->gives_way = false;
            r->completed_ns = completed_ns;      /* it computes, or waits elsewhere, since then */
        }
    return status;
}
