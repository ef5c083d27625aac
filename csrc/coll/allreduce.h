/*
 * allreduce.h - the partial allreduce: a pending slot, rounds by a policy, results that requests are given.
 *
 * How a round is made is one table of functions, pp_rounds_ops_t: by messages of every rank (rounds/messages.c), on the
 * board of a node (rounds/board.c), or on the boards of several nodes with messages between them (rounds/leader.c).
 * Nothing outside them asks which it is.
 *
 * Counting rounds.  `completed` rounds are complete here.  A policy needs a rank that waits for round r, so r - 1
 * is complete at that rank, so everybody has given its part to r - 1 by the time r is activated anywhere: rounds
 * are activated in order at every rank.
 */
#ifndef PP_ALLREDUCE_H
#define PP_ALLREDUCE_H

#include "../policy/policy.h"
#include "team.h"

typedef struct pp_allreduce pp_allreduce_t;
typedef struct pp_outcome   pp_outcome_t;

#define PP_GRACE_AUTO UINT64_MAX

/* ---- results ---------------------------------------------------------------------------------------- */

/* What came of one round, or of several merged (PP_DELIVER_SUM). */
struct pp_outcome {
    pp_outcome_t *next;
    uint64_t      round, first;
    pp_tally_t    tally;
    uint64_t      contributors[PP_CONTRIBUTORS_WORDS];
    pp_buffer_t  *buffer;            /* NULL: the elements lie elsewhere, or there are none (a flush of nothing) */
    enum { PP_NOWHERE, PP_IN_RING, PP_IN_RECEIVE } lies;   /* without a buffer: see rounds/board.h */
    int32_t       ring;              /* PP_IN_RING: which entry */
    uint64_t      starts_taken;      /* my Starts merged into rounds <= round */
    uint64_t      own_contributions; /* my Starts in `round` */
    uint64_t      staleness;
    bool          external;
};

pp_outcome_t *pp_outcome_new(pp_allreduce_t *coll);      /* NULL: no memory, latched */
void          pp_outcome_free(pp_allreduce_t *coll, pp_outcome_t *outcome);
void          pp_outcome_free_all(pp_allreduce_t *coll);

/* A round is complete: its outcome is given, merged or queued. */
void          pp_deliver_round(pp_allreduce_t *coll, pp_outcome_t *outcome);
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
    void   *elements;                /* NULL: they stay where the application has them */
    bool    combine;                 /* with what is there */
    bool    drop;                    /* a planted defect: `elements` loses what it had */
    bool    locked;                  /* a round may take what is there at any moment: copy under the lock */
    int32_t part;                    /* of a board's station */
    pp_buffer_t *buffer;             /* a new slot */
} pp_target_t;

