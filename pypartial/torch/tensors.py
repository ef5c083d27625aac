"""Tensors of all ranks: overwritten by rank 0's, or by their means."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..methods.meeting import Meeting

__all__ = ["average", "copy", "settle"]


@torch.no_grad()
def copy(meeting: Meeting, tensors: Iterable[torch.Tensor]) -> None:
    """Overwrite tensors by rank 0's. Collective, blocking."""
    for tensor in tensors:
        whole = tensor.detach().contiguous()  # the tensor itself, if it is contiguous
        meeting.copy(_bytes(whole))
        if whole.data_ptr() != tensor.data_ptr():
            tensor.copy_(whole)


@torch.no_grad()
def average(meeting: Meeting, tensors: Iterable[torch.Tensor]) -> None:
    """Replace floating tensors by their means over the ranks. Collective, blocking."""
    for tensor in tensors:
        mean = torch.empty(tensor.shape, dtype=torch.float64)
        mean.copy_(tensor)
        meeting.average(mean.view(-1).numpy())
        tensor.copy_(mean)


def settle(meeting: Meeting, tensors: Sequence[torch.Tensor]) -> None:
    """Give all ranks the same tensors: means, or rank 0's where a mean has no meaning.

    Collective, blocking. Tensors that are the same on all ranks keep their bits.
    """
    digests = meeting.gather([_digest(tensor) for tensor in tensors])
    differ = [
        tensor for tensor, *theirs in zip(tensors, *digests, strict=True) if len(set(theirs)) > 1
    ]
    average(meeting, [tensor for tensor in differ if tensor.is_floating_point()])
    copy(meeting, [tensor for tensor in differ if not tensor.is_floating_point()])


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.blake2b(_bytes(tensor.detach().contiguous()).data, digest_size=16).digest()


def _bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the memory of a contiguous tensor."""
    array: npt.NDArray[np.uint8] = tensor.view(-1).view(torch.uint8).numpy()
    return array
