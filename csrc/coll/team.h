/*
 * team.h - what a rank knows of itself and of the others in one context, for all its handles.
 *
 * Everything in coll/ is written like the engine: state machines without clock, thread or MPI.  Three things drive
 * them: messages, functions called under the context's lock, and update(), which the engine calls when something may
 * have changed that the rules look at.
 */
#ifndef PP_TEAM_H
#define PP_TEAM_H

#include "../exec/series.h"
#include "../node/node.h"
#include "../policy/policy.h"

#define PP_FOR_EVER INT64_MAX

typedef struct pp_team pp_team_t;

/* What a handle's rounds tell the collective calls of the context. */
typedef struct pp_team_ops {
    /* The flush round is complete; the ranks in it were in these calls (pp_flush_calls()). */
    void (*flushed)(pp_team_t *, pp_handle_t *, uint32_t flush_calls);
    /* Another round than the flush is complete: a step of a Drain may have something to give. */
    void (*stepped)(pp_team_t *, pp_handle_t *);
} pp_team_ops_t;

struct pp_team {
    pp_engine_t         *engine;
    const pp_team_ops_t *ops;
    struct pp_calls     *calls;      /* what `ops` keeps */
    int32_t     window;              /* rounds of a handle in flight at once */
    int32_t     cores;               /* that the ranks of the node may use, together; 0: not known */
    uint32_t    live_handles;
    _Atomic int32_t *in_step;        /* handles in which ranks are in step, of all contexts of the process */
    _Atomic int32_t  in_step_here;   /* the same where a process has many simulated ranks: of this context */
    pp_tuned_t *tuned;               /* the tuning table, for the choices of rank 0; owned */
    size_t      tuned_count;
    int32_t     link;                /* pp_link_kind_t: between the ranks */
    int64_t     patience_ns;         /* < 0: by habit; PP_FOR_EVER */
    uint64_t    backlog_bytes;       /* that results may take which are queued while this rank has left by patience */
    uint64_t    queued_bytes;        /* that they take, with PP_EACH */
    pp_habit_t  habit;               /* times between results and Starts, of all handles */
    uint64_t    left_by_patience;    /* how often this rank has left a handle by patience */
    bool        timed;               /* a handle has, or had, a deadline or a grace */
    bool        has_note;            /* `patience_note` has a text about the first time, not told yet */
    uint64_t    discarded;           /* Starts that the Free in progress has discarded */

    /* This rank. */
    bool        in_call;             /* it has left: it is inside a collective call */
    bool        exits;               /* its script has ended: it only serves the other ranks */
    bool        serves;              /* one of them may still flush a handle */
    uint32_t    waiting;             /* handles with an outstanding on-time request */
    uint32_t    unseen;              /* those of them whose requests the other ranks of the node cannot see */
    uint64_t    waits;               /* such requests made so far */
    uint32_t    waits_in_others;     /* threads of this process that wait long in other contexts */
    uint32_t    asides;              /* blocking calls of the application, in progress, that the library sees */
    struct { uint32_t call, handle; } last;   /* the application's last call, a pp_call_kind_t, for texts */

    /* Rounds in the node's memory. */
    struct pp_board **boards;        /* the boards of the live handles that have one */
    size_t      board_count, board_capacity;
    uint64_t    refused_bytes;       /* needed by the first handle for which the memory had no room; 0: none */
    uint64_t    soon_ns;             /* a round there is ripe after this time, so no thread sleeps longer; 0: none */
    uint64_t    shared_rounds;       /* completed there; and those that this rank ran */
    uint64_t    shared_led;

    char        patience_note[500];
};

/* The application has made a call of a kind; `handle`: an id, or 0. */
static inline void pp_team_called(pp_team_t *team, uint32_t call, uint32_t handle)
{
    team->last.call = call;
    team->last.handle = handle;
}

/* ---- requests --------------------------------------------------------------------------------------- */

/* Before an exemption of this rank ends: rounds of all handles but one (NULL: of all) that have gone on until now count as
   given. */
