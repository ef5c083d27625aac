"""What is bounded: how far a rank lags, what is held in memory, how many messages a round takes."""

import random

import numpy as np
import pytest
from programs import Trace, finish, loop, name, run_loops

from pypartial._core_sim import ffi, lib
from pypartial._names import algorithms
from pypartial.policy import FirstOf, Full, Majority, Quorum, Solo
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.world import World

FAST = (500, 1000)
SIZE = 6
SLOW = 2
QUICK_NS, SLOW_NS = 10_000, 2_000_000


def slow_rank(deliver, max_lag, slow_ns=SLOW_NS, *, slow_steps=8, quick_steps=400, window=8):
    """One rank needs `slow_ns` a step and the others `QUICK_NS`; the traces."""
    work = {SLOW: slow_ns}
    steps = [quick_steps] * SIZE
    steps[SLOW] = slow_steps
    options = Options(count=SIZE, policy=Solo(), deliver=deliver, max_lag=max_lag)
    world = World(SIZE, latency=FAST, window=window)
    return run_loops(world, options, steps, lambda rank, step: work.get(rank, QUICK_NS))


@pytest.mark.parametrize("deliver", ["latest", "sum"])
@pytest.mark.parametrize("max_lag", [0, 1, 2, 3, 7])
def test_a_slow_rank_misses_exactly_what_max_lag_allows(deliver, max_lag):
    """Never more; and not less, or the others would be slower than they have to be."""
    slow = slow_rank(deliver, max_lag)[SLOW]
    assert [r.missed for r in slow.rounds] == [max_lag] * len(slow.rounds)


def test_with_each_the_slow_rank_sets_the_pace():
    """One round a request: the others run ahead of it by max_lag rounds, once."""
    for max_lag in (0, 1, 3, 7):
        slow = slow_rank("each", max_lag)[SLOW]
        assert [r.round for r in slow.rounds] == list(range(len(slow.rounds)))
        assert max(r.missed for r in slow.rounds) <= max_lag
        assert slow.rounds[0].missed == max_lag


def test_without_a_bound_nobody_waits_for_the_slow_rank():
    traces = slow_rank("latest", -1)
    quick = [trace for rank, trace in enumerate(traces) if rank != SLOW]
    assert traces[SLOW].rounds[0].missed > 100
    assert max(trace.finished for trace in quick) < 400 * 2.5 * QUICK_NS


def test_a_bound_that_is_not_reached_slows_nobody():
    """A rank a little slower than the others: all times are as without a bound."""
    slow_ns = 4 * QUICK_NS
    bounded, unbounded = (
        slow_rank("latest", max_lag, slow_ns, slow_steps=100, quick_steps=300)
        for max_lag in (7, -1)
    )
    assert 0 < max(r.missed for r in unbounded[SLOW].rounds) < 7
    assert [t.finished for t in bounded] == [t.finished for t in unbounded]
    assert [t.rounds for t in bounded] == [t.rounds for t in unbounded]


def test_the_bound_is_not_for_ranks_that_have_left():
    """While one rank is in a Flush, the others make as many rounds as they like."""
    for deliver in ("latest", "sum"):
        world = World(3, latency=FAST, window=2)
        options = Options(count=3, policy=FirstOf(3), deliver=deliver, max_lag=0)
        traces = run_loops(world, options, [0, 50, 50], lambda rank, step: QUICK_NS)
        assert len(traces[1].rounds) == 50
        assert max(t.finished for t in traces) < 50 * 3 * QUICK_NS + 200_000


