"""Running scenarios: the ranks' programs, and the logs of the results they were given.

`Scenario` says what the programs do. At the end all handles are flushed, unless the scenario says
no, and freed.

Contribution `s` (counted from 1) of rank `r` is a vector of

- P counts: 1 in element r. The sum tells how often each rank contributed;
- P numbers: s in element r. The sum tells which contributions these were;
- a tail that depends on r only, or, with `noise`, on r and s, without exact sums.

With "max", the first part has s in element r. A vector that is too short for all this is cut off.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pypartial._core_sim import ffi, lib
from pypartial.sim.allreduce_handle import Handle, Options, Round
from pypartial.sim.handle import CoreError
from pypartial.sim.network import parse_network
from pypartial.sim.preduce_handle import PreduceOptions
from pypartial.sim.world import NOTHING_UNDER_WAY, Begun, World

from .group_program import GroupCalls, initial_model
from .kind import Kind
from .kinds import KINDS
from .plan import TIMINGS, Phase, Scenario
from .replay import Asked

__all__ = [
    "Log",
    "Outcome",
    "Phase",
    "Program",
    "Record",
    "Scenario",
    "TIMINGS",
    "run",
    "tail_weights",
]

# A rank that polls pauses for up to a twentieth of the time that it has waited: even a patience of
# 30 s, or several, take few Tests then. After so many Tests it has waited for hours.
_TESTS_BEFORE_GIVING_UP = 500
_PAUSES = 20
_LONGEST_PAUSE_NS = 10_000_000  # until then

_OVERWRITTEN = 77  # the application's elements of the send buffer after a Start


# ---- logs ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Record:
    """One result that a rank was given.

    Attributes
    ----------
    kind : str
        "wait", "extra" (a Wait without a Start), "more", "flush" or "drain".
    start : int
        Number of the Start that it belongs to; for a flush, the last Start.
    at : int or None
        How many rounds of the handle were complete when the request was made, if known.
    calls : int
        Collective calls that the rank had begun by then.
    alone : bool
        Whether the handle was the only one then.
    result : Round
    begun, ended : int
        Virtual times at which the request was made, and its result collected.
    added : tuple of int
        Numbers of the Starts that, after a timeout, added to what was pending.
    """

    kind: str
    start: int
    at: int | None
    calls: int
    alone: bool
    result: Round
    begun: int
    ended: int = 0
    added: tuple[int, ...] = ()


@dataclass(slots=True)
class Log:
    """One rank's life with one handle.

    Attributes
    ----------
    starts : int
    records : list of Record
        In the order in which the rank was given them.
    refused : list of tuple
        For each Wait with nothing to deliver: the number of records, and of complete rounds, then.
    flushed : int
        Number of flushes that ended.
    discarded : int or None
        The result of Free; None without one.
    unfinished : bool
        Whether the handle was freed while a request was outstanding.
    fired : tuple or None
        The labels of the last round's operations on one of the ranks, and how often each fired.
    away : list of tuple
        The longest spans of time in which the rank was in collective calls of any handle, except
        those that open handles at the beginning.
    started : list of int
        The time of each Start.
    timeouts : int
        Waits that ended without a result.
    asked : list of Asked
        The requests and flushes of a handle of P-Reduce, which has no records.
    groups : list
        What these gave, those that were not dropped; also for a handle of `KINDS`.
    iteration : int
        The last iteration of a handle of P-Reduce, or of queues, as the core counts.
    own : object
        What one of `KINDS` keeps.
    """

    starts: int = 0
    records: list[Record] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)
    flushed: int = 0
    discarded: int | None = None
    unfinished: bool = False
    fired: tuple[list[str], list[int]] | None = None
    away: list[tuple[int, int]] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    timeouts: int = 0
    asked: list[Asked] = field(default_factory=list)
    groups: list[Any] = field(default_factory=list)
    iteration: int = 0
    own: Any = None


@dataclass
class Outcome:
    """The results of running a scenario.

    Attributes
    ----------
    logs : list of list of Log
        By handle and rank.
    rounds : int
        Rounds of all handles.
    coverage : dict
        How often each interleaving occurred that is hard to get right: see `World.coverage`.
    begun : list of list of Begun
        By handle: the groups that have begun, in this order, and flushes.
    """

    logs: list[list[Log]]
    rounds: int
    coverage: dict[str, int]
    begun: list[list[Begun]] = field(default_factory=list)

    def count(self, kind: str) -> int:
        """Return how many records are of this kind."""
        records = (r for logs in self.logs for log in logs for r in log.records)
        return sum(record.kind == kind for record in records)

    def timeouts(self) -> int:
        """Return how many Waits ended without a result."""
        return sum(log.timeouts for logs in self.logs for log in logs)

    def most_missed(self) -> int:
        """Return the most rounds that a rank missed between two of its requests."""
        return max(
            (r.result.missed for logs in self.logs for log in logs for r in log.records), default=0
        )


# ---- vectors -------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def tail_weights(ranks: int, length: int) -> np.ndarray[Any, Any]:
    """Return the tails of the vectors, a row for each rank and a column for each element."""
    weights = (np.arange(ranks)[:, None] * 5 + np.arange(length)[None, :] * 3) % 17 + 1
    weights.flags.writeable = False
    return weights


def _template(ranks: int, rank: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the vector whose elements all contributions of a rank share."""
    vector = np.zeros_like(like)
    if len(vector) > 2 * ranks:
        vector[2 * ranks :] = tail_weights(ranks, len(vector) - 2 * ranks)[rank]
    return vector


