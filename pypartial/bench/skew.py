"""``bench skew``: the micro-benchmark of eager-SGD, Fig. 8, an allreduce with late ranks.

A barrier precedes every round. Rank r then sleeps or computes for r times the skew and calls; its
latency is the time from Start to the return of Wait (or of MPI_Allreduce). Averages are over all
ranks and rounds.

For each size the policies take turns, a few rounds each, in an order that rotates, so that a
machine that slowly gets busier affects all of them alike. A turn begins with a round that is not
measured. All policies use the same two buffers, of each kind. On a device a call ends when its
result is there; MPI's is staged by hand. If ranks compute, rounds without any call take turns as
well: a rank's computation in the other rounds is compared with the time that it takes there. Every
result is verified, between the rounds, when no call is being timed.
"""

from __future__ import annotations

from mpi4py import MPI

import pypartial as pp

from .._launch import seconds_since_launch
from ..statistics import Active, Latency
from .conditions import context_options, named_in_memory_errors, no_garbage_collection, surroundings
from .contenders import any_pair, contender
from .device_arrays import Devices, with_path
from .ledger import Ledger
from .options import (
    AnyBuffers,
    DeviceBuffers,
    Rival,
    SkewOptions,
    Way,
    Work,
    asked_path,
    expected_active,
    ways_and_buffers,
)
from .pace import Pace
from .pattern import Pattern
from .results import Outcome, Report, Row, SkewMeta, with_speedups
from .trials import Progress, Rounds, Silence, take_turns

# Rounds of one policy in a turn.
_TURN = 10
_NO_DEVICES = Devices()


def measure(
    options: SkewOptions,
    comm: MPI.Intracomm,
    progress: Progress,
    devices: Devices = _NO_DEVICES,
) -> Outcome[SkewMeta, Row] | None:
    """Run the benchmark; collective.

    Parameters
    ----------
    options : SkewOptions
        The same on every rank.
    comm : mpi4py.MPI.Intracomm
        All ranks. The benchmark communicates on duplicates of it only.
    progress : callable
        Called on this rank with what is being measured, once for each of the `turns`.
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
    rows: list[Row] = []
    reasons: list[str] = []
    failures: list[str] = []
    late = 0
    first_round_s = None
    with pp.Context(comm, **context_options(options)) as ctx:
        for size in options.sizes:
            with named_in_memory_errors(size):
                comms = baseline, control
                kinds, trials = _trials(options, size, ctx, comms, pace, devices, reasons)
                if first_round_s is None:
                    first_round_s = seconds_since_launch()
                with no_garbage_collection():
                    for trial in trials:
                        trial.rehearse(options.warmup)
                    lengths = _turn_lengths(options.rounds)
                    take_turns([(trial, lengths) for trial in trials], progress)
                pace_alone = _ns_a_pass(trials.pop(), control) if _compares(options) else None
                for (buffers, path), trial in zip(kinds, trials, strict=True):
                    rows += _rows(trial, buffers, path, control, options, pace_alone)
                    failures += control.allreduce(trial.ledger.failures)
                    late += control.allreduce(trial.late)
    calls = options.rounds * comm.size * len(_ways(options)) * len(options.sizes)
    meta = SkewMeta(
        **surroundings(options, control),
        first_round_s=first_round_s,
        late_calls=late / calls,
        warmup=options.warmup,
        device=with_path(devices.facts, asked_path(options), reasons),
    )
    pace.free()
    for duplicate in (baseline, control):
        duplicate.Free()
    return Outcome(Report(meta, with_speedups(rows)), failures) if comm.rank == 0 else None


def turns(options: SkewOptions) -> int:
    """Return how often `measure` reports progress."""
    trials = len(_ways(options)) + _compares(options)
    return len(options.sizes) * trials * len(_turn_lengths(options.rounds))


def least_seconds(options: SkewOptions, ranks: int) -> float:
    """How long `measure` takes at least: every round lasts until the last rank is due."""
    lengths = _turn_lengths(options.rounds)
    rounds = options.warmup + len(lengths) + options.rounds
    trials = len(_ways(options)) + _compares(options)
    return len(options.sizes) * trials * rounds * options.skew_ns * (ranks - 1) / 1e9


def pairs(options: SkewOptions) -> int:
    """Return how many pairs of a send and a receive buffer a rank has in the host's memory."""
    # What is staged by hand has a pair in pinned memory besides the mirrors.
    kinds = {buffers for _, buffers in _ways(options)}
    return len(kinds) + (DeviceBuffers.BY_HAND in kinds)


