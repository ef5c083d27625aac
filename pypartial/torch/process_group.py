"""The process group of the backend: the collective calls of torch.distributed by MPI."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from .call import Asked, asked, eager
from .elements import (
    Reduction,
    apart,
    as_list,
    check,
    counts_of,
    elements,
    joined,
    message,
    only,
    only_list,
    put_back,
    spread,
)
from .group_base import GroupBase
from .sparse import add_sparse
from .work import Done

__all__ = ["ProcessGroup"]

Tensor = torch.Tensor


class ProcessGroup(GroupBase):
    """A process group of torch.distributed, all of whose ranks make each call.

    Collective calls are complete when they return, also with ``async_op=True``. `send` and `recv`
    return at once, with work to wait for. What else a call is asked for follows its tensors: as an
    object of options, or as a root, an operation, a timeout, in the order of torch's own groups.
    """

    # ---- collective calls -----------------------------------------------------------------------

    @eager("all_reduce")
    def allreduce(self, tensors: Any, *given: Any, **named: Any) -> dist.Work:
        """Reduce tensors over all ranks, in place."""
        call = "all_reduce"
        return self._allreduce(call, as_list(tensors), asked(call, given, named))

    @eager("all_reduce")
    def allreduce_coalesced(self, tensors: list[Tensor], *given: Any, **named: Any) -> dist.Work:
        """Reduce several tensors over all ranks, in place."""
        call = "all_reduce_coalesced"
        return self._allreduce(call, tensors, asked(call, given, named))

    def _allreduce(self, call: str, tensors: list[Tensor], what: Asked) -> dist.Work:
        check(call, *tensors, sparse=True)
        # All are checked before the first is communicated.
        ways = [Reduction.of(call, what.op, tensor) for tensor in tensors]
        for way, tensor in zip(ways, tensors, strict=True):
            if tensor.is_sparse:
                with self._call(call, way.name, "sparse", timeout=what.timeout) as comm:
                    add_sparse(comm, call, tensor)
                continue
            vector = elements(tensor, way.dtype)
            with self._call(call, *way.what(tensor), timeout=what.timeout) as comm:
                comm.Allreduce(self._in_place, way.message(vector), way.op)
            way.finish(vector, self._size)
            put_back(vector, tensor)
        return Done(tensors)

    @eager("reduce")
    def reduce(self, tensors: Any, *given: Any, **named: Any) -> dist.Work:
        """Reduce a tensor over all ranks; the result is the root's."""
        call = "reduce"
        tensor, what = only(call, tensors), asked(call, given, named)
        way = Reduction.of(call, what.op, tensor)
        vector, root = elements(tensor, way.dtype), what.root
        same = way.what(tensor)
        with self._call(call, *same, root=root, timeout=what.timeout) as comm:
            if self._rank == root:
                comm.Reduce(self._in_place, way.message(vector), way.op, root)
            else:
                comm.Reduce(way.message(vector), None, way.op, root)
        if self._rank == root:
            way.finish(vector, self._size)
            put_back(vector, tensor)
        return Done([tensor])

    @eager("broadcast")
    def broadcast(self, tensors: Any, *given: Any, **named: Any) -> dist.Work:
        """Overwrite a tensor with the root's."""
        call = "broadcast"
        tensor, what = only(call, tensors), asked(call, given, named)
        vector, root = elements(tensor), what.root
        size = f"{vector.nbytes} B"
        with self._call(call, size, root=root, timeout=what.timeout) as comm:
            comm.Bcast(message(vector), root)
        put_back(vector, tensor)
        return Done([tensor])

    @eager("barrier")
    def barrier(self, *given: Any, **named: Any) -> dist.Work:
        """Wait until all ranks have come here."""
        with self._call("barrier", timeout=asked("barrier", given, named).timeout):
            pass
        return Done([])

    @eager("monitored_barrier")
    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait until all ranks have come here; name those that do not come.

        Every rank that waits raises, and names all late ranks and what each does, whatever
        `wait_all_ranks` is.

        Parameters
        ----------
        timeout : datetime.timedelta, optional
            None: the group's.
        wait_all_ranks : bool, optional
            As for ``dist.monitored_barrier``, which torch offers for gloo only.

        Raises
        ------
        TimeoutError
            If a rank has not come within the timeout. The group cannot be used any more.
        """
        with self._call("monitored_barrier", timeout=timeout):
            pass

    @eager("all_gather", 1)
    def allgather(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> dist.Work:
        """Give every rank the tensors of all ranks, which may be of different sizes."""
        call = "all_gather"
        what = asked(call, given, named)
        self._allgather(call, only_list(call, outputs), only(call, inputs), what)
        return Done(outputs)

    @eager("all_gather", 1)
    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], input_list: list[Tensor], *given: Any, **named: Any
    ) -> dist.Work:
        """Give every rank several tensors of all ranks."""
        call = "all_gather_coalesced"
        what = asked(call, given, named)
        for outputs, tensor in zip(zip(*output_lists, strict=True), input_list, strict=True):
            self._allgather(call, list(outputs), tensor, what)
        return Done(output_lists)

    def _allgather(self, call: str, outputs: list[Tensor], tensor: Tensor, what: Asked) -> None:
        self._check_list(call, outputs, tensor)
        result, counts = joined(outputs), counts_of(outputs)
        with self._call(call, tuple(counts), tensor.dtype, timeout=what.timeout) as comm:
            comm.Allgatherv(message(elements(tensor)), message(result, counts))
        spread(result, outputs)

    @eager("all_gather_into_tensor", 1)
    def all_gather_single(
        self, output: Tensor, input: Tensor, *given: Any, **named: Any
    ) -> dist.Work:
        """Give every rank the tensors of all ranks, one behind the other.

        The input may be a part of the output. MPI takes that in place, on all ranks or on none.
        """
        call = "all_gather_single"
        what = asked(call, given, named)
        self._check_pair(call, output, input, output.numel(), input.numel() * self._size)
        vector, count = elements(output), input.numel()
        own = vector[self._rank * count : (self._rank + 1) * count]
        sent = elements(input)
        if sent.data_ptr() != own.data_ptr():
            own.copy_(apart(sent, vector))
        with self._call(call, count, input.dtype, timeout=what.timeout) as comm:
            comm.Allgather(self._in_place, message(vector, count))
        put_back(vector, output)
        return Done([output])

    @eager("all_gather_into_tensor", 1)
    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], *given: Any, **named: Any
    ) -> dist.Work:
        """Do as `all_gather_single`, for several tensors."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, tensor, *given, **named)
        return Done(outputs)

    @eager("reduce_scatter", 1)
    def reduce_scatter(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> dist.Work:
        """Reduce a list of tensors over all ranks; each rank is given one of them."""
        call = "reduce_scatter"
        output, tensors = only(call, outputs), only_list(call, inputs)
        self._check_list(call, tensors, output)
        what = asked(call, given, named)
        way = Reduction.of(call, what.op, output)
        vector = joined(tensors, way.dtype)
        self._reduce_scatter(call, output, vector, counts_of(tensors), way, what)
        return Done([output])

    @eager("reduce_scatter_tensor", 1)
    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, *given: Any, **named: Any
    ) -> dist.Work:
        """Reduce a tensor over all ranks; each rank is given one part of it."""
        call = "reduce_scatter_single"
        self._check_pair(call, output, input, input.numel(), output.numel() * self._size)
        what = asked(call, given, named)
        way = Reduction.of(call, what.op, output)
        counts = [output.numel()] * self._size
        self._reduce_scatter(call, output, elements(input, way.dtype), counts, way, what)
        return Done([output])

    def _reduce_scatter(
        self,
        call: str,
        output: Tensor,
        vector: Tensor,
        counts: list[int],
        way: Reduction,
        what: Asked,
    ) -> None:
        result = torch.empty(output.numel(), dtype=way.dtype, device="cpu")
        with self._call(call, tuple(counts), output.dtype, way.name, timeout=what.timeout) as comm:
            comm.Reduce_scatter(way.message(vector), way.message(result), counts, way.op)
        way.finish(result, self._size)
        output.detach().copy_(result.view(output.shape))

    @eager("reduce_scatter_tensor", 1)
    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], *given: Any, **named: Any
    ) -> dist.Work:
        """Do as `reduce_scatter_single`, for several tensors."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, tensor, *given, **named)
        return Done(outputs)

    @eager("gather", 1)
    def gather(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> dist.Work:
        """Give the root the tensors of all ranks."""
        call = "gather"
        tensor, what = only(call, inputs), asked(call, given, named)
        root = what.root
        if self._rank != root:
            with self._call(call, tensor.dtype, root=root, timeout=what.timeout) as comm:
                comm.Gatherv(message(elements(tensor)), None, root)
            return Done([])
        targets = only_list(call, outputs)
        self._check_list(call, targets, tensor)
        result, counts = joined(targets), counts_of(targets)
        with self._call(call, tensor.dtype, root=root, timeout=what.timeout) as comm:
            comm.Gatherv(message(elements(tensor)), message(result, counts), root)
        spread(result, targets)
        return Done(targets)

    @eager("scatter", 1)
    def scatter(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> dist.Work:
        """Give each rank one tensor of the root's."""
        call = "scatter"
        output, what = only(call, outputs), asked(call, given, named)
        vector, root, parts = elements(output), what.root, None
        if self._rank == root:
            tensors = only_list(call, inputs)
            self._check_list(call, tensors, output)
            parts = message(joined(tensors), counts_of(tensors))
        with self._call(call, output.dtype, root=root, timeout=what.timeout) as comm:
            comm.Scatterv(parts, message(vector), root)
        put_back(vector, output)
        return Done([output])

    @eager("all_to_all", 1)
    def alltoall(
        self, outputs: list[Tensor], inputs: list[Tensor], *given: Any, **named: Any
    ) -> dist.Work:
        """Give each rank one tensor of every rank."""
        call = "all_to_all"
        what = asked(call, given, named)
        self._check_list(call, outputs)
        self._check_list(call, inputs, outputs[self._rank])
        result, sent = joined(outputs), joined(inputs)
        with self._call(call, result.dtype, timeout=what.timeout) as comm:
            comm.Alltoallv(message(sent, counts_of(inputs)), message(result, counts_of(outputs)))
        spread(result, outputs)
        return Done(outputs)

    @eager("all_to_all", 1)
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        *given: Any,
        **named: Any,
    ) -> dist.Work:
        """Give each rank some rows of every rank's tensor."""
        call = "all_to_all_single"
        what = asked(call, given, named)
        check(call, output, input)
        counts = [
            self._rows(call, name, tensor, sizes)
            for name, tensor, sizes in (
                ("output", output, output_split_sizes),
                ("input", input, input_split_sizes),
            )
        ]
        self._check_pair(call, output, input, counts[0][self._rank], counts[1][self._rank])
        vector = elements(output)
        sent = apart(elements(input), vector)
        with self._call(call, output.dtype, timeout=what.timeout) as comm:
            comm.Alltoallv(message(sent, counts[1]), message(vector, counts[0]))
        put_back(vector, output)
        return Done([output])

    # ---- other names of the same, in older and newer versions of torch ---------------------------

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


# Calls that torch has, and the backend has not.
REFUSED = (
    "_end_coalescing",
    "_start_coalescing",
    "gather_into_tensor",
    "gather_single",
    "merge_remote_group",
    "new_window",
    "reconfigure",
    "split_group",
)


def _refusing(call: str) -> Any:
    def refuse(self: ProcessGroup, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{call} is not implemented by the backend pypartial")

    return refuse


for _name in REFUSED:
    setattr(ProcessGroup, _name, _refusing(_name))
