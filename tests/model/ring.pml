/*
 * ring.pml - the chunks of a round and the ring of results (csrc/node/board.c), for spin: which rank moves which chunk
 * into which entry, and which ranks read it meanwhile.  How rounds come about is in board.pml.  Here any rank may begin a
 * round when none is under way, may help with it when it looks, and may read at any time: more than the code ever does.
 *
 *   -DN, -DROUNDS, -DENTRIES   ranks, rounds, entries of the ring
 *   -DKEPT                     every rank reads every round, in order, and its entry is kept until then ("sum", "each");
 *                              without it any round that is still there ("latest")
 *   -DWAITS                    ranks wait for rounds, and then read the result that they are given ("latest"); a round for
 *                              which all ranks wait is written over the newest result
 *   -DPINS                     so many ranks at once pin the entry that they read ("latest"), and the ring has as many
 *                              more entries; each rank pins the newest round when it last looked, as a request would
 *
 * Checked:
 *   agreement   a result that is taken is whole and of the round that it was looked up for; a round's chunks are all
 *               moved before it is published, each once, and into its own entry
 *   no reuse    WAITS: the result that a rank was given is there until a newer one is complete; KEPT: an entry does not
 *               change while a rank still needs it; PINS: nor while it is pinned
 *   room        PINS: a pin makes a writer pick again at most once, so that a pick ends; and if all ranks may pin, it
 *               finds an entry
 *
 * With -D and one of these, the protocol is broken on purpose, and has to be found broken (tests/model/check --mutants):
 * NO_SECOND_LOOK, NOT_MARKED, KEPT_REUSED, TICKETS_OF_ANY_ROUND, PINS_OVERLOOKED, PINNED_UNSEEN, PICKED_AGAIN,
 * NO_ROOM_FOR_PINS, NOT_ALL_WAIT.
 *
 * Memory is sequentially consistent here; the fences and the orders that make it so are argued in board.c.
 */
#ifndef N
#define N 2
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef ENTRIES
#if !defined(PINS)
#define ENTRIES 2               /* the fewest: the newest result, and the one being written */
#elif defined(NO_ROOM_FOR_PINS)
#define ENTRIES (1 + PINS)
#else
#define ENTRIES (2 + PINS)
#endif
#endif
#define CHUNKS 2

#define STEP(name)              /* what follows stands for the access after PP_STEP("name") */

#define OPEN 0
#define TAKING 1
#define MOVING 2

#define COMPLETE(round) (2 * (round) + 2)
#define WRITTEN(round)  (2 * (round) + 1)

/* The turn: one word. */
byte round, phase;

/* Tickets: one word; and the chunks not finished.  `entry` is the plan, which ranks with a ticket read. */
byte ticket_round, first, end, unfinished;
byte entry;

/* The ring: sequence numbers; and of which round, plus 1, the two chunks of the data are. */
byte sequence[ENTRIES], front[ENTRIES], back[ENTRIES];

#ifdef KEPT
byte absorbed[N];               /* of rounds before this one the rank needs no entry any more */
#endif

#ifdef WAITS
byte waits[N];                  /* 1 + the round that the rank waits for, or once waited for; 0: none */
#endif


#ifdef PINS
byte pins;                      /* ranks that have one, or try to */
byte pinned[N];                 /* 1 + a round whose entry the rank reads in place; 0: none */
bit  in_the_way[N];             /* ghost: a writer has picked again because of the rank's pin */
#endif

/* ---- writing ----------------------------------------------------------------------------------------------- */

/* May the entry be overwritten?  Not that of the newest result, unless all ranks have been given it. */
#define ROUND_OF(index) ((sequence[index] - 1) / 2)
#ifdef WAITS
#define SPARED(index) (sequence[index] && ROUND_OF(index) + spares >= at)
#else
#define SPARED(index) (sequence[index] && ROUND_OF(index) + 1 >= at)
#endif

#ifdef PINS
/* One rank after the other; `seen` is 1 + the rank that has pinned the round, or 0. */
inline look_at_pins(read_in)
{
    if
    :: atomic { pins == 0 -> STEP(pick) seen = 0 }
    :: atomic { pins > 0 -> STEP(pick) k = 0 };
       do
       :: atomic {
              STEP(pick)
              if
              :: pinned[k] == (read_in) + 1 -> seen = k + 1; k = 0; break
              :: else -> k++
              fi;
              if
              :: k == N -> seen = 0; k = 0; break
              :: else
              fi
          }
       od
    fi
}

