/*
 * folds_cases.c - csrc/cuda/folds.c and the kernels of pypartial/_device_kernels.cu, with the stand-in for the CUDA
 * driver, against the host's arithmetic.  Run by tests/unit/test_folds.py:
 *
 *     folds_cases KERNELS CASE [NUMBER]     exits with 1 and says which line was wrong; the function CASE says what it
 *                                           holds.  KERNELS are compiled for the host: kernels_on_host.h
 */
#define _GNU_SOURCE
#include "../../support/fakecuda.h"
#include "cuda/folds.h"
#include "cuda/pool.h"
#include "reduce/reduce.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    MOST_VECTORS = 70,
    MOST_BYTES = 1 << 16,            /* of a vector */
    THREADS = 6,
    NOT_REACHED = 77
};

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "line %d: not so: %s (%s)\n", __LINE__, #condition, pp_error_text());     \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)
#define DONE(call) CHECK((call) == PP_OK)
#define SAYS(text) CHECK(strcmp(pp_error_text(), text) == 0)

static pp_cuda_device_t device;
static const pp_cuda_t *cuda;                    /* device.cuda */
static CUstream         stream;
static int              number;                  /* the program's third argument */
static char            *image;                   /* of the kernels */
static size_t           image_bytes;

static void open_device(int32_t ordinal)
{
    DONE(pp_cuda_device_open(ordinal, &device));
    cuda = device.cuda;
    DONE(pp_cuda_enter(&device));
    DONE(pp_cuda_make_stream(cuda, &stream));
}

/* Opens the device, and gives it the kernels. */
static void begin(void)
{
    open_device(0);
    DONE(pp_folds_use(0, image, image_bytes));
}

/* Nothing may be left. */
static void finish(void)
{
    DONE(PP_CUDA(cuda, cuStreamDestroy, stream));
    DONE(pp_cuda_leave(&device, PP_OK));
    pp_cuda_device_close(&device);
    CHECK(strcmp(fake_leaks(), "") == 0);
    CHECK(fake_misuses() == 0);
}

static void wait_for_stream(void) { DONE(PP_CUDA(cuda, cuStreamSynchronize, stream)); }

/* ---- vectors -------------------------------------------------------------------------------------- */

/* Elements at the end of memory of the device, so that none beyond them can be touched.  `here` has the same on the
   host, and by the host's arithmetic stays the same. */
typedef struct vector {
    CUdeviceptr memory;
    size_t      bytes, element_bytes;
    char       *here;
} vector_t;

static vector_t new_vector(size_t bytes, size_t element_bytes)
{
    vector_t vector = {.bytes = bytes, .element_bytes = element_bytes, .here = pp_alloc_aligned(bytes)};
    DONE(PP_CUDA(cuda, cuMemAlloc, &vector.memory, bytes));
    return vector;
}

static void free_vector(vector_t *vector)
{
    DONE(PP_CUDA(cuda, cuMemFree, vector->memory));
    free(vector->here);
}

static size_t start_of(const vector_t *vector, size_t count)
{
    CHECK(count * vector->element_bytes <= vector->bytes);
    return vector->bytes - count * vector->element_bytes;
}

static CUdeviceptr last(const vector_t *vector, size_t count) { return vector->memory + start_of(vector, count); }

/* The host's copy is aligned, as the host's buffers are. */
static char *there(const vector_t *vector) { return fake_reach(vector->memory, vector->bytes); }

/* What is at the end of the host's memory to the device's, and all before it. */
static void put(const vector_t *vector) { memcpy(there(vector), vector->here, vector->bytes); }

static bool is_same(const vector_t *vector) { return memcmp(there(vector), vector->here, vector->bytes) == 0; }

/* ---- values --------------------------------------------------------------------------------------- */

/* Bit patterns at which the type is likely to go wrong. */
static const uint16_t SPECIAL_FLOAT16[] = {0, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7d55, 0xfc01,
                                           0x7bff, 0x0001, 0x83ff, 0x0400};
static const uint16_t SPECIAL_BFLOAT16[] = {0, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0xff85,
                                            0x7f7f, 0x0001, 0x807f, 0x0080};
static const uint32_t SPECIAL_FLOAT32[] = {0, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000,
                                           0xffc00000, 0x7fc12345, 0x7f812345, 0xff800001, 0x7f7fffff, 0xff7fffff,
                                           0x00000001, 0x807fffff, 0x00800000};
static const uint64_t SPECIAL_FLOAT64[] = {0, UINT64_C(0x8000000000000000), UINT64_C(0x3ff0000000000000),
                                           UINT64_C(0xbff0000000000000), UINT64_C(0x7ff0000000000000),
                                           UINT64_C(0xfff0000000000000), UINT64_C(0x7ff8000000000000),
                                           UINT64_C(0xfff8000000000000), UINT64_C(0x7ff8000012345678),
                                           UINT64_C(0x7ff0000012345678), UINT64_C(0xfff0000000000001),
                                           UINT64_C(0x7fefffffffffffff), 1, UINT64_C(0x800fffffffffffff),
                                           UINT64_C(0x0010000000000000)};
/* Of integers of any width the low bytes, and so 0, 1, -1, the largest and the smallest. */
static const uint64_t SPECIAL_INTEGER[] = {0, 1, UINT64_MAX, INT64_MAX, (uint64_t)INT64_MIN, INT32_MAX,
                                           (uint64_t)(int64_t)INT32_MIN, INT16_MAX, 0x8000, INT8_MAX, 0x80, 2,
                                           UINT64_C(0x100000000), 0x100};

