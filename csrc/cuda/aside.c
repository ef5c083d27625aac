/* aside.c - see aside.h. */
#define _GNU_SOURCE   /* pthread_setname_np */
#include "aside.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct aside {
    struct aside *next;
    void        (*work)(void *);
    void         *argument;
} aside_t;

/* Of the calling thread. */
static _Thread_local int      holds;
static _Thread_local aside_t *held, **held_end;

static void work_on(aside_t *made)
{
    const aside_t aside = *made;
    free(made);
    aside.work(aside.argument);
}

static void *run(void *made)
{
    pthread_setname_np(pthread_self(), "pypartial-cuda");
    work_on(made);
    return NULL;
}

static bool starts(aside_t *made)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, made) != 0)
        return false;
    pthread_detach(thread);
    return true;
}

static aside_t *new_aside(void (*work)(void *), void *argument)
{
    aside_t *made = malloc(sizeof *made);
    if (made)
        *made = (aside_t){.work = work, .argument = argument};
    return made;
}

void pp_aside(void (*work)(void *argument), void *argument)
{
    aside_t *made = new_aside(work, argument);
    if (made && holds > 0) {
        *held_end = made;
        held_end = &made->next;
    } else if (!made || !starts(made)) {
        free(made);
        work(argument);
    }
}

void pp_aside_hold(void)
{
    if (holds++ == 0)
        held_end = &held;
}

void pp_aside_let(void)
{
    if (--holds > 0)
        return;
    while (held) {
        aside_t *made = held;
        held = made->next;
        if (!starts(made))
            work_on(made);
    }
}
