/*
 * preduce.h - P-Reduce: a rank that asks averages its vector with a group of ranks (design: "P-Reduce").
 *
 * A machine (groups/groups.h) decides which groups there are and when they begin.  A table of functions,
 * pp_grouping_t, says where the machine is and how members average: in the memory of the node, by the rank that
 * comes last (shared.c); by messages, with the machine at rank 0 (posted.c); or by messages without a
 * machine, where a table tells each rank its group (tables.c).  No other file asks which of the three it is.
 *
 * A rank's *vector* is what groups average.  Start copies the application's elements to it.  Until the request is
 * complete, groups read and write it without the rank: the group that completes the request, and before it those that
 * others have drawn the rank into.  Then Wait copies it out.
 */
#ifndef PP_PREDUCE_H
#define PP_PREDUCE_H

#include "../../groups/groups.h"
#include "../team.h"

typedef struct pp_preduce pp_preduce_t;
struct pp_group_region;
struct pp_group_vault;
struct pp_group_models;

/* A rank that is here, as opposed to a reason of pp_groups_left_t. */
enum { PP_GROUPS_HERE = -1 };
/* Handles of one context; their ranks are untangled together. */
enum { PP_PREDUCE_HANDLES_MOST = 64 };

typedef struct pp_grouping {
    bool untangles;                  /* its machines know of all waits on handles of this way */
    bool sends;                      /* an application thread that is inside attends to messages */
    /* Where this rank's vector is to be; NULL: it stays in the application's buffer. */
    void       *(*aim)(pp_preduce_t *);
    /* The vector is there: asks for the group that preduce->asked describes. */
    pp_status_t (*ask)(pp_preduce_t *);
    /* Says that this rank is here (PP_GROUPS_HERE), or has left, and why: `number` is that of PP_GROUPS_LEAVE. */
    void        (*say)(pp_preduce_t *, int32_t reason, uint64_t number);
    /* Says that this rank has waited long for its request. */
    void        (*say_long)(pp_preduce_t *);
    /* Says whether this rank waits elsewhere for long. */
    void        (*say_elsewhere)(pp_preduce_t *, bool waits);
    /* Of a complete request: the elements; NULL: they are in the application's buffer. */
    const void *(*vector)(const pp_preduce_t *);
    /* Tells the ranks that this rank's request waits for. */
    void        (*await)(pp_preduce_t *);
    /* Looks whether a request waits for this rank (pp_groups_awaits()), and sooner or later tells
       pp_group_time_confirmed() what it has found.  NULL: there is no patience. */
    void        (*confirm)(pp_preduce_t *);
    /* PP_BACKEND_COMM: the caller has run the group. */
    void        (*ran)(pp_preduce_t *);
    /* Goes on with what has to be done outside a callback. */
    void        (*go_on)(pp_preduce_t *);
    void        (*close)(pp_preduce_t *);

    /* This rank's Start has begun a group whose chunks are not all handed out.  NULL: none are. */
    bool        (*has_begun)(const pp_preduce_t *);
    pp_handle_ops_t handle;
} pp_grouping_t;

struct pp_preduce {
    pp_handle_t          handle;
    const pp_grouping_t *ops;
    const struct pp_group_models *models;          /* of a kind that is built on P-Reduce; or NULL: shared.h */
    union {                          /* what `ops` keeps */
        struct pp_shared_groups *shared;
        struct pp_carried       *carried;      /* posted or tables */
        struct pp_posted_groups *posted;
        struct pp_table_groups  *tables;
    };
    pp_preduce_config_t config;      /* `pieces` and `table` are copies that this object owns */
    char         generator_text[160];
    uint64_t     table_hash;         /* of `table`, for the comparison of arguments */
    size_t       count;              /* elements of all pieces */
    size_t       vector_bytes;
    pp_kernels_t kernels;
    void        *initial;            /* PP_WEIGHTS_INITIAL: this rank's initial model, until open() has taken it; with
                                        buffers on a device it is read when it has come off it */

