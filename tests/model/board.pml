/*
 * board.pml - how rounds are claimed, taken, moved and published in shared memory (csrc/node/board.c and
 * csrc/coll/rounds/board.c), and how waiters sleep and are woken (csrc/progress/sleep.c), for spin.  The ring of results,
 * and which rank moves which chunk, are in ring.pml.
 *
 *   -DN, -DSTARTS      ranks, and how many Starts each makes
 *   -DQUORUM           ranks that must be ready; 1: Solo, N: Full
 *   -DDRAWN            instead: round r waits for rank r mod N, or, if that has left, for the next rank (Majority)
 *   -DPARTS            of a station; 1: a Start that finds it pending adds to it, 2: there is a choice
 *   -DCHUNKS           of a round's data; 0: the claimer moves them itself
 *   -DKEPT             rounds stop when a rank was not given ENTRIES of them (deliver="sum", "each")
 *   -DGRACE            a round that is due waits a moment for ranks that come a little later
 *   -DALL_THERE        ... but not if all ranks are there
 *   -DUSERS            contributions stay in the application's buffers until its request completes
 *   -DFREES            a rank may free its handle instead of waiting for its last Start
 *   -DCOMPUTES         a rank may compute for ever after a Start: the others must not need it to go on
 *   -DDIES             rank 0 may die between any two steps; the others are told when they would sleep for ever
 *
 * Checked, in every order of the steps:
 *   conservation       each Start is in one round, is pending, or was given back: never lost, never twice
 *   agreement          a round is claimed, moved and published by one rank or those it gave chunks to, and it has the
 *                      ready ranks that its policy asks for
 *   no reuse           no round still reads a part that is used again, or a buffer that the application has back
 *   no lost wake-up    no rank sleeps while it has something to do (a deadlock, or the monitor finds it)
 *
 * A step is an access to shared state, with everything that it alone decides; consecutive accesses are one step if no
 * other rank can tell the difference.  Left out: several handles, flushes, and max_lag.  These only add facts for
 * decide(), which change like those of KEPT: by a `say`, and a look afterwards.
 *
 * With -D and one of these, the protocol is broken on purpose, and has to be found broken (tests/model/check --mutants):
 * NO_NEWS, NO_WAKE_UP, LOOKS_FIRST, PART_TAKEN_TWICE, CLAIM_NOT_COMPARED, TICKETS_OF_ANY_ROUND, PART_REUSED,
 * MERGED_UNCLAIMED, OLD_ROUND_RIPENS, RIPENS_OR_GIVES_UP, LOOKED_TOO_EARLY, SLEEPS_WHILE_TAKEN, SLEEPS_WITH_WORK,
 * RETURNED_EARLY, WITHDRAWN_WHILE_TAKEN, DEATH_UNSEEN.
 */
#ifndef N
#define N 2
#endif
#ifndef STARTS
#define STARTS 2
#endif
#ifndef QUORUM
#define QUORUM 1
#endif
#ifndef PARTS
#define PARTS 1
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef ENTRIES
#define ENTRIES 1
#endif

#define STEP(name)              /* what follows stands for the access after PP_STEP("name") */

#define OPEN 0
#define TAKING 1
#define MOVING 2
#define FOREVER 255

#if QUORUM > 1 || defined(DRAWN) || defined(KEPT)
#define LEAVES                  /* a rank that has made all its Starts says so: the others go on without it */
#endif

/* The turn: one word. */
byte round, phase;
bit  news;

/* Stations. */
byte pending[N];                /* parts linked and not taken, as bits */
byte waits[N];                  /* 1 + the round that the rank waits for, or once waited for; 0: none */
byte taken[N];                  /* 1 + the last round that took a part */
#ifdef KEPT
byte absorbed[N];               /* of rounds before this one the rank needs no entry of the ring */
#endif
#ifdef USERS
bit  users[N];                  /* the part (of one) that is pending lies where the application has it */
#endif

/* Presence. */
byte away;
bit  out[N];

#ifdef GRACE
byte ripe;                      /* 1 + the round that is due, but waits a moment */
bit  due;                       /* the moment is over */
#endif

/* Tickets: one word; and the chunks not finished. */
byte ticket_round, tickets, unfinished;

/* Sleep. */
byte sleepers;
bit  asleep[N], woken[N];

