"""What simulations of a protocol alone share: events in virtual time, and ranks that compute.

Simultaneous events happen in an order that is drawn.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from .arrivals import Arrivals
from .skew import TooLong

__all__ = ["Events", "Times", "drawn_times"]

Times = Callable[[int], Sequence[int]]
_END_NS = 1 << 63


def drawn_times(model: Arrivals) -> Times:
    """Return a function that gives the nanoseconds that each rank computes in a step, from 0."""
    return lambda step: model.times(step).tolist()


class Events:
    """Events that have not happened yet, until the simulation is `over`.

    Parameters
    ----------
    ranks, iterations : int
        The fastest rank makes so many iterations.
    times : callable
        What `drawn_times` returns.
    seed : int
        Of the order of simultaneous events.
    progress : callable, optional
        Is given the share that is done, now and then.
    """

    def __init__(
        self,
        ranks: int,
        iterations: int,
        times: Times,
        seed: int,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.over = False
        self._ranks, self._iterations, self._times = ranks, iterations, times
        self._progress = progress
        self._draw = random.Random(seed)
        self._events: list[tuple[int, float, Callable[..., None], tuple[Any, ...]]] = []
        self._steps: dict[int, Sequence[int]] = {}
        self._computing: Counter[int] = Counter()  # ranks that have begun each step

    def push(self, when: int, event: Callable[..., None], *arguments: Any) -> None:
        """Let a function be called at a time, with it and the arguments."""
        heapq.heappush(self._events, (when, self._draw.random(), event, arguments))

    def compute(self, now: int, rank: int, step: int, then: Callable[..., None]) -> None:
        """Let a rank compute from now on, its step of this number, and then call a function."""
        if step not in self._steps:  # the fastest rank has begun it
            self._steps[step] = self._times(step)
            if self._progress:
                self._progress(step / self._iterations)
        self._computing[step] += 1
        times = self._steps[step]
        if self._computing[step] == self._ranks:  # all have begun it
            del self._computing[step], self._steps[step]
        self.push(now + int(times[rank]), then, rank)

    def run(self) -> None:
        """Let events happen until the simulation is over."""
        while self._events and not self.over:
            now, _, event, arguments = heapq.heappop(self._events)
            if now >= _END_NS:
                raise TooLong(
                    f"{self._iterations:,} iterations take more virtual time than a simulation "
                    "can have (2**63 ns, 292 years): choose fewer iterations"
                )
            event(now, *arguments)
        if not self.over:
            raise RuntimeError("no rank can go on")  # a defect of the protocol
