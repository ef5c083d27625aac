"""``pypartial sim gossip``: the protocols of AD-PSGD, D-PSGD and Hop alone, in virtual time.

Every rank computes gradients of its model, and averages the model with neighbours. A model takes
time on its way; requests, headers and tokens take none. What models are made of are gradients of
noise, so how far they are apart says how well a method mixes them.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from .. import __version__
from .._core_sim import ffi, lib
from .._queue_init import way_back
from ..provenance import header
from .arrivals import parse_arrivals
from .events import Events, drawn_times
from .gossip_options import ComputationGraph, GossipOptions, Method
from .handle import check
from .queues import EVENTS, describe, open_queues

__all__ = ["GossipRow", "gossip_as_dict", "measure_gossip", "neighbour", "simulate"]

_NUMBERS = 8  # of a model
_BITS = (1 << 64) - 1

Pair = tuple[int, int, int]  # who asked, and both ranks, the lower one first
Progress = Callable[[float], None]


@dataclass
class GossipRow:
    """What a simulation gave.

    Attributes
    ----------
    method : str
    iteration_ns, gradient_ns : float
        How long ranks take on average to get one iteration ahead, and for a gradient.
    undisturbed_ns : float or None
        `iteration_ns` where no rank and no link is slow; None if none is.
    gap : int
        The most iterations that a rank was ahead of one that it sends to, on entering.
    queue : int
        The most updates that waited at a rank; or averages, with the one under way.
    received, dropped, skipped : int
        Updates that were averaged, and that were not; iterations that no gradient was computed in.
    staleness : int
        The most iterations that an update was too old; or averages in a model, between that which
        a gradient was computed on and that which it was added to.
    apart : float
        How far models are from their mean, in gradients: root mean square, late in the run.
    """

    method: str
    iteration_ns: float = 0.0
    gradient_ns: float = 0.0
    undisturbed_ns: float | None = None
    gap: int = 0
    queue: int = 0
    received: int = 0
    dropped: int = 0
    skipped: int = 0
    staleness: int = 0
    apart: float = 0.0


class _Run(Events, ABC):
    """Ranks that start, compute and wait; what that means is of the method."""

    def __init__(
        self, options: GossipOptions, method: Method, log: TextIO | None, progress: Progress | None
    ) -> None:
        ranks, end, seed = options.ranks, options.iterations, options.seed
        model = parse_arrivals(options.arrivals, ranks, end, seed, options.base_ns)
        super().__init__(ranks, end, drawn_times(model), seed, progress)
        self.options, self.method, self.log = options, method, log
        self.graph = options.topology.on(ranks)
        self.outs = self.graph.out_neighbours
        self.parallel = options.graph is ComputationGraph.PARALLEL
        self.links = [(frozenset(ends), factor) for ends, factor in options.links]
        self.row = GossipRow(method.text)
        self.iterations, self.gradients = [0] * ranks, [0] * ranks
        self.models: npt.NDArray[np.float64] = np.zeros((ranks, _NUMBERS))
        self.noise = np.random.default_rng(seed)
        self.spread: list[float] = []  # of models, whenever rank 0 enters an iteration

    def begin(self) -> None:
        for rank in range(self.options.ranks):
            if self.parallel:
                self.start(0, rank)
            self.compute(0, rank, 0, self.computed)

    @abstractmethod
    def start(self, now: int, rank: int) -> None:
        """Send a model, or ask for an average."""

    @abstractmethod
    def wait(self, now: int, rank: int) -> None:
        """Wait for the average of the last start."""

    def computed(self, now: int, rank: int) -> None:
        self.gradients[rank] += 1
        if not self.parallel:
            self.start(now, rank)
        self.wait(now, rank)

    def gradient(self, rank: int) -> npt.NDArray[np.float64] | float:
        """What is to be added to a model; there is nothing yet when a parallel graph begins."""
        return self.noise.standard_normal(_NUMBERS) if self.gradients[rank] else 0.0

    def enter(self, now: int, rank: int, iteration: int) -> None:
        self.write(now, f"{rank} {iteration}")
        self.iterations[rank] = iteration
        behind = min(self.iterations[out] for out in self.outs[rank])
        self.row.gap = max(self.row.gap, iteration - behind)
        if rank == 0:
            self.spread.append(float(self.models.var(axis=0).mean()))
        if iteration >= self.options.iterations:
            self.end_at(now)
            return
        if self.parallel:
            self.start(now, rank)
        self.compute(now, rank, self.gradients[rank], self.computed)

    def end_at(self, now: int) -> None:
        self.over = True
        self.row.iteration_ns = now * self.options.ranks / sum(self.iterations)
        self.row.gradient_ns = now * self.options.ranks / sum(self.gradients)
        late = self.spread[len(self.spread) // 2 :]
        self.row.apart = math.sqrt(sum(late) / max(len(late), 1))

    def message_ns(self, one: int, other: int) -> int:
        slow = [factor for ends, factor in self.links if ends <= {one, other}]
        return round(self.options.message_ns * max(slow, default=1))

    def write(self, now: int, what: str) -> None:
        if self.log is not None:
            self.log.write(f"{now} {what}\n")


# ---- pairs ---------------------------------------------------------------------------------------


def _mix(seed: int, index: int) -> int:
    """The core's generator of numbers (``csrc/base/random.c``)."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _BITS
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _BITS
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _BITS
    return z ^ (z >> 31)


