"""Scenarios: what many ranks do with one to three handles, and the log of what they were given.

A scenario is plain data; everything random in it follows from its seed, so it replays exactly:

    python tests/sim/scenario.py "Scenario(ranks=3, seed=7, ...)"

runs one, prints what every rank was given, and judges it. A failing test prints that line.

Every rank runs the phases one after the other. In a phase it makes its number of steps: each calls
every live handle once, always in the same order (Start and Wait of one after the other, or all
Starts, then all Waits). The phase ends with collective calls, the same on all ranks. At the end
all handles are flushed, unless the scenario says no, and freed.

Contribution `s` (counted from 1) of rank `r` is a vector of
- P counts: 1 in element r. The sum names who contributed how often;
- P numbers: s in element r. The sum names which contributions these were;
- a tail, that depends on r only, or with `noise`, on r and s, without exact sums.
With "max", the first part has s in element r.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from world import CoreError, Handle, Options, Round, World

from pypartial._core import ffi, lib

TESTS_BEFORE_GIVING_UP = 2000
LONGEST_PAUSE_NS = 10_000_000


@dataclass(frozen=True)
class Phase:
    """Steps of every rank, then collective calls of all."""

    steps: tuple[int, ...]  # of rank r: steps[r % len(steps)]
    then: tuple[str, ...] = ()  # "flush 0", "open 1", "free 0"
    hold: bool = False  # the last requests are collected after the collective calls, if at all


@dataclass(frozen=True)
class Scenario:
    """What all ranks do."""

    ranks: int
    seed: int
    handles: tuple[Options, ...]
    phases: tuple[Phase, ...]
    opened: int = 1  # so many handles exist from the beginning
    window: int = 4
    latency: tuple[int, int] = (500, 5000)
    timing: str = "uniform"  # of the work between calls: see Rank.work
    scale: int = 20_000  # ns
    together: bool = False  # all Starts of a step, then all Waits
    blocking: bool = True  # Wait; or Test with work in between
    late: float = 0.0  # share of collective calls from which the application returns late
    extra: float = 0.0  # share of steps before which there is a Wait without a Start
    ask: bool = False  # the engines are asked for their state at every Start
    last_flush: bool = True
    noise: bool = False
    quantum: int = 0


@dataclass
class Record:
    """One result that a rank was given."""

    kind: str  # "wait", "extra", "flush" or "drain"
    start: int  # number of the Start it belongs to; for a flush, the last one
    at: int | None  # rounds of the handle complete when the request was made, if known
    calls: int  # collective calls the rank had begun by then
    alone: bool  # the handle was the only one then
    result: Round


@dataclass
class Log:
    """One rank's life with one handle."""

    starts: int = 0
    records: list[Record] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)  # Waits with nothing to give
    flushed: int = 0
    discarded: int | None = None
    unfinished: bool = False  # freed while a request was outstanding
    fired: tuple[list[str], list[int]] | None = None  # of its last round: labels, how often


# ---- vectors ------------------------------------------------------------------------------------


def tail_weights(ranks: int, length: int) -> np.ndarray[Any, Any]:
    return (np.arange(ranks)[:, None] * 5 + np.arange(length)[None, :] * 3) % 17 + 1


def fill(vector: np.ndarray[Any, Any], scenario: Scenario, op: str, rank: int, start: int) -> None:
    """Write contribution number `start` of a rank."""
    ranks = scenario.ranks
    vector[:] = 0
    if len(vector) > 2 * ranks:
        vector[2 * ranks :] = tail_weights(ranks, len(vector) - 2 * ranks)[rank]
        if scenario.noise:
            noise = np.random.default_rng((scenario.seed, rank, start))
            vector[2 * ranks :] = noise.standard_normal(len(vector) - 2 * ranks)
    if len(vector) > rank:
        vector[rank] = 1 if op == "sum" else start
    if len(vector) > ranks + rank:
        vector[ranks + rank] = start


# ---- a rank -------------------------------------------------------------------------------------


