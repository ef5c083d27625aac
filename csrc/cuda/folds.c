/* folds.c - see folds.h. */
#include "folds.h"
#include "../reduce/reduce.h"

#include <assert.h>
#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    THREADS = 256,                   /* of a block */
    BLOCKS = 32,                     /* for a multiprocessor: some at a time, so that none is idle at the end */
    LINE_BYTES = 16,                 /* what a thread reads at once */
    NAME_BYTES = 64, OP_BYTES = 8
};

#define CALL(device, name, ...) PP_CUDA((device)->cuda, name, __VA_ARGS__)

/* ---- the kernels' parameters, as _device_kernels.cu has them -------------------------------------- */

/* Elements head .. head + groups * (elements of a group) - 1 are taken in whole lines of each buffer, the others one by
   one. */
typedef struct cut {
    uint64_t head, groups, count;
} cut_t;

typedef struct vectors {
    CUdeviceptr of[PP_FOLD_VECTORS];
} vectors_t;

typedef struct members {
    CUdeviceptr of[PP_FOLD_VECTORS];
    union weights {                  /* of the kernel's type */
        float  narrow[PP_FOLD_VECTORS];
        double wide[PP_FOLD_VECTORS];
    } weights;
} members_t;

typedef struct element {
    _Alignas(LINE_BYTES) unsigned char bytes[LINE_BYTES];
} element_t;

struct pp_folds {
    pp_cuda_device_t device;         /* the caller's: retained there */
    pp_kernels_t     kernels;        /* sizes, and which conversions there are */
    element_t        identity;
    unsigned         blocks_most;
    CUmodule         module;         /* NULL: not taken yet */
    CUfunction       fold, fill;
    CUfunction       load, store;    /* NULL: a copy */
    CUfunction       combine;        /* NULL: a fold of two vectors */
    CUfunction       mean;           /* NULL: only sums of floating numbers have one */
};

/* ---- images: one for each device of this process -------------------------------------------------- */

typedef struct image {
    struct image *next;
    CUdevice      device;
    void         *bytes;
    CUmodule      module;
    uint64_t      users;             /* 0: not loaded */
} image_t;

/* An image stays for good.  The lock protects the list and each image's `module` and `users`. */
static struct {
    pthread_mutex_t lock;
    image_t        *first;
} images = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* With the lock. */
static image_t *image_of(CUdevice device)
{
    image_t *image = images.first;
    while (image && image->device != device)
        image = image->next;
    return image;
}

/* With the lock. */
static pp_status_t add_image(CUdevice device, const void *bytes, size_t count)
{
    image_t *image = malloc(sizeof *image);
    void    *copy = malloc(count > 0 ? count : 1);
    if (!image || !copy) {
        free(image);
        free(copy);
        return pp_fail(PP_ERR_MEMORY, "no memory for the kernels of a device (%zu bytes)", count);
    }
    memcpy(copy, bytes, count);
    *image = (image_t){.next = images.first, .device = device, .bytes = copy};
    images.first = image;
    return PP_OK;
}

pp_status_t pp_folds_use(int32_t number, const void *bytes, size_t count)
{
    const pp_cuda_t *cuda;
    CUdevice         device;
    PP_TRY(pp_cuda_device_find(number, &cuda, &device));
    pthread_mutex_lock(&images.lock);
    const pp_status_t status = image_of(device) ? PP_OK : add_image(device, bytes, count);
    pthread_mutex_unlock(&images.lock);
    return status;
}

/* With the lock, inside the device. */
static pp_status_t load_module(const pp_cuda_device_t *device, CUmodule *module)
{
    image_t *image = image_of(device->device);
    if (!image)
        return pp_fail(PP_ERR_STATE, "there are no kernels for device %d: call pp_device_kernels() first",
                       device->device);
    if (image->users == 0)
        PP_TRY(CALL(device, cuModuleLoadData, &image->module, image->bytes));
    image->users++;
    *module = image->module;
    return PP_OK;
}

