/*
 * pypartial_gossip.h - the public header of gossip: averages of two neighbours, one of which may compute (AD-PSGD).
 *
 * The conventions of pypartial.h hold here, too.  pypartial/_build.py hands everything between the two CDEF marks to
 * cffi.
 */
#ifndef PYPARTIAL_GOSSIP_H
#define PYPARTIAL_GOSSIP_H

#include "pypartial.h"

/* CDEF BEGIN */

/* Each rank has a model, which the library keeps.  pp_start(), like pp_gossip_start() without anything to add, asks for
   one average with a neighbour, drawn among those of a graph, and never waits.  The neighbour need not have asked: it may
   compute, and it may have left.  pp_wait() gives the model as it is with that average; later averages may have changed it
   already.  pp_flush_begin(): the average of all models.  Groups and flushes have numbers of their own; the
   generator is "neighbour". */
typedef struct pp_gossip_config {
    const pp_piece_t *pieces;  /* `send` is NULL; the list is copied; the buffers must live until the handle is freed */
    size_t   piece_count;
    int32_t  type;             /* pp_type_t, of floating numbers */
    int32_t  memory;           /* pp_memory_kind_t of the pieces' buffers */
    /* For each rank and one more where its neighbours begin, then the neighbours, ascending.  A rank that has none
       initiates nothing: its requests are complete with its model as it is.  Copied. */
    const int32_t *edges;
    const char *topology_text; /* layout and topology, for texts; read during the call */
    int32_t  continuous;       /* averages go on by themselves, one after the other: pp_start() only adds, and pp_wait()
                                  gives the model as it is */
    uint64_t layout;           /* of the application's arrays: a number that must be the same on all ranks */
    int32_t  plant;            /* 0; simulations: pp_groups_plant_t */
} pp_gossip_config_t;

/* Collective; begins the creation of a handle.  The same rules as for pp_allreduce_init_begin().  What the pieces hold
   is this rank's model at first. */
pp_status_t pp_gossip_init_begin(pp_ctx_t *ctx, const pp_gossip_config_t *config, const char *complaint,
                                 pp_handle_t **handle);

/* Local.  pp_start() that first adds elements to the model: `add` has as many pieces as the handle, of the same counts,
   with their buffers in `recv`.  They are read during the call.  After a Wait that has timed out it only adds.
   PP_ERR_ARGUMENT: other pieces.  PP_ERR_STATE: also inside pp_gossip_hold().  Nothing was added then. */
pp_status_t pp_gossip_start(pp_handle_t *handle, const pp_piece_t *add, size_t count);

typedef struct pp_gossip_result {
    pp_group_result_t group;   /* `round` 0, and this rank only: no average */
    uint64_t staleness;        /* averages that had changed the model between the last result and this Start */
} pp_gossip_result_t;

/* Local.  As pp_preduce_result(). */
pp_status_t pp_gossip_result(pp_handle_t *handle, pp_gossip_result_t *result);

/* Local, blocking.  *model: the address of this rank's model, with what was added to it, in the type of accumulators.  It
   is the caller's alone until pp_gossip_release(): averages with this rank wait meanwhile.  So no call of this thread and
   context that can wait is possible, and no Start of the handle: PP_ERR_STATE.  PP_PENDING: not after `timeout_us`; call
   again, or release. */
pp_status_t pp_gossip_hold(pp_handle_t *handle, int64_t timeout_us, void **model);
/* Local.  Ends what pp_gossip_hold() has begun, in the same thread; also where the context has failed meanwhile. */
pp_status_t pp_gossip_release(pp_handle_t *handle);

/* CDEF END */

#endif
