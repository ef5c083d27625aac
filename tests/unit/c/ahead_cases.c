/*
 * ahead_cases.c - csrc/progress/ahead.c on the stand-in for the driver (tests/support/fakecuda.h), with rounds whose
 * chunks a case finishes one by one.  Run by tests/unit/test_device_ahead.py:
 *
 *     ahead_cases CASE     exits with 1 and says which line was wrong; the function CASE says what it holds
 */
#include "../../support/fakecuda.h"
#include "cuda/disposal.h"
#include "progress/ahead.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNKS = 5, CHUNK_BYTES = 4096, BYTES = (CHUNKS - 1) * CHUNK_BYTES + 1000, ENTRIES = 2, PIECES_MAX = 4, PAGE = 4096 };

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "line %d: not so: %s (%s)\n", __LINE__, #condition, pp_error_text());     \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)
#define DONE(call) CHECK((call) == PP_OK)

/* ---- a handle, and what it would call of the library ---------------------------------------------------------- */

static pp_ctx_t       ctx;
static pp_allreduce_t coll;
static pp_staging_t   staging;
static CUdeviceptr    sent, received;            /* the application's buffers */
static CUstream       first, second;             /* its streams */
static bool             pins = true;             /* results before have pinned the entries of the ring */
static _Alignas(PAGE) char ring[ENTRIES][(BYTES + PAGE - 1) / PAGE * PAGE];

/* The round under way: its chunks that are finished, and its entry. */
static uint64_t round_now;
static bool     under_way, finished[CHUNKS];
static int      entry;

static bool chunks_now(const pp_allreduce_t *of, pp_chunks_t *chunks)
{
    (void)of;
    *chunks = (pp_chunks_t){.round = round_now, .count = CHUNKS, .bytes = CHUNK_BYTES};
    return under_way;
}

static const void *chunk(const pp_allreduce_t *of, uint64_t of_round, uint32_t index)
{
    (void)of;
    return of_round == round_now && finished[index] ? ring[entry] + index * CHUNK_BYTES : NULL;
}

static const pp_rounds_ops_t ops = {.chunks = chunks_now, .chunk = chunk};

void pp_engine_fail(pp_engine_t *engine, pp_status_t status, const char *format, ...)
{
    (void)format;
    engine->error = status;
}

/* Elements need not be converted here. */
pp_status_t pp_folds_load(const pp_folds_t *folds, CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream)
{
    (void)folds, (void)to, (void)from, (void)count, (void)stream;
    abort();
}

pp_status_t pp_folds_store(const pp_folds_t *folds, CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream)
{
    (void)folds, (void)to, (void)from, (void)count, (void)stream;
    abort();
}

/* ---- making one --------------------------------------------------------------------------------------------------- */

static CUstream new_stream(void)
{
    CUstream stream;
    DONE(pp_cuda_make_stream(staging.lane.device.cuda, &stream));
    return stream;
}

static void use(CUstream stream)
{
    staging.stream = (uint64_t)(uintptr_t)stream;
    pp_ahead_in_another_call(&staging);
}

/* The application's buffers are cut into pieces of these sizes, but for the last. */
static void begin_with(size_t count, const size_t *sizes, bool in_place)
{
    static pp_span_t sends[PIECES_MAX], receives[PIECES_MAX];
    size_t at = 0;
    DONE(pp_lane_open(0, &staging.lane));
    DONE(pp_cuda_enter(&staging.lane.device));
    DONE(PP_CUDA(staging.lane.device.cuda, cuMemAlloc, &sent, BYTES));
    DONE(PP_CUDA(staging.lane.device.cuda, cuMemAlloc, &received, BYTES));
    first = new_stream();
    second = new_stream();
    for (size_t i = 0; i <= count; i++) {
        size_t bytes = i < count ? sizes[i] : BYTES - at;
        sends[i] = (pp_span_t){sent + at, bytes};
        receives[i] = (pp_span_t){(in_place ? sent : received) + at, bytes};
        at += bytes;
    }
    staging.sends = sends;
    staging.receives = receives;
    staging.spans = count + 1;
    staging.bytes = BYTES;
    staging.overlaps = in_place;
    staging.page_bytes = sizeof ring[0];
    staging.in_place = true;
    coll.ops = &ops;
    coll.handle.staging = &staging;
    coll.handle.engine = ctx.team.engine = &ctx.engine;
    coll.handle.team = &ctx.team;
    pthread_mutex_init(&ctx.lock, NULL);
    pthread_mutex_lock(&ctx.lock);   /* which the calls here have */
    DONE(pp_lane_pin_nothing(&staging.lane, &staging.reader));
    DONE(pp_ahead_make(&coll.handle));
    use(first);
    for (int in = 0; pins && in < ENTRIES; in++)
        CHECK(pp_lane_borrow(&staging.lane, staging.reader, ring[in], sizeof ring[0]));
}