/* Ghosts. */
byte held[N * PARTS];           /* Starts in a part that is pending */
byte took[N];                   /* Starts of a rank that rounds have taken */
byte reading[N];                /* parts that the round under way has taken, as bits */
byte discarded[N];              /* Starts that were given back */
#ifdef USERS
bit  lent[N];                   /* the round under way reads the application's buffer */
#endif
bit  killed;

#define BIT(part) (1 << (part))
#define ALL_PARTS (BIT(PARTS) - 1)
#define HELD(rank, part) held[(rank) * PARTS + (part)]
/* What a waiter looks at: its request is complete, there are chunks, a round is about to be ripe. */
#define OVER (waits[_pid] == 0 || round >= waits[_pid])
#define WORK (phase == MOVING && tickets)
#ifdef GRACE
/* When the moment is over, a waiter looks only once more (`looked`): the round may no longer be due. */
#ifdef SLEEPS_WHILE_TAKEN
#define SOON (phase == OPEN && ripe == round + 1 && looked <= round)
#else
#define SOON (phase != MOVING && ripe == round + 1 && looked <= round)
#endif
#define FORGET_LOOK looked = 0   /* means the same as 0 when the round is over; fewer states */
#else
#define SOON false
#define FORGET_LOOK skip
#endif
#ifdef SLEEPS_WITH_WORK
#define SLEEPLESS (OVER || SOON)
#else
#define SLEEPLESS (OVER || WORK || SOON)
#endif

#define WAITS_HERE(rank) (pending[rank] && waits[rank] == at + 1)

/* ---- deciding: one station after the other, not all at once; the answer is in `yes` ----------------------- */

#ifdef DRAWN
/* Round r draws rank r mod N; a rank that has left hands on to the next. */
inline decide()
{
    do
    :: atomic {
           STEP(decide)
           if
           :: waits[(at + k) % N] == at + 1 -> yes = 1; counts = BIT((at + k) % N); k = 0; break
           :: else ->
               if
               :: out[(at + k) % N] && k < N - 1 -> k++
               :: else -> yes = 0; k = 0; break
               fi
           fi
       }
    od
}
#else
/* QUORUM ranks are ready, or all that have not left; they count for the round, if it takes something of theirs. */
inline decide()
{
#ifdef LEAVES
    atomic { STEP(decide) seen = (away > 0) };
#endif
    do
    :: atomic {
           STEP(decide)
           if
           :: WAITS_HERE(k) -> ready++; counts = counts | BIT(k)
           :: else ->
               if
               :: seen && out[k] -> left++
               :: else
               fi
           fi;
           k++;
           if
           :: ready >= QUORUM || k == N ->
               yes = (ready >= QUORUM || (ready && ready + left == N));
               if
               :: yes
               :: else -> counts = 0
               fi;
               k = 0; ready = 0; left = 0; seen = 0; break
           :: else
           fi
       }
    od
}
#endif

/* ---- waking: after a change ------------------------------------------------------------------------------ */

inline wake()
{
#ifndef NO_WAKE_UP
    do
    :: atomic {
           STEP(wake)
           if
           :: sleepers == 0 -> k = 0; break
           :: else
           fi;
           if
           :: k != _pid && waits[k] && waits[k] <= at + 1 && asleep[k] -> woken[k] = 1
           :: else
           fi;
           k++;
           if
           :: k == N -> k = 0; break
           :: else
           fi
       }
    od
#else
    skip
#endif
}

inline publish()
{
    atomic {
        STEP(publish)
        assert(round == at && phase == (CHUNKS -> MOVING : TAKING));
        round++; phase = OPEN; news = 0;
#ifdef GRACE
        due = 0;
#endif
        k = 0;
        do
        :: k < N ->
            reading[k] = 0;
#ifdef USERS
            lent[k] = 0;
#endif
            taken[k] = 0;           /* means the same as 0 now, and so does ticket_round; fewer states */
            k++
        :: else -> k = 0; break
        od;
        ticket_round = 0
    };
    wake()
}

/* ---- a round, under its claim ---------------------------------------------------------------------------- */

/* Is there an entry whose round all ranks have been given? */
inline pick()
{
#ifdef KEPT
    do
    :: atomic {
           STEP(pick)
           if
           :: at >= ENTRIES && absorbed[k] + ENTRIES <= at -> yes = 0; k = 0; break
           :: else
           fi;
           k++;
           if
           :: k == N -> k = 0; break
           :: else
           fi
       }
    od
#else
    skip
#endif
}


