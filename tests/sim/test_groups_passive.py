"""The generator with passive members by itself: what it promises, whatever happens."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from pypartial._core_sim import lib
from pypartial.sim.generators import Plan
from pypartial.sim.groups import BY_ITSELF, Action, Begin, Complete, End, Flush, Machine
from pypartial.sim.handle import CoreError

Edges = list[list[int]]  # by rank: the neighbours among which it draws


def connected(ranks: int, draw: random.Random) -> Edges:
    """Return a random connected graph: a random tree, and some more edges."""
    order = draw.sample(range(ranks), ranks)
    pairs = {(order[at], order[draw.randrange(at)]) for at in range(1, ranks)}
    pairs |= {tuple(draw.sample(range(ranks), 2)) for _ in range(draw.randrange(ranks))}  # type: ignore[misc]
    found: list[set[int]] = [set() for _ in range(ranks)]
    for one, other in pairs:
        found[one].add(other)
        found[other].add(one)
    return [sorted(neighbours) for neighbours in found]


def table(edges: Edges) -> Edges:
    """Return edges as the core takes them."""
    starts = [0]
    for neighbours in edges:
        starts.append(starts[-1] + len(neighbours))
    return [starts, [other for neighbours in edges for other in neighbours]]


def machine(edges: Edges, seed: int = 0, plant: str = "none") -> Machine:
    plan = Plan("neighbour", min(2, len(edges)))
    return Machine(plan, len(edges), seed, table=table(edges), plant=plant)


@dataclass
class Watch:
    """Feeds a machine with events, and asserts after each that what it answers is allowed."""

    edges: Edges
    seed: int = 0
    plant: str = "none"
    asks: dict[int, bool] = field(default_factory=dict)  # by rank that asks: by itself
    running: dict[int, int] = field(default_factory=dict)  # by rank: the group
    last: dict[int, int] = field(default_factory=dict)
    left: dict[int, str] = field(default_factory=dict)
    begun: dict[int, list[int]] = field(default_factory=dict)
    drawn: dict[int, list[int]] = field(default_factory=dict)  # by rank: with whom, in order
    goals: dict[int, list[int]] = field(default_factory=dict)
    log: list[tuple[Any, ...]] = field(default_factory=list)
    completed: int = 0
    flushes: int = 0
    moves: bool = False

    def __post_init__(self) -> None:
        self.machine = machine(self.edges, self.seed, self.plant)
        self.drawn = {rank: [] for rank in range(len(self.edges))}

    def start(self, rank: int, by_itself: bool = False) -> None:
        self.asks[rank] = by_itself
        self._heard("start", rank, self.machine.start(rank, BY_ITSELF if by_itself else 0))

    def finish(self, rank: int) -> None:
        self._heard("finish", rank, self.machine.finish(rank, self.running.pop(rank)))

    def leave(self, rank: int, reason: str = "in-call") -> None:
        self.left[rank] = reason
        self._heard("leave", rank, self.machine.leave(rank, reason=reason))

    def back(self, rank: int) -> None:
        del self.left[rank]
        self._heard("back", rank, self.machine.back(rank))

    def _heard(self, event: str, rank: int, actions: list[Action]) -> None:
        self.log.append((event, rank, actions))
        for action in actions:
            if isinstance(action, Begin):
                self._begin(action)
            elif isinstance(action, Complete):
                assert (event, rank) == ("finish", action.rank)
                assert rank in self.goals[action.serial]
                del self.asks[rank]
                self.completed += 1
            else:
                assert isinstance(action, Flush) and not self.running and action is actions[-1]
                assert action.members == list(range(len(self.edges)))
                assert set(self.left.values()) == {"flushes"} and self.machine.alive == 0
                self.flushes += 1
                self.left.clear()
                self.asks.clear()
        assert self.machine.alive <= self.machine.most
        assert self.running or not self.asks, "nobody runs a group, although a rank asks"
        if self.moves:
            self.machine.move()

    def _begin(self, group: Begin) -> None:
        self.begun[group.serial] = group.members
        self.goals[group.serial] = [
            rank for rank, goal in zip(group.members, group.goals, strict=True) if goal
        ]
        (asking,) = self.goals[group.serial]
        others = [rank for rank in group.members if rank != asking]
        alone = self.asks[asking] or not self.edges[asking]
        assert len(others) == (not alone) and set(others) <= set(self.edges[asking])
        self.drawn[asking] += others
        for rank in group.members:
            assert rank not in self.running, f"group {group.serial} overlaps another one"
            assert group.serial > self.last.get(rank, 0), f"rank {rank} runs {group.serial} late"
            self.running[rank] = self.last[rank] = group.serial

    def wander(self, events: int, draw: random.Random, leavers: tuple[int, ...] = ()) -> None:
        """Perform random events; the ranks of `leavers` leave and come back."""
        for _ in range(events):
            found = [("finish", rank) for rank in self.running]
            found += [("start", r) for r in self.drawn if r not in self.asks and r not in self.left]
            found += [("back" if rank in self.left else "leave", rank) for rank in leavers]
            event, rank = draw.choice(found)
            if event == "start":
                self.start(rank, draw.random() < 0.2)
            else:
                getattr(self, event)(rank)

    def rest(self, draw: random.Random) -> None:
        """End what runs, until no rank asks any more: nobody else has to do anything for it."""
        while self.running:
            self.finish(draw.choice(list(self.running)))
        assert not self.asks and self.machine.alive == 0


@st.composite
def cases(draw: Any) -> tuple[int, int, int]:
    """Draw ranks, leavers and a seed."""
    ranks = draw(st.integers(1, 17))
    return ranks, draw(st.integers(0, ranks)), draw(st.integers(0, 2**32))


def perform(case: tuple[int, int, int], move: bool = False) -> Watch:
    ranks, leavers, seed = case
    draw = random.Random(seed)
    edges = connected(ranks, draw) if ranks > 1 else [[]]
    watched = Watch(edges, seed, moves=move)
    watched.wander(150, draw, tuple(draw.sample(range(ranks), leavers)))
    watched.rest(draw)
    return watched


# `Watch` asserts: groups that overlap do not run at once, each rank runs its groups in the order of
# their numbers, a group is a rank and a neighbour or a rank that asks for that, and as long as a
# rank asks some group runs.
@examples(300)
@given(case=cases())
def test_promises_hold_on_any_connected_graph(case: tuple[int, int, int]) -> None:
    assert perform(case).completed


@examples(40)
@given(case=cases())
def test_the_same_events_give_the_same_actions_wherever_the_state_lies(
    case: tuple[int, int, int],
) -> None:
    assert perform(case).log == perform(case, move=True).log


@examples(40)
@given(case=cases())
def test_draws_depend_on_seed_rank_and_count_only(case: tuple[int, int, int]) -> None:
    """However the ranks are interleaved, and whatever they ask for by themselves meanwhile."""
    watched = perform(case)
    edges, seed = watched.edges, watched.seed
    for rank, drawn in watched.drawn.items():
        alone = Watch(edges, seed)
        for _ in drawn:
            alone.start(rank)
            alone.rest(random.Random(0))
        assert alone.drawn[rank] == drawn


def test_all_neighbours_are_drawn_alike() -> None:
    watched = Watch([[1, 2, 3, 4], *([0] for _ in range(4))], seed=3)
    for _ in range(2000):
        watched.start(0)
        watched.rest(random.Random(0))
    counts = Counter(watched.drawn[0])
    assert set(counts) == {1, 2, 3, 4} and max(counts.values()) < 600 and min(counts.values()) > 400
    other = Watch(watched.edges, seed=4)
    for _ in range(20):
        other.start(0)
        other.rest(random.Random(0))
    assert other.drawn[0] != watched.drawn[0][:20]


def test_a_neighbour_need_not_ask_and_stays_a_member_when_it_has_left() -> None:
    for reason in ("in-call", "flushes", "frees", "out"):
        pair = machine([[1], [0]])
        assert pair.leave(1, reason=reason) == []
        (group,) = pair.start(0)
        assert isinstance(group, Begin)
        assert (group.serial, group.members, group.goals) == (1, [0, 1], [1, 0])
        assert pair.finish(1, 1) == []
        assert pair.finish(0, 1) == [Complete(0, 1)]


def test_a_rank_that_leaves_keeps_its_request() -> None:
    three = machine([[1], [0, 2], [1]])
    (first,) = three.start(0)
    assert isinstance(first, Begin) and first.members == [0, 1]
    assert three.start(2) == []  # for a group with rank 1, after this one
    assert three.leave(2) == []
    (second,) = three.finish(1, 1)
    assert isinstance(second, Begin) and (second.members, second.goals) == ([1, 2], [0, 1])


def test_a_rank_may_ask_while_it_is_a_passive_member() -> None:
    pair = machine([[1], [0]])
    (first,) = pair.start(0)
    assert isinstance(first, Begin) and pair.start(1) == []
    assert pair.finish(0, 1) == [Complete(0, 1)]
    (second,) = pair.finish(1, 1)
    assert isinstance(second, Begin) and (second.members, second.goals) == ([0, 1], [0, 1])


def test_a_flush_begins_when_all_have_left_and_the_last_group_is_over() -> None:
    three = machine([[1], [0, 2], [1]])
    (group,) = three.start(0)
    assert isinstance(group, Begin)
    for rank in (1, 2, 0):
        assert three.leave(rank, reason="flushes") == []
    assert three.finish(1, 1) == []
    complete, flush = three.finish(0, 1)
    assert complete == Complete(0, 1)
    assert isinstance(flush, Flush) and flush.members == [0, 1, 2]
    for rank in range(2):
        assert three.leave(rank, reason="frees") == []
    assert three.leave(2, reason="frees") == [End()]


@examples(100)
@given(case=cases())
def test_flushes_are_told_when_they_are_due(case: tuple[int, int, int]) -> None:
    ranks, leavers, seed = case
    draw = random.Random(seed)
    watched = Watch(connected(ranks, draw) if ranks > 1 else [[]], seed)
    for flush in range(3):
        watched.wander(30, draw, tuple(draw.sample(range(ranks), leavers)))
        for rank in draw.sample(range(ranks), ranks):
            watched.leave(rank, "flushes")
        if watched.flushes == flush:
            watched.rest(draw)
        assert watched.flushes == flush + 1


@pytest.mark.parametrize("plant", ["lost-release", "other-order"])
def test_planted_defects_are_found(plant: str) -> None:
    found = 0
    for seed in range(20):
        draw = random.Random(seed)
        watched = Watch(connected(8, draw), seed, plant)
        try:
            watched.wander(600, draw)
            watched.rest(draw)
        except (AssertionError, CoreError):
            found += 1
    assert found > 15


@pytest.mark.parametrize(
    ("edges", "why"),
    [
        ([[0, 1, 2], [1, 2]], "neighbour 2 of rank 1 is not another of the ranks 0..1"),
        ([[0, 1, 2], [0, 0]], "neighbour 0 of rank 0 is not another"),
        ([[1, 1, 2], [1, 0]], "begin at 1, not at 0"),
        ([[0, 1, 0], [1, 0]], "rank 1 has -1 neighbours"),
        ([[0, 2, 2], [1, 1]], "neighbours 1 and 1 of rank 0 do not ascend"),
    ],
)
def test_wrong_edges_are_refused(edges: Edges, why: str) -> None:
    with pytest.raises(CoreError, match=why) as refused:
        Machine(Plan("neighbour", 2), 2, table=edges)
    assert refused.value.status == lib.PP_ERR_ARGUMENT