static void begin(void) { begin_with(0, NULL, false); }

static void wait_for(CUstream stream) { DONE(PP_CUDA(staging.lane.device.cuda, cuStreamSynchronize, stream)); }

static void finish(void)
{
    wait_for(first);
    wait_for(second);
    DONE(pp_ahead_over(&staging));
    DONE(pp_lane_over(&staging.lane, staging.reader));
    pp_ahead_end(&staging);
    for (pp_pinned_t *next; staging.spare; staging.spare = next) {
        next = staging.spare->next;
        pp_lane_unpin(&staging.lane, staging.spare);
    }
    pp_lane_unpin(&staging.lane, staging.reader);
    const pp_cuda_t *cuda = staging.lane.device.cuda;
    cuda->cuStreamDestroy(first);
    cuda->cuStreamDestroy(second);
    cuda->cuMemFree(sent);
    cuda->cuMemFree(received);
    pp_cuda_leave(&staging.lane.device, PP_OK);
    pp_lane_close(&staging.lane);
    CHECK(pp_dispose_wait(10000000));
    pthread_mutex_unlock(&ctx.lock);
    CHECK(strcmp(fake_leaks(), "") == 0);
    CHECK(fake_misuses() == 0 && fake_pageable_copies() == 0);
}

/* ---- what happens in cases ------------------------------------------------------------------------------------------ */

static char byte_of(uint64_t of_round, size_t at) { return (char)(of_round * 101 + at * 7 + at / CHUNK_BYTES); }

static void open_round(uint64_t number, int in)
{
    round_now = number;
    entry = in;
    under_way = true;
    memset(finished, 0, sizeof finished);
    memset(ring[in], -1, sizeof ring[in]);
}

static void finish_chunk(uint32_t index)
{
    for (size_t at = index * CHUNK_BYTES; at < BYTES && at < (index + 1) * CHUNK_BYTES; at++)
        ring[entry][at] = byte_of(round_now, at);
    finished[index] = true;
}

static void complete(void)
{
    for (uint32_t index = 0; index < CHUNKS; index++)
        finish_chunk(index);
    under_way = false;
}

static void send(pp_pinned_t *pinned)
{
    pp_status_t status = pp_ahead_send_rest(&ctx, &coll.handle, pinned, round_now);
    if (status == PP_PENDING) {
        ctx.staged_bytes += BYTES;
        status = pp_lane_in(&staging.lane, staging.receives, staging.spans, pinned, staging.stream);
    }
    DONE(status);
}

/* The request is given the round, whose result is in the ring. */
static void collect(void)
{
    CHECK(pp_lane_borrow(&staging.lane, staging.reader, ring[entry], sizeof ring[0]));
    send(staging.reader);
}

static bool go_on(void) { return pp_ahead_go_on(&ctx, &coll.handle); }

static uint64_t copies(void)
{
    static uint64_t last;
    uint64_t before = last;
    last = fake_calls("cuMemcpyAsync") + fake_calls("cuMemcpy2DAsync");
    return last - before;
}

static bool holds(uint64_t of_round, size_t from, size_t end)
{
    const char *there = fake_reach(received, BYTES);
    for (size_t at = from; at < end; at++)
        if (there[at] != byte_of(of_round, at))
            return false;
    return true;
}

/* Nothing that is right lets the copy end; what is wrong has time for it. */
static bool stays_busy(pp_pinned_t *pinned)
{
    for (int looks = 0; looks < 50; looks++, usleep(1000))
        if (pp_lane_over(&staging.lane, pinned) != PP_PENDING)
            return false;
    return true;
}

