"""The table of ``bench latency``."""

from __future__ import annotations

from ..tables import Column, print_table
from ..units import format_size
from .results import LatencyMeta, LatencyRow, Report
from .table import about_device, by_size, circumstances, optional, significant, title, verdict

_COLUMNS = (
    Column("size"),
    Column("policy", numbers=False),
    Column("buffers", numbers=False),
    *(Column("µs"), Column("max", 4), Column("/ MPI", 1), Column("/ memcpy", 2)),
    *(Column("GB/s", 3), Column("active", 5), Column("CPU µs", 7), Column("calls", 6)),
    Column("verified", numbers=False),
)


def print_report(report: Report[LatencyMeta, LatencyRow]) -> None:
    """Print a report on standard output."""
    sections = [[_cells(row) for row in rows] for rows in by_size(report.rows)]
    print_table(title(report.meta), _COLUMNS, sections, notes(report))


def notes(report: Report[LatencyMeta, LatencyRow]) -> list[str]:
    """Return the notes that explain the table."""
    meta = report.meta
    return [
        "µs: mean time of a call in a block on the slowest rank, median over the blocks; max: the "
        "same of the worst block.",
        "/ MPI: µs divided by MPI_Allreduce's, below 1 is better; / memcpy: divided by those of a "
        "copy by all ranks at once. GB/s: size / µs. calls: blocks x calls in each.",
        "CPU: time of the calling thread inside the calls and of the progress thread, for each "
        "rank and call.",
        *about_device(meta.device, report.rows),
        *(f"Not measured, because this MPI does not have it: {what}." for what in meta.lacking),
        *circumstances(meta),
    ]


def _cells(row: LatencyRow) -> list[str]:
    return [
        format_size(row.bytes),
        row.policy,
        row.buffers,
        *map(significant, (row.latency_us.p50, row.latency_us.max)),
        *map(optional, (row.ratio_to_mpi, row.ratio_to_memcpy)),
        significant(row.gb_per_s),
        f"{row.active.mean:.2f}",
        significant(row.cpu_us_per_round),
        f"{row.blocks} x {row.calls}",
        verdict(row.verified),
    ]