#ifdef PART_TAKEN_TWICE
#define TAKE_AWAY(k) skip
#elif PARTS > 1
#define TAKE_AWAY(k) pending[k] = 0; HELD(k, 0) = 0; HELD(k, 1) = 0
#else
#define TAKE_AWAY(k) pending[k] = 0; HELD(k, 0) = 0
#endif

inline take_all()
{
    do
    :: atomic {
           !pending[k] ->
           STEP(take)
           k++;
           if
           :: k == N -> break
           :: else
           fi
       }
    :: atomic { pending[k] -> STEP(take) taken[k] = at + 1 };
       atomic {
           STEP(take)
           ready = ready + (waits[k] == at + 1 || (counts & BIT(k)));
           part = 0;
           do
           :: part < PARTS ->
               if
               :: pending[k] & BIT(part) -> took[k] = took[k] + HELD(k, part)
               :: else
               fi;
               part++
           :: else -> part = 0; break
           od;
           reading[k] = reading[k] | pending[k];
           TAKE_AWAY(k);
#ifdef USERS
           lent[k] = users[k]; users[k] = 0;
#endif
           k++;
           if
           :: k == N -> break
           :: else
           fi
       }
    od;
    atomic { k = 0; assert(ready >= QUORUM || (ready && away)); ready = 0; counts = 0 }
}

/* ---- the data of a round ---------------------------------------------------------------------------------- */

inline hand_out()
{
    atomic { STEP(hand_out) ticket_round = at; tickets = CHUNKS; unfinished = CHUNKS };
    atomic { STEP(hand_out) phase = MOVING; news = 0 };
    wake()
}

#ifdef TICKETS_OF_ANY_ROUND
#define TICKET tickets
#else
#define TICKET (ticket_round == at && tickets)
#endif

/* The rank that finishes the last chunk publishes. */
inline work()
{
    do
    :: atomic { STEP(ticket) TICKET -> tickets-- };
       atomic {
           STEP(finish)
           assert(round == at && phase == MOVING);
           unfinished--;
           yes = (unfinished == 0)
       };
       if
       :: atomic { yes -> yes = 0 }; publish(); try_round(); break
       :: atomic { !yes -> skip }
       fi
    :: atomic { STEP(ticket) !TICKET -> at = 0; break }
    od
}

#ifdef GRACE
/* `yes`: all ranks are there, or the moment is over.  Otherwise this rank, or a rank that waits, will look again. */
inline ripen()
{
#ifdef ALL_THERE
    do
    :: atomic { k < N && (pending[k] || out[k]) -> STEP(decide) k++ }
    :: atomic { k < N && !pending[k] && !out[k] -> STEP(decide) k = 0; yes = 0; break }
    :: atomic { k == N -> k = 0; break }
    od;
#else
    yes = 0;
#endif
    do
    :: atomic { yes -> break }
    :: atomic { !yes -> STEP(ripen) seen = ripe };
       if
       :: atomic { seen == at + 1 && (due || round != at) -> seen = 0; yes = 1; break }
       :: atomic { seen == at + 1 && !due -> seen = 0; due = (round == at); yes = 1; break }
       :: atomic { seen == at + 1 && !due -> seen = 0; break }
       :: else
       fi;
#ifndef OLD_ROUND_RIPENS
       if
       :: atomic { round == at -> STEP(look) skip }
       :: atomic { round != at -> STEP(look) seen = 0; break }
       fi;
#endif
       atomic {
           STEP(ripen)
           again = (ripe == seen);
           if
           :: again -> ripe = at + 1; due = 0
           :: else
           fi;
           seen = 0
       };
       if
       :: again -> again = 0; wake(); break
#ifdef RIPENS_OR_GIVES_UP
       :: else -> break
#else
       :: else                  /* another rank has: for this round, or late for an old one */
#endif
       fi
    od
}
#endif

/* ---- claiming ---------------------------------------------------------------------------------------------- */

inline claim(lost)
{
    atomic {
        STEP(claim)
        if
#ifdef CLAIM_NOT_COMPARED
        :: true -> phase = TAKING
#else
        :: round == at && phase == OPEN -> phase = TAKING
#endif
        :: else -> yes = 0; again = lost; counts = 0
        fi
    }
}

/* Leaves `yes` if there is news: the claim is kept, and this rank looks once more. */
inline release()
{
    atomic {
        STEP(release)
        yes = news;
        if
        :: !news -> phase = OPEN
        :: else
        fi
    };
    if
    :: yes -> atomic { STEP(release) news = 0 }
    :: else
    fi
}

inline run_round()
{
    take_all();
#if CHUNKS == 0
    publish()
#else
    hand_out()
#endif
}

