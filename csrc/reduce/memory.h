/*
 * memory.h - kinds of memory: the one seam through which elements are touched between Start and Wait.
 *
 * The address of an element belongs to its kind, and only the table of that kind follows it: it copies, reduces, divides
 * and converts.  Who has to read or write elements without it (a transport, the other ranks of a node) asks reach().
 * A handle knows two kinds (pp_kernels_t): that of the buffers of the application, and that of the vectors in between,
 * which are the same where rounds are made of messages; what the ranks of a node share is the host's memory.
 *
 * Nothing here blocks for another rank; a kind that works asynchronously orders what it is asked for, and reach()
 * waits for it.
 */
#ifndef PP_MEMORY_H
#define PP_MEMORY_H

#include "reduce.h"

struct pp_memory {
    const char *name;

    /* ---- vectors; the operand that is only read may be in the host's memory instead */
    void *(*allocate)(size_t bytes);                 /* aligned to 64 bytes; NULL: none is left */
    void  (*release)(void *elements);
    void *(*reach)(const void *elements);            /* where the host reads and writes them */
    void  (*copy)(void *to, const void *from, size_t bytes);
    void  (*copy_past)(void *to, const void *from, size_t bytes);     /* past the caches: others see it after settle() */
    void  (*settle)(void);
    void  (*keep_left)(const pp_kernels_t *kernels, void *inout, const void *in, size_t count);
    void  (*keep_right)(const pp_kernels_t *kernels, void *inout, const void *in, size_t count);
    /* The three may be anywhere, but do not overlap.  Only if the kernels have it. */
    void  (*into)(const pp_kernels_t *kernels, void *out, const void *left, const void *right, size_t count);
    void  (*scale)(const pp_kernels_t *kernels, void *out, const void *in, size_t count, double weight);
    void  (*add)(const pp_kernels_t *kernels, void *inout, const void *in, size_t count, double weight);
    void  (*divide)(const pp_kernels_t *kernels, void *values, size_t count, uint64_t by);
    void  (*normalise)(const pp_kernels_t *kernels, void *values, size_t count);

    /* ---- buffers of the application; the vectors are of this kind, or in the host's memory */
    void  (*load)(const pp_kernels_t *kernels, void *to, const void *from, size_t count);
    void  (*load_combined)(const pp_kernels_t *kernels, void *inout, const void *from, size_t count);
    void  (*store)(const pp_kernels_t *kernels, void *to, const void *from, size_t count);
    void  (*fill)(const pp_kernels_t *kernels, void *values, size_t count);   /* with the operation's identity */
};

/* NULL: there is no such kind. */
const pp_memory_t *pp_memory_of(int32_t kind);
extern const pp_memory_t pp_memory_host, pp_memory_fenced;

/* An application's elements are what vectors have, where vectors can be: they may be read and written in their place. */
static inline bool pp_users_are_vectors(const pp_kernels_t *kernels)
{
    return !kernels->load && !kernels->store && kernels->users == kernels->memory;
}

#endif
