/*
 * handles.h - the live handles of a context, in the order of their ids.
 *
 * Ids are numbers of agreements and never used again.  What is done often is done once for each live handle: it takes
 * no longer when many others were made and freed before.
 */
#ifndef PP_HANDLES_H
#define PP_HANDLES_H

#include "handle.h"

typedef struct pp_listed {
    uint32_t     id;
    pp_handle_t *handle;
} pp_listed_t;

typedef struct pp_handles {
    pp_listed_t *list;
    size_t       count, capacity;
    uint64_t     changes;
} pp_handles_t;

/* False: no memory. */
bool   pp_handles_add(pp_handles_t *handles, uint32_t id, pp_handle_t *handle);
void   pp_handles_remove(pp_handles_t *handles, const pp_handle_t *handle);
void   pp_handles_release(pp_handles_t *handles);
/* The index of the first handle whose id is not lower; `count`: there is none. */
size_t pp_handles_find(const pp_handles_t *handles, uint32_t id);

/* NULL: the handle was freed, or is not there yet. */
static inline pp_handle_t *pp_handles_get(const pp_handles_t *handles, uint32_t id)
{
    const size_t at = pp_handles_find(handles, id);
    return at < handles->count && handles->list[at].id == id ? handles->list[at].handle : NULL;
}

/* A walk over all handles.  Meanwhile any may be removed, also the one that it is at, and others added: it comes to
   each that is there from its beginning to its end, once. */
typedef struct pp_walk {
    uint64_t     changes;
    size_t       at;
    uint32_t     id;                 /* the lowest that it has not come to */
    pp_handle_t *here;               /* the one that it is at */
} pp_walk_t;

/* Begins after the first `skipped` handles. */
static inline pp_walk_t pp_walk_begin(const pp_handles_t *handles, size_t skipped)
{
    return (pp_walk_t){.changes = handles->changes, .at = skipped, .id = (uint32_t)skipped};
}

/* False: it has come to all. */
static inline bool pp_walk_on(const pp_handles_t *handles, pp_walk_t *walk)
{
    if (walk->changes != handles->changes) {
        walk->changes = handles->changes;
        walk->at = pp_handles_find(handles, walk->id);
    }
    if (walk->at >= handles->count)
        return false;
    const pp_listed_t *listed = &handles->list[walk->at++];
    walk->id = listed->id + 1;
    walk->here = listed->handle;
    return true;
}

#endif
