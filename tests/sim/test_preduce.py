"""Handles of P-Reduce on simulated ranks, in memory that they share and by messages."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fuzz.group_oracles import association
from fuzz.replay import average

from pypartial._core_sim import lib
from pypartial.policy import Full, Majority, Solo
from pypartial.sim.allreduce_handle import Options
from pypartial.sim.handle import CoreError
from pypartial.sim.network import parse_network
from pypartial.sim.preduce_handle import Group, PreduceOptions
from pypartial.sim.world import World

MS = 1_000_000
WAYS = {"messages": (), "memory": (300, 1000), "nodes": (300, 1000, 2)}
BOTH = ("messages", "memory")
GENERATORS = (
    *("random:3", "random:3,reuse", "smart:3", "smart:3,no-division", "smart:3,inter-intra"),
    *("controller:3", "controller:3,no-unfreeze"),
)
Program = Generator[Any, Any, None]


@pytest.fixture(params=BOTH)
def way(request: pytest.FixtureRequest) -> tuple[int, ...]:
    return WAYS[request.param]


def run(world: World, program: Callable[[int], Program]) -> World:
    world.run([program(rank) for rank in range(world.ranks)])
    return world


def ask(
    handle: Any, value: float | None = None, iteration: int = 0, members: Any = None
) -> Generator[Any, Any, Group]:
    """Start and Wait."""
    if value is not None:
        handle.recv[:] = value
    yield ("groups_start", handle, iteration, members)
    group: Group = yield ("wait", handle)
    return group


def end(handle: Any) -> Program:
    yield ("free", handle)
    yield ("ctx_free",)


def values(group: Group, dtype: str = "float64") -> list[float]:
    found: list[float] = np.frombuffer(group.data, dtype).tolist()
    return found


# ---- what a group is -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_group_is_the_average_of_its_members(way: tuple[int, ...], count: int, dtype: str):
    given: dict[int, Group] = {}

    def program(rank: int) -> Program:
        options = PreduceOptions("controller:3", count=count, dtype=dtype)
        handle = yield ("groups_init", options)
        given[rank] = yield from ask(handle, 0.1 * rank)
        yield from end(handle)

    run(World(3, memory=way), program)
    models = [np.full(count, 0.1 * rank, dtype) for rank in range(3)]
    chosen = association(way != (), count, models[0].itemsize)
    wanted = average(models, chosen(3)).tobytes()
    assert len(set(given.values())) == 1
    assert given[0] == Group(1, (0, 1, 2), (1 / 3,) * 3, 1, 0.0, wanted) or given[0] == replace(
        given[0], round=1, members=(0, 1, 2), data=wanted
    )
    assert given[0].data == wanted


@pytest.mark.parametrize("weights", ["closest", "initial"])
def test_weights_by_iteration_and_what_members_take_over(way: tuple[int, ...], weights: str):
    given: dict[int, list[Group]] = {}

    def program(rank: int) -> Program:
        options = PreduceOptions("controller:3", weights=weights)
        handle = yield ("groups_init", options, 0, np.full(1, 70.0))
        first = yield from ask(handle, [7.0, 14.0, 21.0][rank], [5, 5, 3][rank])
        second = yield from ask(handle, 0.0)
        given[rank] = [first, second]
        yield from end(handle)

    run(World(3, memory=way), program)
    first, second = given[0]
    initial = 2 / 7 if weights == "initial" else 0.0
    wanted = [2 / 7, 2 / 7, 1 / 7] if initial else [3 / 7, 3 / 7, 1 / 7]
    assert np.allclose(first.weights, wanted, rtol=1e-15)
    assert first.initial == pytest.approx(initial)
    total = 7 * wanted[0] + 14 * wanted[1] + 21 * wanted[2] + 70 * initial
    assert values(first) == [pytest.approx(total)]
    assert {groups[0].iteration for groups in given.values()} == {5}
    assert {groups[1].iteration for groups in given.values()} == {6}
    assert second.weights == (pytest.approx(1 / 3),) * 3


def test_a_flush_is_the_average_over_all_ranks_and_the_handle_goes_on(way: tuple[int, ...]):
    given: dict[int, list[Group]] = {}

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("controller:2", count=3))
        yield rank * 1000
        yield from ask(handle, 0.0) if rank < 2 else iter(())
        handle.recv[:] = rank
        flushed = yield ("flush", handle)
        own = handle.recv.copy()
        after = yield from ask(handle)
        given[rank] = [flushed, after]
        assert own.tolist() == values(flushed)
        yield from end(handle)

    run(World(4, memory=way), program)
    for flushed, after in given.values():
        assert (flushed.members, values(flushed)) == ((0, 1, 2, 3), [1.5] * 3)
        assert flushed.weights == (0.25,) * 4
        assert values(after) == [1.5] * 3
    assert len({group[0].round for group in given.values()}) == 1
    assert all(after.round > flushed.round for flushed, after in given.values())


def test_a_flush_takes_what_an_uncollected_request_holds(way: tuple[int, ...]):
    given = []

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("given", count=2))
        handle.recv[:] = 8.0 if rank == 0 else 1.0
        if rank == 0:
            yield ("groups_start", handle, 0, [0, 1])
            handle.recv[:] = 1000.0  # no longer the library's concern
        given.append((yield ("flush", handle)))
        yield from end(handle)

    run(World(2, memory=way), program)
    assert {group.data for group in given} == {np.full(2, 4.5).tobytes()}


# ---- when a group begins -------------------------------------------------------------------------


@pytest.mark.parametrize("generator", ["random:2", "smart:2", "controller:2"])
def test_a_rank_that_computes_is_never_computed_over(way: tuple[int, ...], generator: str):
    world = World(3, memory=way, keep_groups=True)
    busy_until, slow = 40 * MS, 2

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions(generator, count=9))
        if rank == slow:
            handle.recv[:] = 5.0
            yield ("at", busy_until)
            assert (handle.recv == 5.0).all()
            yield from ask(handle)
        else:
            while world.now < busy_until:
                yield 500_000
                yield from ask(handle, 1.0)
        yield ("flush", handle)
        yield from end(handle)

    run(world, program)
    begun = [group for group in world.groups_begun() if group.members]
    assert all(group.time >= busy_until for group in begun if slow in group.members)
    assert any(slow in group.members for group in begun if not group.flush)


@pytest.mark.parametrize("slow", range(4))
def test_a_disjoint_group_is_not_held_up_by_one_whose_member_stands_still(
    way: tuple[int, ...], slow: int
):
    """A rank dies in mid-transfer, and nobody is told: other groups complete 100 times."""
    pairs = [(0, 1), (2, 3)]
    mine = next(pair for pair in pairs if slow in pair)
    others = next(pair for pair in pairs if slow not in pair)
    if not way and slow == 0:
        pytest.skip("rank 0 forms the groups of handles by messages")
    network = parse_network("L=1us,o=100ns,G=1ns")
    world = World(4, network=network, memory=(1000, 20_000) if way else (), keep_groups=True)
    count, done = 4000 if not way else 40, []

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("given", count=count, backend="auto"))
        members = mine if rank in mine else others
        while True:
            yield from ask(handle, 1.0, 0, members)
            if rank in others:
                done.append(rank)
                if min(done.count(other) for other in others) == 100:
                    world.stop()
                    yield 0

    world.kill(slow, 3 * MS // 10)
    run(world, program)
    begun = [group for group in world.groups_begun() if group.members]
    assert [group.members for group in begun].count(others) >= 100
    assert 1 <= [group.members for group in begun].count(mine) < 100


def test_groups_of_different_ranks_run_at_once():
    """By messages: the second group begins, and ends, while the first transfers its vectors."""
    network = parse_network("L=1us,o=100ns,G=1ns")
    world = World(4, network=network, keep_groups=True)
    ends: dict[int, int] = {}

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("given", count=10_000))
        yield from ask(handle, 1.0, 0, (0, 1) if rank < 2 else (2, 3))
        ends[rank] = world.now
        yield from end(handle)

    run(world, program)
    begun = {group.members: group.time for group in world.groups_begun() if group.members}
    assert begun[2, 3] < ends[0]
    assert begun[0, 1] < ends[2]
    assert min(ends.values()) - max(begun.values()) > 50_000  # both transfer for longer


# ---- ranks that leave ----------------------------------------------------------------------------


def test_a_group_shrinks_when_a_member_leaves(way: tuple[int, ...]):
    given: list[Group] = []

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("given"))
        yield ("barrier",)
        if rank == 2:
            yield MS
            yield ("away",)
            yield 10 * MS
            yield ("back",)
        else:
            given.append((yield from ask(handle, rank, 0, (0, 1, 2))))
            yield ("away",)
            yield ("back",)
        yield from end(handle)

    world = run(World(3, memory=way, keep_groups=True), program)
    assert {group.members for group in given} == {(0, 1)}
    assert [values(group) for group in given] == [[0.5], [0.5]]
    (begun,) = world.groups_begun()
    assert MS <= begun.time <= 2 * MS


@pytest.mark.parametrize("call", ["away", "init", "flush"])
@pytest.mark.parametrize("generator", ["given", "table"])
@pytest.mark.parametrize("weights", ["constant", "closest"])  # tables by messages, with a machine
def test_a_rank_that_has_started_stays_in_its_group_in_a_collective_call(
    way: tuple[int, ...], generator: str, weights: str, call: str
):
    """All ranks start, and make a collective call before Wait; one is slower than the others."""
    steps = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 2, 3),)]
    given: list[list[tuple[int, ...]]] = [[] for _ in range(4)]

    def program(rank: int) -> Program:
        options = PreduceOptions(generator, weights=weights, count=3)
        if generator == "table":
            options = replace(options, table=tuple(steps))
        handle = yield ("groups_init", options)
        other = yield ("groups_init", PreduceOptions("controller:2"))
        for step, groups in enumerate(steps):
            mine = next(group for group in groups if rank in group)
            yield (10 * MS if rank == step else 0)
            handle.recv[:] = rank
            yield ("groups_start", handle, 0, mine if generator == "given" else None)
            if call == "away":
                yield ("away",)
                yield ("barrier",)
                yield ("back",)
            elif call == "init":
                yield ("free", (yield ("init", Options(count=1))))
            else:
                yield ("flush", other)
            group = yield ("wait", handle)
            assert values(group) == [float(np.mean(group.members))] * 3
            given[rank].append(group.members)
        yield ("free", other)
        yield from end(handle)

    run(World(4, memory=way), program)
    for rank in range(4):
        assert given[rank] == [next(g for g in groups if rank in g) for groups in steps]


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("who", ["first", "last", "odd"])
def test_a_group_of_a_table_does_not_wait_for_ranks_that_have_left(
    way: tuple[int, ...], ranks: int, who: str
):
    """Whichever ranks have left: also those that no message of the sum would reach."""
    givers = {"first": [0], "last": [ranks - 1], "odd": list(range(1, ranks, 2))}[who]
    given: list[Group] = []

    def program(rank: int) -> Program:
        table = ((tuple(range(ranks)),),)
        handle = yield ("groups_init", PreduceOptions("table", table=table))
        if rank in givers:
            yield MS  # the others are in the flush
            for step in range(3):
                given.append((yield from ask(handle, rank + step)))
        yield ("flush", handle)
        yield from end(handle)

    run(World(ranks, memory=way), program)
    assert {group.members for group in given} == {tuple(givers)}
    mean = float(np.mean(givers))
    assert {values(group)[0] for group in given} == {mean, mean + 1, mean + 2}


def test_the_last_requests_of_a_table_by_messages():
    """The requests since a flush are counted up to 2^32; then Start raises until the next flush."""
    last = 2**32 - 3  # the two numbers above mean the flush and the end
    table = (((0, 1, 2),), ((0, 1),), ((1, 2),))
    given: list[list[tuple[int, ...]]] = [[], [], []]

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("table", table=table))
        assert lib.pp_sim_count_from(handle.coll, 0, last - 4) == 0
        for step in range(4):
            given[rank].append((yield from ask(handle, rank + step)).members)
        for _ in range(2):
            with pytest.raises(CoreError, match="2\\^32 requests since the last flush: call Flush"):
                yield ("groups_start", handle, 0, None)
        handle.recv[:] = rank
        assert values((yield ("flush", handle))) == [1.0]
        group = yield from ask(handle, rank)
        assert (group.members, group.iteration) == ((0, 1, 2), 5)  # phase 0, and nothing was lost
        yield from end(handle)

    run(World(3), program)
    phases = [(last - 3 + step - 1) % 3 for step in range(4)]
    for rank in range(3):
        mine = [next((g for g in table[phase] if rank in g), (rank,)) for phase in phases]
        assert given[rank] == mine


def test_the_last_flush_of_a_table_by_messages():
    """A context ends with an error, and does not mistake the messages of one flush for another."""

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("table", table=(((0, 1),),)))
        assert lib.pp_sim_count_from(handle.coll, 2**20 - 2, 0) == 0
        yield ("flush", handle)
        yield from ask(handle, rank)
        with pytest.raises(CoreError, match="there have been 2\\^20 flushes"):
            yield ("flush", handle)

    World(2).run([program(rank) for rank in range(2)])


@pytest.mark.parametrize("generator", GENERATORS)
def test_who_is_left_goes_on_alone(way: tuple[int, ...], generator: str):
    given: list[Group] = []

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions(generator, count=2))
        if rank == 0:
            yield MS
            for step in range(5):
                given.append((yield from ask(handle, float(step))))
        yield ("flush", handle)
        yield from end(handle)

    run(World(3, memory=way), program)
    assert [(group.round, group.members) for group in given] == [(0, (0,))] * 5
    assert [values(group) for group in given] == [[float(step)] * 2 for step in range(5)]
    assert [group.iteration for group in given] == [1, 2, 3, 4, 5]


def test_a_rank_that_waits_long_in_an_allreduce_is_taken_out(way: tuple[int, ...]):
    given: dict[int, list[Group]] = {1: [], 2: []}

    def program(rank: int) -> Program:
        groups = yield ("groups_init", PreduceOptions("controller:3"))
        rounds = yield ("init", Options(policy=Full(), count=1))
        yield ("barrier",)
        if rank > 0:
            for step in range(3):
                given[rank].append((yield from ask(groups, step)))
        yield ("start", rounds)
        yield ("wait", rounds)
        yield ("free", rounds)
        yield from end(groups)

    world = run(World(3, memory=way, keep_groups=True), program)
    assert all(group.members == (1, 2) for group in given[1] + given[2])
    first = min(group.time for group in world.groups_begun() if group.members)
    assert 5 * MS <= first < 7 * MS


# ---- patience ------------------------------------------------------------------------------------


def in_pairs(
    way: tuple[int, ...], second: int, slow: int
) -> tuple[list[tuple[int, tuple[int, ...]]], int]:
    """Rank 0 asks at once, and `second` ms later; rank 1 after 20 ms; rank 2 after `slow` ms.

    Rank 0 says after 10 ms that it waits for the others, whose patience is 80 ms. Returns when its
    requests were complete, and with which ranks; and how often a rank has left by patience.
    """
    given: list[tuple[int, tuple[int, ...]]] = []
    world = World(3, memory=way, patience=80 * MS)

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("controller:2"))
        for at in [(0, second), (20,), (slow,)][rank]:
            yield ("at", at * MS)
            group = yield from ask(handle)
            if rank == 0:
                given.append((round(world.now / MS), group.members))
        yield ("flush", handle)
        yield from end(handle)

    run(world, program)
    return given, world.coverage()["asides"]


def test_a_rank_that_holds_a_group_up_leaves_when_its_patience_is_over(way: tuple[int, ...]):
    given, asides = in_pairs(way, second=60, slow=300)
    assert given == [(20, (0, 1)), (150, (0,))]  # it has heard of the second request after 70 ms
    assert asides == 1


def test_a_rank_that_holds_nobody_up_any_more_does_not_leave(way: tuple[int, ...]):
    """The request that has waited for rank 2 is complete with rank 1."""
    given, asides = in_pairs(way, second=130, slow=150)
    assert given == [(20, (0, 1)), (150, (0, 2))]
    assert asides == 0


def test_patience_begins_anew_with_a_later_request(way: tuple[int, ...]):
    given, asides = in_pairs(way, second=60, slow=140)  # the first one was heard of after 10 ms
    assert given == [(20, (0, 1)), (140, (0, 2))]
    assert asides == 0


def test_a_rank_that_has_left_by_patience_is_not_back_when_a_call_is_over(way: tuple[int, ...]):
    """Rank 1 leaves by patience, and is away for long; rank 0, which is back soon, asks again."""
    waits: list[int] = []
    world = World(2, memory=way, patience=80 * MS)

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("controller:2"))
        if rank == 1:
            yield ("at", 150 * MS)
            yield ("away",)
            yield ("at", 400 * MS)
            yield ("back",)
        else:
            for at in (0, 200, 250):
                yield ("at", at * MS)
                group = yield from ask(handle)
                assert group.members == (0,)
                waits.append(world.now - at * MS)
                if at == 0:
                    yield ("at", 180 * MS)
                    yield ("away",)
                    yield ("back",)
        yield ("flush", handle)
        yield from end(handle)

    run(world, program)
    assert 80 * MS < waits[0] < 100 * MS
    assert max(waits[1:]) < MS


# ---- several handles -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "generators"),
    [
        (3, ("controller:3", "controller:2")),
        (4, ("random:2", "random:2")),
        (8, ("random:2", "random:2")),
        (5, ("smart:2,inter-intra", "random:3")),
        (6, ("controller:4", "random:2", "smart:3")),
    ],
)
@pytest.mark.parametrize("beside", [None, Majority(), Solo(), Full()], ids=str)
def test_handles_called_in_the_same_order_never_deadlock(
    way: tuple[int, ...], ranks: int, generators: Sequence[str], beside: Any
):
    sizes = []
    for seed in range(8):
        draws = [random.Random(f"{seed} {rank}") for rank in range(ranks)]
        steps = [draw.randrange(4, 12) for draw in draws]
        world = World(ranks, seed=seed, memory=way, keep_groups=True)

        def program(rank: int, draws: Any = draws, steps: Any = steps) -> Program:
            handles = []
            for generator in generators:
                handles.append((yield ("groups_init", PreduceOptions(generator))))
            rounds = None
            if beside is not None:
                rounds = yield ("init", Options(policy=beside))
            for _ in range(steps[rank]):
                yield draws[rank].randrange(100_000)
                for handle in handles:
                    yield from ask(handle, 1.0)
                if rounds is not None:
                    yield ("start", rounds)
                    yield ("wait", rounds)
            for handle in handles:
                yield ("flush", handle)
            for handle in [*handles, *([] if rounds is None else [rounds])]:
                yield ("free", handle)
            yield ("ctx_free",)

        run(world, program)
        sizes += [
            len(group.members)
            for group in world.groups_begun()
            if group.members and not group.flush
        ]
    if beside is None:
        assert np.mean(sizes) > 1.3


# ---- wrong calls ---------------------------------------------------------------------------------


def refused(request: Any, status: int, text: str) -> Program:
    with pytest.raises(CoreError, match=text) as caught:
        yield request
    assert caught.value.status == status


def test_iterations_ascend(way: tuple[int, ...]):
    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("controller:2"))
        group = yield from ask(handle, 0.0, 5)
        assert group.iteration == 5
        text = "iteration 5 does not exceed the last one, 5"
        yield from refused(("groups_start", handle, 5), lib.PP_ERR_ARGUMENT, text)
        group = yield from ask(handle, 0.0)
        assert group.iteration == 6
        group = yield from ask(handle, 0.0, 2**63)
        assert group.iteration == 2**63
        text = "iteration 7 does not exceed the last one"
        yield from refused(("groups_start", handle, 7), lib.PP_ERR_ARGUMENT, text)
        yield from end(handle)

    run(World(2, memory=way), program)


def test_groups_that_are_given_or_not(way: tuple[int, ...]):
    def program(rank: int) -> Program:
        given = yield ("groups_init", PreduceOptions("given"))
        formed = yield ("groups_init", PreduceOptions("random:2"))
        for handle, members, text in (
            (given, None, "Start needs a group"),
            (formed, (0, 1), "the generator of this handle forms the groups"),
            (given, (rank, 3), "rank 3 of the group is not in 0..2, or the ranks do not ascend"),
            (given, (1, 0), "the ranks do not ascend"),
            (given, (0, 0, 1), "the ranks do not ascend"),
            (given, ((rank + 1) % 3,), f"rank {rank} is not in the group that it starts"),
        ):
            request = ("groups_start", handle, 0, members)
            yield from refused(request, lib.PP_ERR_ARGUMENT, text)
        yield from refused(("wait", given), lib.PP_ERR_STATE, "nothing was started")
        group = yield from ask(given, 1.0, 0, (0, 1, 2))  # nothing was started before
        assert (group.members, group.iteration) == ((0, 1, 2), 1)
        yield ("groups_start", given, 0, (rank,))
        text = "Start on a request that was not collected"
        yield from refused(("groups_start", given, 0, (rank,)), lib.PP_ERR_STATE, text)
        yield ("wait", given)
        yield from refused(("more", given), lib.PP_ERR_STATE, "of this handle has one result")
        yield from refused(("drain", given), lib.PP_ERR_STATE, "Drain")
        yield ("free", given)
        yield from end(formed)

    run(World(3, memory=way), program)


def test_lists_that_differ_are_a_mismatch_on_all_ranks(way: tuple[int, ...]):
    told = []

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions("given"))
        members = {0: (0, 1), 1: (0, 1, 2), 2: (2,), 3: (3,)}[rank]
        with pytest.raises(CoreError) as caught:
            while True:
                yield 1000
                yield from ask(handle, 0.0, 0, members)
        assert caught.value.status == lib.PP_ERR_MISMATCH
        told.append(caught.value.text)

    run(World(4, memory=way), program)
    assert len(told) == 4
    assert all("ranks 0 and 1 have started different groups" in text for text in told)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (PreduceOptions("random:4"), "size=4 is not in 2..3"),
        (PreduceOptions(raw=(("type", lib.PP_INT32),)), "averages floating numbers, not int32"),
        (PreduceOptions(alpha=1.0), "alpha=1"),
        (PreduceOptions("table", table=()), "phases=0"),
        (PreduceOptions(backend="comm"), "needs MPI, which simulated ranks have not"),
        (PreduceOptions(raw=(("backend", 9),)), "backend=9"),
    ],
)
def test_wrong_arguments_are_told_on_all_ranks(way: tuple[int, ...], options: Any, text: str):
    told = []

    def program(rank: int) -> Program:
        with pytest.raises(CoreError) as caught:
            yield ("groups_init", options if rank == 1 else PreduceOptions())
        told.append((caught.value.status, caught.value.text))
        handle = yield ("groups_init", PreduceOptions())  # the context is as it was
        yield from end(handle)

    run(World(3, memory=way), program)
    assert len(told) == 3
    assert any(status == lib.PP_ERR_ARGUMENT and text in said for status, said in told), told


def test_a_handle_in_memory_needs_one_node():
    def program(rank: int) -> Program:
        text = 'backend="node" needs ranks that all share the memory'
        request = ("groups_init", PreduceOptions(backend="node"))
        yield from refused(request, lib.PP_ERR_ARGUMENT, text)
        yield ("ctx_free",)

    run(World(4, memory=WAYS["nodes"]), program)
    run(World(4), program)


# ---- many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", [*GENERATORS, "given"])
def test_a_thousand_ranks(generator: str):
    ranks, steps = 1000, 2
    world = World(ranks, keep_groups=True, latency=(500, 5000))
    handles = world.agreed(PreduceOptions(generator, count=2))
    served = [0] * ranks

    def program(rank: int) -> Program:
        draw = random.Random(rank)
        for step in range(steps):
            yield draw.randrange(100_000)
            low = rank - rank % 4
            members = tuple(range(low, low + 4)) if generator == "given" else None
            yield from ask(handles[rank], rank, 0, members)
            served[rank] = step + 1
        yield ("flush", handles[rank])
        yield from end(handles[rank])

    run(world, program)
    assert served == [steps] * ranks
    begun = [group for group in world.groups_begun() if group.members]
    assert begun[-1].flush and len(begun[-1].members) == ranks
    assert len(begun) > 200
    assert all(a.serial != b.serial for a, b in itertools.pairwise(begun))


@pytest.mark.parametrize("generator", ["random:3", "smart:2,inter-intra", "controller:3"])
@pytest.mark.parametrize("ways", list(WAYS))
def test_memory_is_flat(generator: str, ways: str):
    seen: list[int] = []
    world = World(6, memory=WAYS[ways])

    def program(rank: int) -> Program:
        handle = yield ("groups_init", PreduceOptions(generator, count=500))
        draw = random.Random(rank)
        for step in range(200):
            yield draw.randrange(50_000)
            yield from ask(handle, 1.0)
            if step in (50, 199):
                seen.append(int(world.stats(rank).buffer_bytes))
        yield ("flush", handle)
        yield from end(handle)

    run(world, program)
    assert len(set(seen)) == 1
    assert max(seen) < 10 * 500 * 8
