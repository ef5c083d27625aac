"""``pypartial sim``: run simulated ranks on rank 0, and print the results.

Simulated ranks need no launcher. Under one, the other ranks sleep until rank 0 has finished.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from .._launch import stderr_is_terminal
from .._native import load
from ..provenance import header
from .core import print_problem

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..sim.fuzz import Failure, Report
    from ..sim.scenario import Outcome

_POLL_S = 2e-2
REDRAWS_PER_S = 5
INTERRUPTED = 128 + 2  # as a shell reports SIGINT


class Plant(str, Enum):
    """A defect to put into the engine, to see that the fuzzer finds it."""

    LOST_START = "lost-start"
    ROUND_TWICE = "round-twice"
    LOST_DRAW = "lost-draw"
    NO_PATIENCE = "no-patience"
    DEADLINE_TWICE = "deadline-twice"
    LOST_EARLY = "lost-early"
    LOST_RELEASE = "lost-release"
    OTHER_ORDER = "other-order"


class What(str, Enum):
    """Which cases the fuzzer draws."""

    ALL = "all"
    ROUNDS = "rounds"
    GROUPS = "groups"


@dataclass(frozen=True)
class FuzzOptions:
    """``pypartial sim fuzz``.

    Attributes
    ----------
    cases : int
        How many cases to run at most.
    seed : int
        Seed of the cases.
    seconds : float or None
        Begin no further case after this many seconds; None: no limit.
    jobs : int or None
        Number of processes; None: one for each usable core.
    plant : Plant or None
    replay : str or None
        The text of the only scenario to run, instead of random ones.
    json : Path or None
        The file for the report.
    what : What or None
        Which cases to draw; None: of all kinds, or of that of the planted defect.
    """

    cases: int
    seed: int = 0
    seconds: float | None = None
    jobs: int | None = None
    plant: Plant | None = None
    replay: str | None = None
    json: Path | None = None
    what: What | None = None


def alone(work: Callable[[], int], comm: MPI.Intracomm | None) -> int:
    """Run a function on rank 0 only; collective.

    Parameters
    ----------
    work : callable
        Returns the exit code. It may fork, but its children must not use MPI.
    comm : MPI.Intracomm or None
        All ranks; None without a launcher, where MPI is loaded but not initialised.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if the compiled module cannot be loaded.
    """
    if comm is None:
        import mpi4py

        mpi4py.rc.initialize = False
        return _loaded(work)
    code = _loaded(work) if comm.rank == 0 else 0
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(_POLL_S)
    return int(comm.bcast(code))


def _loaded(work: Callable[[], int]) -> int:
    try:
        load()
    except ImportError as error:
        print_problem(str(error))
        return 1
    try:
        return work()
    except KeyboardInterrupt:
        print("pypartial: interrupted", file=sys.stderr)
        return INTERRUPTED


def fuzz(options: FuzzOptions, comm: MPI.Intracomm | None) -> int:
    """Run random cases, or replay one; collective.

    Returns
    -------
    int
        The exit code, the same on all ranks: 1 if a case failed, if the cases covered too little,
        or if the report cannot be saved; 2 if the scenario to replay cannot be read.
    """
    return alone(lambda: _fuzz(options) if options.replay is None else _replay(options), comm)


# ---- random cases --------------------------------------------------------------------------------


def _fuzz(options: FuzzOptions) -> int:
    from ..sim.fuzz import PLANTS, fuzz

    plant = options.plant and options.plant.value
    what = "all"
    if options.what is not None:
        what = options.what.value
    elif plant is not None:
        what = "groups" if "groups_plant" in PLANTS[plant] else "rounds"
    with _progress(options.cases, shown=stderr_is_terminal()) as progress:
        report = fuzz(
            options.cases,
            options.seed,
            seconds=options.seconds,
            jobs=options.jobs,
            plant=plant,
            what=what,
            progress=progress,
        )
    _print_report(report)
    saved = options.json is None or _save(report, options.json)
    if report.cases == 0 and report.failure is None:
        print("pypartial: no case was run: choose a larger --seconds", file=sys.stderr)
        return 1
    return int(not (report.passed() and saved))


def _print_report(report: Report) -> None:
    from ..sim.fuzz import COVERAGES

    print(f"{report.cases} cases passed (seed {report.seed})")
    print(f"{report.rounds} rounds and groups, {report.rounds_per_case():.1f} a case")
    for kind, cases in report.kinds.items():
        print(f"Share of the {cases} cases of {kind} in which it occurred:")
        for name, words in COVERAGES[kind].items():
            print(f"  {words:<44}{report.share(name):8.2%}")
    for shortcoming in report.shortcomings():
        print(f"NOT COVERED: {shortcoming}")
    if report.failure is not None:
        _print_failure(report.failure, report.plant)
    speed = report.cases / max(report.seconds, 1e-9)
    print(f"{speed:.0f} cases/s ({report.seconds:.1f} s, jobs: {report.jobs})")
    sys.stdout.flush()


def _print_failure(failure: Failure, plant: str | None) -> None:
    from ..sim.oracles import replay_command

    print(f"\nFAILED: case {failure.index}: {failure.verdict.kind}")
    if failure.shrunk == failure.scenario:
        print(failure.verdict.text)
    else:
        print(f"with {_size(failure.scenario.ranks)}; shrunk, with {_size(failure.shrunk.ranks)}:")
        print(failure.shrunk_verdict.text)
    print(f"\nreplay: {replay_command(failure.shrunk, plant)}\n")


def _size(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _save(report: Report, path: Path) -> bool:
    """Save the report; return whether that worked, and print why if not."""
    import json

    try:
        what = {**header(), **report.as_dict()}
        path.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        print(f"pypartial: {path} cannot be written: {error.strerror or error}", file=sys.stderr)
        return False
    return True


@contextmanager
def _progress(cases: int, *, shown: bool) -> Iterator[Callable[[int], None] | None]:
    """Yield a function to call with the number of cases done; it draws a bar if `shown`."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    drawn = 0.0
    with Progress(
        *Progress.get_default_columns()[1:3],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True, force_terminal=True),
        auto_refresh=False,  # no thread: the process forks
        transient=True,
    ) as bar:
        task = bar.add_task("", total=cases)

        def advance(done: int) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn >= 1 / REDRAWS_PER_S:
                drawn = now
                bar.update(task, completed=done, refresh=True)

        yield advance


