/*
 * shared_cases.c - the memory of a node, with what kernels and machines do to it.  Run by tests/unit/test_shared.py;
 * exits with 1, and says which line was wrong:
 *
 *     shared_cases interrupted    a kernel that allocates nothing if a signal comes, under a timer's signals
 *     shared_cases full           a machine that has no memory left, and results that are committed already
 *     shared_cases sizes          ranges that come and go, each a little larger than the one before
 *     shared_cases loop SEED      the same arrays and handles again and again
 *     shared_cases random SEED    ranges of random sizes, against a map of all pages
 *     shared_cases many           more free ranges than the table takes
 *     shared_cases pages          a kernel with pages of 64 KiB
 */
#include "node/board.h"
#include "node/keeper.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SMALL = 4096, LARGE = 64 << 10, MEGABYTE = 1 << 20 };

/* ---- the kernel --------------------------------------------------------------------------------------------- */

int   __real_posix_fallocate(int fd, off_t offset, off_t bytes);
FILE *__real_fopen(const char *path, const char *mode);
long  __real_sysconf(int name);
void *__real_mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t offset);

static struct {
    off_t    between, left;          /* bytes allocated between two signals, and until the next; 0: no signals */
    int      refusal;                /* what every call returns; 0: none */
    uint64_t calls;
    bool     full;                   /* /proc/meminfo says that there is no memory */
    long     page;                   /* bytes */
} kernel = {.page = SMALL};

int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes)
{
    kernel.calls++;
    if (kernel.refusal)
        return kernel.refusal;
    if (kernel.between > 0 && bytes > kernel.left) {
        kernel.left = kernel.between;
        return EINTR;
    }
    kernel.left -= kernel.between > 0 ? bytes : 0;
    return __real_posix_fallocate(fd, offset, bytes);
}

FILE *__wrap_fopen(const char *path, const char *mode)
{
    static char none[] = "MemAvailable: 1000 kB\n";
    const bool  lies = kernel.full && strcmp(path, "/proc/meminfo") == 0;
    return lies ? fmemopen(none, strlen(none), "r") : __real_fopen(path, mode);
}

long __wrap_sysconf(int name) { return name == _SC_PAGESIZE ? kernel.page : __real_sysconf(name); }

void *__wrap_mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (((uintptr_t)where | (uintptr_t)offset) % (uintptr_t)kernel.page == 0)
        return __real_mmap(where, bytes, protection, flags, fd, offset);
    errno = EINVAL;
    return MAP_FAILED;
}

static size_t committed(const pp_shared_t *shared)
{
    struct stat info;
    CHECK(fstat(shared->fd, &info) == 0);
    return (size_t)info.st_blocks * 512;
}

static void make(pp_shared_t *shared, pp_shared_ticket_t *ticket, size_t bytes)
{
    CHECK(pp_shared_create(shared, "pypartial-test", bytes, SMALL, ticket));
}

/* ---- signals ------------------------------------------------------------------------------------------------- */

static void interrupt(size_t between, uint64_t calls_most)
{
    const size_t       bytes = (size_t)100 * MEGABYTE;
    pp_shared_t        shared;
    pp_shared_ticket_t ticket;
    kernel.between = (off_t)between;
    kernel.left = 0;                 /* the first call is interrupted, however little it is for */
    make(&shared, &ticket, 2 * bytes);
    kernel.calls = 0;
    CHECK(pp_shared_commit(&shared, bytes / 2, bytes));
    CHECK(committed(&shared) == SMALL + bytes);
    CHECK(kernel.calls <= calls_most);
    kernel.between = 0;
    kernel.refusal = ENOSPC;         /* any other error is one */
    CHECK(!pp_shared_commit(&shared, 0, bytes));
    kernel.refusal = 0;
    pp_shared_free(&shared);
}

static void interrupted(void)
{
    interrupt((size_t)500 * MEGABYTE, 10);           /* a signal now and then */
    interrupt(MEGABYTE, 1000);                       /* a thousand a second */
    interrupt(SMALL, 4 * 100 * MEGABYTE / SMALL);    /* one at every page */
}

/* ---- results ------------------------------------------------------------------------------------------------- */

/* Two ranks of a node, in one process: each maps the memory for itself. */
typedef struct ranks {
    pp_shared_t *memory[2];
    pp_node_t    node[2];
} ranks_t;

