/* lock_cases.c - the node's lock after its owner has died: every rank is told, and none waits for ever.  Run by
   tests/unit/test_lock.py; exits with 1, and says which line was wrong. */
#include "node/node.h"
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, TIMES = 3, LIMIT_S = 20 };

/* A process takes the lock and dies with it. */
static void lose_lock(pp_node_t *node)
{
    int status;
    if (fork() == 0)
        _exit(pp_node_lock(node) ? 0 : 1);
    wait(&status);
    CHECK(status == 0);
}

/* Each rank asks several times, and at the same time as the others. */
static void ask(pp_node_t *node)
{
    alarm(LIMIT_S);          /* ends a rank that waits for ever */
    for (int time = 0; time < TIMES; time++)
        if (pp_node_lock(node))
            _exit(1);
    _exit(0);
}

int main(void)
{
    pp_shared_t memory = {0};
    pp_node_t   node = {.memory = &memory};
    int         status;
    node.commons = mmap(NULL, sizeof(pp_commons_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(node.commons != MAP_FAILED);
    pp_node_make_lock(&node);
    for (int time = 0; time < TIMES; time++) {
        CHECK(pp_node_lock(&node));
        pp_node_unlock(&node);
    }
    lose_lock(&node);
    for (int rank = 0; rank < RANKS; rank++)
        if (fork() == 0)
            ask(&node);
    for (int rank = 0; rank < RANKS; rank++) {
        wait(&status);
        CHECK(status == 0);
    }
    CHECK(!pp_node_lock(&node));
    return 0;
}
