"""Workers of methods whose vectors are on a device.

`Method.worker` makes workers of NumPy's vectors. These differ from them in two points only: the
memory of the gradient; and the model of a group, which is averaged through the host where all ranks
meet. Their ``x`` is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError
from ..groups import Controller
from ..methods import EagerSGD, Method, PartialReduce, Ripples, Synchronous
from ..methods.base import State, Worker
from ..methods.eager import EachWorker, LumpWorker
from ..methods.groups import GroupWorker
from ..methods.worker import CommonWorker, Purpose
from ..policy import Full
from .accelerator import Home
from .replicas import average

if TYPE_CHECKING:
    from ..context import Context
    from ..preduce import PreduceRequest

__all__ = ["worker_on"]


def worker_on(
    home: Home, method: Method, ctx: Context, model: Any, count: int, state: State, dtype: Any
) -> Worker:
    """Make this rank's part in the training, as `Method.worker` does. Collective, blocking.

    Parameters
    ----------
    home : Home
        Where the vectors are.
    method : Method
    ctx : Context
    model : vector or None
        What groups average; None for methods that average gradients.
    count : int
        Elements of the gradient.
    state : callable
        As for `Method.worker`.
    dtype : numpy.dtype
        Of the gradient.

    Raises
    ------
    ArgumentError
        If the method is not one of this package; nothing was communicated.
    """
    rest = (ctx, np.empty(0, dtype), count, state)
    if isinstance(method, Synchronous):
        return _Each(home, method, EagerSGD(Full()), *rest)
    if isinstance(method, EagerSGD):
        kind = _Each if method.deliver == "each" else _Lump
        return kind(home, method, method, *rest)
    if isinstance(method, PartialReduce):
        options = {"weights": method.weights, "alpha": method.alpha}
        return _Group(home, model, method, *rest, Controller(method.size), options)
    if isinstance(method, Ripples):
        return _Group(home, model, method, *rest, method.generator, {})
    raise ArgumentError(
        f"{method!r} is not a method of this package, which alone train models on a device"
    )


class _OnDevice(CommonWorker):
    """A worker whose gradient is on a device.

    Parameters
    ----------
    home : Home
    *rest
        As for the worker of NumPy's vectors.
    """

    def __init__(self, home: Home, *rest: Any) -> None:
        self._home = home
        super().__init__(*rest)

    def _memory(self, count: int) -> Any:
        return self._home.zeros(self._ctx, count, self.x.dtype)


class _Each(_OnDevice, EachWorker):
    pass


class _Lump(_OnDevice, LumpWorker):
    pass


class _Group(_OnDevice, GroupWorker):
    """A worker whose ranks average models in groups.

    Parameters
    ----------
    home : Home
    model : vector
        Rank 0's on all ranks.
    *rest
        As for `GroupWorker`.
    """

    def __init__(self, home: Home, model: Any, *rest: Any) -> None:
        self._model = model
        super().__init__(home, *rest)

    def _open(self) -> PreduceRequest:
        return self._ctx.Preduce_init(self._model, self._generator, **self._options)

    def _settle(self, purpose: Purpose) -> Purpose:
        least = super()._settle(purpose)
        average(self._meeting, self._home.view(self._model))
        return least
