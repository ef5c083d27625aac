"""Models averaged with a neighbour, which may compute meanwhile: AD-PSGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from .._names import INITIATORS
from ..errors import ArgumentError
from ..gossip import GossipRequest
from ..status import Status
from ..topology import Topology, as_topology
from .base import Method, State, Update, Vector, Worker
from .place import Place
from .worker import CommonWorker

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["ADPSGD"]


@dataclass(frozen=True)
class ADPSGD(Method):
    """A step applies the rank's own gradient, and averages the model with one neighbour's.

    The neighbour is drawn at random, and need not have come: it may compute. So no rank ever waits
    for a slow one. The library keeps the models that are averaged; `x` is this rank's as of its
    last step, and what its neighbours have changed since comes with the next one. An optimizer's
    state, such as its momentum, stays the rank's own.

    Ranks have different models until `Worker.flush` or `Worker.finish`, which average over all
    ranks; there all models count the same, and so do states. A rank that has finished is averaged
    by its neighbours as before.

    Models are in the memory of the host.

    Parameters
    ----------
    topology : Topology or str
        Which ranks are neighbours: of `pypartial.topology`, or a text that `topology.parse` reads.
    initiators : {"all", "active"}, optional
        ``"active"``: only one side of a bipartite graph asks for averages, as in the paper; see
        `Context.Gossip_init`.
    continuous : bool, optional
        True: averages go on by themselves while a rank computes, and a step only adds its change.

    Raises
    ------
    ArgumentError
        If a value is not of its kind. Whether the topology allows the number of ranks is known when
        the worker is made.

    References
    ----------
    X. Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (AD-PSGD),
    ICML 2018, sections 3 to 5.
    """

    topology: Topology
    initiators: Literal["all", "active"] = "all"
    continuous: bool = False

    def __init__(
        self,
        topology: Topology | str,
        initiators: Literal["all", "active"] = "all",
        continuous: bool = False,
    ) -> None:
        INITIATORS.check(initiators)
        if not isinstance(continuous, bool):
            raise ArgumentError(f"continuous must be True or False, not {continuous!r}")
        object.__setattr__(self, "topology", as_topology(topology))
        object.__setattr__(self, "initiators", initiators)
        object.__setattr__(self, "continuous", continuous)

    def worker(
        self, ctx: Context, x: Vector, *, extra: int = 0, state: State | None = None
    ) -> Worker:
        """Make this rank's part in the training; see `Method.worker`."""
        return GossipWorker(self, Place(x), ctx, extra, state)


class GossipWorker(CommonWorker):
    """A worker whose ranks average models with neighbours.

    `x` is the request's buffer, and not the library's model, which others may change at any time.
    So what this rank has changed in `x` since the library wrote it is added to the model.
    """

    _method: ADPSGD
    _request: GossipRequest

    def _open(self) -> GossipRequest:
        self._known = self.x.copy()  # as the library wrote it
        self._is_written = False  # the library has written it, or is about to
        self._change = np.empty_like(self.x)
        method = self._method
        return self._ctx.Gossip_init(
            *(self.x, method.topology, "async", method.initiators, method.continuous)
        )

    def _advance(self, update: Update, is_given: bool) -> int:
        applied = self._apply(update) if is_given else 0
        self._count(is_given)
        self._request.Start(add=self._changed())
        self._resume()
        return applied

    def _changed(self) -> Vector:
        return np.subtract(self.x, self._known, out=self._change)

    def _resume(self) -> None:
        """Collect the average, and remember it; also where Ctrl-C has ended the wait for it."""
        if self._is_asking:
            self._is_written = True
            status = Status()
            self._request.Wait(status)
            self.status = status
        if self._is_written:
            self._known[:] = self.x
            self._is_written = False

    def _end_rounds(self) -> tuple[int, int]:
        self._resume()
        with self._request.locked() as model:
            model += self._changed()
            self._is_written = True
        status = self.status = Status()
        self._request.Flush(status)
        self._resume()
        return 0, status.round

    def _average(self) -> None:
        """Do nothing: the flush of the request has averaged the models."""
