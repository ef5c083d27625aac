"""The table that ``pypartial sim skew`` prints."""

from __future__ import annotations

from itertools import groupby

from ..statistics import Active
from ..tables import Column, print_table
from ..units import format_duration, format_size
from .report import SkewReport
from .skew import Row

_COLUMNS = (
    *(Column("ranks"), Column("size"), Column("policy", numbers=False), Column("step")),
    *(Column("p50", 5), Column("p99", 4), Column("x"), Column("latency", 3)),
    *(Column("x latency", 3), Column("active"), Column("expected", 6), Column("stale", 1)),
    *(Column("msgs", 7), Column("bytes", 7), Column("idle", 2)),
)


def print_report(report: SkewReport) -> None:
    """Print all rows, and notes that explain them."""
    options = report.options
    title = (
        f"{report.arrivals}, {options.steps} steps"
        f"{', all beginning together' if options.with_barrier else ''}; network "
        f"{options.network.name}; deliver {options.deliver.value}, window {options.window}; "
        f"seed {options.seed}"
    )
    sections = [
        [_cells(row) for row in rows]
        for _, rows in groupby(report.rows, key=lambda row: (row.ranks, row.bytes))
    ]
    notes = [
        *map(_details, report.rows),
        "step: from its beginning to the end of Wait, mean over ranks and steps; p50 and p99 are "
        "its quantiles. latency: from Start to the end of Wait. x, x latency: how many times "
        "faster than full, by step and by latency. active: ranks that were ready for a round, "
        "with the 95 % confidence interval, and the expected number. stale: share of the parts "
        "that ranks gave to rounds with a contribution of an earlier call. msgs, bytes: sent by a "
        "rank in a step, headers included. idle: share of the time inside Start and Wait.",
    ]
    print_table(title, _COLUMNS, sections, notes)


def _cells(row: Row) -> list[str]:
    return [
        f"{row.ranks:,}",
        format_size(row.bytes),
        row.policy,
        _time(row.step_us.mean),
        _time(row.step_us.p50),
        _time(row.step_us.p99),
        f"{row.speedup_vs_synchronous:.2f}",
        _time(row.latency_us.mean),
        _factor(row.latency_speedup_vs_synchronous),
        _active(row.active),
        _expectation(row),
        f"{row.stale_share:.1%}",
        f"{row.messages_per_rank_step:.1f}",
        f"{row.bytes_per_rank_step:,.0f}",
        f"{row.idle.mean:.1%}",
    ]


def _factor(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2f}"


def _time(microseconds: float) -> str:
    return format_duration(1e3 * microseconds)


def _details(row: Row) -> str:
    """Return in words what has no column: rounds, causes, and the staleness of parts."""
    parts = max(sum(row.staleness.values()), 1)
    stale = ", ".join(f"{name}: {count / parts:.1%}" for name, count in row.staleness.items())
    causes = ", ".join(f"{count} by {cause}" for cause, count in row.causes.items())
    return (
        f"{row.policy} on {row.ranks:,} ranks, {format_size(row.bytes)}: {row.rounds} rounds "
        f"({causes}); missed {row.missed:.2f} of them a step; idle {row.idle.min:.1%} to "
        f"{row.idle.max:.1%}; parts of rounds by staleness: {stale}{_unchecked(row)}"
    )


def _unchecked(row: Row) -> str:
    if row.unchecked == 0:
        return ""
    return f"; {row.unchecked} sums not checked: no rank was given some round by itself"


def _active(active: Active) -> str:
    if active.ci95 is None:
        return f"{active.mean:,.2f}"
    return f"{active.mean:,.2f} ± {(active.ci95[1] - active.ci95[0]) / 2:,.2f}"


def _expectation(row: Row) -> str:
    """Return the expected number of active ranks, and whether the simulation agrees."""
    if row.active_expected is None:
        return ""
    if row.active.ci95 is None:
        return f"{row.active_expected:g}"
    verdict = "ok" if row.active.agrees_with(row.active_expected) else "off"
    return f"{row.active_expected:g} {verdict}"