# ---- a rank --------------------------------------------------------------------------------------


class Program(GroupCalls):
    """The program of one rank."""

    def __init__(self, world: World, scenario: Scenario, rank: int, logs: list[Log]) -> None:
        self.world, self.scenario, self.rank, self.logs = world, scenario, rank, logs
        self.random = random.Random(scenario.seed << 20 | rank)
        self.slow = scenario.seed % scenario.ranks == rank
        self.handles: dict[int, Any] = {}
        self.numbers: dict[tuple[int, int], int] = {}  # handles by context and the core's number
        self.templates: dict[int, np.ndarray[Any, Any]] = {}
        self.requests: dict[int, Record] = {}  # made, and not collected
        self.gave: dict[int, bytes] = {}  # the receive buffer, since the last result
        self.calls = 0

    def kind(self, index: int) -> Kind | None:
        """Return what a handle is, unless it is a partial allreduce or one of P-Reduce."""
        return KINDS.get(type(self.scenario.handles[index]))

    def is_round(self, index: int) -> bool:
        """Whether a handle is a partial allreduce."""
        return isinstance(self.scenario.handles[index], Options)

    def work(self) -> int | tuple[str, int]:
        """Return how long the rank computes before its next call, as a request."""
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
        """Return how many rounds of the handle are complete on this rank, if that can be known."""
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
            0 if kind in ("extra", "more") else self.logs[index].starts,
            self.completed(index),
            self.calls,
            len(self.handles) == 1,
            None,  # type: ignore[arg-type]  # until it is given
            self.world.now,
        )

    def requested(self, index: int, record: Record) -> None:
        """Note at which moment of its call a request was made, if others went on meanwhile."""
        if self.scenario.memory:
            record.at = int(lib.pp_sim_requested_at(self.handles[index].coll))

    def given(self, index: int, record: Record, result: Any) -> None:
        if self.is_group(index):
            self.answered(index, result)
            return
        if kind := self.kind(index):
            self.gave[index] = self.handles[index].recv.tobytes()
            kind.given(self, index, result)
            return
        record.result = result
        record.ended = self.world.now
        self.logs[index].records.append(record)
        self.gave[index] = result.data
        self.untouched(index)

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

    def untouched(self, index: int) -> None:
        """Check that the library has not written into buffers that are the application's now.

        The receive buffer is from a result to the next Start, the send buffer outside Start.
        """
        handle, log = self.handles[index], self.logs[index]
        who = f"handle {index}: rank {self.rank}"
        assert handle.recv.tobytes() == self.gave[index], f"{who}: the receive buffer was written"
        if handle.send is not handle.recv and log.starts > 0:
            assert (handle.send == _OVERWRITTEN).all(), f"{who}: the send buffer was written"

    def unwritten(self, index: int) -> None:
        """Check that the library has not written into a model since the last result."""
        found, who = self.handles[index].recv.tobytes(), f"handle {index}: rank {self.rank}"
        assert found == self.gave[index], f"{who}: the vector was written"

    # ---- calls of one handle

    def start(self, index: int) -> Generator[Any, Any, None]:
        if not self.is_round(index):
            self.requests[index] = self.request("wait", index)
            kind = self.kind(index)
            yield from kind.start(self, index) if kind else self.ask(index)
        else:
            yield from self.contribute(index, None)

    def contribute(self, index: int, pending: Record | None) -> Generator[Any, Any, None]:
        """Start a new request, or add to the one that a timeout has left outstanding."""
        log, handle = self.logs[index], self.handles[index]
        if pending is None:
            self.untouched(index)
        log.starts += 1
        log.started.append(self.world.now)
        handle.recv.fill(99)  # the library must not need its old content
        self.fill(index, handle, log.starts)
        if pending is None:
            self.requests[index] = self.request("wait", index)
        else:
            pending.added += (log.starts,)
        yield ("start", handle)
        if pending is None:
            self.requested(index, self.requests[index])
        handle.send.fill(_OVERWRITTEN)  # the application may overwrite both at once
        handle.recv.fill(78)

    def wait_in_vain(self, index: int) -> Generator[Any, Any, Round | None]:
        """Wait with a timeout, and perhaps Start after it; return the result if there was one."""
        handle = self.handles[index]
        timeout = 1 + self.random.randrange(self.scenario.scale + 5_000)
        result: Round | None = yield ("wait_for", handle, timeout)
        if result is None:
            self.logs[index].timeouts += 1
            yield ("timed_out", handle)
            yield self.work()
            if not self.is_group(index) and self.random.random() < 0.5:
                kind, pending = self.kind(index), self.requests[index]
                again = kind.start(self, index, again=True) if kind else None
                yield from again or self.contribute(index, pending)
        return result

    def collect(self, index: int) -> Generator[Any, Any, None]:
        kind = self.kind(index)
        leaves = kind and kind.averages_when_left and self.scenario.steps_aside()
        if leaves and self.random.random() < 0.3:
            yield from self.between("aside", self._collect(index), "beside")
        else:
            yield from self._collect(index)

    def _collect(self, index: int) -> Generator[Any, Any, None]:
        handle, result = self.handles[index], None
        if self.scenario.timeout and self.random.random() < self.scenario.timeout:
            result = yield from self.wait_in_vain(index)
        if result is not None:
            pass
        elif self.scenario.blocking:
            result = yield ("wait", handle)
        else:
            pause, begun = max(100, self.scenario.scale // 8), self.world.now
            for _ in range(_TESTS_BEFORE_GIVING_UP):
                result = yield ("test", handle)
                if result is not None:
                    break
                yield int(self.random.random() * pause)
                longest = max(_LONGEST_PAUSE_NS, (self.world.now - begun) // _PAUSES)
                pause = min(pause + pause // 2, longest)
            else:
                since = self.world.now  # in a deadlock, the world says what it waits for
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

    def gives_each(self, index: int) -> bool:
        return self.is_round(index) and self.handles[index].options.deliver == "each"

    def take_more(self, index: int) -> Generator[Any, Any, None]:
        while True:
            record = self.request("more", index)
            result = yield ("more", self.handles[index])
            self.requested(index, record)
            if result is None:
                if record.at is not None:
                    self.logs[index].refused.append((len(self.logs[index].records), record.at))
                return
            self.given(index, record, result)

    def collective(self, *request: Any) -> Generator[Any, Any, Any]:
        self.calls += 1
        begun = self.world.now
        if self.random.random() < self.scenario.late:
            delay = self.random.randrange(5 * self.scenario.scale + 50_000)
            result = yield ("late", delay, request)
        else:
            result = yield request
        if self.calls > self.scenario.opened:
            for log in self.logs:
                log.away.append((begun, self.world.now))
        return result

    def flush(self, index: int) -> Generator[Any, Any, None]:
        if self.is_group(index):
            held = self.requests.pop(index, None) is not None
            yield from self.average_all(index, held)
            return
        if of := self.kind(index):
            held = self.requests.pop(index, None) is not None
            result = yield from self.collective("flush", self.handles[index])
            of.flushed(self, index, result, held)
            self.gave[index] = self.handles[index].recv.tobytes()
            self.logs[index].flushed += 1
            return
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
        if not log.unfinished and self.is_round(index):
            self.untouched(index)
        self.requests.pop(index, None)
        if self.is_group(index):
            if log.unfinished:
                log.asked[-1].ended = NOTHING_UNDER_WAY  # its group may run on
        elif kind := self.kind(index):
            kind.freed(self, index, log.unfinished)
        elif self.rank == self.scenario.seed % self.scenario.ranks:
            log.fired = _fired(self.handles[index])
        log.discarded = yield from self.collective("free", self.handles[index])
        del self.handles[index]

    def open(self, index: int) -> Generator[Any, Any, None]:
        context = index % self.scenario.contexts
        options = self.scenario.handles[index]
        if isinstance(options, PreduceOptions):
            model = initial_model(self.scenario, index, self.rank)
            handle = yield from self.collective("groups_init", options, context, model)
        elif kind := self.kind(index):
            first = kind.first(self, index)
            handle = yield from self.collective(f"{kind.word}init", options, context, first)
        else:
            handle = yield from self.collective("init", options, context)
        self.numbers[context, lib.pp_handle_id(handle.coll)] = index
        self.handles[index] = handle
        self.gave[index] = handle.recv.tobytes()
        if not self.is_round(index):
            return
        self.templates[index] = _template(self.scenario.ranks, self.rank, handle.send)

    # ---- the order of calls

    def away(self) -> Generator[Any, Any, None]:
        """Make a blocking call of the program's own, inside ``away()``."""
        yield from self.inside_away([self.work(), ("barrier",)])

    def apart(self) -> Generator[Any, Any, None]:
        """Stay inside ``away()`` for a time of this rank's own, and wait for no rank."""
        yield from self.inside_away([self.work() for _ in range(5)])

    def inside_away(self, requests: list[Any]) -> Generator[Any, Any, None]:
        self.calls += 1
        yield from self.between("away", requests, "back")

    def aside(self) -> Generator[Any, Any, None]:
        """Make a blocking call of the program's own that the library sees."""
        yield from self.between("aside", [self.work(), ("barrier",)], "beside")

    def between(self, first: str, requests: Iterable[Any], last: str) -> Generator[Any, Any, None]:
        begun = self.world.now
        for context in range(self.scenario.contexts):
            yield (first, context)
        yield from requests
        for context in range(self.scenario.contexts):
            yield (last, context)
        for log in self.logs:
            log.away.append((begun, self.world.now))

    def barrier(self) -> Generator[Any, Any, None]:
        yield ("barrier",)

    def called(self, phase: Phase) -> list[int]:
        """Return the live handles that a phase calls."""
        return [i for i in sorted(self.handles) if not phase.only or i in phase.only]

    def step(self, order: list[int], hold: bool) -> Generator[Any, Any, None]:
        scenario = self.scenario
        if scenario.shuffle:
            order = self.random.sample(order, len(order))
        for index in [i for i in order if i in self.requests]:  # held over the collective calls
            yield from self.collect(index)
        if scenario.extra:
            for index in [i for i in order if self.is_round(i)]:
                if self.random.random() < scenario.extra:
                    yield from self.wait_without_start(index)
        if scenario.more:
            for index in [i for i in order if self.gives_each(i)]:
                if self.random.random() < scenario.more:
                    yield from self.take_more(index)
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

    def steps(self, phase: Phase, order: list[int]) -> Generator[Any, Any, None]:
        count = phase.steps[self.rank % len(phase.steps)]
        for step in range(count):
            self.step_of_phase = step
            yield from self.step(order, phase.hold and step == count - 1)

    def program(self) -> Generator[Any, Any, None]:
        for index in range(self.scenario.opened):
            yield from self.open(index)
        for at, phase in enumerate(self.scenario.phases):
            self.phase = at
            order = self.called(phase)
            if phase.threads and order:
                yield ("threads", [self.steps(phase, [index]) for index in order])
            else:
                yield from self.steps(phase, order)
            for action in phase.then:
                what, *of = action.split()
                yield from getattr(self, what)(*map(int, of))
        for index in sorted(self.handles):
            if self.scenario.last_flush:
                yield from self.flush(index)
        for index in sorted(self.handles):
            yield from self.free(index)
        for context in range(self.scenario.contexts):
            yield from self.collective("ctx_free", context)


def _fired(handle: Handle) -> tuple[list[str], list[int]] | None:
    """Return the labels of a handle's operations, and how often each fired in its last round."""
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


def run(
    scenario: Scenario, *, plant: int = 0, groups_plant: str = "none", queues_plant: int = 0
) -> Outcome:
    """Run all ranks to the end.

    Parameters
    ----------
    scenario : Scenario
    plant : int
        A defect to put into the engine (``lib.PP_PLANT_...``), to see that it is found.
    groups_plant : str
        The same for generators of groups (`groups.PLANTS`).
    queues_plant : int
        The same for the rules of queues (``lib.PP_QUEUES_PLANT_...``).

    Raises
    ------
    Deadlock
        If ranks wait and nothing is under way; the error names the operations that wait, and the
        ranks that they wait for.
    CoreError
        If a call failed that must not fail.
    AssertionError
        If messages were lost, or a call gave a wrong result.
    """
    if queues_plant:
        handles = (
            replace(options, plant=queues_plant) if hasattr(options, "plant") else options
            for options in scenario.handles
        )
        scenario = replace(scenario, handles=tuple(handles))
    world = World(
        scenario.ranks,
        seed=scenario.seed,
        network=parse_network(scenario.network) if scenario.network else None,
        latency=scenario.latency,
        window=scenario.window,
        plant=plant,
        memory=scenario.memory,
        magnify=scenario.magnify,
        room=scenario.room,
        patience=scenario.patience or None,
        contexts=scenario.contexts,
        groups_plant=groups_plant,
        keep_groups=True,
    )
    ranks = range(scenario.ranks)
    logs = [[Log() for _ in ranks] for _ in scenario.handles]
    programs = [Program(world, scenario, r, [log[r] for log in logs]) for r in ranks]
    world.run([program.program() for program in programs])
    sent = received = rounds = 0
    for context in range(scenario.contexts):
        made = 0
        for rank in ranks:
            stats = world.stats(rank, context)
            sent += stats.messages_sent
            received += stats.messages_received
            made = max(made, stats.rounds)
        rounds += made
    assert world.quiet(), "messages are under way after the end"
    assert sent == received, f"{sent} messages sent, {received} received"
    coverage = world.coverage() | {"interruptions": world.interruptions()}
    begun: list[list[Begun]] = [[] for _ in scenario.handles]
    for context in range(scenario.contexts):
        for group in world.groups_begun(context):
            begun[programs[0].numbers[context, group.handle]].append(group)
    made = sum(bool(group.members) for groups in begun for group in groups)
    for options, of in zip(scenario.handles, logs, strict=True):
        made += max(log.iteration for log in of) if type(options) in KINDS else 0
    return Outcome(logs, rounds + made, coverage, begun)