static void special(int32_t type, void *to, uint64_t drawn)
{
#define ONE_OF(values, bytes) memcpy(to, &(values)[drawn % PP_COUNT_OF(values)], bytes)
    switch (type) {
    case PP_FLOAT16: ONE_OF(SPECIAL_FLOAT16, 2); break;
    case PP_BFLOAT16: ONE_OF(SPECIAL_BFLOAT16, 2); break;
    case PP_FLOAT32: ONE_OF(SPECIAL_FLOAT32, 4); break;
    case PP_FLOAT64: ONE_OF(SPECIAL_FLOAT64, 8); break;
    case PP_COMPLEX64:
        special(PP_FLOAT32, to, drawn);
        special(PP_FLOAT32, (char *)to + 4, drawn >> 32);
        break;
    case PP_COMPLEX128:
        special(PP_FLOAT64, to, drawn);
        special(PP_FLOAT64, (char *)to + 8, drawn >> 32);
        break;
    default: ONE_OF(SPECIAL_INTEGER, pp_type_bytes(type)); break;
    }
#undef ONE_OF
}

/* A number that many additions and multiplications leave finite: near 1 in absolute value. */
static void ordinary(int32_t type, void *to, uint64_t drawn)
{
    const double wide = (0.75 + (double)(drawn >> 12) * 0x1p-53) * (drawn & 1 ? -1 : 1);
    const float  narrow = (float)wide;
    switch (type) {
    case PP_FLOAT32: memcpy(to, &narrow, 4); break;
    case PP_FLOAT64: memcpy(to, &wide, 8); break;
    case PP_COMPLEX64:
        ordinary(PP_FLOAT32, to, drawn);
        ordinary(PP_FLOAT32, (char *)to + 4, pp_mix(drawn, 0));
        break;
    case PP_COMPLEX128:
        ordinary(PP_FLOAT64, to, drawn);
        ordinary(PP_FLOAT64, (char *)to + 8, pp_mix(drawn, 0));
        break;
    default: memcpy(to, &drawn, pp_type_bytes(type)); break;
    }
}

enum { ORDINARY, MIXED, SPECIALS, ANY_BITS, KINDS };

static void value(int32_t type, int kind, void *to, uint64_t seed, uint64_t index)
{
    const uint64_t drawn = pp_mix(seed, 2 * index);
    if (kind == SPECIALS || (kind == MIXED && drawn % 64 == 0))
        special(type, to, drawn >> 8);
    else if (kind == ANY_BITS)
        memcpy(to, (uint64_t[]){drawn, pp_mix(seed, 2 * index + 1)}, pp_type_bytes(type));
    else
        ordinary(type, to, drawn);
}

/* Values for the last `count` elements, of type `type`, and any bytes before them. */
static void draw(vector_t *vector, int32_t type, int kind, size_t count, uint64_t seed)
{
    const size_t start = start_of(vector, count);
    for (size_t i = 0; i < start; i += sizeof(uint64_t)) {
        const uint64_t drawn = pp_mix(~seed, i);
        const size_t   left = start - i;
        memcpy(vector->here + i, &drawn, left < sizeof drawn ? left : sizeof drawn);
    }
    for (size_t i = 0; i < count; i++)
        value(type, kind, vector->here + start + i * vector->element_bytes, seed, i);
    put(vector);
}

/* ---- the host's arithmetic ------------------------------------------------------------------------ */

/* Its buffers are aligned to elements, also where `here` has no more than a vector's end. */
static void *aligned(const vector_t *vector, size_t count, size_t index)
{
    static _Alignas(64) char copies[3][MOST_BYTES];
    return memcpy(copies[index], vector->here + start_of(vector, count), count * vector->element_bytes);
}

static void give_back(vector_t *vector, size_t count, const void *values)
{
    memcpy(vector->here + start_of(vector, count), values, count * vector->element_bytes);
}

/* As reduce_block() of csrc/node/move.c. */
static void fold_here(const pp_kernels_t *kernels, vector_t *out, vector_t *const *vectors, uint32_t vector_count,
                      size_t count, uint64_t divide_by)
{
    void *sum = aligned(vectors[0], count, 0);
    for (uint32_t i = 1; i < vector_count; i++)
        kernels->keep_left(sum, aligned(vectors[i], count, 1), count);
    if (divide_by > 1)
        kernels->divide(sum, count, divide_by);
    give_back(out, count, sum);
}

static void load_here(const pp_kernels_t *kernels, vector_t *to, const vector_t *from, size_t count)
{
    void *accumulators = aligned(to, count, 0);
    pp_load(kernels, accumulators, aligned(from, count, 1), count);
    if (kernels->normalise)
        kernels->normalise(accumulators, count);
    give_back(to, count, accumulators);
}

static void load_combined_here(const pp_kernels_t *kernels, vector_t *inout, const vector_t *from, size_t count)
{
    void *accumulators = aligned(inout, count, 0);
    pp_load_combined(kernels, accumulators, aligned(from, count, 1), count);
    give_back(inout, count, accumulators);
}

static void store_here(const pp_kernels_t *kernels, vector_t *to, const vector_t *from, size_t count)
{
    void *elements = aligned(to, count, 0);
    pp_store(kernels, elements, aligned(from, count, 1), count);
    give_back(to, count, elements);
}

/* ---- folds ---------------------------------------------------------------------------------------- */

