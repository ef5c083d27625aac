"""What all process groups of the backend are: a communicator, a name, transfers, an end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .._aside import aside
from ..errors import ArgumentError, Error
from .call import Call, Gate, eager
from .elements import DEVICES, check, elements, message, only, put_back
from .watch import Watch
from .work import Transfer

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["GroupBase"]

Tensor = torch.Tensor

# Its types differ from version to version, and so do the names of its methods.
_ProcessGroup: Any = dist.ProcessGroup

# What was not complete when its process group ended: MPI may use its memory.
_abandoned: list[Transfer | Gate] = []


class GroupBase(_ProcessGroup):  # type: ignore[misc]
    """A process group of torch.distributed on an MPI communicator, without collective calls.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Belongs to the group, which frees it.
    timeout : datetime.timedelta
        Of calls that have none of their own.
    """

    supports_coalescing = False
    supports_splitting = False
    supports_time_estimate = False

    def __init__(self, comm: MPI.Comm, timeout: timedelta) -> None:
        from mpi4py import MPI

        super().__init__(comm.rank, comm.size)
        self._comm: MPI.Comm | None = comm
        self._rank, self._size = comm.rank, comm.size
        self._in_place = MPI.IN_PLACE
        self._watch = Watch(comm, timeout)
        self._gate = Gate(comm, self._watch)
        self._name, self._description = "", "undefined"
        self._transfers: set[Transfer] = set()

    # ---- from rank to rank ----------------------------------------------------------------------

    @eager("send")
    def send(self, tensors: list[Tensor], dstRank: int, tag: int = 0) -> Transfer:
        """Begin to send a tensor, which must not change before the work is complete."""
        vector = elements(only("send", tensors))
        self._check_peer("send", dstRank, tag)
        request = self._live().Isend(message(vector), dstRank, tag)
        return self._transfer("send", request, vector, self._end, [dstRank])

    @eager("recv")
    def recv(self, tensors: list[Tensor], srcRank: int, tag: int = 0) -> Transfer:
        """Begin to receive a tensor."""
        self._check_peer("recv", srcRank, tag)
        return self._receive(tensors, srcRank, tag, [srcRank])

    @eager("recvAnySource")
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Transfer:
        """Begin to receive a tensor of any rank."""
        from mpi4py import MPI

        self._check_peer("recv", 0, tag)
        return self._receive(tensors, MPI.ANY_SOURCE, tag, list(range(self._size)))

    def _receive(self, tensors: list[Tensor], source: int, tag: int, peers: list[int]) -> Transfer:
        tensor = only("recv", tensors)
        vector = elements(tensor)
        request = self._live().Irecv(message(vector), source, tag)

        def end(transfer: Transfer) -> None:
            self._end(transfer)
            put_back(vector, tensor)

        return self._transfer("recv", request, vector, end, peers, vector.numel())

    def _check_peer(self, call: str, rank: int, tag: int) -> None:
        if not 0 <= rank < self._size:
            raise ArgumentError(f"{call}: there is no rank {rank} in a group of {self._size}")
        largest = self._watch.tag - 1
        if not 0 <= tag <= largest:
            raise ArgumentError(f"{call}: the tag must be in 0..{largest}, not {tag}")

    def _transfer(
        self,
        call: str,
        request: MPI.Request,
        vector: Tensor,
        done: Any,
        peers: list[int],
        expected: int | None = None,
    ) -> Transfer:
        work = Transfer(call, request, vector, done, self._watch, peers, expected)
        for other in list(self._transfers):
            other.reap()
        # Also if the application drops the work: MPI uses its memory.
        self._transfers.add(work)
        return work

    def _end(self, transfer: Transfer) -> None:
        self._transfers.discard(transfer)

    # ---- what torch asks ------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "pypartial"

    _get_backend_name = name = getBackendName

    def _get_backend(self, device: torch.device) -> Any:
        """Return the group itself, which is its only backend."""
        if torch.device(device).type not in DEVICES:
            # What torch expects, and tries for.
            raise RuntimeError(
                f"the backend pypartial has no device {device}, only the CPU and CUDA devices"
            )
        return self

    get_backend = _get_backend

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors the group takes; torch asks for those of its backends."""
        has_cuda = torch.cuda.is_available()
        return [torch.device(device) for device in DEVICES if device == "cpu" or has_cuda]

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of calls that have none of their own."""
        self._watch.timeout = timeout

    _set_default_timeout = set_timeout

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return False: tensors are torch's."""
        return False

    @property
    def group_name(self) -> Any:
        """The name that torch has given the group."""
        return self._name

    def getGroupName(self) -> str:
        """Return `group_name`, to the C++ parts of torch."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    setGroupName = _set_group_name

    @property
    def group_desc(self) -> str:
        """The description that torch has given the group."""
        return self._description

    def getGroupDesc(self) -> str:
        """Return `group_desc`, to the C++ parts of torch."""
        return self._description

    def _set_group_desc(self, desc: str) -> None:
        self._description = desc

    setGroupDesc = _set_group_desc

    def open(self) -> None:
        """Answer other ranks from now on: the group is made."""
        self._watch.open()

    # ---- the end --------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Free the communicator; `torch.distributed.destroy_process_group` does this."""
        from mpi4py import MPI

        comm, self._comm = self._comm, None
        for transfer in list(self._transfers):
            with suppress(Error):  # of a receive that the program has dropped
                if not transfer.is_completed():
                    _abandoned.append(transfer)
        if comm is None or MPI.Is_finalized():
            return
        with aside():
            may_be_freed = self._watch.close()
        if may_be_freed:
            self._gate.free()
        else:
            _abandoned.append(self._gate)

    def abort(self) -> None:
        """Make the group unusable without communication."""
        self._comm = None
        self._watch.end_of_group()
        _abandoned.append(self._gate)
        _abandoned.extend(self._transfers)

    # ---- helpers --------------------------------------------------------------------------------

    def _live(self) -> MPI.Comm:
        if self._comm is None:
            raise Error("the process group was destroyed")
        self._watch.check()
        return self._comm

    def _call(
        self, call: str, *what: object, root: int | None = None, timeout: timedelta | None = None
    ) -> Call:
        """Return a collective call, for a ``with`` block; it gives the communicator.

        Parameters
        ----------
        call : str
        *what
            What must be the same on all ranks.
        root : int, optional
            Likewise.
        timeout : datetime.timedelta, optional
            None: the group's.
        """
        if root is not None and not 0 <= root < self._size:
            raise ArgumentError(f"{call}: there is no rank {root} in a group of {self._size}")
        self._live()
        return Call(self._gate, call, what if root is None else (*what, f"root {root}"), timeout)

    def _check_list(self, call: str, tensors: Sequence[Any], own: Any = None) -> None:
        """Check a list with a tensor for each rank, of which `own` is this rank's."""
        if len(tensors) != self._size:
            raise ArgumentError(
                f"{call}: a list of {len(tensors)} tensors; the group has {self._size} ranks"
            )
        own = tensors[self._rank] if own is None else own
        check(call, own, *tensors)
        for tensor in tensors:
            if tensor.dtype != own.dtype:
                raise ArgumentError(f"{call}: tensors of {own.dtype} and of {tensor.dtype}")
        if tensors[self._rank].numel() != own.numel():
            raise ArgumentError(
                f"{call}: this rank's tensor has {own.numel()} elements, and number {self._rank} "
                f"of the list {tensors[self._rank].numel()}"
            )

    def _check_pair(self, call: str, output: Any, input: Any, large: int, should: int) -> None:
        check(call, output, input)
        if output.dtype != input.dtype:
            raise ArgumentError(f"{call}: tensors of {output.dtype} and of {input.dtype}")
        if large != should:
            raise ArgumentError(
                f"{call}: the output has {output.numel()} elements and the input {input.numel()}, "
                f"which does not fit {self._size} ranks"
            )

    def _rows(self, call: str, name: str, tensor: Tensor, sizes: Sequence[int]) -> list[int]:
        """Return how many elements of the tensor are for each rank."""
        if not tensor.dim():
            raise ArgumentError(f"{call}: the {name} has no dimension; its rows are exchanged")
        rows = tensor.shape[0]
        row = tensor.numel() // rows if rows else 0
        if not sizes:
            if rows % self._size:
                raise ArgumentError(
                    f"{call}: the {name} has {rows} rows, which {self._size} ranks cannot share "
                    "equally"
                )
            return [rows // self._size * row] * self._size
        if len(sizes) != self._size or sum(sizes) != rows or min(sizes) < 0:
            raise ArgumentError(
                f"{call}: the split sizes {list(sizes)} of the {name} do not divide its {rows} "
                f"rows among {self._size} ranks"
            )
        return [size * row for size in sizes]
