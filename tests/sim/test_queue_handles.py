"""Handles of queues on simulated ranks: in shared memory, by messages, and between nodes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.queue_replay import Request, Way, replay, ways
from support.queues import GRAPHS
from support.queues import MODES as QUEUE_MODES
from support.queues import World as Rules

from pypartial._core_sim import lib
from pypartial.sim.queue_handle import QueueOptions
from pypartial.sim.world import Deadlock, World
from pypartial.status import QueueResult

STEPS = 8
# In memory a rank is interrupted at every shared access; by messages these come in seeded orders.
WAYS = {"memory": (300, 1000), "messages": (), "nodes": (300, 1000, 2)}


@pytest.fixture(params=WAYS)
def way(request):
    """How the ranks of a `World` see each other."""
    return {"memory": WAYS[request.param]}


def ring(ranks):
    """The out-neighbours of each rank of a ring."""
    if ranks == 1:
        return ((),)
    return tuple(tuple(sorted({(i - 1) % ranks, (i + 1) % ranks})) for i in range(ranks))


def replayed(options, rank, models):
    """A standard average: the own model first, then in-neighbours in their order."""
    ins = options.ins(rank)
    weight = 1 / (len(ins) + 1)
    result = models[rank] * weight
    for i in ins:
        result = result + weight * models[i]
    return result


@pytest.mark.parametrize("protocol", ["tokens", "notify-ack", "none"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_averages_are_replayed_bit_for_bit(ranks, protocol, seed, way):
    options = QueueOptions(ring(ranks), count=3000, protocol=protocol, max_ig=1 + seed % 3)
    draw = np.random.default_rng(seed)
    first = [draw.standard_normal(options.count) for _ in range(ranks)]
    expected = [first]
    for _ in range(STEPS):
        expected.append([replayed(options, rank, expected[-1]) for rank in range(ranks)])

    def program(rank):
        handle = yield "queue_init", options, 0, rank
        handle.recv[:] = first[rank]
        for step in range(STEPS):
            yield "queue_start", handle
            result, data = yield "wait", handle
            assert result.iteration == step + 1
            assert result.received == len(options.ins(rank))
            assert data == expected[step + 1][rank].tobytes(), (rank, step)
        _, data = yield "flush", handle
        assert np.allclose(np.frombuffer(data), np.mean(expected[-1], axis=0), atol=1e-12)
        assert (yield "free", handle) == 0
        yield ("ctx_free",)

    world = World(ranks, seed=seed, **way)
    world.run([program(rank) for rank in range(ranks)])


MODES = {
    "backup": {"backup": 1},
    "staleness": {"staleness": 2},
    "hybrid": {"staleness": 2, "backup": 1},
    "skip": {"backup": 1, "skip": 3, "skip_trigger": 1},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_no_model_is_torn(mode, seed, way):
    ranks = 3 + seed % 3
    options = QueueOptions(ring(ranks), count=2500, max_ig=2 + seed % 3, **MODES[mode])

    flushed = {}

    def program(rank):
        handle = yield "queue_init", options, 0, rank
        before = 0
        for step in range(STEPS):
            handle.recv[:] = rank + step * ranks
            yield "queue_start", handle
            result, data = yield "wait", handle
            assert len({data[i : i + 8] for i in range(0, len(data), 8)}) == 1
            assert result.iteration == before + 1 + result.skipped
            assert result.gap <= options.max_ig
            assert result.staleness <= (options.staleness or 0)
            before = result.iteration
        flushed[rank] = (yield "flush", handle)[1]
        yield "free", handle
        yield ("ctx_free",)

    world = World(ranks, seed=seed, **way)
    world.run([program(rank) for rank in range(ranks)])
    assert len(set(flushed.values())) == 1


def left_behind(seed, plant):
    """Whether a model was torn at a rank that averages while it has left, and others go on."""
    options = QueueOptions(ring(3), count=6000, max_ig=1, backup=1)
    torn = []

    def program(rank):
        handle = yield "queue_init", options, 0, rank
        for step in range(4 if rank == 0 else 40):
            handle.recv[:] = 3 * step + rank
            yield "queue_start", handle
            if rank == 0:
                yield ("aside", 0)
            data = np.frombuffer((yield "wait", handle)[1])
            torn.append(data.min() != data.max())
            if rank == 0:
                yield ("beside", 0)
        yield "flush", handle
        yield "free", handle
        yield ("ctx_free",)

    world = World(3, seed=seed, memory=(300, 1000), plant=plant)
    world.run([program(rank) for rank in range(3)])
    return any(torn)


def test_an_update_that_is_overwritten_while_it_is_read_is_not_averaged():
    assert not any(left_behind(seed, lib.PP_PLANT_NONE) for seed in range(40))
    assert any(left_behind(seed, lib.PP_PLANT_UNCHECKED_TAG) for seed in range(40))


@pytest.mark.parametrize("mode", ["standard", *MODES])
@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_leave_and_come_back(mode, seed, way):
    ranks = 3 + seed % 3
    options = QueueOptions(ring(ranks), count=700, max_ig=2, **MODES.get(mode, {}))
    flushed = {}

    def program(rank):
        draw = np.random.default_rng((seed, rank))
        handle = yield "queue_init", options, 0, rank
        for phase in range(2):
            for step in range(draw.integers(2, STEPS)):
                handle.recv[:] = rank + step * ranks
                yield "queue_start", handle
                if draw.random() < 0.3:
                    yield ("aside", 0)
                    data = (yield "wait", handle)[1]
                    yield ("beside", 0)
                else:
                    data = (yield "wait", handle)[1]
                assert len({data[i : i + 8] for i in range(0, len(data), 8)}) == 1
            if draw.random() < 0.5:
                yield "queue_start", handle
            yield ("away", 0)
            yield ("back", 0)
            flushed[phase, rank] = yield "flush", handle
        yield "free", handle
        yield ("ctx_free",)

    world = World(ranks, seed=seed, **way)
    world.run([program(rank) for rank in range(ranks)])
    for phase in range(2):
        assert len({flushed[phase, rank] for rank in range(ranks)}) == 1


@pytest.mark.parametrize("mode", ["standard", "backup", "staleness", "skip"])
@pytest.mark.parametrize("seed", range(8))
def test_two_queues_in_a_loop(mode, seed, way):
    """A rank that was aside in one handle's iteration may not leave out another one's."""

    def program(rank):
        draw = np.random.default_rng((seed, rank))
        complete = tuple(tuple(r for r in range(4) if r != rank) for rank in range(4))
        fields = MODES.get(mode, {})
        first = yield "queue_init", QueueOptions(ring(4), **fields), 0, rank
        second = yield "queue_init", QueueOptions(complete, max_ig=2, **fields), 0, rank
        for step in range(1, 4 * STEPS):
            yield int(draw.choice((0, 100, 20_000)))
            for handle in (first, second)[: 2 - step % 2]:
                yield "queue_start", handle
                result, _ = yield "wait", handle
                assert result.iteration == (step if handle is first else step // 2)
            if draw.random() < 0.3 or step % 5 == 0:
                yield ("aside", 0)
                yield ("barrier",) if step % 5 == 0 else int(draw.integers(30_000))
                yield ("beside", 0)
        for handle in (first, second):
            yield "free", handle
        yield ("ctx_free",)

    World(4, seed=seed, **way).run([program(rank) for rank in range(4)])


def test_a_call_ends_for_all_who_hear_it_late():
    """Rank 0 says that a call is over; while it does, it hears of it from others."""

    def program(rank):
        handle = yield "queue_init", QueueOptions(ring(12)), 0, rank
        yield "free", handle
        yield ("aside", 0)
        yield ("barrier",)
        yield ("beside", 0)
        yield ("ctx_free",)

    for seed in range(10):
        world = World(12, seed=seed, latency=(1000, 1000), memory=(50, 20_000, 11, 2))
        world.run([program(rank) for rank in range(12)])


@pytest.mark.parametrize("call", ["queue_init", "flush", "away"])
def test_a_rank_that_is_late_out_of_a_call_leaves_out_nothing(call):
    """Others go on with what it has not started yet in one handle, and wait for it in another."""

    def program(rank):
        loose = yield "queue_init", QueueOptions(ring(4), backup=1, max_ig=4), 0, rank
        strict = yield "queue_init", QueueOptions(ring(4)), 0, rank
        for step in range(1, STEPS):
            for handle in (loose, strict):
                yield "queue_start", handle
                result, _ = yield "wait", handle
                assert (result.iteration, result.skipped) == (step, 0)
            if call == "away":
                yield ("away",)
                yield ("back",)
            elif call == "flush":
                yield "flush", loose
            else:
                yield "free", (yield "queue_init", QueueOptions(ring(4)), 0, rank)
        for handle in (loose, strict):
            yield "free", handle
        yield ("ctx_free",)

    for seed in range(20):
        World(4, seed=seed, memory=(50, 1000)).run([program(rank) for rank in range(4)])


# ---- every average, replayed --------------------------------------------------------------------


class Course:
    """Ranks that go by a mode on a graph, and what must hold."""

    def __init__(
        self, mode: str, graph: str, seed: int, leave: bool = False, plant: int = 0, steps: int = 12
    ) -> None:
        self.mode, self.graph = RULES[mode], GRAPHS[graph](3 + seed % 3)
        fields = dataclasses.asdict(self.mode)
        del fields["weighted"]
        outs = tuple(map(tuple, self.graph.outs))
        self.options = QueueOptions(outs, count=5, back=self.graph.back, plant=plant, **fields)
        self.rules = Rules(self.graph, self.mode)  # of which nothing but its bounds is used
        self.seed, self.leave, self.steps = seed, leave, steps
        self.requests: list[list[Request]] = [[] for _ in outs]
        self.seen = [0] * len(outs)
        self.waits = [False] * len(outs)

    def run(self, memory: tuple[int, ...] = WAYS["memory"]) -> None:
        world = World(self.graph.ranks, seed=self.seed, memory=memory)
        world.run([self.program(rank) for rank in range(self.graph.ranks)])
        for rank in range(self.graph.ranks):
            self.replay(rank)

    def program(self, rank: int) -> Any:
        draw = np.random.default_rng((self.seed, rank))
        handle = yield "queue_init", self.options, 0, rank
        slow = draw.choice((0, 200, 20_000))
        for _ in range(self.steps):
            yield int(draw.choice((0, slow)))
            handle.recv += draw.standard_normal(self.options.count)
            request = Request(handle.recv.copy(), self.seen[rank])
            self.requests[rank].append(request)
            self.waits[rank] = True
            yield "queue_start", handle
            yield from self.look_at_sizes(rank, handle)
            away = self.leave and draw.random() < 0.3
            if away:
                yield ("aside", 0)
            request.result, request.data = yield "wait", handle
            self.waits[rank] = False
            self.look_at_gaps(rank, request.result)
            if away:
                yield 2000
                yield ("beside", 0)
        yield "flush", handle
        yield "free", handle
        yield ("ctx_free",)

    def look_at_sizes(self, rank: int, handle: Any) -> Any:
        for at, sender in enumerate(self.graph.ins[rank]):
            yield "call", handle, handle.size(sender)
            assert self.leave or handle.counted[0] <= self.rules.most[rank][at]

    def look_at_gaps(self, rank: int, result: Any) -> None:
        """One that waits may have entered the next iteration."""
        assert result.iteration == self.seen[rank] + 1 + result.skipped
        self.seen[rank] = result.iteration
        if self.leave or self.mode.skip:
            return
        for other, most in enumerate(self.rules.table[rank]):
            assert result.iteration - self.seen[other] - self.waits[other] <= most, "Table 1"
        if self.mode.protocol != "none":
            assert result.gap <= {"tokens": self.mode.max_ig, "notify-ack": 2}[self.mode.protocol]

    def replay(self, rank: int) -> None:
        ins = [self.requests[sender] for sender in self.graph.ins[rank]]
        replay(self.requests[rank], lambda _: ins, self.mode.staleness, lambda _: self.leave)


RULES = {name: mode for name, mode in QUEUE_MODES.items() if name != "topology"}


@pytest.mark.parametrize("graph", ["ring", "exponential", "directed"])
@pytest.mark.parametrize("mode", RULES)
def test_every_average_is_replayed_and_gaps_are_within_table_1(
    mode: str, graph: str, way: Any
) -> None:
    for seed in range(3):
        Course(mode, graph, seed).run(**way)


@pytest.mark.parametrize("mode", RULES)
def test_averages_of_ranks_that_leave_are_replayed(mode: str, way: Any) -> None:
    for seed in range(4):
        Course(mode, "ring", seed, leave=True).run(**way)


def test_an_average_of_many_updates_of_any_iteration_is_replayed_at_once() -> None:
    """As of ranks that left for long: there are 10^9 ways to choose the iterations."""
    draw, bound, due = np.random.default_rng(0), 2, 7
    own, *others = [
        Request(draw.standard_normal(8), 0, QueueResult(40, 0, 0, 0, 0, 0)) for _ in range(7)
    ]
    of = [3, 6, 7, 5, 9, 30, 6]
    shares = [max(k - (due - bound) + 1, 0) for k in of]
    terms = [s / sum(shares) * r.vector for s, r in zip(shares, [own, *others], strict=True) if s]
    asked = Request(
        own.vector, 0, QueueResult(40, 0, 0, 6, 0, 0), sum(terms[1:], terms[0]).tobytes()
    )
    found = ways(asked, [[other] for other in others], bound, left=True)
    assert Way(due, tuple(of[1:])) in found


def test_a_lost_token_is_found() -> None:
    with pytest.raises(Deadlock, match="waits for rank"):
        Course("tight", "ring", 0, plant=lib.PP_QUEUES_PLANT_LOST_TOKEN).run()


def test_an_update_that_is_averaged_twice_is_found() -> None:
    with pytest.raises(AssertionError, match="averaged twice"):
        for seed in range(10):
            Course("staleness", "ring", seed, plant=lib.PP_QUEUES_PLANT_TWICE).run()
