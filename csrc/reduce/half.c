/*
 * half.c - float16 and bfloat16, accumulated in float32.
 *
 * Widening is exact.  A result is rounded once, to nearest even, when it is stored.  So small addends are not lost one
 * by one, and the sum behind an average does not overflow.
 */
#include "kernels.h"
#include "half_convert.h"

#define ELEMENT(label)                                                            \
    static void load_##label(void *to, const void *from, size_t count)            \
    {                                                                             \
        pp_##label##_convert()->widen(to, from, count);                           \
    }                                                                             \
    static void store_##label(void *to, const void *from, size_t count)           \
    {                                                                             \
        pp_##label##_convert()->narrow(to, from, count);                          \
    }                                                                             \
    const pp_element_t pp_element_##label = {                                     \
        .name = #label, .bytes = 2, .alignment = _Alignof(uint16_t),              \
        .accumulator = &pp_element_float32,                                       \
        .load = load_##label, .store = store_##label,                             \
    };

ELEMENT(float16)
ELEMENT(bfloat16)
