"""The process group of the backend: the collective calls of torch.distributed by MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist

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
from .work import done

__all__ = ["ProcessGroup"]

Tensor = torch.Tensor


class ProcessGroup(GroupBase):
    """A process group of torch.distributed, all of whose ranks make each call.

    Collective calls are complete when they return, also with ``async_op=True``. `send` and `recv`
    return at once, with work to wait for.
    """

    # ---- collective calls -----------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Reduce tensors over all ranks, in place."""
        return self._allreduce("all_reduce", as_list(tensors), opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """Reduce several tensors over all ranks, in place."""
        return self._allreduce("all_reduce_coalesced", tensors, opts)

    def _allreduce(self, call: str, tensors: list[Tensor], opts: Any) -> dist.Work:
        from mpi4py import MPI

        check(call, *tensors)
        # All are checked before the first is communicated.
        ways = [
            Reduction.of(call, getattr(opts, "reduceOp", opts), tensor.dtype) for tensor in tensors
        ]
        for way, tensor in zip(ways, tensors, strict=True):
            vector = elements(tensor, way.dtype)
            with self._call(call) as comm:
                comm.Allreduce(MPI.IN_PLACE, way.message(vector), way.op)
            way.finish(vector, self._size)
            put_back(vector, tensor)
        return done(tensors)

    def reduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Reduce a tensor over all ranks; the result is the root's."""
        from mpi4py import MPI

        tensor, root = only("reduce", tensors), self._root("reduce", opts)
        way = Reduction.of("reduce", getattr(opts, "reduceOp", opts), tensor.dtype)
        vector = elements(tensor, way.dtype)
        with self._call("reduce") as comm:
            if self._rank == root:
                comm.Reduce(MPI.IN_PLACE, way.message(vector), way.op, root)
            else:
                comm.Reduce(way.message(vector), None, way.op, root)
        if self._rank == root:
            way.finish(vector, self._size)
            put_back(vector, tensor)
        return done([tensor])

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Overwrite a tensor with the root's."""
        tensor = only("broadcast", tensors)
        vector, root = elements(tensor), self._root("broadcast", opts)
        with self._call("broadcast") as comm:
            comm.Bcast(message(vector), root)
        put_back(vector, tensor)
        return done([tensor])

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait until all ranks have come here."""
        with self._call("barrier") as comm:
            comm.Barrier()
        return done([])

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Give every rank the tensors of all ranks, which may be of different sizes."""
        self._allgather("all_gather", only_list("all_gather", outputs), only("all_gather", inputs))
        return done(outputs)

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Give every rank several tensors of all ranks."""
        for outputs, tensor in zip(zip(*output_lists, strict=True), input_list, strict=True):
            self._allgather("all_gather_coalesced", list(outputs), tensor)
        return done(output_lists)

    def _allgather(self, call: str, outputs: list[Tensor], tensor: Tensor) -> None:
        self._check_list(call, outputs, tensor)
        result = joined(outputs)
        with self._call(call) as comm:
            comm.Allgatherv(message(elements(tensor)), message(result, counts_of(outputs)))
        spread(result, outputs)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Give every rank the tensors of all ranks, one behind the other.

        The input may be a part of the output. MPI takes that in place, on all ranks or on none.
        """
        from mpi4py import MPI

        call = "all_gather_single"
        self._check_pair(call, output, input, output.numel(), input.numel() * self._size)
        vector, count = elements(output), input.numel()
        own = vector[self._rank * count : (self._rank + 1) * count]
        sent = elements(input)
        if sent.data_ptr() != own.data_ptr():
            own.copy_(apart(sent, vector))
        with self._call(call) as comm:
            comm.Allgather(MPI.IN_PLACE, message(vector, count))
        put_back(vector, output)
        return done([output])

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Do as `all_gather_single`, for several tensors."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, tensor)
        return done(outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Reduce a list of tensors over all ranks; each rank is given one of them."""
        call = "reduce_scatter"
        output, tensors = only(call, outputs), only_list(call, inputs)
        self._check_list(call, tensors, output)
        way = Reduction.of(call, getattr(opts, "reduceOp", opts), output.dtype)
        self._reduce_scatter(call, output, joined(tensors, way.dtype), counts_of(tensors), way)
        return done([output])

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Reduce a tensor over all ranks; each rank is given one part of it."""
        call = "reduce_scatter_single"
        self._check_pair(call, output, input, input.numel(), output.numel() * self._size)
        way = Reduction.of(call, getattr(opts, "reduceOp", opts), output.dtype)
        counts = [output.numel()] * self._size
        self._reduce_scatter(call, output, elements(input, way.dtype), counts, way)
        return done([output])

    def _reduce_scatter(
        self, call: str, output: Tensor, vector: Tensor, counts: list[int], way: Reduction
    ) -> None:
        result = torch.empty(output.numel(), dtype=way.dtype, device="cpu")
        with self._call(call) as comm:
            comm.Reduce_scatter(way.message(vector), way.message(result), counts, way.op)
        way.finish(result, self._size)
        output.detach().copy_(result.view(output.shape))

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """Do as `reduce_scatter_single`, for several tensors."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, tensor, opts)
        return done(outputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Give the root the tensors of all ranks."""
        tensor, root = only("gather", inputs), self._root("gather", opts)
        if self._rank != root:
            with self._call("gather") as comm:
                comm.Gatherv(message(elements(tensor)), None, root)
            return done([])
        targets = only_list("gather", outputs)
        self._check_list("gather", targets, tensor)
        result = joined(targets)
        with self._call("gather") as comm:
            comm.Gatherv(message(elements(tensor)), message(result, counts_of(targets)), root)
        spread(result, targets)
        return done(targets)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """Give each rank one tensor of the root's."""
        output, root = only("scatter", outputs), self._root("scatter", opts)
        vector, parts = elements(output), None
        if self._rank == root:
            tensors = only_list("scatter", inputs)
            self._check_list("scatter", tensors, output)
            parts = message(joined(tensors), counts_of(tensors))
        with self._call("scatter") as comm:
            comm.Scatterv(parts, message(vector), root)
        put_back(vector, output)
        return done([output])

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """Give each rank one tensor of every rank."""
        call = "all_to_all"
        self._check_list(call, outputs)
        self._check_list(call, inputs, outputs[self._rank])
        result, sent = joined(outputs), joined(inputs)
        with self._call(call) as comm:
            comm.Alltoallv(message(sent, counts_of(inputs)), message(result, counts_of(outputs)))
        spread(result, outputs)
        return done(outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        """Give each rank some rows of every rank's tensor."""
        call = "all_to_all_single"
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
        with self._call(call) as comm:
            comm.Alltoallv(message(sent, counts[1]), message(vector, counts[0]))
        put_back(vector, output)
        return done([output])

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
    "monitored_barrier",
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
