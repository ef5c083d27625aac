/*
 * pypartial_device.h - the public header of handles whose buffers are in the memory of a CUDA device.
 *
 * The conventions of pypartial.h hold here, too.  pypartial/_build.py hands everything between the two CDEF marks to
 * cffi.
 */
#ifndef PYPARTIAL_DEVICE_H
#define PYPARTIAL_DEVICE_H

#include "pypartial.h"

/* CDEF BEGIN */

/* A handle with config.device > 0.  pp_start() queues a copy of the pieces behind what was queued on a stream of the
   application before, and returns; what is queued on that stream afterwards waits for the copy.  The contribution counts
   when the copy is over.  pp_wait() and the others that give a result queue the copy of it on such a stream: what is
   queued there afterwards sees it.  pp_wait_view() copies as well, and gives NULL, unless the result is in memory of a
   device that ranks share: then it gives the address there, for work that is queued on the stream before the handle's
   next call.  A request of P-Reduce asks for its group when the copy is over.
   A stream is a CUstream as a number; 1 is the legacy default stream, 2 that of the calling thread.  One that was
   destroyed, or is being captured, or is of another context than the device's primary one, is PP_ERR_ARGUMENT, and the
   call has done nothing.  That is asked when a call begins. */

/* Local.  The version of CUDA that the driver is for, 1000 * major + 10 * minor, and the number of devices.  PP_ERR_STATE:
   there is no driver, or no device; the text says what to do about it. */
pp_status_t pp_devices(int32_t *version, int32_t *count);
/* Local.  A device's name, cut to so many bytes. */
pp_status_t pp_device_name(int32_t device, char *name, size_t bytes);
/* Local.  *can: whether the first device can access the second one's memory. */
pp_status_t pp_device_access(int32_t device, int32_t peer, int32_t *can);
/* Local.  The number of the CUDA device in whose memory a buffer begins and ends.  PP_ERR_ARGUMENT: it is in none's, or in
   managed memory.  PP_ERR_STATE: there is no driver, or no device. */
pp_status_t pp_device_of(const void *address, uint64_t bytes, int32_t *device);
/* Local.  A device's compute capability: 9 and 0 for an H100.  PP_ERR_ARGUMENT: there is no device of this number.
   PP_ERR_STATE: there is no driver, or no device. */
pp_status_t pp_device_architecture(int32_t device, int32_t *major, int32_t *minor);
/* Local.  The kernels of pypartial/_device_kernels.cu, compiled for a device: a cubin, or PTX with the 0 at its end.  A
   copy is kept.  The first image for a device stays: later ones are ignored.  Errors as above. */
pp_status_t pp_device_kernels(int32_t device, const void *image, size_t bytes);
/* Local.  *first: whether this rank is the first of those of its node that can wake each other; a rank alone is. */
pp_status_t pp_first_of_node(pp_ctx_t *ctx, int32_t *first);
/* Local, in a process that has initialised MPI alone.  Whether MPI takes addresses of the device: has it send some to this
   process, and reduce them.  An MPI that does not know devices may end the process, or not return.  PP_ERR_STATE: it
   returned an error, or gave something else; the text says what. */
pp_status_t pp_device_self_test(int32_t device);
/* Local.  How the handle's elements travel: PP_DEVICE_STAGED, PP_DEVICE_IPC or PP_DEVICE_DIRECT.  `why` gets the reason why
   one of the last two was asked for and is not possible, cut to so many bytes; else it is empty.  It is the same on all
   ranks. */
pp_status_t pp_device_path(pp_handle_t *handle, int32_t *path, char *why, size_t bytes);
/* Local.  The stream that calls of this handle use from now on; before the first one.  2 means that of the thread which
   makes the call: each thread says it again.  1 and 2 are of the context that is current in this call: a thread that makes
   another one current says them again.  PP_ERR_ARGUMENT: a Flush or Drain of the handle that has timed out cannot
   give its result there. */
pp_status_t pp_use_stream(pp_handle_t *handle, uint64_t stream);
/* Local, blocking: waits until the contributions of this rank are off the device, and with `results` also until its
   results are there.  Without `results` P-Reduce copies off the device what a Flush gives, once for a call: `call` is
   its number, which pp_land_all() keeps in *until.  To be called before pp_flush_begin(), pp_drain_begin(), and with
   `results` before pp_handle_free_begin(): they return PP_ERR_STATE otherwise.  PP_PENDING: not after `timeout_us`
   (< 0: no limit). */
pp_status_t pp_land(pp_handle_t *handle, uint64_t call, int32_t results, int64_t timeout_us);
/* Local, blocking: waits until the contributions of this rank to all handles are off their devices.  To be called before
   each collective call and pp_away_begin(): inside it a rank counts as left, so rounds would go on without contributions
   that are still on their way.  All of this thread count, and those that other threads had begun by the first call: *until,
   0 at first, keeps which for the next calls of a wait in several ones.  PP_PENDING: not after `timeout_us` (< 0: no
   limit).  A context that has failed waits for nothing. */
pp_status_t pp_land_all(pp_ctx_t *ctx, uint64_t *until, int64_t timeout_us);

/* CDEF END */

#endif