static void open_ranks(ranks_t *ranks, size_t bytes)
{
    pp_shared_t        first, second;
    pp_shared_ticket_t ticket;
    make(&first, &ticket, bytes);
    CHECK(pp_shared_attach(&second, &ticket));
    CHECK((ranks->memory[0] = pp_shared_keep(&first)) && (ranks->memory[1] = pp_shared_keep(&second)));
    for (int rank = 0; rank < 2; rank++)
        CHECK(pp_node_open(&ranks->node[rank], ranks->memory[rank], rank, 2));
}

static void close_ranks(ranks_t *ranks)
{
    for (int rank = 0; rank < 2; rank++) {
        pp_node_close(&ranks->node[rank]);
        pp_shared_drop(ranks->memory[rank]);
    }
}

static void full(void)
{
    const pp_board_size_t size = {.entries = 3, .parts = PP_PARTS, .vector_bytes = (size_t)20 * MEGABYTE};
    ranks_t    ranks;
    pp_board_t board[2];
    open_ranks(&ranks, (size_t)1000 * MEGABYTE);
    uint64_t region = pp_node_reserve(&ranks.node[0], pp_board_bytes(2, &size));
    CHECK(region && pp_board_prepare(&ranks.node[0], region, &size));
    for (int rank = 0; rank < 2; rank++)
        CHECK(pp_board_open(&ranks.node[rank], region, &size, 1, &board[rank]) == PP_OK);
    CHECK(pp_board_commit_result(&board[1], 2));
    kernel.full = true;
    CHECK(!pp_board_commit_result(&board[0], 0) && !pp_board_commit_result(&board[1], 0));
    /* By whichever rank it was committed. */
    CHECK(pp_board_commit_result(&board[0], 2) && pp_board_commit_result(&board[1], 2));
    kernel.full = false;
    CHECK(pp_board_commit_result(&board[0], 0));
    kernel.full = true;
    CHECK(pp_board_commit_result(&board[1], 0));
    kernel.full = false;
    for (int rank = 0; rank < 2; rank++)
        pp_board_end(&board[rank]);
    close_ranks(&ranks);
}

/* ---- ranges -------------------------------------------------------------------------------------------------- */

/* One range is in use while another is made.  Wherever it is, it leaves room beside it if there is room for three. */
static void sizes(void)
{
    enum { TIMES = 300, BYTES = 2 * MEGABYTE, STEP = 10000 };
    ranks_t  ranks;
    uint64_t region, before = 0;
    void    *array[2], *keeper[2];
    open_ranks(&ranks, (size_t)3 * (BYTES + TIMES * STEP) + MEGABYTE);
    for (uint64_t time = 0; time < TIMES; time++) {
        uint64_t bytes = BYTES + time * STEP;
        CHECK(region = pp_node_reserve(&ranks.node[0], bytes));
        if (before)                  /* a rank may be slow to leave a handle */
            pp_node_release(&ranks.node[time % 2], before, bytes - STEP);
        before = region;
    }
    pp_node_release(&ranks.node[1], before, BYTES + (TIMES - 1) * STEP);
    for (uint64_t time = 0; time < TIMES; time++) {
        for (int rank = 0; rank < 2; rank++)
            CHECK(keeper[rank] = pp_keeper_alloc(&ranks.node[rank], BYTES + time * STEP, &array[rank]));
        for (int rank = 0; rank < 2; rank++)
            pp_unalloc(keeper[rank]);
    }
    close_ranks(&ranks);
}

enum { PAGES = 300, LIVE = 40, FREE = 0, LEFT = 1, APART = 64 };

/* What the memory should look like: of each page whether it is FREE, was in an array of a rank that has not asked for
   memory since it freed that (LEFT + rank), or is in use. */
typedef struct map {
    uint64_t first;                  /* the offset of page 0 */
    int      pages[PAGES];
} map_t;

static void set(map_t *map, uint64_t offset, int pages, int what)
{
    for (int page = (int)((offset - map->first) / SMALL), end = page + pages; page < end; page++)
        map->pages[page] = what;
}

/* Whether so many free pages are side by side: from `offset` on, or (0) anywhere. */
static bool has(const map_t *map, uint64_t offset, int pages)
{
    for (int page = offset ? (int)((offset - map->first) / SMALL) : 0, run = 0; page < PAGES && run < pages; page++) {
        run = map->pages[page] == FREE ? run + 1 : 0;
        if (run == pages)
            return true;
        if (offset && run == 0)
            return false;
    }
    return false;
}

