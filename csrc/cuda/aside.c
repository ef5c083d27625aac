/* aside.c - see aside.h. */
#define _GNU_SOURCE   /* pthread_setname_np */
#include "aside.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct aside {
    void (*work)(void *);
    void  *argument;
} aside_t;

static void *run(void *made)
{
    const aside_t aside = *(aside_t *)made;
    free(made);
    pthread_setname_np(pthread_self(), "pypartial-cuda");
    aside.work(aside.argument);
    return NULL;
}

static bool starts(void (*work)(void *), void *argument)
{
    pthread_t thread;
    aside_t  *made = malloc(sizeof *made);
    if (!made)
        return false;
    *made = (aside_t){.work = work, .argument = argument};
    if (pthread_create(&thread, NULL, run, made) == 0) {
        pthread_detach(thread);
        return true;
    }
    free(made);
    return false;
}

void pp_aside(void (*work)(void *argument), void *argument)
{
    if (!starts(work, argument))
        work(argument);
}
