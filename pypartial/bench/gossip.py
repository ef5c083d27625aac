"""``bench gossip``: iterations of gossip and queues, beside MPI's own and other averages.

At each size all ways take turns in blocks of iterations, as in ``bench latency``. Models begin
apart. After a block each model must be what the weights of the way make of them; where neighbours
are drawn, the mean over the ranks must be kept, and the models must be closer to it.

Before the blocks the *consensus distance* is taken after each of some iterations, with a barrier in
between: the root of the mean square of the models' distances from their mean, over that at the
beginning.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

import pypartial as pp

from ..statistics import Latency, Spread
from ..topology import parse
from .clock import timed
from .conditions import machine, named_in_memory_errors, no_garbage_collection
from .gossip_options import BenchGossipOptions
from .gossip_ways import NEIGHBOURS, RIVALS, SENDRECV, Mixer, mixer
from .group_ways import CACHED, Shares
from .latency import most_blocks, run_blocks
from .options import Buffers
from .pace import meet
from .results import GossipMeta, GossipRow, Outcome, Report

if TYPE_CHECKING:
    from .group_ways import Array
    from .trials import Progress

_TOLERANCE = 1e-3  # many roundings
_FAILURES_KEPT = 3
_WATCHED = 20


@dataclass
class _Trial:
    """A way with buffers of a kind: `Measured` for `run_blocks`."""

    way: str
    buffers: Buffers
    mixer: Mixer
    shares: Shares
    comm: MPI.Intracomm
    turn_ns: list[float] = field(default_factory=list)
    calls: int = 0
    consensus: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def receive(self) -> Array:
        return self.mixer.model

    def _begin(self) -> None:
        self.mixer.begin(self.shares.of(self.comm.rank))
        self.comm.Barrier()

    def _end(self, calls: int) -> float:
        """Meet the other ranks, check all models after so many iterations; return the distance."""
        with self.mixer.apart():
            meet(self.comm)
        heads = self.comm.allgather(self.shares.head(self.mixer.result(), _TOLERANCE))
        if any(head is None for head in heads):
            self._fail(calls, "parts of the buffer were treated differently")
            return 0.0
        ranks, weights = range(self.comm.size), self.mixer.weights
        before = np.array([self.shares.of(rank)[: heads[0].size] for rank in ranks], float)
        now = np.array(heads, float)
        near = functools.partial(np.allclose, rtol=_TOLERANCE, atol=0)
        if weights is not None:
            expected = np.linalg.matrix_power(weights.T, calls) @ before
            if not near(now, expected):
                self._fail(calls, f"the models are {now}, not {expected}")
        elif not near(now.mean(axis=0), before.mean(axis=0)):
            self._fail(calls, f"the mean is {now.mean(axis=0)}, not {before.mean(axis=0)}")
        distance: float = float(now.var(axis=0).sum() / before.var(axis=0).sum()) ** 0.5
        if not distance < 1:
            self._fail(calls, "the models differ as much as before")
        return distance

    def _fail(self, calls: int, text: str) -> None:
        if self.comm.rank == 0 and len(self.failures) < _FAILURES_KEPT:
            what = f"{self.way}, {self.shares.count} x {self.receive.dtype}"
            self.failures.append(f"{what}, after {calls} iterations: {text}")

    def watch(self, steps: int) -> None:
        """Take the consensus distance after each of some iterations; collective."""
        self._begin()
        for step in range(1, steps + 1):
            self.mixer.contender.repeat(1)
            self.consensus.append(self._end(step))
            self.comm.Barrier()

    def rehearse(self, calls: int) -> None:
        self.turn(calls)

    def turn(self, calls: int) -> float:
        """Time a block of iterations, after one that does not count; collective."""
        repeat = self.mixer.contender.repeat
        self._begin()
        repeat(1)
        ns = timed(functools.partial(repeat, calls)).ns / calls
        self._end(1 + calls)
        self.turn_ns.append(ns)
        self.calls += calls
        return ns

    def forget(self) -> None:
        """Drop the samples taken so far."""
        self.turn_ns, self.calls = [], 0


def measure(
    options: BenchGossipOptions, comm: MPI.Intracomm, progress: Progress
) -> Outcome[GossipMeta, GossipRow] | None:
    """Run the benchmark; collective. As `groups.measure`."""
    baseline, control = comm.Dup(), comm.Dup()
    rows: list[GossipRow] = []
    failures: list[str] = []
    ctx = pp.Context(comm, transport=options.transport.value, patience=None)
    with ctx, no_garbage_collection():
        for size in options.sizes:
            with named_in_memory_errors(size):
                trials = _trials(options, ctx, baseline, control, size)
                for trial in trials:
                    trial.watch(_WATCHED)
                run_blocks(trials, options, control, progress)
                rows += _rows(trials, control)
                for trial in trials:
                    trial.mixer.free()
                    failures += trial.failures
    meta = GossipMeta(
        **machine(comm),
        transport=options.transport.value,
        dtype=options.dtype.value,
        topology=options.topology,
    )
    for duplicate in (baseline, control):
        duplicate.Free()
    return Outcome(Report(meta, rows), failures) if comm.rank == 0 else None


def ways(options: BenchGossipOptions) -> list[tuple[str, Buffers]]:
    """Return the ways to compare, with their buffers: MPI's have NumPy's."""
    own = [(way.value, buffers) for way in options.ways for buffers in options.buffers]
    return own + [(rival, Buffers.NUMPY) for rival in RIVALS]


def turns(options: BenchGossipOptions) -> int:
    """Return how often `measure` reports progress, if the budget allows."""
    return len(options.sizes) * len(ways(options)) * most_blocks(options)


def about_seconds(options: BenchGossipOptions) -> float | None:
    """About how long `measure` takes; None if the calls are given instead of a budget."""
    if options.calls is not None:
        return None
    return len(options.sizes) * len(ways(options)) * options.budget_ns / 1e9


def _trials(
    options: BenchGossipOptions,
    ctx: pp.Context,
    baseline: MPI.Intracomm,
    control: MPI.Intracomm,
    size: int,
) -> list[_Trial]:
    """Make every way at one size, all with one model of each kind; collective."""
    shares = Shares(ctx.size, size // options.dtype.itemsize, options.dtype)
    graph, dtype = parse(options.topology).on(ctx.size), options.dtype.value
    models = {Buffers.NUMPY: np.zeros(shares.count, dtype)}
    if Buffers.LIBRARY in options.buffers:
        models[Buffers.LIBRARY] = ctx.alloc(shares.count, dtype)
    found = []
    for way, kind in ways(options):
        made = mixer(way, ctx, baseline, models[kind], graph, options.transport)
        found.append(_Trial(way, kind, made, shares, control))
    return found


def _rows(trials: list[_Trial], comm: MPI.Intracomm) -> list[GossipRow]:
    """Return the rows on rank 0, nothing elsewhere. Collective."""
    samples = comm.gather([trial.turn_ns for trial in trials])
    if samples is None:
        return []
    slowest = np.array(samples).max(axis=0)  # by way and block
    rivals = {trial.way: times for trial, times in zip(trials, slowest, strict=True)}
    return [
        GossipRow(
            way=trial.way,
            buffers=trial.buffers.value,
            bytes=trial.receive.nbytes,
            ranks=comm.size,
            latency_us=Latency.of(times),
            best_us=float(times.min()) / 1e3,
            ratio_to_mpi=Spread.of(times / rivals[CACHED]),
            ratio_to_sendrecv=Spread.of(times / rivals[SENDRECV]),
            ratio_to_neighbor=Spread.of(times / rivals[NEIGHBOURS]),
            consensus=trial.consensus,
            blocks=len(times),
            calls=trial.calls // len(times),
            verified=not trial.failures,
        )
        for trial, times in zip(trials, slowest, strict=True)
    ]
