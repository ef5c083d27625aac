/*
 * allreduce.h - the partial allreduce: a pending slot, rounds by a policy, results that requests are given.
 *
 * A table of functions, pp_rounds_ops_t, says how rounds are made: by messages of every rank (messages.c), on
 * the board of a node (board.c), or on the boards of several nodes with messages between them
 * (leader.c). No other file asks which of the three it is.
 *
 * Counting rounds.  `completed` rounds are complete here.  A policy needs a rank that waits for round r.  At that rank
 * r - 1 is complete, so every rank has given its part to r - 1.  Therefore every rank activates rounds in order.
 */
#ifndef PP_ALLREDUCE_H
#define PP_ALLREDUCE_H

#include "../../policy/policy.h"
#include "../team.h"

#include <string.h>

typedef struct pp_allreduce pp_allreduce_t;
typedef struct pp_outcome   pp_outcome_t;

#define PP_GRACE_AUTO UINT64_MAX

/* ---- results ---------------------------------------------------------------------------------------- */

/* The outcome of one round, or of several merged (PP_DELIVER_SUM). */
struct pp_outcome {
    pp_outcome_t *next;
    uint64_t      round, first;
    pp_tally_t    tally;
    uint64_t      contributors[PP_CONTRIBUTORS_WORDS];
    pp_buffer_t  *buffer;            /* NULL: the elements are where `lies` says */
    /* Without a buffer: PP_NOWHERE is a flush of nothing; else see combine.h. */
    enum { PP_NOWHERE, PP_IN_RING, PP_IN_RECEIVE } lies;
    int32_t       ring;              /* PP_IN_RING: the entry */
    uint64_t      starts_taken;      /* this rank's Starts merged into rounds <= round */
    uint64_t      own_contributions; /* this rank's Starts in `round` */
    uint64_t      staleness;
    bool          external;
};

pp_outcome_t *pp_outcome_new(pp_allreduce_t *coll);      /* NULL: no memory, and this error is latched */
void          pp_outcome_free(pp_allreduce_t *coll, pp_outcome_t *outcome);
void          pp_outcome_free_all(pp_allreduce_t *coll);

/* A round is complete: gives its outcome to the request, merges it or queues it. */
void          pp_deliver_round(pp_allreduce_t *coll, pp_outcome_t *outcome);
/* PP_EACH: no more is to be queued for a rank that is not back. */
bool          pp_deliver_is_full(const pp_allreduce_t *coll);
void          pp_deliver_complete_request(pp_allreduce_t *coll);
void          pp_deliver_drop_request(pp_allreduce_t *coll);
void          pp_deliver_bind(pp_allreduce_t *coll);
pp_outcome_t *pp_deliver_pop(pp_allreduce_t *coll);
void          pp_deliver_copy_out(const pp_allreduce_t *coll, const pp_outcome_t *outcome);
void          pp_deliver_describe(const pp_allreduce_t *coll, const pp_outcome_t *outcome, uint64_t start,
                                  uint64_t missed, pp_result_t *result);

/* ---- how rounds are made ------------------------------------------------------------------------------ */

/* Where the elements of a Start go. */
typedef struct pp_target {
    void   *elements;                /* NULL: the elements stay in the application's buffer */
    bool    combine;                 /* combine with the elements that are there */
    bool    drop;                    /* a planted defect: the elements that are there are lost */
    bool    locked;                  /* a round may take the elements at any moment: copy under the lock */
    int32_t part;                    /* of a board's station */
    pp_buffer_t *buffer;             /* a new slot */
} pp_target_t;

