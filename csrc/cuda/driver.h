/*
 * driver.h - the CUDA driver: a table of its functions, its errors as our own, and the scoped use of a device.
 *
 * The driver is a library of the machine.  The first device buffer of a process opens it, so a program without one
 * never does.  Nothing of CUDA is needed to compile or to link: the few types and constants that we use are declared
 * here, as the driver's binary interface has them (tests/unit/test_cuda_abi.py compares them with cuda.h where there is
 * one).  They have NVIDIA's names, and so have the functions: its manual describes them.
 *
 *     PP_TRY(pp_cuda_enter(device));
 *     pp_status_t status = PP_CUDA(device->cuda, cuMemcpyAsync, to, from, bytes, stream);
 *     return pp_cuda_leave(device, status);
 *
 * Any thread may call the functions of this file.  None waits for another rank, nor for work of the device.
 */
#ifndef PP_DRIVER_H
#define PP_DRIVER_H

#include "../base/base.h"

/* ---- the driver's types: enumerations of its interface are 32-bit numbers ------------------------- */

typedef unsigned int       CUresult, CUdevice_attribute, CUpointer_attribute, CUstreamCaptureStatus, CUstreamCaptureMode,
                           CUmemorytype;
typedef int                CUdevice;
typedef unsigned long long CUdeviceptr;          /* host memory has an address of this kind, too: pp_cuda_address() */
typedef struct CUctx_st    *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st  *CUevent;
typedef struct CUmod_st    *CUmodule;
typedef struct CUfunc_st   *CUfunction;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;
typedef struct CUDA_MEMCPY2D {                   /* rows of bytes, that are a pitch apart on either side */
    size_t           srcXInBytes, srcY;
    CUmemorytype     srcMemoryType;
    const void      *srcHost;
    CUdeviceptr      srcDevice;
    struct CUarray_st *srcArray;
    size_t           srcPitch, dstXInBytes, dstY;
    CUmemorytype     dstMemoryType;
    void            *dstHost;
    CUdeviceptr      dstDevice;
    struct CUarray_st *dstArray;
    size_t           dstPitch, WidthInBytes, Height;
} CUDA_MEMCPY2D;

_Static_assert(sizeof(CUdeviceptr) == 8, "an address of a device");
_Static_assert(sizeof(CUuuid) == 16, "what identifies a device in all processes");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128 && offsetof(CUDA_MEMCPY2D, dstXInBytes) == 56, "a copy of rows");
_Static_assert(sizeof(CUipcMemHandle) == 64, "by this another process opens memory of a device");

/* ---- the driver's constants ----------------------------------------------------------------------- */

enum {                                           /* CUresult */
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,              /* also in the child of a process that had called cuInit() */
    CUDA_ERROR_DEINITIALIZED = 4,                /* the process is ending */
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_MAP_FAILED = 205,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_UNKNOWN = 999,
};

enum {                                           /* flags */
    CU_STREAM_NON_BLOCKING = 0x1,                /* the legacy default stream and this one do not wait for each other */
    CU_EVENT_DISABLE_TIMING = 0x2,
    CU_MEMHOSTALLOC_PORTABLE = 0x01,             /* pinned for all contexts */
    CU_MEMHOSTREGISTER_PORTABLE = 0x01,
    CU_MEMHOSTREGISTER_DEVICEMAP = 0x02,
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 0x1,    /* cuIpcOpenMemHandle() takes nothing else */
};

enum {                                           /* CUdevice_attribute */
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
};

/* CUpointer_attribute, with the type of the answer.  About memory that CUDA does not know the answers are 0, and the
   ordinal is CU_DEVICE_INVALID. */
enum {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,            /* CUcontext */
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,        /* uint32_t */
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,     /* CUdeviceptr */
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,       /* void * */
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,        /* uint32_t; can be set */
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,          /* uint64_t: each allocation of a process has another one */
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,         /* uint32_t, set to 0 by the caller */
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,     /* int */
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,        /* uint32_t, set to 0 by the caller */
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,  /* CUdeviceptr */
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,        /* size_t */
};

enum { CU_MEMORYTYPE_HOST = 0x01, CU_MEMORYTYPE_DEVICE = 0x02 };
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1 };
enum { CU_STREAM_CAPTURE_MODE_GLOBAL = 0, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_DEVICE_INVALID = -2 };

/* The default streams of the current context. */
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

/* ---- the driver's functions ----------------------------------------------------------------------- */

