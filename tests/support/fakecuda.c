/*
 * fakecuda.c - a stand-in for the CUDA driver: a shared library that has the functions of csrc/cuda/driver.h by their
 * symbols, and needs no GPU.  PYPARTIAL_CUDA_DRIVER names its file.  Tests look into it by the functions of fakecuda.h.
 *
 * Where it differs from a device it is stricter, so that a mistake which a device forgives is seen:
 *
 *   - Memory of a device is a memfd that is mapped twice.  At the address that the library knows it is PROT_NONE: a
 *     host that reads or writes it dies.  Streams use the other mapping.
 *   - A stream is a queue and a thread.  Streams wait for each other by events only, the default streams as well, and
 *     pause at random.  A stream may be held, and then begins nothing.  A queue has an end.
 *   - Memory is given back when all is done that was queued before, as by drivers that synchronize then.
 *   - A new stream, or event, gets the handle of the one that was destroyed last.
 *   - Every call but those about devices, contexts and pointers needs a current context.
 *   - The last release of a context takes with it what is left there, and counts it as a misuse.
 *   - While a stream is captured, calls that may disturb that are refused, and counted as a misuse.
 *   - A kernel that leaves its memory makes all later calls fail, as on a device.
 *
 * Memory is shared between processes by /proc/<pid>/fd.  Both must have one user and one namespace of process numbers;
 * the process that made the memory must be alive and dumpable, and must not have freed it.  The memfd's name holds a
 * random number, so a descriptor that was used again is not taken for the memory.
 */
#define _GNU_SOURCE   /* memfd_create */
#include "fakecuda.h"
#include "kernels_on_host.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum { DEVICES = 8, CONTEXTS = 16, DEPTH = 16, NAMES = 64, NAME_BYTES = 40, PIECES = 4, PAUSE_US = 200, ROOM = 1024 };
enum { TELLS_CAPTURED = 12050 };                 /* older drivers do not say which context a captured stream is of */
enum { ALL_DEVICES = (1 << DEVICES) - 1, LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };

typedef struct event {
    struct event *next;
    CUevent       handle;
    CUcontext     context;
    uint64_t      recorded, done;                /* records queued; the newest that a stream has come to */
    int           users;                         /* its owner, and operations */
} event_t;

typedef struct operation {
    struct operation *next;
    uint64_t          number;                    /* later ones have larger ones, on all streams */
    enum { COPY, KERNEL, RECORD, WAIT } kind;
    char             *to;
    const char       *from;
    size_t            bytes;
    event_t          *event;
    uint64_t          record;                    /* of the event */
    struct launch    *launch;
} operation_t;

typedef struct stream {
    struct stream *next;
    CUstream       handle;                       /* NULL: a default stream */
    CUcontext      context;
    int            device, priority;
    int            users;                        /* its thread, and calls that wait for it */
    operation_t   *first, **last;
    uint64_t       queued, done;                 /* operations, in all */
    uint64_t       number, draws;                /* of its pauses */
    bool           held, capturing, destroyed;
    bool           blocks;                       /* by the manual it and the legacy default stream wait for each other */
} stream_t;

typedef struct memory {
    struct memory *next;
    enum { DEVICE, MANAGED, HOST, REGISTERED, MAPPING } kind;
    uint64_t       address, number;
    char          *host;                         /* where the host reaches it */
    size_t         bytes, mapped;
    int            device, fd, opened;
    CUcontext      context;                      /* the one in which it was made or opened */
    bool           synchronous;                  /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
    uint64_t       nonce;
} memory_t;

typedef struct module {
    struct module *next;
    CUmodule       handle;
    CUcontext      context;
    char          *image;                        /* NULL: it is a library */
    void          *library;
    int            fd;                           /* of the library: its number is a part of the name */
} module_t;

typedef struct kernel {
    struct kernel *next;
    CUmodule       module;                       /* NULL: it is registered */
    char          *name;
    fake_kernel_t  function;                     /* NULL: `run` is the kernel */
    void         (*run)(void **arguments, unsigned blocks, unsigned threads);
    int            count;
    size_t         bytes[FAKE_ARGUMENTS];
} kernel_t;

/* What is kept of a launch until a stream comes to it. */
typedef struct launch {
    kernel_t kernel;
    unsigned blocks, threads;
    void    *arguments[FAKE_ARGUMENTS];
    size_t   used;                               /* of the values */
    _Alignas(max_align_t) char values[FAKE_ARGUMENT_BYTES];
} launch_t;

struct CUctx_st {
    int       device, retained;                  /* one that an application has made is retained once */
    unsigned  peers;                             /* a bit for each device whose memory it may use */
    stream_t *defaults[2];                       /* legacy, per thread */
};

typedef struct counter {
    char     name[NAME_BYTES];                   /* "": all functions */
    uint64_t calls;
    uint64_t fails_at;                           /* this call; 0: every one */
    CUresult result;                             /* of the call that fails; CUDA_SUCCESS: none */
    bool     held;                               /* calls wait at their beginning */
    uint64_t waiting;                            /* calls that wait now: fake_held_calls() */
} counter_t;

/* Handles of what was destroyed.  The last one is given out first, as the addresses that a driver frees. */
typedef struct handles {
    void **of;
    size_t count, room;
} handles_t;

/* What an IPC handle holds. */
typedef struct ticket {
    uint64_t nonce, bytes;
    int64_t  pid, fd;
    int      device;
} ticket_t;

_Static_assert(sizeof(ticket_t) <= sizeof(CUipcMemHandle), "a ticket travels in a handle");

/* The lock protects all that follows.  `changed`: a queue, an event, what is held, or the room of queues. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  changed = PTHREAD_COND_INITIALIZER;

static bool      configured, peers, holds_new, astray, exclusive, frees_at_once;
static int       keeping_out;                    /* calls that wait, and let no other begin meanwhile */
static pid_t     process;                        /* which called cuInit(); 0: none did */
static int       devices, version;
static uint64_t  seed, numbers, operations, room, misuses, pageable_copies, reaches;
static handles_t stream_handles, event_handles;
static counter_t counters[NAMES];
static int       counter_count;
static char      failed[NAME_BYTES];
static memory_t *memories;
static stream_t *streams;
static event_t  *events;
static module_t *modules;
static kernel_t *kernels;
static struct CUctx_st contexts[CONTEXTS];       /* the primary ones by their device, and those that applications make */

/* The calling thread's current contexts; the last one counts. */
static _Thread_local struct {
    CUcontext of[DEPTH];
    int       depth;
} current;
static _Thread_local const stream_t *running;    /* in a stream's own thread */
static _Thread_local counter_t      *called;     /* of the function that this thread has called last */
static _Thread_local CUstreamCaptureMode capture_mode;

