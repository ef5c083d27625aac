"""Hop's rules by themselves (`csrc/queues`): what they promise, in whatever order things come."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples
from support.queues import GRAPHS, MODES, Stuck, World, draw_world

from pypartial._core_sim import ffi, lib
from pypartial._queue_options import Mode
from pypartial.sim.handle import CoreError, check
from pypartial.sim.queues import EVENTS, describe, open_queues


# `World` asserts after each event: a rank averages as soon as it has enough, and not before, what
# the rules say, with the weights that they say; no update twice; goals, gaps and queues as in
# section 4; and, when nothing is under way any more, that each rank knows what was announced.
@examples(80)
@given(mode=st.sampled_from(tuple(MODES)), seed=st.integers(0, 2**32))
def test_all_ranks_go_on_by_the_rules(mode: str, seed: int) -> None:
    draw_world(mode, seed).run(25)


@examples(12)
@given(mode=st.sampled_from(tuple(MODES)), seed=st.integers(0, 2**32))
def test_many_ranks_go_on_by_the_rules(mode: str, seed: int) -> None:
    draw_world(mode, seed, ranks=(12, 33)).run(8)


@examples(40)
@given(mode=st.sampled_from(tuple(MODES)), seed=st.integers(0, 2**32), memory=st.booleans())
def test_ranks_that_stay_away_hold_nobody_up(mode: str, seed: int, memory: bool) -> None:
    graph = GRAPHS[tuple(GRAPHS)[seed % len(GRAPHS)]](3 + seed % 7)
    away = [rank for rank in range(graph.ranks) if rank % 3 == 0]
    world = World(graph, MODES[mode], seed, memory=memory, leavers=away)
    world.run(5)
    for rank in world.leavers:
        if not world.ranks[rank].left:
            world.ranks[rank].event("leave")
        world.stopped.add(rank)
    world.run(30)


# ---- gaps ----------------------------------------------------------------------------------------


def tightest(world: World, rank: int) -> list[float]:
    """How far each can get ahead of a rank: the shortest path over both kinds of edges.

    Table 1 has the shortest of the paths that have one kind only. In directed graphs others may be
    shorter.
    """
    mode, graph = world.mode, world.graph
    step = 1 if mode.staleness is None else mode.staleness + 1
    tokens = mode.max_ig if mode.protocol == "tokens" else math.inf
    most = [math.inf] * graph.ranks
    most[rank] = 0
    for _ in range(graph.ranks):
        for i in range(graph.ranks):
            by_updates = [most[j] + step for j in graph.ins[i]]
            most[i] = min([most[i], *by_updates, *(most[j] + tokens for j in graph.outs[i])])
    return most


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("mode", ["standard", "tight", "none", "none-staleness", "staleness"])
def test_the_gaps_of_table_1_are_reached(mode: str, graph: str) -> None:
    for rank in range(7):
        world = World(GRAPHS[graph](7), MODES[mode], seed=rank)
        bounds = tightest(world, rank)
        assert world.stop(rank) == bounds
        table = [row[rank] for row in world.table]
        assert all(bound <= most for bound, most in zip(bounds, table, strict=True))
        assert bounds == table or graph.startswith("directed")


@pytest.mark.parametrize("mode", ["backup", "hybrid", "skip-backup"])
def test_with_backup_tokens_bound_the_gap(mode: str) -> None:
    world = World(GRAPHS["ring"](7), MODES[mode])
    assert world.stop(0) == [MODES[mode].max_ig * length for length in world.graph.path[0]]


@pytest.mark.parametrize("memory", [False, True])
def test_notify_ack_keeps_neighbours_within_one(memory: bool) -> None:
    world = World(GRAPHS["directed-ring"](7), MODES["notify-ack"], memory=memory)
    assert world.stop(0) == [0, 1, 2, 3, 3, 2, 1]


# ---- planted defects -----------------------------------------------------------------------------


def failures(plant: str, mode: Mode, graphs: tuple[str, ...], cases: int) -> list[str]:
    """What is found in so many runs with a defect in the core."""
    found = []
    for seed in range(cases):
        graph = GRAPHS[graphs[seed % len(graphs)]](4 + seed % 9)
        try:
            World(graph, mode, seed, memory=seed % 2 == 1, plant=plant).run(40)
        except AssertionError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_a_lost_token_is_found() -> None:
    found = failures("lost-token", MODES["backup"], tuple(GRAPHS), 10)
    assert len(found) == 10
    assert all("lacks a token" in text for text in found)


def test_a_token_that_is_lost_on_its_way_is_found_and_heals() -> None:
    world = World(GRAPHS["ring"](5), MODES["standard"])
    world.lost = lambda source, iteration: source == 2 and iteration == 20
    with pytest.raises(AssertionError, match="rank 1 lacks a token of 2"):
        world.run(20)
    world.run(21)  # the next announcement stands for it


def test_an_update_that_is_averaged_twice_is_found() -> None:
    found = failures("twice", MODES["staleness"], tuple(GRAPHS), 10)
    assert len(found) == 10
    assert all("averaged twice" in text for text in found)


def test_tokens_of_a_jump_that_go_out_on_entering_are_found() -> None:
    mode = dataclasses.replace(MODES["skip-backup"], max_ig=2)
    found = failures("late-tokens", mode, ("directed", "directed-ring"), 100)
    assert len(found) >= 2
    assert all(text.startswith("Stuck") for text in found)


@pytest.mark.parametrize("graph", GRAPHS)
def test_figure_9_as_printed_does_not_reach_the_staleness_bound(graph: str) -> None:
    # Line 7 waits for an update where none is there, though an earlier one is within the bound.
    world = World(GRAPHS[graph](7), MODES["staleness"], plant="fresh-only")
    gaps = world.stop(0)
    assert max(gaps[out] for out in world.graph.outs[0]) == 1


def test_an_update_that_is_lost_stops_ranks() -> None:
    world = World(GRAPHS["ring"](5), MODES["standard"])
    post = world._post
    world._post = lambda s, t, what, at: (s, t, at) == (0, 1, 7) or post(s, t, what, at)
    with pytest.raises(Stuck):
        world.run(20)


# ---- one rank ------------------------------------------------------------------------------------


class One:
    """The state of one rank; an event returns the actions that are due, as (kind, iteration)."""

    KINDS = ("nothing", "send", "omit", "announce", "average", "enter", "tell-left", "tell-here")

    def __init__(
        self, ins: int, outs: int, weights: list[float] | None = None, **mode: Any
    ) -> None:
        self.queues = open_queues(describe(Mode(**mode), ins, outs, back=2), weights)
        self.parts: list[tuple[int, int, float]] = []  # in-neighbour, iteration, weight
        self.own = 0.0

    def __call__(self, name: str, neighbour: int = 0, iteration: int = 0) -> list[Any]:
        check(lib.pp_sim_queues_event(self.queues, EVENTS[name], neighbour, iteration))
        due = []
        action = ffi.new("pp_queues_action_t *")
        while lib.pp_sim_queues_next(self.queues, action) or action.kind:
            kind = self.KINDS[action.kind]
            due.append((kind, action.iteration, *([action.end] if kind == "omit" else [])))
            if kind == "average":
                self.own = action.own
                parts = [action.parts[i] for i in range(action.count)]
                self.parts = [(part.neighbour, part.iteration, part.weight) for part in parts]
        return due

    def step(self) -> list[Any]:
        """Start, wait, and average if there is enough."""
        due = [*self("start"), *self("wait")]
        return due + self("averaged") if due[-1][0] == "average" else due

    @property
    def result(self) -> Any:
        result = ffi.new("pp_queues_result_t *")
        lib.pp_sim_queues_result(self.queues, result)
        return result

    def size(self, iteration: int = -1, sender: int = -1) -> int:
        return int(lib.pp_sim_queues_size(self.queues, iteration, sender))


def test_an_iteration() -> None:
    one = One(2, 2)
    assert one("start") == [("send", 0)]
    assert one("wait") == one("update", 0, 0) == []
    assert [lib.pp_sim_queues_awaits_update(one.queues, at) for at in (0, 1)] == [False, True]
    assert one("update", 1, 0) == [("average", 0)]
    assert one.parts == [(0, 0, pytest.approx(1 / 3)), (1, 0, pytest.approx(1 / 3))]
    assert one.own == pytest.approx(1 / 3)
    assert one("averaged") == [("enter", 1), ("announce", 1)]
    assert one.result.received == 2


def test_extra_updates_count_and_later_ones_are_dropped() -> None:
    one = One(3, 1, backup=2)
    one("start")
    one("update", 0, 0)
    one("update", 2, 0)
    assert one("wait") == [("average", 0)]
    assert [part[0] for part in one.parts] == [0, 2]
    one("update", 1, 0)  # while it averages
    one("averaged")
    assert (one.result.received, one.result.dropped) == (2, 1)
    one("update", 1, 1)
    assert (one.size(), one.size(1, 1), one.size(1, 0), one.size(0)) == (1, 1, 0, 0)
    one("header", 0, 1)
    one("header", 2, 1)
    assert one.step()[1] == ("average", 1)


def test_all_omitted_is_enough_and_leaves_the_own_model() -> None:
    one = One(2, 1, backup=1)
    one("header", 0, 0)
    one("left", 1, 0)
    assert one.step()[1] == ("average", 0)
    assert (one.parts, one.own) == ([], 1)


def test_tokens() -> None:
    one = One(0, 2, max_ig=2)
    for iteration in (1, 2):
        assert one.step()[-1] == ("announce", iteration)
    assert one.step() == [("send", 2), ("average", 2)]  # there are no tokens for iteration 3
    assert lib.pp_sim_queues_awaits_token(one.queues, 1)
    assert one("token", 0, 1) == []
    assert one("token", 1, 2) == [("enter", 3), ("announce", 3)]
    assert one.result.gap == 2
    one("unbound", 0)
    assert one.step()[-2:] == [("enter", 4), ("announce", 4)]
    assert one.step() == [("send", 4), ("average", 4)]
    assert one("unbound", 1) == [("enter", 5), ("announce", 5)]
    assert one.result.gap == 0  # there is nobody


def test_a_neighbour_that_is_known_to_be_past_gets_the_header_only() -> None:
    one = One(0, 3)
    one("token", 0, 1)
    one("token", 1, 0)
    one("unbound", 2)
    one("start")
    assert [lib.pp_sim_queues_wants(one.queues, out) for out in range(3)] == [False, True, False]


def test_a_neighbour_that_has_decided_to_jump_still_gets_what_it_averages_before() -> None:
    one = One(2, 2, backup=1, skip=3)
    one("token", 0, 1)
    one("token", 1, 2)
    one("start")
    assert [lib.pp_sim_queues_wants(one.queues, out) for out in range(2)] == [True, False]


def test_what_is_no_longer_in_the_ring_counts_as_omitted() -> None:
    one = One(1, 1, max_ig=2)  # which holds 3 iterations
    one("update", 0, 3)
    one("update", 0, 0)
    assert (one.size(0), one.size(3)) == (0, 1)
    assert one.step()[1] == ("average", 0)
    assert (one.parts, one.result.dropped) == ([], 1)


def test_staleness_averages_each_newest_update_once() -> None:
    one = One(2, 1, staleness=2)
    one("update", 0, 1)
    one("update", 0, 0)  # older than the newest
    one("update", 1, 0)
    one.step()
    assert [part[:2] for part in one.parts] == [(0, 1), (1, 0)]
    shares = [one.own, *(part[2] for part in one.parts)]
    assert shares == pytest.approx([3 / 10, 4 / 10, 3 / 10])  # Eq. 2
    one.step()  # both are within the bound, neither is new
    assert (one.parts, one.own, one.result.iteration) == ([], 1, 2)
    one.step()
    one("start")
    assert one("wait") == [], "3 - 0 exceeds the bound"
    assert one("update", 1, 1) == [("average", 3)]
    assert (one.own, one.parts) == (pytest.approx(3 / 4), [(1, 1, pytest.approx(1 / 4))])


def test_an_update_older_than_the_last_averaged_is_dropped() -> None:
    one = One(1, 1, staleness=3)
    one("update", 0, 2)
    one.step()
    one("update", 0, 1)
    assert one.size() == 0
    one.step()
    assert (one.parts, one.result.dropped) == ([], 1)


def test_topology_gives_the_weight_of_an_omitted_neighbour_to_the_own_model() -> None:
    one = One(2, 1, [0.25, 0.125], weighted=True, protocol="none")
    one("update", 0, 0)
    one("header", 1, 0)
    one.step()
    assert (one.own, one.parts) == (0.75, [(0, 0, 0.25)])


def test_a_jump() -> None:
    one = One(2, 2, backup=1, skip=3)
    for out, announced in enumerate((3, 9)):
        one("token", out, announced)
    one("update", 0, 0)
    one("start")
    # It receives 2 instead of 0, and says so at once.
    assert one("wait") == [("omit", 1, 3), ("announce", 3)]
    assert one("update", 1, 2) == [("average", 2)]
    assert (one.own, one.parts) == (0.5, [(1, 2, 0.5)])
    assert one("averaged") == [("enter", 3)]
    assert (one.result.skipped, one.result.dropped, one.result.gap) == (2, 1, 0)
    one("token", 0, 5)  # not more than 2 behind
    assert one.step() == [("send", 3)]
    assert one("token", 0, 100) == [("omit", 4, 6), ("announce", 6)]


@pytest.mark.parametrize(
    ("mode", "ring"),
    [
        (Mode(max_ig=4), 5),
        (Mode(max_ig=4, staleness=3), 8),
        (Mode(max_ig=4, staleness=3, skip=2), 9),
        (Mode(protocol="none"), 3),
        (Mode(protocol="none", staleness=3), 12),
    ],
)
def test_how_many_iterations_are_kept(mode: Mode, ring: int) -> None:
    assert lib.pp_sim_queues_ring(describe(mode, 2, 2, back=2)) == ring


def test_what_a_jump_averages_is_kept_while_others_run_ahead_by_its_tokens() -> None:
    one = One(2, 1, backup=1, max_ig=2, skip=3, skip_trigger=1)
    one("token", 0, 3)
    one("start")
    one("update", 0, 2)
    one("update", 0, 5)
    assert one("wait")[-1] == ("average", 2)
    assert [part[:2] for part in one.parts] == [(0, 2)]


def test_a_model_that_is_too_old_has_no_weight_after_a_jump() -> None:
    one = One(1, 1, staleness=1, skip=6)
    one("token", 0, 6)
    one("start")
    one("update", 0, 4)
    assert one("wait")[-1] == ("average", 5)
    assert (one.own, one.parts) == (0, [(0, 4, 1)])


def test_leaving_and_coming_back() -> None:
    one = One(1, 2)
    one("update", 0, 0)
    one.step()
    assert one("leave") == [("tell-left", 1)]
    assert one("token", 0, 7) == []
    assert one("token", 1, 4) == [("omit", 1, 4)]  # for those that wait for its headers
    assert one("token", 1, 5) == [("omit", 4, 5)]
    assert one("back") == [("tell-here", 5)]
    assert one("start") == [("send", 5)]
    one("left", 0, 3)
    assert one("wait") == [("average", 5)]
    one("averaged")
    assert one.result.skipped == 4
    one("here", 0)
    one("start")
    assert one("wait") == []


def test_a_request_that_was_outstanding_when_its_rank_left() -> None:
    one = One(1, 1)
    one("start")
    assert one("leave") == [("tell-left", 1)]
    assert one("token", 0, 4) == [("omit", 1, 4)]
    assert one("back") == [("tell-here", 4)]
    assert one("wait") == []
    assert one("update", 0, 3) == [("average", 3)]
    assert one("averaged") == [("enter", 4)]


def test_an_update_that_is_overwritten_while_it_is_read_counts_as_omitted() -> None:
    one = One(3, 1, backup=1)
    one("update", 0, 0)
    one("update", 1, 0)
    one("start")
    one("wait")
    assert one("gone", 0, 0) == []
    assert one("update", 2, 0) == [("average", 0)]
    assert [part[0] for part in one.parts] == [1, 2]


def test_with_a_bound_an_update_that_was_overwritten_counts_as_omitted() -> None:
    one = One(1, 1, staleness=1)
    one("update", 0, 0)
    one("start")
    one("wait")
    assert one("gone", 0, 0) == [("average", 0)]
    assert (one.parts, one.own) == ([], 1)


def test_an_update_that_came_while_an_older_one_was_overwritten_is_averaged() -> None:
    one = One(1, 1, staleness=1)
    one("update", 0, 0)
    one("start")
    one("wait")
    one("update", 0, 1)
    assert one("gone", 0, 0) == [("average", 0)]
    assert [part[:2] for part in one.parts] == [(0, 1)]


def test_without_tokens_only_ranks_that_have_left_are_told() -> None:
    one = One(2, 1, protocol="none")
    assert not lib.pp_sim_queues_tells(one.queues, 0)
    assert one("left", 0, 0) == [("announce", 0)]
    assert [lib.pp_sim_queues_tells(one.queues, at) for at in (0, 1)] == [True, False]


def test_notify_ack_sends_when_the_update_before_is_averaged() -> None:
    one = One(0, 1, protocol="notify-ack")
    one.step()
    assert one("start") == one("wait") == []
    assert lib.pp_sim_queues_awaits_token(one.queues, 0)
    assert one("token", 0, 1) == [("send", 1), ("average", 1)]


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"max_ig": 0}, "max_ig=0 is not in 1"),
        ({"backup": 2}, "backup=2 is not in 0..1"),
        ({"backup": -1}, "backup=-1 is not in 0..1"),
        ({"staleness": -1}, "staleness=-1 is not in 0"),
        ({"skip": 1}, "skip=1 is not in 2"),
        ({"protocol": lib.PP_QUEUES_PROTOCOL_COUNT}, "protocol=3 is not in 0..2"),
    ],
)
def test_values_out_of_their_range_are_refused(wrong: dict[str, int], text: str) -> None:
    plan = describe(Mode(), 2, 2, 1)
    for name, value in wrong.items():
        setattr(plan, name, value)
    with pytest.raises(CoreError, match=text):
        open_queues(plan)


def test_one_rank_alone_goes_on() -> None:
    one = One(0, 0)
    assert one.step() == [("send", 0), ("average", 0), ("enter", 1), ("announce", 1)]


@pytest.mark.parametrize(
    "event",
    [("wait", 0, 0), ("averaged", 0, 0), ("update", 2, 0), ("token", 1, 0), ("left", 0, -1)],
)
def test_wrong_events_change_nothing(event: tuple[str, int, int]) -> None:
    one = One(2, 1)
    with pytest.raises(CoreError):
        one(*event)
    assert one("start") == [("send", 0)]
