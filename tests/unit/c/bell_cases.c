/*
 * bell_cases.c - the doorbell's protocol on a private page.  Run by tests/unit/test_doorbell.py:
 *
 *     bell_cases answers     who needs no wake-up; exits with the number of the check that failed
 *     bell_cases wakes       a thread rings another one that sleeps whenever it has nothing to do;
 *                            prints how many sleeps ended by their timeout, which is a lost wake-up
 */
#include "transport/doorbell.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ASLEEP = 1, RINGS = 20000, TIMEOUT_US = 30000000 };

#define CHECK(number, what) do { if (!(what)) exit(number); } while (0)

static void answers(pp_bell_t *bell)
{
    pp_ring_t first, second;
    CHECK(1, pp_bell_announce(bell, 1, &first) == 0 && pp_bell_answered(bell, first));   /* awake */
    pp_bell_set_sleeper(bell, ASLEEP);
    CHECK(2, !pp_bell_answered(bell, first));
    CHECK(3, pp_bell_announce(bell, 2, &second) == ASLEEP && !pp_bell_answered(bell, second));
    pp_bell_set_looked(bell, first.sequence, 0);
    CHECK(4, pp_bell_answered(bell, first) && !pp_bell_answered(bell, second));
    pp_bell_set_looked(bell, second.sequence, 0);
    CHECK(5, pp_bell_answered(bell, second));
    /* Its message was received before its ring, in a look that the ring came after. */
    pp_bell_set_looked(bell, pp_bell_sequence(bell), 4);
    CHECK(6, pp_bell_announce(bell, 1, &first) == ASLEEP && pp_bell_answered(bell, first));
    /* A fifth message was received without its ring; somebody else's sixth is announced first, and seems
       to be the fifth: then whose ring comes last finds that one is missing. */
    pp_bell_set_looked(bell, pp_bell_sequence(bell), 5);
    CHECK(7, pp_bell_announce(bell, 1, &first) == ASLEEP && pp_bell_answered(bell, first));
    CHECK(8, pp_bell_announce(bell, 1, &second) == ASLEEP && !pp_bell_answered(bell, second));
    pp_bell_set_sleeper(bell, 0);
    CHECK(9, pp_bell_answered(bell, second));
    /* The sequence has moved on: nobody falls asleep; else until the time is up. */
    CHECK(10, !pp_bell_sleep(bell, ASLEEP, pp_bell_sequence(bell) - 1, TIMEOUT_US));
    CHECK(11, pp_bell_sleep(bell, ASLEEP, pp_bell_sequence(bell), 1000));
}

static void *ring(void *arg)
{
    pp_bell_t *bell = arg;
    unsigned   seed = 1;
    for (int i = 0; i < RINGS; i++) {
        pp_ring_t made;
        pp_bell_wake(bell, pp_bell_announce(bell, 1, &made));
        for (int pause = rand_r(&seed) % 200; pause > 0; pause--)
            __asm__ volatile("" ::: "memory");
    }
    return NULL;
}

static void wakes(pp_bell_t *bell)
{
    pthread_t thread;
    uint32_t  seen = 0, timeouts = 0, heard = 0;
    CHECK(1, pthread_create(&thread, NULL, ring, bell) == 0);
    while (heard < RINGS) {
        seen = pp_bell_sequence(bell);
        pp_bell_set_sleeper(bell, ASLEEP);
        uint32_t announced = atomic_load(&bell->announced);
        if (announced > heard)
            heard = announced;
        else
            timeouts += pp_bell_sleep(bell, ASLEEP, seen, TIMEOUT_US);
        pp_bell_set_sleeper(bell, 0);
    }
    pthread_join(thread, NULL);
    printf("%u\n", timeouts);
}

int main(int count, char **arguments)
{
    pp_doorbell_t doorbell;
    CHECK(100, count == 2 && pp_doorbell_private(&doorbell));
    if (strcmp(arguments[1], "answers") == 0)
        answers(doorbell.bells);
    else
        wakes(doorbell.bells);
    pp_doorbell_free(&doorbell);
    return 0;
}
