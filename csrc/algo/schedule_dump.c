/* schedule_dump.c - the schedules of all ranks as text, checked first. */
#include "../graph/dump.h"
#include "algo.h"

#include <stdlib.h>

/* The schedules of all ranks are built at once, and the text of a ring grows with the square of their number. */
enum { RANKS_MAX = 1024 };

pp_status_t pp_algo_dump_check(int32_t size, int32_t format)
{
    if (size < 1 || size > RANKS_MAX)
        return pp_fail(PP_ERR_ARGUMENT, "size=%d ranks is not in 1..%d", size, RANKS_MAX);
    if (format != PP_DOT && format != PP_GOAL)
        return pp_fail(PP_ERR_ARGUMENT, "format=%d is neither %d (DOT) nor %d (GOAL)", format, PP_DOT,
                       PP_GOAL);
    return PP_OK;
}

static void free_all(pp_graph_t **graphs, int32_t size)
{
    for (int32_t rank = 0; rank < size; rank++)
        pp_graph_free(graphs[rank]);
    free(graphs);
}

static pp_status_t make_all(pp_algo_make_t make, int32_t which, int32_t size, size_t count, int32_t segments,
                            pp_graph_t **graphs)
{
    for (int32_t rank = 0; rank < size; rank++)
        PP_TRY(make(which, rank, size, count, segments, &graphs[rank]));
    return pp_graph_check(graphs, size);
}

pp_status_t pp_algo_dump(pp_algo_make_t make, int32_t which, int32_t size, size_t count, int32_t segments,
                         size_t element_bytes, int32_t format, char **text)
{
    *text = NULL;
    PP_TRY(pp_algo_dump_check(size, format));
    pp_text_t dump = {0};
    pp_graph_t **graphs = calloc((size_t)size, sizeof(pp_graph_t *));
    if (!graphs)
        return pp_fail(PP_ERR_MEMORY, "no memory for the schedules of %d ranks", size);
    pp_status_t status = make_all(make, which, size, count, segments, graphs);
    if (status >= 0)
        pp_graph_dump_all(graphs, size, format, element_bytes, &dump);
    if (dump.failed)
        status = pp_fail(PP_ERR_MEMORY, "no memory for the text of a schedule");
    free_all(graphs, size);
    if (status < 0)
        free(dump.chars);
    else
        *text = dump.chars;
    return status;
}
