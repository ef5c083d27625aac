"""The contenders: the ways to sum a buffer over all ranks that are compared with each other."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

import pypartial as pp

from .device_arrays import DeviceBuffer, DevicePair, device_pair
from .options import AnyBuffers, Buffers, Rival, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from ..device import DeviceAllreduceRequest
    from .device_arrays import ArrayLibrary

    Array = npt.NDArray[Any]
    Receive = Array | DeviceBuffer  # numpy.asarray() shows what a call has put there
    Call = Callable[[], object]
    Halves = tuple[Call, Call]


@dataclass(frozen=True)
class Pair:
    """A send and a receive buffer."""

    send: Array
    receive: Array


def buffer_pair(ctx: pp.Context, kind: Buffers, contribution: Array) -> Pair:
    """Return buffers of a kind, with a contribution in the send buffer."""
    if kind is Buffers.NUMPY:
        return Pair(contribution, np.empty_like(contribution))
    shape, dtype = contribution.shape, contribution.dtype
    pair = Pair(ctx.alloc(shape, dtype), ctx.alloc(shape, dtype))
    pair.send[:] = contribution
    return pair


def any_pair(
    ctx: pp.Context,
    kind: AnyBuffers,
    libraries: Mapping[AnyBuffers, ArrayLibrary],
    contribution: Array,
) -> Pair | DevicePair:
    """Return buffers of a kind as `buffer_pair` does, also on a device by one of the libraries."""
    if isinstance(kind, Buffers):
        return buffer_pair(ctx, kind, contribution)
    return device_pair(libraries[kind], contribution)


class Contender:
    """A way to sum over all ranks. Making, flushing and freeing it is collective."""

    def call(self) -> None:
        """Sum the buffers once."""
        raise NotImplementedError

    def repeat(self, calls: int) -> None:
        """Sum the buffers again and again, as a program does; the last time by `call`."""
        for _ in itertools.repeat(None, calls):
            self.call()

    def halves(self) -> Halves:
        """Return the two calls of a sum, Start and Wait; None if a sum is one call."""
        raise NotImplementedError

    def test(self) -> Call:
        """Return Test, the call that may replace Wait; None if there is none."""
        raise NotImplementedError

    def status(self) -> pp.Status | None:
        """Return the status of the newest `call`; None if calls have no status."""
        return None

    def cpu_ns(self) -> int:
        """Return the CPU time, in ns, that other threads have taken for this contender so far."""
        return 0

    def device_path(self) -> tuple[str | None, str]:
        """Return how elements on devices travel, and why not as was asked for.

        None and an empty text if this library has none there.
        """
        return None, ""

    def flush(self) -> pp.Status | None:
        """Run a flush, if the contender has one, and return its status. Collective."""
        return None

    def free(self) -> None:
        """Release what the contender holds. Collective."""


class _StartWait(Contender):
    """Start and Wait of a persistent request."""

    request: pp.Request | MPI.Prequest

    def halves(self) -> Halves:
        return self.request.Start, self.request.Wait

    def repeat(self, calls: int) -> None:
        start, wait = self.halves()
        for _ in itertools.repeat(None, calls - 1):
            start()
            wait()
        self.call()

    def free(self) -> None:
        self.request.Free()


class Partial(_StartWait):
    """A request of this library."""

    request: pp.Request

    def __init__(self, ctx: pp.Context, request: pp.Request) -> None:
        self._ctx, self.request = ctx, request
        self._status = pp.Status()

    def call(self) -> None:
        """Start, and wait for the result."""
        self.request.Start()
        self.request.Wait(self._status)

    def status(self) -> pp.Status:
        """Return the status of the newest `call`."""
        return self._status

    def cpu_ns(self) -> int:
        """Return the CPU time of the context's thread."""
        return self._ctx.stats().progress_cpu_ns


class _Partial(Partial):
    """A partial allreduce of this library."""

    def __init__(
        self,
        ctx: pp.Context,
        policy: pp.Policy,
        pair: Pair,
        algorithm: str,
        device_path: Any = "auto",
    ) -> None:
        request = ctx.Allreduce_init(
            pair.send,
            pair.receive,
            op=MPI.SUM,
            policy=policy,
            deliver="latest",
            algorithm=algorithm,
            device_path=device_path,
        )
        super().__init__(ctx, request)

    def test(self) -> Call:
        return self.request.Test

    def flush(self) -> pp.Status:
        self.request.Flush(self._status)
        return self._status


class _PartialOnDevice(_Partial):
    """The same with buffers on a device: a call ends when its result is there."""

    request: DeviceAllreduceRequest

    def __init__(
        self,
        ctx: pp.Context,
        policy: pp.Policy,
        pair: DevicePair,
        algorithm: str,
        device_path: Any = "auto",
    ) -> None:
        arrays = Pair(pair.send.array, pair.receive.array)
        super().__init__(ctx, policy, arrays, algorithm, device_path)
        self._synchronize = pair.library.synchronize

    def device_path(self) -> tuple[str | None, str]:
        return self.request.device_path, self.request.device_path_reason

    def call(self) -> None:
        super().call()
        self._synchronize()

    def repeat(self, calls: int) -> None:
        (start, wait), synchronize = self.halves(), self._synchronize
        for _ in itertools.repeat(None, calls - 1):
            start()
            wait()
            synchronize()
        self.call()

    def flush(self) -> pp.Status:
        status = super().flush()
        self._synchronize()
        return status


