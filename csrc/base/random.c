/*
 * random.c - seeded numbers that are the same on every machine.
 *
 * splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014),
 * with the finaliser of Vigna's public reference code.  Its state is a counter, so the i-th number
 * of a stream needs no numbers before it.
 */
#include "base.h"

uint64_t pp_mix(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* The next number of the stream, uniform in 0..bound-1: the 2^64 mod bound smallest numbers are
   refused, because keeping them would make the low results likelier. */
static uint64_t draw_below(uint64_t stream, uint64_t *next, uint64_t bound)
{
    uint64_t refused = (0 - bound) % bound;
    uint64_t number;

    do
        number = pp_mix(stream, (*next)++);
    while (number < refused);
    return number % bound;
}

/* Fisher-Yates from the inside out: order[0..i] is a uniform permutation of 0..i at every step. */
void pp_permutation(uint64_t seed, uint64_t index, int32_t *order, int32_t count)
{
    /* A stream of its own for each index: the numbers a permutation takes vary with refusals, so
       indices must not share one. */
    uint64_t stream = pp_mix(seed, index);
    uint64_t next = 0;

    for (int32_t i = 0; i < count; i++) {
        uint64_t at = draw_below(stream, &next, (uint64_t)i + 1);
        order[i] = i;
        order[i] = order[at];
        order[at] = i;
    }
}
