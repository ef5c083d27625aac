"""Generators of groups by themselves: what they promise, whatever happens."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples
from support.groups import GENERATORS, Watch, watch

from pypartial._core_sim import lib
from pypartial.sim.generators import Plan, parse_generator
from pypartial.sim.groups import Action, Alone, Begin, Complete, End, Flush, Machine, circles
from pypartial.sim.handle import CoreError

EVENTS = 150
FEW = ("random:3", "smart:3", "smart:3,inter-intra", "controller:2")


@st.composite
def cases(draw: Any) -> tuple[str, int, int, int]:
    """Draw a generator, ranks, leavers and a seed."""
    generator = draw(st.sampled_from(GENERATORS))
    ranks = draw(st.integers(parse_generator(generator).size, 11))
    return generator, ranks, draw(st.integers(0, ranks)), draw(st.integers(0, 2**32))


def perform(case: tuple[str, int, int, int], move: bool = False) -> Watch:
    """Let ranks do what comes next at random, and then see that all are served."""
    generator, ranks, leavers, seed = case
    draw = random.Random(seed)
    kind = draw.choice(("constant", "closest", "initial"))
    watched = watch(generator, ranks, seed, per_node=draw.randint(1, 4), weights=kind)
    watched.moves = move
    watched.wander(EVENTS, draw, draw.sample(range(ranks), leavers))
    watched.serve(draw)
    return watched


# `watched` asserts: running groups do not overlap, no group begins in a computation, each rank runs
# its groups in the order of their numbers, none has a rank that has left, somebody can always go
# on, and there are never more groups than there is room for.
@examples(300)
@given(case=cases())
def test_promises_hold_for_random_events(case: tuple[str, int, int, int]) -> None:
    assert perform(case).completed


@examples(40)
@given(case=cases())
def test_the_same_events_give_the_same_actions_wherever_the_state_lies(
    case: tuple[str, int, int, int],
) -> None:
    assert perform(case).log == perform(case, move=True).log


@pytest.mark.parametrize("generator", FEW)
def test_another_seed_gives_other_groups(generator: str) -> None:
    def begun(seed: int) -> list[list[int]]:
        watched = watch(generator, 9, seed)
        for _ in range(20):
            for rank in range(9):
                if not watched.members[rank].asks:
                    watched.start(rank)
            for rank in range(9):
                if watched.members[rank].running:
                    watched.finish(rank)
        return list(watched.begun.values())

    assert begun(1) == begun(1)
    assert (begun(1) == begun(2)) == generator.startswith("controller")  # it draws nothing


# ---- planted defects -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plant", "generator"),
    [
        *(("lost-release", generator) for generator in FEW),
        # Plain divisions and controllers give a rank one group at a time.
        ("other-order", "random:3"),
        ("other-order", "smart:3,no-division"),
        ("other-order", "smart:3,inter-intra"),
    ],
)
def test_planted_defects_are_found(plant: str, generator: str) -> None:
    found = 0
    for seed in range(20):
        draw = random.Random(seed)
        watched = watch(generator, 8, seed, per_node=4, plant=plant)
        try:
            watched.wander(600, draw)
            watched.serve(draw)
        except (AssertionError, CoreError):
            found += 1
    assert found > 5


# ---- flushes and the end -------------------------------------------------------------------------


# `watched` asserts that they are told as soon as they are due, once, and of the right ranks.
@examples(100)
@given(case=cases(), weights=st.sampled_from(("constant", "initial")))
def test_flushes_are_told_when_they_are_due(case: tuple[str, int, int, int], weights: str) -> None:
    generator, ranks, leavers, seed = case
    draw = random.Random(seed)
    watched = watch(generator, ranks, seed, weights=weights)
    for _ in range(6):
        watched.wander(30, draw, draw.sample(range(ranks), leavers))
        before = watched.flushes
        last = draw.choice(("flushes", "frees"))
        wanted = {rank: draw.choice((last, last, "out")) for rank in range(ranks)}
        wanted[draw.randrange(ranks)] = last
        while wanted or any(member.running for member in watched.members):
            running = [rank for rank, member in enumerate(watched.members) if member.running]
            rank = draw.choice([*wanted, *running])
            reason = draw.choice(("in-call", wanted.get(rank, "out")))
            if rank in running and draw.random() < 0.5:
                watched.finish(rank)
            elif rank in wanted and watched.members[rank].reason != reason:
                watched.leave(rank, reason)
                if reason == wanted[rank]:
                    del wanted[rank]
        assert watched.flushes - before == (last == "flushes")
        for rank in draw.sample(range(ranks), ranks):
            if watched.members[rank].left:  # a flush has let those back that flushed
                watched.back(rank)
    watched.serve(draw)


def test_ranks_that_are_all_out_are_told_nothing() -> None:
    machine = Machine(Plan("random", 2), 2)
    assert machine.leave(0, reason="out") == machine.leave(1, reason="out") == []
    assert machine.leave(0, reason="frees") == [End()]
    assert machine.leave(1, reason="frees") == []
    with pytest.raises(CoreError, match="rank 1 has left already") as refused:
        machine.leave(1, reason="frees")
    assert refused.value.status == lib.PP_ERR_STATE


def test_no_flush_while_a_rank_is_back_or_flushes_with_others_that_free() -> None:
    machine = Machine(Plan("random", 2), 3)
    for rank in range(2):
        assert machine.leave(rank, reason="flushes") == []
    assert machine.back(0) == machine.leave(2, reason="flushes") == []
    assert machine.leave(0, reason="frees") == []
    (flush,) = machine.leave(0, reason="flushes")
    assert isinstance(flush, Flush) and flush.members == [0, 1, 2]


# ---- goals ---------------------------------------------------------------------------------------


def test_a_rank_that_comes_back_while_it_runs_a_group_asks_after_it() -> None:
    """`BEGIN` told that group 1 does not complete its request."""
    machine = Machine(Plan("random", 2), 2)
    assert machine.start(0) == []
    (first,) = machine.start(1)
    assert isinstance(first, Begin) and (first.serial, first.goals) == (1, [1, 0])
    assert machine.leave(1) == machine.back(1) == []
    (second,) = machine.finish(1, 1) + machine.finish(0, 1)[1:] + machine.start(0)
    assert isinstance(second, Begin) and (second.members, second.goals) == ([0, 1], [0, 1])


# ---- ranks that leave ----------------------------------------------------------------------------


@pytest.mark.parametrize("generator", FEW)
def test_a_rank_that_starts_and_leaves_in_a_loop_fills_nothing(generator: str) -> None:
    watched = watch(generator, 4, per_node=2)
    for _ in range(500):
        if not watched.members[1].asks:
            watched.start(1)
        watched.leave(1)
        assert watched.machine.alive <= 5  # what one division by inter-intra gives
        watched.back(1)
    watched.serve(random.Random(0))


def test_a_group_of_a_rank_that_has_left_is_withdrawn() -> None:
    machine = Machine(Plan("random", 2), 2)
    assert machine.start(0) == []
    assert machine.alive == 1
    assert machine.leave(0) == []
    assert machine.alive == 0
    # Rank 1 gets a group of its own, and rank 0 asks anew when it is back.
    (alone,) = machine.start(1)
    assert isinstance(alone, Begin) and alone.members == [1]
    assert machine.finish(1, alone.serial) == [Complete(1, alone.serial)]
    assert machine.back(0) == []
    (group,) = machine.start(1)
    assert isinstance(group, Begin) and group.members == [0, 1]


def test_a_group_that_nobody_asks_for_any_more_does_not_begin() -> None:
    machine = Machine(Plan("random", 2), 4, seed=35)
    assert machine.start(3) == []
    (group,) = machine.start(0)  # that of rank 3; rank 0 asks for one with rank 1
    assert isinstance(group, Begin) and group.members == [0, 3]
    assert machine.start(1) == []
    assert machine.alive == 3
    # Rank 1 would be ready for the group that rank 0 asked for.
    assert machine.leave(0) == []
    assert machine.alive == 2


def test_a_group_shrinks_to_the_ranks_that_are_left() -> None:
    machine = Machine(Plan("random", 3), 3)
    assert machine.start(0) == []
    assert machine.leave(2) == []
    (group,) = machine.leave(1)
    assert isinstance(group, Begin) and group.members == [0]
    assert machine.finish(0, group.serial) == [Complete(0, group.serial)]


def test_a_member_of_a_running_group_that_leaves_stays_in_it() -> None:
    machine = Machine(Plan("controller", 2), 3)
    assert machine.start(0) == []
    (group,) = machine.start(1)
    assert isinstance(group, Begin)
    assert machine.leave(1) == []
    assert machine.finish(1, group.serial) == [Complete(1, group.serial)]
    assert machine.finish(0, group.serial) == [Complete(0, group.serial)]
    assert machine.alive == 0


def test_the_controller_needs_no_more_ranks_than_there_are() -> None:
    machine = Machine(Plan("controller", 3), 4)
    assert machine.start(0) == machine.start(1) == machine.leave(2) == []
    (group,) = machine.leave(3)
    assert isinstance(group, Begin) and group.members == [0, 1]
    assert machine.finish(0, group.serial) and machine.finish(1, group.serial)
    assert machine.leave(1) == []
    assert machine.start(0) == [Alone(0)]


def test_a_flush_serves_all_requests() -> None:
    machine = Machine(Plan("random", 2), 3)
    machine.start(0, 5)
    assert machine.leave(0, reason="flushes") == machine.leave(1, reason="flushes") == []
    (flush,) = machine.leave(2, reason="flushes")
    assert flush == Flush(2, [0, 1, 2], [5, 0, 0], [1 / 3] * 3, 5)  # group 1 was withdrawn
    assert machine.alive == 0
    machine.start(0)  # it is back, and its request is not outstanding any more


def test_a_flush_connects_all_ranks_for_the_controller() -> None:
    for flushed in (False, True):
        machine = Machine(Plan("controller", 2, history=3), 4)
        for _ in range(3):
            machine.start(0)
            (group,) = machine.start(1)
            assert isinstance(group, Begin)
            machine.finish(0, group.serial)
            machine.finish(1, group.serial)
        if flushed:
            for rank in range(4):
                machine.leave(rank, reason="flushes")
        machine.start(0)
        # Without the flush rank 0 is kept back for another component.
        assert len(machine.start(1)) == flushed


def test_only_groups_behind_a_flush_leave_ranks_apart_for_smart() -> None:
    for groups, apart in ((7, False), (8, True)):
        machine = Machine(Plan("smart", 2), 3)
        without_rank_2(machine, 20)
        machine.back(2)
        for rank in range(3):
            machine.leave(rank, reason="flushes")
        without_rank_2(machine, groups)
        machine.back(2)
        # Rank 0 asks for a group with rank 2 alone if they are apart.
        assert start_all(machine, range(3)) == ([[0, 2]] if apart else [[0, 1, 2]])


# ---- calls that are over for others --------------------------------------------------------------


def given(machine: Machine, rank: int, members: list[int]) -> list[Any]:
    machine.give(rank, members)
    return machine.start(rank)


def test_a_rank_in_a_call_that_another_has_completed_is_back() -> None:
    machine = Machine(Plan("given"), 2)
    assert machine.leave(0, call=1) == machine.leave(1, call=1) == []
    assert machine.back(0) == machine.completed(0, 1) == []
    assert given(machine, 0, [0, 1]) == []  # it waits for rank 1, which is about to come
    assert machine.back(1) == []
    (group,) = given(machine, 1, [0, 1])
    assert isinstance(group, Begin) and group.members == [0, 1]


def test_a_rank_that_says_late_that_it_has_left_has_not() -> None:
    machine = Machine(Plan("given"), 2)
    assert machine.completed(0, 1) == machine.leave(1, call=1) == []
    assert given(machine, 0, [0, 1]) == []
    assert machine.back(1) == []
    (group,) = given(machine, 1, [0, 1])
    assert isinstance(group, Begin) and group.members == [0, 1]


def test_a_rank_that_is_in_the_next_call_has_left() -> None:
    for says_back in (False, True):
        machine = Machine(Plan("given"), 2)
        assert machine.leave(1, call=1) == machine.completed(0, 1) == []
        if says_back:
            assert machine.back(1) == []
        assert given(machine, 0, [0, 1]) == []
        assert machine.leave(1, call=2) == [Alone(0)]
        assert machine.back(1) == machine.back(1) == []


@pytest.mark.parametrize(
    "plan", ["given", "table", *(f"{kind}:3" for kind in ("random", "smart", "controller"))]
)
def test_all_ranks_of_a_call_are_back_at_once(plan: str) -> None:
    """To the first request that asks anew the other ranks are not away any more."""
    table = [circles(3, [[0, 1, 2]])] if plan == "table" else None
    named = plan in ("given", "table")
    machine = Machine(Plan(plan) if named else parse_generator(plan), 3, table=table)

    def start(rank: int) -> list[Action]:
        return given(machine, rank, [0, 1, 2]) if plan == "given" else machine.start(rank)

    assert start(0) == start(1) == []
    assert [machine.leave(rank, call=1) for rank in range(3)] == [[], [], []]
    assert machine.completed(2, 1) == []
    (group,) = start(2)
    assert isinstance(group, Begin) and group.members == [0, 1, 2]


def test_a_rank_that_waits_elsewhere_is_not_back_when_a_call_is_over() -> None:
    machine = Machine(Plan("given"), 2)
    assert machine.leave(1) == machine.completed(0, 7) == []
    assert given(machine, 0, [0, 1]) == [Alone(0)]


# ---- events that are not allowed -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "status", "text"),
    [
        (lambda m: m.start(0), lib.PP_ERR_STATE, "rank 0 has an outstanding request"),
        (lambda m: m.start(2, 5), lib.PP_ERR_ARGUMENT, "iteration 5 of rank 2 does not exceed"),
        (lambda m: m.start(3), lib.PP_ERR_ARGUMENT, "rank 3 is not in 0..2"),
        (lambda m: m.finish(2, 1), lib.PP_ERR_STATE, "rank 2 does not run group 1"),
        (lambda m: m.finish(0, 9), lib.PP_ERR_STATE, "rank 0 does not run group 9"),
        (lambda m: (m.leave(2), m.leave(2)), lib.PP_ERR_STATE, "rank 2 has left already"),
    ],
)
def test_events_that_are_not_allowed(
    event: Callable[[Machine], object], status: int, text: str
) -> None:
    machine = Machine(Plan("controller", 2), 3)
    machine.start(2, 5)
    (first,) = machine.start(1)
    assert isinstance(first, Begin)
    machine.finish(2, first.serial)
    machine.start(0)
    with pytest.raises(CoreError, match=text) as refused:
        event(machine)
    assert refused.value.status == status
    # Nothing has changed for the others.
    assert machine.finish(1, first.serial) == [Complete(1, first.serial)]
    (second,) = machine.start(1)
    assert isinstance(second, Begin) and second.members == [0, 1]


@pytest.mark.parametrize(
    ("plan", "ranks", "more", "text"),
    [
        (Plan("random", 1), 4, {}, "size=1 is not in 2..4"),
        (Plan("random", 5), 4, {}, "size=5 is not in 2..4"),
        (Plan("random", 2), 1, {}, "size=2 is not in 1..1"),
        (Plan("table"), 0, {}, "ranks=0 is not in 1.."),
        (Plan("random", 1 << 16), 1 << 16, {}, "do not fit into memory"),
        (Plan("smart", 2, c_thres=0), 4, {}, "c_thres=0"),
        (Plan("smart", 2, foresight=-1), 4, {}, "foresight=-1"),
        (Plan("smart", 2, foresight=100_001), 4, {}, r"foresight=100001 is not in 0\.\.100000"),
        (Plan("controller", 2, history=-1), 4, {}, "history=-1"),
        (Plan("controller", 3, history=3), 8, {}, "history=3 is neither 0 nor at least 4"),
        (Plan("random", 2), 4, {"alpha": 1.0}, "alpha=1"),
        (Plan("random", 2), 4, {"alpha": float("nan")}, "alpha=nan"),
        (Plan("random", 2), 2, {"node_of": [0, 2]}, "node 2 of rank 1"),
    ],
)
def test_plans_that_are_wrong(plan: Plan, ranks: int, more: dict[str, Any], text: str) -> None:
    with pytest.raises(CoreError, match=text) as refused:
        Machine(plan, ranks, **more)
    assert refused.value.status == lib.PP_ERR_ARGUMENT


def test_no_iteration_is_after_the_last_of_64_bits() -> None:
    machine = Machine(Plan("controller", 2), 3)
    machine.leave(1)
    machine.leave(2)
    assert machine.start(0, 2**64 - 1) == [Alone(0)]
    with pytest.raises(CoreError, match="does not exceed its last") as refused:
        machine.start(0)
    assert refused.value.status == lib.PP_ERR_ARGUMENT


# ---- which groups --------------------------------------------------------------------------------


def start_all(machine: Machine, ranks: range | list[int]) -> list[list[int]]:
    """Start ranks one after the other; return the groups that begin."""
    actions = [action for rank in ranks for action in machine.start(rank)]
    return [action.members for action in actions if isinstance(action, Begin)]


def test_a_random_group_has_the_rank_that_asks() -> None:
    drawn = set()
    for seed in range(200):
        machine = Machine(Plan("random", 3), 5, seed)
        machine.start(4)
        groups = start_all(machine, range(4))
        assert groups[0] != [] and 4 in groups[0] and len(groups[0]) == 3
        drawn |= set(groups[0])
    assert drawn == set(range(5))


def test_random_with_reuse_serves_a_request_with_a_group_that_is_there() -> None:
    def groups(reuse: bool) -> int:
        machine = Machine(Plan("random", 2, reuse=reuse), 2)
        start_all(machine, range(2))
        return machine.alive

    assert (groups(reuse=False), groups(reuse=True)) == (2, 1)


@pytest.mark.parametrize(
    ("ranks", "size", "sizes"),
    [(6, 3, [3, 3]), (7, 3, [3, 4]), (8, 3, [2, 3, 3]), (5, 2, [2, 3]), (3, 3, [3]), (2, 2, [2])],
)
def test_a_global_division(ranks: int, size: int, sizes: list[int]) -> None:
    machine = Machine(Plan("smart", size), ranks, seed=ranks)
    groups = start_all(machine, range(ranks))
    assert sorted(map(len, groups)) == sizes
    assert sorted(rank for group in groups for rank in group) == list(range(ranks))


def test_inter_and_intra() -> None:
    node_of = [rank // 4 for rank in range(16)]
    heads = set()
    for seed in range(30):
        machine = Machine(Plan("smart", 2, inter_intra=True), 16, seed, node_of)
        first = [a for rank in range(16) for a in machine.start(rank) if isinstance(a, Begin)]
        crossing = [g.members for g in first if len({node_of[m] for m in g.members}) > 1]
        # Four heads make two pairs; the three others of each node are one group.
        assert sorted(map(len, crossing)) == [2, 2]
        assert sorted(len(g.members) for g in first) == [2, 2, 3, 3, 3, 3]
        heads |= {member for group in crossing for member in group}
        for group in first:
            for member in group.members:
                assert machine.finish(member, group.serial) == [Complete(member, group.serial)]
        second = start_all(machine, range(16))
        assert sorted(second) == [list(range(4 * node, 4 * node + 4)) for node in range(4)]
    assert heads == set(range(16))


def test_inter_and_intra_of_few_ranks() -> None:
    # Nodes {0, 1} and {2}: a group between nodes, one of the rank beside its head, and one of the
    # first node.
    machine = Machine(Plan("smart", 2, inter_intra=True), 3, node_of=[0, 0, 1])
    assert sorted(start_all(machine, range(3))) in ([[0], [1, 2]], [[0, 2], [1]])
    assert machine.alive == 3
    # Only one node has idle ranks: both of its groups are {0, 1}.
    machine = Machine(Plan("smart", 2, inter_intra=True), 4, node_of=[0, 0, 1, 1])
    machine.leave(2)
    machine.leave(3)
    for alive in (2, 1):
        assert machine.start(0) == []
        assert machine.alive == alive
        (group,) = machine.start(1)
        assert isinstance(group, Begin) and group.members == [0, 1]
        machine.finish(0, group.serial)
        machine.finish(1, group.serial)


@pytest.mark.parametrize(("c_thres", "alone"), [(2, False), (1, True)])
def test_a_rank_far_behind_is_in_no_division_that_another_asks_for(
    c_thres: int, alone: bool
) -> None:
    machine = Machine(Plan("smart", 2, c_thres=c_thres, foresight=0), 2)
    # Rank 0 asks for the first time, rank 1 has not asked yet: its counter is 1 behind.
    assert machine.start(0) == ([Alone(0)] if alone else [])


def test_a_rank_far_from_its_next_request_is_in_no_division_that_another_asks_for() -> None:
    for foresight, alone in ((100, True), (0, False)):
        machine = Machine(Plan("smart", 2, foresight=foresight), 2)
        assert machine.start(0, now_ns=100_000) == []  # nothing is known of rank 1 yet
        (group,) = machine.start(1, now_ns=1_000_000)
        assert isinstance(group, Begin)
        machine.finish(0, group.serial, 1_000_000)
        machine.finish(1, group.serial, 1_000_000)
        assert machine.start(0, now_ns=1_100_000) == ([Alone(0)] if alone else [])


@pytest.mark.parametrize("seed", range(8))
def test_a_rank_that_is_slow_now_is_no_head_and_in_no_group_of_its_node(seed: int) -> None:
    plan = Plan("smart", 2, inter_intra=True, foresight=100_000)
    machine = Machine(plan, 4, seed, node_of=[0, 0, 1, 1])
    for now in (1_000_000, 2_000_000):
        begun = [a for rank in range(4) for a in machine.start(rank, now_ns=now)]
        for group in begun:
            assert isinstance(group, Begin)
            for member in group.members:
                machine.finish(member, group.serial, now)
    assert machine.alive == 0
    for rank in range(3):  # they begin to compute at 6 ms, rank 3 at 2 ms
        machine.leave(rank, 6_000_000)
        machine.back(rank, 6_000_000)
    first = [
        a.members
        for rank in range(3)
        for a in machine.start(rank, now_ns=7_000_000)
        if isinstance(a, Begin)
    ]
    # Rank 2 is the head of its node, the single rank beside the other head is by itself, and then
    # there is a group of the first node.
    assert sorted(first) in ([[0], [1, 2]], [[0, 2], [1]])
    assert machine.alive == 3


def with_a_slow_node(nodes: int, seed: int) -> Machine:
    """Return a machine of nodes of two ranks, the last of which are slow at 20 ms."""
    plan, ranks = Plan("smart", 2, inter_intra=True, foresight=100_000), 2 * nodes
    machine = Machine(plan, ranks, seed, node_of=[rank // 2 for rank in range(ranks)])
    for now in (1_000_000, 2_000_000):
        for group in [a for rank in range(ranks) for a in machine.start(rank, now_ns=now)]:
            assert isinstance(group, Begin)
            for member in group.members:
                machine.finish(member, group.serial, now)
    for rank in range(ranks - 2):  # they begin to compute at 19 ms, the last two at 2 ms
        machine.leave(rank, 19_000_000)
        machine.back(rank, 19_000_000)
    return machine


@pytest.mark.parametrize("seed", range(8))
def test_a_slow_rank_that_asks_is_a_head_and_in_no_other_group(seed: int) -> None:
    machine = with_a_slow_node(2, seed)
    assert machine.start(2, now_ns=20_000_000) == []
    # A head of the first node with rank 2, the other rank of that node, and that whole node.
    assert machine.alive == 3


def test_a_slow_node_without_a_head_is_a_group() -> None:
    machine = with_a_slow_node(3, seed=0)
    machine.start(0, now_ns=20_000_000)
    begun = start_all(machine, [4, 5])
    assert begun == [[4, 5]]


def test_a_rank_that_was_slow_once_is_in_divisions_again() -> None:
    machine = Machine(Plan("smart", 2, c_thres=1000), 2)
    now, together = 0, []
    for iteration in range(20):
        # Rank 0 takes 100 us; rank 1 takes 1 ms at first, and then hardly more than rank 0.
        alone = machine.start(0, now_ns=now + 100_000) == [Alone(0)]
        now += 110_000 if iteration else 1_000_000
        actions = machine.start(1, now_ns=now)
        if alone:  # rank 1 asks, too, and gets rank 0, which computes
            assert actions == []
            actions = machine.start(0, now_ns=now)
        (group,) = actions
        assert isinstance(group, Begin)
        machine.finish(0, group.serial, now)
        machine.finish(1, group.serial, now)
        together.append(not alone)
    assert together[0] and not together[1] and all(together[10:])


def test_the_time_for_which_a_rank_was_away_is_no_computation() -> None:
    machine = Machine(Plan("smart", 2), 2)
    now = 0
    for away_ns in (0, 50_000_000, 0):
        machine.leave(1, now)
        machine.back(1, now + away_ns)
        now += away_ns + 100_000
        assert machine.start(0, now_ns=now) == []  # rank 1 is expected now
        (group,) = machine.start(1, now_ns=now)
        assert isinstance(group, Begin)
        machine.finish(0, group.serial, now)
        machine.finish(1, group.serial, now)


def test_a_rank_that_was_away_is_no_further_behind_than_it_was() -> None:
    machine = Machine(Plan("smart", 2, c_thres=3, foresight=0), 3)
    machine.leave(2)
    for _ in range(5):
        machine.start(0)
        (group,) = machine.start(1)
        assert isinstance(group, Begin)
        machine.finish(0, group.serial)
        machine.finish(1, group.serial)
    machine.back(2)
    assert machine.start(0) == []
    assert machine.start(1) == []  # the three are one group: rank 2 is not left out
    (group,) = machine.start(2)
    assert isinstance(group, Begin) and group.members == [0, 1, 2]


def test_an_idle_rank_goes_on_alone_twice_and_then_joins_a_group() -> None:
    machine = Machine(Plan("smart", 2, c_thres=100), 3)
    machine.leave(2)
    assert machine.start(0) == []  # with rank 1, which computes
    machine.back(2)
    assert machine.start(2) == machine.start(2) == [Alone(2)]
    assert machine.start(2) == []  # a second group, which waits for a member of the first
    assert machine.alive == 2

    for asking, members in ((1, [0, 1]), (0, [0, 2])):
        (group,) = machine.start(asking)
        assert isinstance(group, Begin) and group.members == members
        for member in members:
            machine.finish(member, group.serial)
    machine.leave(2)
    assert machine.start(0) == []  # with rank 1 again
    machine.back(2)
    # It was in a group, so it may go on alone again.
    assert machine.start(2) == machine.start(2) == [Alone(2)]
    assert machine.start(2) == []


def test_a_rank_goes_on_alone_while_all_others_are_filtered_out() -> None:
    machine = Machine(Plan("smart", 2, c_thres=1, foresight=0), 2)
    for _ in range(5):
        assert machine.start(0) == [Alone(0)]


def without_rank_2(machine: Machine, groups: int) -> None:
    """Let ranks 0 and 1 have so many groups while rank 2 is away."""
    machine.leave(2)
    for _ in range(groups):
        assert machine.start(0) == []
        (group,) = machine.start(1)
        assert isinstance(group, Begin) and group.members == [0, 1]
        machine.finish(0, group.serial)
        machine.finish(1, group.serial)


def test_a_rank_that_the_last_groups_leave_out_joins_others_at_once() -> None:
    """Though none is idle."""
    for groups, unfreeze, alone in ((7, True, False), (7, False, True), (6, True, True)):
        machine = Machine(Plan("smart", 2, unfreeze=unfreeze), 3)
        without_rank_2(machine, groups)
        assert machine.start(0) == []  # with rank 1
        machine.back(2)
        assert machine.start(2) == ([Alone(2)] if alone else [])
        (group,) = machine.start(1)
        assert isinstance(group, Begin) and group.members == [0, 1]
        for rank in (0, 1):
            machine.finish(rank, group.serial)
        if alone:
            continue
        actions = [action for rank in (0, 1) for action in machine.start(rank)]
        (bridge,) = [action for action in actions if isinstance(action, Begin)]
        assert bridge.members in ([0, 2], [1, 2])


def test_a_group_of_more_ranks_than_the_size_connects_all_of_them() -> None:
    machine = Machine(Plan("smart", 2), 3)
    for _ in range(500):
        assert machine.start(0) == machine.start(1) == []
        (group,) = machine.start(2)
        assert isinstance(group, Begin) and group.members == [0, 1, 2]
        for rank in range(3):
            machine.finish(rank, group.serial)


@pytest.mark.parametrize(("groups", "alone"), [(6, False), (5, True)])
def test_a_group_of_more_ranks_than_the_size_counts_as_several(groups: int, alone: bool) -> None:
    """Three ranks are two of the last twelve groups."""
    machine = Machine(Plan("smart", 2), 4)
    machine.leave(3)
    for _ in range(groups - 1):
        assert machine.start(0) == machine.start(1) == []
        (group,) = machine.start(2)
        assert isinstance(group, Begin) and group.members == [0, 1, 2]
        for rank in range(3):
            machine.finish(rank, group.serial)
    assert machine.start(0) == []  # the last group
    machine.back(3)
    assert machine.start(3) == ([Alone(3)] if alone else [])


@pytest.mark.parametrize(("divisions", "alone"), [(8, False), (7, True)])
def test_both_groups_of_a_division_count_among_the_last(divisions: int, alone: bool) -> None:
    """Between nodes, or inside one, and of a whole node: twice as many groups are looked at."""
    machine = Machine(Plan("smart", 2, inter_intra=True), 3, node_of=[0, 0, 1])
    without_rank_2(machine, 2 * (divisions - 1))
    assert machine.start(0) == []  # the last division: rank 1 twice
    assert machine.alive == 2
    machine.back(2)
    assert machine.start(2) == ([Alone(2)] if alone else [])
    assert machine.alive == (2 if alone else 3)


def test_no_rank_joins_others_that_have_left() -> None:
    machine = Machine(Plan("smart", 2), 3)
    without_rank_2(machine, 20)
    assert machine.start(0) == []  # rank 2 is not looked for
    assert machine.alive == 1
    machine.back(2)
    assert machine.start(2) == []
    actions = [*machine.leave(1), *machine.leave(0)]
    assert [2] in [action.members for action in actions if isinstance(action, Begin)]


def test_the_controller_takes_ranks_in_the_order_in_which_they_ask() -> None:
    machine = Machine(Plan("controller", 2, unfreeze=False), 6)
    assert start_all(machine, [3, 1, 5, 0, 4, 2]) == [[1, 3], [0, 5], [2, 4]]


def test_the_controller_connects_two_halves() -> None:
    machine = Machine(Plan("controller", 2, history=4), 4)

    def pair(one: int, other: int) -> list[int]:
        assert machine.start(one) == []
        (group,) = machine.start(other)
        assert isinstance(group, Begin)
        for member in group.members:
            machine.finish(member, group.serial)
        return group.members

    for _ in range(2):
        assert pair(0, 1) == [0, 1] and pair(2, 3) == [2, 3]
    # The last four groups leave {0, 1} and {2, 3} apart: rank 0 is kept back as a bridge, ...
    assert machine.start(0) == machine.start(1) == []
    (bridge,) = machine.start(3)
    assert isinstance(bridge, Begin) and bridge.members == [0, 3]
    # ... and rank 1 goes with the rank that is next.
    (last,) = machine.start(2)
    assert isinstance(last, Begin) and last.members == [1, 2]


def test_the_controller_keeps_one_rank_back_and_lets_the_others_go_on() -> None:
    machine = Machine(Plan("controller", 2, history=4), 5)
    for one, other in ((0, 1), (1, 2), (3, 4), (0, 1)):
        machine.start(one)
        (group,) = machine.start(other)
        assert isinstance(group, Begin)
        machine.finish(one, group.serial)
        machine.finish(other, group.serial)
    # {0, 1, 2} and {3, 4} are apart.
    assert machine.start(1) == machine.start(0) == []
    (group,) = machine.start(2)
    assert isinstance(group, Begin) and group.members == [0, 2]
    (bridge,) = machine.start(4)
    assert isinstance(bridge, Begin) and bridge.members == [1, 4]


def test_a_component_whose_ranks_have_left_does_not_count() -> None:
    machine = Machine(Plan("controller", 2, history=3), 4)

    def pair() -> bool:
        machine.start(0)
        actions = machine.start(1)
        for action in actions:
            assert isinstance(action, Begin)
            machine.finish(0, action.serial)
            machine.finish(1, action.serial)
        return actions != []

    assert pair()
    machine.leave(2)
    machine.leave(3)
    assert pair() and pair() and pair()
    machine.back(2)
    assert pair()
    machine.back(3)
    assert not pair()  # ranks 2 and 3 are apart: rank 0 is kept back for them
    (bridge,) = machine.leave(2)
    assert isinstance(bridge, Begin) and bridge.members == [0, 1]


def test_the_controller_keeps_no_rank_back_for_fewer_than_make_a_group() -> None:
    """They go with others, whenever they ask."""
    for slow, size in (([3], 2), ([3], 3), ([3, 4], 3)):
        ranks = 3 + len(slow)
        machine = Machine(Plan("controller", size), ranks)

        def group(members: list[int], machine: Machine = machine) -> None:
            for rank in members[:-1]:
                assert machine.start(rank) == []
            (begun,) = machine.start(members[-1])
            assert isinstance(begun, Begin) and begun.members == sorted(members)
            for rank in members:
                machine.finish(rank, begun.serial)

        for _ in range(20):
            for first in range(3):
                group([(first + i) % 3 for i in range(size)])
        group([*slow, *range(size - len(slow))])


def test_the_controller_keeps_a_rank_back_for_as_many_as_make_a_group() -> None:
    """They need not have been in a group with each other: one day they may be."""
    machine = Machine(Plan("controller", 2), 5)
    assert machine.leave(4) == []
    for _ in range(16):
        machine.start(0)
        (begun,) = machine.start(1)
        assert isinstance(begun, Begin)
        machine.finish(0, begun.serial)
        machine.finish(1, begun.serial)
    assert machine.start(0) == machine.start(1) == []
    (bridge,) = machine.start(2)
    assert isinstance(bridge, Begin) and bridge.members == [0, 2]


def test_the_groups_of_a_rank_that_comes_back_connect_it_soon() -> None:
    machine = Machine(Plan("controller", 2, history=8), 5)

    def pair(one: int, other: int) -> None:
        assert machine.start(one) == []
        (group,) = machine.start(other)
        assert isinstance(group, Begin) and group.members == [one, other]
        machine.finish(one, group.serial)
        machine.finish(other, group.serial)

    for one, other in (*[(0, 1)] * 4, (2, 4), (1, 2), (1, 3), (0, 1)):
        pair(one, other)
    machine.leave(2)
    machine.leave(4)
    pair(1, 3)  # the controller has looked back as far as the other ranks are connected
    machine.back(2)
    machine.back(4)
    assert machine.start(0) == []  # it is kept back for ranks 2 and 4, ...
    for _ in range(2):
        assert machine.start(1) == []
        (group,) = machine.start(3)
        assert isinstance(group, Begin) and group.members == [1, 3]
        machine.finish(1, group.serial)
        machine.finish(3, group.serial)
    (group,) = machine.start(1)  # ... until {2, 4} and {1, 2} are found, two of the last 8 groups
    assert isinstance(group, Begin) and group.members == [0, 1]


def test_members_take_over_the_newest_iteration_with_weights_by_iteration() -> None:
    for kind, newest in (("closest", 8), ("constant", 4)):
        machine = Machine(Plan("controller", 2), 2, weights=kind)
        machine.start(0, 7)
        (group,) = machine.start(1, 3)
        assert isinstance(group, Begin)
        assert (group.iterations, group.newest) == ([7, 3], 7)
        machine.finish(0, group.serial)
        machine.finish(1, group.serial)
        machine.start(0)
        (group,) = machine.start(1)
        assert isinstance(group, Begin) and group.iterations == [8, newest]
