/*
 * calls.h - collective calls.  They are state machines, so that a rank inside a call goes on serving the rounds of the
 * others.  A context has one call at a time.
 *
 * Initialisation and the release of a context are *agreements*: a synchronous allreduce of one vote (handle 0), whose
 * merge keeps the lowest rank's signature and the first complaint.  Flush, Drain and Free of a handle end with a round
 * of that handle in which every rank had left for good.
 */
#ifndef PP_CALLS_H
#define PP_CALLS_H

#include "team.h"

typedef enum pp_call_kind {
    PP_CALL_NONE, PP_CALL_INIT, PP_CALL_FLUSH, PP_CALL_DRAIN, PP_CALL_FREE, PP_CALL_CTX_FREE,
    PP_CALL_EXIT, PP_CALL_AWAY,
    PP_CALL_MAKING,                  /* no call yet: a thread makes the handle of one, and has released the lock */
    PP_CALL_START, PP_CALL_WAIT, PP_CALL_TEST, PP_CALL_MORE   /* not collective: pp_team_t.last */
} pp_call_kind_t;

/* A vote in an agreement: one rank's, or several merged.  A merge keeps the lower rank's signature, and the first
   complaint; else the first lack. */
typedef struct pp_vote {
    int32_t rank;                    /* the rank whose signature this is */
    int32_t complains;               /* 0: no rank so far; 1: about an argument; 2: about a difference */
    int32_t complaining_rank;
    int32_t no_region;               /* 1: some node has no room for the rounds in its memory */
    int32_t call;                    /* pp_call_kind_t: compared, like the signature */
    int32_t lacks;                   /* 1: some rank cannot have what the handle wishes: then, unless a rank complains, the
                                        complaint says why, and complaining_rank is that rank */
    pp_signature_t signature;
    char    complaint[PP_AGREE_TEXT];
} pp_vote_t;

typedef struct pp_question {
    struct pp_question *next;
    uint64_t            number;
    pp_rank_state_t    *answers;
    int32_t             missing;     /* ranks that have not answered */
} pp_question_t;

typedef struct pp_calls {
    pp_team_t     *team;
    pp_engine_t   *engine;
    pp_call_kind_t kind;             /* of the call in progress; PP_CALL_NONE */
    uint64_t       blocks;           /* the calls that have ended last were so many blocks of ctx.away() */
    pp_handle_t   *handle;           /* the call's handle, if it has one */
    bool           finished;         /* the engine has finished the call; pp_call_wait() has not collected it */
    pp_status_t    status;
    char           text[2 * PP_AGREE_TEXT + 100];

    struct pp_agreement {            /* handle 0: synchronous rounds of one vote */
        pp_handle_t handle;
        pp_series_t series;
        uint64_t    round;
    } agree;
    pp_vote_t      vote;             /* this rank's; after the agreement that of all */
    uint64_t       region;           /* reserved by this rank for the handle being made; 0: none */
    pp_status_t    complained;       /* what this rank could not make its handle for; PP_OK: it could */
    bool           entered;          /* this rank has voted */
    bool           agreed;           /* all ranks have voted; or the flush round of a Free is complete */
    bool           opened;           /* the handle that was agreed on exists, and its ranks meet() */

    /* Peers that have sent their last message, have ended their scripts, have given the context up. */
    int32_t        closed, exited, gone;
    /* Why the first of these gave it up: the context fails here when what is complete there is complete here, too. */
    pp_status_t    gone_status;      /* PP_OK: there is none */
    uint64_t       gone_until_ns;    /* what is not complete by then never will be */
    char           gone_text[PP_ERROR_TEXT + 64];
    bool           closing;          /* this rank has sent its last message: not even an answer may follow it */
    bool           told_gone;
    uint64_t      *discarded_out;    /* a Free's result for its caller */

    pp_handle_t   *emptied;          /* see pp_calls_close() */
    uint64_t       ask_number;
    pp_question_t *questions;        /* open questions, each of one thread */
} pp_calls_t;

/* ---- the call in progress (call.c) ---------------------------------------------------------------------- */

/* PP_ERR_STATE if a call is in progress.  `what`: the caller's function, for the text. */
pp_status_t pp_call_check_none(const pp_calls_t *calls, const char *what);
pp_status_t pp_call_begin(pp_calls_t *calls, pp_call_kind_t kind, pp_handle_t *handle);
void        pp_call_finish(pp_calls_t *calls, pp_status_t status);
/* The call has ended by an error that all ranks have agreed on, or with the last round of its handle, and is not
   collected.  The context may have failed since, because a rank that came out earlier has given it up: what the call has
   come to comes first. */
