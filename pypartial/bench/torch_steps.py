"""``bench torch``: the time of a training step, beside DistributedDataParallel on gloo.

All ways train the same network from the same weights on the same batches, and take turns in blocks
of as many steps. The value of a block is the mean time of a step on the slowest rank; a ratio is
that of blocks that followed each other. At the end of a block a rank leaves the rounds
(`Context.away`) until all ranks are there: a slower rank, which makes its last steps, need not wait
for it.

In the late part the last rank computes longer in each step. The value of a block is then the mean
over the other ranks, each until it has made its own steps.

When all blocks are done, every way finishes. Its replicas must have the same bits, where a round
waits for all ranks also before; then its weights must be gloo's but for rounding. The loss must
have become smaller.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from mpi4py import MPI

import pypartial as pp

from ..statistics import Spread
from ..units import format_size
from .conditions import machine, no_garbage_collection
from .pace import meet
from .results import Outcome, Report, TorchMeta, TorchRow
from .torch_options import BenchTorchOptions, TorchPart, entries, parameter_bytes
from .torch_ways import Batches, Trainee, difference, same, trainee
from .trials import Progress

Array = npt.NDArray[np.float64]

__all__ = ["about_seconds", "measure", "turns"]

_MOST_BLOCKS = 9
_LEAST_BLOCKS = 5
_MOST_STEPS = 1000
_LEAST_LATE_STEPS = 20
_REHEARSED = 3
# Weights after a run of float32 steps whose sums were rounded in another order: relative.
_ROUNDINGS = 1e-3


def measure(
    options: BenchTorchOptions, comm: MPI.Intracomm, progress: Progress
) -> Outcome[TorchMeta, TorchRow] | None:
    """Run the benchmark; collective.

    Parameters
    ----------
    options : BenchTorchOptions
        The same on every rank.
    comm : mpi4py.MPI.Intracomm
        All ranks. The benchmark communicates on duplicates of it only.
    progress : callable
        Called on this rank with what is being measured, at most once for each of the `turns`.

    Returns
    -------
    Outcome or None
        The results on rank 0, None elsewhere.
    """
    control = comm.Dup()
    rows: list[TorchRow] = []
    failures: list[str] = []
    with (
        _one_thread(),
        _process_group(),
        pp.Context(comm, seed=options.seed, transport=options.transport.value) as ctx,
    ):
        batches = Batches(comm.rank, options.batch, options.seed % 2**32)
        for part, hidden in _cases(options):
            with no_garbage_collection():
                rows += _case(
                    options, _Case(part, hidden, ctx, control, batches), progress, failures
                )
    meta = _meta(options, comm)
    control.Free()
    return Outcome(Report(meta, rows), failures) if comm.rank == 0 else None


def turns(options: BenchTorchOptions) -> int:
    """Return how often `measure` reports progress, if the budget allows."""
    return len(_cases(options)) * len(entries(options)) * (options.blocks or _MOST_BLOCKS)


def about_seconds(options: BenchTorchOptions) -> float | None:
    """About how long `measure` takes; None if the steps are given instead of a budget."""
    if options.steps is not None:
        return None
    return len(_cases(options)) * len(entries(options)) * options.budget_ns / 1e9


def _cases(options: BenchTorchOptions) -> list[tuple[TorchPart, int]]:
    """Return the part and the hidden width of everything that is compared."""
    found = [(part, hidden) for part in options.parts for hidden in options.hidden]
    return [case for case in found if case[0] is TorchPart.BALANCED or case[1] == options.hidden[0]]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute with one thread: the ranks share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _process_group() -> Iterator[None]:
    """Give torch.distributed a default group of all ranks, on gloo; collective."""
    dist.init_process_group("gloo", init_method="mpi://")
    try:
        yield
    finally:
        dist.destroy_process_group()


# ---- one case -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """What all ways of a case have in common."""

    part: TorchPart
    hidden: int
    ctx: pp.Context
    comm: MPI.Intracomm
    batches: Batches


@dataclass
class _Trial:
    """A way in a case, with its samples."""

    trainee: Trainee
    step_ns: list[float] = field(default_factory=list)  # mean of each block, on this rank
    made: int = 0  # steps, in all

    @property
    def name(self) -> str:
        trainee = self.trainee
        return f"{trainee.way}, {trainee.policy}" if trainee.way.has_policies else trainee.way.value


def _case(
    options: BenchTorchOptions, case: _Case, progress: Progress, failures: list[str]
) -> list[TorchRow]:
    """Measure all ways in one case; return the rows on rank 0, nothing elsewhere. Collective."""
    trials = [
        _Trial(trainee(way, policy, case.ctx, case.hidden, case.batches, options.seed % 2**32))
        for way, policy in entries(options)
    ]
    before = trials[0].trainee.loss()
    size = format_size(parameter_bytes(case.hidden))
    computed = _compute_ns(options, case)
    for trial in trials:
        _block(trial, case, computed, _REHEARSED)
    steps, blocks = _repetitions(options, trials, case)
    order = list(trials)
    for trial in trials:
        trial.step_ns.clear()
    for _ in range(blocks):
        for trial in order:
            _block(trial, case, computed, steps)
            progress(f"{trial.name}, {size}, {case.part.value}")
        order.append(order.pop(0))
    complaints = _complaints(trials, case, before)
    failures += [text for texts in complaints for text in texts]
    rows = [
        _row(trial, trials[0], case, steps, not texts)
        for trial, texts in zip(trials, complaints, strict=True)
    ]
    return [row for row in rows if row is not None]


def _compute_ns(options: BenchTorchOptions, case: _Case) -> int:
    """Return how long this rank computes in a step at least."""
    if case.part is TorchPart.BALANCED:
        return 0
    return options.base_ns + (options.late_ns if case.comm.rank == case.comm.size - 1 else 0)


def _block(trial: _Trial, case: _Case, compute_ns: int, steps: int) -> None:
    """Time a block of steps, after one that does not count; collective."""
    with case.ctx.away():
        meet(case.comm)
    began = 0
    for number in range(1 + steps):
        now = time.monotonic_ns()
        began = now if number == 1 else began
        trial.trainee.step(trial.made + number, now + compute_ns)
    trial.step_ns.append((time.monotonic_ns() - began) / steps)
    trial.made += 1 + steps
    with case.ctx.away():
        meet(case.comm)


def _repetitions(
    options: BenchTorchOptions, trials: Sequence[_Trial], case: _Case
) -> tuple[int, int]:
    """Return the steps in a block, and the number of blocks; the same for all ways. Collective.

    Beside a late rank a block has so many steps that ranks are drawn about equally often.
    """
    late = case.part is TorchPart.LATE
    blocks = options.blocks or (_LEAST_BLOCKS if late else _MOST_BLOCKS)
    if options.steps is not None:
        return options.steps, blocks
    slowest: float = case.comm.allreduce(max(trial.step_ns[-1] for trial in trials), MPI.MAX)
    steps = int(options.budget_ns / blocks / slowest)
    if late:
        return max(_LEAST_LATE_STEPS, min(_MOST_STEPS, steps)), blocks
    if options.blocks is None:
        blocks = max(_LEAST_BLOCKS, min(blocks, int(options.budget_ns / slowest)))
    return max(1, min(_MOST_STEPS, steps)), blocks


# ---- what came out -------------------------------------------------------------------------------


def _complaints(trials: Sequence[_Trial], case: _Case, before: float) -> list[list[str]]:
    """Finish all ways, and return what is wrong with each model; the same on all ranks."""
    early = [same(case.comm.allgather(trial.trainee.digest())) for trial in trials]
    for trial in trials:
        trial.trainee.end()
    expected = trials[0].trainee.weights()
    found = []
    for trial, were_equal in zip(trials, early, strict=True):
        texts = []
        if trial.trainee.policy.lockstep and not were_equal:  # `end` may average
            texts.append("the ranks had different weights before the end")
        if not same(case.comm.allgather(trial.trainee.digest())):
            texts.append("the ranks have different weights")
        off = difference(trial.trainee.weights(), expected)
        if trial.trainee.policy.lockstep and not off < _ROUNDINGS:
            texts.append(f"its weights differ from gloo's by {off:.1e} of their norm")
        first, last = case.comm.allreduce(np.array([before, trial.trainee.loss()]))
        if not last < first:
            texts.append(f"the loss was {first:.4g} and is {last:.4g}")
        where = f"{trial.name}, hidden {case.hidden}, {case.part.value}, {trial.made} steps"
        found.append([f"{where}: {text}" for text in texts])
    return found


def _row(
    trial: _Trial, baseline: _Trial, case: _Case, steps: int, verified: bool
) -> TorchRow | None:
    """Return the row of a way on rank 0, None elsewhere. Collective."""
    samples = case.comm.gather((trial.step_ns, baseline.step_ns))
    if samples is None:
        return None
    times, others = np.moveaxis(np.array(samples), 1, 0)  # each by rank and block
    way = trial.trainee.way
    late = case.part is TorchPart.LATE

    def value(by_rank: Array) -> Array:
        return np.asarray(by_rank[:-1].mean(axis=0) if late else by_rank.max(axis=0))

    return TorchRow(
        part=case.part.value,
        way=way.value,
        policy=str(trial.trainee.policy) if way.has_policies else None,
        bytes=parameter_bytes(case.hidden),
        ranks=case.comm.size,
        step_us=Spread.of(value(times) / 1e3),
        late_us=Spread.of(times[-1] / 1e3) if late else None,
        ratio_to_gloo=Spread.of(value(times) / value(others)),
        blocks=times.shape[1],
        steps=steps,
        verified=verified,
    )


def _meta(options: BenchTorchOptions, comm: MPI.Intracomm) -> TorchMeta:
    """Describe a run; collective."""
    return TorchMeta(
        **machine(comm),
        torch=str(torch.__version__),
        transport=options.transport.value,
        seed=options.seed,
        batch=options.batch,
        base_us=options.base_ns / 1e3,
        late_us=options.late_ns / 1e3,
    )
