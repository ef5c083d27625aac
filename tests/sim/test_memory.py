"""Simulated ranks of one node, or several, which make their rounds in its memory."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
from fuzz.oracles import check
from fuzz.scenario import Phase, Scenario
from programs import name

from pypartial._core_sim import ffi, lib
from pypartial.policy import FirstOf, Full, Majority, Quorum, Solo
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.handle import CoreError
from pypartial.sim.world import World

# What was wrong once, as the fuzzer found it.
FOUND = {
    # Who had claimed a round went into a Drain of another handle, and nobody woke the waiters, who
    # were asleep, to move the data.
    "nobody moves the data": """{"ranks":7,"seed":3486737084,"handles":[{"count":15,"dtype":
        "float32","policy":"quorum:7","deliver":"each","max_lag":0,"pieces":2},{"count":4300,
        "dtype":"float64","average":"size"}],"phases":[{"steps":[3,4,4]},{"steps":[6],"hold":true}],
        "opened":2,"window":1,"timing":"skew","scale":2000,"together":true,"memory":[1000,
        20000]}""",
    # More Starts were late, one after the other, than a rank has parts.
    "all parts are pending": """{"ranks":8,"seed":1526801510,"handles":[{"count":29,"dtype":
        "float32","op":"max","policy":"quorum:8","deliver":"each","max_lag":0},{"count":16,
        "dtype":"float32","op":"max","policy":"first:4","max_lag":0}],"phases":[{"steps":[7,0,7]},{"steps":
        [9,4,6,9],"then":["free 1"]},{"steps":[6],"hold":true},{"steps":[5,6,3],
        "then":["flush 0"]}],
        "opened":2,"window":1,"timing":"heavy","together":true,"last_flush":false,
        "memory":[1000,100]}""",
    # A rank that had not noticed the end of its Flush was counted as inside the next one.
    "a flush that is over": """{"ranks":2,"seed":5,"handles":[{"count":4}],"phases":[{"steps":[0,
        4]},
        {"steps":[0,2,0,0]}],"latency":[1000,1000],"timing":"zero","scale":0,"memory":[50,
        20000]}""",
    # What it was ready for was forgotten when its request was dropped by a Flush.
    "ready and gone": """{"ranks":2,"seed":342477086,"handles":[
        {"count":4,"policy":"first:2"}],"phases":[{"steps":[1,2,0],"hold":true}],"latency":[1000,1000],"timing":"zero","scale":0,
        "memory":[1000,20000]}""",
    # Rounds while it was inside a Flush of another handle were counted as missed.
    "missed while it had left": """{"ranks":3,"seed":4,"handles":[{"count":6},{"count":6,"policy":
        "quorum:3","deliver":"sum","max_lag":0}],"phases":[{"steps":[0,0,1]},{"steps":[0],
        "then":["flush 0"]},{"steps":[1]}],"opened":2,"latency":[1000,1000],"timing":"zero",
        "scale":0,
        "memory":[1000,20000]}""",
    # Two nodes and more from here on. A handle was freed while operations of the round after its
    # last were about to fire.
    "freed too early": """{"ranks":5,"seed":2194154322,"handles":[{"count":11,"dtype":"int32",
        "policy":"quorum:5","deliver":"sum","max_lag":2},{"count":11,"dtype":"int32","op":"max",
        "policy":"quorum:5","deliver":"sum","max_lag":1,"pieces":3}],"phases":[{"steps":[1],
        "hold":true},{"steps":[7],"hold":true},{"steps":[4,2,0]}],"opened":2,"timing":"heavy",
        "scale":500000,"together":true,"last_flush":false,"memory":[1000,0,1]}""",
    # Nobody looked when a rank had made room for a result.
    "room that nobody sees": """{"ranks":5,"seed":5,"handles":[{"count":11,"dtype":"float32",
        "policy":"quorum:5","deliver":"each","max_lag":0}],"phases":[{"steps":[0,1,3]},{"steps":[2]},
        {"steps":[2,2,0,3],"hold":true}],"window":1,"latency":[1000,1000],"network":
        "L=3us,o=400ns,G=1ns,S=4K,jitter=20us,node=3,node.L=200ns,node.o=50ns","timing":"slow",
        "scale":60000,"together":true,"blocking":false,"extra":0.2,
        "memory":[300,1000,2]}""",
    # Who had brought a round about went into a Flush before its node gave its part.
    "initiator and gone": """{"ranks":8,"seed":2,"handles":[
        {"count":16,"policy":"first:7"}],"phases":[{"steps":[4],"hold":true}],"latency":[1,200000],"timing":"zero","scale":0,"blocking":false,
        "memory":[300,100,7]}""",
    # Two ranks, each the leader of one handle, told each other for ever that
    # they were inside a call.
    "no end of telling": """{"ranks":7,"seed":1908397014,"handles":[{"count":15,"dtype":"int32",
        "policy":"first:5","deliver":"sum","max_lag":0,"pieces":2},{"count":26,"dtype":"int32","op":"max","policy":
        "quorum:4","deliver":"sum","max_lag":0,"pieces":2}],"phases":[{"steps":[3],"then":
        ["flush 1"],"hold":true},{"steps":[5,1,0,7],"then":["flush 0"]}],"opened":2,"window":2,
        "timing":"zero","together":true,"late":0.5,"memory":[50,0,5]}""",
    # A leader that was about to go was told of a round, and its progress thread was not.
    "told and gone": """{"ranks":7,"seed":2609870120,"handles":[{"count":26,
        "policy":"quorum:7"}],
        "phases":[{"steps":[15,20]}],"latency":[1,200000],"timing":"skew",
        "memory":[1000,1000,5,1]}""",
    # What one rank of a node had reported of a round came after what another had of the next.
    "a late report": """{"ranks":5,"seed":511649820,"handles":[{"count":10,
        "policy":"quorum:4"}],
        "phases":[{"steps":[28]}],"latency":[1,200000],"memory":[50,100,4,1]}""",
    # On one node. Who had brought a round about went into a Flush during its grace period: when
    # that was over, those in a Flush looked at the round for ever.
    "ripe and not to be run": """{"ranks":8,"seed":1546579900,"handles":[{"count":16,"dtype":
        "float64","in_place":true}],"phases":[{"steps":[1],"then":["flush 0"],"hold":true}],
        "window":1,"latency":[1,200000],"timing":"heavy","scale":0,"together":true,"memory":[1000,0],
        "magnify":4096}""",
    # Who had announced a round to the other nodes did so again when it looked again.
    "announced again": """{"ranks":9,"seed":0,"handles":[{"count":18,"max_lag":0},{"count":18}],
        "phases":[{"steps":[1]}],"opened":2,"latency":[1000,1000],"timing":"zero","scale":0,
        "together":true,"memory":[1000,100,8,1]}""",
    # A rank that is alone on its node heard of a round before it had announced the last one, which
    # it had joined silently, and then did not.
    "alone and early": """{"ranks":4,"seed":4,"handles":[{"count":8,"deliver":"each","max_lag":1}],
        "phases":[{"steps":[0,7]}],"window":2,"latency":[100,2000000],"timing":"zero","scale":0,
        "memory":[1000,1000,3,1]}""",
    # All ranks of a node were seen to flush before the one that was drawn was seen to have left.
    "drawn and gone": """{"ranks":6,"seed":3907898507,"handles":[{"count":13,"max_lag":2}],
        "phases":[{"steps":[3,1,3,1]},{"steps":[5,2,3]}],"timing":"ties","together":true,"blocking":false,
        "extra":0.2,"last_flush":false,"memory":[50,100,2,0]}""",
    # By messages: a rank that had not finished the last round of its Flush joined a round of the
    # next one as if it were in that, which then was a flush without what it started afterwards.
    "in the flush before": """{"ranks":3,"seed":0,"handles":[{"count":6,"policy":"quorum:1",
        "algorithm":"rabenseifner"}],"phases":[{"steps":[0],"then":["flush 0"]},{"steps":[0,1,1],
        "then":["flush 0"],"hold":true},{"steps":[0],"then":["away"]}],"latency":[1000,1000],
        "network":"L=2us,o=500ns,g=300ns,G=0.1ns,S=64","timing":"heavy"}""",
    # The oracle's: a request that was late was given the round after it, for its result had been
    # overwritten, and did not count as ready for that.
    "late and overwritten": """{"ranks":4,"seed":3924414207,"handles":[{"count":9,"max_lag":0}],
        "phases":[{"steps":[3,0,3],"then":["apart","apart"]},{"steps":[1]}],"window":1,
        "latency":[1000,1000],"timing":"ties","scale":60000,"late":0.5,"memory":[1000,20000,4,2],
        "patience":50000}""",
    # A node that had joined a round silently brought it about when its result was there already.
    "triggered when it was done": """{"ranks":4,"seed":2,"handles":[{"count":8,"policy":
        "quorum:1,deadline=100us,grace=50us"}],"phases":[{"steps":[0,0,0,1]}],
        "latency":[1000,1000],"timing":"zero","scale":0,"memory":[1000,20000,3,2]}""",
    # A rank that was back after its patience held the same round up again, and was not told again.
    "held up twice": """{"ranks":16,"seed":2,"handles":[{"count":32,"max_lag":1}],"phases":
        [{"steps":[1],"then":["barrier"]}],"latency":[1000,1000],"network":
        "L=3us,o=400ns,G=1ns,S=4K,jitter=20us,node=3,node.L=200ns,node.o=50ns","timing":"heavy",
        "late":0.5,"extra":0.2,"memory":[1000,0,16,0],"patience":300000}""",
    # A deadline was over while the round waited for its grace period, and then a drawn rank of the
    # node came: both were initiators, and the cause was the weaker one.
    "overdue and drawn": """{"ranks":4,"seed":2,"handles":[{"count":8,"policy":
        "majority,deadline=20us,grace=50us"}],"phases":[{"steps":[2]}],"latency":[1000,1000],"timing":"zero","scale":0,
        "memory":[1000,100,3,2]}""",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", FOUND)
def test_what_was_wrong_once(name):
    check(Scenario.from_text(FOUND[name]))


def scenario(ranks, nodes_of=0, **options):
    return Scenario(
        ranks=ranks,
        seed=ranks,
        handles=(Options(count=3 * ranks, **options),),
        phases=(Phase((9, 3, 5)), Phase((0, 4), ("flush 0",)) if not options else Phase((0, 4))),
        scale=2000,
        memory=(500, 2000, *([nodes_of] if nodes_of else [])),
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
def test_rounds_are_made_in_memory(ranks, deliver):
    """And ranks are interrupted inside their calls."""
    lag = {} if deliver == "latest" else {"deliver": deliver, "max_lag": 3}
    outcome = check(scenario(ranks, policy=FirstOf(1), **lag))
    assert outcome.rounds > 5
    assert outcome.coverage["interruptions"] > 100


POLICIES = {
    "solo": Solo(),
    "majority": Majority(),
    "quorum": Quorum(2),
    "full": Full(),
}


@pytest.mark.parametrize(
    ("ranks", "nodes_of"), [(2, 1), (3, 2), (4, 2), (5, 1), (6, 2), (8, 3), (9, 4)]
)
@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
@pytest.mark.parametrize("policy", POLICIES)
def test_nodes_reduce_with_each_other(ranks, nodes_of, deliver, policy):
    """As one participant each."""
    lag = {} if deliver == "latest" else {"deliver": deliver, "max_lag": 3}
    outcome = check(scenario(ranks, nodes_of, policy=POLICIES[policy], **lag))
    assert outcome.rounds > 5
    assert outcome.coverage["crossings"] >= outcome.rounds
    assert outcome.coverage["interruptions"] > 100


@pytest.mark.parametrize("policy", [Solo(), Quorum(1)])
@pytest.mark.parametrize("seed", range(8))
def test_a_node_that_computes_holds_nobody_up(policy, seed):
    """Its leaders serve the others' rounds, also one of which they hear before the last is over."""
    busy_ns, rounds = 10**9, 60
    world = World(4, seed=seed, latency=(1, 200_000), memory=(200, 500, 2))
    options = Options(count=4, policy=policy)
    ended = {}

    def program(rank):
        handle = yield ("init", options)
        if rank < 2:
            yield busy_ns
        for _ in range(rounds if rank >= 2 else 0):
            yield ("start", handle)
            yield ("wait", handle)
        ended[rank] = world.now
        yield ("flush", handle)
        yield ("free", handle)
        yield ("ctx_free",)

    world.run([program(rank) for rank in range(4)])
    assert all(ended[rank] < busy_ns // 2 for rank in (2, 3))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("nodes_of", [2, 3])
def test_nobody_has_left_towards_those_whose_call_is_over(seed, nodes_of):
    """The leader who speaks for them may not have noticed, nor ranks of other nodes."""
    ranks, steps = 5, 3
    world = World(ranks, seed=seed, latency=(1, 200_000), memory=(100, 5000, nodes_of))
    options = Options(count=ranks, policy=Quorum(ranks))
    active = []

    def program(rank):
        handles = [(yield ("init", options))]
        for _ in range(4):
            for _ in range(steps):
                yield ("start", handles[0])
                active.append((yield ("wait", handles[0])).active)
            handles.append((yield ("init", options)))
            for _ in range(steps):
                yield ("start", handles[0])
                active.append((yield ("wait", handles[0])).active)
            yield ("free", handles.pop())
        yield ("free", handles[0])
        yield ("ctx_free",)

    world.run([program(rank) for rank in range(ranks)])
    assert set(active) == {ranks}


@pytest.mark.parametrize("seed", range(40))
def test_more_late_starts_than_parts_while_a_round_is_away(seed):
    """They are added to parts that are pending, which no round takes meanwhile."""
    ranks, window = 6, 14
    network, memory = (100_000, 400_000), (30, 400_000, 3)  # few interruptions, but long ones
    world = World(ranks, seed=seed, latency=network, window=window, memory=memory)
    options = Options(count=ranks, policy=Solo(), deliver="each", max_lag=window - 1)
    sums, starts = np.zeros((ranks, ranks), np.int64), np.zeros(ranks, np.int64)

    def program(rank):
        handle = yield ("init", options)

        def given(result):
            sums[rank] += np.frombuffer(result.data, np.int64)

        if rank == 5:  # finds as many rounds as it may be late for, and takes one after the other
            yield 100_000_000
        for _ in range(window + 2):
            name(handle, rank)
            starts[rank] += 1
            yield ("start", handle)
            given((yield ("wait", handle)))
        while True:
            result = yield ("drain", handle)
            given(result)
            if result.cause == "flush":
                break
        yield ("free", handle)
        yield ("ctx_free",)

    world.run([program(rank) for rank in range(ranks)])
    assert (sums == starts).all()


@pytest.mark.parametrize("nodes_of", [0, 2])
@pytest.mark.parametrize("deliver", ["latest", "each"])
@pytest.mark.parametrize("policy", [Solo(), Quorum(2), Quorum(4)])
def test_a_start_is_added_to_one_that_is_pending(policy, deliver, nodes_of):
    """Ranks with room for one Start only: a round takes the part before or after, also far away."""
    lag = {} if deliver == "latest" else {"max_lag": 3}
    options = Options(count=12, policy=policy, deliver=deliver, **lag)
    coverage = {"merges": 0, "merges_away": 0}
    for seed, pace in itertools.product(range(20), ((50, 50_000), (100, 5_000))):
        outcome = check(
            Scenario(
                4,
                seed,
                (options,),
                (Phase((8,)),),
                latency=(1, 50_000) if nodes_of else (500, 5000),
                timeout=0.9,
                memory=(*pace, *([nodes_of] if nodes_of else [])),
                room=1,
            )
        )
        coverage = {name: count + outcome.coverage[name] for name, count in coverage.items()}
    assert coverage["merges"] > 100
    assert (coverage["merges_away"] > 20) == bool(nodes_of and policy != Quorum(4))


def test_room_that_makes_no_sense():
    for room in (-1, lib.PP_SIM_ROOM_MAX + 1):
        with pytest.raises(CoreError, match="room"):
            World(2, memory=(0, 0), room=room)
        with pytest.raises(ValueError, match="room"):
            Scenario.from_text(Scenario(2, 0, (Options(),), (), memory=(0, 0), room=room).to_text())


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", ["int64", "float16", "float32"])
@pytest.mark.parametrize(
    "options",
    [
        {"policy": Full()},
        {"policy": Solo()},
        {"policy": Solo(), "deliver": "sum", "max_lag": 3},
        {"policy": Majority(), "deliver": "each", "max_lag": 3},
    ],
)
def test_results_are_put_in_place_while_they_are_reduced(ranks, dtype, options):
    """Each exactly that of its round, also in several buffers, and rounded on the way."""
    average = {"average": "contributors"} if dtype == "float32" else {}
    options = options | {"dtype": dtype, "pieces": 3} | average
    outcome = check(scenario(ranks, **options))
    assert outcome.coverage["landings"] > ranks


@pytest.mark.parametrize("ranks", [3, 5])
@pytest.mark.parametrize("seed", range(30))
def test_a_result_that_is_overwritten_is_not_mixed_with_a_newer(ranks, seed):
    """Ranks are seldom interrupted, but long: others complete rounds before they have copied."""
    steps = (Phase((30, 30, 30)),)
    options = Options(count=6 * ranks, policy=Solo())
    check(Scenario(ranks, seed, (options,), steps, scale=2000, memory=(50, 20_000)))


def test_a_result_is_not_put_in_place_where_other_nodes_have_a_part_in_it():
    outcome = check(scenario(4, 2, policy=Quorum(4)))
    assert outcome.coverage["interruptions"] > 100
    assert outcome.coverage["landings"] == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
def test_a_result_stays_while_its_rank_is_in_another_call(deliver, seed):
    """The place of the newest is only used again when everybody waits for the next."""
    ranks = 3
    world = World(ranks, seed=seed, latency=(1, 50_000), memory=(300, 20_000))
    lag = {} if deliver == "latest" else {"max_lag": 3}
    options = Options(count=4 * ranks, policy=Quorum(ranks), deliver=deliver, **lag)
    given = [np.zeros(4 * ranks, np.int64) for _ in range(ranks)]

    def program(rank):
        handle = yield ("init", options)
        for step in range(6):
            handle.send[:] = 1 << step
            yield ("start", handle)
            if rank == step % ranks:  # its request is complete, and not collected, meanwhile
                yield 30_000 * (1 + seed % 5)
            if step == 2:
                other = yield ("init", options)
            given[rank] += np.frombuffer((yield ("wait", handle)).data, np.int64)
            if step == 4:
                yield ("free", other)
        yield ("free", handle)
        yield ("ctx_free",)

    world.run([program(rank) for rank in range(ranks)])
    assert all((each == ranks * 63).all() for each in given)


@pytest.mark.parametrize(("delay_us", "how"), [(5, "graces_met"), (5000, "graces_over")])
@pytest.mark.parametrize("magnify", [1, 4096])
@pytest.mark.parametrize("pause", [0, 1000])
def test_a_grace_period_ends_when_all_are_there_or_it_is_over(delay_us, how, magnify, pause):
    """48 KiB: for 20 us at least, much longer once ranks have come too late by little."""
    ranks, steps = 3, 12
    world = World(ranks, memory=(100, pause), magnify=magnify)
    options = Options(count=(48 << 10) // 8 // magnify * 13 + ranks, policy=Solo())
    had_data = []

    def program(rank):
        handle = yield ("init", options)
        for step in range(steps):
            yield ("at", (step + 1) * 100_000_000 + delay_us * 1000 * (rank == 2))
            name(handle, rank)
            yield ("start", handle)
            result = yield ("wait", handle)
            if rank == 0:
                had_data.append(len(result.contributors))
        yield ("free", handle)
        yield ("ctx_free",)

    world.run([program(rank) for rank in range(ranks)])
    coverage = world.coverage()
    assert coverage[how] > 0
    # What came too late for the first round is in the second one at once.
    assert (coverage["graces_over"] > 0) == (how == "graces_over")
    assert had_data[0] == (ranks if how == "graces_met" else ranks - 1)
    assert had_data[1:] == [ranks] * (steps - 1)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("nodes_of", [1, 2, 4])
def test_a_rank_dies_at_any_moment(seed, nodes_of):
    """Between two accesses to shared memory, too, with a claim or a ticket: all others are told.

    It does nothing from then on.
    """
    draw = random.Random(f"{seed} {nodes_of}")
    ranks, victim = 4, draw.randrange(4)
    memory = draw.choice((1000, 300, 50)), draw.choice((0, 100, 5000)), nodes_of
    world = World(ranks, seed=seed, memory=memory, magnify=draw.choice((1, 256, 4096)))
    deliver = draw.choice(("latest", "sum"))
    quorum = {"policy": Quorum(draw.randint(1, ranks)) if seed % 2 else Solo()}
    options = Options(count=40, deliver=deliver, max_lag=draw.choice((0, 3)), **quorum)
    told = []

    def program(rank):
        try:
            handle = yield ("init", options)
            while True:
                for _ in range(draw.randint(1, 5)):
                    yield draw.choice((0, 0, 1000, 30_000))
                    yield ("start", handle)
                    yield ("wait", handle)
                yield ("flush", handle)
        except CoreError as error:
            assert (error.status, error.text) == (
                lib.PP_ERR_PEER_FAILED,
                f"rank {victim}: its process has died",
            )
            told.append(rank)

    world.kill(victim, draw.randint(1, 1_000_000), draw.choice((0, 1000, 100_000)))
    world.run([program(rank) for rank in range(ranks)])
    assert sorted([*told, victim]) == list(range(ranks))
    assert world.ran_dead() == 0


@pytest.mark.parametrize("deliver", ["latest", "sum"])
@pytest.mark.parametrize("nodes_of", [2, 4])
def test_a_rank_that_died_while_it_computed_does_not_wake(nodes_of, deliver):
    """The others wait for it, and tell it so as long as nobody has told them of its death."""
    ms, ranks, told = 1_000_000, 4, []
    world = World(ranks, memory=(100, 100, nodes_of), patience=10 * ms)

    def program(rank):
        handle = yield ("init", Options(deliver=deliver, policy=Solo(), max_lag=3))
        try:
            while True:
                if rank == 0 and world.now > ms // 2:
                    yield 100 * ms
                yield 1000
                yield ("start", handle)
                yield ("wait", handle)
        except CoreError as error:
            assert error.text == "rank 0: its process has died"
            told.append(rank)

    world.kill(0, ms, 30 * ms)
    world.run([program(rank) for rank in range(ranks)])
    assert sorted(told) == [1, 2, 3]
    assert world.ran_dead() == 0


def test_a_rank_in_the_middle_of_a_call_cannot_be_asked():
    """Nobody could wait for the end of the call: it has the lock of its context. Nor a dead one."""
    world, dies, refused = World(3, memory=(1000, 1000)), 2_000_000, [0, 0]

    def works(rank):
        handle = yield ("init", Options(policy=Solo()))
        while rank == 1 or world.now < dies:
            yield ("start", handle)
            yield ("wait", handle)

    def watches():
        yield ("init", Options(policy=Solo()))
        while world.now < 2 * dies:
            yield 100
            for rank in range(2):
                try:
                    world.stats(rank)
                except CoreError as error:
                    assert error.text == f"rank {rank} is interrupted in the middle of a call"
                    refused[rank] += 1
        world.stop()

    world.kill(1, dies)
    world.run([works(0), works(1), watches()])
    assert world.ran_dead() == 0
    assert 100 < refused[0] < dies // 100
    assert refused[1] >= dies // 100  # for ever


def twenty_calls(options):
    handle = yield ("init", options)
    for _ in range(20):
        yield ("start", handle)
        yield ("wait", handle)
    yield ("free", handle)
    yield ("ctx_free",)


def messages_and_rounds(options, nodes_of):
    world = World(8, memory=(200, 500, nodes_of))
    world.run([twenty_calls(options) for _ in range(8)])
    messages = 0
    for rank in range(8):
        stats = world.stats(rank)
        assert stats.shared_rounds == stats.rounds
        messages += stats.messages_sent
    return messages, stats.rounds


def test_nodes_are_the_participants():
    """The messages of a round are those of as many ranks as there are nodes."""
    options = Options(count=8, policy=Quorum(8))
    many, rounds = messages_and_rounds(options, nodes_of=1)
    few, same_rounds = messages_and_rounds(options, nodes_of=4)
    assert rounds == same_rounds == 21
    # Agreements, which are between all ranks, are the same in both. In a round each of eight
    # participants sends three data and three activations, each of two only one.
    assert many - few == rounds * (8 * 6 - 2 * 2)
    # Nobody says again what another rank of its node has said.
    some, more_rounds = messages_and_rounds(Options(count=8, policy=FirstOf(8)), nodes_of=4)
    assert some - few == (more_rounds - rounds) * 2 * 2


@pytest.mark.parametrize("policy", POLICIES)
def test_who_brings_a_round_about_announces_it(policy):
    """If another rank leads its node, and sleeps; a quorum is counted by those who lead."""

    def announced(nodes_of, seed):
        program = dataclasses.replace(scenario(6, nodes_of, policy=POLICIES[policy]), seed=seed)
        return check(program).coverage["announced"]

    seeds = range(10)
    assert any(announced(2, seed) for seed in seeds) == (policy != "quorum")
    assert not any(announced(1, seed) for seed in seeds)


def test_nobody_announces_a_flush():
    def program():
        handle = yield ("init", Options(count=4, policy=FirstOf(4)))
        for _ in range(5):
            assert (yield ("flush", handle)).cause == "flush"
        yield ("free", handle)
        yield ("ctx_free",)

    world = World(4, memory=(200, 500, 2))
    world.run([program() for _ in range(4)])
    assert world.coverage()["crossings"] == 2 * 6
    assert world.coverage()["announced"] == 0


def test_no_message_carries_a_round():
    """Handles that ask for a schedule go by messages all the same."""
    messages = {}
    for algorithm in ("auto", "ring"):
        world = World(3, memory=(200, 500))
        options = Options(count=3, policy=FirstOf(3), algorithm=algorithm)
        world.run([twenty_calls(options) for _ in range(3)])
        stats = world.stats(0)
        messages[algorithm] = stats.messages_sent
        assert (stats.shared_rounds == stats.rounds) == (algorithm == "auto")
    assert messages["auto"] < messages["ring"] // 2


@pytest.mark.parametrize(
    ("ranks", "memory"),
    [
        (2, (1001, 0)),
        (2, (5, -1)),
        (2, (5,)),
        (2, (1, 2, 3)),
        (2, (1, 2, 0)),
        (2, (1, 2, 1, 3)),
        (2, (1, 2, 1, 1, 1)),
    ],
)
def test_memory_that_makes_no_sense(ranks, memory):
    with pytest.raises(ValueError, match="memory"):
        Scenario.from_text(
            Scenario(ranks=ranks, seed=0, handles=(Options(),), phases=(), memory=memory).to_text()
        )


def test_too_many_ranks_for_one_memory():
    config = ffi.new("pp_sim_config_t *")
    config.ranks, config.node_ranks, config.ctx.window = 1025, 1025, 4
    config.network.node_ranks = 1
    sim = ffi.new("pp_sim_t **")
    assert lib.pp_sim_open(config, sim) == lib.PP_ERR_ARGUMENT
    assert "1025" in ffi.string(lib.pp_error_text()).decode()
