/*
 * half_convert.c - 16-bit floats to float32 and back.
 *
 * _Float16 is not used: without AVX512-FP16 gcc calls its library for every element.  The portable loops have no
 * branches, so compilers vectorise them.  On x86 the program chooses F16C (float16) and the same loops in AVX2
 * (bfloat16) when it runs.
 */
#include "half_convert.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_X86 1
#else
#define HAVE_X86 0
#endif

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ---- bfloat16: the upper half of a float32 -------------------------------------------------- */
static inline void bfloat16_widen(float *restrict wide, const uint16_t *restrict half, size_t count)
{
    for (size_t i = 0; i < count; i++)
        wide[i] = float_of((uint32_t)half[i] << 16);
}

static inline void bfloat16_narrow(uint16_t *restrict half, const float *restrict wide,
                                   size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = bits_of(wide[i]);
        const uint32_t nearest = bits + 0x7fff + ((bits >> 16) & 1);
        /* Rounding could turn a NaN into infinity or zero, so a NaN is cut, and made quiet. */
        const uint32_t is_nan = (bits & 0x7fffffff) > 0x7f800000;
        half[i] = (uint16_t)((is_nan ? bits | 0x00400000 : nearest) >> 16);
    }
}

#if HAVE_X86
/* The loops above, inlined; SSE2 has no instruction that packs 16 bits. */
__attribute__((target("avx2")))
static void bfloat16_widen_avx2(float *restrict wide, const uint16_t *restrict half, size_t count)
{
    bfloat16_widen(wide, half, count);
}

__attribute__((target("avx2")))
static void bfloat16_narrow_avx2(uint16_t *restrict half, const float *restrict wide, size_t count)
{
    bfloat16_narrow(half, wide, count);
}
#endif

/* ---- float16 -------------------------------------------------------------------------------- */
/* After F. Giesen, half_to_float_fast5 and float_to_half_fast3_rtne (public domain).  No float32 subnormal occurs in
   them, so the thread's flush-to-zero mode does not matter. */

/* Chooses by masks, because gcc would move the floating arithmetic of a ?: into a branch. */
static inline uint32_t pick(bool condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline float float16_widen_one(uint32_t half)
{
    const uint32_t digits = (half & 0x7fff) << 13;
    const uint32_t normal = digits + ((127 - 15) << 23);
    const uint32_t huge = digits + ((255 - 31) << 23);    /* infinity, NaN */
    /* A subnormal: its digits follow a leading 1, which is subtracted again. */
    const uint32_t at_most = pick(half & 0x7c00, 0, digits);
    const uint32_t small = bits_of(float_of(at_most + (113u << 23)) - float_of(113u << 23));
    const uint32_t finite = pick(half & 0x7c00, normal, small);

    return float_of(pick((half & 0x7c00) == 0x7c00, huge, finite) | (half & 0x8000) << 16);
}

static inline uint32_t float16_narrow_one(float wide)
{
    const uint32_t bits = bits_of(wide);
    const uint32_t size = bits & 0x7fffffff;
    /* Below 2^-14: adding 1/2 leaves the subnormal's digits, rounded, in the low bits. */
    const uint32_t at_most = pick(size < (113u << 23), size, 0);
    const uint32_t small = bits_of(float_of(at_most) + 0.5f) - bits_of(0.5f);
    /* Rounding up carries from the digits into the exponent, as it should. */
    const uint32_t normal = (size - ((127 - 15) << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    const uint32_t finite = pick(size < (113u << 23), small, normal);
    const uint32_t number = pick(size < (143u << 23), finite, 0x7c00);
    const uint32_t nan = 0x7e00 | (size >> 13 & 0x3ff);

    return pick(size > 0x7f800000, nan, number) | (bits >> 16 & 0x8000);
}

static void float16_widen(float *restrict wide, const uint16_t *restrict half, size_t count)
{
    for (size_t i = 0; i < count; i++)
        wide[i] = float16_widen_one(half[i]);
}

static void float16_narrow(uint16_t *restrict half, const float *restrict wide, size_t count)
{
    for (size_t i = 0; i < count; i++)
        half[i] = (uint16_t)float16_narrow_one(wide[i]);
}

#if HAVE_X86
__attribute__((target("avx,f16c")))
static void float16_widen_f16c(float *restrict wide, const uint16_t *restrict half, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(wide + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(half + i))));
    for (; i < count; i++)
        wide[i] = float16_widen_one(half[i]);
}

__attribute__((target("avx,f16c")))
static void float16_narrow_f16c(uint16_t *restrict half, const float *restrict wide, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((void *)(half + i), _mm256_cvtps_ph(_mm256_loadu_ps(wide + i),
                                                             _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; i++)
        half[i] = (uint16_t)float16_narrow_one(wide[i]);
}
#endif

const pp_half_convert_t *pp_bfloat16_convert(void)
{
    static const pp_half_convert_t portable = {bfloat16_widen, bfloat16_narrow};
#if HAVE_X86
    static const pp_half_convert_t avx2 = {bfloat16_widen_avx2, bfloat16_narrow_avx2};

    if (__builtin_cpu_supports("avx2"))
        return &avx2;
#endif
    return &portable;
}

const pp_half_convert_t *pp_float16_convert(void)
{
    static const pp_half_convert_t portable = {float16_widen, float16_narrow};
#if HAVE_X86
    static const pp_half_convert_t f16c = {float16_widen_f16c, float16_narrow_f16c};

    if (__builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c"))
        return &f16c;
#endif
    return &portable;
}
