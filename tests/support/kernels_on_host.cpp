/*
 * kernels_on_host.cpp - pypartial/_device_kernels.cu, compiled for the host.  See kernels_on_host.h.
 *
 * A device's compiler is given --fmad=false.  Here it is -ffp-contract=off.
 */
#include "kernels_on_host.h"

#include <cstdint>
#include <cstring>
#include <utility>

/* ---- what a device's compiler has ----------------------------------------------------------------- */

#define __global__
#define __device__
#define __launch_bounds__(threads, blocks)

namespace {
struct dimensions { unsigned x; };
thread_local dimensions gridDim, blockDim, blockIdx, threadIdx;

template <class To, class From> To with_bits_of(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "the bits of one are the bits of the other");
    std::memcpy(&to, &from, sizeof to);
    return to;
}

unsigned  __float_as_uint(float x) { return with_bits_of<unsigned>(x); }
float     __uint_as_float(unsigned bits) { return with_bits_of<float>(bits); }
long long __double_as_longlong(double x) { return with_bits_of<long long>(x); }
double    __longlong_as_double(long long bits) { return with_bits_of<double>(bits); }

/* ---- memory --------------------------------------------------------------------------------------- */

host_reach_t reach;

/* A device fails if an address is not aligned. */
template <class T> T *reached(T *pointer)
{
    static thread_local typename std::remove_const<T>::type other;
    const uintptr_t address = (uintptr_t)pointer;
    void *const     host = reach(address % alignof(T) == 0 ? address : 0, sizeof(T));
    return host ? (T *)host : &other;
}
} // namespace

#define PP_AT(pointer) (*reached(pointer))
#include "_device_kernels.cu"

/* ---- the table ------------------------------------------------------------------------------------ */

namespace {
template <auto kernel> struct launched;
template <class... Argument, void (*kernel)(Argument...)> struct launched<kernel> {
    static constexpr size_t bytes[] = {sizeof(Argument)...};

    template <size_t... I> static void once(void **arguments, std::index_sequence<I...>)
    {
        kernel(*(const Argument *)arguments[I]...);
    }

    static void run(void **arguments, unsigned blocks, unsigned threads)
    {
        gridDim.x = blocks;
        blockDim.x = threads;
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)
                once(arguments, std::index_sequence_for<Argument...>());
    }

    static constexpr host_kernel_t named(const char *name) { return {name, run, sizeof...(Argument), bytes}; }
};

#define NAMED(name) launched<name>::named(#name),
#define NAMED_FOLD(op, type) NAMED(pp_fold_##op##_##type)
#define NAMED_MEAN(type) NAMED(pp_mean_##type)
#define NAMED_COMBINE(op, type) NAMED(pp_combine_##op##_##type)
#define NAMED_CONVERT(what, type, to_t, from_t) NAMED(pp_##what##_##type)
#define NAMED_FILL(type) NAMED(pp_fill_##type)

const host_kernel_t kernels[] = {
    PP_FOLDS(NAMED_FOLD) PP_MEANS(NAMED_MEAN) PP_COMBINES(NAMED_COMBINE) PP_CONVERTS(NAMED_CONVERT) PP_FILLS(NAMED_FILL)
};
} // namespace

const host_kernel_t *host_kernels(host_reach_t of_driver, size_t *count)
{
    reach = of_driver;
    *count = sizeof kernels / sizeof *kernels;
    return kernels;
}
