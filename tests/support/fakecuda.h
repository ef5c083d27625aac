/*
 * fakecuda.h - what tests call of the stand-in for the CUDA driver, tests/support/fakecuda.c, beside the driver's own
 * functions.  Any thread may call these; they are not counted, and no injected failure concerns them.
 *
 * The stand-in reads the environment at its first call:
 *
 *     FAKECUDA_DEVICES=2                   the number of devices: 0 to 8; 1 unless it is set
 *     FAKECUDA_VERSION=11040               fake_version(11040); fake_version(12080) unless it is set
 *     FAKECUDA_PEERS=0                     no device can access another one's memory
 *     FAKECUDA_SEED=7                      fake_seed(7)
 *     FAKECUDA_ROOM=100                    fake_room(100); fake_room(1024) unless it is set
 *     FAKECUDA_FAIL=cuMemAlloc:3:2,...     fake_fail("cuMemAlloc", 3, 2), ...
 *     FAKECUDA_LIE=cuEventQuery            every event is said to be complete, as if the library did not ask;
 *     FAKECUDA_LIE=cuStreamWaitEvent       no stream waits for an event, as if the library did not order its streams
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include "cuda/driver.h"

/* The driver's functions, by their symbols; and those that only applications call. */
#define FAKE_PROTOTYPE(name, symbol, parameters) CUresult symbol parameters;
PP_CUDA_FUNCTIONS(FAKE_PROTOTYPE)
#undef FAKE_PROTOTYPE
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);

/* The nth call from now on of a function fails with `result` and does nothing; 0: every call.  Names have no version
   ("cuMemAlloc"); "" is any function.  One failure for each name: the last that was asked for.  CUDA_SUCCESS: none. */
void        fake_fail(const char *name, uint64_t nth, CUresult result);
/* From now on calls of a function wait before they do anything, until they are let go by this function or by
   fake_let_all_go().  They are counted, and it is decided whether they fail, when they come.  "" is any function. */
void        fake_hold_calls(const char *name, bool held);
/* Whether a call that waits to give memory back lets no call of another thread begin, but for texts of errors, as NVIDIA's
   driver does.  Not so at first: what a test has held, it could not let go by calls. */
void        fake_exclusive(bool exclusive);
/* How many calls of a function wait inside the stand-in now, whatever for: because they are held, for room in a queue
   (fake_room()), or for streams, as those do that give memory back or synchronize.  "" is all functions together. */
uint64_t    fake_held_calls(const char *name);
/* The function of the last call that failed so; "" if there was none. */
const char *fake_failed(void);
/* How often a function was called, failures included; "" is all functions together. */
uint64_t    fake_calls(const char *name);

/* How many there are of a kind: "memory" (of devices, managed), "host memory", "registrations", "mappings" (of other
   processes' memory), "streams", "events", "modules", "contexts" (retained, or made by the application). */
uint64_t    fake_live(const char *kind);
/* All kinds of which there are some: "memory: 1, events: 2"; "" if there are none.  Valid until the next call. */
const char *fake_leaks(void);
/* Takes back what the library has given up: the newest "memory" or "mappings", whose place stays empty, or one of the
   "contexts" (device 0's). */
void        fake_take_back(const char *kind);
/* How often
     - memory was unregistered, freed or closed while a copy or a kernel that uses it was queued;
     - memory was freed while another process had it mapped;
     - a module was unloaded while a kernel of it was queued;
     - the last release of a context, or its end, found something there: once for each kind of fake_live().  It is gone then;
     - a call was refused because it may disturb a capture, or ends it: fake_capture(). */
uint64_t    fake_misuses(void);
/* Copies to or from host memory that is not pinned.  The call waits for them, as the driver's may. */
uint64_t    fake_pageable_copies(void);

/* What cuDriverGetVersion() says from now on.  Before 12050 cuStreamGetCtx() is an error about a stream that is captured,
   and a misuse. */
void        fake_version(int version);

/* Before each operation, and inside copies, streams pause for up to 200 us, drawn from this seed; 0: they do not. */
void        fake_seed(uint64_t seed);
/* Calls that give memory back (cuMemFree, cuMemFreeHost, cuMemHostUnregister, cuIpcCloseMemHandle) wait until all is done
   that was queued before on the streams of the current context's device and of the memory's; with host memory on those of
   all devices.  So does the last release of a context, for all that is queued on its device.
   A test can have them free at once, as a driver may of which the manual says only that it may wait; what uses the memory
   is waited for, and a misuse.

   A held stream begins no operation until it is let go.  Of a stream that the library makes the test has no handle, but
   that of the newest, and of those made before; so it can have all streams held, or those made from now on, and let all
   go: streams, and calls that are held. */
void        fake_free_at_once(bool value);
void        fake_hold(CUstream stream, bool held);
CUstream    fake_newest_stream(void);
CUstream    fake_stream_before(CUstream stream);     /* the newest of those made before it */
void        fake_hold_new(bool held);
void        fake_hold_all(void);
void        fake_let_all_go(void);
/* How many operations that are not yet done a stream may have, from now on.  A call that would queue one more waits, and
   looks for its stream, event and memory afterwards.  0: any number. */
void        fake_room(uint64_t operations);
/* The priority of a stream; 0 unless cuStreamCreateWithPriority() was given another. */
int         fake_priority(CUstream stream);
/* cuStreamIsCapturing() says so, and the stream takes no operations, queries nor synchronization; the last two end the
   capture of a device.  If the stream is a blocking one, the legacy default stream takes none, either, and
   cuStreamIsCapturing() returns CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for it.  Meanwhile these calls are refused in threads whose mode is not the relaxed one, as it is not at first: those that make, register, open and give
   back memory, load and unload modules, and query or synchronize events and streams.  NVIDIA's manual only names some
   calls that may be unsafe, cuMemAlloc and cuEventQuery among them; so here are more than a device may refuse. */
void        fake_capture(CUstream stream, bool capturing);

/* ---- kernels -------------------------------------------------------------------------------------- */

/* The image of a module is a text; or the file of a library that has pypartial/_device_kernels.cu, compiled for the
   host (kernels_on_host.h).  The kernels of such a library run thread by thread, and look for each address by
   fake_reach(). */

/* A kernel is a C function, which runs once for the whole grid.  It gets copies of the arguments of its launch. */
typedef void (*fake_kernel_t)(void **arguments);

enum { FAKE_ARGUMENTS = 12, FAKE_ARGUMENT_BYTES = 4096 };    /* the latter: of all, and 16 for each */

/* Registers a kernel; `bytes` are those of its `count` arguments.  A module whose image is a text has every registered
   kernel whose name occurs in it.

   These are registered: sum_float32, sum_float64, sum_int32, sum_int64 (out, left, right, size_t count).  They set
   out[i] to left[i] + right[i]; out may be left or right. */
void fake_kernel(const char *name, fake_kernel_t function, int count, const size_t *bytes);
/* The host's address of memory of a device, for kernels and for tests that look into it.  NULL: it is none, it is
   shorter, or it is another device's, to which the kernel's context has no access.  Later calls then fail with
   CUDA_ERROR_ILLEGAL_ADDRESS, as after a kernel that went astray. */
void *fake_reach(CUdeviceptr address, size_t bytes);
/* The same for an MPI that takes addresses of devices, tests/support/cuda_mpi.c; NULL: it is no memory of a device, which
   is no error. */
void *fake_host(CUdeviceptr address, size_t bytes);
/* How often fake_reach() was called. */
uint64_t fake_reaches(void);

#endif