/* Looks through the entries, from any of them on, for one that no rank has pinned; marks it, and looks once more. */
inline pick()
{
    do
    :: atomic { STEP(pick) left = ENTRIES; select(found : 0 .. ENTRIES - 1) };
       do
       :: atomic { left == 0 -> found = ENTRIES; break }
       :: atomic { left && sequence[found] && SPARED(found) -> left--; found = (found + 1) % ENTRIES }
       :: atomic { left && !sequence[found] -> left = 0; break }
       :: atomic { left && sequence[found] && !SPARED(found) -> skip };
#ifndef PICKED_AGAIN
          look_at_pins(ROUND_OF(found));
#endif
          if
          :: atomic { !seen -> left = 0; break }
          :: atomic { seen -> left--; seen = 0; found = (found + 1) % ENTRIES }
          fi
       od;
       if
       :: atomic { found == ENTRIES -> assert(PINS < N); break }
       :: atomic { found < ENTRIES -> STEP(pick) before = sequence[found]; sequence[found] = WRITTEN(at) };
#ifndef PINS_OVERLOOKED
          if
          :: before -> look_at_pins((before - 1) / 2)
          :: else
          fi;
#endif
          if
          :: atomic { !seen -> before = 0; break }
          :: atomic {
                 seen ->
                 STEP(pick)
                 sequence[found] = before;
                 assert(!in_the_way[seen - 1]);
                 in_the_way[seen - 1] = (pinned[seen - 1] == (before - 1) / 2 + 1);
                 seen = 0; before = 0
             }
          fi
       fi
    od
}
#else
/* An entry, which is marked as being written; `found` is ENTRIES if all are needed. */
inline pick()
{
#ifdef KEPT
    least = absorbed[0]; k = 1;     /* one rank after the other */
    do
    :: atomic {
           k < N ->
           STEP(pick)
           if
           :: absorbed[k] < least -> least = absorbed[k]
           :: else
           fi;
           k++
       }
    :: atomic { k == N -> k = 0; break }
    od;
#ifdef KEPT_REUSED
    least = at;
#endif
#endif
#ifdef WAITS
    do                              /* one rank after the other */
    :: atomic { k < N && waits[k] == at + 1 -> STEP(decide) k++ }
    :: atomic { k < N && waits[k] != at + 1 -> STEP(decide) k = 0; spares = 1; break }
    :: atomic { k == N -> k = 0; break }
    od;
#ifdef NOT_ALL_WAIT
    spares = 0;
#endif
#endif
    atomic {
        STEP(pick)
        found = 0;
        do
        :: found < ENTRIES -> found++       /* any that may be overwritten, or none */
#ifdef KEPT
        :: found < ENTRIES && !(sequence[found] && (SPARED(found) || ROUND_OF(found) >= least)) -> break
#else
        :: found < ENTRIES && !SPARED(found) -> break
#endif
        :: found == ENTRIES -> break
        od;
#ifdef KEPT
        least = 0;
#endif
#ifdef WAITS
        spares = 0;
#endif
        if
#ifndef NOT_MARKED
        :: found < ENTRIES -> sequence[found] = WRITTEN(at)
#endif
        :: else
        fi
    }
}
#endif

inline begin_round()
{
    atomic { round < ROUNDS && phase == OPEN -> STEP(claim) at = round; phase = TAKING };
    pick();
    if
    :: atomic { found == ENTRIES -> STEP(release) phase = OPEN }
    :: atomic { found < ENTRIES -> STEP(hand_out) entry = found };
       atomic { STEP(hand_out) ticket_round = at; first = 0; end = CHUNKS; unfinished = CHUNKS };
       atomic { STEP(hand_out) phase = MOVING }
    fi;
    atomic { at = 0; found = 0 }
}

#ifdef TICKETS_OF_ANY_ROUND
#define TICKET (first < end)
#else
#define TICKET (ticket_round == at && first < end)
#endif


