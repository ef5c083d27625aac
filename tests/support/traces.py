"""Reading the file of a trace (csrc/include/pypartial_sight.h)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

EVENT = np.dtype(
    [
        *((name, "u8") for name in ("ns", "number", "key")),
        *(("handle", "u4"), ("kind", "u1"), ("cause", "u1"), ("flags", "u2")),
        *((name, "i4") for name in "abcd"),
    ]
)
HEAD = np.dtype(
    [
        *(("magic", "S8"), ("version", "u4"), ("event_bytes", "u4"), ("run", "u8", 2)),
        *(("rank", "i4"), ("size", "i4"), ("pid", "i8"), ("capacity", "u8"), ("count", "u8")),
        *(("met", "i8", (2, 3)), ("host", "S64"), ("wall_ns", "i8"), ("told", "u8")),
        ("names", "V65344"),
    ]
)
KINDS = (
    *("NONE", "START", "WAIT", "GIVEN", "CLAIM", "ACTIVATE", "JOIN", "PUBLISH", "CALL"),
    *("CALL_END", "AWAKE", "ASLEEP", "SPAN", "SPAN_END"),
)
LATE, EXTERNAL = 1, 2  # of flags


class TraceFile:
    """What a rank has written: its head, and its events in order, the oldest that is left first."""

    def __init__(self, folder: Path, rank: int) -> None:
        data = (folder / f"rank-{rank:05d}.pptrace").read_bytes()
        self.head: Any = np.frombuffer(data, HEAD, 1)[0]
        assert HEAD.itemsize == 65536 and EVENT.itemsize == self.head["event_bytes"] == 48
        assert (self.head["magic"], self.head["version"]) == (b"pptrace", 1)
        ring = np.frombuffer(data, EVENT, int(self.head["capacity"]), HEAD.itemsize)
        assert len(data) == HEAD.itemsize + ring.nbytes
        count = int(self.head["count"])
        kept = np.arange(max(0, count - len(ring)), count) % len(ring)
        self.events: npt.NDArray[Any] = ring[kept]

    def of(self, *kinds: str) -> npt.NDArray[Any]:
        """Return the events of these kinds."""
        return self.events[np.isin(self.events["kind"], [KINDS.index(kind) for kind in kinds])]

    def name(self, at: int) -> str:
        """Return the text at an offset of the names."""
        return bytes(self.head["names"])[at:].split(b"\0")[0].decode()
