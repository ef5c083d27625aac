/*
 * slot.pml - what is added to a rank's model in gossip (csrc/coll/gossip), for spin: the two slots of one rank, which adds
 * to them without a lock, while groups take them.  The machine (csrc/groups) lets groups of one rank run one after the
 * other; here any may begin when none runs: more than the code ever does.
 *
 *   -DSTARTS, -DGROUPS         Starts of the rank; groups of each of two others
 *
 * Checked: when all is over, the model and what waits in the open slot have each add once, and both words of it.
 *
 * With -D and one of these, the protocol is broken on purpose, and has to be found broken (tests/model/check --mutants):
 * TAKEN_WHILE_ADDED, WRITTEN_OVER, TAKEN_TWICE, NOT_TURNED.
 */
#ifndef STARTS
#define STARTS 3
#endif
#ifndef GROUPS
#define GROUPS 2
#endif

#define STEP(name)              /* what follows stands for the access after PP_STEP("name") */

/* A slot, and the model, are two words: writing them is not atomic. */
byte front[2], back[2], model_front, model_back;
bit  filled, open, running;     /* under the node's lock, which is `atomic` here */
byte over;

#define EACH ((1 << STARTS) - 1)

inline end()
{
    atomic {
        over++;
        if
        :: over == 3 ->
            assert(model_front + (filled -> front[open] : 0) == EACH);
            assert(model_back + (filled -> back[open] : 0) == EACH)
        :: else
        fi
    }
}

active proctype rank()
{
    byte start;
    bit  slot, has;
    for (start : 0 .. STARTS - 1) {
        atomic {
            has = filled;
            slot = open;
#ifndef TAKEN_WHILE_ADDED
            filled = 0
#endif
        }
#ifdef WRITTEN_OVER
        has = 0;
#endif
        STEP(add)
        front[slot] = (has -> front[slot] : 0) + (1 << start);
        back[slot] = (has -> back[slot] : 0) + (1 << start);
        STEP(add)
        filled = 1
    }
    end()
}

active [2] proctype groups()
{
    byte group;
    bit  slot, takes;
    for (group : 1 .. GROUPS) {
        atomic {
            !running;
            running = 1;
            takes = filled;
            slot = open;
#ifndef TAKEN_TWICE
            filled = 0;
#endif
#ifndef NOT_TURNED
            open = (takes -> 1 - open : open)
#endif
        }
        if
        :: takes ->
            model_front = model_front + front[slot];
            model_back = model_back + back[slot]
        :: else
        fi;
        running = 0
    }
    end()
}