static pp_status_t take_module(const pp_cuda_device_t *device, CUmodule *module)
{
    PP_TRY(pp_cuda_enter(device));
    pthread_mutex_lock(&images.lock);
    const pp_status_t status = load_module(device, module);
    pthread_mutex_unlock(&images.lock);
    return pp_cuda_leave(device, status);
}

pp_status_t pp_folds_take(const pp_cuda_device_t *device)
{
    CUmodule module;
    return take_module(device, &module);
}

/* A forked child finds the lock as another thread of its parent may have had it. */
void pp_folds_give(const pp_cuda_device_t *device)
{
    if (pp_cuda_in_child())
        return;
    pthread_mutex_lock(&images.lock);
    image_t       *image = image_of(device->device);
    const CUmodule unused_now = --image->users == 0 ? image->module : NULL;
    pthread_mutex_unlock(&images.lock);
    if (!unused_now || pp_cuda_enter(device) < 0)    /* the next one loads the image again, and need not wait for this */
        return;
    device->cuda->cuModuleUnload(unused_now);
    pp_cuda_leave(device, PP_OK);
}

/* ---- opening -------------------------------------------------------------------------------------- */

static bool is_half(int32_t type) { return type == PP_FLOAT16 || type == PP_BFLOAT16; }

/* The type by which the kernels for vectors are called.  Two's complement: those of an unsigned type serve the signed
   one and bool, but for the order. */
static int32_t vector_type(const pp_kernels_t *kernels)
{
    const bool is_order = kernels->op == PP_MIN || kernels->op == PP_MAX;
    if (is_half(kernels->type))
        return PP_FLOAT32;
    if (kernels->type == PP_BOOL)
        return PP_UINT8;
    return kernels->type <= PP_INT64 && !is_order ? kernels->type - PP_INT8 + PP_UINT8 : kernels->type;
}

/* The type by which the kernel that fills is called: an unsigned one of the same size, but for complex numbers. */
static int32_t filled_type(int32_t type)
{
    if (type == PP_COMPLEX64 || type == PP_COMPLEX128)
        return type;
    switch (pp_type_bytes(type)) {
    case 1: return PP_UINT8;
    case 2: return PP_UINT16;
    case 4: return PP_UINT32;
    default: return PP_UINT64;
    }
}

static pp_status_t find_by(const pp_folds_t *folds, const char *name, CUfunction *out)
{
    const pp_cuda_t *cuda = folds->device.cuda;
    const CUresult   result = cuda->cuModuleGetFunction(out, folds->module, name);
    if (result != CUDA_ERROR_NOT_FOUND)
        return pp_cuda_status(cuda, result, "cuModuleGetFunction");
    return pp_fail(PP_ERR_STATE, "the kernels that this process was given have no %s: they are another version's, or "
                   "PYPARTIAL_CUDA_KERNELS names a file that has other things", name);
}

/* The kernel "pp_<what>_<operation>_<type>". */
static pp_status_t find_of_op(const pp_folds_t *folds, const char *what, int32_t type, CUfunction *out)
{
    char name[NAME_BYTES], op[OP_BYTES];
    snprintf(op, sizeof op, "%s", pp_op_name(folds->kernels.op));
    for (char *letter = op; *letter; letter++)
        *letter = (char)tolower((unsigned char)*letter);
    snprintf(name, sizeof name, "pp_%s_%s_%s", what, op, pp_type_name(type));
    return find_by(folds, name, out);
}

/* The kernel "pp_<what>_<type>". */
static pp_status_t find(const pp_folds_t *folds, const char *what, int32_t type, CUfunction *out)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "pp_%s_%s", what, pp_type_name(type));
    return find_by(folds, name, out);
}

