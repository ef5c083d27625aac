"""The table of ``bench torch``."""

from __future__ import annotations

from itertools import groupby

from ..tables import Column, print_table
from ..units import format_duration, format_size
from .results import Report, TorchMeta, TorchRow
from .table import verdict

_COLUMNS = (
    Column("parameters"),
    Column("way", numbers=False),
    *(Column("step"), Column("10 %", 2), Column("90 %", 2), Column("late rank", 1)),
    *(Column("/ gloo"), Column("10 %", 3), Column("90 %", 3), Column("blocks", 4)),
    Column("verified", numbers=False),
)


def print_report(report: Report[TorchMeta, TorchRow]) -> None:
    """Print a report on standard output."""
    sections = [
        [_cells(row) for row in section]
        for _, section in groupby(report.rows, key=lambda row: (row.part, row.bytes))
    ]
    print_table(f"Training steps: {setting(report.meta)}", _COLUMNS, sections, notes(report))


def setting(meta: TorchMeta) -> str:
    """Return what was measured where."""
    where = f"{meta.ranks} ranks on {meta.cores} cores"
    if meta.nodes > 1:
        where += f" of {meta.nodes} nodes"
    return f"{where}; PyTorch {meta.torch}, {meta.mpi}"


def notes(report: Report[TorchMeta, TorchRow]) -> list[str]:
    """Return the notes that explain the table."""
    lines = [
        "step: mean time of a step in a block on the slowest rank; median, 10 % and 90 % quantiles "
        "over the blocks. / gloo: over that of DistributedDataParallel on gloo, of the blocks in "
        "pairs; below 1 is better. blocks: blocks x steps in each.",
        f"A network of four layers, batches of {report.meta.batch}, SGD with momentum, one thread "
        "a rank.",
    ]
    if any(row.part == "late" for row in report.rows):
        base, late = (
            format_duration(us * 1e3) for us in (report.meta.base_us, report.meta.late_us)
        )
        lines.append(
            f"With a late rank: ranks compute for {base}, the last one for {late} longer. step: of "
            "the other ranks, their mean."
        )
    return lines


def label(row: TorchRow) -> str:
    """Return the name of a way, with its policy."""
    return row.way if row.policy is None else f"{row.way}, {row.policy}"


def _cells(row: TorchRow) -> list[str]:
    ratio = row.ratio_to_gloo
    return [
        format_size(row.bytes),
        label(row),
        *(_time(us) for us in (row.step_us.median, row.step_us.p10, row.step_us.p90)),
        "" if row.late_us is None else _time(row.late_us.median),
        *(f"{value:.2f}" for value in (ratio.median, ratio.p10, ratio.p90)),
        f"{row.blocks} x {row.steps}",
        verdict(row.verified),
    ]


def _time(us: float) -> str:
    return format_duration(us * 1e3)
