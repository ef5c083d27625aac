/*
 * reduce.h - element kernels: operation x type, divisions for averages.
 *
 * A null contribution is never touched by a kernel: skipping it *is* applying the identity.  The one
 * exception is the logical operations, whose results are 0 or 1: pp_normalise() makes a contribution
 * such a value when it is taken in, so that a round with one contributor gives the same as one with
 * two.  float16 and bfloat16 are computed in float32 and rounded to nearest even, once an operation.
 */
#ifndef PP_REDUCE_H
#define PP_REDUCE_H

#include "../base/base.h"

/* inout[i] = inout[i] (op) in[i]: the operand that stays is the left one. */
typedef void (*pp_kernel_t)(void *inout, const void *in, size_t count);

typedef struct pp_kernels {
    pp_kernel_t keep_left;       /* inout[i] = inout[i] (op) in[i] */
    pp_kernel_t keep_right;      /* inout[i] = in[i] (op) inout[i] */
    void (*normalise)(void *values, size_t count);        /* NULL: nothing to do */
    void (*divide)(void *values, size_t count, uint64_t by);  /* NULL: type has no average */
    size_t element_bytes;
} pp_kernels_t;

/* PP_ERR_ARGUMENT, with names in the text, when MPI does not define `op` on `type`. */
pp_status_t pp_kernels_find(int32_t op, int32_t type, pp_kernels_t *kernels);

/* Sets every element to the operation's identity (pp_kernels_find() succeeded for the pair). */
void pp_identity_fill(int32_t op, int32_t type, void *values, size_t count);

#endif