typedef struct pp_rounds_ops {
    /* ---- what every Start and every Wait need, in one cache line */
    /* This rank makes its rounds by messages: an application thread that is inside attends to them. */
    _Alignas(64) bool sends;
    /* The two steps of a Start.  aim() finds room for the elements; PP_PENDING: there is none, so work at the round and
       ask again.  start() makes its request, and makes the elements pending when they are there. */
    pp_status_t (*aim)(pp_allreduce_t *, pp_target_t *target);
    void        (*start)(pp_allreduce_t *, const pp_target_t *target);
    /* After a Start: goes on as far as it can. */
    void        (*settle)(pp_allreduce_t *);
    /* Copies a contribution to its part, in memory that ranks share.  NULL, like the next three, if they share none. */
    void        (*copy_in)(const pp_allreduce_t *, void *to, const void *from, size_t bytes);
    /* The application gets sendbuf back: pending elements in it are copied aside.  False: a round is reading them, so
       work at the round and ask again.  Called without the lock. */
    bool        (*return_users)(pp_allreduce_t *);
    /* False: the entry of the result has been used again (PP_LATEST). */
    bool        (*copy_out)(const pp_allreduce_t *, const pp_outcome_t *);
    /* A result was handed out; true: other ranks may have waited for its entry. */
    bool        (*handed_out)(pp_allreduce_t *);

    /* ---- the rest */
    void        (*update)(pp_allreduce_t *);
    /* start() in two steps, for a Start whose elements are on their way (progress/staging.c).  request() makes its
       request, which may be complete at once, and returns the round that its call is given.  link() makes the elements
       pending, when they are there and aim() has found room. */
    uint64_t    (*request)(pp_allreduce_t *);
    void        (*link)(pp_allreduce_t *, const pp_target_t *target, uint64_t given);
    /* Keeps a place until link() for elements that get there by themselves, in whole pages of memory that ranks share;
       false: there is none now, so they come by aim().  give_up(): they will not come.  NULL, like view(), if the ranks
       share no memory. */
    bool        (*reserve)(pp_allreduce_t *, pp_target_t *target);
    void        (*give_up)(pp_allreduce_t *, const pp_target_t *target);

    /* Facts about this rank, and the round that completes next here. */
    pp_facts_t  (*facts)(const pp_allreduce_t *);
    bool        (*in_mid_round)(const pp_allreduce_t *);
    uint64_t    (*joined)(const pp_allreduce_t *);
    /* Tells the other ranks that this one has waited long for the next round. */
    void        (*await)(pp_allreduce_t *, uint32_t number);
    /* Whether this rank holds up the next round, which another rank waits for. */
    bool        (*holds_up)(pp_allreduce_t *);

    /* Collective calls. */
    uint64_t    (*discard)(pp_allreduce_t *);
    /* The call of the only pending contribution will be given the last round there is, so it cannot be stale. */
    void        (*forgive)(pp_allreduce_t *);

    void        (*close)(pp_allreduce_t *);

    /* ---- rounds in memory that ranks share; NULL if outcomes have buffers of their own */
    /* Gives the outcome a buffer of its own; false: no memory, and this error is latched. */
    bool        (*own)(pp_allreduce_t *, pp_outcome_t *);
    /* The address at which the application may read the result until end_view(); NULL: copy it out. */
    const void *(*view)(pp_allreduce_t *, const pp_outcome_t *);
    void        (*end_view)(pp_allreduce_t *);
    /* The receive buffers belong to the application again. */
    void        (*end_landing)(pp_allreduce_t *);

    /* The board on which all ranks make the rounds; NULL: there is none for all. */
    struct pp_board *(*board)(pp_allreduce_t *);

    pp_handle_ops_t handle;
} pp_rounds_ops_t;

/* Each opens a handle's rounds in one of the three ways, and sets coll->ops. */
pp_status_t pp_messages_open(pp_allreduce_t *coll, const pp_agreed_t *agreed, const pp_kernels_t *kernels);
pp_status_t pp_board_rounds_open(pp_allreduce_t *coll, const pp_agreed_t *agreed, const pp_kernels_t *kernels);
pp_status_t pp_leader_open(pp_allreduce_t *coll, const pp_agreed_t *agreed, const pp_kernels_t *kernels);
/* See pp_handle_ops_t. */
void        pp_rounds_count_buffers(const pp_handle_t *handle, pp_held_t *sum);
/* ... of ways with messages between ranks. */
void        pp_rounds_operation(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message, size_t bytes);
void        pp_rounds_replay(pp_handle_t *handle);
/* Called on the first rank of a node: reserves the node's memory for a handle that is being agreed on; 0: none. */
uint64_t    pp_board_rounds_reserve(const pp_allreduce_t *coll);
void        pp_board_rounds_unreserve(const pp_allreduce_t *coll, uint64_t region);

/* ---- the handle --------------------------------------------------------------------------------------- */

struct pp_allreduce {
    pp_handle_t            handle;
    const pp_rounds_ops_t *ops;
    union {                          /* what `ops` keeps */
        struct pp_messages     *messages;
        struct pp_combine  *on_board;
    };
    struct pp_board *takes_board;    /* gets the board when the rounds are closed, for another one to end it; else NULL */

    uint64_t starts;                 /* this rank's Starts so far */
    uint64_t on_their_way;           /* the last of them, whose elements are not linked yet: see pp_rounds_asks() */
    uint64_t completed;              /* rounds */
    uint64_t counted;                /* rounds below this one count as given, for max_lag */
    uint64_t seen;                   /* rounds complete when the previous request completed */

    /* Outcomes not given yet, oldest first; at most one with PP_LATEST and PP_DELIVER_SUM. */
    pp_outcome_t *ungiven, *ungiven_last;
    uint64_t      ungiven_count;
    pp_outcome_t *free_outcomes;
    struct {                         /* beside handle.request */
        pp_outcome_t *outcome;
        uint64_t      start;         /* number of its Start, from 1; 0: a Wait without a Start */
        uint64_t      missed;
    } request;

    /* return_users() and end_view() are called only if these say that there is something to end; mostly there is not.
       */
    uint32_t users_parts;            /* parts that other ranks may still read in sendbuf */
    bool     viewed;                 /* the application, or a device, reads a result in place */
    bool     lands_nothing;          /* results are read in place, so no chunks go to the receive buffers early */
    const pp_outcome_t *copied;      /* being copied with the lock released: no longer the request's, but needed */

