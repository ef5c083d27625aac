"""Drives a generator of groups by random events, and watches that its promises hold."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pypartial.sim.generators import parse_generator
from pypartial.sim.groups import Action, Alone, Begin, Complete, Machine

GENERATORS = (
    *("random:2", "random:3", "random:3,reuse"),
    *("smart:2", "smart:3,foresight=0", "smart:3,c-thres=1", "smart:3,no-division"),
    *("smart:2,inter-intra", "smart:3,inter-intra,foresight=0", "smart:3,inter-intra,c-thres=1"),
    *("controller:2", "controller:3", "controller:2,history=10", "controller:2,no-unfreeze"),
)


@dataclass
class Member:
    """What a rank does."""

    asks: bool = False
    running: int = 0  # serial number of the group that it runs
    last: int = 0  # that of the last group it began
    left: bool = False


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

    def __post_init__(self) -> None:
        self.members = [Member() for _ in range(self.ranks)]

    # ---- events ----------------------------------------------------------------------------------

    def start(self, rank: int) -> None:
        self.members[rank].asks = True
        self._heard("start", rank, self.machine.start(rank, now_ns=self._tick()))

    def finish(self, rank: int) -> None:
        serial, self.members[rank].running = self.members[rank].running, 0
        self._heard("finish", rank, self.machine.finish(rank, serial, self._tick()))

    def leave(self, rank: int) -> None:
        self.members[rank].left = True
        self._heard("leave", rank, self.machine.leave(rank, self._tick()))

    def back(self, rank: int) -> None:
        self.members[rank].left = False
        self._heard("back", rank, self.machine.back(rank, self._tick()))

    def _tick(self) -> int:
        if self.moves:
            self.machine.move()
        self.now_ns += 1_000_000
        return self.now_ns

    # ---- what the machine answers ----------------------------------------------------------------

    def _heard(self, event: str, rank: int, actions: list[Action]) -> None:
        self.log.append((event, rank, actions))
        for action in actions:
            if isinstance(action, Begin):
                self._begin(action)
            else:
                assert isinstance(action, Complete | Alone)
                self._complete(action)
        assert self.machine.alive <= self.machine.most
        present = [m for m in self.members if not m.left]
        running = any(m.running for m in self.members)
        assert running or not present or not all(m.asks for m in present), "nobody can go on"

    def _begin(self, group: Begin) -> None:
        assert group.members == sorted(set(group.members)) != []
        assert math.isclose(sum(group.weights) + group.initial, 1)
        assert group.newest == max(group.iterations)
        assert group.serial not in self.begun
        self.begun[group.serial] = group.members
        for rank in group.members:
            member = self.members[rank]
            assert member.asks, f"group {group.serial} begins while rank {rank} computes"
            assert not member.running, f"group {group.serial} overlaps {member.running}"
            assert not member.left, f"group {group.serial} has rank {rank}, which has left"
            assert group.serial > member.last, f"rank {rank} runs {group.serial} late"
            member.running = member.last = group.serial

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
) -> Watch:
    """Return a machine of a generator in text, watched."""
    node_of = [rank // per_node for rank in range(ranks)]
    plan = parse_generator(generator)
    return Watch(Machine(plan, ranks, seed, node_of, weights, plant=plant), ranks)
