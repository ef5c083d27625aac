/*
 * between.pml - the rounds of a node among several (csrc/coll/rounds/leader.c, and csrc/node/board.c), for spin: how the
 * leader of a round is told, how a round is announced to the other nodes, taken to them and brought back, and how ranks
 * add to their parts meanwhile.
 * The node has two ranks, which lead in turn.  The other nodes are one process.  It may bring a round about, also while
 * the round before is still away here, and it answers the node's part at any time.
 *
 *   -DSTARTS           Starts that each rank makes
 *   -DCALLS            rounds that other nodes may bring about
 *   -DFULL             both ranks must be ready, or have left; without it Solo, and a rank may compute for ever after any
 *                      Start: the others must need only its progress thread
 *   -DKEPT             rounds stop when a rank was not given ENTRIES of them (deliver="sum", "each")
 *   -DCHUNKS           a round's data are one chunk, which any rank that is there moves; without it the leader does
 *   -DASKS             a message from other nodes brings no round about, but gives the leader a reason to (a draw handed
 *                      on, ranks counted there)
 *
 * Checked, in every order of the steps:
 *   conservation       each Start is in one round, or is pending; the node gives its part once in each round
 *   announced once     the other nodes hear of each round from one rank of the node, and do not answer before
 *   agreement          a round is claimed, taken, sent away, brought back and published as the one that the turn shows
 *   no reuse           no part is changed while a round takes or reads it: none is published while a rank merges
 *   no lost wake-up    no rank that waits for its round sleeps for ever, and no other node waits for ever (a deadlock);
 *                      a rank that only serves may sleep, and is woken only for its own tasks
 *
 * Left out: several handles, flushes, max_lag, and the leader's latches, which change nothing here: a rank that is ready
 * stays so until its round is taken.  Messages are always heard, because the ranks look for messages of other nodes at
 * intervals; the counter and the wake-up between ranks have no such safety net.
 *
 * Two words tell of other nodes: `activated` and `expects`.  Without ASKS the second says nothing that the first does not,
 * so only with ASKS a rank is found that overlooks it.
 *
 * With -D and one of these, the protocol is broken on purpose, and has to be found broken (tests/model/check --mutants):
 * NOT_TOLD, LOOKS_FIRST, MERGES_IGNORED, MERGED_UNTOLD, NEXT_UNTOLD, EXPECTED_UNTOLD, GATHERED_UNTOLD, NO_NEWS,
 * NOT_COMPARED, ANNOUNCED_AGAIN, UNANNOUNCED.
 *
 * Memory is sequentially consistent here.
 */
#define N 2
#ifndef STARTS
#define STARTS 2
#endif
#ifndef CALLS
#define CALLS 1
#endif
#ifndef ENTRIES
#define ENTRIES 1
#endif

#define STEP(name)              /* what follows stands for the access after PP_STEP("name") */

#define OPEN 0
#define TAKING 1
#define MOVING 2
#define AWAY 3

/* How a rank sleeps: a WAITER is woken by the end of its round, a SERVER by a task for its progress thread. */
#define AWAKE 0
#define WAITER 1
#define SERVER 2

#define LEADER(of) ((of) % N)

/* The turn: one word. */
byte round, phase;
bit  news, merges;

/* Stations, of one part. */
bit  pending[N];
byte waits[N];                  /* 1 + the round that the rank waits for, or once waited for; 0: none */
byte taken[N];                  /* 1 + the last round that took the part */
byte expects[N];                /* 1 + the last round that other nodes have told it about */
byte activated[N];              /* 1 + the last round, of those it leads, that is on */
#ifdef KEPT
byte absorbed[N];               /* of rounds before this one the rank needs no entry of the ring */
#endif

/* The board. */
bit  told[N];                   /* the counter of reasons to look is not as the rank has last seen it */
#ifdef CHUNKS
bit  ticket;
#endif

/* Presence and sleep. */
byte away;
bit  out[N];
byte asleep[N];
bit  woken[N];

