"""What the scripts of this folder share: options, launches with repeats, statistics, tables.

A script defines SECONDS (the expected time: all of it, and --quick), REPEATS (likewise) and
measure(), and ends with ``main(__file__, __doc__, measure, REPEATS)``. measure() is handed a `Run`,
which launches the commands of pypartial and remembers what they said; it returns a `Table`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pages
from commands import ROOT, Problem, command, launched
from support.mpirun import cores

PROGRAMS = ROOT / "bench" / "programs"
WORK = ROOT / "build" / "bench"  # fragments, environments and programs; git ignores it
RESAMPLES = 10_000
SEED = 2020
WIDTH = 120
NOT_HERE = 77  # exit code: this machine lacks what the table needs

Row = dict[str, Any]


class NotHere(Exception):
    """The machine lacks what the table needs; the text says what."""


# ---- statistics ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """A median, and its 95 % interval."""

    median: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Ratio:
    """Return the median with its 95 % interval: a bootstrap, always the same.

    NumPy does it in three lines; scipy.stats.bootstrap would be one more package to install.
    """
    samples = np.asarray(values, dtype=float)
    picks = np.random.default_rng(SEED).integers(0, len(samples), (RESAMPLES, len(samples)))
    low, high = np.percentile(np.median(samples[picks], axis=1), [2.5, 97.5])
    return Ratio(float(np.median(samples)), float(low), float(high))


def ratio(old: Sequence[float], new: Sequence[float]) -> Ratio:
    """Return new/old from launches in pairs."""
    return interval(np.asarray(new, dtype=float) / np.asarray(old, dtype=float))


# ---- text ---------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Return three significant digits, with commas between thousands."""
    if value == 0:
        return "0"
    digits = 2 - int(np.floor(np.log10(abs(value))))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def median(values: Sequence[float]) -> float:
    """Return the median; of an even number of values the mean of the two in the middle."""
    return float(np.median(values))


def middle(values: Sequence[float]) -> str:
    """Return "median [95 % interval]", or the value if there is only one."""
    if len(values) < 2:
        return number(values[0]) if values else ""
    found = interval(values)
    return f"{number(found.median)} [{number(found.low)}, {number(found.high)}]"


def extremes(values: Sequence[float]) -> str:
    """Return "median (least-most)", or the value if there is only one."""
    if len(values) < 2:
        return number(values[0]) if values else ""
    return f"{number(median(values))} ({number(min(values))}-{number(max(values))})"


def size_text(size: int) -> str:
    """Return a number of bytes as the tables write it."""
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


@dataclass
class Table:
    """A table, and what a reader must know of it.

    Attributes
    ----------
    head : list of str
    rows : list of list of str
    notes : str
        What the cells are: it stands under the table, above the conditions.
    """

    head: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: str = ""


def fragment(script: str, table: Table, conditions: str) -> str:
    """Return what stands in the documentation, its marks included."""
    notes = [wrapped(text) for text in (table.notes, conditions) if text]
    return pages.fragment(script, pages.table(table.head, table.rows), *notes)


def wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


# ---- launching ----------------------------------------------------------------------------------


