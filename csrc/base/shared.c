/* shared.c - see shared.h. */
#define _GNU_SOURCE              /* memfd_create, fallocate */
#include "shared.h"

#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000     /* older kernels take the address for a hint */
#endif

enum {
    PIECE = 2 << 20,             /* memory is mapped in pieces of this size */
    OF_PHYSICAL = 16,            /* times the machine's memory: a handle uses as little as an eighth of its region */
    ASKED_FROM = 16 << 20,       /* from this size on the machine is asked before memory is committed */
    ALLOCATED_AT_ONCE = 64 << 20,
};

typedef struct label {
    _Alignas(PP_SHARED_LABEL) uint64_t nonce;
} label_t;

_Static_assert(sizeof(label_t) == PP_SHARED_LABEL, "the memory behind the label starts on a cache line of its own");

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/* ---- address space ---------------------------------------------------------------------------------- */

/* The largest hole in this process's addresses, and how many bytes are in use. */
typedef struct space {
    uint64_t hole, hole_bytes, used;
} space_t;

static bool look_at_space(space_t *space)
{
    FILE              *maps = fopen("/proc/self/maps", "re");
    unsigned long long from, to;
    uint64_t           before = PIECE;
    *space = (space_t){0};
    if (!maps)
        return false;
    /* The rest of a line is skipped, and so is the kernel's own page at the very end. */
    while (fscanf(maps, "%llx-%llx%*[^\n]", &from, &to) == 2 && from <= INT64_MAX) {
        if (from > before && from - before > space->hole_bytes)
            *space = (space_t){before, from - before, space->used};
        before = to;
        space->used += to - from;
    }
    fclose(maps);
    return space->hole_bytes > 0;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t pp_shared_room(void)
{
    space_t       space;
    struct rlimit limit;
    if (!look_at_space(&space))
        return 0;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    /* A quarter: memory begins in the middle of the hole, and later contexts need room, too. */
    uint64_t room = least(space.hole_bytes / 4, (uint64_t)sysconf(_SC_PHYS_PAGES) * page * OF_PHYSICAL);
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        room = least(room, limit.rlim_cur > space.used ? (limit.rlim_cur - space.used) / 2 : 0);
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        room = least(room, limit.rlim_cur);
    return room / page * page;
}

/* An address from which memory can grow: the middle of the largest hole, because the kernel hands out its ends. */
static void *where_to_grow(void)
{
    space_t space;
    return look_at_space(&space) ? (void *)(uintptr_t)((space.hole + space.hole_bytes / 2) / PIECE * PIECE) : NULL;
}

/* Maps bytes of `fd` at exactly `where`; false: not possible, and nothing is mapped. */
static bool map_at(void *where, int fd, size_t offset, size_t bytes)
{
    int   flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *memory = mmap(where, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);
    if (memory != MAP_FAILED && memory != where) {
        munmap(memory, bytes);
        errno = ENOMEM;
        return false;
    }
    return memory == where;
}

/* Maps the first `bytes` of `fd` (-1: private memory).  Takes the descriptor over, also on failure. */
static bool map(pp_shared_t *shared, int fd, size_t bytes, size_t most)
{
    int   flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_NORESERVE;
    void *memory = MAP_FAILED;
    if (most == bytes)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    else if ((memory = where_to_grow()) == NULL || !map_at(memory, fd, 0, bytes))
        memory = MAP_FAILED;
    *shared = (pp_shared_t){.fd = -1};
    if (memory == MAP_FAILED) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        errno = error;
        return false;
    }
    *shared = (pp_shared_t){.memory = memory, .bytes = bytes, .most = most, .fd = fd};
    return true;
}

bool pp_shared_reach(pp_shared_t *shared, size_t end)
{
    if (end <= shared->bytes)
        return true;
    if (end > shared->most)
        return false;
    size_t bytes = least(round_up(end, PIECE), shared->most) - shared->bytes;
    if (!map_at((char *)shared->memory + shared->bytes, shared->fd, shared->bytes, bytes))
        return false;
    shared->bytes += bytes;
    return true;
}

/* Allocates a range of the file; returns errno, 0: it is allocated.  Kernels before 6.10 give up a call during which a
   signal comes, whatever the signal does, and free what the call had allocated.  Under a timer's signals no call would
   ever allocate a large range; so it is allocated in pieces, which grow again where no signal comes.  Signals are
   handled between two calls, so in the end a page is allocated. */
static int allocate(int fd, size_t offset, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), piece = ALLOCATED_AT_ONCE;
    for (size_t end = offset + bytes; offset < end;) {
        size_t now = least(piece, end - offset);
        int    error = posix_fallocate(fd, (off_t)offset, (off_t)now);
        if (error && error != EINTR)
            return error;
        if (error) {
            piece = now / 2 > page ? now / 2 : page;
            continue;
        }
        offset += now;
        piece = least(2 * piece, ALLOCATED_AT_ONCE);
    }
    return 0;
}

/* ---- opening ---------------------------------------------------------------------------------------- */