static pp_status_t find_all(pp_folds_t *folds)
{
    const int32_t      type = folds->kernels.type, of_vectors = vector_type(&folds->kernels);
    const pp_kernels_t *kernels = &folds->kernels;
    PP_TRY(find_of_op(folds, "fold", of_vectors, &folds->fold));
    if (is_half(type)) {
        PP_TRY(find_of_op(folds, "combine", type, &folds->combine));
        PP_TRY(find(folds, "load", type, &folds->load));
        PP_TRY(find(folds, "store", type, &folds->store));
    } else if (kernels->normalise) {
        PP_TRY(find(folds, "load", of_vectors, &folds->load));
    }
    if (kernels->op == PP_SUM && (of_vectors == PP_FLOAT32 || of_vectors == PP_FLOAT64))
        PP_TRY(find(folds, "mean", of_vectors, &folds->mean));
    return find(folds, "fill", filled_type(type), &folds->fill);
}

/* Inside the device. */
static pp_status_t prepare(pp_folds_t *folds)
{
    int multiprocessors = 0;
    PP_TRY(CALL(&folds->device, cuDeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                folds->device.device));
    folds->blocks_most = BLOCKS * (unsigned)multiprocessors;
    pp_identity_fill(folds->kernels.op, folds->kernels.type, &folds->identity, 1);
    PP_TRY(take_module(&folds->device, &folds->module));
    return find_all(folds);
}

void pp_folds_close(pp_folds_t *folds)
{
    if (folds && folds->module)
        pp_folds_give(&folds->device);
    free(folds);
}

static pp_status_t check_type(int32_t type)
{
    if (type != PP_LONGDOUBLE && type != PP_CLONGDOUBLE)
        return PP_OK;
    return pp_fail(PP_ERR_ARGUMENT, "devices have no %s: use float64 or complex128", pp_type_name(type));
}

pp_status_t pp_folds_open(const pp_cuda_device_t *device, int32_t op, int32_t type, pp_folds_t **out)
{
    pp_kernels_t kernels;
    *out = NULL;
    PP_TRY(pp_kernels_find(op, type, &kernels));
    PP_TRY(check_type(type));
    pp_folds_t *folds = calloc(1, sizeof *folds);
    if (!folds)
        return pp_fail(PP_ERR_MEMORY, "no memory for the kernels of a device");
    folds->device = *device;
    folds->kernels = kernels;
    pp_status_t status = pp_cuda_enter(device);
    if (status >= 0)
        status = pp_cuda_leave(device, prepare(folds));
    if (status < 0)
        pp_folds_close(folds);
    else
        *out = folds;
    return status;
}

/* ---- launches ------------------------------------------------------------------------------------- */

static bool is_lined(CUdeviceptr address, size_t element_bytes, size_t head)
{
    return (address + head * element_bytes) % LINE_BYTES == 0;
}

/* The first element at which a line of a buffer begins.  LINE_BYTES: there is none. */
static size_t head_of(CUdeviceptr address, size_t element_bytes)
{
    size_t head = 0;
    while (head < LINE_BYTES && !is_lined(address, element_bytes, head))
        head++;
    return head;
}

/* A group has a line of the narrower elements, or two of them where each fills a line. */
static size_t group_of(size_t element_bytes)
{
    return element_bytes < LINE_BYTES ? LINE_BYTES / element_bytes : 2;
}

/* If the lines of all buffers begin together, at `head`, most elements are taken by lines. */
static cut_t cut_at(size_t head, bool together, size_t count, size_t element_bytes)
{
    const bool is_used = together && head < LINE_BYTES && head < count;
    return (cut_t){head, is_used ? (count - head) / group_of(element_bytes) : 0, count};
}

/* Each thread takes a group or an element at a time. */
static pp_status_t launch(const pp_folds_t *folds, CUfunction function, const cut_t *cut, size_t element_bytes,
                          void **parameters, CUstream stream)
{
    const uint64_t rest = cut->count - cut->groups * group_of(element_bytes);
    const uint64_t blocks = ((cut->groups > rest ? cut->groups : rest) + THREADS - 1) / THREADS;
    const unsigned used = blocks < folds->blocks_most ? (unsigned)blocks : folds->blocks_most;
    return CALL(&folds->device, cuLaunchKernel, function, used, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL);
}

