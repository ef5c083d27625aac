"""What the members of a group on a communicator do with the elements of their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

    from ._buffer import Vector
    from ._core import CData
    from ._native import Native
    from .preduce import Settings


@dataclass(frozen=True)
class Share:
    """What a member gives to the sum of its group, and what the sum is divided by."""

    weight: float = 1.0  # of its model
    initial: float = 0.0  # of its initial model
    divide_by: int = 1


class Elements(Protocol):
    """The model of a request: what a Start has given, or the average of the last group."""

    @property
    def averaged(self) -> int:
        """Serial number of the group that was averaged last."""
        ...

    def start(self) -> None:
        """Take a copy of the buffers; they belong to the application after Start."""
        ...

    def average(self, comm: MPI.Comm, group: int, share: Share) -> None:
        """Average the model over a communicator. The model is as before if this fails."""
        ...

    def deliver(self) -> None:
        """Write the model to the buffers."""
        ...


# ---- in memory of the host ----------------------------------------------------------------------


class Buffers(Protocol):
    """What a request averages, as one vector.

    `at_start` says whether it is there at a Start; else it is when a Wait has something to give.
    """

    at_start: bool

    def read(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return a copy, as elements of this type."""
        ...

    def write(self, model: np.ndarray[Any, Any]) -> None:
        """Replace it."""
        ...


class HostBuffers:
    """The application's buffers, in host memory."""

    at_start = True

    def __init__(self, native: Native, vector: Vector) -> None:
        self._parts = [
            _array(native, native.ffi.cast("char *", piece.recv), piece.count, vector.dtype)
            for piece in vector.pieces
            if piece.count
        ]

    def read(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return a copy, as elements of this type."""
        copies = [part.astype(dtype) for part in self._parts]
        return np.concatenate(copies) if copies else np.empty(0, dtype)

    def write(self, model: np.ndarray[Any, Any]) -> None:
        """Replace it."""
        at = 0
        for part in self._parts:
            part[...] = model[at : at + part.size]
            at += part.size


class DeviceBuffers:
    """The host's memory through which the elements of buffers on a device travel."""

    at_start = False

    def __init__(self, native: Native, handle: CData, vector: Vector) -> None:
        self._native, self._handle = native, handle
        self._count, self._dtype = vector.count, vector.dtype

    def read(self, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return a copy, as elements of this type."""
        return self._vector().astype(dtype)

    def write(self, model: np.ndarray[Any, Any]) -> None:
        """Replace it, and queue its copy to the device."""
        self._vector()[...] = model
        self._native.check(self._native.lib.pp_preduce_deliver(self._handle))

    def _vector(self) -> np.ndarray[Any, Any]:
        elements = self._native.ffi.new("void **")
        self._native.check(self._native.lib.pp_preduce_host(self._handle, elements))
        if not self._count:
            return np.empty(0, self._dtype)
        return _array(self._native, elements[0], self._count, self._dtype)


def _silent() -> np.errstate:
    """Return a context in which no number makes NumPy raise, whatever the application has told it.

    A member that raises would leave the others waiting inside MPI.
    """
    return np.errstate(all="ignore")


class HostElements:
    """Averages by NumPy and MPI; `Elements` describes the methods.

    Parameters
    ----------
    native : Native
    buffers : Buffers
        They hold the initial model, if that counts.
    settings : Settings
    """

    def __init__(self, native: Native, buffers: Buffers, settings: Settings) -> None:
        self._mpi: Any = native.MPI
        self._buffers = buffers
        # Half precision is averaged in float32.
        self._dtype = np.dtype("f4") if settings.dtype.itemsize == 2 else settings.dtype
        self._own: np.ndarray[Any, Any] | None = None  # None: the buffers have it
        self._initial = buffers.read(self._dtype) if settings.keeps_initial else None
        self.averaged = 0

    def start(self) -> None:
        """Take a copy of the buffers, if the model is there."""
        self._own = self._buffers.read(self._dtype) if self._buffers.at_start else None

    def average(self, comm: MPI.Comm, group: int, share: Share) -> None:
        """Average the model over a communicator."""
        with _silent():
            total = self._model() * share.weight
            if share.initial and self._initial is not None:
                total += self._initial * share.initial
            comm.Allreduce(self._mpi.IN_PLACE, total, self._mpi.SUM)
            if share.divide_by > 1:
                total /= share.divide_by
        self._own, self.averaged = total, group

    def deliver(self) -> None:
        """Write the model to the buffers."""
        with _silent():
            self._buffers.write(self._model())

    def _model(self) -> np.ndarray[Any, Any]:
        """Return what this rank gives to its next group."""
        if self._own is None:
            self._own = self._buffers.read(self._dtype)
        return self._own


def _array(native: Native, start: CData, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array over memory that the request keeps alive."""
    buffer: Any = native.ffi.buffer(start, count * dtype.itemsize)
    return np.frombuffer(buffer, np.uint8).view(dtype)


# ---- in memory of a device ----------------------------------------------------------------------


class DeviceElements:
    """Averages by the core, which gives MPI addresses of the device; `Elements` describes it."""

    def __init__(self, native: Native, handle: CData) -> None:
        self._native, self._handle = native, handle

    @property
    def averaged(self) -> int:
        """Serial number of the group that was averaged last."""
        group = self._native.ffi.new("uint64_t *")
        self._native.check(self._native.lib.pp_preduce_averaged(self._handle, group))
        return int(group[0])

    def start(self) -> None:
        """Do nothing: the core's Start copies the buffers."""

    def average(self, comm: MPI.Comm, group: int, share: Share) -> None:
        """Average the model over a communicator."""
        native, mpi = self._native, self._native.MPI
        address = native.ffi.cast("const void *", mpi._addressof(comm))
        native.check(
            native.lib.pp_preduce_average(
                self._handle, address, group, share.weight, share.initial, share.divide_by
            )
        )

    def deliver(self) -> None:
        """Queue the copy of the model to the buffers."""
        self._native.check(self._native.lib.pp_preduce_deliver(self._handle))
