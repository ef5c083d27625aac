/*
 * _device_kernels.cu - the host's arithmetic (csrc/reduce) on a CUDA device, with the same bits.
 *
 * _device_kernels.py compiles this file, csrc/cuda/folds.c launches its kernels.  What is rounded, which NaN comes out,
 * and what a vector holds is said in csrc/reduce: reduce.h and kernels.h.  Three things of a device differ:
 *
 *   - Its NaN has other bits than the host's.  So every result that may be NaN is made canonical here, and the quotient
 *     of a NaN, which the host makes quiet, is made of the dividend's bits.
 *   - Its compiler fuses a product with a sum unless it is told --fmad=false.
 *   - It has memory that is read 16 bytes at a time: a *line*.
 *
 * Tests compile this file for the host as well: tests/support/kernels_on_host.cpp.  Nothing is included here, because
 * the compiler of a device may have no headers.
 */

/* The names of csrc/reduce, of which the kernels' names are made. */
typedef signed char        int8;
typedef short              int16;
typedef int                int32;
typedef long long          int64;
typedef unsigned char      uint8;
typedef unsigned short     uint16;
typedef unsigned int       uint32;
typedef unsigned long long uint64;
typedef float              float32;
typedef double             float64;
template <class Part> struct complex_of { Part re, im; };
typedef complex_of<float32> complex64;
typedef complex_of<float64> complex128;
struct float16 { uint16 bits; };
struct bfloat16 { uint16 bits; };

/* Tests look at every address. */
#ifndef PP_AT
#define PP_AT(pointer) (*(pointer))
#endif

constexpr unsigned THREADS = 256, LINE_BYTES = 16;

/* ---- what folds.c passes ----------------------------------------------------------------------- */

/* How the threads take elements 0 .. count - 1.  From element `head` on there are `groups`, for each of which every
   buffer has whole lines.  The other elements are taken one by one. */
struct cut { uint64 head, groups, count; };

struct vectors { const void *of[64]; };

/* A group of P-Reduce, whose vectors become their average. */
template <class T> struct members {
    void *of[64];
    T     weights[64];
};

/* ---- groups of elements ------------------------------------------------------------------------ */

/* Elements of a group: a line of the narrower ones, or two where an element fills a line. */
template <class T> struct in_group {
    static constexpr int count = sizeof(T) < LINE_BYTES ? LINE_BYTES / sizeof(T) : 2;
};

template <class T, int N> struct alignas(N == 1 ? alignof(T) : LINE_BYTES) group { T of[N]; };

template <int N, class T> __device__ group<T, N> take(const void *from, uint64 first)
{
    return PP_AT((const group<T, N> *)((const T *)from + first));
}

template <int N, class T> __device__ void put(void *to, uint64 first, const group<T, N> &values)
{
    PP_AT((group<T, N> *)((T *)to + first)) = values;
}

/* Has the threads do work.run<N>(first) for all groups, of N elements and of one. */
template <int N, class Work> __device__ void share(const cut &cut, const Work &work)
{
    const uint64 thread = (uint64)blockIdx.x * blockDim.x + threadIdx.x, threads = (uint64)gridDim.x * blockDim.x;
    for (uint64 i = thread; i < cut.groups; i += threads)
        work.template run<N>(cut.head + i * N);
    for (uint64 i = thread; i < cut.count - cut.groups * N; i += threads)
        work.template run<1>(i < cut.head ? i : i + cut.groups * N);
}

/* ---- floating numbers -------------------------------------------------------------------------- */

__device__ inline uint32  bits_of(float32 x) { return __float_as_uint(x); }
__device__ inline uint64  bits_of(float64 x) { return (uint64)__double_as_longlong(x); }
__device__ inline float32 number_of(uint32 bits) { return __uint_as_float(bits); }
__device__ inline float64 number_of(uint64 bits) { return __longlong_as_double((int64)bits); }

__device__ inline uint32 quiet_bit(float32) { return 0x00400000u; }
__device__ inline uint64 quiet_bit(float64) { return 0x0008000000000000u; }
__device__ inline uint32 canonical_nan(float32) { return 0x7fc00000u; }
__device__ inline uint64 canonical_nan(float64) { return 0x7ff8000000000000u; }

template <class T> __device__ T canonical(T x)
{
    return number_of(x == x ? bits_of(x) : canonical_nan(x));
}

template <class T> __device__ T quotient(T x, uint64 by)
{
    return number_of(x == x ? bits_of(x / (T)by) : bits_of(x) | quiet_bit(x));
}