static uint64_t mix(uint64_t value)              /* splitmix64 */
{
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

/* A number that was never given out, as a handle.  The driver's own handles are 0 to 2. */
static void *new_handle(void) { return (void *)(uintptr_t)(0x1000 + 16 * ++numbers); }

static void *take_handle(handles_t *handles)
{
    return handles->count > 0 ? handles->of[--handles->count] : new_handle();
}

static void give_handle(handles_t *handles, void *handle)
{
    if (handles->count == handles->room) {
        handles->room = 2 * handles->room + 16;
        handles->of = realloc(handles->of, handles->room * sizeof *handles->of);
    }
    handles->of[handles->count++] = handle;
}

/* ---- calls: counted, and made to fail ------------------------------------------------------------- */

static counter_t *counter_of(const char *name)
{
    for (int i = 0; i < counter_count; i++)
        if (strcmp(counters[i].name, name) == 0)
            return &counters[i];
    if (counter_count == NAMES)
        abort();
    counter_t *counter = &counters[counter_count++];
    snprintf(counter->name, sizeof counter->name, "%s", name);
    return counter;
}

static void inject(const char *name, uint64_t nth, CUresult result)
{
    counter_t *counter = counter_of(name);
    counter->fails_at = nth == 0 ? 0 : counter->calls + nth;
    counter->result = result;
}

static CUresult count(counter_t *counter)
{
    counter->calls++;
    return counter->fails_at == 0 || counter->fails_at == counter->calls ? counter->result : CUDA_SUCCESS;
}

/* With the lock, which it gives up meanwhile: the calling thread's call waits until something has changed. */
static void wait_in_call(void)
{
    counter_t *counter = called ? called : counter_of("");
    counter->waiting++;
    pthread_cond_wait(&changed, &lock);
    counter->waiting--;
}

static long long number_in(const char *variable, long long otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? atoll(text) : otherwise;
}

/* A defect planted in the library: it takes a copy for complete, or does not order its streams. */
static bool lies(const char *name)
{
    const char *named = getenv("FAKECUDA_LIE");
    return named && strcmp(named, name) == 0;
}

static void take_lock(void) { pthread_mutex_lock(&lock); }
static void give_lock(void) { pthread_mutex_unlock(&lock); }

static void sum_int32(void **);
static void add_kernel(const char *name, fake_kernel_t function, int arguments, const size_t *bytes);

static void configure(void)
{
    static const size_t sum[] = {8, 8, 8, 8};
    if (configured)
        return;
    configured = true;
    pthread_atfork(take_lock, give_lock, give_lock);       /* the child finds the lock free */
    devices = (int)number_in("FAKECUDA_DEVICES", 1);
    version = (int)number_in("FAKECUDA_VERSION", 12080);
    peers = number_in("FAKECUDA_PEERS", 1);
    seed = (uint64_t)number_in("FAKECUDA_SEED", 0);
    room = (uint64_t)number_in("FAKECUDA_ROOM", ROOM);
    for (int i = 0; i < DEVICES; i++)
        contexts[i].device = i;
    add_kernel("sum_int32", sum_int32, 4, sum);
    const char *failures = getenv("FAKECUDA_FAIL");
    char        name[NAME_BYTES];
    unsigned    nth, result;
    int         length;
    while (failures && sscanf(failures, "%39[^:]:%u:%u%n", name, &nth, &result, &length) == 3) {
        inject(name, nth, result);
        failures += length;
        failures += *failures == ',';
    }
}

/* NO_CAPTURE: a context, and that the call cannot disturb a capture. */
typedef enum need { NOTHING, DRIVER, CONTEXT, NO_CAPTURE } need_t;

static CUcontext current_context(void) { return current.depth > 0 ? current.of[current.depth - 1] : NULL; }

/* `blocks`: a stream for which the legacy default stream of this context waits; NULL: any. */
static bool any_captured(const struct CUctx_st *blocks)
{
    const stream_t *stream = streams;
    while (stream && (!stream->capturing || stream->destroyed
                      || (blocks && !(stream->blocks && stream->context == blocks))))
        stream = stream->next;
    return stream;
}

/* In the global mode some calls are errors then, whichever thread captures. */
static CUresult check_capture(void)
{
    if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED || !any_captured(NULL))
        return CUDA_SUCCESS;
    misuses++;                                   /* a device's capture is invalid then, also if nobody looks at the error */
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult check(need_t need)
{
    if (need == NOTHING)
        return CUDA_SUCCESS;
    if (process != getpid())                     /* a forked child has none of its parent's threads */
        return CUDA_ERROR_NOT_INITIALIZED;
    if (need == DRIVER)
        return CUDA_SUCCESS;
    const CUcontext context = current_context();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context->retained == 0)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (astray)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    return need == NO_CAPTURE ? check_capture() : CUDA_SUCCESS;
}

/* Begins each function, by its symbol. */
static CUresult begin(const char *symbol, need_t need)
{
    char        name[NAME_BYTES];
    const char *suffix = strstr(symbol, "_v2");
    snprintf(name, sizeof name, "%.*s", suffix ? (int)(suffix - symbol) : (int)strlen(symbol), symbol);
    take_lock();
    configure();
    counter_t *const any = counter_of("");
    called = counter_of(name);
    const CUresult of_any = count(any), of_this = count(called);
    CUresult       result = of_any ? of_any : of_this;
    while (any->held || called->held || (keeping_out > 0 && need != NOTHING))
        wait_in_call();
    if (result)
        strcpy(failed, name);
    else
        result = check(need);
    give_lock();
    return result;
}

#define BEGIN(need)                                   \
    do {                                              \
        CUresult begun_ = begin(__func__, need);      \
        if (begun_ != CUDA_SUCCESS)                   \
            return begun_;                            \
    } while (0)

/* Ends a function that has the lock. */
static CUresult end(CUresult result)
{
    give_lock();
    return result;
}

/* ---- errors --------------------------------------------------------------------------------------- */

