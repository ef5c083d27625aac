/* stored.c - see stored.h */
#include "stored.h"

#include <stdlib.h>
#include <string.h>

pp_stored_t *pp_stored_new(int32_t peer, const void *message, size_t bytes)
{
    pp_stored_t *stored = malloc(sizeof *stored + bytes);
    if (!stored)
        return NULL;
    stored->next = NULL;
    stored->peer = peer;
    stored->bytes = bytes;
    memcpy(stored->message, message, bytes);
    return stored;
}

void pp_stored_append(pp_stored_t **list, pp_stored_t *stored)
{
    while (*list)
        list = &(*list)->next;
    *list = stored;
}

void pp_stored_free_all(pp_stored_t **list)
{
    while (*list) {
        pp_stored_t *first = *list;
        *list = first->next;
        free(first);
    }
}
