"""The plot of a report: latency against size, a line for each way to sum."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from ..units import format_size
from .results import LatencyMeta, LatencyRow, Meta, Report, Row, SkewMeta
from .table import setting

AnyRow = TypeVar("AnyRow", bound=Row)
Key = TypeVar("Key", bound=Hashable)

# Okabe and Ito's colours, which colour-blind readers tell apart; MPI is black.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MPI_COLOUR = "#000000"
_COPY_COLOUR = "#888888"
_LABELS = {
    "mpi": "MPI_Allreduce",
    "mpi-nonblocking": "MPI_Iallreduce",
    "mpi-persistent": "MPI persistent",
    "memcpy": "memory copy",
}
# Colour and style of the ways that the library is compared with.
_OTHERS = {
    "mpi": (_MPI_COLOUR, "--"),
    "mpi-nonblocking": (_MPI_COLOUR, ":"),
    "mpi-persistent": (_MPI_COLOUR, "-."),
    "memcpy": (_COPY_COLOUR, ":"),
}
# The labels of more sizes than this are written aslant.
_LEVEL_TICKS = 8
# The least distance of two labels, as a share of the axis.
_LABEL_DISTANCE = 0.05


@dataclass(frozen=True)
class Line:
    """A line of a plot, and the label at its end."""

    label: str
    sizes: Sequence[int]
    microseconds: Sequence[float]
    colour: str
    style: str = "-"


def save_plot(report: Report[SkewMeta, Row], path: Path) -> None:
    """Draw average latency against size and save it; the suffix of the file names its format."""
    colours = itertools.cycle(_COLOURS)
    lines = []
    for policy, rows in lines_of(report.rows, lambda row: row.policy).items():
        last, other = rows[-1], policy in _OTHERS
        label = _LABELS.get(policy, policy)
        if not other and (last.speedup_vs_mpi or 0) >= 1.05:
            label += f" ({last.speedup_vs_mpi:.3g} x faster at {format_size(last.bytes)})"
        lines.append(
            Line(
                label,
                [row.bytes for row in rows],
                [row.latency_us.mean for row in rows],
                *(_OTHERS[policy] if other else (next(colours), "-")),
            )
        )
    latency = f"latency, mean over ranks and {report.rows[0].rounds} rounds"
    _draw(lines, report.meta, "Partial allreduce and MPI_Allreduce", latency, path)


def save_latency_plot(report: Report[LatencyMeta, LatencyRow], path: Path) -> None:
    """Draw latency against size and save it, as `save_plot` does."""
    colours = itertools.cycle(_COLOURS)
    lines = []
    by_way = lines_of(report.rows, lambda row: (row.policy, row.buffers))
    for (policy, buffers), rows in by_way.items():
        last, other = rows[-1], policy in _OTHERS
        label = _LABELS.get(policy, f"{policy}, {buffers}")
        if not other and last.ratio_to_mpi is not None:
            label += f" ({last.ratio_to_mpi:.3g} x MPI at {format_size(last.bytes)})"
        lines.append(
            Line(
                label,
                [row.bytes for row in rows],
                [row.latency_us.p50 for row in rows],
                *(_OTHERS[policy] if other else (next(colours), "-")),
            )
        )
    latency = "time of a call on the slowest rank, median of blocks"
    _draw(lines, report.meta, "Partial allreduce, MPI's own, and a copy", latency, path)


def lines_of(rows: Iterable[AnyRow], way: Callable[[AnyRow], Key]) -> dict[Key, list[AnyRow]]:
    """Return the rows of each way to sum, by size; the ways are in the order of their first row."""
    lines: dict[Key, list[AnyRow]] = {}
    for row in rows:
        lines.setdefault(way(row), []).append(row)
    return {key: sorted(line, key=lambda row: row.bytes) for key, line in lines.items()}


def spread(positions: Sequence[float], distance: float) -> list[float]:
    """Move positions apart, as little as possible, until no two are closer than `distance`.

    Neighbours that are too close form a block around their mean. Blocks that then touch are merged
    (pool adjacent violators). The result is in the order of the input.
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


def _draw(lines: Sequence[Line], meta: Meta, title: str, latency: str, path: Path) -> None:
    """Draw lines over the sizes and save the picture."""
    figure, axes = plt.subplots(figsize=(8.5, 5.2), layout="constrained")
    for line in lines:
        axes.plot(
            line.sizes,
            line.microseconds,
            color=line.colour,
            linestyle=line.style,
            marker="o",
            markersize=5,
            linewidth=1.8,
        )
    _scale(axes, lines)
    _label(axes, lines)
    axes.set_xlabel(f"size of a rank's buffer ({meta.dtype})")
    axes.set_ylabel(latency)
    axes.set_title(title, loc="left", fontsize=13, pad=24)
    axes.text(
        0,
        1.02,
        f"{setting(meta)}; {meta.mpi}",
        transform=axes.transAxes,
        fontsize=10,
        color="#444444",
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _scale(axes: Axes, lines: Sequence[Line]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({size for line in lines for size in line.sizes})
    axes.set_xticks(sizes, [format_size(size) for size in sizes])
    if len(sizes) > _LEVEL_TICKS:
        axes.tick_params(axis="x", labelrotation=45)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_time))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    times = [microseconds for line in lines for microseconds in line.microseconds]
    axes.set_ylim(min(times) / 2, max(times) * 2)
    axes.grid(visible=True, color="#dddddd", linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_axisbelow(True)


def _label(axes: Axes, lines: Sequence[Line]) -> None:
    """Write the label of each line at its end."""
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [to_axes.transform((line.sizes[-1], line.microseconds[-1]))[1] for line in lines]
    for line, height in zip(lines, spread(heights, _LABEL_DISTANCE), strict=True):
        axes.text(
            1.01,
            height,
            line.label,
            color=line.colour,
            va="center",
            transform=axes.transAxes,
            fontsize=10,
        )


def _time(microseconds: float, _position: int | None = None) -> str:
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= factor:
            return f"{microseconds / factor:g} {unit}"
    return f"{microseconds:g} µs"