static const size_t   COUNTS[] = {1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 255, 1001};
static const uint32_t VECTORS[] = {1, 2, 3, 4, 5, 8, 9, 63, 64, 65, MOST_VECTORS};
static const uint64_t DIVISORS[] = {0, 1, 2, 3, 7, 10, (1 << 24) + 1, UINT64_C(0x8000000000000401), UINT64_MAX};

/* The type of vectors' elements. */
static int32_t accumulator(int32_t type) { return type == PP_FLOAT16 || type == PP_BFLOAT16 ? PP_FLOAT32 : type; }

static size_t alignment_of(int32_t type)
{
    const bool is_complex = type == PP_COMPLEX64 || type == PP_COMPLEX128;
    return pp_type_bytes(type) / (is_complex ? 2 : 1);
}

typedef struct bench {
    pp_folds_t  *folds;
    pp_kernels_t kernels;
    int32_t      type;                           /* of vectors */
    vector_t     out, vectors[MOST_VECTORS];
} bench_t;

/* Vectors of equal size begin at the same byte of a line, however many elements they have at their ends.  The others do
   not: their sizes differ by multiples of the alignment. */
static void set_up(bench_t *bench, int32_t op, int32_t type, bool alike)
{
    bench->type = accumulator(type);
    DONE(pp_kernels_find(op, type, &bench->kernels));
    DONE(pp_folds_open(&device, op, type, &bench->folds));
    const size_t element = bench->kernels.element_bytes, most = 1024 * element;
    bench->out = new_vector(most, element);
    for (uint32_t i = 0; i < MOST_VECTORS; i++)
        bench->vectors[i] = new_vector(most + (alike ? 0 : (i + 1) * alignment_of(bench->type)), element);
}

static void tear_down(bench_t *bench)
{
    free_vector(&bench->out);
    for (uint32_t i = 0; i < MOST_VECTORS; i++)
        free_vector(&bench->vectors[i]);
    pp_folds_close(bench->folds);
}

/* `target`: the vector to which the result goes; NULL: none of them. */
static void fold_once(bench_t *bench, int kind, size_t count, uint32_t vector_count, uint64_t divide_by,
                      vector_t *target)
{
    CUdeviceptr addresses[MOST_VECTORS];
    vector_t   *vectors[MOST_VECTORS], *out = target ? target : &bench->out;
    draw(&bench->out, bench->type, kind, count, 1000);
    for (uint32_t i = 0; i < vector_count; i++) {
        vectors[i] = &bench->vectors[i];
        draw(vectors[i], bench->type, kind, count, 100 * count + i);
        addresses[i] = last(vectors[i], count);
    }
    fold_here(&bench->kernels, out, vectors, vector_count, count, divide_by);
    DONE(pp_folds_fold(bench->folds, last(out, count), addresses, vector_count, count, divide_by, stream));
    memset(addresses, 0xff, sizeof addresses);   /* the call needs it no more */
    wait_for_stream();
    if (!is_same(out)) {
        fprintf(stderr, "%s of %s: kind %d, %zu elements of %u vectors, divided by %llu\n",
                pp_op_name(bench->kernels.op), pp_type_name(bench->kernels.type), kind, count, vector_count,
                (unsigned long long)divide_by);
        exit(1);
    }
    for (uint32_t i = 0; i < vector_count; i++)
        CHECK(is_same(vectors[i]));
}

static void fold_all(bench_t *bench)
{
    uint64_t drawn = 0;
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t c = 0; c < PP_COUNT_OF(COUNTS); c++)
            for (size_t v = 0; v < PP_COUNT_OF(VECTORS); v++, drawn++) {
                const uint32_t vector_count = VECTORS[v];
                const uint64_t divide_by = bench->kernels.divide ? DIVISORS[drawn % PP_COUNT_OF(DIVISORS)] : 1;
                const uint32_t first = vector_count < PP_FOLD_VECTORS ? vector_count : PP_FOLD_VECTORS;
                if (COUNTS[c] * vector_count > 8000 && drawn % 8)
                    continue;                    /* these take the longest */
                fold_once(bench, kind, COUNTS[c], vector_count, divide_by,
                          drawn % 3 ? NULL : &bench->vectors[drawn / 3 % first]);
            }
}

/* Every operation on the type `number`: any number of vectors, which begin anywhere, and a result that may be one of
   them. */
static void folds(void)
{
    static bench_t bench;
    int            tried = 0;
    begin();
    for (int32_t op = 0; op < PP_OP_COUNT; op++)
        for (int alike = 0; pp_op_supports(op, number) && alike < 2; alike++, tried++) {
            set_up(&bench, op, number, alike);
            fold_all(&bench);
            tear_down(&bench);
        }
    CHECK(tried >= 4);
    finish();
}

/* ---- averages of groups --------------------------------------------------------------------------- */

/* The host's: as pp_mean() of csrc/node/mean.c. */
static void mean_here(const pp_kernels_t *kernels, vector_t *vectors, const pp_folds_mean_t *mean, const vector_t *initial,
                      size_t count)
{
    const pp_weighted_t *weighted = kernels->weighted;
    void                *sum = aligned(&vectors[0], count, 0);
    if (mean->weights)
        weighted->scale(sum, sum, count, mean->weights[0]);
    if (mean->weights && mean->initial_weight > 0)
        weighted->add(sum, aligned(initial, count, 1), count, mean->initial_weight);
    for (uint32_t i = 1; i < mean->vector_count; i++)
        if (mean->weights)
            weighted->add(sum, aligned(&vectors[i], count, 1), count, mean->weights[i]);
        else
            kernels->keep_left(sum, aligned(&vectors[i], count, 1), count);
    if (!mean->weights)
        kernels->divide(sum, count, mean->vector_count);
    for (uint32_t i = 0; i < mean->vector_count; i++)
        give_back(&vectors[i], count, sum);
}

