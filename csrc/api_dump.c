/* api_dump.c - the schedule of a partial allreduce as text, for all ranks. */
#include "algo/algo.h"
#include "algo/choose.h"
#include "api.h"

#include <stdlib.h>

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
