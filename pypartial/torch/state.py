"""The state of an optimizer of torch: copied from rank 0, and averaged over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import torch

from ..methods.meeting import Meeting
from .agreement import allocated
from .layout import is_a_reading
from .replicas import optimizer_tensors
from .tensors import copy, digest

__all__ = ["Arrays", "common_state", "copy_state", "parameters_of"]

State = dict[int, dict[str, Any]]  # by the number of a parameter, and a name


class _Form(NamedTuple):
    """A tensor without its elements.

    Attributes
    ----------
    tensor : torch.Tensor
        One without memory.
    is_on_host : bool
        Whether it is in host memory. If not, it is where its parameter is.
    """

    tensor: torch.Tensor
    is_on_host: bool


def copy_state(meeting: Meeting, optimizer: torch.optim.Optimizer, rank: int) -> bool:
    """Give all ranks the state of rank 0's optimizer; return whether it was copied. Collective.

    Nothing is copied if all ranks have the same, as those of new optimizers have: none. Nor if a
    rank has a state of another kind than torch's optimizers, as `_plain_state` says.
    """
    parameters = parameters_of(optimizer)
    state = _plain_state(optimizer, parameters)
    digests = meeting.gather(None if state is None else _digests(state))
    if state is None or any(theirs is None for theirs in digests):
        return False
    if all(theirs == digests[0] for theirs in digests):
        return False
    forms = meeting.gather(_forms(state) if rank == 0 else None)[0]
    made: State = allocated(
        meeting.gather, lambda: state if rank == 0 else _made(forms, parameters)
    )
    copy(meeting, [value for _, _, value in _items(made) if isinstance(value, torch.Tensor)])
    for i, p in enumerate(parameters if rank else []):
        optimizer.state.pop(p, None)
        if i in made:
            optimizer.state[p] = made[i]
    return True


def _plain_state(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> State | None:
    """Return the state of the parameters; None if it cannot be copied value by value.

    It can if the values are numbers, texts, None, and tensors of which each has memory of its own,
    in host memory or where the parameter is.
    """
    state: State = {}
    for i, p in enumerate(parameters):
        if p not in optimizer.state:
            continue
        values = optimizer.state[p]
        if type(values) is not dict or not all(type(key) is str for key in values):
            return None
        if not all(_is_plain(value, p) for value in values.values()):
            return None
        state[i] = values
    tensors = [value for _, _, value in _items(state) if isinstance(value, torch.Tensor)]
    storages = {tensor.untyped_storage()._cdata for tensor in tensors}
    return state if len(storages) == len(tensors) else None


def _is_plain(value: Any, parameter: torch.Tensor) -> bool:
    if type(value) is not torch.Tensor:
        return value is None or type(value) in (bool, int, float, str)
    is_here = value.device.type == "cpu" or value.device == parameter.device
    return is_here and value.layout == torch.strided and not is_a_reading(value)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all parameters of an optimizer, in the order of its groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _items(state: State) -> list[tuple[int, str, Any]]:
    """Return all values, each with the number of its parameter and its name, in one order."""
    return [(i, key, state[i][key]) for i in sorted(state) for key in sorted(state[i])]


def _digests(state: State) -> list[tuple[int, str, Any]]:
    """Return what tells a state from others."""
    return [
        (i, key, (str(value.dtype), tuple(value.shape), digest(value)))
        if isinstance(value, torch.Tensor)
        else (i, key, repr(value))
        for i, key, value in _items(state)
    ]


def _forms(state: State) -> State:
    """Return a state with the form of each tensor in its place."""
    forms: State = {i: dict(values) for i, values in state.items()}
    for i, key, value in _items(state):
        if isinstance(value, torch.Tensor):
            is_on_host = value.device.type == "cpu"
            forms[i][key] = _Form(torch.empty_like(value, device="meta"), is_on_host)
    return forms


def _made(forms: State, parameters: Sequence[torch.Tensor]) -> State:
    """Return a state with tensors of these forms."""
    made: State = {i: dict(values) for i, values in forms.items()}
    for i, key, value in _items(forms):
        if isinstance(value, _Form):
            device = "cpu" if value.is_on_host else parameters[i].device
            made[i][key] = torch.empty_like(value.tensor, device=device)
    return made


def common_state(
    optimizer: torch.optim.Optimizer, meeting: Meeting, *, is_any: bool = False
) -> list[torch.Tensor]:
    """Return the floating tensors of the state that all ranks have, in one order.

    Collective, blocking. Optimizers make the state of a parameter when they first have a gradient
    for it, which may be later on some ranks; until all have it, each rank keeps its own.

    `is_any`: ranks without any state do not count, and return nothing.
    """
    parameters = [(str(i), p) for i, p in enumerate(parameters_of(optimizer))]
    found = dict(optimizer_tensors(optimizer, parameters))
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
