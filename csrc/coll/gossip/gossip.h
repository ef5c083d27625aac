/*
 * gossip.h - gossip: a rank averages its model with that of a neighbour, which may compute (design: "Gossip").
 *
 * An average is a group of the rank that asks and a passive member.  A rank that only wants its model, to change or to
 * read it, asks for a group by itself.  There are two ways.  In the memory of the node P-Reduce's machine orders and
 * excludes all groups, so there is no other lock on a model (memory.c, ../preduce/shared.c).  By messages the two ranks
 * of a group agree by themselves (paired.c).  What differs is a table of functions, pp_gossip_way_t.
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

/* What others may need to know of a rank.  On a node it is in its memory, and under its lock. */
typedef struct pp_gossip_seat {
    _Alignas(PP_LINE) uint64_t slots[2];           /* offsets; by messages addresses */
    uint64_t result;                               /* where the rank wants the model of its requests */
    uint64_t averages;                             /* that its model is, or was, in */
    uint64_t given;                                /* ... when the last request that wanted one began its own */
    uint64_t held, held_add;                       /* PP_WANTS_MODEL: the group, and what is to be added to the model */
    uint8_t  open;                                 /* the slot that takes what is added */
    bool     filled;                               /* it has something, and nobody adds to it just now */
    uint8_t  wants;                                /* pp_wish_for_t */
} pp_gossip_seat_t;

typedef enum pp_gossip_hold_state { PP_HOLDS_NOTHING, PP_ASKS_TO_HOLD, PP_HOLDS } pp_gossip_hold_state_t;

typedef struct pp_gossip pp_gossip_t;

typedef struct pp_gossip_way {
    /* Locks the seats; false: the context has failed. */
    bool        (*lock)(pp_preduce_t *);
    void        (*unlock)(pp_preduce_t *);
    /* A group that this rank has asked for, other than for its request, has not ended. */
    bool        (*asks)(const pp_gossip_t *);
    /* With the lock, which they release.  Asks for an average, or for a group by itself (`stays`: and works at it then);
       for this rank's model; has held that long enough. */
    pp_status_t (*ask)(pp_gossip_t *, bool by_itself, bool stays);
    pp_status_t (*ask_to_hold)(pp_gossip_t *);
    pp_status_t (*let_go)(pp_gossip_t *);

    bool        (*may_hold)(const pp_gossip_t *);
    /* Where the model is, which this rank holds. */
    void       *(*model)(const pp_gossip_t *);
} pp_gossip_way_t;

struct pp_gossip {
    pp_preduce_t base;
    const pp_gossip_way_t *way;
    pp_gossip_seat_t *seat;                        /* this rank's */
    void       *slots[2];
    const void *result;                            /* NULL: results are in the application's buffer */
    bool        adds_at_once;                      /* the elements are so few */
    const pp_piece_t *add;                         /* of the next Start; NULL: nothing */
    uint64_t  staleness;                           /* of the last request */
    uint64_t  layout;                              /* of the application's arrays, for the comparison of arguments */
    bool      is_continuous;
    struct {                                       /* of a rank that initiates any: averages that go on by themselves */
        bool     are_on;
        bool     under_way;                        /* one that this rank has asked for is */
        bool     delays;                           /* the request is asked for when that is over */
        uint64_t begun_ns, next_ns;
    } continuous;
    pp_gossip_hold_state_t hold;
    uint64_t  holder;                              /* PP_HOLDS: the thread that does, as a number */
    uint64_t  answers;                             /* that were there when it asked to hold the model */
};

static inline pp_gossip_t *pp_gossip_of(const pp_handle_t *handle) { return (pp_gossip_t *)handle; }
bool        pp_is_gossip(const pp_handle_t *handle);

/* Makes the handle that the caller described; NULL: a bare one. */
pp_status_t pp_gossip_new(pp_team_t *team, const pp_gossip_config_t *config, pp_handle_t **handle);
/* The next Start adds these; PP_ERR_ARGUMENT: they are not like the handle's pieces. */
pp_status_t pp_gossip_add(pp_gossip_t *gossip, const pp_piece_t *pieces, size_t count);

/* From now on no group takes what is in the open slot.  Returns the slot; NULL: the context has failed.  *filled: what is
   added comes to what it has. */
void       *pp_gossip_open_slot(pp_gossip_t *gossip, bool *filled);
/* Adds the elements to the slot; else puts them there. */
void        pp_gossip_put(const pp_gossip_t *gossip, void *slot, bool filled);
/* The open slot has what the Start adds.  `asks`: for an average, too. */
pp_status_t pp_gossip_ask(pp_gossip_t *gossip, bool asks);
/* A group that this rank has asked for, other than for its request, has not ended. */
bool        pp_gossip_asks(pp_gossip_t *gossip);

/* Asks for this rank's model. */
pp_status_t pp_gossip_ask_to_hold(pp_gossip_t *gossip);
/* With it, and without any lock: adds to it what the slot had. */
void        pp_gossip_fold(const pp_gossip_t *gossip);
pp_status_t pp_gossip_let_go(pp_gossip_t *gossip);

/* ---- the ways ------------------------------------------------------------------------------------------------- */

/* Of a handle that is open otherwise. */
pp_status_t pp_gossip_open_in_memory(pp_gossip_t *gossip);
extern const pp_group_models_t pp_gossip_in_memory;
pp_status_t pp_gossip_open_paired(pp_preduce_t *preduce);

/* The model of a rank is in a group that begins.  Returns what of its slots the group adds to it; 0: nothing.
   `wanted`: the rank is to have a copy of the model. */
uint64_t    pp_gossip_take(const pp_preduce_t *preduce, pp_gossip_seat_t *seat, const pp_groups_action_t *action,
                           bool wanted, uint64_t model);

#endif
