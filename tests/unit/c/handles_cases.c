/*
 * handles_cases.c - walks over the live handles (csrc/exec/handles.h) while others come and go.
 *
 *     handles_cases SEED      walks many times; in the middle, handles are removed and added by chance
 *
 * Ends with 1, and says why, if a walk misses a handle that was there all the time, comes to one twice or in another
 * order, or to one that is gone.
 */
#include "exec/handles.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST = 4000, WALKS = 300 };

static pp_handle_t  all[MOST];
static bool         there[MOST], always[MOST];
static uint32_t     made;
static pp_handles_t handles;
static uint64_t     seed, draws;

static uint64_t draw(uint64_t below) { return pp_mix(seed, draws++) % below; }

static void check(bool holds, const char *what)
{
    if (!holds) {
        printf("%s\n", what);
        exit(1);
    }
}

static void add(void)
{
    if (made == MOST)
        return;
    all[made].id = made;
    check(pp_handles_add(&handles, made, &all[made]), "no memory");
    there[made++] = true;
}

static void drop(uint32_t id)
{
    pp_handles_remove(&handles, &all[id]);
    there[id] = always[id] = false;
}

/* The handle that the walk is at, another one, or none; and perhaps a new one. */
static void come_and_go(uint32_t at)
{
    if (draw(4) == 0)
        drop(at);
    if (draw(4) == 0)
        drop((uint32_t)draw(made));
    if (draw(8) == 0)
        add();
}

static void walk_once(uint32_t skipped)
{
    bool     visited[MOST] = {false};
    uint32_t last = 0, before = made;
    for (uint32_t id = 0; id < made; id++)
        always[id] = there[id];
    for (pp_walk_t walk = pp_walk_begin(&handles, skipped); pp_walk_on(&handles, &walk);) {
        const uint32_t id = walk.here->id;
        check(there[id], "it came to a handle that is gone");
        check(!visited[id] && id >= last, "it came to a handle twice, or in another order");
        visited[last = id] = true;
        come_and_go(id == 0 ? made - 1 : id);
    }
    for (uint32_t id = skipped; id < before; id++)
        check(visited[id] || !always[id], "it missed a handle that was there all the time");
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    while (made < 8)
        add();
    for (int i = 0; i < WALKS; i++) {
        there[0] = true;      /* is never removed: it begins the list */
        if (!pp_handles_get(&handles, 0))
            check(pp_handles_add(&handles, 0, &all[0]), "no memory");
        walk_once(i % 2);
        for (uint32_t id = 0; id < made; id++)
            check(pp_handles_get(&handles, id) == (there[id] ? &all[id] : NULL), "a handle is not found by its id");
        add();
        add();
    }
    pp_handles_release(&handles);
    return 0;
}
