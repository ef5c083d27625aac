"""Gossip on simulated ranks: every average is replayed, bit for bit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples
from support.gossip_replay import Own, Replay
from test_groups_passive import connected

from pypartial._core_sim import lib
from pypartial.policy import Majority
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.gossip_handle import Average, GossipHandle, GossipOptions
from pypartial.sim.handle import CoreError
from pypartial.sim.preduce_handle import PreduceOptions
from pypartial.sim.world import Deadlock, World

Program = Generator[Any, Any, None]
MEMORY = (300, 1000)
PAIR = ((1,), (0,))
MS = 1_000_000


def end(*handles: Any) -> Program:
    for handle in handles:
        yield ("free", handle)
    yield ("ctx_free",)


def average(handle: GossipHandle, add: Any = None) -> Generator[Any, Any, Average]:
    yield ("gossip_start", handle, add)
    found: Average = yield ("wait", handle)
    return found


def hold(handle: GossipHandle) -> Program:
    """Hold the model; simulated ranks that share no memory do not wait inside a call."""
    for _ in range(20_000):
        if (yield ("call", handle, handle.hold())) == lib.PP_OK:
            return
        yield 1000
    raise Deadlock("the model has not come in 20 ms")


@pytest.fixture(params=[MEMORY, (), (*MEMORY, 2)], ids=["node", "messages", "nodes"])
def memory(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """What the ranks share: the memory of a node, none, or that of nodes of two ranks."""
    found: tuple[int, ...] = request.param
    return found


def run(world: World, program: Callable[[int], Program]) -> World:
    world.run([program(rank) for rank in range(world.ranks)])
    return world


# ---- one rank at random --------------------------------------------------------------------------


class Walker:
    """A rank that does what it may at random, and notes what it did and saw."""

    def __init__(self, rank: int, options: GossipOptions, seed: int, steps: int) -> None:
        self.rank, self.options, self.steps = rank, options, steps
        self.random = random.Random(f"{seed} {rank}")
        self.noise = np.random.default_rng([seed, rank])
        self.own = Own(self.draw())
        self.uncollected = False

    def draw(self) -> Any:
        return self.noise.standard_normal(self.options.count).astype(self.options.dtype)

    def add(self) -> Any:
        if self.random.random() < 0.3:
            return None
        found = self.draw()
        self.own.adds.append(found)
        return found

    def note(self, found: Average) -> None:
        assert found.staleness >= 0
        if found.round:
            assert self.rank in found.members and len(found.members) == 2
            self.own.given[found.round] = found.data
        else:
            self.own.alone.append((found.data, None))

    def program(self) -> Program:
        handle = yield ("gossip_init", self.options, 0, self.own.first)
        assert isinstance(handle, GossipHandle)
        for _ in range(self.steps):
            yield self.random.choice((0, 0, 200, 5000))
            does = self.random.choice(("average", "average", "average", "hold", "read", "away"))
            yield from getattr(self, does)(handle)
        asks = self.options.edges[self.rank] and not self.options.continuous
        if self.random.random() < 0.5 and asks:
            yield ("gossip_start", handle, self.add())  # a Flush takes it back
        for _ in range(2):
            found = yield ("flush", handle)
            self.own.given[found.round] = found.data
            assert found.members == tuple(range(len(self.options.edges)))
        yield from end(handle)

    def average(self, handle: GossipHandle) -> Program:
        yield ("gossip_start", handle, self.add())
        if self.random.random() < 0.3:  # the model may be read, and changed, before Wait
            yield from getattr(self, self.random.choice(("hold", "read")))(handle, before=True)
        found = None
        while found is None:
            how = self.random.choice(("wait", "wait_for", "test"))
            if how != "wait_for":
                found = yield (how, handle)
            else:
                found = yield (how, handle, self.random.choice((1, 1000)))
                if found is None:  # what a Start then adds is folded in by any later average
                    yield ("timed_out", handle)
                    yield ("gossip_start", handle, self.add())
            yield 100
        self.collect(found)

    def collect(self, found: Average) -> None:
        if self.held and not found.round:  # the request came before what was done by itself
            self.own.alone.insert(len(self.own.alone) - self.held, (found.data, None))
        else:
            self.note(found)
        self.held = 0

    held = 0  # calls by itself between a Start and its Wait

    def hold(self, handle: GossipHandle, before: bool = False) -> Program:
        yield from hold(handle)
        found = handle.model.copy()
        yield self.random.choice((0, 3000))
        assert (handle.model == found).all(), "the model changed while it was held"
        left = self.draw()
        handle.model[:] = left
        self.own.alone.append((found.astype(self.options.dtype).tobytes(), left))
        yield ("call", handle, handle.release())
        self.held += before

    def read(self, handle: GossipHandle, before: bool = False) -> Program:
        yield from hold(handle)
        out = handle.model.astype(self.options.dtype)
        yield ("call", handle, handle.release())
        self.own.alone.append((out.tobytes(), None))
        self.held += before

    def away(self, handle: GossipHandle) -> Program:
        yield 0


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    """Draw a graph, sizes, a pace and a seed."""
    return {
        "ranks": draw(st.integers(1, 9)),
        "count": draw(st.sampled_from((0, 1, 3, 4, 5, 17, 40))),
        "dtype": draw(st.sampled_from(("float32", "float64", "float16"))),
        "passive": draw(st.booleans()),
        "pieces": draw(st.integers(1, 2)),
        "fenced": draw(st.booleans()),
        "continuous": draw(st.booleans()),
        "pace": draw(st.sampled_from(((0, 1), (300, 1000), (900, 20_000)))),
        "seed": draw(st.integers(0, 2**32)),
    }


def perform(case: dict[str, Any], steps: int = 12, **world_options: Any) -> Replay:
    seed, ranks = case["seed"], case["ranks"]
    shape = random.Random(seed)
    edges = case.get("edges") or (connected(ranks, shape) if ranks > 1 else [[]])
    if case["passive"]:
        edges = [own if rank == 0 or shape.random() < 0.5 else [] for rank, own in enumerate(edges)]
    options = GossipOptions(
        tuple(map(tuple, edges)),
        *(case["count"], case["dtype"], case["pieces"], case["fenced"]),
        continuous=case.get("continuous", False),
    )
    world = World(ranks, seed=seed, memory=case["pace"], keep_groups=True, **world_options)
    walkers = [Walker(rank, options, seed, shape.randrange(steps + 1)) for rank in range(ranks)]
    world.run([walker.program() for walker in walkers])
    replay = Replay([walker.own for walker in walkers], len(case["pace"]) != 2)
    replay.run(world.groups_begun())
    return replay


@examples(150)
@given(case=cases())
def test_the_log_replays_bit_for_bit(case: dict[str, Any]) -> None:
    perform(case)


@examples(150)
@given(case=cases(), nodes=st.integers(0, 3))
def test_by_messages_the_log_replays_bit_for_bit(case: dict[str, Any], nodes: int) -> None:
    case["dtype"] = "float32" if case["dtype"] == "float16" else case["dtype"]
    perform(case | {"pace": (*case["pace"], nodes) if 0 < nodes < case["ranks"] else ()})


def regular(ranks: int, degree: int, draw: random.Random) -> list[list[int]]:
    """Return a directed graph: a circle through all ranks, and more steps along it."""
    order = draw.sample(range(ranks), ranks)
    steps = {1, *draw.sample(range(1, ranks), min(degree, ranks - 1))}
    found = [sorted(order[(at + step) % ranks] for step in steps) for at in range(ranks)]
    return [found[order.index(rank)] for rank in range(ranks)]


GRAPHS: dict[str, Callable[[int, random.Random], list[list[int]]]] = {
    "ring": lambda n, _: [sorted({(rank - 1) % n, (rank + 1) % n}) for rank in range(n)],
    "complete": lambda n, _: [[other for other in range(n) if other != rank] for rank in range(n)],
    "star": lambda n, _: [list(range(1, n)), *([0] for _ in range(n - 1))],
    "star-of-the-last": lambda n, _: [*([n - 1] for _ in range(n - 1)), list(range(n - 1))],
    "random": connected,
    "directed": lambda n, draw: regular(n, 3, draw),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ranks", [3, 8, 33])
def test_by_messages_no_graph_deadlocks(graph: str, ranks: int) -> None:
    for seed in range(4):
        edges = GRAPHS[graph](ranks, random.Random(seed))
        case = {"ranks": ranks, "count": 3, "dtype": "float64", "passive": False, "pieces": 1}
        case |= {"fenced": False, "pace": (), "seed": seed, "edges": edges}
        assert perform(case, steps=30).averages > 5 * ranks


@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_models_come_together_as_fast_as_the_draws_promise(
    graph: str, memory: tuple[int, ...]
) -> None:
    """After k averages the mean square of distances is at most lambda_2(E[W])^k of the first."""
    ranks, averages = 8, 60
    edges = GRAPHS[graph](ranks, random.Random(0))
    expected = np.eye(ranks)
    for rank, own in enumerate(edges):
        for other in own:
            apart = np.eye(ranks)[rank] - np.eye(ranks)[other]
            expected -= np.outer(apart, apart) / 2 / len(own) / ranks
    bound = np.sort(np.linalg.eigvalsh(expected))[-2]
    squares = np.zeros(averages)
    for seed in range(40):
        options = GossipOptions(tuple(map(tuple, edges)))
        world = World(ranks, seed=seed, memory=memory, keep_groups=True)
        walkers = [Steady(rank, options, seed, 40) for rank in range(ranks)]
        world.run([walker.program() for walker in walkers])
        models = np.random.default_rng(seed).normal(size=ranks)
        models -= models.mean()
        models /= np.linalg.norm(models)
        begun = {event.serial: event.members for event in world.groups_begun()}
        pairs = [pair for pair in begun.values() if len(pair) == 2][:averages]
        for at, pair in enumerate(pairs):
            models[list(pair)] = models[list(pair)].mean()
            squares[at] += models @ models / 40
    promised = bound ** np.arange(1, averages + 1)
    assert (squares <= 1.25 * promised).all()  # of 40 runs, which differ by some percent


class Steady(Walker):
    """A rank that asks for averages only, at a pace of its own."""

    def program(self) -> Program:
        handle = yield ("gossip_init", self.options, 0, self.own.first)
        for _ in range(self.steps):
            yield self.random.randrange(20_000)
            yield from average(handle)
        yield from end(handle)


def test_averages_go_on_by_themselves(memory: tuple[int, ...]) -> None:
    """A rank that makes no Start at all comes to the mean of all after a while."""
    rings = GossipOptions(((1, 2), (0, 2), (0, 1)), 5, continuous=True)
    far: list[float] = []

    def program(rank: int) -> Program:
        handle = yield ("gossip_init", rings, 0, 9.0 * rank)
        if rank == 1:
            found = yield from average(handle, np.ones(5))
            assert found.round == 0
            assert found.members == (1,)
        yield 200 * MS
        yield from hold(handle)
        far.append(abs(float(handle.model[0]) - 28 / 3))
        yield ("call", handle, handle.release())
        yield ("flush", handle)
        assert np.frombuffer(handle.collected().data)[0] == pytest.approx(28 / 3)
        yield from end(handle)

    run(World(3, memory=memory), program)
    assert max(far) < 1e-6


@pytest.mark.parametrize("graph", ["ring", "complete", "directed"])
def test_turns_in_two_orders_are_found_as_a_deadlock(graph: str) -> None:
    found = 0
    for seed in range(10):
        edges = GRAPHS[graph](9, random.Random(seed))
        case = {"ranks": 9, "count": 3, "dtype": "float64", "passive": False, "pieces": 1}
        case |= {"fenced": False, "pace": (), "seed": seed, "edges": edges}
        try:
            perform(case, steps=40, plant=lib.PP_PLANT_INITIATOR_FIRST)
        except Deadlock:
            found += 1
    assert found >= 6


def test_what_is_hard_to_get_right_occurs() -> None:
    """Adds of long vectors come to adds that no average has taken yet."""
    case = {"ranks": 4, "count": 17, "dtype": "float64", "passive": False, "pieces": 1}
    case |= {"fenced": False, "pace": (900, 20_000)}
    replays = [perform(case | {"seed": seed}, steps=40) for seed in range(8)]
    assert min(replay.averages for replay in replays) > 20
    assert sum(replay.overlaps for replay in replays) > 10


@pytest.mark.parametrize("plant", ["LOST_ADD", "OTHER_SLOT", "MEMBER_TWICE"])
@pytest.mark.parametrize("count", [3, 17])
def test_planted_defects_are_found_by_the_replay(
    plant: str, count: int, memory: tuple[int, ...]
) -> None:
    case = {"ranks": 4, "count": count, "dtype": "float32", "passive": False, "pieces": 1}
    case |= {"fenced": False, "pace": memory}
    found = 0
    for seed in range(8):
        try:
            perform(case | {"seed": seed}, steps=40, plant=getattr(lib, f"PP_PLANT_{plant}"))
        except AssertionError:
            found += 1
    assert found >= 6


@pytest.mark.parametrize("plant", ["lost-release", "other-order"])
def test_planted_defects_of_the_ledger_are_found(plant: str) -> None:
    case = {"ranks": 9, "count": 40, "dtype": "float32", "passive": False, "pieces": 1}
    case |= {"fenced": False, "pace": (900, 20_000)}
    found = 0
    for seed in range(10):
        try:
            perform(case | {"seed": seed}, steps=40, groups_plant=plant)
        except (AssertionError, CoreError, Deadlock):
            found += 1
    assert found >= 6


# ---- what it promises ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 40])
def test_a_rank_that_computes_is_averaged_all_the_same(count: int, memory: tuple[int, ...]) -> None:
    world = World(2, memory=memory)
    times = []

    def program(rank: int) -> Program:
        handle = yield ("gossip_init", GossipOptions(PAIR, count), 0, 8.0 * rank)
        if rank == 0:
            found = yield from average(handle)
            times.append(world.now)
            assert (found.members, handle.recv[0]) == ((0, 1), 4.0)
            assert (yield from average(handle, np.full(count, 2.0))).staleness == 0
        else:
            yield 50 * MS
            assert (handle.recv == 8.0).all()
            found = yield from average(handle, np.full(count, 1.0))
            assert (found.staleness, handle.recv[0]) == (2, 5.5)
        yield from end(handle)

    run(world, program)
    assert times[0] < MS


def test_wait_gives_the_model_as_of_its_average_even_if_others_come_after(
    memory: tuple[int, ...],
) -> None:
    world = World(3, memory=memory)

    def program(rank: int) -> Program:
        star = GossipOptions(((1,), (0,), (0,)), 5)
        handle = yield ("gossip_init", star, 0, 4.0 * rank)
        yield rank * MS
        yield ("gossip_start", handle)
        yield 10 * MS
        yield ("wait", handle)
        assert (handle.recv == [2.0, 2.0, 5.0][rank]).all()
        yield from end(handle)

    run(world, program)


def test_flush_is_the_average_of_all_and_takes_what_was_added(memory: tuple[int, ...]) -> None:
    def program(rank: int) -> Program:
        handle = yield ("gossip_init", GossipOptions(((1, 2), (0,), (0,)), 3), 0, 3.0 * rank)
        yield ("gossip_start", handle, np.full(3, 1.0))
        found = yield ("flush", handle)
        assert found.members == (0, 1, 2) and np.allclose(handle.recv, 4.0)
        assert (yield from average(handle)).round > found.round  # the handle goes on
        yield from end(handle)

    run(World(3, memory=memory), program)


@pytest.mark.parametrize("count", [2, 30])
def test_free_discards_an_outstanding_request(count: int, memory: tuple[int, ...]) -> None:
    def program(rank: int) -> Program:
        handle = yield ("gossip_init", GossipOptions(PAIR, count))
        if rank == 0:
            yield from hold(handle)
            yield 5 * MS
            yield ("call", handle, handle.release())
        else:
            yield MS
            yield ("gossip_start", handle, np.ones(count))
        assert (yield ("free", handle)) == (rank == 1)
        yield ("ctx_free",)

    run(World(2, memory=memory), program)


def test_ranks_that_left_stay_members(memory: tuple[int, ...]) -> None:
    """Inside another collective call, away, and freeing the same handle."""
    world = World(3, memory=memory)

    def program(rank: int) -> Program:
        handle = yield ("gossip_init", GossipOptions(((1, 2), (0,), (0,)), 9), 0, rank)
        if rank == 0:
            for _ in range(20):
                yield from average(handle, np.ones(9))
            yield ("away",)
            assert world.now < MS
        else:
            yield ("away",)
            yield 5 * MS * rank
        yield ("back",)
        other = yield ("init", Options(count=1))
        yield from end(handle, other)

    run(world, program)


def test_a_rank_whose_script_has_ended_stays_a_neighbour() -> None:
    def program(rank: int) -> Program:
        handle = yield ("gossip_init", GossipOptions(((2,), (2,), (0, 1)), 9), 0, 6.0 * rank)
        if rank < 2:
            yield 5 * MS
            for _ in range(10):
                assert (yield from average(handle)).members == (rank, 2)
            assert (yield ("flush", handle)).members == (0, 1)
            yield ("free", handle)
        yield ("end_script",)

    run(World(3), program)


def test_several_handles_of_all_kinds(memory: tuple[int, ...]) -> None:
    """Gossip waits for nobody that computes, so no order of handles deadlocks."""
    for seed in range(6):
        world = World(4, seed=seed, memory=memory, patience=-1)

        def program(rank: int, seed: int = seed) -> Program:
            draw = random.Random(f"{seed} {rank}")
            ring = GossipOptions(((1, 3), (0, 2), (1, 3), (0, 2)), 6)
            one = yield ("gossip_init", ring)
            two = yield ("gossip_init", ring)
            groups = yield ("groups_init", PreduceOptions("random:2", count=6))
            rounds = yield ("init", Options(count=1, policy=Majority()))
            for _ in range(draw.randrange(5, 15)):
                for handle in draw.sample((one, two), 2):
                    yield ("gossip_start", handle, np.ones(6))
                yield ("groups_start", groups)
                yield ("start", rounds)
                for handle in (groups, rounds, *draw.sample((one, two), 2)):
                    yield ("wait", handle)
            yield ("flush", two)
            yield from end(one, two, groups, rounds)

        run(world, program)


# ---- the model itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 30])
def test_who_holds_the_model_has_it_alone(count: int, memory: tuple[int, ...]) -> None:
    world = World(2, memory=memory)

    def program(rank: int) -> Program:
        handle = yield ("gossip_init", GossipOptions(PAIR, count))
        if rank == 0:
            yield ("gossip_start", handle, np.full(count, 1.0))
            yield from hold(handle)
            held = handle.model
            assert (held == 0.5).all()
            for value in range(10):
                held[:] = value
                yield MS
                assert (held == value).all()
            yield ("call", handle, handle.release())
            assert (yield ("wait", handle)).round and (handle.recv == 0.5).all()
        else:
            yield MS
            yield from average(handle)
            assert world.now > 9 * MS and (handle.recv == (9 + 0.5) / 2).all()
        yield from end(handle)

    run(world, program)


def test_calls_that_can_wait_are_refused_while_the_model_is_held(memory: tuple[int, ...]) -> None:
    def refused(request: Any, why: str) -> Program:
        with pytest.raises(CoreError, match=why) as error:
            yield request
        assert error.value.status == lib.PP_ERR_STATE

    def program(rank: int) -> Program:
        handle = yield ("gossip_init", GossipOptions(PAIR, 2))
        other = yield ("gossip_init", GossipOptions(PAIR, 2))
        yield ("gossip_start", other)
        yield from hold(handle)
        # Without a common memory "wait" is a call that does not wait.
        waits = [("wait", other)] if memory == MEMORY else []
        for request in (*waits, ("flush", handle), ("free", other), ("away",)):
            yield from refused(request, r"inside locked\(\)")
        yield from refused(("gossip_init", GossipOptions(PAIR, 2)), r"inside locked\(\)")
        yield from refused(("gossip_start", handle), r"inside locked\(\)")
        yield from refused(("call", other, other.hold()), r"inside locked\(\)")
        yield from refused(("ctx_free",), r"inside locked\(\)")
        yield ("call", handle, handle.release())
        yield ("wait", other)
        yield ("call", handle, handle.release())  # nothing is held: nothing to do
        yield from end(handle, other)

    run(World(2, memory=memory), program)


def test_holds_that_are_given_up_hold_nobody_up() -> None:
    """A rank that asks for its model, and lets it go whether it has come or not."""
    outcomes: Counter[str] = Counter()
    for seed in range(5):
        sums = []

        def program(rank: int, seed: int = seed, sums: list[float] = sums) -> Program:
            draw = random.Random(f"{seed} {rank}")
            handle = yield ("gossip_init", GossipOptions(((1, 2), (0, 2), (0, 1)), 40))
            for _ in range(30):
                yield draw.choice((0, 500))
                if rank < 2:
                    yield from average(handle, np.ones(40))
                    continue
                try:
                    status = yield ("call", handle, handle.hold(0))
                    outcomes["pending" if status else "held"] += 1
                    yield ("call", handle, handle.release())
                    yield ("gossip_start", handle)
                    yield ("wait", handle)
                except CoreError as error:
                    assert "interrupted, has not ended yet" in error.text
                    outcomes["refused"] += 1
            yield ("flush", handle)
            sums.append(handle.recv.sum())
            yield from end(handle)

        run(World(3, seed=seed, memory=(1000, 20_000)), program)
        assert np.allclose(sums, 40 * 20)
    assert min(outcomes[what] for what in ("pending", "held", "refused")) > 5, outcomes


def test_a_hold_that_was_given_up_before_it_was_asked_for(memory: tuple[int, ...]) -> None:
    def program(rank: int) -> Program:
        handle = yield ("gossip_init", GossipOptions(PAIR, 30), 0, 1.0)
        if rank == 0:
            yield from hold(handle)
            yield 20 * MS
            yield ("call", handle, handle.release())
        else:
            yield MS
            yield ("gossip_start", handle, np.ones(30))  # waits for rank 0
            asks = handle.hold(0)
            yield ("call", handle, asks)
            yield ("call", handle, handle.release())
            assert (yield ("wait", handle)).round
            assert (yield from average(handle)).members == (0, 1)
        yield from end(handle)

    run(World(2, memory=memory), program)


# ---- errors --------------------------------------------------------------------------------------


def test_pieces_that_are_not_like_the_handles_are_refused(memory: tuple[int, ...]) -> None:
    def program(rank: int) -> Program:
        handle = yield ("gossip_init", GossipOptions(PAIR, 4, pieces=2))
        call = handle.start(np.ones(4))
        with pytest.raises(CoreError, match="as many, and as long") as refused:
            yield ("call", handle, call._replace(arguments=(*call.arguments[:-1], 1)))
        assert refused.value.status == lib.PP_ERR_ARGUMENT
        assert (yield from average(handle)).round
        yield from end(handle)

    run(World(2, memory=memory), program)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (GossipOptions(((1,), (0, 2), (1,))), r"of a test \(\w{8}\)"),
        (GossipOptions(((1, 2), (0,), (0,)), 2), "2 elements"),
        (GossipOptions(((1, 2), (0,), (0,)), dtype="float32"), "float32"),
        (GossipOptions(((1, 2), (0,), (0,)), raw=(("type", lib.PP_INT32),)), "floating numbers"),
        (GossipOptions(((0,), (0,), (0,))), "neighbour 0 of rank 0"),
        ("a complaint of the caller", "a complaint of the caller"),
    ],
)
def test_ranks_that_differ_are_told_so(other: Any, why: str, memory: tuple[int, ...]) -> None:
    def program(rank: int) -> Program:
        options = GossipOptions(((1, 2), (0,), (0,)))
        with pytest.raises(CoreError, match=why):
            yield ("gossip_init", other if rank == 2 else options)
        yield from end((yield ("gossip_init", options)))

    run(World(3, memory=memory), program)
