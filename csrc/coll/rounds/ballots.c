/* ballots.c - see ballots.h. */
#include "ballots.h"

void pp_ballots_open(pp_ballots_t *ballots)
{
    *ballots = (pp_ballots_t){0};
    for (int i = 0; i < PP_BALLOT_FANOUT; i++)
        ballots->children[i].round = UINT64_MAX;
}

void pp_ballots_hear(pp_ballots_t *ballots, int32_t child, const pp_prefix_t *message)
{
    const pp_report_t *report = (const pp_report_t *)message;
    pp_ballot_t *last = &ballots->children[child];
    /* Between nodes another rank sends the ballots of each round, so a ballot of an earlier round may arrive later. */
    if (last->round != UINT64_MAX && last->round > message->round)
        return;
    *last = (pp_ballot_t){.round = message->round, .left_calls = report->left_calls,
                          .count = {.ready = report->ready, .left = report->left, .aside = report->aside,
                                    .waits = report->waits, .overdue = report->overdue}};
}

void pp_ballots_add(const pp_ballots_t *ballots, pp_ballot_t *sum, uint64_t calls)
{
    sum->left_calls = sum->count.left > 0 ? calls : UINT64_MAX;
    for (int i = 0; i < PP_BALLOT_FANOUT; i++) {
        const pp_ballot_t *child = &ballots->children[i];
        if (child->round != sum->round)
            continue;
        sum->count.ready += child->count.ready;
        sum->count.aside += child->count.aside;
        sum->count.waits |= child->count.waits;
        sum->count.overdue |= child->count.overdue;
        if (child->left_calls < calls)
            continue;
        sum->count.left += child->count.left;
        if (child->left_calls < sum->left_calls)
            sum->left_calls = child->left_calls;
    }
}

static bool same(const pp_ballot_t *a, const pp_ballot_t *b)
{
    return a->round == b->round && a->count.ready == b->count.ready && a->count.left == b->count.left
        && a->count.aside == b->count.aside && a->count.waits == b->count.waits && a->count.overdue == b->count.overdue
        && (a->left_calls == b->left_calls || a->count.left == 0);
}

void pp_ballots_report(pp_ballots_t *ballots, const pp_handle_t *handle, const pp_ballot_t *sum, int32_t parent_rank)
{
    pp_report_t message = {
        .prefix = {.kind = PP_MSG_REPORT, .handle = handle->id, .round = sum->round},
        .ready = sum->count.ready, .left = sum->count.left, .aside = sum->count.aside,
        .waits = sum->count.waits, .overdue = sum->count.overdue, .left_calls = sum->left_calls};
    if (ballots->reported.round != sum->round)
        ballots->reported = (pp_ballot_t){.round = sum->round};
    if (same(&ballots->reported, sum))
        return;
    ballots->reported = *sum;
    pp_engine_control(handle->engine, parent_rank, &message.prefix, sizeof message);
}