bool        pp_call_stands(const pp_calls_t *calls);
void        pp_call_tell_all(pp_calls_t *calls, pp_message_kind_t kind);
/* Releases what a handle has, and keeps itself until pp_calls_end(). */
void        pp_call_keep_empty(pp_calls_t *calls, pp_handle_t *handle);
/* The same with one whose creation will never end. */
void        pp_call_drop_unborn(pp_calls_t *calls);

/* ---- agreement.c --------------------------------------------------------------------------------------- */

pp_status_t pp_agreement_open(pp_calls_t *calls, const pp_handle_kind_t *kind, const pp_handle_ops_t *ops);
/* `complaint`: why this rank cannot make the handle, which mostly is a wrong argument; NULL: it can.  This rank gets
   `complained` for it, an error. */
pp_status_t pp_agreement_begin_init(pp_calls_t *calls, const char *complaint, pp_status_t complained,
                                    pp_handle_t *handle);
/* Opens a handle as if all ranks had agreed on it. */
pp_status_t pp_agreement_pretend(pp_calls_t *calls, pp_handle_t *handle);
pp_status_t pp_agreement_begin_ctx_free(pp_calls_t *calls);
/* Votes, if this rank can. */
void        pp_agreement_vote(pp_calls_t *calls);
/* All ranks have voted: end the call. */
void        pp_agreement_end_init(pp_calls_t *calls);
void        pp_agreement_end_ctx_free(pp_calls_t *calls);
/* If the call in progress is an agreement, adds a line for each thing that keeps it from ending. */
void        pp_agreement_explain(const pp_calls_t *calls, pp_text_t *text);

/* ---- flush.c ------------------------------------------------------------------------------------------- */

extern const pp_team_ops_t pp_flush_ops;
pp_status_t pp_flush_call_begin(pp_calls_t *calls, pp_handle_t *handle, pp_call_kind_t kind);
void        pp_flush_end_free(pp_calls_t *calls);
void        pp_flush_explain(const pp_calls_t *calls, pp_text_t *text);

/* ---- exit.c: ranks that no longer take part ------------------------------------------------------------- */

/* The script has ended without Free: serves the other ranks until they have ended, too. */
void        pp_exit_begin(pp_calls_t *calls);
/* Tells the peers, once, that this rank no longer takes part. */
void        pp_exit_tell_gone(pp_calls_t *calls);
void        pp_exit_peer_gone(pp_calls_t *calls, int32_t peer, const pp_prefix_t *message);
void        pp_exit_peer_exited(pp_calls_t *calls, int32_t peer, const pp_prefix_t *message);
/* The is_behind() of the agreements. */
bool        pp_exit_is_behind(const pp_handle_t *handle, uint64_t agreed);
/* Something may be complete: fails if a peer has given the context up, and nothing that is complete there is missing. */
void        pp_exit_look_again(pp_calls_t *calls);
bool        pp_exit_is_over(const pp_calls_t *calls);

/* ---- ask.c: "what are you doing?" ------------------------------------------------------------------------ */

/* Sends the question to all peers; their answers arrive in question->answers. */
void        pp_ask_begin(pp_calls_t *calls, uint32_t handle, pp_rank_state_t *answers, pp_question_t *question);
bool        pp_ask_answered(const pp_question_t *question);
void        pp_ask_end(pp_calls_t *calls, pp_question_t *question);
void        pp_ask_answer(pp_calls_t *calls, int32_t peer, const pp_tell_t *question);
/* Tells all peers what this rank is doing.  Two ranks inside different collective calls of one number will never come
   out: both fail when a question or an answer shows it. */
void        pp_ask_order(pp_calls_t *calls);
void        pp_ask_told(pp_calls_t *calls, int32_t peer, const pp_tell_t *answer);

/* ---- calls.c: all of them ---------------------------------------------------------------------------------- */

pp_status_t pp_calls_open(pp_calls_t *calls, pp_team_t *team, pp_engine_t *engine, int32_t window);
/* Releases what is left.  Handles stay, without what they had, until pp_calls_end(): a thread that holds one finds there
   the context, which refuses its call; of one whose *_init has not finished, none. */
void        pp_calls_close(pp_calls_t *calls);
void        pp_calls_end(pp_calls_t *calls);

static inline pp_calls_t *pp_calls_of(pp_team_t *team) { return team->calls; }

#endif
