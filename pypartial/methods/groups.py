"""Models averaged inside groups of ranks: Partial Reduce and Ripples."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .._arguments import INT32_MAX, in_range, real_number
from .._names import BACKEND, MISSING, WEIGHTS, Names
from ..errors import ArgumentError
from ..groups import Controller, Generator, Given
from ..preduce import PreduceRequest
from ..status import Status
from .base import Method, State, Update, Vector, Worker
from .place import Place
from .worker import CommonWorker, Purpose

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["GroupMethod", "GroupWorker", "PartialReduce", "Ripples"]

FINAL = Names("final", {"steps": 0, "equal": 1})


class GroupMethod(Method):
    """A method that averages models in groups."""

    final: str

    @abstractmethod
    def _plan(self) -> tuple[Generator, dict[str, Any]]:
        """Return the generator, and the options of the request."""

    def worker(
        self, ctx: Context, x: Vector, *, extra: int = 0, state: State | None = None
    ) -> Worker:
        """Make this rank's part in the training; see `Method.worker`."""
        return self._worker_at(Place(x), ctx, extra, state)

    def _worker_at(
        self, place: Place, ctx: Context, extra: int, state: State | None
    ) -> GroupWorker:
        return GroupWorker(self, place, ctx, extra, state)


@dataclass(frozen=True)
class PartialReduce(GroupMethod):
    """A step applies the rank's own gradient, and averages the models of the first ranks that ask.

    Ranks have different models until `Worker.flush` or `Worker.finish`, which average over all
    ranks.

    Parameters
    ----------
    size : int
        Ranks of a group, from 2 to the ranks of the context. In a context of one rank any size
        counts as 1.
    weights : {"constant", "dynamic"}, optional
        ``"constant"``: all models of a group count the same. ``"dynamic"``: newer ones count more.
    alpha : float, optional
        Of dynamic weights, from 0 and below 1: see `Context.Preduce_init`.
    missing : {"closest", "initial"}, optional
        Of dynamic weights: what the share of versions goes to that no member has.
        ``"closest"``: to the closest version in the group. ``"initial"``: to the initial model,
        which is rank 0's `x` when the worker is made.
    history, unfreeze : optional
        As for `groups.Controller`, which forms the groups.
    backend : {"auto", "node", "schedule", "comm"}, optional
        As for `Context.Preduce_init`.
    final : {"steps", "equal"}, optional
        How models count in the average over all ranks. ``"steps"``: by the steps of their ranks, as
        `Worker.flush` says. ``"equal"``: all the same, as in Algorithm 2; so do states.

    Raises
    ------
    ArgumentError
        If a value is not of its kind.

    References
    ----------
    X. Miao et al., "Heterogeneity-Aware Distributed Machine Learning Training via Partial Reduce",
    SIGMOD 2021, section 3 and Algorithm 2.
    """

    size: int
    weights: Literal["constant", "dynamic"] = "constant"
    alpha: float = 0.5
    missing: Literal["closest", "initial"] = "closest"
    history: int | Literal["auto"] = "auto"
    unfreeze: bool = True
    backend: Literal["auto", "node", "schedule", "comm"] = "auto"
    final: Literal["steps", "equal"] = "steps"

    def __post_init__(self) -> None:
        """Check the fields, and keep them as their types."""
        object.__setattr__(self, "size", in_range("size", self.size, 1, INT32_MAX))
        controller = Controller(self.size, self.history, self.unfreeze)
        object.__setattr__(self, "history", controller.history)
        object.__setattr__(self, "unfreeze", controller.unfreeze)
        WEIGHTS.check(self.weights)
        MISSING.check(self.missing)
        BACKEND.check(self.backend)
        FINAL.check(self.final)
        alpha = real_number(self.alpha)
        if not 0 <= alpha < 1:
            raise ArgumentError(f"alpha must be a number from 0 and below 1, not {self.alpha!r}")
        object.__setattr__(self, "alpha", alpha)

    def _plan(self) -> tuple[Generator, dict[str, Any]]:
        names = "weights", "alpha", "missing", "backend"
        options = {name: getattr(self, name) for name in names}
        return Controller(self.size, self.history, self.unfreeze), options


@dataclass(frozen=True)
class Ripples(GroupMethod):
    """A step applies the rank's own gradient, and averages models in a group of a generator.

    Ranks have different models until `Worker.flush` or `Worker.finish`, which average over all
    ranks.

    Parameters
    ----------
    generator : Generator
        Which ranks average with each other: any of `pypartial.groups` except `groups.Given`, for
        which a step would have to name its group.
    backend, final : optional
        As for `PartialReduce`.

    Raises
    ------
    ArgumentError
        If a value is not of its kind.

    References
    ----------
    Q. Luo et al., "Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized
    Training" (Ripples), ASPLOS 2020, sections 3 to 5.
    """

    generator: Generator
    backend: Literal["auto", "node", "schedule", "comm"] = "auto"
    final: Literal["steps", "equal"] = "steps"

    def __post_init__(self) -> None:
        """Check the fields."""
        BACKEND.check(self.backend)
        FINAL.check(self.final)
        if not isinstance(self.generator, Generator):
            raise ArgumentError(
                "generator must be one of pypartial.groups, such as Smart(3), not "
                f"{self.generator!r}"
            )
        if isinstance(self.generator, Given):
            raise ArgumentError(
                "generator=Given() is not possible: a step does not name its group; use Table"
            )

    def _plan(self) -> tuple[Generator, dict[str, Any]]:
        return self.generator, {"backend": self.backend}


class GroupWorker(CommonWorker):
    """A worker whose ranks average models in groups.

    A flush of the request gives the models of all ranks equal weights. That of a rank that has made
    few steps since the last meeting would undo what the others have learned. So with
    ``final="steps"`` a model counts by its rank's steps if these differ, and the average is made
    anew, of the ranks' own models.
    """

    _method: GroupMethod
    _request: PreduceRequest
    _own: Any = None  # in a meeting: this rank's model, as it was before the flush

    def _open(self) -> PreduceRequest:
        generator, options = self._method._plan()
        return self._ctx.Preduce_init(
            self._place.model, generator, device_path=self._place.device_path, **options
        )

    def _advance(self, update: Update, is_given: bool) -> int:
        applied = self._apply(update) if is_given else 0
        self._count(is_given)
        self._request.Start()
        self._collect()
        return applied

    def _resume(self) -> None:
        """Collect the request: until then a group may write to the model."""
        if self._is_asking:
            self._collect()

    def _collect(self) -> None:
        status = Status()
        self._request.Wait(status)
        self.status = status

    def _end_rounds(self) -> tuple[int, int]:
        self._resume()
        self._own = self._place.copy()
        status = self.status = Status()
        self._request.Flush(status)
        return 0, status.round

    def _settle(self, purpose: Purpose, counts: tuple[int, int]) -> Purpose:
        try:
            return super()._settle(purpose, counts)
        finally:
            self._own = None

    def _share(self, steps: list[int]) -> list[int] | None:
        """Return the ranks' steps, as FedAvg counts a model by the samples it has seen."""
        if self._method.final == "equal" or len(set(steps)) == 1:
            return None
        common = math.gcd(*steps)
        return [made // common for made in steps]

    def _average(self) -> None:
        self._place.average(self._meeting, self._own, self._weights)
