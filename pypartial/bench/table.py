"""The table that the micro-benchmark prints."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ..statistics import Active
from ..units import format_size
from .results import Meta, Report, Row

# Wide enough for every column; under a launcher the width of the terminal is not known.
_WIDTH = 130


def print_report(report: Report) -> None:
    """Print a report on standard output."""
    # Plain text: a launcher may give a rank a terminal for what in the end becomes a file.
    console = Console(color_system=None, highlight=False, force_terminal=False, width=_WIDTH)
    console.print(_table(report))
    for note in notes(report):
        console.print(note)


def notes(report: Report) -> list[str]:
    """Return what a reader should know to read the table."""
    meta = report.meta
    lines = [
        "Latency: time from Start to the return of Wait, over all ranks and rounds. "
        "Active: ranks whose data was fresh, mean and 95 % confidence interval.",
        "CPU: the calling thread inside the calls, and the progress thread, a rank and round.",
    ]
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


def _table(report: Report) -> Table:
    table = Table(title=title(report.meta), title_justify="left", title_style="")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    numbers = ("mean µs", "p50", "p99", "max", "vs MPI", "active", "95 % CI", "expected", "CPU µs")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verified", no_wrap=True)
    for row, following in zip(report.rows, [*report.rows[1:], None], strict=True):
        table.add_row(
            *_cells(row), end_section=following is not None and following.bytes != row.bytes
        )
    return table


def _cells(row: Row) -> list[str]:
    latency = row.latency_us
    return [
        format_size(row.bytes),
        row.policy,
        *map(_significant, (latency.mean, latency.p50, latency.p99, latency.max)),
        "" if row.speedup_vs_mpi is None else _significant(row.speedup_vs_mpi),
        f"{row.active.mean:.2f}",
        _interval(row.active),
        _expectation(row),
        _significant(row.cpu_us_per_round),
        "yes" if row.verified else "NO",
    ]


def _interval(active: Active) -> str:
    if active.ci95 is None:
        return ""
    low, high = active.ci95
    return f"{low:.2f}-{high:.2f}"


def _expectation(row: Row) -> str:
    """Return the active ranks in theory, and whether the measurement agrees."""
    if row.active_expected is None:
        return ""
    verdict = "ok" if row.active.agrees_with(row.active_expected) else "off"
    return f"{row.active_expected:g} {verdict}"


def _significant(value: float) -> str:
    """Three significant digits, and all digits before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
