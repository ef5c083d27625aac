/* handles.c - see handles.h. */
#include "handles.h"

#include <stdlib.h>
#include <string.h>

size_t pp_handles_find(const pp_handles_t *handles, uint32_t id)
{
    size_t from = 0, to = handles->count;
    while (from < to) {
        const size_t middle = (from + to) / 2;
        if (handles->list[middle].id < id)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

bool pp_handles_add(pp_handles_t *handles, uint32_t id, pp_handle_t *handle)
{
    const size_t at = pp_handles_find(handles, id);
    if (!pp_grow((void **)&handles->list, &handles->capacity, handles->count + 1, sizeof *handles->list))
        return false;
    memmove(&handles->list[at + 1], &handles->list[at], (handles->count - at) * sizeof *handles->list);
    handles->list[at] = (pp_listed_t){id, handle};
    handles->count++;
    handles->changes++;
    return true;
}

void pp_handles_remove(pp_handles_t *handles, const pp_handle_t *handle)
{
    const size_t at = pp_handles_find(handles, handle->id);
    if (at == handles->count || handles->list[at].handle != handle)
        return;
    handles->count--;
    handles->changes++;
    memmove(&handles->list[at], &handles->list[at + 1], (handles->count - at) * sizeof *handles->list);
}

void pp_handles_release(pp_handles_t *handles)
{
    free(handles->list);
    *handles = (pp_handles_t){.changes = handles->changes + 1};
}
