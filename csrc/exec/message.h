/*
 * message.h - what travels between engines.
 *
 * Every message starts with pp_prefix_t.  An operation's message (PP_MSG_OPERATION) of a data step goes
 * on with a tally and its masks, and then, 16-byte aligned, the elements if they fit inline; otherwise
 * the elements follow as bulk under `bulk_tag`.  Ranks have the same byte order and word size.
 */
#ifndef PP_MESSAGE_H
#define PP_MESSAGE_H

#include "../base/base.h"
#include "../base/tally.h"

typedef enum pp_message_kind {
    PP_MSG_OPERATION,    /* a SEND of a schedule */
    PP_MSG_DRAW,         /* a draw handed on (coll/rounds/) */
    PP_MSG_REPORT,       /* counts of ready ranks, towards the root of the tree */
    PP_MSG_AWAIT,        /* somebody has waited long for this round */
    PP_MSG_ASK,          /* "this is what I am doing; what are you doing with this handle?" */
    PP_MSG_TELL,
    PP_MSG_CLOSE,        /* my last message in this context */
    PP_MSG_EXIT,         /* my script has ended; I only serve from now on */
    PP_MSG_GONE          /* I gave the context up because of an exception or an error */
} pp_message_kind_t;

enum {
    PP_FLAG_DATA = 1,    /* the register was not null: elements come along */
    PP_FLAG_BULK = 2,    /* ... as bulk */
    PP_FLAG_LEFT = 4,    /* the tally carries the mask of ranks that had left */
    PP_FLAG_TALLY = 8
};

typedef struct pp_prefix {
    uint16_t kind, flags;
    uint32_t handle;
    uint64_t round;
    uint64_t calls;      /* the most collective calls that the sender knows somebody to have completed */
    uint32_t tag;        /* OPERATION: the receiver's RECV vertex */
    uint32_t bulk_tag;
} pp_prefix_t;

/* One kind of call only may end a handle's rounds.  A rank that is out does not mind which. */
typedef enum pp_flush_calls { PP_IN_FLUSH = 1, PP_IN_FREE = 2 } pp_flush_calls_t;

typedef struct pp_report {
    pp_prefix_t prefix;
    uint32_t    ready;       /* ranks of the subtree that are ready for prefix.round */
    uint32_t    left;        /* not ready, and left */
    uint32_t    aside;       /* not ready, and left by patience, or out: void towards nobody */
    uint16_t    waits;       /* 1: somebody of them waits for the round */
    uint16_t    overdue;     /* 1: ... and its deadline is over */
    uint64_t    left_calls;  /* the least that one of those that left had completed */
} pp_report_t;

/* Who waits long says so to all ranks; each passes it on once. */
typedef struct pp_await {
    pp_prefix_t prefix;
    uint32_t    origin;      /* who says so, */
    uint32_t    number;      /* and its how manieth */
} pp_await_t;

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
