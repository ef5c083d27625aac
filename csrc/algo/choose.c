/* choose.c - what AUTO means. */
#include "algo.h"

/* Up to this many bytes the number of messages decides, beyond it the bytes (docs/performance.md). */
enum { RECURSIVE_DOUBLING_BYTES = 131072 };

int32_t pp_algo_choose(size_t bytes, size_t count, int32_t size)
{
    if (bytes <= RECURSIVE_DOUBLING_BYTES || count < (size_t)size)
        return PP_RECURSIVE_DOUBLING;
    return PP_RABENSEIFNER;
}
