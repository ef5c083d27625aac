/* table.c - which operations are defined on which types, and their kernels. */
#include "kernels.h"

static const pp_element_t *const elements[PP_TYPE_COUNT] = {
    [PP_INT8] = &pp_element_int8,           [PP_INT16] = &pp_element_int16,
    [PP_INT32] = &pp_element_int32,         [PP_INT64] = &pp_element_int64,
    [PP_UINT8] = &pp_element_uint8,         [PP_UINT16] = &pp_element_uint16,
    [PP_UINT32] = &pp_element_uint32,       [PP_UINT64] = &pp_element_uint64,
    [PP_FLOAT16] = &pp_element_float16,     [PP_BFLOAT16] = &pp_element_bfloat16,
    [PP_FLOAT32] = &pp_element_float32,     [PP_FLOAT64] = &pp_element_float64,
    [PP_LONGDOUBLE] = &pp_element_longdouble,
    [PP_COMPLEX64] = &pp_element_complex64, [PP_COMPLEX128] = &pp_element_complex128,
    [PP_CLONGDOUBLE] = &pp_element_clongdouble,
    [PP_BOOL] = &pp_element_bool,
};

static const char *const op_names[PP_OP_COUNT] = {
    [PP_SUM] = "SUM",   [PP_PROD] = "PROD", [PP_MIN] = "MIN",   [PP_MAX] = "MAX",
    [PP_LAND] = "LAND", [PP_LOR] = "LOR",   [PP_LXOR] = "LXOR",
    [PP_BAND] = "BAND", [PP_BOR] = "BOR",   [PP_BXOR] = "BXOR",
};

static const pp_element_t *element_of(int32_t type)
{
    return type >= 0 && type < PP_TYPE_COUNT ? elements[type] : NULL;
}

static const pp_element_t *accumulator_of(const pp_element_t *element)
{
    return element->accumulator ? element->accumulator : element;
}

static bool is_op(int32_t op)
{
    return op >= 0 && op < PP_OP_COUNT;
}

size_t pp_type_bytes(int32_t type)
{
    const pp_element_t *element = element_of(type);
    return element ? element->bytes : 0;
}

size_t pp_accumulator_bytes(int32_t type)
{
    const pp_element_t *element = element_of(type);
    return element ? accumulator_of(element)->bytes : 0;
}

size_t pp_type_alignment(int32_t type)
{
    const pp_element_t *element = element_of(type);
    return element ? element->alignment : 0;
}

const char *pp_type_name(int32_t type)
{
    const pp_element_t *element = element_of(type);
    return element ? element->name : "unknown";
}

const char *pp_op_name(int32_t op)
{
    return is_op(op) ? op_names[op] : "unknown";
}

int32_t pp_op_supports(int32_t op, int32_t type)
{
    const pp_element_t *element = element_of(type);
    return element && is_op(op) && accumulator_of(element)->kernels[op];
}

pp_status_t pp_arithmetic_find(int32_t op, int32_t type, pp_kernels_t *kernels)
{
    const pp_element_t *element = element_of(type);

    *kernels = (pp_kernels_t){0};
    if (!element)
        return pp_fail(PP_ERR_ARGUMENT, "type %d is not in 0..%d", type, PP_TYPE_COUNT - 1);
    if (!is_op(op))
        return pp_fail(PP_ERR_ARGUMENT, "operation %d is not in 0..%d", op, PP_OP_COUNT - 1);
    const pp_element_t *accumulator = accumulator_of(element);
    if (!accumulator->kernels[op])
        return pp_fail(PP_ERR_ARGUMENT, "MPI does not define %s on %s", op_names[op],
                       element->name);

    *kernels = (pp_kernels_t){
        .keep_left = accumulator->kernels[op],     /* commutative bit for bit: kernels.h */
        .keep_right = accumulator->kernels[op],
        .into = accumulator->into[op],
        .normalise = op == PP_LAND || op == PP_LOR || op == PP_LXOR ? accumulator->normalise : NULL,
        .divide = accumulator->divide,
        .weighted = op == PP_SUM ? accumulator->weighted : NULL,
        .element_bytes = accumulator->bytes,
        .load = element->load,
        .store = element->store,
        .user_bytes = element->bytes,
        .op = op, .type = type,
    };
    return PP_OK;
}
