/* driver.c - see driver.h. */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOW_TO_INSTALL \
    "Install one by `apt install nvidia-driver` (Debian) or `ubuntu-drivers install` (Ubuntu)"
#define HOW_TO_START \
    "Start processes by subprocess, or by multiprocessing after `multiprocessing.set_start_method(\"spawn\")`"

enum { TEXT_BYTES = 1024 };

/* What opening the driver came to.  open_once() writes it, and nobody afterwards. */
static struct {
    pthread_once_t once;
    pp_status_t    status;
    char           text[TEXT_BYTES];             /* of the error */
    _Atomic pid_t  process;                      /* which opened it */
    bool           forked;                       /* this one is a child of that */
    pp_cuda_t      cuda;
} driver = {.once = PTHREAD_ONCE_INIT};

#define ENTRY(name, symbol, parameters) {#symbol, offsetof(pp_cuda_t, name)},
static const struct {
    const char *symbol;
    size_t      offset;
} FUNCTIONS[] = {PP_CUDA_FUNCTIONS(ENTRY)};
#undef ENTRY

/* ---- errors --------------------------------------------------------------------------------------- */

/* The driver's words about an error. */
typedef struct words {
    const char *name, *text;
} words_t;

static words_t words_of(const pp_cuda_t *cuda, CUresult result)
{
    words_t words = {NULL, NULL};
    if (cuda->cuGetErrorName(result, &words.name) != CUDA_SUCCESS || !words.name)
        words.name = "an unknown error";
    if (cuda->cuGetErrorString(result, &words.text) != CUDA_SUCCESS || !words.text)
        words.text = "the driver does not describe it";
    return words;
}

pp_status_t pp_cuda_status(const pp_cuda_t *cuda, CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return PP_OK;
    if (result == CUDA_ERROR_NOT_READY)
        return PP_PENDING;
    const words_t words = words_of(cuda, result);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return pp_fail(PP_ERR_MEMORY, "CUDA has no memory: %s failed with %u, %s (%s)", call, result, words.name,
                       words.text);
    return pp_fail(PP_ERR_STATE, "CUDA reports an error: %s failed with %u, %s (%s)", call, result, words.name,
                   words.text);
}

static const char *visible_devices(void)
{
    const char *devices = getenv("CUDA_VISIBLE_DEVICES");
    return devices ? devices : "not set";
}

/* ---- opening -------------------------------------------------------------------------------------- */

/* The library stays open for good: its threads and its exit handlers may run until the process ends. */
static pp_status_t open_library(const char **file, void **library)
{
    const char *named = getenv("PYPARTIAL_CUDA_DRIVER");
    const bool  is_named = named && *named;
    *file = is_named ? named : "libcuda.so.1";
    *library = dlopen(*file, RTLD_NOW | RTLD_LOCAL);
    if (*library)
        return PP_OK;
    if (is_named)
        return pp_fail(PP_ERR_STATE, "the CUDA driver that PYPARTIAL_CUDA_DRIVER names cannot be loaded: %s. Name the "
                       "file of the driver's library, or use the machine's: `unset PYPARTIAL_CUDA_DRIVER`", dlerror());
    return pp_fail(PP_ERR_STATE, "there is no NVIDIA driver: %s. " HOW_TO_INSTALL "; a container gets the machine's "
                   "by `docker run --gpus all`", dlerror());
}

static pp_status_t find_functions(const char *file, void *library, pp_cuda_t *cuda)
{
    for (size_t i = 0; i < PP_COUNT_OF(FUNCTIONS); i++) {
        void *function = dlsym(library, FUNCTIONS[i].symbol);
        if (!function)
            return pp_fail(PP_ERR_STATE, "the NVIDIA driver is too old: %s has no function %s. A driver for CUDA 12.0 "
                           "or newer is needed, which is 525.60 or newer; `nvidia-smi` shows yours. " HOW_TO_INSTALL,
                           file, FUNCTIONS[i].symbol);
        memcpy((char *)cuda + FUNCTIONS[i].offset, &function, sizeof function);
    }
    return PP_OK;
}

static pp_status_t check_version(const char *file, const pp_cuda_t *cuda)
{
    int version = 0;
    PP_TRY(PP_CUDA(cuda, cuDriverGetVersion, &version));
    if (version >= PP_CUDA_OLDEST)
        return PP_OK;
    return pp_fail(PP_ERR_STATE, "the NVIDIA driver is too old: %s is for CUDA %d.%d. A driver for CUDA 12.0 or newer "
                   "is needed, which is 525.60 or newer; `nvidia-smi` shows yours. " HOW_TO_INSTALL, file,
                   version / 1000, version % 1000 / 10);
}

