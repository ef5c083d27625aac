/*
 * instances.h - the instances of one handle that are named by keys: many at once, opened in any order, each on its own
 * ranks.
 *
 * Each participant of an instance opens it, with the same key, algorithm, count and map as the others; fires its gate
 * when it may give its part; and closes it when it has retired (host->retired).  The ranks agree on nothing, and no
 * communicator is made.
 *
 * A message that comes before its instance is open is kept, up to `early_bytes_max` bytes of such messages at once.  A
 * message beyond that is an error of the engine, which names the sender and the key: either this rank does not open the
 * instances that the others do, or it is later than its handle allows.  A handle must allow, for each instance that its
 * peers may be ahead of this rank, one message for each receive of its template, each a header and at most
 * PP_INLINE_BYTES (bulk waits for its receiver).
 */
#ifndef PP_INSTANCES_H
#define PP_INSTANCES_H

#include "templates.h"

typedef struct pp_instances_config {
    pp_engine_t        *engine;
    uint32_t            handle;
    const pp_host_t    *host;        /* take, done, retired */
    void               *owner;
    const pp_kernels_t *kernels;     /* kept by the caller */
    bool                names_ranks; /* headers carry the contributors' mask */
    pp_template_build_t build;
    const void         *builder;
    uint32_t            templates_max;
    size_t              early_bytes_max;
} pp_instances_config_t;

/* A key that is known here: its instance is open, or messages for it have come. */
typedef struct pp_known {
    struct pp_known *next;
    uint64_t         key;
    pp_execution_t  *execution;      /* NULL: not open yet */
    pp_stored_t     *early;
} pp_known_t;

typedef struct pp_instances {
    pp_setting_t   setting;
    pp_templates_t templates;
    pp_known_t   **buckets;          /* a power of two */
    size_t         bucket_count;
    size_t         known;            /* keys */
    size_t         open;             /* instances */
    pp_known_t    *idle;
    size_t         early_bytes, early_bytes_max;
} pp_instances_t;

/* What an instance is. */
typedef struct pp_instance_spec {
    uint64_t      key;
    int32_t       algorithm;         /* its meaning is the handle's builder's */
    size_t        count;             /* elements of the vector */
    pp_map_t      map;               /* strided or listed; this rank is in it.  The list is copied */
    void         *context;           /* for the host */
} pp_instance_spec_t;

pp_status_t    pp_instances_open(const pp_instances_config_t *config, pp_instances_t *instances);
/* If the context is given up, instances may still be open. */
void           pp_instances_close(pp_instances_t *instances);

/* PP_ERR_ARGUMENT if the map is wrong, PP_ERR_STATE if the key is open. */
pp_status_t    pp_instance_open(pp_instances_t *instances, const pp_instance_spec_t *spec, pp_instance_t **instance);
/* The instance must have retired. */
void           pp_instance_close(pp_instances_t *instances, pp_instance_t *instance);
/* NULL: not open. */
pp_instance_t *pp_instances_find(const pp_instances_t *instances, uint64_t key);

/* Called by the handle's kind: takes an operation's message, or keeps it if its instance is not open. */
void           pp_instances_message(pp_instances_t *instances, int32_t peer, const pp_prefix_t *prefix, size_t bytes);
/* Goes through the keys that are not open and for which messages have come.  `after`: the key that was given last; NULL:
   begins.  False: there is none.  Between two calls keys may be opened, and none may be forgotten. */
bool           pp_instances_next_early(const pp_instances_t *instances, const uint64_t *after, uint64_t *key);
/* Adds lines: what each open instance waits for, and the keys of which only messages are here. */
void           pp_instances_explain(const pp_instances_t *instances, pp_text_t *text);
void           pp_instances_count_buffers(const pp_instances_t *instances, pp_held_t *sum);     /* adds */

#endif