@dataclass
class Run:
    """What a script was asked for, and what it has launched.

    Attributes
    ----------
    quick : bool
        A look whether the script works: fewer ranks, sizes and rounds.
    repeats : int
        Launches of everything.
    launches : list of dict
        Of each its command, ranks, variables, rows and meta.
    ranks : set of int
        With how many there were launches.
    """

    quick: bool = False
    repeats: int = 1
    launches: list[Row] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    def turns(self, sides: Sequence[Any] = (None,)) -> Iterator[Any]:
        """Give each of some sides once a repeat; the order alternates.

        A machine that becomes slower favours none of them.
        """
        for repeat in range(self.repeats):
            for side in sides if repeat % 2 == 0 else sides[::-1]:
                say(f"launch {repeat + 1} of {self.repeats}" + (f", {side}" if side else ""))
                yield side
        say("")

    def bench(self, ranks: int, line: str, **how: Any) -> list[Row]:
        """Launch a command of pypartial on some ranks; return the rows of its results."""
        rows: list[Row] = self.results(ranks, line, **how)["rows"]
        return rows

    def results(
        self,
        ranks: int,
        line: str,
        *,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        launcher: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Launch a command of pypartial on some ranks; return what it saves as JSON."""
        words = command(*line.split(), python=python)
        return self._launch(ranks, words, env, line, launcher)

    def program(
        self, ranks: int, words: Sequence[str], env: Mapping[str, str] | None = None
    ) -> list[Row]:
        """Launch a program that writes such a file, whose name is its last argument."""
        rows: list[Row] = self._launch(ranks, words, env, shlex.join(words))["rows"]
        return rows

    def _launch(
        self,
        ranks: int,
        words: Sequence[str],
        env: Mapping[str, str] | None,
        line: str,
        launcher: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        results = launched(ranks, words, env=env, launcher=launcher)
        self.ranks.add(ranks)
        self.launches.append({"command": line, "ranks": ranks, "env": dict(env or {}), **results})
        return results

    def meta(self, name: str) -> str:
        """Return what the launches said of themselves, each answer once."""
        metas = [one["meta"] for one in self.launches]
        return ", ".join(dict.fromkeys(str(meta[name]) for meta in metas if name in meta))

    def conditions(self, command: str) -> str:
        """Return the line under the table."""
        facts = [
            time.strftime("%Y-%m-%d", time.gmtime()),
            f"{cores()} cores ({processor()})",
            self.meta("mpi"),
            f"Python {self.meta('python')}" if self.meta("python") else "",
            f"pypartial {self.meta('version')}" if self.meta("version") else "",
            f"{ranks_text(self.ranks)}" if self.ranks else "",
            "one launch" if self.repeats == 1 else f"{self.repeats} launches",
            f"load {self.load:.1f} before",
        ]
        return f"*{', '.join(filter(None, facts))}; `{command}`*"


def ranks_text(ranks: set[int]) -> str:
    return f"P = {', '.join(map(str, sorted(ranks)))}"


def processor() -> str:
    """Return the name of the machine's processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else "unknown"


def find(rows: Sequence[Row], **fields: Any) -> Row:
    """Return the one row with these fields.

    Raises
    ------
    KeyError
        If there is none.
    """
    for row in rows:
        if all(row.get(name) == value for name, value in fields.items()):
            return row
    raise KeyError(f"no row has {fields}")


def say(text: str) -> None:
    """Show progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# ---- MPI's own calls ----------------------------------------------------------------------------

MPI_CALLS = {
    "mpi": "blocking",
    "mpi-persistent": "persistent",
    "mpi-nonblocking": "nonblocking",
}


def mpi_times(rows: Sequence[Row], size: int) -> dict[str, float]:
    """Return the median of each of MPI's own calls in a `bench latency`, in microseconds."""
    return {
        row["policy"]: row["latency_us"]["p50"]
        for row in rows
        if row["policy"] in MPI_CALLS and row["bytes"] == size
    }


# ---- the command --------------------------------------------------------------------------------


def parser(description: str | None, repeats: tuple[int, int]) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--quick", action="store_true", help="a look whether it works; seconds")
    found.add_argument("--json", type=Path, metavar="FILE", help="save all figures here")
    found.add_argument("--markdown", type=Path, metavar="FILE", help="save the table here")
    found.add_argument(
        "--repeats",
        type=int,
        metavar="N",
        help=f"launches of everything (default: {repeats[0]}, with --quick {repeats[1]})",
    )
    return found


def main(
    file: str,
    description: str | None,
    measure: Callable[[Run], Table],
    repeats: tuple[int, int],
) -> None:
    """Do what the command line of a script asks for, and exit."""
    options = parser(description, repeats).parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    asked = Run(options.quick, options.repeats or repeats[options.quick])
    script = Path(file).resolve().relative_to(ROOT).as_posix()
    try:
        table = measure(asked)
    except NotHere as error:
        print(f"{script}: {error}", file=sys.stderr)
        sys.exit(NOT_HERE)
    except (Problem, OSError) as error:
        print(f"{script}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{script}: interrupted", file=sys.stderr)
        sys.exit(130)
    conditions = asked.conditions(command_of(script, options))
    text = fragment(script, table, conditions)
    print(text, end="")
    if options.markdown is not None:
        options.markdown.write_text(text, encoding="utf-8")
    if options.json is not None:
        found = {"script": script, "conditions": conditions, "table": asdict(table)}
        found["launches"] = asked.launches
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def command_of(script: str, options: argparse.Namespace) -> str:
    """Return the command that makes the same table again."""
    words = ["python", script]
    words += ["--quick"] if options.quick else []
    words += ["--repeats", str(options.repeats)] if options.repeats else []
    return shlex.join(words)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
