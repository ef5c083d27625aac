/*
 * board.pml - the lock-free protocol of csrc/node/board.c and csrc/coll/combine.c, for spin.
 *
 * N ranks make STARTS Starts each; a round is brought about when QUORUM ranks wait for it.  Every label names the PP_STEPs of
 * the C code that it stands for, and every statement after it is one access to what the ranks share.
 *
 * Left out: several handles, leaving, flushes, max_lag (they change what decide() looks at, not how rounds are
 * claimed, taken, moved and published), and contributions that lie in the application's memory.
 *
 * Checked, besides the absence of deadlocks (a lost wake-up is one: its rank sleeps for ever):
 *   conservation   each Start is in exactly one round: taken once, and none is pending at the end
 *   agreement      a result that a reader accepts is that of the round it asked for, whole
 *   no reuse       a part is not written while a round that took it is being moved
 *   death          with DIES, rank 0 may stop for ever at any step; the others end, or are told
 */

#ifndef N
#define N 3
#endif
#ifndef STARTS
#define STARTS 2
#endif
#ifndef QUORUM
#define QUORUM 1                /* 1: Solo; N: Full, for which a claimer that decides too early needs news */
#endif
#ifndef ENTRIES
#define ENTRIES 2               /* the fewest: the newest result, and the one being written */
#endif
#define PARTS 2
#define CHUNKS 2
#define ROUNDS (N * STARTS + 1)
#define NOBODY 255

#define OPEN 0
#define TAKING 1
#define MOVING 2

/* The turn: one word, changed by compare-and-swap only. */
byte round = 0, phase = OPEN, owner = NOBODY;
bit  news = 0;

/* Stations: one word each. */
#define PART(rank, i) pending[(rank) * PARTS + (i)]
#define READ(rank, i) part_of[(rank) * PARTS + (i)]
byte pending[N * PARTS];       /* Starts in a part that is linked, and not taken */
bit  waits[N];
byte waits_for[N];
byte part_of[N * PARTS] = NOBODY;   /* round that took the part and may still read it; NOBODY: none */
byte starts[N], taken[N];      /* ghosts: Starts linked, and taken into rounds */

/* Tickets: one word; and the chunks not finished. */
byte ticket_round = NOBODY, tickets = 0, unfinished = 0;

/* The ring: sequence is the round + 1, 0 while it is being written; its data in two halves. */
byte sequence[ENTRIES], half_a[ENTRIES], half_b[ENTRIES];
byte entry = 0;                /* of the plan */

/* Sleep. */
byte sleepers = 0;
bit  asleep[N], woken[N];
bit  dead[N];

inline maybe_die()
{
#ifdef DIES
    if
    :: me == 0 -> dead[0] = 1; goto stopped
    :: true
    fi
#endif
    skip
}

/* decide: reads one station after the other, not all at once. */
inline decide(answer)
{
    ready = 0; k = 0;
    do
    :: k < N ->
        atomic { ready = ready + (waits[k] && waits_for[k] == at); k++ }
    :: else -> break
    od;
    answer = (ready >= QUORUM)
}

/* take: each part by a compare-and-swap on its station's word. */
inline take_all()
{
    k = 0;
    do
    :: k < N ->
        atomic {
            if
            :: PART(k, 0) -> taken[k] = taken[k] + PART(k, 0); PART(k, 0) = 0; READ(k, 0) = at
            :: else
            fi;
            if
            :: PART(k, 1) -> taken[k] = taken[k] + PART(k, 1); PART(k, 1) = 0; READ(k, 1) = at
            :: else
            fi;
            assert(taken[k] <= starts[k]);
            k++
        }
    :: else -> break
    od
}

/* pick: an entry that is not the newest. */
inline pick()
{
    entry = at % ENTRIES;
    sequence[entry] = 0
}

/* wake: after the turn has moved on. */
inline wake()
{
    if
    :: sleepers > 0 ->
        k = 0;
        do
        :: k < N ->
            if
            :: waits[k] && waits_for[k] <= at ->
                atomic { if :: asleep[k] -> woken[k] = 1 :: else fi }
            :: else
            fi;
            k++
        :: else -> break
        od
    :: else
    fi
}

inline publish()
{
    sequence[entry] = at + 1;
    atomic { assert(round == at); round = at + 1; phase = OPEN; owner = NOBODY; news = 0 };
    wake()
}

/* ticket, finish: whoever finishes the last chunk publishes. */
inline work()
{
    do
    :: true ->
        atomic {
            if
            :: ticket_round == at && tickets > 0 -> tickets--; got = 1
            :: else -> got = 0
            fi
        };
        if
        :: !got -> break
        :: else
        fi;
        maybe_die();
        /* Half of the result each; the parts are read here. */
        if
        :: half_a[entry] != at + 1 -> half_a[entry] = at + 1
        :: else -> half_b[entry] = at + 1
        fi;
        atomic { unfinished--; last = (unfinished == 0) };
        if
        :: last ->
            half_a[entry] = at + 1; half_b[entry] = at + 1;
            publish()
        :: else
        fi
    od
}