class _MpiPersistent(_StartWait):
    """MPI's own persistent allreduce (MPI-4)."""

    def __init__(self, comm: MPI.Intracomm, pair: Pair) -> None:
        self._pair = pair  # mpi4py's request may not keep the buffers alive
        self.request = comm.Allreduce_init(pair.send, pair.receive, MPI.SUM)

    def call(self) -> None:
        self.request.Start()
        self.request.Wait()


class _Mpi(Contender):
    """MPI_Allreduce."""

    def __init__(self, comm: MPI.Intracomm, pair: Pair) -> None:
        self._comm = comm
        self._pair = pair

    def call(self) -> None:
        self._comm.Allreduce(self._pair.send, self._pair.receive, MPI.SUM)

    def repeat(self, calls: int) -> None:
        allreduce, op = self._comm.Allreduce, MPI.SUM
        send, receive = self._pair.send, self._pair.receive
        for _ in itertools.repeat(None, calls - 1):
            allreduce(send, receive, op)
        self.call()


class _MpiNonblocking(Contender):
    """MPI_Iallreduce and MPI_Wait."""

    def __init__(self, comm: MPI.Intracomm, pair: Pair) -> None:
        self._comm = comm
        self._pair = pair

    def call(self) -> None:
        self._comm.Iallreduce(self._pair.send, self._pair.receive, MPI.SUM).Wait()

    def repeat(self, calls: int) -> None:
        iallreduce, op = self._comm.Iallreduce, MPI.SUM
        send, receive = self._pair.send, self._pair.receive
        for _ in itertools.repeat(None, calls - 1):
            iallreduce(send, receive, op).Wait()
        self.call()


class _StagedByHand(Contender):
    """MPI_Allreduce of buffers on a device, as a program without this library does it.

    The send buffer is copied to pinned memory, the sum is made there, and copied to the receive
    buffer.
    """

    def __init__(self, comm: MPI.Intracomm, pair: DevicePair) -> None:
        self._comm, self._pair = comm, pair
        count, dtype = pair.send.count, pair.send.dtype
        self._send, self._receive = (pair.library.pinned(count, dtype) for _ in range(2))

    def call(self) -> None:
        library, pair = self._pair.library, self._pair
        library.copy_out(self._send, pair.send.array)
        library.synchronize()
        self._comm.Allreduce(self._send, self._receive, MPI.SUM)
        library.copy_in(pair.receive.array, self._receive)
        library.synchronize()


class _CopyOnDevice(Contender):
    """A copy of the buffer on the device."""

    def __init__(self, pair: DevicePair) -> None:
        self._pair = pair

    def call(self) -> None:
        library = self._pair.library
        library.copy(self._pair.receive.array, self._pair.send.array)
        library.synchronize()


class _Copy(Contender):
    """A copy of the buffer instead of a sum: the least that any way to sum can do."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def call(self) -> None:
        np.copyto(self._pair.receive, self._pair.send)

    def repeat(self, calls: int) -> None:
        copy = np.copyto
        send, receive = self._pair.send, self._pair.receive
        for _ in itertools.repeat(None, calls - 1):
            copy(receive, send)
        self.call()


def contender(
    way: Way,
    ctx: pp.Context,
    baseline: MPI.Intracomm,
    pair: Pair | DevicePair,
    algorithm: str = "auto",
    device_path: str = "auto",
) -> Contender:
    """Make a contender; collective.

    Parameters
    ----------
    way : Way
    ctx : pypartial.Context
        For the policies of the library.
    baseline : mpi4py.MPI.Intracomm
        A communicator of the same ranks, for MPI's own calls.
    pair : Pair or DevicePair
    algorithm : str
        The `algorithm` of a policy's handle.
    device_path : str
        Its `device_path`, if the pair is on a device.
    """
    if isinstance(pair, DevicePair):
        if isinstance(way, pp.Policy):
            return _PartialOnDevice(ctx, way, pair, algorithm, device_path)
        return _CopyOnDevice(pair) if way is Rival.COPY else _StagedByHand(baseline, pair)
    if isinstance(way, pp.Policy):
        return _Partial(ctx, way, pair, algorithm)
    if way is Rival.COPY:
        return _Copy(pair)
    of_mpi: dict[Rival, Callable[[MPI.Intracomm, Pair], Contender]] = {
        Rival.MPI: _Mpi,
        Rival.MPI_NONBLOCKING: _MpiNonblocking,
        Rival.MPI_PERSISTENT: _MpiPersistent,
    }
    return of_mpi[way](baseline, pair)


def has_persistent(comm: MPI.Intracomm) -> bool:
    """Return whether this MPI has a persistent allreduce; collective."""
    try:
        _MpiPersistent(comm, Pair(np.zeros(1), np.zeros(1))).free()
    except NotImplementedError:
        return False
    return True
