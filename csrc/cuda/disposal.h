/*
 * disposal.h - what handles no longer use, until a thread gives it back to the driver.
 *
 * Before the driver takes memory back it may wait for all that is queued on the device, and that may wait for other
 * ranks.  Handles are released with the lock of their context, with which no thread waits.  So they leave their memory
 * here, and the application's thread gives it back when it has released the lock.
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
/* Closes the device behind all that was left before.  From now on *device is not open. */
void pp_dispose_device(pp_cuda_device_t *device);

/* Gives back what was left so far, in that order.  It may wait for the devices, so the caller has no lock of a context.
   When it returns no other thread is about to give back any of it. */
void pp_dispose_all(void);

#endif