/* claim, release, news, and the round itself. */
inline try_round()
{
    again = 1;
    do
    :: again ->
        atomic { at = round; seen_phase = phase; seen_news = news };
        if
        :: seen_phase == MOVING -> again = 0
        :: seen_phase == TAKING ->
            if
            :: seen_news -> again = 0
            :: else ->
                atomic {
                    if
                    :: round == at && phase == TAKING && !news -> news = 1; again = 0
                    :: else
                    fi
                }
            fi
        :: seen_phase == OPEN ->
            decide(again);
            if
            :: again ->
                atomic {
                    if
                    :: round == at && phase == OPEN -> phase = TAKING; owner = me; news = 0; got = 1
                    :: else -> got = 0
                    fi
                };
                if
                :: got ->
                    do
                    :: true ->
                        maybe_die();
                        decide(again);
                        if
                        :: again -> break
                        :: else
                        fi;
                        /* release: unless there is news. */
                        atomic {
                            if
                            :: !news -> phase = OPEN; owner = NOBODY; got = 0
                            :: else -> news = 0
                            fi
                        };
                        if
                        :: !got -> break
                        :: else
                        fi
                    od;
                    if
                    :: got ->
                        pick();
                        take_all();
                        maybe_die();
                        unfinished = CHUNKS;
                        atomic { ticket_round = at; tickets = CHUNKS };
                        atomic { phase = MOVING; news = 0 };
                        wake();
                        work();
                        again = 0
                    :: else
                    fi
                :: else
                fi
            :: else
            fi
        fi
    :: else -> break
    od
}

/* read: the newest result, copied and compared. */
inline read_result(wanted)
{
    do
    :: true ->
        at = round - 1;
        k = at % ENTRIES;
        got = (sequence[k] == at + 1);
        last = (half_a[k] == at + 1);
        last = last && (half_b[k] == at + 1);
        if
        :: got && sequence[k] == at + 1 ->
            assert(last);                    /* whole, and of this round */
            assert(at >= wanted);
            break
        :: else
        fi
    od
}

active [N] proctype rank()
{
    byte me = _pid, k, at, mine, count, given, part, ready;
    bit  again, got, last, late, seen_news;
    byte seen_phase;

    do
    :: count < STARTS ->
        /* A part that is neither pending nor read: whoever writes another changes a round. */
        if
        :: !PART(me, 0) && (READ(me, 0) == NOBODY || round > READ(me, 0)) -> part = 0
        :: !PART(me, 1) && (READ(me, 1) == NOBODY || round > READ(me, 1)) -> part = 1
        :: atomic { PART(me, 0) && PART(me, 1) && phase == OPEN -> phase = TAKING; owner = me; part = PARTS }
#ifdef DIES
        :: dead[0] && me != 0 -> goto told
#endif
        fi;
        mine = round;
        late = (mine > given);
        if
        :: part == PARTS ->
            /* merge: under the claim, so that no round takes the part meanwhile. */
            atomic {
                assert(PART(me, 0) && phase == TAKING && owner == me);
                PART(me, 0) = PART(me, 0) + 1; starts[me]++;
                waits[me] = !late; waits_for[me] = mine
            };
            atomic { phase = OPEN; owner = NOBODY; news = 0 }    /* this rank looks in any case */
        :: else ->
            /* link: the part and the wait in one word. */
            atomic {
                assert(!PART(me, part) && (READ(me, part) == NOBODY || round > READ(me, part)));
                PART(me, part) = 1; starts[me]++;
                waits[me] = !late; waits_for[me] = mine
            }
        fi;
        maybe_die();
        try_round();
        /* wait: work, look, sleep. */
        do
        :: late || round > mine -> break
        :: else ->
            at = round;
            if
            :: phase == MOVING -> work()
            :: else
            fi;
            /* sleep: counts itself, looks, sleeps. */
            atomic { asleep[me] = 1; sleepers++ };
            if
            :: round > mine || (phase == MOVING && ticket_round == round && tickets > 0) -> skip
            :: else ->
                if
                :: woken[me]
#ifdef DIES
                :: dead[0] && me != 0 -> atomic { sleepers--; asleep[me] = 0 }; goto told
#endif
                fi
            fi;
            atomic { woken[me] = 0; asleep[me] = 0; sleepers-- }
        od;
        read_result(given);
        given = at + 1;
        count++
    :: else -> break
    od;
    goto done;
stopped:
    /* It died: what it held is never finished. */
    goto end;
told:
    /* PeerFailedError: the rank takes no part any more. */
    goto end;
done:
    assert(starts[me] == STARTS);
    assert(dead[0] || taken[me] + PART(me, 0) + PART(me, 1) == starts[me] || phase == TAKING);
end:
    skip
}