typedef struct pp_rounds_ops {
    /* ---- what every Start and every Wait need, in one line of a cache */
    /* Messages of this rank make its rounds: the application attends to them while it is here. */
    _Alignas(64) bool sends;
    /* A Start: finds room for its elements (PP_PENDING: none is free; work at the round and ask again), and takes
       them as pending when they are there. */
    pp_status_t (*aim)(pp_allreduce_t *, pp_target_t *target);
    void        (*start)(pp_allreduce_t *, const pp_target_t *target);
    /* After a Start: goes on as far as it can. */
    void        (*settle)(pp_allreduce_t *);
    /* Copies a contribution to its part, in memory that ranks share; NULL where there is none, as the next three. */
    void        (*copy_in)(const pp_allreduce_t *, void *to, const void *from, size_t bytes);
    /* The application gets sendbuf back: what is pending of it is copied aside.  False: a round reads it; work at it
       and ask again.  Without the lock. */
    bool        (*return_users)(pp_allreduce_t *);
    /* False: its entry has been used again (PP_LATEST). */
    bool        (*copy_out)(const pp_allreduce_t *, const pp_outcome_t *);
    /* A result was handed out; true: others may have waited for the entry that it had. */
    bool        (*handed_out)(pp_allreduce_t *);

    /* ---- the rest */
    void        (*update)(pp_allreduce_t *);

    /* Facts about this rank. */
    bool        (*ready)(const pp_allreduce_t *);
    bool        (*withholds)(const pp_allreduce_t *);
    bool        (*in_mid_round)(const pp_allreduce_t *);
    bool        (*drawn)(pp_allreduce_t *);
    uint64_t    (*joined)(const pp_allreduce_t *);
    bool        (*retired)(const pp_allreduce_t *);
    /* This rank waits for the next round, and has for long: the others are to know. */
    void        (*await)(pp_allreduce_t *, uint32_t number);
    /* The next round, which another rank waits for, is held up by this one. */
    bool        (*holds_up)(pp_allreduce_t *);
    void        (*explain)(pp_allreduce_t *, pp_text_t *text);

    /* Collective calls. */
    uint64_t    (*discard)(pp_allreduce_t *);
    /* The call of the only contribution pending will be given the last round there is: it cannot be stale. */
    void        (*forgive)(pp_allreduce_t *);

    void        (*control)(pp_allreduce_t *, int32_t peer, const pp_prefix_t *message);
    void        (*close)(pp_allreduce_t *);

    /* ---- rounds in memory that ranks share; NULL where outcomes have buffers of their own. */
    /* Gives the outcome a buffer of its own; false: no memory, latched. */
    bool        (*own)(pp_allreduce_t *, pp_outcome_t *);
    /* Where the application may read it until end_view(); NULL: copy it out. */
    const void *(*view)(pp_allreduce_t *, const pp_outcome_t *);
    void        (*end_view)(pp_allreduce_t *);
    /* The receive buffers are the application's again. */
    void        (*end_landing)(pp_allreduce_t *);

    /* While this rank is exempt from max_lag: what has gone on counts as given. */
    void        (*count_as_given)(pp_allreduce_t *);

    /* Looks for what others have done there, and settles; true: there was something. */
    bool        (*poll)(pp_allreduce_t *);
    /* A round would stand still if this rank left the library now. */
    bool        (*needed)(pp_allreduce_t *);
    /* Chunks of a round are left to be handed out. */
    bool        (*has_work)(const pp_allreduce_t *);
    /* Once begun, the handle is not freed before worked().  `lands`: the caller waits for this handle, and what it moves
       goes to the receive buffers at once if that may be. */
    void        (*begin_work)(pp_allreduce_t *, bool *lands);
    /* Moves chunks until none is left, without the lock; true: the last one is finished. */
    bool        (*work)(pp_allreduce_t *, bool lands, uint64_t *round);
    void        (*worked)(pp_allreduce_t *, uint64_t round, bool last);
} pp_rounds_ops_t;

