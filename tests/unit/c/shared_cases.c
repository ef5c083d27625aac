/*
 * shared_cases.c - the memory of a node, with what kernels and machines do to it.  Run by tests/unit/test_shared.py;
 * exits with 1, and says which line was wrong:
 *
 *     shared_cases interrupted    a kernel that allocates nothing if a signal comes, under a timer's signals
 *     shared_cases full           a machine that has no memory left, and results that are committed already
 */
#include "node/board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SMALL = 4096, MEGABYTE = 1 << 20 };

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);    \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* ---- the kernel --------------------------------------------------------------------------------------------- */

int   __real_posix_fallocate(int fd, off_t offset, off_t bytes);
FILE *__real_fopen(const char *path, const char *mode);

static struct {
    off_t    between, left;          /* bytes that are allocated between two signals, and until the next; 0: no signals */
    int      refusal;                /* what every call returns; 0: none */
    uint64_t calls;
    bool     full;                   /* /proc/meminfo says that there is no memory */
} kernel;

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
    pp_shared_t memory[2];
    pp_node_t   node[2];
} ranks_t;

static void open_ranks(ranks_t *ranks, size_t bytes)
{
    pp_shared_ticket_t ticket;
    make(&ranks->memory[0], &ticket, bytes);
    CHECK(pp_shared_attach(&ranks->memory[1], &ticket));
    for (int rank = 0; rank < 2; rank++)
        CHECK(pp_node_open(&ranks->node[rank], &ranks->memory[rank], rank, 2));
}

static void close_ranks(ranks_t *ranks)
{
    for (int rank = 0; rank < 2; rank++) {
        pp_node_close(&ranks->node[rank]);
        pp_shared_free(&ranks->memory[rank]);
    }
}

static void full(void)
{
    const pp_board_size_t size = {.entries = 3, .vector_bytes = (size_t)20 * MEGABYTE};
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

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    CHECK(sysconf(_SC_PAGESIZE) == SMALL);
    if (strcmp(what, "interrupted") == 0)
        interrupted();
    else if (strcmp(what, "full") == 0)
        full();
    else
        CHECK(!"a case");
    return 0;
}
