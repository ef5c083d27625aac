/*
 * wire.h - the messages of rounds: see exec/message.h.
 */
#ifndef PP_ROUNDS_WIRE_H
#define PP_ROUNDS_WIRE_H

#include "../../exec/message.h"

enum {
    PP_MSG_DRAW = PP_MSG_OWN,        /* a draw handed on */
    PP_MSG_REPORT,                   /* a ballot: counts of ready ranks, towards the root of the tree */
    PP_MSG_AWAIT                     /* a rank has waited long for this round */
};

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

#endif
