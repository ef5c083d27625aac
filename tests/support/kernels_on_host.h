/*
 * kernels_on_host.h - what a shared library has that was made of pypartial/_device_kernels.cu for the host, by
 * kernels_on_host.cpp.  The stand-in for the CUDA driver takes the library's file as the image of a module.
 */
#ifndef KERNELS_ON_HOST_H
#define KERNELS_ON_HOST_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct host_kernel {
    const char   *name;
    /* Runs all threads of the grid, one after the other.  It reads the arguments where these point. */
    void        (*run)(void **arguments, unsigned blocks, unsigned threads);
    int           count;                         /* of arguments */
    const size_t *bytes;                         /* of each */
} host_kernel_t;

/* The host's address of memory that a kernel is about to read or write; NULL: there is none. */
typedef void *(*host_reach_t)(unsigned long long address, size_t bytes);

/* What the library has: the kernels, and their number.  They ask `reach` before each access, also about address 0, which
   they mean by an address that is not aligned.  Where it says NULL, they use other memory. */
const host_kernel_t *host_kernels(host_reach_t reach, size_t *count);

#ifdef __cplusplus
}
#endif

#endif
