"""Policies where the answer is known: who is active, who initiates, what the cause is."""

import math
import random

import numpy as np
import pytest
from programs import Arrivals, Trace, finish, flushed, is_drawn, name, run_loops

from pypartial.policy import FirstOf, Quorum, Solo
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.handle import CoreError
from pypartial.sim.world import World

FAST = (500, 1000)  # ns; a round of 40 ranks takes less than 30 us


def counts(result, ranks):
    return np.frombuffer(result.data, "int64")[:ranks]


def agree(traces):
    """Every round is the same for everybody who was given it; the rounds by number."""
    rounds = {}
    for trace in traces:
        for result in [*trace.rounds, *([trace.flush] if trace.flush else [])]:
            assert rounds.setdefault(result.round, result).common() == result.common()
    return rounds


# ---- first of m ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 16])
def test_solo_under_distinct_arrivals_has_one_active_rank_the_first(size):
    steps = 40
    arrivals = Arrivals(size, steps, seed=size)
    options = Options(count=size, policy=Solo())
    traces = run_loops(World(size, latency=FAST), options, steps, arrivals)
    rounds = agree(traces)
    assert sorted(rounds) == list(range(steps + 1))
    before = None
    for step in range(steps):
        first = arrivals.orders[step][0]
        expected = np.zeros(size, np.int64)
        if before is not None:  # all but the first of the step before were late: stale now
            expected[:] = 1
            expected[before] = 0
        expected[first] += 1
        result = rounds[step]
        assert (result.active, result.initiator, result.cause) == (1, first, "policy")
        assert counts(result, size).tolist() == expected.tolist()
        assert result.contributors == tuple(np.flatnonzero(expected))
        assert result.contributions == expected.sum()
        before = first
    for rank, trace in enumerate(traces):
        for step, result in enumerate(trace.rounds):
            first = arrivals.orders[step][0] == rank
            assert result.round == step
            assert result.included == first
            assert result.external != first
            assert result.missed == (0 if first else 1)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13])
def test_of_several_initiators_at_once_the_lowest_is_named(size):
    """One execution, in which all of them are active, and internal to each."""
    chance = random.Random(size)
    together = [sorted(chance.sample(range(size), chance.randint(1, size))) for _ in range(30)]
    world = World(size, latency=FAST)
    rounds = [{} for _ in together]

    def program(rank):
        handle = yield ("init", Options(count=size, policy=Solo()))
        for number, ranks in enumerate(together):
            if rank in ranks:
                yield ("at", (number + 1) * 1_000_000)
                try:  # what others did meanwhile is not of interest: be on time
                    yield ("wait", handle)
                except CoreError as error:
                    assert "nothing to give" in error.text
                name(handle, rank)
                yield ("start", handle)
                rounds[number][rank] = yield ("wait", handle)
        yield ("at", (len(together) + 1) * 1_000_000)
        yield from finish(handle)

    world.run([program(r) for r in range(size)])
    for number, ranks in enumerate(together):
        assert sorted(rounds[number]) == ranks
        for result in rounds[number].values():
            assert (result.round, result.initiator) == (number, ranks[0])
            assert (result.active, result.contributors) == (len(ranks), tuple(ranks))
            assert result.included
            assert not result.external


@pytest.mark.parametrize(("size", "m"), [(4, 1), (9, 1), (16, 1), (6, 2), (9, 3), (8, 7)])
def test_first_of_m_has_its_mean_of_active_ranks(size, m):
    """The minimum of m arrival positions out of 1..P: mean (P + 1) / (m + 1)."""
    steps = 600
    arrivals = Arrivals(size, steps, seed=100 * size + m)
    options = Options(count=size, policy=FirstOf(m))
    traces = run_loops(World(size, seed=m, latency=FAST), options, steps, arrivals)
    rounds = agree(traces)
    active = []
    for step in range(steps):
        order, result = arrivals.orders[step], rounds[step]
        # Exactly those are active who came no later than the rank that was drawn.
        assert result.cause == "policy"
        assert result.active == order.index(result.initiator) + 1
        active.append(result.active)
    mean = (size + 1) / (m + 1)
    variance = m * (size + 1) * (size - m) / ((m + 1) ** 2 * (m + 2))
    assert abs(np.mean(active) - mean) < 4 * math.sqrt(variance / steps)