/* Queues copy(), convert() or another one inside the device; nothing if there are no elements. */
#define QUEUE(folds, count, ...)                                    \
    do {                                                            \
        if ((count) == 0)                                           \
            return PP_OK;                                           \
        PP_TRY(pp_cuda_enter(&(folds)->device));                    \
        return pp_cuda_leave(&(folds)->device, (__VA_ARGS__));      \
    } while (0)

/* Between the application's elements, which are not wider than those of vectors, and these. */
static pp_status_t convert(const pp_folds_t *folds, CUfunction function, CUdeviceptr to, CUdeviceptr from, size_t count,
                           CUstream stream)
{
    const bool        is_store = function == folds->store;
    const CUdeviceptr users = is_store ? to : from, vector = is_store ? from : to;
    const size_t      bytes = folds->kernels.user_bytes, head = head_of(users, bytes);
    cut_t             cut = cut_at(head, is_lined(vector, folds->kernels.element_bytes, head), count, bytes);
    void             *parameters[] = {&to, &from, &cut};
    return launch(folds, function, &cut, bytes, parameters, stream);
}

static pp_status_t copy(const pp_folds_t *folds, CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream)
{
    return CALL(&folds->device, cuMemcpyAsync, to, from, count * folds->kernels.element_bytes, stream);
}

/* Folds at most PP_FOLD_VECTORS vectors. */
static pp_status_t fold_some(const pp_folds_t *folds, CUdeviceptr out, vectors_t *from, uint32_t vector_count,
                             size_t count, uint64_t divide_by, CUstream stream)
{
    const size_t bytes = folds->kernels.element_bytes, head = head_of(out, bytes);
    bool         together = true;
    for (uint32_t i = 0; i < vector_count; i++)
        together = together && is_lined(from->of[i], bytes, head);
    cut_t cut = cut_at(head, together, count, bytes);
    void *parameters[] = {&out, from, &vector_count, &divide_by, &cut};
    return launch(folds, folds->fold, &cut, bytes, parameters, stream);
}

/* From the second launch on the left operand is what there is so far. */
static pp_status_t fold(const pp_folds_t *folds, CUdeviceptr out, const CUdeviceptr *vectors, uint32_t vector_count,
                        size_t count, uint64_t divide_by, CUstream stream)
{
    for (uint32_t done = 0; done < vector_count;) {
        vectors_t from;
        uint32_t  taken = 0;
        if (done > 0)
            from.of[taken++] = out;
        while (taken < PP_FOLD_VECTORS && done < vector_count)
            from.of[taken++] = vectors[done++];
        PP_TRY(fold_some(folds, out, &from, taken, count, done < vector_count ? 1 : divide_by, stream));
    }
    return PP_OK;
}

/* Member `at` of a launch. */
static void set_member(const pp_folds_t *folds, members_t *members, uint32_t at, CUdeviceptr vector, double weight)
{
    members->of[at] = vector;
    if (folds->kernels.element_bytes == sizeof(float))
        members->weights.narrow[at] = (float)weight;
    else
        members->weights.wide[at] = weight;
}

/* Averages at most PP_FOLD_VECTORS vectors, and writes to the first `written` of them.  `initial` 0: it does not count. */
static pp_status_t mean_some(const pp_folds_t *folds, members_t *members, uint32_t member_count, uint32_t written,
                             CUdeviceptr initial, double initial_weight, uint64_t divide_by, size_t count,
                             CUstream stream)
{
    const size_t bytes = folds->kernels.element_bytes, head = head_of(members->of[0], bytes);
    const float  narrow = (float)initial_weight;
    const void  *weight = bytes == sizeof narrow ? (const void *)&narrow : &initial_weight;
    bool         together = !initial || is_lined(initial, bytes, head);
    for (uint32_t i = 1; i < member_count; i++)
        together = together && is_lined(members->of[i], bytes, head);
    cut_t cut = cut_at(head, together, count, bytes);
    void *parameters[] = {members, &member_count, &written, &initial, (void *)(uintptr_t)weight, &divide_by, &cut};
    return launch(folds, folds->mean, &cut, bytes, parameters, stream);
}