static int draw(uint64_t seed, uint64_t *drawn, int below) { return (int)(pp_mix(seed, (*drawn)++) % (uint64_t)below); }

/* A region, or the array of a rank. */
typedef struct range {
    uint64_t offset;
    int      pages, rank;
    char    *bytes;
    void    *keeper;
} range_t;

static void take(ranks_t *ranks, map_t *map, range_t *range)
{
    pp_node_t *node = &ranks->node[range->rank];
    void      *array = NULL;
    for (int page = 0; page < PAGES; page++)
        if (map->pages[page] == LEFT + range->rank)
            map->pages[page] = FREE;
    bool expected = has(map, 0, range->pages);
    if (range->keeper) {             /* less than whole pages */
        range->keeper = pp_keeper_alloc(node, (size_t)range->pages * SMALL - 1000, &array);
        CHECK(!range->keeper == !expected);
        range->offset = array ? (uint64_t)((char *)array - node->base) : 0;
    } else {
        range->offset = pp_node_reserve(node, (uint64_t)range->pages * SMALL);
        CHECK(!range->offset || pp_node_commit(node, range->offset, (uint64_t)range->pages * SMALL));
    }
    CHECK(!range->offset == !expected);
    if (!expected)
        return;
    CHECK(has(map, range->offset, range->pages));
    set(map, range->offset, range->pages, LEFT + 2);
    range->bytes = pp_node_at(node, range->offset);
    for (int i = 0; i < range->pages * SMALL; i += APART)
        CHECK(range->bytes[i] == 0);
    /* Also what an array has beyond its elements: a neighbour may get it. */
    memset(range->bytes, range->pages, (size_t)range->pages * SMALL);
}

static void give(ranks_t *ranks, map_t *map, range_t *range, int rank)
{
    for (int i = 0; i < range->pages * SMALL; i += APART)
        CHECK(range->bytes[i] == (char)range->pages);
    if (range->keeper)
        pp_unalloc(range->keeper);
    else
        pp_node_release(&ranks->node[rank], range->offset, (uint64_t)range->pages * SMALL);
    set(map, range->offset, range->pages, range->keeper ? LEFT + range->rank : FREE);
    *range = (range_t){0};
}

static void random_sizes(uint64_t seed)
{
    enum { STEPS = 3000 };
    static map_t map;
    range_t      live[LIVE] = {{0}}, last = {0};
    ranks_t      ranks;
    uint64_t     drawn = 0, common;
    int          taken = 0;
    open_ranks(&ranks, MEGABYTE);    /* to learn what the ranks have in common */
    common = atomic_load(&ranks.node[0].commons->top);
    close_ranks(&ranks);
    open_ranks(&ranks, common + PAGES * SMALL);
    map.first = common;
    for (int step = 0; step < STEPS; step++) {
        range_t *range = &live[draw(seed, &drawn, LIVE)];
        if (range->pages > 0) {
            give(&ranks, &map, range, draw(seed, &drawn, 2));
            continue;
        }
        const bool array = draw(seed, &drawn, 2);
        *range = (range_t){.pages = 1 + draw(seed, &drawn, draw(seed, &drawn, 2) ? 10 : 60),
                           .rank = array ? draw(seed, &drawn, 2) : 0, .keeper = array ? range : NULL};
        take(&ranks, &map, range);
        taken += range->offset != 0;
        if (!range->offset)
            *range = (range_t){0};
    }
    CHECK(taken > STEPS / 10);
    for (int i = 0; i < LIVE; i++)
        if (live[i].pages > 0)
            give(&ranks, &map, &live[i], i % 2);
    for (int rank = 0; rank < 2; rank++) {           /* collects what the rank has freed */
        last = (range_t){.pages = 1, .rank = rank};
        take(&ranks, &map, &last);
        give(&ranks, &map, &last, rank);
    }
    last = (range_t){.pages = PAGES};
    take(&ranks, &map, &last);
    CHECK(last.offset == common);    /* all of it, in one piece */
    close_ranks(&ranks);
}

/* A handle, an array of rank 0 and two of rank 1.  The next handle may be made before all ranks have left the one
   before, and the arrays of one rank before the other frees its own: still they take no more than two handles and the
   arrays. */
