/* ranges.c - see ranges.h. */
#include "ranges.h"

#include <stdbool.h>
#include <string.h>

static void remove_at(pp_ranges_t *ranges, uint64_t at)
{
    ranges->count--;
    memmove(&ranges->free[at], &ranges->free[at + 1], (ranges->count - at) * sizeof ranges->free[0]);
}

static void insert_at(pp_ranges_t *ranges, uint64_t at, uint64_t offset, uint64_t bytes)
{
    memmove(&ranges->free[at + 1], &ranges->free[at], (ranges->count - at) * sizeof ranges->free[0]);
    ranges->count++;
    ranges->free[at].offset = offset;
    ranges->free[at].bytes = bytes;
}

uint64_t pp_ranges_take(pp_ranges_t *ranges, uint64_t bytes)
{
    for (uint64_t at = 0; at < ranges->count; at++) {
        uint64_t offset = ranges->free[at].offset;
        if (ranges->free[at].bytes < bytes)
            continue;
        ranges->free[at].offset += bytes;
        ranges->free[at].bytes -= bytes;
        if (ranges->free[at].bytes == 0)
            remove_at(ranges, at);
        return offset;
    }
    return 0;
}

void pp_ranges_give(pp_ranges_t *ranges, uint64_t offset, uint64_t bytes)
{
    uint64_t at = 0;                 /* of the next free range */
    while (at < ranges->count && ranges->free[at].offset < offset)
        at++;
    bool joins_last = at > 0 && ranges->free[at - 1].offset + ranges->free[at - 1].bytes == offset;
    bool joins_next = at < ranges->count && offset + bytes == ranges->free[at].offset;
    if (joins_last && joins_next) {
        ranges->free[at - 1].bytes += bytes + ranges->free[at].bytes;
        remove_at(ranges, at);
    } else if (joins_last) {
        ranges->free[at - 1].bytes += bytes;
    } else if (joins_next) {
        ranges->free[at].offset = offset;
        ranges->free[at].bytes += bytes;
    } else if (ranges->count < PP_RANGES_MAX) {
        insert_at(ranges, at, offset, bytes);
    }
}
