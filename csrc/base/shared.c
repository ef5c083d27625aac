/* shared.c - see shared.h. */
#define _GNU_SOURCE              /* memfd_create, fallocate */
#include "shared.h"

#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct label {
    _Alignas(PP_SHARED_LABEL) uint64_t nonce;
} label_t;

_Static_assert(sizeof(label_t) == PP_SHARED_LABEL, "what follows starts on a line of its own");

/* Maps what is behind `fd` (-1: private memory), which is the segment's from here on. */
static bool map(pp_shared_t *shared, int fd, size_t bytes)
{
    int   flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_NORESERVE;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    *shared = (pp_shared_t){.fd = -1};
    if (memory == MAP_FAILED) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        errno = error;
        return false;
    }
    *shared = (pp_shared_t){.memory = memory, .bytes = bytes, .fd = fd};
    return true;
}

bool pp_shared_create(pp_shared_t *shared, const char *name, size_t bytes, size_t committed,
                      pp_shared_ticket_t *ticket)
{
    uint64_t nonce = 0, numbers = pp_process_numbers();
    *ticket = (pp_shared_ticket_t){0};
    *shared = (pp_shared_t){.fd = -1};
    if (getrandom(&nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce || nonce == 0)
        return false;
    if (numbers == 0)
        errno = ESRCH;           /* nobody could find this process */
    int fd = numbers == 0 ? -1 : memfd_create(name, MFD_CLOEXEC);
    if (fd < 0)
        return false;
    int error = ftruncate(fd, (off_t)bytes) != 0 ? errno : posix_fallocate(fd, 0, (off_t)committed);
    if (error) {
        close(fd);
        errno = error;
        return false;
    }
    if (!map(shared, fd, bytes))
        return false;
    ((label_t *)shared->memory)->nonce = nonce;
    *ticket = (pp_shared_ticket_t){getpid(), fd, nonce, bytes, numbers};
    return true;
}

bool pp_shared_attach(pp_shared_t *shared, const pp_shared_ticket_t *ticket)
{
    char path[64];
    *shared = (pp_shared_t){.fd = -1};
    if (ticket->nonce == 0)
        return false;
    /* In another container, or beside its /proc, process numbers mean other processes: who asks by one whether
       a rank lives must not find a stranger.  (There /proc/<pid>/fd may lead to the right memory all the same.) */
    if (ticket->numbers == 0 || ticket->numbers != pp_process_numbers())
        return false;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)ticket->pid, (long long)ticket->fd);
    /* A number that was reused may name anything, a terminal or a pipe included. */
    int         fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat info;
    if (fd < 0)
        return false;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != (off_t)ticket->bytes) {
        close(fd);
        return false;
    }
    if (!map(shared, fd, ticket->bytes))
        return false;
    if (((label_t *)shared->memory)->nonce == ticket->nonce)
        return true;
    pp_shared_free(shared);
    return false;
}

bool pp_shared_private(pp_shared_t *shared, size_t bytes) { return map(shared, -1, bytes); }

bool pp_shared_commit(pp_shared_t *shared, size_t offset, size_t bytes)
{
    return shared->fd >= 0 && posix_fallocate(shared->fd, (off_t)offset, (off_t)bytes) == 0;
}

void pp_shared_uncommit(pp_shared_t *shared, size_t offset, size_t bytes)
{
    /* Whole pages; a failure only keeps memory that will be used again. */
    if (shared->fd >= 0)
        (void)fallocate(shared->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                        (off_t)bytes);
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
    /* Before the last user unmaps it, the others are through with it. */
    if (!kept || __atomic_sub_fetch(&kept->users, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    pp_shared_free(kept);
    free(kept);
}