static pp_status_t start(const pp_cuda_t *cuda)
{
    const CUresult result = cuda->cuInit(0);
    const words_t  words = result == CUDA_SUCCESS ? (words_t){NULL, NULL} : words_of(cuda, result);
    switch (result) {
    case CUDA_SUCCESS:
        return PP_OK;
    case CUDA_ERROR_NO_DEVICE:
        return pp_fail(PP_ERR_STATE, "the NVIDIA driver finds no device: cuInit failed with %s (%s), and "
                       "CUDA_VISIBLE_DEVICES is %s. `nvidia-smi -L` lists the machine's devices, `unset "
                       "CUDA_VISIBLE_DEVICES` shows them all to a program, `docker run --gpus all` to a container",
                       words.name, words.text, visible_devices());
    case CUDA_ERROR_NOT_INITIALIZED:
        return pp_fail(PP_ERR_STATE, "a forked child cannot use CUDA, and this process was forked from one that did: "
                       "cuInit failed with %s (%s). " HOW_TO_START, words.name, words.text);
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        return pp_fail(PP_ERR_STATE, "the NVIDIA driver's library and its kernel module are of different versions: "
                       "cuInit failed with %s (%s). `reboot` loads the module that is installed", words.name,
                       words.text);
    default:
        return pp_fail(PP_ERR_STATE, "the NVIDIA driver does not start: cuInit failed with %u, %s (%s). `nvidia-smi` "
                       "shows whether it works", result, words.name, words.text);
    }
}

static pp_status_t open_driver(pp_cuda_t *cuda)
{
    const char *file;
    void       *library;
    PP_TRY(open_library(&file, &library));
    PP_TRY(find_functions(file, library, cuda));
    PP_TRY(check_version(file, cuda));
    return start(cuda);
}

/* In a child, which has one thread.  To compare process ids instead takes a system call each time, and a call of the
   application asks several times. */
static void note_fork(void) { driver.forked = true; }

static void open_once(void)
{
    driver.process = getpid();
    driver.forked = false;
    driver.status = pthread_atfork(NULL, NULL, note_fork)
        ? pp_fail(PP_ERR_MEMORY, "no memory to notice forks, after which CUDA cannot be used")
        : open_driver(&driver.cuda);
    if (driver.status < 0)
        snprintf(driver.text, sizeof driver.text, "%s", pp_error_text());
}

bool pp_cuda_in_child(void) { return driver.forked; }

static pp_status_t check_process(void)
{
    if (!pp_cuda_in_child())
        return PP_OK;
    return pp_fail(PP_ERR_STATE, "a forked child cannot use CUDA: process %lld had opened the driver before this one, "
                   "%lld, was forked from it. " HOW_TO_START, (long long)driver.process, (long long)getpid());
}

pp_status_t pp_cuda_open(const pp_cuda_t **cuda)
{
    *cuda = NULL;
    /* A child that is forked while a thread is inside begins anew: so does the C library. */
    pthread_once(&driver.once, open_once);
    if (driver.status < 0)
        return pp_fail(driver.status, "%s", driver.text);
    PP_TRY(check_process());
    *cuda = &driver.cuda;
    return PP_OK;
}

/* ---- a device ------------------------------------------------------------------------------------- */

pp_status_t pp_cuda_device_find(int32_t number, const pp_cuda_t **cuda, CUdevice *device)
{
    int count = 0;
    PP_TRY(pp_cuda_open(cuda));
    PP_TRY(PP_CUDA(*cuda, cuDeviceGetCount, &count));
    if (number < 0 || number >= count)
        return pp_fail(PP_ERR_ARGUMENT, "device=%d is not in 0..%d: `nvidia-smi -L` lists the machine's devices, and "
                       "CUDA_VISIBLE_DEVICES is %s", number, count - 1, visible_devices());
    return PP_CUDA(*cuda, cuDeviceGet, device, number);
}

pp_status_t pp_cuda_device_open(int32_t number, pp_cuda_device_t *device)
{
    const pp_cuda_t *cuda;
    CUdevice         found;
    CUcontext        context;
    *device = (pp_cuda_device_t){0};
    PP_TRY(pp_cuda_device_find(number, &cuda, &found));
    PP_TRY(PP_CUDA(cuda, cuDevicePrimaryCtxRetain, &context, found));
    *device = (pp_cuda_device_t){cuda, found, context};
    return PP_OK;
}

