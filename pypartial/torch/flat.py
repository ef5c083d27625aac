"""Parameters in a flat vector, for methods that average models."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from ..errors import ArgumentError
from ..methods import Method
from .accelerator import as_torch
from .foreach import copy_each
from .layout import Layout

__all__ = ["FlatParameters", "check_apart"]


def check_apart(layout: Layout, method: Method) -> None:
    """Raise `ArgumentError` if parameters that become views of the vector share memory now."""
    given = [
        (p.data_ptr(), p.data_ptr() + p.nbytes, place.name)
        for place in layout.places
        if (p := place.parameter).nbytes > 0 and _becomes_view(p, as_torch(layout.dtype))
    ]
    given.sort()
    for (_, end, name), (start, _, other) in pairwise(given):
        if start < end:
            raise ArgumentError(
                f"parameters {name} and {other} share memory, and {method!r} gives each parameter "
                "memory of its own: tie them by one nn.Parameter in both places"
            )


def _becomes_view(p: torch.Tensor, dtype: torch.dtype) -> bool:
    return p.dtype == dtype and p.is_contiguous()


class FlatParameters:
    """A vector that holds a model's parameters.

    A contiguous parameter of the vector's type becomes a view of it (``p.data`` is moved there).
    Other parameters stay where they are, and are copied.

    Parameters
    ----------
    layout : Layout
    vector : numpy.ndarray or torch.Tensor
        ``layout.size`` elements of the layout's type, in its home. They become the parameters'
        values.

    Attributes
    ----------
    views : list of torch.Tensor
        The parameters that are views of the vector.
    """

    @torch.no_grad()
    def __init__(self, layout: Layout, vector: Any) -> None:
        self.vector = vector
        self.views: list[torch.Tensor] = []
        self._parts: list[torch.Tensor] = []
        self._copied: list[torch.Tensor] = []
        views = layout.views(layout.home.view(vector))
        for p, view in zip(layout.parameters, views, strict=True):
            view.copy_(p)
            if _becomes_view(p, view.dtype):
                p.data = view
                self.views.append(p)
            else:
                self._parts.append(view)
                self._copied.append(p)

    @torch.no_grad()
    def gather(self) -> None:
        """Write the parameters to the vector."""
        copy_each(self._parts, self._copied)

    @torch.no_grad()
    def scatter(self) -> None:
        """Write the vector to the parameters."""
        copy_each(self._copied, self._parts)
