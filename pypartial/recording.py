"""`record`: how long each rank of an MPI program computes in each of its steps, in a file."""

from __future__ import annotations

import os
from array import array
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arguments import check_communicator
from ._native import warn
from .errors import ArgumentError, Error

if TYPE_CHECKING:
    from types import TracebackType

    import numpy.typing as npt
    from mpi4py import MPI

__all__ = ["Recorder", "computations", "met", "record"]

_VARIABLE = "PYPARTIAL_RECORD"
_PINGS = 20
_GAVE_UP = -1
# Ranks that wait for all are not ahead of the last one's call by more than their clocks differ.
_CLOCKS_NS = 1_000_000
_HEADING = (
    "seconds from the last rank's call of step() to each rank's next one, which has a rank's own "
    "computation and the collective; one line a step, one column a rank"
)


def record(file: str | os.PathLike[str] | None = None, *, comm: MPI.Comm | None = None) -> Recorder:
    """Record how long each rank of a synchronous program computes, for ``pypartial sim gain``.

    The program needs no `Context`. Call `Recorder.step` once a step, directly before the call in
    which the ranks wait for each other::

        with pp.record("arrivals.csv") as recorder:
            for batch in batches:
                compute_gradient(batch)
                recorder.step()
                comm.Allreduce(MPI.IN_PLACE, gradient)

    That call ends after the last rank has come to it. So what a rank takes from the last one's
    `step` to its own next is its computation and the collective: the file has these times, without
    those for which ranks waited.

    Entering and leaving the block are collective. A rank that leaves it by an exception waits for
    nobody, and no file is written.

    Parameters
    ----------
    file : path, optional
        What rank 0 writes when the block ends. None: the file that the environment variable
        ``PYPARTIAL_RECORD`` names. Rank 0's counts. Without both nothing is recorded.
    comm : mpi4py.MPI.Comm, optional
        The ranks of the program; ``MPI.COMM_WORLD`` by default.

    Raises
    ------
    ArgumentError
        On all ranks, when the block is entered, if rank 0 cannot write the file.
    """
    return Recorder(file, comm)


