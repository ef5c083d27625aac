"""The micro-benchmark of eager-SGD, Fig. 8: latency of an allreduce to which ranks come late.

Before every round there is a barrier.  Rank r then sleeps or computes for r times the skew and
calls; its latency is the time from Start to the return of Wait (or of MPI_Allreduce).  Averages are
over all ranks and rounds.

For each size the policies take turns, a few rounds each, in an order that rotates: a machine that
slowly gets busier does so for all of them.  A turn begins with a round that is not measured.  All
use the same two buffers.  Every result is
verified, between the rounds and not while anybody's call is timed.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from mpi4py import MPI

import pypartial as pp

from ..statistics import Active, Latency
from ..units import format_size
from .launch import seconds_since_launch
from .options import PolicyChoice, PolicyKind, SkewOptions
from .pace import Pace
from .pattern import Ledger, Pattern
from .results import Meta, Report, Row, with_speedups

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

Progress = Callable[[str], None]

# Rounds of one policy in a row.
_TURN = 10


@dataclass(frozen=True)
class Outcome:
    """What rank 0 holds after a run.

    Attributes
    ----------
    report : Report
    failures : list of str
        What was wrong with sums or statuses, in words: the first few of every rank and row.
    """

    report: Report
    failures: list[str]


def measure(options: SkewOptions, comm: MPI.Intracomm, progress: Progress) -> Outcome | None:
    """Run the benchmark; collective.

    Parameters
    ----------
    options : SkewOptions
        The same on every rank.
    comm : mpi4py.MPI.Intracomm
        Duplicated, and not used otherwise.
    progress : callable
        Told on this rank, now and then, what is measured; once for each of the `turns`.

    Returns
    -------
    Outcome or None
        The results on rank 0, None elsewhere.

    Raises
    ------
    MemoryError
        Naming the size, on this rank only: the caller must end the others.
    """
    baseline, control = comm.Dup(), comm.Dup()
    pace = Pace(control, options)
    rows: list[Row] = []
    failures: list[str] = []
    late = 0
    first_round_s = None
    with pp.Context(comm, seed=options.seed, transport=options.transport.value) as ctx:
        for size in options.sizes:
            with _named_in_memory_errors(size):
                trials = _trials(options, size, ctx, baseline)
                if first_round_s is None:
                    first_round_s = seconds_since_launch()
                with _no_garbage_collection():
                    _take_turns(trials, pace, options, progress)
                for trial in trials:
                    rows += trial.finish(control, options)
                    failures += control.allreduce(trial.ledger.failures)
                    late += control.allreduce(trial.late)
    calls = options.rounds * comm.size * len(options.policies) * len(options.sizes)
    meta = _meta(options, comm, pace, first_round_s, late / calls)
    pace.free()
    for duplicate in (baseline, control):
        duplicate.Free()
    return Outcome(Report(meta, with_speedups(rows)), failures) if comm.rank == 0 else None


def shortage(options: SkewOptions, comm: MPI.Intracomm) -> str | None:
    """Say which size does not fit into memory, before anything is measured; collective.

    Looks for two buffers a rank, which every policy needs: more may turn out to be too much later.

    Returns
    -------
    str or None
        The same on every rank; None if nothing speaks against the sizes.
    """
    size = max(options.sizes)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    needed = 2 * size * node.size
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    problem = None
    if needed > physical:
        problem = (
            f"the send and receive buffers of all ranks of a node take {format_size(needed)}, and "
            f"the node of rank {comm.rank} has {physical / 2**30:.1f} GB of memory"
        )
    else:
        try:  # a limit of the process may be lower; memory that is not touched costs nothing
            _ = np.empty(size, np.uint8), np.empty(size, np.uint8)
        except MemoryError:
            problem = f"rank {comm.rank} has no memory for a send and a receive buffer"
    node.Free()
    found = next((text for text in comm.allgather(problem) if text is not None), None)
    return None if found is None else f"--size {format_size(size)}: {found}"


def turns(options: SkewOptions) -> int:
    """How often `measure` reports progress."""
    return len(options.sizes) * len(options.policies) * -(-options.rounds // _TURN)


class _Contender(Protocol):
    """A way to sum over all ranks."""

    def call(self) -> None:
        """Sum the buffers: what is timed."""

    def status(self) -> pp.Status | None:
        """Return the newest call's status, if there is one."""

    def cpu_ns(self) -> int:
        """Return the CPU time taken so far outside the calling thread."""

    def flush(self) -> pp.Status | None:
        """Deliver what is still pending, and return its status.  Collective."""

    def free(self) -> None:
        """Release what it holds.  Collective."""


