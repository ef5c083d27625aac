/* keeper.c - see keeper.h. */
#include "keeper.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Keeps memory of the node alive, or, if there is none, memory of this process.  A forked child has the mapping, too: what
   it gives back would be taken from its parent. */
typedef struct keeper {
    struct keeper *next;             /* of the arrays in memory of nodes */
    int          holders;            /* the application, and handles */
    pid_t        process;
    pp_shared_t *shared;
    size_t       offset, bytes;
    void        *own;
} keeper_t;

/* The lock guards the list, and the holders of all keepers.  A forked child takes it never: another thread of its parent
   may have had it. */
static struct {
    pthread_mutex_t lock;
    keeper_t       *first;
} arrays = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void list(keeper_t *keeper)
{
    pthread_mutex_lock(&arrays.lock);
    keeper->next = arrays.first;
    arrays.first = keeper;
    pthread_mutex_unlock(&arrays.lock);
}

/* Whether the last holder has let go. */
static bool let_go(keeper_t *keeper)
{
    pthread_mutex_lock(&arrays.lock);
    const bool last = --keeper->holders == 0;
    for (keeper_t **link = &arrays.first; last && *link; link = &(*link)->next)
        if (*link == keeper) {
            *link = keeper->next;
            break;
        }
    pthread_mutex_unlock(&arrays.lock);
    return last;
}

static bool alloc_kept(pp_node_t *node, keeper_t *keeper, void **memory)
{
    if (!node || !node->memory) {
        keeper->own = *memory = pp_alloc_aligned(keeper->bytes);
        if (*memory)
            memset(*memory, 0, keeper->bytes);
        return *memory;
    }
    *memory = pp_node_alloc(node, &keeper->bytes);
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
    keeper->holders = 1;
    if (!alloc_kept(node, keeper, memory)) {
        free(keeper);
        return NULL;
    }
    if (keeper->shared)
        list(keeper);
    return keeper;
}

void *pp_keeper_share(const pp_node_t *node, const void *memory, size_t bytes)
{
    uint64_t  offset;
    keeper_t *found = NULL;
    if (!pp_node_holds(node, memory, bytes, &offset))
        return NULL;
    pthread_mutex_lock(&arrays.lock);
    for (keeper_t *keeper = arrays.first; keeper && !found; keeper = keeper->next)
        if (keeper->shared == node->memory && offset >= keeper->offset
            && offset + bytes <= keeper->offset + keeper->bytes)
            found = keeper;
    if (found)
        found->holders++;
    pthread_mutex_unlock(&arrays.lock);
    return found;
}

void *pp_keeper_hold(const pp_node_t *node)
{
    keeper_t *keeper = calloc(1, sizeof *keeper);
    if (!keeper)
        return NULL;
    keeper->process = getpid();
    keeper->holders = 1;
    if (node->memory)
        keeper->shared = pp_shared_use(node->memory);
    return keeper;
}

void pp_unalloc(void *kept)
{
    keeper_t *keeper = kept;
    const bool ours = keeper && keeper->process == getpid();
    if (!keeper || (ours && !let_go(keeper)))
        return;
    if (ours && keeper->shared && keeper->bytes)
        pp_shared_give_back(keeper->shared, keeper->offset, keeper->bytes);
    pp_shared_drop(keeper->shared);
    free(keeper->own);
    free(keeper);
}
