/* sim_world.c - many ranks in one process: contexts over the simulated transport. */
#include "../transport/sim.h"
#include "context.h"

#include <stdlib.h>

struct pp_sim {
    pp_simnet_t *net;
    int32_t      ranks;
    pp_ctx_t   **contexts;
};

pp_status_t pp_sim_open(const pp_sim_config_t *config, pp_sim_t **out)
{
    *out = NULL;
    if (config->ranks < 1)
        return pp_fail(PP_ERR_ARGUMENT, "ranks=%d is not at least 1", config->ranks);
    if (config->ctx.window < 1)
        return pp_fail(PP_ERR_ARGUMENT, "window=%d is not at least 1", config->ctx.window);
    if (config->latency_min_ns > config->latency_max_ns)
        return pp_fail(PP_ERR_ARGUMENT, "latency_min_ns=%llu is above latency_max_ns=%llu",
                       (unsigned long long)config->latency_min_ns,
                       (unsigned long long)config->latency_max_ns);
    pp_sim_t *sim = calloc(1, sizeof *sim);
    if (!sim)
        return pp_fail(PP_ERR_MEMORY, "no memory for a simulation");
    sim->ranks = config->ranks;
    sim->contexts = calloc((size_t)config->ranks, sizeof(pp_ctx_t *));
    pp_status_t status = !sim->contexts ? pp_fail(PP_ERR_MEMORY, "no memory for %d ranks", config->ranks)
        : pp_simnet_new(config->ranks, config->seed, config->latency_min_ns, config->latency_max_ns,
                        &sim->net);
    for (int32_t r = 0; status >= 0 && r < config->ranks; r++) {
        pp_ctx_t *ctx = calloc(1, sizeof *ctx);
        status = ctx ? pp_ctx_setup(ctx, pp_simnet_transport(sim->net, r), &config->ctx)
                     : pp_fail(PP_ERR_MEMORY, "no memory for rank %d", r);
        if (status < 0)
            free(ctx);
        else
            sim->contexts[r] = ctx;
    }
    if (status < 0) {
        pp_sim_free(sim);
        return status;
    }
    *out = sim;
    return PP_OK;
}

pp_ctx_t *pp_sim_ctx(pp_sim_t *sim, int32_t rank)
{
    return rank >= 0 && rank < sim->ranks ? sim->contexts[rank] : NULL;
}

pp_status_t pp_sim_step(pp_sim_t *sim)
{
    return pp_simnet_step(sim->net) ? PP_OK : PP_PENDING;
}

pp_status_t pp_sim_run_until(pp_sim_t *sim, uint64_t time_ns)
{
    if (time_ns < pp_simnet_now_ns(sim->net))
        return pp_fail(PP_ERR_ARGUMENT, "time_ns=%llu is in the past (%llu)",
                       (unsigned long long)time_ns, (unsigned long long)pp_simnet_now_ns(sim->net));
    while (pp_simnet_next_ns(sim->net) <= time_ns && pp_simnet_step(sim->net))
        continue;
    pp_simnet_set_now(sim->net, time_ns);
    return PP_OK;
}

uint64_t pp_sim_now_ns(const pp_sim_t *sim) { return pp_simnet_now_ns(sim->net); }
uint64_t pp_sim_next_ns(const pp_sim_t *sim) { return pp_simnet_next_ns(sim->net); }

void pp_sim_free(pp_sim_t *sim)
{
    if (!sim)
        return;
    for (int32_t r = 0; sim->contexts && r < sim->ranks; r++)
        if (sim->contexts[r]) {
            pp_ctx_teardown(sim->contexts[r]);
            free(sim->contexts[r]);
        }
    pp_simnet_free(sim->net);
    free(sim->contexts);
    free(sim);
}