static const struct {
    CUresult    result;
    const char *name, *text;
} WORDS[] = {
#define RESULT(name, text) {name, #name, text}
    RESULT(CUDA_SUCCESS, "no error"),
    RESULT(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    RESULT(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    RESULT(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    RESULT(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    RESULT(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    RESULT(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    RESULT(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    RESULT(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    RESULT(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    RESULT(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    RESULT(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    RESULT(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    RESULT(CUDA_ERROR_NOT_READY, "device not ready"),
    RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    RESULT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    RESULT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    RESULT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    RESULT(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    RESULT(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    RESULT(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a blocking stream"),
    RESULT(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef RESULT
};

static CUresult describe(CUresult result, const char **name, const char **text)
{
    for (size_t i = 0; i < PP_COUNT_OF(WORDS); i++)
        if (WORDS[i].result == result) {
            *(name ? name : text) = name ? WORDS[i].name : WORDS[i].text;
            return CUDA_SUCCESS;
        }
    *(name ? name : text) = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult result, const char **name)
{
    BEGIN(NOTHING);
    return describe(result, name, NULL);
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
    BEGIN(NOTHING);
    return describe(result, NULL, text);
}

/* ---- devices and contexts ------------------------------------------------------------------------- */

CUresult cuInit(unsigned int flags)
{
    BEGIN(NOTHING);
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    take_lock();
    if (process != 0 && process != getpid())
        return end(CUDA_ERROR_NOT_INITIALIZED);
    if (devices == 0)
        return end(CUDA_ERROR_NO_DEVICE);
    process = getpid();
    return end(CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *out)
{
    BEGIN(NOTHING);
    *out = version;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *out)
{
    BEGIN(DRIVER);
    *out = devices;
    return CUDA_SUCCESS;
}

static bool is_device(CUdevice device) { return device >= 0 && device < devices; }

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    BEGIN(DRIVER);
    if (!is_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    BEGIN(DRIVER);
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "stand-in %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    BEGIN(DRIVER);
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "stand-in device", sizeof uuid->bytes);
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    BEGIN(DRIVER);
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: *value = 1; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    BEGIN(DRIVER);
    if (!is_device(device) || !is_device(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = peers && device != peer;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    BEGIN(DRIVER);
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    take_lock();
    *context = &contexts[device];
    contexts[device].retained++;
    return end(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    BEGIN(DRIVER);
    take_lock();
    if (!context || context->retained == 0 || current.depth == DEPTH)
        return end(CUDA_ERROR_INVALID_CONTEXT);
    current.of[current.depth++] = context;
    return end(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    BEGIN(DRIVER);
    if (current.depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = current.of[--current.depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    BEGIN(DRIVER);
    *context = current_context();
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    BEGIN(DRIVER);
    current.depth -= current.depth > 0;
    if (context)
        current.of[current.depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    BEGIN(CONTEXT);
    *device = current_context()->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    BEGIN(CONTEXT);
    *least = LEAST_PRIORITY;
    *greatest = GREATEST_PRIORITY;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    BEGIN(CONTEXT);
    CUcontext own = current_context();
    if (!peer || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!peers || peer == own)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    take_lock();
    const unsigned bit = 1u << peer->device;
    if (own->peers & bit)
        return end(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    own->peers |= bit;
    return end(CUDA_SUCCESS);
}

/* ---- streams -------------------------------------------------------------------------------------- */

static void drop_event(event_t *event)
{
    if (--event->users == 0)
        free(event);
}

/* Without the lock. */
static void pause_now(stream_t *stream, uint64_t of_seed)
{
    uint64_t drawn = mix(mix(of_seed ^ stream->number << 32) + stream->draws++);
    if (of_seed && drawn % 2)
        usleep((useconds_t)(drawn / 2 % PAUSE_US));
}

/* In pieces, so that one who does not wait for the end is likely to see a part. */
static void copy_pieces(stream_t *stream, const operation_t *operation, uint64_t of_seed)
{
    const size_t piece = operation->bytes / PIECES + 1;
    for (size_t at = 0; at < operation->bytes; at += piece) {
        const size_t left = operation->bytes - at;
        if (at > 0)
            pause_now(stream, of_seed);
        memmove(operation->to + at, operation->from + at, left < piece ? left : piece);
    }
}

static void run_kernel(launch_t *launch)
{
    if (launch->kernel.function)
        launch->kernel.function(launch->arguments);
    else
        launch->kernel.run(launch->arguments, launch->blocks, launch->threads);
}

/* With the lock, which it gives up meanwhile. */
static void perform(stream_t *stream, operation_t *operation)
{
    const uint64_t of_seed = seed;
    give_lock();
    pause_now(stream, of_seed);
    if (operation->kind == COPY)
        copy_pieces(stream, operation, of_seed);
    else if (operation->kind == KERNEL)
        run_kernel(operation->launch);
    take_lock();
    if (!operation->event)
        return;
    event_t *event = operation->event;
    if (operation->kind == RECORD && event->done < operation->record)
        event->done = operation->record;
    while (operation->kind == WAIT && event->done < operation->record)
        pthread_cond_wait(&changed, &lock);
    drop_event(event);
}

static void drop_stream(stream_t *stream)
{
    if (--stream->users == 0)
        free(stream);
}

static void forget_stream(stream_t *stream)
{
    for (stream_t **link = &streams; *link; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    drop_stream(stream);
}

static void *run_stream(void *argument)
{
    stream_t *stream = argument;
    running = stream;
    take_lock();
    while (stream->first || !stream->destroyed) {
        if (!stream->first || stream->held) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        operation_t *operation = stream->first;
        perform(stream, operation);
        stream->first = operation->next;
        if (!stream->first)
            stream->last = &stream->first;
        stream->done++;
        free(operation->launch);
        free(operation);
        pthread_cond_broadcast(&changed);
    }
    forget_stream(stream);
    give_lock();
    return NULL;
}

/* With the lock.  NULL: there is no thread for it. */
static stream_t *new_stream(bool is_default, bool blocks)
{
    pthread_t thread;
    stream_t *stream = malloc(sizeof *stream);
    *stream = (stream_t){.next = streams, .handle = is_default ? NULL : take_handle(&stream_handles),
                         .context = current_context(), .number = ++numbers, .device = current_context()->device, .users = 1,
                         .held = holds_new && !is_default, .blocks = blocks};
    stream->last = &stream->first;
    if (pthread_create(&thread, NULL, run_stream, stream) != 0) {
        if (!is_default)
            give_handle(&stream_handles, stream->handle);
        free(stream);
        return NULL;
    }
    pthread_detach(thread);
    streams = stream;
    return stream;
}

/* With the lock.  NULL: there is no such stream. */
static stream_t *stream_of(CUstream handle)
{
    if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        stream_t **stream = &current_context()->defaults[handle == CU_STREAM_PER_THREAD];
        if (!*stream)
            *stream = new_stream(true, handle == CU_STREAM_PER_THREAD);
        return *stream;
    }
    stream_t *stream = streams;
    while (stream && (stream->handle != handle || stream->destroyed))
        stream = stream->next;
    return stream;
}

/* With the lock: the stream, when there is room in its queue.  NULL: there is no such stream, also if it was destroyed
   meanwhile. */
static stream_t *with_room(CUstream handle)
{
    stream_t *stream = stream_of(handle);
    while (stream && !stream->capturing && room > 0 && stream->queued - stream->done >= room) {
        wait_in_call();
        stream = stream_of(handle);
    }
    return stream;
}

/* With the lock: what a call comes to that a capture of the stream, or of one for which it would have to wait, forbids. */
static CUresult captured(const stream_t *stream)
{
    const bool is_legacy = !stream->handle && !stream->blocks;
    return stream->capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
         : is_legacy && any_captured(stream->context) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

/* The same of a call that ends the capture. */
static CUresult disturbed(const stream_t *stream)
{
    const CUresult result = captured(stream);
    misuses += result != CUDA_SUCCESS;
    return result;
}

/* With the lock. */
static CUresult queue(stream_t *stream, const operation_t *what)
{
    const CUresult result = stream->capturing ? captured(stream) : disturbed(stream);
    if (result != CUDA_SUCCESS)
        return result;
    operation_t *operation = malloc(sizeof *operation);
    *operation = *what;
    operation->next = NULL;
    operation->number = ++operations;
    if (operation->event)
        operation->event->users++;
    *stream->last = operation;
    stream->last = &operation->next;
    stream->queued++;
    pthread_cond_broadcast(&changed);
    return CUDA_SUCCESS;
}

/* With the lock: until all that is queued on the stream now is done.  The caller uses the stream no more: another thread
   may have destroyed it. */
static void wait_for(stream_t *stream)
{
    const uint64_t queued = stream->queued;
    stream->users++;
    while (stream->done < queued)
        wait_in_call();
    drop_stream(stream);
}

/* With the lock: whether streams of these devices, a bit each, have yet to do what was queued up to an operation. */
static bool is_busy(unsigned of_devices, uint64_t last)
{
    for (const stream_t *stream = streams; stream; stream = stream->next)
        if (of_devices >> stream->device & 1 && stream->first && stream->first->number <= last)
            return true;
    return false;
}

/* With the lock: until all is done that was queued on streams of these devices before. */
static void wait_for_devices(unsigned of_devices)
{
    const uint64_t last = operations;
    const bool     keeps_out = exclusive;
    keeping_out += keeps_out;
    while (is_busy(of_devices, last))
        wait_in_call();
    keeping_out -= keeps_out;
    pthread_cond_broadcast(&changed);
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
    BEGIN(CONTEXT);
    if (flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    take_lock();
    stream_t *stream = new_stream(false, !(flags & CU_STREAM_NON_BLOCKING));
    if (!stream)
        return end(CUDA_ERROR_OUT_OF_MEMORY);
    *out = stream->handle;
    return end(CUDA_SUCCESS);
}

/* A priority beyond the range becomes the nearest. */
CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
    BEGIN(CONTEXT);
    if (flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    take_lock();
    stream_t *stream = new_stream(false, !(flags & CU_STREAM_NON_BLOCKING));
    if (!stream)
        return end(CUDA_ERROR_OUT_OF_MEMORY);
    stream->priority = priority > LEAST_PRIORITY      ? LEAST_PRIORITY
                     : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY
                                                    : priority;
    *out = stream->handle;
    return end(CUDA_SUCCESS);
}

/* What is queued is done all the same. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
    BEGIN(CONTEXT);
    take_lock();
    stream_t *stream = stream_of(handle);
    if (!stream || !stream->handle)
        return end(CUDA_ERROR_INVALID_HANDLE);
    stream->destroyed = true;
    give_handle(&stream_handles, handle);
    pthread_cond_broadcast(&changed);
    return end(CUDA_SUCCESS);
}

/* This and the next end a capture of the stream, in every mode. */
CUresult cuStreamQuery(CUstream handle)
{
    BEGIN(NO_CAPTURE);
    take_lock();
    stream_t *stream = stream_of(handle);
    if (!stream)
        return end(CUDA_ERROR_INVALID_HANDLE);
    const CUresult result = disturbed(stream);
    if (result != CUDA_SUCCESS)
        return end(result);
    return end(stream->first ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    BEGIN(NO_CAPTURE);
    take_lock();
    stream_t *stream = stream_of(handle);
    if (!stream)
        return end(CUDA_ERROR_INVALID_HANDLE);
    const CUresult result = disturbed(stream);
    if (result == CUDA_SUCCESS)
        wait_for(stream);
    return end(result);
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    BEGIN(CONTEXT);
    take_lock();
    stream_t *stream = stream_of(handle);
    if (!stream)
        return end(CUDA_ERROR_INVALID_HANDLE);
    if (captured(stream) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return end(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *status = stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return end(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    BEGIN(CONTEXT);
    take_lock();
    stream_t *stream = stream_of(handle);
    if (!stream)
        return end(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capturing && version < TELLS_CAPTURED) {
        misuses++;
        return end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    *context = stream->context;
    return end(CUDA_SUCCESS);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    BEGIN(DRIVER);
    const CUstreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* ---- events --------------------------------------------------------------------------------------- */

static event_t *event_of(CUevent handle)
{
    event_t *event = events;
    while (event && event->handle != handle)
        event = event->next;
    return event;
}

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    BEGIN(CONTEXT);
    (void)flags;
    take_lock();
    event_t *event = malloc(sizeof *event);
    *event = (event_t){.next = events, .handle = take_handle(&event_handles), .context = current_context(), .users = 1};
    events = event;
    *out = event->handle;
    return end(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    BEGIN(CONTEXT);
    take_lock();
    event_t **link = &events;
    while (*link && (*link)->handle != handle)
        link = &(*link)->next;
    event_t *event = *link;
    if (!event)
        return end(CUDA_ERROR_INVALID_HANDLE);
    *link = event->next;
    give_handle(&event_handles, handle);
    drop_event(event);
    return end(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    BEGIN(CONTEXT);
    take_lock();
    stream_t *stream = with_room(stream_handle);
    event_t  *event = event_of(handle);
    if (!event || !stream || event->context != stream->context)
        return end(CUDA_ERROR_INVALID_HANDLE);
    const CUresult result = queue(stream, &(operation_t){.kind = RECORD, .event = event,
                                                         .record = event->recorded + 1});
    event->recorded += result == CUDA_SUCCESS;
    return end(result);
}

CUresult cuEventQuery(CUevent handle)
{
    BEGIN(NO_CAPTURE);
    take_lock();
    event_t *event = event_of(handle);
    if (!event)
        return end(CUDA_ERROR_INVALID_HANDLE);
    if (lies("cuEventQuery"))
        return end(CUDA_SUCCESS);
    return end(event->done < event->recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent handle)
{
    BEGIN(NO_CAPTURE);
    take_lock();
    event_t *event = event_of(handle);
    if (!event)
        return end(CUDA_ERROR_INVALID_HANDLE);
    event->users++;
    for (const uint64_t recorded = event->recorded; event->done < recorded;)
        wait_in_call();
    drop_event(event);
    return end(CUDA_SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags)
{
    BEGIN(CONTEXT);
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    take_lock();
    stream_t *stream = with_room(stream_handle);
    event_t  *event = event_of(handle);
    if (!event || !stream)
        return end(CUDA_ERROR_INVALID_HANDLE);
    if (lies("cuStreamWaitEvent"))
        return end(CUDA_SUCCESS);
    return end(queue(stream, &(operation_t){.kind = WAIT, .event = event, .record = event->recorded}));
}

/* ---- memory --------------------------------------------------------------------------------------- */

/* With the lock, as what follows.  The memory that has all of these bytes; NULL: none has. */
static memory_t *containing(uint64_t address, size_t bytes)
{
    memory_t *memory = memories;
    while (memory && (address < memory->address || bytes > memory->bytes
                      || address - memory->address > memory->bytes - bytes))
        memory = memory->next;
    return memory;
}

/* The memory of these kinds, a bit each, that begins here. */
static memory_t *beginning(uint64_t address, unsigned kinds)
{
    memory_t *memory = memories;
    while (memory && (address != memory->address || !(kinds >> memory->kind & 1)))
        memory = memory->next;
    return memory;
}

static void keep(const memory_t *what)
{
    memory_t *memory = malloc(sizeof *memory);
    *memory = *what;
    memory->number = ++numbers;
    memory->context = current_context();
    memory->next = memories;
    memories = memory;
}

/* Maps the memory of a file where no host may touch it, and where streams do. */
static bool map_twice(memory_t *memory)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    memory->mapped = (memory->bytes + page - 1) / page * page;
    void *face = mmap(NULL, memory->mapped, PROT_NONE, MAP_SHARED, memory->fd, 0);
    void *host = mmap(NULL, memory->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    if (face != MAP_FAILED && host != MAP_FAILED) {
        memory->address = (uint64_t)(uintptr_t)face;
        memory->host = host;
        return true;
    }
    if (face != MAP_FAILED)
        munmap(face, memory->mapped);
    if (host != MAP_FAILED)
        munmap(host, memory->mapped);
    return false;
}

static bool overlaps(const memory_t *memory, const char *bytes, size_t count)
{
    return bytes < memory->host + memory->bytes && bytes + count > memory->host;
}

/* Whether an address in the memory is among the arguments. */
static bool has_argument(const launch_t *launch, const memory_t *memory)
{
    bool found = false;
    for (size_t at = 0; at + sizeof(uint64_t) <= launch->used; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, launch->values + at, sizeof word);
        found |= word >= memory->address && word - memory->address < memory->bytes;
    }
    return found;
}

static bool uses(const operation_t *o, const memory_t *memory)
{
    return o->kind == COPY ? overlaps(memory, o->to, o->bytes) || overlaps(memory, o->from, o->bytes)
                           : o->kind == KERNEL && has_argument(o->launch, memory);
}

/* The devices that have a copy or a kernel with this memory queued, a bit each. */
static unsigned users_of(const memory_t *memory)
{
    unsigned of_devices = 0;
    for (const stream_t *stream = streams; stream; stream = stream->next)
        for (const operation_t *o = stream->first; o; o = o->next)
            if (uses(o, memory))
                of_devices |= 1u << stream->device;
    return of_devices;
}

static void remove_memory(memory_t *memory)
{
    memory_t **link = &memories;
    while (*link != memory)
        link = &(*link)->next;
    *link = memory->next;
    if (memory->kind != REGISTERED)
        munmap((void *)(uintptr_t)memory->address, memory->mapped);
    if (memory->kind == DEVICE || memory->kind == MAPPING) {
        munmap(memory->host, memory->mapped);
        close(memory->fd);
    }
    free(memory);
}

/* Removes the memory that begins here, when all is done that was queued on streams of these devices before; where it frees
   at once, what uses the memory.  False: there is none.  That something is queued with it is a misuse, whatever the
   memory: no driver promises to wait for it. */
static bool forget(uint64_t address, unsigned kinds, unsigned of_devices)
{
    memory_t *memory = beginning(address, kinds);
    if (!memory)
        return false;
    const uint64_t number = memory->number;
    misuses += users_of(memory) != 0;
    do {
        wait_for_devices((frees_at_once ? 0 : of_devices) | users_of(memory));
        memory = beginning(address, kinds);
        if (!memory || memory->number != number)
            return false;                        /* another thread was faster */
        misuses += users_of(memory) != 0;
    } while (users_of(memory));
    remove_memory(memory);
    return true;
}

static void name_of(uint64_t nonce, char *name, size_t bytes)
{
    snprintf(name, bytes, "fakecuda-%016llx", (unsigned long long)nonce);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    BEGIN(NO_CAPTURE);
    char     name[NAME_BYTES];
    memory_t memory = {.kind = DEVICE, .bytes = bytes, .device = current_context()->device};
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (getrandom(&memory.nonce, sizeof memory.nonce, 0) != (ssize_t)sizeof memory.nonce)
        return CUDA_ERROR_UNKNOWN;
    name_of(memory.nonce, name, sizeof name);
    memory.fd = memfd_create(name, MFD_CLOEXEC);
    if (memory.fd < 0 || ftruncate(memory.fd, (off_t)bytes) != 0 || !map_twice(&memory)) {
        if (memory.fd >= 0)
            close(memory.fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memset(memory.host, 0xa5, bytes);     /* what was there before */
    *address = memory.address;
    take_lock();
    keep(&memory);
    return end(CUDA_SUCCESS);
}

static CUresult map_for_host(memory_t memory, void **out)
{
    memory.host = mmap(NULL, memory.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory.host == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = memory.host;
    memory.address = (uint64_t)(uintptr_t)memory.host;
    memory.mapped = memory.bytes;
    take_lock();
    keep(&memory);
    return end(CUDA_SUCCESS);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
    BEGIN(NO_CAPTURE);
    (void)flags;
    void          *memory = NULL;
    const CUresult result =
        map_for_host((memory_t){.kind = MANAGED, .bytes = bytes, .device = current_context()->device}, &memory);
    *address = (CUdeviceptr)(uintptr_t)memory;
    return result;
}

/* Whether another process has it mapped: each of those has the file locked, and a process that dies lets go of it. */
static bool is_mapped_elsewhere(const memory_t *memory)
{
    if (!memory || memory->kind != DEVICE)
        return false;
    const bool is_mapped = flock(memory->fd, LOCK_EX | LOCK_NB) != 0;
    flock(memory->fd, LOCK_UN);                  /* one that opens it does not wait until it is freed */
    return is_mapped;
}

/* The devices whose streams are waited for when memory of a device is given back. */
static unsigned devices_of(const memory_t *memory)
{
    return 1u << current_context()->device | (memory ? 1u << memory->device : 0);
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    BEGIN(NO_CAPTURE);
    take_lock();
    const unsigned  kinds = 1 << DEVICE | 1 << MANAGED;
    const memory_t *memory = beginning(address, kinds);
    misuses += is_mapped_elsewhere(memory);
    return end(forget(address, kinds, devices_of(memory)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
    BEGIN(NO_CAPTURE);
    (void)flags;
    return map_for_host((memory_t){.kind = HOST, .bytes = bytes, .device = current_context()->device}, memory);
}

CUresult cuMemFreeHost(void *memory)
{
    BEGIN(NO_CAPTURE);
    take_lock();
    const bool was_there = forget((uint64_t)(uintptr_t)memory, 1 << HOST, ALL_DEVICES);
    return end(was_there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags)
{
    BEGIN(NO_CAPTURE);
    const uint64_t address = (uint64_t)(uintptr_t)memory;
    if (!memory || bytes == 0 || flags > (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP))
        return CUDA_ERROR_INVALID_VALUE;
    take_lock();
    for (const memory_t *other = memories; other; other = other->next)
        if (address < other->address + other->bytes && other->address < address + bytes)
            return end(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    keep(&(memory_t){.kind = REGISTERED, .address = address, .host = memory, .bytes = bytes,
                     .device = current_context()->device});
    return end(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *memory)
{
    BEGIN(NO_CAPTURE);
    take_lock();
    const bool was_there = forget((uint64_t)(uintptr_t)memory, 1 << REGISTERED, ALL_DEVICES);
    return end(was_there ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* With the lock: where a stream finds an operand of a copy. */
static CUresult operand(uint64_t address, size_t bytes, char **host, bool *is_pageable)
{
    const memory_t *memory = containing(address, bytes);
    if (!memory && containing(address, 1))
        return CUDA_ERROR_INVALID_VALUE;         /* it goes beyond its memory's end */
    *host = memory ? memory->host + (address - memory->address) : (char *)(uintptr_t)address;
    *is_pageable |= !memory;
    return CUDA_SUCCESS;
}

/* With the call's scope. */
static CUresult queue_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
    operation_t operation = {.kind = COPY, .bytes = bytes};
    char       *source = NULL;
    bool        is_pageable = false;
    take_lock();
    stream_t *stream = bytes > 0 ? with_room(handle) : stream_of(handle);
    CUresult  result = stream ? operand(to, bytes, &operation.to, &is_pageable) : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        result = operand(from, bytes, &source, &is_pageable);
    operation.from = source;
    if (result == CUDA_SUCCESS && bytes > 0)
        result = queue(stream, &operation);
    if (result == CUDA_SUCCESS && bytes > 0 && is_pageable) {
        pageable_copies++;
        wait_for(stream);
    }
    return end(result);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
    BEGIN(CONTEXT);
    return queue_copy(to, from, bytes, handle);
}

/* Rows with nothing between them, from the host to a device. */
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream handle)
{
    BEGIN(CONTEXT);
    if (copy->srcMemoryType != CU_MEMORYTYPE_HOST || copy->dstMemoryType != CU_MEMORYTYPE_DEVICE || copy->srcXInBytes
        || copy->srcY || copy->dstXInBytes || copy->dstY || copy->srcPitch != copy->WidthInBytes
        || copy->dstPitch != copy->WidthInBytes)
        return CUDA_ERROR_NOT_SUPPORTED;
    return queue_copy(copy->dstDevice, pp_cuda_address(copy->srcHost), copy->WidthInBytes * copy->Height, handle);
}

static void answer(CUpointer_attribute attribute, const memory_t *memory, CUdeviceptr address, void *out)
{
    static const memory_t unknown = {.device = CU_DEVICE_INVALID};
    const memory_t       *m = memory ? memory : &unknown;
    const bool            is_managed = memory && m->kind == MANAGED;
    const bool            is_host = memory && (m->kind == HOST || m->kind == REGISTERED);
    void *const           for_host = is_managed || is_host ? (void *)(uintptr_t)address : NULL;
    const uint32_t        type = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = memory ? m->context : NULL; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(uint32_t *)out = memory ? type : 0; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = memory ? address : 0; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(void **)out = for_host; break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(uint32_t *)out = m->synchronous; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(uint64_t *)out = m->number; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(uint32_t *)out = is_managed; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = m->device; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(uint32_t *)out = memory && m->kind == DEVICE; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = m->address; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = m->bytes; break;
    }
}

CUresult cuPointerGetAttributes(unsigned int number, CUpointer_attribute *attributes, void **answers,
                                CUdeviceptr address)
{
    BEGIN(DRIVER);
    take_lock();
    const memory_t *memory = containing(address, 1);
    for (unsigned int i = 0; i < number; i++)
        answer(attributes[i], memory, address, answers[i]);
    return end(CUDA_SUCCESS);
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    BEGIN(CONTEXT);
    take_lock();
    memory_t *memory = containing(address, 1);
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !memory || memory->kind != DEVICE)
        return end(CUDA_ERROR_INVALID_VALUE);
    memory->synchronous = *(const uint32_t *)value != 0;
    return end(CUDA_SUCCESS);
}

/* ---- memory of other processes -------------------------------------------------------------------- */

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    BEGIN(CONTEXT);
    take_lock();
    const memory_t *memory = containing(address, 1);
    if (!memory || memory->kind != DEVICE)
        return end(CUDA_ERROR_INVALID_VALUE);
    const ticket_t ticket = {.nonce = memory->nonce, .bytes = memory->bytes, .pid = getpid(), .fd = memory->fd,
                             .device = memory->device};
    *handle = (CUipcMemHandle){{0}};
    memcpy(handle->reserved, &ticket, sizeof ticket);
    return end(CUDA_SUCCESS);
}

/* The descriptor of another process's memory; -1: it is not there. */
static int open_memory(const ticket_t *ticket)
{
    char path[64], wanted[NAME_BYTES], name[128] = "";
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)ticket->pid, (long long)ticket->fd);
    name_of(ticket->nonce, wanted, sizeof wanted);
    const int fd = readlink(path, name, sizeof name - 1) < 0 || !strstr(name, wanted) ? -1
                                                                                      : open(path, O_RDWR | O_CLOEXEC);
    return fd;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    BEGIN(NO_CAPTURE);
    ticket_t ticket;
    memcpy(&ticket, handle.reserved, sizeof ticket);
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !is_device(ticket.device))
        return CUDA_ERROR_INVALID_VALUE;
    if (ticket.pid == getpid())                  /* its own memory: the driver refuses it, too */
        return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext own = current_context();
    if (ticket.device != own->device && !peers)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    take_lock();
    if (ticket.device != own->device)
        own->peers |= 1u << ticket.device;       /* as the flag says */
    for (memory_t *other = memories; other; other = other->next)
        if (other->kind == MAPPING && other->nonce == ticket.nonce && other->opened > 0) {
            other->opened++;
            *address = other->address;
            return end(CUDA_SUCCESS);
        }
    memory_t memory = {.kind = MAPPING, .bytes = ticket.bytes, .device = ticket.device, .nonce = ticket.nonce,
                       .opened = 1, .fd = open_memory(&ticket)};
    if (memory.fd < 0)
        return end(CUDA_ERROR_MAP_FAILED);
    if (flock(memory.fd, LOCK_SH) != 0 || !map_twice(&memory)) {
        close(memory.fd);
        return end(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *address = memory.address;
    keep(&memory);
    return end(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    BEGIN(NO_CAPTURE);
    take_lock();
    memory_t *memory = beginning(address, 1 << MAPPING);
    if (!memory || memory->opened == 0)
        return end(CUDA_ERROR_INVALID_VALUE);
    const unsigned of_devices = devices_of(memory);
    if (--memory->opened == 0)
        forget(address, 1 << MAPPING, of_devices);
    else
        wait_for_devices(of_devices);
    return end(CUDA_SUCCESS);
}

/* ---- kernels -------------------------------------------------------------------------------------- */

/* With the lock. */
static kernel_t *new_kernel(const char *name, int arguments, const size_t *bytes)
{
    kernel_t *kernel = calloc(1, sizeof *kernel);
    kernel->name = strdup(name);
    kernel->count = arguments;
    memcpy(kernel->bytes, bytes, (size_t)arguments * sizeof *bytes);
    kernel->next = kernels;
    return kernels = kernel;
}

static void add_kernel(const char *name, fake_kernel_t function, int arguments, const size_t *bytes)
{
    new_kernel(name, arguments, bytes)->function = function;
}

/* Adds modulo 2^32, as a device does. */
static void sum_int32(void **arguments)
{
    const size_t    count = *(const size_t *)arguments[3];
    uint32_t       *out = fake_reach(*(const CUdeviceptr *)arguments[0], count * sizeof *out);
    const uint32_t *left = fake_reach(*(const CUdeviceptr *)arguments[1], count * sizeof *left);
    const uint32_t *right = fake_reach(*(const CUdeviceptr *)arguments[2], count * sizeof *right);
    for (size_t i = 0; out && left && right && i < count; i++)
        out[i] = left[i] + right[i];
}

/* A library's file ends with the headers of its sections. */
static size_t bytes_of_library(const void *image)
{
    const Elf64_Ehdr *head = image;
    return head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
}

/* The loader knows libraries by their names, so the file stays open as long as the library. */
static void *open_library(const void *image, int *fd)
{
    char         path[64];
    const size_t bytes = bytes_of_library(image);
    *fd = memfd_create("kernels", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", *fd);
    const bool is_whole = *fd >= 0 && write(*fd, image, bytes) == (ssize_t)bytes;
    return is_whole ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void close_module(module_t *module)
{
    if (module->library)
        dlclose(module->library);
    if (module->fd >= 0)
        close(module->fd);
    free(module->image);
    free(module);
}

static void *reach_of_kernel(unsigned long long address, size_t bytes) { return fake_reach(address, bytes); }

/* With the lock.  False: the library has no kernels. */
static bool add_kernels(const module_t *module)
{
    size_t               count;
    const host_kernel_t *(*found)(host_reach_t, size_t *);
    void                *symbol = dlsym(module->library, "host_kernels");
    memcpy(&found, &symbol, sizeof found);
    if (!found)
        return false;
    const host_kernel_t *of_library = found(reach_of_kernel, &count);
    for (size_t i = 0; i < count; i++) {
        kernel_t *kernel = new_kernel(of_library[i].name, of_library[i].count, of_library[i].bytes);
        kernel->run = of_library[i].run;
        kernel->module = module->handle;
    }
    return true;
}

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    BEGIN(NO_CAPTURE);
    if (!image || !*(const char *)image)
        return CUDA_ERROR_INVALID_IMAGE;
    module_t  *module = calloc(1, sizeof *module);
    const bool is_library = memcmp(image, ELFMAG, SELFMAG) == 0;
    module->fd = -1;
    if (is_library)
        module->library = open_library(image, &module->fd);
    else
        module->image = strdup(image);
    take_lock();
    module->handle = new_handle();
    module->context = current_context();
    if (is_library && (!module->library || !add_kernels(module))) {
        close_module(module);
        return end(CUDA_ERROR_INVALID_IMAGE);
    }
    module->next = modules;
    modules = module;
    *out = module->handle;
    return end(CUDA_SUCCESS);
}

/* With the lock. */
static void remove_kernels(CUmodule module)
{
    for (kernel_t **link = &kernels; *link;) {
        kernel_t *kernel = *link;
        if (kernel->module == module) {
            *link = kernel->next;
            free(kernel->name);
            free(kernel);
        } else {
            link = &kernel->next;
        }
    }
}

static bool is_launched(CUmodule module)
{
    for (const stream_t *stream = streams; stream; stream = stream->next)
        for (const operation_t *o = stream->first; o; o = o->next)
            if (o->kind == KERNEL && o->launch->kernel.module == module)
                return true;
    return false;
}

CUresult cuModuleUnload(CUmodule handle)
{
    BEGIN(NO_CAPTURE);
    take_lock();
    if (is_launched(handle)) {
        misuses++;
        wait_for_devices(ALL_DEVICES);
    }
    module_t **link = &modules;
    while (*link && (*link)->handle != handle)
        link = &(*link)->next;
    module_t *module = *link;
    if (!module)
        return end(CUDA_ERROR_INVALID_HANDLE);
    *link = module->next;
    remove_kernels(handle);
    close_module(module);
    return end(CUDA_SUCCESS);
}

/* With the lock.  A module that is a text has the registered kernels that it names. */
static bool has_kernel(const module_t *module, const kernel_t *kernel)
{
    if (module->library)
        return kernel->module == module->handle;
    return !kernel->module && strstr(module->image, kernel->name);
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
    BEGIN(CONTEXT);
    take_lock();
    const module_t *module = modules;
    while (module && module->handle != handle)
        module = module->next;
    if (!module)
        return end(CUDA_ERROR_INVALID_HANDLE);
    kernel_t *kernel = kernels;
    while (kernel && (strcmp(kernel->name, name) != 0 || !has_kernel(module, kernel)))
        kernel = kernel->next;
    if (!kernel)
        return end(CUDA_ERROR_NOT_FOUND);
    *out = (CUfunction)kernel;
    return end(CUDA_SUCCESS);
}

static launch_t *new_launch(const kernel_t *kernel, unsigned blocks, unsigned threads, void **parameters)
{
    size_t    used = 0;
    launch_t *launch = calloc(1, sizeof *launch);
    launch->kernel = *kernel;
    launch->blocks = blocks;
    launch->threads = threads;
    for (int i = 0; i < kernel->count; i++) {
        launch->arguments[i] = launch->values + used;
        memcpy(launch->arguments[i], parameters[i], kernel->bytes[i]);
        used += (kernel->bytes[i] + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    }
    launch->used = used;
    return launch;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream handle, void **parameters, void **extra)
{
    BEGIN(CONTEXT);
    (void)shared_bytes;
    if (extra)
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((uint64_t)grid_x * grid_y * grid_z == 0 || (uint64_t)block_x * block_y * block_z == 0
        || (uint64_t)block_x * block_y * block_z > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    take_lock();
    stream_t       *stream = with_room(handle);
    const kernel_t *kernel = kernels;
    while (kernel && (CUfunction)kernel != function)
        kernel = kernel->next;
    if (!stream || !kernel || stream->context != current_context())
        return end(CUDA_ERROR_INVALID_HANDLE);
    if (kernel->run && (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1))
        return end(CUDA_ERROR_NOT_SUPPORTED);
    launch_t      *launch = new_launch(kernel, grid_x, block_x, parameters);
    const CUresult result = queue(stream, &(operation_t){.kind = KERNEL, .launch = launch});
    if (result != CUDA_SUCCESS)
        free(launch);
    return end(result);
}

/* ---- the end of a context ------------------------------------------------------------------------- */

/* With the lock, as what follows: each takes with the context what is of one kind, and says whether there was any. */
static bool take_memory(CUcontext context, unsigned kinds)
{
    bool was_there = false;
    for (memory_t *next, *memory = memories; memory; memory = next) {
        next = memory->next;
        if (memory->context == context && kinds >> memory->kind & 1) {
            remove_memory(memory);
            was_there = true;
        }
    }
    return was_there;
}

/* The default streams are nobody's. */
static bool take_streams(CUcontext context)
{
    bool was_there = false;
    for (stream_t *stream = streams; stream; stream = stream->next)
        if (stream->context == context && !stream->destroyed) {
            stream->destroyed = true;
            if (stream->handle)
                give_handle(&stream_handles, stream->handle);
            was_there |= stream->handle != NULL;
        }
    pthread_cond_broadcast(&changed);
    return was_there;
}

static bool take_events(CUcontext context)
{
    bool was_there = false;
    for (event_t **link = &events; *link;) {
        event_t *event = *link;
        if (event->context != context) {
            link = &event->next;
            continue;
        }
        *link = event->next;
        give_handle(&event_handles, event->handle);
        drop_event(event);
        was_there = true;
    }
    return was_there;
}

static bool take_modules(CUcontext context)
{
    bool was_there = false;
    for (module_t **link = &modules; *link;) {
        module_t *module = *link;
        if (module->context != context) {
            link = &module->next;
            continue;
        }
        *link = module->next;
        remove_kernels(module->handle);
        close_module(module);
        was_there = true;
    }
    return was_there;
}

static bool is_primary(const struct CUctx_st *context) { return context < contexts + DEVICES; }

/* One misuse for each kind of which something is left. */
static void destroy(CUcontext context)
{
    misuses += take_memory(context, 1 << DEVICE | 1 << MANAGED);
    misuses += take_memory(context, 1 << HOST);
    misuses += take_memory(context, 1 << REGISTERED);
    misuses += take_memory(context, 1 << MAPPING);
    misuses += take_streams(context);
    misuses += take_events(context);
    misuses += take_modules(context);
    context->defaults[0] = context->defaults[1] = NULL;
    context->peers = 0;
    for (int i = 0; i < CONTEXTS && is_primary(context); i++)
        contexts[i].peers &= ~(1u << context->device);
}

/* The last release waits for what is queued, and destroys the context. */
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    BEGIN(DRIVER);
    if (!is_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUcontext context = &contexts[device];
    take_lock();
    while (context->retained == 1 && is_busy(1u << device, UINT64_MAX))
        wait_in_call();
    if (context->retained == 0)
        return end(CUDA_ERROR_INVALID_CONTEXT);
    if (--context->retained == 0)
        destroy(context);
    return end(CUDA_SUCCESS);
}

/* A context beside the primary one, with default streams of its own.  It becomes the calling thread's current one. */
CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
    BEGIN(DRIVER);
    if (!is_device(device) || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    take_lock();
    CUcontext context = contexts + DEVICES;
    while (context < contexts + CONTEXTS && context->retained > 0)
        context++;
    if (context == contexts + CONTEXTS || current.depth == DEPTH)
        return end(CUDA_ERROR_OUT_OF_MEMORY);
    *context = (struct CUctx_st){.device = device, .retained = 1};
    *out = current.of[current.depth++] = context;
    return end(CUDA_SUCCESS);
}

static bool is_busy_in(const struct CUctx_st *context)
{
    const stream_t *stream = streams;
    while (stream && (stream->context != context || !stream->first))
        stream = stream->next;
    return stream;
}

/* It is no longer current in the calling thread.  Waits for what is queued there. */
CUresult cuCtxDestroy_v2(CUcontext context)
{
    BEGIN(DRIVER);
    take_lock();
    if (!context || is_primary(context) || context->retained == 0)
        return end(CUDA_ERROR_INVALID_CONTEXT);
    while (is_busy_in(context))
        wait_in_call();
    current.depth -= current_context() == context;
    context->retained = 0;
    destroy(context);
    return end(CUDA_SUCCESS);
}

/* ---- for tests: fakecuda.h ------------------------------------------------------------------------ */

void fake_fail(const char *name, uint64_t nth, CUresult result)
{
    take_lock();
    configure();
    inject(name, nth, result);
    give_lock();
}

void fake_hold_calls(const char *name, bool held)
{
    take_lock();
    configure();
    counter_of(name)->held = held;
    pthread_cond_broadcast(&changed);
    give_lock();
}

uint64_t fake_held_calls(const char *name)
{
    uint64_t found = 0;
    take_lock();
    for (int i = 0; i < counter_count; i++)
        found += !*name || strcmp(counters[i].name, name) == 0 ? counters[i].waiting : 0;
    give_lock();
    return found;
}

const char *fake_failed(void) { return failed; }

uint64_t fake_calls(const char *name)
{
    take_lock();
    const uint64_t calls = counter_of(name)->calls;
    give_lock();
    return calls;
}

static const char *const KINDS[] = {"memory", "host memory", "registrations", "mappings",
                                    "streams", "events", "modules", "contexts"};

static uint64_t count_memory(unsigned kinds)
{
    uint64_t found = 0;
    for (const memory_t *memory = memories; memory; memory = memory->next)
        found += kinds >> memory->kind & 1;
    return found;
}

/* With the lock: how many there are of KINDS[kind]. */
static uint64_t live(size_t kind)
{
    uint64_t found = 0;
    switch (kind) {
    case 0: return count_memory(1 << DEVICE | 1 << MANAGED);
    case 1: return count_memory(1 << HOST);
    case 2: return count_memory(1 << REGISTERED);
    case 3: return count_memory(1 << MAPPING);
    case 4:
        for (const stream_t *stream = streams; stream; stream = stream->next)
            found += stream->handle && !stream->destroyed;
        return found;
    case 5:
        for (const event_t *event = events; event; event = event->next)
            found++;
        return found;
    case 6:
        for (const module_t *module = modules; module; module = module->next)
            found++;
        return found;
    default:
        for (int i = 0; i < CONTEXTS; i++)
            found += (uint64_t)contexts[i].retained;
        return found;
    }
}

uint64_t fake_live(const char *kind)
{
    size_t i = 0;
    while (i < PP_COUNT_OF(KINDS) && strcmp(KINDS[i], kind) != 0)
        i++;
    if (i == PP_COUNT_OF(KINDS))
        abort();
    take_lock();
    const uint64_t found = live(i);
    give_lock();
    return found;
}

void fake_take_back(const char *kind)
{
    const unsigned kinds = 1 << (strcmp(kind, "mappings") == 0 ? MAPPING : DEVICE);
    take_lock();
    if (strcmp(kind, "contexts") == 0) {
        contexts[0].retained--;
    } else {
        const memory_t *memory = memories;
        while (memory && !(kinds & 1 << memory->kind))
            memory = memory->next;
        if (!memory)
            abort();
        void *const  place = (void *)(uintptr_t)memory->address;
        const size_t bytes = memory->mapped;
        called = NULL;                           /* it is no call of the driver that waits */
        forget(memory->address, kinds, ALL_DEVICES);
        /* The library may still know this memory: no other comes to its place. */
        mmap(place, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    }
    give_lock();
}

const char *fake_leaks(void)
{
    static char text[256];
    size_t      length = 0;
    take_lock();
    text[0] = '\0';
    for (size_t i = 0; i < PP_COUNT_OF(KINDS); i++) {
        const uint64_t found = live(i);
        if (found > 0)
            length += (size_t)snprintf(text + length, sizeof text - length, "%s%s: %llu", length > 0 ? ", " : "",
                                       KINDS[i], (unsigned long long)found);
    }
    give_lock();
    return text;
}

uint64_t fake_misuses(void)
{
    take_lock();
    const uint64_t found = misuses;
    give_lock();
    return found;
}

uint64_t fake_pageable_copies(void)
{
    take_lock();
    const uint64_t found = pageable_copies;
    give_lock();
    return found;
}

void fake_free_at_once(bool value)
{
    take_lock();
    frees_at_once = value;
    give_lock();
}

void fake_exclusive(bool value)
{
    take_lock();
    exclusive = value;
    give_lock();
}

void fake_version(int value)
{
    take_lock();
    configure();
    version = value;
    give_lock();
}

void fake_seed(uint64_t value)
{
    take_lock();
    configure();
    seed = value;
    give_lock();
}

/* With the lock.  A test that names no stream has a defect. */
static stream_t *stream_for_test(CUstream handle)
{
    stream_t *stream = stream_of(handle);
    if (!stream)
        abort();
    return stream;
}

void fake_hold(CUstream handle, bool held)
{
    take_lock();
    stream_for_test(handle)->held = held;
    pthread_cond_broadcast(&changed);
    give_lock();
}

/* The newest from this one on that an application or the library may still use. */
static CUstream newest_from(const stream_t *stream)
{
    while (stream && (!stream->handle || stream->destroyed))
        stream = stream->next;
    return stream ? stream->handle : NULL;
}

CUstream fake_newest_stream(void)
{
    take_lock();
    const CUstream newest = newest_from(streams);
    give_lock();
    return newest;
}

CUstream fake_stream_before(CUstream handle)
{
    take_lock();
    const CUstream before = newest_from(stream_for_test(handle)->next);
    give_lock();
    return before;
}

void fake_hold_new(bool held)
{
    take_lock();
    holds_new = held;
    give_lock();
}

void fake_hold_all(void)
{
    take_lock();
    holds_new = true;
    for (stream_t *stream = streams; stream; stream = stream->next)
        stream->held = true;
    give_lock();
}

void fake_let_all_go(void)
{
    take_lock();
    holds_new = false;
    for (stream_t *stream = streams; stream; stream = stream->next)
        stream->held = false;
    for (int i = 0; i < counter_count; i++)
        counters[i].held = false;
    pthread_cond_broadcast(&changed);
    give_lock();
}

void fake_capture(CUstream handle, bool capturing)
{
    take_lock();
    stream_for_test(handle)->capturing = capturing;
    give_lock();
}

void fake_room(uint64_t operations_of_a_stream)
{
    take_lock();
    configure();
    room = operations_of_a_stream;
    pthread_cond_broadcast(&changed);
    give_lock();
}

int fake_priority(CUstream handle)
{
    take_lock();
    const int priority = stream_for_test(handle)->priority;
    give_lock();
    return priority;
}

void fake_kernel(const char *name, fake_kernel_t function, int arguments, const size_t *bytes)
{
    size_t sum = 0;
    for (int i = 0; i < arguments; i++)
        sum += bytes[i] + sizeof(max_align_t);
    if (arguments > FAKE_ARGUMENTS || sum > FAKE_ARGUMENT_BYTES)
        abort();
    take_lock();
    configure();
    add_kernel(name, function, arguments, bytes);
    give_lock();
}

/* A kernel uses memory of its own device, and of those to which its context has access; a test uses any. */
static bool may_use(const memory_t *memory)
{
    const bool is_of_device = memory->kind == DEVICE || memory->kind == MAPPING;
    return !running || !is_of_device || memory->device == running->device
        || running->context->peers >> memory->device & 1;
}

void *fake_reach(CUdeviceptr address, size_t bytes)
{
    take_lock();
    const memory_t *memory = containing(address, bytes);
    void           *host = memory && may_use(memory) ? memory->host + (address - memory->address) : NULL;
    astray |= !host;
    reaches++;
    give_lock();
    return host;
}

void *fake_host(CUdeviceptr address, size_t bytes)
{
    take_lock();
    const memory_t *memory = containing(address, bytes);
    void           *host = memory ? memory->host + (address - memory->address) : NULL;
    give_lock();
    return host;
}

uint64_t fake_reaches(void)
{
    take_lock();
    const uint64_t found = reaches;
    give_lock();
    return found;
}