static void overwrite(CUstream stream)
{
    static char other[BYTES];
    memset(other, -2, sizeof other);
    DONE(PP_CUDA(staging.lane.device.cuda, cuMemHostRegister, other, sizeof other, CU_MEMHOSTREGISTER_PORTABLE));
    DONE(PP_CUDA(staging.lane.device.cuda, cuMemcpyAsync, received, pp_cuda_address(other), BYTES, stream));
    wait_for(stream);
    DONE(PP_CUDA(staging.lane.device.cuda, cuMemHostUnregister, other));
}

/* ---- cases ------------------------------------------------------------------------------------------------------------ */

/* A chunk is copied when it is finished, once; neighbours by one copy; the rest when the result is collected. */
static void chunk_by_chunk(void)
{
    begin();
    open_round(3, 0);
    copies();
    CHECK(!go_on() && copies() == 0);
    finish_chunk(4);
    CHECK(go_on() && copies() == 1);
    CHECK(!go_on() && copies() == 0);
    wait_for(first);
    CHECK(holds(3, 4 * CHUNK_BYTES, BYTES) && !holds(3, 0, CHUNK_BYTES));
    finish_chunk(0);
    finish_chunk(1);
    CHECK(go_on() && copies() == 1);
    wait_for(first);
    CHECK(holds(3, 0, 2 * CHUNK_BYTES) && !holds(3, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES));
    complete();
    CHECK(!go_on());
    collect();
    CHECK(copies() == 1);
    wait_for(first);
    CHECK(holds(3, 0, BYTES));
    CHECK(ctx.staged_bytes == BYTES);
    finish();
}

/* All chunks were copied before the round is complete: the reader is busy until they have arrived. */
static void all_before(void)
{
    begin();
    open_round(0, 1);
    for (uint32_t index = 0; index < CHUNKS; index++)
        finish_chunk(index);
    fake_hold(first, true);
    CHECK(go_on());
    under_way = false;
    copies();
    collect();
    CHECK(copies() == 0);
    CHECK(stays_busy(staging.reader));
    CHECK(pp_ahead_over(&staging) == PP_PENDING);
    fake_hold(first, false);
    wait_for(first);
    CHECK(holds(0, 0, BYTES));
    CHECK(ctx.staged_bytes == BYTES);
    finish();
}

/* The next round's chunks are not taken for copied. */
static void rounds_in_turn(void)
{
    begin();
    for (uint64_t number = 0; number < 6; number++) {
        open_round(number, (int)(number % ENTRIES));
        finish_chunk((uint32_t)(number % CHUNKS));
        CHECK(go_on());
        complete();
        collect();
        wait_for(first);
        CHECK(holds(number, 0, BYTES));
    }
    CHECK(ctx.staged_bytes == 6 * BYTES);
    finish();
}

/* A Wait on another stream collects: work behind it comes after the copies on the first. */
static void another_stream(void)
{
    begin();
    open_round(1, 0);
    finish_chunk(2);
    fake_hold(first, true);
    CHECK(go_on());
    use(second);
    complete();
    collect();
    CHECK(stays_busy(staging.reader));
    fake_hold(first, false);
    overwrite(second);
    wait_for(first);
    CHECK(!holds(1, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 1));
    finish();
}

/* A number may be that of another stream in the next call: it waits for the copies of the calls before, whatever its
   stream is called. */
static void another_call(void)
{
    begin();
    open_round(1, 0);
    finish_chunk(0);
    CHECK(go_on());
    uint64_t waits = fake_calls("cuStreamWaitEvent");
    finish_chunk(1);
    CHECK(go_on() && fake_calls("cuStreamWaitEvent") == waits);
    wait_for(first);
    use(first);
    finish_chunk(2);
    CHECK(go_on() && fake_calls("cuStreamWaitEvent") == waits + 1);
    use(first);
    complete();
    collect();
    CHECK(fake_calls("cuStreamWaitEvent") == waits + 2);
    wait_for(first);
    CHECK(holds(1, 0, BYTES));
    finish();
}

