/*
 * folds.h - the host's arithmetic (csrc/reduce) on a device, with the same bits.
 *
 * A vector holds accumulators in memory that the device can use: float32 for the application's float16 and bfloat16,
 * else the application's own elements.  So element_bytes and user_bytes of pp_kernels_t hold here, too.  Addresses are
 * multiples of an element's alignment; buffers whose addresses are multiples of 16 are the fastest.
 *
 *     PP_TRY(pp_folds_open(&lane->device, PP_SUM, PP_FLOAT16, &folds));
 *     PP_TRY(pp_folds_load(folds, part, sendbuf, count, stream));                  float16 to float32
 *     PP_TRY(pp_folds_fold(folds, sum, parts, ranks, count, ranks, stream));       the average
 *     PP_TRY(pp_folds_store(folds, recvbuf, sum, count, stream));                  float32 to float16
 *
 * The kernels are in pypartial/_device_kernels.cu.  The core cannot compile them: the caller gives their image, which
 * may be a cubin or PTX.
 *
 * Calls queue work on a stream of the caller, and return.  They make the device's context current themselves.  Any
 * thread may make them, several threads at once with the same pp_folds_t.
 */
#ifndef PP_FOLDS_H
#define PP_FOLDS_H

#include "driver.h"

/* The kernels of one operation on one type. */
typedef struct pp_folds pp_folds_t;

/* So many vectors are folded by one launch; more take several. */
enum { PP_FOLD_VECTORS = 64 };

/* Keeps a copy of the kernels' image for a device, by its number; a text ends with a 0, which `bytes` counts.  The
   first image of a device stays: later ones are ignored.  PP_ERR_ARGUMENT: there is no device of this number.
   PP_ERR_STATE: there is no driver. */
pp_status_t pp_folds_use(int32_t device, const void *image, size_t bytes);

/* Has the image loaded into the device's context until pp_folds_give(), which may wait for all that is queued there. */
pp_status_t pp_folds_take(const pp_cuda_device_t *device);
void        pp_folds_give(const pp_cuda_device_t *device);

/* Finds the kernels, as pp_folds_take() loads them.  The device stays open until close().  PP_ERR_ARGUMENT: MPI does not
   define the operation on the type, or the type is a long double, which devices do not have.  PP_ERR_STATE: no image was
   given for this device, or the driver refuses it.  *folds is NULL then. */
pp_status_t pp_folds_open(const pp_cuda_device_t *device, int32_t op, int32_t type, pp_folds_t **folds);
/* As pp_folds_give().  No work of these kernels is queued any more.  NULL is fine. */
void        pp_folds_close(pp_folds_t *folds);

/* The application's elements as accumulators: they replace those of a vector, or are combined with them as the right
   operand.  Logical operations see 0 or 1 in what load() has written. */
pp_status_t pp_folds_load(const pp_folds_t *folds, CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream);
pp_status_t pp_folds_load_combined(const pp_folds_t *folds, CUdeviceptr inout, CUdeviceptr from, size_t count,
                                   CUstream stream);
/* out[i] = vectors[0][i] op vectors[1][i] op ..., from left to right, of at least one vector; then divided by
   `divide_by` if that is more than 1, which only floating and complex types can be.  `out` may be one of the first
   PP_FOLD_VECTORS vectors, and overlaps no other.  The array may be changed when the call has returned. */
pp_status_t pp_folds_fold(const pp_folds_t *folds, CUdeviceptr out, const CUdeviceptr *vectors, uint32_t vector_count,
                          size_t count, uint64_t divide_by, CUstream stream);
/* The vectors of a group of P-Reduce become their average, with the bits of csrc/node/mean.c. */
typedef struct pp_folds_mean {
    const CUdeviceptr *vectors;      /* each gets it */
    const double      *weights;      /* NULL: equal shares: the sum, divided by `vector_count` */
    uint32_t           vector_count;
    CUdeviceptr        initial;      /* counts if its weight is more than 0, after the first vector */
    double             initial_weight;
} pp_folds_mean_t;
/* For kernels of PP_SUM on a floating type.  The arrays may be changed when the call has returned. */
pp_status_t pp_folds_mean(const pp_folds_t *folds, const pp_folds_mean_t *mean, size_t count, CUstream stream);
/* Accumulators as the application's elements. */
pp_status_t pp_folds_store(const pp_folds_t *folds, CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream);
/* The application's elements become the operation's identity. */
pp_status_t pp_folds_fill(const pp_folds_t *folds, CUdeviceptr to, size_t count, CUstream stream);

#endif