class _Partial:
    """A partial allreduce of this library, in its blocking form."""

    def __init__(self, ctx: pp.Context, policy: pp.Policy, send: Array, receive: Array) -> None:
        self._ctx = ctx
        self._request = ctx.Allreduce_init(
            send, receive, op=MPI.SUM, policy=policy, deliver="latest"
        )
        self._status = pp.Status()

    def call(self) -> None:
        self._request.Start()
        self._request.Wait(self._status)

    def status(self) -> pp.Status:
        return self._status

    def cpu_ns(self) -> int:
        return self._ctx.stats().progress_cpu_ns

    def flush(self) -> pp.Status:
        self._request.Flush(self._status)
        return self._status

    def free(self) -> None:
        self._request.Free()


class _Synchronous:
    """MPI_Allreduce."""

    def __init__(self, comm: MPI.Intracomm, send: Array, receive: Array) -> None:
        self._comm = comm
        self._send = send
        self._receive = receive

    def call(self) -> None:
        self._comm.Allreduce(self._send, self._receive, MPI.SUM)

    def status(self) -> None:
        return None

    def cpu_ns(self) -> int:
        return 0

    def flush(self) -> None:
        return None

    def free(self) -> None:
        pass


@dataclass
class _Trial:
    """One policy at one size: its contender, its account and its samples on this rank."""

    choice: PolicyChoice
    contender: _Contender
    receive: Array
    ledger: Ledger
    latency_ns: list[int] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    cpu_ns: int = 0
    late: int = 0

    def turn(self, pace: Pace, rounds: int) -> None:
        """Run rounds and keep their samples, after one that leads in; collective.

        While the others had their turns, late contributions of this one's last turn were pending.
        Their ranks waited elsewhere and so count as active in the round that takes them, which says
        nothing about this policy.
        """
        self.lead_in(pace, 1)
        before = self.contender.cpu_ns()
        for _ in range(rounds):
            latency_ns, cpu_ns, in_time = self._round(pace)
            self.latency_ns.append(latency_ns)
            self.cpu_ns += cpu_ns
            self.late += not in_time
            self.active.append(self._active())
        self.cpu_ns += self.contender.cpu_ns() - before

    def lead_in(self, pace: Pace, rounds: int) -> None:
        """Run rounds that are checked, but not measured; collective."""
        for _ in range(rounds):
            self._round(pace)

    def _active(self) -> int:
        status = self.contender.status()
        return self.ledger.pattern.ranks if status is None else status.active

    def _round(self, pace: Pace) -> tuple[int, int, bool]:
        """Run a round; return latency, CPU time of the caller, and whether it began in time."""
        # So that a call that leaves the buffer as it was is noticed: no sum is negative.
        self.receive.fill(-1)
        begin = pace.begin()
        in_time = pace.approach(begin)
        cpu_before = time.thread_time_ns()
        before = time.monotonic_ns()
        self.contender.call()
        after = time.monotonic_ns()
        cpu_after = time.thread_time_ns()
        pace.settle(begin)
        self.ledger.enter(self.receive, self.contender.status())
        return after - before, cpu_after - cpu_before, in_time

    def finish(self, comm: MPI.Intracomm, options: SkewOptions) -> list[Row]:
        """Flush, free and compare the ranks' accounts; the row on rank 0.  Collective."""
        self.receive.fill(-1)
        status = self.contender.flush()
        if status is not None:
            self.ledger.flush(self.receive, status)
        self.contender.free()
        self.ledger.compare(comm.allgather(self.ledger.digests))
        wrong = comm.allreduce(len(self.ledger.failures))
        samples = comm.gather((self.latency_ns, self.cpu_ns))
        if samples is None:
            return []
        latencies, cpu = zip(*samples, strict=True)
        return [
            Row(
                policy=self.choice.label,
                bytes=self.receive.nbytes,
                ranks=comm.size,
                rounds=len(self.latency_ns),
                latency_us=Latency.of(latencies),
                speedup_vs_mpi=None,
                active=Active.of(self.active),
                active_expected=(
                    self.choice.expected_active(comm.size) if options.skew_ns else None
                ),
                cpu_us_per_round=sum(cpu) / 1e3 / comm.size / len(self.latency_ns),
                verified=wrong == 0,
            )
        ]


