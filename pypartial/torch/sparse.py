"""The sum of sparse tensors over the ranks of a communicator."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .agreement import same
from .elements import elements, message

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["add_sparse"]


def add_sparse(comm: MPI.Comm, call: str, tensor: torch.Tensor) -> None:
    """Add the sparse tensors of all ranks, in place. Collective, blocking.

    All ranks are given the indices and values of all, and add up those of the same place, in the
    order of ranks.
    """
    own = tensor.detach().coalesce()
    indices, values = own.indices(), own.values()
    kind = f"{tuple(own.shape)} of {own.dtype}, {own.sparse_dim()} sparse dimensions"
    told = comm.allgather((kind, indices.shape[1]))
    same(f"the sparse tensors of {call}", [theirs for theirs, _ in told])
    counts = [count for _, count in told]
    total = sum(counts)

    def gathered(part: torch.Tensor) -> torch.Tensor:
        """Return the rows of all ranks."""
        row = math.prod(part.shape[1:])
        whole = torch.empty((total, *part.shape[1:]), dtype=part.dtype, device="cpu")
        sizes = [count * row for count in counts]
        comm.Allgatherv(message(elements(part)), message(elements(whole), sizes))
        return whole

    places, numbers = gathered(indices.t()), gathered(values)
    result = torch.sparse_coo_tensor(
        places.t(), numbers, own.shape, device="cpu", check_invariants=False
    )
    with torch.no_grad():  # detach() would give indices and values of its own
        tensor.copy_(result.coalesce())
