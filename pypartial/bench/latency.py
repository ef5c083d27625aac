"""``bench latency``: an allreduce, balanced or skewed, beside MPI's own and the copy of a buffer.

At each size all ways to sum take turns in blocks of calls: the library's policies with each kind of
buffers, MPI_Allreduce, MPI_Iallreduce with MPI_Wait, and MPI's persistent allreduce; so does the
copy of a buffer by all ranks at once. On a device only MPI_Allreduce, staged by hand, and the copy
there do; and a call ends when its result is on the device. In a balanced block, calls follow each
other without a barrier; with skew, every call is a round of ``bench skew``. The value of a block is
the mean time of a call on the slowest rank; the result is the median over the blocks.

Before the blocks each way is called a few times, and each result is checked. Its speed is then
measured, from which the number of calls in a block follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

import pypartial as pp

from .._launch import seconds_since_launch
from ..statistics import Active, Latency
from .conditions import (
    context_options,
    named_in_memory_errors,
    no_garbage_collection,
    surroundings,
)
from .contenders import any_pair, contender, has_persistent
from .device_arrays import Devices, with_path
from .ledger import Ledger, LoopLedger
from .options import (
    AnyBuffers,
    Buffers,
    DeviceBuffers,
    LatencyOptions,
    Repetitions,
    Rival,
    Way,
    asked_path,
    expected_active,
    ways_and_buffers,
)
from .pace import Pace
from .pattern import Pattern
from .results import LatencyMeta, LatencyRow, Outcome, Report, with_ratios
from .trials import AnyTrial, Loop, Measured, Progress, Rounds, take_turns

_MOST_BLOCKS = 9
_LEAST_BLOCKS = 5
_MOST_CALLS = 10_000
# Calls of a rehearsal: few if they take long, and fewer than a sum can count from one rank.
_MOST_REHEARSED = 15
_LEAST_REHEARSED = 3
_REHEARSED_BYTES = 1 << 25
BITS_NEEDED = 4

_NO_DEVICES = Devices()
_LACKING = "MPI's persistent allreduce (MPI_Allreduce_init, MPI-4)"


@dataclass(frozen=True)
class _Entry:
    """A way to sum with a kind of buffers."""

    buffers: AnyBuffers
    trial: AnyTrial
    device_path: str | None = None


def measure(
    options: LatencyOptions,
    comm: MPI.Intracomm,
    progress: Progress,
    devices: Devices = _NO_DEVICES,
) -> Outcome[LatencyMeta, LatencyRow] | None:
    """Run the benchmark; collective.

    Parameters
    ----------
    options : LatencyOptions
        The same on every rank.
    comm : mpi4py.MPI.Intracomm
        All ranks. The benchmark communicates on duplicates of it only.
    progress : callable
        Called on this rank with what is being measured, at most once for each of the `turns`.
    devices : Devices
        For the options' buffers on a device.

    Returns
    -------
    Outcome or None
        The results on rank 0, None elsewhere.

    Raises
    ------
    MemoryError
        If a size does not fit; the text names it. Only this rank raises: the caller must end the
        other ranks.
    """
    baseline, control = comm.Dup(), comm.Dup()
    pace = Pace(control, options)
    persistent = has_persistent(baseline)
    rows: list[LatencyRow] = []
    reasons: list[str] = []
    failures: list[str] = []
    late = calls = 0
    first_round_s = None
    with pp.Context(comm, **context_options(options)) as ctx:
        for size in options.sizes:
            with named_in_memory_errors(size):
                ways = _ways(options, persistent)
                comms = baseline, control
                entries = _entries(options, size, ctx, comms, ways, pace, devices, reasons)
                if first_round_s is None:
                    first_round_s = seconds_since_launch()
                with no_garbage_collection():
                    run_blocks([entry.trial for entry in entries], options, control, progress)
                for entry in entries:
                    rows += _rows(entry, control, options)
                    failures += control.allreduce(entry.trial.ledger.failures)
                    if isinstance(entry.trial, Rounds):  # others have no time to be late for
                        late += control.allreduce(entry.trial.late)
                        calls += entry.trial.calls * comm.size
    meta = LatencyMeta(
        **surroundings(options, control),
        first_round_s=first_round_s,
        late_calls=late / calls if calls else 0.0,
        lacking=[] if persistent else [_LACKING],
        device=with_path(devices.facts, asked_path(options), reasons),
    )
    pace.free()
    for duplicate in (baseline, control):
        duplicate.Free()
    return Outcome(Report(meta, with_ratios(rows)), failures) if comm.rank == 0 else None


def turns(options: LatencyOptions) -> int:
    """Return how often `measure` reports progress, if the budget allows."""
    return len(options.sizes) * len(_ways(options, True)) * most_blocks(options)


def about_seconds(options: LatencyOptions) -> float | None:
    """About how long `measure` takes; None if the calls are given instead of a budget."""
    if options.calls is not None:
        return None
    return len(options.sizes) * len(_ways(options, True)) * options.budget_ns / 1e9


def most_blocks(options: Repetitions) -> int:
    """Return the number of blocks of each way, if the budget allows."""
    return options.blocks or _MOST_BLOCKS


def pairs(options: LatencyOptions) -> int:
    """Return how many pairs of a send and a receive buffer a rank has in the host's memory."""
    kinds = {buffers for _, buffers in _ways(options, True)}
    # What is staged by hand has a pair in pinned memory besides the mirrors.
    return len(kinds) + (DeviceBuffers.BY_HAND in kinds)