void pp_team_count_as_given(const pp_team_t *team, const pp_handle_t *but);
/* The handle's request is outstanding: this rank waits.  `seen`: the other ranks of the node see the request. */
void pp_team_wait_begins(pp_handle_t *handle, bool seen);
/* The request is complete, or given up. */
void pp_team_wait_ends(pp_handle_t *handle, bool seen, pp_request_state_t state);

static inline bool pp_handle_waits(const pp_handle_t *handle) { return handle->request.state == PP_OUTSTANDING; }

/* This rank waits on another handle of its process, in this or another context. */
static inline bool pp_handle_elsewhere(const pp_handle_t *handle)
{
    return handle->team->waiting > (pp_handle_waits(handle) ? 1u : 0u) || handle->team->waits_in_others > 0;
}

/* Whether ranks are in step in a handle.  A handle is not when it is made, or about to be freed. */
void        pp_handle_keep_in_step(pp_handle_t *handle, bool in_step);
/* Ranks are in step in another handle of this process, too. */
bool        pp_handle_is_tied(const pp_handle_t *handle);

/* ---- leaving ---------------------------------------------------------------------------------------- */

/* This rank is inside a collective call, or out.  Towards a rank that has completed the call it has not left.  Rounds
   are made by all ranks, so it has not left any more as soon as one rank is known to have completed the call. */
static inline bool pp_handle_left(const pp_handle_t *handle)
{
    const pp_team_t *team = handle->team;
    return team->in_call && (team->exits || team->engine->calls_heard <= team->engine->calls);
}

/* Whether this rank takes part in a flush of the handle, if all the others do.  Not when it has heard that its call is
   over elsewhere: then it has joined the flush already, and a later round belongs to the next call. */
static inline bool pp_handle_flushes(const pp_handle_t *handle)
{
    const pp_team_t *team = handle->team;
    return team->exits ? team->serves && !handle->ended
                       : handle->leaving != PP_STAYS && team->engine->calls_heard <= team->engine->calls;
}

/* In which call this rank ends the rounds, as pp_flush_calls(); 0: in none, or it is out. */
static inline uint32_t pp_handle_flush_call(const pp_handle_t *handle)
{
    return pp_flush_calls(handle->team->exits ? PP_STAYS : handle->leaving, handle->engine->calls);
}

/* This rank has left by patience, or for a blocking call of the application that the library sees.  No count of calls
   voids that.  Inside a collective call of the context such a call is made plainly. */
static inline bool pp_handle_aside(const pp_handle_t *handle)
{
    return handle->by_patience || (handle->team->asides > 0 && !handle->team->in_call && !handle->waits_as_mpi);
}

/* This rank has left the handle: it is in a collective call, out, or aside. */
static inline bool pp_handle_gone(const pp_handle_t *handle) { return pp_handle_left(handle) || pp_handle_aside(handle); }

/* A clock that costs little, and is behind by some milliseconds at most. */
uint64_t pp_team_coarse_now(const pp_team_t *team);
/* ---- buffers on devices ------------------------------------------------------------------------------- */

/* Of a signature: what the ranks compare of `device` and `device_path` (pp_allreduce_config_t), and their text. */
int32_t     pp_team_buffers_key(int32_t device, int32_t device_path);
const char *pp_team_path_text(int32_t device_path);

/* ---- the node's memory -------------------------------------------------------------------------------- */

pp_status_t pp_team_add_board(pp_team_t *team, struct pp_board *board);
void        pp_team_remove_board(pp_team_t *team, const struct pp_board *board);
/* Publishes this rank's presence to the ranks of the node. */
void        pp_team_publish_presence(const pp_team_t *team);

/* ---- all handles -------------------------------------------------------------------------------------- */

/* But for the agreement's.  The body may free handles, and make some. */
#define PP_FOR_EACH_HANDLE(engine, handle)                                                                       \
    for (pp_walk_t pp_walk_ = pp_walk_begin(&(engine)->handles, 1); pp_walk_on(&(engine)->handles, &pp_walk_);) \
        for (pp_handle_t *handle = pp_walk_.here; handle; handle = NULL)

void pp_team_close(pp_team_t *team);
/* Ranks end the handle's rounds by calls of different numbers. */
void pp_flush_parted(const pp_handle_t *handle);

#endif
