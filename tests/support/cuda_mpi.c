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
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *(*host_t)(unsigned long long address, size_t bytes);

static _Atomic uint64_t taken;
static void *context;
static unsigned char zeros[8 << 20];

/* Bytes that were given to MPI at addresses of devices; for tests. */
uint64_t cuda_mpi_taken(void) { return taken; }

/* The context that was current when MPI_Allreduce() got an address of a device last. */
void *cuda_mpi_context(void) { return context; }

static bool is(const char *mode)
{
    const char *asked = getenv("CUDA_MPI");
    return asked && strcmp(asked, mode) == 0;
}

static host_t find_host(void)
{
    static _Atomic(host_t) found;
    const char *file = getenv("PYPARTIAL_CUDA_DRIVER");
    void       *driver = found || !file ? NULL : dlopen(file, RTLD_NOW | RTLD_NOLOAD);
    if (driver)
        found = (host_t)dlsym(driver, "fake_host");
    return found;
}

static void note_context(void)
{
    int (*current)(void **);
    void *driver = dlopen(getenv("PYPARTIAL_CUDA_DRIVER"), RTLD_NOW | RTLD_NOLOAD);
    *(void **)&current = driver ? dlsym(driver, "cuCtxGetCurrent") : NULL;
    if (current)
        current(&context);
}

/* Where MPI is to read or write instead of at an address. */
static void *instead(const void *memory, int count, MPI_Datatype type, bool sends)
{
    int     size;
    void   *at = NULL;
    host_t  host = is("lies") ? NULL : find_host();
    PMPI_Type_size(type, &size);
    size_t bytes = (size_t)count * (size_t)size;
    if (host && bytes)
        at = host((unsigned long long)(uintptr_t)memory, bytes);
    if (!at || at == memory)
        return (void *)(uintptr_t)memory;
    taken += bytes;
    while (sends && is("hangs"))
        pause();
    return sends && is("wrong") ? zeros : at;
}

int MPIX_Query_cuda_support(void) { return !is("says-no"); }

int MPI_Isend(const void *memory, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request)
{
    return PMPI_Isend(instead(memory, count, type, true), count, type, peer, tag, comm, request);
}

int MPI_Irecv(void *memory, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request)
{
    return PMPI_Irecv(instead(memory, count, type, false), count, type, peer, tag, comm, request);
}

int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    const bool  in_place = send == MPI_IN_PLACE;
    const void *from = instead(in_place ? receive : send, count, type, true);
    if (from != (in_place ? receive : send))
        note_context();
    return PMPI_Allreduce(in_place ? MPI_IN_PLACE : from, instead(receive, count, type, false), count, type, op, comm);
}
