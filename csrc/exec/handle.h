/*
 * handle.h - what an application holds of a collective: one object for all kinds.
 *
 * A *kind* (partial allreduce, agreement, ...) embeds pp_handle_t as its first member and brings a table of
 * functions.  Engine, collective calls, waits, questions and the simulation know handles and this table only; no
 * one but the kind itself looks behind it.
 */
#ifndef PP_HANDLE_H
#define PP_HANDLE_H

#include "message.h"
#include "../base/base.h"
#include "../base/tally.h"

struct pp_engine;
struct pp_team;

typedef enum pp_request_state { PP_IDLE, PP_OUTSTANDING, PP_COMPLETE } pp_request_state_t;

/* What all ranks have agreed on when a handle is made. */
typedef struct pp_agreed {
    uint32_t id;
    int32_t  choice, reason;         /* rank 0's algorithm, and why */
    uint64_t region;                 /* of its rounds in the node's memory; 0: none */
} pp_agreed_t;

enum { PP_SIGNATURE_BYTES = 128, PP_AGREE_TEXT = 400 };

/* Arguments that must be the same on all ranks: as bytes to compare and as words to show. */
typedef struct pp_signature {
    unsigned char bytes[PP_SIGNATURE_BYTES];
    char          text[PP_AGREE_TEXT];
    int32_t       choice, reason;    /* this rank's algorithm, if the arguments leave a choice */
} pp_signature_t;

typedef struct pp_handle_kind {
    const char *init;                /* the call that makes such a handle, for texts */

    /* ---- asked by the engine; NULL: never happens to this kind */
    /* Something that rules look at has changed: who waits, calls, completed rounds. */
    void (*update)(pp_handle_t *);
    /* A control message for this handle. */
    void (*control)(pp_handle_t *, int32_t peer, const pp_prefix_t *message);
    /* An operation's message. */
    void (*operation)(pp_handle_t *, int32_t peer, const pp_prefix_t *message, size_t bytes);
    /* Messages that were kept may be due. */
    void (*replay)(pp_handle_t *);

    /* ---- making a handle */
    /* Writes what the ranks compare; may fail, before anything is communicated. */
    pp_status_t (*sign)(pp_handle_t *, pp_signature_t *signature);
    /* By the first rank of a node, before it gives its ballot: memory of the node for all ranks of it, 0: none. */
    uint64_t    (*reserve)(pp_handle_t *);
    void        (*unreserve)(pp_handle_t *, uint64_t region);
    /* The ranks have agreed. */
    pp_status_t (*open)(pp_handle_t *, const pp_agreed_t *agreed);
    /* Releases everything, the handle included. */
    void        (*release)(pp_handle_t *);

    /* ---- collective calls */
    /* Before a Flush, Drain or Free: what a request was given and nobody collected is not given after all. */
    void        (*drop_request)(pp_handle_t *);
    /* What a Flush or a step of a Drain has come to is the request's. */
    void        (*give)(pp_handle_t *);
    /* Its rounds are given one at a time: Drain instead of Flush. */
    bool        (*drains)(const pp_handle_t *);
    /* There is something to give without waiting. */
    bool        (*can_give)(const pp_handle_t *);
    /* Discards what is pending for a Free, unless a round counts on it; returns how many Starts went. */
    uint64_t    (*discard)(pp_handle_t *);
    /* Some round has begun here and is not done. */
    bool        (*in_mid_round)(const pp_handle_t *);
    /* No message of its rounds is outstanding, no thread works at them. */
    bool        (*retired)(const pp_handle_t *);

    /* ---- rounds in memory that ranks share; NULL: not of this kind */
    /* Before something ends that exempts this rank from a bound: what has gone on counts as given. */
    void        (*count_as_given)(pp_handle_t *);
    /* Looks for what others have done there, and settles; true: there was something. */
    bool        (*poll)(pp_handle_t *);
    /* A round would stand still if this rank left the library now. */
    bool        (*needed)(pp_handle_t *);
    /* Chunks of a round are left to be moved.  Once begun, the handle is not freed before worked(); see
       pp_rounds_ops_t. */
    bool        (*has_work)(const pp_handle_t *);
    void        (*begin_work)(pp_handle_t *, bool *lands);
    bool        (*work)(pp_handle_t *, bool lands, uint64_t *round);
    void        (*worked)(pp_handle_t *, uint64_t round, bool last);

    /* ---- time */
    /* Looks at what depends on time; returns when to look again, PP_NEVER_NS: not before something else happens. */
    uint64_t    (*tick)(pp_handle_t *, uint64_t now_ns);

    /* ---- questions */
    void        (*describe)(pp_handle_t *, pp_rank_state_t *state);
    /* What keeps its rounds from going on here, a line each. */
    void        (*explain)(pp_handle_t *, pp_text_t *text);
    uint64_t    (*next_round)(const pp_handle_t *);       /* the next to complete here */
    uint64_t    (*buffer_bytes)(const pp_handle_t *);
} pp_handle_kind_t;

#define PP_NEVER_NS UINT64_MAX

struct pp_handle {
    const pp_handle_kind_t *kind;
    const struct pp_face   *face;    /* what applications do with such a handle (progress/context.h) */
    struct pp_engine  *engine;       /* NULL: the ranks have not agreed on it yet */
    struct pp_team    *team;
    uint32_t           id;           /* of the agreement that made it: the same on all ranks */
    pp_leaving_t       leaving;      /* the call on it that this rank is in */
    bool               aside;        /* this rank has left it by patience, until its next Start or collective call */
    bool               ended;        /* freed by the others, while this rank was out */
    struct {
        pp_request_state_t state;
        bool     timed_out;          /* its last Wait: a Start may add to what is pending */
        uint64_t at;                 /* rounds complete here when it was made */
    } request;
};

#endif
