/* job.c - see job.h. */
#include "job.h"

static uint64_t tickets_of(uint64_t number, uint32_t first, uint32_t end)
{
    return (number & UINT32_MAX) << 32 | first << 16 | end;
}

static uint32_t first_of(uint64_t tickets) { return (tickets >> 16) & 0xffff; }
static uint32_t end_of(uint64_t tickets) { return tickets & 0xffff; }

enum {
    CHUNK_BYTES = 65536,
    CHUNK_BYTES_MIN = 8192,          /* smaller ones take longer to hand out than to move */
    CHUNKS_A_RANK = 2,               /* at least, unless the chunks become too small */
    UNIT = 64                        /* elements of which a chunk has a multiple: it begins with a cache line */
};

pp_cut_t pp_job_cut(const pp_node_t *node, size_t bytes, size_t element_bytes, int32_t ranks)
{
    const bool   simulated = !node->memory;
    const size_t least = simulated ? 1 : CHUNK_BYTES_MIN, most = CHUNK_BYTES / node->magnify;
    const size_t unit = simulated ? 1 : UNIT;
    size_t       wanted = bytes / ((size_t)ranks * CHUNKS_A_RANK);
    wanted = wanted > most ? most : wanted < least ? least : wanted;
    if (bytes / PP_CHUNKS_MAX >= most)       /* so that tickets can count them */
        wanted = bytes / (PP_CHUNKS_MAX / 2);
    const size_t units = (wanted / element_bytes + unit - 1) / unit;
    const size_t chunk_bytes = (units ? units : 1) * unit * element_bytes;
    return (pp_cut_t){.chunk_bytes = chunk_bytes, .chunks = (uint32_t)((bytes + chunk_bytes - 1) / chunk_bytes)};
}

void pp_job_begin_plan(const pp_job_t *job)
{
    /* All readers of the last plan have finished their chunks.  The turn says so, too, but by way of the publisher's
       process.  This load says it directly of threads of this process, whose reads a race checker has seen. */
    PP_STEP("pick");
    (void)atomic_load_explicit(&job->unfinished, memory_order_acquire);
}

void pp_job_hand_out(pp_job_t *job, uint64_t number, uint32_t chunks)
{
    PP_STEP("hand_out");
    atomic_store_explicit(&job->unfinished, chunks, memory_order_relaxed);
    PP_STEP("hand_out");
    /* Releases the plan to the threads that get a ticket.  seq_cst: the caller then looks who sleeps. */
    atomic_store(&job->tickets, tickets_of(number, 0, chunks));
}

bool pp_job_is_open(const pp_job_t *job)
{
    PP_STEP("look");
    /* seq_cst: a sleeper's last look, after it has counted itself. */
    uint64_t seen = atomic_load(&job->tickets);
    return first_of(seen) < end_of(seen);
}

uint64_t pp_job_number(const pp_job_t *job)
{
    PP_STEP("ticket");
    return atomic_load_explicit(&job->tickets, memory_order_acquire) >> 32;
}

bool pp_job_ticket(pp_job_t *job, uint64_t number, bool front, uint32_t *chunk)
{
    PP_STEP("ticket");
    uint64_t seen = atomic_load_explicit(&job->tickets, memory_order_acquire);
    for (;;) {
        uint32_t first = first_of(seen), end = end_of(seen);
        if (seen >> 32 != (number & UINT32_MAX) || first == end)
            return false;
        uint64_t rest = front ? tickets_of(number, first + 1, end) : tickets_of(number, first, end - 1);
        PP_STEP("ticket");
        /* The job cannot end before this chunk is finished, so no rank writes the plan until then. */
        if (atomic_compare_exchange_weak_explicit(&job->tickets, &seen, rest, memory_order_acquire,
                                                  memory_order_acquire)) {
            *chunk = front ? first : end - 1;
            return true;
        }
    }
}

bool pp_job_finished(pp_job_t *job)
{
    PP_STEP("finish");
    /* Releases this chunk; the thread that finishes the last one acquires all others. */
    return atomic_fetch_sub_explicit(&job->unfinished, 1, memory_order_acq_rel) == 1;
}
