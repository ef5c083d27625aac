"""The tables of ``bench groups``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ..statistics import Spread
from ..tables import Column, print_table
from ..units import format_duration, format_size
from .results import (
    GossipMeta,
    GroupLatencyRow,
    GroupsMeta,
    GroupsReport,
    IterationRow,
    IterationSide,
)
from .table import optional, significant, verdict

_LATENCY_NUMBERS = (
    *(Column("µs"), Column("max", 3), Column("/ MPI"), Column("/ create", 1)),
    *(Column("/ split", 2), Column("ranks", 4), Column("CPU µs", 6), Column("calls", 5)),
)
_ITERATION_COLUMNS = (
    Column("generator", numbers=False),
    Column("backend", numbers=False),
    Column("ranks", numbers=False),
    *(Column("iteration"), Column("10 %", 2), Column("90 %", 2), Column("undisturbed", 1)),
    *(Column("x"), Column("10 %", 3), Column("90 %", 3)),
    Column("verified", numbers=False),
)


def print_report(report: GroupsReport) -> None:
    """Print a report on standard output."""
    where = setting(report.meta)
    if report.rows:
        _print_latencies(f"Groups: {where}", report.rows)
    if report.iterations:
        sections = [_iteration_cells(row) for row in report.iterations]
        title = f"Iterations, {format_size(report.iterations[0].bytes)}: {where}"
        print_table(title, _ITERATION_COLUMNS, sections, iteration_notes(report.meta))


def _print_latencies(title: str, rows: Sequence[GroupLatencyRow]) -> None:
    several = len({row.buffers for row in rows if not row.way.startswith("mpi")}) > 1
    columns = [
        *map(Column, ("groups", "size")),
        Column("way", numbers=False),
        *([Column("buffers", numbers=False)] if several else []),
        *_LATENCY_NUMBERS,
        Column("verified", numbers=False),
    ]
    sections = [
        [_latency_cells(row, several) for row in section]
        for _, section in groupby(rows, key=lambda row: (row.size, row.groups, row.bytes))
    ]
    print_table(title, columns, sections, latency_notes(rows))


def setting(meta: GroupsMeta | GossipMeta) -> str:
    """Return what was measured where."""
    where = f"{meta.ranks} ranks on {meta.cores} cores"
    if meta.nodes > 1:
        where += f" of {meta.nodes} nodes"
    return f"{meta.dtype}, {where}; {meta.mpi}"


def latency_notes(rows: Sequence[GroupLatencyRow]) -> list[str]:
    """Return the notes that explain the table of latencies."""
    notes = [
        "groups: how many at once x ranks of each; all other ranks sleep. ranks: of the groups "
        "that calls were in, on average.",
        "µs: mean time of a call in a block on the slowest rank, median over the blocks; max: the "
        "same of the worst block. calls: blocks x calls in each.",
        "/ MPI: µs divided by those of MPI_Allreduce and a division on a communicator that is "
        "kept (mpi), below 1 is better; / create, / split: on one that each call makes by "
        "MPI_Comm_create_group or MPI_Comm_split.",
        "CPU: time of the calling thread inside the calls and of the progress thread, for each "
        "rank and call.",
    ]
    if any(row.way == "full" for row in rows):
        notes.append("full: an allreduce of this library on a context of the group's ranks.")
    if any(row.way == "smart" for row in rows):
        notes.append("smart: without its filters, which would leave out ranks that fall behind.")
    if any(row.way == "random" and row.groups > 1 for row in rows):
        notes.append("random, several groups: a Wait also runs groups that other ranks drew.")
    return notes


def iteration_notes(meta: GroupsMeta) -> list[str]:
    """Return the notes that explain the table of iterations."""
    base, run = (format_duration(us * 1e3) for us in (meta.base_us, meta.run_us))
    return [
        f"Ranks sleep before each Start: {meta.arrivals}, base {base}; runs of {run}. "
        "full: an allreduce of all ranks.",
        "iteration, undisturbed: mean time of an iteration of these ranks, and that without the "
        "slow rank; x: the first over the second. Medians, 10 % and 90 % quantiles over the runs.",
    ]


def _latency_cells(row: GroupLatencyRow, shows_buffers: bool) -> list[str]:
    ratios = (row.ratio_to_mpi, row.ratio_to_create_group, row.ratio_to_split)
    return [
        f"{row.groups} x {row.size}",
        format_size(row.bytes),
        row.way if row.backend is None else f"{row.way}, {row.backend}",
        *([row.buffers] if shows_buffers else []),
        *map(significant, (row.latency_us.p50, row.latency_us.max)),
        *map(optional, ratios),
        f"{row.members:.2f}",
        significant(row.cpu_us_per_call),
        f"{row.blocks} x {row.calls}",
        verdict(row.verified),
    ]


def _iteration_cells(row: IterationRow) -> list[list[str]]:
    name = f"{row.generator}:{row.size}" if row.size else row.generator
    lines = []
    for side in row.sides:
        first = side is row.sides[0]
        lines.append(
            [
                name if first else "",
                (row.backend or "") if first else "",
                side.name,
                *_side_cells(side),
                verdict(row.verified) if first else "",
            ]
        )
    return lines


def _side_cells(side: IterationSide) -> list[str]:
    undisturbed = "" if side.undisturbed_us is None else _time(side.undisturbed_us.median)
    iteration = side.iteration_us
    return [
        *map(_time, (iteration.median, iteration.p10, iteration.p90)),
        undisturbed,
        *_ratio_cells(side.ratio),
    ]


def _ratio_cells(ratio: Spread | None) -> list[str]:
    if ratio is None:
        return ["", "", ""]
    return [f"{value:.2f}" for value in (ratio.median, ratio.p10, ratio.p90)]


def _time(us: float) -> str:
    return format_duration(us * 1e3)
