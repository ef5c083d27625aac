/* heard.h - the groups that a simulation has heard of, until it has told of them. */
#ifndef PP_HEARD_H
#define PP_HEARD_H

#include "../base/base.h"
#include "../include/pypartial_sim.h"

typedef struct pp_heard_group pp_heard_group_t;

typedef struct pp_heard {
    pp_heard_group_t *first, *last;
    pp_heard_group_t *told;          /* the one that was told last */
} pp_heard_t;

/* Keeps a BEGIN, FLUSH or ALONE, and no other action.  False: no memory. */
bool pp_heard_add(pp_heard_t *heard, uint64_t time_ns, uint32_t handle, const pp_groups_action_t *action);
/* The oldest group that is kept, which is kept no more; valid until the next call.  NULL: there is none. */
const pp_sim_group_t *pp_heard_next(pp_heard_t *heard);
void pp_heard_release(pp_heard_t *heard);

#endif
