"""The table of ``bench overhead``."""

from __future__ import annotations

from itertools import groupby

from ..tables import Column, print_table
from ..units import format_size
from .results import OverheadMeta, OverheadRow, Report
from .table import optional, significant, verdict

_COLUMNS = (
    Column("call", numbers=False),
    Column("of", numbers=False),
    Column("buffers", numbers=False),
    *(Column("ns"), Column("10 %", 2), Column("90 %", 2)),
    *(Column("/ MPI"), Column("/ persistent", 1)),
    Column("verified", numbers=False),
)


def print_report(report: Report[OverheadMeta, OverheadRow]) -> None:
    """Print a report on standard output."""
    sections = [
        [_cells(row) for row in rows]
        for _, rows in groupby(report.rows, key=lambda row: (row.of, row.buffers))
    ]
    print_table(title(report), _COLUMNS, sections, notes(report.meta))


def title(report: Report[OverheadMeta, OverheadRow]) -> str:
    """Return one line that says what was measured."""
    meta, size = report.meta, report.rows[0].bytes
    return (
        f"Calls from Python {meta.python}: one rank, float32, {format_size(size)}, "
        f"{meta.policy}; {meta.mpi}"
    )


def notes(meta: OverheadMeta) -> list[str]:
    """Return the notes that explain the table."""
    return [
        f"ns: mean time of a call in a loop of {meta.calls}; median, 10 % and 90 % quantiles over "
        f"{meta.loops} loops, which take turns.",
        "/ MPI, / persistent: ns divided by those of mpi4py's Allreduce and of its "
        "persistent Start+Wait on MPI_COMM_SELF; below 1 is better.",
        f"{meta.clock_ns:.0f} ns are subtracted from Start, Wait and Test alone: the time of "
        "reading the clock. Test: of a complete request. Wait(timeout=...): until its "
        "TimeoutError.",
        *(f"Not measured, because this MPI does not have it: {what}." for what in meta.lacking),
    ]


def _cells(row: OverheadRow) -> list[str]:
    return [
        row.call,
        row.of,
        row.buffers,
        *map(significant, (row.ns.median, row.ns.p10, row.ns.p90)),
        *map(optional, (row.ratio_to_mpi, row.ratio_to_mpi_persistent)),
        verdict(row.verified),
    ]
