/*
 * queue.pml - the updates of queues in the memory of a node (csrc/coll/queues), for spin: two ranks, neighbours of each
 * other, with a ring of models each; and a Flush at the end.  Which updates are averaged when is csrc/queues' matter:
 * here it is the plainest that makes ranks read and write at the same time.
 *
 *   -DITERATIONS, -DMAX_IG     iterations of a rank; how far it may be ahead
 *   -DSKIPS                    rank 1 may jump when it is behind, and rank 0 does without its updates
 *   -DLEAVES                   rank 1 may leave while its request is outstanding, and is back after it
 *   -DDIES                     rank 1 dies at any moment
 *
 * Checked:
 *   whole       what is averaged is the whole update of its iteration
 *   kept        without LEAVES an update is there as long as anybody may read it
 *   heard       an update that was published is not taken for one that was omitted
 *   Flush       each reads what the other gives, before that goes on; and nobody waits for ever, also not for the dead
 *
 * With -D and one of these, the protocol is broken on purpose, and has to be found broken (tests/model/check --mutants):
 * UNCHECKED, NOT_MARKED, NO_ROOM, NO_ROOM_FOR_JUMPS, PUBLISHED_EARLY, LOOKS_FIRST, LEFT_LAST, NOT_ALL_READ,
 * COMES_FIRST, DEATH_UNSEEN.
 *
 * Memory is sequentially consistent here; mean.c has the fences that make it so for elements.
 */
#ifndef ITERATIONS
#define ITERATIONS 3
#endif
#ifndef MAX_IG
#define MAX_IG 1
#endif

#if defined(NO_ROOM)
#define RING MAX_IG
#elif defined(SKIPS) && !defined(NO_ROOM_FOR_JUMPS)
#define RING (MAX_IG + 2)
#else
#define RING (MAX_IG + 1)
#endif

#ifdef DEATH_UNSEEN
#define DEAD false
#else
#define DEAD dead
#endif

#define STEP(name)              /* what follows stands for the access after PP_STEP("name") */

/* Stations.  `published`, like tags, is 1 + an iteration. */
byte announced[2], published[2];
bit  left[2], came[2], all_read[2];
byte given[2];
/* Rings: tags; and of which iteration, plus 1, the two halves of a model are. */
byte tag[2 * RING], front[2 * RING], back[2 * RING];
bit  dead;
bit  sent[2 * ITERATIONS];      /* ghost: published */

#define AT(rank, i)   ((rank) * RING + (i) % RING)
#define OTHER         (1 - me)

inline overwrite()
{
#ifndef NOT_MARKED
    STEP(overwrite)
    tag[AT(me, i)] = 0;
#endif
    front[AT(me, i)] = i + 1;
    back[AT(me, i)] = i + 1;
    STEP(overwrite)
    tag[AT(me, i)] = i + 1
}

inline publish()
{
    atomic { STEP(publish) published[me] = i + 1; sent[me * ITERATIONS + i] = 1 }
}

#define SENT          sent[OTHER * ITERATIONS + due]

inline look_whether_gone() { atomic { gone = left[OTHER]; known = known || (gone && SENT) } }
inline look_at_published() { newest = published[OTHER] }

/* Until the update that is due is there (`has`), or is known to be omitted.  `known` is a ghost: it was published
   before what makes it count as omitted. */
inline look()
{
    do
    :: known = 0;
#ifndef LEFT_LAST
       STEP(look)
       look_whether_gone();
#endif
#ifdef LOOKS_FIRST
       look_at_published();
#endif
       STEP(look)
       atomic { told = announced[OTHER]; known = known || (told > due && SENT) };
#ifndef LOOKS_FIRST
       STEP(look)
       look_at_published();
#endif
#ifdef LEFT_LAST
       look_whether_gone();
#endif
       if
       :: newest > due -> STEP(look) has = (tag[AT(OTHER, due)] == due + 1); assert(has || was_away || !SENT); break
       :: newest <= due && (gone || told > due) -> assert(!known); break
       :: newest <= due && !gone && told <= due ->
              if
#ifdef SKIPS
              :: me == 0 -> break
#endif
              :: published[OTHER] != newest || announced[OTHER] != told || left[OTHER]      /* it sleeps until then */
              :: DEAD -> goto raises
              fi
       fi
    od
}

inline take()
{
    STEP(take)
    has = (tag[AT(OTHER, due)] == due + 1);
    assert(has || was_away);
    if
    :: has ->
       front_read = front[AT(OTHER, due)];
       back_read = back[AT(OTHER, due)];
       STEP(take)
#ifndef UNCHECKED
       has = (tag[AT(OTHER, due)] == due + 1);
       assert(has || was_away);
#endif
       assert(!has || (front_read == due + 1 && back_read == due + 1))
    :: else
    fi;
    has = 0; front_read = 0; back_read = 0
}

inline flush()
{
    STEP(leave)
    left[me] = 1;
#ifdef COMES_FIRST
    came[me] = 1;
#endif
    STEP(come)
    given[me] = 1;
    STEP(come)
    came[me] = 1;
    if
    :: STEP(look) came[OTHER]
    :: DEAD -> goto raises
    fi;
    assert(given[OTHER] == 1);
    STEP(come)
    all_read[me] = 1;
#ifndef NOT_ALL_READ
    if
    :: STEP(look) all_read[OTHER]
    :: DEAD -> goto raises
    fi;
#endif
    given[me] = 2               /* of the next one */
}

proctype rank(bit me)
{
    byte i, due, goal, told, newest, front_read, back_read;
    bit  has, gone, known, away, was_away;
    {
        do
        :: i < ITERATIONS ->
#ifdef PUBLISHED_EARLY
           publish();
#endif
           overwrite();
#ifndef PUBLISHED_EARLY
           publish();
#endif
           due = i;
           goal = i + 1;
#ifdef SKIPS
           if
           :: me == 1 -> told = announced[OTHER];
              if
              :: told > i + 1 -> due = told - 1; goal = told; STEP(announce) announced[me] = goal
              :: true
              fi
           :: else
           fi;
#endif
#ifdef LEAVES
           if
           :: me == 1 -> STEP(leave) left[me] = 1; away = 1; was_away = 1
           :: true
           fi;
#endif
           look();
           if
           :: has -> take()
           :: else
           fi;
           if
           :: away ->           /* where the slowest out-neighbour is */
              STEP(look)
              told = announced[OTHER];
              goal = (told > goal -> told : goal)
           :: else ->
              if
              :: STEP(look) left[OTHER] || announced[OTHER] + MAX_IG >= goal
              :: DEAD -> goto raises
              fi
           fi;
           STEP(announce)
           announced[me] = goal;
           if
           :: away -> STEP(leave) left[me] = 0; away = 0
           :: else
           fi;
           i = goal
        :: else -> break
        od;
        flush();
raises:
        skip
    } unless { dead && me == 1 }
}

init
{
    atomic { run rank(0); run rank(1) }
#ifdef DIES
    dead = 1
#endif
}