def test_draws_are_fair_and_depend_on_the_seed():
    size, steps = 5, 500
    initiators = []
    for seed in range(2):
        world = World(size, seed=seed, latency=FAST)
        traces = run_loops(world, Options(count=size), steps, Arrivals(size, steps))
        rounds = agree(traces)
        initiators.append([rounds[step].initiator for step in range(steps)])
        often = np.bincount(initiators[-1], minlength=size)
        assert abs(often - steps / size).max() < 4.5 * math.sqrt(steps / size * (1 - 1 / size))
    same = sum(a == b for a, b in zip(*initiators, strict=True))
    assert abs(same - steps / size) < 4.5 * math.sqrt(steps / size * (1 - 1 / size))


@pytest.mark.parametrize(("size", "m"), [(3, 1), (9, 1), (9, 4)])
def test_a_flush_has_no_influence_on_the_draws_after_it(size, m):
    """Which rank a round draws follows from seed and round: none counts as left after a flush."""
    steps = 24
    drawn = [[set() for _ in range(steps)] for _ in range(2)]
    for flushing in range(2):
        world = World(size, seed=3, latency=FAST)

        def program(rank, flushing=flushing, world=world):
            handle = yield ("init", Options(count=size, policy=FirstOf(m)))
            for step in range(steps):
                yield ("at", (step + 1) * 1_000_000)
                if is_drawn(world, rank, handle):
                    drawn[flushing][step].add(rank)
                if flushing and step % 2:
                    result = yield ("flush", handle)
                else:
                    name(handle, rank)
                    yield ("start", handle)
                    result = yield ("wait", handle)
                assert result.round == step
            yield from finish(handle)

        world.run([program(r) for r in range(size)])
    assert {len(ranks) for ranks in drawn[0]} == {m}
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("size", "m"), [(3, 1), (5, 1), (5, 2), (7, 1), (7, 3)])
def test_a_drawn_rank_that_has_left_hands_on(size, m):
    """The cause is "departed" exactly if none of the drawn ranks stays; later draws avoid them."""
    causes = set()
    for seed in range(25):
        leavers = random.Random(seed).sample(range(size), max(1, size // 2))
        stay = [r for r in range(size) if r not in leavers]
        world = World(size, seed=seed, latency=FAST)
        drawn, rounds = [], {}

        def program(rank, leavers=leavers, world=world, drawn=drawn, rounds=rounds):
            handle = yield ("init", Options(count=size, policy=FirstOf(m)))
            if is_drawn(world, rank, handle):
                drawn.append(rank)
            yield ("at", 200_000)
            if rank not in leavers:
                for _ in range(4):
                    yield 100_000
                    name(handle, rank)
                    yield ("start", handle)
                    result = yield ("wait", handle)
                    assert rounds.setdefault(result.round, result).common() == result.common()
            yield from finish(handle)

        world.run([program(r) for r in range(size)])
        staying = [r for r in drawn if r in stay]
        first = rounds[0]
        assert len(drawn) == m
        assert first.initiator in stay
        if staying and first.cause == "policy":
            assert first.initiator in staying
        if not staying:
            assert first.cause == "departed"
        if len(staying) == m:
            assert first.cause == "policy"
        causes.add(first.cause)
        # All the drawn ranks of later rounds stay, as the header before lists those who left.
        last = [r for number, r in rounds.items() if number > 0]
        if m <= len(stay):
            assert {r.cause for r in last} == {"policy"}
        assert {r.initiator for r in last} <= set(stay)
    assert causes == {"policy", "departed"}


@pytest.mark.parametrize("size", [2, 3, 6, 11])
@pytest.mark.parametrize("survivor", [0, -1])
def test_a_draw_reaches_the_only_rank_that_still_calls(size, survivor):
    """Others leave one by one, before the draw, after it, in the middle of a round."""
    survivor %= size
    for seed in range(12):
        chance = random.Random(seed)
        steps = [chance.randrange(6) for _ in range(size)]
        steps[survivor] = 25
        world = World(size, seed=seed, latency=(500, 20_000))
        traces = run_loops(
            world,
            Options(count=size, policy=FirstOf(1)),
            steps,
            lambda rank, step, chance=chance: chance.randrange(40_000),
        )
        rounds = agree(traces)
        assert len(traces[survivor].rounds) == 25
        total = sum(counts(result, size) for result in rounds.values())
        if sorted(rounds) == list(range(max(rounds) + 1)):
            assert total.tolist() == steps
        assert traces[0].flush.cause == "flush"


def test_a_drawn_rank_that_waits_elsewhere_hands_on():
    """Nobody leaves before the end, so "departed" can only come from a rank that is elsewhere."""
    causes, size = [], 4
    for seed in range(10):
        world = World(size, seed=seed, latency=(500, 30_000))
        chance = random.Random(seed)
        rounds = {}

        def program(rank, chance=chance, rounds=rounds):
            drawn = yield ("init", Options(count=size, policy=FirstOf(1)))
            full = yield ("init", Options(count=size, policy=Quorum(size)))
            for _ in range(20):
                yield chance.randrange(60_000)
                for handle in (drawn, full):
                    name(handle, rank)
                    yield ("start", handle)
                    result = yield ("wait", handle)
                    if handle is drawn:
                        assert rounds.setdefault(result.round, result).common() == result.common()
                    else:
                        assert result.contributors == tuple(range(size))
                        assert (result.active, result.cause) == (size, "policy")
            for handle in (drawn, full):
                yield from flushed(handle)
                yield ("free", handle)
            yield ("ctx_free",)

        world.run([program(r) for r in range(size)])
        causes += [r.cause for r in rounds.values()]
    assert causes.count("departed") > 5
    assert causes.count("policy") > 5


# ---- quorum -------------------------------------------------------------------------------------


def quorum(size, k, steps):
    arrivals = Arrivals(size, steps, seed=size + k)
    options = Options(count=size, policy=Quorum(k))
    world = World(size, latency=FAST)
    return arrivals, run_loops(world, options, steps, arrivals)


@pytest.mark.parametrize(
    ("size", "k"),
    [(18, 1), (18, 2), (18, 17), (18, 18), (20, 10), (20, 19), (40, 1), (40, 20), (40, 39)],
)
def test_quorum_takes_exactly_k_distinct_arrivals(size, k):
    """The tree that counts has 16 children a rank: from 18 ranks on, two levels."""
    steps = 8
    arrivals, traces = quorum(size, k, steps)
    rounds = agree(traces)
    assert sorted(rounds) == list(range(steps + 1))
    for step in range(steps):
        result = rounds[step]
        assert (result.active, result.cause, result.initiator) == (k, "policy", -1)
        assert set(arrivals.orders[step][:k]) <= set(result.contributors)
        if step == 0:
            assert result.contributors == tuple(sorted(arrivals.orders[0][:k]))


def test_quorum_of_three_levels():
    size, k = 280, 275
    _, traces = quorum(size, k, 1)
    rounds = agree(traces)
    assert (rounds[0].active, rounds[0].cause) == (k, "policy")


@pytest.mark.parametrize("size", [3, 18, 20, 40])
@pytest.mark.parametrize("timing", ["before", "after"])
def test_quorum_that_cannot_be_reached_counts_those_who_have_not_left(size, timing):
    """`size // 3` ranks leave before or after the others wait."""
    for seed in range(3):
        left = set(random.Random(seed).sample(range(size), size // 3))
        k = size - len(left) + 1
        world = World(size, seed=seed, latency=FAST)
        traces = [Trace() for _ in range(size)]

        def program(rank, left=left, k=k, traces=traces):
            handle = yield ("init", Options(count=size, policy=Quorum(k)))
            if rank in left:
                yield ("at", 1_000_000 if timing == "after" else 200_000)
            else:
                yield ("at", 500_000 + 1000 * rank)
                for _ in range(3):
                    name(handle, rank)
                    yield ("start", handle)
                    traces[rank].rounds.append((yield ("wait", handle)))
            yield from finish(handle, traces[rank])

        world.run([program(r) for r in range(size)])
        rounds = agree(traces)
        stay = tuple(r for r in range(size) if r not in left)
        for number in range(3):
            result = rounds[number]
            assert result.cause == "departed"
            assert (result.active, result.contributors) == (len(stay), stay)


@pytest.mark.parametrize(("size", "k"), [(3, 2), (5, 3), (6, 5), (20, 11)])
def test_a_quorum_does_not_count_who_left_for_a_call_that_is_over(size, k):
    """All meet in a Flush of another handle; the first out of it must not find the rest left.

    Everybody has waited long before anybody leaves again, so no round can be "departed".
    """
    for seed in range(6):
        world = World(size, seed=seed, latency=(500, 50_000))
        chance = random.Random(seed)
        rounds, steps = {}, 6

        def program(rank, chance=chance, rounds=rounds, steps=steps):
            quorum = yield ("init", Options(count=size, policy=Quorum(k)))
            other = yield ("init", Options(count=size, policy=Quorum(size)))
            for step in range(steps):
                # The root of the count is often last: all others have told it that they have left.
                last = rank == 0 and step % 2 == 0
                yield ("at", (step + 1) * 5_000_000)
                yield 400_000 if last else chance.randrange(50_000)
                yield ("flush", other)
                name(quorum, rank)
                yield ("start", quorum)
                result = yield ("wait", quorum)
                assert rounds.setdefault(result.round, result).common() == result.common()
            yield ("at", (steps + 1) * 5_000_000)
            for handle in (quorum, other):
                yield from flushed(handle)
                yield ("free", handle)
            yield ("ctx_free",)

        world.run([program(r) for r in range(size)])
        assert len(rounds) == steps
        assert {r.cause for r in rounds.values()} == {"policy"}
        assert min(r.active for r in rounds.values()) >= k


# ---- many ranks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "algorithm"),
    [
        (64, "recursive_doubling"),
        (65, "rabenseifner"),
        (70, "recursive_doubling"),
        (70, "rabenseifner"),
        (70, "ring"),
        (1024, "recursive_doubling"),
        (1030, "recursive_doubling"),
    ],
)
def test_masks_of_many_ranks(size, algorithm):
    """Contributors are named up to 1024 ranks; above that only counted. Some ranks have left."""
    steps = 3
    callers = set(random.Random(size).sample(range(size), size // 2)) | {size - 1}
    leavers = set(range(0, size, 7)) - callers
    world = World(size, seed=1, latency=FAST)
    traces = [Trace() for _ in range(size)]
    options = Options(count=size, policy=Solo(), algorithm=algorithm)

    def program(rank):
        handle = yield ("init", options)
        if rank in callers:
            for step in range(steps):
                yield ("at", (step + 1) * 10_000_000)
                name(handle, rank)
                yield ("start", handle)
                traces[rank].rounds.append((yield ("wait", handle)))
        elif rank not in leavers:
            yield ("at", (steps + 1) * 10_000_000)
        yield from finish(handle, traces[rank])

    world.run([program(r) for r in range(size)])
    total = np.zeros(size, np.int64)
    for result in agree(traces).values():
        who = counts(result, size)
        total += who
        assert result.contributions == who.sum()
        named = tuple(np.flatnonzero(who)) if size <= 1024 else None
        assert result.contributors == named
    assert total.tolist() == [steps if r in callers else 0 for r in range(size)]
