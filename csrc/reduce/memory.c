/* memory.c - the host's memory, and the table of kinds.  See memory.h. */
#include "memory.h"
#include "kernels.h"
#include "mode.h"

#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { LINE = 64 };

/* ---- the host -------------------------------------------------------------------------------------------------- */

static pp_status_t host_allocate(const pp_memory_t *self, size_t bytes, void **elements)
{
    (void)self;
    *elements = pp_alloc_aligned(bytes);
    return *elements ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for a vector of %zu bytes", bytes);
}

static void host_release(const pp_memory_t *self, void *elements)
{
    (void)self;
    free(elements);
}

static void *host_reach(const void *elements) { return (void *)(uintptr_t)elements; }

static void host_copy(const pp_memory_t *self, void *to, const void *from, size_t bytes)
{
    (void)self;
    memcpy(to, from, bytes);
}

/* Past the caches: in them the written data would only replace other data. */
static void host_copy_past(const pp_memory_t *self, void *target, const void *source, size_t bytes)
{
    (void)self;
    char       *to = target;
    const char *from = source;
#if defined(__SSE2__)
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    if (head < bytes) {
        memcpy(to, from, head);
        to += head;
        from += head;
        bytes -= head;
        for (size_t lines = bytes / LINE; lines > 0; lines--, to += LINE, from += LINE)
            for (int part = 0; part < LINE / 16; part++)
                _mm_stream_si128((__m128i *)to + part, _mm_loadu_si128((const __m128i *)from + part));
        bytes %= LINE;
    }
#endif
    memcpy(to, from, bytes);
}

static void host_settle(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#define IN_USUAL_MODES(call)                             \
    do {                                                 \
        const pp_mode_t before = pp_mode_begin();        \
        call;                                            \
        pp_mode_end(before);                             \
    } while (0)

static void host_keep_left(const pp_kernels_t *kernels, void *inout, const void *in, size_t count)
{
    IN_USUAL_MODES(kernels->keep_left(inout, in, count));
}

static void host_keep_right(const pp_kernels_t *kernels, void *inout, const void *in, size_t count)
{
    IN_USUAL_MODES(kernels->keep_right(inout, in, count));
}

static void host_into(const pp_kernels_t *kernels, void *out, const void *left, const void *right, size_t count)
{
    IN_USUAL_MODES(kernels->into(out, left, right, count));
}

static void host_scale(const pp_kernels_t *kernels, void *out, const void *in, size_t count, double weight)
{
    IN_USUAL_MODES(kernels->weighted->scale(out, in, count, weight));
}

static void host_add(const pp_kernels_t *kernels, void *inout, const void *in, size_t count, double weight)
{
    IN_USUAL_MODES(kernels->weighted->add(inout, in, count, weight));
}

static void host_divide(const pp_kernels_t *kernels, void *values, size_t count, uint64_t by)
{
    IN_USUAL_MODES(kernels->divide(values, count, by));
}

static void host_normalise(const pp_kernels_t *kernels, void *values, size_t count)
{
    kernels->normalise(values, count);
}

static void host_fill(const pp_kernels_t *kernels, void *values, size_t count)
{
    pp_identity_fill(kernels->op, kernels->type, values, count);
}

const pp_memory_t pp_memory_host = {
    .name = "host", .allocate = host_allocate, .release = host_release, .reach = host_reach, .copy = host_copy,
    .copy_past = host_copy_past, .settle = host_settle, .keep_left = host_keep_left, .keep_right = host_keep_right,
    .into = host_into, .scale = host_scale, .add = host_add, .divide = host_divide, .normalise = host_normalise,
    .load = pp_load, .load_combined = pp_load_combined, .store = pp_store, .fill = host_fill,
};

const pp_memory_t *pp_memory_of(int32_t kind)
{
    static const pp_memory_t *const kinds[] = {
        &pp_memory_host,
#if PP_SIM
        &pp_memory_fenced,
#endif
    };
    return kind >= 0 && kind < (int32_t)(sizeof kinds / sizeof *kinds) ? kinds[kind] : NULL;
}

pp_status_t pp_kernels_find(int32_t op, int32_t type, pp_kernels_t *kernels)
{
    PP_TRY(pp_arithmetic_find(op, type, kernels));
    kernels->memory = kernels->users = &pp_memory_host;
    return PP_OK;
}
