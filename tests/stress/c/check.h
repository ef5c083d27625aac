/*
 * check.h - what the drivers share: the end with a reason, random numbers, and vectors whose sum names
 * its contributors.
 *
 * A contribution of rank r to a handle of up to FIELDS ranks is unit(r) * (2 i + 1) in element i: the
 * number of r's contributions stands in r's 16 bits of element 0, and every other element is an odd
 * multiple of that one, modulo 2^64.  So a sum shows whose it is, and that no element went astray.
 */
#ifndef CHECK_H
#define CHECK_H

#include "../../../csrc/include/pypartial.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIELDS = 4, FIELD_BITS = 16, EXIT_FAILED = 70 };

static const char *stage = "start";
static int         my_rank = -1;

/* Ends this process without its exit handlers: other threads are still at work. */
__attribute__((format(printf, 1, 2), noreturn)) static inline void die(const char *format, ...)
{
    char    text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "FAILED on rank %d, %s: %s\n", my_rank, stage, text);
    fflush(stderr);
    _exit(EXIT_FAILED);
}

#define CHECK(condition, ...)                                  \
    do {                                                       \
        if (!(condition)) {                                    \
            fprintf(stderr, "not true: %s\n", #condition);     \
            die(__VA_ARGS__);                                  \
        }                                                      \
    } while (0)

static inline pp_status_t must(pp_status_t status, const char *what)
{
    if (status < 0)
        die("%s: status %d, %s", what, status, pp_error_text());
    return status;
}

#define MUST(call) must(call, #call)

static inline void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes + 1);
    if (!memory)
        die("no memory for %zu bytes", bytes);
    return memory;
}

/* splitmix64 */
static inline uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline uint64_t below(uint64_t *state, uint64_t bound) { return draw(state) % bound; }

static inline uint64_t unit(int rank) { return UINT64_C(1) << (FIELD_BITS * rank); }

static inline uint64_t field(uint64_t sum, int rank)
{
    return (sum >> (FIELD_BITS * rank)) & ((UINT64_C(1) << FIELD_BITS) - 1);
}

static inline void fill(uint64_t *vector, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++)
        vector[i] = unit(rank) * (2 * i + 1);
}

/* The contributions in a sum, by field. */
static inline uint64_t read_sum(const uint64_t *vector, size_t count)
{
    uint64_t sum = count ? vector[0] : 0;
    for (size_t i = 0; i < count; i++)
        CHECK(vector[i] == sum * (2 * i + 1), "element %zu of %zu is %llx, element 0 is %llx", i, count,
              (unsigned long long)vector[i], (unsigned long long)sum);
    return sum;
}

static inline uint64_t total(uint64_t sum)
{
    uint64_t contributions = 0;
    for (int r = 0; r < FIELDS; r++)
        contributions += field(sum, r);
    return contributions;
}

/* One round's result against what the status says of it. */
static inline void check_named(uint64_t sum, const pp_result_t *result)
{
    CHECK(total(sum) == result->contributions, "round %llu has %llu contributions, its status says %llu",
          (unsigned long long)result->round, (unsigned long long)total(sum),
          (unsigned long long)result->contributions);
    for (int r = 0; r < FIELDS; r++)
        CHECK((field(sum, r) > 0) == ((result->contributors[0] >> r) & 1),
              "round %llu: rank %d gave %llu, contributors are %llx", (unsigned long long)result->round, r,
              (unsigned long long)field(sum, r), (unsigned long long)result->contributors[0]);
}

#endif
