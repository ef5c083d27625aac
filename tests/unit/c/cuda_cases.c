/*
 * cuda_cases.c - csrc/cuda/driver.c, and the stand-in for the driver (tests/support/fakecuda.h).  Run by
 * tests/unit/test_cuda_driver.py:
 *
 *     cuda_cases CASE [NUMBER]     exits with 1 and says which line was wrong; the function CASE says what it holds
 */
#define _GNU_SOURCE
#include "../../support/fakecuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 100000, SEEDS = 40, THREADS = 8, NOT_REACHED = 77 };

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "line %d: not so: %s (%s)\n", __LINE__, #condition, pp_error_text());     \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)
#define DONE(call) CHECK((call) == PP_OK)
#define SAME(text, wanted)                                                                            \
    do {                                                                                              \
        const char *text_ = text;                                                                     \
        if (strcmp(text_, wanted) != 0) {                                                             \
            fprintf(stderr, "line %d: '%s', not '%s'\n", __LINE__, text_, wanted);                    \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

static pp_cuda_device_t device;
static const pp_cuda_t *cuda;                    /* device.cuda */
static int              number;                  /* the program's second argument */
static int              ordinal;                 /* of the device */

/* Opens the device and enters it. */
static void begin(void)
{
    DONE(pp_cuda_device_open(ordinal, &device));
    cuda = device.cuda;
    DONE(pp_cuda_enter(&device));
}

/* Leaves it and closes it; nothing may be left. */
static void finish_after(uint64_t misuses)
{
    DONE(pp_cuda_leave(&device, PP_OK));
    pp_cuda_device_close(&device);
    SAME(fake_leaks(), "");
    CHECK(fake_misuses() == misuses);
}

static void finish(void) { finish_after(0); }

static CUdeviceptr memory_of_device(size_t bytes)
{
    CUdeviceptr address;
    DONE(PP_CUDA(cuda, cuMemAlloc, &address, bytes));
    return address;
}

static unsigned char *pinned_memory(size_t bytes)
{
    void *memory;
    DONE(PP_CUDA(cuda, cuMemHostAlloc, &memory, bytes, CU_MEMHOSTALLOC_PORTABLE));
    return memory;
}

static CUstream new_stream(void)
{
    CUstream stream;
    DONE(pp_cuda_make_stream(cuda, &stream));
    return stream;
}

static CUevent new_event(void)
{
    CUevent event;
    DONE(PP_CUDA(cuda, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static void copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    DONE(PP_CUDA(cuda, cuMemcpyAsync, to, from, bytes, stream));
}

/* `second` does what is queued on it from now on after what is queued on `first` by now. */
static void order(CUstream first, CUstream second, CUevent event)
{
    DONE(PP_CUDA(cuda, cuEventRecord, event, first));
    DONE(PP_CUDA(cuda, cuStreamWaitEvent, second, event, 0));
}

static void launch(CUfunction function, CUdeviceptr out, CUdeviceptr left, CUdeviceptr right, size_t count,
                   CUstream stream)
{
    void *parameters[] = {&out, &left, &right, &count};
    DONE(PP_CUDA(cuda, cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

/* The kernel that adds 32-bit integers. */
static CUfunction sum_of(CUmodule *module)
{
    CUfunction sum;
    DONE(PP_CUDA(cuda, cuModuleLoadData, module, "sum_int32"));
    DONE(PP_CUDA(cuda, cuModuleGetFunction, &sum, *module, "sum_int32"));
    return sum;
}

static void fill(unsigned char *memory, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)pp_mix(seed, i);
}

static bool is_filled(const unsigned char *memory, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (memory[i] != (unsigned char)pp_mix(seed, i))
            return false;
    return true;
}

/* Ends with the status of a child; a child that dies takes this process with it. */
static int status_of(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* A call of the driver in another thread. */
typedef struct call {
    const char *name;
    CUresult  (*make)(const struct call *call);
    CUdeviceptr address;
    CUstream    stream;
    CUevent     event;
    CUfunction  function;
    pthread_t   thread;
    CUresult    result;
    atomic_bool is_over;
} call_t;

static void *make_call(void *argument)
{
    call_t *call = argument;
    DONE(pp_cuda_enter(&device));
    call->result = call->make(call);
    DONE(pp_cuda_leave(&device, PP_OK));
    atomic_store(&call->is_over, true);
    return NULL;
}

/* Begins a call that has to wait, and returns when it does. */
static void begin_call(call_t *call)
{
    const uint64_t before = fake_held_calls(call->name);
    atomic_store(&call->is_over, false);
    CHECK(pthread_create(&call->thread, NULL, make_call, call) == 0);
    while (fake_held_calls(call->name) == before) {
        CHECK(!atomic_load(&call->is_over));
        usleep(100);
    }
}

static CUresult end_call(call_t *call)
{
    CHECK(pthread_join(call->thread, NULL) == 0);
    return call->result;
}

static CUresult free_there(const call_t *call) { return cuda->cuMemFree(call->address); }
static CUresult free_here(const call_t *call) { return cuda->cuMemFreeHost((void *)(uintptr_t)call->address); }
static CUresult unregister(const call_t *call) { return cuda->cuMemHostUnregister((void *)(uintptr_t)call->address); }
static CUresult close_mapping(const call_t *call) { return cuda->cuIpcCloseMemHandle(call->address); }
static CUresult record(const call_t *call) { return cuda->cuEventRecord(call->event, call->stream); }
static CUresult wait_event(const call_t *call) { return cuda->cuStreamWaitEvent(call->stream, call->event, 0); }
static CUresult copy_there(const call_t *call)
{
    return cuda->cuMemcpyAsync(call->address, call->address, 4, call->stream);
}
static CUresult sum_there(const call_t *call)
{
    CUdeviceptr at = call->address;
    size_t      count = 1;
    void       *parameters[] = {&at, &at, &at, &count};
    return cuda->cuLaunchKernel(call->function, 1, 1, 1, 32, 1, 1, 0, call->stream, parameters, NULL);
}
static CUresult release(const call_t *call)
{
    (void)call;
    return cuda->cuDevicePrimaryCtxRelease(device.device);
}

/* ---- opening -------------------------------------------------------------------------------------- */

/* Prints what opening the driver says, twice: the second time in another thread. */
static void *open_and_print(void *unused)
{
    const pp_cuda_t  *table = (const pp_cuda_t *)&number;
    const pp_status_t status = pp_cuda_open(&table);
    CHECK((status == PP_OK) == (table != NULL));
    printf("%d %s\n", status, status < 0 ? pp_error_text() : "open");
    return unused;
}

static void open_twice(void)
{
    pthread_t other;
    open_and_print(NULL);
    CHECK(pthread_create(&other, NULL, open_and_print, NULL) == 0 && pthread_join(other, NULL) == 0);
    CHECK(fake_calls("cuInit") <= 1);
}

static pthread_barrier_t all_there;

static void *open_with_others(void *unused)
{
    const pp_cuda_t *table;
    (void)unused;
    pthread_barrier_wait(&all_there);
    DONE(pp_cuda_open(&table));
    DONE(PP_CUDA(table, cuDeviceGetCount, &(int){0}));
    return (void *)(uintptr_t)table;
}

/* Threads that open the driver at the same time have one table, and it is opened once. */
static void threads(void)
{
    pthread_t thread[THREADS];
    void     *table[THREADS];
    CHECK(pthread_barrier_init(&all_there, NULL, THREADS) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, open_with_others, NULL) == 0);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(thread[i], &table[i]) == 0);
        CHECK(table[i] == table[0]);
    }
    CHECK(fake_calls("cuInit") == 1 && fake_calls("cuDriverGetVersion") == 1);
}

/* A forked child of a process that has opened the driver is told so, and makes no call of the driver.  It prints the
   text.  The parent goes on. */
static void forked(void)
{
    begin();
    DONE(pp_cuda_leave(&device, PP_OK));
    const pid_t child = fork();
    if (child == 0) {
        const uint64_t calls = fake_calls("");
        CHECK(pp_cuda_open(&cuda) == PP_ERR_STATE && !cuda);
        printf("%s\n", pp_error_text());
        CHECK(pp_cuda_enter(&device) == PP_ERR_STATE);
        CHECK(strstr(pp_error_text(), "forked child"));
        CHECK(pp_cuda_device_open(0, &(pp_cuda_device_t){0}) == PP_ERR_STATE);
        pp_cuda_device_close(&device);
        CHECK(!device.cuda && fake_calls("") == calls);
        exit(0);
    }
    CHECK(status_of(child) == 0);
    DONE(pp_cuda_enter(&device));
    finish();
}

/* So is a child whose parent used CUDA without us. */
static void forked_from_an_application(void)
{
    CHECK(cuInit(0) == CUDA_SUCCESS);
    const pid_t child = fork();
    if (child == 0) {
        open_and_print(NULL);
        exit(0);
    }
    CHECK(status_of(child) == 0);
}

/* Where nobody has opened the driver, parent and child open it, each for itself. */
static void forked_before(void)
{
    const pid_t child = fork();
    begin();
    finish();
    CHECK(child == 0 || status_of(child) == 0);
}

static void no_such_device(void)
{
    CHECK(pp_cuda_device_open(number, &device) == PP_ERR_ARGUMENT && !device.cuda);
    printf("%s\n", pp_error_text());
    pp_cuda_device_close(&device);               /* nothing was opened */
    SAME(fake_leaks(), "");
}

/* ---- errors --------------------------------------------------------------------------------------- */

static void statuses(void)
{
    begin();
    CHECK(pp_cuda_status(cuda, CUDA_SUCCESS, "cuInit") == PP_OK);
    CHECK(pp_cuda_status(cuda, CUDA_ERROR_NOT_READY, "cuEventQuery") == PP_PENDING);
    CHECK(pp_cuda_status(cuda, CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc") == PP_ERR_MEMORY);
    SAME(pp_error_text(), "CUDA has no memory: cuMemAlloc failed with 2, CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
    CHECK(pp_cuda_status(cuda, CUDA_ERROR_INVALID_HANDLE, "cuEventRecord") == PP_ERR_STATE);
    SAME(pp_error_text(), "CUDA reports an error: cuEventRecord failed with 400, CUDA_ERROR_INVALID_HANDLE (invalid "
                          "resource handle)");
    CHECK(pp_cuda_status(cuda, 12345, "cuEventRecord") == PP_ERR_STATE);
    SAME(pp_error_text(), "CUDA reports an error: cuEventRecord failed with 12345, an unknown error (the driver does "
                          "not describe it)");
    finish();
}

/* All that a copy off the device and back takes.  Everything is freed again, whatever fails. */
static pp_status_t work_inside(void)
{
    CUstream      stream = NULL;
    CUevent       event = NULL;
    CUdeviceptr   there = 0;
    void         *here = NULL;
    static char   registered[BYTES];
    bool          is_registered = false;
    pp_status_t   status = pp_cuda_make_stream(cuda, &stream);
#define TRY(...)                                      \
    do {                                              \
        if (status >= 0)                              \
            status = PP_CUDA(cuda, __VA_ARGS__);      \
    } while (0)
    TRY(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    TRY(cuMemAlloc, &there, BYTES);
    TRY(cuMemHostAlloc, &here, BYTES, CU_MEMHOSTALLOC_PORTABLE);
    TRY(cuMemHostRegister, registered, BYTES, CU_MEMHOSTREGISTER_PORTABLE);
    is_registered = status >= 0;
    TRY(cuMemcpyAsync, there, pp_cuda_address(registered), BYTES, stream);
    TRY(cuEventRecord, event, stream);
    TRY(cuStreamWaitEvent, stream, event, 0);
    TRY(cuMemcpyAsync, pp_cuda_address(here), there, BYTES, stream);
    TRY(cuStreamSynchronize, stream);
    TRY(cuEventQuery, event);
#undef TRY
/* Frees, whatever `status` is, and keeps the first error. */
#define FREE(condition, call, what)                                            \
    do {                                                                       \
        const CUresult freed_ = condition ? cuda->call(what) : CUDA_SUCCESS;   \
        if (freed_ != CUDA_SUCCESS && status >= 0)                             \
            status = pp_cuda_status(cuda, freed_, #call);                      \
    } while (0)
    FREE(stream, cuStreamSynchronize, stream);   /* nothing is queued when memory is freed */
    FREE(is_registered, cuMemHostUnregister, registered);
    FREE(here, cuMemFreeHost, here);
    FREE(there, cuMemFree, there);
    FREE(event, cuEventDestroy, event);
    FREE(stream, cuStreamDestroy, stream);
#undef FREE
    return status;
}

static pp_status_t work(void)
{
    PP_TRY(pp_cuda_device_open(0, &device));
    cuda = device.cuda;
    pp_status_t status = pp_cuda_enter(&device);
    if (status >= 0)
        status = pp_cuda_leave(&device, work_inside());
    if (status >= 0)
        status = pp_cuda_check_left(PP_OK);
    pp_cuda_device_close(&device);
    return status;
}

/* The call `number` of all fails.  The error has that call's name; what was made before is freed, unless the call was
   to free it; the application's context is current again.  Exits with NOT_REACHED if there are fewer calls. */
static void failures(void)
{
    CUcontext         context = (CUcontext)&number;
    fake_fail("", (uint64_t)number, CUDA_ERROR_UNKNOWN);
    const pp_status_t status = work();
    const char       *failed = fake_failed();
    if (!*failed)
        exit(status == PP_OK && strcmp(fake_leaks(), "") == 0 ? NOT_REACHED : 1);
    const bool was_freeing = strstr(failed, "Free") || strstr(failed, "Destroy") || strstr(failed, "Unregister")
                          || strstr(failed, "Release");
    const bool is_told = strcmp(failed, "cuDevicePrimaryCtxRelease") != 0;
    printf("%s\n", failed);
    if (is_told) {
        CHECK(status == PP_ERR_STATE);
        CHECK(strstr(pp_error_text(), failed) && strstr(pp_error_text(), "999, CUDA_ERROR_UNKNOWN (unknown error)"));
    } else {
        CHECK(status == PP_OK);
    }
    /* What was not freed goes with the context, which is a misuse. */
    CHECK((strcmp(fake_leaks(), "") != 0 || fake_misuses() > 0) == was_freeing);
    fake_fail("", 1, CUDA_SUCCESS);
    if (strcmp(failed, "cuInit") != 0 && strcmp(failed, "cuDriverGetVersion") != 0) {
        CHECK(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
        CHECK((context != NULL) == (strcmp(failed, "cuCtxPopCurrent") == 0));
    }
}

/* A failure is asked for by name and number; calls of other functions do not count, and later ones succeed. */
static void one_failure(void)
{
    CUdeviceptr address[3];
    begin();
    fake_fail("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY);
    const CUevent event = new_event();
    address[0] = memory_of_device(BYTES);
    CHECK(PP_CUDA(cuda, cuMemAlloc, &address[1], BYTES) == PP_ERR_MEMORY);
    CHECK(strstr(pp_error_text(), "cuMemAlloc failed with 2, CUDA_ERROR_OUT_OF_MEMORY"));
    SAME(fake_failed(), "cuMemAlloc");
    address[2] = memory_of_device(BYTES);
    CHECK(fake_calls("cuMemAlloc") == 3 && fake_live("memory") == 2);
    fake_fail("cuEventQuery", 0, CUDA_ERROR_ILLEGAL_ADDRESS);
    for (int i = 0; i < 3; i++)
        CHECK(PP_CUDA(cuda, cuEventQuery, event) == PP_ERR_STATE);
    fake_fail("cuEventQuery", 0, CUDA_SUCCESS);
    DONE(PP_CUDA(cuda, cuEventQuery, event));
    DONE(PP_CUDA(cuda, cuMemFree, address[0]));
    DONE(PP_CUDA(cuda, cuMemFree, address[2]));
    DONE(PP_CUDA(cuda, cuEventDestroy, event));
    finish();
}

/* ---- the application's context -------------------------------------------------------------------- */

static CUcontext context_now(void)
{
    CUcontext context = (CUcontext)&number;
    CHECK(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
    return context;
}

static void use_device(void)
{
    DONE(pp_cuda_enter(&device));
    CHECK(context_now() == device.context);
    DONE(pp_cuda_enter(&device));
    CHECK(pp_cuda_leave(&device, PP_PENDING) == PP_PENDING && context_now() == device.context);
    CUdeviceptr       address;
    const pp_status_t status = PP_CUDA(cuda, cuMemAlloc, &address, 0);
    CHECK(status == PP_ERR_STATE && pp_cuda_leave(&device, status) == PP_ERR_STATE);
    CHECK(strstr(pp_error_text(), "cuMemAlloc failed with 1, CUDA_ERROR_INVALID_VALUE"));
}

/* A scope inside one of the same device makes no call, and has an error like any other. */
static void nested(const pp_cuda_device_t *other, CUcontext application)
{
    const pp_cuda_device_t *devices[] = {&device, &device, other, other, other, &device, &device, other};
    enum { SCOPES = sizeof devices / sizeof *devices, CHANGES = 4 };
    const uint64_t pushed = fake_calls("cuCtxPushCurrent"), modes = fake_calls("cuThreadExchangeStreamCaptureMode");
    for (int i = 0; i < SCOPES; i++) {
        DONE(pp_cuda_enter(devices[i]));
        CHECK(context_now() == devices[i]->context);
    }
    CHECK(fake_calls("cuCtxPushCurrent") - pushed == CHANGES);
    for (int i = SCOPES - 1; i >= 0; i--) {
        CHECK(context_now() == devices[i]->context);
        CHECK(pp_cuda_leave(devices[i], PP_PENDING) == PP_PENDING);
    }
    CHECK(context_now() == application);
    CHECK(fake_calls("cuThreadExchangeStreamCaptureMode") - modes == 2);
    enum { MOST = 8 };
    for (int i = 0; i < MOST; i++)
        DONE(pp_cuda_enter(i % 2 ? other : &device));
    CHECK(pp_cuda_enter(&device) == PP_ERR_INTERNAL && strstr(pp_error_text(), "inside 8 devices at once"));
    for (int i = MOST - 1; i >= 0; i--)
        DONE(pp_cuda_leave(i % 2 ? other : &device, PP_OK));
    CHECK(context_now() == application);
}

/* A scope that could not be left is current still: those inside the one around it do not rely on that. */
static void lost(const pp_cuda_device_t *other)
{
    DONE(pp_cuda_enter(&device));
    DONE(pp_cuda_enter(other));
    fake_fail("cuCtxPopCurrent", 1, CUDA_ERROR_DEINITIALIZED);
    DONE(pp_cuda_leave(other, PP_OK));
    DONE(pp_cuda_enter(&device));
    CHECK(context_now() == device.context);
    DONE(pp_cuda_leave(&device, PP_OK));
    DONE(pp_cuda_leave(&device, PP_OK));
    CHECK(pp_cuda_check_left(PP_OK) == PP_ERR_STATE && strstr(pp_error_text(), "cuCtxPopCurrent failed with 4,"));
    CHECK(pp_cuda_all_left());
    DONE(PP_CUDA(cuda, cuCtxPopCurrent, &(CUcontext){0}));
}

/* Whatever context the application has made current, or none, is so again after ours; also if something failed.  There
   are two devices. */
static void contexts(void)
{
    CUcontext application;
    DONE(pp_cuda_device_open(0, &device));
    cuda = device.cuda;
    CHECK(context_now() == NULL);
    use_device();
    CHECK(context_now() == NULL);
    CHECK(cuDevicePrimaryCtxRetain(&application, 1) == CUDA_SUCCESS && application != device.context);
    CHECK(cuCtxSetCurrent(application) == CUDA_SUCCESS);
    use_device();
    CHECK(context_now() == application);
    pp_cuda_device_t other;
    DONE(pp_cuda_device_open(1, &other));
    DONE(pp_cuda_enter(&other));
    use_device();
    CHECK(context_now() == other.context && other.context == application);
    DONE(pp_cuda_leave(&other, PP_OK));
    nested(&other, application);
    lost(&other);
    CHECK(context_now() == application);
    CHECK(pp_cuda_all_left());
    /* A failure of leave() is told afterwards, once, and replaces no other.  The context stays. */
    DONE(pp_cuda_enter(&device));
    fake_fail("cuCtxPopCurrent", 1, CUDA_ERROR_DEINITIALIZED);
    pp_fail(PP_ERR_MEMORY, "the first");
    CHECK(pp_cuda_leave(&device, PP_ERR_MEMORY) == PP_ERR_MEMORY && !pp_cuda_all_left());
    SAME(pp_error_text(), "the first");
    CHECK(pp_cuda_check_left(PP_ERR_MEMORY) == PP_ERR_MEMORY);
    CHECK(strstr(pp_error_text(), "the first; and the application's device is not current again: "));
    CHECK(strstr(pp_error_text(), "cuCtxPopCurrent failed with 4,"));
    CHECK(pp_cuda_all_left() && pp_cuda_check_left(PP_PENDING) == PP_PENDING);
    DONE(pp_cuda_enter(&device));
    fake_fail("cuThreadExchangeStreamCaptureMode", 1, CUDA_ERROR_DEINITIALIZED);
    DONE(pp_cuda_leave(&device, PP_OK));
    CHECK(pp_cuda_check_left(PP_OK) == PP_ERR_STATE);
    CHECK(strstr(pp_error_text(), "the application's mode of captures is not as before: "));
    CHECK(strstr(pp_error_text(), "cuThreadExchangeStreamCaptureMode failed with 4,"));
    fake_fail("cuThreadExchangeStreamCaptureMode", 1, CUDA_ERROR_DEINITIALIZED);
    fake_fail("cuCtxPopCurrent", 1, CUDA_ERROR_DEINITIALIZED);
    CHECK(pp_cuda_enter(&device) == PP_ERR_STATE && !pp_cuda_all_left());
    CHECK(strstr(pp_error_text(), "cuThreadExchangeStreamCaptureMode failed with 4,"));
    CHECK(pp_cuda_check_left(PP_OK) == PP_ERR_STATE && strstr(pp_error_text(), "cuCtxPopCurrent failed with 4,"));
    for (int i = 0; i < 2; i++)
        DONE(PP_CUDA(cuda, cuCtxPopCurrent, &(CUcontext){0}));
    CHECK(context_now() == application);
    pp_cuda_device_close(&other);
    pp_cuda_device_close(&device);
    CHECK(!device.cuda);
    pp_cuda_device_close(&device);
    SAME(fake_leaks(), "contexts: 1");           /* the application's */
    CHECK(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS);
}

/* ---- copies, streams and events ------------------------------------------------------------------- */

/* A stream that waits for an event of a held stream runs nothing before that.  Others run, the host goes on, and a
   later record of the event does not count for the wait. */
static void held_streams(void)
{
    begin();
    unsigned char    *from = pinned_memory(BYTES), *to = pinned_memory(BYTES), *beside = pinned_memory(BYTES);
    const CUdeviceptr there = memory_of_device(BYTES);
    const CUstream    up = new_stream(), down = new_stream(), other = new_stream();
    const CUevent     is_up = new_event(), is_down = new_event();
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        fake_seed(seed);
        fill(from, BYTES, seed);
        fake_hold(up, true);
        copy(there, pp_cuda_address(from), BYTES, up);
        order(up, down, is_up);
        copy(pp_cuda_address(to), there, BYTES, down);
        DONE(PP_CUDA(cuda, cuEventRecord, is_down, down));
        /* The other stream comes to its end, several times, and `down` has not begun. */
        for (int i = 0; i < 4; i++) {
            copy(pp_cuda_address(beside), pp_cuda_address(from), BYTES, other);
            DONE(PP_CUDA(cuda, cuStreamSynchronize, other));
            CHECK(PP_CUDA(cuda, cuEventQuery, is_up) == PP_PENDING);
            CHECK(PP_CUDA(cuda, cuEventQuery, is_down) == PP_PENDING);
            CHECK(PP_CUDA(cuda, cuStreamQuery, down) == PP_PENDING);
        }
        CHECK(is_filled(beside, BYTES, seed) && !is_filled(to, BYTES, seed));
        fake_hold(up, false);
        DONE(PP_CUDA(cuda, cuEventSynchronize, is_down));
        CHECK(is_filled(to, BYTES, seed));
        DONE(PP_CUDA(cuda, cuStreamSynchronize, down));
        DONE(PP_CUDA(cuda, cuStreamQuery, down));
    }
    /* A wait is for the record that there was when it was queued. */
    fake_hold(down, true);
    order(up, down, is_up);
    DONE(PP_CUDA(cuda, cuStreamSynchronize, up));
    fake_hold(up, true);
    DONE(PP_CUDA(cuda, cuEventRecord, is_up, up));
    fake_hold(down, false);
    DONE(PP_CUDA(cuda, cuStreamSynchronize, down));
    CHECK(PP_CUDA(cuda, cuEventQuery, is_up) == PP_PENDING);
    /* Streams of which a test has no handle are held from the beginning. */
    fake_hold_new(true);
    const CUstream late = new_stream();
    copy(pp_cuda_address(to), pp_cuda_address(from), BYTES, late);
    for (int i = 0; i < 4; i++) {
        copy(pp_cuda_address(beside), there, BYTES, other);
        DONE(PP_CUDA(cuda, cuStreamSynchronize, other));
    }
    CHECK(PP_CUDA(cuda, cuStreamQuery, late) == PP_PENDING);
    fill(from, BYTES, SEEDS + 1);
    fake_let_all_go();
    DONE(PP_CUDA(cuda, cuStreamSynchronize, late));
    CHECK(is_filled(to, BYTES, SEEDS + 1));
    DONE(PP_CUDA(cuda, cuStreamSynchronize, up));
    DONE(PP_CUDA(cuda, cuEventQuery, is_up));
    const CUstream streams[] = {up, down, other, late};
    for (int i = 0; i < 4; i++)
        DONE(PP_CUDA(cuda, cuStreamDestroy, streams[i]));
    DONE(PP_CUDA(cuda, cuEventDestroy, is_up));
    DONE(PP_CUDA(cuda, cuEventDestroy, is_down));
    DONE(PP_CUDA(cuda, cuMemFree, there));
    DONE(PP_CUDA(cuda, cuMemFreeHost, from));
    DONE(PP_CUDA(cuda, cuMemFreeHost, to));
    DONE(PP_CUDA(cuda, cuMemFreeHost, beside));
    finish();
}

/* What is queued on a stream is done though the stream, and the event behind it, are destroyed. */
static void destroyed_early(void)
{
    begin();
    unsigned char    *from = pinned_memory(BYTES), *to = pinned_memory(BYTES);
    const CUdeviceptr there = memory_of_device(BYTES);
    const CUstream    up = new_stream(), down = new_stream();
    const CUevent     is_up = new_event();
    fill(from, BYTES, 5);
    fake_seed(3);
    fake_hold(up, true);
    copy(there, pp_cuda_address(from), BYTES, up);
    order(up, down, is_up);
    copy(pp_cuda_address(to), there, BYTES, down);
    DONE(PP_CUDA(cuda, cuEventDestroy, is_up));
    DONE(PP_CUDA(cuda, cuStreamDestroy, up));
    CHECK(PP_CUDA(cuda, cuStreamQuery, up) == PP_ERR_STATE);
    CHECK(fake_live("streams") == 1 && fake_live("events") == 0);
    CHECK(PP_CUDA(cuda, cuStreamQuery, down) == PP_PENDING);
    fake_let_all_go();
    DONE(PP_CUDA(cuda, cuStreamSynchronize, down));
    CHECK(is_filled(to, BYTES, 5));
    DONE(PP_CUDA(cuda, cuStreamDestroy, down));
    DONE(PP_CUDA(cuda, cuMemFree, there));
    DONE(PP_CUDA(cuda, cuMemFreeHost, from));
    DONE(PP_CUDA(cuda, cuMemFreeHost, to));
    finish();
}

/* A new stream, or event, has the handle of the one that was destroyed last.  Of the old one it has nothing: what is queued
   there is done beside it.  A handle that was not given out again is refused. */
static void handles(void)
{
    begin();
    unsigned char    *from = pinned_memory(BYTES), *to = pinned_memory(BYTES);
    const CUdeviceptr there = memory_of_device(BYTES);
    const CUstream    first = new_stream(), second = new_stream();
    const CUevent     event = new_event(), other = new_event();
    CHECK(first != second && event != other);
    fill(from, BYTES, 1);
    fake_hold(second, true);
    copy(there, pp_cuda_address(from), BYTES, second);
    DONE(PP_CUDA(cuda, cuEventRecord, other, second));
    DONE(PP_CUDA(cuda, cuStreamWaitEvent, first, other, 0));
    DONE(PP_CUDA(cuda, cuEventDestroy, event));
    DONE(PP_CUDA(cuda, cuEventDestroy, other));
    DONE(PP_CUDA(cuda, cuStreamDestroy, first));
    DONE(PP_CUDA(cuda, cuStreamDestroy, second));
    CHECK(cuda->cuStreamQuery(first) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuda->cuStreamQuery(second) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuda->cuEventQuery(other) == CUDA_ERROR_INVALID_HANDLE);
    const CUstream again = new_stream();
    const CUevent  other_again = new_event();
    CHECK(again == second && other_again == other);
    CHECK(cuda->cuStreamQuery(first) == CUDA_ERROR_INVALID_HANDLE);
    DONE(PP_CUDA(cuda, cuEventQuery, other));
    DONE(PP_CUDA(cuda, cuStreamQuery, again));   /* the held one had this handle */
    copy(pp_cuda_address(to), pp_cuda_address(from), BYTES, again);
    DONE(PP_CUDA(cuda, cuStreamSynchronize, again));
    CHECK(is_filled(to, BYTES, 1));
    CHECK(new_stream() == first && new_event() == event);
    CHECK(fake_live("streams") == 2 && fake_live("events") == 2);
    call_t call = {.name = "cuMemFree", .make = free_there, .address = there};
    begin_call(&call);
    CHECK(fake_misuses() == 1 && !atomic_load(&call.is_over));   /* the copy of the destroyed stream */
    fake_let_all_go();
    CHECK(end_call(&call) == CUDA_SUCCESS);
    const CUstream streams[] = {first, second};
    const CUevent  events[] = {event, other};
    for (int i = 0; i < 2; i++) {
        DONE(PP_CUDA(cuda, cuStreamDestroy, streams[i]));
        DONE(PP_CUDA(cuda, cuEventDestroy, events[i]));
    }
    DONE(PP_CUDA(cuda, cuMemFreeHost, from));
    DONE(PP_CUDA(cuda, cuMemFreeHost, to));
    finish_after(1);
}

/* A stream has room for three operations: whatever would queue a fourth one waits until there is room, until the room
   grows, or until the stream is gone.  With `number` the environment has said so. */
static void room(void)
{
    CUmodule module;
    begin();
    const CUstream    stream = new_stream(), other = new_stream();
    const CUevent     event = new_event();
    const CUdeviceptr there = memory_of_device(BYTES);
    const CUfunction  sum = sum_of(&module);
    call_t            calls[] = {{.name = "cuMemcpyAsync", .make = copy_there}, {.name = "cuEventRecord", .make = record},
                                 {.name = "cuStreamWaitEvent", .make = wait_event},
                                 {.name = "cuLaunchKernel", .make = sum_there}};
    if (number == 0)
        fake_room(3);
    for (size_t i = 0; i < 3 * PP_COUNT_OF(calls); i++) {
        call_t *call = &calls[i % PP_COUNT_OF(calls)];
        call->address = there;
        call->stream = stream;
        call->event = event;
        call->function = sum;
        fake_hold(stream, true);
        copy(there, there, 0, stream);           /* queues nothing */
        for (int queued = 0; queued < 3; queued++)
            copy(there, there + 4, 4, stream);
        copy(there, there, 0, stream);
        begin_call(call);
        for (int queued = 0; queued < 3; queued++)
            copy(there, there + 4, 4, other);    /* other streams have room, and other threads go on */
        DONE(PP_CUDA(cuda, cuStreamSynchronize, other));
        CHECK(fake_held_calls(call->name) == 1 && fake_held_calls("") == 1 && !atomic_load(&call->is_over));
        if (i >= PP_COUNT_OF(calls))
            fake_room(i < 2 * PP_COUNT_OF(calls) ? 0 : 4);
        else
            fake_hold(stream, false);
        CHECK(end_call(call) == CUDA_SUCCESS && fake_held_calls("") == 0);
        fake_hold(stream, false);
        DONE(PP_CUDA(cuda, cuStreamSynchronize, stream));
        fake_room(3);
    }
    fake_hold(stream, true);
    for (int queued = 0; queued < 2; queued++)
        copy(there, there + 4, 4, stream);
    DONE(PP_CUDA(cuda, cuEventRecord, event, stream));
    begin_call(&calls[0]);
    DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    fake_let_all_go();
    CHECK(end_call(&calls[0]) == CUDA_ERROR_INVALID_HANDLE);
    DONE(PP_CUDA(cuda, cuEventSynchronize, event));  /* what a destroyed stream had in its queue still uses the memory */
    DONE(PP_CUDA(cuda, cuStreamDestroy, other));
    DONE(PP_CUDA(cuda, cuEventDestroy, event));
    DONE(PP_CUDA(cuda, cuMemFree, there));
    DONE(PP_CUDA(cuda, cuModuleUnload, module));
    finish();
}

/* The default streams work, and are two. */
static void default_streams(void)
{
    begin();
    unsigned char    *from = pinned_memory(BYTES), *to = pinned_memory(BYTES);
    const CUdeviceptr there = memory_of_device(BYTES);
    const CUevent     event = new_event();
    fill(from, BYTES, 9);
    fake_hold(CU_STREAM_LEGACY, true);
    copy(there, pp_cuda_address(from), BYTES, NULL);
    CHECK(PP_CUDA(cuda, cuStreamQuery, CU_STREAM_LEGACY) == PP_PENDING);
    DONE(PP_CUDA(cuda, cuStreamQuery, CU_STREAM_PER_THREAD));
    order(CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, event);
    copy(pp_cuda_address(to), there, BYTES, CU_STREAM_PER_THREAD);
    fake_let_all_go();
    DONE(PP_CUDA(cuda, cuStreamSynchronize, CU_STREAM_PER_THREAD));
    CHECK(is_filled(to, BYTES, 9));
    DONE(PP_CUDA(cuda, cuEventDestroy, event));
    DONE(PP_CUDA(cuda, cuMemFree, there));
    DONE(PP_CUDA(cuda, cuMemFreeHost, from));
    DONE(PP_CUDA(cuda, cuMemFreeHost, to));
    finish();
}

/* Another context of the device has streams, events and default streams of its own.  No capture in one concerns the default
   stream of the other. */
static void other_context(void)
{
    begin();
    CUcontext             other, found;
    CUdevice              found_device = 7;
    CUstream              stream;
    CUstreamCaptureStatus status;
    bool                  elsewhere = true;
    const CUevent         event = new_event();
    DONE(pp_cuda_is_elsewhere(&device, &elsewhere));
    CHECK(!elsewhere);
    CHECK(cuCtxCreate_v2(&other, 0, -1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS && context_now() == other && other != device.context);
    CHECK(cuCtxGetDevice(&found_device) == CUDA_SUCCESS && found_device == 0);
    DONE(pp_cuda_is_elsewhere(&device, &elsewhere));
    CHECK(elsewhere);
    fake_hold(CU_STREAM_LEGACY, true);
    CHECK(cuda->cuEventRecord(event, CU_STREAM_LEGACY) == CUDA_ERROR_INVALID_HANDLE);
    const CUevent own = new_event();
    DONE(PP_CUDA(cuda, cuEventRecord, own, CU_STREAM_LEGACY));
    CHECK(PP_CUDA(cuda, cuStreamQuery, CU_STREAM_LEGACY) == PP_PENDING);
    CHECK(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
    DONE(PP_CUDA(cuda, cuCtxPushCurrent, device.context));
    DONE(PP_CUDA(cuda, cuStreamQuery, CU_STREAM_LEGACY));
    DONE(PP_CUDA(cuda, cuStreamGetCtx, stream, &found));
    CHECK(found == other);
    fake_capture(stream, true);
    DONE(PP_CUDA(cuda, cuStreamIsCapturing, CU_STREAM_LEGACY, &status));
    fake_capture(stream, false);
    DONE(PP_CUDA(cuda, cuCtxPopCurrent, &found));
    fake_let_all_go();
    SAME(fake_leaks(), "streams: 1, events: 2, contexts: 2");
    DONE(PP_CUDA(cuda, cuEventDestroy, own));
    CHECK(cuCtxDestroy_v2(other) == CUDA_SUCCESS && context_now() == device.context);
    SAME(fake_leaks(), "events: 1, contexts: 1");
    CHECK(cuCtxDestroy_v2(other) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuCtxDestroy_v2(device.context) == CUDA_ERROR_INVALID_CONTEXT);
    DONE(PP_CUDA(cuda, cuEventDestroy, event));
    finish_after(1);                             /* the stream that the context took with it */
}

/* A capturing stream says so, and takes no operation. */
static void capture(void)
{
    begin();
    const CUstream        stream = new_stream();
    const CUevent         event = new_event();
    CUstreamCaptureStatus status = 7;
    DONE(PP_CUDA(cuda, cuStreamIsCapturing, stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    fake_capture(stream, true);
    DONE(PP_CUDA(cuda, cuStreamIsCapturing, stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK(PP_CUDA(cuda, cuEventRecord, event, stream) == PP_ERR_STATE);
    CHECK(strstr(pp_error_text(), "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"));
    DONE(PP_CUDA(cuda, cuEventQuery, event));    /* it was never recorded */
    DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    DONE(PP_CUDA(cuda, cuEventDestroy, event));
    finish();
}

static CUresult unsafe(int which, CUdeviceptr there, void *here, CUstream stream, CUevent event)
{
    static char        plain[BYTES];
    CUdeviceptr        address;
    void              *memory;
    CUmodule           module;
    const CUipcMemHandle handle = {{0}};
    switch (which) {
    case 0: return cuda->cuMemAlloc(&address, BYTES);
    case 1: return cuMemAllocManaged(&address, BYTES, 1);
    case 2: return cuda->cuMemFree(there);
    case 3: return cuda->cuMemHostAlloc(&memory, BYTES, CU_MEMHOSTALLOC_PORTABLE);
    case 4: return cuda->cuMemFreeHost(here);
    case 5: return cuda->cuMemHostRegister(plain, BYTES, CU_MEMHOSTREGISTER_PORTABLE);
    case 6: return cuda->cuMemHostUnregister(plain);
    case 7: return cuda->cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    case 8: return cuda->cuIpcCloseMemHandle(there);
    case 9: return cuda->cuModuleLoadData(&module, "sum_int32");
    case 10: return cuda->cuModuleUnload(NULL);
    case 11: return cuda->cuEventQuery(event);
    case 12: return cuda->cuEventSynchronize(event);
    case 13: return cuda->cuStreamQuery(stream);
    case 14: return cuda->cuStreamSynchronize(stream);
    default: return CUDA_ERROR_UNKNOWN;
    }
}

/* While a stream is captured, calls that may disturb that are refused in the global mode, and do nothing; each is a misuse.
   In the relaxed mode they are allowed, but for those about the stream itself. */
static void unsafe_calls(void)
{
    enum { UNSAFE = 15, ABOUT_IT = 2 };
    begin();
    const CUstream      stream = new_stream(), captured = new_stream();
    const CUevent       event = new_event();
    const CUdeviceptr   there = memory_of_device(BYTES);
    void *const         here = pinned_memory(BYTES);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    DONE(PP_CUDA(cuda, cuThreadExchangeStreamCaptureMode, &mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);       /* that of pp_cuda_enter() */
    DONE(PP_CUDA(cuda, cuEventQuery, event));
    fake_capture(captured, true);
    for (int i = 0; i < UNSAFE; i++) {
        CHECK(unsafe(i, there, here, stream, event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        CHECK(fake_misuses() == (uint64_t)i + 1);
    }
    SAME(fake_leaks(), "memory: 1, host memory: 1, streams: 2, events: 1, contexts: 1");
    DONE(PP_CUDA(cuda, cuEventRecord, event, stream));   /* this one is about another stream only */
    DONE(PP_CUDA(cuda, cuThreadExchangeStreamCaptureMode, &mode));
    CHECK(cuda->cuStreamQuery(captured) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuda->cuStreamSynchronize(captured) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    DONE(PP_CUDA(cuda, cuEventSynchronize, event));
    DONE(PP_CUDA(cuda, cuMemFree, there));
    DONE(PP_CUDA(cuda, cuMemFreeHost, here));
    fake_capture(captured, false);
    DONE(PP_CUDA(cuda, cuStreamQuery, captured));
    fake_capture(captured, true);
    DONE(PP_CUDA(cuda, cuStreamDestroy, captured));
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    DONE(PP_CUDA(cuda, cuThreadExchangeStreamCaptureMode, &mode));
    DONE(PP_CUDA(cuda, cuEventQuery, event));    /* a stream that is gone is not captured */
    DONE(PP_CUDA(cuda, cuThreadExchangeStreamCaptureMode, &mode));
    DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    DONE(PP_CUDA(cuda, cuEventDestroy, event));
    finish_after(UNSAFE + ABOUT_IT);
}

/* While a blocking stream is captured, the legacy default stream can do nothing: it would wait for that. */
static void blocking_capture(void)
{
    enum { UNSAFE = 3 };
    begin();
    CUstream              stream;
    const CUevent         event = new_event();
    CUstreamCaptureStatus status = 7;
    CHECK(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
    fake_capture(stream, true);
    CHECK(cuda->cuStreamIsCapturing(CU_STREAM_LEGACY, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT && status == 7);
    CHECK(fake_misuses() == 0);
    CHECK(cuda->cuStreamQuery(CU_STREAM_LEGACY) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK(cuda->cuStreamSynchronize(NULL) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK(cuda->cuEventRecord(event, CU_STREAM_LEGACY) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    DONE(PP_CUDA(cuda, cuStreamIsCapturing, CU_STREAM_PER_THREAD, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
    DONE(PP_CUDA(cuda, cuStreamQuery, CU_STREAM_PER_THREAD));
    fake_capture(stream, false);
    DONE(PP_CUDA(cuda, cuStreamIsCapturing, CU_STREAM_LEGACY, &status));
    DONE(PP_CUDA(cuda, cuEventRecord, event, CU_STREAM_LEGACY));
    DONE(PP_CUDA(cuda, cuStreamSynchronize, CU_STREAM_LEGACY));
    DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    DONE(PP_CUDA(cuda, cuEventDestroy, event));
    finish_after(UNSAFE);
}

/* Streams have priorities, which the driver cuts to its range. */
static void priorities(void)
{
    static const int asked[] = {0, -1, -5, -6, 3}, given[] = {0, -1, -5, -5, 0};
    int              least = 7, greatest = 7;
    CUstream         stream;
    CHECK(cuCtxGetStreamPriorityRange(&least, &greatest) == CUDA_ERROR_NOT_INITIALIZED);
    begin();
    CHECK(cuCtxGetStreamPriorityRange(&least, &greatest) == CUDA_SUCCESS && least == 0 && greatest == -5);
    for (size_t i = 0; i < PP_COUNT_OF(asked); i++) {
        CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, asked[i]) == CUDA_SUCCESS);
        CHECK(fake_priority(stream) == given[i] && fake_newest_stream() == stream);
        DONE(PP_CUDA(cuda, cuStreamSynchronize, stream));
        DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    }
    CHECK(cuStreamCreateWithPriority(&stream, 7, 0) == CUDA_ERROR_INVALID_VALUE);
    stream = new_stream();
    CHECK(fake_priority(stream) == -5 && fake_priority(CU_STREAM_LEGACY) == 0);     /* the library's has the greatest */
    DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    finish();
}

/* ---- memory --------------------------------------------------------------------------------------- */

/* The program dies here: it writes the first byte, or reads another one. */
static void touch(void)
{
    begin();
    volatile unsigned char *memory = (unsigned char *)(uintptr_t)memory_of_device(BYTES);
    if (number == 0)
        memory[0] = 1;
    else
        printf("%d\n", memory[number]);
}

typedef struct facts {
    CUcontext   context;
    uint32_t    type, is_managed, can_be_shared;
    CUdeviceptr on_device, start;
    void       *on_host;
    uint64_t    buffer;
    int         ordinal;
    size_t      bytes;
} facts_t;

static facts_t facts_of(const void *memory)
{
    CUpointer_attribute asked[] = {
        CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    facts_t             f = {0};
    void               *answers[] = {&f.context, &f.type,    &f.on_device,     &f.on_host, &f.buffer,
                                     &f.is_managed, &f.ordinal, &f.can_be_shared, &f.start,   &f.bytes};
    DONE(PP_CUDA(cuda, cuPointerGetAttributes, PP_COUNT_OF(asked), asked, answers, pp_cuda_address(memory)));
    return f;
}

/* What the driver says of memory of each kind. */
static void pointers(void)
{
    static char plain[BYTES], registered[BYTES];
    CUdeviceptr managed;
    begin();
    const CUdeviceptr there = memory_of_device(BYTES), next = memory_of_device(BYTES);
    unsigned char    *pinned = pinned_memory(BYTES);
    CHECK(cuMemAllocManaged(&managed, BYTES, 1) == CUDA_SUCCESS);
    DONE(PP_CUDA(cuda, cuMemHostRegister, registered, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
    facts_t f = facts_of((char *)(uintptr_t)there + 100);
    CHECK(f.context == device.context && f.type == CU_MEMORYTYPE_DEVICE && f.on_device == there + 100 && !f.on_host);
    CHECK(f.ordinal == 0 && f.start == there && f.bytes == BYTES && f.can_be_shared && !f.is_managed);
    CHECK(f.buffer == facts_of((char *)(uintptr_t)there).buffer);
    CHECK(f.buffer != facts_of((char *)(uintptr_t)next).buffer);
    f = facts_of((char *)(uintptr_t)managed);
    CHECK(f.is_managed && !f.can_be_shared && f.on_host == (void *)(uintptr_t)managed);
    for (int i = 0; i < 2; i++) {
        const void *memory = i == 0 ? (void *)pinned : registered;
        f = facts_of(memory);
        CHECK(f.type == CU_MEMORYTYPE_HOST && f.on_host == memory && !f.is_managed && !f.can_be_shared);
        CHECK(f.on_device == pp_cuda_address(memory));   /* as with unified addresses */
    }
    f = facts_of(plain);
    CHECK(!f.context && f.type == 0 && !f.on_device && !f.on_host && f.ordinal == CU_DEVICE_INVALID && f.bytes == 0);
    DONE(PP_CUDA(cuda, cuMemHostUnregister, registered));
    CHECK(facts_of(registered).type == 0);
    DONE(PP_CUDA(cuda, cuMemFree, managed));
    DONE(PP_CUDA(cuda, cuMemFree, there));
    DONE(PP_CUDA(cuda, cuMemFree, next));
    DONE(PP_CUDA(cuda, cuMemFreeHost, pinned));
    finish();
}

static CUstream held;

static void *let_go(void *unused)
{
    while (fake_misuses() == 0)
        usleep(100);
    fake_let_all_go();
    return unused;
}

/* Registered memory is pinned, each byte once; to unregister it under a copy is a misuse. */
static void registration(void)
{
    static unsigned char here[2 * BYTES];
    pthread_t            other;
    begin();
    const CUdeviceptr there = memory_of_device(2 * BYTES);
    held = new_stream();
    copy(there, pp_cuda_address(here), BYTES, held);
    CHECK(fake_pageable_copies() == 1);
    DONE(PP_CUDA(cuda, cuStreamQuery, held));    /* such a copy is waited for */
    DONE(PP_CUDA(cuda, cuMemHostRegister, here, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
    CHECK(PP_CUDA(cuda, cuMemHostRegister, here + BYTES - 1, BYTES, CU_MEMHOSTREGISTER_PORTABLE) == PP_ERR_STATE);
    CHECK(strstr(pp_error_text(), "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"));
    CHECK(PP_CUDA(cuda, cuMemHostUnregister, here + 1) == PP_ERR_STATE);
    CHECK(strstr(pp_error_text(), "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"));
    CHECK(fake_live("registrations") == 1);
    fake_hold(held, true);
    copy(there, pp_cuda_address(here), BYTES, held);
    CHECK(fake_pageable_copies() == 1 && PP_CUDA(cuda, cuStreamQuery, held) == PP_PENDING);
    /* A copy that leaves the registered part is refused, as by the driver. */
    CHECK(PP_CUDA(cuda, cuMemcpyAsync, there, pp_cuda_address(here), BYTES + 1, held) == PP_ERR_STATE);
    CHECK(fake_misuses() == 0 && pthread_create(&other, NULL, let_go, NULL) == 0);
    DONE(PP_CUDA(cuda, cuMemHostUnregister, here));
    CHECK(fake_misuses() == 1 && pthread_join(other, NULL) == 0);
    DONE(PP_CUDA(cuda, cuStreamQuery, held));
    DONE(PP_CUDA(cuda, cuStreamDestroy, held));
    DONE(PP_CUDA(cuda, cuMemFree, there));
    finish_after(1);
}

/* Who gives memory back waits for all that was queued on the device before, though it is about other memory; not for what
   is queued later.  For host memory it is all devices, of which there are two.  Other threads go on. */
static void giving_back(void)
{
    static char      registered[BYTES];
    pp_cuda_device_t other;
    begin();
    unsigned char *beside = pinned_memory(BYTES), *here[] = {pinned_memory(BYTES), pinned_memory(BYTES)};
    const CUdeviceptr there = memory_of_device(BYTES), next = memory_of_device(BYTES), last = memory_of_device(BYTES);
    const CUstream    before = new_stream(), later = new_stream();
    call_t            calls[] = {{.name = "cuMemFree", .make = free_there, .address = there},
                                 {.name = "cuMemFreeHost", .make = free_here, .address = pp_cuda_address(here[0])},
                                 {.name = "cuMemHostUnregister", .make = unregister,
                                  .address = pp_cuda_address(registered)},
                                 {.name = "cuMemFreeHost", .make = free_here, .address = pp_cuda_address(here[1])}};
    DONE(PP_CUDA(cuda, cuMemHostRegister, registered, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
    for (int i = 0; i < 3; i++) {
        fake_hold(before, true);
        fake_hold(later, true);
        copy(next, pp_cuda_address(beside), BYTES, before);
        begin_call(&calls[i]);
        copy(next, pp_cuda_address(beside), BYTES, later);
        CHECK(PP_CUDA(cuda, cuStreamQuery, later) == PP_PENDING);
        CHECK(fake_held_calls(calls[i].name) == 1 && !atomic_load(&calls[i].is_over));
        fake_hold(before, false);
        CHECK(end_call(&calls[i]) == CUDA_SUCCESS);
        CHECK(PP_CUDA(cuda, cuStreamQuery, later) == PP_PENDING);
        fake_hold(later, false);
        DONE(PP_CUDA(cuda, cuStreamSynchronize, later));
    }
    /* Or they do not, if the test says so. */
    const CUdeviceptr unused = memory_of_device(BYTES);
    fake_free_at_once(true);
    fake_hold(before, true);
    copy(next, pp_cuda_address(beside), BYTES, before);
    DONE(PP_CUDA(cuda, cuMemFree, unused));
    CHECK(PP_CUDA(cuda, cuStreamQuery, before) == PP_PENDING);
    fake_free_at_once(false);
    fake_hold(before, false);
    DONE(PP_CUDA(cuda, cuStreamSynchronize, before));
    SAME(fake_leaks(), "memory: 2, host memory: 2, streams: 2, contexts: 1");
    DONE(pp_cuda_device_open(1, &other));
    DONE(pp_cuda_enter(&other));
    const CUstream elsewhere = new_stream();
    fake_hold(elsewhere, true);
    copy(next, pp_cuda_address(beside), BYTES, elsewhere);
    DONE(pp_cuda_leave(&other, PP_OK));
    DONE(PP_CUDA(cuda, cuMemFree, last));        /* waits for its own device only */
    begin_call(&calls[3]);
    fake_hold(elsewhere, false);
    CHECK(end_call(&calls[3]) == CUDA_SUCCESS);
    DONE(PP_CUDA(cuda, cuStreamQuery, elsewhere));
    /* But for a copy with the memory itself, wherever that is queued; and it is a misuse. */
    fake_hold(elsewhere, true);
    copy(next, pp_cuda_address(beside), BYTES, elsewhere);
    calls[0].address = next;
    begin_call(&calls[0]);
    fake_hold(elsewhere, false);
    CHECK(end_call(&calls[0]) == CUDA_SUCCESS);
    const CUstream streams[] = {before, later, elsewhere};
    for (int i = 0; i < 3; i++)
        DONE(PP_CUDA(cuda, cuStreamDestroy, streams[i]));
    DONE(PP_CUDA(cuda, cuMemFreeHost, beside));
    pp_cuda_device_close(&other);
    finish_after(1);
}

/* A copy that is queued with memory while another thread waits to free it is a misuse, and is waited for. */
static void used_while_freed(void)
{
    begin();
    const CUdeviceptr there = memory_of_device(BYTES), next = memory_of_device(BYTES);
    const CUstream    before = new_stream(), later = new_stream();
    call_t            call = {.name = "cuMemFree", .make = free_there, .address = there};
    fake_hold_all();
    copy(next, next, BYTES, before);
    begin_call(&call);
    copy(there, next, BYTES, later);
    CHECK(fake_misuses() == 0);
    fake_hold(before, false);
    while (fake_misuses() == 0)
        usleep(100);
    CHECK(!atomic_load(&call.is_over));
    fake_let_all_go();
    CHECK(end_call(&call) == CUDA_SUCCESS);
    DONE(PP_CUDA(cuda, cuMemFree, next));
    DONE(PP_CUDA(cuda, cuStreamDestroy, before));
    DONE(PP_CUDA(cuda, cuStreamDestroy, later));
    finish_after(1);
}

/* The last release of a context takes with it what is left there, each kind of which is a misuse; it waits for what is
   queued.  Nothing of that is there in the context that is retained next. */
static void last_release(void)
{
    static char registered[BYTES];
    CUmodule    module;
    CUcontext   context;
    CUdeviceptr address;
    call_t      call = {.name = "cuDevicePrimaryCtxRelease", .make = release};
    begin();
    const CUdeviceptr there = memory_of_device(BYTES);
    unsigned char    *here = pinned_memory(BYTES);
    const CUstream    stream = new_stream();
    const CUevent     event = new_event();
    sum_of(&module);
    CHECK(cuMemAllocManaged(&address, BYTES, 1) == CUDA_SUCCESS);
    DONE(PP_CUDA(cuda, cuMemHostRegister, registered, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
    DONE(PP_CUDA(cuda, cuDevicePrimaryCtxRetain, &context, 0));
    fake_hold_all();
    copy(there, pp_cuda_address(here), BYTES / 2, stream);
    copy(there + BYTES / 2, pp_cuda_address(here), BYTES / 2, NULL);     /* that stream waits for no such one */
    DONE(PP_CUDA(cuda, cuDevicePrimaryCtxRelease, 0));   /* not the last one */
    CHECK(fake_misuses() == 0 && fake_live("memory") == 2);
    begin_call(&call);
    fake_let_all_go();
    CHECK(end_call(&call) == CUDA_SUCCESS);
    SAME(fake_leaks(), "");
    CHECK(fake_misuses() == 6);
    CHECK(cuda->cuStreamQuery(NULL) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CHECK(cuda->cuCtxPushCurrent(context) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuda->cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
    DONE(PP_CUDA(cuda, cuDevicePrimaryCtxRetain, &context, 0));
    CHECK(cuda->cuMemFree(there) == CUDA_ERROR_INVALID_VALUE && cuda->cuMemFree(address) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuda->cuMemFreeHost(here) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuda->cuMemHostUnregister(registered) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CHECK(cuda->cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuda->cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuda->cuModuleUnload(module) == CUDA_ERROR_INVALID_HANDLE);
    DONE(PP_CUDA(cuda, cuStreamQuery, NULL));
    finish_after(6);
}

/* Each kind of leak is counted. */
static void leaks(void)
{
    static char registered[BYTES];
    CUmodule    module;
    begin();
    SAME(fake_leaks(), "contexts: 1");
    const CUdeviceptr there = memory_of_device(BYTES);
    unsigned char    *here = pinned_memory(BYTES);
    DONE(PP_CUDA(cuda, cuMemHostRegister, registered, BYTES, CU_MEMHOSTREGISTER_PORTABLE));
    const CUstream first = new_stream(), second = new_stream();
    const CUevent  event = new_event();
    DONE(PP_CUDA(cuda, cuModuleLoadData, &module, "sum_float32"));
    DONE(PP_CUDA(cuda, cuStreamQuery, NULL));    /* the default stream is nobody's */
    SAME(fake_leaks(), "memory: 1, host memory: 1, registrations: 1, streams: 2, events: 1, modules: 1, contexts: 1");
    DONE(PP_CUDA(cuda, cuMemFree, there));
    DONE(PP_CUDA(cuda, cuMemFreeHost, here));
    DONE(PP_CUDA(cuda, cuMemHostUnregister, registered));
    DONE(PP_CUDA(cuda, cuStreamDestroy, second));
    SAME(fake_leaks(), "streams: 1, events: 1, modules: 1, contexts: 1");
    DONE(PP_CUDA(cuda, cuStreamDestroy, first));
    DONE(PP_CUDA(cuda, cuEventDestroy, event));
    DONE(PP_CUDA(cuda, cuModuleUnload, module));
    finish();
}

/* The stand-in forgives nothing: no context, a handle that is gone, memory's end, another device's event. */
static void strictness(void)
{
    CUdeviceptr      address;
    pp_cuda_device_t other;
    begin();
    const CUdeviceptr there = memory_of_device(BYTES);
    const CUevent     event = new_event(), gone = new_event();
    const CUstream    stream = new_stream();
    DONE(PP_CUDA(cuda, cuEventDestroy, gone));
    CHECK(cuda->cuEventRecord(gone, stream) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuda->cuEventDestroy(gone) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuda->cuStreamQuery((CUstream)gone) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(cuda->cuMemcpyAsync(there + 1, there, BYTES, stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuda->cuMemFree(there + 1) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuda->cuMemFreeHost((void *)(uintptr_t)there) == CUDA_ERROR_INVALID_VALUE);
    DONE(pp_cuda_device_open(1, &other));
    DONE(pp_cuda_enter(&other));
    const CUstream elsewhere = new_stream();
    CHECK(cuda->cuEventRecord(event, elsewhere) == CUDA_ERROR_INVALID_HANDLE);
    DONE(PP_CUDA(cuda, cuStreamWaitEvent, elsewhere, event, 0));
    DONE(PP_CUDA(cuda, cuStreamDestroy, elsewhere));
    DONE(pp_cuda_leave(&other, PP_OK));
    pp_cuda_device_close(&other);
    DONE(PP_CUDA(cuda, cuMemFree, there));
    CHECK(cuda->cuMemFree(there) == CUDA_ERROR_INVALID_VALUE);
    DONE(PP_CUDA(cuda, cuEventDestroy, event));
    DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    DONE(pp_cuda_leave(&device, PP_OK));
    CHECK(cuda->cuMemAlloc(&address, BYTES) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cuda->cuStreamQuery(stream) == CUDA_ERROR_INVALID_CONTEXT);
    DONE(pp_cuda_enter(&device));
    finish();
}

/* What the driver says of each device; and whether a kernel can use another device's memory, if `number` is 1. */
static void peers(void)
{
    pp_cuda_device_t other;
    CUuuid           first, second;
    CUmodule         module;
    char             name[64];
    int              can, value;
    begin();
    DONE(pp_cuda_device_open(1, &other));
    DONE(pp_cuda_enter(&other));
    const CUdeviceptr there = memory_of_device(BYTES);
    DONE(pp_cuda_leave(&other, PP_OK));
    const CUdeviceptr here = memory_of_device(BYTES);
    const CUstream    stream = new_stream();
    const CUfunction  sum = sum_of(&module);
    DONE(PP_CUDA(cuda, cuDeviceCanAccessPeer, &can, device.device, other.device));
    if (number == 0) {
        CHECK(!can && cuda->cuCtxEnablePeerAccess(other.context, 0) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    } else {
        CHECK(can);
        DONE(PP_CUDA(cuda, cuCtxEnablePeerAccess, other.context, 0));
        CHECK(cuda->cuCtxEnablePeerAccess(other.context, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    }
    DONE(PP_CUDA(cuda, cuDeviceGetUuid, &first, device.device));
    DONE(PP_CUDA(cuda, cuDeviceGetUuid, &second, other.device));
    CHECK(memcmp(&first, &second, sizeof first) != 0);
    DONE(PP_CUDA(cuda, cuDeviceGetName, name, sizeof name, other.device));
    SAME(name, "stand-in 1");
    DONE(PP_CUDA(cuda, cuDeviceGetAttribute, &value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, device.device));
    CHECK(value == 1);
    copy(here, there, BYTES, stream);            /* needs no access */
    launch(sum, here, here, there, BYTES / 4, stream);
    while (cuda->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
        continue;
    if (number == 0) {
        CHECK(cuda->cuStreamQuery(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
        return;                                  /* nothing can be freed any more */
    }
    DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    DONE(PP_CUDA(cuda, cuModuleUnload, module));
    DONE(PP_CUDA(cuda, cuMemFree, here));
    DONE(PP_CUDA(cuda, cuMemFree, there));
    pp_cuda_device_close(&other);
    finish();
}

/* ---- memory of another process -------------------------------------------------------------------- */

static void hand_over(int pipe_end, const void *what, size_t bytes)
{
    CHECK(write(pipe_end, what, bytes) == (ssize_t)bytes);
}

static void take_over(int pipe_end, void *what, size_t bytes) { CHECK(read(pipe_end, what, bytes) == (ssize_t)bytes); }

/* Fills memory and gives its handle away; frees it when it has been changed. */
static void make_for_another(int in, int out)
{
    CUipcMemHandle handle;
    ordinal = number;
    begin();
    unsigned char    *here = pinned_memory(BYTES);
    const CUdeviceptr there = memory_of_device(BYTES);
    const CUstream    stream = new_stream();
    fill(here, BYTES, 1);
    copy(there, pp_cuda_address(here), BYTES, stream);
    DONE(PP_CUDA(cuda, cuStreamSynchronize, stream));
    DONE(PP_CUDA(cuda, cuIpcGetMemHandle, &handle, there + 7));
    CHECK(cuda->cuIpcGetMemHandle(&handle, pp_cuda_address(here)) == CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr own;
    CHECK(cuda->cuIpcOpenMemHandle(&own, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_CONTEXT);
    hand_over(out, &handle, sizeof handle);
    take_over(in, here, 1);
    copy(pp_cuda_address(here), there, BYTES, stream);
    DONE(PP_CUDA(cuda, cuStreamSynchronize, stream));
    CHECK(is_filled(here, BYTES, 2));
    /* The handle is tried once more, when its descriptor names other memory. */
    DONE(PP_CUDA(cuda, cuMemFree, there));
    const CUdeviceptr next = memory_of_device(BYTES);
    hand_over(out, &handle, 1);
    take_over(in, here, 1);
    DONE(PP_CUDA(cuda, cuMemFree, next));
    DONE(PP_CUDA(cuda, cuMemFreeHost, here));
    DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    finish();
}

static void use_from_another(int in, int out)
{
    CUipcMemHandle handle;
    CUdeviceptr    there, again;
    CUmodule       module;
    begin();
    unsigned char *here = pinned_memory(BYTES);
    const CUstream stream = new_stream();
    take_over(in, &handle, sizeof handle);
    CHECK(cuda->cuIpcOpenMemHandle(&there, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    DONE(PP_CUDA(cuda, cuIpcOpenMemHandle, &there, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    DONE(PP_CUDA(cuda, cuIpcOpenMemHandle, &again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(again == there);
    SAME(fake_leaks(), "host memory: 1, mappings: 1, streams: 1, contexts: 1");
    CHECK(cuda->cuMemFree(there) == CUDA_ERROR_INVALID_VALUE);
    copy(pp_cuda_address(here), there, BYTES, stream);
    DONE(PP_CUDA(cuda, cuStreamSynchronize, stream));
    CHECK(is_filled(here, BYTES, 1));
    const CUfunction sum = sum_of(&module);      /* an IPC mapping comes with access to its device */
    launch(sum, there, there, there, BYTES / 4, stream);
    DONE(PP_CUDA(cuda, cuStreamSynchronize, stream));
    DONE(PP_CUDA(cuda, cuModuleUnload, module));
    CHECK(*(uint32_t *)fake_reach(there, 4) == 2 * *(uint32_t *)here);
    fill(here, BYTES, 2);
    copy(there, pp_cuda_address(here), BYTES, stream);
    DONE(PP_CUDA(cuda, cuStreamSynchronize, stream));
    /* To close it waits for what is queued, as to free. */
    call_t call = {.name = "cuIpcCloseMemHandle", .make = close_mapping, .address = there};
    for (int left = 1; left >= 0; left--) {
        fake_hold(stream, true);
        copy(pp_cuda_address(here), pp_cuda_address(here + 1), 1, stream);
        begin_call(&call);
        fake_hold(stream, false);
        CHECK(end_call(&call) == CUDA_SUCCESS && fake_live("mappings") == (uint64_t)left);
    }
    CHECK( cuda->cuIpcCloseMemHandle(there) == CUDA_ERROR_INVALID_VALUE);
    hand_over(out, here, 1);
    take_over(in, here, 1);
    /* The memory was freed. */
    CHECK(cuda->cuIpcOpenMemHandle(&there, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_MAP_FAILED);
    hand_over(out, here, 1);
    DONE(PP_CUDA(cuda, cuMemFreeHost, here));
    DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    finish();
}

/* Two processes, each of which opens the driver for itself, use one memory; it is of the device `number`. */
static void two_processes(void)
{
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    const pid_t child = fork();
    /* A process whose partner has died reads nothing, and ends. */
    close(child == 0 ? there[0] : there[1]);
    close(child == 0 ? back[1] : back[0]);
    if (child == 0) {
        make_for_another(back[0], there[1]);
        exit(0);
    }
    use_from_another(there[0], back[1]);
    CHECK(status_of(child) == 0);
}

/* Maps the other process's memory; closes it when that was freed, or ends at once (1), or leaves it to the last release of
   the context (2). */
static void map_memory(int in, int out)
{
    CUipcMemHandle handle;
    CUdeviceptr    there;
    begin();
    take_over(in, &handle, sizeof handle);
    DONE(PP_CUDA(cuda, cuIpcOpenMemHandle, &there, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    hand_over(out, "m", 1);
    if (number == 1)
        _exit(0);
    if (number == 2) {
        finish_after(1);
        exit(0);
    }
    take_over(in, &handle, 1);
    DONE(PP_CUDA(cuda, cuIpcCloseMemHandle, there));
    finish();
}

/* Memory that is freed while another process has it mapped is a misuse; one that has died does not count. */
static void freed_while_mapped(void)
{
    CUipcMemHandle handle;
    char           word;
    int            there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    const pid_t child = fork();
    close(child == 0 ? there[1] : there[0]);
    close(child == 0 ? back[0] : back[1]);
    if (child == 0) {
        map_memory(there[0], back[1]);
        exit(0);
    }
    ordinal = number == 2;                       /* its context is another one than that in which it is opened */
    begin();
    const CUdeviceptr memory = memory_of_device(BYTES);
    DONE(PP_CUDA(cuda, cuIpcGetMemHandle, &handle, memory));
    hand_over(there[1], &handle, sizeof handle);
    take_over(back[0], &word, 1);
    if (number)
        CHECK(status_of(child) == 0);
    DONE(PP_CUDA(cuda, cuMemFree, memory));
    CHECK(fake_misuses() == (number ? 0 : 1));
    if (!number) {
        hand_over(there[1], "f", 1);
        CHECK(status_of(child) == 0);
    }
    finish_after(number ? 0 : 1);
}

/* --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void      (*run)(void);
} CASES[] = {
#define CASE(function) {#function, function}
    CASE(open_twice), CASE(threads), CASE(forked), CASE(forked_from_an_application), CASE(forked_before),
    CASE(no_such_device), CASE(statuses), CASE(failures), CASE(one_failure), CASE(contexts),
    CASE(held_streams), CASE(destroyed_early), CASE(default_streams), CASE(other_context), CASE(capture), CASE(touch), CASE(pointers),
    CASE(registration), CASE(leaks), CASE(strictness), CASE(peers), CASE(two_processes),
    CASE(freed_while_mapped), CASE(handles), CASE(room), CASE(giving_back),
    CASE(used_while_freed), CASE(last_release), CASE(unsafe_calls), CASE(blocking_capture), CASE(priorities),
#undef CASE
};

int main(int count, char **arguments)
{
    number = count > 2 ? atoi(arguments[2]) : 0;
    setvbuf(stdout, NULL, _IOLBF, 0);            /* nothing is waiting to be printed when the program forks */
    for (size_t i = 0; i < PP_COUNT_OF(CASES) && count > 1; i++)
        if (strcmp(CASES[i].name, arguments[1]) == 0) {
            CASES[i].run();
            return 0;
        }
    return 2;
}