bool pp_shared_create(pp_shared_t *shared, const char *name, size_t bytes, size_t committed,
                      pp_shared_ticket_t *ticket)
{
    uint64_t nonce = 0, numbers = pp_process_numbers();
    *ticket = (pp_shared_ticket_t){0};
    *shared = (pp_shared_t){.fd = -1};
    if (getrandom(&nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce || nonce == 0)
        return false;
    if (numbers == 0)
        errno = ESRCH;           /* other processes could not find this one */
    else if (bytes < committed)
        errno = ENOMEM;
    int fd = numbers == 0 || bytes < committed ? -1 : memfd_create(name, MFD_CLOEXEC);
    if (fd < 0)
        return false;
    /* What is mapped later begins behind it, and kernels map from the beginning of a page: of 64 KiB on some. */
    committed = least(round_up(committed, (size_t)sysconf(_SC_PAGESIZE)), bytes);
    int error = ftruncate(fd, (off_t)bytes) != 0 ? errno : allocate(fd, 0, committed);
    if (error) {
        close(fd);
        errno = error;
        return false;
    }
    if (!map(shared, fd, committed, bytes))
        return false;
    ((label_t *)shared->memory)->nonce = nonce;
    *ticket = (pp_shared_ticket_t){getpid(), fd, nonce, bytes, committed, numbers};
    return true;
}

bool pp_shared_attach(pp_shared_t *shared, const pp_shared_ticket_t *ticket)
{
    char path[64];
    *shared = (pp_shared_t){.fd = -1};
    if (ticket->nonce == 0)
        return false;
    /* In another container, or with the /proc of another, a process number means another process.  A rank that asks by
       number whether a peer lives must not find a stranger.  (/proc/<pid>/fd may lead to the right memory all the
       same.) */
    if (ticket->numbers == 0 || ticket->numbers != pp_process_numbers())
        return false;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)ticket->pid, (long long)ticket->fd);
    /* If the number was used again, the path may name anything, even a terminal or a pipe. */
    int         fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat info;
    if (fd < 0)
        return false;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != (off_t)ticket->bytes) {
        close(fd);
        return false;
    }
    if (!map(shared, fd, ticket->committed, ticket->bytes))
        return false;
    if (((label_t *)shared->memory)->nonce == ticket->nonce)
        return true;
    pp_shared_free(shared);
    return false;
}

bool pp_shared_private(pp_shared_t *shared, size_t bytes) { return map(shared, -1, bytes, bytes); }

/* ---- memory ----------------------------------------------------------------------------------------- */

/* Whether the machine has this much memory left.  The kernel would find out page by page, and then end a process. */
static bool is_there(size_t bytes)
{
    char               line[128];
    unsigned long long kilobytes = 0;
    FILE              *file = fopen("/proc/meminfo", "re");
    bool               found = false;
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "MemAvailable: %llu", &kilobytes) == 1;
    if (file)
        fclose(file);
    return !found || bytes / 1024 <= kilobytes;
}

bool pp_shared_commit(pp_shared_t *shared, size_t offset, size_t bytes)
{
    return shared->fd >= 0 && (bytes < ASKED_FROM || is_there(bytes))
        && allocate(shared->fd, offset, bytes) == 0;
}

void pp_shared_uncommit(pp_shared_t *shared, size_t offset, size_t bytes)
{
    /* Whole pages.  A failure only keeps memory that will be used again. */
    if (shared->fd >= 0)
        (void)fallocate(shared->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                        (off_t)bytes);
}

void pp_shared_give_back(pp_shared_t *shared, size_t offset, size_t bytes)
{
    pp_shared_uncommit(shared, offset, bytes);
    pp_range_t *range = malloc(sizeof *range);
    if (!range)
        return;                  /* the range's addresses are lost; there are plenty */
    *range = (pp_range_t){__atomic_load_n(&shared->given_back, __ATOMIC_RELAXED), offset, bytes};
    while (!__atomic_compare_exchange_n(&shared->given_back, &range->next, range, true, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        continue;
}

pp_range_t *pp_shared_taken_back(pp_shared_t *shared)
{
    return __atomic_exchange_n(&shared->given_back, NULL, __ATOMIC_ACQUIRE);
}

void pp_shared_seal(pp_shared_t *shared)
{
    if (shared->memory && shared->fd >= 0)
        close(shared->fd);
    shared->fd = -1;
}

void pp_shared_free(pp_shared_t *shared)
{
    pp_shared_seal(shared);
    if (shared->memory)
        munmap(shared->memory, shared->bytes);
    for (pp_range_t *range = shared->given_back, *next; range; range = next) {
        next = range->next;
        free(range);
    }
    *shared = (pp_shared_t){.fd = -1};
}

pp_shared_t *pp_shared_keep(pp_shared_t *shared)
{
    pp_shared_t *kept = malloc(sizeof *kept);
    if (!kept) {
        pp_shared_free(shared);
        return NULL;
    }
    *kept = *shared;
    kept->users = 1;
    *shared = (pp_shared_t){.fd = -1};
    return kept;
}

pp_shared_t *pp_shared_use(pp_shared_t *kept)
{
    __atomic_add_fetch(&kept->users, 1, __ATOMIC_RELAXED);
    return kept;
}

void pp_shared_drop(pp_shared_t *kept)
{
    /* Acquire and release: all other users have finished with the memory before the last one unmaps it. */
    if (!kept || __atomic_sub_fetch(&kept->users, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    pp_shared_free(kept);
    free(kept);
}
