"""The table of ``pypartial tune``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..tables import Column, print_table
from ..tuning import Entry
from ..units import format_size
from .results import Report, TuneMeta, TuneRow
from .table import significant, verdict


def print_report(report: Report[TuneMeta, TuneRow], entries: Sequence[Entry]) -> None:
    """Print a report on standard output."""
    names = list(dict.fromkeys(row.algorithm for row in report.rows))
    sections = [
        [_cells(list(cells), names) for _, cells in itertools.groupby(group, key=lambda r: r.bytes)]
        for _, group in itertools.groupby(report.rows, key=lambda row: row.ranks)
    ]
    meta = report.meta
    where = "of one node" if meta.link == "node" else "of as many nodes"
    title = f'Full, balanced, transport="mpi": ranks {where}, {meta.cores} cores; {meta.mpi}'
    notes = [
        "µs: mean time of a call in a block on the slowest rank, median over the blocks; / best: "
        "time of the choice divided by that of the fastest.",
        f"before: with the choice so far ({meta.before}).",
        *(_model(entry, report.rows) for entry in entries),
    ]
    print_table(title, _columns(names), sections, notes)


def _short(algorithm: str) -> str:
    return algorithm.removeprefix("recursive_")


def _columns(algorithms: Sequence[str]) -> list[Column]:
    return [
        Column("ranks"),
        Column("size"),
        *(Column(_short(name), 2) for name in algorithms),
        Column("fastest", numbers=False),
        Column("chosen", numbers=False),
        Column("/ best"),
        Column("before", 1, numbers=False),
        Column("/ best", 1),
        Column("verified", numbers=False),
    ]


def _model(entry: Entry, rows: Sequence[TuneRow]) -> str:
    cost = entry.cost
    errors = sorted(
        abs(row.model_us / row.latency_us.p50 - 1) for row in rows if row.ranks == entry.ranks
    )
    return (
        f"Model for {entry.ranks} ranks: {cost.overhead_us:.3g} µs a round, {cost.copy_ns:.3g} "
        f"ns a byte, {cost.latency_us:.3g} µs a message, {cost.byte_ns:.3g} ns a byte sent, "
        f"{cost.reduce_ns:.3g} ns a byte reduced; off by {errors[len(errors) // 2]:.0%} in the "
        f"median, {errors[-1]:.0%} at most."
    )


def _cells(rows: Sequence[TuneRow], algorithms: Sequence[str]) -> list[str]:
    first = rows[0]
    times = {row.algorithm: row.latency_us.p50 for row in rows}
    fastest = min(times, key=lambda name: times[name])
    return [
        str(first.ranks),
        format_size(first.bytes),
        *(significant(times[name]) for name in algorithms),
        _short(fastest),
        _short(first.chosen),
        f"{times[first.chosen] / times[fastest]:.2f}",
        _short(first.chosen_before),
        f"{times[first.chosen_before] / times[fastest]:.2f}",
        verdict(all(row.verified for row in rows)),
    ]
