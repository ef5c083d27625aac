/*
 * jobs_cases.c - csrc/coll/preduce/jobs.c where the last chunk of a group is done: which ranks it wakes.  All that it
 * calls of the library, but for node/job.c, is here.  Run by tests/unit/test_groups_jobs.py; exits with 1, and says
 * which line was wrong.
 */
#include "coll/preduce/shared.h"
#include "check.h"

#include <stdlib.h>

enum { RANKS = 3, ME = 1, SERIAL = 7, NOW_NS = 5 };

static int  woken[RANKS];
static bool asleep = true;

/* ---- what it calls ----------------------------------------------------------------------------------------------- */

static void wake(void *owner, int32_t index, bool serve)
{
    CHECK(!owner && !serve);
    woken[index]++;
}

bool pp_node_anybody_asleep(const pp_node_t *node) { return node && asleep; }
void pp_preduce_overheard(const pp_preduce_t *preduce, const pp_groups_action_t *of) { (void)preduce, (void)of; }

/* A request of each member is complete with the group. */
pp_status_t pp_groups_event(pp_groups_t *groups, int32_t event, int32_t rank, uint64_t number, uint64_t now_ns,
                            const pp_groups_hearer_t *hearer)
{
    CHECK(!groups && event == PP_GROUPS_FINISH && number == SERIAL && now_ns == NOW_NS);
    hearer->tell(hearer->arg, &(pp_groups_action_t){.kind = PP_GROUPS_COMPLETE, .rank = rank, .serial = number});
    return PP_OK;
}

const char *pp_error_text(void) { abort(); }
void        pp_engine_fail(pp_engine_t *engine, pp_status_t status, const char *format, ...)
{
    (void)engine, (void)status, (void)format;
    abort();
}
void pp_mean(const pp_node_t *node, const pp_kernels_t *kernels, const pp_mean_t *mean, size_t first, size_t count)
{
    (void)node, (void)kernels, (void)mean, (void)first, (void)count;
    abort();
}

/* ---- the case ---------------------------------------------------------------------------------------------------- */

/* The progress thread of rank 1 has done the last chunk of the group of the ranks 0 and 1, and an application thread of
   each sleeps in its Wait: the one of rank 1 has come to it while the chunk was done. */
int main(void)
{
    pp_node_t    node = {.wake = wake};
    pp_desk_t   *desks = calloc(RANKS, sizeof *desks);
    int32_t      members[RANKS * RANKS] = {0, 1}, answers[RANKS * RANKS];
    double       weights[RANKS * RANKS] = {0.5, 0.5};
    shared_t     shared = {.node = &node, .ranks = RANKS, .me = ME, .desks = desks, .job_members = members,
                           .answer_members = answers, .job_weights = weights};
    pp_preduce_t preduce = {.shared = &shared};
    CHECK(desks && pp_jobs_open(&shared, RANKS));
    desks[0].plan = (struct pp_job_plan){.serial = SERIAL, .count = 2};
    pp_jobs_finish(&preduce, 0, NOW_NS);
    CHECK(!woken[0] && !woken[1]);                 /* under the lock nobody is woken */
    pp_jobs_follow_up(&preduce, true);
    CHECK(atomic_load(&desks[0].answered) == 1 && atomic_load(&desks[1].answered) == 1);
    CHECK(woken[0] == 1 && woken[1] == 1 && !woken[2]);
    pp_jobs_follow_up(&preduce, true);
    CHECK(woken[0] == 1 && woken[1] == 1);         /* once */
    asleep = false;
    pp_jobs_finish(&preduce, 0, NOW_NS);
    pp_jobs_follow_up(&preduce, true);
    CHECK(woken[0] == 1 && woken[1] == 1);
    pp_jobs_close(&shared);
    free(desks);
    return 0;
}
