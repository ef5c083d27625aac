/*
 * thread_cases.c - csrc/progress/thread.c while a thread of the application is inside: how long the progress thread
 * sleeps.  All that it calls of the library is here.  Run by tests/unit/test_progress_thread.py; exits with 1, and says
 * which line was wrong.
 */
#include "progress/staging.h"
#include "progress/wait_parts.h"
#include "check.h"

#include <stdlib.h>

enum { PATIENCE_US = 100000 };

static pp_ctx_t ctx = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- what it calls ------------------------------------------------------------------------------------------------ */

static int64_t  until_alarm_us, slept_us, said_us;
static int      sleeps;
static uint64_t before_us;

int64_t  pp_patience_us(const pp_ctx_t *of, unsigned quiet) { return of && quiet == PP_IDLE_POLLS ? PATIENCE_US : -1; }
int64_t  pp_until_alarm_us(const pp_ctx_t *of) { return of ? until_alarm_us : -1; }
uint32_t pp_mpi_sequence(pp_mpi_t *mpi) { return mpi ? 1 : 7; }

/* The context ends at the first sleep. */
bool pp_mpi_sleep(pp_mpi_t *mpi, pp_sleeper_t sleeper, uint32_t seen, int64_t timeout_us)
{
    CHECK(!mpi && sleeper == PP_PROGRESS_ASLEEP && seen == 7);
    CHECK(pthread_mutex_trylock(&ctx.lock) == 0);         /* it sleeps without the lock */
    slept_us = timeout_us;
    said_us = (int64_t)(ctx.thread_until_ns / 1000 - before_us);
    sleeps++;
    ctx.stop = true;
    pthread_mutex_unlock(&ctx.lock);
    return true;
}

void pp_mpi_set_sleeper(pp_mpi_t *mpi, pp_sleeper_t sleeper) { (void)mpi, (void)sleeper; }
void pp_mpi_ring_self(pp_mpi_t *mpi) { (void)mpi; }
void pp_tell_failure(pp_ctx_t *of, uint64_t limit_us) { (void)of, (void)limit_us; }

/* A thread that stands by does no work. */
int         pp_look(pp_ctx_t *of) { (void)of; abort(); }
bool        pp_staging_work(pp_ctx_t *of) { (void)of; abort(); }
bool        pp_work_at_round(pp_ctx_t *of, const pp_handle_t *receives) { (void)of, (void)receives; abort(); }
void        pp_node_lent(pp_node_t *node, uint64_t cpu_ns) { (void)node, (void)cpu_ns; abort(); }
void        pp_let_others(pp_ctx_t *of, bool have_core) { (void)of, (void)have_core; abort(); }
void        pp_sight_tell(pp_ctx_t *of, pp_event_kind_t kind, int32_t a, int32_t b) { (void)of, (void)kind, (void)a, (void)b; }
bool        pp_doze(pp_ctx_t *of, pp_sleeper_t sleeper, unsigned quiet, int64_t limit_us)
{
    (void)of, (void)sleeper, (void)quiet, (void)limit_us;
    abort();
}
pp_status_t pp_fail(pp_status_t status, const char *format, ...) { (void)status, (void)format; abort(); }

/* ---- cases -------------------------------------------------------------------------------------------------------- */

/* Whether it sleeps for so long if the alarm is so far, and says so to those that may have to wake it. */
static void stands_by(int64_t alarm_us, int64_t expected_us)
{
    until_alarm_us = alarm_us;
    sleeps = 0;
    ctx.stop = false;
    atomic_store(&ctx.attended, 1);
    before_us = pp_now_us();
    CHECK(pp_thread_start(&ctx) == PP_OK);
    CHECK(pthread_join(ctx.thread, NULL) == 0);
    const int64_t took_us = (int64_t)(pp_now_us() - before_us);
    CHECK(sleeps == 1 && slept_us == expected_us);
    CHECK(said_us >= expected_us && said_us <= expected_us + took_us);
    CHECK(ctx.thread_until_ns == 0);
}

int main(void)
{
    stands_by(INT64_MAX, PATIENCE_US);
    stands_by(5 * PATIENCE_US, PATIENCE_US);
    stands_by(PATIENCE_US / 5, PATIENCE_US / 5);          /* the application may have left by then */
    stands_by(1, 1);
    stands_by(0, PATIENCE_US);                            /* at one that is due the application looks */
    return 0;
}
