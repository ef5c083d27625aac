"""Collective calls over simulated ranks: agreement on arguments, ends of calls, bad order."""

import dataclasses

import numpy as np
import pytest

from pypartial._core_sim import lib
from pypartial.policy import FirstOf, Full, Majority, Quorum, Solo
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.handle import CoreError
from pypartial.sim.world import World

SOLO3 = Options(policy=Solo(), count=3)


def attempt(errors, rank, request):
    """Yields the request; remembers the error."""
    try:
        return (yield request)
    except CoreError as error:
        errors[rank] = error
        return None


def usable(rank, size, options=None):
    """One round of a good handle, and everything freed: the context is in order."""
    options = options or Options(count=size, policy=Full())
    handle = yield ("init", options)
    handle.send[rank] = 1
    yield ("start", handle)
    result = yield ("wait", handle)
    assert result.contributors == tuple(range(size))
    assert np.frombuffer(result.data, "int64").tolist() == [1] * size
    assert (yield ("free", handle)) == 0
    yield ("ctx_free",)


DIFFERENCES = {
    "count": ({"count": 12}, {"count": 11}, "12 elements", "11 elements"),
    "type": ({"dtype": "int64"}, {"dtype": "float64"}, "int64", "float64"),
    "op": ({"op": "sum"}, {"op": "max"}, "op SUM", "op MAX"),
    "policy": ({}, {"policy": Quorum(1)}, "Majority()", "Quorum(1)"),
    "policy's number": ({"policy": FirstOf(1)}, {"policy": FirstOf(2)}, "FirstOf(1)", "FirstOf(2)"),
    "deadline": ({}, {"policy": Majority(deadline=0.5)}, "Majority()", "Majority(deadline=0.5)"),
    "grace": ({"policy": Full(grace=0)}, {"policy": Full()}, "Full(grace=0.0)", "Full()"),
    "deliver": ({"max_lag": 1}, {"max_lag": 1, "deliver": "sum"}, "deliver=latest", "deliver=sum"),
    "max_lag": ({"max_lag": 1}, {"max_lag": 3}, "max_lag=1", "max_lag=3"),
    "average": (
        {"dtype": "float32"},
        {"dtype": "float32", "average": "size"},
        "average=None",
        "average=size",
    ),
    "algorithm": ({}, {"algorithm": "ring"}, "algorithm=auto", "algorithm=ring"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
@pytest.mark.parametrize(("size", "odd"), [(2, 1), (3, 0), (3, 2), (4, 2), (5, 4), (8, 5), (13, 6)])
def test_a_difference_is_told_to_everybody_with_both_values(name, size, odd):
    ours, theirs, our_text, their_text = DIFFERENCES[name]
    errors = {}
    world = World(size, seed=odd)

    def program(rank):
        options = dataclasses.replace(Options(), **(theirs if rank == odd else ours))
        yield rank * 1000
        yield from attempt(errors, rank, ("init", options))
        yield from usable(rank, size)

    world.run([program(r) for r in range(size)])
    assert sorted(errors) == list(range(size))
    assert {e.status for e in errors.values()} == {lib.PP_ERR_MISMATCH}
    assert len({e.text for e in errors.values()}) == 1
    text = errors[0].text.lower()
    assert our_text.lower() in text, text
    assert their_text.lower() in text, text


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("deliver", ["latest", "sum"])
def test_flush_gives_the_flush_however_late_the_application_returns(size, deliver):
    """*Left* ends in the engine: the others' rounds complete here before Flush has returned."""
    flushes, after = {}, {}
    world = World(size, seed=3)
    lag = -1 if deliver == "latest" else 3
    options = Options(count=size, policy=Solo(), deliver=deliver, max_lag=lag)

    def program(rank):
        handle = yield ("init", options)
        handle.send[rank] = 1
        yield ("start", handle)
        flushes[rank] = yield ("late", 200_000 if rank == 0 else 0, ("flush", handle))
        if rank == 1:
            yield ("start", handle)
            after[rank] = yield ("wait", handle)
        if rank == 0 and deliver == "sum":
            after[rank] = yield ("wait", handle)  # what the others did meanwhile is still to give
        yield ("flush", handle)
        yield ("free", handle)
        yield ("ctx_free",)

    world.run([program(r) for r in range(size)])
    assert {f.cause for f in flushes.values()} == {"flush"}
    assert len({f.status() for f in flushes.values()}) == 1
    if deliver == "sum":
        assert after[0].common() == after[1].common()
        assert after[0].first == flushes[0].round + 1


@pytest.mark.parametrize("seed", range(8))
def test_nothing_follows_a_last_message(seed):
    """Ranks ask each other while the context ends; after everybody's last word nothing is heard."""
    world = World(5, seed=seed, latency=(500, 50_000))
    heard = {}

    def program(rank):
        yield rank * 20_000
        yield ("begin", ("ctx_free",))
        for _ in range(10):
            world.ask(rank)
            yield 10_000
        yield ("finish",)
        heard[rank] = int(world.stats(rank).messages_received)

    world.run([program(rank) for rank in range(5)])
    assert world.quiet()
    assert heard == {rank: int(world.stats(rank).messages_received) for rank in range(5)}
    assert min(heard.values()) > 4 * 3  # questions and answers were among them


def test_ranks_in_different_calls_are_told(size=4):
    """They find out by a question after two seconds, and all of them fail."""
    world = World(size)
    errors = {}

    def program(rank):
        first = yield ("init", Options())
        second = yield ("init", Options())
        yield ("at", 1_000_000)
        yield ("begin", ("free", first if rank == 2 else second))
        yield ("at", 3_000_000_000)
        yield from attempt(errors, rank, ("finish",))

    world.run([program(rank) for rank in range(size)])
    assert {rank: e.status for rank, e in errors.items()} == dict.fromkeys(
        range(size), lib.PP_ERR_MISMATCH
    )
    assert "rank 2 in Free of handle 1: collective calls must be" in errors[0].text


@pytest.mark.parametrize("memory", [(), (0, 0)], ids=["messages", "memory"])
def test_handles_that_were_freed_cost_nothing(memory):
    """What a rank looks at whenever something has changed are its live handles."""
    world = World(2, memory=memory)
    looked_at = []

    def program(rank):
        kept = yield ("init", SOLO3)
        for _ in range(1000):
            handle = yield ("init", SOLO3)
            yield ("free", handle)
        looked_at.append(world.handles(rank))
        yield ("start", kept)
        yield ("wait", kept)
        yield ("free", kept)
        yield ("ctx_free",)

    world.run([program(rank) for rank in range(2)])
    assert looked_at == [2, 2]  # the kept one, and what the ranks make handles by
