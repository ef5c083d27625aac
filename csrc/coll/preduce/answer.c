/* answer.c - what a request of P-Reduce is answered, for all ways.  See preduce.h. */
#include "preduce.h"

#include <string.h>

pp_groups_plan_t pp_preduce_plan(const pp_preduce_t *preduce)
{
    const pp_engine_t *engine = preduce->handle.team->engine;
    pp_groups_plan_t   plan = preduce->config.plan;
    plan.ranks = engine->size;
    if (preduce->config.backend != PP_BACKEND_COMM)
        plan.cache = 0;              /* no communicators are kept */
    /* The handle has no number yet where its memory is reserved; the calls that this rank has completed are another
       number for each handle. */
    plan.seed = pp_mix(engine->seed, engine->calls);
    return plan;
}

void pp_preduce_load(const pp_preduce_t *preduce, void *vector)
{
    const pp_kernels_t *kernels = &preduce->kernels;
    char               *at = vector;
    for (size_t i = 0; i < preduce->config.piece_count; i++) {
        const pp_piece_t *piece = &preduce->config.pieces[i];
        kernels->users->load(kernels, at, piece->recv, piece->count);
        at += piece->count * kernels->element_bytes;
    }
}

void pp_preduce_store(const pp_preduce_t *preduce, const pp_piece_t *pieces, const void *vector)
{
    const pp_kernels_t *kernels = &preduce->kernels;
    const char         *at = vector;
    for (size_t i = 0; i < preduce->config.piece_count; i++) {
        kernels->users->store(kernels, pieces[i].recv, at, pieces[i].count);
        at += pieces[i].count * kernels->element_bytes;
    }
}

void pp_preduce_describe(pp_preduce_t *preduce, uint64_t serial, uint64_t newest, double initial, int32_t count,
                         const int32_t *members, const double *weights)
{
    if (members) {
        memcpy(preduce->members, members, (size_t)count * sizeof *members);
        for (int32_t i = 0; i < count; i++)
            preduce->weights[i] = weights ? weights[i] : 1.0 / count;
    } else {
        preduce->members[0] = preduce->handle.team->engine->rank;
        preduce->weights[0] = 1;
        count = 1;
        serial = 0;
        initial = 0;
    }
    if (preduce->config.plan.weights != PP_WEIGHTS_CONSTANT && newest > preduce->iteration)
        preduce->iteration = newest;
    preduce->result = (pp_group_result_t){.round = serial, .iteration = preduce->iteration, .count = count, .kept = -1,
                                          .members = preduce->members, .weights = preduce->weights, .initial = initial};
    preduce->described = true;
}

void pp_preduce_overheard(const pp_preduce_t *preduce, const pp_groups_action_t *action)
{
    pp_engine_t *engine = preduce->handle.engine;
    if (PP_SIM && engine->sim)
        engine->hear_group(engine->sim, engine, preduce->handle.id, action);
}

void pp_preduce_complete(pp_preduce_t *preduce)
{
    if (!pp_handle_waits(&preduce->handle))
        return;                      /* a collective call has taken the request back */
    preduce->requests += !preduce->result.runs;
    pp_team_wait_ends(&preduce->handle, false, PP_COMPLETE);
}

void pp_preduce_flushed(pp_preduce_t *preduce, uint32_t flush_calls)
{
    pp_team_t *team = preduce->handle.team;
    if (!team->exits)
        preduce->said = PP_GROUPS_HERE;      /* the machine knows that the call is over */
    preduce->said_call = 0;
    preduce->ended = flush_calls & PP_IN_FREE;
    team->ops->flushed(team, &preduce->handle, flush_calls);
}

void pp_preduce_differ(pp_preduce_t *preduce, int32_t rank, int32_t other)
{
    if (rank > other)
        pp_flush_parted(&preduce->handle);
    else
        pp_engine_fail(preduce->handle.team->engine, PP_ERR_MISMATCH, "handle %u: ranks %d and %d have started different "
                       "groups that contain both of them: all members of a group must give the same list",
                       preduce->handle.id, rank, other);
}

void pp_preduce_weigh(const pp_preduce_t *preduce, void *into, const void *from, size_t count, double weight,
                      const void *initial, double initial_weight)
{
    const pp_kernels_t *kernels = &preduce->kernels;
    kernels->memory->scale(kernels, into, from, count, weight);
    if (initial_weight > 0)
        kernels->memory->add(kernels, into, initial, count, initial_weight);
}

/* ---- several handles ------------------------------------------------------------------------------------------- */

pp_status_t pp_preduce_untangle(const pp_preduce_t *preduce, pp_groups_t *(*machine_of)(const pp_preduce_t *),
                                pp_groups_hearer_t (*hearer_of)(pp_preduce_t *), uint64_t now_ns)
{
    pp_engine_t       *engine = preduce->handle.engine;
    pp_groups_t       *machines[PP_PREDUCE_HANDLES_MOST];
    pp_groups_hearer_t hearers[PP_PREDUCE_HANDLES_MOST];
    int32_t            count = 0;
    PP_FOR_EACH_HANDLE(engine, handle)
        if (pp_preduce_is_like(preduce, handle) && count < PP_PREDUCE_HANDLES_MOST) {
            machines[count] = machine_of(pp_preduce_of(handle));
            hearers[count++] = hearer_of(pp_preduce_of(handle));
        }
    return pp_groups_untangle(machines, hearers, count, now_ns);
}
