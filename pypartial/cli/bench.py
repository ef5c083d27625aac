"""``pypartial bench``: run a benchmark on all ranks, and print its results on rank 0."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpi4py import MPI

from .._launch import stderr_is_terminal
from ..bench import gossip_table, group_table, latency_table, overhead_table, table, torch_table
from ..bench import groups as groups_bench
from ..bench import latency as latency_bench
from ..bench import overhead as overhead_bench
from ..bench import skew as skew_bench
from ..bench.conditions import shortage
from ..bench.device_arrays import Devices, open_devices
from ..bench.gossip_options import BenchGossipOptions
from ..bench.group_options import BenchGroupsOptions
from ..bench.options import (
    AllreduceOptions,
    Buffers,
    LatencyOptions,
    OverheadOptions,
    SkewOptions,
)
from ..bench.pace import meet
from ..bench.results import Outcome
from ..bench.torch_options import BenchTorchOptions, entries, parameter_bytes
from .core import load_on_all, print_problem, save

_LONG_S = 10.0  # nobody needs to be told of less


def skew(options: SkewOptions, comm: MPI.Intracomm) -> int:
    """Run ``bench skew``; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a sum or a status was wrong, the compiled module
        cannot be loaded, a size does not fit into memory, buffers cannot be on a device, or a file
        cannot be saved.
    """
    if not ready(comm, max(options.sizes), skew_bench.pairs(options)):
        return 1
    devices = _devices(options, comm)
    if devices is None:
        return 1
    announce("at least", skew_bench.least_seconds(options, comm.size), comm)
    with progress_bar(skew_bench.turns(options), comm) as progress:
        outcome = skew_bench.measure(options, comm, progress, devices)
    return _conclude(outcome, options, comm, table.print_report, "save_plot")


def latency(options: LatencyOptions, comm: MPI.Intracomm) -> int:
    """Run ``bench latency``; collective.

    Returns
    -------
    int
        As for `skew`.
    """
    if not ready(comm, max(options.sizes), latency_bench.pairs(options)):
        return 1
    devices = _devices(options, comm)
    if devices is None:
        return 1
    announce("about", latency_bench.about_seconds(options), comm)
    with progress_bar(latency_bench.turns(options), comm) as progress:
        outcome = latency_bench.measure(options, comm, progress, devices)
    return _conclude(outcome, options, comm, latency_table.print_report, "save_latency_plot")


def groups(options: BenchGroupsOptions, comm: MPI.Intracomm) -> int:
    """Run ``bench groups``; collective.

    Returns
    -------
    int
        As for `skew`.
    """
    pairs = len({*options.buffers, Buffers.NUMPY})
    if not ready(comm, max(options.sizes), pairs):
        return 1
    announce("about", groups_bench.about_seconds(options, comm.size), comm)
    with progress_bar(groups_bench.turns(options, comm.size), comm) as progress:
        outcome = groups_bench.measure(options, comm, progress)
    return _conclude(outcome, options, comm, group_table.print_report, "save_groups_plot")


def gossip(options: BenchGossipOptions, comm: MPI.Intracomm) -> int:
    """Run ``bench gossip``; collective.

    Returns
    -------
    int
        As for `skew`.
    """
    from ..bench import gossip as gossip_bench  # needs networkx

    if not ready(comm, max(options.sizes), 12 * len(options.buffers)):
        return 1
    announce("about", gossip_bench.about_seconds(options), comm)
    with progress_bar(gossip_bench.turns(options), comm) as progress:
        outcome = gossip_bench.measure(options, comm, progress)
    return _conclude(outcome, options, comm, gossip_table.print_report, "save_gossip_plot")


def torch(options: BenchTorchOptions, comm: MPI.Intracomm) -> int:
    """Run ``bench torch``; collective.

    Returns
    -------
    int
        As for `skew`; 1 if PyTorch is missing or too old, too.
    """
    size = max(map(parameter_bytes, options.hidden))
    if not ready(comm, size, 3 * len(entries(options)), "--hidden") or not _has_torch(comm):
        return 1
    from ..bench import torch_steps

    announce("about", torch_steps.about_seconds(options), comm)
    with progress_bar(torch_steps.turns(options), comm) as progress:
        outcome = torch_steps.measure(options, comm, progress)
    return _conclude(outcome, options, comm, torch_table.print_report, "save_torch_plot")


def _conclude(
    outcome: Outcome[Any, Any] | None,
    options: AllreduceOptions | BenchGroupsOptions | BenchTorchOptions | BenchGossipOptions,
    comm: MPI.Intracomm,
    print_report: Callable[[Any], None],
    draw: str,
) -> int:
    """Print and save the results on rank 0; return the exit code. Collective.

    `draw` is the function of `bench.plot`, which loads matplotlib.
    """
    code = 0
    if outcome is not None:
        report = outcome.report
        print_report(report)
        saved = _save_json(outcome, options.json)
        if options.plot is not None:
            from ..bench import plot

            saved &= save("Plot", options.plot, lambda path: getattr(plot, draw)(report, path))
        code = judge(outcome, saved)
    return int(comm.bcast(code))


def _devices(options: AllreduceOptions, comm: MPI.Intracomm) -> Devices | None:
    """Open what buffers on a device need; if a rank cannot, print why, return None. Collective."""
    devices, problem = open_devices(options.buffers, options.device, comm)
    if problem is None:
        return devices
    if comm.rank == 0:
        print(f"pypartial: {problem}", file=sys.stderr)
    return None


def _has_torch(comm: MPI.Intracomm) -> bool:
    """Return whether all ranks can train with PyTorch; if not, print why on rank 0. Collective."""
    problem = None
    try:
        from .. import torch  # noqa: F401  it checks the version
    except ImportError as error:
        problem = str(error)
    problem = next((text for text in comm.allgather(problem) if text is not None), None)
    if problem is not None and comm.rank == 0:
        print(f"pypartial: {problem}", file=sys.stderr)
    return problem is None


def overhead(options: OverheadOptions, comm: MPI.Intracomm) -> int:
    """Run ``bench overhead`` on rank 0, while the others sleep; collective.

    Returns
    -------
    int
        As for `skew`.
    """
    pairs = len(options.buffers) + 2
    if not ready(comm, options.size, pairs, measures=comm.rank == 0):
        return 1
    code = 0
    if comm.rank == 0:
        with progress_bar(overhead_bench.turns(options), comm) as progress:
            outcome = overhead_bench.measure(options, progress)
        overhead_table.print_report(outcome.report)
        code = judge(outcome, _save_json(outcome, options.json))
    meet(comm)
    return int(comm.bcast(code))


def ready(
    comm: MPI.Intracomm, size: int, pairs: int, option: str = "--size", *, measures: bool = True
) -> bool:
    """Return whether the benchmark can run; if not, print why on rank 0. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    size : int
        Bytes of a buffer.
    pairs : int
        Pairs of a send and a receive buffer on each rank.
    option : str
        The option that the size was given with.
    measures : bool
        Whether this rank has such buffers; the others sleep.
    """
    _, problem = load_on_all(comm)
    if problem is not None:
        if comm.rank == 0:
            print_problem(problem)
        return False
    problem = shortage(size, pairs, comm, option, measures=measures)
    if problem is not None and comm.rank == 0:
        print(f"pypartial: {problem}", file=sys.stderr)
    return problem is None


def _save_json(outcome: Outcome[Any, Any], path: Path | None) -> bool:
    """Save the results if `path` is not None; return whether nothing went wrong."""
    return path is None or save("Results", path, outcome.report.save_json)


def judge(outcome: Outcome[Any, Any], saved: bool) -> int:
    """Print what was wrong, and return the exit code."""
    sys.stdout.flush()
    for failure in outcome.failures:
        print(f"pypartial: not verified: {failure}", file=sys.stderr)
    return int(not (outcome.report.verified and saved))


def announce(how: str, seconds: float | None, comm: MPI.Intracomm) -> None:
    """Say on stderr how long it takes, if that is known and long; on rank 0."""
    if comm.rank == 0 and seconds is not None and seconds >= _LONG_S:
        text = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
        print(f"pypartial: this takes {how} {text}", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(turns: int, comm: MPI.Intracomm) -> Iterator[Callable[[str], None]]:
    """Yield a function to call at each turn; rank 0 draws a bar if stderr is a terminal."""
    if comm.rank != 0 or not stderr_is_terminal():
        yield lambda _text: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # No refreshing thread, which would wake up in the middle of a measurement.
    with Progress(
        console=Console(stderr=True, force_terminal=True), auto_refresh=False, transient=True
    ) as bar:
        task = bar.add_task("", total=turns)

        def advance(text: str) -> None:
            bar.update(task, advance=1, description=text, refresh=True)

        yield advance
