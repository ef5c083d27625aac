"""Queues in scenarios: averages of a rank and its in-neighbours, replayed bit for bit.

Update `s` (counted from 1) of rank `r` has 1 in element r and s in element P + r, so an average
tells which updates are in it.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from support.queue_replay import Request, replay
from support.queues import MODES, PLANTS, Graph, table_1

from pypartial._names import PROTOCOL
from pypartial._queue_options import Mode
from pypartial.errors import ArgumentError
from pypartial.sim.queue_handle import QueueOptions
from pypartial.status import QueueResult

from .kind import Calls, Edges, Kind, connects, draw_graph, fail, first_left, plant

if TYPE_CHECKING:
    from pypartial.sim.world import Begun

    from .plan import Scenario
    from .scenario import Log, Outcome, Program

__all__ = ["QueueKind"]

_LONG = 6000  # elements: longer than what is summed up at once
_SIZES_MAX = 1 << 10  # of max_ig, staleness and skip: a ring has as many models
_MODE = [entry.name for entry in dataclasses.fields(Mode)]


@dataclass
class Asked(Request):
    """A request, and when it began and ended."""

    begun: int = 0
    ended: int = 0


def _mode(options: QueueOptions) -> Mode:
    return Mode(**{name: getattr(options, name) for name in _MODE})


class QueueKind(Kind):
    options, word, graph = QueueOptions, "queue_", "outs"
    dtypes = ("float64", "float32")
    waits_for_computing, averages_when_left = True, True
    coverage: ClassVar = {
        "exact": "queues that average the updates of one iteration",
        "by_graph": "updates weighted by the graph",
        "backup": "an average without an in-neighbour's update",
        "old": "an average with an old update",
        "skipped": "iterations that were skipped",
        "bounded": "queues without tokens",
        "ahead": "a rank more than one iteration ahead of another",
        "queue_left": "an average after a rank has left",
        "queue_stays": "an average before any rank has left",
        "two_queues": "two handles with queues",
        "queue_mixed": "queues beside handles of other kinds",
    }
    plants: ClassVar = {
        "unchecked-tag": plant("UNCHECKED_TAG"),
        **{name: {"queues_plant": PLANTS[name]} for name in ("lost-token", "twice", "fresh-only")},
    }

    def draw(self, draw: random.Random, ranks: int, node: bool) -> QueueOptions:
        edges = draw_graph(draw, ranks)
        least = min((len(ends) for ends in edges), default=0)
        mode = MODES[draw.choice(tuple(MODES))]
        if mode.protocol == "tokens" and draw.random() < 0.5:
            mode = replace(mode, max_ig=draw.choice((1, 2, 4)), skip_trigger=0)
        if mode.backup and least < 2:
            mode = Mode(max_ig=mode.max_ig)
        long = draw.random() < 0.05
        options = QueueOptions(
            outs=edges,
            count=draw.choice((2 * ranks, 2 * ranks + 3, 3 * ranks)) if not long else _LONG,
            dtype=draw.choice(self.dtypes),
            pieces=draw.choice((1, 1, 2)),
            fenced=draw.random() < 0.1,
            **dataclasses.asdict(mode),
        )
        return self.on(options, edges)

    def on(self, options: QueueOptions, edges: Edges) -> QueueOptions:
        return replace(options, outs=edges, back=max(Graph(edges).back, 1))

    def complaint(self, options: QueueOptions, scenario: Scenario) -> str | None:
        complaint = super().complaint(options, scenario)
        if complaint is not None:
            return complaint
        if not connects(options.outs) or self.on(options, options.outs) != options:
            return f"{options.outs} is not connected, or has another way back than {options.back}"
        if options.count < 2 * scenario.ranks:
            return f"count={options.count}: an update of {scenario.ranks} ranks names itself"
        if options.plant or options.protocol not in PROTOCOL:
            return f"a scenario cannot have {options}"
        for name in ("max_ig", "staleness", "skip"):
            if (getattr(options, name) or 0) > _SIZES_MAX:
                return f"{name}={getattr(options, name)} is above {_SIZES_MAX}"
        if options.backup and options.backup >= min(map(len, options.outs)):
            return f"backup={options.backup} is not below the number of neighbours"
        try:
            _mode(options)
        except ArgumentError as error:
            return str(error)
        every = not options.backup and options.staleness is None
        if every and scenario.steps_aside() and scenario.is_uneven():
            return "queues that average every update wait as MPI does"
        return None

    def simpler(self, options: QueueOptions) -> Iterator[QueueOptions]:
        least = 2 * len(options.outs)
        if options.count != least:
            yield replace(options, count=least)
        yield from super().simpler(options)

    # ---- what programs do

    def first(self, program: Program, index: int) -> Any:
        program.logs[index].own = []
        return program.rank

    def start(self, program: Program, index: int, again: bool = False) -> Calls:
        if again:
            return
        log, handle, scenario = program.logs[index], program.handles[index], program.scenario
        program.unwritten(index)
        log.starts += 1
        handle.recv[:] = np.random.default_rng(
            (scenario.seed, program.rank, index, log.starts)
        ).standard_normal(handle.options.count)
        handle.recv[: 2 * scenario.ranks] = 0
        handle.recv[program.rank] = 1
        handle.recv[scenario.ranks + program.rank] = log.starts
        log.own.append(Asked(handle.recv.copy(), log.iteration, begun=program.world.now))
        yield ("queue_start", handle)

    def given(self, program: Program, index: int, result: tuple[QueueResult, bytes]) -> None:
        log, found = program.logs[index], result[0]
        asked = log.own[-1]
        asked.result, asked.data = result
        asked.ended = program.world.now
        known = all(one.data for one in log.own[-2:])  # else a flush has ended the one before
        least = log.iteration + 1 + found.skipped
        if found.iteration < least or (known and found.iteration != least):
            fail(f"rank {program.rank} has not entered iteration {least}", found)
        log.iteration = found.iteration
        log.groups.append(found)

    def flushed(self, program: Program, index: int, result: Any, held: bool) -> None:
        """Do nothing: what is dropped stays without data."""

    def freed(self, program: Program, index: int, held: bool) -> None:
        """Do nothing, as a flush does."""

    # ---- how it is judged

    def judge(
        self, scenario: Scenario, index: int, logs: Sequence[Log], begun: Sequence[Begun]
    ) -> None:
        options, left = scenario.handles[index], first_left(logs)
        newest = max((log.iteration for log in logs), default=0)
        for asked in (asked for log in logs for asked in log.own if asked.result is None):
            # Dropped: others may have averaged it as of any iteration.
            asked.result = QueueResult(newest + 1, 0, 0, 0, 0, 0)
        for rank, log in enumerate(logs):
            asked = [asked for asked in log.own if asked.data]
            named = functools.partial(self._named, options, rank, [log.own for log in logs])
            try:
                replay(asked, named, options.staleness, lambda a: a.ended >= left, options.weight)
            except AssertionError as error:
                raise AssertionError(f"rank {rank}: {error}") from error
        self._gaps(options, [log.own for log in logs], left)

    def _named(
        self, options: QueueOptions, rank: int, logs: Sequence[Sequence[Asked]], asked: Asked
    ) -> Sequence[Sequence[Asked]]:
        """Return the updates that may be in an average, by in-neighbour: those that it names."""
        ranks, model = len(options.outs), np.frombuffer(asked.data, options.dtype)
        found = []
        for sender in options.ins(rank):
            share = float(model[sender])
            number = round(float(model[ranks + sender]) / share) if share else 0
            found.append(logs[sender][max(number - 1, 0) : number])
        return found

    def _gaps(self, options: QueueOptions, logs: Sequence[Sequence[Asked]], left: float) -> None:
        """Check Table 1 until a rank leaves. A rank that waits may have entered the next one."""
        if options.skip is not None:  # counted from when a rank decides, which nobody hears
            return
        table = table_1(Graph(options.outs), _mode(options))
        for rank, log in enumerate(logs):
            for asked in log:
                for other, most in enumerate(table[rank] if asked.ended < left else ()):
                    ahead = asked.result.iteration - self._may_be_in(logs[other], asked.ended)
                    if asked.data and ahead > most:
                        fail(
                            f"Table 1: rank {rank} is {ahead} ahead of {other}", asked.result, most
                        )

    def _may_be_in(self, log: Sequence[Asked], time: int) -> int:
        return max((1 + one.first for one in log if one.begun <= time), default=0)

    def occurred(self, scenario: Scenario, index: int, outcome: Outcome) -> dict[str, bool]:
        options, logs = scenario.handles[index], outcome.logs[index]
        left = first_left(logs)
        asked = [asked for log in logs for asked in log.own if asked.data]
        results, several = [one.result for one in asked], scenario.ranks > 1
        least = min(map(len, options.outs))
        queues = sum(isinstance(other, QueueOptions) for other in scenario.handles)
        return {
            "exact": several and options.staleness is None,
            "by_graph": several and options.weighted,
            "backup": any(one.received < least for one in results),
            "old": any(one.staleness > 0 for one in results),
            "skipped": any(one.skipped > 0 for one in results),
            "bounded": several and options.protocol != "tokens",
            "ahead": any(one.gap > 1 for one in results),
            "queue_left": any(one.ended >= left for one in asked),
            "queue_stays": several and any(one.ended < left for one in asked),
            "two_queues": queues > 1,
            "queue_mixed": queues < len(scenario.handles),
        }
