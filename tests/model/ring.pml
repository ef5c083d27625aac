/*
 * ring.pml - the chunks of a round and the ring of results (csrc/node/board.c), for spin: who moves which chunk into
 * which entry, and who reads it meanwhile.  How rounds come about is in board.pml; here any rank may begin one whenever
 * none is under way, may help with it whenever it looks, and may read whenever it likes: more than the code ever does.
 *
 *   -DN, -DROUNDS, -DENTRIES   ranks, rounds, entries of the ring
 *   -DKEPT                     every rank reads every round, in order, and its entry is kept until then ("sum", "each");
 *                              without it any round that is still there ("latest")
 *
 * Checked:
 *   agreement   a result that is taken is whole and of the round that it was looked up for; a round's chunks are all
 *               moved before it is published, each once, and into its own entry
 *   no reuse    KEPT: an entry does not change while somebody still needs it
 *
 * With -D and one of these, the protocol is broken on purpose, and has to be found broken (tests/model/check --mutants):
 * NO_SECOND_LOOK, NOT_MARKED, KEPT_REUSED, TICKETS_OF_ANY_ROUND.
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
#define ENTRIES 2               /* the fewest: the newest result, and the one being written */
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

/* Tickets: one word; and the chunks not finished.  `entry` is the plan, read by whoever has a ticket. */
byte ticket_round, first, end, unfinished;
byte entry;

/* The ring: sequence numbers; and of which round, plus 1, the two chunks of the data are. */
byte sequence[ENTRIES], front[ENTRIES], back[ENTRIES];

#ifdef KEPT
byte absorbed[N];               /* of rounds before this one the rank needs no entry any more */
#endif

/* ---- writing ----------------------------------------------------------------------------------------------- */

/* May the entry be overwritten?  Not the newest result. */
#define ROUND_OF(index) ((sequence[index] - 1) / 2)
#define SPARED(index) (sequence[index] && ROUND_OF(index) + 1 >= at)

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
        if
#ifndef NOT_MARKED
        :: found < ENTRIES -> sequence[found] = WRITTEN(at)
#endif
        :: else
        fi
    }
}

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
           fi;
           k = 0
       };
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
#ifdef KEPT
           assert(sequence[found] == COMPLETE(at))
#endif
       }
    fi;
    atomic { found = 0; at = 0; whole = 0 }
}

active [N] proctype rank()
{
    byte at, k, found, least, given;
    bit  last, whole;
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
#else
    :: atomic { round > 0 -> STEP(look) select(at : 0 .. round - 1) };
       read()
#endif
    od
}
