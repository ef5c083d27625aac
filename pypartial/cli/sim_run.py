"""``pypartial sim skew`` and ``pypartial sim schedule``: run them, and print the results."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..bench.launch import stderr_is_terminal
from ..sim.options import Dump, ScheduleOptions, SkewOptions
from .core import save
from .sim import alone

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..sim.report import SkewReport


def skew(options: SkewOptions, comm: MPI.Intracomm | None) -> int:
    """Simulate policies on rank 0; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a sum was wrong, if the simulation does not fit
        into memory, if it deadlocked, if a rank's call failed, or if a file cannot be saved.
    """
    return alone(lambda: _guarded(lambda: _skew(options)), comm)


def schedule(options: ScheduleOptions, comm: MPI.Intracomm | None) -> int:
    """Execute or print a schedule on rank 0; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if the schedule does not fit into memory, or if a
        file cannot be saved.
    """
    return alone(lambda: _guarded(lambda: _schedule(options)), comm)


def _guarded(work: Callable[[], int]) -> int:
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

    report = _simulate(options)
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


def _simulate(options: SkewOptions) -> SkewReport:
    from ..sim.arrivals import parse_arrivals
    from ..sim.report import SkewReport
    from ..sim.skew import Run, compare

    rows = []
    arrivals = options.arrivals
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
            rows += compare(run, options.policies, _progress(ranks, size))
    return SkewReport(options, arrivals, rows)


def _progress(ranks: int, size: int) -> Callable[[str], None]:
    if not stderr_is_terminal():
        return lambda _policy: None

    def show(policy: str) -> None:
        text = f"\r{ranks:,} ranks, {size} bytes: {policy:<20}"
        print(text, end="\r", file=sys.stderr, flush=True)

    return show


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
