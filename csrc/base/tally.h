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
    uint32_t flush_calls;    /* the calls that these are in: pp_flush_calls() */
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

/* All ranks must end a handle's rounds by calls of one kind, and of one number, whose bit is at PP_IN_NUMBER or above.  A
   rank that is out goes along with any.  `calls`: that the rank has completed. */
enum { PP_IN_FLUSH = 1, PP_IN_FREE = 2, PP_IN_NUMBER = 4 };
static inline uint32_t pp_flush_calls(pp_leaving_t leaves, uint64_t calls)
{
    uint32_t kind = leaves == PP_FREES ? PP_IN_FREE : PP_IN_FLUSH;
    return leaves == PP_STAYS ? 0 : kind | (uint32_t)PP_IN_NUMBER << calls % 29;
}

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
