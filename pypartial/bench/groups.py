"""``bench groups``: averages inside groups, beside MPI's own, and iterations beside slow ranks.

**Latency.** In each case (ranks of a group, how many groups at once, bytes) all ways to average
take turns in blocks of calls, as in ``bench latency``: the library's generators, MPI_Allreduce and
a division on a communicator that is kept, on one that MPI_Comm_create_group makes for each call,
and, where all groups run at once, on one that MPI_Comm_split makes; if asked for, an allreduce
(Full) of this library on a context of the group's ranks. With one group the other ranks
sleep, and have left. The value of a block is the mean time of a call on its slowest rank.

**Iterations.** Every rank sleeps as an arrival model says, calls Start and Wait, and begins anew.
Generators take turns in runs, and so do the model and the same model without its slow rank. An
allreduce of all ranks (Full) has its turns like a generator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

import pypartial as pp

from ..sim.arrivals import Arrivals, parse_arrivals
from ..statistics import Latency, Spread
from ..units import format_size
from .conditions import machine, named_in_memory_errors, no_garbage_collection
from .contenders import Contender
from .group_options import Backend, BenchGroupsOptions, GroupGenerator, Part
from .group_trials import Course, CourseTrial, GroupTrial, Stage
from .group_ways import (
    CACHED,
    CREATED,
    MPI_WAYS,
    Cast,
    GroupWay,
    Shares,
    full,
    group_way,
    preduce,
)
from .latency import most_blocks, run_blocks
from .options import Buffers
from .results import (
    GroupLatencyRow,
    GroupsMeta,
    GroupsOutcome,
    GroupsReport,
    IterationRow,
    IterationSide,
    with_group_ratios,
)
from .trials import Progress

if TYPE_CHECKING:
    from .group_ways import Array

_SLOW = re.compile(r"slow:(\d+):")


def measure(
    options: BenchGroupsOptions, comm: MPI.Intracomm, progress: Progress
) -> GroupsOutcome | None:
    """Run the benchmark; collective.

    Parameters
    ----------
    options : BenchGroupsOptions
        The same on every rank.
    comm : mpi4py.MPI.Intracomm
        All ranks. The benchmark communicates on duplicates of it only.
    progress : callable
        Called on this rank with what is being measured, at most once for each of the `turns`.

    Returns
    -------
    GroupsOutcome or None
        The results on rank 0, None elsewhere.

    Raises
    ------
    MemoryError
        If a size does not fit; the text names it. Only this rank raises: the caller must end the
        other ranks.
    """
    baseline, control = comm.Dup(), comm.Dup()
    rows: list[GroupLatencyRow] = []
    iterations: list[IterationRow] = []
    failures: list[str] = []
    with (
        pp.Context(
            comm, seed=options.seed, transport=options.transport.value, patience=None
        ) as ctx,
        no_garbage_collection(),
    ):
        if Part.LATENCY in options.parts:
            for cast in casts(options, comm.size, comm.rank):
                for size in options.sizes:
                    with named_in_memory_errors(size):
                        stage = _stage(options, ctx, control, cast, size)
                        rows += _latencies(options, stage, baseline, progress, failures)
        if Part.ITERATIONS in options.parts:
            everybody = Cast(comm.size, 1, comm.rank)
            stage = _stage(options, ctx, control, everybody, options.sizes[0])
            iterations = _iterations(options, stage, progress, failures)
    meta = _meta(options, comm)
    for duplicate in (baseline, control):
        duplicate.Free()
    if comm.rank != 0:
        return None
    return GroupsOutcome(GroupsReport(meta, with_group_ratios(rows), iterations), failures)


def turns(options: BenchGroupsOptions, ranks: int) -> int:
    """Return how often `measure` reports progress, if the budget allows."""
    return _latency_ways(options, ranks) * most_blocks(options) + _runs(options) * options.runs


def about_seconds(options: BenchGroupsOptions, ranks: int) -> float | None:
    """About how long `measure` takes; None if the calls are given instead of a budget."""
    runs_ns = _runs(options) * options.runs * options.iterations * options.base_ns
    ways = _latency_ways(options, ranks)
    if ways and options.calls is not None:
        return None
    return (ways * options.budget_ns + runs_ns) / 1e9


def casts(options: BenchGroupsOptions, ranks: int, rank: int) -> list[Cast]:
    """Return the cases of the latencies: one group, and as many at once as there can be."""
    return [
        Cast(size, groups, rank)
        for size in options.group_sizes
        for groups in sorted({1, ranks // size})
    ]


def _latency_ways(options: BenchGroupsOptions, ranks: int) -> int:
    if Part.LATENCY not in options.parts:
        return 0
    ways = sum(len(_ways(options, cast)) for cast in casts(options, ranks, 0))
    return len(options.sizes) * ways


def _runs(options: BenchGroupsOptions) -> int:
    """Return how many generators iterate, those without the slow rank counted, too."""
    if Part.ITERATIONS not in options.parts:
        return 0
    return len(_courses(options)) * (1 + (_SLOW.match(options.arrivals.strip()) is not None))


def _stage(
    options: BenchGroupsOptions, ctx: pp.Context, control: MPI.Intracomm, cast: Cast, size: int
) -> Stage:
    shares = Shares(ctx.size, size // options.dtype.itemsize, options.dtype)
    return Stage(ctx, control, cast, shares)


def _buffer(options: BenchGroupsOptions, stage: Stage, kind: Buffers) -> Array:
    if kind is Buffers.NUMPY:
        return np.zeros(stage.shares.count, options.dtype.value)
    return stage.ctx.alloc(stage.shares.count, options.dtype.value)


# ---- latency ------------------------------------------------------------------------------------


def _ways(options: BenchGroupsOptions, cast: Cast) -> list[GroupWay]:
    """Return the ways to compare in a case; only the library's use library buffers.

    MPI_Comm_split is collective over all ranks of a communicator, so nobody can sleep.
    """
    rivals = MPI_WAYS if cast.groups > 1 else (CACHED, CREATED)
    return [
        *(
            GroupWay(name.value, backend, buffers)
            for name in options.generators
            for backend in _backends(options, name)
            for buffers in options.buffers
        ),
        *(GroupWay(name, None, Buffers.NUMPY) for name in rivals),
    ]


def _backends(
    options: BenchGroupsOptions, name: GroupGenerator
) -> tuple[Backend, ...] | tuple[None]:
    return (None,) if name is GroupGenerator.FULL else options.backends


def _latencies(
    options: BenchGroupsOptions,
    stage: Stage,
    baseline: MPI.Intracomm,
    progress: Progress,
    failures: list[str],
) -> list[GroupLatencyRow]:
    """Measure all ways in one case; return the rows on rank 0, nothing elsewhere. Collective."""
    ways = _ways(options, stage.cast)
    kinds = dict.fromkeys(way.buffers for way in ways)
    buffers = {kind: _buffer(options, stage, kind) for kind in kinds}
    trials = []
    for way in ways:
        model = buffers[way.buffers]
        model[:] = stage.shares.of(stage.cast.rank)
        contender = group_way(way, stage.ctx, baseline, model, stage.cast, options.transport)
        trials.append(GroupTrial(way, contender, model, stage))
    run_blocks(trials, options, stage.comm, progress)
    rows = []
    for trial in trials:
        backend = _backend(trial.contender)
        trial.contender.free()
        rows += _latency_row(trial, backend)
        failures += _gathered(trial.failures, stage.comm)
    return rows


def _backend(contender: Contender) -> str | None:
    """Return how a contender's groups are executed; None: by the MPI itself."""
    request = getattr(contender, "request", None)
    return request.backend if isinstance(request, pp.PreduceRequest) else None


