"""Checks whether a simulation fits into the memory that this machine has left."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..units import format_size

# Measured (docs/simulation.md, "Memory"), rounded up: a rank's context, schedules, Python objects.
_RANK_BYTES = 14_000
_DIMENSION_BYTES = 2_600  # more for each factor of two in the number of ranks
_NAMED_RANKS = 1024  # up to here rounds keep masks of ranks, and messages carry them:
_MASK_BYTES = 40  # for each rank named
_RING_STEP_BYTES = 800  # of a ring's schedule, for each other rank
_STEP_BYTES = 40  # five times of a rank and step
_WINDOW, _ROUND_BYTES = 4, 350  # a round beyond these, for each factor of two
_VECTORS = 6  # send, receive, pending, accumulator, scratch or result, under way


class OutOfMemory(ValueError):
    """The simulation would not fit into memory; the text says what to change."""


def estimate(
    ranks: int, vector_bytes: int, *, ring: bool = False, steps: int = 0, window: int = 4
) -> int:
    """Return about how many bytes a simulation takes."""
    dimensions = max(ranks - 1, 0).bit_length()
    one = _RANK_BYTES + _DIMENSION_BYTES * dimensions + _VECTORS * vector_bytes
    one += _STEP_BYTES * steps + _ROUND_BYTES * max(window - _WINDOW, 0) * (1 + dimensions)
    if ranks <= _NAMED_RANKS:
        one += _MASK_BYTES * ranks
    if ring:
        one += _RING_STEP_BYTES * ranks
    return ranks * one


def available() -> int:
    """Return the bytes that this process may still take."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = re.search(r"MemAvailable:\s*(\d+) kB", _read("/proc/meminfo"))
    if found:
        free = int(found[1]) * 1024
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    if limit.strip().isdecimal() and used.strip().isdecimal():
        free = min(free, max(int(limit) - int(used), 0))
    return free


def require(
    ranks: int, vector_bytes: int, *, ring: bool = False, steps: int = 0, window: int = 4
) -> None:
    """Check that a simulation fits, before anything is allocated.

    Raises
    ------
    OutOfMemory
        If it needs more than is left.
    """
    need = estimate(ranks, vector_bytes, ring=ring, steps=steps, window=window)
    free = available()
    if need <= free:
        return
    what = "--ranks"
    if 2 * ranks * _STEP_BYTES * steps > need:
        what = "--ranks or --steps"
    elif 2 * estimate(ranks, vector_bytes, ring=ring) < need:
        what = "--ranks or --window"
    elif 2 * estimate(ranks, 0, ring=ring) < need:
        what = "--ranks or --size"
    elif ring and 2 * estimate(ranks, vector_bytes) < need:
        what = "--ranks, or another schedule: that of a ring grows with the square of the ranks"
    raise OutOfMemory(
        f"{ranks:,} ranks with {format_size(max(vector_bytes, 1))} each need about "
        f"{format_size(need)} of memory, and {format_size(free)} are left: choose fewer {what}"
        if not what.startswith("--ranks,")
        else f"{ranks:,} ranks need about {format_size(need)} of memory, and {format_size(free)} "
        f"are left: choose fewer {what}"
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
