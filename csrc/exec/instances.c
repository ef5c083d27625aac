/* instances.c - see instances.h */
#include "instances.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_BUCKETS = 16 };

/* ---- keys ------------------------------------------------------------------------------------------- */

static pp_known_t **bucket_of(const pp_instances_t *instances, uint64_t key)
{
    return &instances->buckets[pp_mix(0, key) & (instances->bucket_count - 1)];
}

static pp_known_t **find_link(const pp_instances_t *instances, uint64_t key)
{
    pp_known_t **link = bucket_of(instances, key);
    while (*link && (*link)->key != key)
        link = &(*link)->next;
    return link;
}

static pp_status_t grow(pp_instances_t *instances)
{
    size_t       before = instances->bucket_count;
    pp_known_t **old = instances->buckets, **larger = calloc(2 * before, sizeof(pp_known_t *));
    if (!larger)
        return pp_fail(PP_ERR_MEMORY, "no memory for %zu instances", before);
    instances->buckets = larger;
    instances->bucket_count = 2 * before;
    for (size_t i = 0; i < before; i++)
        while (old[i]) {
            pp_known_t  *known = old[i];
            pp_known_t **bucket = bucket_of(instances, known->key);
            old[i] = known->next;
            known->next = *bucket;
            *bucket = known;
        }
    free(old);
    return PP_OK;
}

static pp_status_t get_known(pp_instances_t *instances, uint64_t key, pp_known_t **out)
{
    pp_known_t *known = *out = *find_link(instances, key);
    if (known)
        return PP_OK;
    if (instances->known == instances->bucket_count)
        PP_TRY(grow(instances));
    known = instances->idle;
    if (known)
        instances->idle = known->next;
    else if (!(known = malloc(sizeof *known)))
        return pp_fail(PP_ERR_MEMORY, "no memory for instance %llu", (unsigned long long)key);
    pp_known_t **bucket = bucket_of(instances, key);
    *known = (pp_known_t){.next = *bucket, .key = key};
    *bucket = known;
    instances->known++;
    *out = known;
    return PP_OK;
}

static void forget(pp_instances_t *instances, pp_known_t **link)
{
    pp_known_t *known = *link;
    *link = known->next;
    known->next = instances->idle;
    instances->idle = known;
    instances->known--;
}

/* ---- messages ---------------------------------------------------------------------------------------- */

static size_t kept_bytes(size_t bytes) { return sizeof(pp_stored_t) + bytes; }

static void keep_early(pp_instances_t *instances, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    pp_engine_t *engine = instances->setting.engine;
    pp_known_t  *known;
    if (instances->early_bytes + kept_bytes(bytes) > instances->early_bytes_max) {
        pp_engine_fail(engine, PP_ERR_MISMATCH, "rank %d sent a message for instance %llu of handle %u, which is not "
                       "open here. This rank keeps %zu bytes of such messages already; the bound is %zu bytes. Either "
                       "the ranks do not open the same instances, or this rank is too far behind", peer,
                       (unsigned long long)prefix->round, instances->setting.handle, instances->early_bytes,
                       instances->early_bytes_max);
        return;
    }
    if (get_known(instances, prefix->round, &known) < 0) {
        pp_engine_fail(engine, PP_ERR_MEMORY, "%s", pp_error_text());
        return;
    }
    engine->coverage.windows_full++;
    if (pp_engine_keep(engine, &known->early, peer, prefix, bytes))
        instances->early_bytes += kept_bytes(bytes);
}

void pp_instances_message(pp_instances_t *instances, int32_t peer, const pp_prefix_t *prefix, size_t bytes)
{
    pp_instance_t *instance = pp_instances_find(instances, prefix->round);
    if (instance)
        pp_instance_message(instance, peer, prefix, bytes);
    else
        keep_early(instances, peer, prefix, bytes);
}

static void deliver_early(pp_instances_t *instances, pp_known_t *known)
{
    while (known->early) {
        pp_stored_t *stored = known->early;
        known->early = stored->next;
        instances->early_bytes -= kept_bytes(stored->bytes);
        pp_instance_message(&known->execution->instance, stored->peer, (const pp_prefix_t *)stored->message,
                            stored->bytes);
        free(stored);
    }
}

/* ---- instances --------------------------------------------------------------------------------------- */

pp_instance_t *pp_instances_find(const pp_instances_t *instances, uint64_t key)
{
    const pp_known_t *known = *find_link(instances, key);
    return known && known->execution ? &known->execution->instance : NULL;
}

static pp_status_t take(pp_instances_t *instances, const pp_instance_spec_t *spec, pp_execution_t **execution)
{
    const pp_engine_t *engine = instances->setting.engine;
    if (spec->map.kind == PP_MAP_COMPUTED)
        return pp_fail(PP_ERR_ARGUMENT, "instance %llu has a computed map, but needs a strided or listed one",
                       (unsigned long long)spec->key);
    PP_TRY(pp_map_check(&spec->map, engine->size));
    const pp_template_key_t key = {.algorithm = spec->algorithm, .size = spec->map.count, .count = spec->count,
                                   .position = pp_map_participant(&spec->map, engine->rank, spec->key)};
    if (key.position < 0)
        return pp_fail(PP_ERR_ARGUMENT, "rank %d is not among the ranks of instance %llu", engine->rank,
                       (unsigned long long)spec->key);
    return pp_templates_take(&instances->templates, &key, execution);
}