class Recorder:
    """Keeps the times at which this rank comes to the collective call of each step.  See `record`.

    A step costs 8 bytes of memory and no message. Rank 0 gathers all times when the block ends.
    """

    def __init__(self, file: Any, comm: Any) -> None:
        self._file, self._given = file, comm
        self._calls: array[int] | None = None  # None: outside of the block

    def __enter__(self) -> Recorder:
        """Agree on the file, and compare the clocks; collective."""
        from mpi4py import MPI

        given = MPI.COMM_WORLD if self._given is None else self._given
        check_communicator(MPI, given)
        self._path, refusal = given.bcast(self._tried() if given.rank == 0 else None)
        if refusal is not None:
            raise ArgumentError(f"file={self._path!r} cannot be written: {refusal}")
        self._calls = array("q")
        if self._path is not None:
            self._comm = given.Dup()
            self._met = met(self._comm)
        return self

    def step(self) -> None:
        """Note that this rank has computed; call it directly before the call that waits for others.

        Local. The first call is where the first step begins, so N calls give N - 1 lines.

        Raises
        ------
        Error
            Outside of the ``with`` block.
        """
        if self._calls is None:
            raise Error("step() of a recording is called outside of its with block")
        if self._path is not None:
            self._calls.append(monotonic_ns())

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        """Write the file on rank 0; collective, unless an exception leaves the block."""
        calls, self._calls = self._calls, None
        if self._path is None or calls is None:
            return
        steps = self._agreed(_GAVE_UP if kind is not None else len(calls))
        if steps == _GAVE_UP:
            return  # some rank makes no collective call here, nor that which frees the communicator
        if steps >= 2:
            self._gather(np.array(calls[:steps], np.int64))
        self._comm.Free()

    # ---- at its ends -----------------------------------------------------------------------------

    def _tried(self) -> tuple[str | None, str | None]:
        """Return the file, and why it cannot be written."""
        file = os.environ.get(_VARIABLE) or None if self._file is None else self._file
        if file is None:
            return None, None
        try:
            path = os.fsdecode(file)
            if os.path.exists(path) and not os.path.isfile(path):
                return path, "it is not a regular file"
            with open(path, "a", encoding="utf-8"):
                return path, None
        except (OSError, TypeError, ValueError) as error:
            return str(file), getattr(error, "strerror", None) or str(error)

    def _agreed(self, mine: int) -> int:
        """Return the steps that all ranks have made, or that one gave up; such a rank never waits.

        The messages are so short that MPI sends them without the receiver.
        """
        comm = self._comm
        others = range(1, comm.size)
        if comm.rank != 0:
            comm.send(mine, 0)
            return mine if mine == _GAVE_UP else int(comm.recv(source=0))
        counts = [mine]
        if mine != _GAVE_UP:
            counts += [comm.recv(source=rank) for rank in others]
        steps = min(counts)
        for rank in others:
            comm.send(steps, rank)
        lowest, most = counts.index(steps), max(counts)
        if steps == _GAVE_UP:
            self._say(f"is not written: an exception on rank {lowest} left the block")
        elif steps < 2:
            self._say(f"is not written: rank {lowest} called step() less than twice")
        elif steps < most:
            self._say(
                f"has the first {steps} calls of step(): rank {lowest} made no more, and "
                f"rank {counts.index(most)} made {most}"
            )
        return steps

    def _gather(self, calls: npt.NDArray[np.int64]) -> None:
        """Let rank 0 write the times of all ranks."""
        comm = self._comm
        (begun, ahead, _), (now, last, _) = self._met, met(comm)
        drift = (last - ahead) / max(now - begun, 1)
        calls -= ahead + ((calls - begun) * drift).astype(np.int64)
        gathered = np.empty((comm.size, calls.size), np.int64) if comm.rank == 0 else None
        comm.Gather(calls, gathered)
        if gathered is None:
            return
        seconds, waited = computations(gathered.T)
        if not waited:
            self._say("has the whole times from call to call: the ranks do not wait for each other")
        try:
            np.savetxt(self._path, seconds, fmt="%.9f", delimiter=",", header=_HEADING)
        except OSError as error:
            self._say(f"is not written: {error.strerror}")

    def _say(self, text: str) -> None:
        warn(f"the recording {self._path} {text}")


def met(comm: MPI.Comm) -> tuple[int, int, int]:
    """Return a time of this rank's clock, and by how much it was ahead of rank 0's; collective.

    The third number is by how much the second may be wrong. Clocks that differ by less are one, as
    on a node. All are nanoseconds.
    """
    if comm.rank == 0:
        for rank in range(1, comm.size):
            for _ in range(_PINGS):
                comm.recv(source=rank)
                comm.send(monotonic_ns(), rank)
        return monotonic_ns(), 0, 0
    found = []
    for _ in range(_PINGS):
        sent = monotonic_ns()
        theirs = comm.sendrecv(None, 0, source=0)
        back = monotonic_ns()
        found.append((back - sent, (sent + back) // 2, theirs))
    trip, mine, theirs = min(found)
    ahead = mine - theirs
    return (mine, ahead, trip // 2) if 2 * abs(ahead) > trip else (mine, 0, 0)


def computations(calls: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], bool]:
    """Return the seconds that each rank took in each step, from nanoseconds of all calls.

    Rows are steps. Also return whether ranks wait for the last one in each step; where they do not,
    the times are from call to call of a rank.
    """
    own = calls[1:] - calls[:-1].max(axis=1, keepdims=True)
    waited = bool(own.min() >= -_CLOCKS_NS)
    return np.maximum(own if waited else np.diff(calls, axis=0), 0) / 1e9, waited
