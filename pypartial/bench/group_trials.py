"""Trials of ``bench groups``: a way to average, with its calls, its samples and what was wrong.

Some ranks take part, and the others sleep. A rank that has made its calls leaves all handles
(`Context.away`), because groups are formed of those that have not: what is under way then ends with
fewer ranks. A rank in MPI's own barrier would be waited for.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

import pypartial as pp

from .clock import Lap, timed
from .contenders import Contender
from .group_options import GroupGenerator
from .group_ways import Cast, GroupWay, Shares
from .pace import meet

if TYPE_CHECKING:
    from ..sim.arrivals import Arrivals
    from .group_ways import Array

__all__ = ["Course", "CourseTrial", "GroupTrial", "Stage"]

# Ranks that sleep look for the end of a block this often: it costs some 0.2 % of a core each.
_DOZE_S = 5e-3
_FAILURES_KEPT = 3
_FEW_ROUNDINGS = 1e-5  # relative
_MANY_ROUNDINGS = 1e-3
_FIXED = (GroupGenerator.GIVEN.value, GroupGenerator.STATIC.value)
_CHAINED = GroupGenerator.RANDOM.value  # one Wait may run several groups of other ranks


@dataclass(frozen=True)
class Stage:
    """What all trials of a case have in common.

    Attributes
    ----------
    ctx : pypartial.Context
    comm : mpi4py.MPI.Intracomm
        Of all ranks, for the trials alone.
    cast : Cast
    shares : Shares
    """

    ctx: pp.Context
    comm: MPI.Intracomm
    cast: Cast
    shares: Shares

    def play(self, act: Callable[[], object]) -> None:
        """Let the ranks that take part act while the others sleep; collective."""
        if self.cast.takes_part:
            self.comm.Barrier()  # those that sleep have left
            act()
            with self.ctx.away():
                meet(self.comm)
        else:
            with self.ctx.away():
                self.comm.Barrier()
                meet(self.comm, _DOZE_S)


@dataclass
class _Checked:
    """A way to average, and the checks of what it leaves in the buffer.

    Attributes
    ----------
    way : GroupWay
    contender : Contender
    receive : array
        The buffer, which is averaged in place.
    stage : Stage
    failures : list of str
        The first few failures, in words.
    """

    way: GroupWay
    contender: Contender
    receive: Array
    stage: Stage
    failures: list[str] = field(default_factory=list)
    _together: bool = False  # a status of the newest `_run` named a group with others

    @property
    def closed(self) -> list[int]:
        """The ranks that this rank's calls can average with, itself among them.

        Its group, where groups are fixed; or all ranks that take part.
        """
        cast = self.stage.cast
        if self.way.backend is None or self.way.name in _FIXED:
            return cast.fixed[cast.number]
        return list(range(cast.members))

    def _run(self, where: str, act: Callable[[], object], tolerance: float) -> Array | None:
        """Fill the buffer, act, and check what that did to the ranks of `closed`; collective.

        Their mean must be kept. Unless each was alone, by all that `_look` has seen, their values
        must have come closer to it: calls that do nothing keep the mean, too.

        Returns
        -------
        array or None
            The beginning of the buffer; None if the buffer is wrong, or this rank sleeps.
        """
        shares, cast = self.stage.shares, self.stage.cast
        self.receive[:] = shares.of(cast.rank)
        self._together = False
        self.stage.play(act)
        if cast.takes_part:
            self._look()
        head = shares.head(self.receive, tolerance)
        if head is None:
            self._fail(where, "parts of the buffer were treated differently")
        told = self.stage.comm.allgather((head, self._together))
        if not cast.takes_part:
            return None
        members = [told[rank] for rank in self.closed]
        given = [one for one, _ in members if one is not None]
        if len(given) == len(self.closed):
            mean, expected = np.mean(given, axis=0, dtype=float), shares.average(self.closed)
            if not np.allclose(mean, expected, rtol=tolerance, atol=0):
                self._fail(where, f"the mean over ranks {self.closed} is {mean}, not {expected}")
            elif any(together for _, together in members) and not shares.closer(given, self.closed):
                self._fail(where, f"ranks {self.closed} differ as much as before the calls")
        return head

    def _look(self) -> None:
        """Note whether the newest call of this rank was in a group with others."""
        status = self.contender.status()
        self._together |= status is None or len(status.group) > 1

    def _check_last(self, where: str, head: Array | None, tolerance: float, *, alone: bool) -> None:
        """Check the result of the last call against its group.

        `alone` says that nothing was averaged before. Otherwise the result is known only if all
        ranks of `closed` were in the group. A group may lack ranks that were not back yet from
        the end of the last block.
        """
        if head is None:
            return
        status = self.contender.status()
        group = self.closed if status is None else list(status.group)
        if not set(group) <= set(self.closed):
            self._fail(where, f"group {group}, of ranks {self.closed}")
        if alone or group == self.closed:
            self._check_average(where, head, group, tolerance)

    def _check_average(
        self, where: str, head: Array, group: Sequence[int], tolerance: float
    ) -> None:
        expected = self.stage.shares.average(group)
        if not np.allclose(head, expected, rtol=tolerance, atol=0):
            self._fail(where, f"{head} is not the average over {list(group)}, {expected}")

    def _fail(self, where: str, text: str) -> None:
        if len(self.failures) < _FAILURES_KEPT:
            rank = self.stage.cast.rank
            what = f"{self.way}, {self.stage.shares.count} x {self.receive.dtype}"
            self.failures.append(f"{what}, rank {rank}, {where}: {text}")


@dataclass
class GroupTrial(_Checked):
    """A way to average at one size, in blocks of calls that follow each other.

    Attributes
    ----------
    turn_ns : list of float
        Mean time of a call in each block; 0 on ranks that sleep.
    turn_cpu_ns : list of int
        CPU time in each block while its calls last, of the calling thread and of the library's.
    calls : int
        Calls in all blocks together.
    group_sizes : list of int
        Of the groups that calls were in, as far as their status was looked at.
    """

    turn_ns: list[float] = field(default_factory=list)
    turn_cpu_ns: list[int] = field(default_factory=list)
    calls: int = 0
    group_sizes: list[int] = field(default_factory=list)

    def rehearse(self, calls: int) -> None:
        """Make calls of which every result and every group is checked; collective."""
        for call in range(1, calls + 1):
            where = f"call {call}"
            head = self._run(where, self.contender.call, _FEW_ROUNDINGS)
            self._check_last(where, head, _FEW_ROUNDINGS, alone=self.way.name != _CHAINED)
        self._count_groups(calls)

    def turn(self, calls: int) -> float:
        """Time a block of calls, after one that does not count; collective."""
        laps: list[Lap] = []
        elsewhere: list[int] = []  # CPU time of the library's thread within the lap

        def act() -> None:
            self.contender.repeat(1)
            self._look()
            before = self.contender.cpu_ns()
            laps.append(timed(functools.partial(self.contender.repeat, calls)))
            elsewhere.append(self.contender.cpu_ns() - before)

        where = f"after {1 + calls} calls"
        head = self._run(where, act, _MANY_ROUNDINGS)
        self._check_last(where, head, _MANY_ROUNDINGS, alone=False)
        ns = sum(lap.ns for lap in laps) / calls
        self.turn_ns.append(ns)
        self.turn_cpu_ns.append(sum(lap.cpu_ns for lap in laps) + sum(elsewhere))
        self.calls += calls
        return ns

    def forget(self) -> None:
        """Drop the samples taken so far, but keep the failures and the sizes of groups."""
        self.turn_ns, self.turn_cpu_ns, self.calls = [], [], 0

    def _count_groups(self, calls: int) -> None:
        """Note the groups of calls that follow each other, and check that ranks agree on them.

        Of twice as many calls the first ones count: the groups of the last ones may lack ranks
        that are done. Collective.
        """
        seen: list[tuple[int, tuple[int, ...]]] = []

        def act() -> None:
            for _ in range(2 * calls):
                self.contender.call()
                self._look()
                status = self.contender.status()
                if status is not None:
                    seen.append((status.round, status.group))

        self._run("groups", act, _MANY_ROUNDINGS)
        groups: dict[int, tuple[int, ...]] = {}
        for rank, entries in enumerate(self.stage.comm.allgather(seen)):
            for round_, group in entries:
                if rank not in group or (round_ and groups.setdefault(round_, group) != group):
                    self._fail(f"group {round_}", f"rank {rank} was told {group}")
            self.group_sizes += [len(group) for _, group in entries[:calls]]
        if self.way.backend is None:
            self.group_sizes = [self.stage.cast.size]
        usual = float(np.median(self.group_sizes))
        if self.way.name in _FIXED and usual != self.stage.cast.size:
            self._fail("groups", f"they usually had {usual:g} ranks, not {self.stage.cast.size}")


# ---- iterations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """How long ranks sleep before each Start, and when a run of them ends.

    Attributes
    ----------
    arrivals : Arrivals
    run_ns : int
        No iteration but the first begins so much later than the run.
    lines : int or None
        Of a trace, which each run begins anew, and so often as it comes to the end; None: the model
        knows all steps, and the next run goes on where this one ends.
    """

    arrivals: Arrivals
    run_ns: int
    lines: int | None = None

    def sleep_ns(self, before: int, done: int, rank: int) -> int:
        """Return how long a rank sleeps before its next Start.

        `before` iterations it has made in earlier runs, `done` in this one.
        """
        step = before + done if self.lines is None else done % self.lines
        return int(self.arrivals.times(step)[rank])


@dataclass
class CourseTrial(_Checked):
    """Iterations of one generator: sleep, Start and Wait, until a run is over.

    Attributes
    ----------
    course : Course
    iteration_ns : list of float
        Mean time of an iteration of this rank, in each run.
    """

    course: Course = field(kw_only=True)
    iteration_ns: list[float] = field(default_factory=list)
    _steps: int = 0

    def turn(self) -> None:
        """Do a run of iterations, and check it as a block of calls; collective."""
        ends: list[int] = []
        begins: list[int] = []

        def act() -> None:
            begins.append(time.monotonic_ns())
            until = begins[0] + self.course.run_ns
            while (now := time.monotonic_ns()) < until or not ends:
                sleep_ns = self.course.sleep_ns(self._steps, len(ends), self.stage.cast.rank)
                time.sleep(max(0, now + sleep_ns - time.monotonic_ns()) * 1e-9)
                self.contender.call()
                ends.append(time.monotonic_ns())
                self._look()

        head = self._run("a run", act, _MANY_ROUNDINGS)
        self._check_last("a run", head, _MANY_ROUNDINGS, alone=False)
        self.contender.flush()
        self.iteration_ns.append((ends[-1] - begins[0]) / len(ends))
        self._steps += len(ends)
