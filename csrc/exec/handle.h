/*
 * handle.h - the handle that an application holds: one type for all kinds of collectives.
 *
 * A *kind* (partial allreduce, agreement, ...) embeds pp_handle_t as its first member and has a table of functions.
 * Engine, collective calls, waits, questions and the simulation know only handles and this table; only the kind's own
 * files know more.
 */
#ifndef PP_HANDLE_H
#define PP_HANDLE_H

#include "message.h"
#include "pool.h"
#include "../base/base.h"
#include "../base/habit.h"
#include "../base/tally.h"

#include <stdlib.h>

struct pp_engine;
struct pp_team;
struct pp_staging;

typedef enum pp_request_state { PP_IDLE, PP_OUTSTANDING, PP_COMPLETE } pp_request_state_t;

/* What all ranks have agreed on when a handle is made. */
typedef struct pp_agreed {
    uint32_t id;
    int32_t  choice, reason;         /* rank 0's algorithm, and why */
    uint64_t region;                 /* for its rounds in the node's memory; 0: none */
} pp_agreed_t;

/* Something that all ranks of a handle have or none has.  Whether this rank can have it is known when the ranks begin to
   agree on the handle; the agreement says whether all can. */
typedef struct pp_wish {
    bool granted;
    char why[256];                   /* before: why this rank cannot, or ""; after: why not all can, with the rank */
} pp_wish_t;

enum { PP_SIGNATURE_BYTES = 128, PP_AGREE_TEXT = 400 };

/* The arguments that must be the same on all ranks: bytes to compare, and a text to show. */
typedef struct pp_signature {
    unsigned char bytes[PP_SIGNATURE_BYTES + 8];    /* the last 8: of the kind of the handle */
    char          text[PP_AGREE_TEXT];
    int32_t       choice, reason;    /* the algorithm that this rank would choose; not compared */
} pp_signature_t;

typedef struct pp_handle_kind {
    const char *init;                /* the name of the call that makes such a handle, for texts */

    /* ---- called by the engine */
    /* Something that the rules look at has changed: waiting ranks, calls, completed rounds. */
    void (*update)(pp_handle_t *);
    /* ---- making a handle */
    /* Writes what the ranks compare.  May fail, before anything is communicated. */
    pp_status_t (*sign)(pp_handle_t *, pp_signature_t *signature);
    /* Called on the first rank of a node, before it votes: reserves memory of the node for all its ranks; 0: none. */
    uint64_t    (*reserve)(pp_handle_t *);
    void        (*unreserve)(pp_handle_t *, uint64_t region);
    /* The ranks have agreed. */
    pp_status_t (*open)(pp_handle_t *, const pp_agreed_t *agreed);
    /* Releases what the handle has, but not the handle itself. */
    void        (*empty)(pp_handle_t *);

    /* ---- collective calls */
    /* Before a Flush, Drain or Free: takes back the outcome of a request that the application has not collected. */
    void        (*drop_request)(pp_handle_t *);
    /* Gives the outcome of a Flush, or of a step of a Drain, to the request. */
    void        (*give)(pp_handle_t *);
    /* Its rounds are given one at a time: Drain instead of Flush.  NULL, like the next: they never are. */
    bool        (*drains)(const pp_handle_t *);
    /* There is an outcome to give without waiting. */
    bool        (*can_give)(const pp_handle_t *);
    /* For a Free: discards what is pending, unless a round counts on it; returns the number of Starts discarded. */
    uint64_t    (*discard)(pp_handle_t *);
    /* A round has begun here and is not done. */
    bool        (*in_mid_round)(const pp_handle_t *);
    /* ---- time */
    /* Looks at what depends on time.  Returns the time of the next look; PP_NEVER_NS: not before something happens. */
    uint64_t    (*tick)(pp_handle_t *, uint64_t now_ns);

    /* ---- questions */
    /* There is a request, or the outcome of one, that the application has not collected.  NULL: as request.state says. */
    bool        (*is_uncollected)(const pp_handle_t *);
    void        (*describe)(pp_handle_t *, pp_rank_state_t *state);
    /* Says why nothing goes on here. */
    void        (*explain)(pp_handle_t *, pp_text_t *text);
    uint64_t    (*next_round)(const pp_handle_t *);       /* the round that completes next here */
    /* Whether something is under way here that was complete at a peer whose next_round() was `round`. */
    bool        (*is_behind)(const pp_handle_t *, uint64_t round);
} pp_handle_kind_t;

/* How the rounds, or the groups, of one handle are made: a kind may have several ways.  Set when the handle opens.  NULL:
   there is nothing to do. */
