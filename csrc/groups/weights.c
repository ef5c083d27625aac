/*
 * weights.c - what each member's model counts for (Partial Reduce, section 3.3, Eq. 9).
 *
 * The newest iteration of a group has the relative number 1, the oldest the number K.  Version j of the K that lie
 * between them counts (1 - a) a^(j-1) / (1 - a^K).  Ranks of one version share its weight.  The versions lo..hi together
 * count (a^(lo-1) - a^hi) / (1 - a^K), so gaps of any length take constant time.
 */
#include "groups.h"

#include <math.h>

/* The weight of versions lo..hi. */
static double weight_of(double alpha, uint64_t lo, uint64_t hi, uint64_t oldest)
{
    return (pow(alpha, (double)(lo - 1)) - pow(alpha, (double)hi)) / (1 - pow(alpha, (double)oldest));
}

/* Puts the members into the order of their iterations, the newest first. */
static void sort(const uint64_t *iterations, int32_t *order, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        order[i] = i;
    for (int32_t gap = count / 2; gap > 0; gap /= 2)
        for (int32_t i = gap; i < count; i++) {
            int32_t member = order[i], at = i;
            for (; at >= gap && iterations[order[at - gap]] < iterations[member]; at -= gap)
                order[at] = order[at - gap];
            order[at] = member;
        }
}

double pp_groups_weights(int32_t kind, double alpha, int32_t count, const uint64_t *iterations, double *weights,
                         int32_t *scratch)
{
    for (int32_t i = 0; i < count; i++)
        weights[i] = 1.0 / count;
    if (kind == PP_WEIGHTS_CONSTANT)
        return 0;
    sort(iterations, scratch, count);
    const uint64_t newest = iterations[scratch[0]], oldest = newest - iterations[scratch[count - 1]] + 1;
    uint64_t       from = 1;         /* the newest version that no members have taken yet */
    double         initial = 0;
    for (int32_t i = 0, next; i < count; i = next) {
        const uint64_t iteration = iterations[scratch[i]], version = newest - iteration + 1;
        for (next = i; next < count && iterations[scratch[next]] == iteration; next++)
            ;
        uint64_t older = next < count ? newest - iterations[scratch[next]] + 1 : version;
        uint64_t to = kind == PP_WEIGHTS_CLOSEST ? version + (older - version) / 2 : version;
        if (kind == PP_WEIGHTS_INITIAL && from < version) {
            initial += weight_of(alpha, from, version - 1, oldest);
            from = version;
        }
        for (int32_t same = i; same < next; same++)
            weights[scratch[same]] = weight_of(alpha, from, to, oldest) / (next - i);
        from = to + 1;
    }
    return initial;
}
