"""Blocking calls of all ranks, beside the rounds of a context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..context import Context

__all__ = ["Meeting"]


class Meeting:
    """Plain MPI collectives on a communicator of its own, inside `Context.away`.

    Making one is collective and blocking, and so is every method.

    Parameters
    ----------
    ctx : Context
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        with ctx.away():
            self._comm: MPI.Comm = ctx.comm.Dup()

    def copy(self, array: npt.NDArray[Any]) -> None:
        """Overwrite a contiguous array with rank 0's."""
        with self._ctx.away():
            self._comm.Bcast(_bytes(array))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        with self._ctx.away():
            return self._comm.allgather(value)

    def average(self, array: npt.NDArray[Any], over: int | None = None) -> None:
        """Replace a contiguous float array by its mean over the ranks, the same bits everywhere.

        `over`: what to divide the sum by, if some ranks have zeros only because they have no value.
        """
        from mpi4py import MPI

        # An MPI may give ranks different bits in an allreduce; a broadcast has the bits of one.
        with self._ctx.away():
            if self._comm.rank == 0:
                self._comm.Reduce(MPI.IN_PLACE, array)
                array /= over or self._comm.size
            else:
                self._comm.Reduce(array, None)
            self._comm.Bcast(_bytes(array))

    def close(self) -> None:
        """Free the communicator."""
        with self._ctx.away():
            self._comm.Free()


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