void pp_cuda_device_close(pp_cuda_device_t *device)
{
    /* A driver that fails here is shutting down with the process. */
    if (device->cuda && !pp_cuda_in_child())
        (void)device->cuda->cuDevicePrimaryCtxRelease(device->device);
    *device = (pp_cuda_device_t){0};
}

enum { SCOPES_MAX = 8 };             /* of a thread, not counting those of the context that is current already */

/* The scopes that this thread is in: each changes the current context, and may be entered several times in a row.  And the
   mode of captures that the thread had before the first of them. */
static _Thread_local struct {
    int                 depth;
    CUcontext           contexts[SCOPES_MAX];
    int                 times[SCOPES_MAX];
    CUstreamCaptureMode mode;
    CUresult            not_left;        /* the last error of a scope that could not be left, until it is told, */
    const char         *call, *what;     /* and of which call it is, and what that means */
} scopes;

static void note(CUresult result, const char *call, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    scopes.not_left = result;
    scopes.call = call;
    scopes.what = what;
}

static CUresult pop(const pp_cuda_t *cuda)
{
    CUcontext      popped;
    const CUresult result = cuda->cuCtxPopCurrent(&popped);
    note(result, "cuCtxPopCurrent", "the application's device is not current again");
    return result;
}

static pp_status_t relax(const pp_cuda_t *cuda)
{
    scopes.mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return PP_CUDA(cuda, cuThreadExchangeStreamCaptureMode, &scopes.mode);
}

pp_status_t pp_cuda_enter(const pp_cuda_device_t *device)
{
    PP_TRY(check_process());
    if (scopes.depth > 0 && scopes.contexts[scopes.depth - 1] == device->context) {
        scopes.times[scopes.depth - 1]++;
        return PP_OK;
    }
    if (scopes.depth == SCOPES_MAX)
        return pp_fail(PP_ERR_INTERNAL, "a thread is inside %d devices at once", SCOPES_MAX);
    PP_TRY(PP_CUDA(device->cuda, cuCtxPushCurrent, device->context));
    pp_status_t status = scopes.depth == 0 ? relax(device->cuda) : PP_OK;
    if (status < 0) {
        pop(device->cuda);
        return status;
    }
    scopes.contexts[scopes.depth] = device->context;
    scopes.times[scopes.depth++] = 1;
    return PP_OK;
}

pp_status_t pp_cuda_is_elsewhere(const pp_cuda_device_t *device, bool *elsewhere)
{
    CUcontext current = NULL;
    CUdevice  number = device->device;
    *elsewhere = false;
    PP_TRY(check_process());
    PP_TRY(PP_CUDA(device->cuda, cuCtxGetCurrent, &current));
    if (!current || current == device->context)
        return PP_OK;
    PP_TRY(PP_CUDA(device->cuda, cuCtxGetDevice, &number));
    *elsewhere = number == device->device;
    return PP_OK;
}

pp_status_t pp_cuda_leave(const pp_cuda_device_t *device, pp_status_t status)
{
    if (--scopes.times[scopes.depth - 1] > 0)
        return status;
    if (--scopes.depth == 0)
        note(device->cuda->cuThreadExchangeStreamCaptureMode(&scopes.mode), "cuThreadExchangeStreamCaptureMode",
             "the application's mode of captures is not as before");
    if (pop(device->cuda) != CUDA_SUCCESS && scopes.depth > 0)
        scopes.contexts[scopes.depth - 1] = NULL;    /* it may not be current: scopes inside that one push theirs */
    return status;
}

bool pp_cuda_all_left(void) { return scopes.not_left == CUDA_SUCCESS; }

pp_status_t pp_cuda_check_left(pp_status_t status)
{
    char before[512] = "";
    if (pp_cuda_all_left())
        return status;
    if (status < 0)
        snprintf(before, sizeof before, "%s; and ", pp_error_text());
    const pp_status_t left = pp_cuda_status(&driver.cuda, scopes.not_left, scopes.call);
    scopes.not_left = CUDA_SUCCESS;
    return pp_fail(status < 0 ? status : left, "%s%s: %s", before, scopes.what, pp_error_text());
}

pp_status_t pp_cuda_make_stream(const pp_cuda_t *cuda, CUstream *stream)
{
    int least, greatest;
    PP_TRY(PP_CUDA(cuda, cuCtxGetStreamPriorityRange, &least, &greatest));
    return PP_CUDA(cuda, cuStreamCreateWithPriority, stream, CU_STREAM_NON_BLOCKING, greatest);
}
