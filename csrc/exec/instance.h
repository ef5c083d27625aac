/*
 * instance.h - one execution of a template on a set of ranks.
 *
 * An instance is named by its handle and a *key*: 64 bits that all participants know without asking, such as the number
 * of a round or of a group.  A map says which rank each participant of the template is.  The instance fires its
 * operations, and sends and matches their messages.  It tells its host when to give the contribution, when the result
 * is there, and when nothing of it is outstanding any more.  Others choose keys and times:
 *   series.h     numbers the rounds of one template and keeps a window of them open;
 *   instances.h  opens instances with any keys, on any ranks, in any order.
 */
#ifndef PP_INSTANCE_H
#define PP_INSTANCE_H

#include "../reduce/reduce.h"
#include "engine.h"
#include "map.h"
#include "template.h"

typedef struct pp_vertex_state {
    uint32_t     arrived;       /* finished predecessors */
    uint16_t     fired;         /* 0 or 1: operations are consumable */
    bool         finished;
    pp_stored_t *message;       /* RECV: its message, while the vertex needs it */
    const void  *data;          /* RECV: where the incoming elements are; NULL: there are none, or they are in place */
} pp_vertex_state_t;

/* A register: the tally of the ranks merged so far, and whether any of them had data. */
typedef struct pp_register {
    pp_tally_t tally;
    bool       null;
    /* Masks of setting->mask_words words: none above PP_CONTRIBUTORS_MAX ranks. */
    uint64_t  *contributors;
    uint64_t  *left;            /* ranks that had left when they joined */
} pp_register_t;

/* What a participant gives to an instance. */
typedef struct pp_share_of_round {
    pp_tally_t      tally;
    bool            null;            /* no data, whatever the accumulator holds */
    const uint64_t *contributors;    /* masks of ranks; NULL: this rank alone, as the tally says */
    const uint64_t *left;
} pp_share_of_round_t;

typedef struct pp_host {
    /* The take operation fires: the host puts the contribution into instance->accumulator (or leaves it NULL), and
       describes it in *share. */
    void (*take)(void *owner, pp_instance_t *instance, pp_share_of_round_t *share);
    /* The instance is on here.  NULL: the host does not need to know. */
    void (*activated)(void *owner, pp_instance_t *instance);
    /* Whether this rank sends the instance's activation (NULL: always); false: another rank of its node has sent it. */
    bool (*announces)(void *owner, pp_instance_t *instance);
    /* The accumulator is the result.  The host may take the buffer away. */
    void (*done)(void *owner, pp_instance_t *instance);
    /* Every operation has fired, and no message is outstanding.  The host of a series calls pp_series_recycle() when
       the round is complete as well; that of instances by key calls pp_instance_close().  Here or later. */
    void (*retired)(void *owner, pp_instance_t *instance);
} pp_host_t;

/* What the instances of a handle have in common. */
typedef struct pp_setting {
    pp_engine_t        *engine;
    const pp_host_t    *host;
    void               *owner;
    const pp_kernels_t *kernels;
    void              (*retired)(pp_instance_t *instance);   /* before the host hears of it */
    uint32_t            handle;
    bool                drawn;       /* initiators are drawn: several of one instance are a coincidence, and counted */
    size_t              mask_words;  /* of a mask of ranks; 0: too many ranks for masks, or none is wanted */
} pp_setting_t;

struct pp_instance {
    const pp_setting_t  *setting;
    const pp_template_t *template;
    const pp_map_t      *map;
    union {
        uint64_t key;
        uint64_t round;              /* a series' keys */
    };
    bool               recyclable;  /* in a series: retired and complete */
    uint32_t           unfinished;  /* operations that have not finished; 0: retired */
    pp_vertex_state_t *states;
    pp_register_t     *registers;
    uint64_t          *masks;       /* memory of the registers' masks */
    void              *context;     /* the host's */
    pp_buffer_t       *accumulator; /* NULL while no rank merged so far had data */
    pp_buffer_t       *scratch;
};

/* Allocates the memory of an instance, once; pp_instance_reset() makes it ready to run, again and again. */
pp_status_t pp_instance_make(const pp_setting_t *setting, const pp_template_t *template, pp_instance_t *instance);
/* Gives buffers back, unless the transport may still read or write them: an instance under way in a context that is
   given up leaves them to the process. */
void        pp_instance_release(pp_instance_t *instance);
/* From here on messages find the instance.  Operations without predecessors are ready, except nops. */
void        pp_instance_reset(pp_instance_t *instance, const pp_map_t *map, uint64_t key);

/* Fires a vertex without predecessors (start, join, gate). */
void pp_instance_fire(pp_instance_t *instance, uint32_t vertex);
static inline bool pp_instance_fired(const pp_instance_t *instance, uint32_t vertex)
{
    return instance->states[vertex].fired != 0;
}
/* Takes an operation's message.  If the instance has no receive for it, the engine fails. */
void pp_instance_message(pp_instance_t *instance, int32_t peer, const pp_prefix_t *prefix, size_t bytes);
/* The address of the accumulator, which is allocated if it was not.  NULL: no memory, and this error is latched.  For
   the host; no register changes. */
void *pp_instance_accumulator(pp_instance_t *instance);
/* Adds a line for each operation that waits for a message, with the rank that is to send it. */
void pp_instance_explain(const pp_instance_t *instance, pp_text_t *text);
/* Lists the ranks from which data is to come next, each once. */
void pp_instance_list_senders(const pp_instance_t *instance, pp_listing_t *listing);

/* Fails the engine because of an operation's message that has no receive. */
void pp_instance_refuse(const pp_setting_t *setting, int32_t peer, const pp_prefix_t *prefix);
/* The prefix of an operation's message. */
pp_prefix_t pp_instance_prefix(const pp_setting_t *setting, uint64_t key, uint32_t tag);

#endif
