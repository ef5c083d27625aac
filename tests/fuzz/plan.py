"""Scenarios as plain data: what many ranks do with their handles, and the text form of it.

Everything random in a scenario follows from its seed, so it replays exactly.
``python -m tests.fuzz --replay`` takes its text, one line (`Scenario.to_text`).

Every rank runs the phases one after the other. In a phase it makes its number of steps. A step
calls every live handle once: Start and Wait of one handle after the other, or all Starts, then all
Waits. The phase ends with collective calls, the same on all ranks, or with blocking calls of the
program's own.

The contract does not promise that every program ends ("Leaving", "Several handles").
`Scenario.complaint` refuses programs that may hang.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from pypartial._core_sim import lib
from pypartial._names import AVERAGE, DELIVER, TYPE
from pypartial.errors import ArgumentError
from pypartial.policy import FirstOf, Policy
from pypartial.sim.allreduce_handle import ALGORITHMS, Options
from pypartial.sim.groups import WEIGHTS
from pypartial.sim.network import parse_network
from pypartial.sim.preduce_handle import PreduceOptions

from .kinds import KINDS

__all__ = ["TIMINGS", "Phase", "Scenario"]

TIMINGS = ("uniform", "slow", "skew", "ties", "zero", "heavy")

_RANKS_MAX, _WINDOW_MAX, _COUNT_MAX, _TIME_MAX = 1 << 16, 1 << 12, 1 << 24, 1 << 50
_STEPS_MAX = 1_000_000  # as in `sim skew`
_MAGNIFY_MAX = 1 << 16  # a chunk of 64 KiB is one byte then
_CONTEXTS_MAX, _CACHE_MAX = 8, 4096
TYPES = ("float64", "float32", "float16")  # of handles of P-Reduce: what the replay can follow
_ACTION = re.compile(r"(flush|open|free) (\d+)")
_OWN_ACTIONS = ("barrier", "away", "apart", "aside")


# ---- the data ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """Steps of every rank, then collective calls of all.

    Attributes
    ----------
    steps : tuple of int
        Rank r makes ``steps[r % len(steps)]``.
    then : tuple of str
        Collective calls: "flush 0", "open 1", "free 0". "barrier" is a blocking call of the
        program's own, "away" one inside ``away()``, "aside" one that the library sees, "apart" work
        inside ``away()`` that needs no other rank.
    hold : bool
        Whether the last requests are collected after the collective calls, if at all.
    only : tuple of int
        The handles that are called, if they are live; empty: all.
    threads : bool
        Whether each handle's steps run in a thread of their own.
    """

    steps: tuple[int, ...]
    then: tuple[str, ...] = ()
    hold: bool = False
    only: tuple[int, ...] = ()
    threads: bool = False


@dataclass(frozen=True)
class Scenario:
    """What all ranks do.

    Attributes
    ----------
    ranks, seed : int
        Number of ranks; the seed of everything random, in the programs and in the network.
    handles : tuple of Options, PreduceOptions, or the options of one of `KINDS`
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
        Several handles with a phase that holds need it, or patience: changing from one pattern to
        the other may deadlock.
    shuffle : bool
        Each rank calls the handles of a step in an order of its own.
    blocking : bool
        Wait; or Test with work in between.
    late : float
        Share of collective calls from which the application returns late.
    extra : float
        Share of steps before which there is a Wait without a Start.
    more : float
        Share of steps before which More takes what is there (``deliver="each"``).
    timeout : float
        Share of Waits that have a timeout; after it there may be a Start.
    ask : bool
        The engines are asked for their state at every Start.
    last_flush : bool
        All handles are flushed before they are freed at the end.
    noise : bool
        The vectors' tails have no exact sums.
    memory : tuple of int
        Empty: the ranks share no memory. Else they make their rounds in shared memory. The first
        number is the interruptions among 1,000 accesses to it, the second the longest interruption
        in nanoseconds. The third is the number of ranks on a node; without it, all ranks are on
        one. The fourth says which ranks those are: 0 consecutive ones, 1 with the smallest node
        first, 2 dealt out in turn.
    magnify : int
        In that memory a vector counts as this many times larger: rounds of large vectors wait for
        ranks that come a little later, and are cut into more chunks.
    room : int
        So many Starts of a rank can be pending in that memory one by one; 0: as many as usual.
    patience : int
        Nanoseconds for which a rank may hold a round up; 0: for ever; -1: by its usual time.
    contexts : int
        Number of contexts; handle i belongs to context i modulo this number.
    """

    ranks: int
    seed: int
    handles: tuple[Any, ...]
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
    patience: int = 0
    contexts: int = 1
    shuffle: bool = False
    more: float = 0.0
    timeout: float = 0.0
    room: int = 0

    def to_text(self) -> str:
        """Return the scenario as one line of JSON, without default values."""
        return json.dumps(_plain(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Scenario:
        """Read the text that `to_text` returned.

        Raises
        ------
        ValueError
            If the text is not a scenario that can be run; the error says why.
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
        """Return why the scenario cannot be run, or may hang; None if it must end.

        Options that the core itself refuses are not checked here.
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
            ("more", self.more, 0, 1),
            ("timeout", self.timeout, 0, 1),
            ("patience", self.patience, -1, _TIME_MAX),
            ("contexts", self.contexts, 1, _CONTEXTS_MAX),
            ("magnify", self.magnify, 1, _MAGNIFY_MAX),
            ("room", self.room, 0, lib.PP_SIM_ROOM_MAX),
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
            return f"the timing {self.timing!r} is not one of {', '.join(TIMINGS)}"
        return self._handles_complaint() or self._phases_complaint() or self._unpromised()

    @property
    def rounds(self) -> tuple[Options, ...]:
        """The handles of partial allreduces."""
        return tuple(h for h in self.handles if isinstance(h, Options))

    @property
    def groups(self) -> tuple[PreduceOptions, ...]:
        """The handles of P-Reduce."""
        return tuple(h for h in self.handles if isinstance(h, PreduceOptions))

    @property
    def with_neighbours(self) -> tuple[Any, ...]:
        """The handles of `KINDS`."""
        return tuple(h for h in self.handles if type(h) in KINDS)

    def is_uneven(self) -> bool:
        """Return whether some ranks make more steps than others."""
        return any(len(set(phase.steps[: self.ranks])) > 1 for phase in self.phases)

    def on_a_node(self) -> bool:
        """Return whether all ranks share memory."""
        return len(self.memory) == 2 or self.memory[2:3] == (self.ranks,)

    def in_memory(self, options: PreduceOptions) -> bool:
        """Return whether the groups of a handle are averaged in memory that all ranks share."""
        return self.on_a_node() and options.backend != "schedule"

    def by_table(self, options: PreduceOptions) -> bool:
        """Return whether each rank knows its groups by itself, and these run by messages."""
        constant = options.weights == "constant"
        return options.generator == "table" and constant and not self.in_memory(options)

    def names_vary(self) -> bool:
        """Whether each step may name other groups of a handle with ``given`` groups."""
        apart = any(
            len(set(p.steps)) > 1 and (p.hold or set(p.then) <= {"apart"}) for p in self.phases
        )
        return not self.rounds and not apart

    def needs_patience(self) -> bool:
        """Return whether only patience keeps this program alive."""
        blocks = any("barrier" in phase.then for phase in self.phases)
        if blocks or self.contexts > 1:
            return True
        unusual = self.shuffle or self.extra > 0 or self.more > 0
        for phase in self.phases:
            unusual |= phase.threads or bool(phase.only)
            unusual |= phase.hold and (not self.together or len(set(phase.steps)) > 1)
        return unusual and len(self.handles) > 1

    def features(self) -> dict[str, bool]:
        """Return the features of the program, by the names that the fuzzer counts."""
        phases, handles = self.phases, self.rounds
        then = [action for phase in phases for action in phase.then]
        several = len(self.handles) > 1 and self.ranks > 1
        return {
            "patience": self.patience != 0,
            "barriers": self.ranks > 1 and "barrier" in then,
            "away": self.ranks > 1 and "away" in then,
            "apart": self.ranks > 1 and "apart" in then,
            "stepped": self.ranks > 1 and "aside" in then,
            "polling": not self.blocking,
            "only": several and any(phase.only for phase in phases),
            "threads": several and any(phase.threads for phase in phases),
            "contexts": self.contexts > 1,
            "fenced": any(h.fenced for h in self.handles),
            "unequal": self.is_uneven(),
            "graces": any(options.policy.grace is not None for options in handles),
            "first_of": any(
                isinstance(o.policy, FirstOf) and 1 < o.policy.m < self.ranks for o in handles
            ),
        }

    def is_full(self, options: Options) -> bool:
        """Return whether every round waits for all ranks, as MPI does."""
        everybody = options.policy.trigger(self.ranks) == ("quorum", self.ranks)
        return everybody and self.ranks > 1 and options.policy.deadline is None

    def steps_aside(self) -> bool:
        """Return whether ranks make blocking calls of their own that the library sees."""
        return any("aside" in phase.then for phase in self.phases)

    def _unpromised(self) -> str | None:
        """Return why the contract does not promise that the program ends; None if it does."""
        full = any(map(self.is_full, self.rounds))
        if self.needs_patience() and self.patience == 0:
            return "without patience such a program may hang"
        if full and (self.needs_patience() or self.steps_aside()):
            return "Full waits as MPI does, and in such a program for ever"
        return None

    def _handles_complaint(self) -> str | None:
        for options in self.rounds:
            for word, known in (
                (options.dtype, TYPE),
                (options.op, ("sum", "max")),
                (options.deliver, DELIVER),
                (options.average, AVERAGE),
                (options.algorithm, ALGORITHMS),
            ):
                if word not in known:
                    return f"{word!r} is not one of {', '.join(map(str, known))}"
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
        complaints = (KINDS[type(h)].complaint(h, self) for h in self.with_neighbours)
        return self._groups_complaint() or next(filter(None, complaints), None)

    def _groups_complaint(self) -> str | None:
        for options in self.groups:
            for word, known in ((options.dtype, TYPES), (options.weights, WEIGHTS)):
                if word not in known:
                    return f"{word!r} is not one of {', '.join(known)}"
            backends = ("auto", "schedule", *(("node",) if self.in_memory(options) else ()))
            if options.backend not in backends:
                return f"the backend {options.backend!r} is not one of {', '.join(backends)}"
            for name, value, least, most in (
                ("count", options.count, 0, _COUNT_MAX),
                ("pieces", options.pieces, 1, _COUNT_MAX),
                ("cache", options.cache, 0, _CACHE_MAX),
            ):
                if not least <= value <= most:
                    return f"{name}={value} is not in {least}..{most}"
            if not 0 <= options.alpha < 1 or options.raw:
                return f"a scenario cannot have {options}"
            complaint = options.complaint(self.ranks)
            if complaint is not None:
                return complaint
        named = any(options.generator in ("given", "table") for options in self.groups)
        if self.groups and self.ask:
            return "questions about handles of P-Reduce"
        if named and (self.needs_patience() or self.steps_aside()):
            return "groups that are given, or stand in a table, wait as MPI does"
        return None

    def _phases_complaint(self) -> str | None:
        live = set(range(self.opened))
        for phase in self.phases:
            if not phase.steps:
                return "a phase with the steps ()"
            for steps in phase.steps:
                if not 0 <= steps <= _STEPS_MAX:
                    return f"a phase with the steps {steps}, not in 0..{_STEPS_MAX}"
            if phase.threads and (self.memory or phase.hold):
                return "threads of ranks that share memory, or that hold their requests"
            if not all(0 <= index < len(self.handles) for index in phase.only):
                return f"a phase with the handles {phase.only}"
            for action in phase.then:
                if action in _OWN_ACTIONS:
                    continue
                found = _ACTION.fullmatch(action)
                if found is None:
                    return f"{action!r} is not a collective call"
                what, index = found[1], int(found[2])
                if index >= len(self.handles) or (what == "open") == (index in live):
                    return f"{action!r} is not possible there"
                if what == "open":
                    live.add(index)
                elif what == "free":
                    live.remove(index)
        return None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; for a dataclass, a dict of its values without defaults."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Policy):
        return str(value)
    if not dataclasses.is_dataclass(value):
        return value
    entries = ((entry, getattr(value, entry.name)) for entry in dataclasses.fields(value))
    return {
        entry.name: _plain(item)
        for entry, item in entries
        if item != entry.default or entry.name == "generator"
    }


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _read(kind: Any, found: Any, where: str) -> Any:
    """Make a dataclass from a dict; check its types by those of the defaults."""
    if not isinstance(found, dict):
        raise ValueError(f"not a scenario: {where} is not an object")
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}
    unknown = sorted(set(found) - set(fields))
    if unknown:
        raise ValueError(f"not a scenario: {where} has no {unknown[0]!r}")
    values: dict[str, Any] = {}
    for name, value in found.items():
        inner = {"handles": Options, "phases": Phase}.get(name)
        if inner is not None and isinstance(value, list):
            values[name] = tuple(_read_one(inner, item, f"one of the {name}") for item in value)
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


def _read_one(kind: Any, found: Any, where: str) -> Any:
    """Make an object of a list. A handle's kind is known by a member that only this kind has."""
    if kind is Options and isinstance(found, dict):
        marks = {"generator": PreduceOptions, **{k.graph: o for o, k in KINDS.items()}}
        kind = next((other for mark, other in marks.items() if mark in found), kind)
    return _read(kind, found, where)


def _policy(text: Any) -> Policy:
    """Read a policy as `Policy.parse` does."""
    try:
        return Policy.parse(str(text))
    except ArgumentError as error:
        raise ValueError(f"not a scenario: {error}") from None


def _fits(value: Any, annotation: str) -> bool:
    """Return whether a value fits the annotation of a field."""
    if annotation.startswith("tuple["):
        item = annotation.removeprefix("tuple[").removesuffix("]").split(",")[0]
        return isinstance(value, tuple) and all(_fits(v, item) for v in value)
    if annotation == "Any":
        return True
    if annotation == "Policy":
        return isinstance(value, Policy)
    if annotation == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if " | " in annotation:
        return any(_fits(value, one) for one in annotation.split(" | "))
    if annotation == "None":
        return value is None
    return type(value).__name__ == annotation
