"""Chrome's trace format, which Perfetto opens: one process a rank, written as a stream."""

from __future__ import annotations

import itertools
import json
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from .._names import CAUSE
from . import files
from .files import Run, Trace
from .profiler import Profile

# Numbers of the threads of a process; viewers put them in this order.
_CALLS, _PROGRESS, _ROUNDS, _SPANS, _HANDLES, _PROFILER = 1, 2, 10, 1000, 100_000, 10_000_000
_BLOCK = 1 << 14  # arrows
_ROUNDS_OPEN = 8  # of a handle: another rank may publish a round that this one has begun
_WAIT = '"Wait"'
_CAUSES = dict(enumerate(map(json.dumps, [None, *CAUSE])))


def save_chrome(run: Run, profiles: Sequence[Profile], path: Path) -> None:
    """Write the timeline of a run; in memory are a block of events, and the ends of the arrows.

    Parameters
    ----------
    run : Run
    profiles : sequence of Profile
        Each of a rank of the run.
    path : Path
    """
    firsts = [trace.first_ns() for trace in run.traces.values()]
    firsts += [one.first_ns(run.traces[one.rank]) for one in profiles]
    origin = min((first for first in firsts if first is not None), default=0)
    flows = _Flows()
    lines = itertools.chain(
        *(_Rank(trace, origin, flows).lines() for trace in run.traces.values()),
        *(one.lines(run.traces[one.rank], origin, _PROFILER) for one in profiles),
        flows.lines(),
    )
    about = {
        "pypartial": __version__,
        "run": next(iter(run.traces.values())).run,
        "ranks": run.size,
        "missing_ranks": run.missing,
        "dropped_events": {rank: one.dropped for rank, one in run.traces.items()},
        "clock_error_us": {rank: one.error_ns / 1000 for rank, one in run.traces.items()},
        "unfinished_ranks": [rank for rank, one in run.traces.items() if not one.ended],
    }
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about})
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'{head[:-1]}, "traceEvents": [\n{next(lines)}')
        file.writelines(",\n" + line for line in lines)
        file.write("\n]}\n")


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


