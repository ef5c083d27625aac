"""How the average of a request of queues may have come about, searched bit for bit.

A rank knows how many updates are in its average, and not which: all that fit are tried.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

__all__ = ["Request", "Way", "replay", "ways"]

Asked = TypeVar("Asked", bound="Request")


@dataclass
class Request:
    """What a rank started, and what came of it."""

    vector: Any
    first: int  # the iteration that it is of, unless the rank had left before
    result: Any = None  # a `QueueResult`
    data: bytes = b""

    @property
    def iterations(self) -> range:
        """The iterations that it may be of."""
        return range(self.first, self.result.iteration)


@dataclass(frozen=True)
class Way:
    """The iteration that was due, and that of each in-neighbour's update; None: it is not in it."""

    due: int
    parts: tuple[int | None, ...]


def _within(request: Request, due: int, bound: int | None) -> range:
    """The iterations that a request of an in-neighbour may be of if it was averaged."""
    whole = request.iterations
    if bound is None:
        return range(due, due + (due in whole))
    return range(max(whole.start, due - bound), whole.stop)


def _iterations(
    request: Request, parts: Sequence[Request], due: int, bound: int | None
) -> Iterator[list[int]]:
    """Yield of which iterations the own model and the others may be.

    One that has left, or was dropped by a flush, may be of many, and there are too many ways to
    choose one for each. But the models are independent, so that the average tells their weights,
    and with these the iteration of one tells all others.
    """
    if bound is None or not parts:
        yield [request.first, *(due for _ in parts)]
        return
    models = np.array([request.vector, *(part.vector for part in parts)], "float64")
    average = np.frombuffer(request.data, request.vector.dtype)
    weights = np.linalg.lstsq(models.T, average, rcond=None)[0]
    below = due - bound - 1
    for first in _within(parts[0], due, bound) if weights[1] > 0 else ():
        yield [below + round(weight * (first - below) / weights[1]) for weight in weights]


def _average(
    own: tuple[int, Any], parts: list[Any], due: int, bound: int | None, weight: float | None
) -> Any:
    """The models from left to right: the own one, and those of in-neighbours."""
    models = [own, *parts]
    if weight is not None:
        rest = 1 - functools.reduce(operator.add, [weight] * len(parts), 0.0)
        terms = [rest * own[1], *(weight * x for _, x in parts)]
        return functools.reduce(np.add, terms)
    shares = [1 if bound is None else max(k - (due - bound) + 1, 0) for k, _ in models]
    if not parts:
        shares = [1]
    terms = [s / sum(shares) * x for s, (_, x) in zip(shares, models, strict=True) if s]
    return functools.reduce(np.add, terms)


def ways(
    request: Request,
    ins: Sequence[Iterable[Request]],
    bound: int | None,
    left: bool,
    weight: float | None = None,
) -> Iterator[Way]:
    """Yield how a request may have come about.

    Parameters
    ----------
    request : Request
    ins : sequence
        The requests of each in-neighbour. With `bound`, each has its vector of its own.
    bound : int or None
        `staleness`.
    left : bool
        Whether ranks may have left: one that has follows the others, also after its average.
    weight : float, optional
        Of each in-neighbour, where the graph gives weights.
    """
    whole = request.iterations
    for due in whole if left else whole[-1:]:
        senders = [[None, *(r for r in requests if _within(r, due, bound))] for requests in ins]
        for chosen in itertools.product(*senders):
            parts = [part for part in chosen if part]
            if len(parts) != request.result.received:
                continue
            for own, *others in _iterations(request, parts, due, bound):
                found = list(zip(others, parts, strict=True))
                if own not in whole or any(k not in _within(p, due, bound) for k, p in found):
                    continue
                models = [(k, part.vector) for k, part in found]
                average = _average((own, request.vector), models, due, bound, weight)
                if average.tobytes() == request.data:
                    each = iter(others)
                    yield Way(due, tuple(next(each) if part else None for part in chosen))


def replay(
    requests: Iterable[Asked],
    ins: Callable[[Asked], Sequence[Iterable[Request]]],
    bound: int | None,
    left: Callable[[Asked], bool],
    weight: float | None = None,
) -> None:
    """Check the averages of a rank.

    Parameters
    ----------
    requests : iterable
    ins, left : callable
        What `ways` is told of each of them; the other arguments are as there.

    Raises
    ------
    AssertionError
        If no updates give what the rank was given, or one was averaged twice.
    """
    averaged: dict[int, int] = {}
    for request in requests:
        gone = left(request)
        way = next(ways(request, ins(request), bound, gone, weight), None)
        assert way, f"no such average: {request.result}"
        if gone:
            continue
        old = max([0, *(way.due - part for part in way.parts if part is not None)])
        assert old == request.result.staleness, f"staleness should be {old}: {request.result}"
        for at, part in enumerate(way.parts):
            if part is not None:
                assert part > averaged.get(at, -1), f"averaged twice: {request.result}"
                averaged[at] = part
