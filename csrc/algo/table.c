/* table.c - the algorithms, in the order of their numbers, from 1 on.  The first must suit vectors of a few bytes: the
   ranks vote by it. */
#include "table.h"

#define ALGORITHMS(A) \
    A(recursive_doubling) \
    A(rabenseifner) \
    A(ring)

#define DECLARE(name) extern const pp_algo_t pp_algo_##name;
#define POINT_AT(name) &pp_algo_##name,

ALGORITHMS(DECLARE)

static const pp_algo_t *const table[] = {ALGORITHMS(POINT_AT)};

int32_t pp_algorithm_count(void) { return (int32_t)(sizeof table / sizeof *table); }

const pp_algo_t *pp_algo_of(int32_t algorithm)
{
    return algorithm >= 1 && algorithm <= pp_algorithm_count() ? table[algorithm - 1] : NULL;
}

const char *pp_algorithm_name(int32_t algorithm)
{
    const pp_algo_t *algo = pp_algo_of(algorithm);
    return algo                                ? algo->name
         : algorithm == PP_ALGORITHM_AUTO      ? "auto"
         : algorithm == PP_SHARED_MEMORY       ? "shared_memory" : NULL;
}

int32_t pp_algorithm_chunk_a_rank(int32_t algorithm)
{
    const pp_algo_t *algo = pp_algo_of(algorithm);
    return algo && algo->chunk_a_rank;
}

pp_status_t pp_algo_unknown(int32_t algorithm)
{
    return pp_fail(PP_ERR_ARGUMENT, "algorithm=%d is not one of 1..%d", algorithm, pp_algorithm_count());
}
