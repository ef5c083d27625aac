"""What keeps the replicas of a model together: averages over the ranks, and warnings of drift."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ..methods.meeting import Meeting
from .layout import gradient_type

__all__ = ["apply", "average", "is_plain", "optimizer_tensors", "unite"]

_WIDE = {torch.float32: torch.float32, torch.float64: torch.float64}


def average(meeting: Meeting, vector: torch.Tensor) -> None:
    """Replace a contiguous float vector by its mean over the ranks, the same bits everywhere.

    Collective, blocking. The host waits for a vector on a device.
    """
    host = vector.cpu()  # the vector itself, in host memory
    meeting.average(host.numpy())
    if host is not vector:
        vector.copy_(host)


def unite(
    meeting: Meeting, tensors: Iterable[torch.Tensor], weights: Sequence[int] | None = None
) -> None:
    """Give all ranks the same values: the mean of numbers with a fraction, else rank 0's.

    Collective, blocking. All ranks end with the same bits.

    Parameters
    ----------
    meeting : Meeting
    tensors : iterable of torch.Tensor
        Written in place; the same number, shapes and types on all ranks. Half precision is averaged
        in float32.
    weights : sequence of int, optional
        How much each rank counts in a mean, as for `Meeting.average`.
    """
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor.detach())
    for dtype, group in by_type.items():
        wide = _WIDE.get(dtype, torch.float32) if dtype.is_floating_point else dtype
        vector = torch.cat([tensor.reshape(-1).to("cpu", wide) for tensor in group])
        if dtype.is_floating_point:
            meeting.average(vector.numpy(), weights)
        else:
            meeting.copy(vector.numpy())
        parts = vector.split_with_sizes([tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: Iterable[tuple[str, torch.Tensor]]
) -> list[tuple[str, torch.Tensor]]:
    """Return the floating tensors of an optimizer's state, each with its name.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    parameters : iterable of (str, torch.Tensor)
        Names and parameters, in an order that is the same on all ranks; so is the result's.
    """
    return [
        (f"{key} of {name}", value)
        for name, parameter in parameters
        for key, value in sorted(optimizer.state.get(parameter, {}).items())
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]


def is_plain(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether two gradients one after the other change the model as their sum does.

    Not so with a scheduler, which changes the rate between them: it leaves ``initial_lr``.
    """
    return isinstance(optimizer, torch.optim.SGD) and not any(
        group["momentum"] or group["weight_decay"] or "initial_lr" in group
        for group in optimizer.param_groups
    )


def apply(
    optimizer: torch.optim.Optimizer, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Make a step of the optimizer with other gradients; the parameters keep their own.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    gradients : sequence of (torch.Tensor, torch.Tensor)
        Parameters, each with a gradient of its shape; one of another type is converted.
    """
    kept = [parameter.grad for parameter, _ in gradients]
    try:
        for parameter, gradient in gradients:
            parameter.grad = gradient.to(gradient_type(parameter))
        optimizer.step()
    finally:
        for (parameter, _), own in zip(gradients, kept, strict=True):
            parameter.grad = own
