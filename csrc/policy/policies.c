/* policies.c - the policies that there are.  See policy.h. */
#include "policy.h"

#include <string.h>

/* The table of policies.  Each is a pp_policy_NAME in its file, and has the number of its place. */
#define PP_POLICIES(line) \
    line(first_of)        \
    line(quorum)

#define DECLARED(name) extern const pp_policy_kind_t pp_policy_##name;
PP_POLICIES(DECLARED)

#define PLACE(name) PLACE_##name,
enum { PP_POLICIES(PLACE) COUNT };
_Static_assert((int)PLACE_first_of == (int)PP_FIRST_OF && (int)PLACE_quorum == (int)PP_QUORUM,
               "programs have these numbers");

#define LINE(name) {#name, &pp_policy_##name},
static const struct {
    const char             *name;
    const pp_policy_kind_t *policy;
} lines[] = {PP_POLICIES(LINE)};

const char *pp_policy_name(int32_t policy) { return policy >= 0 && policy < COUNT ? lines[policy].name : NULL; }

int32_t pp_policy_number(const char *name)
{
    for (int32_t i = 0; i < COUNT; i++)
        if (strcmp(lines[i].name, name) == 0)
            return i;
    return -1;
}

pp_rule_t pp_rule_make(int32_t policy, int32_t k, int32_t size, bool deadline, uint64_t seed)
{
    pp_rule_t rule = {.policy = lines[policy].policy, .size = size, .deadline = deadline, .seed = seed};
    rule.policy->settle(&rule, k);
    return rule;
}
