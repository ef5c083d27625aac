"""The stopwatch of all benchmarks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Lap:
    """What something took: by the clock, and CPU time of the thread that did it; nanoseconds."""

    ns: int
    cpu_ns: int


def timed(act: Callable[[], object]) -> Lap:
    """Do something once, and return how long it took."""
    cpu_before = time.thread_time_ns()
    before = time.monotonic_ns()
    act()
    after = time.monotonic_ns()
    cpu_after = time.thread_time_ns()
    return Lap(after - before, cpu_after - cpu_before)


def timed_halves(
    first: Callable[[], object], second: Callable[[], object], pairs: int
) -> tuple[float, float]:
    """Do two things in turn, again and again, with the clock read before, between and after.

    If the second is not done, which it says by what it returns, it is done again, untimed.

    Returns
    -------
    tuple of float
        Mean nanoseconds of the first and of the second, `clock_cost` included.
    """
    now = time.monotonic_ns
    first_ns = second_ns = 0
    for _ in itertools.repeat(None, pairs):
        before = now()
        first()
        between = now()
        done = second()
        after = now()
        first_ns += between - before
        second_ns += after - between
        while not done:
            done = second()
    return first_ns / pairs, second_ns / pairs


def clock_cost(readings: int) -> float:
    """Return the mean nanoseconds between two readings of the clock with nothing in between."""
    now = time.monotonic_ns
    ns = 0
    for _ in itertools.repeat(None, readings):
        before = now()
        after = now()
        ns += after - before
    return ns / readings
