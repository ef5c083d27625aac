"""Printing of tables, and the table of ``bench skew``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from ..statistics import Active
from ..units import format_size
from .options import Buffers
from .results import DeviceFacts, Meta, Report, Row, SkewMeta

AnyRow = TypeVar("AnyRow", bound=Row)

# Wide enough for every column: under a launcher the width of the terminal is unknown.
_WIDTH = 130
_WIDTH_WITH_BUFFERS = 150


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, and whether it holds numbers."""

    heading: str
    numbers: bool = True


def print_table(
    title: str,
    columns: Sequence[Column],
    sections: Iterable[Sequence[Sequence[str]]],
    notes: Sequence[str],
    width: int = _WIDTH,
) -> None:
    """Print a table and notes on standard output.

    Parameters
    ----------
    title : str
    columns : sequence of Column
    sections : iterable of sequence of sequence of str
        The cells of the rows, in groups with a line between them.
    notes : sequence of str
        Notes that explain the table.
    width : int
        Of the longest line.
    """
    table = Table(title=title, title_justify="left", title_style="")
    for column in columns:
        table.add_column(
            column.heading, justify="right" if column.numbers else "left", no_wrap=True
        )
    for section in sections:
        for cells in section:
            table.add_row(*cells)
        table.add_section()
    # Plain text: a launcher may give a rank a terminal although the output goes to a file.
    console = Console(color_system=None, highlight=False, force_terminal=False, width=width)
    console.print(table)
    for note in notes:
        console.print(note)


def by_size(rows: Sequence[AnyRow]) -> list[list[AnyRow]]:
    """Return the rows in groups of one size."""
    return [list(group) for _, group in itertools.groupby(rows, key=lambda row: row.bytes)]


def print_report(report: Report[SkewMeta, Row]) -> None:
    """Print a report of ``bench skew`` on standard output."""
    numbers = ["mean µs", "p50", "p99", "max", "vs MPI", "active", "95 % CI", "expected", "CPU µs"]
    computes = any(row.slowdown is not None for row in report.rows)
    numbers += ["slowdown"] if computes else []
    names = ["policy", "buffers"] if _shows_buffers(report.rows) else ["policy"]
    columns = [
        Column("size"),
        *(Column(name, numbers=False) for name in names),
        *map(Column, numbers),
        Column("verified", numbers=False),
    ]
    sections = [
        [_cells(row, computes, "buffers" in names) for row in rows] for rows in by_size(report.rows)
    ]
    width = _WIDTH_WITH_BUFFERS if "buffers" in names else _WIDTH
    print_table(title(report.meta), columns, sections, notes(report), width)


def _shows_buffers(rows: Iterable[Row]) -> bool:
    return any(row.buffers != Buffers.NUMPY.value for row in rows)


def notes(report: Report[SkewMeta, Row]) -> list[str]:
    """Return the notes that explain the table."""
    return [
        "Latency: time from Start to the return of Wait, over all ranks and rounds. "
        "Active: ranks that were ready for the round, mean and 95 % confidence interval.",
        "CPU: time of the calling thread inside the calls and of the progress thread, for each "
        "rank and round.",
        *_about_slowdown(report.rows),
        *about_device(report.meta.device, report.rows),
        *circumstances(report.meta),
    ]


def _about_slowdown(rows: Sequence[Row]) -> list[str]:
    if all(row.slowdown is None for row in rows):
        return []
    return [
        "Slowdown: of the computation of late ranks until their calls, against rounds without any "
        "call."
    ]


def about_device(device: DeviceFacts | None, rows: Iterable[Row]) -> list[str]:
    """Return notes on buffers on a device, if there are such."""
    if device is None:
        return []
    libraries = ", ".join(f"{name} {version}" for name, version in device.libraries.items())
    driver = "" if device.driver is None else f", driver {device.driver}"
    return [
        "On a device a call ends when its result is there. cuda-staged-by-hand: MPI_Allreduce in "
        "pinned memory, to which and from which the program copies; it is the MPI of the rows with "
        "buffers on a device.",
        f"Device: {device.name}; CUDA {device.cuda}{driver}; {libraries}.",
        *_about_path(device, rows),
    ]


def _about_path(device: DeviceFacts, rows: Iterable[Row]) -> list[str]:
    """Return a note on how elements travelled, unless no row has them on a device."""
    used = dict.fromkeys(row.device_path for row in rows if row.device_path is not None)
    if not used:
        return []
    path, why = ", ".join(used), device.device_path_reason
    because = f", because another one is not possible: {why}" if why else ""
    return [f"Path of elements on a device: {path}{because}."]


def circumstances(meta: Meta) -> list[str]:
    """Return notes on how a run over all ranks went."""
    lines = []
    if meta.late_calls > 0.05:
        lines.append(
            f"Note: {meta.late_calls:.0%} of the calls began more than half a skew late: "
            f"{meta.ranks} ranks keep these {meta.cores} cores too busy for this skew."
        )
    if meta.first_round_s is not None:
        lines.append(f"First round {meta.first_round_s:.1f} s after the start of the launcher.")
    return lines


def title(meta: Meta) -> str:
    """Return one line that says what was measured where."""
    return f"Allreduce of {meta.dtype}: {setting(meta)}; {meta.mpi}"


def setting(meta: Meta) -> str:
    """Return ranks, cores and skew in words."""
    where = f"{_number(meta.ranks, 'rank')} on {_number(meta.cores, 'core')}"
    if meta.nodes > 1:
        where += f" of {meta.nodes} nodes"
    if not meta.skew_us:
        return f"{where}, balanced"
    doing = {"sleep": "sleeps", "compute": "computes"}[meta.work]
    return f"{where}, rank r {doing} r x {meta.skew_us / 1e3:g} ms before the call"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def significant(value: float) -> str:
    """Return a number with three significant digits, and all digits before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def optional(value: float | None) -> str:
    """Return a number as text; nothing for None."""
    return "" if value is None else significant(value)


def verdict(verified: bool) -> str:
    """Return whether everything was right, in a form that shows clearly that it was not."""
    return "yes" if verified else "NO"


def _cells(row: Row, computes: bool, shows_buffers: bool) -> list[str]:
    latency = row.latency_us
    slowdown = "" if row.slowdown is None else f"{row.slowdown:+.1%}"
    return [
        format_size(row.bytes),
        row.policy,
        *([row.buffers] if shows_buffers else []),
        *map(significant, (latency.mean, latency.p50, latency.p99, latency.max)),
        optional(row.speedup_vs_mpi),
        f"{row.active.mean:.2f}",
        _interval(row.active),
        _expectation(row),
        significant(row.cpu_us_per_round),
        *([slowdown] if computes else []),
        verdict(row.verified),
    ]


def _interval(active: Active) -> str:
    if active.ci95 is None:
        return ""
    low, high = active.ci95
    return f"{low:.2f}-{high:.2f}"


def _expectation(row: Row) -> str:
    """Return the expected number of active ranks, and whether the measurement agrees."""
    if row.active_expected is None:
        return ""
    verdict = "ok" if row.active.agrees_with(row.active_expected) else "off"
    return f"{row.active_expected:g} {verdict}"