typedef struct pp_handle_ops {
    /* A control message for this handle has come; an operation's message.  NULL: none may come. */
    void        (*control)(pp_handle_t *, int32_t peer, const pp_prefix_t *message);
    void        (*operation)(pp_handle_t *, int32_t peer, const pp_prefix_t *message, size_t bytes);
    /* Kept messages may be due. */
    void        (*replay)(pp_handle_t *);
    /* No message of its rounds is outstanding, and no thread works at them.  Never NULL. */
    bool        (*retired)(const pp_handle_t *);

    /* ---- in memory that ranks share */
    /* Before this rank's exemption from a bound ends: rounds that went on meanwhile count as given. */
    void        (*count_as_given)(pp_handle_t *);
    /* Looks for what other ranks have done there, and settles; true: there was something. */
    bool        (*poll)(pp_handle_t *);
    /* A round would stand still if this rank left the library now. */
    bool        (*needed)(pp_handle_t *);
    /* Chunks are left to be handed out; then the next three are not NULL. */
    bool        (*has_work)(const pp_handle_t *);
    /* After this the handle is not freed before worked().  *lands: the caller waits for this handle; stays true if the
       chunks that it moves may go to the receive buffers at once. */
    void        (*begin_work)(pp_handle_t *, bool *lands);
    /* Moves chunks, without the lock, mostly until none is left; true: the last chunk of the job is finished. */
    bool        (*work)(pp_handle_t *, bool lands, uint64_t *job);
    void        (*worked)(pp_handle_t *, uint64_t job, bool last);

    /* ---- questions */
    /* Its part of a round waits for its device. */
    bool        (*on_device)(const pp_handle_t *);
    /* Adds a line for each thing that keeps its rounds from going on here.  Never NULL. */
    void        (*explain)(pp_handle_t *, pp_text_t *text);
    void        (*count_buffers)(const pp_handle_t *, pp_held_t *sum);    /* adds */
} pp_handle_ops_t;

#define PP_NEVER_NS UINT64_MAX

struct pp_handle {
    const pp_handle_kind_t *kind;
    const pp_handle_ops_t  *ops;     /* once the engine knows the handle never NULL; empty until it is open */
    const struct pp_face   *face;    /* what applications do with such a handle (progress/context.h) */
    struct pp_staging *staging;      /* its buffers are in the memory of a device (progress/staging.h); or NULL */
    void             (*end_staging)(struct pp_handle *);   /* frees it; called by empty() */
    /* What the ranks still have to arrange when they have agreed on the handle: PP_PENDING until that is done, so it is
       called again.  NULL: nothing. */
    pp_status_t      (*meet)(struct pp_handle *);
    pp_wish_t         *wish;         /* NULL: none */
    size_t             offer_bytes;  /* what meet() needs of memory that ranks share, for each rank */
    struct pp_engine  *engine;       /* NULL: the ranks have not agreed on it yet */
    struct pp_team    *team;
    uint32_t           id;           /* number of the agreement that made it: the same on all ranks */
    pp_leaving_t       leaving;      /* the call on it that this rank is in */
    bool               by_patience;  /* this rank has left it by patience, until its next Start or collective call */
    bool               waits_as_mpi; /* nothing but a collective call of the context lets this rank leave it */
    bool               in_step;      /* a rank may wait there for one that has made fewer requests */
    bool               unready;      /* what it is made with is on its way from a device: the rank does not vote yet */
    bool               ended;        /* the other ranks have freed it while this rank was out */
    uint64_t           gone_at;      /* the lowest next_round() of the peers that gave the context up; UINT64_MAX: none */
    struct {                         /* see progress/sight.h */
        uint64_t tick;               /* the coarse clock at a Start; and how often it has stood there since */
        uint32_t same;
        uint64_t computed_ns;        /* in the cycle that the Start in progress ends; 0: not known */
        uint32_t waiter;             /* the thread of the last Wait that was timed */
        bool     begins;             /* the Start in progress begins a cycle that is timed */
        uint64_t wait_ns;            /* when the last Wait or Test began; 0: not timed */
        struct pp_cycle {
            uint64_t start_ns;       /* 0: no cycle is timed */
            uint32_t waiter;         /* the thread whose time inside the library counts, and that time then */
            uint64_t inside_ns;
            uint64_t waited_ns, given_ns, key;
            bool     waits;          /* a Wait has found no result */
            bool     late;
        } cycle;
        struct pp_given {            /* the result that was handed out last; see pp_row_t and PP_EVENT_GIVEN */
            uint64_t next;           /* of rounds: the one after it */
            uint64_t key, number, contributions, missed, staleness;
            int32_t  active, cause, initiator;   /* -1: none */
            bool     late, external;
            bool     goes_on;        /* it is no result yet: the application is to run a group */
        } given;
    } sight;
    struct {                         /* see coll/patience.h */
        pp_habit_t habit;
        uint64_t   given_ns;         /* when the last result was handed out; 0: a Start came since */
        uint64_t   tell_ns;          /* when this rank tells the others that it waits; 0: not decided */
        uint32_t   tells;            /* how often it has told them for this request */
        bool       tells_soon;       /* it had to tell them for the request before, so others may sit in one long call */
    } clock;
    struct {
        pp_request_state_t state;
        bool     timed_out;          /* its last Wait ended by its timeout: a Start may add to what is pending */
        uint64_t at;                 /* rounds complete here when the request was made */
    } request;
    struct pp_handle  *next;         /* of those that are empty: pp_calls_close() */
};

/* Releases everything, also the handle itself, with which begins what its kind has allocated. */
static inline void pp_handle_release(pp_handle_t *handle)
{
    handle->kind->empty(handle);
    free(handle);
}

#endif