/* `out` of the bench has the initial model. */
static void mean_once(bench_t *bench, int kind, size_t count, uint32_t vector_count, bool weighted, double initial)
{
    CUdeviceptr addresses[MOST_VECTORS];
    double      weights[MOST_VECTORS];
    draw(&bench->out, bench->type, kind, count, 999);
    for (uint32_t i = 0; i < vector_count; i++) {
        draw(&bench->vectors[i], bench->type, kind, count, 100 * count + i);
        addresses[i] = last(&bench->vectors[i], count);
        weights[i] = i % 7 == 3 ? 0 : i % 7 == 5 ? 1e-50 : 1.0 / (3 + i);
    }
    const pp_folds_mean_t mean = {.vectors = addresses, .weights = weighted ? weights : NULL,
                                  .vector_count = vector_count, .initial = last(&bench->out, count),
                                  .initial_weight = weighted ? initial : 0};
    mean_here(&bench->kernels, bench->vectors, &mean, &bench->out, count);
    DONE(pp_folds_mean(bench->folds, &mean, count, stream));
    memset(addresses, 0xff, sizeof addresses);   /* the call needs them no more */
    memset(weights, 0xff, sizeof weights);
    wait_for_stream();
    CHECK(is_same(&bench->out));
    for (uint32_t i = 0; i < vector_count; i++) {
        if (is_same(&bench->vectors[i]))
            continue;
        fprintf(stderr, "%s: kind %d, %zu elements, vector %u of %u, %s, initial %g\n",
                pp_type_name(bench->kernels.type), kind, count, i, vector_count, weighted ? "weights" : "equal", initial);
        exit(1);
    }
}

/* Groups of the type `number`: of any size, weights of all kinds, vectors that begin anywhere. */
static void means(void)
{
    static const uint32_t SIZES[] = {2, 3, 4, 5, 9, 63, 64, 65, MOST_VECTORS};
    static const double   INITIALS[] = {0, 0.25, 1e-50};
    static bench_t        bench;
    begin();
    for (int alike = 0; alike < 2; alike++) {
        uint64_t drawn = (uint64_t)alike;
        set_up(&bench, PP_SUM, number, alike);
        for (int kind = 0; kind < KINDS; kind++)
            for (size_t c = 0; c < PP_COUNT_OF(COUNTS); c++)
                for (size_t s = 0; s < PP_COUNT_OF(SIZES); s++, drawn++)
                    if (COUNTS[c] * SIZES[s] <= 8000 || drawn % 8 == 0)
                        mean_once(&bench, kind, COUNTS[c], SIZES[s], drawn % 4, INITIALS[drawn % 3]);
        tear_down(&bench);
    }
    finish();
}

/* ---- conversions ---------------------------------------------------------------------------------- */

/* A vector and a buffer of the application. */
typedef struct both {
    vector_t vector, users;
    int32_t  type, of_vector;
} both_t;

static both_t new_both(const pp_kernels_t *kernels, size_t count, bool alike)
{
    const size_t shift = alike ? 0 : alignment_of(kernels->type);
    return (both_t){
        .vector = new_vector((count + 16) * kernels->element_bytes, kernels->element_bytes),
        .users = new_vector((count + 16) * kernels->user_bytes + shift, kernels->user_bytes),
        .type = kernels->type, .of_vector = accumulator(kernels->type),
    };
}

static void free_both(both_t *both)
{
    free_vector(&both->vector);
    free_vector(&both->users);
}

static void draw_both(both_t *both, int kind, size_t count)
{
    draw(&both->vector, both->of_vector, kind, count, 7 + count);
    draw(&both->users, both->type, kind, count, 8 + count);
}

/* Hardware that widens a float16 may make a NaN quiet, which the host's portable loop does not.  Both are the same
   after one more step, whichever that is. */
static void make_quiet(vector_t *vector, size_t count)
{
    uint32_t bits;
    char    *elements[] = {vector->here + start_of(vector, count), there(vector) + start_of(vector, count)};
    for (size_t i = 0; i < 2 * count; i++) {
        char *element = elements[i % 2] + i / 2 * sizeof bits;
        memcpy(&bits, element, sizeof bits);
        if ((bits & 0x7fffffff) > 0x7f800000)
            bits |= 0x00400000;
        memcpy(element, &bits, sizeof bits);
    }
}

static void convert_once(const pp_folds_t *folds, const pp_kernels_t *kernels, both_t *both, int kind, size_t count)
{
    const CUdeviceptr users = last(&both->users, count), vector = last(&both->vector, count);
    draw_both(both, kind, count);
    load_combined_here(kernels, &both->vector, &both->users, count);
    DONE(pp_folds_load_combined(folds, vector, users, count, stream));
    wait_for_stream();
    CHECK(is_same(&both->vector) && is_same(&both->users));
    draw_both(both, kind, count);
    store_here(kernels, &both->users, &both->vector, count);
    DONE(pp_folds_store(folds, users, vector, count, stream));
    wait_for_stream();
    CHECK(is_same(&both->vector) && is_same(&both->users));
    draw_both(both, kind, count);
    load_here(kernels, &both->vector, &both->users, count);
    DONE(pp_folds_load(folds, vector, users, count, stream));
    wait_for_stream();
    if (both->type == PP_FLOAT16)
        make_quiet(&both->vector, count);
    CHECK(is_same(&both->vector) && is_same(&both->users));
    pp_identity_fill(kernels->op, kernels->type, both->users.here + start_of(&both->users, count), count);
    DONE(pp_folds_fill(folds, users, count, stream));
    wait_for_stream();
    CHECK(is_same(&both->users));
}

