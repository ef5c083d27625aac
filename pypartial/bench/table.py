"""The table of ``bench skew``, and what tables of benchmarks share."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ..statistics import Active
from ..tables import Column, print_table
from ..units import format_size
from .options import Buffers
from .results import DeviceFacts, Meta, Report, Row, SkewMeta

AnyRow = TypeVar("AnyRow", bound=Row)


def by_size(rows: Sequence[AnyRow]) -> list[list[AnyRow]]:
    """Return the rows in groups of one size."""
    return [list(group) for _, group in itertools.groupby(rows, key=lambda row: row.bytes)]


def print_report(report: Report[SkewMeta, Row]) -> None:
    """Print a report of ``bench skew`` on standard output."""
    computes = any(row.slowdown is not None for row in report.rows)
    several = any(row.buffers != Buffers.NUMPY.value for row in report.rows)
    columns = [
        Column("size"),
        Column("policy", numbers=False),
        *([Column("buffers", numbers=False)] if several else []),
        *(Column("mean µs"), Column("p50", 3), Column("p99", 2), Column("max", 5)),
        *(Column("vs MPI", 1), Column("active"), Column("95 % CI", 7), Column("expected", 4)),
        Column("CPU µs", 6),
        *([Column("slowdown")] if computes else []),
        Column("verified", numbers=False),
    ]
    sections = [[_cells(row, computes, several) for row in rows] for rows in by_size(report.rows)]
    print_table(title(report.meta), columns, sections, notes(report))


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
