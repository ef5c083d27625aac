"""What a rank did, from the events of its trace: the counts and samples of `pypartial.report`."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from .._names import CAUSE
from ..report import COUNTERS, SAMPLE
from .files import EXTERNAL, GIVEN, LATE, MISSED, START, WAIT, Trace

_PACK = struct.Struct("<5Q2I").pack  # pp_sample_t


def measure(trace: Trace) -> tuple[dict[str, Any], npt.NDArray[Any]]:
    """Return the counts of a rank, and a sample for each of its complete cycles.

    A cycle is from a Start of a handle to the next one. Times are on rank 0's clock.
    """
    counts: dict[str, Any] = {**dict.fromkeys(COUNTERS, 0), "causes": [0] * len(CAUSE)}
    samples = bytearray()
    waiting: dict[int, int] = {}  # of a handle: since when
    begun: dict[int, int] = {}  # its Start
    given: dict[int, tuple[int, ...]] = {}  # since then: key, time, waited, late
    for ns, _, key, handle, kind, cause, flags, a, b, c, _ in trace.events():
        if kind == START:
            counts["calls"] += 1
            ended = given.pop(handle, None)
            if key and ended is not None and handle in begun:
                same, end, waited, late = ended
                samples += _PACK(same, begun[handle], end, waited, key, handle, late)
            begun[handle] = ns
        elif kind == WAIT:
            waiting[handle] = ns
        elif kind == GIVEN:
            since = waiting.pop(handle, ns)
            late = flags & LATE
            given.setdefault(handle, (key, ns, max(ns - since, 0), late))
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
