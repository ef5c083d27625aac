/*
 * copying_mpi.c - has any MPI take addresses of CUDA devices: it gives MPI copies in memory of the host.
 *
 * A shared library for LD_PRELOAD, for tests of what the library does on a device with such an MPI, where there is none.
 * It copies when a call is made, and when MPI has completed it, and waits for that; so it says nothing about time.
 * Unlike cuda_mpi.c it asks the driver only what every driver knows.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_MEMORY_TYPE = 2, ON_DEVICE = 2, NON_BLOCKING = 1, UNDER_WAY_MAX = 1024 };

/* Memory of a device, and what MPI gets instead. */
typedef struct copied {
    MPI_Request        request;
    unsigned long long address;
    void              *context, *host;
    size_t             bytes;
    bool               receives;
} copied_t;

static struct {
    pthread_mutex_t lock;
    copied_t        copied[UNDER_WAY_MAX];
    int             count;
} under_way = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void end(const char *why)
{
    fprintf(stderr, "copying_mpi.c: %s\n", why);
    abort();
}

/* The driver; NULL: this process has not opened it, and so has no memory of a device. */
static void *driver(void)
{
    static void *_Atomic opened;
    const char *file = getenv("PYPARTIAL_CUDA_DRIVER");
    if (!opened)
        opened = dlopen(file && *file ? file : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return opened;
}

static void *find(const char *name)
{
    void *found = dlsym(driver(), name);
    if (!found)
        end(name);
    return found;
}

/* Calls a function of the driver, which is to succeed. */
#define CALL(name, parameters, ...)                         \
    do {                                                    \
        if (((int (*) parameters)find(name))(__VA_ARGS__))  \
            end(name " failed");                            \
    } while (0)

static bool is_on_device(const void *memory, copied_t *copied)
{
    uint32_t type = 0;
    void    *context = NULL, *answers[] = {&type, &context};
    int      which[] = {ATTRIBUTE_MEMORY_TYPE, ATTRIBUTE_CONTEXT};
    if (!driver() || memory == MPI_IN_PLACE || !memory)
        return false;
    typedef int (*ask_t)(unsigned int, int *, void **, unsigned long long);
    const unsigned long long address = (unsigned long long)(uintptr_t)memory;
    if (((ask_t)find("cuPointerGetAttributes"))(2, which, answers, address) || type != ON_DEVICE)
        return false;
    *copied = (copied_t){.address = address, .context = context};
    return true;
}

static void copy(const copied_t *copied, bool to_device)
{
    const unsigned long long host = (unsigned long long)(uintptr_t)copied->host;
    void *stream, *before;
    CALL("cuCtxPushCurrent_v2", (void *), copied->context);
    CALL("cuStreamCreate", (void **, unsigned int), &stream, NON_BLOCKING);
    CALL("cuMemcpyAsync", (unsigned long long, unsigned long long, size_t, void *), to_device ? copied->address : host,
         to_device ? host : copied->address, copied->bytes, stream);
    CALL("cuStreamSynchronize", (void *), stream);
    CALL("cuStreamDestroy_v2", (void *), stream);
    CALL("cuCtxPopCurrent_v2", (void **), &before);
}

/* Whether MPI is to get a copy, which is then in copied->host. */
static bool begin(const void *memory, int count, MPI_Datatype type, bool sends, copied_t *copied)
{
    int size;
    if (count == 0 || !is_on_device(memory, copied))
        return false;
    PMPI_Type_size(type, &size);
    copied->bytes = (size_t)count * (size_t)size;
    copied->receives = !sends;
    copied->host = malloc(copied->bytes);
    if (!copied->host)
        end("no memory");
    if (sends)
        copy(copied, false);
    return true;
}

static int begun(int code, const MPI_Request *request, copied_t *copied)
{
    copied->request = *request;
    pthread_mutex_lock(&under_way.lock);
    if (under_way.count == UNDER_WAY_MAX)
        end("too many requests");
    if (code == MPI_SUCCESS)
        under_way.copied[under_way.count++] = *copied;
    pthread_mutex_unlock(&under_way.lock);
    return code;
}

/* MPI has completed the request. */
static void completed(MPI_Request request)
{
    int at = 0;
    pthread_mutex_lock(&under_way.lock);
    while (at < under_way.count && under_way.copied[at].request != request)
        at++;
    const bool found = at < under_way.count;
    copied_t   copied = {0};
    if (found) {
        copied = under_way.copied[at];
        under_way.copied[at] = under_way.copied[--under_way.count];
    }
    pthread_mutex_unlock(&under_way.lock);
    if (found && copied.receives)
        copy(&copied, true);
    free(copied.host);
}

int MPIX_Query_cuda_support(void) { return 1; }

int MPI_Isend(const void *memory, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request)
{
    copied_t copied;
    if (!begin(memory, count, type, true, &copied))
        return PMPI_Isend(memory, count, type, peer, tag, comm, request);
    return begun(PMPI_Isend(copied.host, count, type, peer, tag, comm, request), request, &copied);
}

int MPI_Irecv(void *memory, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request)
{
    copied_t copied;
    if (!begin(memory, count, type, false, &copied))
        return PMPI_Irecv(memory, count, type, peer, tag, comm, request);
    return begun(PMPI_Irecv(copied.host, count, type, peer, tag, comm, request), request, &copied);
}

int MPI_Testsome(int count, MPI_Request *requests, int *ended, int *indices, MPI_Status *statuses)
{
    MPI_Request before[count > 0 ? count : 1];
    memcpy(before, requests, (size_t)count * sizeof *requests);
    int code = PMPI_Testsome(count, requests, ended, indices, statuses);
    for (int i = 0; *ended != MPI_UNDEFINED && i < *ended; i++)
        completed(before[indices[i]]);
    return code;
}

int MPI_Waitall(int count, MPI_Request *requests, MPI_Status *statuses)
{
    MPI_Request before[count > 0 ? count : 1];
    memcpy(before, requests, (size_t)count * sizeof *requests);
    int code = PMPI_Waitall(count, requests, statuses);
    for (int i = 0; i < count; i++)
        completed(before[i]);
    return code;
}

int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    copied_t   from, to;
    const bool in_place = send == MPI_IN_PLACE;
    if (!begin(in_place ? receive : send, count, type, true, &from))
        return PMPI_Allreduce(send, receive, count, type, op, comm);
    if (!begin(receive, count, type, false, &to))
        end("MPI_Allreduce from a device to the host");
    int code = PMPI_Allreduce(from.host, to.host, count, type, op, comm);
    copy(&to, true);
    free(from.host);
    free(to.host);
    return code;
}