/* Makes the execution this instance. */
static void settle(pp_execution_t *execution, const pp_instance_spec_t *spec)
{
    const size_t size = (size_t)spec->map.count;
    execution->map = spec->map;
    if (spec->map.kind == PP_MAP_LISTED) {
        memcpy(execution->ranks, spec->map.ranks, size * sizeof *execution->ranks);
        execution->map.ranks = execution->ranks;
    }
    execution->instance.context = spec->context;
    pp_instance_reset(&execution->instance, &execution->map, spec->key);
}

pp_status_t pp_instance_open(pp_instances_t *instances, const pp_instance_spec_t *spec, pp_instance_t **instance)
{
    pp_execution_t *execution;
    pp_known_t     *known;
    *instance = NULL;
    if (pp_instances_find(instances, spec->key))
        return pp_fail(PP_ERR_STATE, "instance %llu is open already", (unsigned long long)spec->key);
    PP_TRY(take(instances, spec, &execution));
    pp_status_t status = get_known(instances, spec->key, &known);
    if (status < 0) {
        pp_templates_give_back(&instances->templates, execution);
        return status;
    }
    known->execution = execution;
    instances->open++;
    settle(execution, spec);
    deliver_early(instances, known);
    *instance = &execution->instance;
    return PP_OK;
}

void pp_instance_close(pp_instances_t *instances, pp_instance_t *instance)
{
    pp_known_t    **link = find_link(instances, instance->key);
    pp_execution_t *execution = (*link)->execution;
    forget(instances, link);
    pp_pool_put(instance->template->vectors, instance->accumulator);
    instance->accumulator = NULL;
    instances->open--;
    pp_templates_give_back(&instances->templates, execution);
}

/* ---- all of them -------------------------------------------------------------------------------------- */

pp_status_t pp_instances_open(const pp_instances_config_t *config, pp_instances_t *instances)
{
    const int32_t size = config->engine->size;
    const bool    names = config->names_ranks && size <= PP_CONTRIBUTORS_MAX;
    *instances = (pp_instances_t){
        .setting = {.engine = config->engine, .host = config->host, .owner = config->owner,
                    .kernels = config->kernels, .handle = config->handle,
                    .mask_words = names ? pp_mask_words(size) : 0},
        .bucket_count = FIRST_BUCKETS, .early_bytes_max = config->early_bytes_max};
    pp_templates_init(&instances->templates, &instances->setting, config->build, config->builder,
                      config->templates_max);
    instances->buckets = calloc(FIRST_BUCKETS, sizeof(pp_known_t *));
    return instances->buckets ? PP_OK : pp_fail(PP_ERR_MEMORY, "no memory for the instances of a handle");
}

static void free_known(pp_known_t *known)
{
    while (known) {
        pp_known_t *next = known->next;
        pp_stored_free_all(&known->early);
        free(known);
        known = next;
    }
}

void pp_instances_close(pp_instances_t *instances)
{
    for (size_t i = 0; i < instances->bucket_count && instances->buckets; i++) {
        for (pp_known_t *known = instances->buckets[i]; known; known = known->next)
            if (known->execution)
                pp_templates_give_back(&instances->templates, known->execution);
        free_known(instances->buckets[i]);
    }
    free_known(instances->idle);
    free(instances->buckets);
    pp_templates_release(&instances->templates);
    *instances = (pp_instances_t){0};
}

bool pp_instances_next_early(const pp_instances_t *instances, const uint64_t *after, uint64_t *key)
{
    bool   passed = !after;
    size_t bucket = after ? (size_t)(bucket_of(instances, *after) - instances->buckets) : 0;
    for (; bucket < instances->bucket_count; bucket++)
        for (const pp_known_t *known = instances->buckets[bucket]; known; known = known->next) {
            if (passed && !known->execution) {
                *key = known->key;
                return true;
            }
            passed |= after && known->key == *after;
        }
    return false;
}

void pp_instances_explain(const pp_instances_t *instances, pp_text_t *text)
{
    for (size_t i = 0; i < instances->bucket_count; i++)
        for (const pp_known_t *known = instances->buckets[i]; known; known = known->next) {
            if (known->execution)
                pp_instance_explain(&known->execution->instance, text);
            else
                pp_text_add(text, "instance %llu: not open here, but a message from rank %d has come\n",
                            (unsigned long long)known->key, known->early->peer);
        }
}

void pp_instances_count_buffers(const pp_instances_t *instances, pp_held_t *sum)
{
    for (const pp_sized_pool_t *sized = instances->templates.pools; sized; sized = sized->next)
        pp_pool_count(&sized->pool, sum);
}