/* Chunks are copied on two streams, and a third call collects on the first. */
static void streams_in_turn(void)
{
    begin();
    open_round(1, 0);
    finish_chunk(0);
    CHECK(go_on());
    use(second);
    fake_hold(second, true);
    finish_chunk(1);
    CHECK(go_on());
    use(first);
    complete();
    collect();
    CHECK(stays_busy(staging.reader));
    fake_hold(second, false);
    wait_for(first);
    CHECK(holds(1, 0, BYTES));
    overwrite(first);
    wait_for(second);
    CHECK(!holds(1, CHUNK_BYTES, CHUNK_BYTES + 1));
    finish();
}

/* The request is given a later round than the one whose chunks were copied: all of it is copied, behind them; also if
   no chunk of the later one was looked at, and on another stream. */
static void overwritten(void)
{
    begin();
    open_round(1, 0);
    finish_chunk(0);
    fake_hold(first, true);
    CHECK(go_on());
    open_round(2, 0);
    use(second);
    CHECK(!go_on());
    complete();
    copies();
    collect();
    CHECK(copies() == 1);
    CHECK(stays_busy(staging.reader));
    fake_hold(first, false);
    wait_for(second);
    CHECK(holds(2, 0, BYTES));
    overwrite(second);
    wait_for(first);
    CHECK(!holds(2, 0, 1));
    finish();
}

/* The same, and chunks of the later round were copied. */
static void overwritten_in_time(void)
{
    begin();
    open_round(1, 0);
    finish_chunk(0);
    CHECK(go_on());
    wait_for(first);
    open_round(2, 1);
    finish_chunk(0);
    copies();
    CHECK(go_on() && copies() == 1);
    complete();
    collect();
    CHECK(copies() == 1);
    wait_for(first);
    CHECK(holds(2, 0, BYTES));
    CHECK(ctx.staged_bytes == CHUNK_BYTES + BYTES);
    finish();
}

/* The round's result was moved out of its entry, and comes by a bounce buffer: all of it is copied. */
static void by_a_bounce_buffer(void)
{
    pp_pinned_t *bounce;
    begin();
    DONE(pp_lane_pin(&staging.lane, BYTES, &bounce));
    open_round(5, 1);
    finish_chunk(1);
    CHECK(go_on());
    complete();
    memcpy(bounce->data, ring[1], BYTES);
    copies();
    send(bounce);
    CHECK(copies() == 1);
    wait_for(first);
    CHECK(holds(5, 0, BYTES));
    DONE(pp_lane_over(&staging.lane, bounce));
    pp_lane_unpin(&staging.lane, bounce);
    finish();
}

/* Buffers that begin and end within chunks, one that is empty. */
static void several_buffers(void)
{
    const size_t sizes[] = {CHUNK_BYTES - 1, 0, CHUNK_BYTES + 2};
    begin_with(sizeof sizes / sizeof *sizes, sizes, false);
    open_round(2, 0);
    finish_chunk(1);
    finish_chunk(2);
    copies();
    CHECK(go_on() && copies() == 2);             /* the third and the fourth buffer */
    wait_for(first);
    CHECK(holds(2, CHUNK_BYTES, 3 * CHUNK_BYTES) && !holds(2, CHUNK_BYTES - 1, CHUNK_BYTES));
    complete();
    collect();
    wait_for(first);
    CHECK(holds(2, 0, BYTES));
    finish();
}

/* Results go where contributions come from, or are read elsewhere: no chunk is copied early. */
static void not_at_all(void)
{
    begin_with(0, NULL, true);
    open_round(0, 0);
    finish_chunk(0);
    CHECK(!staging.ahead && !go_on());
    finish();
}

static void has_read(pp_handle_t *handle)
{
    (void)handle;
    coll.viewed = false;
}

/* Until the device has read the result before, which is found out here. */
static void while_a_result_is_read(void)
{
    begin();
    staging.has_read = has_read;
    open_round(0, 1);
    complete();
    fake_hold(first, true);
    collect();
    coll.viewed = true;
    pp_staging_await(&ctx, &staging, staging.reader);
    use(second);
    open_round(1, 0);
    finish_chunk(0);
    copies();
    CHECK(!go_on() && copies() == 0);
    fake_hold(first, false);
    wait_for(first);
    staging.views = true;                        /* the application's own work reads it, too */
    CHECK(!go_on() && coll.viewed);
    staging.views = false;
    CHECK(go_on() && copies() == 1 && !coll.viewed && !staging.results);
    staging.in_place = false;
    CHECK(!go_on());
    wait_for(second);
    finish();
}

