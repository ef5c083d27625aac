"""The mean of a number or a tensor over ranks: between torch and vectors of float64."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import ArgumentError

__all__ = ["mean_of"]

Vector = npt.NDArray[Any]


def mean_of(value: Any, average: Callable[[Vector, str], Vector]) -> Any:
    """Return the mean of a number, as a float, or of a tensor, as a new one like it.

    Parameters
    ----------
    value : float or torch.Tensor
    average : callable
        Returns the mean of a vector over the ranks. It is also given the value's kind as a text.

    Raises
    ------
    ArgumentError
        If the value is something else, or a tensor of integers or complex numbers; nothing was
        communicated.
    """
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point():
            raise ArgumentError(f"mean() of a tensor of {value.dtype}: convert it, as by float()")
        vector = value.detach().to("cpu", torch.float64).reshape(-1).numpy()
        mean = average(vector, f"a tensor of shape {tuple(value.shape)} and {value.dtype}")
        return torch.from_numpy(mean).reshape(value.shape).to(value)
    if not isinstance(value, Real):
        raise ArgumentError(f"mean() of {value!r}, which is neither a number nor a tensor")
    return float(average(np.array([float(value)]), "a number")[0])
