"""Run random programs on simulated ranks and check the results: ``python -m tests.fuzz``.

Each case is a random program on a random number of ranks, and is checked against every oracle. The
fuzzer stops at the first case that fails, makes it smaller, and prints the command that replays it.
The exit code is 1 if a case failed or, from 1000 cases on, if one of the interleavings that are
hard to get right occurred in less than 1 % of the cases.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if not list(ROOT.glob("pypartial/_core_sim*.so")):  # another one is installed
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT]

from pypartial._launch import stderr_is_terminal  # noqa: E402
from pypartial.cli.sim import REDRAWS_PER_S, alone  # noqa: E402
from pypartial.provenance import header  # noqa: E402
from pypartial.sim.handle import CoreError  # noqa: E402

from .draw import WHAT  # noqa: E402
from .fuzzer import COVERAGES, PLANTS, WHAT_OF_PLANT, Failure, Report, fuzz  # noqa: E402
from .oracles import judge, replay_command  # noqa: E402
from .scenario import Outcome, Scenario, run  # noqa: E402


def main(words: Sequence[str] | None = None) -> int:
    """Run random cases, or replay one.

    Returns
    -------
    int
        The exit code: 1 if a case failed, if the cases covered too little, or if the report cannot
        be saved; 2 if the scenario to replay cannot be read.
    """
    options = _parser().parse_args(words)
    if options.replay is not None:
        return alone(lambda: _replay(options.replay, options.plant), None)
    return alone(lambda: _fuzz(options), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--cases", type=_positive, default=1000, metavar="N", help="at most (1000)")
    add("--seed", type=int, default=0, metavar="N", help="the same seed gives the same cases (0)")
    add("--seconds", type=float, help="begin no further case after so many seconds")
    add("--jobs", type=_positive, metavar="N", help="processes that share the cases (the cores)")
    names = ", ".join(sorted(PLANTS))
    add("--plant", choices=PLANTS, metavar="DEFECT", help=f"plant one that it finds: {names}")
    add("--what", choices=sorted(WHAT), help="cases of which kind (all, or that of the defect)")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--replay", metavar="TEXT", help="run this scenario, which a report has")
    only.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


# ---- random cases --------------------------------------------------------------------------------


def _fuzz(options: argparse.Namespace) -> int:
    what = options.what or WHAT_OF_PLANT.get(options.plant, "all")
    with _progress(options.cases, shown=stderr_is_terminal()) as progress:
        report = fuzz(
            options.cases,
            options.seed,
            seconds=options.seconds,
            jobs=options.jobs,
            plant=options.plant,
            what=what,
            progress=progress,
        )
    _print_report(report)
    if options.json is not None:
        text = json.dumps({**header(), **report.as_dict()}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    if report.cases == 0 and report.failure is None:
        print("no case was run: choose a larger --seconds", file=sys.stderr)
        return 1
    return int(not report.passed())


def _print_report(report: Report) -> None:
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
    print(f"\nFAILED: case {failure.index}: {failure.verdict.kind}")
    if failure.shrunk == failure.scenario:
        print(failure.verdict.text)
    else:
        print(f"with {_size(failure.scenario.ranks)}; shrunk, with {_size(failure.shrunk.ranks)}:")
        print(failure.shrunk_verdict.text)
    print(f"\nreplay: {replay_command(failure.shrunk, plant)}\n")


def _size(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


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


def _replay(text: str, plant: str | None) -> int:
    """Run one scenario in this process, so that a crash shows here."""
    try:
        scenario = Scenario.from_text(text)
    except ValueError as error:
        print(f"--replay: {error}", file=sys.stderr)
        return 2
    try:
        outcome = run(scenario, **(PLANTS[plant] if plant else {}))
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


if __name__ == "__main__":
    sys.exit(main())
