/*
 * mode.h - the modes of floating arithmetic of a thread.
 *
 * A thread may have subnormal numbers replaced by zero (torch.set_flush_denormal(), a library that was built with
 * -Ofast), or round in another way (fesetround()).  Which thread of which rank reduces depends on time, and results must
 * not: so kernels run in the modes in which a thread begins.
 */
#ifndef PP_MODE_H
#define PP_MODE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

enum {
    PP_MODE_FLAGS = 0x003f,      /* of MXCSR and of x87's status: exceptions that have occurred, which change nothing */
    PP_MODE_INEXACT = 0x0020,    /* one of them */
    PP_MODE_SSE = 0x1f80,
    PP_MODE_X87 = 0x037f,        /* of long double */
    PP_MODE_SUMMARY = 0x80c0     /* of x87's status: an exception waits to trap */
};
typedef struct pp_mode { uint32_t sse; uint16_t x87, x87_flags; } pp_mode_t;

/* What fnstenv stores and fldenv loads. */
typedef struct pp_mode_env { uint32_t control, status, others[5]; } pp_mode_env_t;

static inline void pp_mode_set_x87(pp_mode_t to)
{
    pp_mode_env_t env;
    __asm__ volatile("fnstenv %0" : "=m"(env));
    env.control = (env.control & ~(uint32_t)UINT16_MAX) | to.x87;
    env.status = (env.status & ~(uint32_t)(PP_MODE_FLAGS | PP_MODE_SUMMARY)) | to.x87_flags;
    __asm__ volatile("fldenv %0" : : "m"(env));
}

/* The flags of before come back, too: an exception that kernels have raised would trap as soon as the application
   unmasks it for x87, now or later, and the application may test for it.  To raise a flag that is not set costs 0.1 us,
   and nearly every sum is inexact: so of MXCSR, whose flags never trap, this one flag stays. */
static inline void pp_mode_set(pp_mode_t from, pp_mode_t to)
{
    if ((from.sse ^ to.sse) & ~PP_MODE_INEXACT)
        _mm_setcsr(to.sse);
    if (from.x87 != to.x87 || from.x87_flags != to.x87_flags)
        pp_mode_set_x87(to);
}

static inline pp_mode_t pp_mode_now(void)
{
    pp_mode_t now = {.sse = _mm_getcsr()};
    __asm__ volatile("fnstcw %0" : "=m"(now.x87));
    __asm__ volatile("fnstsw %0" : "=m"(now.x87_flags));
    now.x87_flags &= PP_MODE_FLAGS;
    return now;
}

/* With the flags of before. */
static inline pp_mode_t pp_mode_usual(pp_mode_t before)
{
    return (pp_mode_t){PP_MODE_SSE | (before.sse & PP_MODE_FLAGS), PP_MODE_X87, before.x87_flags};
}

#elif defined(__aarch64__)

typedef uint64_t pp_mode_t;          /* FPCR */

static inline void pp_mode_set(pp_mode_t from, pp_mode_t to)
{
    if (from != to)
        __asm__ volatile("msr fpcr, %0" : : "r"(to));
}

static inline pp_mode_t pp_mode_now(void)
{
    pp_mode_t now;
    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
    return now;
}

static inline pp_mode_t pp_mode_usual(pp_mode_t before)
{
    (void)before;
    return 0;
}

#else

typedef int pp_mode_t;

static inline void      pp_mode_set(pp_mode_t from, pp_mode_t to) { (void)from, (void)to; }
static inline pp_mode_t pp_mode_now(void) { return 0; }
static inline pp_mode_t pp_mode_usual(pp_mode_t before) { return before; }

#endif

/* Between the two, call kernels: what is inlined here may be computed before the first, or after the second. */
static inline pp_mode_t pp_mode_begin(void)
{
    const pp_mode_t before = pp_mode_now();
    pp_mode_set(before, pp_mode_usual(before));
    return before;
}

static inline void pp_mode_end(pp_mode_t before) { pp_mode_set(pp_mode_now(), before); }

#endif
