/*
 * cuda_mpi.c - has an MPI take addresses of the stand-in's devices, as one that was built with CUDA.
 *
 * A shared library for LD_PRELOAD.  It says MPIX_Query_cuda_support() and finds, for the calls that are made with memory
 * of a device, the address at which the host may touch it (fakecuda.h).  MPI then reads and writes that memory whenever
 * it likes between the call and its completion; a library that has not waited for its stream, or frees it too early, is
 * found out.
 *
 *     CUDA_MPI=says-no      it says that it knows no devices
 *     CUDA_MPI=lies         it says that it does, and does not: MPI touches memory that no host may touch
 *     CUDA_MPI=wrong        what it sends of a device is 0
 *     CUDA_MPI=hangs        it never returns when it is to send memory of a device
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *(*host_t)(unsigned long long address, size_t bytes);

typedef int (*current_t)(void **context);
typedef int (*ask_t)(unsigned int number, int *attributes, void **answers, unsigned long long address);

enum {
    ATTRIBUTE_CONTEXT = 1,
    ATTRIBUTE_SYNC_MEMOPS = 6,
    UNDER_WAY_MAX = 1024
};

static _Atomic uint64_t taken, elsewhere, looked_elsewhere, unprepared;
static unsigned char zeros[8 << 20];

/* Requests with memory of a device, and the contexts of that. */
static struct {
    pthread_mutex_t lock;
    MPI_Request     requests[UNDER_WAY_MAX];
    void           *contexts[UNDER_WAY_MAX];
    int             count;
} under_way = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Bytes that were given to MPI at addresses of devices; for tests. */
uint64_t cuda_mpi_taken(void) { return taken; }

/* Calls with memory of a device in a thread whose current device was another one, or none. */
uint64_t cuda_mpi_elsewhere(void) { return elsewhere; }

/* Calls of MPI_Testsome() in a thread whose current device was none of those whose memory the requests have. */
uint64_t cuda_mpi_looked_elsewhere(void) { return looked_elsewhere; }

/* Calls with memory of a device in which copies that wait need not be over when they return. */
uint64_t cuda_mpi_unprepared(void) { return unprepared; }

static bool is(const char *mode)
{
    const char *asked = getenv("CUDA_MPI");
    return asked && strcmp(asked, mode) == 0;
}

/* A function of the stand-in; NULL: it is not loaded. */
static void *find(const char *name)
{
    static void *_Atomic driver;
    const char *file = getenv("PYPARTIAL_CUDA_DRIVER");
    if (!driver && file)
        driver = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
    return driver ? dlsym(driver, name) : NULL;
}

static void *current_context(void)
{
    void *context = NULL;
    ((current_t)find("cuCtxGetCurrent"))(&context);
    return context;
}

static void *context_of(const void *memory)
{
    int   attribute = ATTRIBUTE_CONTEXT;
    void *context = NULL, *answer = &context;
    ((ask_t)find("cuPointerGetAttributes"))(1, &attribute, &answer, (unsigned long long)(uintptr_t)memory);
    return context;
}

static bool is_prepared(const void *memory)
{
    int      attribute = ATTRIBUTE_SYNC_MEMOPS;
    uint32_t set = 0;
    void    *answer = &set;
    ((ask_t)find("cuPointerGetAttributes"))(1, &attribute, &answer, (unsigned long long)(uintptr_t)memory);
    return set;
}

/* Where MPI is to read or write instead of at an address. */
static void *instead(const void *memory, int count, MPI_Datatype type, bool sends)
{
    int     size;
    void   *at = NULL;
    host_t  host = is("lies") ? NULL : (host_t)find("fake_host");
    PMPI_Type_size(type, &size);
    size_t bytes = (size_t)count * (size_t)size;
    if (host && bytes)
        at = host((unsigned long long)(uintptr_t)memory, bytes);
    if (!at || at == memory)
        return (void *)(uintptr_t)memory;
    taken += bytes;
    elsewhere += context_of(memory) != current_context();
    unprepared += !is_prepared(memory);
    while (sends && is("hangs"))
        pause();
    return sends && is("wrong") ? zeros : at;
}

static int begun(int code, const MPI_Request *request, const void *memory, const void *at)
{
    if (code != MPI_SUCCESS || at == memory)
        return code;
    pthread_mutex_lock(&under_way.lock);
    if (under_way.count == UNDER_WAY_MAX)
        abort();
    under_way.requests[under_way.count] = *request;
    under_way.contexts[under_way.count++] = context_of(memory);
    pthread_mutex_unlock(&under_way.lock);
    return code;
}

static int find_request(MPI_Request request)
{
    int at = 0;
    while (at < under_way.count && under_way.requests[at] != request)
        at++;
    return at;
}

static void forget(MPI_Request request)
{
    int at = find_request(request);
    if (at == under_way.count)
        return;
    under_way.count--;
    under_way.requests[at] = under_way.requests[under_way.count];
    under_way.contexts[at] = under_way.contexts[under_way.count];
}

/* Whether requests have memory of devices, and none of them is the current one. */
static bool are_elsewhere(int count, const MPI_Request *requests)
{
    bool any = false, here = false;
    void *current = NULL;
    for (int i = 0; i < count; i++) {
        int at = find_request(requests[i]);
        if (at == under_way.count)
            continue;
        if (!any)
            current = current_context();
        any = true;
        here |= under_way.contexts[at] == current;
    }
    return any && !here;
}

int MPIX_Query_cuda_support(void) { return !is("says-no"); }

int MPI_Isend(const void *memory, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request)
{
    const void *at = instead(memory, count, type, true);
    return begun(PMPI_Isend(at, count, type, peer, tag, comm, request), request, memory, at);
}

int MPI_Irecv(void *memory, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request)
{
    void *at = instead(memory, count, type, false);
    return begun(PMPI_Irecv(at, count, type, peer, tag, comm, request), request, memory, at);
}

int MPI_Testsome(int count, MPI_Request *requests, int *completed, int *indices, MPI_Status *statuses)
{
    MPI_Request before[count > 0 ? count : 1];
    pthread_mutex_lock(&under_way.lock);
    looked_elsewhere += are_elsewhere(count, requests);
    memcpy(before, requests, (size_t)count * sizeof *requests);
    int code = PMPI_Testsome(count, requests, completed, indices, statuses);
    for (int i = 0; *completed != MPI_UNDEFINED && i < *completed; i++)
        forget(before[indices[i]]);
    pthread_mutex_unlock(&under_way.lock);
    return code;
}

/* The library cancels what it then completes by MPI_Test() or leaves to MPI. */
int MPI_Cancel(MPI_Request *request)
{
    pthread_mutex_lock(&under_way.lock);
    forget(*request);
    pthread_mutex_unlock(&under_way.lock);
    return PMPI_Cancel(request);
}

int MPI_Waitall(int count, MPI_Request *requests, MPI_Status *statuses)
{
    pthread_mutex_lock(&under_way.lock);
    for (int i = 0; i < count; i++)
        forget(requests[i]);
    pthread_mutex_unlock(&under_way.lock);
    return PMPI_Waitall(count, requests, statuses);
}

int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    const bool  in_place = send == MPI_IN_PLACE;
    const void *from = instead(in_place ? receive : send, count, type, true);
    return PMPI_Allreduce(in_place ? MPI_IN_PLACE : from, instead(receive, count, type, false), count, type, op, comm);
}
