/*
 * posted.h - groups with a machine at rank 0 (posted.c): what those share with it that average pairs without one
 * (coll/gossip/paired.c).  There rank 0 still knows who has left, and so says when all flush, or free.
 */
#ifndef PP_POSTED_H
#define PP_POSTED_H

#include "carried.h"

typedef struct pp_posted_groups {
    pp_carried_t   carried;
    pp_buffer_t   *initial;
    pp_groups_t   *machine;          /* rank 0's */
    pp_stored_t   *kept;             /* events and notices that rank 0 sends to itself */
    struct {
        uint64_t serial, newest;
        double   initial;
        int32_t  count, position;
        bool     active, flush, goal;
    } group;                         /* that this rank runs; `carried` has its members and weights */
    unsigned char *out;              /* the message that is being composed */
    void         (*begin)(pp_preduce_t *, const pp_group_notice_t *);
} pp_posted_groups_t;

/* Opens what preduce->posted points to, which is zero; NULL: there was no memory.  `begin`: this rank is a member of a
   group, or a flush, that begins. */
pp_status_t pp_posted_open(pp_preduce_t *preduce, const pp_grouping_t *way, const pp_host_t *instances,
                           void (*begin)(pp_preduce_t *, const pp_group_notice_t *));
void        pp_posted_close(pp_preduce_t *preduce);
/* See pp_grouping_t and pp_handle_ops_t. */
void        pp_posted_say(pp_preduce_t *preduce, int32_t reason, uint64_t number);
/* Takes what rank 0 has sent to itself; more may come meanwhile. */
void        pp_posted_go_on(pp_preduce_t *preduce);
void        pp_posted_control(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message);
void        pp_posted_operation(pp_handle_t *handle, int32_t peer, const pp_prefix_t *message, size_t bytes);

#endif