template <class Part> __device__ complex_of<Part> quotient(complex_of<Part> x, uint64 by)
{
    return {quotient(x.re, by), quotient(x.im, by)};
}

/* Integers have no average. */
template <class T> constexpr bool has_quotient = false;
template <> constexpr bool has_quotient<float32> = true;
template <> constexpr bool has_quotient<float64> = true;
template <class Part> constexpr bool has_quotient<complex_of<Part>> = true;

/* ---- operations -------------------------------------------------------------------------------- */

/* Integers wrap: the low bits of a wide sum or product are those of a narrow one. */
struct op_sum {
    template <class T> static __device__ T of(T l, T r) { return (T)((uint64)l + (uint64)r); }
    static __device__ float32 of(float32 l, float32 r) { return canonical(l + r); }
    static __device__ float64 of(float64 l, float64 r) { return canonical(l + r); }
    template <class Part> static __device__ complex_of<Part> of(complex_of<Part> l, complex_of<Part> r)
    {
        return {canonical(l.re + r.re), canonical(l.im + r.im)};
    }
};

struct op_prod {
    template <class T> static __device__ T of(T l, T r) { return (T)((uint64)l * (uint64)r); }
    static __device__ float32 of(float32 l, float32 r) { return canonical(l * r); }
    static __device__ float64 of(float64 l, float64 r) { return canonical(l * r); }
    template <class Part> static __device__ complex_of<Part> of(complex_of<Part> l, complex_of<Part> r)
    {
        return {canonical(l.re * r.re - l.im * r.im), canonical(l.re * r.im + l.im * r.re)};
    }
};

/* Of zeros with different signs each comparison gives its last operand, so both operands occur: -0 by OR, +0 by AND. */
template <class T> __device__ T lesser(T l, T r)
{
    const auto bits = (l < r ? bits_of(l) : bits_of(r)) | (r < l ? bits_of(r) : bits_of(l));
    return number_of(l == l && r == r ? bits : canonical_nan(l));
}

template <class T> __device__ T greater(T l, T r)
{
    const auto bits = (l > r ? bits_of(l) : bits_of(r)) & (r > l ? bits_of(r) : bits_of(l));
    return number_of(l == l && r == r ? bits : canonical_nan(l));
}

struct op_min {
    template <class T> static __device__ T of(T l, T r) { return l < r ? l : r; }
    static __device__ float32 of(float32 l, float32 r) { return lesser(l, r); }
    static __device__ float64 of(float64 l, float64 r) { return lesser(l, r); }
};

struct op_max {
    template <class T> static __device__ T of(T l, T r) { return l > r ? l : r; }
    static __device__ float32 of(float32 l, float32 r) { return greater(l, r); }
    static __device__ float64 of(float64 l, float64 r) { return greater(l, r); }
};

struct op_land { template <class T> static __device__ T of(T l, T r) { return (T)((l != 0) & (r != 0)); } };
struct op_lor { template <class T> static __device__ T of(T l, T r) { return (T)((l | r) != 0); } };
struct op_lxor { template <class T> static __device__ T of(T l, T r) { return (T)((l != 0) ^ (r != 0)); } };
struct op_band { template <class T> static __device__ T of(T l, T r) { return (T)(l & r); } };
struct op_bor { template <class T> static __device__ T of(T l, T r) { return (T)(l | r); } };
struct op_bxor { template <class T> static __device__ T of(T l, T r) { return (T)(l ^ r); } };

/* ---- 16-bit floating numbers: the portable functions of csrc/reduce/half_convert.c ------------- */

__device__ inline float32 widened(bfloat16 half) { return number_of((uint32)half.bits << 16); }

__device__ inline float32 widened(float16 half)
{
    const uint32 digits = (uint32)(half.bits & 0x7fff) << 13, sign = (uint32)(half.bits & 0x8000) << 16;
    if ((half.bits & 0x7c00) == 0x7c00)          /* infinity, NaN */
        return number_of((digits + ((255u - 31u) << 23)) | sign);
    if (half.bits & 0x7c00)
        return number_of((digits + ((127u - 15u) << 23)) | sign);
    /* A subnormal: its digits follow a leading 1, which is subtracted again. */
    return number_of(bits_of(number_of(digits + (113u << 23)) - number_of(113u << 23)) | sign);
}

__device__ inline bfloat16 narrowed(float32 wide, bfloat16)
{
    const uint32 bits = bits_of(wide), nearest = bits + 0x7fff + ((bits >> 16) & 1);
    /* Rounding could turn a NaN into infinity or zero, so a NaN is cut, and made quiet. */
    return {(uint16)((wide == wide ? nearest : bits | quiet_bit(wide)) >> 16)};
}

