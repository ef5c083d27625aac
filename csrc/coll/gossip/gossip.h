/*
 * gossip.h - gossip: a rank averages its model with that of a neighbour, which may compute (design: "Gossip").
 *
 * Built on P-Reduce in the memory of the node (../preduce/shared.c): an average is a group of the rank that asks and a
 * passive member.  A rank that only wants its model, to change or to read it, asks for a group by itself.  So the machine
 * orders and excludes all of them, and there is no other lock on a model.
 *
 * What is added goes to a *slot*, not to the model.  A group that begins takes the slots of its members that are filled,
 * and averages model + slot of each; so nothing is lost that is added while a model is in an average.  A rank has two
 * slots: when one is taken the other one opens.  The group before has finished by then, and so read the other one.
 */
#ifndef PP_GOSSIP_H
#define PP_GOSSIP_H

#include "../../include/pypartial_gossip.h"
#include "../preduce/shared.h"

/* What a rank's request is for.  At first its model is being made. */
typedef enum pp_wish_for { PP_WANTS_MODEL, PP_WANTS_AVERAGE, PP_WANTS_NOTHING } pp_wish_for_t;

/* A rank's place in the memory of the node; all under the lock. */
typedef struct pp_gossip_seat {
    _Alignas(PP_LINE) uint64_t slots[2];           /* offsets */
    uint64_t result;                               /* where the rank wants the model of its requests */
    uint64_t averages;                             /* that its model is, or was, in */
    uint64_t given;                                /* ... when the last request that wanted one began its own */
    uint64_t held, held_add;                       /* PP_WANTS_MODEL: the group, and what is to be added to the model */
    uint8_t  open;                                 /* the slot that takes what is added */
    bool     filled;                               /* it has something, and nobody adds to it just now */
    uint8_t  wants;                                /* pp_wish_for_t */
} pp_gossip_seat_t;

typedef enum pp_gossip_hold_state { PP_HOLDS_NOTHING, PP_ASKS_TO_HOLD, PP_HOLDS } pp_gossip_hold_state_t;

typedef struct pp_gossip {
    pp_preduce_t base;
    const pp_piece_t *add;                         /* of the next Start; NULL: nothing */
    uint64_t  staleness;                           /* of the last request */
    uint64_t  layout;                              /* of the application's arrays, for the comparison of arguments */
    pp_gossip_hold_state_t hold;
    uint64_t  holder;                              /* PP_HOLDS: the thread that does, as a number */
    uint64_t  answers;                             /* that were there when it asked to hold the model */
} pp_gossip_t;

static inline pp_gossip_t *pp_gossip_of(const pp_handle_t *handle) { return (pp_gossip_t *)handle; }
bool        pp_is_gossip(const pp_handle_t *handle);

/* Makes the handle that the caller described; NULL: a bare one. */
pp_status_t pp_gossip_new(pp_team_t *team, const pp_gossip_config_t *config, pp_handle_t **handle);
/* The next Start adds these; PP_ERR_ARGUMENT: they are not like the handle's pieces. */
pp_status_t pp_gossip_add(pp_gossip_t *gossip, const pp_piece_t *pieces, size_t count);

/* Whether the elements are so few that pp_gossip_ask() adds them under the node's lock. */
bool        pp_gossip_adds_at_once(const pp_gossip_t *gossip);
/* From now on no group takes what is in the open slot.  Returns the slot; NULL: the context has failed.  *filled: what is
   added comes to what it has. */
void       *pp_gossip_open_slot(pp_gossip_t *gossip, bool *filled);
/* Adds the elements to the slot; else puts them there. */
void        pp_gossip_put(const pp_gossip_t *gossip, void *slot, bool filled);
/* The open slot has what the Start adds.  `asks`: for an average, too. */
pp_status_t pp_gossip_ask(pp_gossip_t *gossip, bool asks);
/* The model of the last request that wanted it; NULL: it is in the application's buffer. */
const void *pp_gossip_result_at(const pp_gossip_t *gossip);

/* Asks for this rank's model. */
pp_status_t pp_gossip_ask_to_hold(pp_gossip_t *gossip);
bool        pp_gossip_may_hold(const pp_gossip_t *gossip);
/* With it, and without any lock: adds to it what the slot had. */
void        pp_gossip_fold(const pp_gossip_t *gossip);
void       *pp_gossip_model(const pp_gossip_t *gossip);
pp_status_t pp_gossip_let_go(pp_gossip_t *gossip);

#endif