def neighbour(seed: int, rank: int, count: int, neighbours: tuple[int, ...]) -> int:
    """Return the neighbour that a rank draws for its average of this number, from 1 on."""
    drawn = _mix(_mix(seed, rank), count) >> 32
    return neighbours[drawn * len(neighbours) >> 32]


class _Pairs(_Run):
    """AD-PSGD. Averages take turns at each model, first come, first served, the lower rank's first.

    What a rank adds is folded into its model when an average takes the model.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        ranks = self.options.ranks
        self.active = set(self.graph.sides()[0] if self.method.active else range(ranks))
        self.turns: list[deque[Pair]] = [deque() for _ in range(ranks)]
        self.asked = [0] * ranks
        self.open = [False] * ranks  # its average is not over
        self.waits = [False] * ranks
        self.added = np.zeros_like(self.models)
        self.averages = [0] * ranks
        self.computes_on = [0] * ranks  # averages in that model
        if self.method.continuous:
            for rank in range(ranks):
                self.push(0, self.ask, rank)

    def compute(self, now: int, rank: int, step: int, then: Callable[..., None]) -> None:
        self.computes_on[rank] = self.averages[rank]
        super().compute(now, rank, step, then)

    def start(self, now: int, rank: int) -> None:
        stale = self.averages[rank] - self.computes_on[rank]
        self.row.staleness = max(self.row.staleness, stale)
        self.added[rank] += self.gradient(rank)
        if rank in self.active and not self.method.continuous:
            self.ask(now, rank)

    def wait(self, now: int, rank: int) -> None:
        self.waits[rank] = self.open[rank] and not self.method.continuous
        if not self.waits[rank]:
            self.complete(now, rank)

    def complete(self, now: int, rank: int) -> None:
        self.waits[rank] = False
        self.enter(now, rank, self.iterations[rank] + 1)

    def ask(self, now: int, rank: int) -> None:
        self.asked[rank] += 1
        self.open[rank] = True
        drawn = self.options.seed, rank, self.asked[rank], self.outs[rank]
        low, high = sorted((rank, neighbour(*drawn)))
        self.queue(now, (rank, low, high), low)

    def queue(self, now: int, pair: Pair, rank: int) -> None:
        turns = self.turns[rank]
        turns.append(pair)
        self.row.queue = max(self.row.queue, len(turns))
        if len(turns) == 1:
            self.take(now, pair, rank)

    def take(self, now: int, pair: Pair, rank: int) -> None:
        if self.added[rank].any():
            self.write(now, f"add {rank}")
            self.models[rank] += self.added[rank]
            self.added[rank] = 0
        _, low, high = pair
        if rank == low:
            self.queue(now, pair, high)
        else:
            self.push(now + self.message_ns(low, high), self.end, pair)

    def end(self, now: int, pair: Pair) -> None:
        initiator, *both = pair
        self.write(now, "avg {} {}".format(*both))
        self.models[both] = self.models[both].mean(axis=0)
        for rank in both:
            self.averages[rank] += 1
            turns = self.turns[rank]
            turns.popleft()
            if turns:
                self.take(now, turns[0], rank)
        self.open[initiator] = False
        if self.method.continuous:
            self.ask(now, initiator)
        elif self.waits[initiator]:
            self.complete(now, initiator)


# ---- queues --------------------------------------------------------------------------------------


class _Queues(_Run):
    """Hop, and D-PSGD."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        graph, mode = self.graph, self.method.mode
        assert mode is not None
        self.ins, back = graph.in_neighbours, way_back(graph)
        counts = [(len(ins), len(outs)) for ins, outs in zip(self.ins, self.outs, strict=True)]
        plans = [describe(mode, *count, back) for count in counts]
        self.states = [
            open_queues(plan, graph.weights[ins, rank].tolist() if mode.weighted else None)
            for rank, (plan, ins) in enumerate(zip(plans, self.ins, strict=True))
        ]
        self.ring = int(lib.pp_sim_queues_ring(plans[0]))
        self.updates = np.zeros((self.ring, *self.models.shape))
        self.free_ns: dict[tuple[int, int], int] = {}  # when a link has carried what was sent
        self.action = ffi.new("pp_queues_action_t *")
        self.outcome = ffi.new("pp_queues_result_t *")

    def start(self, now: int, rank: int) -> None:
        self.models[rank] += self.gradient(rank)
        self.tell(now, rank, "start")

    def wait(self, now: int, rank: int) -> None:
        self.tell(now, rank, "wait")

    def tell(self, now: int, rank: int, event: str, source: int = 0, iteration: int = 0) -> None:
        """Tell a rank's state of an event, which may be of another rank; do what is due then."""
        state, action = self.states[rank], self.action
        sides = {"update": self.ins, "header": self.ins, "token": self.outs}
        at = sides[event][rank].index(source) if event in sides else 0
        check(lib.pp_sim_queues_event(state, EVENTS[event], at, iteration))
        if event == "update":
            self.row.queue = max(self.row.queue, lib.pp_sim_queues_size(state, -1, -1))
        while True:
            lib.pp_sim_queues_next(state, action)
            if action.kind == lib.PP_QUEUES_SEND:
                self.send(now, rank, action.iteration)
            elif action.kind == lib.PP_QUEUES_OMIT:
                for omitted in range(action.iteration, action.end):
                    for out in self.outs[rank]:
                        self.push(now, self.tell, out, "header", rank, omitted)
            elif action.kind == lib.PP_QUEUES_ANNOUNCE:
                for at, sender in enumerate(self.ins[rank]):
                    if lib.pp_sim_queues_tells(state, at):
                        self.push(now, self.tell, sender, "token", rank, action.iteration)
            elif action.kind == lib.PP_QUEUES_AVERAGE:
                self.average(rank)
            elif action.kind == lib.PP_QUEUES_ENTER:
                self.entered(now, rank)
            else:
                return

    def send(self, now: int, rank: int, iteration: int) -> None:
        self.updates[iteration % self.ring, rank] = self.models[rank]
        for at, out in enumerate(self.outs[rank]):
            if lib.pp_sim_queues_wants(self.states[rank], at):
                begins = max(now, self.free_ns.get((rank, out), 0))
                self.free_ns[rank, out] = there = begins + self.message_ns(rank, out)
                self.push(there, self.tell, out, "update", rank, iteration)
            else:
                self.push(now, self.tell, out, "header", rank, iteration)

    def average(self, rank: int) -> None:
        self.models[rank] *= self.action.own
        for part in self.action.parts[0 : self.action.count]:
            sender = self.ins[rank][part.neighbour]
            self.models[rank] += part.weight * self.updates[part.iteration % self.ring, sender]
        check(lib.pp_sim_queues_event(self.states[rank], EVENTS["averaged"], 0, 0))

    def entered(self, now: int, rank: int) -> None:
        lib.pp_sim_queues_result(self.states[rank], self.outcome)
        row, outcome = self.row, self.outcome
        row.received += outcome.received
        row.dropped += outcome.dropped
        row.skipped += outcome.skipped
        row.staleness = max(row.staleness, outcome.staleness)
        self.enter(now, rank, outcome.iteration)