/* Messages under way, 1 + their round: to and from the other nodes. */
byte called[N], answered[N], give;
byte announced;                 /* to the other nodes */

/* Ghosts. */
byte held[N];                   /* Starts in a part that is pending */
byte took[N];                   /* Starts of a rank that rounds have taken */
bit  reading[N];                /* the round under way reads the part */
bit  adding[N];                 /* the rank adds to its part */

#define READ(rank) (round + (phase == AWAY) >= taken[rank])
#define OVER (waits[_pid] <= done)
#ifdef CHUNKS
#define WORK (phase == MOVING && ticket)
#else
#define WORK false
#endif
#define HEARD (called[_pid] || answered[_pid])

/* ---- telling and waking ------------------------------------------------------------------------------------ */

inline tell(leader)
{
    atomic { STEP(tell) told[0] = 1; told[1] = 1 };
    atomic {
        STEP(wake)
        if
        :: leader == _pid -> changed = 1
        :: leader != _pid && asleep[leader] -> woken[leader] = 1
        :: else
        fi
    }
}

inline wake_waiters()
{
    atomic {
        STEP(wake)
        k = 1 - _pid;
        if
        :: waits[k] && waits[k] <= at + 1 && asleep[k] == WAITER -> woken[k] = 1
        :: else
        fi;
        k = 0
    }
}

/* ---- the rules; the answer is in `yes` ----------------------------------------------------------------------- */

inline anybody_waits()
{
    atomic { STEP(decide) yes = (waits[0] == at + 1) };
    if
    :: !yes -> atomic { STEP(decide) yes = (waits[1] == at + 1) }
    :: else
    fi
}

#ifdef FULL
inline permits()
{
    atomic { STEP(decide) seen = (away > 0); yes = 1 };
    do
    :: atomic {
           STEP(decide)
           yes = yes && ((pending[k] && waits[k] == at + 1) || (seen && out[k]));
           k++;
           if
           :: !yes || k == N -> k = 0; seen = 0; break
           :: else
           fi
       }
    od
}
#else
inline permits() { yes = 1 }
#endif

/* ---- announcing -------------------------------------------------------------------------------------------------- */

/* Says that the round is on; the first rank that says so announces it. */
inline say_activated(leader)
{
    atomic { STEP(look) yes = (activated[leader] <= at) };
    if
    :: yes ->
        atomic {
            STEP(activate)
#ifndef NOT_COMPARED
            yes = (activated[leader] <= at);
#endif
            activated[leader] = (yes -> at + 1 : activated[leader])
        }
    :: else
    fi;
#ifdef ANNOUNCED_AGAIN
    yes = yes || leader == _pid;
#endif
    if
    :: yes -> atomic { assert(announced != at + 1); announced = at + 1; yes = 0 }
    :: else
    fi
}

/* By a rank that does not lead the round; it may or may not find the leader asleep. */
inline announce()
{
    atomic { STEP(decide) yes = (waits[_pid] == at + 1) };
    if
    :: yes -> say_activated(LEADER(at))
    :: atomic { yes -> yes = 0 }
    :: !yes
    fi
}

/* Whether the leader of the open round has something to do about it. */
inline is_wanted()
{
    if
    :: atomic { activated[LEADER(at)] == at + 1 -> STEP(look) skip }; permits()
    :: atomic { activated[LEADER(at)] != at + 1 -> STEP(look) skip };
#ifdef EXPECTED_UNTOLD
       yes = 0;
#else
       atomic { STEP(look) yes = (expects[LEADER(at)] == at + 1) };
#endif
       if
       :: !yes -> anybody_waits()
       :: else
       fi
    fi
}

/* ---- leading a round ------------------------------------------------------------------------------------------ */

