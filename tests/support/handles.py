"""Lets ranks call several handles for groups at random times, and watches that they go on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pypartial.sim.generators import Plan, parse_generator
from pypartial.sim.groups import Action, Alone, Begin, Complete, Machine, circles, untangle

PHASES = 3


class Stuck(AssertionError):
    """Ranks wait for ever."""


def parts(ranks: int, draw: random.Random) -> list[list[int]]:
    """Return the ranks cut into groups at random."""
    left = draw.sample(range(ranks), ranks)
    found = []
    while left:
        size = draw.randint(1, len(left))
        found.append(sorted(left[:size]))
        left = left[size:]
    return found


def machine_of(text: str, ranks: int, seed: int) -> Machine:
    """Return a machine of a generator in text, or of ``table`` or ``given``."""
    node_of = [rank // 2 for rank in range(ranks)]
    if text == "table":
        draw = random.Random(seed)
        table = [circles(ranks, parts(ranks, draw)) for _ in range(PHASES)]
        return Machine(Plan("table"), ranks, table=table)
    plan = Plan("given") if text == "given" else parse_generator(text)
    return Machine(plan, ranks, seed, node_of)


@dataclass
class Caller:
    """What a rank does."""

    program: Sequence[Sequence[int]]  # handles that it starts at once, and then waits for
    step: int = 0
    left: set[int] = field(default_factory=set)  # handles
    waits: set[int] = field(default_factory=set)  # handles with an outstanding request
    running: dict[int, int] = field(default_factory=dict)  # by handle: serial number of the group
    completed: int = 0


@dataclass
class Handles:
    """Several machines, and ranks that call them over and over."""

    texts: Sequence[str]
    ranks: int
    seed: int
    programs: Sequence[Sequence[Sequence[int]]]  # of each rank
    untangles: bool = True
    sizes: list[int] = field(default_factory=list)  # of all groups that have begun

    def __post_init__(self) -> None:
        drawn = random.Random(self.seed)
        self.machines = [machine_of(t, self.ranks, drawn.getrandbits(32)) for t in self.texts]
        self.callers = [Caller(program) for program in self.programs]
        self.asked = [[0] * self.ranks for _ in self.texts]
        self.now_ns = 0

    def choices(self, leavers: Sequence[int] = ()) -> list[tuple[str, int, int]]:
        """All events that are possible now."""
        found = []
        for rank, caller in enumerate(self.callers):
            found += [("finish", rank, handle) for handle in caller.running]
            if not caller.waits and not caller.left:
                found.append(("start", rank, 0))
            if rank in leavers:
                found.append(("back" if caller.left else "leave", rank, 0))
        return found

    def perform(self, event: str, rank: int, handle: int) -> None:
        caller = self.callers[rank]
        self.now_ns += 1_000_000
        if event == "finish":
            serial = caller.running.pop(handle)
            self._told(handle, self.machines[handle].finish(rank, serial, self.now_ns))
            return
        if event == "start":
            step = caller.program[caller.step % len(caller.program)]
            caller.step += 1
            caller.waits |= set(step)
            for one in step:
                self._start(one, rank)
            return
        for one, machine in enumerate(self.machines):
            if event == "leave":
                caller.left.add(one)
                self._told(one, machine.leave(rank, self.now_ns))
            else:
                caller.left.remove(one)
                self._told(one, machine.back(rank, self.now_ns))

    def _start(self, handle: int, rank: int) -> None:
        machine = self.machines[handle]
        if self.texts[handle] == "given":
            number = self.asked[handle][rank]
            draw = random.Random(f"{self.seed} {handle} {number}")
            machine.give(rank, next(p for p in parts(self.ranks, draw) if rank in p))
        self.asked[handle][rank] += 1
        self._told(handle, machine.start(rank, now_ns=self.now_ns))

    def _told(self, handle: int, actions: list[Action]) -> None:
        self._hear(handle, actions)
        if self.untangles:
            for at, more in enumerate(untangle(self.machines, self.now_ns)):
                self._hear(at, more)

    def _hear(self, handle: int, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Begin):
                self.sizes.append(len(action.members))
                for rank in action.members:
                    caller = self.callers[rank]
                    assert handle in caller.waits and handle not in caller.running
                    named = self.texts[handle] in ("table", "given")  # then it stays in its group
                    assert named or handle not in caller.left
                    caller.running[handle] = action.serial
            else:
                assert isinstance(action, Complete | Alone)
                self.callers[action.rank].waits.remove(handle)
                self.callers[action.rank].completed += 1

    def wander(self, events: int, draw: random.Random, leavers: Sequence[int] = ()) -> None:
        """Perform random events; the ranks of `leavers` leave and come back."""
        for _ in range(events):
            choices = self.choices(leavers)
            if all(event == "leave" for event, _, _ in choices):
                raise Stuck(f"seed {self.seed}: no rank can go on")
            self.perform(*draw.choice(choices))

    def serve(self, requests: int, draw: random.Random) -> None:
        """See that all ranks are back and complete so many requests more."""
        for rank, caller in enumerate(self.callers):
            if caller.left:
                self.perform("back", rank, 0)
        wanted = [caller.completed + requests for caller in self.callers]
        for _ in range(400 * requests * self.ranks):
            behind = [r for r, c in enumerate(self.callers) if c.completed < wanted[r]]
            if not behind:
                return
            choices = self.choices()
            if not choices:
                raise Stuck(f"seed {self.seed}: no rank can go on")
            self.perform(*draw.choice(choices))
        raise Stuck(f"seed {self.seed}: ranks {behind} are not served")
