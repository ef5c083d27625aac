/*
 * disposal.h - what handles no longer use, until it is given back to the driver.
 *
 * Before the driver takes memory back it may wait for all that is queued on the device, and that may wait for other
 * ranks.  Handles are released with the lock of their context, with which no thread waits.  So they leave their memory
 * here, and a thread of its own (aside.h) gives it back, in the order in which it was left.
 *
 * Any thread may call these functions.  In a forked child they do nothing.
 */
#ifndef PP_DISPOSAL_H
#define PP_DISPOSAL_H

#include "driver.h"

/* Leaves something that `give` is to give back, inside the device. */
void pp_dispose(const pp_cuda_device_t *device, void (*give)(const pp_cuda_device_t *, uint64_t what), uint64_t what);

/* Memory of the device; memory of the host that the driver has allocated; that it has registered. */
void pp_dispose_memory(const pp_cuda_device_t *device, CUdeviceptr memory);
void pp_dispose_pinned(const pp_cuda_device_t *device, const void *memory);
void pp_dispose_registered(const pp_cuda_device_t *device, const void *memory);
/* A stream, when all is done that was queued on it: what is left afterwards is given back after that. */
void pp_dispose_stream(const pp_cuda_device_t *device, CUstream stream);
/* What is left from now on is given back when all is done that was queued on the stream: what is queued there uses it, and
   a driver that takes memory back need not wait for that.  False: there is no memory to keep that in mind. */
bool pp_dispose_behind(const pp_cuda_device_t *device, CUstream stream);
/* Closes the device behind all that was left before.  From now on *device is not open. */
void pp_dispose_device(pp_cuda_device_t *device);

/* How long those wait who need what is about to be given back. */
enum { PP_DISPOSE_MOMENT_US = 1000000 };
/* Waits until all is given back that was left so far; false: that takes longer than the timeout, which is no less than
   0. */
bool pp_dispose_wait(int64_t timeout_us);

/* Inside the device: allocate memory of the device, or pinned memory of the host for all contexts.  If there is none, but
   some is about to be given back, they wait a moment for that. */
pp_status_t pp_dispose_alloc(const pp_cuda_t *cuda, CUdeviceptr *address, size_t bytes);
pp_status_t pp_dispose_alloc_pinned(const pp_cuda_t *cuda, void **memory, size_t bytes);

#endif
