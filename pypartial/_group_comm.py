"""Groups on communicators of MPI, the papers' way: ``backend="comm"``, the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from .errors import Error
from .groups import groups_of

if TYPE_CHECKING:
    from mpi4py import MPI

    from ._buffer import Vector
    from ._core import CData
    from ._native import Native
    from .context import Context
    from .preduce import Settings
    from .status import GroupResult

# The members of a group agree on a tag below MPI's least upper bound, 32767.
_TAGS = 32749  # a prime


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


class CommGroups:
    """Runs the groups of one handle on communicators. Making it is collective.

    It duplicates the context's communicator. For `Static` it also splits that once for each
    different phase, because `MPI_Comm_split` is collective over all ranks. Any other group makes
    its communicator when it begins, by `MPI_Comm_create_group`.

    Parameters
    ----------
    context : Context
    native : Native
    buffers : Buffers
        The application's buffers.
    settings : Settings
    """

    def __init__(self, context: Context, native: Native, buffers: Buffers, settings: Settings):
        self._mpi: Any = native.MPI
        self._buffers = buffers
        # Half precision is averaged in float32.
        self._dtype = np.dtype("f4") if settings.dtype.itemsize == 2 else settings.dtype
        self._by_iteration = settings.weights == "dynamic"
        self._own: np.ndarray[Any, Any] | None = None  # None: the buffers have it
        self._initial = buffers.read(self._dtype) if settings.keeps_initial else None
        self._averaged = 0  # serial number of the group that `_own` is the average of
        self._kept: dict[int, MPI.Comm] = {}
        self._splits: dict[tuple[int, ...], MPI.Comm] = {}
        self._comm = cast("MPI.Intracomm", context.comm.Dup())
        self._group = self._comm.Get_group()
        ranks = context.size
        table = settings.groups._table(native, context._ctx, ranks) if settings.splits else None
        if table is not None:
            following = native.ffi.unpack(table, len(table))
            phases = {tuple(following[at : at + ranks]) for at in range(0, len(table), ranks)}
            for phase in sorted(phases):
                self._split(groups_of(phase))

    def _split(self, groups: list[tuple[int, ...]]) -> None:
        """Make the communicators of the groups of a phase."""
        rank = self._comm.rank
        mine = next((group for group in groups if rank in group), ())
        comm = self._comm.Split(mine[0] if mine else self._mpi.UNDEFINED, rank)
        if mine:
            self._splits[mine] = comm

    def start(self) -> None:
        """Copy the buffers: they belong to the application after Start."""
        self._own = self._buffers.read(self._dtype) if self._buffers.at_start else None

    def run(self, group: GroupResult, kept: int) -> None:
        """Average a group; blocks until all its members are in it.

        `kept` is the number under which the members keep the communicator, -1: none. It is the same
        at all members, and no other group has it, so they agree on whether there is one already.
        """
        if self._averaged == group.round:  # Ctrl-C came between this and pp_preduce_ran()
            return
        try:
            comm = self._splits.get(group.group) or self._kept.get(kept)
            if comm is None:
                comm = self._create(group)
                if kept >= 0:
                    self._kept[kept] = comm
            self._average(comm, group, self._by_iteration)
            if kept < 0 and group.group not in self._splits:
                comm.Free()
        except self._mpi.Exception as error:
            raise Error(f"MPI failed in group {group.round}, {group.group}: {error}") from error

    def flush(self, group: GroupResult) -> None:
        """Average what `start` has copied over the ranks of a flush, with equal weights."""
        try:
            if len(group.group) == self._comm.size:
                self._average(self._comm, group, False)
            else:
                comm = self._create(group)
                self._average(comm, group, False)
                comm.Free()
        except self._mpi.Exception as error:
            raise Error(f"MPI failed in the flush of {group.group}: {error}") from error
        self.deliver()

    def deliver(self) -> None:
        """Write the model to the buffers."""
        self._buffers.write(self._model())

    def free(self) -> None:
        """Free all communicators; collective."""
        for comm in [*self._kept.values(), *self._splits.values(), self._comm]:
            comm.Free()
        self._group.Free()

    def _create(self, group: GroupResult) -> MPI.Comm:
        members = self._group.Incl(list(group.group))
        try:
            return self._comm.Create_group(members, group.round % _TAGS)
        finally:
            members.Free()

    def _average(self, comm: MPI.Comm, group: GroupResult, by_iteration: bool) -> None:
        """Average the model over a communicator; the group and its weights say how."""
        if by_iteration:
            total = self._model() * group.weights[group.group.index(self._comm.rank)]
            if group.initial and self._initial is not None and comm.rank == 0:
                total += self._initial * group.initial
        else:
            total = self._model().copy()
        comm.Allreduce(self._mpi.IN_PLACE, total, self._mpi.SUM)
        if not by_iteration:
            total /= len(group.group)
        self._own, self._averaged = total, group.round

    def _model(self) -> np.ndarray[Any, Any]:
        """Return what this rank gives to its next group."""
        if self._own is None:
            self._own = self._buffers.read(self._dtype)
        return self._own


def _array(native: Native, start: CData, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array over memory that the request keeps alive."""
    buffer: Any = native.ffi.buffer(start, count * dtype.itemsize)
    return np.frombuffer(buffer, np.uint8).view(dtype)