# ---- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("deliver", ["latest", "sum", "each"])
@pytest.mark.parametrize("policy", [Solo(), Majority(), Quorum(3)])
@pytest.mark.parametrize("count", [50, 3000, 10_000])
def test_buffers_do_not_grow_after_warm_up(deliver, policy, count):
    size, window, steps = 5, 3, 400
    options = Options(
        count=count,
        policy=policy,
        deliver=deliver,
        max_lag=-1 if deliver == "latest" else window - 1,
    )
    cycle = [[random.Random(f"{r} {s}").randrange(60_000) for s in range(10)] for r in range(size)]
    world = World(size, latency=(500, 10_000), window=window)
    traces = run_loops(world, options, steps, lambda rank, step: cycle[rank][step % 10])
    # docs/engine.md: the slot, rounds in flight and the result, scratch, results not given.
    ungiven = window if deliver == "each" else 1
    most = (1 + (window + 1) + window + ungiven) * count * 8
    for trace in traces:
        # A rare coincidence may still take one more; a leak would have taken hundreds.
        assert trace.bytes[-1] <= trace.bytes[steps // 2] + count * 8
        assert trace.bytes[-1] <= most


# ---- messages -----------------------------------------------------------------------------------


def messages(size, policy, algorithm, steps, work):
    """Messages sent by every rank in a whole run, and the number of rounds."""
    world = World(size, latency=FAST, seed=5)
    options = Options(count=3 * size, policy=policy, algorithm=algorithm)
    traces = [Trace() for _ in range(size)]

    def program(rank, trace):  # without the questions of programs.loop, which are messages, too
        handle = yield ("init", options)
        for step in range(steps[rank]):
            yield work(rank, step)
            name(handle, rank)
            yield ("start", handle)
            trace.rounds.append((yield ("wait", handle)))
        yield from finish(handle, trace)

    world.run([program(r, trace) for r, trace in enumerate(traces)])
    sent = np.array([int(world.stats(r).messages_sent) for r in range(size)])
    received = np.array([int(world.stats(r).messages_received) for r in range(size)])
    assert sent.sum() == received.sum()
    rounds = int(world.stats(0).rounds)
    return sent, rounds, {r.initiator for t in traces for r in t.rounds}


@pytest.mark.parametrize("size", [2, 3, 5, 8, 11])
@pytest.mark.parametrize("algorithm", algorithms(ffi, lib))
def test_messages_of_a_round_do_not_depend_on_who_initiates_it(size, algorithm):
    """For policies without control messages, every rank sends the same number in every round."""
    solo, full = (size, Solo(), algorithm), (size, Full(), algorithm)
    idle = [0] * size
    none, ends, _ = messages(*solo, idle, lambda r, s: 0)
    one, rounds, _ = messages(*full, [1] * size, lambda r, s: 0)
    assert rounds == ends + 1
    per_round = one - none

    def judge(*run):
        sent, rounds, initiators = messages(*run)
        assert (sent - none).tolist() == ((rounds - ends) * per_round).tolist()
        return initiators

    for caller in range(size):  # everybody else has left
        steps = [7 if rank == caller else 0 for rank in range(size)]
        assert judge(*solo, steps, lambda r, s: 5000) == {caller}
    for timing in range(3):
        chance = random.Random(timing)
        works = (
            lambda rank, step: 0,
            lambda rank, step: 50_000 * rank,
            lambda rank, step, chance=chance: chance.randrange(100_000),
        )
        for kind in (solo, full):
            judge(*kind, [9 + rank % 3 for rank in range(size)], works[timing])


# ---- two contexts -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Solo(), Full()])
@pytest.mark.parametrize("seed", range(8))
def test_two_contexts_live_side_by_side(policy, seed):
    """Own rounds, handles and collective calls; a mistake in one does not concern the other."""
    size, steps = 5, 15
    world = World(size, seed=seed, latency=(500, 40_000), contexts=2)
    chance = random.Random(seed)
    options = [
        Options(count=size, policy=policy),
        Options(count=700, policy=Solo(), deliver="sum", max_lag=3, pieces=2),
    ]
    totals = [np.zeros((size, o.count), np.int64) for o in options]
    common = [{}, {}]

    def take(index, rank, result):
        totals[index][rank] += np.frombuffer(result.data, "int64")
        known = common[index].setdefault(result.round, result)
        assert known.status() == result.status()

    def program(rank):
        handles = []
        for index in (0, 1):
            handles.append((yield ("init", options[index], index)))
        for _ in range(steps):
            for index, handle in enumerate(handles):
                yield chance.randrange(50_000)
                name(handle, rank)
                yield ("start", handle)
                take(index, rank, (yield ("wait", handle)))
        # In one context the collective calls go on while the other still has rounds.
        take(0, rank, (yield ("flush", handles[0])))
        for _ in range(rank % 3):
            name(handles[1], rank)
            yield ("start", handles[1])
            take(1, rank, (yield ("wait", handles[1])))
        assert (yield ("free", handles[0])) == 0
        yield ("ctx_free", 0)
        name(handles[1], rank)
        yield ("start", handles[1])
        take(1, rank, (yield ("wait", handles[1])))
        take(1, rank, (yield ("flush", handles[1])))
        assert (yield ("free", handles[1])) == 0
        yield ("ctx_free", 1)

    world.run([program(r) for r in range(size)])
    if policy == Full():
        assert (totals[0] == steps).all()
    expected = [steps + 1 + rank % 3 for rank in range(size)]
    for rank in range(size):
        assert totals[1][rank, :size].tolist() == expected


def test_the_loop_of_these_tests_notices_a_rank_that_never_comes():
    """A world in which somebody waits for nothing is a deadlock, with names."""
    world = World(2)
    options = Options(count=2, policy=Quorum(2))
    traces = [Trace(), Trace()]

    def absent():
        yield ("init", options)

    with pytest.raises(AssertionError, match=r"rank 0 in wait of handle 1: completed 0"):
        world.run([loop(world, options, 0, 1, lambda r, s: 1, traces[0]), absent()])
