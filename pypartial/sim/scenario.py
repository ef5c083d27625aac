"""Scenarios: what many ranks do with one to three handles, and the log of what they were given.

A scenario is plain data; everything random in it follows from its seed, so it replays exactly. As
one line of text (`Scenario.to_text`) it is what ``pypartial sim fuzz --replay`` takes.

Every rank runs the phases one after the other. In a phase it makes its number of steps: each calls
every live handle once, always in the same order (Start and Wait of one after the other, or all
Starts, then all Waits). The phase ends with collective calls, the same on all ranks. At the end
all handles are flushed, unless the scenario says no, and freed.

Contribution `s` (counted from 1) of rank `r` is a vector of

- P counts: 1 in element r. The sum names who contributed how often;
- P numbers: s in element r. The sum names which contributions these were;
- a tail, that depends on r only, or with `noise`, on r and s, without exact sums.

With "max", the first part has s in element r. A vector that is too short for this is cut off.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._core_sim import ffi, lib
from .._names import AVERAGE, DELIVER, TYPE
from ..errors import ArgumentError
from ..policy import Policy
from .handle import ALGORITHMS, CoreError, Handle, Options, Round
from .network import parse_network
from .world import World

__all__ = ["Log", "Outcome", "Phase", "Record", "Scenario", "TIMINGS", "run", "tail_weights"]

TIMINGS = ("uniform", "slow", "skew", "ties", "zero", "heavy")

_TESTS_BEFORE_GIVING_UP = 2000
_LONGEST_PAUSE_NS = 10_000_000
_RANKS_MAX, _WINDOW_MAX, _COUNT_MAX, _TIME_MAX = 1 << 16, 1 << 12, 1 << 24, 1 << 50
_STEPS_MAX = 1_000_000  # as of `sim skew`
_MAGNIFY_MAX = 1 << 16  # a chunk of 64 KiB is one byte then
_ACTION = re.compile(r"(flush|open|free) (\d+)")


# ---- what is to happen ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """Steps of every rank, then collective calls of all.

    Attributes
    ----------
    steps : tuple of int
        Rank r makes ``steps[r % len(steps)]``.
    then : tuple of str
        Collective calls: "flush 0", "open 1", "free 0".
    hold : bool
        The last requests are collected after the collective calls, if at all.
    """

    steps: tuple[int, ...]
    then: tuple[str, ...] = ()
    hold: bool = False


@dataclass(frozen=True)
class Scenario:
    """What all ranks do.

    Attributes
    ----------
    ranks, seed : int
        Number of ranks; the seed of everything random, in the programs and in the network.
    handles : tuple of Options
        The first `opened` of them exist from the beginning, the others when a phase opens them.
    phases : tuple of Phase
    opened : int
    window : int
        Rounds of a handle that may be in flight.
    latency : tuple of int
        Shortest and longest time of a message, in nanoseconds; without a `network`.
    network : str
        As `parse_network` reads it; "" for none.
    timing : str
        One of `TIMINGS`: how long ranks work between their calls; `scale` in nanoseconds.
    scale : int
    together : bool
        All Starts of a step, then all Waits; else Start and Wait of one handle after the other.
        Several handles with a phase that holds need it: to change from one to the other is outside
        the patterns that never deadlock.
    blocking : bool
        Wait; or Test with work in between.
    late : float
        Share of collective calls from which the application returns late.
    extra : float
        Share of steps before which there is a Wait without a Start.
    ask : bool
        The engines are asked for their state at every Start.
    last_flush : bool
        All handles are flushed before they are freed at the end.
    noise : bool
        The vectors' tails have no exact sums.
    memory : tuple of int
        The ranks share memory and make their rounds in it, interrupted at so many of a thousand
        accesses to it, for up to so many nanoseconds. A third number: each so many ranks are on
        one node; without it, all are. A fourth: which those are, 0 for consecutive ones, 1 with
        the smallest node first, 2 dealt out in turn. Empty: they share none.
    magnify : int
        In that memory a vector counts as so many times as large as it is: rounds of large vectors
        wait for ranks that come a little later, and are cut into more chunks.
    """

    ranks: int
    seed: int
    handles: tuple[Options, ...]
    phases: tuple[Phase, ...]
    opened: int = 1
    window: int = 4
    latency: tuple[int, int] = (500, 5000)
    network: str = ""
    timing: str = "uniform"
    scale: int = 20_000
    together: bool = False
    blocking: bool = True
    late: float = 0.0
    extra: float = 0.0
    ask: bool = False
    last_flush: bool = True
    noise: bool = False
    memory: tuple[int, ...] = ()
    magnify: int = 1

    def to_text(self) -> str:
        """Return the scenario as one line of JSON, without what is as by default."""
        return json.dumps(_plain(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Scenario:
        """Read what `to_text` wrote.

        Raises
        ------
        ValueError
            What is wrong with the text.
        """
        try:
            found = json.loads(text)
            scenario: Scenario = _read(cls, found, "the scenario")
        except json.JSONDecodeError as error:
            raise ValueError(f"not a scenario: {error}") from None
        except RecursionError:
            raise ValueError("not a scenario: it is nested too deeply") from None
        complaint = scenario.complaint()
        if complaint is not None:
            raise ValueError(f"not a scenario: {complaint}")
        return scenario

    def complaint(self) -> str | None:
        """Return why the scenario cannot be run; None if it can.

        Options that the core itself refuses are not looked for here.
        """
        if not 1 <= self.opened <= len(self.handles):
            return f"{self.opened} of {len(self.handles)} handles are opened at the beginning"
        for name, value, least, most in (
            ("ranks", self.ranks, 1, _RANKS_MAX),
            ("seed", self.seed, 0, 2**64 - 1 - _RANKS_MAX),
            ("window", self.window, 1, _WINDOW_MAX),
            ("scale", self.scale, 0, _TIME_MAX),
            ("late", self.late, 0, 1),
            ("extra", self.extra, 0, 1),
            ("magnify", self.magnify, 1, _MAGNIFY_MAX),
        ):
            if not least <= value <= most:  # nor is NaN
                return f"{name}={value} is not in {least}..{most}"
        if self.memory and (
            len(self.memory) not in (2, 3, 4)
            or not 0 <= self.memory[0] <= 1000
            or not 0 <= self.memory[1] <= _TIME_MAX
            or not all(1 <= ranks <= self.ranks for ranks in self.memory[2:3])
            or not all(0 <= layout < lib.PP_LAYOUT_COUNT for layout in self.memory[3:])
            or self.ask
        ):
            return f"memory {self.memory}" + (", and questions" if self.ask else "")
        if len(self.latency) != 2 or not 0 <= self.latency[0] <= self.latency[1] <= _TIME_MAX:
            return f"a latency of {self.latency}"
        if self.network:
            try:
                parse_network(self.network)
            except ValueError as error:
                return str(error)
        if self.timing not in TIMINGS:
            return f"the timing {self.timing!r} is none of {', '.join(TIMINGS)}"
        return self._handles_complaint() or self._phases_complaint()

    def _handles_complaint(self) -> str | None:
        for options in self.handles:
            for word, known in (
                (options.dtype, TYPE),
                (options.op, ("sum", "max")),
                (options.deliver, DELIVER),
                (options.average, AVERAGE),
                (options.algorithm, ALGORITHMS),
            ):
                if word not in known:
                    return f"{word!r} is none of {', '.join(map(str, known))}"
            for name, value, least, most in (
                ("count", options.count, 0, _COUNT_MAX),
                ("pieces", options.pieces, 1, _COUNT_MAX),
                ("max_lag", options.max_lag, -1, self.window - 1),
                ("segments", options.segments, 0, lib.PP_LANES_MAX),
            ):
                if not least <= value <= most:
                    return f"{name}={value} is not in {least}..{most}"
            try:
                options.policy.trigger(self.ranks)
            except ArgumentError as error:
                return f"the policy {options.policy}: {error}"
            if options.raw:
                return f"a scenario cannot have {options}"
        return None

    def _phases_complaint(self) -> str | None:
        live = set(range(self.opened))
        for phase in self.phases:
            if not phase.steps:
                return "a phase with the steps ()"
            for steps in phase.steps:
                if not 0 <= steps <= _STEPS_MAX:
                    return f"a phase with the steps {steps}, not in 0..{_STEPS_MAX}"
            for action in phase.then:
                found = _ACTION.fullmatch(action)
                if found is None:
                    return f"{action!r} is no collective call"
                what, index = found[1], int(found[2])
                if index >= len(self.handles) or (what == "open") == (index in live):
                    return f"{action!r} is not possible there"
                if what == "open":
                    live.add(index)
                elif what == "free":
                    live.remove(index)
        return None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; of a dataclass, a dict of what is not as by default."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Policy):
        return str(value)
    if not dataclasses.is_dataclass(value):
        return value
    entries = ((entry, getattr(value, entry.name)) for entry in dataclasses.fields(value))
    return {entry.name: _plain(item) for entry, item in entries if item != entry.default}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _read(kind: Any, found: Any, where: str) -> Any:
    """Make a dataclass of a dict; types are compared with those of the defaults."""
    if not isinstance(found, dict):
        raise ValueError(f"not a scenario: {where} is no object")
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}
    unknown = sorted(set(found) - set(fields))
    if unknown:
        raise ValueError(f"not a scenario: {where} has no {unknown[0]!r}")
    values: dict[str, Any] = {}
    for name, value in found.items():
        inner = {"handles": Options, "phases": Phase}.get(name)
        if inner is not None and isinstance(value, list):
            values[name] = tuple(_read(inner, item, f"one of the {name}") for item in value)
        elif fields[name].type == "Policy":
            values[name] = _policy(value)
        else:
            values[name] = _tuple(value)
        if not _fits(values[name], str(fields[name].type)):
            raise ValueError(f"not a scenario: {where} has {name} {value!r:.60}")
    missing = [n for n, e in fields.items() if e.default is dataclasses.MISSING and n not in found]
    if missing:
        raise ValueError(f"not a scenario: {where} lacks {missing[0]!r}")
    return kind(**values)


def _policy(text: Any) -> Policy:
    """Read a policy as `Policy.parse` does."""
    try:
        return Policy.parse(str(text))
    except ArgumentError as error:
        raise ValueError(f"not a scenario: {error}") from None


def _fits(value: Any, annotation: str) -> bool:
    """Whether a value is what the annotation of a field says."""
    if annotation.startswith("tuple["):
        item = annotation.removeprefix("tuple[").removesuffix("]").split(",")[0]
        return isinstance(value, tuple) and all(_fits(v, item) for v in value)
    if annotation == "Policy":
        return isinstance(value, Policy)
    if annotation == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation == "str | None":
        return value is None or isinstance(value, str)
    return type(value).__name__ == annotation


# ---- what happened -------------------------------------------------------------------------------


@dataclass(slots=True)
class Record:
    """One result that a rank was given.

    Attributes
    ----------
    kind : str
        "wait", "extra" (a Wait without a Start), "flush" or "drain".
    start : int
        Number of the Start it belongs to; for a flush, the last one.
    at : int or None
        Rounds of the handle complete when the request was made, if known.
    calls : int
        Collective calls that the rank had begun by then.
    alone : bool
        The handle was the only one then.
    result : Round
    begun, ended : int
        Virtual times: the request was made, and what it gave was collected.
    """

    kind: str
    start: int
    at: int | None
    calls: int
    alone: bool
    result: Round
    begun: int
    ended: int = 0


@dataclass(slots=True)
class Log:
    """One rank's life with one handle.

    Attributes
    ----------
    starts : int
    records : list of Record
        In the order in which they were given.
    refused : list of tuple
        Waits with nothing to give: how many records there were, how many rounds were complete.
    flushed : int
        Flushes that ended.
    discarded : int or None
        What Free said; None without one.
    unfinished : bool
        Freed while a request was outstanding.
    fired : tuple or None
        Of the last round at one of the ranks: the operations' labels, and how often each fired.
    away : list of tuple
        When the rank was in collective calls, of any handle, but for those that open handles: from
        when to when, at most.
    """

    starts: int = 0
    records: list[Record] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)
    flushed: int = 0
    discarded: int | None = None
    unfinished: bool = False
    fired: tuple[list[str], list[int]] | None = None
    away: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Outcome:
    """What came of a scenario.

    Attributes
    ----------
    logs : list of list of Log
        By handle and rank.
    rounds : int
        Rounds of all handles.
    coverage : dict
        How often the interleavings occurred that are hard to get right, see `World.coverage`.
    """

    logs: list[list[Log]]
    rounds: int
    coverage: dict[str, int]

    def most_missed(self) -> int:
        """Return the most rounds that a rank missed between two of its requests."""
        return max(
            (r.result.missed for logs in self.logs for log in logs for r in log.records), default=0
        )


# ---- vectors -------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def tail_weights(ranks: int, length: int) -> np.ndarray[Any, Any]:
    """Return what the ranks (rows) have in the elements (columns) of their vectors' tails."""
    weights = (np.arange(ranks)[:, None] * 5 + np.arange(length)[None, :] * 3) % 17 + 1
    weights.flags.writeable = False
    return weights