/* Every operation on the type `number`: elements of the application, at any place, to accumulators and back. */
static void conversions(void)
{
    static const size_t counts[] = {0, 1, 2, 5, 7, 8, 9, 15, 16, 17, 31, 100, 1000};
    pp_kernels_t        kernels;
    pp_folds_t         *opened;
    begin();
    for (int32_t op = 0; op < PP_OP_COUNT; op++) {
        if (!pp_op_supports(op, number))
            continue;
        DONE(pp_kernels_find(op, number, &kernels));
        DONE(pp_folds_open(&device, op, number, &opened));
        for (size_t c = 0; c < PP_COUNT_OF(counts); c++)
            for (int alike = 0; alike < 2; alike++) {
                both_t both = new_both(&kernels, counts[c], alike);
                for (int kind = 0; kind < KINDS; kind++)
                    convert_once(opened, &kernels, &both, kind, counts[c]);
                free_both(&both);
            }
        pp_folds_close(opened);
    }
    finish();
}

/* Every bit pattern of a 16-bit type as float32, and float32 of every exponent back. */
static void halves(void)
{
    enum { PATTERNS = 1 << 16, PART = 4096 };
    pp_kernels_t kernels;
    pp_folds_t  *opened;
    begin();
    DONE(pp_kernels_find(PP_SUM, number, &kernels));
    DONE(pp_folds_open(&device, PP_SUM, number, &opened));
    both_t both = new_both(&kernels, PART, true);
    for (uint32_t first = 0; first < PATTERNS; first += PART) {
        const CUdeviceptr users = last(&both.users, PART), vector = last(&both.vector, PART);
        draw_both(&both, ANY_BITS, PART);
        uint16_t *given = (uint16_t *)(both.users.here + start_of(&both.users, PART));
        for (uint32_t i = 0; i < PART; i++)
            given[i] = (uint16_t)(first + i);
        put(&both.users);
        load_here(&kernels, &both.vector, &both.users, PART);
        DONE(pp_folds_load(opened, vector, users, PART, stream));
        wait_for_stream();
        make_quiet(&both.vector, PART);
        CHECK(is_same(&both.vector));
        /* The same numbers, and others near the middle between two neighbours. */
        uint32_t *wide = (uint32_t *)(both.vector.here + start_of(&both.vector, PART));
        for (uint32_t i = 0; i < PART; i++)
            wide[i] += i % 2 ? (uint32_t)pp_mix(first, i) % 0x20000 : 0;
        put(&both.vector);
        store_here(&kernels, &both.users, &both.vector, PART);
        DONE(pp_folds_store(opened, users, vector, PART, stream));
        wait_for_stream();
        CHECK(is_same(&both.users));
    }
    free_both(&both);
    pp_folds_close(opened);
    finish();
}

/* ---- images --------------------------------------------------------------------------------------- */

static pp_folds_t *opened(int32_t op, int32_t type)
{
    pp_folds_t *folds;
    DONE(pp_folds_open(&device, op, type, &folds));
    return folds;
}

static void refused(int32_t op, int32_t type, pp_status_t status, const char *text)
{
    pp_folds_t *folds = (pp_folds_t *)image;
    CHECK(pp_folds_open(&device, op, type, &folds) == status && !folds);
    SAYS(text);
}

/* The image of a device is loaded once, for all that use it, and unloaded after the last; the first one stays. */
static void images(void)
{
    static char other[] = "a text without kernels";
    open_device(0);
    refused(PP_SUM, PP_FLOAT32, PP_ERR_STATE, "there are no kernels for device 0: call pp_device_kernels() first");
    DONE(pp_folds_use(0, image, image_bytes));
    DONE(pp_folds_use(0, other, sizeof other));
    CHECK(fake_live("modules") == 0);
    pp_folds_t *first = opened(PP_SUM, PP_FLOAT32), *second = opened(PP_LAND, PP_BOOL);
    CHECK(fake_live("modules") == 1 && fake_calls("cuModuleLoadData") == 1);
    pp_folds_close(first);
    CHECK(fake_live("modules") == 1);
    pp_folds_close(second);
    CHECK(fake_live("modules") == 0);
    pp_folds_close(opened(PP_MAX, PP_INT8));
    CHECK(fake_live("modules") == 0 && fake_calls("cuModuleLoadData") == 2);
    pp_folds_close(NULL);
    finish();
}

/* Devices have images of their own; one without the kernels is refused. */
static void other_device(void)
{
    static char text[] = "a text without kernels";
    CHECK(pp_folds_use(2, image, image_bytes) == PP_ERR_ARGUMENT);
    CHECK(strstr(pp_error_text(), "device=2 is not in 0..1"));
    DONE(pp_folds_use(0, image, image_bytes));
    open_device(1);
    refused(PP_SUM, PP_FLOAT32, PP_ERR_STATE, "there are no kernels for device 1: call pp_device_kernels() first");
    DONE(pp_folds_use(1, text, sizeof text));
    refused(PP_SUM, PP_FLOAT32, PP_ERR_STATE, "the kernels that this process was given have no pp_fold_sum_float32: they "
            "are another version's, or PYPARTIAL_CUDA_KERNELS names a file that has other things");
    CHECK(fake_live("modules") == 0);
    finish();
}

