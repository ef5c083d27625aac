/* choose.c - what AUTO means. */
#include "algo.h"

/* Below this many bytes the number of messages decides, above it the bytes.  To be tuned. */
enum { RECURSIVE_DOUBLING_BELOW_BYTES = 16384 };

int32_t pp_algo_choose(size_t bytes, size_t count, int32_t size)
{
    if (bytes < RECURSIVE_DOUBLING_BELOW_BYTES || count < (size_t)size)
        return PP_RECURSIVE_DOUBLING;
    return PP_RABENSEIFNER;
}
