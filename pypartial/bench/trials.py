"""Trials: a contender at one size, with its calls, its samples and its account on this rank."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, Union

import numpy as np
from mpi4py import MPI

from ..policy import Full, Policy, Solo
from ..units import format_size
from .clock import Lap, timed
from .contenders import Contender
from .ledger import Ledger, LoopLedger
from .options import Way
from .pace import Pace

if TYPE_CHECKING:
    from .contenders import Receive

Progress = Callable[[str], None]
AnyLedger = TypeVar("AnyLedger", Ledger, LoopLedger)
AnyTrial = Union["Rounds", "Loop"]


class Measured(Protocol):
    """What can be measured in turns: `Trial` describes it."""

    @property
    def way(self) -> object: ...  # noqa: D102

    @property
    def receive(self) -> Receive: ...  # noqa: D102

    def rehearse(self, calls: int) -> None: ...  # noqa: D102

    def turn(self, calls: int) -> float: ...  # noqa: D102

    def forget(self) -> None: ...  # noqa: D102


@dataclass
class Trial(Generic[AnyLedger]):
    """One way to sum at one size, measured in turns.

    Attributes
    ----------
    way : Way
    contender : Contender
    pace : Pace
    comm : mpi4py.MPI.Intracomm
        For communication between the turns.
    receive : array or DeviceBuffer
        The buffer that the contender fills.
    ledger : Ledger or LoopLedger
    turn_ns : list of float
        Mean time of a call in each turn.
    active : list of int
        Active ranks of the rounds whose status was read.
    calls : int
        Calls in all turns together.
    turn_cpu_ns : list of int
        CPU time in each turn, of the calling thread inside the calls and of the library's thread.
    late : int
        Calls that did not begin in time.
    """

    way: Way
    contender: Contender
    pace: Pace
    comm: MPI.Intracomm
    receive: Receive
    ledger: AnyLedger
    turn_ns: list[float] = field(default_factory=list)
    turn_cpu_ns: list[int] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    calls: int = 0
    late: int = 0

    def rehearse(self, calls: int) -> None:
        """Make calls that are checked, but not measured; collective."""
        raise NotImplementedError

    def turn(self, calls: int) -> float:
        """Measure calls; return the mean ns of one, its preparation included. Collective."""
        raise NotImplementedError

    def finish(self) -> None:
        """Free the contender, and compare the ranks' accounts; collective."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop the samples taken so far, but keep the failures."""
        self.turn_ns, self.turn_cpu_ns, self.active = [], [], []
        self.calls = self.late = 0

    def _active_now(self) -> int:
        status = self.contender.status()
        return self.ledger.pattern.ranks if status is None else status.active

    def _keep(self, laps: Sequence[Lap], calls: int, cpu_ns_elsewhere: int) -> None:
        self.turn_ns.append(sum(lap.ns for lap in laps) / calls)
        self.calls += calls
        self.turn_cpu_ns.append(sum(lap.cpu_ns for lap in laps) + cpu_ns_elsewhere)


@dataclass
class Rounds(Trial[Ledger]):
    """Every call is a round of its own: a common beginning, the skew, the call, a quiet end.

    Attributes
    ----------
    latency_ns : list of int
        The latency of every call.
    computed_ns, passes : int
        As in `Pace`, over the measured rounds.
    """

    latency_ns: list[int] = field(default_factory=list)
    computed_ns: int = 0
    passes: int = 0

    def turn(self, calls: int) -> float:
        """Run rounds and keep their samples, after one round that does not count; collective.

        Late contributions of this trial's last turn were pending while the other trials had their
        turns. Their ranks waited elsewhere meanwhile, so they count as active in the round that
        takes these contributions, which says nothing about this policy.
        """
        self.rehearse(1)
        began = time.monotonic_ns()
        before = self.contender.cpu_ns()
        computed_before, passes_before = self.pace.computed_ns, self.pace.passes
        laps = []
        for _ in range(calls):
            lap, in_time = self._round()
            laps.append(lap)
            self.late += not in_time
            self.active.append(self._active_now())
        self.computed_ns += self.pace.computed_ns - computed_before
        self.passes += self.pace.passes - passes_before
        self.latency_ns += [lap.ns for lap in laps]
        self._keep(laps, calls, self.contender.cpu_ns() - before)
        return (time.monotonic_ns() - began) / calls

    def rehearse(self, calls: int) -> None:
        """Run rounds that are checked, but not measured; collective."""
        for _ in range(calls):
            self._round()

    def finish(self) -> None:
        """Flush, free and compare the ranks' accounts; collective."""
        self.receive.fill(-1)
        status = self.contender.flush()
        if status is not None:
            self.ledger.flush(np.asarray(self.receive), status)
        self.contender.free()
        self.ledger.compare(self.comm.allgather(self.ledger.digests))

    def forget(self) -> None:
        """Drop the samples taken so far, but keep the failures."""
        super().forget()
        self.latency_ns = []

    def _round(self) -> tuple[Lap, bool]:
        """Run a round; return the time of the call, and whether it began in time."""
        # No sum is negative: a call that leaves the buffer as it was fails the check.
        self.receive.fill(-1)
        begin = self.pace.begin()
        in_time = self.pace.approach(begin)
        lap = timed(self.contender.call)
        self.pace.settle(begin)
        self.ledger.enter(np.asarray(self.receive), self.contender.status())
        return lap, in_time


