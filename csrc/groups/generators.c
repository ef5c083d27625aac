/* generators.c - the generators that there are.  See parts.h. */
#include "parts.h"

#include <string.h>

#define LINE(name) {#name, &pp_generator_##name},
static const struct {
    const char           *name;
    const pp_generator_t *generator;
} lines[] = {PP_GENERATORS(LINE)};

enum { COUNT = sizeof lines / sizeof *lines };

const pp_generator_t *pp_generator_of(const pp_groups_plan_t *plan) { return lines[plan->generator].generator; }

const char *pp_generator_name(int32_t generator)
{
    return generator >= 0 && generator < COUNT ? lines[generator].name : NULL;
}

int32_t pp_generator_number(const char *name)
{
    for (int32_t i = 0; i < COUNT; i++)
        if (strcmp(lines[i].name, name) == 0)
            return i;
    return PP_NOBODY;
}

bool pp_groups_are_named(const pp_groups_plan_t *plan) { return pp_generator_of(plan)->is_named; }
bool pp_groups_are_given(const pp_groups_plan_t *plan) { return pp_generator_of(plan)->is_given; }

size_t pp_groups_table_entries(const pp_groups_plan_t *plan, const int32_t *table)
{
    const pp_generator_t *generator = pp_generator_of(plan);
    return generator->table_entries ? generator->table_entries(plan, table) : 0;
}

bool pp_groups_have_table(const pp_groups_plan_t *plan) { return pp_generator_of(plan)->has_table; }
