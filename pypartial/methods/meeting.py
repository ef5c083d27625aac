"""Blocking calls of all ranks, beside the rounds of a context."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._aside import aside
from ..errors import ArgumentError, Error, MismatchError, PeerFailedError, TimeoutError
from ..policy import Full
from ..status import Status

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..context import Context

__all__ = ["Meeting"]

_ELEMENTS_MOST = 1 << 30  # in one call: MPI before version 4 counts with 32 bits
_HEADER, _PART = 2, 1022  # elements of a round of means


class Meeting:
    """Plain MPI collectives on a communicator of its own, inside `Context.away`.

    Making one is collective and blocking, and so is every method. MPI would wait for ever for a
    rank that does not come. So each method begins with a round to which every rank contributes, and
    raises `PeerFailedError` if one has given up, or has not contributed because its script ended.

    Parameters
    ----------
    ctx : Context
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        mine, self._here = np.zeros(ctx.size, "u1"), np.zeros(ctx.size, "u1")
        mine[ctx.rank] = 1
        self._gate = ctx.Allreduce_init(mine, self._here, policy=Full())
        self._vector = np.zeros(_HEADER + _PART)
        try:
            self._means = ctx.Allreduce_init(
                None, self._vector, policy=Full(), deliver="latest", average="contributors"
            )
        except (MemoryError, Error):  # on all ranks
            with suppress(Error):  # of a context that has failed
                self._gate.Free()
            raise
        self._gate._unties()
        self._means._unties()
        with ctx._away():
            self._comm: MPI.Comm = ctx.comm.Dup()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Wait until all ranks are here, and be away for the time of the block."""
        if not self._gate._is_outstanding():  # of a call that an exception has ended
            self._gate.Start()
        self._gate.Flush()
        if not self._here.all():
            missing = ", ".join(map(str, np.flatnonzero(self._here == 0)))
            raise PeerFailedError(
                f"the ranks cannot meet: the script of rank {missing} has ended without freeing "
                "the context"
            )
        with self._ctx._away():
            yield

    def copy(self, array: npt.NDArray[Any]) -> None:
        """Overwrite a contiguous array with rank 0's."""
        with self._together():
            self._copy(array)

    def _copy(self, array: npt.NDArray[Any]) -> None:
        for part in _parts(array.reshape(-1).view(np.uint8)):
            self._comm.Bcast(part)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        with self._together():
            return self._comm.allgather(value)

    def average(self, array: npt.NDArray[Any], weights: Sequence[int] | None = None) -> None:
        """Replace a contiguous float array by its mean over the ranks, the same bits everywhere.

        Parameters
        ----------
        array : numpy.ndarray
        weights : sequence of int, optional
            How much each rank's array counts, the same on all ranks; not all are 0. What is in the
            array of a rank that counts nothing does not matter. None: all count the same.
        """
        from mpi4py import MPI

        share, total = 1.0, float(self._comm.size)
        if weights is not None:
            # By a power of two, which changes no bits: times its steps a finite number may be inf.
            least = math.ldexp(1, -sum(weights).bit_length())
            share, total = weights[self._comm.rank] * least, sum(weights) * least
        if share == 0:
            array[...] = 0  # it may hold what times 0 is not 0
        elif share != 1:
            with np.errstate(all="ignore"):
                array *= share
        # An MPI may give ranks different bits in an allreduce; a broadcast has the bits of one.
        with self._together():
            for part in _parts(array.reshape(-1)):
                if self._comm.rank == 0:
                    self._comm.Reduce(MPI.IN_PLACE, part)
                    # np.seterr(all="raise") must not leave the others in the broadcast.
                    with np.errstate(all="ignore"):
                        part /= total
                else:
                    self._comm.Reduce(part, None)
            self._copy(array)

    def mean(self, values: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
        """Return the mean of a vector over the ranks that call this. Blocking.

        It is no meeting: ranks inside a collective call of the context are not waited for, such as
        those that have no more batches. The others all call this. Meanwhile rounds go on without
        the ranks that wait here.

        Parameters
        ----------
        values : numpy.ndarray
            Of float64; it is not written.
        kind : str
            What it is, the same on all of these ranks.

        Raises
        ------
        MismatchError
            If the kinds differ, or another rank has called this while this one was in a collective
            call.
        """
        means, status = np.empty_like(values), Status()
        # With its square: if ranks differ, the means of both are right on none of them.
        mark = float(zlib.crc32(kind.encode()) % (1 << 20))
        header = [mark, mark * mark]
        with aside():
            for start in range(0, max(1, values.size), _PART):
                part = slice(start, start + _PART)
                size = values[part].size
                self._vector[:] = 0
                self._vector[:_HEADER], self._vector[_HEADER:][:size] = header, values[part]
                self._means.Start()
                self._means.Wait(status)
                if not status.included or self._vector[:_HEADER].tolist() != header:
                    raise MismatchError(
                        f"mean() of {kind}: other ranks have averaged something else, or did so "
                        "while this rank was in another collective call; call it on all ranks, at "
                        "the same place, with the same shape and type"
                    )
                means[part] = self._vector[_HEADER:][:size]
        return means

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Close it, if the block raises what ends it on all ranks; so their owner is not made."""
        try:
            yield
        except (PeerFailedError, TimeoutError):
            raise
        except (ArgumentError, MismatchError):  # on all ranks
            self.close()
            raise
        except (MemoryError, Error):  # the others have a MismatchError, and close it
            with suppress(Error):  # of a context that has failed
                self.close()
            raise

    def close(self) -> None:
        """Free the communicator and the handle."""
        with self._together():
            self._comm.Free()
        self._means.Free()
        self._gate.Free()


def _parts(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Cut a one-dimensional array into parts that one call can take."""
    for start in range(0, array.size, _ELEMENTS_MOST):
        yield array[start : start + _ELEMENTS_MOST]