/* The entry is pinned when a result is collected there: until then nothing is copied early, and the driver is not asked. */
static void not_pinned(void)
{
    pins = false;
    begin();
    open_round(0, 0);
    finish_chunk(0);
    copies();
    CHECK(!go_on() && copies() == 0 && fake_calls("cuMemHostRegister") == 0);
    complete();
    collect();
    wait_for(first);
    CHECK(holds(0, 0, BYTES));
    open_round(1, 0);
    finish_chunk(0);
    CHECK(go_on());
    complete();
    collect();
    wait_for(first);
    CHECK(holds(1, 0, BYTES));
    finish();
}

/* Behind other work a copy would not be early, and the driver might have no room for it. */
static void behind_other_work(void)
{
    begin();
    open_round(1, 0);
    finish_chunk(0);
    fake_hold(first, true);
    DONE(PP_CUDA(staging.lane.device.cuda, cuMemcpyAsync, sent, received, BYTES, first));
    copies();
    CHECK(!go_on() && copies() == 0);
    fake_hold(first, false);
    wait_for(first);
    fake_hold(first, true);                      /* idle all the same */
    CHECK(go_on() && copies() == 1);
    finish_chunk(1);
    CHECK(go_on() && copies() == 1);             /* behind its own */
    fake_hold(first, false);
    complete();
    collect();
    wait_for(first);
    CHECK(holds(1, 0, BYTES));
    finish();
}

/* A capture that another thread begins goes on: the stream is not asked, and gets no copy, also behind its own. */
static void while_it_is_captured(void)
{
    begin();
    open_round(1, 0);
    for (uint32_t index = 0; index < 2; index++) {
        finish_chunk(index);
        fake_capture(first, true);
        copies();
        CHECK(!go_on() && copies() == 0 && !ctx.engine.error);
        fake_capture(first, false);
        CHECK(go_on() && copies() == 1);
    }
    complete();
    collect();
    wait_for(first);
    CHECK(holds(1, 0, BYTES));
    finish();
}

/* The legacy default stream would wait for it. */
static void while_a_blocking_stream_is_captured(void)
{
    CUstream blocking;
    begin();
    CHECK(cuStreamCreate(&blocking, 0) == CUDA_SUCCESS);
    use(CU_STREAM_LEGACY);
    open_round(1, 0);
    for (uint32_t index = 0; index < 2; index++) {
        finish_chunk(index);
        fake_capture(blocking, true);
        copies();
        CHECK(!go_on() && copies() == 0 && !ctx.engine.error);
        fake_capture(blocking, false);
        CHECK(go_on() && copies() == 1);
    }
    complete();
    collect();
    wait_for(CU_STREAM_LEGACY);
    CHECK(holds(1, 0, BYTES));
    DONE(PP_CUDA(staging.lane.device.cuda, cuStreamDestroy, blocking));
    finish();
}

/* An error of the driver ends the context. */
static void failures(void)
{
    begin();
    open_round(0, 0);
    finish_chunk(0);
    fake_fail("cuMemcpy2DAsync", 1, CUDA_ERROR_INVALID_VALUE);  /* so few bytes go as rows */
    go_on();
    CHECK(ctx.engine.error == PP_ERR_STATE);
    finish();
}

static const struct {
    const char *name;
    void      (*run)(void);
} cases[] = {
    {"chunk_by_chunk", chunk_by_chunk}, {"all_before", all_before}, {"rounds_in_turn", rounds_in_turn},
    {"another_stream", another_stream}, {"another_call", another_call}, {"streams_in_turn", streams_in_turn},
    {"overwritten", overwritten}, {"overwritten_in_time", overwritten_in_time},
    {"by_a_bounce_buffer", by_a_bounce_buffer}, {"several_buffers", several_buffers}, {"not_at_all", not_at_all},
    {"while_a_result_is_read", while_a_result_is_read}, {"not_pinned", not_pinned},
    {"behind_other_work", behind_other_work}, {"while_it_is_captured", while_it_is_captured},
    {"while_a_blocking_stream_is_captured", while_a_blocking_stream_is_captured}, {"failures", failures},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    fprintf(stderr, "usage: ahead_cases CASE\n");
    return 2;
}