def _gathered(failures: Sequence[str], comm: MPI.Intracomm) -> list[str]:
    return [text for some in comm.allgather(list(failures)) for text in some]


def _latency_row(trial: GroupTrial, backend: str | None) -> list[GroupLatencyRow]:
    """Return the row of a trial on rank 0, nothing elsewhere. Collective."""
    comm, cast = trial.stage.comm, trial.stage.cast
    wrong = comm.allreduce(len(trial.failures))
    samples = comm.gather((trial.turn_ns, trial.turn_cpu_ns))
    if samples is None:
        return []
    taking_part = samples[: cast.members]
    by_rank, cpu = (np.array(values) for values in zip(*taking_part, strict=True))
    slowest = by_rank.max(axis=0)
    blocks = by_rank.shape[1]
    calls = trial.calls // blocks
    latency = Latency.of(slowest)
    return [
        GroupLatencyRow(
            way=trial.way.name,
            backend=backend,
            buffers=trial.way.buffers.value,
            bytes=trial.receive.nbytes,
            ranks=comm.size,
            size=cast.size,
            groups=cast.groups,
            members=float(np.mean(trial.group_sizes)),
            latency_us=latency,
            best_us=float(slowest.min()) / 1e3,
            mean_of_ranks_us=float(np.median(by_rank.mean(axis=0))) / 1e3,
            cpu_us_per_call=float(np.median(cpu.mean(axis=0))) / 1e3 / calls,
            blocks=blocks,
            calls=calls,
            ratio_to_mpi=None,
            ratio_to_create_group=None,
            ratio_to_split=None,
            verified=wrong == 0,
        )
    ]


# ---- iterations ---------------------------------------------------------------------------------


def _courses(options: BenchGroupsOptions) -> list[tuple[str, int, Backend | None]]:
    """Return what iterates: name, ranks of a group (0: several), backend (None: an allreduce)."""
    found: list[tuple[str, int, Backend | None]] = [(GroupGenerator.FULL.value, 0, None)]
    for name in options.generators:
        if name in (GroupGenerator.GIVEN, GroupGenerator.FULL):
            continue
        sizes = (0,) if name is GroupGenerator.STATIC else options.group_sizes
        found += [(name.value, size, each) for size in sizes for each in options.backends]
    return found


