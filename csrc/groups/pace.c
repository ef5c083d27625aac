/* pace.c - how long ranks usually compute, and when they will ask next.  See parts.h. */
#include "parts.h"

/* A rank's pace is PACE_ONE divided by its usual computation.  Sums of paces are integers, so taking a rank out leaves
   exactly the sum of the others.  2^20 ranks that compute for LEAST_NS each do not overflow it. */
static const uint64_t PACE_ONE = UINT64_C(1) << 53, LEAST_NS = 1024;

enum { SMOOTHING = 4 };              /* a new sample counts for one part in so many */

static void count(pp_groups_t *g, const pp_groups_rank_t *rank, bool in)
{
    if (!rank->usual_ns || rank->left)
        return;
    uint64_t pace = PACE_ONE / rank->usual_ns;
    g->paces = in ? g->paces + pace : g->paces - pace;
    g->paced = in ? g->paced + 1 : g->paced - 1;
}

void pp_pace_started(pp_groups_t *g, int32_t rank, uint64_t now_ns)
{
    pp_groups_rank_t *r = pp_groups_rank(g, rank);
    if (now_ns < r->completed_ns)
        return;
    uint64_t sample = now_ns - r->completed_ns;
    count(g, r, false);
    r->usual_ns = r->usual_ns ? r->usual_ns - r->usual_ns / SMOOTHING + sample / SMOOTHING : sample;
    if (r->usual_ns < LEAST_NS)
        r->usual_ns = LEAST_NS;
    count(g, r, true);
}

/* The ledger calls them while `left` is false: before a rank leaves, and after it is back. */
void pp_pace_leave(pp_groups_t *g, int32_t rank) { count(g, pp_groups_rank(g, rank), false); }
void pp_pace_back(pp_groups_t *g, int32_t rank) { count(g, pp_groups_rank(g, rank), true); }

uint64_t pp_pace_mean(const pp_groups_t *g)
{
    uint64_t pace = g->paced ? g->paces / g->paced : 0;
    return pace ? PACE_ONE / pace : 0;
}

uint64_t pp_pace_ahead(const pp_groups_t *g, int32_t rank, uint64_t now_ns)
{
    const pp_groups_rank_t *r = pp_groups_rank(g, rank);
    if (r->asks)
        return 0;
    uint64_t ends = r->completed_ns + (r->usual_ns ? r->usual_ns : pp_pace_mean(g));
    return ends > now_ns ? ends - now_ns : now_ns - ends;
}

bool pp_pace_is_slow(const pp_groups_t *g, int32_t rank, uint64_t now_ns)
{
    const pp_groups_rank_t *r = pp_groups_rank(g, rank);
    uint64_t takes = r->asks || now_ns < r->completed_ns ? 0 : now_ns - r->completed_ns, mean = pp_pace_mean(g);
    return mean && (r->usual_ns > 2 * mean || takes > 2 * mean);
}
