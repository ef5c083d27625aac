"""The stopwatch of all benchmarks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Lap:
    """The time that something took and the CPU time of its thread, in nanoseconds."""

    ns: int
    cpu_ns: int


def timed(act: Callable[[], object]) -> Lap:
    """Call a function once, and return how long it took."""
    cpu_before = time.thread_time_ns()
    before = time.monotonic_ns()
    act()
    after = time.monotonic_ns()
    cpu_after = time.thread_time_ns()
    return Lap(after - before, cpu_after - cpu_before)


def timed_halves(
    first: Callable[[], object], second: Callable[[], object], pairs: int
) -> tuple[float, float]:
    """Call two functions in turn, again and again; read the clock before, between and after them.

    If the second function returns that it is not done, it is called again, untimed.

    Returns
    -------
    tuple of float
        Mean nanoseconds of the first and of the second function, `clock_cost` included.
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