/* What MPI does not define, and what devices do not have. */
static void undefined(void)
{
    begin();
    refused(PP_MIN, PP_COMPLEX64, PP_ERR_ARGUMENT, "MPI does not define MIN on complex64");
    refused(PP_SUM, PP_BOOL, PP_ERR_ARGUMENT, "MPI does not define SUM on bool");
    refused(PP_SUM, PP_LONGDOUBLE, PP_ERR_ARGUMENT, "devices have no longdouble: use float64 or complex128");
    refused(PP_SUM, PP_CLONGDOUBLE, PP_ERR_ARGUMENT, "devices have no clongdouble: use float64 or complex128");
    CHECK(fake_live("modules") == 0);
    finish();
}

/* ---- streams -------------------------------------------------------------------------------------- */

/* Calls do not wait for the stream.  What they queue comes after what was queued there before, and in order. */
static void in_order(void)
{
    enum { COUNT = 300 };
    begin();
    pp_folds_t       *folds = opened(PP_SUM, PP_FLOAT32);
    const size_t      bytes = COUNT * sizeof(float);
    vector_t          one = new_vector(bytes, sizeof(float)), two = new_vector(bytes, sizeof(float));
    const CUdeviceptr both[] = {one.memory, two.memory};
    float            *ones = (float *)one.here;
    for (int i = 0; i < COUNT; i++)
        ones[i] = 1.5f;
    put(&one);
    memset(there(&two), 0x33, bytes);
    fake_hold(stream, true);
    fake_seed(5);
    DONE(pp_folds_fill(folds, two.memory, COUNT, stream));
    DONE(pp_folds_load_combined(folds, two.memory, one.memory, COUNT, stream));
    DONE(pp_folds_fold(folds, one.memory, both, 2, COUNT, 1, stream));
    DONE(pp_folds_fold(folds, two.memory, both, 2, COUNT, 3, stream));
    CHECK(cuda->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY && *there(&two) == 0x33);
    fake_hold(stream, false);
    wait_for_stream();
    for (int i = 0; i < COUNT; i++)
        CHECK(((float *)there(&one))[i] == 3 && ((float *)there(&two))[i] == 1.5f);
    /* Without elements, and of one vector onto itself, there is nothing to do. */
    const uint64_t calls = fake_calls("");
    DONE(pp_folds_fill(folds, one.memory, 0, stream));
    DONE(pp_folds_load(folds, one.memory, two.memory, 0, stream));
    DONE(pp_folds_fold(folds, one.memory, both, 1, COUNT, 1, stream));
    CHECK(fake_calls("") == calls);
    free_vector(&one);
    free_vector(&two);
    pp_folds_close(folds);
    finish();
}

static uint64_t reaches_of(const pp_folds_t *folds, CUdeviceptr out, CUdeviceptr left, CUdeviceptr right, size_t count)
{
    const uint64_t    before = fake_reaches();
    const CUdeviceptr both[] = {left, right};
    DONE(pp_folds_fold(folds, out, both, 2, count, 1, stream));
    wait_for_stream();
    return fake_reaches() - before;
}

/* Vectors are read and written 16 bytes at a time, from the first such piece of memory to the last; elements of vectors
   that do not begin at the same byte of 16 are taken one by one. */
static void lines(void)
{
    enum { BYTES = 4000, FEW = 16 };
    begin();
    pp_folds_t       *floats = opened(PP_SUM, PP_FLOAT32), *bytes = opened(PP_SUM, PP_INT8);
    pp_folds_t       *complexes = opened(PP_SUM, PP_COMPLEX128);
    vector_t          vector = new_vector(3 * BYTES + FEW, 1);
    const CUdeviceptr a = vector.memory, b = a + BYTES, c = b + BYTES;
    CHECK(BYTES % 16 == 0);
    CHECK(reaches_of(floats, a, b, c, BYTES / 4) == 3 * BYTES / 16);
    CHECK(reaches_of(bytes, a, b, c, BYTES) == 3 * BYTES / 16);
    CHECK(reaches_of(complexes, a, b, c, BYTES / 16) == 3 * BYTES / 32);
    CHECK(reaches_of(floats, a + 4, b + 4, c + 4, 20) == 3 * (3 + 4 + 1));
    CHECK(reaches_of(floats, a, b + 4, c, 20) == 3 * 20);
    CHECK(reaches_of(floats, a + 4, b, c, 20) == 3 * 20);
    const CUdeviceptr     both[] = {a, b};
    const pp_folds_mean_t mean = {.vectors = both, .vector_count = 2};
    const uint64_t        before = fake_reaches();
    DONE(pp_folds_mean(floats, &mean, BYTES / 4, stream));
    wait_for_stream();
    CHECK(fake_reaches() - before == 4 * BYTES / 16);
    free_vector(&vector);
    pp_folds_close(floats);
    pp_folds_close(bytes);
    pp_folds_close(complexes);
    finish();
}