    struct {                         /* see time.h */
        uint64_t   since_ns;         /* when the request was first seen outstanding; 0: not yet */
        bool       overdue;          /* its deadline is over */
        uint32_t   told;             /* how often it has told them, for any round */
        uint32_t   awaited_number;   /* number of the message that set `awaited` */
        uint64_t   awaited;          /* 1 + the newest round that another rank says it waits for */
        uint64_t   lacked_ns;        /* when this rank first knew, since its last Start, that others wait; 0: not yet */
        uint64_t   held;             /* 1 + the round that this rank holds up; 0: none */
    } time;

    pp_allreduce_config_t  config;   /* `pieces` is a copy that this object owns */
    size_t                 count;    /* elements of all pieces */
    int32_t                reason;   /* pp_reason_t: why the handle has its algorithm */
    pp_rule_t              rule;
    uint64_t               max_lag;  /* PP_UNBOUNDED: no bound */
    bool                   bounded;  /* max_lag may hold a round back that waits for nothing else */
    uint64_t               deadline_ns;   /* 0: none */
    uint64_t               grace_ns;      /* 0: none; PP_GRACE_AUTO: by the vector's size */
    const pp_memory_t     *own;      /* a kind of memory that was made for this handle, and ends with it; or NULL */
    pp_series_t            series;   /* on one node only its kernels and pools are used */

    /* Ranks that the header of the round before `completed` lists as left. */
    bool     any_left_before;
    uint64_t left_before[PP_CONTRIBUTORS_WORDS];
};

static inline pp_allreduce_t *pp_allreduce_of(const pp_handle_t *handle) { return (pp_allreduce_t *)handle; }

/* Makes the handle that the caller described; it has no rounds before the ranks have agreed on it. */
pp_status_t pp_allreduce_new(pp_team_t *team, const pp_allreduce_config_t *config, pp_handle_t **handle);
bool        pp_is_allreduce(const pp_handle_t *handle);
/* The caller named an algorithm: the rounds are made of messages, not in the node's memory. */
static inline bool pp_allreduce_wants_messages(const pp_allreduce_t *coll)
{
    return coll->config.algorithm != PP_ALGORITHM_AUTO;
}

/* ---- what all three ways to make rounds share (rounds.c) --------------------------------------------------- */

/* Makes a Start's request, which may be complete at once; returns the round that its call is given. */
uint64_t pp_rounds_request(pp_allreduce_t *coll);
/* Starts whose elements were linked. */
static inline uint64_t pp_rounds_linked(const pp_allreduce_t *coll) { return coll->starts - coll->on_their_way; }
/* This rank waits, and for the rules it does: it is not ready, and computes like any other, while the elements of a
   Start are on their way. */
static inline bool pp_rounds_asks(const pp_allreduce_t *coll)
{
    return pp_handle_waits(&coll->handle) && coll->on_their_way == 0;
}
/* The next round is complete.  `left`: the mask of its ranks that had left, if there are any. */
/* For the trace; only while the engine has one (engine.tell).  `tally`: NULL where it is not known yet. */
void     pp_rounds_tell(const pp_allreduce_t *coll, pp_event_kind_t kind, uint64_t round, const pp_tally_t *tally);
void     pp_rounds_complete(pp_allreduce_t *coll, pp_outcome_t *outcome, const uint64_t *left);
/* max_lag does not hold this rank's part back. */
bool     pp_rounds_is_exempt(const pp_allreduce_t *coll);
/* While a rank is exempt, rounds that complete or are in flight count as given. */
void     pp_rounds_count_as_given(pp_allreduce_t *coll, uint64_t rounds);
/* If rounds have passed this rank beyond its bound, because it was exempt, they count as given. */
void     pp_rounds_count_passed(pp_allreduce_t *coll, uint64_t rounds);
void     pp_rounds_count_staleness(const pp_allreduce_t *coll, uint64_t staleness);
/* The number by which the sum of a round is divided; 1: it is not. */
uint64_t pp_rounds_divisor(const pp_allreduce_t *coll, const pp_tally_t *tally);
void        pp_rounds_divide(const pp_allreduce_t *coll, void *vector, uint64_t by);
/* The number of segments into which a schedule cuts the vector. */
int32_t  pp_rounds_segments(const pp_allreduce_t *coll, const pp_kernels_t *kernels, int32_t participants);
/* The first round that max_lag does not let go on without this rank, unless the rank is exempt. */
uint64_t pp_rounds_bound(const pp_allreduce_t *coll);
static inline size_t pp_rounds_mask_bytes(const pp_allreduce_t *coll)
{
    return coll->series.mask_words * sizeof(uint64_t);
}
/* Most sets of ranks are one word, and a call of memset() or memcpy() takes longer than a word. */
static inline void pp_rounds_mask_clear(const pp_allreduce_t *coll, uint64_t *mask)
{
    if (coll->series.mask_words == 1)
        mask[0] = 0;
    else
        memset(mask, 0, pp_rounds_mask_bytes(coll));
}
static inline void pp_rounds_mask_copy(const pp_allreduce_t *coll, uint64_t *to, const uint64_t *from)
{
    if (coll->series.mask_words == 1)
        to[0] = from[0];
    else
        memcpy(to, from, pp_rounds_mask_bytes(coll));
}

#endif
