"""Models averaged with those of all neighbours, in iterations that are bounded apart: Hop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._queue_options import read_mode
from ..queue import QueueRequest
from ..status import Status
from ..topology import Topology, as_topology
from .base import Method, State, Update, Vector, Worker
from .place import Place
from .worker import CommonWorker

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["Hop", "QueueMethod", "QueueWorker"]


class QueueMethod(Method):
    """A method that averages models with those of all neighbours."""

    @property
    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Return the options of `Context.Queue_init`."""

    def worker(
        self, ctx: Context, x: Vector, *, extra: int = 0, state: State | None = None
    ) -> Worker:
        """Make this rank's part in the training; see `Method.worker`."""
        return QueueWorker(self, Place(x), ctx, extra, state)


@dataclass(frozen=True)
class Hop(QueueMethod):
    """A step applies the rank's own gradient to the average of its model with its neighbours'.

    The models travel while ranks compute (the parallel graph of Hop, section 3.1): a step sends the
    model, and the next one averages it with those of the same iteration that have come. A rank
    waits for its neighbours only, for `backup` of them not at all, and with `staleness` it takes
    older models of those that are late. An optimizer's state, such as its momentum, stays the
    rank's own.

    Ranks have different models until `Worker.flush` or `Worker.finish`, which average over all
    ranks; there all models count the same, and so do states. Neighbours do not wait for a rank that
    has finished.

    Models are in the memory of the host.

    Parameters
    ----------
    topology : Topology or str
        Which ranks are neighbours: of `pypartial.topology`, or a text that `topology.parse` reads.
    max_ig, backup, staleness, skip, skip_trigger, protocol : optional
        As for `Context.Queue_init`. With `staleness` a newer model that a rank averages already has
        the gradients of the older one, so that the mean of all models moves by up to twice as much
        as the mean of the gradients: lower the learning rate if training diverges.

    Raises
    ------
    ArgumentError
        If a value is wrong, or options do not go together. Whether they suit the topology and the
        number of ranks is known when the worker is made.

    References
    ----------
    Q. Luo et al., "Hop: Heterogeneity-Aware Decentralized Training", ASPLOS 2019, sections 3 to 6.
    """

    topology: Topology
    max_ig: int
    backup: int | tuple[int, ...]
    staleness: int | None
    skip: int | None
    skip_trigger: int
    protocol: Literal["tokens", "notify-ack", "none"]

    def __init__(
        self,
        topology: Topology | str,
        max_ig: int | None = None,
        backup: int | Sequence[int] = 0,
        staleness: int | None = None,
        skip: int | None = None,
        skip_trigger: int = 2,
        protocol: Literal["tokens", "notify-ack", "none"] = "tokens",
    ) -> None:
        mode = read_mode(max_ig, backup, staleness, skip, skip_trigger, protocol)
        object.__setattr__(self, "topology", as_topology(topology))
        for option in fields(self)[1:]:
            object.__setattr__(self, option.name, getattr(mode, option.name))

    @property
    def _options(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


class QueueWorker(CommonWorker):
    """A worker whose ranks average models with those of all neighbours.

    A Start is outstanding between two steps: neighbours have the model while this rank computes.
    The first step after a meeting of all ranks sends the model as it finds it, since a program may
    have loaded another one on all ranks. The request has a buffer of its own, so that `x` is the
    application's all the time. What this rank has changed in `x` since the Start, as a step's
    update does, is added to the average.
    """

    _method: QueueMethod
    _request: QueueRequest

    def _open(self) -> QueueRequest:
        self._model = self.x.copy()  # the request's
        self._sent = self.x.copy()
        self._change = np.empty_like(self.x)
        self._is_averaged = False  # the model is, or is about to be; `x` is not yet
        return self._ctx.Queue_init(self._model, **self._method._options)

    @property
    def _is_asking(self) -> bool:
        return False  # the request neither reads the gradient nor writes to `x`

    def _advance(self, update: Update, is_given: bool) -> int:
        if not self._request._is_outstanding():
            self._send()
        applied = self._apply(update) if is_given else 0
        self._count(is_given)
        self._collect()
        self._send()
        return applied

    def _resume(self) -> None:
        """Collect the average where Ctrl-C has ended the wait for it."""
        if self._is_averaged:
            self._collect()

    def _collect(self) -> None:
        if self._request._is_outstanding():
            np.subtract(self.x, self._sent, out=self._change)
            self._is_averaged = True
            status = Status()
            self._request.Wait(status)
            self.status = status
        if self._is_averaged:
            np.add(self._model, self._change, out=self.x)
            self._is_averaged = False

    def _send(self) -> None:
        self._model[:] = self._sent[:] = self.x
        self._request.Start()

    def _end_rounds(self) -> tuple[int, int]:
        self._collect()  # a Flush would take what was sent, without the change since
        self._model[:] = self.x
        self._change[:] = 0
        self._is_averaged = True
        status = self.status = Status()
        self._request.Flush(status)
        self._collect()
        return 0, status.iteration

    def _average(self) -> None:
        """Do nothing: the flush of the request has averaged the models."""
