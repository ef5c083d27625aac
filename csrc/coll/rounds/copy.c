/* copy.c - results: where they are on a board, and how they are copied out.  See combine.h. */
#include "combine.h"

#include <string.h>

static const void *elements_of(const pp_allreduce_t *coll, const pp_outcome_t *outcome)
{
    return outcome->lies == PP_IN_RING ? pp_board_result(&coll->on_board->board, outcome->ring)
                                      : coll->config.pieces[0].recv;
}

static void copy_elements(const pp_allreduce_t *coll, const pp_outcome_t *outcome, size_t first, size_t count)
{
    const pp_kernels_t *kernels = &coll->series.kernels;
    const char *from = elements_of(coll, outcome);
    pp_move_out(&coll->on_board->board, kernels, coll->config.pieces, first, from + first * kernels->element_bytes,
                count);
}

/* Copies the chunks that this rank has not put into its receive buffers while it moved them, as few pieces as
   possible. */
static void copy_rest(const pp_allreduce_t *coll, const pp_outcome_t *outcome)
{
    const pp_combine_t *combine = coll->on_board;
    size_t each = combine->cut.chunk_bytes / coll->series.kernels.element_bytes;
    for (uint32_t chunk = 0, next; chunk < combine->cut.chunks; chunk = next) {
        for (next = chunk + 1; next < combine->cut.chunks && combine->landed[next] == combine->landed[chunk];)
            next++;
        size_t end = next == combine->cut.chunks ? coll->count : next * each;
        if (!combine->landed[chunk])
            copy_elements(coll, outcome, chunk * each, end - chunk * each);
    }
}

static bool has_landed(const pp_combine_t *combine, const pp_outcome_t *outcome)
{
    return combine->landed_count > 0 && combine->landed_round == outcome->round;
}

bool pp_copy_out(const pp_allreduce_t *coll, const pp_outcome_t *outcome)
{
    pp_combine_t *combine = coll->on_board;
    if (outcome->lies == PP_IN_RECEIVE)
        return true;
    combine->landed_given = has_landed(combine, outcome);
    if (combine->landed_given)
        copy_rest(coll, outcome);
    else
        copy_elements(coll, outcome, 0, coll->count);
    /* The lock may be released, and nothing but this call keeps the entry: so it is read now. */
    const pp_memory_t *memory = coll->series.kernels.memory;
    if (memory->finish)
        memory->finish(memory);
    return pp_board_still(&combine->board, outcome->ring, outcome->round);
}

const void *pp_copy_view(pp_allreduce_t *coll, const pp_outcome_t *outcome)
{
    pp_combine_t *combine = coll->on_board;
    /* A result that must be converted, or is empty, exists in the receive buffers only.  From a vault it is converted on
       the way. */
    if (outcome->lies != PP_IN_RING || coll->count == 0
        || !(combine->board.vault || pp_users_are_vectors(&coll->series.kernels)))
        return NULL;
    coll->viewed = pp_board_pin(&combine->board, outcome->ring, outcome->round);
    return coll->viewed ? elements_of(coll, outcome) : NULL;
}

void pp_copy_end_view(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    if (!coll->viewed)
        return;
    coll->viewed = false;
    pp_board_unpin(&combine->board);
    combine->news = true;                /* a round may have waited for the entry */
}

static void fail_to_read(const pp_allreduce_t *coll, pp_status_t status)
{
    pp_engine_fail(coll->handle.engine, status, "handle %u: a result was not read: %s", coll->handle.id, pp_error_text());
}

/* The result of a round was copied, or that was queued after all that is read already. */
static bool begin_read(pp_allreduce_t *coll, uint64_t round)
{
    pp_combine_t *combine = coll->on_board;
    const pp_memory_t *memory = coll->series.kernels.memory;
    uint64_t mark = 0;
    const pp_status_t status = memory->mark ? memory->mark(memory, &mark) : PP_OK;
    if (status < 0)
        fail_to_read(coll, status);
    if (status != PP_PENDING) {
        combine->read_count = 0;
        return status >= 0;
    }
    if (combine->read_count < PP_READS)
        combine->reads[combine->read_count++] = (pp_read_t){.round = round};
    pp_read_t *newest = &combine->reads[combine->read_count - 1];
    if (round < newest->round)
        newest->round = round;
    newest->mark = mark;
    return true;
}

bool pp_copy_has_read(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    const pp_memory_t *memory = coll->series.kernels.memory;
    uint32_t over = 0;
    if (coll->handle.engine->error)
        return false;
    pp_status_t status = PP_OK;
    while (over < combine->read_count && (status = memory->reached(memory, combine->reads[over].mark)) == PP_OK)
        over++;
    if (status < 0)
        fail_to_read(coll, status);
    combine->read_count -= over;
    if (over > 0)
        memmove(combine->reads, combine->reads + over, combine->read_count * sizeof *combine->reads);
    return over > 0;
}

bool pp_copy_own(pp_allreduce_t *coll, pp_outcome_t *outcome)
{
    if (outcome->lies == PP_NOWHERE)
        return true;
    const pp_status_t status = pp_pool_get(&coll->series.vectors, &outcome->buffer);
    if (status < 0) {
        pp_engine_fail(coll->handle.engine, status, "%s", pp_error_text());
        return false;
    }
    const pp_memory_t *memory = coll->series.kernels.memory;
    memory->copy(memory, outcome->buffer->data, elements_of(coll, outcome), coll->series.vectors.bytes);
    outcome->lies = PP_NOWHERE;
    return begin_read(coll, outcome->round);
}

bool pp_copy_begin_landing(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    /* A result that goes to the receive buffers directly is not put there twice; one in which other nodes have a part
       is not complete yet. */
    if (!combine->landed || !combine->way->alone || combine->direct || coll->lands_nothing
        || !pp_handle_waits(&coll->handle))
        return false;
    /* The request will be given the round that is under way, unless its entry is overwritten before. */
    if (combine->landed_round != coll->completed)
        pp_copy_end_landing(coll);
    combine->landed_round = coll->completed;
    return true;
}

void pp_copy_end_landing(pp_allreduce_t *coll)
{
    pp_combine_t *combine = coll->on_board;
    if (combine->landed_count == 0)
        return;
    memset(combine->landed, 0, combine->cut.chunks * sizeof *combine->landed);
    combine->landed_count = 0;
    coll->handle.engine->coverage.landings += combine->landed_given;
    combine->landed_given = false;
}

void pp_copy_in(const pp_allreduce_t *coll, void *to, const void *from, size_t bytes)
{
    pp_move_copy(&coll->on_board->board, coll->series.kernels.memory, to, from, bytes);
}
