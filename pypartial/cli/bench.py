"""``pypartial bench``: runs a benchmark on all ranks and presents its results on rank 0."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpi4py import MPI

from ..bench.launch import stderr_is_terminal
from ..bench.options import SkewOptions
from ..bench.skew import Outcome, measure, shortage, turns
from .core import load_on_all, print_problem, save


def skew(options: SkewOptions, comm: MPI.Intracomm) -> int:
    """Run the micro-benchmark; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a sum or a status was wrong, the compiled module
        cannot be loaded, a size does not fit into memory, or a file cannot be saved.
    """
    _, problem = load_on_all(comm)
    if problem is not None:
        if comm.rank == 0:
            print_problem(problem)
        return 1
    problem = shortage(options, comm)
    if problem is not None:
        if comm.rank == 0:
            print(f"pypartial: {problem}", file=sys.stderr)
        return 1
    with _progress(options, shown=comm.rank == 0 and stderr_is_terminal()) as progress:
        outcome = measure(options, comm, progress)
    code = 0
    if outcome is not None:
        saved = _present(outcome, options)
        code = int(not (outcome.report.verified and saved))
    return int(comm.bcast(code))


def _present(outcome: Outcome, options: SkewOptions) -> bool:
    """Print the table, save the files, and say what was wrong; whether all files were saved."""
    from ..bench.table import print_report

    print_report(outcome.report)
    saved = True
    if options.json is not None:
        saved = save("Results", options.json, outcome.report.save_json)
    if options.plot is not None:
        from ..bench.plot import save_plot

        saved &= save("Plot", options.plot, lambda path: save_plot(outcome.report, path))
    sys.stdout.flush()
    for failure in outcome.failures:
        print(f"pypartial: not verified: {failure}", file=sys.stderr)
    return saved


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