/* F(our name, the symbol, the parameters).  The symbol has the number of the function's version, as cuda.h has it. */
#define PP_CUDA_FUNCTIONS(F)                                                                                         \
    F(cuInit, cuInit, (unsigned int flags))                                                                          \
    F(cuDriverGetVersion, cuDriverGetVersion, (int *version))                                                        \
    F(cuGetErrorName, cuGetErrorName, (CUresult result, const char **name))                                          \
    F(cuGetErrorString, cuGetErrorString, (CUresult result, const char **text))                                      \
    F(cuDeviceGetCount, cuDeviceGetCount, (int *count))                                                              \
    F(cuDeviceGet, cuDeviceGet, (CUdevice *device, int ordinal))                                                     \
    F(cuDeviceGetName, cuDeviceGetName, (char *name, int bytes, CUdevice device))                                    \
    F(cuDeviceGetUuid, cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device))                                          \
    F(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))       \
    F(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))                      \
    F(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device))                     \
    F(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                    \
    F(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext context))                                                    \
    F(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext *context))                                                     \
    F(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext *context))                                                        \
    F(cuCtxGetDevice, cuCtxGetDevice, (CUdevice *device))                                                            \
    F(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags))                            \
    F(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *address, size_t bytes))                                               \
    F(cuMemFree, cuMemFree_v2, (CUdeviceptr address))                                                                \
    F(cuMemHostAlloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned int flags))                             \
    F(cuMemFreeHost, cuMemFreeHost, (void *memory))                                                                  \
    F(cuMemHostRegister, cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned int flags))                     \
    F(cuMemHostUnregister, cuMemHostUnregister, (void *memory))                                                      \
    F(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))               \
    F(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream))                             \
    F(cuPointerGetAttributes, cuPointerGetAttributes,                                                                \
      (unsigned int count, CUpointer_attribute *attributes, void **answers, CUdeviceptr address))                    \
    F(cuPointerSetAttribute, cuPointerSetAttribute,                                                                  \
      (const void *value, CUpointer_attribute attribute, CUdeviceptr address))                                       \
    F(cuIpcGetMemHandle, cuIpcGetMemHandle, (CUipcMemHandle *handle, CUdeviceptr address))                           \
    F(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags))  \
    F(cuIpcCloseMemHandle, cuIpcCloseMemHandle, (CUdeviceptr address))                                               \
    F(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, (int *least, int *greatest))                         \
    F(cuStreamCreateWithPriority, cuStreamCreateWithPriority,                                                        \
      (CUstream *stream, unsigned int flags, int priority))                                                          \
    F(cuStreamDestroy, cuStreamDestroy_v2, (CUstream stream))                                                        \
    F(cuStreamWaitEvent, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags))                    \
    F(cuStreamQuery, cuStreamQuery, (CUstream stream))                                                               \
    F(cuStreamSynchronize, cuStreamSynchronize, (CUstream stream))                                                   \
    F(cuStreamIsCapturing, cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status))                    \
    F(cuStreamGetCtx, cuStreamGetCtx, (CUstream stream, CUcontext *context))                                         \
    F(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode))             \
    F(cuEventCreate, cuEventCreate, (CUevent *event, unsigned int flags))                                            \
    F(cuEventDestroy, cuEventDestroy_v2, (CUevent event))                                                            \
    F(cuEventRecord, cuEventRecord, (CUevent event, CUstream stream))                                                \
    F(cuEventQuery, cuEventQuery, (CUevent event))                                                                   \
    F(cuEventSynchronize, cuEventSynchronize, (CUevent event))                                                       \
    F(cuModuleLoadData, cuModuleLoadData, (CUmodule *module, const void *image))                                     \
    F(cuModuleUnload, cuModuleUnload, (CUmodule module))                                                             \
    F(cuModuleGetFunction, cuModuleGetFunction, (CUfunction *function, CUmodule module, const char *name))           \
    F(cuLaunchKernel, cuLaunchKernel,                                                                                \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,     \
       unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters,    \
       void **extra))

#define PP_CUDA_MEMBER(name, symbol, parameters) CUresult (*name) parameters;
typedef struct pp_cuda {
    PP_CUDA_FUNCTIONS(PP_CUDA_MEMBER)
} pp_cuda_t;
#undef PP_CUDA_MEMBER

/* The oldest driver that we take: the first one of CUDA 12. */
enum { PP_CUDA_OLDEST = 12000 };

