/*
 * map.h - which rank each participant of an instance is.  (After UCC's ep_map.)
 *
 * Schedules speak of participants 0 .. count - 1.  Participants are in the order of their ranks, so the lower
 * participant's operand, which is the left one, is the lower rank's.  A map is not a communicator: it costs only its
 * own few bytes.
 */
#ifndef PP_MAP_H
#define PP_MAP_H

#include "../base/base.h"

typedef enum pp_map_kind {
    PP_MAP_STRIDED,      /* first, first + stride, ...; stride > 0 */
    PP_MAP_LISTED,       /* ranks[0] < ranks[1] < ... */
    PP_MAP_COMPUTED      /* computed from the key: another map for each key */
} pp_map_kind_t;

typedef struct pp_map pp_map_t;

typedef struct pp_map_ops {
    int32_t (*rank)(const pp_map_t *map, int32_t participant, uint64_t key);
    /* The participant that a rank belongs to, even if it is not the participant's rank for this key. */
    int32_t (*participant)(const pp_map_t *map, int32_t rank, uint64_t key);
} pp_map_ops_t;

struct pp_map {
    int32_t             kind, count;
    int32_t             first, stride;
    const int32_t      *ranks;       /* owned by the map's maker */
    const pp_map_ops_t *ops;
    const void         *owner;
};

static inline pp_map_t pp_map_all(int32_t size)
{
    return (pp_map_t){.kind = PP_MAP_STRIDED, .count = size, .stride = 1};
}
static inline pp_map_t pp_map_strided(int32_t first, int32_t stride, int32_t count)
{
    return (pp_map_t){.kind = PP_MAP_STRIDED, .count = count, .first = first, .stride = stride};
}
static inline pp_map_t pp_map_listed(const int32_t *ranks, int32_t count)
{
    return (pp_map_t){.kind = PP_MAP_LISTED, .count = count, .ranks = ranks};
}

static inline int32_t pp_map_rank(const pp_map_t *map, int32_t participant, uint64_t key)
{
    if (map->kind == PP_MAP_STRIDED)
        return map->first + participant * map->stride;
    return map->kind == PP_MAP_LISTED ? map->ranks[participant] : map->ops->rank(map, participant, key);
}
/* -1: the rank is no participant's. */
int32_t     pp_map_participant(const pp_map_t *map, int32_t rank, uint64_t key);

/* PP_ERR_ARGUMENT unless a strided or listed map names ranks of 0 .. size - 1 in ascending order. */
pp_status_t pp_map_check(const pp_map_t *map, int32_t size);

#endif
