"""``pypartial trace``: on rank 0, read traces, and write a timeline or print a report."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ..units import format_duration
from . import TraceMergeOptions, TraceReportOptions
from .core import save
from .sim import alone

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..timeline.files import Run


def trace(job: TraceMergeOptions | TraceReportOptions, comm: MPI.Intracomm | None) -> int:
    """Run a command of traces on rank 0; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a trace is of no use, or if a file cannot be
        read or saved.
    """
    return alone(lambda: _run(job), comm)


def _run(job: TraceMergeOptions | TraceReportOptions) -> int:
    from ..timeline.files import read_run

    try:
        run = read_run(job.folder)
        for note in run.notes():
            _say(note)
        return _merge(job, run) if isinstance(job, TraceMergeOptions) else _report(job, run)
    except ValueError as error:
        _say(str(error))
    except OSError as error:
        _say(f"{error.filename} cannot be read: {error.strerror}")
    return 1


def _say(text: str) -> None:
    sys.stdout.flush()
    print(f"pypartial trace: {text}", file=sys.stderr)


def _merge(job: TraceMergeOptions, run: Run) -> int:
    from ..timeline.chrome import save_chrome
    from ..timeline.profiler import Profile

    profiles = [Profile(path, order) for order, path in enumerate(job.profiles)]
    for one in profiles:
        if all(trace.rank != one.rank for trace in run.traces):
            raise ValueError(f"{one.path} is of rank {one.rank}, of which there is no trace")
    return int(not save("Timeline", job.output, lambda path: save_chrome(run, profiles, path)))


def _report(job: TraceReportOptions, run: Run) -> int:
    from ..report import build
    from ..timeline.cycles import measure

    if job.rank is not None and all(trace.rank != job.rank for trace in run.traces):
        raise ValueError(f"--rank {job.rank}: there is no trace of it")
    measured = {trace.rank: measure(trace) for trace in run.traces}
    samples = {rank: found for rank, (_, found) in measured.items()}
    report = build(run.size, {rank: counts for rank, (counts, _) in measured.items()}, samples)
    waited = report.waited
    if job.rank is None:
        print(report.to_json() if job.json else report)
    else:
        counts, mine, others = measured[job.rank][0], waited[job.rank], waited[:, job.rank]
        if job.json:
            waits = {"waited_for": mine.tolist(), "waited_by": others.tolist()}
            print(json.dumps({"rank": job.rank, **counts, **waits}))
        else:
            said = ", ".join(f"{name} {value}" for name, value in counts.items())
            print(f"rank {job.rank} of {run.size}: {said}")
            for rank in range(run.size):
                for_it, by_it = (format_duration(1e9 * found[rank]) for found in (mine, others))
                print(f"rank {rank}: waited for {for_it}, and waited {by_it} for rank {job.rank}")
    if job.plot is None:
        return 0
    from ..timeline.plot import save_plot

    return int(not save("Plot", job.plot, lambda path: save_plot(samples, waited, path)))
