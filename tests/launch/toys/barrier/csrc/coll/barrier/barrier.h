/* barrier.h - a partial barrier: the n-th Start of a rank is complete when k ranks have started n times. */
#ifndef PP_BARRIER_H
#define PP_BARRIER_H

#include "../team.h"

typedef struct pp_barrier {
    pp_handle_t handle;
    int32_t     k;
    uint64_t   *starts;              /* of each rank, as far as this one knows */
    uint64_t   *flushes;             /* how often each rank has come to a Flush, or to Free */
    uint64_t    flushed;             /* ... and all have */
} pp_barrier_t;

static inline pp_barrier_t *pp_barrier_of(const pp_handle_t *handle) { return (pp_barrier_t *)handle; }

pp_status_t pp_barrier_new(pp_team_t *team, int32_t k, pp_handle_t **handle);
/* Makes a request: this rank has come. */
void        pp_barrier_come(pp_handle_t *handle);

#endif
