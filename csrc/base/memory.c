/* memory.c - checked allocation. */
#include "base.h"

#include <stdlib.h>

enum { ALIGNMENT = 64, FIRST_CAPACITY = 8 };

void *pp_alloc_aligned(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - ALIGNMENT)
        return NULL;
    /* aligned_alloc() wants a multiple of the alignment; not 0, so that NULL means "no memory". */
    size_t lines = bytes / ALIGNMENT + (bytes % ALIGNMENT != 0);
    return aligned_alloc(ALIGNMENT, (lines ? lines : 1) * ALIGNMENT);
}

bool pp_grow(void **array, size_t *capacity, size_t wanted, size_t element_bytes)
{
    if (wanted <= *capacity)
        return true;
    if (wanted > PTRDIFF_MAX / element_bytes)
        return false;

    /* No overflow: `larger` doubles only while below `wanted`, which PTRDIFF_MAX bounds. */
    size_t larger = *capacity ? *capacity : FIRST_CAPACITY;
    while (larger < wanted)
        larger *= 2;
    if (larger > PTRDIFF_MAX / element_bytes)
        larger = wanted;

    void *moved = realloc(*array, larger * element_bytes);
    if (!moved)
        return false;
    *array = moved;
    *capacity = larger;
    return true;
}
