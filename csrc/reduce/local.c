/* local.c - one reduction of two buffers, arguments checked. */
#include "kernels.h"

/* Whole elements at `bytes` from each other do not overlap; the kernels' `restrict` needs that. */
static bool overlap(const void *a, const void *b, size_t bytes)
{
    const uintptr_t at = (uintptr_t)a, bt = (uintptr_t)b;

    return (at < bt ? bt - at : at - bt) < bytes;
}

static pp_status_t check_buffers(int32_t type, const void *in, const void *inout, size_t count)
{
    const size_t bytes = pp_type_bytes(type);

    if (!in || !inout)
        return pp_fail(PP_ERR_ARGUMENT, "%s is NULL, count is %zu", in ? "inout" : "in", count);
    if (count > PTRDIFF_MAX / bytes)
        return pp_fail(PP_ERR_ARGUMENT, "%zu elements of %s are more than memory can hold", count,
                       pp_type_name(type));
    if ((uintptr_t)in % pp_type_alignment(type) || (uintptr_t)inout % pp_type_alignment(type))
        return pp_fail(PP_ERR_ARGUMENT, "%s is not aligned to the %zu bytes that %s needs",
                       (uintptr_t)in % pp_type_alignment(type) ? "in" : "inout",
                       pp_type_alignment(type), pp_type_name(type));
    if (overlap(in, inout, count * bytes))
        return pp_fail(PP_ERR_ARGUMENT, "in and inout overlap");
    return PP_OK;
}

pp_status_t pp_reduce_local(int32_t op, int32_t type, const void *in, void *inout, size_t count,
                            int32_t inout_is_left)
{
    pp_kernels_t kernels;

    PP_TRY(pp_kernels_find(op, type, &kernels));
    if (count == 0)
        return PP_OK;
    PP_TRY(check_buffers(type, in, inout, count));
    (inout_is_left ? kernels.keep_left : kernels.keep_right)(inout, in, count);
    return PP_OK;
}
