"""Plain programs for tests that know exactly what must come out: loops with a fixed timing.

Times are virtual, so a test can space the arrivals of a step wider than anything the network does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pypartial.sim.allreduce_handle import Handle, Options, Round
from pypartial.sim.world import World

Work = Callable[[int, int], Any]  # (rank, step) -> what the program yields before its Start


@dataclass
class Trace:
    """What one rank was given, and when."""

    rounds: list[Round] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)  # before each Start: drawn for the next round?
    bytes: list[int] = field(default_factory=list)  # of buffers, after each Wait
    finished: int = 0  # time of the last Wait
    flush: Round | None = None
    discarded: int | None = None


def name(handle: Handle, rank: int) -> None:
    """Named contributors: 1 in element `rank`."""
    handle.send[:] = 0
    handle.send[rank] = 1


def finish(handle: Handle, trace: Trace | None = None) -> Generator[Any, Any, None]:
    """Flush (or drain), free the handle and the context."""
    flush = yield from flushed(handle)
    discarded = yield ("free", handle)
    if trace is not None:
        trace.flush, trace.discarded = flush, discarded
    yield ("ctx_free",)


def flushed(handle: Handle) -> Generator[Any, Any, Round]:
    kind = "drain" if handle.options.deliver == "each" else "flush"
    while True:
        result = yield (kind, handle)
        if result.cause == "flush":
            return result


def is_drawn(world: World, rank: int, handle: Handle) -> bool:
    kind, count = handle.options.policy.trigger(world.ranks)
    return kind == "first_of" and world.state(rank, handle).place < count


def loop(
    world: World, options: Options, rank: int, steps: int, work: Work, trace: Trace
) -> Generator[Any, Any, None]:
    """Compute, Start, Wait, `steps` times; then flush and free."""
    handle = yield ("init", options)
    for step in range(steps):
        yield work(rank, step)
        name(handle, rank)
        trace.drawn.append(is_drawn(world, rank, handle))
        yield ("start", handle)
        trace.rounds.append((yield ("wait", handle)))
        trace.bytes.append(int(world.stats(rank).buffer_bytes))
        trace.finished = world.now
    yield from finish(handle, trace)


def run_loops(
    world: World, options: Options, steps: int | Sequence[int], work: Work
) -> list[Trace]:
    """One loop a rank, with as many steps as the sequence says; the ranks' traces."""
    traces = [Trace() for _ in range(world.ranks)]
    counts = [steps] * world.ranks if isinstance(steps, int) else steps
    world.run([loop(world, options, r, counts[r], work, trace) for r, trace in enumerate(traces)])
    return traces


@dataclass
class Arrivals:
    """In every step all ranks arrive one after the other, in an order drawn for the step."""

    ranks: int
    steps: int
    seed: int = 0
    gap: int = 100_000  # ns; the network of these tests needs less for a whole round
    begin: int = 1_000_000

    def __post_init__(self) -> None:
        shuffle = random.Random(self.seed)
        self.orders = [shuffle.sample(range(self.ranks), self.ranks) for _ in range(self.steps)]

    def __call__(self, rank: int, step: int) -> tuple[str, int]:
        slot = step * (self.ranks + 2) + self.orders[step].index(rank)
        return ("at", self.begin + slot * self.gap)
