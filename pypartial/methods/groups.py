"""Models averaged inside groups of ranks: Partial Reduce and Ripples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._arguments import INT32_MAX, in_range, real_number
from .._names import WEIGHTS
from ..errors import ArgumentError, Error, PeerFailedError
from ..groups import Controller, Generator, Given
from ..preduce import PreduceRequest
from ..status import Status
from .base import Method, State, Update, Vector, Worker
from .worker import CommonWorker, Purpose

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["PartialReduce", "Ripples"]


@dataclass(frozen=True)
class PartialReduce(Method):
    """A step applies the rank's own gradient, and averages the models of the first ranks that ask.

    Ranks have different models until `Worker.flush` or `Worker.finish`, which average over all
    ranks, each model by the steps of its rank.

    Parameters
    ----------
    size : int
        Ranks of a group, from 2 to the ranks of the context.
    weights : {"constant", "dynamic"}, optional
        ``"constant"``: all models of a group count the same. ``"dynamic"``: newer ones count more.
    alpha : float, optional
        Of dynamic weights, from 0 and below 1: see `Context.Preduce_init`.

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

    def __post_init__(self) -> None:
        """Check the fields, and keep them as their types."""
        object.__setattr__(self, "size", in_range("size", self.size, 2, INT32_MAX))
        WEIGHTS.check(self.weights)
        alpha = real_number(self.alpha)
        if not 0 <= alpha < 1:
            raise ArgumentError(f"alpha must be a number from 0 and below 1, not {self.alpha!r}")
        object.__setattr__(self, "alpha", alpha)

    def worker(
        self, ctx: Context, x: Vector, *, extra: int = 0, state: State | None = None
    ) -> Worker:
        """Make this rank's part in the training; see `Method.worker`."""
        options = {"weights": self.weights, "alpha": self.alpha}
        return GroupWorker(self, ctx, x, extra, state, Controller(self.size), options)


@dataclass(frozen=True)
class Ripples(Method):
    """A step applies the rank's own gradient, and averages models in a group of a generator.

    Ranks have different models until `Worker.flush` or `Worker.finish`, which average over all
    ranks, each model by the steps of its rank.

    Parameters
    ----------
    generator : Generator
        Which ranks average with each other: any of `pypartial.groups` except `groups.Given`, for
        which a step would have to name its group.

    Raises
    ------
    ArgumentError
        If `generator` is something else.

    References
    ----------
    Q. Luo et al., "Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized
    Training" (Ripples), ASPLOS 2020, sections 3 to 5.
    """

    generator: Generator

    def __post_init__(self) -> None:
        """Check the generator."""
        if not isinstance(self.generator, Generator):
            raise ArgumentError(
                "generator must be one of pypartial.groups, such as Smart(3), not "
                f"{self.generator!r}"
            )
        if isinstance(self.generator, Given):
            raise ArgumentError(
                "generator=Given() is not possible: a step does not name its group; use Table"
            )

    def worker(
        self, ctx: Context, x: Vector, *, extra: int = 0, state: State | None = None
    ) -> Worker:
        """Make this rank's part in the training; see `Method.worker`."""
        return GroupWorker(self, ctx, x, extra, state, self.generator, {})


class GroupWorker(CommonWorker):
    """A worker whose ranks average models in groups.

    A flush of the request gives the models of all ranks equal weights. That of a rank that has made
    few steps since the last meeting would undo what the others have learned. So a model counts by
    its rank's steps if these differ, and the average is made anew, of the ranks' own models.
    """

    _request: PreduceRequest
    _own: Any = None  # in a meeting: this rank's model, as it was before the flush

    def __init__(
        self,
        method: Method,
        ctx: Context,
        x: Vector,
        extra: int,
        state: State | None,
        generator: Generator,
        options: dict[str, Any],
    ) -> None:
        self._generator, self._options = generator, options
        super().__init__(method, ctx, x, extra, state)

    def _memory(self, count: int) -> Vector:
        return np.zeros(count, self.x.dtype)

    def _open(self) -> PreduceRequest:
        return self._ctx.Preduce_init(self.x, self._generator, **self._options)

    def _advance(self, update: Update, is_given: bool) -> int:
        status = Status()
        applied = self._apply(update) if is_given else 0
        self._count(is_given)
        try:
            self._has_asked = True
            self._request.Start()
        except BaseException:
            self._has_asked = self._request._is_outstanding()
            raise
        self._request.Wait(status)
        self._has_asked = False
        self.status = status
        return applied

    def _resume(self) -> bool:
        """Collect the request: until then a group may write to the model."""
        if not self._has_asked:
            return False
        try:
            self._request.Wait()
        except PeerFailedError:
            raise
        except Error:  # nothing was started, or it was collected
            pass
        self._has_asked = False
        return True

    def _end_rounds(self) -> tuple[int, Status]:
        self._resume()
        self._own = self._copy()
        status = self.status = Status()
        self._request.Flush(status)
        return 0, status

    def _settle(self, purpose: Purpose, counts: tuple[int, int]) -> Purpose:
        try:
            return super()._settle(purpose, counts)
        finally:
            self._own = None

    def _share(self, steps: list[int]) -> list[int] | None:
        """Return the ranks' steps, as FedAvg counts a model by the samples it has seen."""
        if len(set(steps)) == 1:
            return None
        common = math.gcd(*steps)
        return [made // common for made in steps]

    def _average(self) -> None:
        if self._weights is not None:
            self.x[:] = self._own
        super()._average()

    def _copy(self) -> Any:
        """Return a copy of the model, in host memory."""
        return self.x.copy()