inline release()
{
    atomic {
        STEP(release)
        assert(round == at && phase == TAKING);
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

#ifdef KEPT
/* Is there an entry whose round all ranks have been given? */
inline pick()
{
    do
    :: atomic {
           STEP(pick)
           if
           :: at >= ENTRIES && absorbed[k] + ENTRIES <= at -> yes = 0; k = 0; break
           :: else -> k++
           fi;
           if
           :: k == N -> k = 0; break
           :: else
           fi
       }
    od
}
#else
inline pick() { skip }
#endif

inline take_all()
{
    do
    :: atomic { k < N && !pending[k] -> STEP(take) k++ }
    :: atomic { k < N && pending[k] -> STEP(take) taken[k] = at + 1 };
       atomic {
           STEP(take)
           assert(!adding[k]);
           took[k] = took[k] + held[k]; held[k] = 0; pending[k] = 0; reading[k] = 1;
           k++
       }
    :: atomic { k == N -> k = 0; break }
    od
}

inline send_away(from)
{
    atomic {
        STEP(away)
        assert(round == at && phase == from);
        phase = AWAY; news = 0; merges = 0; reading[0] = 0; reading[1] = 0
    }
}

/* What was taken is moved, and then sent away. */
inline gather()
{
    take_all();
#ifdef CHUNKS
    if
    :: reading[0] || reading[1] ->
        atomic { STEP(hand_out) ticket = 1 };
        atomic { STEP(hand_out) assert(round == at && phase == TAKING); phase = MOVING; news = 0 };
        wake_waiters()
    :: else -> send_away(TAKING)
    fi
#else
    send_away(TAKING)
#endif
}

#ifdef CHUNKS
inline work()
{
    if
    :: atomic { WORK -> STEP(ticket) ticket = 0; at = round };
       send_away(MOVING);
#ifndef GATHERED_UNTOLD
       tell(LEADER(at));
#endif
       changed = 1; rank_news = 1
    :: atomic { !WORK -> STEP(ticket) skip }
    fi;
    at = 0
}
#endif

inline claim_and_gather()
{
    atomic {
        STEP(claim)
        if
        :: round == at && phase == OPEN -> phase = TAKING; yes = 1
        :: else -> yes = 0; again = 1
        fi
    };
    do
    :: atomic { !yes -> break }
    :: atomic { yes -> skip };
       pick();
       if
       :: atomic { yes -> yes = 0; again = 1 }; gather()
       :: atomic { !yes -> skip }; release()
       fi
    od
}

inline publish()
{
    atomic {
        STEP(back)
        assert(round == at && phase == AWAY);
        yes = 1;
        if
#ifndef MERGES_IGNORED
        :: merges -> news = 1; yes = 0
#endif
        :: else -> phase = TAKING; merges = 0
        fi
    };
    if
    :: atomic { yes -> yes = 0 };
       atomic {
           STEP(publish)
           assert(round == at && phase == TAKING && !adding[0] && !adding[1]);
           round++; phase = OPEN; news = 0;
           /* Words about a complete round mean the same as 0; as 0 they make fewer states. */
           taken[0] = 0; taken[1] = 0; act = 0; asked = 0; gave = 0; got = 0;
           /* Only a word about the round before: this leader has not just seen that round to be on. */
           activated[1 - _pid] = (activated[1 - _pid] == at -> 0 : activated[1 - _pid]);
           expects[_pid] = (expects[_pid] == round -> 0 : expects[_pid]);
#ifdef NEXT_UNTOLD
           done = round
#else
           again = 1
#endif
       };
       wake_waiters()
    :: atomic { !yes -> skip }       /* the rank that merges tells the leader when it has finished */
    fi
}

inline lead()
{
    if
    :: act != at + 1 ->
        atomic { STEP(look) yes = (activated[_pid] == at + 1) };
        if
        :: !yes -> anybody_waits()
        :: else
        fi;
        yes = yes || asked == at + 1;
        if
        :: yes ->
            act = at + 1;
#ifdef UNANNOUNCED
            atomic { STEP(activate) activated[_pid] = at + 1 }
#else
            say_activated(_pid)
#endif
        :: else
        fi
    :: else
    fi;
    yes = 0;
    if
    :: atomic { shown == OPEN && act == at + 1 -> skip };
       permits();
       if
       :: yes -> claim_and_gather()
       :: else
       fi
    :: atomic { shown == AWAY && gave != at + 1 -> assert(give != at + 1); gave = at + 1; give = at + 1 }
    :: atomic { shown == AWAY && gave == at + 1 && got == at + 1 -> skip };
       publish()
    :: else
    fi;
    yes = 0
}

/* Goes on with the open round, or tells its leader; `rank_news`: something has changed since the last look. */
inline look()
{
    do
    :: atomic {
           STEP(look)
           at = round; shown = phase; again = 0;
           if
           :: done != at -> done = at; rank_news = 1
           :: else
           fi
       };
       if
       :: LEADER(at) == _pid -> lead()
       :: LEADER(at) != _pid && rank_news && shown == OPEN ->
           announce();
           is_wanted();
           if
           :: yes ->
#ifndef NOT_TOLD
              tell(LEADER(at));
#endif
              yes = 0
           :: else
           fi
#ifndef NO_NEWS
       :: LEADER(at) != _pid && rank_news && shown == TAKING ->
           atomic {
               STEP(news)
               if
               :: round == at && phase == TAKING -> news = 1
               :: else -> again = 1
               fi
           }
#endif
       :: else
       fi;
       if
       :: atomic { again -> again = 0 }
       :: atomic { !again -> changed = 0; rank_news = 0; at = 0; shown = 0; break }
       fi
    od
}

/* ---- Start ---------------------------------------------------------------------------------------------------- */

/* Adds to the pending part: while a round is away, or no rank has claimed it. */
inline merge()
{
    atomic { phase == OPEN || (phase == AWAY && !merges) -> STEP(look) at = round; shown = phase };
    if
    :: atomic { round == at && phase == shown && !merges && shown == OPEN -> STEP(claim) phase = TAKING; yes = 1 }
    :: atomic { round == at && phase == shown && !merges && shown == AWAY -> STEP(merge) merges = 1; yes = 1 }
    :: atomic { round != at || phase != shown || merges -> skip }
    fi;
    if
    :: atomic { yes -> adding[_pid] = 1; yes = 0 };
       atomic { STEP(merge) started = pending[_pid] };
       if
       :: started ->
           atomic {
               STEP(say)
               assert(pending[_pid] && !reading[_pid]);
               held[_pid]++;
               waits[_pid] = (at > given -> 0 : at + 1)
           }
       :: else
       fi;
       adding[_pid] = 0;
       if
       :: atomic { shown == AWAY -> STEP(merge) yes = news; merges = 0; news = 0 };
          if
          :: atomic { yes -> yes = 0 };
#ifndef MERGED_UNTOLD
             tell(LEADER(at))
#endif
          :: atomic { !yes -> skip }
          fi
       :: atomic { shown == OPEN -> skip };
          do
          :: release();
             if
             :: yes
             :: else -> break
             fi
          od
       fi
    :: atomic { !yes -> skip }
    fi;
    atomic { at = 0; shown = 0 }
}

/* The part is free again when the round that took it has read it. */
inline forget_read_part()
{
    atomic { STEP(link) seen = pending[_pid] };
    if
    :: !seen ->
        atomic { STEP(link) k = taken[_pid] };
        atomic {
            STEP(look)
            if
            :: round + (phase == AWAY) >= k -> linked = 0
            :: else
            fi;
            k = 0
        }
    :: else
    fi;
    seen = 0
}

inline start()
{
    do
    :: started || !linked -> break
    :: !started && linked ->
        forget_read_part();
        if
        :: linked ->
            if
            :: merge()
#ifdef CHUNKS
            :: WORK -> work()
#endif
            :: !pending[_pid] && READ(_pid)
            fi
        :: else
        fi
    od;
    if
    :: !started ->
        atomic { STEP(look) at = round };
        atomic {
            STEP(link)
            assert(!pending[_pid] && !reading[_pid]);
            pending[_pid] = 1; held[_pid] = 1; linked = 1;
            waits[_pid] = (at > given -> 0 : at + 1);
            at = 0
        }
    :: else
    fi;
    atomic { started = 0; count++; assert(took[_pid] + held[_pid] == count) }
}

/* ---- the processes ---------------------------------------------------------------------------------------------- */

#define COMPUTES 0
#define WAITS 1
#define STAYS 2                 /* away: its progress thread serves to the end */

inline say_asleep()
{
    asleep[_pid] = (doing == WAITS -> WAITER : SERVER)
}

/* A message: about a round to come, then the answer to the node's part. */
inline hear()
{
    if
    :: called[_pid] ->
#ifdef ASKS
        atomic { asked = called[_pid]; called[_pid] = 0 };
        atomic { STEP(expect) expects[_pid] = asked }
#else
        atomic { act = called[_pid]; called[_pid] = 0; at = act - 1 };
        say_activated(_pid);
        atomic { STEP(expect) expects[_pid] = act; at = 0 }
#endif
    :: atomic { !called[_pid] && answered[_pid] -> got = answered[_pid]; answered[_pid] = 0 }
    fi
}

active [N] proctype rank()
{
    byte at, k, done, given, count, act, gave, got, asked, shown, doing;
    bit  yes, again, seen, linked, started, outstanding, changed, rank_news;
    do
    :: changed -> look()
    :: atomic { !changed && doing == COMPUTES && !outstanding && count < STARTS -> skip };
       start();
       atomic { outstanding = 1; changed = 1; rank_news = 1 }
    :: atomic { !changed && doing == COMPUTES && outstanding -> doing = WAITS }
#ifdef KEPT
    :: atomic {
           !changed && doing == WAITS && OVER ->
           STEP(say)
           given++; absorbed[_pid] = given; changed = 1; rank_news = 1;
#else
    :: atomic {
           !changed && doing == WAITS && OVER ->
           given = done;
#endif
           waits[_pid] = 0; outstanding = 0; doing = COMPUTES
       }
#if defined(FULL) || defined(KEPT)
    :: atomic { !changed && doing == COMPUTES && !outstanding && count == STARTS -> STEP(leave) away++; doing = STAYS };
       atomic { STEP(leave) out[_pid] = 1 };
#ifdef KEPT
       atomic { STEP(say) absorbed[_pid] = 255 };
#endif
       atomic { changed = 1; rank_news = 1 }
#else
    :: atomic { !changed && doing == COMPUTES -> doing = STAYS }
#endif
#ifdef CHUNKS
    :: atomic { !changed && WORK -> skip }; work()
#endif
    :: atomic { !changed && !WORK && !(doing == WAITS && OVER) -> skip };
       /* Says that it sleeps, looks, sleeps; a rank that has news for it leaves them first, and then looks. */
#ifndef LOOKS_FIRST
       say_asleep();
#endif
       atomic { STEP(look) at = round; yes = (HEARD || round != done) };
       if
       :: !yes && LEADER(at) == _pid -> atomic { STEP(look) yes = told[_pid]; told[_pid] = 0; rank_news = yes }
       :: else
       fi;
#ifdef CHUNKS
       if
       :: !yes && doing == WAITS -> atomic { STEP(look) yes = WORK }
       :: else
       fi;
#endif
       at = 0;
#ifdef LOOKS_FIRST
       say_asleep();
#endif
       if
       :: yes ->
           if
           :: HEARD -> hear()
           :: else
           fi;
           atomic { changed = 1; yes = 0 }
       :: else ->
           if
           :: doing == COMPUTES
           :: doing == WAITS -> (woken[_pid] || HEARD)
           :: doing == STAYS ->
end_stays:     (woken[_pid] || HEARD)
           fi
       fi;
       atomic { asleep[_pid] = AWAKE; woken[_pid] = 0 }
    od
}

#define DUE (give == at + 1 && announced == at + 1)

/* The other nodes: in the same round, or one ahead. */
active proctype others()
{
    byte at, calls;
end_others:
    do
    :: atomic { DUE -> answered[LEADER(at)] = at + 1; at++ }
    :: atomic { calls < CALLS -> called[LEADER(at)] = at + 1; calls++ };
       atomic { DUE -> answered[LEADER(at)] = at + 1; at++ }
    od
}
