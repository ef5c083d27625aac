/*
 * reduce.h - element kernels: operation x type, divisions for averages.
 *
 * A null contribution is never touched by a kernel: skipping it *is* applying the identity.  The one
 * exception is the logical operations, whose results are 0 or 1: pp_normalise() makes a contribution
 * such a value when it is taken in, so that a round with one contributor gives the same as one with
 * two.
 *
 * Users' elements and accumulators' differ for some types: float16 and bfloat16 are accumulated in float32
 * and rounded to nearest even once, at the end; a long double loses what lies in its padding, so that equal
 * results are equal bytes.
 */
#ifndef PP_REDUCE_H
#define PP_REDUCE_H

#include "../base/base.h"

/* inout[i] = inout[i] (op) in[i]: the operand that stays is the left one. */
typedef void (*pp_kernel_t)(void *inout, const void *in, size_t count);

/* out[i] = left[i] (op) right[i]; none overlap. */
typedef void (*pp_kernel_into_t)(void *out, const void *left, const void *right, size_t count);

/* Converts `count` elements between a user's buffer and an accumulator; they do not overlap. */
typedef void (*pp_convert_t)(void *to, const void *from, size_t count);

/* With a weight, which is rounded to the elements' type first; a product is rounded before it is added.  NaN results
   are canonical. */
typedef struct pp_weighted {
    void (*scale)(void *out, const void *in, size_t count, double weight);   /* out[i] = weight * in[i]; out may be in */
    void (*add)(void *inout, const void *in, size_t count, double weight);   /* inout[i] += weight * in[i] */
} pp_weighted_t;

typedef struct pp_memory pp_memory_t;

/* The arithmetic of one operation on one element type, in the host's memory: what the kinds of memory are made of.
   Everything but load and store works on accumulators. */
typedef struct pp_kernels {
    pp_kernel_t keep_left;       /* inout[i] = inout[i] (op) in[i] */
    pp_kernel_t keep_right;      /* inout[i] = in[i] (op) inout[i] */
    pp_kernel_into_t into;       /* NULL: there is none */
    void (*normalise)(void *values, size_t count);        /* NULL: nothing to do */
    void (*divide)(void *values, size_t count, uint64_t by);  /* NULL: type has no average */
    const pp_weighted_t *weighted;   /* NULL: the type has none, or the operation is no sum */
    size_t element_bytes;
    pp_convert_t load, store;    /* user's element to accumulator's and back; NULL: the same */
    size_t user_bytes;
    int32_t op, type;
    const pp_memory_t *memory, *users;   /* of vectors, and of the application's buffers: memory.h */
} pp_kernels_t;

/* In the host's memory.  PP_ERR_ARGUMENT, with names in the text, when MPI does not define `op` on `type`. */
pp_status_t pp_kernels_find(int32_t op, int32_t type, pp_kernels_t *kernels);

/* A user's elements into an accumulator: replacing what is there, or combined with it from the right. */
void pp_load(const pp_kernels_t *kernels, void *to, const void *from, size_t count);
void pp_load_combined(const pp_kernels_t *kernels, void *inout, const void *from, size_t count);
/* An accumulator's elements into a user's buffer. */
void pp_store(const pp_kernels_t *kernels, void *to, const void *from, size_t count);

/* Sets every element of a user's buffer to the operation's identity (pp_kernels_find() succeeded for the pair). */
void pp_identity_fill(int32_t op, int32_t type, void *values, size_t count);

#endif