def _ways(options: SkewOptions) -> list[tuple[Way, AnyBuffers]]:
    return ways_and_buffers(options.policies, options.buffers)


def _compares(options: SkewOptions) -> bool:
    """Return whether ranks compute until their calls; other ranks' calls may slow this down."""
    return options.work is Work.COMPUTE and options.skew_ns > 0


def _trials(
    options: SkewOptions,
    size: int,
    ctx: pp.Context,
    comms: tuple[MPI.Intracomm, MPI.Intracomm],
    pace: Pace,
    devices: Devices,
    reasons: list[str],
) -> tuple[list[tuple[AnyBuffers, str | None]], list[Rounds]]:
    """Make trials of every policy and of silence at one size; collective.

    Those with the same kind of buffers have the same two. The kinds are returned, too, with the
    path of elements on a device. `reasons` gets those for which it is not the one asked for.
    """
    baseline, control = comms
    pattern = Pattern(ctx.size, size // options.dtype.itemsize, options.dtype)
    ways = _ways(options)
    pairs = {
        buffers: any_pair(ctx, buffers, devices.libraries, pattern.contribution(ctx.rank))
        for buffers in dict.fromkeys(buffers for _, buffers in ways)
    }
    kinds, trials = [], []
    for way, buffers in ways:
        pair, ledger = pairs[buffers], Ledger(pattern, way, ctx.rank)
        what = contender(way, ctx, baseline, pair, device_path=asked_path(options))
        path, reason = what.device_path()
        reasons.append(reason)
        kinds.append((buffers, path))
        trials.append(Rounds(way, what, pace, control, pair.receive, ledger))
    if _compares(options):
        copy, pair = Rival.COPY, pairs[ways[0][1]]
        what, ledger = contender(copy, ctx, baseline, pair), Ledger(pattern, copy, ctx.rank)
        trials.append(Silence(copy, what, pace, control, pair.receive, ledger))
    return kinds, trials


def _turn_lengths(rounds: int) -> list[int]:
    return [min(_TURN, rounds - done) for done in range(0, rounds, _TURN)]


def _ns_a_pass(trial: Rounds, comm: MPI.Intracomm) -> float | None:
    """Return the nanoseconds of a pass of computation; None if no rank computed. Collective."""
    computed_ns, passes = comm.allreduce(trial.computed_ns), comm.allreduce(trial.passes)
    return computed_ns / passes if passes else None


def _rows(
    trial: Rounds,
    buffers: AnyBuffers,
    device_path: str | None,
    comm: MPI.Intracomm,
    options: SkewOptions,
    pace_alone: float | None,
) -> list[Row]:
    """Finish a trial, and return its row on rank 0, nothing elsewhere. Collective.

    `pace_alone` is the time of a pass of computation in rounds without any call, in ns; None if
    ranks do not compute.
    """
    trial.finish()
    took = _ns_a_pass(trial, comm)
    slowdown = took / pace_alone - 1 if took and pace_alone else None
    wrong = comm.allreduce(len(trial.ledger.failures))
    samples = comm.gather((trial.latency_ns, sum(trial.turn_cpu_ns)))
    if samples is None:
        return []
    latencies, cpu = zip(*samples, strict=True)
    return [
        Row(
            policy=str(trial.way),
            bytes=trial.receive.nbytes,
            ranks=comm.size,
            rounds=trial.calls,
            latency_us=Latency.of(latencies),
            speedup_vs_mpi=None,
            active=Active.of(trial.active),
            active_expected=expected_active(trial.way, comm.size) if options.skew_ns else None,
            cpu_us_per_round=sum(cpu) / 1e3 / comm.size / trial.calls,
            verified=wrong == 0,
            slowdown=slowdown,
            buffers=buffers.value,
            device_path=device_path,
        )
    ]
