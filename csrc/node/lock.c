/* lock.c - the node's lock: a robust mutex in the memory that the ranks share.  See node.h. */
#include "node.h"

#include <errno.h>
#include <pthread.h>

/* So long a rank tries before it sleeps, about 3 us.  To sleep and be woken costs several times what the owner needs. */
enum { TRIES = 64 };

_Static_assert(sizeof(pthread_mutex_t) <= sizeof(((pp_commons_t *)0)->lock), "the lock must fit its place");

static pthread_mutex_t *mutex_of(pp_node_t *node) { return (pthread_mutex_t *)node->commons->lock; }

void pp_node_make_lock(pp_node_t *node)
{
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    /* The kernel tells the next rank if the owner has died. */
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex_of(node), &shared);
    pthread_mutexattr_destroy(&shared);
}

bool pp_node_lock(pp_node_t *node)
{
    if (!node->memory)               /* simulated ranks take turns */
        return true;
    int error = pthread_mutex_trylock(mutex_of(node));
    for (int tries = 1; tries < TRIES && error == EBUSY; tries++) {
        pp_pause_core();
        error = pthread_mutex_trylock(mutex_of(node));
    }
    if (error == EBUSY)
        error = pthread_mutex_lock(mutex_of(node));
    /* A mutex that nobody makes consistent would do instead of `broken`, but glibc's trylock does not let go of one. */
    if (error == EOWNERDEAD) {
        error = pthread_mutex_consistent(mutex_of(node));
        node->commons->broken = true;
    }
    if (error == 0 && node->commons->broken) {
        pthread_mutex_unlock(mutex_of(node));
        return false;
    }
    return error == 0;
}

void pp_node_unlock(pp_node_t *node)
{
    if (node->memory)
        pthread_mutex_unlock(mutex_of(node));
}