/* A kernel that is given more elements than there are, or an address that is not aligned, is found. */
static void astray(void)
{
    begin();
    pp_folds_t       *folds = opened(PP_SUM, PP_INT32);
    vector_t          one = new_vector(400, 4), two = new_vector(400, 4);
    const CUdeviceptr both[] = {one.memory, two.memory}, askew[] = {one.memory + 2, two.memory};
    DONE(pp_folds_fold(folds, one.memory, number == 2 ? askew : both, 2, number == 1 ? 101 : number == 2 ? 3 : 100, 1,
                       stream));
    while (cuda->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
        continue;
    CHECK(PP_CUDA(cuda, cuStreamQuery, stream) == (number > 0 ? PP_ERR_STATE : PP_OK));
    CHECK(number == 0 || strstr(pp_error_text(), "CUDA_ERROR_ILLEGAL_ADDRESS"));
    free(one.here);
    free(two.here);
    pp_folds_close(folds);
}

/* Kernels that are unloaded while one of them is queued are counted. */
static void unloaded_early(void)
{
    begin();
    pp_folds_t *folds = opened(PP_BXOR, PP_UINT64);
    vector_t    one = new_vector(800, 8);
    fake_seed(3);
    for (int i = 0; i < 100; i++)
        DONE(pp_folds_fill(folds, one.memory, 100, stream));
    pp_folds_close(folds);
    CHECK(fake_misuses() == 1);
    free_vector(&one);
}

/* ---- pools ---------------------------------------------------------------------------------------- */

static pp_cuda_pools_t pools;

static pp_cuda_pool_t *new_pool(void)
{
    pp_cuda_pool_t *pool, *again;
    DONE(pp_cuda_pool_find(&pools, 0, &pool));
    DONE(pp_cuda_pool_find(&pools, 0, &again));
    CHECK(pool == again);
    return pool;
}

static CUdeviceptr got(pp_cuda_pool_t *pool, pp_cuda_item_t kind, size_t bytes)
{
    CUdeviceptr item;
    DONE(pp_cuda_pool_get(pool, kind, bytes, &item));
    return item;
}

/* What was put is got again, if its size rounded up is the same; only the end of the pools gives it back. */
static void pooled(void)
{
    begin();
    pp_cuda_pool_t *pool = new_pool();
    const CUdeviceptr first = got(pool, PP_CUDA_MEMORY, 9000), pinned = got(pool, PP_CUDA_PINNED, 1);
    CHECK(pp_cuda_pools_bytes(&pools) == 0);
    pp_cuda_pool_put(pool, PP_CUDA_MEMORY, first, NULL);
    pp_cuda_pool_put(pool, PP_CUDA_PINNED, pinned, NULL);
    CHECK(pp_cuda_pools_bytes(&pools) == 10240 + 1024);
    const CUdeviceptr larger = got(pool, PP_CUDA_MEMORY, 10241), shared = got(pool, PP_CUDA_SHARED, 9000);
    CHECK(larger != first && shared != first && got(pool, PP_CUDA_MEMORY, 10240) == first);
    CHECK(got(pool, PP_CUDA_PINNED, 1024) == pinned);
    pp_cuda_pool_put(pool, PP_CUDA_MEMORY, larger, NULL);
    fake_fail("cuMemAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
    const CUdeviceptr largest = got(pool, PP_CUDA_MEMORY, 1 << 20);
    CHECK(fake_calls("cuMemFree") == 1);         /* `larger` */
    DONE(pp_cuda_pool_load(pool));
    DONE(pp_cuda_pool_load(pool));
    pp_cuda_pool_put(pool, PP_CUDA_MEMORY, first, NULL);
    pp_cuda_pool_put(pool, PP_CUDA_MEMORY, largest, NULL);
    pp_cuda_pool_put(pool, PP_CUDA_SHARED, shared, NULL);
    pp_cuda_pool_put(pool, PP_CUDA_PINNED, pinned, NULL);
    CHECK(fake_calls("cuMemFree") == 1);
    _Atomic uint32_t closed = 0;
    CHECK(pp_cuda_pools_end(&pools, &closed, 1) && closed == 1 && pp_cuda_pools_bytes(&pools) == 0);
    finish();
}

/* Memory that queued work may use is given to no one, and given back after it, by a driver that does not wait. */
static void behind(void)
{
    begin();
    pp_cuda_pool_t *pool = new_pool();
    const CUdeviceptr memory = got(pool, PP_CUDA_MEMORY, 4096), other = got(pool, PP_CUDA_MEMORY, 4096);
    CUstream    own;
    DONE(pp_cuda_pool_get_stream(pool, &own));
    fake_free_at_once(true);
    fake_hold(own, true);
    DONE(PP_CUDA(cuda, cuMemcpyAsync, memory, other, 4096, own));
    pp_cuda_pool_put(pool, PP_CUDA_MEMORY, memory, own);
    pp_cuda_pool_put(pool, PP_CUDA_MEMORY, other, own);
    pp_cuda_pool_put_stream(pool, own);
    const CUdeviceptr third = got(pool, PP_CUDA_MEMORY, 4096);
    CHECK(third != memory && third != other);
    fake_hold(own, false);
    DONE(PP_CUDA(cuda, cuStreamSynchronize, own));
    const CUdeviceptr again = got(pool, PP_CUDA_MEMORY, 4096);
    CHECK(again == memory || again == other);
    pp_cuda_pool_put(pool, PP_CUDA_MEMORY, again, NULL);
    pp_cuda_pool_put(pool, PP_CUDA_MEMORY, third, own);
    fake_hold(own, true);
    DONE(PP_CUDA(cuda, cuMemcpyAsync, third, third, 4096, own));
    CHECK(!pp_cuda_pools_end(&pools, NULL, 0));  /* the thread waits for the stream */
    fake_hold(own, false);
    while (fake_live("memory") > 0 || fake_live("contexts") > 1)
        usleep(1000);
    finish();
}

/* ---- failures, threads, forks --------------------------------------------------------------------- */

static pp_status_t use_all(const vector_t *one, const vector_t *two)
{
    pp_folds_t       *folds;
    const CUdeviceptr both[] = {one->memory, two->memory};
    PP_TRY(pp_folds_open(&device, PP_SUM, PP_FLOAT16, &folds));
    pp_status_t status = pp_folds_fill(folds, two->memory, 10, stream);
    if (status == PP_OK)
        status = pp_folds_load(folds, one->memory, two->memory, 10, stream);
    if (status == PP_OK)
        status = pp_folds_load_combined(folds, one->memory, two->memory, 10, stream);
    if (status == PP_OK)
        status = pp_folds_fold(folds, one->memory, both, 2, 10, 2, stream);
    if (status == PP_OK)
        status = pp_folds_fold(folds, two->memory, both, 1, 10, 1, stream);
    if (status == PP_OK)
        status = pp_folds_mean(folds, &(pp_folds_mean_t){.vectors = both, .vector_count = 2}, 10, stream);
    if (status == PP_OK)
        status = pp_folds_store(folds, two->memory, one->memory, 10, stream);
    fake_fail("", 1000000, CUDA_SUCCESS);
    wait_for_stream();
    pp_folds_close(folds);
    return status;
}

/* The call of the driver of this number fails: the error has its name, and nothing is left. */
static void failures(void)
{
    char told[128];
    begin();
    vector_t one = new_vector(40, 4), two = new_vector(40, 4);
    fake_fail("", (uint64_t)number, CUDA_ERROR_UNKNOWN);
    const pp_status_t status = use_all(&one, &two);
    fake_fail("", 1000000, CUDA_SUCCESS);
    if (!*fake_failed())
        exit(NOT_REACHED);
    snprintf(told, sizeof told, "CUDA reports an error: %s failed with 999", fake_failed());
    CHECK(status == PP_ERR_STATE && strstr(pp_error_text(), told));
    CHECK(fake_live("modules") == 0);
    printf("%s\n", fake_failed());
    free_vector(&one);
    free_vector(&two);
    finish();
}

static void *work(void *argument)
{
    enum { COUNT = 50 };
    (void)argument;
    DONE(pp_folds_use(0, image, image_bytes));
    DONE(pp_cuda_enter(&device));
    vector_t          one = new_vector(COUNT * 4, 4), two = new_vector(COUNT * 4, 4);
    const CUdeviceptr both[] = {one.memory, two.memory};
    for (int round = 0; round < 3; round++) {
        pp_folds_t *folds = opened(PP_SUM, PP_INT32);
        DONE(pp_folds_fill(folds, two.memory, COUNT, stream));
        DONE(pp_folds_fold(folds, one.memory, both, 2, COUNT, 1, stream));
        wait_for_stream();
        pp_folds_close(folds);
    }
    free_vector(&one);
    free_vector(&two);
    DONE(pp_cuda_leave(&device, PP_OK));
    return NULL;
}

/* Threads give the image, open, fold and close at the same time.  None closes what another one uses. */
static void threads(void)
{
    pthread_t workers[THREADS];
    open_device(0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&workers[i], NULL, work, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(workers[i], NULL) == 0);
    finish();
}

/* A forked child is refused; it closes what it has inherited without a call of the driver, also where another thread
   had the lock. */
static void forked(void)
{
    int         status;
    pp_folds_t *other;
    begin();
    pp_folds_t  *folds = opened(PP_SUM, PP_INT32);
    const pid_t  child = fork();
    if (child == 0) {
        const uint64_t calls = fake_calls("");
        CHECK(pp_folds_open(&device, PP_SUM, PP_INT32, &other) == PP_ERR_STATE && !other);
        CHECK(pp_folds_fill(folds, 4096, 1, stream) == PP_ERR_STATE);
        CHECK(pp_folds_use(0, image, image_bytes) == PP_ERR_STATE);
        CHECK(strstr(pp_error_text(), "a forked child cannot use CUDA"));
        pp_folds_close(folds);
        CHECK(fake_calls("") == calls);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pp_folds_close(folds);
    finish();
}

/* --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void      (*run)(void);
} CASES[] = {
#define CASE(function) {#function, function}
    CASE(folds), CASE(means), CASE(conversions), CASE(halves), CASE(images), CASE(other_device), CASE(undefined), CASE(in_order),
    CASE(lines), CASE(astray), CASE(unloaded_early), CASE(pooled), CASE(behind), CASE(failures), CASE(threads), CASE(forked),
#undef CASE
};

static void read_image(const char *path)
{
    FILE *file = fopen(path, "rb");
    CHECK(file && fseek(file, 0, SEEK_END) == 0);
    image_bytes = (size_t)ftell(file);
    image = malloc(image_bytes);
    rewind(file);
    CHECK(image && fread(image, 1, image_bytes, file) == image_bytes && fclose(file) == 0);
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 2;
    number = count > 3 ? atoi(arguments[3]) : 0;
    setvbuf(stdout, NULL, _IOLBF, 0);            /* nothing is waiting to be printed when the program forks */
    read_image(arguments[1]);
    for (size_t i = 0; i < PP_COUNT_OF(CASES); i++)
        if (strcmp(CASES[i].name, arguments[2]) == 0) {
            CASES[i].run();
            free(image);
            return 0;
        }
    return 2;
}
