/*
 * instances.h - the instances of one handle that are named by keys: many at once, opened in any order, each on
 * ranks of its own.
 *
 * Whoever takes part in an instance opens it, with the same key, algorithm, count and map as everybody else in it, fires
 * its gate when it may give its part, and closes it when it has retired (host->retired).  Nothing is agreed on, and no
 * communicator made.
 *
 * A message that comes before its instance is opened is kept: up to `early_bytes_max` of them at once.  More is an error
 * of the engine, which names the sender and the key; this rank then does not open what the others do, or is later than
 * its handle allows.  What a handle must allow: before a rank has opened an instance, others can have sent it no more
 * than one message for each receive of its template, each a header and at most PP_INLINE_BYTES (bulk waits for its
 * receiver); times the number of instances that its peers may be ahead of it.
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
    int32_t       algorithm;         /* whatever the handle's builder makes of it */
    size_t        count;             /* elements of the vector */
    pp_map_t      map;               /* strided or listed; this rank is in it.  The list is copied */
    const double *weights;           /* by number, as many as the template has; NULL: it has none.  Copied */
    void         *context;           /* for the host */
} pp_instance_spec_t;

pp_status_t    pp_instances_open(const pp_instances_config_t *config, pp_instances_t *instances);
/* In a context that is given up instances may be open. */
void           pp_instances_close(pp_instances_t *instances);

/* PP_ERR_ARGUMENT if the map or the weights are wrong, PP_ERR_STATE if the key is open. */
pp_status_t    pp_instance_open(pp_instances_t *instances, const pp_instance_spec_t *spec, pp_instance_t **instance);
/* It has retired. */
void           pp_instance_close(pp_instances_t *instances, pp_instance_t *instance);
/* NULL: not open. */
pp_instance_t *pp_instances_find(const pp_instances_t *instances, uint64_t key);

/* For the handle's kind: an operation's message, whether or not its instance is open. */
void           pp_instances_message(pp_instances_t *instances, int32_t peer, const pp_prefix_t *prefix, size_t bytes);
/* What each open instance waits for, and keys of which only messages are here. */
void           pp_instances_explain(const pp_instances_t *instances, pp_text_t *text);
uint64_t       pp_instances_buffer_bytes(const pp_instances_t *instances);

#endif
