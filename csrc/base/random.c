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

/*
 * A Feistel network (Luby and Rackoff, 1988) on the smallest even number of bits that holds 0..count-1.  It is applied
 * until the value is below count (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): less than four
 * times on average.  It needs no memory and can be inverted.
 */
enum { ROUNDS = 16 };   /* with fewer, some orders of a few ranks are likelier than others */

static uint32_t half_bits(int32_t count)
{
    uint32_t bits = 1;
    while (UINT64_C(1) << 2 * bits < (uint64_t)count)
        bits++;
    return bits;
}

static uint64_t scramble(uint64_t key, uint32_t round, uint64_t half, uint32_t bits)
{
    return pp_mix(pp_mix(key, round), half) >> (64 - bits);
}

/* A Feistel network makes even permutations only.  So half of the permutations, chosen by the key, swap two values. */
static int32_t swap_or_not(uint64_t key, int32_t value)
{
    return value < 2 && pp_mix(key, ROUNDS) & 1 ? 1 - value : value;
}

int32_t pp_permuted(uint64_t seed, uint64_t index, int32_t count, int32_t place)
{
    const uint32_t bits = half_bits(count);
    const uint64_t key = pp_mix(seed, index), mask = (UINT64_C(1) << bits) - 1;
    uint64_t       value = (uint64_t)place;
    do {
        uint64_t left = value >> bits, right = value & mask;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ scramble(key, round, right, bits);
            left = right;
            right = next;
        }
        value = left << bits | right;
    } while (value >= (uint64_t)count);
    return count > 1 ? swap_or_not(key, (int32_t)value) : 0;
}

int32_t pp_permuted_place(uint64_t seed, uint64_t index, int32_t count, int32_t value)
{
    const uint32_t bits = half_bits(count);
    const uint64_t key = pp_mix(seed, index), mask = (UINT64_C(1) << bits) - 1;
    uint64_t       place = (uint64_t)(count > 1 ? swap_or_not(key, value) : 0);
    do {
        uint64_t left = place >> bits, right = place & mask;
        for (uint32_t round = ROUNDS; round-- > 0;) {
            uint64_t before = right ^ scramble(key, round, left, bits);
            right = left;
            left = before;
        }
        place = left << bits | right;
    } while (place >= (uint64_t)count);
    return (int32_t)place;
}