    int32_t      said;               /* what the machine knows: a reason, or PP_GROUPS_HERE */
    uint64_t     said_call;          /* ... and the number of the call that this rank is in; 0: it is in none */
    bool         said_elsewhere;
    bool         ended;              /* all ranks have freed the handle: nothing is said any more */
    uint64_t     iteration;          /* of the last request, or what it took over */
    struct {                         /* the arguments of the next Start; `members` is the caller's */
        uint64_t       iteration;
        const int32_t *members;
        int32_t        count;
    } asked;
    uint64_t     requests;           /* completed */
    bool         dropped;            /* a Flush or Free has taken an outstanding request back */
    bool         on_its_way;         /* the request's elements are: see pp_preduce_asks() */

    pp_group_result_t result;        /* of the newest complete request, or of the group that the caller is to run */
    bool         described;          /* there was one */
    bool         runs;               /* PP_BACKEND_COMM: the caller has been given a group, and has not run it */
    bool         undelivered;        /* PP_BACKEND_COMM: a Start came, and the caller has not delivered its result */
    int32_t     *members;            /* what `result` points to: one entry a rank */
    double      *weights;

    struct {                         /* see time.c */
        uint64_t   long_ns;          /* when it will have waited long; 0: not decided; PP_NEVER_NS: it has said so */
        uint64_t   awaited;          /* another rank's request that waits for this one's next Start; 0: none */
        uint64_t   leave_ns;         /* ... and this rank leaves by patience then; 0: it has not looked at the clock */
        bool       confirms;         /* ops->confirm has been called, and has not answered */
        uint64_t   seen_waits;       /* team->waits when this rank was last seen to wait elsewhere */
        uint64_t   elsewhere_ns;     /* when it will have waited there for long; 0: it does not wait, or has
                                        not looked at the clock */
        bool       elsewhere;        /* ... for long */
    } time;
};

static inline pp_preduce_t *pp_preduce_of(const pp_handle_t *handle) { return (pp_preduce_t *)handle; }

/* This rank waits, and the machine knows it: it has not asked, and computes like any other, while the elements of its
   Start are on their way from a device (progress/staged_preduce.c). */
static inline bool pp_preduce_asks(const pp_preduce_t *preduce)
{
    return pp_handle_waits(&preduce->handle) && !preduce->on_its_way;
}

/* Whether the groups of another handle go the same way. */
static inline bool pp_preduce_is_like(const pp_preduce_t *preduce, const pp_handle_t *other)
{
    return other->kind == preduce->handle.kind && pp_preduce_of(other)->ops == preduce->ops;
}

/* Makes the handle that the caller described. */
pp_status_t pp_preduce_new(pp_team_t *team, const pp_preduce_config_t *config, pp_handle_t **handle);
/* Takes the description over; of a kind that is built on P-Reduce, too. */
pp_status_t pp_preduce_configure(pp_preduce_t *preduce, const pp_preduce_config_t *config, int32_t ranks);
bool        pp_is_preduce(const pp_handle_t *handle);
/* PP_ERR_ARGUMENT: a wrong value of the configuration. */
pp_status_t pp_preduce_check(const pp_team_t *team, const pp_preduce_config_t *config);
/* PP_ERR_ARGUMENT: wrong arguments of the next Start (`asked`). */
pp_status_t pp_preduce_check_asked(const pp_preduce_t *preduce);

/* ---- what a kind that is built on P-Reduce has of it (preduce.c) ---------------------------------------------- */

