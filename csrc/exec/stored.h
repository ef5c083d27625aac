/* stored.h - messages that are kept until they can be delivered. */
#ifndef PP_STORED_H
#define PP_STORED_H

#include "../base/base.h"

typedef struct pp_stored {
    struct pp_stored *next;
    int32_t           peer;
    size_t            bytes;
    _Alignas(16) unsigned char message[];
} pp_stored_t;

/* NULL: no memory. */
pp_stored_t *pp_stored_new(int32_t peer, const void *message, size_t bytes);
/* Appends, so that the messages of a pair of ranks stay in order. */
void         pp_stored_append(pp_stored_t **list, pp_stored_t *stored);
void         pp_stored_free_all(pp_stored_t **list);

#endif
