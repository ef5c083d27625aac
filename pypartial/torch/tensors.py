"""Tensors that are to be the same on all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..methods.meeting import Meeting
from .replicas import unite

__all__ = ["copy", "digest", "settle"]


@torch.no_grad()
def copy(meeting: Meeting, tensors: Iterable[torch.Tensor]) -> None:
    """Overwrite tensors by rank 0's. Collective, blocking."""
    for tensor in tensors:
        # The tensor itself, if it is contiguous and in host memory.
        whole = tensor.detach().cpu().contiguous()
        meeting.copy(_bytes(whole))
        if whole.data_ptr() != tensor.data_ptr():
            tensor.copy_(whole)


def settle(
    meeting: Meeting, tensors: Sequence[torch.Tensor], weights: Sequence[int] | None = None
) -> None:
    """Give all ranks the same values; tensors that are the same on all of them keep their bits.

    Collective, blocking. `weights` as for `unite`.
    """
    digests = meeting.gather([digest(tensor) for tensor in tensors])
    by_tensor = zip(tensors, *digests, strict=True)
    unite(meeting, [tensor for tensor, *theirs in by_tensor if len(set(theirs)) > 1], weights)


def digest(tensor: torch.Tensor) -> bytes:
    """Return what tells the elements of a tensor from others."""
    return hashlib.blake2b(_bytes(tensor.detach().cpu().contiguous()).data, digest_size=16).digest()


def _bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the memory of a contiguous tensor in host memory."""
    array: npt.NDArray[np.uint8] = tensor.view(-1).view(torch.uint8).numpy()
    return array