/* Each opens a handle's rounds one way, and sets coll->ops. */
pp_status_t pp_messages_open(pp_allreduce_t *coll, const pp_agreed_t *agreed, const pp_kernels_t *kernels);
pp_status_t pp_board_rounds_open(pp_allreduce_t *coll, const pp_agreed_t *agreed, const pp_kernels_t *kernels);
pp_status_t pp_leader_open(pp_allreduce_t *coll, const pp_agreed_t *agreed, const pp_kernels_t *kernels);
/* Reserves the node's memory for a handle that is being agreed on; 0: none.  By the first rank of the node. */
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

    uint64_t starts;                 /* so far */
    uint64_t completed;              /* rounds */
    uint64_t counted;                /* rounds below count as given for max_lag */
    uint64_t seen;                   /* rounds completed when the previous request was */

    /* Not given yet, oldest first; one at most for PP_LATEST and PP_DELIVER_SUM. */
    pp_outcome_t *ungiven, *ungiven_last;
    pp_outcome_t *free_outcomes;
    struct {                         /* beside handle.request */
        pp_outcome_t *outcome;
        uint64_t      start;         /* number of its Start, from 1; 0: a Wait without a Start */
        uint64_t      missed;
    } request;

    /* What return_users() and end_view() have to end: nothing, mostly, and then they are not called. */
    uint32_t users_parts;            /* parts that others may still read in sendbuf */
    bool     viewed;                 /* the application reads a result where it lies */
    const pp_outcome_t *copied;      /* with the lock released: no longer the request's, but needed */

    struct {                         /* see patience.h */
        uint64_t   since_ns;         /* when the request was first seen outstanding; 0: not yet */
        bool       overdue;          /* its deadline is over */
        uint64_t   tell_ns;          /* when this rank tells the others that it waits; 0: not decided */
        uint32_t   told;             /* how often it has, for any round, */
        uint32_t   tells;            /* and for this request */
        uint32_t   awaited_number;
        uint64_t   awaited;          /* 1 + the newest round that another rank says it waits for */
        uint64_t   held, held_since_ns;   /* 1 + the round that this rank holds up; 0: none */
        uint64_t   given_ns;         /* when the last result was handed out; 0: a Start came since */
        pp_habit_t habit;
    } time;

    pp_allreduce_config_t  config;   /* pieces: our copy */
    size_t                 count;    /* elements of all pieces */
    int32_t                reason;   /* pp_reason_t: why it has its algorithm */
    pp_rule_t              rule;
    uint64_t               max_lag;  /* PP_UNBOUNDED if there is none */
    uint64_t               deadline_ns;   /* 0: none */
    uint64_t               grace_ns;      /* PP_GRACE_AUTO */
    pp_series_t            series;   /* on one node: kernels, and pools, no rounds */

    /* Of the round before `completed`: ranks that its header lists as left. */
    bool     any_left_before;
    uint64_t left_before[PP_CONTRIBUTORS_WORDS];
};

static inline pp_allreduce_t *pp_allreduce_of(const pp_handle_t *handle) { return (pp_allreduce_t *)handle; }

/* The handle as the caller described it; it has no rounds before the ranks have agreed on it. */
pp_status_t pp_allreduce_new(pp_team_t *team, const pp_allreduce_config_t *config, pp_handle_t **handle);
bool        pp_is_allreduce(const pp_handle_t *handle);
/* A schedule of messages was asked for: it is not made in the node's memory. */
static inline bool pp_allreduce_wants_messages(const pp_allreduce_t *coll)
{
    return coll->config.algorithm != PP_ALGORITHM_AUTO;
}

/* ---- what every way to make rounds does alike (rounds.c) --------------------------------------------------- */

/* Makes a Start's request, which may be complete at once; returns the round that its call is given. */
uint64_t pp_rounds_request(pp_allreduce_t *coll);
/* The next round is complete; its ranks that had left in `left` if there are any. */
void     pp_rounds_complete(pp_allreduce_t *coll, pp_outcome_t *outcome, const uint64_t *left);
/* max_lag does not hold this rank's part back. */
bool     pp_rounds_is_exempt(const pp_allreduce_t *coll);
/* While a rank has left or is elsewhere, what completes or is in flight counts as given. */
void     pp_rounds_count_as_given(pp_allreduce_t *coll, uint64_t rounds);
void     pp_rounds_count_staleness(const pp_allreduce_t *coll, uint64_t staleness);
/* What the sum of a round is divided by; 1: nothing. */
uint64_t pp_rounds_divisor(const pp_allreduce_t *coll, const pp_tally_t *tally);
void        pp_rounds_divide(const pp_allreduce_t *coll, void *vector, uint64_t by);
/* How many segments a schedule cuts the vector into. */
int32_t  pp_rounds_segments(const pp_allreduce_t *coll, const pp_kernels_t *kernels, int32_t participants);
/* The first round that max_lag forbids to go on without this rank, unless it is exempt. */
uint64_t pp_rounds_bound(const pp_allreduce_t *coll);
static inline size_t pp_rounds_mask_bytes(const pp_allreduce_t *coll)
{
    return coll->series.mask_words * sizeof(uint64_t);
}

#endif