def _ways(options: LatencyOptions, persistent: bool) -> list[tuple[Way, AnyBuffers]]:
    """Return the ways and buffers to compare at each size; only policies use library buffers."""
    ways = ways_and_buffers(options.policies, options.buffers)
    if any(isinstance(buffers, Buffers) for buffers in options.buffers):
        rivals = [Rival.MPI, Rival.MPI_NONBLOCKING]
        rivals += [Rival.MPI_PERSISTENT] if persistent else []
        ways += [(rival, Buffers.NUMPY) for rival in (*rivals, Rival.COPY)]
    on_device = [buffers for buffers in options.buffers if isinstance(buffers, DeviceBuffers)]
    if on_device:
        ways += [(Rival.MPI, DeviceBuffers.BY_HAND), (Rival.COPY, on_device[0])]
    return ways


def _entries(
    options: LatencyOptions,
    size: int,
    ctx: pp.Context,
    comms: tuple[MPI.Intracomm, MPI.Intracomm],
    ways: Sequence[tuple[Way, AnyBuffers]],
    pace: Pace,
    devices: Devices,
    reasons: list[str],
) -> list[_Entry]:
    """Make every way at one size, with one pair of buffers of each kind; collective.

    `reasons` gets those for which elements on a device do not travel as was asked for.
    """
    baseline, control = comms
    bits = {} if options.skew_ns else {"bits_needed": BITS_NEEDED}
    pattern = Pattern(ctx.size, size // options.dtype.itemsize, options.dtype, **bits)
    pairs = {
        buffers: any_pair(ctx, buffers, devices.libraries, pattern.contribution(ctx.rank))
        for buffers in dict.fromkeys(buffers for _, buffers in ways)
    }
    entries = []
    asked = asked_path(options)
    for way, buffers in ways:
        pair = pairs[buffers]
        what = contender(way, ctx, baseline, pair, device_path=asked)
        path, reason = what.device_path()
        reasons.append(reason)
        trial: AnyTrial
        if options.skew_ns and way is not Rival.COPY:
            ledger = Ledger(pattern, way, ctx.rank)
            trial = Rounds(way, what, pace, control, pair.receive, ledger)
        else:
            looped = LoopLedger(pattern, way, ctx.rank)
            trial = Loop(way, what, pace, control, pair.receive, looped)
        entries.append(_Entry(buffers, trial, path))
    return entries


def run_blocks(
    trials: Sequence[Measured],
    options: Repetitions,
    control: MPI.Intracomm,
    progress: Progress,
) -> None:
    """Rehearse, choose the number of calls in a block, and measure; collective."""
    size = trials[0].receive.nbytes
    rehearsed = max(_LEAST_REHEARSED, min(_MOST_REHEARSED, _REHEARSED_BYTES // size))
    for trial in trials:
        trial.rehearse(rehearsed)
    calls, blocks = _repetitions(trials, options, control)
    for trial in trials:
        trial.forget()
    take_turns([(trial, [calls[n]] * blocks) for n, trial in enumerate(trials)], progress)


def _repetitions(
    trials: Sequence[Measured], options: Repetitions, control: MPI.Intracomm
) -> tuple[list[int], int]:
    """Return the calls in a block of each trial, and the number of blocks of all; collective.

    Blocks last equally long, so a fast way gets more calls. If a single call is longer than a block
    should be, there are fewer blocks.
    """
    most = most_blocks(options)
    if options.calls is not None:
        return [options.calls] * len(trials), most
    block_ns = options.budget_ns / most
    slowest = [_time_of_a_call(trial, block_ns, control) for trial in trials]
    calls = [max(1, min(_MOST_CALLS, int(block_ns / ns))) for ns in slowest]
    if options.blocks is not None:
        return calls, most
    longest = max(number * ns for number, ns in zip(calls, slowest, strict=True))
    return calls, max(_LEAST_BLOCKS, min(most, int(options.budget_ns / longest)))


def _time_of_a_call(trial: Measured, block_ns: float, control: MPI.Intracomm) -> float:
    """Return the time of a call on the slowest rank, from a turn of sensible length."""
    calls = 1
    while True:
        slowest: float = max(1.0, control.allreduce(trial.turn(calls), MPI.MAX))
        if calls == _MOST_CALLS or calls * slowest >= block_ns / 2:
            return slowest
        calls = min(_MOST_CALLS, 10 * calls, int(block_ns / slowest))


def _rows(entry: _Entry, comm: MPI.Intracomm, options: LatencyOptions) -> list[LatencyRow]:
    """Finish a trial, and return its row on rank 0, nothing elsewhere. Collective."""
    trial = entry.trial
    trial.finish()
    wrong = comm.allreduce(len(trial.ledger.failures))
    samples = comm.gather((trial.turn_ns, trial.turn_cpu_ns))
    if samples is None:
        return []
    by_rank, cpu = (np.array(values) for values in zip(*samples, strict=True))
    slowest = by_rank.max(axis=0)
    latency = Latency.of(slowest)
    blocks = by_rank.shape[1]
    calls = trial.calls // blocks
    return [
        LatencyRow(
            policy=str(trial.way),
            bytes=trial.receive.nbytes,
            ranks=comm.size,
            rounds=trial.calls,
            latency_us=latency,
            speedup_vs_mpi=None,
            active=Active.of(trial.active),
            active_expected=expected_active(trial.way, comm.size) if options.skew_ns else None,
            cpu_us_per_round=float(np.median(cpu.mean(axis=0))) / 1e3 / calls,
            verified=wrong == 0,
            buffers=entry.buffers.value,
            device_path=entry.device_path,
            blocks=blocks,
            calls=calls,
            best_us=float(slowest.min()) / 1e3,
            mean_of_ranks_us=float(np.median(by_rank.mean(axis=0))) / 1e3,
            gb_per_s=trial.receive.nbytes / 1e3 / latency.p50,
            ratio_to_mpi=None,
            ratio_to_memcpy=None,
        )
    ]
