/* half_convert.h - private to csrc/reduce: 16-bit floats to float32 and back. */
#ifndef PP_REDUCE_HALF_CONVERT_H
#define PP_REDUCE_HALF_CONVERT_H

#include "../base/base.h"

/* Narrowing rounds to nearest even; a NaN stays one, with its sign and the payload that fits. */
typedef struct pp_half_convert {
    void (*widen)(float *restrict wide, const uint16_t *restrict half, size_t count);
    void (*narrow)(uint16_t *restrict half, const float *restrict wide, size_t count);
} pp_half_convert_t;

/* The fastest that this processor runs; all of them give the same bits. */
const pp_half_convert_t *pp_float16_convert(void);
const pp_half_convert_t *pp_bfloat16_convert(void);

#endif
