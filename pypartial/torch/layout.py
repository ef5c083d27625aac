"""Where parameters lie in one flat vector, and whether ranks agree about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import ArgumentError, MismatchError
from . import accelerator

__all__ = [
    "Facts",
    "Layout",
    "Place",
    "as_parameter",
    "compare",
    "describe",
    "describe_trained",
    "gradient_type",
    "is_a_reading",
]


@dataclass(frozen=True)
class Place:
    """One parameter in the vector.

    Attributes
    ----------
    name : str
    parameter : torch.nn.Parameter
    offset : int
        Of its first element.
    """

    name: str
    parameter: torch.Tensor
    offset: int

    @property
    def end(self) -> int:
        """Behind its last element."""
        return self.offset + self.parameter.numel()

    def __str__(self) -> str:
        return describe_trained(self.name, self.parameter)


class Layout:
    """The places of parameters in a vector, one behind the other.

    Parameters
    ----------
    parameters : iterable of (str, torch.Tensor)
        Names and parameters, in the order of the vector. Those with ``requires_grad=False`` are
        left out.

    Attributes
    ----------
    home : Home
        Where the parameters are, and so the vector.

    Raises
    ------
    ArgumentError
        If there are none, if one is not a dense floating tensor, or if they are not all on the CPU
        or all on one CUDA device.
    """

    def __init__(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        places, end = [], 0
        for name, parameter in parameters:
            if not parameter.requires_grad:
                continue
            _check(name, parameter)
            places.append(Place(name, parameter, end))
            end = places[-1].end
        if not places:
            raise ArgumentError("there are no parameters that require a gradient")
        self.home = accelerator.find([(place.name, place.parameter) for place in places])
        self.places: Sequence[Place] = tuple(places)
        self.parameters = [place.parameter for place in places]
        self.size = end
        types = {p.dtype for p in self.parameters} | {gradient_type(p) for p in self.parameters}
        self.dtype = np.dtype(np.float64 if torch.float64 in types else np.float32)

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the parameters' parts of a vector, in the shapes and orders of the parameters."""
        return [
            as_parameter(place.parameter, vector[place.offset : place.end]) for place in self.places
        ]

    def lines(self) -> list[str]:
        """Return what ranks must agree about in each parameter, a line each."""
        return [str(place) for place in self.places]


def describe(name: str, tensor: torch.Tensor) -> str:
    """Return name, shape and type of a tensor, in one line."""
    return f"{name}: {tuple(tensor.shape)} {tensor.dtype}"


def describe_trained(name: str, parameter: torch.Tensor) -> str:
    """Return what `describe` does, and what else ranks must agree about, if it is not as usual.

    That is the order of the elements, by which those of a vector belong to those of the parameter;
    and the type of gradients, by which the vector has its own.
    """
    text = describe(name, parameter)
    if not parameter.is_contiguous() and _is_dense(parameter):
        text += f", strides {parameter.stride()}"
    if gradient_type(parameter) != parameter.dtype:
        text += f", gradients {gradient_type(parameter)}"
    return text


def gradient_type(parameter: torch.Tensor) -> torch.dtype:
    """Return the type that ``p.grad`` must have: the parameter's, or its ``grad_dtype``.

    Torch has that attribute from 2.10 on. None in it allows any type.
    """
    given: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return given or parameter.dtype


class Facts:
    """What must stay as it is in a parameter.

    Attributes
    ----------
    is_held : bool
        Whether its memory must: the driver has it.
    place : int
        The address of that.
    """

    def __init__(self, p: torch.Tensor, is_held: bool) -> None:
        self.is_held, self.place = is_held, p.data_ptr()
        self._required, self._dtype, self._gradients = p.requires_grad, p.dtype, gradient_type(p)
        self._device, self._shape, self._strides = p.device, p.shape, p.stride()

    def change(self, p: torch.Tensor) -> str | None:
        """Return in words what became of the parameter; None if nothing did."""
        if p.requires_grad != self._required:
            return "was frozen" if self._required else "was unfrozen"
        if p.dtype != self._dtype:
            return f"changed its type from {self._dtype} to {p.dtype}"
        if p.device != self._device:
            return f"was moved from {self._device} to {p.device}"
        if (p.shape, p.stride()) != (self._shape, self._strides):
            return (
                f"changed from shape {tuple(self._shape)} and strides {self._strides} to "
                f"{tuple(p.shape)} and {p.stride()}"
            )
        if gradient_type(p) != self._gradients:
            return f"changed its grad_dtype from {self._gradients} to {gradient_type(p)}"
        return None


def is_a_reading(tensor: torch.Tensor) -> bool:
    """Whether a tensor only shows other elements: repeated, conjugated or negated."""
    repeats = any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))
    return (repeats and tensor.numel() > 0) or tensor.is_conj() or tensor.is_neg()


def as_parameter(parameter: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    """Return a piece of a vector in the shape, and the order, of its parameter.

    Optimizers may compute with gradient and parameter element by element as they lie in memory: the
    fused ones do. A parameter with gaps has a piece in the order of its indices.
    """
    if _is_dense(parameter):
        return piece.as_strided(parameter.shape, parameter.stride(), piece.storage_offset())
    return piece.view(parameter.shape)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has no gaps: torch makes one like it with the same strides."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def compare(what: str, lines: Sequence[Sequence[str]]) -> None:
    """Raise `MismatchError`, on every rank the same, unless all ranks have rank 0's lines.

    Parameters
    ----------
    what : str
        What the lines describe, such as "the models".
    lines : sequence of sequence of str
        By rank.
    """
    for rank, theirs in enumerate(lines):
        for mine, other in zip(lines[0], theirs, strict=False):
            if mine != other:
                raise MismatchError(f"{what} differ: rank 0 has {mine}, and rank {rank} {other}")
        if len(theirs) != len(lines[0]):
            raise MismatchError(
                f"{what} differ: rank 0 has {len(lines[0])} parameters, and rank {rank} "
                f"{len(theirs)}"
            )


def _check(name: str, parameter: Any) -> None:
    if parameter.layout != torch.strided:
        raise ArgumentError(f"parameter {name} is sparse; parameters must be dense")
    if not parameter.dtype.is_floating_point:
        raise ArgumentError(f"parameter {name} has the type {parameter.dtype}, which is not real")
