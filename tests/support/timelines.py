"""Traces of ranks, made without any: the files that `pypartial trace` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pypartial.timeline import files
from pypartial.timeline.files import EVENT, HEAD

WALL_NS = 1_790_000_000 * 10**9
HANDLE = 4
Event = Mapping[str, int]


@dataclass
class Clock:
    """A clock that is ahead of rank 0's by an offset, and by more as time goes."""

    offset_ns: int = 0
    ppm: float = 0.0

    def at(self, ns: int) -> int:
        return ns + self.offset_ns + round(ns * self.ppm / 1e6)


@dataclass
class Made:
    """A run: the events of each rank in true time, which is that of rank 0's clock."""

    size: int
    clocks: Sequence[Clock] = ()
    events: dict[int, list[dict[str, int]]] = field(default_factory=dict)

    def add(self, rank: int, kind: int, ns: int, **fields: int) -> None:
        self.events.setdefault(rank, []).append({"kind": kind, "ns": ns, **fields})

    def save(self, folder: Path, **head: Any) -> Path:
        for rank, events in self.events.items():
            clock = self.clocks[rank] if self.clocks else Clock()
            ends = [events[0]["ns"] - 10**6, events[-1]["ns"] + 10**6]
            met = [[clock.at(ns), clock.at(ns) - ns, 2000] for ns in ends]
            local = [{**event, "ns": clock.at(event["ns"])} for event in events]
            write(folder, rank, self.size, local, **{"met": met, **head})
        return folder


def write(
    folder: Path,
    rank: int,
    size: int,
    events: Sequence[Event],
    *,
    names: Sequence[str] = ("MPI_Bcast", "forward"),
    **head: Any,
) -> Path:
    """Write a file; `head` overrides its fields."""
    folder.mkdir(exist_ok=True)
    made = np.zeros(1, HEAD)
    text = b"".join(name.encode() + b"\0" for name in names)
    values = {
        "magic": b"pptrace",
        "version": 1,
        "event_bytes": EVENT.itemsize,
        "run": (17, 4),
        "rank": rank,
        "size": size,
        "pid": 1000 + rank,
        "capacity": max(len(events), 1),
        "count": len(events),
        "met": [[1, 0, 0], [2, 0, 0]],
        "host": b"node0",
        "wall_ns": WALL_NS,
        "told": len(text),
        "names": text,
        **head,
    }
    for name, value in values.items():
        made[name] = value
    capacity = int(values["capacity"])
    ring = np.zeros(capacity, EVENT)
    for number, event in enumerate(events):
        slot = ring[number % capacity : number % capacity + 1]
        for name in EVENT.names or ():
            slot[name] = event.get(name, 0)
    path = folder / f"rank-{rank:05}.pptrace"
    path.write_bytes(made.tobytes() + ring.tobytes())
    return path


def rounds(size: int, count: int, clocks: Sequence[Clock] = (), handle: int = HANDLE) -> Made:
    """Rounds of 10 ms, which the first rank activates; the last rank is late for every fifth."""
    made = Made(size, clocks)
    draws = np.random.default_rng(3)
    for number in range(count):
        begin = 10**9 + number * 10**7
        arrivals = begin + draws.integers(0, 4 * 10**6, size)
        first = int(arrivals.argmin())
        done = int(arrivals.min()) + 100_000
        for rank, arrival in enumerate(map(int, arrivals)):
            late = number % 5 == 4 and rank == (first + 1) % size
            arrival = done + 2 * 10**6 if late else min(arrival, done - 20_000)
            given = arrival + 1000 if late else done + 50_000 + 1000 * rank
            same = {"handle": handle, "number": number}
            start = {"handle": handle, "number": number + 1, "key": number * 10**6}
            made.add(rank, files.START, arrival, **start)
            made.add(rank, files.WAIT, arrival + 500, handle=handle)
            if rank == first:
                made.add(rank, files.CLAIM, arrival + 600, **same)
                made.add(
                    rank, files.PUBLISH, done, **same, key=800, a=size - late, b=size, c=size,
                    d=first, cause=1,
                )  # fmt: skip
            flags = files.LATE * late + files.EXTERNAL * (rank != first)
            made.add(
                rank, files.GIVEN, given, **same, key=number, flags=flags, a=size, b=size,
                c=int(late), d=first, cause=1,
            )  # fmt: skip
    return made
