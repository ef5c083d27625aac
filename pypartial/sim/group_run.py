"""``pypartial sim groups``: the protocol of a generator alone, in virtual time.

Every rank computes, asks for a group, and computes again when its request is complete. Messages
take no time, a group takes the same time whatever its members are. Simultaneous events happen in an
order that is drawn.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from .generators import Plan
from .groups import Action, Alone, Begin, Complete, Machine, static_table
from .skew import TooLong

__all__ = ["Course", "Result", "simulate"]

Times = Callable[[int], Sequence[int]]
_START, _FINISH = 0, 1
_END_NS = 1 << 63


def _table(ranks: int, per_node: int) -> list[list[int]]:
    if ranks % per_node:
        raise ValueError(
            f"static: {ranks} ranks are not nodes of {per_node} ranks; choose --per-node so "
            "that all nodes are full"
        )
    return static_table(ranks // per_node, per_node)


@dataclass(frozen=True)
class Course:
    """One simulation.

    Attributes
    ----------
    plan : Plan
    ranks, iterations : int
        The simulation ends when the fastest rank has made so many iterations.
    times : callable
        Returns for an iteration, from 0, the nanoseconds that each rank computes.
    seed : int
    per_node : int
        Consecutive ranks of a node; the last node may have fewer.
    group_ns : int
        What a group takes.
    weights : str
        ``constant``, ``closest`` or ``initial``.
    alpha : float
    """

    plan: Plan
    ranks: int
    iterations: int
    times: Times
    seed: int = 0
    per_node: int = 4
    group_ns: int = 0
    weights: str = "constant"
    alpha: float = 0.5


@dataclass
class Result:
    """What a simulation gave.

    Attributes
    ----------
    groups : list of list of int
        The members of all groups, in the order in which they began.
    iterations : list of int
        Of each rank, those that it has completed.
    elapsed_ns : list of int
        When each rank completed the last of them.
    waited_ns : list of int
        How long each rank waited in them.
    alone : int
        Requests without a group.
    """

    groups: list[list[int]]
    iterations: list[int]
    elapsed_ns: list[int]
    waited_ns: list[int]
    alone: int = 0

    def iteration_ns(self, ranks: Sequence[int]) -> float:
        """Return the mean time of an iteration of these ranks; NaN if they have completed none."""
        done = [rank for rank in ranks if self.iterations[rank]]
        times = [self.elapsed_ns[rank] / self.iterations[rank] for rank in done]
        return sum(times) / len(times) if times else math.nan

    def waiting(self, ranks: Sequence[int]) -> float:
        """Return the share of the time in which these ranks waited; NaN like `iteration_ns`."""
        elapsed = sum(self.elapsed_ns[rank] for rank in ranks)
        return sum(self.waited_ns[rank] for rank in ranks) / elapsed if elapsed else math.nan

    def sizes(self) -> Counter[int]:
        """Return how many groups of each size there were."""
        return Counter(map(len, self.groups))


@dataclass
class _Run:
    course: Course
    groups: Machine
    result: Result
    log: TextIO | None
    progress: Callable[[float], None] | None
    asked_ns: list[int]
    events: list[tuple[int, float, int, int, int]] = field(default_factory=list)
    steps: dict[int, Sequence[int]] = field(default_factory=dict)
    computing: Counter[int] = field(default_factory=Counter)  # ranks in each iteration

    def __post_init__(self) -> None:
        self.draw = random.Random(self.course.seed)

    def go(self) -> None:
        for rank in range(self.course.ranks):
            self.compute(rank, 0)
        while self.events:
            now, _, kind, rank, serial = heapq.heappop(self.events)
            if now >= _END_NS:
                raise TooLong(
                    f"{self.course.iterations:,} iterations take more virtual time than a "
                    "simulation can have (2**63 ns, 292 years): choose fewer iterations"
                )
            if kind == _START:
                self.asked_ns[rank] = now
                self.obey(now, self.groups.start(rank, now_ns=now))
            else:
                self.obey(now, self.groups.finish(rank, serial, now))
            if self.result.iterations[rank] >= self.course.iterations:
                return
        raise RuntimeError("no rank can go on")  # a defect of the generator

    def compute(self, rank: int, now: int) -> None:
        iteration = self.result.iterations[rank]
        if iteration not in self.steps:  # the fastest rank has begun it
            self.steps[iteration] = self.course.times(iteration)
            if self.progress:
                self.progress(iteration / self.course.iterations)
        self.computing[iteration] += 1
        if self.computing[iteration] == self.course.ranks:  # all have begun it
            del self.computing[iteration]
            times = self.steps.pop(iteration)
        else:
            times = self.steps[iteration]
        self.push(now + int(times[rank]), _START, rank)

    def push(self, when: int, kind: int, rank: int, serial: int = 0) -> None:
        heapq.heappush(self.events, (when, self.draw.random(), kind, rank, serial))

    def obey(self, now: int, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Begin):
                self.begin(now, action)
            elif isinstance(action, Complete | Alone):
                self.complete(now, action)

    def begin(self, now: int, group: Begin) -> None:
        self.result.groups.append(group.members)
        self.write(now, "begin", group)
        end = now + self.course.group_ns
        self.write(end, "end", group)
        for rank in group.members:
            self.push(end, _FINISH, rank, group.serial)

    def complete(self, now: int, action: Complete | Alone) -> None:
        rank = action.rank
        self.result.alone += isinstance(action, Alone)
        self.result.iterations[rank] += 1
        self.result.elapsed_ns[rank] = now
        self.result.waited_ns[rank] += now - self.asked_ns[rank]
        if self.result.iterations[rank] < self.course.iterations:  # otherwise the simulation ends
            self.compute(rank, now)

    def write(self, now: int, event: str, group: Begin) -> None:
        if self.log is None:
            return
        line = {
            "t": now,
            "event": event,
            "group": group.serial,
            "members": group.members,
            "weights": group.weights,
            "iterations": group.iterations,
        }
        self.log.write(json.dumps(line) + "\n")


def simulate(
    course: Course, log: TextIO | None = None, progress: Callable[[float], None] | None = None
) -> Result:
    """Simulate ranks until the fastest has made its iterations.

    Parameters
    ----------
    course : Course
    log : text file, optional
        Gets a line of JSON for the beginning and one for the end of each group; the end stands
        directly behind the beginning.
    progress : callable, optional
        Is given the share that is done, now and then.

    Raises
    ------
    CoreError, ValueError
        If the plan does not fit the ranks.
    TooLong
        If the iterations take more virtual time than possible.
    """
    ranks = course.ranks
    plan, table = course.plan, None
    if plan.generator == "static":
        plan, table = Plan("table"), _table(ranks, course.per_node)
    node_of = [rank // course.per_node for rank in range(ranks)]
    weighed = course.weights, course.alpha
    groups = Machine(plan, ranks, course.seed, node_of, *weighed, table=table)
    result = Result([], [0] * ranks, [0] * ranks, [0] * ranks)
    _Run(course, groups, result, log, progress, [0] * ranks).go()
    return result


def _members(given: Any) -> list[int]:
    if not isinstance(given, list) or not all(type(member) is int for member in given):
        raise TypeError
    return given


def read_log(lines: Iterator[str], name: str) -> list[list[int]]:
    """Return the members of the groups of a log, in the order in which they began.

    Raises
    ------
    ValueError
        If a line is not one of a log.
    """
    groups = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            members = _members(entry["members"])
            begins = entry["event"] == "begin"
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(
                f"{name}, line {number}: not a line of a log of groups, such as "
                '{"t": 0, "event": "begin", "group": 1, "members": [0, 1]}'
            ) from None
        if len(set(members)) != len(members) or not members or min(members) < 0:
            raise ValueError(f"{name}, line {number}: {members} are not the members of a group")
        if begins:
            groups.append(members)
    return groups
