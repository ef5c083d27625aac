/* local.c - converts users' elements to accumulators and back; pp_reduce_local(), with its argument checks. */
#include "kernels.h"
#include "mode.h"

#include <string.h>

enum { BLOCK_BYTES = 4096 };     /* of accumulators: stays in the first cache */

static void convert(pp_convert_t function, void *to, const void *from, size_t count)
{
    const pp_mode_t before = pp_mode_begin();
    function(to, from, count);
    pp_mode_end(before);
}

void pp_load(const pp_kernels_t *kernels, void *to, const void *from, size_t count)
{
    if (kernels->load)
        convert(kernels->load, to, from, count);
    else if (count > 0)
        memcpy(to, from, count * kernels->user_bytes);
}

void pp_store(const pp_kernels_t *kernels, void *to, const void *from, size_t count)
{
    if (kernels->store)
        convert(kernels->store, to, from, count);
    else if (count > 0)
        memcpy(to, from, count * kernels->user_bytes);
}

void pp_load_combined(const pp_kernels_t *kernels, void *inout, const void *from, size_t count)
{
    _Alignas(64) char given[BLOCK_BYTES];
    const size_t      block = BLOCK_BYTES / kernels->element_bytes;
    char             *kept = inout;
    const char       *next = from;
    const pp_mode_t   before = pp_mode_begin();

    if (!kernels->load)
        kernels->keep_left(inout, from, count);
    for (size_t part; kernels->load && count > 0; count -= part) {
        part = count < block ? count : block;
        kernels->load(given, next, part);
        kernels->keep_left(kept, given, part);
        kept += part * kernels->element_bytes;
        next += part * kernels->user_bytes;
    }
    pp_mode_end(before);
}

/* Through accumulators, block by block. */
static void reduce_converted(const pp_kernels_t *kernels, const char *in, char *inout, size_t count,
                             bool inout_is_left)
{
    _Alignas(64) char kept[BLOCK_BYTES], given[BLOCK_BYTES];
    const size_t      block = BLOCK_BYTES / kernels->element_bytes;

    for (size_t part; count > 0; count -= part) {
        part = count < block ? count : block;
        pp_load(kernels, kept, inout, part);
        pp_load(kernels, given, in, part);
        (inout_is_left ? kernels->keep_left : kernels->keep_right)(kept, given, part);
        pp_store(kernels, inout, kept, part);
        in += part * kernels->user_bytes;
        inout += part * kernels->user_bytes;
    }
}

/* The kernels' `restrict` needs buffers that do not overlap. */
static bool overlap(const void *a, const void *b, size_t bytes)
{
    const uintptr_t at = (uintptr_t)a, bt = (uintptr_t)b;

    return (at < bt ? bt - at : at - bt) < bytes;
}

static pp_status_t check_buffers(int32_t type, const void *in, const void *inout, size_t count)
{
    const size_t bytes = pp_type_bytes(type);

    if (!in || !inout)
        return pp_fail(PP_ERR_ARGUMENT, "%s is NULL, but count is %zu", in ? "inout" : "in", count);
    if (count > PTRDIFF_MAX / bytes)
        return pp_fail(PP_ERR_ARGUMENT, "%zu elements of %s are more than memory can hold", count,
                       pp_type_name(type));
    if ((uintptr_t)in % pp_type_alignment(type) || (uintptr_t)inout % pp_type_alignment(type))
        return pp_fail(PP_ERR_ARGUMENT, "%s is not aligned to the %zu bytes that %s needs",
                       (uintptr_t)in % pp_type_alignment(type) ? "in" : "inout",
                       pp_type_alignment(type), pp_type_name(type));
    if (overlap(in, inout, count * bytes))
        return pp_fail(PP_ERR_ARGUMENT, "in and inout overlap: they must be two separate buffers");
    return PP_OK;
}

pp_status_t pp_reduce_local(int32_t op, int32_t type, const void *in, void *inout, size_t count,
                            int32_t inout_is_left)
{
    pp_kernels_t kernels;

    PP_TRY(pp_arithmetic_find(op, type, &kernels));
    if (count == 0)
        return PP_OK;
    PP_TRY(check_buffers(type, in, inout, count));
    const pp_mode_t before = pp_mode_begin();
    if (kernels.load)
        reduce_converted(&kernels, in, inout, count, inout_is_left);
    else
        (inout_is_left ? kernels.keep_left : kernels.keep_right)(inout, in, count);
    pp_mode_end(before);
    return PP_OK;
}