def _template(ranks: int, rank: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return what all contributions of a rank have in common."""
    vector = np.zeros_like(like)
    if len(vector) > 2 * ranks:
        vector[2 * ranks :] = tail_weights(ranks, len(vector) - 2 * ranks)[rank]
    return vector


# ---- a rank --------------------------------------------------------------------------------------


class _Rank:
    """The program of one rank."""

    def __init__(self, world: World, scenario: Scenario, rank: int, logs: list[Log]) -> None:
        self.world, self.scenario, self.rank, self.logs = world, scenario, rank, logs
        self.random = random.Random(scenario.seed << 20 | rank)
        self.slow = scenario.seed % scenario.ranks == rank
        self.handles: dict[int, Handle] = {}
        self.templates: dict[int, np.ndarray[Any, Any]] = {}
        self.requests: dict[int, Record] = {}  # made, and not collected
        self.calls = 0

    def work(self) -> int | tuple[str, int]:
        """How long the rank computes before its next call."""
        s, draw = self.scenario, self.random
        if s.timing == "zero" or s.scale == 0:
            return 0
        if s.timing == "uniform":
            return int(draw.random() * s.scale)
        if s.timing == "slow":
            return int(draw.random() * s.scale) * (20 if self.slow else 1)
        if s.timing == "skew":
            return self.rank * s.scale // s.ranks + 1
        if s.timing == "ties":
            return ("at", (self.world.now // s.scale + 1) * s.scale)
        assert s.timing == "heavy", s.timing
        return int(s.scale * min(draw.paretovariate(1.1) - 1, 60.0))

    def completed(self, index: int) -> int | None:
        """Rounds of the handle that are complete here, where that can be known."""
        if self.scenario.memory:
            return None  # others go on while we ask: see `requested`
        if len(self.scenario.handles) == 1:
            return int(self.world.stats(self.rank).rounds)
        if self.scenario.ask:
            return int(self.world.state(self.rank, self.handles[index]).completed)
        return None

    def request(self, kind: str, index: int) -> Record:
        return Record(
            kind,
            0 if kind == "extra" else self.logs[index].starts,
            self.completed(index),
            self.calls,
            len(self.handles) == 1,
            None,  # type: ignore[arg-type]  # until it is given
            self.world.now,
        )

    def requested(self, index: int, record: Record) -> None:
        """Write down at which moment of its call a request was made, if others went on in it."""
        if self.scenario.memory:
            record.at = int(lib.pp_sim_requested_at(self.handles[index].coll))

    def given(self, index: int, record: Record, result: Round) -> None:
        record.result = result
        record.ended = self.world.now
        self.logs[index].records.append(record)

    def fill(self, index: int, handle: Handle, start: int) -> None:
        """Write contribution number `start`."""
        vector, scenario = handle.send, self.scenario
        vector[:] = self.templates[index]
        length, ranks = len(vector), scenario.ranks
        if scenario.noise and length > 2 * ranks:
            noise = np.random.default_rng((scenario.seed, self.rank, start))
            vector[2 * ranks :] = noise.standard_normal(length - 2 * ranks)
        if length > self.rank:
            vector[self.rank] = 1 if handle.options.op == "sum" else start
        if length > ranks + self.rank:
            vector[ranks + self.rank] = start

    # ---- what it calls

    def start(self, index: int) -> Generator[Any, Any, None]:
        log, handle = self.logs[index], self.handles[index]
        log.starts += 1
        handle.recv.fill(99)  # nor does anybody mind what was in there
        self.fill(index, handle, log.starts)
        self.requests[index] = self.request("wait", index)
        yield ("start", handle)
        self.requested(index, self.requests[index])
        handle.send.fill(77)  # the application may overwrite both at once
        handle.recv.fill(78)

    def collect(self, index: int) -> Generator[Any, Any, None]:
        handle = self.handles[index]
        if self.scenario.blocking:
            result = yield ("wait", handle)
        else:
            pause = max(100, self.scenario.scale // 8)
            for _ in range(_TESTS_BEFORE_GIVING_UP):
                result = yield ("test", handle)
                if result is not None:
                    break
                yield int(self.random.random() * pause)
                pause = min(pause + pause // 2, _LONGEST_PAUSE_NS)  # or a long wait takes forever
            else:
                since = self.world.now  # if nothing can come, the world says what is waited for
                result = yield ("wait", handle)
                assert self.world.now > since, f"rank {self.rank}: Wait gives what Test did not"
        self.given(index, self.requests.pop(index), result)

    def wait_without_start(self, index: int) -> Generator[Any, Any, None]:
        record = self.request("extra", index)
        try:
            result = yield ("wait", self.handles[index])
        except CoreError as error:
            assert error.status == lib.PP_ERR_STATE, error
            assert "nothing was started" in error.text, error
            self.requested(index, record)
            if record.at is not None:
                self.logs[index].refused.append((len(self.logs[index].records), record.at))
            return
        self.requested(index, record)
        self.given(index, record, result)

    def collective(self, *request: Any) -> Generator[Any, Any, Any]:
        self.calls += 1
        begun = self.world.now
        if self.random.random() < self.scenario.late:
            delay = self.random.randrange(5 * self.scenario.scale + 50_000)
            result = yield ("late", delay, request)
        else:
            result = yield request
        if request[0] != "init":
            for log in self.logs:
                log.away.append((begun, self.world.now))
        return result

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
            log.fired = _fired(self.handles[index])
        log.discarded = yield from self.collective("free", self.handles[index])
        del self.handles[index]

    def open(self, index: int) -> Generator[Any, Any, None]:
        handle = yield from self.collective("init", self.scenario.handles[index])
        self.handles[index] = handle
        self.templates[index] = _template(self.scenario.ranks, self.rank, handle.send)

    # ---- in which order

    def step(self, hold: bool) -> Generator[Any, Any, None]:
        order, scenario = sorted(self.handles), self.scenario
        for index in [i for i in order if i in self.requests]:  # held over the collective calls
            yield from self.collect(index)
        if scenario.extra:
            for index in order:
                if self.random.random() < scenario.extra:
                    yield from self.wait_without_start(index)
        yield self.work()
        for index in order:
            yield from self.start(index)
            if scenario.together or hold:
                if self.random.random() < 0.3:
                    yield self.random.randrange(2000)
            else:
                yield from self.collect(index)
        if scenario.together and not hold:
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
                what, number = action.split()
                yield from getattr(self, what)(int(number))
        for index in sorted(self.handles):
            if self.scenario.last_flush:
                yield from self.flush(index)
        for index in sorted(self.handles):
            yield from self.free(index)
        yield from self.collective("ctx_free")


def _fired(handle: Handle) -> tuple[list[str], list[int]] | None:
    """Labels of a handle's operations ("" for none), and how often each fired in its last round."""
    text = ffi.new("char **")
    assert lib.pp_handle_dump(handle.coll, lib.PP_GOAL, text) == lib.PP_OK
    dump = ffi.string(text[0]).decode()
    lib.pp_text_free(text[0])
    labels = re.findall(r'^  l\d+: .*?(?:"(\w+)")?$', dump, re.MULTILINE)
    counts = ffi.new("uint32_t[]", len(labels))
    round_, count = ffi.new("uint64_t *"), ffi.new("size_t *")
    if lib.pp_handle_fired(handle.coll, round_, counts, len(labels), count) != lib.PP_OK:
        return None
    assert count[0] == len(labels)
    return labels, list(counts)


# ---- all ranks -----------------------------------------------------------------------------------


def run(scenario: Scenario, *, plant: int = 0) -> Outcome:
    """Run all ranks to the end.

    Parameters
    ----------
    scenario : Scenario
    plant : int
        A defect to put into the engine (``lib.PP_PLANT_...``), to see that it is found.

    Raises
    ------
    Deadlock
        Ranks wait and nothing is under way; the message says which operations wait, and for whom.
    CoreError
        A call failed that must not.
    AssertionError
        Messages were lost, or a call gave what it must not.
    """
    world = World(
        scenario.ranks,
        seed=scenario.seed,
        network=parse_network(scenario.network) if scenario.network else None,
        latency=scenario.latency,
        window=scenario.window,
        plant=plant,
        memory=scenario.memory,
        magnify=scenario.magnify,
    )
    ranks = range(scenario.ranks)
    logs = [[Log() for _ in ranks] for _ in scenario.handles]
    world.run([_Rank(world, scenario, r, [log[r] for log in logs]).program() for r in ranks])
    sent = received = rounds = 0
    for rank in ranks:
        stats = world.stats(rank)
        sent, received, rounds = (
            sent + stats.messages_sent,
            received + stats.messages_received,
            max(rounds, stats.rounds),
        )
    assert world.quiet(), "messages are under way after the end"
    assert sent == received, f"{sent} messages sent, {received} received"
    coverage = world.coverage() | {"turns": world.turns()}
    return Outcome(logs, rounds, coverage)
