/* api_dump.c - schedules: the one that a handle has, and any of a partial allreduce as text, for all ranks. */
#include "algo/algo.h"
#include "algo/choose.h"
#include "api.h"
#include "coll/rounds/allreduce.h"

#include <stdlib.h>
#include <string.h>

/* The partial allreduce behind a handle; NULL: it is of another kind, and has no schedule. */
static const pp_allreduce_t *scheduled(const pp_handle_t *handle)
{
    return pp_is_allreduce(handle) ? pp_allreduce_of(handle) : NULL;
}

int32_t pp_handle_algorithm(const pp_handle_t *handle)
{
    const pp_allreduce_t *coll = scheduled(handle);
    return coll ? coll->config.algorithm : PP_ALGORITHM_AUTO;
}

int32_t pp_handle_reason(const pp_handle_t *handle)
{
    const pp_allreduce_t *coll = scheduled(handle);
    return !coll                                          ? PP_REASON_ASKED
         : coll->config.algorithm == PP_SHARED_MEMORY     ? PP_REASON_SHARED_MEMORY
                                                          : coll->reason;
}

pp_status_t pp_handle_dump(pp_handle_t *handle, int32_t format, char **out)
{
    pp_ctx_t *ctx;
    *out = NULL;
    PP_TRY(pp_enter_handle(handle, &ctx));
    pp_text_t text = {0};
    const pp_allreduce_t *coll = scheduled(handle);
    if (!coll || !coll->series.graph)
        pp_text_add(&text, format == PP_DOT ? "digraph {}\n" : "// no schedule: shared memory\n");
    else
        pp_graph_dump(coll->series.graph, format, coll->series.kernels.element_bytes, &text);
    pp_unlock(ctx);
    if (text.failed)
        return pp_fail(PP_ERR_MEMORY, "no memory for the text of a schedule");
    *out = text.chars;
    return PP_OK;
}

pp_status_t pp_handle_fired(pp_handle_t *handle, uint64_t *round, uint32_t *fired, size_t capacity,
                          size_t *count)
{
    pp_ctx_t *ctx;
    *count = 0;
    PP_TRY(pp_enter_handle(handle, &ctx));
    const pp_allreduce_t *coll = scheduled(handle);
    const pp_series_t *series = coll ? &coll->series : NULL;
    pp_status_t status = series && series->any_retired ? PP_OK : PP_PENDING;
    if (status == PP_OK) {
        *round = series->last_fired_round;
        *count = series->graph->vertex_count;
        memcpy(fired, series->last_fired,
               sizeof *fired * (capacity < *count ? capacity : *count));
    }
    pp_unlock(ctx);
    return status;
}

static pp_status_t check_arguments(int32_t algorithm, size_t count, int32_t type)
{
    const size_t element_bytes = pp_accumulator_bytes(type);
    if (algorithm < 0 || algorithm > pp_algorithm_count())
        return pp_fail(PP_ERR_ARGUMENT, "algorithm=%d is not one of 0..%d", algorithm,
                       pp_algorithm_count());
    if (element_bytes == 0)
        return pp_fail(PP_ERR_ARGUMENT, "type=%d is not one of 0..%d", type, PP_TYPE_COUNT - 1);
    if (count > SIZE_MAX / element_bytes)
        return pp_fail(PP_ERR_ARGUMENT, "count=%zu elements of %zu bytes are more than any memory can hold",
                       count, element_bytes);
    return PP_OK;
}

pp_status_t pp_schedule_dump(int32_t algorithm, int32_t size, size_t count, int32_t type,
                             int32_t format, char **text)
{
    *text = NULL;
    PP_TRY(check_arguments(algorithm, count, type));
    PP_TRY(pp_algo_dump_check(size, format));
    const size_t element_bytes = pp_accumulator_bytes(type);
    if (algorithm == PP_ALGORITHM_AUTO) {
        pp_choice_t choice;
        PP_TRY(pp_choose(NULL, 0, count, element_bytes, size, PP_LINK_NODE, &choice));
        algorithm = choice.algorithm;
    }
    const int32_t segments = pp_algo_segments(algorithm, count * element_bytes, size);
    return pp_algo_dump(pp_algo_partial_allreduce, algorithm, size, count, segments, element_bytes, format,
                        text);
}

void pp_text_free(char *text)
{
    free(text);
}
