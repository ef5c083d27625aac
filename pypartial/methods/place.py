"""Where a worker has its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from ..context import Context
    from .base import Vector
    from .meeting import Meeting

__all__ = ["Place"]


class Place:
    """The gradient and the model of a worker, in host memory; `pypartial.torch` has others.

    Parameters
    ----------
    x : numpy.ndarray
        The model. Of a model elsewhere, an empty array of its type.

    Attributes
    ----------
    model : vector
        The model, as a request takes it.
    device_path : str
        How vectors get from rank to rank, as for `Context.Allreduce_init`.
    """

    device_path: Literal["auto", "staged", "ipc", "direct"] = "auto"
    model: Any

    def __init__(self, x: Vector) -> None:
        self.x = self.model = x

    def zeros(self, ctx: Context, count: int, *, is_sent: bool) -> Any:
        """Return memory for a gradient; `is_sent`: whether a request takes it."""
        return ctx.alloc(count, self.x.dtype) if is_sent else np.zeros(count, self.x.dtype)

    def copy(self) -> Vector:
        """Return a copy of the model, in host memory."""
        return self.x.copy()

    def average(self, meeting: Meeting, own: Vector, weights: Sequence[int] | None) -> None:
        """Average the model over all ranks. Collective.

        Parameters
        ----------
        meeting : Meeting
        own : numpy.ndarray
            A model that takes the place of this rank's, if there are weights. It is overwritten.
        weights : sequence of int or None
            As for `Meeting.average`.
        """
        if weights is not None:
            self.x[:] = own
        meeting.average(self.x, weights)
