/*
 * memory.h - kinds of memory: the one seam through which elements are touched between Start and Wait.
 *
 * Only the table of an element's kind follows its address: it copies, reduces, divides and converts.  Code that must
 * read or write elements itself (a transport, the other ranks of a node) asks reach() for an address of the host.  Where
 * the host has none, elements travel as bulk only, and the transport finds its way to their own address.
 * A handle has two kinds (pp_kernels_t): that of the application's buffers, and that of the vectors in between.  They
 * are the same where rounds are made of messages; memory that the ranks of a node share is the host's.
 *
 * Nothing here waits for another rank.  What a function does is over when it returns, but for begin_fold(), and for kinds
 * with mark().  The latter queue what copy(), keep_left(), keep_right(), divide() and the functions of the application's
 * buffers do: it is done later, in the order of the calls.  So only a transport, and others that do not queue, need to
 * know when it is over: other ranks that read vectors, and those that write where vectors were read.
 *
 * A kind may be one of many objects, each with memory of its own.  So functions that get no kernels get the kind,
 * `self`.
 */
#ifndef PP_MEMORY_H
#define PP_MEMORY_H

#include "reduce.h"

struct pp_memory {
    const char *name;

    /* ---- vectors; an operand that is only read may be in the host's memory instead */
    pp_status_t (*allocate)(const pp_memory_t *self, size_t bytes, void **elements);     /* aligned to 64 bytes */
    void  (*release)(const pp_memory_t *self, void *elements);
    void *(*reach)(const void *elements);            /* the address at which the host reads and writes them; NULL: it
                                                        cannot, and lend() is there if they may leave this rank */
    /* NULL: operations are over when they return.  PP_OK: all are over that were queued.  PP_PENDING: reached(*mark) says
       when.  An error: one has failed. */
    pp_status_t (*mark)(const pp_memory_t *self, uint64_t *mark);
    pp_status_t (*reached)(const pp_memory_t *self, uint64_t mark);
    /* Waits until all is over that was queued: other ranks may read what it has written, and write where it has read.  An
       error: an operation has failed, now or before, and what it should have written is not to be read.
       NULL: operations are over when they return, and none fails; or no other rank touches these vectors. */
    pp_status_t (*finish)(const pp_memory_t *self);
    /* The calling thread is about to give a transport so many bytes at their own address, and what was queued before is
       over.  An error: they are not what they should be.  Else lent() follows, in the same thread, with what giving came
       to; it returns that, or an error. */
    pp_status_t (*lend)(const pp_memory_t *self, size_t bytes);
    pp_status_t (*lent)(const pp_memory_t *self, pp_status_t status);
    void  (*copy)(const pp_memory_t *self, void *to, const void *from, size_t bytes);
    /* Past the caches; visible after settle(). */
    void  (*copy_past)(const pp_memory_t *self, void *to, const void *from, size_t bytes);
    void  (*settle)(void);
    void  (*keep_left)(const pp_kernels_t *kernels, void *inout, const void *in, size_t count);
    void  (*keep_right)(const pp_kernels_t *kernels, void *inout, const void *in, size_t count);
    /* The three buffers do not overlap.  To be called only if the kernels have `into`. */
    void  (*into)(const pp_kernels_t *kernels, void *out, const void *left, const void *right, size_t count);
    void  (*scale)(const pp_kernels_t *kernels, void *out, const void *in, size_t count, double weight);
    void  (*add)(const pp_kernels_t *kernels, void *inout, const void *in, size_t count, double weight);
    void  (*divide)(const pp_kernels_t *kernels, void *values, size_t count, uint64_t by);
    void  (*normalise)(const pp_kernels_t *kernels, void *values, size_t count);

    /* ---- the application's buffers; vectors are of this kind, or in the host's memory */
    void  (*load)(const pp_kernels_t *kernels, void *to, const void *from, size_t count);
    void  (*load_combined)(const pp_kernels_t *kernels, void *inout, const void *from, size_t count);
    void  (*store)(const pp_kernels_t *kernels, void *to, const void *from, size_t count);
    void  (*fill)(const pp_kernels_t *kernels, void *values, size_t count);   /* with the operation's identity */

    /* ---- NULL: threads of the host reduce vectors, in pieces */
    /* Begins to reduce the vectors at some addresses from left to right, and to divide the result by `divide_by`, if that
       is more than 1.  No other fold of the kernels is under way.  PP_OK: it is over already; PP_PENDING: it goes on. */
    pp_status_t (*begin_fold)(const pp_kernels_t *kernels, void *out, const uint64_t *vectors, uint32_t vector_count,
                              size_t count, uint64_t divide_by);
    /* PP_PENDING: the fold is not over. */
    pp_status_t (*fold_over)(const pp_kernels_t *kernels);

    /* The handle that this kind was made for has released all memory: the kind ends.  NULL: it does not. */
    void  (*end)(const pp_memory_t *self);
};

/* NULL: there is no such kind. */
const pp_memory_t *pp_memory_of(int32_t kind);
extern const pp_memory_t pp_memory_host, pp_memory_fenced;

/* The application's buffers have the elements, and the kind of memory, of vectors: rounds may read and write them in
   place. */
static inline bool pp_users_are_vectors(const pp_kernels_t *kernels)
{
    return !kernels->load && !kernels->store && kernels->users == kernels->memory;
}

#endif