__device__ inline float16 narrowed(float32 wide, float16)
{
    const uint32 bits = bits_of(wide), size = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    /* Rounding up carries from the digits into the exponent, as it should. */
    uint32 half = (size - ((127u - 15u) << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    if (size > 0x7f800000u)
        half = 0x7e00 | (size >> 13 & 0x3ff);
    else if (size >= 143u << 23)
        half = 0x7c00;
    else if (size < 113u << 23)                  /* adding 1/2 leaves the subnormal's digits, rounded */
        half = bits_of(number_of(size) + 0.5f) - bits_of(0.5f);
    return {(uint16)(half | sign)};
}

/* ---- the kernels ------------------------------------------------------------------------------- */

template <class Op, class T> struct folding {
    void          *out;
    const vectors &from;
    uint32         vector_count;
    uint64         divide_by;

    /* Reads all operands of an element before it writes it: `out` may be one of the vectors. */
    template <int N> __device__ void run(uint64 first) const
    {
        group<T, N> sum = take<N, T>(from.of[0], first);
#pragma unroll 4
        for (uint32 v = 1; v < vector_count; v++) {
            const group<T, N> right = take<N, T>(from.of[v], first);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum.of[i] = Op::of(sum.of[i], right.of[i]);
        }
        if constexpr (has_quotient<T>) {
#pragma unroll
            for (int i = 0; i < N && divide_by > 1; i++)
                sum.of[i] = quotient(sum.of[i], divide_by);
        }
        put<N, T>(out, first, sum);
    }
};

/* sum + weight * from[i]: the product is rounded, then the sum is. */
template <class T> __device__ T plus(T sum, T weight, T from)
{
    const T product = weight * from;
    return canonical(sum + product);
}

/* The average goes to the first `written` members.  The initial model counts with the first one. */
template <class T> struct averaging {
    const members<T> &all;
    uint32            member_count, written;
    const void       *initial;                   /* NULL: it does not count */
    T                 initial_weight;
    uint64            divide_by;

    /* Reads an element of all members before it writes it. */
    template <int N> __device__ void run(uint64 first) const
    {
        group<T, N> sum = take<N, T>(all.of[0], first);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum.of[i] = canonical(all.weights[0] * sum.of[i]);
        if (initial) {
            const group<T, N> from = take<N, T>(initial, first);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum.of[i] = plus(sum.of[i], initial_weight, from.of[i]);
        }
#pragma unroll 4
        for (uint32 m = 1; m < member_count; m++) {
            const group<T, N> from = take<N, T>(all.of[m], first);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum.of[i] = plus(sum.of[i], all.weights[m], from.of[i]);
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            sum.of[i] = divide_by > 1 ? quotient(sum.of[i], divide_by) : sum.of[i];
#pragma unroll 1
        for (uint32 m = 0; m < written; m++)
            put<N, T>(all.of[m], first, sum);
    }
};

/* inout[i] = inout[i] op from[i]; the latter is converted. */
template <class Op, class Half> struct combining {
    void       *inout;
    const void *from;

    template <int N> __device__ void run(uint64 first) const
    {
        group<float32, N>    sum = take<N, float32>(inout, first);
        const group<Half, N> right = take<N, Half>(from, first);
#pragma unroll
        for (int i = 0; i < N; i++)
            sum.of[i] = Op::of(sum.of[i], widened(right.of[i]));
        put<N, float32>(inout, first, sum);
    }
};

template <class Half> __device__ float32 converted(Half half, float32) { return widened(half); }
template <class Half> __device__ Half    converted(float32 wide, Half half) { return narrowed(wide, half); }
/* Logical operations see 0 and 1. */
__device__ inline uint8  converted(uint8 value, uint8) { return value != 0; }
__device__ inline uint16 converted(uint16 value, uint16) { return value != 0; }
__device__ inline uint32 converted(uint32 value, uint32) { return value != 0; }
__device__ inline uint64 converted(uint64 value, uint64) { return value != 0; }

template <class To, class From> struct converting {
    void       *to;
    const void *from;

    template <int N> __device__ void run(uint64 first) const
    {
        const group<From, N> given = take<N, From>(from, first);
        group<To, N>         made;
#pragma unroll
        for (int i = 0; i < N; i++)
            made.of[i] = converted(given.of[i], To());
        put<N, To>(to, first, made);
    }
};

template <class T> struct filling {
    void *to;
    T     value;

    template <int N> __device__ void run(uint64 first) const
    {
        group<T, N> values;
#pragma unroll
        for (int i = 0; i < N; i++)
            values.of[i] = value;
        put<N, T>(to, first, values);
    }
};

/* ---- their names ------------------------------------------------------------------------------- */

/* Two blocks at once leave registers enough for all that is read ahead; by default some kernels would spill. */
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 2)

/* Two's complement: the kernels of an unsigned type serve the signed one and bool, but for the order. */
#define PP_FOLDS_OF_BITS(F, type)                                                                                    \
    F(sum, type) F(prod, type) F(land, type) F(lor, type) F(lxor, type) F(band, type) F(bor, type) F(bxor, type)
#define PP_FOLDS_OF_ORDER(F, type) F(min, type) F(max, type)
#define PP_FOLDS(F)                                                                                                  \
    PP_FOLDS_OF_BITS(F, uint8) PP_FOLDS_OF_BITS(F, uint16) PP_FOLDS_OF_BITS(F, uint32) PP_FOLDS_OF_BITS(F, uint64)   \
    PP_FOLDS_OF_ORDER(F, int8) PP_FOLDS_OF_ORDER(F, int16) PP_FOLDS_OF_ORDER(F, int32) PP_FOLDS_OF_ORDER(F, int64)   \
    PP_FOLDS_OF_ORDER(F, uint8) PP_FOLDS_OF_ORDER(F, uint16) PP_FOLDS_OF_ORDER(F, uint32)                            \
    PP_FOLDS_OF_ORDER(F, uint64) PP_FOLDS_OF_ORDER(F, float32) PP_FOLDS_OF_ORDER(F, float64)                         \
    F(sum, float32) F(sum, float64) F(sum, complex64) F(sum, complex128)                                             \
    F(prod, float32) F(prod, float64) F(prod, complex64) F(prod, complex128)

#define PP_FOLD(op, type)                                                                                            \
    KERNEL pp_fold_##op##_##type(void *out, const vectors from, uint32 vector_count, uint64 divide_by, cut cut)      \
    {                                                                                                                \
        share<in_group<type>::count>(cut, folding<op_##op, type>{out, from, vector_count, divide_by});           \
    }
PP_FOLDS(PP_FOLD)

#define PP_MEANS(F) F(float32) F(float64)

#define PP_MEAN(type)                                                                                                \
    KERNEL pp_mean_##type(const members<type> of, uint32 member_count, uint32 written, const void *initial,          \
                          const type initial_weight, uint64 divide_by, cut cut)                                      \
    {                                                                                                                \
        share<in_group<type>::count>(                                                                                \
            cut, averaging<type>{of, member_count, written, initial, initial_weight, divide_by});                    \
    }
PP_MEANS(PP_MEAN)

#define PP_COMBINES(F)                                                                                               \
    F(sum, float16) F(prod, float16) F(min, float16) F(max, float16)                                                 \
    F(sum, bfloat16) F(prod, bfloat16) F(min, bfloat16) F(max, bfloat16)

#define PP_COMBINE(op, type)                                                                                         \
    KERNEL pp_combine_##op##_##type(void *inout, const void *from, cut cut)                                          \
    {                                                                                                                \
        share<in_group<type>::count>(cut, combining<op_##op, type>{inout, from});                                \
    }
PP_COMBINES(PP_COMBINE)

/* The application's elements to those of vectors, and back. */
#define PP_CONVERTS(F)                                                                                               \
    F(load, float16, float32, float16) F(load, bfloat16, float32, bfloat16)                                          \
    F(load, uint8, uint8, uint8) F(load, uint16, uint16, uint16)                                                     \
    F(load, uint32, uint32, uint32) F(load, uint64, uint64, uint64)                                                  \
    F(store, float16, float16, float32) F(store, bfloat16, bfloat16, float32)

#define PP_CONVERT(what, type, to_t, from_t)                                                                         \
    KERNEL pp_##what##_##type(void *to, const void *from, cut cut)                                                   \
    {                                                                                                                \
        share<in_group<type>::count>(cut, converting<to_t, from_t>{to, from});                                   \
    }
PP_CONVERTS(PP_CONVERT)

/* Complex numbers are aligned to their parts only.  The other types are filled as unsigned ones of their size. */
#define PP_FILLS(F) F(uint8) F(uint16) F(uint32) F(uint64) F(complex64) F(complex128)

#define PP_FILL(type)                                                                                                \
    KERNEL pp_fill_##type(void *to, const type value, cut cut)                                                       \
    {                                                                                                                \
        share<in_group<type>::count>(cut, filling<type>{to, value});                                                 \
    }
PP_FILLS(PP_FILL)
