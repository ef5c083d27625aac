"""What the members of a group on a communicator do with the elements of their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py import MPI

    from ._buffer import Vector
    from ._core import CData
    from ._native import Native
    from .preduce import Settings

Made = TypeVar("Made")


@dataclass(frozen=True)
class Share:
    """What a member gives to the sum of its group, and what the sum is divided by."""

    weight: float = 1.0  # of its model
    initial: float = 0.0  # of its initial model
    divide_by: int = 1


def record(made: dict[int, Made], number: int, call: Callable[..., Made], *arguments: Any) -> None:
    """Make a call of MPI and enter what it returns, with nothing in between.

    A signal handler may raise between any two instructions of Python. From the call until the entry
    there are none here, only C: of mpi4py, `map`, `zip` and `update`. If the call raises, there is
    no entry.
    """
    made.update(zip((number,), map(call, *((argument,) for argument in arguments)), strict=True))


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
        """Average the model over a communicator. The model is as before if this fails.

        If Ctrl-C interrupts it, the same call goes on with it: MPI makes one sum for a group.
        """
        ...

    def deliver(self) -> None:
        """Write the model to the buffers. Can be repeated until the core knows of it."""
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
        """Replace it, and tell the core, for which the request is over then."""
        ...


class HostBuffers:
    """The application's buffers, in host memory."""

    at_start = True

    def __init__(self, native: Native, handle: CData, vector: Vector) -> None:
        self._native, self._handle = native, handle
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
        """Replace it, and tell the core."""
        at = 0
        for part in self._parts:
            part[...] = model[at : at + part.size]
            at += part.size
        self._native.check(self._native.lib.pp_preduce_deliver(self._handle))


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
        self._sum = np.empty(0, self._dtype)  # of the members of a group, while it is averaged
        self._summed: dict[int, None] = {}  # has the number of the last group that MPI has added up
        self.averaged = 0

    def start(self) -> None:
        """Take a copy of the buffers, if the model is there."""
        self._own = self._buffers.read(self._dtype) if self._buffers.at_start else None

    def average(self, comm: MPI.Comm, group: int, share: Share) -> None:
        """Average the model over a communicator."""
        with _silent():
            own = self._model()
            if group not in self._summed:
                self._summed.clear()
                total = own * share.weight
                if share.initial and self._initial is not None:
                    total += self._initial * share.initial
                self._sum = total
                mpi = self._mpi
                record(self._summed, group, comm.Allreduce, mpi.IN_PLACE, total, mpi.SUM)
            # The sum stays as it is until that is over, because Ctrl-C may have it done again.
            np.divide(self._sum, share.divide_by, out=own)
            self.averaged = group
            self._sum = np.empty(0, self._dtype)

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
