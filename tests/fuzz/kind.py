"""What the fuzzer asks of a kind of handle whose ranks average models with neighbours.

A kind has a file of its own, and a line in `kinds`. Its options are a dataclass with a graph: for
each rank its out-neighbours.
"""

from __future__ import annotations

import dataclasses
import random
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from pypartial._core_sim import lib

if TYPE_CHECKING:
    from pypartial.sim.world import Begun

    from .plan import Scenario
    from .scenario import Log, Outcome, Program

__all__ = ["Edges", "Kind", "connects", "draw_graph", "fail", "first_left"]

Array = np.ndarray[Any, Any]
Edges = tuple[tuple[int, ...], ...]
Calls = Generator[Any, Any, None]
_COUNT_MAX = 1 << 24


def fail(what: str, *things: Any) -> NoReturn:
    """Raise an `AssertionError` that begins with what does not hold."""
    raise AssertionError("\n  ".join([what, *map(str, things)]))


def first_left(logs: Sequence[Log]) -> float:
    """Return when the first rank has left."""
    return min((begun for log in logs for begun, _ in log.away), default=float("inf"))


# ---- graphs --------------------------------------------------------------------------------------


def connects(edges: Edges) -> bool:
    """Return whether every rank is reached from every other one."""

    def reached(outs: Any) -> int:
        found, new = {0}, [0]
        while new:
            more = set(outs[new.pop()]) - found
            found |= more
            new += more
        return len(found)

    ins = [
        [rank for rank, outs in enumerate(edges) if other in outs] for other in range(len(edges))
    ]
    return reached(edges) == reached(ins) == len(edges)


def ring(ranks: int) -> Edges:
    """Return a ring."""
    around = ({(rank - 1) % ranks, (rank + 1) % ranks} - {rank} for rank in range(ranks))
    return tuple(tuple(sorted(ends)) for ends in around)


def draw_graph(draw: random.Random, ranks: int) -> Edges:
    """Draw a connected graph: a ring, a complete or a random one, or a directed regular one."""
    kind = draw.choice(("ring", "complete", "random", "random", "directed"))
    order = draw.sample(range(ranks), ranks)
    if kind == "ring" or ranks < 3:
        return ring(ranks)
    found: list[set[int]] = [set() for _ in range(ranks)]
    if kind == "directed":
        for step in {1, draw.randrange(1, ranks)}:
            for at, rank in enumerate(order):
                found[rank].add(order[(at + step) % ranks])
        return tuple(tuple(sorted(ends)) for ends in found)
    pairs = [(order[at], order[draw.randrange(at)]) for at in range(1, ranks)]
    more = ranks**2 if kind == "complete" and ranks < 7 else draw.randrange(ranks)
    for one, other in [*pairs, *(draw.sample(range(ranks), 2) for _ in range(more))]:
        found[one].add(other)
        found[other].add(one)
    return tuple(tuple(sorted(ends)) for ends in found)


# ---- kinds ---------------------------------------------------------------------------------------


