"""The Chrome traces that torch.profiler writes, read as a stream."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .files import Trace

_BLOCK = 1 << 22  # the head, and any event, is shorter
_LIST = re.compile(r'"traceEvents"\s*:\s*\[')
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d+)')
_RANK = re.compile(r'"distributedInfo"\s*:\s*\{[^}]*?"rank"\s*:\s*(\d+)')
_GAP = re.compile(r"[\s,]*")


class Profile:
    """A trace of torch.profiler, and whose it is.

    Parameters
    ----------
    path : Path
        May be compressed (.gz).
    order : int
        The rank, if the file does not say it.

    Raises
    ------
    ValueError
        If it is not such a trace, or if it is cut off.
    """

    def __init__(self, path: Path, order: int) -> None:
        self.path, self.rank, self._base = path, order, 0
        self._first = min((event["ts"] for event in self._events() if "ts" in event), default=None)

    def first_ns(self, trace: Trace) -> int | None:
        """Return the earliest time, on rank 0's clock; `trace` is that of the rank."""
        return self._ns(trace, self._first) if self._first else None

    def _ns(self, trace: Trace, us: float) -> int:
        return int(trace.aligned(self._base + round(us * 1000) - trace.wall_ns))

    def lines(self, trace: Trace, origin: int, tids: int) -> Iterator[str]:
        """Yield the events as lines of JSON in the process of their rank.

        Its threads, and those of its devices, get numbers from `tids` on, and keep their names.
        """
        threads: dict[tuple[Any, Any], int] = {}
        for event in self._events():
            naming = event.get("name") == "thread_name"
            if "ts" not in event or (event.get("ph") == "M" and not naming):
                continue
            place = event["pid"], event["tid"]
            tid = tids + threads.setdefault(place, len(threads))
            if event.get("ph") == "i":
                event["s"] = "t"  # not across all ranks
            if isinstance(event.get("id"), int):  # of an arrow: each file counts from 0
                event["id"] += (self.rank + 1) << 32
            us = (self._ns(trace, event["ts"]) - origin) / 1000
            yield json.dumps({**event, "pid": self.rank, "tid": tid, "ts": us})

    def _events(self) -> Iterator[dict[str, Any]]:
        decode = json.JSONDecoder().raw_decode
        opened = gzip.open if self.path.suffix == ".gz" else open
        with opened(self.path, "rt", encoding="utf-8") as file:
            text = file.read(_BLOCK)
            found = _LIST.search(text)
            if found is None:
                raise ValueError(f"{self.path} is not a trace of torch.profiler")
            for base in _BASE.findall(text, 0, found.start()):
                self._base = int(base)
            for rank in _RANK.findall(text, 0, found.start()):
                self.rank = int(rank)
            at = found.end()
            while (gap := _GAP.match(text, at)) and not text.startswith("]", at := gap.end()):
                try:
                    event, at = decode(text, at)
                except ValueError:
                    more = file.read(_BLOCK)
                    if not more or len(text) - at > _BLOCK:
                        raise ValueError(f"{self.path} is cut off, or no JSON") from None
                    text, at = text[at:] + more, 0
                else:
                    yield event
