/*
 * carried.h - what groups by messages share: this rank's vector, and the instances that average it.
 *
 * The first member of pp_posted_groups_t and tables_t, and so what preduce->carried points to.
 */
#ifndef PP_CARRIED_H
#define PP_CARRIED_H

#include "../../exec/instances.h"
#include "preduce.h"

typedef struct pp_carried {
    pp_instances_t instances;
    pp_pool_t      vectors;
    pp_buffer_t   *vector;           /* this rank's; NULL: it has none yet, or the running instance has it */
    int32_t       *members;          /* one entry a rank */
    double        *weights;
    bool           partial;          /* a member may join an instance with nothing, and headers say who gave */
} pp_carried_t;

/* Opens what preduce->carried points to, which is zero.  `receives`: the messages that may be here of instances that
   this rank has yet to join. */
pp_status_t pp_carried_open(pp_preduce_t *preduce, const pp_host_t *host, bool partial, size_t receives);
/* Frees it, too. */
void        pp_carried_close(pp_preduce_t *preduce);

/* The algorithm for a group of so many, by a tuning table (NULL: without one). */
int32_t     pp_carried_choose(const pp_preduce_t *preduce, const pp_tuned_t *tuned, size_t tuned_count, int32_t members);
/* This rank's instance of a group of the first `count` of the members.  `starts`: it activates the instance. */
void        pp_carried_join(pp_preduce_t *preduce, uint64_t key, int32_t algorithm, int32_t count, void *context,
                            bool starts);
/* The instance gets this rank's vector; it gives it back, divided by a number (1: as it is). */
void        pp_carried_lend(pp_preduce_t *preduce, pp_instance_t *instance, pp_share_of_round_t *share);
void        pp_carried_get_back(pp_preduce_t *preduce, pp_instance_t *instance, int32_t divide_by);

/* See pp_host_t, pp_grouping_t and pp_handle_ops_t. */
void        pp_carried_retired(void *owner, pp_instance_t *instance);
void       *pp_carried_aim(pp_preduce_t *preduce);
const void *pp_carried_vector(const pp_preduce_t *preduce);
void        pp_carried_count_buffers(const pp_handle_t *handle, pp_held_t *sum);

#endif