#ifdef NO_NEWS
#define LEAVE_NEWS skip
#else
#define LEAVE_NEWS news = 1
#endif

inline try_round()
{
    do
    :: atomic { phase == MOVING || (phase == TAKING && news) -> STEP(look) at = 0; break }
    :: atomic { phase == TAKING && !news -> STEP(look) at = round };
       atomic {
           STEP(news)
           if
           :: round == at && phase == TAKING && !news -> LEAVE_NEWS; at = 0; break
           :: else
           fi
       }
    :: atomic { phase == OPEN -> STEP(look) at = round };
       decide();
       atomic {
           if
           :: !yes -> at = 0; break
           :: else
           fi
       };
#ifdef GRACE
       ripen();
       if
       :: !yes -> at = 0; counts = 0; break
       :: else
       fi;
#endif
       claim(1);
       do
       :: atomic { yes -> skip };
          decide();
#ifdef KEPT
          if
          :: yes -> pick()
          :: else
          fi;
#endif
          if
          :: atomic { yes -> yes = 0 }; run_round(); again = (away > 0); break
          :: atomic { !yes -> counts = 0 }; release()
          fi
       :: atomic { !yes -> break }
       od;
       atomic {
           if
           :: again -> again = 0
           :: else -> at = 0; break
           fi
       }
    od
}

/* ---- Start ------------------------------------------------------------------------------------------------- */

/* Of parts that were taken, until their round is complete. */
inline forget_read_parts()
{
    atomic { STEP(link) seen = pending[_pid] };
    if
    :: linked != seen ->
        atomic { STEP(link) k = taken[_pid] };
        atomic {
            STEP(look)
            if
#ifndef PART_REUSED
            :: round < k
#endif
            :: else -> linked = seen
            fi;
            k = 0
        }
    :: else
    fi;
    seen = 0
}

inline link(which)
{
    assert(!(pending[_pid] & BIT(which)) && !(reading[_pid] & BIT(which)));
    HELD(_pid, which) = 1;
    pending[_pid] = pending[_pid] | BIT(which);
    linked = linked | BIT(which);
#ifdef USERS
    users[_pid] = 1;
#endif
    waits[_pid] = (at > given -> 0 : at + 1)
}

/* No part is free: adds to one that is pending, under the claim, so that no round takes it meanwhile. */
inline merge()
{
    atomic { phase == OPEN -> STEP(look) at = round; yes = 1 };
#ifndef MERGED_UNCLAIMED
    claim(0);
#endif
    if
    :: yes ->
        atomic { STEP(merge) started = (pending[_pid] & 1) };
        if
        :: started ->
            atomic {
                STEP(say)
                assert((pending[_pid] & 1) && !(reading[_pid] & 1));
                HELD(_pid, 0) = HELD(_pid, 0) + 1;
                waits[_pid] = (at > given -> 0 : at + 1)
            }
        :: else
        fi;
#ifndef MERGED_UNCLAIMED
        do
        :: release(); 
           if
           :: yes
           :: else -> break
           fi
        od
#else
        yes = 0
#endif
    :: else
    fi;
    at = 0
}


#ifdef USERS
/* The application gets its buffer back: if the contribution is still pending, it is copied aside. */
inline return_users()
{
    do
    :: atomic { STEP(move) seen = users[_pid] };
       if
       :: atomic {
              seen ->
              STEP(move)
              seen = users[_pid];
              users[_pid] = 0
          }
       :: else
       fi;
       if
       :: atomic { seen -> seen = 0; break }      /* no round has taken it */
       :: else
       fi;
#ifdef RETURNED_EARLY
       break
#else
       if
       :: atomic { round >= taken[_pid] -> STEP(look) break }
       :: atomic { round < taken[_pid] && WORK -> STEP(look) at = round }; work()
#ifndef DEATH_UNSEEN
       :: killed -> goto told
#endif
       fi
#endif
    od;
    assert(!lent[_pid] && !users[_pid])
}
#endif

#ifdef FREES
/* Not while a round is being taken: it may have counted on this rank. */
inline withdraw()
{
    atomic { STEP(say) waits[_pid] = 0 };
    atomic {
        STEP(look)
#ifdef WITHDRAWN_WHILE_TAKEN
        yes = 1
#else
        yes = (phase != TAKING)
#endif
    };
    if
    :: atomic {
           yes ->
           STEP(withdraw)
           pending[_pid] = 0;
           discarded[_pid] = HELD(_pid, 0); HELD(_pid, 0) = 0;
#if PARTS > 1
           discarded[_pid] = discarded[_pid] + HELD(_pid, 1); HELD(_pid, 1) = 0;
#endif
           yes = 0
       }
    :: atomic { !yes -> skip }
    fi
}
#endif