class Kind(ABC):
    """A kind of handle.

    Attributes
    ----------
    options : type
        Of its handles' arguments.
    word : str
        What stands before "init" in the requests of programs.
    graph : str
        Their member with the graph, by which the text of a scenario names the kind.
    dtypes : tuple of str
    waits_for_computing : bool
        Whether a rank may wait for one that computes, or that is in a call of the program's own.
    averages_when_left : bool
        Whether programs also wait for it when they have left.
    coverage : dict
        What its cases must cover, by the names that `occurred` returns.
    plants : dict
        Defects that the fuzzer finds, as arguments of `scenario.run`.
    """

    options: ClassVar[type]
    word: ClassVar[str]
    graph: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]]
    waits_for_computing: ClassVar[bool]
    averages_when_left: ClassVar[bool] = False
    coverage: ClassVar[dict[str, str]]
    plants: ClassVar[dict[str, dict[str, Any]]]

    # ---- what is drawn, refused and made smaller

    @abstractmethod
    def draw(self, draw: random.Random, ranks: int, node: bool) -> Any:
        """Draw the options of a handle. `node`: all ranks share memory."""

    def complaint(self, options: Any, scenario: Scenario) -> str | None:
        """Return why a scenario cannot have such a handle; None if it can."""
        edges = getattr(options, self.graph)
        if len(edges) != scenario.ranks or any(
            list(ends) != sorted(set(ends) & set(range(scenario.ranks)) - {rank})
            for rank, ends in enumerate(edges)
        ):
            return f"{edges} is no graph of {scenario.ranks} ranks"
        if options.dtype not in self.dtypes:
            return f"{options.dtype!r} is not one of {', '.join(self.dtypes)}"
        for name, least in (("count", 0), ("pieces", 1)):
            if not least <= getattr(options, name) <= _COUNT_MAX:
                return f"{name}={getattr(options, name)} is not in {least}..{_COUNT_MAX}"
        if options.raw or scenario.ask:
            return f"a scenario cannot have {options}" + (", and questions" * scenario.ask)
        if self.waits_for_computing and scenario.needs_patience():
            return "queues wait as MPI does, except for ranks that have left"
        if self.waits_for_computing and (scenario.rounds or scenario.groups):
            return self._beside_complaint(scenario)
        return None

    def _beside_complaint(self, scenario: Scenario) -> str | None:
        """Return why ranks may be where they wait for each other in two handles."""
        # After a collective call who has made more steps is ahead in queues, and not in rounds.
        if scenario.is_uneven():
            return "queues beside rounds or groups, and ranks with different numbers of steps"
        # Who is back joins the others' rounds, and goes on in queues where it was.
        if scenario.steps_aside() or any("apart" in phase.then for phase in scenario.phases):
            return "queues beside rounds or groups, and ranks that are away at times of their own"
        # Who leaves out iterations makes fewer steps in other handles, too.
        if any(getattr(options, "skip", None) is not None for options in scenario.handles):
            return "queues that skip iterations beside rounds or groups"
        return None

    def on(self, options: Any, edges: Edges) -> Any:
        """Return the options with another graph."""
        return replace(options, **{self.graph: edges})

    def with_ranks(self, options: Any, ranks: int) -> Any:
        """Return the options for fewer ranks."""
        edges = getattr(options, self.graph)[:ranks]
        rest = tuple(tuple(end for end in ends if end < ranks) for ends in edges)
        return self.on(options, rest if connects(rest) else ring(ranks))

    def simpler(self, options: Any) -> Iterator[Any]:
        """Yield simpler options; some of them cannot be run."""
        edges = getattr(options, self.graph)
        if edges != ring(len(edges)):
            yield self.on(options, ring(len(edges)))
        for entry in dataclasses.fields(options):
            default = entry.default
            if default is not dataclasses.MISSING and getattr(options, entry.name) != default:
                yield replace(options, **{entry.name: default})

    # ---- what programs do

    @abstractmethod
    def first(self, program: Program, index: int) -> Any:
        """Make the log of a new handle; return the argument of its making beside the options."""

    @abstractmethod
    def start(self, program: Program, index: int, again: bool = False) -> Calls:
        """Start. `again`: after a Wait that has timed out."""

    @abstractmethod
    def given(self, program: Program, index: int, result: Any) -> None:
        """Note what a request gave."""

    @abstractmethod
    def flushed(self, program: Program, index: int, result: Any, held: bool) -> None:
        """Note what a flush gave. `held`: the last request was not collected."""

    @abstractmethod
    def freed(self, program: Program, index: int, held: bool) -> None:
        """Note that the handle is freed."""

    # ---- how it is judged

    @abstractmethod
    def judge(
        self, scenario: Scenario, index: int, logs: Sequence[Log], begun: Sequence[Begun]
    ) -> None:
        """Check the logs of a handle by every oracle.

        Raises
        ------
        AssertionError
            For the first oracle that does not hold.
        """

    @abstractmethod
    def occurred(self, scenario: Scenario, index: int, outcome: Outcome) -> dict[str, bool]:
        """Return what has occurred with a handle that has been judged."""


def plant(name: str) -> dict[str, Any]:
    """Return a defect of the engine as an argument of `scenario.run`."""
    return {"plant": getattr(lib, f"PP_PLANT_{name}")}
