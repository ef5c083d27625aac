/*
 * coll.h - the partial allreduce: pending slot, policies, delivery, collective calls.
 *
 * A protocol is written like the engine: a state machine without clock, thread or MPI.  Three things
 * drive it: messages, the functions below (called under the context's lock), and update(), which the
 * engine calls whenever something that the rules look at may have changed.
 *
 * Counting rounds.  `taken` rounds have taken this rank's slot, `completed` of them are complete here;
 * opened - window <= completed <= taken <= opened.  A policy needs a rank that waits for round r, so
 * r - 1 is complete at that rank, so everybody has taken r - 1 by the time r is activated anywhere:
 * rounds are activated in order at every rank.
 */
#ifndef PP_COLL_H
#define PP_COLL_H

#include "../algo/algo.h"
#include "../exec/engine.h"

typedef struct pp_calls pp_calls_t;
typedef struct pp_combine pp_combine_t;

/* The result of one round, or of several merged (PP_DELIVER_SUM). */
typedef struct pp_entry {
    struct pp_entry *next;
    uint64_t     round, first;
    pp_tally_t   tally;
    uint64_t     contributors[PP_CONTRIBUTORS_WORDS];
    pp_buffer_t *buffer;             /* NULL: the data lie elsewhere, or there are none (a flush of nothing) */
    enum { PP_NOWHERE, PP_IN_RING, PP_IN_RECEIVE } place;   /* without a buffer: see combine.h */
    int32_t      ring;               /* PP_IN_RING: which entry */
    uint64_t     starts_taken;       /* my Starts merged into rounds <= round */
    uint64_t     own_contributions;  /* my Starts in `round` */
    uint64_t     staleness;
    bool         external;
} pp_entry_t;

/* What this rank knows of one round that is not complete; at round % turns. */
typedef struct pp_turn {
    uint64_t round;
    bool     ready;                  /* latched: once ready for a round, it counts for that round */
    bool     triggered;              /* this rank activated it */
    bool     activated;              /* it is on here: by us or by a message */
    bool     joined;                 /* it took our slot silently, from a Flush */
    bool     gated;                  /* we let it have our part */
    bool     done;                   /* its result is in the accumulator */
    bool     drawn;                  /* a copy of the draw reached us */
    bool     handed_on;
    uint32_t cause;                  /* pp_cause_t this rank gives it */
    uint64_t own_contributions;      /* my Starts that it took */
    uint64_t starts_taken;
    uint64_t staleness;
} pp_turn_t;

typedef enum pp_request_state { PP_IDLE, PP_OUTSTANDING, PP_COMPLETE } pp_request_state_t;

typedef struct pp_quorum_child {
    uint64_t round, calls;
    uint32_t ready, left, waits;
} pp_quorum_child_t;

struct pp_coll {
    pp_engine_t          *engine;
    pp_calls_t           *calls;
    pp_series_t           series;    /* with the node's memory: a number and pools, no rounds */
    pp_combine_t         *combine;   /* its rounds in the node's memory; NULL: they are made of messages */
    pp_allreduce_config_t config;    /* pieces: our copy */
    size_t                count;     /* elements of all pieces */
    int32_t               reason;    /* pp_reason_t: why it has its algorithm, if it is made of messages */
    bool                  ended;     /* freed by the others, while this rank was out */
    uint64_t              max_lag;

    /* Pending slot: everything Start put in since the last take. */
    struct {
        pp_buffer_t *buffer;
        uint64_t     contributions;
        uint64_t     oldest_given;   /* the round that the oldest contribution's own call was given */
    } slot;
    uint64_t starts;

    uint64_t   taken, completed;
    pp_turn_t *turns;                /* none with the node's memory */
    size_t     turn_count;
    uint64_t   counted;              /* rounds below count as given for max_lag */
    uint64_t   seen;                 /* rounds completed when the previous request was */

    /* Not given yet, oldest first; one entry at most for PP_LATEST and PP_DELIVER_SUM. */
    pp_entry_t *ungiven, *ungiven_last;
    pp_entry_t *free_entries;
    struct {
        pp_request_state_t state;
        pp_entry_t        *entry;
        uint64_t           start;    /* number of its Start, from 1; 0: a Wait without a Start */
        uint64_t           missed;
        uint64_t           at;       /* rounds complete here when it was made */
    } request;

    /* PP_FIRST_OF: in the order of draws of round `completed`, this rank's place and the rank behind it;
       the previous round's left mask. */
    int32_t   position, successor;
    bool      ordered;               /* both are of the current round */
    bool      any_left_before;
    uint64_t  left_before[PP_CONTRIBUTORS_WORDS];
    /* PP_QUORUM: the latest reports of the children, and what the parent heard last. */
    pp_quorum_child_t *children;
    pp_quorum_child_t  reported;
};

