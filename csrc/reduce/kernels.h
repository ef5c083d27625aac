/*
 * kernels.h - private to csrc/reduce: what the kernel files give to the table.
 *
 * Every operation here is commutative *bit for bit*.  So one kernel serves keep_left and keep_right, and two ranks
 * that hold the operands in opposite orders cannot disagree:
 *   - integers wrap (computed unsigned);
 *   - floating sums and products give one canonical NaN: hardware keeps the payload and the sign of one operand's
 *     NaN, and which operand that is depends on the compiler's order;
 *   - no product is fused with a sum;
 *   - MIN and MAX are minimum and maximum of IEEE 754-2019: a NaN in either operand gives the canonical NaN, and
 *     -0 is less than +0.
 */
#ifndef PP_REDUCE_KERNELS_H
#define PP_REDUCE_KERNELS_H

#include "reduce.h"

#include <string.h>

#ifdef __FAST_MATH__
#error "pypartial must not be built with -ffast-math or -Ofast: NaN would be lost, and ranks would differ in their bits"
#endif

/* One element type.  An operation without a kernel is not defined on it. */
typedef struct pp_element {
    const char *name;
    size_t      bytes;
    size_t      alignment;
    pp_kernel_t kernels[PP_OP_COUNT];
    pp_kernel_into_t into[PP_OP_COUNT];      /* NULL: there is none, only a kernel */
    void      (*normalise)(void *values, size_t count);
    void      (*divide)(void *values, size_t count, uint64_t by);
    const pp_weighted_t *weighted;
    /* The type in which elements are accumulated, whose kernels, sizes and divide are used: those above are empty then.
       NULL: this type. */
    const struct pp_element *accumulator;
    pp_convert_t load, store;
} pp_element_t;

extern const pp_weighted_t pp_weighted_float32, pp_weighted_float64, pp_weighted_longdouble;

extern const pp_element_t pp_element_int8, pp_element_int16, pp_element_int32, pp_element_int64,
    pp_element_uint8, pp_element_uint16, pp_element_uint32, pp_element_uint64,
    pp_element_float16, pp_element_bfloat16,
    pp_element_float32, pp_element_float64, pp_element_longdouble,
    pp_element_complex64, pp_element_complex128, pp_element_clongdouble,
    pp_element_bool;

/* Compiled twice: for every x86-64 and for AVX2; the loader chooses.  Not for AVX-512 or a fused multiply-add, because
   the machines of a job must agree to the bit.  Sanitizers cannot run such functions. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__) \
    && !defined(__SANITIZE_ADDRESS__)
#define PP_FAST __attribute__((target_clones("avx2", "default")))
#else
#define PP_FAST
#endif

/* A field of pp_element_t: the operation's kernel. */
#define PP_HAS(op, name) .kernels[op] = name, .into[op] = name##_into

/* For a target that may hold anything: an assignment leaves the padding of a long double alone. */
#define PP_CLEAR_PADDING(value_t, out, count)                                     \
    do {                                                                          \
        if (__builtin_types_compatible_p(value_t, long double))                   \
            memset(out, 0, (count) * sizeof(value_t));                            \
    } while (0)

/* Two functions: inout[i] = `expression` of l and r, and out[i] = the same.  `restrict` lets the compiler vectorise the
   loop without a check; gcc heeds it on parameters only. */
#define PP_KERNEL(name, value_t, expression)                                      \
    PP_FAST                                                                       \
    static void name##_into(void *restrict out, const void *restrict left,        \
                            const void *restrict right, size_t count)             \
    {                                                                             \
        value_t       *result = out;                                              \
        const value_t *kept = left, *given = right;                               \
                                                                                  \
        PP_CLEAR_PADDING(value_t, out, count);                                    \
        for (size_t i = 0; i < count; i++) {                                      \
            const value_t l = kept[i], r = given[i];                              \
            result[i] = (value_t)(expression);                                    \
        }                                                                         \
    }                                                                             \
    PP_FAST                                                                       \
    static void name(void *restrict inout, const void *restrict in, size_t count) \
    {                                                                             \
        value_t       *kept = inout;                                              \
        const value_t *given = in;                                                \
                                                                                  \
        for (size_t i = 0; i < count; i++) {                                      \
            const value_t l = kept[i], r = given[i];                              \
            kept[i] = (value_t)(expression);                                      \
        }                                                                         \
    }

/* pp_kernels_find() without kinds of memory. */
pp_status_t pp_arithmetic_find(int32_t op, int32_t type, pp_kernels_t *kernels);

void   pp_load_longdouble(void *to, const void *from, size_t count);
size_t pp_type_alignment(int32_t type);    /* 0 for an unknown type */

#endif
