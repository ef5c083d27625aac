/* memory.c - checked allocation. */
#define _DEFAULT_SOURCE   /* madvise */
#include "base.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20, FIRST_CAPACITY = 8 };

/* Large vectors go through the kernel (a copy between processes pins page by page): huge pages, as NumPy
   asks for, halve that.  Only a hint. */
static void *alloc_huge(size_t bytes)
{
    void *memory = aligned_alloc(HUGE_PAGE, (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (memory)
        madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

void *pp_alloc_aligned(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - ALIGNMENT)
        return NULL;
    if (bytes >= HUGE_PAGE / 4 && bytes <= PTRDIFF_MAX - HUGE_PAGE)
        return alloc_huge(bytes);
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
