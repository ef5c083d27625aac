/*
 * block_cases.c - vectors cut out of blocks of huge pages.  Run by tests/unit/test_blocks.py; exits with the
 * number of the check that failed.
 */
#include "base/base.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HUGE_PAGE = 2 << 20, BYTES = 100000, MANY = 30 };

#define CHECK(number, what) do { if (!(what)) exit(number); } while (0)

static int count(const pp_blocks_t *blocks)
{
    int found = 0;
    for (const pp_block_t *block = blocks->first; block; block = block->next)
        found++;
    return found;
}

int main(void)
{
    pp_blocks_t blocks = {0};
    pp_block_t *block[MANY], *large;
    char       *vector[MANY];
    for (int i = 0; i < MANY; i++) {
        vector[i] = pp_blocks_cut(&blocks, BYTES, &block[i]);
        CHECK(1, vector[i] && (uintptr_t)vector[i] % 64 == 0);
        CHECK(2, (uintptr_t)block[i]->memory % HUGE_PAGE == 0 && block[i]->bytes == HUGE_PAGE);
        memset(vector[i], i, BYTES);
    }
    /* 20 of them fit one page; none overlaps another. */
    CHECK(3, count(&blocks) == 2 && block[0] == block[19] && block[20] == block[29]);
    for (int i = 0; i < MANY; i++)
        CHECK(4, vector[i][0] == i && vector[i][BYTES - 1] == i);
    char *over = pp_blocks_cut(&blocks, HUGE_PAGE + 1, &large);
    CHECK(5, over && large->bytes == 2 * HUGE_PAGE && count(&blocks) == 3);
    memset(over, 1, HUGE_PAGE + 1);
    /* A block goes with its last vector, whichever it is. */
    for (int i = 19; i >= 0; i--) {
        CHECK(6, count(&blocks) == 3);
        pp_blocks_give_back(&blocks, block[i]);
    }
    CHECK(7, count(&blocks) == 2);
    pp_blocks_give_back(&blocks, large);
    for (int i = 20; i < MANY; i++)
        pp_blocks_give_back(&blocks, block[i]);
    CHECK(8, count(&blocks) == 0);
    CHECK(9, !pp_blocks_cut(&blocks, PTRDIFF_MAX, &large) && !large && count(&blocks) == 0);
    return 0;
}