class Rank:
    """The program of one rank."""

    def __init__(self, world: World, scenario: Scenario, rank: int, logs: list[Log]) -> None:
        self.world, self.scenario, self.rank, self.logs = world, scenario, rank, logs
        self.random = random.Random(f"{scenario.seed} {rank}")
        self.slow = scenario.seed % scenario.ranks == rank
        self.handles: dict[int, Handle] = {}
        self.requests: dict[int, Record] = {}  # made, and not collected
        self.calls = 0
        self.steps = 0

    def work(self) -> int | tuple[str, int]:
        """How long the rank computes before its next call."""
        s, draw = self.scenario, self.random
        if s.timing == "zero" or s.scale == 0:
            return 0
        if s.timing == "uniform":
            return draw.randrange(s.scale)
        if s.timing == "slow":
            return draw.randrange(s.scale) * (20 if self.slow else 1)
        if s.timing == "skew":
            return self.rank * s.scale // s.ranks + 1
        if s.timing == "ties":
            return ("at", (self.world.now // s.scale + 1) * s.scale)
        assert s.timing == "heavy", s.timing
        return int(s.scale * min(draw.paretovariate(1.1) - 1, 60.0))

    def completed(self, index: int) -> int | None:
        """Rounds of the handle that are complete here, where that can be known."""
        if len(self.scenario.handles) == 1:
            return int(self.world.stats(self.rank).rounds)
        if self.scenario.ask:
            return int(self.world.state(self.rank, self.handles[index]).completed)
        return None

    def request(self, kind: str, index: int) -> Any:
        return Record(
            kind,
            0 if kind == "extra" else self.logs[index].starts,
            self.completed(index),
            self.calls,
            len(self.handles) == 1,
            None,  # type: ignore[arg-type]
        )

    def given(self, index: int, record: Record, result: Round) -> None:
        record.result = result
        self.logs[index].records.append(record)

    # ---- what it calls

    def start(self, index: int) -> Generator[Any, Any, None]:
        log, handle = self.logs[index], self.handles[index]
        log.starts += 1
        handle.recv[:] = 99  # nor does anybody mind what was in there
        fill(handle.send, self.scenario, handle.options.op, self.rank, log.starts)
        self.requests[index] = self.request("wait", index)
        yield ("start", handle)
        handle.send[:] = 77  # the application may overwrite both at once
        handle.recv[:] = 78

    def collect(self, index: int) -> Generator[Any, Any, None]:
        handle = self.handles[index]
        if self.scenario.blocking:
            result = yield ("wait", handle)
        else:
            pause = max(100, self.scenario.scale // 8)
            for _ in range(TESTS_BEFORE_GIVING_UP):
                result = yield ("test", handle)
                if result is not None:
                    break
                yield self.random.randrange(pause)
                pause = min(pause + pause // 50, LONGEST_PAUSE_NS)  # or a long wait takes forever
            else:
                raise AssertionError(f"rank {self.rank}: Test never gives; {self.world.explain()}")
        self.given(index, self.requests.pop(index), result)

    def wait_without_start(self, index: int) -> Generator[Any, Any, None]:
        record = self.request("extra", index)
        try:
            result = yield ("wait", self.handles[index])
        except CoreError as error:
            assert error.status == lib.PP_ERR_STATE, error
            assert "nothing was started" in error.text
            if record.at is not None:
                self.logs[index].refused.append((len(self.logs[index].records), record.at))
            return
        self.given(index, record, result)

    def collective(self, *request: Any) -> Generator[Any, Any, Any]:
        self.calls += 1
        if self.random.random() < self.scenario.late:
            delay = self.random.randrange(5 * self.scenario.scale + 50_000)
            return (yield ("late", delay, request))
        return (yield request)

    def flush(self, index: int) -> Generator[Any, Any, None]:
        handle, kind = self.handles[index], "flush"
        if handle.options.deliver == "each":
            kind = "drain"
        while True:
            record = self.request(kind, index)
            self.requests.pop(index, None)
            result = yield from self.collective(kind, handle)
            record.calls = self.calls
            self.given(index, record, result)
            if result.cause == "flush":
                self.logs[index].flushed += 1
                return
            if kind == "flush":
                raise AssertionError(f"a Flush ended with {result}")
            if self.random.random() < 0.5:
                yield self.random.randrange(self.scenario.scale + 1)

    def free(self, index: int) -> Generator[Any, Any, None]:
        log = self.logs[index]
        log.unfinished = index in self.requests
        self.requests.pop(index, None)
        if self.rank == self.scenario.seed % self.scenario.ranks:
            log.fired = fired(self.handles[index])
        log.discarded = yield from self.collective("free", self.handles[index])
        del self.handles[index]

    def open(self, index: int) -> Generator[Any, Any, None]:
        self.handles[index] = yield from self.collective("init", self.scenario.handles[index])

    # ---- in which order

    def step(self, hold: bool) -> Generator[Any, Any, None]:
        order = sorted(self.handles)
        for index in [i for i in order if i in self.requests]:  # held over the collective calls
            yield from self.collect(index)
        for index in order:
            if self.random.random() < self.scenario.extra:
                yield from self.wait_without_start(index)
        yield self.work()
        for index in order:
            yield from self.start(index)
            if self.scenario.together or hold:
                if self.random.random() < 0.3:
                    yield self.random.randrange(2000)
            else:
                yield from self.collect(index)
        if self.scenario.together and not hold:
            for index in order:
                yield from self.collect(index)

    def program(self) -> Generator[Any, Any, None]:
        for index in range(self.scenario.opened):
            yield from self.open(index)
        for phase in self.scenario.phases:
            steps = phase.steps[self.rank % len(phase.steps)]
            for step in range(steps):
                yield from self.step(phase.hold and step == steps - 1)
            for action in phase.then:
                what, index = action.split()
                yield from getattr(self, what)(int(index))
        for index in sorted(self.handles):
            if self.scenario.last_flush:
                yield from self.flush(index)
        for index in sorted(self.handles):
            yield from self.free(index)
        yield from self.collective("ctx_free")


def fired(handle: Handle) -> tuple[list[str], list[int]] | None:
    """Labels of a handle's operations ("" for none), and how often each fired in its last round."""
    text = ffi.new("char **")
    assert lib.pp_coll_dump(handle.coll, lib.PP_GOAL, text) == lib.PP_OK
    dump = ffi.string(text[0]).decode()
    lib.pp_text_free(text[0])
    labels = re.findall(r'^  l\d+: .*?(?:"(\w+)")?$', dump, re.MULTILINE)
    counts = ffi.new("uint32_t[]", len(labels))
    round_, count = ffi.new("uint64_t *"), ffi.new("size_t *")
    if lib.pp_coll_fired(handle.coll, round_, counts, len(labels), count) != lib.PP_OK:
        return None
    assert count[0] == len(labels)
    return labels, list(counts)


# ---- all ranks ----------------------------------------------------------------------------------


def run(scenario: Scenario) -> list[list[Log]]:
    """Run all ranks to the end; return the logs by handle and rank."""
    world = World(
        scenario.ranks,
        seed=scenario.seed,
        latency=scenario.latency,
        window=scenario.window,
        quantum=scenario.quantum,
    )
    logs = [[Log() for _ in range(scenario.ranks)] for _ in scenario.handles]
    programs = [
        Rank(world, scenario, rank, [log[rank] for log in logs]).program()
        for rank in range(scenario.ranks)
    ]
    world.run(programs)
    sent = sum(world.stats(rank).messages_sent for rank in range(scenario.ranks))
    received = sum(world.stats(rank).messages_received for rank in range(scenario.ranks))
    assert world.quiet()
    assert sent == received, f"{sent} messages sent, {received} received"
    return logs


def show(logs: list[list[Log]]) -> None:
    for index, handle in enumerate(logs):
        for rank, log in enumerate(handle):
            print(f"handle {index}, rank {rank}: {log.starts} Starts, discarded {log.discarded}")
            for r in log.records:
                print(f"  {r.kind} of Start {r.start} at {r.at}, calls {r.calls}: {r.result}")


def main() -> None:
    import judge

    names = {"Scenario": Scenario, "Phase": Phase, "Options": Options}
    scenario = eval(sys.argv[1], names)
    logs = run(scenario)
    show(logs)
    judge.judge(scenario, logs)
    print("all oracles hold")


if __name__ == "__main__":
    main()