static void loop(uint64_t seed)
{
    enum { TIMES = 200, REGION = 40 * SMALL, BYTES = 3 * SMALL, ARRAYS = 3 };
    ranks_t  ranks;
    uint64_t drawn = 0, old = 0, common;
    void    *array, *keeper[ARRAYS] = {NULL};
    open_ranks(&ranks, (size_t)20 * MEGABYTE);
    common = atomic_load(&ranks.node[0].commons->top);
    for (int time = 0; time < TIMES; time++) {
        const bool slow = old && draw(seed, &drawn, 2);
        int        next = draw(seed, &drawn, ARRAYS), when = draw(seed, &drawn, ARRAYS + 1);
        uint64_t   region = 0;
        if (old && !slow)
            pp_node_release(&ranks.node[draw(seed, &drawn, 2)], old, REGION);
        for (int turn = 0; turn <= ARRAYS; turn++) {
            if (turn == when) {
                CHECK(region = pp_node_reserve(&ranks.node[0], REGION));
                continue;
            }
            pp_unalloc(keeper[next]);
            CHECK(keeper[next] = pp_keeper_alloc(&ranks.node[next > 0], BYTES, &array));
            next = (next + 1) % ARRAYS;
        }
        if (slow)
            pp_node_release(&ranks.node[1], old, REGION);
        old = region;
    }
    CHECK(atomic_load(&ranks.node[0].commons->top) <= common + 2 * REGION + ARRAYS * BYTES);
    for (int i = 0; i < ARRAYS; i++)
        pp_unalloc(keeper[i]);
    close_ranks(&ranks);
}

static void many(void)
{
    pp_ranges_t *ranges = calloc(1, sizeof *ranges);
    CHECK(ranges);
    for (uint64_t i = PP_RANGES_MAX + 10; i > 0; i--)
        pp_ranges_give(ranges, 2 * i, 1);
    CHECK(ranges->count == PP_RANGES_MAX);
    CHECK(pp_ranges_take(ranges, 1) == 2 * 11);
    pp_ranges_give(ranges, 2 * PP_RANGES_MAX + 1, 1);
    CHECK(ranges->count == PP_RANGES_MAX);
    pp_ranges_give(ranges, 2 * PP_RANGES_MAX + 3, 1);            /* those that touch make room for it */
    CHECK(ranges->count < PP_RANGES_MAX && pp_ranges_take(ranges, 5) == 2 * PP_RANGES_MAX);
    for (uint64_t i = 12; i < PP_RANGES_MAX; i++)
        CHECK(pp_ranges_take(ranges, 1) == 2 * i);
    for (uint64_t i = PP_RANGES_MAX + 3; i <= PP_RANGES_MAX + 10; i++)
        CHECK(pp_ranges_take(ranges, 1) == 2 * i);
    CHECK(ranges->count == 0 && pp_ranges_take(ranges, 1) == 0);
    free(ranges);
}

/* ---- pages --------------------------------------------------------------------------------------------------- */

static void pages(void)
{
    ranks_t ranks;
    kernel.page = LARGE;
    open_ranks(&ranks, (size_t)100 * MEGABYTE);
    uint64_t offset = pp_node_reserve(&ranks.node[0], 10 * MEGABYTE);
    CHECK(offset && pp_node_reach(&ranks.node[1]));
    for (int rank = 0; rank < 2; rank++)             /* mapped to the end, also by who did not ask for it */
        memset(pp_node_at(&ranks.node[rank], offset), rank, 10 * MEGABYTE);
    CHECK(*((char *)pp_node_at(&ranks.node[0], offset + 10 * MEGABYTE) - 1) == 1);
    close_ranks(&ranks);
    random_sizes(0);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    CHECK(sysconf(_SC_PAGESIZE) == SMALL);
    if (strcmp(what, "interrupted") == 0)
        interrupted();
    else if (strcmp(what, "full") == 0)
        full();
    else if (strcmp(what, "sizes") == 0)
        sizes();
    else if (strcmp(what, "loop") == 0 && argc > 2)
        loop(strtoull(argv[2], NULL, 10));
    else if (strcmp(what, "random") == 0 && argc > 2)
        random_sizes(strtoull(argv[2], NULL, 10));
    else if (strcmp(what, "many") == 0)
        many();
    else if (strcmp(what, "pages") == 0)
        pages();
    else
        CHECK(!"a case");
    return 0;
}
