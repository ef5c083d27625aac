"""A model, or a gradient, on a device, for the workers of methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..methods.base import Vector
from ..methods.place import Place
from .accelerator import Home
from .agreement import lack_of_memory
from .replicas import average

if TYPE_CHECKING:
    from ..context import Context
    from ..methods.meeting import Meeting

__all__ = ["OnDevice"]


class OnDevice(Place):
    """Vectors on a device; the model is averaged through the host where all ranks meet.

    Parameters
    ----------
    home : Home
        Where the vectors are.
    model : vector
        Rank 0's on all ranks. For methods that average gradients, empty.
    dtype : numpy.dtype
        Of the gradient.
    device_path : str
        As for `Context.Allreduce_init`.
    """

    def __init__(self, home: Home, model: Any, dtype: Any, device_path: Any) -> None:
        super().__init__(np.empty(0, dtype))
        self._home, self.model, self.device_path = home, model, device_path

    def zeros(self, ctx: Context, count: int, *, is_sent: bool) -> Any:
        """Return memory for a gradient."""
        try:
            return self._home.zeros(ctx, count, self.x.dtype)
        except Exception as error:
            problem = lack_of_memory(error)
        raise problem

    def copy(self) -> Vector:
        """Return a copy of the model, in host memory."""
        host: Vector = self._home.view(self.model).to("cpu", copy=True).numpy()
        return host

    def average(self, meeting: Meeting, own: Vector, weights: Sequence[int] | None) -> None:
        """Average the model over all ranks. Collective; the host waits for it."""
        model = self._home.view(self.model)
        if weights is None:
            average(meeting, model)
        else:
            meeting.average(own, weights)
            model.copy_(torch.from_numpy(own))
