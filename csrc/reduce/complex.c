/*
 * complex.c - complex numbers as pairs of their part type.
 *
 * A sum, or a division by a count, is that of twice as many parts.  A product is the plain formula, as in NumPy: C's
 * own product also recovers infinities (Annex G), and makes a call for each element.
 */
#include "kernels.h"

#include <math.h>

/* With a fused multiply-add, l * r and r * l would round differently; but the machines of a job, and both orders, must
   agree to the bit.  gcc 12 forms vfmaddsub on x86, and fcmla on ARM, in spite of the first pragma.  So the others say
   that there is no such instruction, and that it is not to look for patterns.  They matter to builds with -march only. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#ifdef __x86_64__
#pragma GCC target("no-fma,no-fma4,no-avx512f")
#endif
#ifdef __aarch64__
#pragma GCC optimize("no-tree-vectorize,no-tree-slp-vectorize")
#endif
#endif

#define CANONICAL(x) ((x) == (x) ? (x) : NAN)

static void load_clongdouble(void *to, const void *from, size_t count)
{
    pp_load_longdouble(to, from, 2 * count);
}

#define ELEMENT(label, part, part_t, loads)                                       \
    static void sum_##label(void *inout, const void *in, size_t count)            \
    {                                                                             \
        pp_element_##part.kernels[PP_SUM](inout, in, 2 * count);                  \
    }                                                                             \
    static void prod_##label(void *restrict inout, const void *restrict in, size_t count) \
    {                                                                             \
        part_t       *kept = inout;                                               \
        const part_t *given = in;                                                 \
                                                                                  \
        for (size_t i = 0; i < 2 * count; i += 2) {                               \
            const part_t re = kept[i] * given[i] - kept[i + 1] * given[i + 1];    \
            const part_t im = kept[i] * given[i + 1] + kept[i + 1] * given[i];    \
            kept[i] = CANONICAL(re);                                              \
            kept[i + 1] = CANONICAL(im);                                          \
        }                                                                         \
    }                                                                             \
    static void divide_##label(void *values, size_t count, uint64_t by)           \
    {                                                                             \
        pp_element_##part.divide(values, 2 * count, by);                          \
    }                                                                             \
    const pp_element_t pp_element_##label = {                                     \
        .name = #label, .bytes = 2 * sizeof(part_t), .alignment = _Alignof(part_t), \
        .kernels = {[PP_SUM] = sum_##label, [PP_PROD] = prod_##label},            \
        .divide = divide_##label, .load = loads,                                  \
    };

ELEMENT(complex64, float32, float, NULL)
ELEMENT(complex128, float64, double, NULL)
ELEMENT(clongdouble, longdouble, long double, load_clongdouble)
