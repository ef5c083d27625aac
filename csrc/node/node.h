/*
 * node.h - what the ranks of a node share: memory, and who of them is inside a collective call.
 *
 * What is in the memory has an *offset*, the same for every rank of the node, given out from the bottom up.  The region
 * of a handle is reserved by the first rank for all, before it votes in the agreement, so that each rank that
 * hears of the end of the agreement finds it.  A rank maps what has been given out when it opens a handle; the rank that
 * is about to use memory first commits it.
 */
#ifndef PP_NODE_H
#define PP_NODE_H

#include "../base/shared.h"

#include <stdatomic.h>

/* Before every access to shared state that another rank may change: here simulated ranks are interrupted.  `step` is
   the name that the models in tests/model have for it. */
#if PP_SIM
extern void (*pp_node_step)(const char *step);   /* NULL: nobody is interrupted */
#define PP_STEP(step)                   \
    do {                                \
        if (pp_node_step)               \
            pp_node_step(step);         \
    } while (0)
#else
#define PP_STEP(step) ((void)0)
#endif

/* ---- presence: who has left ------------------------------------------------------------------------- */

/* A rank's presence: calls << 3 | waits << 2 | out << 1 | inside.  A rank that is out has ended its script: it has
   left for good.  One that is inside a collective call has left, unless somebody has completed a later call already:
   then its own is over, too, and it has only not noticed yet. */
/* It waits: for a handle whose rounds are made of messages, which its own engine completes, or in another context. */
enum { PP_PRESENCE_INSIDE = 1, PP_PRESENCE_OUT = 2, PP_PRESENCE_WAITS = 4, PP_PRESENCE_CALLS_SHIFT = 3 };

typedef struct pp_presence {
    _Alignas(64) _Atomic uint64_t shown;
    int64_t  pid;                    /* written once, before the first handle */
    _Atomic uint64_t lent_ns;        /* of a core, to rounds, while it was asleep itself */
} pp_presence_t;

enum { PP_GIVEN_UP = 32 };

typedef struct pp_commons {
    _Alignas(64) _Atomic uint64_t calls;   /* collective calls completed by the rank that completed most; */
    _Atomic uint64_t calls_heard;          /* and by a rank of another node, as far as is known */
    _Atomic uint32_t away;                 /* ranks whose presence says inside, out or waits: mostly 0 */
    _Alignas(64) _Atomic uint32_t sleepers;  /* callers asleep: mostly 0 */
    /* Where the first rank of the node has reserved memory for the rounds of a handle that is being agreed on: of
       this agreement and, as long as not everybody has read it, of the one before. */
    _Atomic uint64_t regions[2];
    _Atomic uint64_t top;                  /* up to here offsets are given out */
    /* Regions that were given up by other ranks than the first, which uses them again: offset / PAGE << 32 |
       bytes / PAGE; 0: free. */
    _Atomic uint64_t given_up[PP_GIVEN_UP];
    pp_presence_t presence[];
} pp_commons_t;

/* ---- a rank's view ------------------------------------------------------------------------------------ */

typedef struct pp_node {
    pp_shared_t  *memory;            /* NULL: simulated ranks, whose offsets are addresses */
    char         *base;              /* of offsets */
    pp_commons_t *commons;
    int32_t       index, size;       /* of this rank among those of the node */
    uint64_t      magnify;           /* simulated: for so many bytes each one of a vector counts; else 1 */
    uint64_t      presence;          /* mine, as published */
    struct pp_pulse { uint64_t cpu_ns, at_ns; bool idle; } *pulses;   /* of the others, when last asked about */
    pp_range_t   *unused;            /* ranges that were given out to this rank */
    /* Wakes callers of a rank that sleep in a wait; and, if `serve`, its progress thread. */
    void        (*wake)(void *owner, int32_t index, bool serve);
    /* Whether nobody of a rank looks at anything before it is woken; says nothing of a moment later. */
    bool        (*sleeps)(void *owner, int32_t index);
    void         *owner;
} pp_node_t;

/* The view of memory that everybody has opened (collective order: all views before any other use).  False:
   no memory for what the ranks of the node have in common. */
bool     pp_node_open(pp_node_t *node, pp_shared_t *memory, int32_t index, int32_t size);
/* Simulated ranks, of one process: `commons` is theirs. */
void     pp_node_open_simulated(pp_node_t *node, pp_commons_t *commons, int32_t index, int32_t size,
                                uint64_t magnify);
size_t   pp_commons_bytes(int32_t size);
void     pp_node_close(pp_node_t *node);

static inline void *pp_node_at(const pp_node_t *node, uint64_t offset) { return node->base + offset; }
/* Whether all bytes of a range lie in the memory; their offset. */
bool     pp_node_holds(const pp_node_t *node, const void *memory, size_t bytes, uint64_t *offset);

/* A region for all, with nothing in it; 0: none left.  Only the first rank may reserve. */
uint64_t pp_node_reserve(pp_node_t *node, uint64_t bytes);
/* Maps all that has been given out; false: this process has no address space left. */
bool     pp_node_reach(pp_node_t *node);
/* Nobody uses the region any more: its memory is given back. */
void     pp_node_release(pp_node_t *node, uint64_t offset, uint64_t bytes);
bool     pp_node_commit(pp_node_t *node, uint64_t offset, uint64_t bytes);
/* Committed memory for an array of this rank, and where it is (pp_shared_give_back() is for it); NULL: none. */
void    *pp_node_alloc(pp_node_t *node, size_t bytes);

/* ---- presence ------------------------------------------------------------------------------------------ */

/* Publishes where this rank is; false: it was there already. */
bool     pp_node_set_presence(pp_node_t *node, uint64_t calls, bool inside, bool out, bool waits);
bool     pp_node_anybody_away(const pp_node_t *node);
bool     pp_node_left(const pp_node_t *node, int32_t index);
bool     pp_node_waits(const pp_node_t *node, int32_t index);
bool     pp_node_out(const pp_node_t *node, int32_t index);
/* Collective calls completed by whoever has completed most. */
uint64_t pp_node_calls(const pp_node_t *node);
/* A collective call has come to its end for all who are in it. */
void     pp_node_call_over(pp_node_t *node, uint64_t calls);
/* A rank of another node has completed so many: those of this node that have not, and are inside, have not left. */
void     pp_node_hears(pp_node_t *node, uint64_t calls);
/* Whether a rank sleeps: its process has hardly used a core, but to lend it, since it was last asked about, by this
   rank and at least PP_NODE_IDLE_NS ago.  Never said of simulated ranks. */
enum { PP_NODE_IDLE_NS = 200000 };
bool     pp_node_idles(pp_node_t *node, int32_t index, uint64_t now_ns);
/* This rank's progress thread has worked for others for so long. */
void     pp_node_lent(pp_node_t *node, uint64_t ns);

/* A caller goes to sleep: from here on whoever publishes something looks whom to wake. */
void     pp_node_asleep(pp_node_t *node);
void     pp_node_awake(pp_node_t *node);
bool     pp_node_anybody_asleep(const pp_node_t *node);

#endif