active [N] proctype rank()
{
    byte at, k, seen, ready, left, counts, part, given, linked, count;
#ifdef GRACE
    byte looked;                /* 1 + the last round that it has looked at because it was due */
#endif
    bit  yes, again, started;
    {
    do
    :: count < STARTS ->
        do
        :: linked && !started ->
            forget_read_parts();
            if
            :: linked != ALL_PARTS -> break
            :: else ->
                if
                :: merge()
                :: atomic { WORK -> STEP(look) at = round }; work()
                :: round >= taken[_pid] && linked != pending[_pid]
#ifndef DEATH_UNSEEN
                :: killed -> goto told
#endif
                fi
            fi
        :: else -> break
        od;
        if
        :: !started ->
            atomic { STEP(look) at = round };
            atomic {
                STEP(link)
                if
                :: !(linked & 1) -> link(0)
                :: else -> link(1)
                fi;
                at = 0
            }
        :: else
        fi;
        atomic { started = 0; count++ };
        try_round();
#ifdef COMPUTES
        if
        :: goto computes
        :: true
        fi;
#endif
#ifdef FREES
        if
        :: atomic { count == STARTS -> break }
        :: true
        fi;
#endif
        do
        :: atomic { OVER -> STEP(look) at = round; waits[_pid] = 0; FORGET_LOOK; break }
        :: atomic { !OVER && WORK -> STEP(look) at = round }; work()
#ifdef GRACE
        :: atomic { !OVER && SOON && !due -> STEP(ripen) skip }; try_round()
#ifndef LOOKED_TOO_EARLY
        :: atomic { !OVER && SOON -> STEP(ripen) due = 1; looked = round + 1 }; try_round()
#else
        :: atomic { !OVER && SOON -> STEP(ripen) looked = round + 1 }; try_round()
#endif
#endif
        /* Counts itself, looks, sleeps; a publisher publishes first, and then looks for sleepers. */
        :: atomic { !OVER && !WORK && !SOON -> asleep[_pid] = 1 };
#ifdef LOOKS_FIRST
           atomic { if :: SLEEPLESS -> woken[_pid] = 1 :: else fi };
           sleepers++;
#else
           sleepers++;
           atomic { STEP(look) if :: SLEEPLESS -> woken[_pid] = 1 :: else fi };
#endif
#ifdef COMPUTES
end_asleep:
#endif
           if
           :: woken[_pid]
#ifndef DEATH_UNSEEN
           :: killed -> goto told
#endif
           fi;
           atomic { sleepers--; asleep[_pid] = 0; woken[_pid] = 0 }
        od;
#ifdef KEPT
        atomic { STEP(say) given++; absorbed[_pid] = given; at = 0 };
        try_round()
#else
        atomic { given = at; at = 0 }
#endif
#ifdef USERS
        ;
        return_users()
#endif
    :: else -> break
    od;
#ifdef FREES
    withdraw();
#endif
#ifdef LEAVES
    atomic { STEP(leave) away++ };
    atomic { STEP(leave) out[_pid] = 1 };
#ifdef KEPT
    atomic { STEP(say) absorbed[_pid] = FOREVER };
#endif
    try_round();
#endif
    atomic {
        k = took[_pid] + discarded[_pid] + HELD(_pid, 0);
#if PARTS > 1
        k = k + HELD(_pid, 1);
#endif
        assert(k == STARTS)
    }
    goto done
    } unless { killed && _pid == 0 };
computes:
told:
done:
    skip
}

#ifdef DIES
active proctype killer() { killed = 1 }
#endif

#ifdef COMPUTES
/* When nothing moves any more, a rank that sleeps has nothing to do. */
active proctype monitor()
{
    byte at, k, seen, ready, left, counts;
    bit  yes;
end_monitor:
    atomic { timeout -> at = round };
    do
    :: k < N -> yes = yes || asleep[k]; assert(!asleep[k] || round < waits[k]); k++
    :: else -> k = 0; break
    od;
    if
    :: yes -> yes = 0; assert(phase == OPEN); decide();
        if
        :: yes -> pick()
        :: else
        fi;
        assert(!yes)
    :: else
    fi
}
#endif
