/*
 * combine.h - the partial allreduce on a node's board (node/board.h): ranks that are present run the rounds
 * of those that are absent.
 *
 * The rules are those of partial.c and policy.c, looked at from the other side.  There a rank decides for
 * itself, and tells the others by messages; here everything that the rules look at lies in the memory of the
 * node, and whoever has changed something decides for all: pp_combine_update(), which the engine calls after
 * every change.  So nobody has to be woken, or to hand on what it knows: a draw is followed through the
 * order, ready ranks are counted, and a rank that withholds its part delays the round instead of being waited
 * for in the middle of it.  What a rank keeps to itself (requests, results not given) it brings up to date
 * when it comes: pp_combine_catch_up().
 *
 * Results stay in the ring until they are given: an entry of ours then only refers to it (PP_IN_RING), or
 * says that the result was written to the receive buffer directly (PP_IN_RECEIVE).
 */
#ifndef PP_COMBINE_H
#define PP_COMBINE_H

#include "../node/move.h"
#include "coll.h"

typedef struct pp_between pp_between_t;

struct pp_combine {
    pp_board_t board;
    bool       users;                /* contributions are read where the application has them: sendbuf is in
                                        the memory of the node */
    uint32_t   users_parts;          /* parts that may still be read there */
    uint64_t   starts_taken;         /* my Starts that rounds up to the newest one looked at have taken */
    uint64_t   limit, absorbed;      /* as published */
    bool       news;                 /* something has changed, and nobody has looked at the round since */
    uint64_t   waits;                /* engine->waits when this rank last looked, */
    uint64_t   presence;             /* and what it had said of its presence */
    uint64_t   ripe;                 /* 1 + the last round that it has looked at because the time had come to take it */
    uint64_t   flushes;              /* flush rounds complete here: others may be ahead */
    uint64_t   flushed;              /* 1 + the newest flush round here; its entry is kept until we have it */
    uint32_t   triggered;            /* of the round decided on: how many ranks brought it about */
    uint64_t   triggers[PP_CONTRIBUTORS_WORDS];
    uint64_t   ready[PP_CONTRIBUTORS_WORDS];   /* ... and who was ready then, and counts for it */
    uint32_t   cause;
    int32_t    workers;              /* threads of ours that move data of its rounds, without the lock */
    uint64_t   chunk_bytes;          /* into which large rounds are cut */
    uint32_t   chunks;
    /* Chunks of one round's result that this rank has put into its receive buffers while it moved them: none but
       inside a Wait, and by nobody but its thread. */
    bool      *landed;
    uint32_t   landed_count;
    uint64_t   landed_round;
    const pp_entry_t *copied;        /* out of the ring, with the lock released: no longer the request's, but needed */
    bool       viewed;               /* an entry of the ring is pinned */
    bool       merges_away;          /* the merge in progress began while a round was away */
    pp_between_t *between;           /* NULL: all ranks are on this node */
    int32_t   *order;                /* of draws of the round `order_round`, its first `ordered` places */
    uint64_t   order_round;
    int32_t    ordered;
};

/* The most ranks that a board serves: all of them are named in its rounds. */
enum { PP_COMBINE_RANKS_MAX = PP_CONTRIBUTORS_MAX };

/* Reserves a place in the node's memory for the rounds of a handle; 0: there is no such memory, too little of it,
   or the handle's rounds are to be made of messages.  By the first rank of the node. */
uint64_t    pp_combine_reserve(pp_engine_t *engine, const pp_allreduce_config_t *config, int32_t window);
/* The place will not be used after all. */
void        pp_combine_unreserve(pp_engine_t *engine, const pp_allreduce_config_t *config, int32_t window,
                                 uint64_t place);
pp_status_t pp_combine_open(pp_coll_t *coll, uint32_t id, int32_t algorithm, uint64_t place,
                            const pp_kernels_t *kernels);
void        pp_combine_close(pp_coll_t *coll);

/* A part for a Start, in `*part`, and where its elements go; NULL: they are taken from sendbuf.  PP_PENDING: all
   parts are in use. */
pp_status_t pp_combine_part(pp_coll_t *coll, int32_t *part, void **elements);
/* Links the part: the Start's contribution is pending. */
void        pp_combine_start(pp_coll_t *coll, int32_t part);
/* Otherwise: a part that is pending, to which the Start's elements may be added until pp_combine_merged(): no
   round takes it meanwhile.  NULL: a round is being made, work at it and ask again. */
void       *pp_combine_merge(pp_coll_t *coll, int32_t *part);
void        pp_combine_merged(pp_coll_t *coll, int32_t part);

/* Instead of pp_engine_settle(), where nothing has changed but this handle. */
void        pp_combine_settle(pp_coll_t *coll);
/* Looks for rounds that others have completed, and settles; true: there were some. */
bool        pp_combine_poll(pp_engine_t *engine);
/* A handle of which a round's data are being moved, with chunks left to be handed out: is there one?  NULL: none.
   Once found it is not freed before pp_combine_worked(). */
bool        pp_combine_has_work(const pp_engine_t *engine);
pp_coll_t  *pp_combine_find_work(pp_engine_t *engine);
/* Between nodes: whether a round would stand still if this rank left the library now. */
bool        pp_combine_is_needed(pp_engine_t *engine);
/* Looks at everything that may have changed. */
void        pp_combine_update(pp_coll_t *coll);
/* The caller waits for a request's result, and may put what it moves of that into the receive buffers at once; false:
   they are written otherwise. */
bool        pp_combine_begin_landing(pp_coll_t *coll);
/* The receive buffers are the application's again. */
void        pp_combine_end_landing(pp_coll_t *coll);
/* Moves chunks until none is left, without the lock; true: the last one is finished. */
bool        pp_combine_work(pp_coll_t *coll, bool lands, uint64_t *round);
/* With the lock again; publishes the round if the last chunk is finished. */
void        pp_combine_worked(pp_coll_t *coll, uint64_t round, bool last);

/* With the lock, around the copying of an entry that was taken from its request: meanwhile other threads of this rank
   tell the others that its place is still needed. */
void        pp_combine_begin_copy(pp_coll_t *coll, const pp_entry_t *entry);
void        pp_combine_end_copy(pp_coll_t *coll);
/* Copies the entry's result out; false: its place in the ring has been used again (PP_LATEST). */
bool        pp_combine_copy_out(const pp_coll_t *coll, const pp_entry_t *entry);
/* Instead: where the application may read the result in the ring, until pp_combine_end_view(); NULL: copy it out. */
const void *pp_combine_view(pp_coll_t *coll, const pp_entry_t *entry);
void        pp_combine_end_view(pp_coll_t *coll);
/* Gives the entry a copy of its own; false: no memory, latched. */
bool        pp_combine_own(pp_coll_t *coll, pp_entry_t *entry);
/* The application gets sendbuf back: what of it is still pending is copied aside.  False: a round is reading
   it; work at that round and ask again.  Without the lock. */
bool        pp_combine_return_users(pp_coll_t *coll);

/* A result was handed out; true: others may have waited for the place that it had. */
bool        pp_combine_given(pp_coll_t *coll);
uint64_t    pp_combine_discard(pp_coll_t *coll);
/* The call of the only contribution pending will be given the last round there is: it cannot be stale. */
void        pp_combine_forgive(pp_coll_t *coll);
bool        pp_combine_withholds(const pp_coll_t *coll);
bool        pp_combine_in_mid_round(const pp_coll_t *coll);
bool        pp_combine_ready(const pp_coll_t *coll);
void        pp_combine_explain(pp_coll_t *coll, pp_text_t *text);

#endif
