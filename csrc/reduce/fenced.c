/*
 * fenced.c - a kind of memory for simulations: the host's memory by addresses that no instruction can follow.
 *
 * Code that touches elements without the table of their kind crashes at once, instead of failing on the first machine
 * whose vectors lie in a device's memory.
 */
#include "../include/pypartial_sim.h"
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#define FENCE ((uintptr_t)1 << PP_FENCE_SHIFT)

static void *inside(const void *elements) { return (void *)((uintptr_t)elements & ~FENCE); }
static void *outside(void *elements) { return (void *)((uintptr_t)elements | FENCE); }

static pp_status_t fenced_allocate(const pp_memory_t *self, size_t bytes, void **elements)
{
    (void)self;
    void *made = pp_alloc_aligned(bytes);
    *elements = made ? outside(made) : NULL;
    return made ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for a vector of %zu bytes", bytes);
}
static void nothing(void) {}
static void fenced_release(const pp_memory_t *self, void *elements)
{
    (void)self;
    free(inside(elements));
}
static void fenced_copy(const pp_memory_t *self, void *to, const void *from, size_t bytes)
{
    (void)self;
    memcpy(inside(to), inside(from), bytes);
}
static void fenced_keep_left(const pp_kernels_t *kernels, void *inout, const void *in, size_t count)
{
    kernels->keep_left(inside(inout), inside(in), count);
}
static void fenced_keep_right(const pp_kernels_t *kernels, void *inout, const void *in, size_t count)
{
    kernels->keep_right(inside(inout), inside(in), count);
}
static void fenced_into(const pp_kernels_t *kernels, void *out, const void *left, const void *right, size_t count)
{
    kernels->into(inside(out), inside(left), inside(right), count);
}
static void fenced_scale(const pp_kernels_t *kernels, void *out, const void *in, size_t count, double weight)
{
    kernels->weighted->scale(inside(out), inside(in), count, weight);
}
static void fenced_add(const pp_kernels_t *kernels, void *inout, const void *in, size_t count, double weight)
{
    kernels->weighted->add(inside(inout), inside(in), count, weight);
}
static void fenced_divide(const pp_kernels_t *kernels, void *values, size_t count, uint64_t by)
{
    kernels->divide(inside(values), count, by);
}
static void fenced_normalise(const pp_kernels_t *kernels, void *values, size_t count)
{
    kernels->normalise(inside(values), count);
}
static void fenced_load(const pp_kernels_t *kernels, void *to, const void *from, size_t count)
{
    pp_load(kernels, inside(to), inside(from), count);
}
static void fenced_load_combined(const pp_kernels_t *kernels, void *inout, const void *from, size_t count)
{
    pp_load_combined(kernels, inside(inout), inside(from), count);
}
static void fenced_store(const pp_kernels_t *kernels, void *to, const void *from, size_t count)
{
    pp_store(kernels, inside(to), inside(from), count);
}
static void fenced_fill(const pp_kernels_t *kernels, void *values, size_t count)
{
    pp_identity_fill(kernels->op, kernels->type, inside(values), count);
}

const pp_memory_t pp_memory_fenced = {
    .name = "fenced", .allocate = fenced_allocate, .release = fenced_release, .reach = inside, .copy = fenced_copy,
    .copy_past = fenced_copy, .settle = nothing, .keep_left = fenced_keep_left, .keep_right = fenced_keep_right,
    .into = fenced_into, .scale = fenced_scale, .add = fenced_add, .divide = fenced_divide,
    .normalise = fenced_normalise, .load = fenced_load, .load_combined = fenced_load_combined, .store = fenced_store,
    .fill = fenced_fill,
};