/* One chunk: ranks with an even index take from the front. */
inline help()
{
    atomic { phase == MOVING -> STEP(look) at = round };
    if
    :: atomic { !TICKET -> STEP(ticket) at = 0 }
    :: atomic {
           TICKET ->
           STEP(ticket)
           if
           :: _pid % 2 == 0 -> k = first; first++
           :: else -> end--; k = end
           fi
       };
       atomic {
           if
           :: k == 0 -> assert(front[entry] != at + 1); front[entry] = at + 1
           :: else -> assert(back[entry] != at + 1); back[entry] = at + 1
           fi
       };
       k = 0;
       atomic { STEP(finish) unfinished--; last = (unfinished == 0) };
       if
       :: atomic { !last -> at = 0 }
       :: atomic {
              last ->
              STEP(publish)
              assert(round == at && phase == MOVING);
              assert(front[entry] == at + 1 && back[entry] == at + 1);
              sequence[entry] = COMPLETE(at)
          };
          atomic { STEP(publish) round = at + 1; phase = OPEN; ticket_round = 0; first = 0; end = 0; at = 0; last = 0 }
       fi
    fi
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

/* Round `at`, which is complete: looks for its entry, copies, and compares. */
inline read()
{
    found = 0;
    do
    :: atomic { found < ENTRIES && sequence[found] != COMPLETE(at) -> STEP(read) found++ }
    :: atomic { found == ENTRIES || sequence[found] == COMPLETE(at) -> STEP(read) break }
    od;
    if
    :: found == ENTRIES ->
#ifdef KEPT
       assert(false)
#elif defined(WAITS)
       assert(round > at + 1)
#else
       skip
#endif
    :: else ->
       whole = (front[found] == at + 1);
       whole = whole && (back[found] == at + 1);
       atomic {
           STEP(read)
#ifdef NO_SECOND_LOOK
           assert(whole)
#else
           assert(whole || sequence[found] != COMPLETE(at));
#endif
#ifdef WAITS
           assert(sequence[found] == COMPLETE(at) || round > at + 1);
#endif
#ifdef KEPT
           assert(sequence[found] == COMPLETE(at))
#endif
       }
    fi;
    atomic {
        found = 0; at = 0; whole = 0
    }
}

#ifdef PINS
inline unpin()
{
    atomic { STEP(pin) pinned[_pid] = 0; in_the_way[_pid] = 0 };
    atomic { STEP(pin) pins--; found = 0; at = 0 }
}

/* Where it lies, if the entry is still there: `viewed` is 1 + the entry.  The rank goes on with other things then. */
inline view()
{
    atomic {
        STEP(read)
        found = 0;
        do
        :: found < ENTRIES && sequence[found] != COMPLETE(at) -> found++
        :: else -> break
        od
    };
    if
    :: atomic { found == ENTRIES -> found = 0; at = 0 }
    :: atomic { found < ENTRIES -> STEP(pin) pins++; last = (pins <= PINS) };
       if
       :: last ->
           atomic { STEP(pin) pinned[_pid] = at + 1 };
           atomic {
               STEP(pin)
#ifdef PINNED_UNSEEN
               whole = 1;
#else
               whole = (sequence[found] == COMPLETE(at));
#endif
               last = 0
           }
       :: else
       fi;
       if
       :: atomic { whole -> viewed = found + 1; whole = 0; found = 0; at = 0 }
       :: atomic { !whole -> skip }; unpin()
       fi
    fi
}

inline end_view()
{
    assert(front[viewed - 1] == pinned[_pid] && back[viewed - 1] == pinned[_pid]);
    viewed = 0
}
#endif

active [N] proctype rank()
{
    byte at, k, found, least, given;
    bit  last, whole;
#ifdef WAITS
    byte spares;
#endif
#ifdef PINS
    byte seen, left, before, newest, viewed;
#endif
#ifndef KEPT
end_of_rounds:
#endif
    do
    :: begin_round()
    :: help()
#ifdef KEPT
    :: atomic { given < round -> STEP(look) at = given };
       read();
       atomic { STEP(say) given++; absorbed[_pid] = given }
    :: atomic { given == ROUNDS -> break }
#elif defined(WAITS)
    /* Until the rank has read its result, its word says that it waits for a round that is over. */
    :: atomic { !given && round < ROUNDS -> STEP(link) given = 1; waits[_pid] = round + 1 }
    :: atomic { given && round >= waits[_pid] -> STEP(look) at = round - 1 };
       read();
       given = 0
#elif defined(PINS)
    :: atomic { !viewed && newest < round -> STEP(look) newest = round }
    :: atomic { !viewed && newest > 0 -> at = newest - 1 };
       view()
    :: atomic { viewed -> end_view() };
       unpin()
#else
    :: atomic { round > 0 -> STEP(look) select(at : 0 .. round - 1) };
       read()
#endif
    od
}
