"""Drives a generator of groups by random events, and watches that its promises hold."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pypartial.sim.generators import parse_generator
from pypartial.sim.groups import Action, Alone, Begin, Complete, End, Flush, Machine

GENERATORS = (
    *("random:2", "random:3", "random:3,reuse"),
    *("smart:2", "smart:3,foresight=0", "smart:3,c-thres=1", "smart:3,no-division"),
    *("smart:2,no-unfreeze", "smart:2,inter-intra"),
    *("smart:3,inter-intra,foresight=0", "smart:3,inter-intra,c-thres=1"),
    *("controller:2", "controller:3", "controller:2,history=10", "controller:2,no-unfreeze"),
)


@dataclass
class Member:
    """What a rank does."""

    asks: bool = False
    running: int = 0  # serial number of the group that it runs
    last: int = 0  # that of the last group it began
    reason: str = ""  # why it has left; "": it has not
    iteration: int = 0  # of its last request, or what it took over

    @property
    def left(self) -> bool:
        return bool(self.reason)


@dataclass
class Watch:
    """Feeds a machine with events, and asserts after each that what it answers is allowed."""

    machine: Machine
    ranks: int
    members: list[Member] = field(default_factory=list)
    begun: dict[int, list[int]] = field(default_factory=dict)
    log: list[tuple[str, int, list[Action]]] = field(default_factory=list)
    completed: int = 0
    now_ns: int = 0
    moves: bool = False  # the state moves to another address before each event
    weights: str = "constant"
    cache: int = 0
    named: bool = False  # requests name groups: a rank that asked before it left is in its own
    flushes: int = 0
    ended: bool = False
    kept: dict[tuple[int, ...], int] = field(default_factory=dict)
    goals: set[tuple[int, int]] = field(default_factory=set)  # of running groups: serial and rank

    def __post_init__(self) -> None:
        self.members = [Member() for _ in range(self.ranks)]

    # ---- events ----------------------------------------------------------------------------------

    def start(self, rank: int) -> None:
        self.members[rank].asks = True
        self.members[rank].iteration += 1
        self._heard("start", rank, self.machine.start(rank, now_ns=self._tick()))

    def finish(self, rank: int) -> None:
        serial, self.members[rank].running = self.members[rank].running, 0
        actions = self.machine.finish(rank, serial, self._tick())
        foretold = [Complete(rank, serial)] if (serial, rank) in self.goals else []
        assert [a for a in actions if isinstance(a, Complete)] == foretold
        self.goals.discard((serial, rank))
        self._heard("finish", rank, actions)

    def leave(self, rank: int, reason: str = "in-call") -> None:
        self.members[rank].reason = reason
        self._heard("leave", rank, self.machine.leave(rank, self._tick(), reason))

    def back(self, rank: int) -> None:
        self.members[rank].reason = ""
        self._heard("back", rank, self.machine.back(rank, self._tick()))

    def _tick(self) -> int:
        if self.moves:
            self.machine.move()
        self.now_ns += 1_000_000
        return self.now_ns

    # ---- what the machine answers ----------------------------------------------------------------

    def _heard(self, event: str, rank: int, actions: list[Action]) -> None:
        self.log.append((event, rank, actions))
        due = self._due(event)
        for action in actions:
            if isinstance(action, Begin):
                self._begin(action)
            elif isinstance(action, Flush | End):
                assert (type(action), action is actions[-1]) == (due, True)
                due = None
                self._conclude(action)
            else:
                assert isinstance(action, Complete | Alone)
                assert isinstance(action, Alone) or event == "finish"
                self._complete(action)
        assert due is None, f"{due} is not told"
        assert self.machine.alive <= self.machine.most
        present = [m for m in self.members if not m.left]
        running = any(m.running for m in self.members)
        assert running or not present or not all(m.asks for m in present), "nobody can go on"

    def _begin(self, group: Begin) -> None:
        assert group.members == sorted(set(group.members)) != []
        assert math.isclose(sum(group.weights) + group.initial, 1)
        assert group.serial not in self.begun
        self._number(group)
        self._take_over(group)
        goals = zip(group.members, group.goals, strict=True)
        self.goals |= {(group.serial, rank) for rank, is_goal in goals if is_goal}
        self.begun[group.serial] = group.members
        for rank in group.members:
            member = self.members[rank]
            assert member.asks, f"group {group.serial} begins while rank {rank} computes"
            assert not member.running, f"group {group.serial} overlaps {member.running}"
            stays = self.named and member.reason == "in-call"
            assert stays or not member.left, f"group {group.serial} has rank {rank}, which has left"
            assert group.serial > member.last, f"rank {rank} runs {group.serial} late"
            member.running = member.last = group.serial

    def _take_over(self, group: Begin | Flush) -> None:
        members = [self.members[rank] for rank in group.members]
        assert group.iterations == [member.iteration for member in members]
        assert group.newest == max(group.iterations)
        for member in members:
            if self.weights != "constant":
                member.iteration = group.newest

    def _due(self, event: str) -> type[Flush] | type[End] | None:
        """What is told as soon as all ranks have left for it and nothing runs."""
        reasons = {member.reason for member in self.members}
        if event not in ("leave", "finish") or any(member.running for member in self.members):
            return None
        if "flushes" in reasons and reasons <= {"flushes", "out"}:
            return Flush
        return (
            End if "frees" in reasons and reasons <= {"frees", "out"} and not self.ended else None
        )

    def _conclude(self, action: Flush | End) -> None:
        if isinstance(action, End):
            self.ended = True
            return
        self.flushes += 1
        assert self.machine.alive == 0
        assert action.serial > max(self.begun, default=0)
        assert action.members == [r for r, m in enumerate(self.members) if m.reason == "flushes"]
        assert action.weights == [1 / len(action.members)] * len(action.members)
        self._take_over(action)
        for rank in action.members:
            self.members[rank].reason = ""  # is back
        for rank, member in enumerate(self.members):
            member.asks = False
            assert not self.machine.asks(rank)

    def _number(self, group: Begin) -> None:
        """The first lists of several members get numbers, each list always the same one."""
        members = tuple(group.members)
        fresh = members not in self.kept and len(members) > 1 and len(self.kept) < self.cache
        if fresh:
            self.kept[members] = len(self.kept)
        assert (group.kept, group.fresh) == (self.kept.get(members, -1), fresh)

    def _complete(self, action: Complete | Alone) -> None:
        member = self.members[action.rank]
        assert member.asks and not member.running
        if isinstance(action, Complete):
            assert action.serial == member.last
        member.asks = False
        self.completed += 1

    # ---- sequences -------------------------------------------------------------------------------

    def choices(self, leavers: Sequence[int]) -> list[tuple[str, int]]:
        """All events that are possible now."""
        found = []
        for rank, member in enumerate(self.members):
            if member.running:
                found.append(("finish", rank))
            elif not member.asks and not member.left:
                found.append(("start", rank))
            if rank in leavers:
                found.append(("back" if member.left else "leave", rank))
        return found

    def wander(self, events: int, draw: random.Random, leavers: Sequence[int] = ()) -> None:
        """Perform random events; the ranks of `leavers` leave and come back."""
        for _ in range(events):
            event, rank = draw.choice(self.choices(leavers))
            getattr(self, event)(rank)

    def serve(self, draw: random.Random) -> None:
        """See that everybody is served: all are back, and no rank is slow any more."""
        for rank, member in enumerate(self.members):
            if member.left:
                self.back(rank)
        waiting = {rank for rank, member in enumerate(self.members) if member.asks}
        for _ in range(4 * self.ranks + 8):
            ranks = list(range(self.ranks))
            draw.shuffle(ranks)
            for rank in ranks:
                member = self.members[rank]
                if member.running:
                    self.finish(rank)
                elif not member.asks:
                    self.start(rank)
                if not member.asks:
                    waiting.discard(rank)
            if not waiting:
                return
        raise AssertionError(f"ranks {sorted(waiting)} are not served")


def watch(
    generator: str,
    ranks: int,
    seed: int = 0,
    per_node: int = 3,
    weights: str = "constant",
    plant: str = "none",
    cache: int = 5,
) -> Watch:
    """Return a machine of a generator in text, watched."""
    node_of = [rank // per_node for rank in range(ranks)]
    plan = parse_generator(generator)
    machine = Machine(plan, ranks, seed, node_of, weights, plant=plant, cache=cache)
    return Watch(machine, ranks, weights=weights, cache=cache)