uint64_t    pp_preduce_reserve(pp_handle_t *handle);
void        pp_preduce_unreserve(pp_handle_t *handle, uint64_t region);
pp_status_t pp_preduce_open(pp_handle_t *handle, const pp_agreed_t *agreed);
void        pp_preduce_empty(pp_handle_t *handle);
void        pp_preduce_drop_request(pp_handle_t *handle);
void        pp_preduce_give(pp_handle_t *handle);
uint64_t    pp_preduce_discard(pp_handle_t *handle);
bool        pp_preduce_in_mid_round(const pp_handle_t *handle);
void        pp_preduce_describe_rank(pp_handle_t *handle, pp_rank_state_t *state);
void        pp_preduce_explain(pp_handle_t *handle, pp_text_t *text);
uint64_t    pp_preduce_next_round(const pp_handle_t *handle);
bool        pp_preduce_is_behind(const pp_handle_t *handle, uint64_t round);
/* Tells the machine if this rank has left, or is back. */
void        pp_preduce_say(pp_preduce_t *preduce);

#define PP_PREDUCE_PARTS                                                                                           \
    .reserve = pp_preduce_reserve, .unreserve = pp_preduce_unreserve, .empty = pp_preduce_empty,                   \
    .drop_request = pp_preduce_drop_request, .give = pp_preduce_give, .discard = pp_preduce_discard,               \
    .in_mid_round = pp_preduce_in_mid_round, .describe = pp_preduce_describe_rank, .explain = pp_preduce_explain,  \
    .next_round = pp_preduce_next_round, .is_behind = pp_preduce_is_behind

/* ---- messages ------------------------------------------------------------------------------------------------- */

enum {
    PP_MSG_GROUP_EVENT = PP_MSG_OWN, /* what a rank tells rank 0 */
    PP_MSG_GROUP_NOTICE              /* ... and rank 0 the members of a group */
};

/* prefix.round: the number of the event (pp_groups_event_t). */
typedef struct pp_group_event {
    pp_prefix_t prefix;
    int32_t     event;
    int32_t     count;       /* START of a given group: the members that follow */
    int32_t     members[];
} pp_group_event_t;

/* prefix.round: the serial number of the group. */
typedef struct pp_group_notice {
    pp_prefix_t prefix;
    int32_t     kind;        /* pp_groups_action_kind_t */
    int32_t     goal;        /* BEGIN: 1: the receiver's request is complete with this group */
    int32_t     algorithm;
    int32_t     kept, fresh; /* see pp_groups_action_t */
    int32_t     count;
    int32_t     ranks[2];    /* DIFFER */
    uint64_t    newest;
    double      initial;
    /* `count` weights follow, then `count` members; a handle with constant weights sends no weights. */
    double      weights[];
} pp_group_notice_t;

/* ---- what all ways use (answer.c) ----------------------------------------------------------------------- */

/* The application's elements in a vector. */
void pp_preduce_load(const pp_preduce_t *preduce, void *vector);
/* A vector's elements in the application's buffers, or others of the same lengths. */
void pp_preduce_store(const pp_preduce_t *preduce, const pp_piece_t *pieces, const void *vector);
/* Describes the result in `result`.  `newest`: the newest iteration of the last group that this rank was in, also where
   it was alone afterwards.  `members` NULL: this rank was alone; `weights` NULL: they are equal. */
void pp_preduce_describe(pp_preduce_t *preduce, uint64_t serial, uint64_t newest, double initial, int32_t count,
                         const int32_t *members, const double *weights);
/* What a report counts of the result in `result`: a group has its number, and one rank alone has none. */
static inline struct pp_given pp_preduce_given(const pp_preduce_t *preduce, uint64_t staleness)
{
    const pp_group_result_t *result = &preduce->result;
    return (struct pp_given){.key = result->round, .number = result->round, .active = result->count,
                             .staleness = staleness, .cause = -1, .initiator = -1, .goes_on = result->runs};
}
/* Lets a simulation hear what the machine tells. */
void pp_preduce_overheard(const pp_preduce_t *preduce, const pp_groups_action_t *action);
/* The request is complete; `result` describes it. */
void pp_preduce_complete(pp_preduce_t *preduce);
/* All ranks are inside Flush, or Free, and this rank's part of it is done. */
void pp_preduce_flushed(pp_preduce_t *preduce, uint32_t flush_calls);
/* Two ranks wait for different groups that contain both. */
void pp_preduce_differ(pp_preduce_t *preduce, int32_t rank, int32_t other);
/* Ends circles of ranks that wait for each other on handles of this way, or elsewhere (groups/untangle.c). */
pp_status_t pp_preduce_untangle(const pp_preduce_t *preduce, pp_groups_t *(*machine_of)(const pp_preduce_t *),
                                pp_groups_hearer_t (*hearer_of)(pp_preduce_t *), uint64_t now_ns);
