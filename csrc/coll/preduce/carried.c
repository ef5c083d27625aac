/* carried.c - see carried.h. */
#include "carried.h"

#include "../../algo/algo.h"

#include <stdlib.h>

enum { TEMPLATES_MAX = 64 };

static pp_status_t build(const void *builder, const pp_template_key_t *key, pp_graph_t **graph)
{
    const pp_preduce_t *preduce = builder;
    const int32_t segments = pp_algo_segments(key->algorithm, key->count * preduce->kernels.element_bytes, key->size);
    return (preduce->carried->partial ? pp_algo_partial_allreduce : pp_algo_synchronous_allreduce)(
        key->algorithm, key->position, key->size, key->count, segments, graph);
}

pp_status_t pp_carried_open(pp_preduce_t *preduce, const pp_host_t *host, bool partial, size_t receives)
{
    pp_engine_t  *engine = preduce->handle.engine;
    pp_carried_t *carried = preduce->carried;
    const pp_instances_config_t config = {
        .engine = engine, .handle = preduce->handle.id, .host = host, .owner = preduce, .kernels = &preduce->kernels,
        .names_ranks = partial, .build = build, .builder = preduce, .templates_max = TEMPLATES_MAX,
        .early_bytes_max = receives * (PP_MESSAGE_BYTES + sizeof(pp_stored_t))};
    carried->partial = partial;
    pp_engine_pool(engine, preduce->vector_bytes, preduce->kernels.memory, &carried->vectors);
    carried->members = calloc((size_t)engine->size, sizeof *carried->members);
    carried->weights = calloc((size_t)engine->size, sizeof *carried->weights);
    if (!carried->members || !carried->weights)
        return pp_fail(PP_ERR_MEMORY, "no memory for a handle");
    return pp_instances_open(&config, &carried->instances);
}

void pp_carried_close(pp_preduce_t *preduce)
{
    pp_carried_t *carried = preduce->carried;
    pp_instances_close(&carried->instances);
    pp_pool_put(&carried->vectors, carried->vector);
    pp_pool_release(&carried->vectors);
    free(carried->members);
    free(carried->weights);
    free(carried);
    preduce->carried = NULL;
}

int32_t pp_carried_choose(const pp_preduce_t *preduce, const pp_tuned_t *tuned, size_t tuned_count, int32_t members)
{
    pp_choice_t choice = {.algorithm = PP_ALGORITHM_FIRST};
    if (pp_choose(tuned, tuned_count, preduce->count, preduce->kernels.element_bytes, members,
                  preduce->handle.team->link, &choice) < 0)
        return PP_ALGORITHM_FIRST;
    return choice.algorithm;
}

void pp_carried_join(pp_preduce_t *preduce, uint64_t key, int32_t algorithm, int32_t count, void *context, bool starts)
{
    pp_carried_t            *carried = preduce->carried;
    pp_instance_t           *instance;
    const pp_instance_spec_t spec = {.key = key, .algorithm = algorithm, .count = preduce->count,
                                     .map = pp_map_listed(carried->members, count), .context = context};
    if (pp_instance_open(&carried->instances, &spec, &instance) < 0) {
        pp_engine_fail(preduce->handle.engine, PP_ERR_INTERNAL, "%s", pp_error_text());
        return;
    }
    if (starts)
        pp_instance_fire(instance, instance->template->graph->start);
    pp_instance_fire(instance, instance->template->graph->gate);
}

void pp_carried_lend(pp_preduce_t *preduce, pp_instance_t *instance, pp_share_of_round_t *share)
{
    share->tally.contributions = share->tally.contributors = 1;
    instance->accumulator = preduce->carried->vector;
    preduce->carried->vector = NULL;
}

void pp_carried_get_back(pp_preduce_t *preduce, pp_instance_t *instance, int32_t divide_by)
{
    preduce->carried->vector = instance->accumulator;
    instance->accumulator = NULL;
    if (divide_by > 1)
        preduce->kernels.memory->divide(&preduce->kernels, preduce->carried->vector->data, preduce->count,
                                        (uint64_t)divide_by);
}

void pp_carried_retired(void *owner, pp_instance_t *instance)
{
    pp_preduce_t *preduce = owner;
    pp_instance_close(&preduce->carried->instances, instance);
    preduce->handle.engine->changed = true;
}

void *pp_carried_aim(pp_preduce_t *preduce)
{
    pp_carried_t     *carried = preduce->carried;
    const pp_status_t status = carried->vector ? PP_OK : pp_pool_get(&carried->vectors, &carried->vector);
    if (status < 0) {
        pp_engine_fail(preduce->handle.engine, status, "%s", pp_error_text());
        return NULL;
    }
    return carried->vector->data;
}

const void *pp_carried_vector(const pp_preduce_t *preduce) { return preduce->carried->vector->data; }

void pp_carried_count_buffers(const pp_handle_t *handle, pp_held_t *sum)
{
    const pp_preduce_t *preduce = pp_preduce_of(handle);
    pp_pool_count(&preduce->carried->vectors, sum);
    pp_instances_count_buffers(&preduce->carried->instances, sum);
}
