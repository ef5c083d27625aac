"""``pypartial bench``: runs a benchmark on all ranks and presents its results on rank 0."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpi4py import MPI

from ..bench.launch import stderr_is_terminal
from ..bench.options import SkewOptions
from ..bench.skew import Outcome, measure, turns
from .core import load_on_all, print_problem


def skew(options: SkewOptions, comm: MPI.Intracomm) -> int:
    """Run the micro-benchmark; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a sum or a status was wrong, or the compiled
        module cannot be loaded.
    """
    _, problem = load_on_all(comm)
    if problem is not None:
        if comm.rank == 0:
            print_problem(problem)
        return 1
    with _progress(options, shown=comm.rank == 0 and stderr_is_terminal()) as progress:
        outcome = measure(options, comm, progress)
    code = 0
    if outcome is not None:
        _present(outcome, options)
        code = int(not outcome.report.verified)
    return int(comm.bcast(code))


def _present(outcome: Outcome, options: SkewOptions) -> None:
    """Print the table, save the files, and say what was wrong."""
    from ..bench.table import print_report

    print_report(outcome.report)
    if options.json is not None:
        outcome.report.save_json(options.json)
        print(f"Results: {options.json}")
    if options.plot is not None:
        from ..bench.plot import save_plot

        save_plot(outcome.report, options.plot)
        print(f"Plot: {options.plot}")
    sys.stdout.flush()
    for failure in outcome.failures:
        print(f"pypartial: not verified: {failure}", file=sys.stderr)


@contextmanager
def _progress(options: SkewOptions, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Give a function to call at each turn; it draws a progress bar on stderr if `shown`."""
    if not shown:
        yield lambda _text: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # Drawn between the rounds only: no thread that wakes up while something is measured.
    with Progress(
        console=Console(stderr=True, force_terminal=True), auto_refresh=False, transient=True
    ) as bar:
        task = bar.add_task("", total=turns(options))

        def advance(text: str) -> None:
            bar.update(task, advance=1, description=text, refresh=True)

        yield advance