/* The plan of the machine for this handle. */
pp_groups_plan_t pp_preduce_plan(const pp_preduce_t *preduce);
/* The weighted part of a member in a sum: `into` = weight * from, and, at the lowest member, + weight * initial model.
   `into` may be `from`. */
void pp_preduce_weigh(const pp_preduce_t *preduce, void *into, const void *from, size_t count, double weight,
                      const void *initial, double initial_weight);

/* ---- time (time.c) -------------------------------------------------------------------------------------- */

/* A Flush, Drain or Free begins, or a Start: this rank is back. */
void     pp_group_time_returned(pp_preduce_t *preduce);
void     pp_group_time_before_start(pp_preduce_t *preduce);
void     pp_group_time_started(pp_preduce_t *preduce);
/* Another rank says that its request waits for this rank. */
void     pp_group_time_awaited(pp_preduce_t *preduce, uint64_t request);
/* The answer to ops->confirm: a request that waits for this rank, time.awaited if that one still does; 0: none does. */
void     pp_group_time_confirmed(pp_preduce_t *preduce, uint64_t request);
/* Something has changed: this rank may have begun, or ceased, to wait elsewhere: for `waits` requests. */
void     pp_group_time_update(pp_preduce_t *preduce, uint64_t waits);
/* Looks at the time; returns the time of the next look, PP_NEVER_NS: none. */
uint64_t pp_group_time_tick(pp_preduce_t *preduce, uint64_t now_ns, uint64_t waits);

/* ---- the three ways ------------------------------------------------------------------------------------------- */

pp_status_t pp_shared_groups_open(pp_preduce_t *preduce, uint64_t region);
/* Called on the first rank of a node: reserves the memory of a handle that is being agreed on; 0: none. */
uint64_t    pp_shared_groups_reserve(pp_preduce_t *preduce);
void        pp_shared_groups_unreserve(pp_preduce_t *preduce, uint64_t region);
/* Locks the node; false: the context has failed. */
bool        pp_shared_groups_lock(pp_preduce_t *preduce);
void        pp_shared_groups_unlock(pp_preduce_t *preduce);
/* With that lock, which it releases: tells the machine of an event of this rank, and does what follows.  Without: it
   takes the lock, too.  `stays`: this rank works at the large jobs that begin thereby. */
pp_status_t pp_shared_groups_report_locked(pp_preduce_t *preduce, int32_t what, uint64_t number, bool stays);
pp_status_t pp_shared_groups_report(pp_preduce_t *preduce, int32_t what, uint64_t number);
/* The handle's memory of the node; NULL: its groups go another way. */
struct pp_group_region *pp_shared_groups_region(pp_preduce_t *preduce);
/* From now on the vectors are in the vault, and this one is the rank's: on_device.c. */
void        pp_shared_groups_use(pp_preduce_t *preduce, struct pp_group_vault *vault);
void        pp_shared_groups_place(pp_preduce_t *preduce, int32_t number);
pp_status_t pp_posted_groups_open(pp_preduce_t *preduce);
/* Whether each rank can tell its groups by itself. */
bool        pp_table_groups_serve(const pp_preduce_t *preduce);
pp_status_t pp_table_groups_open(pp_preduce_t *preduce);
/* For simulations: goes on as after so many flushes, and requests since the last one. */
pp_status_t pp_table_groups_count_from(pp_preduce_t *preduce, uint64_t flushes, uint64_t requests);

#endif
