"""``pypartial trace``: on rank 0, read traces, and write a timeline or print a report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report import CAUSES
from . import TraceOptions
from .core import save
from .sim import alone

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..timeline.files import Run


def trace(job: TraceOptions, comm: MPI.Intracomm | None) -> int:
    """Run a command of traces on rank 0; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a trace is of no use, or if a file cannot be
        read or saved.
    """
    return alone(lambda: _run(job), comm)


def _run(job: TraceOptions) -> int:
    from ..timeline.files import read_run

    try:
        run = read_run(job.folder)
        for note in run.notes():
            _say(note)
        return _report(job, run) if job.output is None else _merge(job, run, job.output)
    except ValueError as error:
        _say(str(error))
    except OSError as error:
        if error.filename is None:
            raise  # of standard output
        _say(f"{error.filename} cannot be read: {error.strerror}")
    return 1


def _say(text: str) -> None:
    print(f"pypartial trace: {text}", file=sys.stderr)


def _merge(job: TraceOptions, run: Run, output: Path) -> int:
    from ..timeline.chrome import save_chrome
    from ..timeline.profiler import Profile

    profiles = [Profile(path, order) for order, path in enumerate(job.profiles)]
    for one in profiles:
        if one.rank not in run.traces:
            raise ValueError(f"{one.path} is of rank {one.rank}, of which there is no trace")
    return int(not save("Timeline", output, lambda path: save_chrome(run, profiles, path)))


def _report(job: TraceOptions, run: Run) -> int:
    from ..report import build
    from ..timeline.cycles import measure

    if job.rank is not None and job.rank not in run.traces:
        raise ValueError(f"--rank {job.rank}: there is no trace of it")
    measured = {rank: measure(trace) for rank, trace in run.traces.items()}
    samples = {rank: found for rank, (_, found) in measured.items()}
    report = build(run.size, {rank: counts for rank, (counts, _) in measured.items()}, samples)
    if job.rank is None:
        print(report.to_json() if job.json else report)
    else:
        _print_rank(job.rank, measured[job.rank][0], report.waited, as_json=job.json)
    if job.plot is None:
        return 0
    from ..timeline.plot import save_plot

    return int(not save("Plot", job.plot, lambda path: save_plot(samples, report.waited, path)))


def _print_rank(rank: int, counts: dict[str, Any], waited: Any, *, as_json: bool) -> None:
    said = {"rank": rank, **counts, "causes": dict(zip(CAUSES, counts["causes"], strict=True))}
    for name, times in (("waited_for_s", waited[rank]), ("waited_by_s", waited[:, rank])):
        said[name] = {other: round(s, 6) for other, s in enumerate(times.tolist()) if s > 0}
    lines = (f"{name:14} {_text(value)}" for name, value in said.items())
    print(json.dumps(said) if as_json else "\n".join(lines))


def _text(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{name}: {one}" for name, one in value.items() if one) or "0"