@dataclass
class Silence(Rounds):
    """Rounds without any call, with which late ranks' computation in other rounds is compared.

    The contender is called at the quiet end of a round, and its buffer is checked as in other
    rounds, so that the next computation finds the same data in the caches.
    """

    def finish(self) -> None:
        """Nothing was summed."""

    def _round(self) -> tuple[Lap, bool]:
        self.receive.fill(-1)
        begin = self.pace.begin()
        in_time = self.pace.approach(begin)
        self.pace.settle(begin)
        self.contender.call()
        self.ledger.pattern.read(np.asarray(self.receive))
        return Lap(0, 0), in_time


@dataclass
class Loop(Trial[LoopLedger]):
    """Calls follow each other as fast as they can; barriers are between the turns only.

    Every turn ends with a flush. The results of its last call and of the flush are checked after
    the turn. Checking every call would change the measurement, so `rehearse` does that.
    """

    _seen_active: dict[int, int] = field(default_factory=dict)

    def rehearse(self, calls: int) -> None:
        """Make calls and check every result and that no contribution is lost. Collective."""
        for call in range(1, calls + 1):
            self.receive.fill(-1)  # no sum is negative
            self.contender.call()
            self.ledger.enter(np.asarray(self.receive), self.contender.status(), call)
        self._flush(calls)
        self.ledger.audit(self.comm.allgather(self.ledger.take()), calls)

    def turn(self, calls: int) -> float:
        """Time a loop of calls, after one call that does not count; collective."""
        self.contender.repeat(1)
        self.receive.fill(-1)
        begin = self.pace.begin()
        before = self.contender.cpu_ns()
        lap = timed(functools.partial(self.contender.repeat, calls))
        self._keep([lap], calls, self.contender.cpu_ns() - before)
        status = self.contender.status()
        if status is not None:
            self._seen_active[status.round] = status.active
        if _may_wait_for_another(self.way):
            # Slower ranks may still wait for this rank, which must not wait for them in MPI: it
            # leaves by the flush, and checks when all ranks have come there.
            result, status = np.array(self.receive), copy.copy(status)
            self._flush(1 + calls)
            self.ledger.enter(result, status, 1 + calls)
        else:
            self.pace.settle(begin)
            self.ledger.enter(np.asarray(self.receive), status, 1 + calls)
            self._flush(1 + calls)
        return lap.ns / calls

    def finish(self) -> None:
        """Free the contender, and compare the ranks' accounts; collective."""
        self.contender.free()
        self.ledger.compare(self.comm.allgather(self.ledger.take()))
        merged: dict[int, int] = {}
        for active in self.comm.allgather(self._seen_active):
            merged.update(active)
        self.active = list(merged.values()) or [self.comm.size]

    def forget(self) -> None:
        """Drop the samples taken so far, but keep the failures."""
        super().forget()
        self._seen_active = {}

    def _flush(self, calls: int) -> None:
        """End a block of `calls` calls."""
        self.receive.fill(-1)
        status = self.contender.flush()
        if status is not None:
            self.ledger.flush(np.asarray(self.receive), status, calls)


def _may_wait_for_another(way: Way) -> bool:
    """Return whether a rank's last call may wait for a rank that has made all of its calls."""
    return isinstance(way, Policy) and way not in (Solo(), Full())


def take_turns(plan: Sequence[tuple[Measured, Sequence[int]]], progress: Progress) -> None:
    """Measure every trial in turns; collective.

    The order rotates, so that each trial comes first equally often.

    Parameters
    ----------
    plan : sequence of (Trial, sequence of int)
        The trials, and the number of calls in each of their turns; all have equally many turns.
    progress : callable
        Called after each turn with what was measured.
    """
    order = list(plan)
    for turn in range(len(order[0][1])):
        for trial, calls in order:
            trial.turn(calls[turn])
            progress(f"{trial.way}, {format_size(trial.receive.nbytes)}")
        order.append(order.pop(0))
