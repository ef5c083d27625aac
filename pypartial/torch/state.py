"""The state of an optimizer of torch, for averages over the ranks."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from ..methods.meeting import Meeting
from .replicas import optimizer_tensors

__all__ = ["Arrays", "common_state"]


def common_state(
    optimizer: torch.optim.Optimizer, meeting: Meeting, *, is_any: bool = False
) -> list[torch.Tensor]:
    """Return the floating tensors of the state that all ranks have, in one order.

    Collective, blocking. Optimizers make the state of a parameter when they first have a gradient
    for it, which may be later on some ranks.

    `is_any`: ranks without any state do not count, and return nothing.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    found = dict(optimizer_tensors(optimizer, [(str(i), p) for i, p in enumerate(parameters)]))
    told = [set(names) for names in meeting.gather(list(found)) if names or not is_any]
    common = set.intersection(*told) if told else set()
    return [tensor for name, tensor in found.items() if name in common]


class Arrays:
    """Tensors as NumPy arrays that a worker averages in place.

    An array is the tensor's memory. A tensor on a device is copied, and so is one of bfloat16,
    which NumPy does not have. `write_back` writes the copies to their tensors.
    """

    def __init__(self) -> None:
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    @torch.no_grad()
    def of(self, tensors: list[torch.Tensor]) -> list[npt.NDArray[Any]]:
        """Return the arrays."""
        arrays: list[npt.NDArray[Any]] = []
        for tensor in tensors:
            own = tensor.detach()
            array = own.cpu()
            if array.dtype == torch.bfloat16:
                array = array.float()
            if array is not own:
                self._copies.append((tensor, array))
            arrays.append(array.numpy())
        return arrays

    @torch.no_grad()
    def write_back(self) -> None:
        """Write what became of the copies to their tensors."""
        for tensor, array in self._copies:
            tensor.copy_(array)
        self._copies.clear()