/* From the second launch on the first member is the sum so far, which counts once: 1 * x is x.  Equal shares are weights
   of 1, whose sum is divided.  The last launch writes to its members; those before have copies. */
static pp_status_t mean(const pp_folds_t *folds, const pp_folds_mean_t *mean, size_t count, CUstream stream)
{
    const CUdeviceptr *vectors = mean->vectors;
    const bool         has_initial = mean->initial_weight > 0;
    uint32_t           done = 0, before = 0;
    while (done < mean->vector_count) {
        members_t  members;
        uint32_t   taken = 0;
        const bool begins = done == 0;
        before = done;
        if (!begins)
            set_member(folds, &members, taken++, vectors[0], 1);
        for (; taken < PP_FOLD_VECTORS && done < mean->vector_count; done++)
            set_member(folds, &members, taken++, vectors[done], mean->weights ? mean->weights[done] : 1);
        const bool ends = done == mean->vector_count;
        PP_TRY(mean_some(folds, &members, taken, ends ? taken : 1, begins && has_initial ? mean->initial : 0,
                         mean->initial_weight, ends && !mean->weights ? mean->vector_count : 1, count, stream));
    }
    for (uint32_t i = 1; i < before; i++)
        PP_TRY(copy(folds, vectors[i], vectors[0], count, stream));
    return PP_OK;
}

static pp_status_t fill(const pp_folds_t *folds, CUdeviceptr to, size_t count, CUstream stream)
{
    const size_t bytes = folds->kernels.user_bytes;
    element_t    identity = folds->identity;
    cut_t        cut = cut_at(head_of(to, bytes), true, count, bytes);
    void        *parameters[] = {&to, &identity, &cut};
    return launch(folds, folds->fill, &cut, bytes, parameters, stream);
}

/* ---- calls ---------------------------------------------------------------------------------------- */

pp_status_t pp_folds_load(const pp_folds_t *folds, CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream)
{
    QUEUE(folds, count, folds->load ? convert(folds, folds->load, to, from, count, stream)
                                    : copy(folds, to, from, count, stream));
}

pp_status_t pp_folds_load_combined(const pp_folds_t *folds, CUdeviceptr inout, CUdeviceptr from, size_t count,
                                   CUstream stream)
{
    const CUdeviceptr both[] = {inout, from};
    QUEUE(folds, count, folds->combine ? convert(folds, folds->combine, inout, from, count, stream)
                                       : fold(folds, inout, both, PP_COUNT_OF(both), count, 1, stream));
}

pp_status_t pp_folds_fold(const pp_folds_t *folds, CUdeviceptr out, const CUdeviceptr *vectors, uint32_t vector_count,
                          size_t count, uint64_t divide_by, CUstream stream)
{
    assert(vector_count > 0 && (divide_by <= 1 || folds->kernels.divide));
    if (vector_count == 1 && divide_by <= 1 && out == vectors[0])
        return PP_OK;
    QUEUE(folds, count, vector_count == 1 && divide_by <= 1
              ? copy(folds, out, vectors[0], count, stream)
              : fold(folds, out, vectors, vector_count, count, divide_by, stream));
}

pp_status_t pp_folds_mean(const pp_folds_t *folds, const pp_folds_mean_t *of, size_t count, CUstream stream)
{
    assert(folds->mean && of->vector_count > 0);
    QUEUE(folds, count, mean(folds, of, count, stream));
}

pp_status_t pp_folds_store(const pp_folds_t *folds, CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream)
{
    QUEUE(folds, count, folds->store ? convert(folds, folds->store, to, from, count, stream)
                                     : copy(folds, to, from, count, stream));
}

pp_status_t pp_folds_fill(const pp_folds_t *folds, CUdeviceptr to, size_t count, CUstream stream)
{
    QUEUE(folds, count, fill(folds, to, count, stream));
}
