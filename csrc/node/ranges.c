/* ranges.c - see ranges.h. */
#include "ranges.h"

#include <string.h>

/* Joins free ranges that touch. */
static void join(pp_ranges_t *ranges)
{
    uint64_t count = 0;
    for (uint64_t at = 0; at < ranges->count; at++)
        if (count > 0 && ranges->free[count - 1].offset + ranges->free[count - 1].bytes == ranges->free[at].offset)
            ranges->free[count - 1].bytes += ranges->free[at].bytes;
        else
            ranges->free[count++] = ranges->free[at];
    ranges->count = count;
}

/* The smallest range that has so many bytes, and of several the lowest; the count of ranges: there is none. */
static uint64_t find(const pp_ranges_t *ranges, uint64_t bytes)
{
    uint64_t best = ranges->count;
    for (uint64_t at = 0; at < ranges->count; at++)
        if (ranges->free[at].bytes >= bytes
            && (best == ranges->count || ranges->free[at].bytes < ranges->free[best].bytes))
            best = at;
    return best;
}

uint64_t pp_ranges_take(pp_ranges_t *ranges, uint64_t bytes)
{
    uint64_t at = find(ranges, bytes);
    if (at == ranges->count || ranges->free[at].bytes > bytes) {
        join(ranges);
        at = find(ranges, bytes);
    }
    if (at == ranges->count)
        return 0;
    uint64_t offset = ranges->free[at].offset;
    ranges->free[at].offset += bytes;
    ranges->free[at].bytes -= bytes;
    if (ranges->free[at].bytes == 0) {
        ranges->count--;
        memmove(&ranges->free[at], &ranges->free[at + 1], (ranges->count - at) * sizeof ranges->free[0]);
    }
    return offset;
}

void pp_ranges_give(pp_ranges_t *ranges, uint64_t offset, uint64_t bytes)
{
    uint64_t at = 0;
    if (ranges->count == PP_RANGES_MAX)
        join(ranges);
    if (ranges->count == PP_RANGES_MAX)
        return;
    while (at < ranges->count && ranges->free[at].offset < offset)
        at++;
    memmove(&ranges->free[at + 1], &ranges->free[at], (ranges->count - at) * sizeof ranges->free[0]);
    ranges->count++;
    ranges->free[at].offset = offset;
    ranges->free[at].bytes = bytes;
}
