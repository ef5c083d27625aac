/*
 * folds.c - the kernel that folds vectors on a device, beside a copy that reads and writes as many bytes.
 *
 *     folds IMAGE
 *
 * IMAGE is a file with the kernels, compiled for device 0.  Eight vectors of float32 are summed, 16 MB each: 128 MB are
 * read, 16 MB are written, and the copy is of half their sum.  Both take turns in blocks of calls, each of them as the
 * first one of every other pair; a block ends when the device is done.  Before, both run until the device's clock has
 * risen: at rest it is slow.  The program prints, as JSON, the microseconds of a call in each block.  bench/cuda runs it.
 */
#include "cuda/folds.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { VECTORS = 8, COUNT = 4 << 20, BLOCKS = 10, BLOCK_US = 5000, CALLS_MOST = 200, WARM_UP_US = 500000 };

#define VECTOR_BYTES (COUNT * sizeof(float))
#define COPY_BYTES ((VECTORS + 1) * VECTOR_BYTES / 2)

static pp_cuda_device_t device;
static pp_folds_t      *folds;
static CUstream         stream;
static CUdeviceptr      vectors[VECTORS], out, from, to;
static int              calls = 1;   /* in a block */

static void must(pp_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "folds: %s\n", pp_error_text());
        exit(1);
    }
}

#define CALL(name, ...) must(PP_CUDA(device.cuda, name, __VA_ARGS__))

static void fold(void) { must(pp_folds_fold(folds, out, vectors, VECTORS, COUNT, 1, stream)); }

static void copy(void) { CALL(cuMemcpyAsync, to, from, COPY_BYTES, stream); }

static double block_us(void (*call)(void))
{
    struct timespec began, ended;
    call();
    CALL(cuStreamSynchronize, stream);
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int i = 0; i < calls; i++)
        call();
    CALL(cuStreamSynchronize, stream);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    return ((double)(ended.tv_sec - began.tv_sec) * 1e6 + (double)(ended.tv_nsec - began.tv_nsec) / 1e3) / calls;
}

static void give_image(const char *name)
{
    FILE *file = fopen(name, "rb");
    if (!file || fseek(file, 0, SEEK_END) < 0) {
        perror(name);
        exit(1);
    }
    const size_t bytes = (size_t)ftell(file);
    char        *image = malloc(bytes);
    rewind(file);
    if (!image || fread(image, 1, bytes, file) != bytes) {
        perror(name);
        exit(1);
    }
    must(pp_folds_use(0, image, bytes));
    free(image);
    fclose(file);
}

static void print(const char *name, const double *us)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < BLOCKS; i++)
        printf("%s%.3f", i ? ", " : "", us[i]);
    printf("]");
}

int main(int argc, char **argv)
{
    double folded[BLOCKS], copied[BLOCKS];
    if (argc != 2) {
        fprintf(stderr, "usage: folds IMAGE\n");
        return 2;
    }
    must(pp_cuda_device_open(0, &device));
    give_image(argv[1]);
    must(pp_folds_open(&device, PP_SUM, PP_FLOAT32, &folds));
    must(pp_cuda_enter(&device));
    must(pp_cuda_make_stream(device.cuda, &stream));
    for (int i = 0; i < VECTORS; i++) {
        CALL(cuMemAlloc, &vectors[i], VECTOR_BYTES);
        must(pp_folds_fill(folds, vectors[i], COUNT, stream));
    }
    CALL(cuMemAlloc, &out, VECTOR_BYTES);
    CALL(cuMemAlloc, &from, COPY_BYTES);
    CALL(cuMemAlloc, &to, COPY_BYTES);
    for (double us = 0; us < WARM_UP_US;) {
        const double both = block_us(fold) + block_us(copy), fit = BLOCK_US / both;
        us += calls * both;
        calls = fit < 1 ? 1 : fit > CALLS_MOST ? CALLS_MOST : (int)fit;
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (i % 2)
            copied[i] = block_us(copy);
        folded[i] = block_us(fold);
        if (i % 2 == 0)
            copied[i] = block_us(copy);
    }
    must(pp_cuda_leave(&device, PP_OK));
    printf("{");
    print("fold", folded);
    printf(", ");
    print("copy", copied);
    printf("}\n");
    return 0;
}
