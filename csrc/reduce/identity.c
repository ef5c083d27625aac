/* identity.c - the result of a round without any contribution: every element is the operation's identity. */
#include "reduce.h"

#include <complex.h>
#include <float.h>
#include <math.h>
#include <string.h>

typedef union element {
    int8_t i8; int16_t i16; int32_t i32; int64_t i64;
    uint8_t u8; uint16_t u16; uint32_t u32; uint64_t u64;
    float f32; double f64; long double ld;
    float complex c64; double complex c128; long double complex cld;
} element_t;

static element_t one(int32_t type)
{
    switch (type) {
    case PP_FLOAT16:     return (element_t){.u16 = 0x3c00};
    case PP_BFLOAT16:    return (element_t){.u16 = 0x3f80};
    case PP_FLOAT32:     return (element_t){.f32 = 1};
    case PP_FLOAT64:     return (element_t){.f64 = 1};
    case PP_LONGDOUBLE:  return (element_t){.ld = 1};
    case PP_COMPLEX64:   return (element_t){.c64 = 1};
    case PP_COMPLEX128:  return (element_t){.c128 = 1};
    case PP_CLONGDOUBLE: return (element_t){.cld = 1};
    default: break;
    }
    element_t value;
    memset(&value, 0, sizeof value);
    value.u8 = 1;   /* integers and bool; little-endian, like all that travels */
    return value;
}

/* The largest value of an ordered type; the smallest if `lowest`. */
static element_t extreme(int32_t type, bool lowest)
{
    switch (type) {
    case PP_INT8:       return (element_t){.i8 = lowest ? INT8_MIN : INT8_MAX};
    case PP_INT16:      return (element_t){.i16 = lowest ? INT16_MIN : INT16_MAX};
    case PP_INT32:      return (element_t){.i32 = lowest ? INT32_MIN : INT32_MAX};
    case PP_INT64:      return (element_t){.i64 = lowest ? INT64_MIN : INT64_MAX};
    case PP_FLOAT16:    return (element_t){.u16 = lowest ? 0xfc00 : 0x7c00};
    case PP_BFLOAT16:   return (element_t){.u16 = lowest ? 0xff80 : 0x7f80};
    case PP_FLOAT32:    return (element_t){.f32 = lowest ? -INFINITY : INFINITY};
    case PP_FLOAT64:    return (element_t){.f64 = lowest ? -(double)INFINITY : (double)INFINITY};
    case PP_LONGDOUBLE: return (element_t){.ld = lowest ? -(long double)INFINITY : (long double)INFINITY};
    default:            return (element_t){.u64 = lowest ? 0 : UINT64_MAX};
    }
}

static element_t identity(int32_t op, int32_t type)
{
    element_t zero;
    memset(&zero, 0, sizeof zero);
    switch (op) {
    case PP_PROD: case PP_LAND: return one(type);
    case PP_MIN:  return extreme(type, false);
    case PP_MAX:  return extreme(type, true);
    case PP_BAND: return (element_t){.u64 = UINT64_MAX};
    default:      return zero;
    }
}

void pp_identity_fill(int32_t op, int32_t type, void *values, size_t count)
{
    const element_t value = identity(op, type);
    const size_t bytes = pp_type_bytes(type);
    for (size_t i = 0; i < count; i++)
        memcpy((char *)values + i * bytes, &value, bytes);
}
