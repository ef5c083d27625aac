/* tally.h - the counts of a round, merged where its parts are combined. */
#ifndef PP_TALLY_H
#define PP_TALLY_H

#include <stdint.h>

/* The part of a header that is reduced along with the data.  It describes the ranks merged so far. */
typedef struct pp_tally {
    uint64_t contributions;  /* Starts */
    uint32_t contributors;   /* ranks with data */
    uint32_t active;         /* ranks that were ready */
    uint32_t flushing;       /* ranks that had left for good: in Flush, Drain or Free, or out */
    uint32_t flush_calls;    /* the calls that these are in: pp_flush_calls_t */
    uint32_t initiator;      /* lowest rank that triggered; PP_NO_INITIATOR */
    uint16_t cause;          /* pp_cause_t, the strongest */
    uint16_t any_left;       /* 1: the left mask is not empty */
} pp_tally_t;

enum { PP_NO_INITIATOR = 0xffffffffu };

/* Which call a rank is in that ends a handle's rounds when all ranks are in it. */
typedef enum pp_leaving {
    PP_STAYS,                        /* none */
    PP_FLUSHES, PP_FREES,            /* Flush, Free: until the next flush round is complete */
    PP_STEPS                         /* a step of a Drain: until any round is complete */
} pp_leaving_t;

static inline void pp_tally_merge(pp_tally_t *into, const pp_tally_t *from)
{
    into->contributions += from->contributions;
    into->contributors += from->contributors;
    into->active += from->active;
    into->flushing += from->flushing;
    into->flush_calls |= from->flush_calls;
    into->any_left |= from->any_left;
    if (from->initiator < into->initiator)
        into->initiator = from->initiator;
    if (from->cause > into->cause)
        into->cause = from->cause;
}

#endif