class _Rank:
    """What one rank did, as lines of JSON."""

    def __init__(self, trace: Trace, origin: int, flows: _Flows) -> None:
        self._trace, self._pid, self._origin, self._flows = trace, trace.rank, origin, flows
        self._lines: list[str] = []
        # What has begun: its time, thread and name. Keys: a handle, a round, a thread and depth.
        self._open: dict[tuple[int, ...], tuple[int, int, str]] = {}
        self._threads: set[int] = set()
        self._depths: defaultdict[int, int] = defaultdict(int)
        self._spanning: dict[int, int] = {}
        self._started: dict[int, int] = {}

    def lines(self) -> Iterator[str]:
        """Yield the lines; what never ended ends at the last event."""
        self._meta("process_name", 0, {"name": f"rank {self._pid} ({self._trace.host})"})
        self._meta("process_sort_index", 0, {"sort_index": self._pid})
        ns = 0
        for event in self._trace.events():
            ns = max(event[0] - self._origin, 0)
            self._draw(ns, *event[1:])
            yield from self._lines
            self._lines.clear()
        for key in reversed(list(self._open)):
            self._end(key, ns, '"unfinished":true')
        yield from self._lines

    def _meta(self, what: str, tid: int, args: dict[str, Any]) -> None:
        event = {"ph": "M", "name": what, "pid": self._pid, "tid": tid, "args": args}
        self._lines.append(json.dumps(event))

    def _event(self, more: str, tid: int, name: str, ns: int, args: str) -> None:
        """Add an event; its name is JSON, as `args` is."""
        where = f'"pid":{self._pid},"tid":{tid},"ts":{_us(ns)}'
        self._lines.append(f'{{"name":{name},{where},"ph":{more},"args":{{{args}}}}}')

    def _slice(self, tid: int, name: str, begin: int, end: int, args: str) -> None:
        self._event(f'"X","dur":{_us(max(end - begin, 0))}', tid, name, begin, args)

    def _begin(self, key: tuple[int, ...], ns: int, tid: int, thread: str, name: str) -> None:
        if tid not in self._threads:
            self._threads.add(tid)
            self._meta("thread_name", tid, {"name": thread})
        self._open[key] = ns, tid, name

    def _end(self, key: tuple[int, ...], ns: int, args: str = "") -> None:
        if key in self._open:
            begin, tid, name = self._open.pop(key)
            self._slice(tid, name, begin, ns, args)

    def _enter(self, ns: int, handle: int, name: str) -> None:
        self._end((handle,), ns)
        self._begin((handle,), ns, _HANDLES + handle, f"handle {handle}", name)

    def _push(self, ns: int, tid: int, thread: str, name: str) -> None:
        self._depths[tid] += 1
        self._begin((tid, -self._depths[tid]), ns, tid, thread, name)

    def _pop(self, ns: int, tid: int) -> None:
        if self._depths[tid]:
            self._end((tid, -self._depths[tid]), ns)
            self._depths[tid] -= 1

    def _draw(self, ns: int, number: int, key: int, handle: int, kind: int, *rest: int) -> None:
        cause, flags, a, b, c, d = rest
        if kind in (files.START, files.WAIT):
            self._enter(ns, handle, _WAIT if kind == files.WAIT else '"Start"')
            if kind == files.START:
                self._started[handle] = ns
        elif kind == files.GIVEN:
            late = flags & files.LATE
            args = f'"round":{number},"active":{a},"contributions":{b},"staleness":{c},'
            args += f'"cause":{_CAUSES.get(cause, cause)},"initiator":{d},"late":{late}'
            if self._open.get((handle,), ())[2:] != (_WAIT,):  # of a Test, or of a Flush
                self._enter(ns, handle, _WAIT)
            begin, tid, _ = self._open.pop((handle,))
            self._slice(tid, '"late"' if late else _WAIT, begin, ns, args)
            self._event('"C"', tid, f'"handle {handle}"', ns, f'"active":{a},"staleness":{c}')
            started = self._started.pop(handle, None)
            if d == self._pid and started is not None and not late:
                self._flows.starts[d, handle].extend((number, started))
            elif d >= 0 and flags & files.EXTERNAL and not late:
                # Viewers look for the slice that an arrow ends in, so it ends 1 ns before.
                self._flows.ends[d, handle].extend((number, max(begin, ns - 1), self._pid))
        elif kind in (files.CLAIM, files.ACTIVATE, files.JOIN):
            self._claim(ns, handle, number)
        elif kind == files.PUBLISH:
            args = f'"handle":{handle},"bytes":{key},"active":{a},"contributions":{b},'
            args += f'"contributors":{c},"cause":{_CAUSES.get(cause, cause)},"initiator":{d}'
            self._claim(ns, handle, number)  # of no length, where it has not begun here
            self._end((handle, number), ns, args)
        elif kind == files.CALL:
            self._push(ns, _CALLS, "collective calls", self._trace.name(a))
        elif kind == files.AWAKE:
            self._push(ns, _PROGRESS, "progress", '"awake"')
        elif kind == files.SPAN:
            tid = _SPANS + self._spanning.setdefault(b, len(self._spanning))
            self._push(ns, tid, f"spans of thread {b}", self._trace.name(a))
        elif kind == files.SPAN_END:
            self._pop(ns, _SPANS + self._spanning.get(b, -1))
        else:
            self._pop(ns, _CALLS if kind == files.CALL_END else _PROGRESS)

    def _claim(self, ns: int, handle: int, number: int) -> None:
        """Begin a round, in a row of its own while others last: slices of a thread only nest."""
        if (handle, number) in self._open:
            return
        rounds = [key for key in self._open if len(key) == 2 and key[1] >= 0]
        for key in rounds:
            if key[0] == handle and key[1] <= number - _ROUNDS_OPEN:
                self._end(key, 0, f'"handle":{handle}')  # of no length, too
        taken = {self._open[key][1] for key in rounds if key in self._open}
        tid = next(tid for tid in itertools.count(_ROUNDS) if tid not in taken)
        row = "rounds" if tid == _ROUNDS else f"rounds ({tid - _ROUNDS + 1})"
        self._begin((handle, number), ns, tid, row, f'"round {number}"')


class _Flows:
    """Arrows from the Start that triggered a round to the results of the other ranks."""

    def __init__(self) -> None:
        # By initiator and handle: rounds and times, and of results also the ranks.
        self.starts: defaultdict[tuple[int, int], array[int]] = defaultdict(lambda: array("q"))
        self.ends = self.starts.copy()

    def lines(self) -> Iterator[str]:
        """Yield the two ends of each arrow that has both."""
        numbers = itertools.count(1)
        for (rank, handle), found in self.ends.items():
            starts = np.array(self.starts[rank, handle], np.int64).reshape(-1, 2)
            starts = starts[np.argsort(starts[:, 0], kind="stable")]
            every, tid = np.frombuffer(found, np.int64).reshape(-1, 3), _HANDLES + handle
            for ends in np.array_split(every, 1 + len(every) // _BLOCK):
                places = np.searchsorted(starts[:, 0], ends[:, 0]).tolist()
                for place, (number, ended, other) in zip(places, ends.tolist(), strict=True):
                    if place == len(starts) or starts[place, 0] != number:
                        continue
                    same = f'"cat":"activation","name":"round","id":{next(numbers)},"tid":{tid}'
                    yield f'{{"ph":"s",{same},"pid":{rank},"ts":{_us(int(starts[place, 1]))}}}'
                    yield f'{{"ph":"f","bp":"e",{same},"pid":{other},"ts":{_us(ended)}}}'
