/*
 * weighted.c - w * x, and a sum with it: the product is rounded, then the sum is.
 *
 * So every build gives the same bits.  A fused multiply-add would round once, and compilers form it by default wherever
 * the machine has one.
 */
#include "kernels.h"

#include <math.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define CANONICAL(x) ((x) == (x) ? (x) : NAN)

/* Element by element; in scale `out` may be `in`. */
#define WEIGHTED(label, value_t)                                                  \
    PP_FAST                                                                       \
    static void scale_##label(void *out, const void *in, size_t count, double weight) \
    {                                                                             \
        value_t       *result = out;                                              \
        const value_t *given = in;                                                \
        const value_t  factor = (value_t)weight;                                  \
                                                                                  \
        if (out != in)                                                            \
            PP_CLEAR_PADDING(value_t, out, count);                                \
        for (size_t i = 0; i < count; i++) {                                      \
            const value_t product = factor * given[i];                            \
            result[i] = CANONICAL(product);                                       \
        }                                                                         \
    }                                                                             \
    PP_FAST                                                                       \
    static void add_##label(void *restrict inout, const void *restrict in, size_t count, double weight) \
    {                                                                             \
        value_t       *kept = inout;                                              \
        const value_t *given = in;                                                \
        const value_t  factor = (value_t)weight;                                  \
                                                                                  \
        for (size_t i = 0; i < count; i++) {                                      \
            const value_t product = factor * given[i];                            \
            const value_t sum = kept[i] + product;                                \
            kept[i] = CANONICAL(sum);                                             \
        }                                                                         \
    }                                                                             \
    const pp_weighted_t pp_weighted_##label = {.scale = scale_##label, .add = add_##label};

WEIGHTED(float32, float)
WEIGHTED(float64, double)
WEIGHTED(longdouble, long double)
