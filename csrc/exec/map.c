/* map.c - see map.h */
#include "map.h"

static int32_t search(const pp_map_t *map, int32_t rank)
{
    int32_t low = 0, high = map->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (map->ranks[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < map->count && map->ranks[low] == rank ? low : -1;
}

int32_t pp_map_participant(const pp_map_t *map, int32_t rank, uint64_t key)
{
    if (map->kind == PP_MAP_COMPUTED)
        return map->ops->participant(map, rank, key);
    if (map->kind == PP_MAP_LISTED)
        return search(map, rank);
    int64_t distance = (int64_t)rank - map->first;
    bool    there = distance >= 0 && distance % map->stride == 0 && distance / map->stride < map->count;
    return there ? (int32_t)(distance / map->stride) : -1;
}

static pp_status_t check_strided(const pp_map_t *map, int32_t size)
{
    int64_t last = map->first + (int64_t)(map->count - 1) * map->stride;
    if (map->stride < 1)
        return pp_fail(PP_ERR_ARGUMENT, "a map has stride %d, which is not positive", map->stride);
    if (map->first < 0 || last >= size)
        return pp_fail(PP_ERR_ARGUMENT, "a map of %d ranks goes from rank %d to rank %lld, but ranks are in 0..%d",
                       map->count, map->first, (long long)last, size - 1);
    return PP_OK;
}

pp_status_t pp_map_check(const pp_map_t *map, int32_t size)
{
    if (map->count < 1)
        return pp_fail(PP_ERR_ARGUMENT, "a map has %d ranks, which is not at least 1", map->count);
    if (map->kind == PP_MAP_STRIDED)
        return check_strided(map, size);
    for (int32_t i = 0; i < map->count; i++) {
        if (map->ranks[i] < 0 || map->ranks[i] >= size)
            return pp_fail(PP_ERR_ARGUMENT, "a map names rank %d, which is not in 0..%d", map->ranks[i], size - 1);
        if (i > 0 && map->ranks[i] <= map->ranks[i - 1])
            return pp_fail(PP_ERR_ARGUMENT, "a map names rank %d after rank %d, but ranks must ascend", map->ranks[i],
                           map->ranks[i - 1]);
    }
    return PP_OK;
}
