/*
 * message.h - the messages between engines.
 *
 * Every message starts with pp_prefix_t.  In an operation's message (PP_MSG_OPERATION) of a data step follow a tally
 * and its masks, and then, 16-byte aligned, the elements if they fit inline; otherwise the elements follow as bulk
 * under `bulk_tag`.  All ranks have the same byte order and word size.
 */
#ifndef PP_MESSAGE_H
#define PP_MESSAGE_H

#include "../base/base.h"
#include "../base/tally.h"

typedef enum pp_message_kind {
    PP_MSG_OPERATION,    /* a SEND of a schedule */
    PP_MSG_DRAW,         /* a draw handed on (coll/rounds/) */
    PP_MSG_REPORT,       /* a ballot: counts of ready ranks, towards the root of the tree */
    PP_MSG_AWAIT,        /* a rank has waited long for this round */
    PP_MSG_GROUP_EVENT,  /* groups of P-Reduce: what a rank tells rank 0 */
    PP_MSG_GROUP_NOTICE, /* ... and rank 0 the members of a group */
    PP_MSG_ASK,          /* the sender says what it is doing, and asks what the receiver does with this handle */
    PP_MSG_TELL,         /* the answer */
    PP_MSG_CLOSE,        /* the sender's last message in this context */
    /* prefix.round of these: the number of agreements (coll/calls.h) that the sender has completed. */
    PP_MSG_EXIT,         /* the sender's script has ended; it only serves from now on */
    PP_MSG_GONE          /* the sender gave the context up because of an exception or an error.  Before it come others of
                            this kind, without a text, one of each handle: prefix.round is the handle's next_round() */
} pp_message_kind_t;

enum {
    PP_FLAG_DATA = 1,    /* the register was not null: there are elements */
    PP_FLAG_BULK = 2,    /* they follow as bulk */
    PP_FLAG_LEFT = 4,    /* the mask of ranks that had left follows the tally */
    PP_FLAG_TALLY = 8
};

typedef struct pp_prefix {
    uint16_t kind, flags;
    uint32_t handle;
    uint64_t round;
    uint64_t calls;      /* the most collective calls that the sender knows any rank to have completed */
    uint32_t tag;        /* OPERATION: the receiver's RECV vertex */
    uint32_t bulk_tag;
} pp_prefix_t;

typedef struct pp_report {
    pp_prefix_t prefix;
    uint32_t    ready;       /* ranks of the subtree that are ready for prefix.round */
    uint32_t    left;        /* ranks that are not ready, but have left */
    uint32_t    aside;       /* ranks that are not ready, but have left by patience, or are out: that is never void */
    uint16_t    waits;       /* 1: one of the ranks waits for the round */
    uint16_t    overdue;     /* 1: ... and its deadline is over */
    uint64_t    left_calls;  /* the fewest collective calls that a rank in `left` has completed */
} pp_report_t;

/* A rank that waits long tells all ranks; each of them passes the message on once. */
typedef struct pp_await {
    pp_prefix_t prefix;
    uint32_t    origin;      /* the rank that waits */
    uint32_t    number;      /* counts its messages of this kind */
} pp_await_t;

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

enum { PP_ERROR_TEXT = 512 };

typedef struct pp_gone {
    pp_prefix_t prefix;
    int32_t     status;      /* the sender's error, a pp_status_t */
    char        text[PP_ERROR_TEXT];
} pp_gone_t;

typedef struct pp_tell {
    pp_prefix_t     prefix;
    pp_rank_state_t state;
} pp_tell_t;

#endif
