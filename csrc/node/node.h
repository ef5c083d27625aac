/*
 * node.h - what the ranks of a node share: memory, and which ranks are inside a collective call.
 *
 * A byte of the memory has an *offset*, the same for every rank of the node; offsets are given out from the bottom up.
 * The first rank of the node reserves the region of a handle for all, before it votes in the agreement, so every rank
 * finds it when the agreement ends.  A rank maps the memory given out so far when it opens a handle.  A rank commits
 * memory before it first uses it.
 */
#ifndef PP_NODE_H
#define PP_NODE_H

#include "../include/pypartial_sight.h"
#include "../base/shared.h"
#include "ranges.h"

#include <stdatomic.h>

/* Stands before every access to shared state that another rank may change: here simulated ranks are interrupted.
   `step` is the access's name in the models of tests/model. */
#if PP_SIM
extern void (*pp_node_step)(const char *step);   /* NULL: no rank is interrupted */
#define PP_STEP(step)                   \
    do {                                \
        if (pp_node_step)               \
            pp_node_step(step);         \
    } while (0)
#else
#define PP_STEP(step) ((void)0)
#endif

/* ---- presence: which ranks have left ---------------------------------------------------------------- */

/* A rank's presence: calls << 3 | waits << 2 | out << 1 | inside.  A rank that is out has ended its script: it has
   left for good.  A rank inside a collective call has left, unless another rank has completed more calls: then this
   rank's call is over, too, and it has only not noticed yet.
   Here a rank "waits" for a handle whose rounds are made of messages, which its own engine completes, or in another
   context. */
enum { PP_PRESENCE_INSIDE = 1, PP_PRESENCE_OUT = 2, PP_PRESENCE_WAITS = 4, PP_PRESENCE_CALLS_SHIFT = 3 };

typedef struct pp_presence {
    _Alignas(64) _Atomic uint64_t shown;
    int64_t  pid;                    /* written once, before the first handle */
    _Atomic uint64_t lent_ns;        /* CPU time that its progress thread gave to rounds while the rank was asleep */
} pp_presence_t;

typedef struct pp_commons {
    _Alignas(64) _Atomic uint64_t calls;   /* the most collective calls that a rank of this node has completed */
    _Atomic uint64_t calls_heard;          /* the most that a rank of another node is known to have completed */
    _Atomic uint32_t away;                 /* ranks whose presence says inside, out or waits: mostly 0 */
    _Alignas(64) _Atomic uint32_t sleepers;  /* callers asleep: mostly 0 */
    /* The region that the first rank of the node has reserved for the handle being agreed on.  Two, because a rank may
       still read that of the agreement before. */
    _Atomic uint64_t regions[2];
    _Atomic uint64_t top;                  /* only offsets below this one have been given out so far */
    _Atomic uint32_t unmapped;             /* ranks that have closed the memory of devices of the others, for good */
    _Alignas(64) char lock[56];            /* see pp_node_lock() */
    bool     broken;                       /* under the lock: a rank has died that held it */
    pp_presence_t presence[];
} pp_commons_t;

/* ---- a rank's view ------------------------------------------------------------------------------------ */

typedef struct pp_node {
    pp_shared_t  *memory;            /* NULL: simulated ranks, whose offsets are addresses */
    char         *base;              /* of offsets */
    pp_commons_t *commons;
    pp_row_t     *rows;              /* by index; NULL: simulated ranks */
    int32_t       index, size;       /* this rank's index on the node; the number of its ranks */
    uint64_t      magnify;           /* simulated ranks: a byte of a vector counts for this many; else 1 */
    int32_t       room;              /* simulated ranks: see pp_pace_t; else 0 */
    uint64_t      presence;          /* this rank's, as published */
    struct pp_pulse { uint64_t cpu_ns, at_ns; bool idle; } *pulses;   /* of each rank, when last looked up */
    pp_ranges_t  *ranges;            /* the offsets that are free, under the lock; NULL: simulated ranks */
    /* Wakes the callers of a rank that sleep in a wait; if `serve`, its progress thread, too. */
    void        (*wake)(void *owner, int32_t index, bool serve);
    /* Whether all threads of a rank sleep, so that it must be woken; it may have changed a moment later. */
    bool        (*sleeps)(void *owner, int32_t index);
    void         *owner;
} pp_node_t;

