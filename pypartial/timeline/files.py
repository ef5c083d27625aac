"""The files of a trace, one a rank: a head and a ring of events, as in pypartial_sight.h."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def _fields(text: str) -> np.dtype[np.void]:
    return np.dtype([(name, of) for name, _, of in (one.partition(":") for one in text.split())])


EVENT = _fields("ns:i8 number:i8 key:u8 handle:u4 kind:u1 cause:u1 flags:u2 a:i4 b:i4 c:i4 d:i4")
HEAD = _fields(
    "magic:S8 version:u4 event_bytes:u4 run:2u8 rank:i4 size:i4 pid:i8 capacity:u8 count:u8 "
    "met:(2,3)i8 host:S64 wall_ns:i8 told:u8 names:V65344"
)
VERSION = 1
LATE, EXTERNAL, MISSED = 1, 2, 4  # flags of GIVEN; above it is a number
_BLOCK = 1 << 13
# Threads write side by side, so the first events of a ring are not quite in order.
_DISORDER = 64


# The kinds of events, as pp_event_kind_t: integers, which a loop over millions compares fast.
START, WAIT, GIVEN, CLAIM, ACTIVATE, JOIN, PUBLISH = range(1, 8)
CALL, CALL_END, AWAKE, ASLEEP, SPAN, SPAN_END = range(8, 14)


class Trace:
    """The trace of one rank, with its times on rank 0's clock.

    Parameters
    ----------
    path : Path

    Raises
    ------
    ValueError
        If the file is not a trace, is cut off, or is of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found: Any = np.fromfile(path, HEAD, 1)
        if not found.size or found[0]["magic"] != b"pptrace":
            raise ValueError(f"{path} is not a trace of pypartial")
        head = {name: found[0][name].tolist() for name in HEAD.names or ()}
        if (head["version"], head["event_bytes"]) != (VERSION, EVENT.itemsize):
            what = f"version {head['version']}, with {head['event_bytes']} bytes an event"
            raise ValueError(f"{path} is of {what}; here {VERSION} and {EVENT.itemsize} are read")
        self.rank, self.size = head["rank"], head["size"]
        self.run = "".join(f"{word:016x}" for word in head["run"])
        self._count, self._capacity = head["count"], head["capacity"]
        if not 0 <= self.rank < max(self.size, 1) or not self._capacity:
            raise ValueError(f"{path} has a damaged head")
        self.dropped = max(self._count - self._capacity, 0)
        whole = (path.stat().st_size - HEAD.itemsize) // EVENT.itemsize
        if whole < (kept := self._count - self.dropped):
            raise ValueError(f"{path} is cut off: of {kept} events it has {whole} whole ones")
        self.host, self.wall_ns = head["host"].decode(errors="replace"), head["wall_ns"]
        self._met, self._names = head["met"], head["names"]
        self.ended = self._met[1][0] != 0
        self.error_ns = max(error for _, _, error in self._met)

    def name(self, offset: int) -> str:
        """Return the name of a span or a collective call, as JSON."""
        text = self._names[offset : self._names.find(b"\0", offset)]
        return json.dumps(text.decode(errors="replace"))

    def aligned(self, ns: Any) -> Any:
        """Return times of this rank's clock, a number or an array, on rank 0's clock.

        A rank that never ended has met rank 0 only once, so it has an offset and no drift.
        """
        (begun, ahead, _), (now, last, _) = self._met
        drift = (last - ahead) / (now - begun) if self.ended and now > begun else 0.0
        return ns - ahead - np.rint((ns - begun) * drift).astype(np.int64)

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the events in order, oldest first, with aligned times.

        A killed rank has counted events that it has not written: they are zero, or of the lap
        before, or have no time yet.
        """
        at, oldest = self.dropped, 0
        while at < self._count:
            slot = at % self._capacity
            count = min(_BLOCK, self._count - at, self._capacity - slot)
            offset = HEAD.itemsize + slot * EVENT.itemsize
            block = np.fromfile(self.path, EVENT, count, offset=offset)
            kind = block["kind"]
            block = block[(kind >= START) & (kind <= SPAN_END) & (block["ns"] > 0)]
            if at == self.dropped > 0 and block.size:
                oldest = int(block["ns"][:_DISORDER].min())
            block = block[block["ns"] >= oldest]
            block["ns"] = np.maximum(self.aligned(block["ns"]), 0)
            yield block
            at += count

    def events(self) -> Iterator[tuple[int, ...]]:
        """Yield the events as tuples of the fields of `EVENT`."""
        for block in self.blocks():
            yield from block.tolist()

    def first_ns(self) -> int | None:
        """Return the earliest time; None without events."""
        return next((int(one["ns"].min()) for one in self.blocks() if one.size), None)


@dataclass(frozen=True)
class Run:
    """The traces of a run, by rank.

    Attributes
    ----------
    traces : dict of int to Trace
    size : int
        Ranks of the context.
    """

    traces: dict[int, Trace]
    size: int

    @property
    def missing(self) -> list[int]:
        """The ranks without a trace."""
        return sorted(set(range(self.size)) - self.traces.keys())

    def notes(self) -> Iterator[str]:
        """Yield what is missing, a line each."""
        if self.missing:
            yield f"of {self.size} ranks, these have no trace: {', '.join(map(str, self.missing))}"
        for rank, trace in self.traces.items():
            if trace.dropped:
                yield f"rank {rank}: the oldest {trace.dropped:,} events were overwritten"
            if not trace.ended:
                yield f"rank {rank}: the trace never ended: the rank was killed, or runs"


def read_run(folder: Path) -> Run:
    """Open the traces in a folder.

    Raises
    ------
    ValueError
        If there are none, or two of one rank, or traces of different runs.
    OSError
        If one cannot be read.
    """
    # One without a size never began: its rank was killed, or another one failed, meanwhile.
    found = [trace for path in sorted(folder.glob("rank-*.pptrace")) if (trace := Trace(path)).size]
    if not found:
        raise ValueError(f"{folder} has no traces: there is no file rank-*.pptrace")
    traces: dict[int, Trace] = {}
    for one in sorted(found, key=lambda trace: trace.rank):
        if (one.run, one.size) != (found[0].run, found[0].size):
            names = f"{found[0].path.name} and {one.path.name}"
            raise ValueError(f"{folder} has traces of two runs: {names}")
        if traces.setdefault(one.rank, one) is not one:
            raise ValueError(f"{folder} has two traces of rank {one.rank}")
    return Run(traces, one.size)
