/* trace.c - the file of a trace, mapped.  See include/pypartial_sight.h. */
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Bytes whose pages are made at once, so that no event waits for one: more than the default has, and no more, since all of
   them go to the disk. */
enum { TOUCHED = 64 << 20 };

/* All of the file is allocated at once: to touch a page for which a disk has no room would end the process. */
pp_status_t pp_trace_open(const char *path, uint64_t capacity, pp_trace_head_t **out)
{
    const size_t bytes = sizeof(pp_trace_head_t) + capacity * sizeof(pp_event_t);
    *out = NULL;
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return pp_fail(errno == EEXIST ? PP_ERR_STATE : PP_ERR_ARGUMENT, "%s", strerror(errno));
    int error = posix_fallocate(fd, 0, (off_t)bytes);
    void *memory = error ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        error = error ? error : errno;
    close(fd);
    if (error) {
        unlink(path);
        return pp_fail(PP_ERR_MEMORY, "%s", strerror(error));
    }
#ifdef MADV_POPULATE_WRITE
    madvise(memory, bytes < TOUCHED ? bytes : TOUCHED, MADV_POPULATE_WRITE);   /* if it fails, events wait for pages */
#endif
    *out = memory;
    **out = (pp_trace_head_t){.magic = "pptrace", .version = PP_TRACE_VERSION, .event_bytes = sizeof(pp_event_t),
                              .pid = getpid(), .capacity = capacity};
    gethostname((*out)->host, sizeof (*out)->host - 1);
    return PP_OK;
}

void pp_trace_close(pp_trace_head_t *head)
{
    munmap(head, sizeof *head + head->capacity * sizeof(pp_event_t));
}

bool pp_trace_by_counter(void)
{
    char      name[4] = "";
    const int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    const bool read_it = fd >= 0 && read(fd, name, sizeof name) == sizeof name;
    if (fd >= 0)
        close(fd);
    return read_it && !memcmp(name, "tsc\n", sizeof name);
}
