"""The table of ``bench gossip``."""

from __future__ import annotations

from itertools import groupby

from ..tables import Column, print_table
from ..units import format_size
from .group_table import setting
from .results import GossipMeta, GossipRow, Report
from .table import significant, verdict

_COLUMNS = (
    Column("size"),
    Column("way", numbers=False),
    Column("buffers", numbers=False),
    *(Column("µs"), Column("best", 2), Column("max", 4)),
    *(Column("/ MPI"), Column("/ sendrecv"), Column("/ neighbor"), Column("distance", 1)),
    Column("iterations", 3),
    Column("verified", numbers=False),
)


def print_report(report: Report[GossipMeta, GossipRow]) -> None:
    """Print a report on standard output."""
    sections = [
        [_cells(row) for row in section]
        for _, section in groupby(report.rows, key=lambda row: row.bytes)
    ]
    notes = [
        "µs: mean time of an iteration in a block on the slowest rank, median over the blocks; "
        "best, max: of the best and worst block. iterations: blocks x iterations in each.",
        "/ MPI: over MPI_Allreduce and a division; / sendrecv: over MPI_Sendrecv with a neighbour "
        "and an addition; / neighbor: over MPI_Neighbor_allgather and an average; medians.",
        f"distance: of the models from their mean after {len(report.rows[0].consensus)} "
        "iterations, over that before.",
    ]
    title = f"Gossip on {report.meta.topology}: {setting(report.meta)}"
    print_table(title, _COLUMNS, sections, notes)


def _cells(row: GossipRow) -> list[str]:
    times = row.latency_us.p50, row.best_us, row.latency_us.max
    ratios = row.ratio_to_mpi, row.ratio_to_sendrecv, row.ratio_to_neighbor
    return [
        format_size(row.bytes),
        row.way,
        row.buffers,
        *map(significant, times),
        *(f"{ratio.median:.2f}" for ratio in ratios),
        f"{row.consensus[-1]:.1e}",
        f"{row.blocks} x {row.calls}",
        verdict(row.verified),
    ]
