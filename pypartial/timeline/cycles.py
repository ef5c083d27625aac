"""What a rank did, from the events of its trace: the counts and samples of `pypartial.report`."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from .._names import CAUSE
from ..report import COUNTERS, SAMPLE
from .files import CALL, CALL_END, EXTERNAL, GIVEN, LATE, MISSED, START, WAIT, Trace

_PACK = struct.Struct("<5Q2I").pack  # pp_sample_t


def measure(trace: Trace) -> tuple[dict[str, Any], npt.NDArray[Any]]:
    """Return the counts of a rank, and a sample for each of its complete cycles.

    A cycle is from a Start of a handle to the next one. Times are on rank 0's clock.
    """
    counts: dict[str, Any] = {**dict.fromkeys(COUNTERS, 0), "causes": [0] * len(CAUSE)}
    samples = bytearray()
    waiting: dict[int, int] = {}  # since when; collective calls are handle 0
    inside = 0  # the time with any of these, less the last one's beginning while that lasts
    begun: dict[int, tuple[int, int]] = {}  # the Start of a handle, and the time inside until then
    given: dict[int, tuple[int, ...]] = {}  # since then: key, time, waited, late
    for ns, _, key, handle, kind, cause, flags, a, b, c, _ in trace.events():
        if kind == START:
            counts["calls"] += 1
            now, ended = inside + (ns if waiting else 0), given.pop(handle, None)
            if ended is not None and handle in begun:
                (start, then), (same, end, waited, late) = begun[handle], ended
                computed = max(ns - start - (now - then), 0)
                samples += _PACK(same, start, end, waited, computed, handle, late)
            begun[handle] = ns, now
        elif kind in (WAIT, CALL):
            inside -= 0 if waiting else ns
            waiting.setdefault(handle if kind == WAIT else 0, ns)
        elif kind in (GIVEN, CALL_END):
            since = waiting.pop(handle if kind == GIVEN else 0, None)
            inside += ns if since is not None and not waiting else 0
            if kind == CALL_END:
                continue
            late = flags & LATE
            given.setdefault(handle, (key, ns, max(ns - (since or ns), 0), late))
            counts["given"] += 1
            counts["late"] += late
            counts["external"] += flags & EXTERNAL > 0
            counts["active"] += a
            counts["contributions"] += b
            counts["missed"] += flags // MISSED
            counts["staleness"] += c
            counts["most_stale"] = max(counts["most_stale"], c)
            if 0 < cause <= len(CAUSE):  # a round
                counts["causes"][cause - 1] += 1
    return counts, np.frombuffer(samples, SAMPLE)
