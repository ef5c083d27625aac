"""``pypartial sim skew``: a loop of many simulated ranks under a policy.

In every step, a rank computes for as long as the arrival model says, then calls Start and Wait of
one partial allreduce. The engine is the one that runs over MPI; the time is virtual.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..policy import Full, Policy
from ..statistics import Active
from . import memory
from .allreduce_handle import Handle, Options, Round
from .arrivals import Arrivals
from .network import Network
from .options import Death, Deliver
from .world import World

_LONGEST_NS = 1 << 61
_INT8_MODULUS, _INT64_MODULUS = 1 << 8, 1 << 64


class TooLong(ValueError):
    """The simulation takes more virtual time than possible; the text says what to change."""


@dataclass(frozen=True)
class Run:
    """One simulation.

    Attributes
    ----------
    ranks, size, steps : int
        `size` is in bytes of a rank's vector. The simulation ends when the first rank has made all
        steps; the others may have made fewer by then.
    arrivals : Arrivals
        How long each rank computes in each step.
    network : Network
    seed : int
        Seed of the draws of network and policy.
    barrier : bool
        Whether all ranks begin each step together, as in ``bench skew``.
    deliver : Deliver
    max_lag : int or None
        None: no bound for ``latest``, else window - 1.
    window : int
    death : Death or None
    patience : int or None
        Nanoseconds for which a rank may hold a round up; -1: by its usual time; None: for ever.
    """

    ranks: int
    size: int
    steps: int
    arrivals: Arrivals
    network: Network
    seed: int = 0
    barrier: bool = False
    deliver: Deliver = Deliver.LATEST
    max_lag: int | None = None
    window: int = 4
    death: Death | None = None
    patience: int | None = None

    def options(self, policy: Policy) -> Options:
        """Return the options of the handle."""
        wide = self.size % 8 == 0
        lag = self.max_lag
        if lag is None:
            lag = -1 if self.deliver is Deliver.LATEST else self.window - 1
        return Options(
            count=self.size // 8 if wide else self.size,
            dtype="int64" if wide else "int8",
            policy=policy,
            deliver=self.deliver.value,
            max_lag=lag,
        )


@dataclass(frozen=True)
class Times:
    """Durations of all ranks and steps, in microseconds."""

    mean: float
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, nanoseconds: npt.NDArray[np.int64]) -> Times:
        """Summarise durations of any shape."""
        values = nanoseconds.ravel() / 1e3
        p50, p99 = np.percentile(values, [50, 99])
        summary = (float(values.mean()), float(p50), float(p99), float(values.max()))
        return cls(*(round(value, 3) for value in summary))


@dataclass(frozen=True)
class Idle:
    """Share of the time that ranks spent inside Start and Wait."""

    mean: float
    min: float
    max: float
    per_rank: tuple[float, ...]

    @classmethod
    def of(cls, shares: npt.NDArray[np.float64]) -> Idle:
        """Summarise the shares of all ranks."""
        summary = (shares.mean(), shares.min(), shares.max())
        mean, least, most = (round(float(share), 4) for share in summary)
        return cls(mean, least, most, tuple(np.round(shares, 4).tolist()))


@dataclass(frozen=True)
class Row:
    """The results of one policy.

    Attributes
    ----------
    policy : str
    ranks, bytes, steps : int
    rounds : int
        Rounds completed before the first rank had made all steps.
    step_us : Times
        From the beginning of a step to the end of its Wait.
    latency_us : Times
        From Start to the end of Wait.
    speedup_vs_synchronous : float
        Mean time of a step of ``full`` over this one's.
    latency_speedup_vs_synchronous : float
    active : Active
        Ranks that were ready for a round, over the rounds that some rank was given.
    active_expected : float or None
        The expected number, for distinct arrival times; None without a barrier.
    staleness : dict of str to int
        Number of parts that ranks gave to rounds, by the staleness of the oldest contribution.
    stale_share : float
        Share of the parts that were stale.
    causes : dict of str to int
        Number of rounds that some rank was given, by cause: "policy" or "departed".
    missed : float
        Mean number of rounds completed between a request and the next Start.
    messages_per_rank_step, bytes_per_rank_step : float
        Messages and bytes that a rank sent in a step, headers included.
    idle : Idle
    verified : bool
        Whether every sum matched the contributions that the statuses of its rounds name.
    unchecked : int
        Sums (``deliver="sum"``) of which no rank was given the status of some round.
    """

    policy: str
    ranks: int
    bytes: int
    steps: int
    rounds: int
    step_us: Times
    latency_us: Times
    speedup_vs_synchronous: float
    latency_speedup_vs_synchronous: float
    active: Active
    active_expected: float | None
    staleness: dict[str, int]
    stale_share: float
    causes: dict[str, int]
    missed: float
    messages_per_rank_step: float
    bytes_per_rank_step: float
    idle: Idle
    verified: bool
    unchecked: int


@dataclass
class _Record:
    """The results that the ranks of one simulation were given, and their times."""

    begun: npt.NDArray[np.int64]  # of shape (steps, ranks), like the next two
    called: npt.NDArray[np.int64]
    ended: npt.NDArray[np.int64]
    done: npt.NDArray[np.int64]  # steps that each rank has made
    active: dict[int, int] = field(default_factory=dict)
    causes: dict[int, str] = field(default_factory=dict)
    contributions: dict[int, int] = field(default_factory=dict)
    sums: dict[tuple[int, int], int] = field(default_factory=dict)  # of several rounds
    missed: int = 0
    verified: bool = True
    unchecked: int = 0
    messages: int = 0
    bytes: int = 0
    rounds: int = 0

    @classmethod
    def empty(cls, steps: int, ranks: int) -> _Record:
        begun, called, ended = (np.zeros((steps, ranks), np.int64) for _ in range(3))
        return cls(begun, called, ended, np.zeros(ranks, np.int64))

    def check_sums(self, modulus: int) -> None:
        """Compare sums of several rounds with the contributions that these had."""
        for (first, newest), total in self.sums.items():
            counts = [self.contributions.get(number) for number in range(first, newest + 1)]
            known = [count for count in counts if count is not None]
            if len(known) < len(counts):
                self.unchecked += 1
            else:
                self.verified &= (total - sum(known)) % modulus == 0


class _Loop:
    """A running simulation."""

    def __init__(
        self,
        run: Run,
        policy: Policy,
        work: npt.NDArray[np.int64],
        progress: Callable[[float], None],
    ) -> None:
        self.run, self.work = run, work
        self.progress, self.most_done = progress, 0
        self.options = run.options(policy)
        self.record = _Record.empty(run.steps, run.ranks)
        self.world = World(
            run.ranks,
            seed=run.seed,
            network=run.network,
            window=run.window,
            patience=run.patience,
        )
        self.handles = self.world.agreed(self.options)
        one_byte = self.handles[0].recv.itemsize == 1
        self.modulus = _INT8_MODULUS if one_byte else _INT64_MODULUS
        self.counted = False
        if run.death is not None:
            self.world.kill(run.death.rank, run.death.time_ns, run.death.told_ns)

    def program(self, rank: int) -> Generator[Any, Any, None]:
        run, record, world = self.run, self.record, self.world
        handle = self.handles[rank]
        for step in range(run.steps):
            if run.barrier and step > 0:
                yield ("barrier",)
            record.begun[step, rank] = world.now
            yield int(self.work[step, rank])
            record.called[step, rank] = world.now
            handle.send[:1] = 1
            yield ("start", handle)
            result: Round = yield ("wait", handle)
            record.ended[step, rank] = world.now
            record.done[rank] += 1
            self.note(handle, result)
            if step >= self.most_done:  # the first rank through this step
                self.most_done = step + 1
                self.progress(self.most_done / run.steps)
        if run.barrier:
            yield ("barrier",)
        if not self.counted:
            self.counted = True
            self.count()
            world.stop()

    def note(self, handle: Handle, result: Round) -> None:
        record = self.record
        record.active[result.round] = result.active
        record.causes[result.round] = result.cause
        record.missed += result.missed
        record.contributions[result.round] = result.contributions
        span, total = (result.first, result.round), int(handle.recv[0])
        if result.first == result.round:
            record.verified &= (total - result.contributions) % self.modulus == 0
        else:
            record.verified &= record.sums.setdefault(span, total) == total

    def count(self) -> None:
        """Count the messages and bytes that all ranks have sent so far, and the rounds."""
        for rank in range(self.run.ranks):
            stats = self.world.stats(rank)
            self.record.messages += int(stats.messages_sent + stats.bulk_sent)
            self.record.bytes += int(stats.bytes_sent)
            self.record.rounds = max(self.record.rounds, int(stats.rounds))


def _simulate(
    run: Run, policy: Policy, work: npt.NDArray[np.int64], progress: Callable[[float], None]
) -> Row:
    loop = _Loop(run, policy, work, progress)
    loop.world.run([loop.program(rank) for rank in range(run.ranks)])
    record, world = loop.record, loop.world
    record.check_sums(loop.modulus)
    made = np.arange(run.steps)[:, None] < record.done
    latency, step = record.ended - record.called, record.ended - record.begun
    waited = np.where(made, latency, 0).sum(axis=0)
    whole = np.where(made, step, 0).sum(axis=0)
    staleness = world.staleness()
    last = len(staleness) - 1
    made_steps = int(record.done.sum())
    return Row(
        policy=str(policy),
        ranks=run.ranks,
        bytes=run.size,
        steps=run.steps,
        rounds=record.rounds,
        step_us=Times.of(step[made]),
        latency_us=Times.of(latency[made]),
        speedup_vs_synchronous=1.0,
        latency_speedup_vs_synchronous=1.0,
        active=Active.of(list(record.active.values())),
        active_expected=policy.expected_active(run.ranks) if run.barrier else None,
        staleness={
            f"{rounds}{'+' if rounds == last else ''}": count
            for rounds, count in enumerate(staleness)
            if count
        },
        stale_share=round(1 - staleness[0] / max(sum(staleness), 1), 4),
        causes=dict(sorted(Counter(record.causes.values()).items())),
        missed=round(record.missed / made_steps, 4),
        messages_per_rank_step=round(record.messages / made_steps, 3),
        bytes_per_rank_step=round(record.bytes / made_steps, 1),
        idle=Idle.of(waited / np.maximum(whole, 1)),
        verified=record.verified,
        unchecked=record.unchecked,
    )


def compare(
    run: Run,
    policies: Sequence[Policy],
    progress: Callable[[str, float], None] = lambda _text, _share: None,
) -> list[Row]:
    """Simulate each policy on the same arrivals.

    Parameters
    ----------
    run : Run
    policies : sequence of Policy
        ``full``, the synchronous collective, is always simulated, because the other policies are
        compared with it. It comes last if it is not among them.
    progress : callable
        Called now and then with the policy that is simulated, and with the share of all policies
        that is done, from 0 to 1.

    Raises
    ------
    OutOfMemory
        If the simulation does not fit into memory; nothing was allocated.
    TooLong
        If it takes more virtual time than possible.
    Deadlock
        If nothing moves any more; the error names the operations that wait, and the ranks that they
        wait for.
    CoreError
        If a rank's call failed, for example because it was told that another rank has died.
    """
    memory.require(run.ranks, run.size, steps=run.steps, window=run.window)
    work = np.empty((run.steps, run.ranks), np.int64)
    for step in range(run.steps):
        work[step] = run.arrivals.times(step)
    if float(work.sum(axis=0, dtype=np.float64).max()) > _LONGEST_NS:
        raise TooLong(
            f"{run.arrivals.text}: {run.steps} steps take more virtual time than a simulation can "
            "have (2**61 ns, 73 years): choose fewer --steps"
        )
    synchronous = Full()
    rows: list[Row] = []
    simulated = [*policies, *(() if synchronous in policies else (synchronous,))]
    for policy in simulated:

        def advance(share: float, policy: Policy = policy) -> None:
            progress(str(policy), (len(rows) + share) / len(simulated))

        advance(0.0)
        rows.append(_simulate(run, policy, work, advance))
    base = next(row for row in rows if row.policy == str(synchronous))
    return [
        dataclasses.replace(
            row,
            speedup_vs_synchronous=_ratio(base.step_us, row.step_us),
            latency_speedup_vs_synchronous=_ratio(base.latency_us, row.latency_us),
        )
        for row in rows
    ]


def _ratio(base: Times, other: Times) -> float:
    return round(base.mean / other.mean, 4) if other.mean > 0 else 1.0
