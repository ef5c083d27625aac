"""Several handles for groups: ranks that wait for each other on different ones go on."""

from __future__ import annotations

import random
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples
from support.handles import Handles, Stuck

from pypartial.sim.generators import Plan
from pypartial.sim.groups import Alone, Begin, Complete, Machine, circles, untangle

KINDS = (
    *("random:2", "random:3", "random:2,reuse", "smart:2", "smart:3,inter-intra"),
    *("smart:2,no-division", "controller:2", "controller:3", "controller:2,no-unfreeze", "table"),
)
OURS = tuple(kind for kind in KINDS if kind != "table")  # the callers may call them in any order


def steps(handles: int, draw: random.Random) -> list[list[int]]:
    """Return a program: handles one after the other, some of them started together."""
    found: list[list[int]] = []
    for handle in range(handles):
        if found and draw.random() < 0.25:
            found[-1].append(handle)
        else:
            found.append([handle])
    return found


@st.composite
def cases(draw: Any) -> tuple[list[str], int, int]:
    """Draw kinds of handles, ranks and a seed."""
    kinds = draw(st.lists(st.sampled_from((*KINDS, "given")), min_size=2, max_size=3))
    return kinds, draw(st.integers(3, 8)), draw(st.integers(0, 2**32))


def perform(kinds: list[str], ranks: int, seed: int, untangles: bool = True) -> Handles:
    """Let all ranks call the handles in the same order, and some of them leave."""
    draw = random.Random(seed)
    program = steps(len(kinds), draw)
    handles = Handles(kinds, ranks, seed, [program] * ranks, untangles)
    # A rank that missed its part of a given group would wait for the others' next one like it.
    leavers = [] if "given" in kinds else draw.sample(range(ranks), draw.randint(0, ranks // 2))
    handles.wander(200, draw, leavers)
    handles.serve(3 * len(kinds), draw)
    return handles


@examples(200)
@given(case=cases())
def test_ranks_go_on_that_call_handles_in_the_same_order(case: tuple[list[str], int, int]) -> None:
    perform(*case)


@examples(100)
@given(case=cases())
def test_ranks_go_on_that_call_handles_in_any_order(case: tuple[list[str], int, int]) -> None:
    kinds, ranks, seed = case
    kinds = [kind if kind in OURS else "random:2" for kind in kinds]
    draw = random.Random(seed)
    orders = [draw.sample(range(len(kinds)), len(kinds)) for _ in range(ranks)]
    handles = Handles(kinds, ranks, seed, [[[one] for one in order] for order in orders])
    handles.wander(200, draw, draw.sample(range(ranks), ranks // 3))
    handles.serve(3 * len(kinds), draw)


@pytest.mark.parametrize("other", [*KINDS, "given"])
def test_without_it_they_deadlock(other: str) -> None:
    stuck = 0
    for seed in range(30):
        try:
            perform(["random:2", other], 6, seed, untangles=False)
        except Stuck:
            stuck += 1
        perform(["random:2", other], 6, seed)
    assert stuck > 3


def test_groups_stay_large() -> None:
    sizes = []
    for seed in range(10):
        handles = Handles(["random:2", "random:2"], 8, seed, [[[0], [1]]] * 8)
        handles.wander(2000, random.Random(seed))
        sizes.append(mean(handles.sizes))
    assert min(sizes) > 1.5


# ---- one circle ----------------------------------------------------------------------------------


def circle(first: Plan, second: Plan, **more: Any) -> tuple[Machine, Machine]:
    """Rank 0 waits on the first handle for rank 1, which waits on the second for rank 0."""
    one, other = Machine(first, 2, **more), Machine(second, 2)
    assert one.start(0) == other.start(1) == []
    return one, other


@pytest.mark.parametrize("second", [Plan("random", 2), Plan("smart", 2), Plan("controller", 2)])
def test_the_lower_rank_gives_way(second: Plan) -> None:
    one, other = circle(Plan("random", 2), second)
    nothing, actions = untangle([one, other])
    assert nothing == []
    if second.generator == "controller":
        assert actions == [Alone(1)]
    else:
        (group,) = actions
        assert isinstance(group, Begin) and group.members == [1]
        assert other.finish(1, group.serial) == [Complete(1, group.serial)]
    # Rank 1 asks on the first handle, as rank 0 expects, and rank 0 is there again for the second.
    (group,) = one.start(1)
    assert isinstance(group, Begin) and group.members == [0, 1]
    assert other.start(1) == []
    (group,) = other.start(0)
    assert isinstance(group, Begin) and group.members == [0, 1]


def test_a_rank_that_computes_is_no_part_of_a_circle() -> None:
    one, other = (Machine(Plan("controller", 2), 3) for _ in range(2))
    assert one.start(0) == other.start(1) == []
    # Rank 2 may ask on both.
    assert untangle([one, other]) == [[], []]
    assert one.start(2) != [] and other.start(0) != []


def test_a_rank_that_has_left_a_handle_is_not_waited_for_there() -> None:
    one, other = circle(Plan("random", 2), Plan("random", 2))
    (group,) = other.leave(0)
    assert isinstance(group, Begin) and group.members == [1]
    assert untangle([one, other]) == [[], []]
    assert other.finish(1, group.serial) == [Complete(1, group.serial)]


def test_a_rank_that_runs_a_group_is_no_part_of_a_circle() -> None:
    one, other = (Machine(Plan("controller", 2), 3) for _ in range(2))
    assert one.start(0) == []
    (group,) = one.start(2)
    assert isinstance(group, Begin)
    assert one.leave(2) == other.leave(2) == one.start(1) == other.start(0) == []
    assert untangle([one, other]) == [[], []]
    # Its request on the first handle is complete, and it waits on the second for rank 1.
    assert one.finish(0, group.serial) == [Complete(0, group.serial)]
    assert untangle([one, other]) == [[Alone(1)], []]


def test_ranks_that_wait_for_a_rank_that_waits_are_no_circle() -> None:
    machines = []
    for lower, higher, asks in ((0, 1, 0), (1, 2, 1), (0, 3, 3)):
        machine = Machine(Plan("controller", 2), 4)
        for rank in {0, 1, 2, 3} - {lower, higher}:
            assert machine.leave(rank) == []
        assert machine.start(asks) == []
        machines.append(machine)
    # Rank 2 computes; after it rank 1 goes on, then rank 0, and then rank 3.
    assert untangle(machines) == [[], [], []]


def test_ranks_stay_in_groups_of_handles_on_which_no_rank_of_the_circle_waits() -> None:
    idle = Machine(Plan("smart", 2, inter_intra=True), 4, node_of=[0, 0, 1, 1])
    for group in [action for rank in range(4) for action in idle.start(rank)]:
        assert isinstance(group, Begin)
        for member in group.members:
            idle.finish(member, group.serial)
    assert idle.alive == 2  # the nodes
    one, other = Machine(Plan("random", 2), 4), Machine(Plan("random", 2), 4)
    for rank in (2, 3):
        assert one.leave(rank) == other.leave(rank) == []
    assert one.start(0) == other.start(1) == []
    assert [len(actions) for actions in untangle([idle, one, other])] == [0, 0, 1]
    assert idle.start(0) == []
    (group,) = idle.start(1)
    assert isinstance(group, Begin) and group.members == [0, 1]


def test_given_groups_stay_whole() -> None:
    """The rank that is waited for on the other handle gives way, though it is the higher one."""
    given_, other = Machine(Plan("given"), 2), Machine(Plan("random", 2), 2)
    for machine_of_lower in (True, False):
        lower, higher = (0, 1) if machine_of_lower else (1, 0)
        given_.give(lower, [0, 1])
        assert given_.start(lower) == other.start(higher) == []
        nothing, (group,) = untangle([given_, other])
        assert nothing == [] and isinstance(group, Begin) and group.members == [higher]
        assert other.finish(higher, group.serial) == [Complete(higher, group.serial)]
        given_.give(higher, [0, 1])
        (whole,) = given_.start(higher)
        assert isinstance(whole, Begin) and whole.members == [0, 1]
        assert given_.finish(0, whole.serial) != [] and given_.finish(1, whole.serial) != []


def test_tables_give_way_last() -> None:
    table = Machine(Plan("table"), 2, table=[circles(2, [[0, 1]])])
    other = Machine(Plan("random", 2), 2)
    assert other.start(0) == table.start(1) == []
    # Rank 0 does not leave the table, though it is the lower one.
    nothing, actions = [list(a) for a in reversed(untangle([other, table]))]
    (group,) = actions
    assert nothing == [] and isinstance(group, Begin) and group.members == [0]
    tables = [Machine(Plan("table"), 2, table=[circles(2, [[0, 1]])]) for _ in range(2)]
    assert tables[0].start(0) == tables[1].start(1) == []
    assert untangle(tables) == [[], [Alone(1)]]


def test_a_controller_that_keeps_its_head_back_may_be_part_of_a_circle() -> None:
    one, other = Machine(Plan("controller", 2), 4), Machine(Plan("random", 3, reuse=True), 4)
    for _ in range(12):
        one.start(0)
        (group,) = one.start(1)
        assert isinstance(group, Begin)
        one.finish(0, group.serial)
        one.finish(1, group.serial)
    # Rank 0 is kept back for ranks 2 and 3, which wait for rank 0.
    assert one.start(0) == one.start(1) == other.leave(1) == []
    assert other.start(2) == other.start(3) == []
    nothing, (group,) = untangle([one, other])
    assert nothing == [] and isinstance(group, Begin) and group.members == [2, 3]
    other.finish(2, group.serial)
    (bridge,) = one.start(2)
    assert isinstance(bridge, Begin) and bridge.members == [0, 2]


def test_ranks_behind_a_head_that_is_kept_back_go_on() -> None:
    one, other = Machine(Plan("controller", 2), 5), Machine(Plan("random", 4, reuse=True), 5)
    for first, second in ((0, 1), (1, 2)) * 8:
        one.start(first)
        (group,) = one.start(second)
        assert isinstance(group, Begin)
        one.finish(first, group.serial)
        one.finish(second, group.serial)
    # Rank 1 is kept back for ranks 3 and 4, which wait for 0 and 1.  Rank 0 will go with rank 2.
    assert one.start(1) == one.start(0) == other.leave(2) == []
    assert other.start(3) == other.start(4) == []
    assert untangle([one, other]) == [[], []]
    (group,) = one.start(2)
    assert isinstance(group, Begin) and group.members == [0, 2]
    assert one.finish(0, group.serial) == [Complete(0, group.serial)]
    (group,) = other.start(0)  # rank 1 has given way
    assert isinstance(group, Begin) and group.members == [0, 3, 4]


def test_a_head_that_will_go_with_another_component_is_no_part_of_a_circle() -> None:
    """Also where no group was formed since the components have fallen apart."""
    for more in range(14):  # then the controller keeps rank 0 back
        one, other = Machine(Plan("controller", 2), 4), Machine(Plan("random", 2), 4)
        for first, second in ((0, 1), (2, 3), (1, 2), *[(0, 1)] * more):
            assert one.start(first) == []
            (group,) = one.start(second)
            assert isinstance(group, Begin)
            one.finish(first, group.serial)
            one.finish(second, group.serial)
        # Rank 3 waits for rank 0, which goes with rank 2 as soon as that one asks.
        assert other.leave(1) == other.leave(2) == other.start(3) == one.start(0) == []
        assert untangle([one, other]) == [[], []], more
        (bridge,) = one.start(2)
        assert isinstance(bridge, Begin) and bridge.members == [0, 2]
        assert one.finish(0, bridge.serial) == [Complete(0, bridge.serial)]
        (group,) = other.start(0)
        assert isinstance(group, Begin) and group.members == [0, 3]


def test_the_pace_of_a_rank_that_gives_way_stays_as_it_was() -> None:
    for gives_way in (True, False):
        one, other = Machine(Plan("random", 2), 2), Machine(Plan("smart", 2), 2)
        now = 0
        for _ in range(4):  # both usually compute for 1 ms
            now += 1_000_000
            assert other.start(0, now_ns=now) == []
            (group,) = other.start(1, now_ns=now)
            assert isinstance(group, Begin)
            other.finish(0, group.serial, now)
            other.finish(1, group.serial, now)
        if gives_way:
            now += 1_000_000
            assert one.start(0, now_ns=now) == other.start(1, now_ns=now) == []
            _, (group,) = untangle([one, other], now)
            assert isinstance(group, Begin) and group.members == [1]
            other.finish(1, group.serial, now)
        # Rank 0 is 2 ms late by now.  Had it begun to compute when it gave way, it would be due.
        now += 2_000_000
        late = other.start(1, now_ns=now) == [Alone(1)]
        assert late == gives_way
