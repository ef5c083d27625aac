"""The ways to average inside groups that ``bench groups`` compares, and the data that checks them.

Every way averages one buffer in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

import pypartial as pp

from .contenders import Contender, Partial
from .group_options import Backend, GroupGenerator
from .options import Buffers, DType, Transport

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

__all__ = ["MPI_WAYS", "Cast", "GroupWay", "Shares", "full", "group_way", "preduce"]

CACHED, CREATED, SPLIT = "mpi", "mpi-create-group", "mpi-split"
MPI_WAYS = (CACHED, CREATED, SPLIT)

_NO_THRESHOLD = (1 << 31) - 1
_PERIOD = 13
_MOST = 1 << 16


@dataclass(frozen=True)
class GroupWay:
    """A way to average.

    Attributes
    ----------
    name : str
        A generator of the library, or one of `MPI_WAYS`.
    backend : Backend or None
        None: MPI's own.
    buffers : Buffers
    """

    name: str
    backend: Backend | None
    buffers: Buffers

    def __str__(self) -> str:
        return self.name if self.backend is None else f"{self.name}, {self.backend}"


@dataclass(frozen=True)
class Cast:
    """Which ranks take part, and in which groups.

    Attributes
    ----------
    size : int
        Ranks of a group.
    groups : int
        Groups that run at once; the other ranks sleep.
    rank : int
    """

    size: int
    groups: int
    rank: int

    @property
    def members(self) -> int:
        """How many ranks take part: the first ones."""
        return self.size * self.groups

    @property
    def takes_part(self) -> bool:
        """Whether this rank does."""
        return self.rank < self.members

    @property
    def number(self) -> int:
        """The number of this rank's group, where groups are fixed."""
        return self.rank // self.size

    @property
    def fixed(self) -> list[list[int]]:
        """The groups, where they are fixed."""
        return [list(range(at, at + self.size)) for at in range(0, self.members, self.size)]


class Shares:
    """What ranks put into an average, so that an average tells whose it is.

    The elements are random integers, of which float32 adds up 256 exactly, and repeat themselves.

    Parameters
    ----------
    ranks, count : int
        Ranks, and elements of a buffer.
    dtype : DType
    """

    def __init__(self, ranks: int, count: int, dtype: DType) -> None:
        self.count = count
        self._period = min(_PERIOD, count)
        draws = [np.random.default_rng(rank) for rank in range(ranks)]
        heads = [draw.integers(1, _MOST, self._period) for draw in draws]
        self._heads = np.array(heads, dtype=dtype.value)

    def of(self, rank: int) -> Array:
        """Return a new buffer with a rank's share."""
        return np.resize(self._heads[rank], self.count)

    def average(self, ranks: Sequence[int]) -> Array:
        """Return the beginning of the average of some ranks' shares: the sum, divided."""
        found: Array = self._heads[list(ranks)].sum(axis=0) / self._heads.dtype.type(len(ranks))
        return found

    def closer(self, heads: Sequence[Array], ranks: Sequence[int]) -> bool:
        """Return whether the beginnings of some ranks' buffers differ less than their shares.

        By the sum of squared deviations from the mean, which each average over a group lessens.
        """
        now, before = (_deviation(values) for values in (heads, self._heads[list(ranks)]))
        return now < before or before == 0

    def head(self, buffer: Array, tolerance: float) -> Array | None:
        """Return the beginning of a buffer; None unless all of it repeats this beginning."""
        later, sooner = buffer[self._period :], buffer[: -self._period]
        repeats = np.allclose(later, sooner, rtol=tolerance, atol=0)
        return buffer[: self._period].copy() if repeats else None


def _deviation(values: Sequence[Array] | Array) -> float:
    """Return the sum of squared deviations from the mean over the ranks."""
    exact = np.asarray(values, dtype=float)
    return float(((exact - exact.mean(axis=0)) ** 2).sum())


# ---- the library's own --------------------------------------------------------------------------


class _Given(Partial):
    """Start and Wait of a request of groups, where each Start names its group."""

    request: pp.PreduceRequest

    def __init__(self, ctx: pp.Context, request: pp.PreduceRequest, group: list[int]) -> None:
        super().__init__(ctx, request)
        self._group = group

    def call(self) -> None:
        self.request.Start(group=self._group)
        self.request.Wait(self._status)

    def repeat(self, calls: int) -> None:
        start, wait, group = self.request.Start, self.request.Wait, self._group
        for _ in itertools.repeat(None, calls - 1):
            start(group=group)
            wait()
        self.call()


class _Full(Contender):
    """An allreduce over all ranks that have not left, in place."""

    def __init__(self, ctx: pp.Context, model: Array) -> None:
        self.request = ctx.Allreduce_init(
            MPI.IN_PLACE, model, policy=pp.Full(), deliver="latest", average="contributors"
        )

    def call(self) -> None:
        self.request.Start()
        self.request.Wait()

    def flush(self) -> None:
        """Bring all ranks to the same round: a rank that has missed some does not wait."""
        self.request.Flush()

    def free(self) -> None:
        self.request.Free()


