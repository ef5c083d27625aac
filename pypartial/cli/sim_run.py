"""``pypartial sim skew`` and ``pypartial sim schedule``: run them, and print the results."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from .._launch import stderr_is_terminal
from ..sim.options import Dump, ScheduleOptions, SkewOptions
from ..units import format_size
from .core import save
from .sim import REDRAWS_PER_S, alone

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..sim.report import SkewReport
    from ..sim.skew import Run

Progress = Callable[[str, float], None]


def skew(options: SkewOptions, comm: MPI.Intracomm | None) -> int:
    """Simulate policies on rank 0; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a sum was wrong, if the simulation does not fit
        into memory, if it deadlocked, if a rank's call failed, or if a file cannot be saved.
    """
    return alone(lambda: guarded(lambda: _skew(options)), comm)


def schedule(options: ScheduleOptions, comm: MPI.Intracomm | None) -> int:
    """Execute or print a schedule on rank 0; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if the schedule does not fit into memory, or if a
        file cannot be saved.
    """
    return alone(lambda: guarded(lambda: _schedule(options)), comm)


def guarded(work: Callable[[], int]) -> int:
    """Run a function; errors that a user can do something about become one line."""
    from ..sim.handle import CoreError
    from ..sim.memory import OutOfMemory
    from ..sim.skew import TooLong
    from ..sim.world import Deadlock

    gc.disable()  # it would search thousands of programs again and again
    try:
        return work()
    except (OutOfMemory, TooLong) as error:
        text = str(error)
    except Deadlock as error:
        text = f"deadlock: {error}"
    except CoreError as error:
        text = error.text
    finally:
        gc.enable()
    print(f"pypartial: {text}", file=sys.stderr)
    return 1


# ---- skew ----------------------------------------------------------------------------------------


def _skew(options: SkewOptions) -> int:
    from ..sim.report import save_json
    from ..sim.table import print_report

    report = simulate_rounds(options)
    print_report(report)
    sys.stdout.flush()
    saved = True
    if options.json is not None:
        saved = save("Results", options.json, lambda path: save_json(report.as_dict(), path))
    if options.plot is not None:
        from ..sim.plot import save_plot

        saved &= save("Plot", options.plot, lambda path: save_plot(report, path))
    if not report.verified:
        print("pypartial: not verified: a sum does not match its status", file=sys.stderr)
    return int(not (report.verified and saved))


def simulate_rounds(options: SkewOptions) -> SkewReport:
    """Simulate all policies, sizes and numbers of ranks, with a bar on a terminal."""
    from ..sim.arrivals import parse_arrivals
    from ..sim.report import SkewReport
    from ..sim.skew import Run, compare

    rows = []
    arrivals = options.arrivals
    everything = sum(options.ranks) * len(options.sizes)  # in ranks: what they cost, roughly
    done = 0
    with shown_progress(everything, shown=stderr_is_terminal()) as progress:
        for ranks in options.ranks:
            model = parse_arrivals(
                options.arrivals, ranks, options.steps, options.seed, options.base_ns
            )
            arrivals = model.text
            for size in options.sizes:
                run = Run(
                    ranks=ranks,
                    size=size,
                    steps=options.steps,
                    arrivals=model,
                    network=options.network,
                    seed=options.seed,
                    barrier=options.with_barrier,
                    deliver=options.deliver,
                    max_lag=options.max_lag,
                    window=options.window,
                    death=options.death,
                    patience=options.patience,
                )
                rows += compare(run, options.policies, _part(progress, run, done))
                done += ranks
    return SkewReport(options, arrivals, rows)


def _part(progress: Progress, run: Run, done: int) -> Callable[[str, float], None]:
    """Return how one comparison, after so many ranks that were simulated, reports its progress."""
    where = f"{run.ranks:,} ranks, {format_size(run.size)}"
    return lambda policy, share: progress(f"{where}: {policy}", done + share * run.ranks)


@contextmanager
def shown_progress(everything: int, *, shown: bool) -> Iterator[Progress]:
    """Give a function to call with what is simulated, and with how much is done of `everything`.

    It draws a bar with a percentage and the time that remains, if `shown`.
    """
    if not shown:
        yield lambda _text, _done: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    drawn = 0.0
    with Bar(
        console=Console(stderr=True, force_terminal=True), auto_refresh=False, transient=True
    ) as bar:
        task = bar.add_task("", total=everything)

        def advance(text: str, done: float) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn >= 1 / REDRAWS_PER_S:
                drawn = now
                bar.update(task, completed=done, description=text, refresh=True)

        yield advance


# ---- groups and gossip ---------------------------------------------------------------------------


def simulate_each(
    options: Any,
    plans: Sequence[Any],
    measure: Callable[[Any, Any, TextIO | None, Callable[[float], None]], Any],
    print_rows: Callable[[Any, list[Any]], None],
    as_dict: Callable[[Any, list[Any]], dict[str, Any]],
    logged: str,
) -> int:
    """Simulate generators of groups, or methods of gossip; print a table, and save files.

    Parameters
    ----------
    options : GroupsOptions or GossipOptions
    plans : sequence of Plan or Method
    measure : callable
        Is given the options, a plan, the log, and a function that shows progress; returns a row.
    print_rows, as_dict : callable
        Are given the options and all rows.
    logged : str
        What the log has.

    Returns
    -------
    int
        The exit code: 1 if a file cannot be written.
    """
    from ..sim.report import save_json

    rows: list[Any] = []
    try:
        opened = nullcontext() if options.log is None else options.log.open("w", encoding="utf-8")
        with opened as log, shown_progress(len(plans), shown=stderr_is_terminal()) as bar:
            for plan in plans:
                done = len(rows)

                def advance(share: float, text: str = plan.text, done: int = done) -> None:
                    bar(text, done + share)

                rows.append(measure(options, plan, log, advance))
    except OSError as error:
        print(f"pypartial: {options.log} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print_rows(options, rows)
    if options.log is not None:
        print(f"{logged}: {options.log}")
    if options.json is None:
        return 0
    what = as_dict(options, rows)
    return int(not save("Results", options.json, lambda path: save_json(what, path)))


# ---- schedule ------------------------------------------------------------------------------------


def _schedule(options: ScheduleOptions) -> int:
    from ..sim.report import save_json, schedule_as_dict
    from ..sim.schedule import dump, execute

    if options.dump is not None:
        dot = options.dump is Dump.DOT
        sys.stdout.write(dump(options.schedule, options.ranks, options.size, dot=dot))
        return 0
    execution = execute(
        options.schedule,
        options.ranks,
        options.size,
        options.network,
        options.seed,
        options.segments,
    )
    if options.quiet:
        print(execution.finished_ns.max())
    else:
        _print_execution(options, execution)
    if options.json is None:
        return 0
    saved = save(
        "Times", options.json, lambda path: save_json(schedule_as_dict(options, execution), path)
    )
    return int(not saved)


def _print_execution(options: ScheduleOptions, execution: Any) -> None:
    """Print one line for each rank, for other programs to read, and a summary as comments."""
    finished = execution.finished_ns
    print(f"# {options.schedule} on {options.ranks} ranks, {options.size} bytes, ", end="")
    print(f"network {options.network.name}")
    print("# rank finished_ns")
    sys.stdout.writelines(f"{rank} {time}\n" for rank, time in enumerate(finished.tolist()))
    print(
        f"# latest {finished.max()} ns, mean {finished.mean():.1f} ns; "
        f"{execution.messages} messages, {execution.bytes} bytes"
    )
