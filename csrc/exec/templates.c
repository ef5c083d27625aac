/* templates.c - see templates.h */
#include "templates.h"

#include <stddef.h>
#include <stdlib.h>

/* ---- pools ---------------------------------------------------------------------------------------- */

static pp_pool_t *pool_of(pp_templates_t *templates, size_t bytes)
{
    for (pp_sized_pool_t *sized = templates->pools; sized; sized = sized->next)
        if (sized->pool.bytes == (bytes ? bytes : 1)) {
            sized->users++;
            return &sized->pool;
        }
    pp_sized_pool_t *sized = malloc(sizeof *sized);
    if (!sized)
        return NULL;
    pp_engine_pool(templates->setting->engine, bytes, templates->setting->kernels->memory, &sized->pool);
    sized->users = 1;
    sized->next = templates->pools;
    templates->pools = sized;
    return &sized->pool;
}

static void leave_pool(const pp_pool_t *pool)
{
    if (pool)
        ((pp_sized_pool_t *)((char *)pool - offsetof(pp_sized_pool_t, pool)))->users--;
}

static bool is_whole(const pp_pool_t *pool)
{
    size_t free_ones = 0;
    for (const pp_buffer_t *buffer = pool->free_list; buffer; buffer = buffer->next)
        free_ones++;
    return free_ones == pool->made;
}

static void drop_pools(pp_templates_t *templates)
{
    for (pp_sized_pool_t **link = &templates->pools; *link;) {
        pp_sized_pool_t *sized = *link;
        if (sized->users > 0 || !is_whole(&sized->pool)) {
            link = &sized->next;
            continue;
        }
        *link = sized->next;
        pp_pool_release(&sized->pool);
        free(sized);
    }
}

static pp_status_t find_memory(pp_templates_t *templates, pp_template_t *template)
{
    const size_t element_bytes = templates->setting->kernels->element_bytes;
    template->lane_bytes = pp_template_lane_bytes(template->graph, element_bytes);
    template->vectors = pool_of(templates, template->graph->count * element_bytes);
    template->scratches = pool_of(templates, template->graph->lane_count * template->lane_bytes);
    return template->vectors && template->scratches ? PP_OK
        : pp_fail(PP_ERR_MEMORY, "no memory for the buffers of a schedule");
}

/* ---- instances ------------------------------------------------------------------------------------ */

static void free_execution(pp_execution_t *execution)
{
    pp_instance_release(&execution->instance);
    free(execution->ranks);
    free(execution);
}

static pp_status_t make_execution(const pp_templates_t *templates, pp_kept_t *kept, pp_execution_t **out)
{
    const size_t    size = (size_t)kept->key.size;
    pp_execution_t *execution = calloc(1, sizeof *execution);
    if (!execution)
        return pp_fail(PP_ERR_MEMORY, "no memory for an instance");
    execution->kept = kept;
    execution->ranks = malloc(size * sizeof *execution->ranks);
    pp_status_t status = execution->ranks
                       ? pp_instance_make(templates->setting, &kept->template, &execution->instance)
                       : pp_fail(PP_ERR_MEMORY, "no memory for an instance of %zu ranks", size);
    if (status < 0)
        free_execution(execution);
    else
        *out = execution;
    return status;
}

/* ---- templates ------------------------------------------------------------------------------------- */

static void free_kept(pp_kept_t *kept)
{
    while (kept->idle) {
        pp_execution_t *execution = kept->idle;
        kept->idle = execution->next;
        free_execution(execution);
    }
    leave_pool(kept->template.vectors);
    leave_pool(kept->template.scratches);
    pp_graph_free(kept->template.graph);
    free(kept);
}

static pp_status_t make_kept(pp_templates_t *templates, const pp_template_key_t *key, pp_kept_t **out)
{
    pp_kept_t *kept = calloc(1, sizeof *kept);
    if (!kept)
        return pp_fail(PP_ERR_MEMORY, "no memory for a schedule");
    kept->key = *key;
    pp_status_t status = templates->build(templates->builder, key, &kept->template.graph);
    if (status >= 0)
        status = find_memory(templates, &kept->template);
    if (status < 0) {
        free_kept(kept);
        return status;
    }
    templates->count++;
    *out = kept;
    return PP_OK;
}

/* Removes the template from the list. */
static pp_kept_t *find_kept(pp_templates_t *templates, const pp_template_key_t *key)
{
    for (pp_kept_t **link = &templates->newest; *link; link = &(*link)->next) {
        pp_kept_t *kept = *link;
        if (kept->key.size == key->size && kept->key.position == key->position
            && kept->key.algorithm == key->algorithm && kept->key.count == key->count) {
            *link = kept->next;
            return kept;
        }
    }
    return NULL;
}

static void drop_oldest(pp_templates_t *templates)
{
    pp_kept_t **oldest = NULL;
    for (pp_kept_t **link = &templates->newest; *link; link = &(*link)->next)
        if ((*link)->users == 0)
            oldest = link;
    if (!oldest)
        return;
    pp_kept_t *kept = *oldest;
    *oldest = kept->next;
    templates->count--;
    free_kept(kept);
    drop_pools(templates);
}

void pp_templates_init(pp_templates_t *templates, const pp_setting_t *setting, pp_template_build_t build,
                       const void *builder, uint32_t most)
{
    *templates = (pp_templates_t){.setting = setting, .build = build, .builder = builder, .most = most};
}

pp_status_t pp_templates_take(pp_templates_t *templates, const pp_template_key_t *key, pp_execution_t **out)
{
    pp_kept_t *kept = find_kept(templates, key);
    *out = NULL;
    if (!kept)
        PP_TRY(make_kept(templates, key, &kept));
    kept->next = templates->newest;
    templates->newest = kept;
    if (kept->idle) {
        *out = kept->idle;
        kept->idle = (*out)->next;
    } else {
        PP_TRY(make_execution(templates, kept, out));
    }
    kept->users++;
    return PP_OK;
}

void pp_templates_give_back(pp_templates_t *templates, pp_execution_t *execution)
{
    pp_kept_t *kept = execution->kept;
    execution->next = kept->idle;
    kept->idle = execution;
    kept->users--;
    if (templates->count > templates->most)
        drop_oldest(templates);
}

void pp_templates_release(pp_templates_t *templates)
{
    while (templates->newest) {
        pp_kept_t *kept = templates->newest;
        templates->newest = kept->next;
        free_kept(kept);
    }
    while (templates->pools) {
        pp_sized_pool_t *sized = templates->pools;
        templates->pools = sized->next;
        pp_pool_release(&sized->pool);
        free(sized);
    }
}
