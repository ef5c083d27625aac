"""Groups that requests name: phases of a table, and groups that the callers give."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples
from support.groups import Watch
from support.handles import parts

from pypartial._core_sim import lib
from pypartial.sim.generators import Plan
from pypartial.sim.groups import (
    Action,
    Alone,
    Begin,
    Complete,
    Differ,
    Flush,
    Machine,
    circles,
    static_group,
    static_table,
)
from pypartial.sim.handle import CoreError

# ---- tables --------------------------------------------------------------------------------------


class Model:
    """Which groups of a table begin, by sets of ranks.

    A rank that has left is in the group of a request that it has made before.
    """

    def __init__(self, phases: Sequence[Sequence[Sequence[int]]], ranks: int) -> None:
        self.phases = phases
        self.number = [0] * ranks
        self.waiting: set[int] = set()
        self.left: set[int] = set()

    def start(self, rank: int) -> None:
        self.number[rank] += 1
        self.waiting.add(rank)

    def due(self) -> list[list[int]]:
        """Return the groups that begin now; a rank by itself is alone."""
        found = []
        for rank in sorted(self.waiting - self.left):
            number = self.number[rank]
            group = next(g for g in self.phases[(number - 1) % len(self.phases)] if rank in g)
            here = [other for other in group if other not in self.left]
            same = [o for o in group if self.number[o] == number and o in self.waiting]
            if rank in self.waiting and not any(self.number[other] < number for other in here):
                found.append(same)
                self.waiting -= set(same)
        return found


def told(actions: list[Action]) -> list[list[int]]:
    """Return the groups that have begun; a rank by itself is alone."""
    found = []
    for action in actions:
        if isinstance(action, Begin):
            found.append(action.members)
        elif isinstance(action, Alone):
            found.append([action.rank])
    return sorted(found)


@examples(300)
@given(ranks=st.integers(2, 7), seed=st.integers(0, 2**32))
def test_a_table_against_a_model(ranks: int, seed: int) -> None:
    draw = random.Random(seed)
    phases = [parts(ranks, draw) for _ in range(draw.randint(1, 4))]
    model = Model(phases, ranks)
    table = [circles(ranks, phase) for phase in phases]
    watched = Watch(Machine(Plan("table"), ranks, table=table, cache=5), ranks, cache=5, named=True)
    leavers = draw.sample(range(ranks), draw.randint(0, ranks))
    for _ in range(150):
        event, rank = draw.choice(watched.choices(leavers))
        getattr(watched, event)(rank)
        if event == "start":
            model.start(rank)
        elif event != "finish":
            (model.left.add if event == "leave" else model.left.remove)(rank)
        assert told(watched.log[-1][2]) == sorted(model.due())
    for rank in range(ranks):
        if watched.members[rank].left:
            watched.back(rank)
            model.left.remove(rank)
            assert told(watched.log[-1][2]) == sorted(model.due())


@pytest.mark.parametrize(("nodes", "per_node"), [(4, 4), (3, 2), (2, 1), (1, 5), (5, 3)])
def test_the_static_table(nodes: int, per_node: int) -> None:
    ranks, group = nodes * per_node, static_group(nodes, per_node)
    table = static_table(nodes, per_node)
    machine = Machine(Plan("table"), ranks, table=table)
    for number in range(9):
        begun = {}
        for rank in range(ranks):
            for action in machine.start(rank):
                if isinstance(action, Begin):
                    begun.update(dict.fromkeys(action.members, action))
                else:
                    assert action == Alone(rank) and group(number, rank) == []
        for rank, action in begun.items():
            assert action.members == group(number, rank)
            assert machine.finish(rank, action.serial) == [Complete(rank, action.serial)]
        assert machine.alive == 0 and not any(machine.asks(rank) for rank in range(ranks))


def test_a_rank_that_is_behind_the_others_of_its_circle_is_alone_until_it_has_come_up() -> None:
    machine = Machine(Plan("table"), 3, table=[circles(3, [[0, 1, 2]])])
    machine.leave(2)
    for _ in range(2):
        assert machine.start(0) == []
        (group,) = machine.start(1)
        assert isinstance(group, Begin) and group.members == [0, 1]
        machine.finish(0, group.serial)
        machine.finish(1, group.serial)
    machine.back(2)
    assert machine.start(2) == machine.start(2) == [Alone(2)]
    assert machine.start(2) == machine.start(0) == []
    (group,) = machine.start(1)
    assert isinstance(group, Begin) and group.members == [0, 1, 2]


def test_a_rank_that_has_started_and_is_in_a_call_is_in_the_group_of_a_table() -> None:
    machine = Machine(Plan("table"), 3, table=[circles(3, [[0, 1, 2]])])
    assert machine.start(1) == machine.leave(1, call=1) == machine.start(0) == []
    (group,) = machine.leave(2, call=1)  # it has not started
    assert isinstance(group, Begin) and group.members == [0, 1]


def test_a_flush_begins_the_table_anew() -> None:
    machine = Machine(Plan("table"), 2, table=[circles(2, []), circles(2, [[0, 1]])])
    assert machine.start(0) == [Alone(0)]
    machine.leave(0, reason="flushes")
    (flush,) = machine.leave(1, reason="flushes")
    assert isinstance(flush, Flush)
    assert machine.start(0) == [Alone(0)]  # phase 0 again
    assert machine.start(0) == []


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ([], "phases=0 is not in 1"),
        (None, "phases=0 is not in 1"),
        ([[1, 2, 0], [0, 1, 3]], "phase 1: rank 2 is not in a circle"),
        ([[1, 0, -1]], "phase 0: rank 2"),
        ([[1, 1, 2]], "phase 0: rank 0"),  # two have the same next one
        ([[2, 0, 1]], "phase 0: rank 0"),  # not in ascending order
        ([[1, 2, 1]], "phase 0: rank 0"),
    ],
)
def test_tables_that_are_wrong(table: list[list[int]] | None, text: str) -> None:
    with pytest.raises(CoreError, match=text) as refused:
        Machine(Plan("table"), 3, table=table)
    assert refused.value.status == lib.PP_ERR_ARGUMENT


def test_layouts_that_are_wrong() -> None:
    with pytest.raises(CoreError, match="0 nodes of 4 ranks are not a layout"):
        static_table(0, 4)


# ---- given groups --------------------------------------------------------------------------------


def ask(machine: Machine, rank: int, members: list[int]) -> list[Action]:
    machine.give(rank, members)
    return machine.start(rank)


@examples(100)
@given(ranks=st.integers(2, 70), seed=st.integers(0, 2**32))
def test_given_groups_begin_when_all_have_asked(ranks: int, seed: int) -> None:
    draw = random.Random(seed)
    groups = [parts(ranks, draw) for _ in range(4)]
    watched = Watch(Machine(Plan("given"), ranks, cache=5), ranks, cache=5, named=True)
    come: dict[tuple[int, ...], int] = {}
    number = [0] * ranks
    for _ in range(8 * ranks):
        choices = [c for c in watched.choices([]) if c[0] == "finish" or number[c[1]] < 4]
        if not choices:
            break
        event, rank = draw.choice(choices)
        if event == "start":
            group = next(g for g in groups[number[rank]] if rank in g)
            watched.machine.give(rank, group)
            key = number[rank], *group
            number[rank] += 1
            come[key] = come.get(key, 0) + 1
            watched.start(rank)
            due = [group] if come[key] == len(group) else []
            assert told(watched.log[-1][2]) == due
        else:
            watched.finish(rank)
    assert number == [4] * ranks and watched.completed == 4 * ranks


def test_a_rank_that_has_left_is_not_waited_for() -> None:
    machine = Machine(Plan("given"), 4)
    assert ask(machine, 0, [0, 1, 2]) == ask(machine, 2, [0, 1, 2]) == []
    (group,) = machine.leave(1)
    assert isinstance(group, Begin) and group.members == [0, 2]
    assert machine.finish(0, group.serial) and machine.finish(2, group.serial)
    (group,) = ask(machine, 3, [1, 2, 3]) + ask(machine, 2, [1, 2, 3])
    assert isinstance(group, Begin) and group.members == [2, 3]
    assert ask(machine, 0, [0, 1]) == ask(machine, 0, [0]) == [Alone(0)]


def test_a_rank_that_has_started_and_is_in_a_call_is_in_its_group() -> None:
    machine = Machine(Plan("given"), 3)
    assert ask(machine, 1, [0, 1]) == machine.leave(1, call=1) == []
    (group,) = ask(machine, 0, [0, 1])
    assert isinstance(group, Begin) and (group.members, group.goals) == ([0, 1], [1, 1])
    assert machine.finish(0, group.serial) == [Complete(0, group.serial)]
    assert machine.completed(0, 1) == []
    assert ask(machine, 0, [0, 1, 2]) == []  # and no word of lists that differ
    assert machine.finish(1, group.serial) == [Complete(1, group.serial)]
    assert ask(machine, 2, [0, 1, 2]) == []
    (group,) = ask(machine, 1, [0, 1, 2])
    assert isinstance(group, Begin) and group.members == [0, 1, 2]


def test_a_group_shrinks_to_those_that_have_started() -> None:
    machine = Machine(Plan("given"), 4)
    assert ask(machine, 1, [0, 1, 2]) == machine.leave(1, call=1) == []
    assert ask(machine, 3, [1, 3]) == [Alone(3)]  # rank 1 asks for another group, and has left
    assert ask(machine, 0, [0, 1, 2]) == []
    (group,) = machine.leave(2, call=1)
    assert isinstance(group, Begin) and group.members == [0, 1]


def test_no_group_begins_while_all_that_ask_have_left() -> None:
    machine = Machine(Plan("given"), 3)
    for rank in range(2):
        assert ask(machine, rank, [0, 1, 2]) == machine.leave(rank, call=1) == []
    assert machine.leave(2, call=1) == machine.completed(2, 1) == []
    (group,) = ask(machine, 2, [0, 1, 2])
    assert isinstance(group, Begin) and group.members == [0, 1, 2]


@pytest.mark.parametrize("reason", ["flushes", "frees", "out"])
def test_a_rank_that_takes_its_request_back_is_not_waited_for(reason: str) -> None:
    machine = Machine(Plan("given"), 2)
    assert ask(machine, 1, [0, 1]) == machine.leave(1, reason=reason) == []
    assert ask(machine, 0, [0, 1]) == [Alone(0)]


def test_a_rank_that_comes_back_asks_for_the_same_group() -> None:
    machine = Machine(Plan("given"), 2)
    assert ask(machine, 0, [0, 1]) == machine.leave(0) == machine.back(0) == []
    (group,) = ask(machine, 1, [0, 1])
    assert isinstance(group, Begin) and (group.members, group.goals) == ([0, 1], [1, 1])


def test_groups_that_differ() -> None:
    machine = Machine(Plan("given"), 4)
    assert ask(machine, 2, [1, 2]) == []
    assert ask(machine, 0, [0, 2]) == []  # it is not in the group of rank 2
    assert ask(machine, 1, [1, 2, 3]) == [Differ(1, 2)]
    assert machine.alive == 0 and machine.asks(1) and machine.asks(2)
    machine.leave(2)
    assert machine.asks(1)  # for rank 3
    assert machine.back(2) == [Differ(1, 2)]


@pytest.mark.parametrize(
    ("event", "status", "text"),
    [
        (lambda m: m.start(0), lib.PP_ERR_ARGUMENT, "the request of rank 0 is for no group"),
        (lambda m: (m.give(0, [0]), m.start(0), m.start(0)), lib.PP_ERR_ARGUMENT, "for no group"),
        (lambda m: m.give(0, [1, 0]), lib.PP_ERR_ARGUMENT, "members 1 and 0 do not ascend"),
        (lambda m: m.give(0, [0, 0]), lib.PP_ERR_ARGUMENT, "members 0 and 0 do not ascend"),
        (lambda m: m.give(0, [0, 3]), lib.PP_ERR_ARGUMENT, "member 3 is not in 0..2"),
        (lambda m: m.give(0, [-1, 0]), lib.PP_ERR_ARGUMENT, "member -1 is not in 0..2"),
        (lambda m: m.give(0, [1, 2]), lib.PP_ERR_ARGUMENT, "does not have it as a member"),
        (lambda m: m.give(0, []), lib.PP_ERR_ARGUMENT, "does not have it as a member"),
        (lambda m: m.give(3, [3]), lib.PP_ERR_ARGUMENT, "rank 3 is not in"),
        (lambda m: m.give(1, [0, 1]), lib.PP_ERR_STATE, "rank 1 has an outstanding request"),
    ],
)
def test_groups_that_cannot_be_given(
    event: Callable[[Machine], Any], status: int, text: str
) -> None:
    machine = Machine(Plan("given"), 3)
    assert ask(machine, 1, [1, 2]) == []
    with pytest.raises(CoreError, match=text) as refused:
        event(machine)
    assert refused.value.status == status
    (group,) = ask(machine, 2, [1, 2])
    assert isinstance(group, Begin) and group.members == [1, 2]


def test_only_given_groups_are_given() -> None:
    with pytest.raises(CoreError, match="only with given groups"):
        Machine(Plan("random", 2), 3).give(0, [0, 1])


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache", "numbers"),
    [(0, [-1, -1, -1, -1, -1]), (2, [0, 1, 0, -1, 1]), (4096, [0, 1, 0, 2, 1])],
)
def test_lists_of_members_get_numbers(cache: int, numbers: list[int]) -> None:
    machine = Machine(Plan("given"), 4, cache=cache)
    seen = []
    for members in ([0, 1], [1, 2, 3], [0, 1], [1, 2], [1, 2, 3]):
        actions = [action for rank in members for action in ask(machine, rank, members)]
        (group,) = actions
        assert isinstance(group, Begin)
        assert group.fresh == (group.kept >= 0 and group.kept not in seen)
        seen.append(group.kept)
        for rank in members:
            machine.finish(rank, group.serial)
    assert seen == numbers


@pytest.mark.parametrize(("splits", "numbers"), [(False, [0, -1, -1]), (True, [-1, 0, -1])])
def test_groups_of_a_table_that_have_communicators_get_no_number(
    splits: bool, numbers: list[int]
) -> None:
    """Phases, and a member that has left: a whole group, one that has shrunk, a whole one again."""
    table = [circles(4, [[0, 1, 2]]), circles(4, [[0, 1, 2, 3]]), circles(4, [[0, 2, 3]])]
    machine = Machine(Plan("table"), 4, table=table, cache=1, splits=splits)
    seen = []
    for phase, members in enumerate(([0, 1, 2], [0, 1, 3], [0, 3])):
        if phase == 1:
            machine.leave(2)
        actions = [action for rank in (0, 1, 3) for action in machine.start(rank)]
        if phase == 0:
            actions += machine.start(2)
        (group,) = [action for action in actions if isinstance(action, Begin)]
        assert group.members == members
        seen.append(group.kept)
        for rank in members:
            machine.finish(rank, group.serial)
    assert seen == numbers


@pytest.mark.parametrize("cache", [-1, 4097])
def test_caches_that_are_wrong(cache: int) -> None:
    with pytest.raises(CoreError, match=f"cache={cache} is not in 0..4096"):
        Machine(Plan("given"), 4, cache=cache)
