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
    PP_MSG_OWN,          /* the first of a few that mean what the handle's kind says */
    PP_MSG_ASK = PP_MSG_OWN + 5, /* the sender says what it is doing, and asks what the receiver does with this handle */
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
    PP_FLAG_LEFT = 4     /* the mask of ranks that had left follows the tally */
};

typedef struct pp_prefix {
    uint16_t kind, flags;
    uint32_t handle;
    uint64_t round;
    uint64_t calls;      /* the most collective calls that the sender knows any rank to have completed */
    uint32_t tag;        /* OPERATION: the receiver's RECV vertex */
    uint32_t bulk_tag;
} pp_prefix_t;

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