# ---- results -------------------------------------------------------------------------------------


def simulate(
    options: GossipOptions,
    method: Method,
    log: TextIO | None = None,
    progress: Progress | None = None,
) -> GossipRow:
    """Simulate one of the methods until the fastest rank has made its iterations.

    The log gets ``time rank iteration`` when a rank enters an iteration, ``time add rank`` when its
    model takes what the rank has added, ``time avg rank rank`` when two have averaged. `progress`
    is given the share that is done, now and then.
    """
    run = (_Pairs if method.mode is None else _Queues)(options, method, log, progress)
    run.begin()
    run.run()
    return run.row


def measure_gossip(
    options: GossipOptions, method: Method, log: TextIO | None, progress: Progress
) -> GossipRow:
    """Simulate a method, as `simulate`, and once more with nothing that disturbs the ranks."""
    given = options.ranks, options.iterations, options.seed, options.base_ns
    has_base = parse_arrivals(options.arrivals, *given).has_base
    arrivals = "slow:0:1x" if has_base else options.arrivals
    even = dataclasses.replace(options, arrivals=arrivals, links=())
    part = 1.0 if even == options else 0.5
    row = simulate(options, method, log, lambda done: progress(part * done))
    if even != options:
        undisturbed = simulate(even, method, None, lambda done: progress(part + part * done))
        row.undisturbed_ns = undisturbed.iteration_ns
    return row


def gossip_as_dict(options: GossipOptions, rows: Sequence[GossipRow]) -> dict[str, Any]:
    """Return a header, ``meta``, and ``rows`` in types that JSON knows."""
    names = ("ranks", "iterations", "arrivals", "base_ns", "seed", "message_ns", "links")
    meta = {
        "version": __version__,
        **{name: getattr(options, name) for name in names},
        "topology": str(options.topology),
        "graph": options.graph.value,
    }
    return {**header(), "meta": meta, "rows": list(map(dataclasses.asdict, rows))}
