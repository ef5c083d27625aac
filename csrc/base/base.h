/*
 * base.h - what every room may use: error text, checked allocation, seeded random numbers, texts, masks.
 * Nothing here knows of graphs, transports or MPI.
 */
#ifndef PP_BASE_H
#define PP_BASE_H

#include "../include/pypartial.h"

/* 1: this build has the hooks that simulated ranks need: there ranks are interrupted, and defects are planted.  The
   hooks cost too much on real ranks (docs/performance-history.md, "Two builds"). */
#ifndef PP_SIM
#define PP_SIM 0
#endif

#include <stdbool.h>
#include <stdio.h>

/* Sets the calling thread's error text (printf style) and returns `status`, so that a function can
   end with `return pp_fail(PP_ERR_ARGUMENT, "k=%d is not in 1..%d", k, size)`. */
pp_status_t pp_fail(pp_status_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Runs a call that returns a pp_status_t; returns from the enclosing function if it failed. */
#define PP_TRY(call)                         \
    do {                                     \
        pp_status_t pp_try_status_ = (call); \
        if (pp_try_status_ < 0)              \
            return pp_try_status_;           \
    } while (0)

#define PP_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Memory aligned for vector loads and cache lines (64 bytes), its contents undefined; the caller releases it by free().
   NULL: no memory. */
void *pp_alloc_aligned(size_t bytes);

/* Blocks of huge pages, out of which long-lived vectors are cut.  A copy between processes pins memory page by page,
   and malloc() may hand out memory that has small pages already. */
typedef struct pp_block {
    struct pp_block *next;
    char            *memory;
    size_t           bytes, used;
    size_t           live;       /* vectors not given back yet; at 0 the block is unmapped */
} pp_block_t;

typedef struct pp_blocks {
    pp_block_t *first;
} pp_blocks_t;

/* Memory aligned as above, and in *block the block that it came from; the caller gives it back to that block.  NULL: no
   memory. */
void *pp_blocks_cut(pp_blocks_t *blocks, size_t bytes, pp_block_t **block);
void  pp_blocks_give_back(pp_blocks_t *blocks, pp_block_t *block);

/* Doubles the capacity of a malloc'd array until it holds `wanted` elements.  False: no memory; the array is
   unchanged. */
bool pp_grow(void **array, size_t *capacity, size_t wanted, size_t element_bytes);

/* splitmix64: a counter-based generator.  pp_mix(seed, i) is the i-th number of the stream `seed`,
   the same on every machine. */
uint64_t pp_mix(uint64_t seed, uint64_t index);

/* A permutation of 0..count-1 drawn from (seed, index): the value at a place, and the place of a value.  Each call
   takes constant time and memory. */
int32_t pp_permuted(uint64_t seed, uint64_t index, int32_t count, int32_t place);
int32_t pp_permuted_place(uint64_t seed, uint64_t index, int32_t count, int32_t value);

/* A growing text; zeroed, it is empty.  The caller frees `chars`.  After an allocation failure `failed` is set, and the
   text keeps what it had. */
typedef struct pp_text {
    char  *chars;
    size_t length, capacity;
    bool   failed;
} pp_text_t;

void pp_text_add(pp_text_t *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A line that lists ranks, few of them by name: "<before>rank 0 (computing), rank 3 and 13 more". */
typedef struct pp_listing {
    pp_text_t  *text;
    const char *before;
    uint32_t    count;
} pp_listing_t;

enum { PP_LISTED = 8 };

/* `does`: what the rank is doing; NULL: not known. */
void pp_listing_add(pp_listing_t *listing, int32_t rank, const char *does);
/* Ends the line with `after`.  False: no rank was added, so no line was written. */
bool pp_listing_end(const pp_listing_t *listing, const char *after);

/* A thread that spins calls it between two looks. */
static inline void pp_pause_core(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Sets of ranks as bit masks. */
static inline size_t pp_mask_words(int32_t ranks) { return ((size_t)ranks + 63) / 64; }
static inline bool   pp_mask_has(const uint64_t *mask, int32_t rank)
{
    return (mask[rank / 64] >> (rank % 64)) & 1;
}
static inline void pp_mask_add(uint64_t *mask, int32_t rank)
{
    mask[rank / 64] |= UINT64_C(1) << (rank % 64);
}

#endif