/* partial.c: a round's life */
pp_status_t pp_coll_new(const pp_allreduce_config_t *config, pp_coll_t **coll);
/* `place`: of its rounds in the node's memory; 0: they are made of messages. */
pp_status_t pp_coll_open(pp_coll_t *coll, pp_calls_t *calls, uint32_t id, int32_t algorithm, uint64_t place);
/* How many segments its schedule cuts the vector into. */
int32_t     pp_coll_segments(const pp_coll_t *coll, const pp_kernels_t *kernels, int32_t participants);
/* Releases everything, the handle included. */
void        pp_coll_free(pp_coll_t *coll);
/* A Start's elements are in the slot. */
void        pp_coll_started(pp_coll_t *coll);
/* Makes a Start's request, which may be complete at once; returns the round that its call is given. */
uint64_t    pp_coll_request(pp_coll_t *coll);
/* The next round is complete, its result in `entry`, its ranks that had left in `left` if there are any. */
void        pp_coll_complete(pp_coll_t *coll, pp_entry_t *entry, const uint64_t *left);
/* While a rank has left or is elsewhere, what completes or is in flight counts as given. */
void        pp_coll_count_as_given(pp_coll_t *coll, uint64_t rounds);
void        pp_coll_count_staleness(pp_engine_t *engine, uint64_t staleness);
/* What the sum of a round is divided by; 1: nothing. */
uint64_t    pp_coll_divisor(const pp_coll_t *coll, const pp_tally_t *tally);
/* Empties the slot for a Free, unless a round counts on it already; returns how many Starts went. */
uint64_t    pp_coll_discard(pp_coll_t *coll);
bool        pp_coll_left(const pp_coll_t *coll);
bool        pp_coll_waits(const pp_coll_t *coll);
bool        pp_coll_elsewhere(const pp_coll_t *coll);
bool        pp_coll_withholds(const pp_coll_t *coll);
bool        pp_coll_in_mid_round(const pp_coll_t *coll);
/* What keeps its rounds from going on here, a line each. */
void        pp_coll_explain(pp_coll_t *coll, pp_text_t *text);
pp_turn_t  *pp_coll_turn(pp_coll_t *coll, uint64_t round);

/* policy.c: when a round is activated */
pp_status_t pp_policy_open(pp_coll_t *coll);
void        pp_policy_close(pp_coll_t *coll);
void        pp_policy_update(pp_coll_t *coll);
bool        pp_policy_permits(const pp_coll_t *coll, const pp_turn_t *turn);
bool        pp_policy_bounded(const pp_coll_t *coll, const pp_turn_t *turn);
void        pp_policy_control(void *coll, int32_t peer, const pp_prefix_t *message);
void        pp_policy_judge(const pp_coll_t *coll, pp_tally_t *tally);
bool        pp_policy_drawn(pp_coll_t *coll);
bool        pp_policy_is_full(const pp_coll_t *coll);
bool        pp_policy_is_solo(const pp_coll_t *coll);
/* The rank at a place of the order of draws of the current round, while nobody has left. */
int32_t     pp_policy_drawn_at(const pp_coll_t *coll, int32_t place);
/* Whom a round that is not activated waits for. */
void        pp_policy_explain(const pp_coll_t *coll, const pp_turn_t *turn, pp_text_t *text);

/* deliver.c: what a request is given */
void        pp_deliver_round(pp_coll_t *coll, pp_entry_t *entry);
void        pp_deliver_complete_request(pp_coll_t *coll);
void        pp_deliver_drop_request(pp_coll_t *coll);
void        pp_deliver_bind(pp_coll_t *coll);
void        pp_entry_free(pp_coll_t *coll, pp_entry_t *entry);
pp_entry_t *pp_deliver_pop(pp_coll_t *coll);
pp_entry_t *pp_entry_new(pp_coll_t *coll);     /* NULL: no memory, latched */
void        pp_entry_free_all(pp_coll_t *coll);
void        pp_deliver_copy_out(const pp_coll_t *coll, const pp_entry_t *entry);
void        pp_deliver_describe(const pp_coll_t *coll, const pp_entry_t *entry, uint64_t start,
                                uint64_t missed, pp_result_t *result);

/* ---- collective calls ------------------------------------------------------------------------------- */

typedef enum pp_call_kind {
    PP_CALL_NONE, PP_CALL_INIT, PP_CALL_FLUSH, PP_CALL_DRAIN, PP_CALL_FREE, PP_CALL_CTX_FREE,
    PP_CALL_EXIT
} pp_call_kind_t;

enum { PP_SIGNATURE_BYTES = 128, PP_AGREE_TEXT = 400 };