class _FullOfGroup(Contender):
    """An allreduce over the ranks of a fixed group, on a context of their own."""

    def __init__(self, comm: MPI.Intracomm, model: Array, cast: Cast, transport: Transport) -> None:
        self._comm = comm.Split(cast.number if cast.takes_part else MPI.UNDEFINED)
        self._ctx: pp.Context | None = None
        if cast.takes_part:
            self._ctx = pp.Context(self._comm, transport=transport.value, patience=None)
            self._full = _Full(self._ctx, model)

    def call(self) -> None:
        self._full.call()

    def repeat(self, calls: int) -> None:
        start, wait = self._full.request.Start, self._full.request.Wait
        for _ in itertools.repeat(None, calls):
            start()
            wait()

    def cpu_ns(self) -> int:
        return 0 if self._ctx is None else self._ctx.stats().progress_cpu_ns

    def free(self) -> None:
        if self._ctx is not None:
            self._full.free()
            self._ctx.Free()
            self._comm.Free()


def preduce(
    ctx: pp.Context, model: Array, groups: pp.groups.Generator, backend: Backend, cast: Cast
) -> Partial:
    """Make a request of groups; collective."""
    request = ctx.Preduce_init(model, groups, backend=backend.value)
    if isinstance(groups, pp.groups.Given):
        return _Given(ctx, request, cast.fixed[cast.number] if cast.takes_part else [])
    return Partial(ctx, request)


def full(ctx: pp.Context, model: Array) -> Contender:
    """Make an allreduce over all ranks; collective."""
    return _Full(ctx, model)


def generator(name: str, cast: Cast) -> pp.groups.Generator:
    """Return a generator whose groups have the size of the cast.

    `Smart` is without its filters: calls without computation in between fall behind each other as
    the system's scheduler wants, and ranks that do would be left out, and go on alone.
    """
    if name == GroupGenerator.GIVEN:
        return pp.groups.Given()
    if name == GroupGenerator.STATIC:
        return pp.groups.Table([cast.fixed])
    if name == GroupGenerator.SMART:
        return pp.groups.Smart(cast.size, c_thres=_NO_THRESHOLD, foresight=0)
    if name == GroupGenerator.RANDOM:
        return pp.groups.Random(cast.size)
    return pp.groups.Controller(cast.size)


# ---- MPI's own ----------------------------------------------------------------------------------


class _Mpi(Contender):
    """MPI_Allreduce on a communicator that is kept, and a division."""

    def __init__(self, model: Array, size: int) -> None:
        self._model = model
        self._size = model.dtype.type(size)
        self._group_comm: MPI.Comm = MPI.COMM_NULL

    def call(self) -> None:
        self._average(self._group_comm)

    def free(self) -> None:
        if self._group_comm != MPI.COMM_NULL:
            self._group_comm.Free()

    def _average(self, comm: MPI.Comm) -> None:
        comm.Allreduce(MPI.IN_PLACE, self._model, MPI.SUM)
        np.divide(self._model, self._size, out=self._model)


class _MpiCached(_Mpi):
    def __init__(self, comm: MPI.Intracomm, model: Array, cast: Cast) -> None:
        super().__init__(model, cast.size)
        self._group_comm = comm.Split(cast.number if cast.takes_part else MPI.UNDEFINED)

    def repeat(self, calls: int) -> None:
        allreduce, op, in_place = self._group_comm.Allreduce, MPI.SUM, MPI.IN_PLACE
        divide, model, size = np.divide, self._model, self._size
        for _ in itertools.repeat(None, calls):
            allreduce(in_place, model, op)
            divide(model, size, out=model)


class _MpiCreated(_Mpi):
    """The same on a communicator that each call makes, by the members of the group alone."""

    def __init__(self, comm: MPI.Intracomm, model: Array, cast: Cast) -> None:
        super().__init__(model, cast.size)
        self._all = comm
        everybody = comm.Get_group()
        mine = cast.fixed[cast.number] if cast.takes_part else []
        self._group = everybody.Incl(mine)
        everybody.Free()

    def call(self) -> None:
        comm = self._all.Create_group(self._group)
        self._average(comm)
        comm.Free()

    def free(self) -> None:
        self._group.Free()


class _MpiSplit(_Mpi):
    """The same on a communicator that each call splits off, together with all other groups."""

    def __init__(self, comm: MPI.Intracomm, model: Array, cast: Cast) -> None:
        super().__init__(model, cast.size)
        self._colour = cast.number
        self._group_comm = comm.Split(0 if cast.takes_part else MPI.UNDEFINED)

    def call(self) -> None:
        comm = self._group_comm.Split(self._colour)
        self._average(comm)
        comm.Free()


def group_way(
    way: GroupWay,
    ctx: pp.Context,
    baseline: MPI.Intracomm,
    model: Array,
    cast: Cast,
    transport: Transport,
) -> Contender:
    """Make a way to average; collective.

    Parameters
    ----------
    way : GroupWay
    ctx : pypartial.Context
    baseline : mpi4py.MPI.Intracomm
        A communicator of the same ranks, for MPI's own calls.
    model : array
        The buffer that is averaged in place.
    cast : Cast
    transport : Transport
        The context's.
    """
    if way.name == GroupGenerator.FULL:
        return _FullOfGroup(baseline, model, cast, transport)
    if way.backend is not None:
        return preduce(ctx, model, generator(way.name, cast), way.backend, cast)
    of_mpi = {CACHED: _MpiCached, CREATED: _MpiCreated, SPLIT: _MpiSplit}
    return of_mpi[way.name](baseline, model, cast)