def _generator(name: str, size: int) -> pp.groups.Generator:
    """Return a generator with the options that it has by default."""
    if name == GroupGenerator.STATIC:
        return pp.groups.Static()
    if name == GroupGenerator.RANDOM:
        return pp.groups.Random(size)
    return pp.groups.Smart(size) if name == GroupGenerator.SMART else pp.groups.Controller(size)


def _models(options: BenchGroupsOptions, ranks: int) -> list[Arrivals]:
    """Return the arrival model, and, if it has a slow rank, the same without it."""

    def model(text: str) -> Arrivals:
        return parse_arrivals(text, ranks, options.iterations, options.seed, options.base_ns)

    found = [model(options.arrivals)]
    slow = _SLOW.match(found[0].text)
    return found + ([model(f"slow:{slow[1]}:1x")] if slow else [])


def _iterations(
    options: BenchGroupsOptions, stage: Stage, progress: Progress, failures: list[str]
) -> list[IterationRow]:
    """Measure the iterations of all generators; the rows on rank 0, nothing elsewhere."""
    models = _models(options, stage.ctx.size)
    run_ns = options.iterations * options.base_ns
    # Of a trace as many lines are read as iterations were asked for.
    lines = options.iterations if models[0].text.startswith("trace:") else None
    model = _buffer(options, stage, options.buffers[0])
    model[:] = stage.shares.of(stage.cast.rank)
    made: list[tuple[str, int, Contender, list[CourseTrial]]] = []
    for name, size, backend in _courses(options):
        groups = None if backend is None else _generator(name, size)
        contender: Contender
        if groups is None or backend is None:
            contender = full(stage.ctx, model)
        else:
            contender = preduce(stage.ctx, model, groups, backend, stage.cast)
        way = GroupWay(f"{name}:{size}" if size else name, backend, options.buffers[0])
        trials = [
            CourseTrial(way, contender, model, stage, course=Course(arrivals, run_ns, lines))
            for arrivals in models
        ]
        made.append((name, size, contender, trials))
    order = [trial for *_, trials in made for trial in trials]
    for _ in range(options.runs):
        for trial in order:
            trial.turn()
            progress(f"{trial.way}, {format_size(trial.receive.nbytes)}, iterations")
        order.append(order.pop(0))
    rows = []
    for name, size, contender, trials in made:
        backend_text = _backend(contender)
        contender.free()
        rows += _iteration_row(name, size, backend_text, trials)
        for trial in trials:
            failures += _gathered(trial.failures, stage.comm)
    return rows


def _iteration_row(
    name: str, size: int, backend: str | None, trials: Sequence[CourseTrial]
) -> list[IterationRow]:
    """Return the row of a generator on rank 0, nothing elsewhere. Collective.

    `trials` has those of the arrival model, and of the model without its slow rank if it has one.
    """
    comm = trials[0].stage.comm
    wrong = comm.allreduce(sum(len(trial.failures) for trial in trials))
    samples = comm.gather([trial.iteration_ns for trial in trials])
    if samples is None:
        return []
    times = np.array(samples)  # by rank, model and run
    slow = _SLOW.match(trials[0].course.arrivals.text)
    sides = {"all": list(range(comm.size))}
    if slow:
        alone = int(slow[1])
        sides = {"fast": [rank for rank in sides["all"] if rank != alone], "slow": [alone]}
    return [
        IterationRow(
            generator=name,
            size=size,
            backend=backend,
            bytes=trials[0].receive.nbytes,
            ranks=comm.size,
            runs=times.shape[2],
            sides=[_side(side, times[ranks].mean(axis=0)) for side, ranks in sides.items()],
            verified=wrong == 0,
        )
    ]


def _side(name: str, times: Array) -> IterationSide:
    """Return how some ranks fared, by their mean times in each model and run."""
    undisturbed = times[1] if len(times) > 1 else None
    return IterationSide(
        name=name,
        iteration_us=Spread.of(times[0] / 1e3),
        undisturbed_us=None if undisturbed is None else Spread.of(undisturbed / 1e3),
        ratio=None if undisturbed is None else Spread.of(times[0] / undisturbed),
    )


# ---- conditions ---------------------------------------------------------------------------------


def _meta(options: BenchGroupsOptions, comm: MPI.Intracomm) -> GroupsMeta:
    """Describe a run; collective."""
    return GroupsMeta(
        **machine(comm),
        transport=options.transport.value,
        dtype=options.dtype.value,
        seed=options.seed,
        arrivals=options.arrivals.strip(),
        base_us=options.base_ns / 1e3,
        run_us=options.iterations * options.base_ns / 1e3,
    )
