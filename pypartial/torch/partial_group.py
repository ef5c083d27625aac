"""Process groups whose all_reduce of floating tensors does not wait for the slowest rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from .._aside import aside
from .._names import DEVICE_PATH
from ..context import Context
from ..errors import ArgumentError, Error
from ..policy import Majority, Policy, as_policy
from ..status import Status
from . import accelerator
from .agreement import agree, allocated, same
from .call import Asked
from .device_path import check_path
from .elements import Reduction, check, op_name
from .process_group import ProcessGroup
from .streams import Stream, Streams
from .work import Done

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Partial", "PartialGroup"]

_AVERAGE: dict[str, Literal["size"] | None] = {"SUM": None, "AVG": "size"}


@dataclass(frozen=True)
class Partial:
    """What makes a process group a partial one: the ``pg_options`` of ``dist.new_group``.

    The options are those of `Context` and of `Context.Allreduce_init`.
    """

    policy: Policy | str = field(default_factory=Majority)
    deliver: Literal["latest", "sum"] = "sum"
    max_lag: int | Literal["auto"] = "auto"
    seed: int = 0
    progress: Literal["thread", "caller"] = "thread"
    transport: Literal["auto", "mpi"] = "auto"
    window: int = 4
    patience: float | Literal["auto"] | None = "auto"
    stall_warning: float | None = 30.0
    device_path: Literal["auto", "staged", "ipc", "direct"] = "auto"

    def complaint(self) -> str | None:
        """Return what is wrong with the options that no context checks."""
        if self.deliver not in ("latest", "sum"):
            return (
                f"deliver must be 'latest' or 'sum', not {self.deliver!r}; rounds one by one are "
                "for pypartial.torch.DistributedOptimizer"
            )
        complaint = _complaint(lambda: as_policy(self.policy))
        return complaint or _complaint(lambda: DEVICE_PATH.check(self.device_path))

    def rule(self) -> str:
        """Return the options that are the same on all ranks, and that no context checks."""
        rounds = f"{as_policy(self.policy)!r}, deliver={self.deliver!r}, max_lag={self.max_lag!r}"
        return f"{rounds}, device_path={self.device_path!r}"

    def group(self, comm: MPI.Comm, timeout: timedelta) -> PartialGroup:
        """Return the group. Collective, blocking."""
        return PartialGroup(comm, timeout, self)


class PartialGroup(ProcessGroup):
    """A process group whose all_reduce by SUM and AVG of floating tensors is partial.

    Every other call is synchronous.

    Parameters
    ----------
    comm, timeout
        As for `ProcessGroup`.
    options : Partial

    Attributes
    ----------
    status : Status or None
        Of the last all_reduce; None if that was not partial.
    device_path : str or None
        That of the last all_reduce: ``"staged"``, ``"ipc"`` or ``"direct"``. None if it was not
        partial, or its tensor is on the CPU.
    device_path_reason : str
        Why the path asked for, or chosen, was not possible there; else ``""``.
    """

    def __init__(self, comm: MPI.Comm, timeout: timedelta, options: Partial) -> None:
        super().__init__(comm, timeout)
        self._options = options
        self._ctx = Context(
            comm,
            seed=options.seed,
            progress=options.progress,
            transport=options.transport,
            window=options.window,
            patience=options.patience,
            stall_warning=options.stall_warning,
        )
        self._streams = Streams()
        self._forget()

    def _allreduce(self, call: str, tensors: list[torch.Tensor], what: Asked) -> dist.Work:
        check(call, *tensors, sparse=True)
        self._live()
        self._forget()
        for tensor in tensors:  # all are checked before the first is communicated
            Reduction.of(call, what.op, tensor)
        op = op_name(what.op)
        for tensor in tensors:
            is_partial = op in _AVERAGE and tensor.dtype.is_floating_point and tensor.numel() > 0
            is_partial = is_partial and not tensor.is_sparse
            stream = self._stream(tensor, op) if is_partial else None
            if stream is None:
                super()._allreduce(call, [tensor], what)
            else:
                self._reduce_partially(tensor, stream)
        return Done(tensors)

    def _stream(self, tensor: torch.Tensor, op: str) -> Stream | None:
        """Return the stream of a tensor; None at its first call, which is synchronous."""
        stream = self._streams.find(tensor, op)
        if stream is None:
            self._open(tensor, op)
        return stream

    def _forget(self) -> None:
        self.status: Status | None = None
        self.device_path: str | None = None
        self.device_path_reason = ""

    def _reduce_partially(self, tensor: torch.Tensor, stream: Stream) -> None:
        asked, given = stream.asked, tensor.detach()
        if asked.is_open or asked.lost is not None:  # the vector may be on its way
            raise Error(
                "an exception has ended an all_reduce of this tensor, so that this rank lacks what "
                "other ranks have contributed: end the program, and go on from a checkpoint"
            )
        vector = stream.vector.view(given.shape)
        stream.home.keep(stream.vector)
        vector.copy_(given)
        status = asked.ask()
        given.copy_(vector)
        asked.apply()
        self.status = status
        self.device_path, self.device_path_reason = stream.path

    # ---- handles --------------------------------------------------------------------------------

    def _open(self, tensor: torch.Tensor, op: str) -> None:
        """Make the handle of a tensor that the group has not reduced before. Collective."""
        home, path = accelerator.find([("of all_reduce", tensor)]), self._options.device_path
        key = f"{op} of {tensor.numel()} elements of {tensor.dtype} on {home.name}"
        complaint = self._streams.complaint(tensor, op)
        complaint = complaint or _complaint(lambda: check_path(path, home, "tensors"))
        with self._call("all_reduce") as comm:
            told = comm.allgather((complaint, key, self._streams.ended()))
        agree([it[0] for it in told], self._rank)
        same("the calls of a partial all_reduce", [it[1] for it in told])
        # Memory ends at different times on different ranks.
        gone = set.intersection(*(set(it[2]) for it in told))
        dtype = np.dtype(np.float64 if tensor.dtype == torch.float64 else np.float32)
        with aside():
            for number in sorted(gone):
                self._streams.drop(number).request.Free()
        with self._call("all_reduce") as comm:
            buffer = allocated(comm.allgather, lambda: home.zeros(self._ctx, tensor.numel(), dtype))
        with aside():
            request = self._ctx.Allreduce_init(
                _in_place(),
                buffer,
                policy=self._options.policy,
                deliver=self._options.deliver,
                max_lag=self._options.max_lag,
                average=_AVERAGE[op],
                device_path=path,
            )
        self._streams.add(tensor, op, request, home.view(buffer), home)

    # ---- the end --------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Free the handles, the context and the communicator. Collective, blocking.

        A rank that comes here earlier takes part in the rounds of the others until all are here.
        """
        from mpi4py import MPI

        if self._watch.gave_up:
            self._ctx._abandon(Error("the process group was aborted"), "its process group")
        elif self._comm is not None and not MPI.Is_finalized():
            with aside():
                for stream in self._streams.drop_all():
                    stream.request.Free()
                self._ctx.Free()
        super().shutdown()

    def abort(self) -> None:
        """Make the group unusable without communication."""
        self._ctx._abandon(Error("the process group was aborted"), "its process group")
        super().abort()


def _complaint(check: Callable[[], object]) -> str | None:
    """Return what a check says of an argument; None if it finds nothing."""
    try:
        check()
    except ArgumentError as error:
        return str(error)
    return None


def _in_place() -> Any:
    from mpi4py import MPI

    return MPI.IN_PLACE
