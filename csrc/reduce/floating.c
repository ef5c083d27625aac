/* floating.c - float32, float64, long double.  NaN and -0: see kernels.h. */
#include "kernels.h"

#include <math.h>
#include <string.h>

#define CANONICAL(x) ((x) == (x) ? (x) : NAN)

/*
 * The two orders of the comparison give the same bits except for NaN, and for zeros of different sign, where each order
 * gives its second operand.  The bitwise OR of two such zeros is -0, the AND is +0.
 */
#define ORDER_KERNELS(label, value_t, bits_t)                                     \
    static inline bits_t bits_of_##label(value_t value)                           \
    {                                                                             \
        bits_t bits;                                                              \
        memcpy(&bits, &value, sizeof bits);                                       \
        return bits;                                                              \
    }                                                                             \
    static inline value_t of_bits_##label(bits_t bits)                            \
    {                                                                             \
        value_t value;                                                            \
        memcpy(&value, &bits, sizeof value);                                      \
        return value;                                                             \
    }                                                                             \
    PP_KERNEL(min_##label, value_t, isunordered(l, r) ? NAN : of_bits_##label(    \
              bits_of_##label(l < r ? l : r) | bits_of_##label(r < l ? r : l)))   \
    PP_KERNEL(max_##label, value_t, isunordered(l, r) ? NAN : of_bits_##label(    \
              bits_of_##label(l > r ? l : r) & bits_of_##label(r > l ? r : l)))

ORDER_KERNELS(float32, float, uint32_t)
ORDER_KERNELS(float64, double, uint64_t)

/* No integer type is as wide as a long double, and no compiler vectorises one. */
PP_KERNEL(min_longdouble, long double,
          isunordered(l, r) ? NAN : l < r || (l == r && signbit(l)) ? l : r)
PP_KERNEL(max_longdouble, long double,
          isunordered(l, r) ? NAN : l > r || (l == r && !signbit(l)) ? l : r)

void pp_load_longdouble(void *to, const void *from, size_t count)
{
    long double       *value = to;
    const long double *given = from;

    PP_CLEAR_PADDING(long double, to, count);
    for (size_t i = 0; i < count; i++)
        value[i] = given[i];
}

/* By a power of two, the product with the inverse has the same bits as the quotient, and takes half the time. */
#define ELEMENT(label, value_t, loads)                                            \
    PP_KERNEL(sum_##label, value_t, CANONICAL(l + r))                             \
    PP_KERNEL(prod_##label, value_t, CANONICAL(l * r))                            \
    PP_FAST                                                                       \
    static void divide_##label(void *values, size_t count, uint64_t by)           \
    {                                                                             \
        value_t      *value = values;                                             \
        const value_t divisor = (value_t)by, inverse = 1 / divisor;               \
                                                                                  \
        if (by & (by - 1))                                                        \
            for (size_t i = 0; i < count; i++)                                    \
                value[i] /= divisor;                                              \
        else                                                                      \
            for (size_t i = 0; i < count; i++)                                    \
                value[i] *= inverse;                                              \
    }                                                                             \
    const pp_element_t pp_element_##label = {                                     \
        .name = #label, .bytes = sizeof(value_t), .alignment = _Alignof(value_t), \
        PP_HAS(PP_SUM, sum_##label), PP_HAS(PP_PROD, prod_##label),               \
        PP_HAS(PP_MIN, min_##label), PP_HAS(PP_MAX, max_##label),                 \
        .divide = divide_##label, .weighted = &pp_weighted_##label, .load = loads, \
    };

ELEMENT(float32, float, NULL)
ELEMENT(float64, double, NULL)
ELEMENT(longdouble, long double, pp_load_longdouble)
