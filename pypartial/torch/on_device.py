"""Workers of methods whose vectors are on a device.

`Method.worker` makes workers of NumPy's vectors. These differ from them in three points only: the
memory of the gradient; how it gets from rank to rank; and the model of a group, which is averaged
through the host where all ranks meet. Their ``x`` is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import ArgumentError
from ..methods import EagerSGD, Method, Synchronous
from ..methods.base import State
from ..methods.eager import EachWorker, LumpWorker
from ..methods.groups import GroupMethod, GroupWorker
from ..methods.worker import CommonWorker
from ..policy import Full
from .accelerator import Home
from .agreement import lack_of_memory
from .replicas import average

if TYPE_CHECKING:
    from ..context import Context
    from ..preduce import PreduceRequest

__all__ = ["worker_on"]


def worker_on(
    home: Home,
    method: Method,
    ctx: Context,
    model: Any,
    count: int,
    state: State,
    *,
    dtype: Any,
    device_path: Any,
) -> CommonWorker:
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
    device_path : str
        As for `Context.Allreduce_init`.

    Raises
    ------
    ArgumentError
        If the method is not one of this package; nothing was communicated.
    """
    place = (home, device_path)
    rest = (ctx, np.empty(0, dtype), count, state)
    if isinstance(method, Synchronous):
        return _Each(*place, method, EagerSGD(Full()), *rest)
    if isinstance(method, EagerSGD):
        kind = _Each if method.deliver == "each" else _Lump
        return kind(*place, method, method, *rest)
    if isinstance(method, GroupMethod):
        return _Group(model, *place, method, *rest)
    raise ArgumentError(
        f"{method!r} is not a method of this package, which alone train models on a device"
    )


class _OnDevice(CommonWorker):
    """A worker whose gradient is on a device.

    Parameters
    ----------
    home : Home
    device_path : str
    *rest
        As for the worker of NumPy's vectors.
    """

    def __init__(self, home: Home, device_path: Any, *rest: Any) -> None:
        self._home, self._device_path = home, device_path
        super().__init__(*rest)

    def _memory(self, count: int) -> Any:
        try:
            return self._home.zeros(self._ctx, count, self.x.dtype)
        except Exception as error:
            problem = lack_of_memory(error)
        raise problem


class _Each(_OnDevice, EachWorker):
    pass


class _Lump(_OnDevice, LumpWorker):
    pass


class _Group(_OnDevice, GroupWorker):
    """A worker whose ranks average models in groups.

    Parameters
    ----------
    model : vector
        Rank 0's on all ranks.
    home, device_path
        As for `_OnDevice`.
    *rest
        As for `GroupWorker`.
    """

    def __init__(self, model: Any, *rest: Any) -> None:
        self._model = model
        super().__init__(*rest)

    def _open(self) -> PreduceRequest:
        generator, options = self._method._plan()
        return self._ctx.Preduce_init(
            self._model, generator, device_path=self._device_path, **options
        )

    def _copy(self) -> torch.Tensor:
        return self._home.view(self._model).to("cpu", copy=True)

    def _average(self) -> None:
        model = self._home.view(self._model)
        if self._weights is None:
            average(self._meeting, model)
        else:
            self._meeting.average(self._own.numpy(), self._weights)
            model.copy_(self._own)
