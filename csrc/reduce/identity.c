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

/* These write to an element that is 0: an assignment leaves the padding of a long double, and what an element has beyond
   its type, alone. */
static void set_one(int32_t type, element_t *value)
{
    switch (type) {
    case PP_FLOAT16:     value->u16 = 0x3c00; break;
    case PP_BFLOAT16:    value->u16 = 0x3f80; break;
    case PP_FLOAT32:     value->f32 = 1; break;
    case PP_FLOAT64:     value->f64 = 1; break;
    case PP_LONGDOUBLE:  value->ld = 1; break;
    case PP_COMPLEX64:   value->f32 = 1; break;     /* the real part */
    case PP_COMPLEX128:  value->f64 = 1; break;
    case PP_CLONGDOUBLE: value->ld = 1; break;
    default:             value->u8 = 1; break;      /* integers and bool; little-endian, like all that travels */
    }
}

/* The largest value of an ordered type; the smallest if `lowest`. */
static void set_extreme(int32_t type, bool lowest, element_t *value)
{
    switch (type) {
    case PP_INT8:       value->i8 = lowest ? INT8_MIN : INT8_MAX; break;
    case PP_INT16:      value->i16 = lowest ? INT16_MIN : INT16_MAX; break;
    case PP_INT32:      value->i32 = lowest ? INT32_MIN : INT32_MAX; break;
    case PP_INT64:      value->i64 = lowest ? INT64_MIN : INT64_MAX; break;
    case PP_FLOAT16:    value->u16 = lowest ? 0xfc00 : 0x7c00; break;
    case PP_BFLOAT16:   value->u16 = lowest ? 0xff80 : 0x7f80; break;
    case PP_FLOAT32:    value->f32 = lowest ? -INFINITY : INFINITY; break;
    case PP_FLOAT64:    value->f64 = lowest ? -(double)INFINITY : (double)INFINITY; break;
    case PP_LONGDOUBLE: value->ld = lowest ? -(long double)INFINITY : (long double)INFINITY; break;
    default:            value->u64 = lowest ? 0 : UINT64_MAX; break;
    }
}

static void set_identity(int32_t op, int32_t type, element_t *value)
{
    memset(value, 0, sizeof *value);
    switch (op) {
    case PP_PROD: case PP_LAND: set_one(type, value); break;
    case PP_MIN:  set_extreme(type, false, value); break;
    case PP_MAX:  set_extreme(type, true, value); break;
    case PP_BAND: value->u64 = UINT64_MAX; break;
    default: break;
    }
}

void pp_identity_fill(int32_t op, int32_t type, void *values, size_t count)
{
    element_t value;
    set_identity(op, type, &value);
    const size_t bytes = pp_type_bytes(type);
    for (size_t i = 0; i < count; i++)
        memcpy((char *)values + i * bytes, &value, bytes);
}
