/*
 * integer.c - integers and bool.
 *
 * Two's complement: a signed type shares all kernels but MIN and MAX with the unsigned type of its width, so signed
 * overflow wraps, too.  A bool is a byte that is read as "not 0".  It is never read as a C bool, where a byte other
 * than 0 and 1 is undefined.
 */
#include "kernels.h"

/* wide_t: the type in which sums and products are computed.  It is not narrower than unsigned int, because
   uint16_t * uint16_t would be promoted to int, and overflow. */
#define UNSIGNED_KERNELS(bits, wide_t)                                            \
    PP_KERNEL(sum_##bits, uint##bits##_t, (wide_t)l + (wide_t)r)                  \
    PP_KERNEL(prod_##bits, uint##bits##_t, (wide_t)l * (wide_t)r)                 \
    PP_KERNEL(land_##bits, uint##bits##_t, (l != 0) & (r != 0))                   \
    PP_KERNEL(lor_##bits, uint##bits##_t, (l | r) != 0)                           \
    PP_KERNEL(lxor_##bits, uint##bits##_t, (l != 0) ^ (r != 0))                   \
    PP_KERNEL(band_##bits, uint##bits##_t, l & r)                                 \
    PP_KERNEL(bor_##bits, uint##bits##_t, l | r)                                  \
    PP_KERNEL(bxor_##bits, uint##bits##_t, l ^ r)                                 \
    static void truth_##bits(void *values, size_t count)                          \
    {                                                                             \
        uint##bits##_t *value = values;                                           \
                                                                                  \
        for (size_t i = 0; i < count; i++)                                        \
            value[i] = value[i] != 0;                                             \
    }

#define ORDER_KERNELS(type)                                \
    PP_KERNEL(min_##type, type##_t, l < r ? l : r)         \
    PP_KERNEL(max_##type, type##_t, l > r ? l : r)

#define LOGICAL(bits)                                                             \
    PP_HAS(PP_LAND, land_##bits), PP_HAS(PP_LOR, lor_##bits), PP_HAS(PP_LXOR, lxor_##bits)

#define ELEMENT(type, bits_)                                                      \
    ORDER_KERNELS(type)                                                           \
    const pp_element_t pp_element_##type = {                                      \
        .name = #type, .bytes = sizeof(type##_t), .alignment = _Alignof(type##_t), \
        PP_HAS(PP_SUM, sum_##bits_), PP_HAS(PP_PROD, prod_##bits_),               \
        PP_HAS(PP_MIN, min_##type), PP_HAS(PP_MAX, max_##type), LOGICAL(bits_),   \
        PP_HAS(PP_BAND, band_##bits_), PP_HAS(PP_BOR, bor_##bits_),               \
        PP_HAS(PP_BXOR, bxor_##bits_),                                            \
        .normalise = truth_##bits_,                                               \
    };

UNSIGNED_KERNELS(8, uint32_t)
UNSIGNED_KERNELS(16, uint32_t)
UNSIGNED_KERNELS(32, uint32_t)
UNSIGNED_KERNELS(64, uint64_t)

ELEMENT(int8, 8)
ELEMENT(int16, 16)
ELEMENT(int32, 32)
ELEMENT(int64, 64)
ELEMENT(uint8, 8)
ELEMENT(uint16, 16)
ELEMENT(uint32, 32)
ELEMENT(uint64, 64)

const pp_element_t pp_element_bool = {
    .name = "bool", .bytes = 1, .alignment = 1,
    LOGICAL(8),
    .normalise = truth_8,
};
