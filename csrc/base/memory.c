/* memory.c - checked allocation. */
#define _DEFAULT_SOURCE   /* madvise */
#include "base.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20, FIRST_CAPACITY = 8 };

/* Large vectors are copied between processes by the kernel, which pins them page by page.  Huge pages, which NumPy asks
   for, too, halve that time.  The kernel may ignore the hint. */
static void *alloc_huge(size_t bytes)
{
    size_t rounded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void  *memory = aligned_alloc(HUGE_PAGE, rounded);
    if (memory)
        madvise(memory, rounded, MADV_HUGEPAGE);     /* whole pages: the kernel makes no part of a page huge */
    return memory;
}

void *pp_alloc_aligned(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - ALIGNMENT)
        return NULL;
    if (bytes >= HUGE_PAGE / 4 && bytes <= PTRDIFF_MAX - HUGE_PAGE)
        return alloc_huge(bytes);
    /* aligned_alloc() wants a multiple of the alignment.  At least one line, so that NULL means "no memory". */
    size_t lines = bytes / ALIGNMENT + (bytes % ALIGNMENT != 0);
    return aligned_alloc(ALIGNMENT, (lines ? lines : 1) * ALIGNMENT);
}

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/* `bytes` of whole huge pages, aligned to such a page. */
static char *map_huge(size_t bytes)
{
    char *memory = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    size_t before = round_up((size_t)memory, HUGE_PAGE) - (size_t)memory;
    if (before > 0)
        munmap(memory, before);
    if (before < HUGE_PAGE)
        munmap(memory + before + bytes, HUGE_PAGE - before);
    madvise(memory + before, bytes, MADV_HUGEPAGE);
    return memory + before;
}

static pp_block_t *block_new(pp_blocks_t *blocks, size_t bytes)
{
    pp_block_t *block = malloc(sizeof *block);
    char       *memory = block ? map_huge(bytes) : NULL;
    if (!memory) {
        free(block);
        return NULL;
    }
    *block = (pp_block_t){.next = blocks->first, .memory = memory, .bytes = bytes};
    blocks->first = block;
    return block;
}

void *pp_blocks_cut(pp_blocks_t *blocks, size_t bytes, pp_block_t **out)
{
    *out = NULL;
    if (bytes > PTRDIFF_MAX - 2 * (size_t)HUGE_PAGE)
        return NULL;
    const size_t length = round_up(bytes ? bytes : 1, ALIGNMENT);
    pp_block_t  *block = blocks->first;
    while (block && block->bytes - block->used < length)
        block = block->next;
    if (!block)
        block = block_new(blocks, round_up(length, HUGE_PAGE));
    if (!block)
        return NULL;
    void *memory = block->memory + block->used;
    block->used += length;
    block->live++;
    *out = block;
    return memory;
}

void pp_blocks_give_back(pp_blocks_t *blocks, pp_block_t *block)
{
    if (--block->live > 0)
        return;
    for (pp_block_t **link = &blocks->first; *link; link = &(*link)->next)
        if (*link == block) {
            *link = block->next;
            break;
        }
    munmap(block->memory, block->bytes);
    free(block);
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
