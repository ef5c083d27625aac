"""The timing of a round: a common beginning, linearly skewed arrivals, a quiet end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from .options import AllreduceOptions, Work

_now = time.monotonic_ns
_POLL_S = 2e-4


class Pace:
    """Times the rounds of one rank.

    The end of a barrier is not a common beginning: with more ranks than cores the last rank may
    leave it milliseconds after the first, as late as the skew to be measured. So the ranks of a
    node, which share a monotonic clock, use the barrier to agree on a moment shortly after it, and
    rank r arrives r times the skew after that moment. The moment comes after twice the slowest exit
    from the barrier in the last rounds. Ranks of different nodes begin when they leave the barrier.

    Without skew there is only the barrier.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        A communicator for this object alone. Construction, `begin` and `settle` are collective.
    options : AllreduceOptions

    Attributes
    ----------
    computed_ns, passes : int
        Nanoseconds spent on computing until calls were due, and passes of the computation.
    """

    _LEAST_MARGIN_NS = 200_000
    _MOST_MARGIN_NS = 50_000_000
    _ROUNDS_REMEMBERED = 64

    def __init__(self, comm: MPI.Intracomm, options: AllreduceOptions) -> None:
        self._comm = comm
        self._node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self._several_nodes = comm.allreduce(int(self._node.rank == 0)) > 1
        self._skew_ns = options.skew_ns
        self._delay_ns = options.skew_ns * comm.rank
        self._last_ns = options.skew_ns * (comm.size - 1)
        self._pass_time: Callable[[int], int] = (
            _sleep_until if options.work is Work.SLEEP else _Arithmetic().until
        )
        self.computed_ns = 0
        self.passes = 0
        self._exits: deque[int] = deque([1_000_000], maxlen=self._ROUNDS_REMEMBERED)
        self._own_exit = 0

    def begin(self) -> int:
        """Meet all other ranks; return the moment at which the round begins (monotonic ns)."""
        if self._several_nodes or not self._skew_ns:
            self._comm.Barrier()
        if not self._skew_ns:
            return _now()
        mine = np.array([_now(), self._own_exit], dtype=np.int64)
        latest = np.empty_like(mine)
        self._node.Allreduce(mine, latest, MPI.MAX)
        met, slowest_exit = int(latest[0]), int(latest[1])
        self._own_exit = _now() - met
        self._exits.append(slowest_exit)
        margin = 2 * max(self._exits)
        return met + min(max(margin, self._LEAST_MARGIN_NS), self._MOST_MARGIN_NS)

    def approach(self, begin: int) -> bool:
        """Sleep or compute until this rank is due; return whether it is in time to half a skew."""
        if not self._skew_ns:
            return True
        due = begin + self._delay_ns
        before = _now()
        passes = self._pass_time(due)
        after = _now()
        if passes:
            self.passes += passes
            self.computed_ns += after - before
        return after - due <= self._skew_ns // 2

    def settle(self, begin: int) -> None:
        """Wait until all ranks' calls have returned, without taking the cores from them.

        In a barrier, the ranks that are done would wait busily while the others still work or are
        in their calls.
        """
        if self._skew_ns:
            _sleep_until(begin + self._last_ns)
        meet(self._comm)

    def free(self) -> None:
        """Free the communicators; collective."""
        self._node.Free()


def meet(comm: MPI.Intracomm, poll_s: float = _POLL_S) -> None:
    """Wait until all ranks are here, without taking the cores from them."""
    met = comm.Ibarrier()
    while not met.Test():
        time.sleep(poll_s)


def _sleep_until(moment: int) -> int:
    """Sleep until a moment of the monotonic clock; return 0 passes of computation."""
    while (left := moment - _now()) > 0:
        time.sleep(left * 1e-9)
    return 0


class _Arithmetic:
    """Keeps a core busy with floating-point arithmetic, a few microseconds at a time."""

    def __init__(self) -> None:
        self._values = np.linspace(0.5, 1.5, 2048)
        self._roots = np.empty_like(self._values)

    def until(self, moment: int) -> int:
        """Compute until a moment of the monotonic clock; return the passes of the loop."""
        passes = 0
        while _now() < moment:
            np.sqrt(self._values, out=self._roots)
            np.multiply(self._roots, self._roots, out=self._values)
            passes += 1
        return passes