# ---- one case again ------------------------------------------------------------------------------


def _replay(options: FuzzOptions) -> int:
    """Run one scenario in this process, so that a crash shows here."""
    from ..sim.fuzz import PLANTS
    from ..sim.handle import CoreError
    from ..sim.oracles import judge
    from ..sim.scenario import Scenario, run

    try:
        scenario = Scenario.from_text(options.replay or "")
    except ValueError as error:
        print(f"pypartial: --replay: {error}", file=sys.stderr)
        return 2
    try:
        outcome = run(scenario, **(PLANTS[options.plant.value] if options.plant else {}))
        _print_outcome(outcome)
        judge(scenario, outcome)
    except (AssertionError, CoreError) as error:
        print(f"FAILED: {error.text if isinstance(error, CoreError) else error}", flush=True)
        return 1
    print("All oracles hold.", flush=True)
    return 0


def _print_outcome(outcome: Outcome) -> None:
    """Print what every rank was given, and how often which interleaving occurred."""
    for index, logs in enumerate(outcome.logs):
        for rank, log in enumerate(logs):
            print(f"handle {index}, rank {rank}: {log.starts} Starts, {log.discarded} discarded")
            for group in log.groups:
                print(f"  {group}")
            for record in log.records:
                at = "" if record.at is None else f", {record.at} rounds complete"
                print(f"  {record.kind} (Start {record.start}{at}): {record.result}")
    counts = ", ".join(f"{name} {count}" for name, count in outcome.coverage.items())
    print(f"{outcome.rounds} rounds; {counts}")