/* The table.  The first call of a process opens libcuda.so.1, or the file that PYPARTIAL_CUDA_DRIVER names; later calls
   return what the first one did.  PP_ERR_STATE: there is no driver, it is too old, it does not start (no device), or
   this process is the forked child of one that has opened it.  The text says what to do about it. */
pp_status_t pp_cuda_open(const pp_cuda_t **cuda);
/* Whether this process is a forked child of one that has opened the driver: then it cannot call it. */
bool        pp_cuda_in_child(void);

/* What a call of the driver returned, as a status.  PP_PENDING: CUDA_ERROR_NOT_READY, which is no error.
   PP_ERR_MEMORY: the device, or the host, has no memory.  PP_ERR_STATE: any other error.  The text has the call's name,
   and the driver's name and description of the error. */
pp_status_t pp_cuda_status(const pp_cuda_t *cuda, CUresult result, const char *call);

/* Calls a function of the table: PP_TRY(PP_CUDA(cuda, cuEventRecord, event, stream)). */
#define PP_CUDA(cuda, name, ...) pp_cuda_status(cuda, (cuda)->name(__VA_ARGS__), #name)

/* Copies of MPI to this memory that should wait do so, also those of pageable memory: else they may return before the
   device has the bytes, and only the legacy default stream is ordered behind them. */
static inline pp_status_t pp_cuda_prepare_for_mpi(const pp_cuda_t *cuda, CUdeviceptr address)
{
    const uint32_t yes = 1;
    return PP_CUDA(cuda, cuPointerSetAttribute, &yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address);
}

/* Host memory as an operand of a copy. */
static inline CUdeviceptr pp_cuda_address(const void *memory) { return (CUdeviceptr)(uintptr_t)memory; }

/* ---- a device ------------------------------------------------------------------------------------- */

/* A device and its primary context, which CuPy and PyTorch use as well. */
typedef struct pp_cuda_device {
    const pp_cuda_t *cuda;                       /* NULL: not open */
    CUdevice         device;
    CUcontext        context;
} pp_cuda_device_t;

/* Opens the driver if need be, and finds a device by its number, which is an ordinal, as CuPy's and PyTorch's.
   PP_ERR_ARGUMENT: there is no such device. */
pp_status_t pp_cuda_device_find(int32_t number, const pp_cuda_t **cuda, CUdevice *device);
/* Finds a device, and retains its primary context.  A failure leaves *device not open. */
pp_status_t pp_cuda_device_open(int32_t number, pp_cuda_device_t *device);
/* Releases the context.  To be called when all that was made in it has been freed; does nothing to a device that is not
   open, and nothing in a forked child. */
void        pp_cuda_device_close(pp_cuda_device_t *device);

/* Makes the device's context the calling thread's current one, until pp_cuda_leave().  What was current before is so
   again then: the application does not notice.  Scopes may be nested; inside one of the same device another one costs
   nothing.  Inside, calls that another thread's capture of a graph would forbid are allowed: they are about none of its
   streams.  PP_ERR_STATE: this process is a forked child, or the driver refused; then the scope has not begun. */
pp_status_t pp_cuda_enter(const pp_cuda_device_t *device);
/* Outside of scopes.  *elsewhere: whether the application has made another context of the device current than its primary
   one: of a green context, or of cuCtxCreate().  The default streams are then those of that context, and inside a scope
   they would be those of the primary one. */
pp_status_t pp_cuda_is_elsewhere(const pp_cuda_device_t *device, bool *elsewhere);
/* Ends the scope.  Returns `status`, what the calls inside it came to.  If the driver does not make current again what was
   so before, the application's own calls may go wrong.  That is no failure of the calls inside, for which there may be
   another way: pp_cuda_check_left() tells it, at the end of a call of the application. */
pp_status_t pp_cuda_leave(const pp_cuda_device_t *device, pp_status_t status);
/* Whether all scopes of the calling thread could be left. */
bool        pp_cuda_all_left(void);
/* Returns `status`, what a call of the application came to; or an error, once, if some could not.  Its text comes after
   that of `status` if that is one. */
pp_status_t pp_cuda_check_left(pp_status_t status);

/* Inside a device: makes a stream of the library's.  It waits for no default stream, and its kernels come before those of
   streams with a lower priority, because other ranks wait for them. */
pp_status_t pp_cuda_make_stream(const pp_cuda_t *cuda, CUstream *stream);

#endif
