/*
 * half.c - float16 and bfloat16, through the kernels of float32.
 *
 * A block is widened, reduced and narrowed while it is in the first cache.  Widening is exact and
 * float32 has more than twice the digits and two, so rounding the float32 result once more, to
 * nearest even, gives the correctly rounded sum, product and quotient.
 */
#include "kernels.h"
#include "half_convert.h"

enum { BLOCK = 512 };    /* two float32 blocks: 4 KiB of stack */

static void reduce(const pp_half_convert_t *convert, pp_op_t op, uint16_t *inout,
                   const uint16_t *in, size_t count)
{
    const pp_kernel_t kernel = pp_element_float32.kernels[op];
    float kept[BLOCK], given[BLOCK];

    for (size_t done = 0; done < count; done += BLOCK) {
        size_t block = count - done < BLOCK ? count - done : BLOCK;
        convert->widen(kept, inout + done, block);
        convert->widen(given, in + done, block);
        kernel(kept, given, block);
        convert->narrow(inout + done, kept, block);
    }
}

static void divide(const pp_half_convert_t *convert, uint16_t *values, size_t count, uint64_t by)
{
    float wide[BLOCK];

    for (size_t done = 0; done < count; done += BLOCK) {
        size_t block = count - done < BLOCK ? count - done : BLOCK;
        convert->widen(wide, values + done, block);
        pp_element_float32.divide(wide, block, by);
        convert->narrow(values + done, wide, block);
    }
}

#define REDUCE(label, op)                                                         \
    static void reduce_##label##_##op(void *inout, const void *in, size_t count)  \
    {                                                                             \
        reduce(pp_##label##_convert(), op, inout, in, count);                     \
    }

#define ELEMENT(label)                                                            \
    REDUCE(label, PP_SUM)                                                         \
    REDUCE(label, PP_PROD)                                                        \
    REDUCE(label, PP_MIN)                                                         \
    REDUCE(label, PP_MAX)                                                         \
    static void divide_##label(void *values, size_t count, uint64_t by)           \
    {                                                                             \
        divide(pp_##label##_convert(), values, count, by);                        \
    }                                                                             \
    const pp_element_t pp_element_##label = {                                     \
        .name = #label, .bytes = 2, .alignment = _Alignof(uint16_t),              \
        .kernels = {                                                              \
            [PP_SUM] = reduce_##label##_PP_SUM, [PP_PROD] = reduce_##label##_PP_PROD, \
            [PP_MIN] = reduce_##label##_PP_MIN, [PP_MAX] = reduce_##label##_PP_MAX, \
        },                                                                        \
        .divide = divide_##label,                                                 \
    };

ELEMENT(float16)
ELEMENT(bfloat16)
