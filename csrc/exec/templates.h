/*
 * templates.h - templates by algorithm, number of participants, position among them and number of elements.  A template
 * is made when it is first needed, and kept for the next time with the memory of its instances.
 *
 * A template does not say which ranks its participants are, so a few templates serve any number of groups.  Up to
 * `most` unused ones are kept; then the one that was not used for the longest time is released.
 */
#ifndef PP_TEMPLATES_H
#define PP_TEMPLATES_H

#include "instance.h"

typedef struct pp_template_key {
    int32_t algorithm, size, position;
    size_t  count;
} pp_template_key_t;

/* Makes and commits the graph. */
typedef pp_status_t (*pp_template_build_t)(const void *builder, const pp_template_key_t *key, pp_graph_t **graph);

/* An instance on a map of its own. */
typedef struct pp_execution {
    pp_instance_t        instance;
    pp_map_t             map;
    int32_t             *ranks;      /* copy of a listed map's ranks: template->graph->size */
    struct pp_kept      *kept;
    struct pp_execution *next;       /* in the list of idle ones */
} pp_execution_t;

typedef struct pp_kept {
    pp_template_t     template;
    pp_template_key_t key;
    pp_execution_t   *idle;
    uint32_t          users;
    struct pp_kept   *next;
} pp_kept_t;

/* A pool that templates share whose buffers have the same size.  It is released when none of these templates is kept
   and all buffers are back: a host may have taken some away. */
typedef struct pp_sized_pool {
    pp_pool_t             pool;
    uint32_t              users;     /* templates */
    struct pp_sized_pool *next;
} pp_sized_pool_t;

typedef struct pp_templates {
    const pp_setting_t *setting;
    pp_template_build_t build;
    const void         *builder;
    uint32_t            most;
    uint32_t            count;           /* templates kept now */
    pp_kept_t          *newest;          /* a list in the order of the last use */
    pp_sized_pool_t    *pools;
} pp_templates_t;

void        pp_templates_init(pp_templates_t *templates, const pp_setting_t *setting, pp_template_build_t build,
                              const void *builder, uint32_t most);
/* Gives an instance of the template, which the caller resets. */
pp_status_t pp_templates_take(pp_templates_t *templates, const pp_template_key_t *key, pp_execution_t **execution);
void        pp_templates_give_back(pp_templates_t *templates, pp_execution_t *execution);
/* Releases all templates; all executions must have been given back. */
void        pp_templates_release(pp_templates_t *templates);

#endif