/* Opens this rank's view of the memory.  All ranks of the node open theirs before any other use.  False: no memory for
   the commons. */
bool     pp_node_open(pp_node_t *node, pp_shared_t *memory, int32_t index, int32_t size);
/* The same for simulated ranks, which are in one process and share `commons`. */
void     pp_node_open_simulated(pp_node_t *node, pp_commons_t *commons, int32_t index, int32_t size,
                                uint64_t magnify, int32_t room);
size_t   pp_commons_bytes(int32_t size);
void     pp_node_close(pp_node_t *node);

static inline void *pp_node_at(const pp_node_t *node, uint64_t offset) { return node->base + offset; }
/* Whether a range lies in the memory of the node; *offset gets its offset. */
bool     pp_node_holds(const pp_node_t *node, const void *memory, size_t bytes, uint64_t *offset);

/* Reserves a region for all ranks, without memory in it; 0: no offsets are left.  Only the first rank may call this. */
uint64_t pp_node_reserve(pp_node_t *node, uint64_t bytes);
/* Maps the memory given out so far; false: this process has no address space left. */
bool     pp_node_reach(pp_node_t *node);
/* Gives a region back that no rank uses any more. */
void     pp_node_release(pp_node_t *node, uint64_t offset, uint64_t bytes);
bool     pp_node_commit(pp_node_t *node, uint64_t offset, uint64_t bytes);
/* Allocates committed memory for an array of this rank, in whole pages: *bytes of them are to be given back by
   pp_shared_give_back().  NULL: no memory. */
void    *pp_node_alloc(pp_node_t *node, size_t *bytes);

/* ---- presence ------------------------------------------------------------------------------------------ */

/* Publishes this rank's presence; false: it has not changed. */
bool     pp_node_set_presence(pp_node_t *node, uint64_t calls, bool inside, bool out, bool waits);
bool     pp_node_anybody_away(const pp_node_t *node);
bool     pp_node_left(const pp_node_t *node, int32_t index);
bool     pp_node_waits(const pp_node_t *node, int32_t index);
bool     pp_node_out(const pp_node_t *node, int32_t index);
/* The most collective calls that a rank of this node has completed; and those of one rank. */
uint64_t pp_node_calls(const pp_node_t *node);
uint64_t pp_node_calls_of(const pp_node_t *node, int32_t index);
/* The collective call with this number is over for all ranks that are in it. */
void     pp_node_call_over(pp_node_t *node, uint64_t calls);
/* A rank of another node has completed `calls` calls: a rank of this node that has not, and is inside, has not left. */
void     pp_node_hears(pp_node_t *node, uint64_t calls);
/* Whether a rank sleeps: its process has hardly used a core, except to lend it, since this rank last asked, at least
   PP_NODE_IDLE_NS ago.  False for simulated ranks. */
enum { PP_NODE_IDLE_NS = 200000 };
bool     pp_node_idles(pp_node_t *node, int32_t index, uint64_t now_ns);
/* This rank's progress thread has worked for other ranks for this long. */
void     pp_node_lent(pp_node_t *node, uint64_t ns);

/* ---- the node's lock ----------------------------------------------------------------------------------- */

/* Where ranks decide about groups, or give out offsets, one of them does at a time.  It holds the lock for
   microseconds, moves no large data and does not sleep meanwhile.  False: a rank has died that held it; what it guards
   may be broken, and stays so.  Simulated ranks are not interrupted while they hold it: there is no PP_STEP between the
   two calls. */
void     pp_node_make_lock(pp_node_t *node);      /* the first rank, before any other use */
bool     pp_node_lock(pp_node_t *node);
void     pp_node_unlock(pp_node_t *node);

/* ---- sleep -------------------------------------------------------------------------------------------- */

/* A caller goes to sleep: from here on each publisher looks for ranks to wake. */
void     pp_node_asleep(pp_node_t *node);
void     pp_node_awake(pp_node_t *node);
bool     pp_node_anybody_asleep(const pp_node_t *node);

/* ---- traces ------------------------------------------------------------------------------------------- */

/* Whether the kernel makes CLOCK_MONOTONIC of the processor's counter, so that all cores have the same one. */
bool     pp_trace_by_counter(void);

#endif
