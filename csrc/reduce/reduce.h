/*
 * reduce.h - element kernels: operation x type, divisions for averages.
 *
 * No kernel touches a null contribution: skipping it *is* applying the identity.  The results of logical operations are
 * 0 or 1, so Start normalises a contribution to these values; a round with one contributor then gives the same values
 * as one with two.
 *
 * For some types the elements of accumulators differ from those of users.  float16 and bfloat16 are accumulated in
 * float32 and rounded to nearest even once, at the end.  The padding of a long double is zeroed, so that equal results
 * are equal bytes.
 */
#ifndef PP_REDUCE_H
#define PP_REDUCE_H

#include "../base/base.h"

/* inout[i] = inout[i] (op) in[i]: the left operand is overwritten. */
typedef void (*pp_kernel_t)(void *inout, const void *in, size_t count);

/* out[i] = left[i] (op) right[i]; no two buffers overlap. */
typedef void (*pp_kernel_into_t)(void *out, const void *left, const void *right, size_t count);

/* Converts `count` elements between a user's buffer and an accumulator; they do not overlap. */
typedef void (*pp_convert_t)(void *to, const void *from, size_t count);

/* Arithmetic with a weight.  The weight is rounded to the elements' type, each product is rounded before it is added,
   and NaN results are canonical. */
typedef struct pp_weighted {
    /* out[i] = weight * in[i]; `out` may be `in`. */
    void (*scale)(void *out, const void *in, size_t count, double weight);
    void (*add)(void *inout, const void *in, size_t count, double weight);   /* inout[i] += weight * in[i] */
} pp_weighted_t;

typedef struct pp_memory pp_memory_t;

/* The arithmetic of one operation on one element type, in the host's memory.  The kinds of memory call it.  All but
   load and store work on accumulators. */
typedef struct pp_kernels {
    pp_kernel_t keep_left;       /* inout[i] = inout[i] (op) in[i] */
    pp_kernel_t keep_right;      /* inout[i] = in[i] (op) inout[i] */
    pp_kernel_into_t into;       /* NULL: there is none */
    void (*normalise)(void *values, size_t count);        /* NULL: nothing to do */
    void (*divide)(void *values, size_t count, uint64_t by);  /* NULL: the type has no average */
    const pp_weighted_t *weighted;   /* NULL: the type has no weights, or the operation is not SUM */
    size_t element_bytes;
    pp_convert_t load, store;    /* user's element to accumulator's and back; NULL: they are the same */
    size_t user_bytes;
    int32_t op, type;
    const pp_memory_t *memory, *users;   /* the kinds of vectors and of the application's buffers: memory.h */
} pp_kernels_t;

/* Kernels for the host's memory.  PP_ERR_ARGUMENT: MPI does not define `op` on `type`; the text names both. */
pp_status_t pp_kernels_find(int32_t op, int32_t type, pp_kernels_t *kernels);

/* Puts a user's elements into an accumulator: replaces its elements, or combines with them as the right operand. */
void pp_load(const pp_kernels_t *kernels, void *to, const void *from, size_t count);
void pp_load_combined(const pp_kernels_t *kernels, void *inout, const void *from, size_t count);
/* An accumulator's elements into a user's buffer. */
void pp_store(const pp_kernels_t *kernels, void *to, const void *from, size_t count);

/* Sets every element of a user's buffer to the operation's identity; MPI must define `op` on `type`. */
void pp_identity_fill(int32_t op, int32_t type, void *values, size_t count);

#endif