/* One rank's word in an agreement; merging two keeps the lower rank's, or the first complaint. */
typedef struct pp_word {
    int32_t rank;                    /* whose signature and text these are */
    int32_t complains;               /* 0: nobody so far; 1: an argument; 2: a difference */
    int32_t complaining_rank;
    int32_t choice, reason;          /* the lowest rank's algorithm, chosen by it if "auto" leaves a choice */
    int32_t unplaced;                /* some node has no place for the rounds in its memory */
    int32_t unused;
    unsigned char signature[PP_SIGNATURE_BYTES];
    char    text[PP_AGREE_TEXT];     /* the arguments in words */
    char    complaint[PP_AGREE_TEXT];
} pp_word_t;

typedef struct pp_question {
    struct pp_question *next;
    uint64_t            number;
    pp_rank_state_t    *answers;
    int32_t             missing;     /* ranks that have not answered */
} pp_question_t;

/* The calls of a context, one at a time. */
struct pp_calls {
    pp_engine_t   *engine;
    pp_call_kind_t kind;             /* in progress; PP_CALL_NONE */
    pp_coll_t     *coll;             /* its handle, if it has one */
    bool           finished;         /* the engine is through; pp_call_wait() has not collected it */
    pp_status_t    status;
    char           text[2 * PP_AGREE_TEXT + 100];
    int32_t        window;
    uint32_t       live_handles;

    pp_tuned_t    *tuned;            /* ours: what was measured, for the choices of rank 0 */
    size_t         tuned_count;
    int32_t        link;             /* pp_link_kind_t: between the ranks */

    pp_series_t    agree;            /* handle 0: synchronous rounds of one word */
    uint64_t       agree_round;
    pp_word_t      word;             /* mine, then everybody's */
    uint64_t       place;            /* reserved by this rank for the handle being made; 0: none */
    bool           entered;          /* my word is in */
    bool           agreed;           /* everybody's is; or the flush round of a Free is complete */

    /* Peers that have sent their last message, have ended their scripts, gave the context up. */
    int32_t        closed, exited, gone;
    bool           closing;          /* our last message is sent: not even an answer may follow it */
    bool           told_gone;
    uint64_t       discarded;        /* Starts that a Free threw away */
    uint64_t      *discarded_out;    /* where pp_coll_free_begin()'s caller wants to know */

    /* pp_ask() */
    uint64_t       ask_number;
    pp_question_t *questions;        /* being asked, by one thread each */
};

pp_status_t pp_calls_open(pp_calls_t *calls, pp_engine_t *engine, int32_t window);
void        pp_calls_close(pp_calls_t *calls);
/* Called by the handle when its flush round, with ranks in pp_flush_calls_t, is complete; or when a drain
   step has something to give. */
void        pp_calls_flush_done(pp_calls_t *calls, pp_coll_t *coll, uint32_t flush_calls);
void        pp_calls_drain_step(pp_calls_t *calls, pp_coll_t *coll);
/* What keeps the call in progress from ending, a line each; of a handle's call: see pp_coll_explain(). */
void        pp_calls_explain(const pp_calls_t *calls, pp_text_t *text);
/* Looks whether the call in progress has come to its end. */
void        pp_calls_update(pp_calls_t *calls);
bool        pp_calls_flushing(const pp_calls_t *calls, const pp_coll_t *coll);

pp_status_t pp_calls_begin_init(pp_calls_t *calls, const pp_allreduce_config_t *config,
                                const char *complaint, pp_coll_t *coll);
/* Opens a handle as if all ranks had agreed on it. */
pp_status_t pp_calls_agreed_init(pp_calls_t *calls, const pp_allreduce_config_t *config,
                                 pp_coll_t **coll);
pp_status_t pp_calls_begin_flush(pp_calls_t *calls, pp_coll_t *coll, pp_call_kind_t kind);
pp_status_t pp_calls_begin_ctx_free(pp_calls_t *calls);
void        pp_calls_begin_exit(pp_calls_t *calls);
/* Tells the peers, once, that this rank takes no part any more. */
void        pp_calls_tell_gone(pp_calls_t *calls);

/* Sends the question; the answers arrive in question->answers until all peers have answered. */
void        pp_ask_begin(pp_calls_t *calls, uint32_t handle, pp_rank_state_t *answers,
                         pp_question_t *question);
bool        pp_ask_answered(const pp_question_t *question);
void        pp_ask_end(pp_calls_t *calls, pp_question_t *question);
void        pp_ask_answer(pp_calls_t *calls, int32_t peer, const pp_tell_t *question);
/* Tells all peers what this rank is doing.  Two ranks inside different collective calls of one number
   will never come out: both fail when a question or an answer shows it. */
void        pp_ask_order(pp_calls_t *calls);
void        pp_ask_told(pp_calls_t *calls, int32_t peer, const pp_tell_t *answer);

#endif
