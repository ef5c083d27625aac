"""The plot of a report: latency against size, a line a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from ..units import format_size
from .results import Meta, Report, Row
from .table import setting

# Okabe and Ito's colours, which colour-blind readers tell apart; MPI is black.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MPI_COLOUR = "#000000"
_LABELS = {"mpi": "MPI_Allreduce"}
# Least distance of two labels, as a share of the axis.
_LABEL_DISTANCE = 0.05


def save_plot(report: Report, path: Path) -> None:
    """Draw average latency against size and save it; the suffix of the file names its format."""
    figure, axes = plt.subplots(figsize=(8.5, 5.2), layout="constrained")
    lines = by_policy(report.rows)
    colours = iter(_COLOURS * (1 + len(lines) // len(_COLOURS)))
    ends: list[tuple[Row, str]] = []
    for policy, rows in lines.items():
        colour = _MPI_COLOUR if policy == "mpi" else next(colours)
        axes.plot(
            [row.bytes for row in rows],
            [row.latency_us.mean for row in rows],
            color=colour,
            linestyle="--" if policy == "mpi" else "-",
            marker="o",
            markersize=5,
            linewidth=1.8,
        )
        ends.append((rows[-1], colour))
    _scale(axes, report.rows)
    _label(axes, ends)
    _caption(axes, report.meta, report.rows[0].rounds)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def by_policy(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each policy by size, in the order in which the policies appear first."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.policy, []).append(row)
    return {policy: sorted(line, key=lambda row: row.bytes) for policy, line in lines.items()}


def spread(positions: Sequence[float], distance: float) -> list[float]:
    """Move positions apart until no two are closer than `distance`, each as little as possible.

    Neighbours that are too close form a block around their mean; blocks that then touch are merged
    (pool adjacent violators).  The result is in the order of the input.
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    blocks: list[tuple[float, int]] = []  # mean of (position - place in its block), members
    for place, index in enumerate(order):
        blocks.append((positions[index] - place * distance, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (last, members), (mean, more) = blocks.pop(), blocks.pop()
            blocks.append(((last * members + mean * more) / (members + more), members + more))
    starts = [mean for mean, members in blocks for _ in range(members)]
    moved = [0.0] * len(positions)
    for place, index in enumerate(order):
        moved[index] = starts[place] + place * distance
    return moved


def _scale(axes: Axes, rows: Sequence[Row]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({row.bytes for row in rows})
    axes.set_xticks(sizes, [format_size(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_time))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    means = [row.latency_us.mean for row in rows]
    axes.set_ylim(min(means) / 2, max(means) * 2)
    axes.grid(visible=True, color="#dddddd", linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)


def _label(axes: Axes, ends: Sequence[tuple[Row, str]]) -> None:
    """Write each policy at the end of its line, and there how much faster than MPI it is."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [to_axes.transform((row.bytes, row.latency_us.mean))[1] for row, _ in ends]
    for (row, colour), height in zip(ends, spread(heights, _LABEL_DISTANCE), strict=True):
        text = _LABELS.get(row.policy, row.policy)
        if row.policy != "mpi" and (row.speedup_vs_mpi or 0) >= 1.05:
            text += f" ({row.speedup_vs_mpi:.3g} x faster at {format_size(row.bytes)})"
        axes.text(
            1.01, height, text, color=colour, va="center", transform=axes.transAxes, fontsize=10
        )


def _caption(axes: Axes, meta: Meta, rounds: int) -> None:
    axes.set_xlabel(f"size of a rank's buffer ({meta.dtype})")
    axes.set_ylabel(f"latency, mean over ranks and {rounds} rounds")
    axes.set_title("Partial allreduce and MPI_Allreduce", loc="left", fontsize=13, pad=24)
    axes.text(
        0,
        1.02,
        f"{setting(meta)}; {meta.mpi}",
        transform=axes.transAxes,
        fontsize=10,
        color="#444444",
    )


def _time(microseconds: float, _position: int | None = None) -> str:
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= factor:
            return f"{microseconds / factor:g} {unit}"
    return f"{microseconds:g} µs"
