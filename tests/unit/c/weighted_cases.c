/*
 * weighted_cases.c - elements times weights, as hexadecimal bits, a line each.  Compiled several times by
 * tests/unit/test_weighted.py: every build prints the same.
 *
 *     weighted_cases float32|float64|longdouble SEED     x, w * x, a, a + w * x: of random and of special values
 */
#include "reduce/reduce.h"

#include <math.h>
#include <string.h>

enum { VALUES = 1000 };

static const double SPECIAL[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN, -NAN, 1e-320, 3e-39, 1e38, 1e308,
                                 0.1, 1.0 / 3};
enum { SPECIALS = sizeof SPECIAL / sizeof *SPECIAL };

static double value(uint64_t seed, uint64_t index)
{
    uint64_t bits = pp_mix(seed, index);
    if (bits % 8 == 0)
        return SPECIAL[(bits >> 8) % SPECIALS];
    return ldexp((double)(bits >> 11), -53 - (int)(bits % 7)) * (bits & 1024 ? 1 : -1);
}

enum { LONG_BYTES = 10 };     /* of a long double, that count; the others are padding */

/* Whether padding has been written to a vector, or left there. */
static bool padding(const char *elements, size_t bytes)
{
    for (size_t i = 0; bytes > LONG_BYTES && i < VALUES * bytes; i++)
        if (i % bytes >= LONG_BYTES && elements[i])
            return true;
    return false;
}

static void show(const void *element, size_t bytes)
{
    const unsigned char *at = element;
    for (size_t i = bytes > LONG_BYTES ? LONG_BYTES : bytes; i-- > 0;)
        printf("%02x", at[i]);
}

static void store(int32_t type, void *array, size_t index, double number)
{
    if (type == PP_FLOAT32)
        ((float *)array)[index] = (float)number;
    else if (type == PP_FLOAT64)
        ((double *)array)[index] = number;
    else
        ((long double *)array)[index] = number;
}

static void print_all(const pp_kernels_t *kernels, int32_t type, uint64_t seed, double weight)
{
    static _Alignas(64) char given[VALUES * 16], scaled[VALUES * 16], kept[VALUES * 16], sum[VALUES * 16],
                             merged[VALUES * 16];
    const size_t             bytes = kernels->element_bytes;
    for (size_t i = 0; i < VALUES; i++) {
        store(type, given, i, value(seed, 2 * i));
        store(type, kept, i, value(seed, 2 * i + 1));
    }
    memcpy(sum, kept, VALUES * bytes);
    memset(scaled, 0xA5, VALUES * bytes);                  /* targets may hold anything */
    memset(merged, 0xA5, VALUES * bytes);
    kernels->into(merged, given, kept, VALUES);
    kernels->weighted->scale(scaled, given, VALUES, weight);
    kernels->weighted->add(sum, given, VALUES, weight);
    for (size_t i = 0; i < VALUES; i++) {
        const char *arrays[] = {given, scaled, kept, sum};
        for (int a = 0; a < 4; a++) {
            show(arrays[a] + i * bytes, bytes);
            printf("%c", a < 3 ? ' ' : '\n');
        }
    }
    kernels->weighted->scale(given, given, VALUES, weight);
    if (padding(scaled, bytes) || padding(merged, bytes) || padding(sum, bytes))
        printf("padding\n");
    else
        printf("%s\n", memcmp(given, scaled, VALUES * bytes) ? "not in place" : "in place");
}

int main(int argc, char **argv)
{
    static const double weights[] = {1.0 / 3, -0.7, 1e-30, 0.0, 1.0, INFINITY};
    pp_kernels_t        kernels;
    int32_t             type = 0;
    while (type < PP_TYPE_COUNT && argc == 3 && strcmp(pp_type_name(type), argv[1]) != 0)
        type++;
    if (argc != 3 || pp_kernels_find(PP_SUM, type, &kernels) < 0 || !kernels.weighted)
        return 2;
    for (size_t w = 0; w < sizeof weights / sizeof *weights; w++) {
        printf("weight %a\n", weights[w]);
        print_all(&kernels, type, (uint64_t)argv[2][0] + w, weights[w]);
    }
    return 0;
}
