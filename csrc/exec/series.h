/*
 * series.h - the consecutive rounds of one template.  A series numbers them, keeps a window of them open, and keeps
 * messages of rounds that are not open yet.  The window bounds the number of such messages: no peer is further ahead.
 *
 * Its host, the protocol above it, decides when a round may start and what happens when it is done.
 */
#ifndef PP_SERIES_H
#define PP_SERIES_H

#include "../base/nodes.h"
#include "instance.h"

struct pp_series {
    pp_engine_t     *engine;
    pp_setting_t     setting;
    pp_template_t    template;
    pp_graph_t      *graph;         /* the template's */
    pp_kernels_t     kernels;
    int32_t          window;
    /* Between nodes a participant is a node, and a peer of the schedule is the rank that leads that node in the round.
       Else participants are ranks. */
    pp_map_t         map;
    /* This rank leads the rounds first, first + stride, ...; without nodes these are all rounds.  Among them they have
       the indices 0, 1, ... */
    uint64_t         first, stride;
    uint64_t         opened;        /* rounds opened so far; that of index i lives in instances[i % window] */
    pp_instance_t   *instances;
    pp_stored_t     *early;         /* messages of rounds not opened yet, in the order of arrival */
    pp_pool_t        vectors;       /* accumulators, pending slots, results */
    pp_pool_t        scratches;
    size_t           mask_words;    /* of a mask of ranks; 0: too many ranks for masks */
    uint32_t        *last_fired;    /* fire counts of the newest retired round */
    uint64_t         last_fired_round;
    bool             any_retired;
};

/* Opens a handle's series and its first rounds.  `nodes`: the graph's participants; NULL: they are ranks.  Takes the
   graph over, also on failure. */
pp_status_t pp_series_open(pp_engine_t *engine, uint32_t id, pp_graph_t *graph, const pp_nodes_t *nodes,
                           const pp_kernels_t *kernels, int32_t window, const pp_host_t *host,
                           void *owner, pp_series_t *series);
/* A series without rounds, for a handle that makes its rounds in the memory of the node: only its kernels and pools are
   used. */
void pp_series_open_bare(pp_engine_t *engine, size_t count, const pp_kernels_t *kernels, pp_series_t *series);
void pp_series_close(pp_series_t *series);

/* The index of a round among those that this rank leads: the number of such rounds before it. */
static inline uint64_t pp_series_index(const pp_series_t *series, uint64_t round)
{
    if (series->stride == 1)
        return round;
    return round < series->first ? 0 : (round - series->first + series->stride - 1) / series->stride;
}
/* NULL if the round is not open here (not yet, no longer, or never). */
pp_instance_t *pp_series_instance(pp_series_t *series, uint64_t round);

/* Between nodes: sends all activation messages of a round that another rank of the node leads, as the leader's `start`
   would. */
void pp_series_announce(pp_series_t *series, uint64_t round);
/* Adds a line: `what` waits for messages from these ranks.  Such a rank may itself wait for others, which is not known
   here. */
void pp_series_explain(const pp_instance_t *instance, const char *what, pp_text_t *text);
/* The round is retired and complete: its instance serves the round `window` later. */
void pp_series_recycle(pp_series_t *series, pp_instance_t *instance);

/* Takes an operation's message; keeps it if its round is not open yet. */
void pp_series_receive(pp_series_t *series, int32_t peer, const pp_prefix_t *prefix, size_t bytes);
/* Delivers the kept messages whose round is open now. */
void pp_series_replay_early(pp_series_t *series);

#endif
