/* process.c - see process.h. */
#include "process.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Start time and state of a process, from /proc/<pid>/stat; false: that file cannot be read. */
static bool look_up(int64_t pid, uint64_t *born, char *state)
{
    char  path[40], line[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = 0;
    /* The process's name, in brackets, may contain brackets: the last one ends it. */
    const char *rest = strrchr(line, ')');
    unsigned long long start = 0;
    /* Field 3 is the state, field 22 the start time. */
    if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                                  "%*d %llu", state, &start) != 2)
        return false;
    *born = start;
    return true;
}

uint64_t pp_process_numbers(void)
{
    char        path[64];
    struct stat own, self;
    snprintf(path, sizeof path, "/proc/%lld/ns/pid", (long long)getpid());
    if (stat(path, &own) != 0 || stat("/proc/self/ns/pid", &self) != 0 || own.st_ino != self.st_ino)
        return 0;
    return own.st_ino;
}

pp_process_t pp_process_self(void)
{
    pp_process_t self = {.pid = getpid(), .numbers = pp_process_numbers()};
    char         state;
    if (!look_up(self.pid, &self.born, &state))
        self.numbers = 0;
    return self;
}

bool pp_process_died(const pp_process_t *process)
{
    uint64_t born;
    char     state;
    if (look_up(process->pid, &born, &state))
        return born != process->born || state == 'Z' || state == 'X';
    /* The look-up can fail for a reason of this process's own, such as no free file descriptor. */
    return kill((pid_t)process->pid, 0) != 0 && errno == ESRCH;
}
