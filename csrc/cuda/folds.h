/*
 * folds.h - the host's arithmetic (csrc/reduce) on a device, with the same bits.
 *
 * A vector holds accumulators in memory that the device can use: float32 for the application's float16 and bfloat16, else
 * the application's own elements.  So element_bytes and user_bytes of pp_kernels_t hold here, too.  Addresses are
 * multiples of an element's alignment; vectors whose addresses are equal modulo 16 are the fastest.
 *
 *     PP_TRY(pp_folds_open(&lane->device, PP_SUM, PP_FLOAT16, &folds));
 *     PP_TRY(pp_folds_load(folds, part, sendbuf, count, stream));                  float16 to float32
 *     PP_TRY(pp_folds_fold(folds, sum, parts, ranks, count, ranks, stream));       the mean
 *     PP_TRY(pp_folds_store(folds, recvbuf, sum, count, stream));                  float32 to float16
 *
 * The kernels are in pypartial/cuda/kernels.cu.  The library cannot compile them: the application does so, or takes what
 * it has compiled before, and gives the image, which may be a cubin or PTX.
 *
 * Calls queue work on a stream of the caller, and return.  They make the device's context current themselves.  Any
 * thread may make them, several threads at once with the same pp_folds_t.
 */
#ifndef PP_FOLDS_H
#define PP_FOLDS_H

#include "driver.h"

/* The kernels of one operation on one type. */
typedef struct pp_folds pp_folds_t;

/* Keeps a copy of the image of the kernels for a device, by its number; a text must end with a 0 that `bytes` counts.  The
   first image of a device stays: later ones are ignored.  PP_ERR_ARGUMENT: there is no device of this number.
   PP_ERR_STATE: there is no driver. */
pp_status_t pp_folds_use(int32_t device, const void *image, size_t bytes);

/* Finds the kernels; the first of a process loads the image into the device's context.  The device stays open until
   close().  PP_ERR_ARGUMENT: MPI does not define the operation on the type, or the type is a long double, which devices
   do not have.  PP_ERR_STATE: no image was given for this device, or the driver refuses it.  *folds is NULL then. */
pp_status_t pp_folds_open(const pp_cuda_device_t *device, int32_t op, int32_t type, pp_folds_t **folds);
/* The last one unloads the image.  No work of these kernels is queued any more.  NULL is fine. */
void        pp_folds_close(pp_folds_t *folds);

/* The application's elements as accumulators: they replace those of a vector, or are combined with them as the right
   operand.  As pp_load() and then normalise, and pp_load_combined(). */
pp_status_t pp_folds_load(const pp_folds_t *folds, CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream);
pp_status_t pp_folds_load_combined(const pp_folds_t *folds, CUdeviceptr inout, CUdeviceptr from, size_t count,
                                   CUstream stream);
/* out[i] = vectors[0][i] op vectors[1][i] op ..., from left to right, of at least one vector; then divided by
   `divide_by`, if that is more than 1.  `out` may be one of the first PP_FOLD_VECTORS vectors, and overlaps no other;
   `vectors` may be changed when the call has returned.  Only floating and complex types are divided. */
pp_status_t pp_folds_fold(const pp_folds_t *folds, CUdeviceptr out, const CUdeviceptr *vectors, uint32_t vector_count,
                          size_t count, uint64_t divide_by, CUstream stream);
/* Accumulators as the application's elements. */
pp_status_t pp_folds_store(const pp_folds_t *folds, CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream);
/* The application's elements become the operation's identity. */
pp_status_t pp_folds_fill(const pp_folds_t *folds, CUdeviceptr to, size_t count, CUstream stream);

/* So many vectors are folded by one launch, from the device's memory into `out` once; more take several. */
enum { PP_FOLD_VECTORS = 64 };

#endif