def _trials(
    options: SkewOptions, size: int, ctx: pp.Context, baseline: MPI.Intracomm
) -> list[_Trial]:
    """Every policy at one size, on the same two buffers; collective."""
    pattern = Pattern(ctx.size, size // options.dtype.itemsize, options.dtype)
    send = pattern.contribution(ctx.rank)
    receive = np.empty_like(send)
    return [
        _Trial(
            choice,
            _contender(choice, ctx, baseline, send, receive),
            receive,
            Ledger(pattern, choice, ctx.rank),
        )
        for choice in options.policies
    ]


def _contender(
    choice: PolicyChoice, ctx: pp.Context, baseline: MPI.Intracomm, send: Array, receive: Array
) -> _Contender:
    policy: pp.Policy
    if choice.kind is PolicyKind.MPI:
        return _Synchronous(baseline, send, receive)
    if choice.kind is PolicyKind.SOLO:
        policy = pp.Solo()
    elif choice.kind is PolicyKind.MAJORITY:
        policy = pp.Majority()
    elif choice.kind is PolicyKind.FULL:
        policy = pp.Full()
    else:
        policy = pp.Quorum(choice.quorum or 0)
    return _Partial(ctx, policy, send, receive)


def _take_turns(
    trials: Sequence[_Trial], pace: Pace, options: SkewOptions, progress: Progress
) -> None:
    """Warm up, then run all rounds, interleaved; collective."""
    for trial in trials:
        trial.lead_in(pace, options.warmup)
    order = list(trials)
    for done in range(0, options.rounds, _TURN):
        for trial in order:
            trial.turn(pace, min(_TURN, options.rounds - done))
            progress(f"{trial.choice.label}, {format_size(trial.receive.nbytes)}")
        order.append(order.pop(0))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep the cyclic collector out of the measurement."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _named_in_memory_errors(size: int) -> Iterator[None]:
    """Have a lack of memory say at which size it happened."""
    try:
        yield
    except MemoryError as error:
        raise MemoryError(f"--size {format_size(size)}: {error}") from error


def _meta(
    options: SkewOptions,
    comm: MPI.Intracomm,
    pace: Pace,
    first_round_s: float | None,
    late_calls: float,
) -> Meta:
    """Describe the run; collective."""
    vendor, numbers = MPI.get_vendor()
    return Meta(
        mpi=f"{vendor} {'.'.join(map(str, numbers))}",
        ranks=comm.size,
        cores=pace.on_each_node(os.cpu_count() or 1),
        version=pp.__version__,
        skew_us=options.skew_ns / 1e3,
        work=options.work.value,
        transport=options.transport.value,
        nodes=pace.on_each_node(1),
        python=platform.python_version(),
        dtype=options.dtype.value,
        seed=options.seed,
        warmup=options.warmup,
        first_round_s=first_round_s,
        late_calls=late_calls,
    )
