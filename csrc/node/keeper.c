/* keeper.c - see keeper.h. */
#include "keeper.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Keeps memory of the node alive, or, if there is none, memory of this process.  A forked child has the mapping, too: what
   it gives back would be taken from its parent. */
typedef struct keeper {
    pid_t        process;
    pp_shared_t *shared;
    size_t       offset, bytes;
    void        *own;
} keeper_t;

static bool alloc_kept(pp_node_t *node, keeper_t *keeper, void **memory)
{
    if (!node || !node->memory) {
        keeper->own = *memory = pp_alloc_aligned(keeper->bytes);
        if (*memory)
            memset(*memory, 0, keeper->bytes);
        return *memory;
    }
    *memory = pp_node_alloc(node, keeper->bytes);
    if (!*memory)
        return false;
    keeper->offset = (size_t)((char *)*memory - node->base);
    keeper->shared = pp_shared_use(node->memory);
    return true;
}

void *pp_keeper_alloc(pp_node_t *node, size_t bytes, void **memory)
{
    keeper_t *keeper = calloc(1, sizeof *keeper);
    *memory = NULL;
    if (!keeper)
        return NULL;
    keeper->bytes = bytes;
    keeper->process = getpid();
    if (alloc_kept(node, keeper, memory))
        return keeper;
    free(keeper);
    return NULL;
}

void *pp_keeper_hold(const pp_node_t *node)
{
    keeper_t *keeper = calloc(1, sizeof *keeper);
    if (keeper && node->memory)
        keeper->shared = pp_shared_use(node->memory);
    return keeper;
}

void pp_unalloc(void *kept)
{
    keeper_t *keeper = kept;
    if (!keeper)
        return;
    if (keeper->shared && keeper->bytes && keeper->process == getpid())
        pp_shared_give_back(keeper->shared, keeper->offset, keeper->bytes);
    pp_shared_drop(keeper->shared);
    free(keeper->own);
    free(keeper);
}
