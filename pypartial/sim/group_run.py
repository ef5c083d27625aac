"""``pypartial sim groups``: the protocol of a generator alone, in virtual time.

Every rank computes, asks for a group, and computes again when its request is complete. Messages
take no time, a group takes the same time whatever its members are.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from .events import Events, Times
from .generators import Plan
from .groups import Action, Alone, Begin, Complete, Machine, static_table

__all__ = ["Course", "Result", "simulate"]


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
    behind : int
        By how many iterations members of groups were behind the newest one, summed up.
    """

    groups: list[list[int]]
    iterations: list[int]
    elapsed_ns: list[int]
    waited_ns: list[int]
    alone: int = 0
    behind: int = 0

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


class _Run(Events):
    def __init__(
        self,
        course: Course,
        groups: Machine,
        result: Result,
        log: TextIO | None,
        progress: Callable[[float], None] | None,
    ) -> None:
        super().__init__(course.ranks, course.iterations, course.times, course.seed, progress)
        self.course, self.groups, self.result, self.log = course, groups, result, log
        self.asked_ns = [0] * course.ranks
        for rank in range(course.ranks):
            self.compute(0, rank, 0, self.start)

    def start(self, now: int, rank: int) -> None:
        self.asked_ns[rank] = now
        self.obey(now, self.groups.start(rank, now_ns=now))

    def finish(self, now: int, rank: int, serial: int) -> None:
        self.obey(now, self.groups.finish(rank, serial, now))

    def obey(self, now: int, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Begin):
                self.begin(now, action)
            elif isinstance(action, Complete | Alone):
                self.complete(now, action)

    def begin(self, now: int, group: Begin) -> None:
        self.result.groups.append(group.members)
        newest = max(group.iterations)
        self.result.behind += sum(newest - iteration for iteration in group.iterations)
        self.write(now, "begin", group)
        end = now + self.course.group_ns
        self.write(end, "end", group)
        for rank in group.members:
            self.push(end, self.finish, rank, group.serial)

    def complete(self, now: int, action: Complete | Alone) -> None:
        rank = action.rank
        self.result.alone += isinstance(action, Alone)
        self.result.iterations[rank] += 1
        self.result.elapsed_ns[rank] = now
        self.result.waited_ns[rank] += now - self.asked_ns[rank]
        if self.result.iterations[rank] < self.course.iterations:
            self.compute(now, rank, self.result.iterations[rank], self.start)
        else:
            self.over = True

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
    _Run(course, groups, result, log, progress).run()
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
